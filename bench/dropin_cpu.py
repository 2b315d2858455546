"""Times NumPy's products of 1000 mixed shapes with and without the preloaded shim; writes bench/results/cpu_<name>_dropin.csv.

    python bench/dropin_cpu.py --name zen5_2cores
    python bench/dropin_cpu.py --name zen5_1thread --busy # on a machine with other work on it

The same loop runs in processes of its own, in turns: alone, and under `pyblas-sgemm run`. It knows nothing of the shim.
Nobody is timed while the other's threads may still spin, and the best of all turns counts: other work on the machine
only ever adds time. Shapes that look slower than 1.1 times are timed again in further turns, for the same reason.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import threadpoolctl

import pyblas_sgemm

SHAPES = 1000
MOST_OPERATIONS = 1e9
LIMIT = 1.1  # what is promised: no shape takes more than this times what it took alone
COLUMNS = ["m", "n", "k", "ops", "plain_us", "shim_us", "ratio", "taken", "processor", "threads", "numpy", "numpy_blas",
           "cpu", "commit"]  # fmt: skip


def shapes():
    """Extents spread evenly over their logarithms, in all four layouts."""
    rng = np.random.default_rng(1)
    found = []
    while len(found) < SHAPES:
        m, n, k = (int(x) for x in np.exp(rng.uniform(np.log(2), np.log(2048), 3)))
        if 2.0 * m * n * k <= MOST_OPERATIONS:
            found.append((m, n, k, ("NN", "NT", "TN", "TT")[len(found) % 4]))
    return found


def seconds_of(shape, clock):
    """The best of some groups of calls, each long enough for the clock."""
    m, n, k, ops = shape
    rng = np.random.default_rng(m * 31 + n * 7 + k)
    a = rng.standard_normal((m, k) if ops[0] == "N" else (k, m), dtype=np.float32)
    b = rng.standard_normal((k, n) if ops[1] == "N" else (n, k), dtype=np.float32)
    a, b, c = a if ops[0] == "N" else a.T, b if ops[1] == "N" else b.T, np.empty((m, n), np.float32)
    multiply = np.matmul
    multiply(a, b, out=c)
    begin = clock()
    multiply(a, b, out=c)
    group = max(1, int(1e-4 / max(clock() - begin, 1e-7)))
    best, groups, end = float("inf"), 0, clock() + 4e-3
    while clock() < end or groups < 3:
        begin = clock()
        for _ in range(group):
            multiply(a, b, out=c)
        best, groups = min(best, (clock() - begin) / group), groups + 1
    return best


def turn(chosen, shim, busy=False):
    """Seconds of the chosen shapes in a process of its own."""
    command = [sys.executable, __file__, *["--busy"] * busy, "--work", json.dumps(chosen)]
    if shim:
        command = [sys.executable, "-m", "pyblas_sgemm", "run", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    return json.loads(done.stdout)


def taken(chosen):
    """Which shapes the shim takes: the record of a process that multiplies each once."""
    code = (
        "import json, sys, numpy as np\n"
        "for m, n, k, ops in json.loads(sys.argv[1]):\n"
        "    np.ones((m, k), 'f4') @ np.ones((k, n), 'f4')\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record")
        command = [sys.executable, "-m", "pyblas_sgemm", "run", sys.executable, "-c", code, json.dumps(chosen)]
        subprocess.run(command, check=True, cwd="/", env=os.environ | {"PYBLAS_SGEMM_REPORT": str(record)})
        lines = [json.loads(line) for line in record.read_text().splitlines()]
    return {(line["m"], line["n"], line["k"]) for line in lines if line["taken"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="the machine, for the csv's name; without it nothing is written")
    parser.add_argument("--turns", type=int, default=2, help="turns of all shapes (default: %(default)s)")
    parser.add_argument("--again", type=int, default=3, help="further turns of those above the limit")
    parser.add_argument("--busy", action="store_true", help="one thread, by the processor's time that it took")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        time.sleep(0.3)
        clock = time.thread_time if options.busy else time.perf_counter
        print(json.dumps([seconds_of(shape, clock) for shape in json.loads(options.work)]))
        return 0
    if "OPENBLAS_CORETYPE" in os.environ:  # it would hold OpenBLAS to an older processor's kernels
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    if options.busy:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"

    chosen = shapes()
    best = {(shape, shim): float("inf") for shape in chosen for shim in (False, True)}

    def measure(some):
        for shim in (False, True):
            for shape, seconds in zip(some, turn(some, shim, options.busy), strict=True):
                best[shape, shim] = min(best[shape, shim], seconds)

    def ratio(shape):
        return best[shape, True] / best[shape, False]

    for _ in range(options.turns):
        measure(chosen)
    for _ in range(options.again):
        if above := [shape for shape in chosen if ratio(shape) > LIMIT]:
            measure(above)

    ours = taken(chosen)
    for title, some in (("taken", True), ("passed on", False)):
        ratios = sorted(ratio(shape) for shape in chosen if (shape[:3] in ours) is some)
        if ratios:
            print(
                f"{title}: {len(ratios)} shapes, time with the shim over time without: "
                f"median {statistics.median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}"
            )
    totals = [sum(best[shape, shim] for shape in chosen) for shim in (False, True)]
    print(f"all, each once: {totals[0] * 1e3:.1f} ms without, {totals[1] * 1e3:.1f} ms with the shim")
    slow = [shape for shape in chosen if ratio(shape) > LIMIT]
    for shape in slow:
        print(f"above {LIMIT}: {shape} {ratio(shape):.2f} ({best[shape, False] * 1e6:.2f} us alone)")
    if options.name:
        write(options.name, chosen, best, ours, options.busy)
    return 1 if slow else 0


def write(name, chosen, best, ours, busy):
    root = Path(__file__).resolve().parents[1]
    commit = subprocess.run(
        ["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # NumPy's own: asking the library what it runs on may load another.
    blas = next(x for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas")
    info = pyblas_sgemm.info()["cpu"]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    fixed = [model, 1 if busy else blas["num_threads"], np.__version__,
             f"{blas['internal_api']} {blas['version']} {blas['architecture']}", info["instruction_set"], commit]  # fmt: skip
    with open(root / "bench" / "results" / f"cpu_{name}_dropin.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for shape in chosen:
            plain, shim = best[shape, False], best[shape, True]
            writer.writerow([*shape, f"{plain * 1e6:.2f}", f"{shim * 1e6:.2f}", f"{shim / plain:.2f}",
                             int(shape[:3] in ours), *fixed])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
