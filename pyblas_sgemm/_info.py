"""What the library runs on, told without starting the GPU's driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from . import _cffi
from ._cffi import ffi, lib
from ._handle import current_compute, find_blas
from ._status import SgemmError, check


class Info(dict[str, Any]):
    """A plain dictionary that prints as a report."""

    def __str__(self) -> str:
        cpu, build, settings = self["cpu"], self["build"], self["settings"]
        threads = f"{cpu['threads']} thread{'s' if cpu['threads'] != 1 else ''}"
        blas = f"large products by {cpu['blas']}" if cpu["blas"] else "no BLAS for large products"
        if cpu["blas_path"]:  # without a BLAS, why the one that was named is none
            blas += f" ({cpu['blas_path']})"
        lines = [
            f"pyblas_sgemm {self['version']}: {self['library']}",
            f"CPU: {cpu['instruction_set']}, {threads}, {blas}",
        ]
        lines += [_gpu_line(gpu) for gpu in self["gpus"]]
        if not self["gpus"]:
            lines.append(f"GPU: none; {self['no_gpu_reason']}")
        if build["cuda"]:
            lines.append(f"Build: CUDA {build['cuda']}, GPU code for {' '.join(build['architectures'])}")
        else:
            lines.append("Build: built without CUDA")
        fault = settings["fault"]
        lines.append(f"Products fail: {fault}" if fault else f"Compute mode: {settings['compute']}")
        lines.append(f"Kernel: {settings['kernel'] or 'chosen for each call'}")
        lines += [f"Environment: {name}={value}" for name, value in settings["environment"].items()]
        return "\n".join(lines)


def _gpu_line(gpu: dict[str, Any]) -> str:
    facts = (
        f"GPU {gpu['device']}: {gpu['name']}, SM {gpu['sm']}, {gpu['memory_bytes'] / 2**30:.0f} GiB,"
        f" driver {gpu['driver_version']} (CUDA {gpu['cuda_version']})"
    )
    return facts if gpu["supported"] else f"{facts}; not used: {gpu['reason']}"


def info() -> Info:
    """Engines, GPUs, build and settings as a dictionary; printed, a report.

    GPUs are found through NVML: no CUDA context is created, and the process may still fork and use them in the child.
    """
    settings = _settings()  # first, because it makes the handle for which the BLAS is looked up
    gpus, no_gpu_reason = _gpus()
    return Info(
        version=library_version(),
        library=str(package_folder() / "lib" / "libpyblas_sgemm.so"),
        cpu=_cpu(),
        gpus=gpus,
        no_gpu_reason=no_gpu_reason,
        build={"cuda": _cuda_version(lib.pyblasGetBuildCudaVersion()), "architectures": build_architectures()},
        settings=settings,
    )


def package_folder() -> Path:
    """Where the compiled parts lie; in an editable install that is not where this file lies."""
    return Path(str(_cffi.__file__)).parent


def library_version() -> str:
    version = ffi.new("int *")
    check(lib.pyblasGetVersion(version))
    return f"{version[0] // 10000}.{version[0] // 100 % 100}.{version[0] % 100}"


def build_architectures() -> list[str]:
    return _text(lib.pyblasGetBuildArchitectures()).split()


def _cpu() -> dict[str, Any]:
    find_blas()
    cpu = ffi.new("pyblasCpuInfo_t *")
    check(lib.pyblasCpuInfo(cpu))
    return {
        "instruction_set": _text(cpu.instruction_set),
        "threads": int(cpu.threads),
        "blas": _text(cpu.blas),
        "blas_path": _text(cpu.blas_path),
    }


def _gpus() -> tuple[list[dict[str, Any]], str]:
    count = ffi.new("int *")
    check(lib.pyblasDeviceCount(count))
    if count[0] == 0:
        return [], _text(lib.pyblasGetLastErrorMessage())
    return [_gpu(device) for device in range(count[0])], ""


def _gpu(device: int) -> dict[str, Any]:
    gpu = ffi.new("pyblasDeviceInfo_t *")
    check(lib.pyblasDeviceInfo(device, gpu))
    return {
        "device": device,
        "name": _text(gpu.name),
        "sm": f"{gpu.sm // 10}.{gpu.sm % 10}",
        "memory_bytes": int(gpu.memory_bytes),
        "driver_version": _text(gpu.driver_version),
        "cuda_version": _cuda_version(gpu.cuda_version),
        "supported": bool(gpu.supported),
        "reason": _text(gpu.reason),
    }


def _settings() -> dict[str, Any]:
    environment = {name: value for name, value in sorted(os.environ.items()) if name.startswith("PYBLAS_SGEMM_")}
    compute, fault = "", ""
    try:
        compute = current_compute()
    except SgemmError as error:  # a variable that names what there is not: products say the same
        fault = str(error)
    return {
        "compute": compute,
        "kernel": environment.get("PYBLAS_SGEMM_KERNEL", ""),
        "environment": environment,
        "fault": fault,
    }


def _cuda_version(number: int) -> str:
    """13.0 for 13000; empty for 0."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _text(characters: Any) -> str:
    return str(ffi.string(characters).decode())
