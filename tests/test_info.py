"""info(): what it says, and that saying it starts nothing."""

import json

import numpy as np
import pytest

import pyblas_sgemm
from engines import ffi, kernel_rows, lib
from pyblas_sgemm._info import Info

GPU = {
    "device": 0,
    "name": "NVIDIA Something",
    "sm": "7.0",
    "memory_bytes": 16 * 2**30,
    "driver_version": "580.1",
    "cuda_version": "13.0",
    "supported": False,
    "reason": "its SM is older than the build's",
}


def made_up(**changes):
    facts = {
        "version": "1.2.3",
        "library": "/lib/libpyblas_sgemm.so",
        "cpu": {"instruction_set": "avx2", "threads": 1, "blas": "", "blas_path": ""},
        "gpus": [],
        "no_gpu_reason": "no NVIDIA driver",
        "build": {"cuda": "", "architectures": []},
        "settings": {"compute": "fp32", "kernel": "", "environment": {}, "fault": ""},
    }
    return Info(facts | changes)


def test_is_plain_data():
    facts = pyblas_sgemm.info()
    assert isinstance(facts, dict)
    assert json.loads(json.dumps(facts)) == facts
    assert set(facts) == {"version", "library", "cpu", "gpus", "no_gpu_reason", "build", "settings"}


def test_library_and_version():
    facts = pyblas_sgemm.info()
    with open(facts["library"], "rb") as library:
        assert library.read(4) == b"\x7fELF"
    number = ffi.new("int *")
    lib.pyblasGetVersion(number)
    major, minor, patch = map(int, facts["version"].split("."))
    assert major * 10000 + minor * 100 + patch == number[0]


def test_large_products_go_to_the_blas_that_the_package_brings():
    cpu = pyblas_sgemm.info()["cpu"]
    assert "scipy_openblas32" in cpu["blas_path"]
    assert "OpenBLAS" in cpu["blas"]
    assert cpu["instruction_set"] in ("avx512", "avx2", "generic")
    assert cpu["threads"] >= 1


def test_no_gpu_has_a_reason():
    facts = pyblas_sgemm.info()
    assert bool(facts["gpus"]) != bool(facts["no_gpu_reason"])
    for gpu in facts["gpus"]:
        assert gpu["supported"] != bool(gpu["reason"])


def test_hidden_gpus_are_no_gpus(prints):
    program = "import pyblas_sgemm; facts = pyblas_sgemm.info(); print(facts['gpus'], bool(facts['no_gpu_reason']))"
    assert prints(program, CUDA_VISIBLE_DEVICES="") == "[] True"


def test_asking_does_not_load_the_driver(prints):
    program = "import pyblas_sgemm; pyblas_sgemm.info(); print('libcuda.so' in open('/proc/self/maps').read())"
    assert prints(program) == "False"


def test_settings_follow_the_environment(prints):
    program = "import json, pyblas_sgemm; print(json.dumps(pyblas_sgemm.info()))"
    plain = json.loads(prints(program))
    assert plain["settings"] == {"compute": "fp32", "kernel": "", "environment": {}, "fault": ""}
    kernel = kernel_rows()[0][0]
    variables = {
        "PYBLAS_SGEMM_COMPUTE": "fp32_pedantic",
        "PYBLAS_SGEMM_KERNEL": kernel,
        "PYBLAS_SGEMM_THREADS": "1",
    }
    changed = json.loads(prints(program, **variables))
    assert changed["settings"] == {
        "compute": "fp32_pedantic",
        "kernel": kernel,
        "environment": variables,
        "fault": "",
    }
    assert changed["cpu"]["threads"] == 1


@pytest.mark.parametrize("name", ["PYBLAS_SGEMM_COMPUTE", "PYBLAS_SGEMM_KERNEL"])
def test_a_setting_that_does_not_exist_is_told(prints, name):
    report = prints("import pyblas_sgemm; print(pyblas_sgemm.info())", **{name: "fast"})
    assert f"Compute mode: environment variable {name} is 'fast'" in report


def test_settings_follow_the_context():
    with pyblas_sgemm.compute_mode("fp32_pedantic"):
        assert pyblas_sgemm.info()["settings"]["compute"] == "fp32_pedantic"
    assert pyblas_sgemm.info()["settings"]["compute"] == "fp32"


def test_prints_as_a_report():
    facts = pyblas_sgemm.info()
    report = str(facts)
    for fact in (facts["version"], facts["library"], facts["cpu"]["blas_path"], facts["no_gpu_reason"]):
        assert fact in report
    assert "\n\n" not in report


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "CPU: avx2, 1 thread, no BLAS for large products"),
        ({}, "GPU: none; no NVIDIA driver"),
        ({}, "Build: built without CUDA"),
        (
            {"build": {"cuda": "13.0", "architectures": ["80", "90a", "80-ptx"]}},
            "Build: CUDA 13.0, GPU code for 80 90a 80-ptx",
        ),
        (
            {"gpus": [GPU]},
            "GPU 0: NVIDIA Something, SM 7.0, 16 GiB, driver 580.1 (CUDA 13.0); not used: its SM is older than the build's",
        ),
        (
            {"gpus": [GPU | {"supported": True, "reason": ""}]},
            "GPU 0: NVIDIA Something, SM 7.0, 16 GiB, driver 580.1 (CUDA 13.0)",
        ),
        (
            {"settings": {"compute": "fp32", "kernel": "x", "environment": {"PYBLAS_SGEMM_KERNEL": "x"}, "fault": ""}},
            "Environment: PYBLAS_SGEMM_KERNEL=x",
        ),
    ],
)
def test_report_lines(changes, line):
    assert line in str(made_up(**changes)).splitlines()


@pytest.mark.gpu
def test_gpus_are_those_of_the_runtime():
    import cupy

    gpus = pyblas_sgemm.info()["gpus"]
    assert len(gpus) == cupy.cuda.runtime.getDeviceCount()
    for gpu in gpus:
        facts = cupy.cuda.runtime.getDeviceProperties(gpu["device"])
        assert gpu["name"] == facts["name"].decode()
        assert gpu["sm"] == f"{facts['major']}.{facts['minor']}"
        np.testing.assert_allclose(gpu["memory_bytes"], facts["totalGlobalMem"], rtol=0.05)
