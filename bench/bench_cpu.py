"""Times the CPU engine through the Python package beside numpy.matmul(out=) and writes bench/results/cpu_<name>.csv.

Both run in this process, in turns. NumPy's threads spin for 0.1 s after each product and would take a core from whoever
comes next, so there is a pause before each turn of ours. The best of several turns counts: other work on the machine
only ever adds time.

    python bench/bench_cpu.py --name zen5_2cores

On a machine with other work on it, --busy compares one thread of each by the processor's time it took, which is stolen
from neither; only the caches and memory are still shared.

With --cases it times instead what has gone wrong elsewhere - a step between two sizes, a layout that is slow, threads in
each other's way, costs of a call - against bounds, and writes cpu_<name>_cases.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import threadpoolctl

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
# What batch_invariant costs: each of these is timed with it too.
INVARIANT = [(256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (8, 4096, 4096), (4096, 8, 4096), (1, 4096, 4096),
             (4096, 1, 4096), (16, 4096, 4096), (33, 33, 903168), (384, 128, 128, 64), (10000, 16, 16, 16)]  # fmt: skip
COLUMNS = ["batch", "m", "n", "k", "ops", "batch_invariant", "kernel", "numpy_us", "ours_us", "ours_median_us", "gflops", "ratio", "bar",
           "fro_error", "processor", "cores", "numpy", "numpy_blas", "cpu", "blas", "threads", "commit"]  # fmt: skip


def turn(call, seconds, clock=time.perf_counter):
    """Times of single calls, or of groups where one call is too short to be timed."""
    call()
    group, begin = 1, clock()
    call()
    group = max(1, int(2e-4 / max(clock() - begin, 1e-7)))
    times, end = [], clock() + seconds
    while clock() < end or len(times) < 2:
        begin = clock()
        for _ in range(group):
            call()
        times.append((clock() - begin) / group)
    return times


class Operands:
    """A product of one shape: random matrices, and the calls that multiply them."""

    def __init__(self, shape, ops, invariant=False):
        self.batch, m, n, k = shape if len(shape) == 4 else (None, *shape)
        mode = True if invariant else None
        rng = np.random.default_rng(m * 31 + n * 7 + k)
        lead = () if self.batch is None else (self.batch,)
        a = rng.standard_normal((*lead, m, k) if ops[0] == "N" else (*lead, k, m), dtype=np.float32)
        b = rng.standard_normal((*lead, k, n) if ops[1] == "N" else (*lead, n, k), dtype=np.float32)
        self.c, self.expected = np.zeros((*lead, m, n), np.float32), np.zeros((*lead, m, n), np.float32)
        self.op_a = a if ops[0] == "N" else a.swapaxes(-1, -2)
        self.op_b = b if ops[1] == "N" else b.swapaxes(-1, -2)
        lda, ldb, c = a.shape[-1], b.shape[-1], self.c
        if self.batch is None:
            self.ours = lambda: pyblas_sgemm.sgemm(
                *ops, m, n, k, 1.0, a, lda, b, ldb, 0.0, c, n, order="C", batch_invariant=mode
            )
        else:
            self.ours = lambda: pyblas_sgemm.gemm_strided_batched(
                *ops, m, n, k, 1.0, a, lda, m * k, b, ldb, k * n, 0.0, c, n, m * n, self.batch, order="C",
                batch_invariant=mode,
            )  # fmt: skip
        self.kernel = pyblas_sgemm.selected_kernel(
            *ops, m, n, k, batch_count=self.batch or 1, order="C", device="cpu", batch_invariant=mode
        ).name

    def theirs(self):
        np.matmul(self.op_a, self.op_b, out=self.expected)

    def error(self):
        exact = np.matmul(self.op_a.astype(np.float64), self.op_b.astype(np.float64))
        return np.linalg.norm(self.c - exact) / np.linalg.norm(exact)


def measure(shape, ops, invariant, turns, seconds, busy):
    clock, pause = (time.thread_time, 0.0) if busy else (time.perf_counter, 0.3)
    product = Operands(shape, ops, invariant)
    numpy_times, our_times = [], []
    for _ in range(turns):
        numpy_times += turn(product.theirs, seconds, clock)
        time.sleep(pause)
        our_times += turn(product.ours, seconds, clock)
    best, (m, n, k) = min(our_times), shape[-3:]
    return {
        "batch": product.batch or 1, "m": m, "n": n, "k": k, "ops": ops, "batch_invariant": int(invariant),
        "kernel": product.kernel, "numpy_us": f"{min(numpy_times) * 1e6:.2f}", "ours_us": f"{best * 1e6:.2f}",
        "ours_median_us": f"{statistics.median(our_times) * 1e6:.2f}",
        "gflops": f"{2 * (product.batch or 1) * m * n * k / best / 1e9:.1f}",
        "ratio": f"{min(numpy_times) / best:.2f}", "bar": "" if invariant or busy else BARS.get(shape, ""),
        "fro_error": f"{product.error():.1e}",
    }  # fmt: skip


def best(calls, turns=5, seconds=0.1):
    """The best time of each of some calls, taken in turns, so that a slow spell of the machine meets all of them."""
    times = [[] for _ in calls]
    for _ in range(turns):
        for call, mine in zip(calls, times, strict=True):
            mine += turn(call, seconds)
    return [min(mine) for mine in times]


def together(calls, count):
    """Seconds of count of each of the calls by a Python thread of its own, all at once."""
    start = threading.Barrier(len(calls) + 1)

    def work(call):
        start.wait()
        for _ in range(count):
            call()

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


FIRST = """
import time, numpy as np, pyblas_sgemm
a, c = np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)
begin = time.perf_counter()
pyblas_sgemm.sgemm("N", "N", 64, 64, 64, 1.0, a, 64, a, 64, 0.0, c, 64, order="C")
print(time.perf_counter() - begin)
"""


def cases():
    """(what, measured, bound, whether the figure may at most be the bound or must at least be it)"""

    def per_row(few, many, n, k, bound):
        times = best([Operands((m, n, k), "NN").ours for m in (few, many)])
        ratio = max(times[0] / few, times[1] / many) / min(times[0] / few, times[1] / many)
        return f"time per row, {few} and {many} rows of {n}, k = {k}", ratio, bound, "most"

    def layouts(shape, bound):
        times = best([Operands(shape, a + b).ours for a in "NT" for b in "NT"])
        return f"slowest over fastest layout of {shape}", max(times) / min(times), bound, "most"

    yield per_row(65518, 65600, 512, 512, 1.1)
    yield per_row(32, 33, 50000, 500, 1.2)
    yield layouts((2048, 2048, 2048), 1.3)
    yield layouts((12, 1024, 1024, 64), 1.3)

    calls = [Operands((200, 200, 200), "NN").ours for _ in range(8)]
    count = 100
    eight, one = (min(together(calls[:n], count * 8 // n) for _ in range(10)) for n in (8, 1))
    yield "throughput of 8 Python threads over one caller's, 200 x 200 x 200", one / eight, 0.8, "least"

    narrow = Operands((2, 1, 4000), "TN").ours
    [all_threads] = best([narrow])
    one_thread = os.environ | {"PYBLAS_SGEMM_THREADS": "1"}
    alone = subprocess.run(
        [sys.executable, __file__, "--narrow"], env=one_thread, capture_output=True, text=True, check=True
    ).stdout
    yield "2 x 1 x 4000 on all threads over on one", all_threads / float(alone), 2.0, "most"

    first = min(
        float(subprocess.run([sys.executable, "-I", "-c", FIRST], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    )
    yield "first 64 x 64 x 64 of a process, ms", first * 1e3, 10.0, "most"
    [sixty_four] = best([Operands((64, 64, 64), "NN").ours])
    yield "one 64 x 64 x 64 by sgemm, us", sixty_four * 1e6, 10.0, "most"
    eight_by_eight = Operands((8, 8, 8), "NN")
    a, b, c = eight_by_eight.op_a, eight_by_eight.op_b, eight_by_eight.c
    sgemm, matmul = best([
        lambda: pyblas_sgemm.sgemm("N", "N", 8, 8, 8, 1.0, a, 8, b, 8, 0.0, c, 8),
        lambda: pyblas_sgemm.matmul(a, b, out=c),
    ])  # fmt: skip
    yield "one 8 x 8 x 8 by sgemm, us", sgemm * 1e6, 1.4, "most"
    yield "one 8 x 8 x 8 by matmul(out=), us", matmul * 1e6, 1.8, "most"
    batch, one_of_them = best([Operands((10000, 9, 9, 9), "NN").ours, Operands((9, 9, 9), "NN").ours])
    yield "10000 of 9 x 9 x 9 over as many calls", batch / (1e4 * one_of_them), 1.0, "most"


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


def write(name, columns, rows):
    path = Path(__file__).parent / "results" / f"cpu_{name}.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def run_cases(name):
    machine, rows = facts(), []
    for what, figure, bound, sense in cases():
        row = {"case": what, "measured": f"{figure:.3g}", "sense": f"at {sense}", "bound": bound}
        rows.append(row | machine)
        print("{case}: {measured}, {sense} {bound}".format(**row), flush=True)
    if name:
        write(f"{name}_cases", rows[0], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="write bench/results/cpu_<name>.csv")
    parser.add_argument("--turns", type=int, default=3, help="turns of each library for each shape")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a turn")
    parser.add_argument("--only", help="comma-separated extents of the one shape to run, such as 8,4096,4096")
    parser.add_argument("--busy", action="store_true", help="one thread of each, in the processor's time")
    parser.add_argument("--cases", action="store_true", help="the cases instead of the shapes")
    parser.add_argument("--narrow", action="store_true", help=argparse.SUPPRESS)  # a part of the cases
    options = parser.parse_args()
    if options.narrow:
        print(min(best([Operands((2, 1, 4000), "TN").ours])))
        return
    if os.environ.get("OPENBLAS_CORETYPE"):
        print("OPENBLAS_CORETYPE is set: both libraries are held to an older processor's kernels")
    if options.cases:
        run_cases(options.name)
        return
    if options.busy:
        os.environ["PYBLAS_SGEMM_THREADS"] = "1"  # read at the first call
        threadpoolctl.threadpool_limits(1, "blas")
    shapes = [(shape, "NN", False) for shape in SQUARES + SKINNY + BATCHES]
    shapes += [((n, n, n), ops, False) for n in (256, 1024) for ops in ("NT", "TN", "TT")]
    shapes += [(shape, "NN", True) for shape in INVARIANT]
    if options.only:
        wanted = tuple(map(int, options.only.split(",")))
        shapes = [entry for entry in shapes if entry[0] == wanted] or [(wanted, "NN", False)]
    machine = facts()
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"{'batch':>6} {'m':>6} {'n':>6} {'k':>7} ops i {'kernel':>11} {'numpy us':>11} {'ours us':>11} {'GFLOPS':>7} ratio  bar"
    )
    rows = []
    for shape, ops, invariant in shapes:
        row = measure(shape, ops, invariant, options.turns, options.seconds, options.busy)
        rows.append(row | machine)
        print(
            f"{row['batch']:>6} {row['m']:>6} {row['n']:>6} {row['k']:>7} {ops:>3} {row['batch_invariant']} {row['kernel']:>11}"
            f" {row['numpy_us']:>11} {row['ours_us']:>11} {row['gflops']:>7} {row['ratio']:>5} {row['bar']:>4}",
            flush=True,
        )
    if options.name:
        write(options.name, COLUMNS, rows)


if __name__ == "__main__":
    main()
