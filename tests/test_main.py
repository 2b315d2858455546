"""The command pyblas-sgemm and python -m pyblas_sgemm."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pyblas_sgemm
from engines import kernel_rows
from pyblas_sgemm import __main__ as program

CPU = program.cpu_device({"instruction_set": "any", "threads": 2})
SCRIPT = Path(sys.executable).parent / "pyblas-sgemm"


@pytest.fixture
def command(tmp_path):
    """Runs a command outside the source tree; returns its exit status and what it printed."""

    def run(*words):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout

    return run


@pytest.fixture
def quick(monkeypatch):
    """No waiting and few runs: the speed is not what is tested."""
    monkeypatch.setattr(program, "SPIN_SECONDS", 0)
    monkeypatch.setattr(program.median_seconds, "__defaults__", (0.001,))


def test_without_arguments_it_works_on_every_device(command):
    status, output = command(SCRIPT)
    assert status == 0, output
    assert str(pyblas_sgemm.info()) in output
    for gpu in pyblas_sgemm.info()["gpus"]:
        assert f"GPU {gpu['device']}" in output
    assert "sgemm 1024 x 1024 x 1024" in output
    assert "attention 32 x 12 heads" in output
    assert "All results are within the error bounds of fp32." in output


@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-m", "pyblas_sgemm"]])
def test_script_and_module_are_the_same(command, start):
    assert command(*start, "--version") == (0, f"pyblas-sgemm {pyblas_sgemm.info()['version']}\n")
    status, output = command(*start, "--help")
    assert status == 0
    assert output.startswith("usage: pyblas-sgemm")


@pytest.mark.parametrize(
    ("option", "file"),
    [
        ("--cmake-dir", "pyblas_sgemm-config.cmake"),
        ("--include-dir", "pyblas_sgemm.h"),
        ("--pkgconfig-dir", "pyblas_sgemm.pc"),
        ("--lib-dir", "libpyblas_sgemm.so"),
    ],
)
def test_folders_hold_what_their_names_say(capsys, option, file):
    assert program.main([option]) == 0
    assert (Path(capsys.readouterr().out.rstrip("\n")) / file).is_file()


def test_several_folders_are_one_a_line(capsys):
    assert program.main(["--lib-dir", "--include-dir"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [Path(line).name for line in lines] == ["include", "lib"]


def test_a_reader_that_leaves_early_is_no_fault(tmp_path):
    program = f"'{SCRIPT}' info; echo ended with $? >&2"
    done = subprocess.run(
        ["sh", "-c", f"({program}) | true"], cwd=tmp_path, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr in ("ended with 1\n", "ended with 0\n")  # 0 if it was faster than the reader


def test_info(capsys):
    assert program.main(["info"]) == 0
    assert capsys.readouterr().out == f"{pyblas_sgemm.info()}\n"
    assert program.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == pyblas_sgemm.info()


def test_kernels(capsys):
    assert program.main(["kernels"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "engine", "types", "modes", "SM", "from"]
    assert [row.split()[0] for row in rows] == [name for name, *_ in kernel_rows(types=None)]


def test_unknown_arguments_are_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        program.main(["--no-such-option"])
    assert stop.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize("size", [64, 200])
def test_right_products_are_within_the_bound(quick, size):
    outcome = program.run_sgemm(CPU, size)
    assert outcome.within_bound
    assert outcome.error < 1e-6
    assert outcome.operations == 2 * size**3


def test_right_attention_is_within_the_bound(quick):
    assert program.run_attention(CPU, tokens=24, sequences=3, heads=2, dim=8).within_bound


def one_element_off(function):
    def call(*arguments, **keywords):
        c = function(*arguments, **keywords)
        c.reshape(-1)[-1] += 0.01
        return c

    return call


def never_written(function):
    return lambda *arguments, **keywords: None


def rounded_inputs(function):
    """What a product in TF32 would give."""

    def call(transa, transb, m, n, k, alpha, a, lda, b, *rest, **keywords):
        a, b = ((x.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32) for x in (a, b))
        return function(transa, transb, m, n, k, alpha, a, lda, b, *rest, **keywords)

    return call


@pytest.mark.parametrize("fault", [one_element_off, never_written, rounded_inputs])
def test_wrong_products_are_found(quick, monkeypatch, fault):
    monkeypatch.setattr(pyblas_sgemm, "sgemm", fault(pyblas_sgemm.sgemm))
    assert not program.run_sgemm(CPU, 256).within_bound


@pytest.mark.parametrize("fault", [one_element_off, never_written])
def test_wrong_attention_is_found(quick, monkeypatch, fault):
    monkeypatch.setattr(pyblas_sgemm, "gemm_strided_batched", fault(pyblas_sgemm.gemm_strided_batched))
    assert not program.run_attention(CPU, tokens=24, sequences=3, heads=2, dim=8).within_bound


def test_a_wrong_result_is_said_and_ends_with_1(monkeypatch, capsys):
    outcomes = [program.Outcome(work, 1, 1, 1, 1e-7, of_bound) for work, of_bound in (("good", 1), ("bad", np.nan))]
    monkeypatch.setattr(program, "run_device", lambda *_, **__: outcomes)
    monkeypatch.setattr(program, "gpu_devices", lambda gpus: [])
    assert program.demonstrate() == 1
    assert "Wrong: errors beyond the bound of fp32 in bad.\n" in capsys.readouterr().out


def test_an_error_is_said_and_ends_with_1(monkeypatch, capsys):
    def fail(*_, **__):
        raise pyblas_sgemm.NotSupportedError("the kernel cannot do this")

    monkeypatch.setattr(program, "run_device", fail)
    assert program.demonstrate() == 1
    assert "Failed: the kernel cannot do this (PYBLAS_STATUS_NOT_SUPPORTED)\n" in capsys.readouterr().out


def test_a_gpu_without_an_array_library_is_said(monkeypatch, capsys):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(program.importlib, "import_module", missing)
    gpu = {"device": 1, "name": "NVIDIA Something", "cuda_version": "13.0", "supported": True, "reason": ""}
    assert list(program.gpu_devices([gpu])) == []
    output = capsys.readouterr().out
    assert "GPU 1 (NVIDIA Something) was found" in output
    assert "(No module named 'cupy'; No module named 'torch')" in output
    assert "pip install 'cupy-cuda13x[ctk]'" in output


def test_a_gpu_that_is_not_supported_has_its_reason(monkeypatch, capsys):
    gpu = {"device": 0, "name": "NVIDIA Old", "cuda_version": "12.0", "supported": False, "reason": "its SM is 5.0"}
    assert list(program.gpu_devices([gpu])) == []
    assert "GPU 0 (NVIDIA Old) is not used: its SM is 5.0" in capsys.readouterr().out


# ---- host arrays ------------------------------------------------------------------------------------------------------


@pytest.fixture
def host_arrays(monkeypatch, capsys):
    """Runs `pyblas-sgemm host` with the CPU in the place of GPUs; returns its status, what it said and what it asked."""

    def run(*options, product=pyblas_sgemm.sgemm):
        asked = {}

        def sgemm(*arguments, handle, devices, progress, **keywords):
            asked.update(devices=devices, memory=handle.memory_limit)
            progress(0.5)
            return product(*arguments, **keywords)

        monkeypatch.setattr(pyblas_sgemm, "sgemm", sgemm)
        status = program.main(["host", "--size", "256", *options])
        return status, capsys.readouterr().out, asked

    return run


def test_host_arrays_are_multiplied_and_checked(host_arrays):
    status, said, asked = host_arrays("--devices", "1", "0", "--memory", str(1 << 30))
    assert (status, asked) == (0, {"devices": [1, 0], "memory": 1 << 30})
    assert said.startswith("sgemm 256 x 256 x 256 of host arrays on GPU 1, 0: ") and "of its bound" in said


@pytest.mark.parametrize("fault", [one_element_off, never_written, rounded_inputs])
def test_wrong_products_of_host_arrays_end_with_1(host_arrays, fault):
    assert host_arrays(product=fault(pyblas_sgemm.sgemm))[0] == 1


def test_a_failed_product_of_host_arrays_is_said(host_arrays):
    def fail(*_, **__):
        raise pyblas_sgemm.AllocError("out of memory, C is unchanged")

    status, said, _ = host_arrays(product=fail)
    assert (status, said) == (1, "Failed: out of memory, C is unchanged (PYBLAS_STATUS_ALLOC_FAILED)\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_shown_when_work_takes_longer_than_a_second(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(program.time, "perf_counter", lambda: now[0])
    for screen, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(program.sys, "stderr", screen)
        with program.Bar("multiplying") as bar:
            now[0] += 0.9
            bar(0.2)
            assert screen.getvalue() == ""
            now[0] += 0.2
            bar(0.5)
            bar(0.6)
        assert ("multiplying" in screen.getvalue()) is shown
        assert ("60%" in screen.getvalue()) is shown


def test_no_bar_without_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setattr(program.sys, "stderr", Terminal())
    monkeypatch.setattr(program.time, "perf_counter", iter([0.0, 2.0]).__next__)
    with program.Bar("multiplying") as bar:
        bar(0.5)
    assert program.sys.stderr.getvalue() == ""


@pytest.mark.gpu
def test_host_arrays_on_the_gpu(command):
    status, said = command(sys.executable, "-m", "pyblas_sgemm", "host", "--size", "1000", "--memory", str(1 << 30))
    assert status == 0 and "on GPU 0" in said


@pytest.mark.gpu
def test_cupy_arrays_on_the_gpu(quick):
    device = next(program.gpu_devices(pyblas_sgemm.info()["gpus"]))  # the current one, until the next is asked for
    assert device.library == "CuPy"
    assert program.run_sgemm(device, 256).within_bound
    assert program.run_attention(device, tokens=24, sequences=3, heads=2, dim=8).within_bound


@pytest.mark.gpu
@pytest.mark.interop("torch")
def test_torch_tensors_on_the_gpu(quick):
    device = program.torch_device(0, "GPU")
    assert program.run_sgemm(device, 256).within_bound
    assert program.run_attention(device, tokens=24, sequences=3, heads=2, dim=8).within_bound
