"""What may be skipped and why, the engines that tests run on, and processes of their own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

import engines
from engines import ffi, lib

_MAY_SKIP = {"gpu", "interop", "large"}
_IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
_forbidden_skips: list[str] = []

settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if _IN_CI else "default")


def pytest_configure(config):
    # NumPy is the oracle here. Its threads would spin on the processors that the code under test needs; ours are not
    # loaded yet, so this reaches NumPy alone.
    threadpool_limits(1, user_api="blas")
    for mark in (
        "gpu: needs an NVIDIA GPU that the library has code for, and CuPy",
        "interop(*packages): needs packages that the tests do not ask for (pip install '.[interop]')",
        "large(host=GiB, gpu=GiB): needs that much free memory where it runs",
    ):
        config.addinivalue_line("markers", mark)


@cache
def gpu_missing():
    """Why there is no GPU to test on; empty if there is one.

    CuPy is asked, not the library under test: that the library fails to see a GPU is a failure, not a reason to skip.
    """
    if lib.pyblasGetBuildArchitectures() == ffi.NULL or not ffi.string(lib.pyblasGetBuildArchitectures()):
        return "the library was built without CUDA"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    if not cupy.is_available():
        return "CuPy finds no GPU"
    built = [int("".join(c for c in a if c.isdigit())) for a in build_architectures().split() if "ptx" not in a]
    sm = int(cupy.cuda.Device().compute_capability)
    return "" if not built or sm >= min(built) else f"the GPU is sm_{sm} and the library was built for {built}"


def build_architectures():
    return ffi.string(lib.pyblasGetBuildArchitectures()).decode()


def free_host_memory():
    """Bytes that may still be taken, by the machine's count and the container's."""
    with open("/proc/meminfo") as meminfo:
        lines = dict(line.split(":", 1) for line in meminfo)
    free = int(lines["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        statistics = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
        free = min(free, limit - used + int(statistics.get("inactive_file", 0)))
    return free


def free_gpu_memory():
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.cuda.runtime.memGetInfo()[0]


def _reason_to_skip(item):
    if item.get_closest_marker("gpu") and gpu_missing():
        return gpu_missing()
    for mark in item.iter_markers("interop"):
        absent = [package for package in mark.args if importlib.util.find_spec(package) is None]
        if absent:
            return f"{' and '.join(absent)} not installed"
    for mark in item.iter_markers("large"):
        where, count = ("gpu", free_gpu_memory) if item.get_closest_marker("gpu") else ("host", free_host_memory)
        if count() < mark.kwargs[where] * 2**30:
            return f"less than {mark.kwargs[where]} GiB of {where} memory are free"
    return None


def pytest_runtest_setup(item):
    reason = _reason_to_skip(item)
    if reason:
        pytest.skip(reason)


def pytest_report_header(config):
    cpu = ffi.new("pyblasCpuInfo_t *")
    lib.pyblasCpuInfo(cpu)
    blas = ffi.string(cpu.blas).decode() or "no BLAS"
    lines = [
        f"pyblas_sgemm: {Path(sys.modules['pyblas_sgemm'].__file__).parent}",
        f"cpu: {ffi.string(cpu.instruction_set).decode()}, {cpu.threads} threads, {blas}",
    ]
    if gpu_missing():
        return [*lines, f"gpu: tests are skipped, {gpu_missing()}"]
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    return [*lines, f"gpu: {name}, built for {build_architectures()}"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not any(mark.name in _MAY_SKIP for mark in item.iter_markers()):
        _forbidden_skips.append(report.nodeid)
    return report


def pytest_collectreport(report):
    if report.skipped:
        _forbidden_skips.append(report.nodeid)


def pytest_sessionfinish(session, exitstatus):
    if _IN_CI and _forbidden_skips and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    if _forbidden_skips:
        terminalreporter.section("skipped without a mark that allows it")
        for nodeid in _forbidden_skips:
            terminalreporter.line(nodeid)


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def engine(request):
    """Each test that takes it runs on the CPU and, where there is one, on the GPU."""
    return engines.named(request.param)


@pytest.fixture
def cpu():
    return engines.named("cpu")


@pytest.fixture
def gpu():
    """For tests with the mark gpu."""
    return engines.named("gpu")


@pytest.fixture
def handle(engine):
    """A C handle of the engine, with every setting as it comes."""
    handle = engine.handle()
    yield handle
    engine.synchronize()
    assert lib.pyblasDestroy(handle) == engines.SUCCESS


@pytest.fixture
def cpu_handle(cpu):
    handle = cpu.handle()
    yield handle
    assert lib.pyblasDestroy(handle) == engines.SUCCESS


@pytest.fixture
def gpu_handle(gpu):
    handle = gpu.handle()
    yield handle
    gpu.synchronize()
    assert lib.pyblasDestroy(handle) == engines.SUCCESS


@pytest.fixture
def gpu_alone(gpu):
    """For tests that fill or count the memory of the whole GPU."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("other test processes use the GPU's memory")
    return gpu


@pytest.fixture
def python(tmp_path):
    """Runs a program in a fresh interpreter, outside the source tree, with the modules of the tests at hand."""

    def run(program, *arguments, timeout=120, **environment):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYBLAS_SGEMM_")}
        variables.update(environment)
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
        variables["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def prints(python):
    """Runs a program that must end well and say nothing on stderr; returns what it printed."""

    def run(program, *arguments, **keywords):
        done = python(program, *arguments, **keywords)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.stderr == "", done.stderr
        return done.stdout.strip()

    return run
