"""info(): what it says, and that saying it starts nothing."""

import json
import os
import subprocess
from pathlib import Path

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


def test_asking_does_not_start_the_driver(prints):
    program = "import pyblas_sgemm, engines; pyblas_sgemm.info(); print(engines.driver_is_started())"
    assert prints(program) == "False"


@pytest.mark.gpu
def test_using_it_does(prints):
    program = "import cupy, engines; cupy.cuda.Device(0).compute_capability; print(engines.driver_is_started())"
    assert prints(program) == "True"


# ---- a machine whose driver says what the test wants --------------------------------------------------------------------

GPUS = "Old:35:GPU-aa11;New:90:GPU-aa22;Newest:999:GPU-bb33"
TELL = """
import json, os, sys
import numpy as np
import pyblas_sgemm
told = []
for visible in json.loads(sys.argv[1]):
    os.environ["CUDA_VISIBLE_DEVICES"] = visible
    told.append(pyblas_sgemm.info())
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
told.append(pyblas_sgemm.info())
a = np.ones((2, 2), np.float32)
try:
    pyblas_sgemm.matmul(a, a, device="cuda")
except pyblas_sgemm.SgemmError as error:
    told.append(str(error))
assert (pyblas_sgemm.matmul(a, a) == 2).all()
print(json.dumps(told))
"""


@pytest.fixture
def machine(tmp_path, prints):
    """Runs a program with that NVML and no libcuda: info() for each list of visible devices and for none, and what a
    product on a GPU says."""
    source = Path(__file__).parent / "native" / "fake_nvml.c"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-Wall", "-Werror", source, "-o"]
    subprocess.run([*command, tmp_path / "libnvidia-ml.so.1"], check=True)
    (tmp_path / "libcuda.so.1").write_bytes(b"")

    def run(*visible, gpus=GPUS, cuda=99000, **variables):
        variables |= {"LD_LIBRARY_PATH": str(tmp_path), "FAKE_GPUS": gpus, "FAKE_CUDA": str(cuda)}
        return json.loads(prints(TELL, json.dumps(visible), **variables))

    return run


def test_visible_devices_are_those_of_the_runtime(machine):
    names = {
        "0,1,2": ["Old", "New", "Newest"],
        "2,0": ["Newest", "Old"],
        " 1 , 2": ["New", "Newest"],
        "1,-1,0": ["New"],
        "1,7,0": ["New"],
        "": [],
        "-1": [],
        "NoDevFiles": [],
        "GPU-bb33,0": ["Newest", "Old"],
        "GPU-b": ["Newest"],
        "MIG-1": ["Part"],
        "1,GPU-zz": ["New"],
    }
    for (visible, wanted), facts in zip(names.items(), machine(*names), strict=False):
        assert [gpu["name"] for gpu in facts["gpus"]] == wanted, visible
        assert [gpu["device"] for gpu in facts["gpus"]] == list(range(len(wanted))), visible
        assert facts["no_gpu_reason"] == ("" if wanted else f"CUDA_VISIBLE_DEVICES={visible} shows no GPU")


def test_a_gpu_that_the_build_does_not_serve_says_which_it_does(machine):
    build = pyblas_sgemm.info()["build"]
    facts, said = machine()
    old, new, newest = facts["gpus"]
    assert (old["sm"], new["sm"], newest["sm"]) == ("3.5", "9.0", "99.9")
    assert old["driver_version"] == "470.1" and old["memory_bytes"] == 1 << 34
    if not build["cuda"]:
        assert "built without CUDA" in old["reason"] and "built without CUDA" in said
        return
    assert old["reason"] == f"Old is sm_35, but this build has code for: {' '.join(build['architectures'])}"
    assert newest["supported"] == any(name.endswith("-ptx") for name in build["architectures"])
    assert said == f"no GPU to use: {old['reason']}"


def test_a_driver_that_is_too_old_says_what_is_needed(machine):
    build = pyblas_sgemm.info()["build"]
    facts, said = machine(cuda=11040)
    if build["cuda"]:
        least = f"{build['cuda'].partition('.')[0]}.0"
        reason = f"driver 470.1 serves CUDA 11.4, but this build needs a driver for CUDA {least} or later"
        assert [gpu["reason"] for gpu in facts["gpus"]] == [reason] * 3
        assert said == f"no GPU to use: {reason}"


def test_a_driver_without_gpus_or_without_an_answer_says_so(machine):
    facts, said = machine(gpus="")
    assert facts["gpus"] == [] and facts["no_gpu_reason"] == "the NVIDIA driver knows no GPU"
    if pyblas_sgemm.info()["build"]["cuda"]:
        assert said == f"no GPU to use: {facts['no_gpu_reason']}"
    facts, _ = machine(FAKE_FAILURE="9")
    assert facts["no_gpu_reason"] == "the NVIDIA driver does not answer (NVML error 9)"


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


@pytest.mark.parametrize("name", ["COMPUTE", "KERNEL", "DEVICE", "THREADS", "CPU"])
def test_a_setting_that_does_not_exist_is_told(prints, name):
    program = """
import numpy, pyblas_sgemm
try:
    pyblas_sgemm.matmul(numpy.ones((2, 2), "f"), numpy.ones((2, 2), "f"))
except ValueError as error:
    print("Product:", error)
print(pyblas_sgemm.info())
"""
    report = prints(program, **{f"PYBLAS_SGEMM_{name}": "fast"})
    for what in ("Product", "Products fail"):
        assert f"{what}: environment variable PYBLAS_SGEMM_{name} is 'fast'" in report


def test_a_blas_that_cannot_be_loaded_is_told(prints):
    report = prints("import pyblas_sgemm; print(pyblas_sgemm.info())", PYBLAS_SGEMM_BLAS_LIB="/nowhere/libblas.so")
    assert "no BLAS for large products (/nowhere/libblas.so: cannot open" in report


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
