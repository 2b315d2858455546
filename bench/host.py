"""Times what a call costs the host: until it has queued its work, beside bare launches of as many empty kernels.

    python bench/host.py

Calls in C, and Python's on CuPy's and PyTorch's arrays, with those libraries' own beside them. Needs nvcc, CuPy and an
installed pyblas_sgemm; PyTorch's rows appear where it is installed. Everything is measured in one process; groups of
calls start on an empty queue and fit into it, so that no call waits for the device.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import datetime
import importlib
import importlib.util
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp
from timing import gpu_facts

import pyblas_sgemm
from bench import commit

HERE = Path(__file__).parent
GROUPS = 25
QUEUE = 400  # launches that a group leaves in the queue; it holds about a thousand

# m, n, k, batch: one launch; few outputs and deep k, which takes two; a batch.
PRODUCTS = [(64, 64, 64, 1), (256, 256, 256, 1), (1, 4096, 1024, 1), (64, 64, 4096, 1), (32, 32, 32, 100)]
FIELDS = ["call", "arrays", "m", "n", "k", "batch", "kernel", "launches", "us", "bare_us", "above_us", "gpu", "driver",
          "cpu", "python", "cupy", "torch", "commit", "date"]  # fmt: skip


class Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("transa", "transb", "m", "n", "k", "batch")),
        *((name, ctypes.c_void_p) for name in "abc"),
    )


class Bare:
    """host.cu, built against the installed library."""

    def __init__(self, folder: Path) -> None:
        installed = Path(pyblas_sgemm.info()["library"])
        built = folder / "host.so"
        subprocess.run(
            ["nvcc", "-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler=-fPIC", HERE / "host.cu", "-o", built,
             f"-I{installed.parent.parent / 'include'}", f"-L{installed.parent}", "-lpyblas_sgemm", "-cudart=shared",
             f"-Xlinker=-rpath={installed.parent}"],
            check=True,
        )  # fmt: skip
        self.library = ctypes.CDLL(str(built))
        self.library.product_seconds.restype = self.library.launch_seconds.restype = ctypes.c_double
        self.handle = ctypes.c_void_p()
        if ctypes.CDLL(str(installed)).pyblasCreate(ctypes.byref(self.handle)):
            raise RuntimeError("pyblasCreate failed")

    def launches(self, product: Product) -> int:
        return int(self.library.product_launches(self.handle, ctypes.byref(product)))

    def launch_seconds(self, launches: int) -> float:
        return float(self.library.launch_seconds(None, launches, QUEUE // launches))

    def product_seconds(self, product: Product, launches: int) -> float:
        seconds = self.library.product_seconds(self.handle, None, ctypes.byref(product), QUEUE // launches)
        if seconds < 0:
            raise RuntimeError(f"the product failed with status {-seconds:.0f}")
        return float(seconds)


def call_seconds(call: Callable[[], object], launches: int) -> float:
    """Seconds of one of a group of calls."""
    cp.cuda.Device().synchronize()
    begin = time.perf_counter()
    for _ in range(QUEUE // launches):
        call()
    return (time.perf_counter() - begin) / (QUEUE // launches)


def calls(m: int, n: int, k: int, batch: int, xp: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Python's calls on row-major arrays of one library."""
    shapes = [(batch, m, k), (batch, k, n), (batch, m, n)] if batch > 1 else [(m, k), (k, n), (m, n)]
    library: Any = importlib.import_module(xp)
    if xp == "torch":
        a, b, c = (library.randn(shape, device="cuda") for shape in shapes)
    else:
        a, b, c = (library.random.standard_normal(shape, dtype=library.float32) for shape in shapes)
    if batch == 1:
        yield "sgemm", lambda: pyblas_sgemm.sgemm("N", "N", m, n, k, 1.0, a, k, b, n, 0.0, c, n)
    else:
        yield (
            "gemm_strided_batched",
            lambda: pyblas_sgemm.gemm_strided_batched(
                "N", "N", m, n, k, 1.0, a, k, m * k, b, n, k * n, 0.0, c, n, m * n, batch
            ),
        )
    yield "matmul(out=)", lambda: pyblas_sgemm.matmul(a, b, out=c)
    yield "matmul", lambda: pyblas_sgemm.matmul(a, b)
    yield f"{xp}.matmul(out=)", lambda: library.matmul(a, b, out=c)
    yield f"{xp}.matmul", lambda: library.matmul(a, b)
    if xp == "torch" and batch == 1:
        yield "torch.mm(out=)", lambda: library.mm(a, b, out=c)


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def version(package: str) -> str:
    return str(importlib.import_module(package).__version__) if importlib.util.find_spec(package) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=commit(), help="what is measured; git is asked if it is not given")
    parser.add_argument("--output", type=Path, help="csv file; bench/results/<GPU>-host.csv if not given")
    options = parser.parse_args()

    gpu = gpu_facts()
    output = options.output or HERE / "results" / (gpu["gpu"].lower().replace(" ", "-") + "-host.csv")
    facts = {
        "gpu": gpu["gpu"],
        "driver": gpu["driver"],
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "cupy": version("cupy"),
        "torch": version("torch"),
        "commit": options.commit,
        "date": datetime.date.today().isoformat(),
    }
    libraries = ["cupy", *(["torch"] if facts["torch"] else [])]
    with tempfile.TemporaryDirectory() as folder, output.open("w", newline="") as file:
        bare = Bare(Path(folder))
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for m, n, k, batch in PRODUCTS:
            # Row-major C = A B is column-major C' = B' A'.
            a, b, c = (cp.empty(size * batch, cp.float32) for size in (m * k, k * n, m * n))
            product = Product(0, 0, n, m, k, batch, b.data.ptr, a.data.ptr, c.data.ptr)
            launches = bare.launches(product)
            if launches < 1:
                raise RuntimeError("the launches of a call could not be counted")
            kernel = pyblas_sgemm.selected_kernel("N", "N", m, n, k, batch_count=batch, device=0).name

            measures = {
                ("bare", ""): partial(bare.launch_seconds, launches),
                ("C", ""): partial(bare.product_seconds, product, launches),
            }
            for library in libraries:
                for name, call in calls(m, n, k, batch, library):
                    measures[name, library] = partial(call_seconds, call, launches)
            # In turns, so that a processor that others use slows all of them; the first round warms up.
            rounds = [[measure() for measure in measures.values()] for _ in range(GROUPS + 1)][1:]
            medians = dict(zip(measures, (statistics.median(each) for each in zip(*rounds, strict=True)), strict=True))
            bare_seconds = medians.pop(("bare", ""))
            common = facts | {"m": m, "n": n, "k": k, "batch": batch, "bare_us": f"{bare_seconds * 1e6:.2f}"}
            ours = {"kernel": kernel, "launches": launches}
            for (name, library), seconds in medians.items():
                writer.writerow(
                    common
                    | ({} if name.startswith(f"{library}.") else ours)
                    | {"call": name, "arrays": library, "us": f"{seconds * 1e6:.2f}"}
                    | {"above_us": f"{(seconds - bare_seconds) * 1e6:.2f}"}
                )
                print(f"{m}x{n}x{k} of {batch:4} {library:6} {name:22} {seconds * 1e6:8.2f} us,"
                      f" {launches} bare {bare_seconds * 1e6:6.2f} us", file=sys.stderr)  # fmt: skip
            file.flush()


if __name__ == "__main__":
    main()
