"""Products of host arrays on GPUs, beside the bounds that the machine sets and beside cublasXtSgemm; and what 'auto' takes.

    python bench/host_arrays.py large --sizes 32768 --caps 0 4     # GiB that may be used, 0: no limit
    python bench/host_arrays.py large --sizes 49152 --gpus 1 2 --peers none
    python bench/host_arrays.py auto

They write bench/results/<GPU>-host-arrays.csv and <GPU>-auto.csv, of which bench/report.py makes a table.

A row of `large` has the seconds of the product, of the same product with everything in GPU memory (compute), and of
bringing A and B and taking C back at the link's speed, both at once (link); `of_bound` is the larger of the two over the
product's. Pinned memory is the same arrays after cudaHostRegister. `auto` times the CPU engine and the GPU on a grid of
shapes, and what device='auto' makes of them. Needs CuPy.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import datetime
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from timing import cublas_path, gpu_facts

import pyblas_sgemm
from bench import commit
from pyblas_sgemm._cffi import ffi, lib
from pyblas_sgemm._handle import implicit

GIB = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    large = commands.add_parser("large")
    large.add_argument("--sizes", type=int, nargs="+", default=[32768], help="m = n = k")
    large.add_argument("--caps", type=float, nargs="+", default=[0, 4], help="GiB of GPU memory; 0: no limit")
    large.add_argument("--gpus", type=int, nargs="+", default=[1])
    large.add_argument("--memory", nargs="+", default=["pageable", "pinned"], choices=["pageable", "pinned"])
    large.add_argument("--peers", default="all", choices=["all", "none"])
    large.add_argument("--repeats", type=int, default=3)
    auto = commands.add_parser("auto")
    auto.add_argument("--seconds", type=float, default=0.05, help="spent on each shape and place, at least")
    for command in (large, auto):
        command.add_argument("--output", type=Path, help="csv file")
        command.add_argument("--commit", default=commit(), help="what is measured; git is asked if it is not given")
    options = parser.parse_args()
    rows = large_products(options) if options.command == "large" else automatic(options)
    facts = gpu_facts()
    name = facts["gpu"].lower().replace(" ", "-") + ("-host-arrays.csv" if options.command == "large" else "-auto.csv")
    write(rows, {**facts, "commit": options.commit}, options.output or Path(__file__).parent / "results" / name)


def write(rows: Iterable[dict[str, Any]], facts: dict[str, str], output: Path) -> None:
    about = {"commit": facts["commit"], "gpu": facts["gpu"], "driver": facts["driver"], "processors": len(os.sched_getaffinity(0)),
             "date": datetime.date.today().isoformat()}  # fmt: skip
    writer = None
    output.parent.mkdir(exist_ok=True)
    with output.open("w", newline="") as file:
        for row in rows:
            line = {**row, **about}
            if writer is None:
                writer = csv.DictWriter(file, line, lineterminator="\n")
                writer.writeheader()
            writer.writerow(line)
            file.flush()
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def best(call: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


# ---- large products ------------------------------------------------------------------------------------------------


def large_products(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    for size in options.sizes:
        a, b, c = (random_matrix(size, seed) for seed in range(3))
        links = {gpus: link(a, c, gpus) for gpus in options.gpus}
        resident = resident_seconds(a, b)
        for memory in options.memory:
            if memory == "pinned":
                in_parallel(lambda x: cp.cuda.runtime.hostRegister(x.ctypes.data, x.nbytes, 1), (a, b, c))
            for gpus, cap in itertools.product(options.gpus, options.caps):
                limit = {"memory_limit": int(cap * GIB)} if cap else {}
                with pyblas_sgemm.Handle(**limit) as handle:
                    multiply(handle, gpus, a, b, c)
                    seconds = best(partial(multiply, handle, gpus, a, b, c), options.repeats)
                yield row_of(size, memory, cap, gpus, "pyblas_sgemm", seconds, resident / gpus, links[gpus], a, b, c)
            if options.peers == "all":
                xt = CublasXt(block=8192)  # faster than with 4096
                seconds = best(partial(xt.sgemm, size, a, b, c), 1 if memory == "pageable" else 2)
                xt.close()
                yield row_of(size, memory, 0, 1, "cublasXt", seconds, resident, links[options.gpus[0]], a, b, c)
        if "pinned" in options.memory:
            in_parallel(lambda x: cp.cuda.runtime.hostUnregister(x.ctypes.data), (a, b, c))


def multiply(handle: pyblas_sgemm.Handle, gpus: int, a: Any, b: Any, c: Any) -> None:
    n = len(a)
    pyblas_sgemm.sgemm(
        "N", "N", n, n, n, 1.0, a, n, b, n, 0.0, c, n, handle=handle, devices=list(range(gpus))
    )  # fmt: skip


def row_of(size: int, memory: str, cap: float, gpus: int, library: str, seconds: float, compute: float,
           rates: tuple[float, float], a: Any, b: Any, c: Any) -> dict[str, Any]:  # fmt: skip
    bound = max(2 * a.nbytes / (rates[0]), c.nbytes / rates[1])
    return {
        "size": size, "memory": memory, "cap_gib": cap, "gpus": gpus, "library": library, "seconds": round(seconds, 4),
        "tflops": round(2e-12 * size**3 / seconds, 1), "compute_seconds": round(compute, 4),
        "link_seconds": round(bound, 4), "of_bound": round(max(compute, bound) / seconds, 3),
        "error": f"{error_of(a, b, c):.1e}",
    }  # fmt: skip


def in_parallel(call: Callable[[Any], object], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, items))


def random_matrix(size: int, seed: int) -> np.ndarray[Any, Any]:
    """Rows of random numbers, each a piece of a longer line: quick to make, and no two alike."""
    matrix = np.empty((size, size), np.float32)
    line = np.random.default_rng(seed).standard_normal((1 << 22) + size, dtype=np.float32)

    def fill(row: int) -> None:
        for i in range(row, min(row + 256, size)):
            start = i * 7919 % (1 << 22)
            matrix[i] = line[start : start + size]

    in_parallel(fill, range(0, size, 256))
    return matrix


def error_of(a: Any, b: Any, c: Any) -> float:
    rows, columns = [0, len(c) // 2, len(c) - 1], slice(len(c) - 256, None)
    want = a[rows].astype(np.float64) @ b[:, columns].astype(np.float64)
    return float(np.linalg.norm(c[rows, columns] - want) / np.linalg.norm(want))


def resident_seconds(a: Any, b: Any) -> float:
    x, y = cp.asarray(a), cp.asarray(b)
    seconds = best(partial(resident_product, x, y, cp.empty_like(x)), 4)
    del x, y
    cp.get_default_memory_pool().free_all_blocks()
    return seconds


def resident_product(x: Any, y: Any, out: Any) -> None:
    pyblas_sgemm.matmul(x, y, out=out)
    cp.cuda.Device().synchronize()


def link(a: Any, c: Any, gpus: int) -> tuple[float, float]:
    """Bytes per second from pinned host memory and back, both at once, of all GPUs together."""
    count = 1 << 29
    work = []
    for gpu in range(gpus):
        with cp.cuda.Device(gpu):
            host = cp.cuda.alloc_pinned_memory(2 * count)
            streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
            work.append((gpu, host.ptr, cp.empty(2 * count, cp.uint8), streams, host))

    def seconds_of(inwards: bool, outwards: bool) -> float:
        begin = time.perf_counter()
        for gpu, host, device, streams, _ in work:
            with cp.cuda.Device(gpu):
                for _ in range(2):
                    if inwards:
                        cp.cuda.runtime.memcpyAsync(device.data.ptr, host, count, 1, streams[0].ptr)
                    if outwards:
                        cp.cuda.runtime.memcpyAsync(host + count, device.data.ptr + count, count, 2, streams[1].ptr)
        for gpu, _, _, streams, _ in work:
            with cp.cuda.Device(gpu):
                for stream in streams:
                    stream.synchronize()
        return time.perf_counter() - begin

    seconds_of(True, True)
    each = 2 * count * gpus
    rates = each / seconds_of(True, False), each / seconds_of(False, True)
    both = 2 * each / seconds_of(True, True)
    print(f"link of {gpus}: in {rates[0] / 1e9:.1f} GB/s, out {rates[1] / 1e9:.1f}, both {both / 1e9:.1f}", flush=True)
    return rates


class CublasXt:
    def __init__(self, block: int) -> None:
        self.library = ctypes.CDLL(cublas_path())
        self.handle = ctypes.c_void_p()
        self._check(self.library.cublasXtCreate(ctypes.byref(self.handle)))
        self._check(self.library.cublasXtDeviceSelect(self.handle, 1, (ctypes.c_int * 1)(0)))
        self._check(self.library.cublasXtSetBlockDim(self.handle, block))

    def sgemm(self, size: int, a: Any, b: Any, c: Any) -> None:
        n, (x, y, z) = ctypes.c_size_t(size), (ctypes.c_void_p(array.ctypes.data) for array in (b, a, c))
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        self._check(self.library.cublasXtSgemm(self.handle, 0, 0, n, n, n, ctypes.byref(one), x, n, y, n,
                                               ctypes.byref(zero), z, n))  # fmt: skip

    def close(self) -> None:
        self._check(self.library.cublasXtDestroy(self.handle))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            sys.exit(f"cublasXt answers {status}")


# ---- where the work goes -------------------------------------------------------------------------------------------

SHAPES = [
    *((n, n, n, 1) for n in (64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144)),
    *((m, 4096, 4096, 1) for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
    *((4096, n, 4096, 1) for n in (1, 16, 64, 256)),
    *((n, n, 64, 1) for n in (256, 1024, 4096, 8192)),
    *((n, n, 16, 1) for n in (1024, 4096)),
    *((n, n, 65536, 1) for n in (16, 64, 256)),
    *((65536, n, n, 1) for n in (16, 64, 256, 512)),
    *((n, n, n, 1000) for n in (4, 16, 32, 64, 128)),
    *((n, n, n, 50) for n in (64, 128, 256, 512)),
    *((512, 512, 64, batch) for batch in (1, 12, 96)),
    *((512, 64, 512, batch) for batch in (1, 12, 96)),
    *((1000, 700, 300, batch) for batch in (1, 4, 16)),
    *((2000, 300, k, 1) for k in (100, 1000, 10000)),
]


PLACES = ("auto", "cpu", "cuda")
LEARNING = 5  # calls after which 'auto' has tried what it tries
TURNS, MOST_TURNS, LIMIT = 3, 40, 1.1  # further turns for what looks slower than is promised


def automatic(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    rng = np.random.default_rng(0)
    line = rng.standard_normal(1 << 22, dtype=np.float32)
    worst = 0.0
    for m, n, k, batch in SHAPES:
        a, b, c = (np.resize(line, (batch, *shape)) for shape in ((m, k), (k, n), (m, n)))
        predicted = predictions(m, n, k, batch)
        calls, seconds, repeats = {}, {}, {}
        for place in PLACES:  # 'auto' first: it is to learn from its own calls
            calls[place] = partial(
                pyblas_sgemm.gemm_strided_batched, "N", "N", m, n, k, 1.0, a, k, m * k, b, n, k * n, 0.0, c, n, m * n,
                batch, order="C", device=place,
            )  # fmt: skip
            best(calls[place], LEARNING if place == "auto" else 1)
            seconds[place] = best(calls[place], 2)
            repeats[place] = max(1, min(70, int(options.seconds / TURNS / seconds[place])))
        # In turns, since what else the machine does only ever adds time, and is not the same from one second to the next.
        for turn in range(MOST_TURNS):
            if turn >= TURNS and seconds["auto"] <= LIMIT * min(seconds["cpu"], seconds["cuda"]):
                break
            for place in PLACES:
                seconds[place] = min(seconds[place], best(calls[place], repeats[place]))
        expected = predictions(m, n, k, batch)
        first, chosen = (min(by, key=lambda place: by[place]) for by in (predicted, expected))
        slower = seconds["auto"] / min(seconds["cpu"], seconds["cuda"])
        worst = max(worst, slower)
        yield {
            "m": m, "n": n, "k": k, "batch": batch,
            "cpu_us": round(1e6 * seconds["cpu"], 1), "gpu_us": round(1e6 * seconds["cuda"], 1),
            "auto_us": round(1e6 * seconds["auto"], 1),
            "predicted_cpu_us": round(1e6 * predicted["cpu"], 1), "predicted_gpu_us": round(1e6 * predicted["cuda"], 1),
            "first": "gpu" if first == "cuda" else "cpu", "auto": "gpu" if chosen == "cuda" else "cpu",
            "slower": round(slower, 3),
        }  # fmt: skip
    print(f"{len(SHAPES)} shapes; auto is at most {worst:.3f} times slower than the better of the two")


def predictions(m: int, n: int, k: int, batch: int) -> dict[str, float]:
    return {place: predict(device, m, n, k, batch) for place, device in (("cpu", None), ("cuda", 0))}


def predict(device: int | None, m: int, n: int, k: int, batch: int) -> float:
    seconds = ffi.new("double *")
    if lib.pyblasXtPredict(implicit(device).c, 0, 0, n, m, k, batch, seconds):
        sys.exit(ffi.string(lib.pyblasGetLastErrorMessage()).decode())
    return float(seconds[0])


if __name__ == "__main__":
    main()
