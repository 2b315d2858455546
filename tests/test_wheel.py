"""The installed package as a file on somebody else's machine: what it needs, weighs and leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zlib
from importlib import metadata
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from pyblas_sgemm import _cffi

PACKAGE = Path(_cffi.__file__).parent
LIBRARY = PACKAGE / "lib" / "libpyblas_sgemm.so"
SHIMS = [PACKAGE / "lib" / f"libpyblas_{name}.so" for name in ("cublas", "cublas_preload", "blas_preload")]
LOADER = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6"}
SYSTEM |= {LOADER.get(os.uname().machine, "")}


def dynamic(file: Path, tag: str) -> list[str]:
    with file.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".dynamic")
        return [getattr(entry, tag[3:].lower()) for entry in section.iter_tags(tag)]


def test_the_library_needs_only_what_every_linux_has():
    assert set(dynamic(LIBRARY, "DT_NEEDED")) <= SYSTEM


@pytest.mark.parametrize("shim", SHIMS, ids=lambda path: path.name)
def test_a_shim_needs_the_library_beside_it(shim):
    assert set(dynamic(shim, "DT_NEEDED")) <= SYSTEM | {"libpyblas_sgemm.so"}
    assert dynamic(shim, "DT_RUNPATH") == ["$ORIGIN"]


def test_the_module_needs_the_library_beside_it():
    assert set(dynamic(Path(_cffi.__file__), "DT_NEEDED")) <= SYSTEM | {"libpyblas_sgemm.so"}
    assert dynamic(Path(_cffi.__file__), "DT_RUNPATH") == ["$ORIGIN/lib"]


def test_one_wheel_serves_every_python():
    assert Path(_cffi.__file__).name == "_cffi.abi3.so"
    tags = [line for line in metadata.distribution("pyblas-sgemm").read_text("WHEEL").splitlines() if "Tag:" in line]
    assert tags == [f"Tag: cp310-abi3-linux_{os.uname().machine}"]


def test_everything_for_c_lies_below_one_folder():
    for name in (
        "include/pyblas_sgemm.h",
        "lib/libpyblas_sgemm.so",
        "lib/pkgconfig/pyblas_sgemm.pc",
        "lib/cmake/pyblas_sgemm/pyblas_sgemm-config.cmake",
        "lib/cmake/pyblas_sgemm/pyblas_sgemm-config-version.cmake",
    ):
        assert (PACKAGE / name).is_file(), name
    texts = [*PACKAGE.glob("lib/cmake/**/*.cmake"), *PACKAGE.glob("lib/pkgconfig/*.pc")]
    here = (sysconfig.get_paths()["purelib"], str(Path(__file__).parents[1]))
    assert not [text for text in texts if any(folder in text.read_text() for folder in here)], "it cannot be moved"


def test_the_compiled_part_weighs_at_most_10_megabytes():
    files = [LIBRARY, *SHIMS, Path(_cffi.__file__)]
    assert sum(len(zlib.compress(file.read_bytes())) for file in files) <= 10_000_000


@pytest.mark.parametrize("option", ["cmake-dir", "include-dir", "pkgconfig-dir", "lib-dir"])
def test_the_commands_name_folders_of_the_compiled_part(option, tmp_path):
    scripts = Path(sysconfig.get_path("scripts"))
    for command in ([scripts / "pyblas-sgemm"], [sys.executable, "-m", "pyblas_sgemm"]):
        done = subprocess.run([*command, f"--{option}"], cwd=tmp_path, capture_output=True, text=True, check=True)
        folder = Path(done.stdout.strip())
        assert folder.is_dir()
        assert folder.is_relative_to(PACKAGE)


PRODUCTS = """
import hashlib, sys, numpy, scipy.linalg
from scipy.linalg.blas import dgemm, sgemm
random = numpy.random.default_rng(1)
a, b = random.standard_normal((2, 150, 150))
x, y = a.astype("f4"), b.astype("f4")
results = [a @ b, x @ y, x @ y[0], sgemm(2, x, y), dgemm(2, a, b), scipy.linalg.solve(a, b), numpy.linalg.inv(x)]
print(hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest())
"""
LOAD = f"""
import ctypes
ctypes.CDLL({str(LIBRARY)!r}, ctypes.RTLD_GLOBAL)
"""


def test_names_in_the_global_scope_change_nothing_for_numpy_and_scipy(prints):
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}
    alone = prints(PRODUCTS, **one_thread)
    assert prints(LOAD + PRODUCTS, **one_thread) == alone
    imports = "import numpy, scipy.linalg, scipy.linalg.blas\n"
    assert prints(imports + LOAD + PRODUCTS, **one_thread) == alone
    with_products = """
import numpy, pyblas_sgemm
assert (pyblas_sgemm.matmul(numpy.ones((300, 200), "f4"), numpy.ones((200, 300), "f4")) == 200).all()
"""
    assert prints(LOAD + with_products + PRODUCTS, **one_thread) == alone


def test_import_loads_no_cuda_library(prints):
    program = """
import pyblas_sgemm
def loaded():
    maps = open("/proc/self/maps").read()
    return [name for name in ("libcuda.so", "libcudart.so", "libcublas.so", "libnvidia-ml.so") if name in maps]
print(loaded())
import engines
engines.lib.pyblasDeviceCount(engines.ffi.new("int *"))
print([name for name in loaded() if name != "libcuda.so"], engines.driver_is_started())
"""
    assert prints(program) == "[]\n[] False"


def test_a_machine_without_a_driver_computes_on_the_cpu(tmp_path, prints):
    broken = tmp_path / "driver"
    broken.mkdir()
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        (broken / name).write_bytes(b"")
    program = """
import numpy, pyblas_sgemm
from pyblas_sgemm._cffi import ffi, lib
count = ffi.new("int *", -1)
assert lib.pyblasDeviceCount(count) == 0 and count[0] == 0
assert ffi.string(lib.pyblasGetLastErrorMessage())
handle = ffi.new("pyblasHandle_t *")
assert lib.pyblasCreate(handle) != 0
assert ffi.string(lib.pyblasGetLastErrorMessage())
a = numpy.array([[1, 2], [3, 4]], "f4")
c = pyblas_sgemm.sgemm("N", "N", 2, 2, 2, 1, a, 2, a, 2, 0, numpy.empty((2, 2), "f4"), 2)
print(c.tolist())
"""
    assert prints(program, LD_LIBRARY_PATH=str(broken)) == "[[7.0, 10.0], [15.0, 22.0]]"
