"""Times the CPU engine through the Python package beside numpy.matmul(out=) and writes bench/results/cpu_<name>.csv.

Both run in this process, in turns. NumPy's threads spin for 0.1 s after each product and would take a core from whoever
comes next, so there is a pause before each turn of ours. The best of several turns counts: other work on the machine
only ever adds time.

    python bench/bench_cpu.py --name zen5_2cores
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

import pyblas_sgemm

SQUARES = [(n, n, n) for n in (64, 100, 128, 256, 384, 512, 768, 1024, 1536, 2048, 4096)]
SKINNY = [(8, 4096, 4096), (4096, 8, 4096), (1, 4096, 4096), (4096, 1, 4096), (1, 1024, 1024), (16, 4096, 4096),
          (64, 4096, 4096), (33, 33, 903168)]  # fmt: skip
BATCHES = [(384, 128, 128, 64), (96, 512, 512, 64), (2000, 32, 32, 32), (10000, 16, 16, 16), (256, 8, 8, 8)]
# What is promised, as a ratio to NumPy on two cores.
BARS = {
    (8, 4096, 4096): 1.5, (4096, 8, 4096): 1.5, (1, 4096, 4096): 0.95, (4096, 1, 4096): 0.95,
    (384, 128, 128, 64): 1.6, (96, 512, 512, 64): 1.25, (2000, 32, 32, 32): 2.0, (10000, 16, 16, 16): 2.7,
    (256, 8, 8, 8): 4.0,
} | {(n, n, n): 0.97 for n in (256, 384, 512, 768, 1024, 1536, 2048, 4096)}  # fmt: skip
COLUMNS = ["batch", "m", "n", "k", "ops", "kernel", "numpy_us", "ours_us", "ours_median_us", "gflops", "ratio", "bar",
           "fro_error", "processor", "cores", "numpy", "numpy_blas", "cpu", "blas", "threads", "commit"]  # fmt: skip


def turn(call, seconds):
    """Times of single calls, or of groups where one call is too short to be timed."""
    call()
    group, begin = 1, time.perf_counter()
    call()
    group = max(1, int(2e-4 / max(time.perf_counter() - begin, 1e-7)))
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 2:
        begin = time.perf_counter()
        for _ in range(group):
            call()
        times.append((time.perf_counter() - begin) / group)
    return times


def measure(shape, ops, turns, seconds):
    batch, m, n, k = shape if len(shape) == 4 else (None, *shape)
    rng = np.random.default_rng(m * 31 + n * 7 + k)
    lead = () if batch is None else (batch,)
    a = rng.standard_normal((*lead, m, k) if ops[0] == "N" else (*lead, k, m), dtype=np.float32)
    b = rng.standard_normal((*lead, k, n) if ops[1] == "N" else (*lead, n, k), dtype=np.float32)
    c, expected = np.zeros((*lead, m, n), np.float32), np.zeros((*lead, m, n), np.float32)
    op_a = a if ops[0] == "N" else a.swapaxes(-1, -2)
    op_b = b if ops[1] == "N" else b.swapaxes(-1, -2)
    lda, ldb = a.shape[-1], b.shape[-1]

    def theirs():
        np.matmul(op_a, op_b, out=expected)

    def ours():
        if batch is None:
            pyblas_sgemm.sgemm(*ops, m, n, k, 1.0, a, lda, b, ldb, 0.0, c, n, order="C")
        else:
            pyblas_sgemm.gemm_strided_batched(
                *ops, m, n, k, 1.0, a, lda, m * k, b, ldb, k * n, 0.0, c, n, m * n, batch, order="C"
            )

    numpy_times, our_times = [], []
    for _ in range(turns):
        numpy_times += turn(theirs, seconds)
        time.sleep(0.3)
        our_times += turn(ours, seconds)
    exact = np.matmul(op_a.astype(np.float64), op_b.astype(np.float64))
    error = np.linalg.norm(c - exact) / np.linalg.norm(exact)
    kernel = pyblas_sgemm.selected_kernel(*ops, m, n, k, batch_count=batch or 1, order="C", device="cpu").name
    best = min(our_times)
    return {
        "batch": batch or 1, "m": m, "n": n, "k": k, "ops": ops, "kernel": kernel,
        "numpy_us": f"{min(numpy_times) * 1e6:.2f}", "ours_us": f"{best * 1e6:.2f}",
        "ours_median_us": f"{statistics.median(our_times) * 1e6:.2f}",
        "gflops": f"{2 * (batch or 1) * m * n * k / best / 1e9:.1f}", "ratio": f"{min(numpy_times) / best:.2f}",
        "bar": BARS.get(shape, ""), "fro_error": f"{error:.1e}",
    }  # fmt: skip


def facts():
    cpu = pyblas_sgemm.info()["cpu"]
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "processor": names[0] if names else platform.machine(), "cores": len(os.sched_getaffinity(0)),
        "numpy": np.__version__, "numpy_blas": f"{blas['name']} {blas['version']}",
        "cpu": cpu["instruction_set"], "blas": cpu["blas"], "threads": cpu["threads"], "commit": commit,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="write bench/results/cpu_<name>.csv")
    parser.add_argument("--turns", type=int, default=3, help="turns of each library for each shape")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a turn")
    parser.add_argument("--only", help="comma-separated extents of the one shape to run, such as 8,4096,4096")
    options = parser.parse_args()
    if os.environ.get("OPENBLAS_CORETYPE"):
        print("OPENBLAS_CORETYPE is set: both libraries are held to an older processor's kernels")
    shapes = [(shape, "NN") for shape in SQUARES + SKINNY + BATCHES]
    shapes += [((n, n, n), ops) for n in (256, 1024) for ops in ("NT", "TN", "TT")]
    if options.only:
        wanted = tuple(map(int, options.only.split(",")))
        shapes = [pair for pair in shapes if pair[0] == wanted] or [(wanted, "NN")]
    machine = facts()
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"{'batch':>6} {'m':>6} {'n':>6} {'k':>7} ops {'kernel':>11} {'numpy us':>11} {'ours us':>11} {'GFLOPS':>7} ratio  bar"
    )
    rows = []
    for shape, ops in shapes:
        row = measure(shape, ops, options.turns, options.seconds)
        rows.append(row | machine)
        print(
            f"{row['batch']:>6} {row['m']:>6} {row['n']:>6} {row['k']:>7} {ops:>3} {row['kernel']:>11}"
            f" {row['numpy_us']:>11} {row['ours_us']:>11} {row['gflops']:>7} {row['ratio']:>5} {row['bar']:>4}",
            flush=True,
        )
    if options.name:
        path = Path(__file__).parent / "results" / f"cpu_{options.name}.csv"
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
