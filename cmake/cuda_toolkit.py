"""Which nvcc builds the library, and for which GPUs.

CMake runs this file and includes what it writes; the build backend imports it, so that both decide alike.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# nvcc asks for its parts without a version, and cccl not at all: all five are pinned, or releases get mixed.
WHEELS = [f"nvidia-{part}==13.0.*" for part in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime", "cuda-cccl")]
WHEEL_CUDA = (13, 0)
OLDEST_CUDA = (12, 0)
RELEASE = ["75", "80", "86", "90a", "100", "120", "80-ptx"]  # SM 8.9 runs the code of 8.6
WITHOUT_GPU = ["80", "90a", "80-ptx"]


class BuildError(Exception):
    """A sentence for the person who builds."""


@dataclass
class Driver:
    cuda: tuple[int, int]  # newest CUDA version it can run
    capabilities: list[tuple[int, int]]  # of each GPU


@dataclass
class Choice:
    nvcc: Path | None
    reason: str  # why there is none
    required: bool  # whether to go on without GPU code


def nvidia_driver() -> Driver | None:
    """The driver and its GPUs by NVML, which creates no CUDA context."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        version, count = ctypes.c_int(), ctypes.c_uint()
        if nvml.nvmlSystemGetCudaDriverVersion(ctypes.byref(version)) or nvml.nvmlDeviceGetCount_v2(
            ctypes.byref(count)
        ):
            return None
        capabilities = []
        for index in range(count.value):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
                continue
            if nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor)) == 0:
                capabilities.append((major.value, minor.value))
    finally:
        nvml.nvmlShutdown()
    if not capabilities:
        return None
    return Driver((version.value // 1000, version.value % 1000 // 10), capabilities)


def nvcc_version(nvcc: Path) -> tuple[int, int]:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def system_nvcc() -> Path | None:
    """The first nvcc that is new enough, in the order in which people point at one."""
    candidates = [os.environ.get("CUDACXX"), shutil.which("nvcc")]
    for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        candidates.append(root and f"{root}/bin/nvcc")
    for candidate in candidates:
        nvcc = candidate and shutil.which(candidate)
        if nvcc and nvcc_version(Path(nvcc)) >= OLDEST_CUDA:
            return Path(nvcc)
    return None


def wheel_nvcc() -> Path | None:
    """nvcc of the nvidia-cuda-nvcc package in this Python."""
    try:
        files = importlib.metadata.distribution("nvidia-cuda-nvcc").files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in files if f.parts[-2:] == ("bin", "nvcc")), None)


def wants_wheels(mode: str) -> bool:
    """Whether the compiler has to come from PyPI."""
    if check_mode(mode) == "auto":
        driver = nvidia_driver()
        return driver is not None and driver.cuda >= WHEEL_CUDA and system_nvcc() is None
    return mode == "wheel"


def check_mode(mode: str) -> str:
    mode = mode or "auto"
    if mode not in ("auto", "system", "wheel", "off"):
        raise BuildError(f"PYBLAS_CUDA is '{mode}', must be auto, system, wheel or off")
    return mode


def choose(mode: str, driver: Driver | None) -> Choice:
    mode = check_mode(mode)
    if mode == "off":
        return Choice(None, "PYBLAS_CUDA=off", False)
    if mode in ("auto", "system") and (nvcc := system_nvcc()):
        return Choice(nvcc, "", mode == "system" or driver is not None)
    if mode in ("auto", "wheel") and (nvcc := wheel_nvcc()):
        return Choice(nvcc, "", mode == "wheel" or driver is not None)
    if mode == "system":
        raise BuildError("PYBLAS_CUDA=system, but there is no nvcc 12.0 or newer on PATH, in CUDACXX or in CUDA_HOME")
    if mode == "wheel":
        raise BuildError(f"PYBLAS_CUDA=wheel, but nvcc is not installed here: pip install {' '.join(WHEELS)}")
    if driver is None:
        reason = "There is neither an nvcc nor an NVIDIA driver; PYBLAS_CUDA=wheel fetches nvcc from PyPI."
    elif driver.cuda < WHEEL_CUDA:
        have = "{}.{}".format(*driver.cuda)
        reason = f"The driver runs CUDA up to {have} only: install a toolkit 12.0 to {have}, or a newer driver."
    else:
        reason = "There is a GPU, but no nvcc: install a toolkit, or build with PYBLAS_CUDA=wheel."
    return Choice(None, reason, False)


def parse(request: str) -> list[str]:
    names = []
    for item in re.split(r"[;, ]+", request.strip(";, ")):
        found = re.fullmatch(r"(\d{2,3}[a-z]?)(-real|-virtual|-ptx)?", item)
        if not found:
            raise BuildError(
                f"PYBLAS_CUDA_ARCHS has '{item}'; a list such as 80;90a;80-ptx or the word all is expected"
            )
        names.append(found[1] + ("-ptx" if found[2] in ("-virtual", "-ptx") else ""))
    return names


def architectures(request: str, known: set[int], driver: Driver | None) -> list[str]:
    """Names such as 80, 90a, 80-ptx. known: what the compiler knows, as numbers."""

    def is_known(name: str) -> bool:
        return int(re.sub(r"\D", "", name)) in known

    if request == "all":
        return [name for name in RELEASE if is_known(name)]
    if request:
        names = parse(request)
        if unknown := [name for name in names if not is_known(name)]:
            raise BuildError(f"nvcc does not know {' '.join(unknown)}; it knows {' '.join(map(str, sorted(known)))}")
        return list(dict.fromkeys(names))
    if driver is None:
        return [name for name in WITHOUT_GPU if is_known(name)]
    names = []
    for major, minor in sorted(set(driver.capabilities)):
        # Code of a lower minor version runs too. What is older than the compiler is left to the run-time message.
        sm = max((sm for sm in known if sm // 10 == major and sm % 10 <= minor), default=None)
        if sm is not None:
            names.append("90a" if sm == 90 else str(sm))
    return [*dict.fromkeys(names), "80-ptx"]


def cmake_text(choice: Choice, archs: str, driver: Driver | None) -> str:
    values = {"cuda_reason": choice.reason, "cuda_required": "ON" if choice.required else "OFF", "nvcc": ""}
    if choice.nvcc:
        listed = subprocess.run([choice.nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False).stdout
        known = {int(number) for number in re.findall(r"sm_(\d+)", listed)}
        names = architectures(archs, known, driver)
        helped = subprocess.run([choice.nvcc, "--help"], capture_output=True, text=True, check=False).stdout
        # The packages keep their libraries in lib, where nvcc's own profile says lib64.
        root = choice.nvcc.parent.parent
        values |= {
            "nvcc": str(choice.nvcc),
            "nvcc_flags": f"-L{root}/lib" if not (root / "lib64").exists() and (root / "lib").exists() else "",
            "nvcc_compression": "--compress-mode=size" if "--compress-mode" in helped else "",
            "architecture_names": " ".join(names),
            "cuda_architectures": ";".join(
                name.replace("-ptx", "-virtual") if name.endswith("-ptx") else f"{name}-real" for name in names
            ),
        }
    return "".join(f"set({name} [==[{value}]==])\n" for name, value in values.items())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", default="auto")
    parser.add_argument("--archs", default="")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        driver = nvidia_driver()
        text = cmake_text(choose(arguments.cuda, driver), arguments.archs, driver)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    arguments.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
