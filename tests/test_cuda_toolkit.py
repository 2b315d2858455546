"""The choice of a compiler and of architectures, for machines that are not this one."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "cmake" / "cuda_toolkit.py"
CUDA_13 = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121}
CUDA_12_0 = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90}


@pytest.fixture
def toolkit():
    spec = importlib.util.spec_from_file_location("cuda_toolkit", SOURCE)
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look for their module by name.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cuda_toolkit", module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def machine(toolkit, monkeypatch):
    """A machine with these parts."""

    def make(system=None, wheel=None, driver=None):
        monkeypatch.setattr(toolkit, "system_nvcc", lambda: system and Path(system))
        monkeypatch.setattr(toolkit, "wheel_nvcc", lambda: wheel and Path(wheel))
        monkeypatch.setattr(toolkit, "nvidia_driver", lambda: driver)
        return driver

    return make


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([(9, 0)], "90a 80-ptx"),
        ([(7, 5)], "75 80-ptx"),
        ([(8, 6), (9, 0), (8, 6)], "86 90a 80-ptx"),
        ([(12, 1)], "121 80-ptx"),
        ([(8, 8), (10, 9)], "88 103 80-ptx"),  # a later minor version runs the code of an earlier one
        ([(13, 0)], "80-ptx"),  # unknown to the compiler, so PTX serves it
        ([(7, 0)], "80-ptx"),  # too old for this compiler
    ],
)
def test_by_default_the_gpus_of_the_machine_are_built_for(toolkit, gpus, expected):
    assert toolkit.architectures("", CUDA_13, toolkit.Driver((13, 0), gpus)) == expected.split()


def test_without_a_gpu_the_default_serves_the_most(toolkit):
    assert toolkit.architectures("", CUDA_13, None) == ["80", "90a", "80-ptx"]


def test_all_is_the_release_list_as_far_as_the_compiler_knows_it(toolkit):
    assert toolkit.architectures("all", CUDA_13, None) == ["75", "80", "86", "90a", "100", "120", "80-ptx"]
    assert toolkit.architectures("all", CUDA_12_0, None) == ["75", "80", "86", "90a", "80-ptx"]


@pytest.mark.parametrize(
    "request_", ["80;90a;80-ptx", "80,90a,80-virtual", " 80-real 90a 80-ptx 80 ", "80;90a;80-ptx;"]
)
def test_lists_are_read_however_they_are_separated(toolkit, request_):
    assert toolkit.architectures(request_, CUDA_13, None) == ["80", "90a", "80-ptx"]


@pytest.mark.parametrize(("request_", "text"), [("sm_80", "'sm_80'"), ("native", "'native'"), ("70;80", "know 70;")])
def test_wrong_lists_are_refused(toolkit, request_, text):
    with pytest.raises(toolkit.BuildError, match=text):
        toolkit.architectures(request_, CUDA_13, None)


def test_the_system_compiler_goes_first(toolkit, machine):
    driver = machine(system="/a/nvcc", wheel="/b/nvcc")
    assert toolkit.choose("", driver).nvcc == Path("/a/nvcc")
    assert toolkit.choose("wheel", driver).nvcc == Path("/b/nvcc")
    assert toolkit.choose("off", driver).nvcc is None


def test_a_broken_compiler_is_fatal_only_where_gpu_code_is_expected(toolkit, machine):
    assert not toolkit.choose("auto", machine(system="/a/nvcc")).required
    assert toolkit.choose("system", machine(system="/a/nvcc")).required
    assert toolkit.choose("auto", machine(system="/a/nvcc", driver=toolkit.Driver((13, 0), [(9, 0)]))).required


def test_packages_are_fetched_for_a_gpu_without_a_toolkit(toolkit, machine):
    new, old = toolkit.Driver((13, 0), [(9, 0)]), toolkit.Driver((12, 4), [(9, 0)])
    machine(driver=new)
    assert toolkit.wants_wheels("")
    assert not toolkit.wants_wheels("off")
    machine(driver=new, system="/a/nvcc")
    assert not toolkit.wants_wheels("auto")
    assert toolkit.wants_wheels("wheel")
    machine(driver=old)
    assert not toolkit.wants_wheels("auto")
    assert "CUDA up to 12.4 only" in toolkit.choose("auto", old).reason
    assert all("==13.0.*" in wheel for wheel in toolkit.WHEELS)


def test_what_cannot_be_had_is_said(toolkit, machine):
    machine()
    assert "PYBLAS_CUDA=wheel" in toolkit.choose("auto", None).reason
    for mode, text in (
        ("system", "no nvcc 12.0"),
        ("wheel", "pip install"),
        ("on", "must be auto, system, wheel or off"),
    ):
        with pytest.raises(toolkit.BuildError, match=text):
            toolkit.choose(mode, None)


def test_an_old_system_compiler_is_passed_over(toolkit, tmp_path, monkeypatch):
    for name, release in (("old", "11.8"), ("new", "12.6")):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        (folder / "nvcc").write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.0'\n")
        (folder / "nvcc").chmod(0o755)
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'old' / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "new"))
    assert toolkit.system_nvcc() == tmp_path / "new" / "bin" / "nvcc"
    monkeypatch.setenv("CUDACXX", str(tmp_path / "new" / "bin" / "nvcc"))
    assert toolkit.system_nvcc() == tmp_path / "new" / "bin" / "nvcc"
