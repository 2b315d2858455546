"""Times NumPy's square products alone and under `pyblas-sgemm run --device cpu, cuda and auto`, each in a process of its
own, one after another; the best of some calls. Writes bench/results/<name>-dropin-squares.csv.

    python bench/dropin_squares.py --name nvidia-h200

bench/report.py makes a table of it for docs/drop-in.md.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import pyblas_sgemm

SIZES = (256, 512, 768, 1024, 1536, 2048, 4096, 8192)
DEVICES = ("alone", "cpu", "cuda", "auto")


def work():
    rng = np.random.default_rng(0)
    best = []
    for n in SIZES:
        a, b = rng.standard_normal((2, n, n), dtype=np.float32)
        c = np.matmul(a, b)
        times, end = [], time.perf_counter() + 0.3
        while len(times) < 3 or time.perf_counter() < end:
            begin = time.perf_counter()
            np.matmul(a, b, out=c)
            times.append(time.perf_counter() - begin)
        rows = rng.integers(0, n, 8)
        exact = a[rows].astype(np.float64) @ b
        best.append((min(times), float(np.linalg.norm(c[rows] - exact) / np.linalg.norm(exact))))
    print(json.dumps(best))


def measured(device):
    command = [sys.executable, __file__, "--work"]
    if device != "alone":
        command = [sys.executable, "-m", "pyblas_sgemm", "run", "--device", device, *command]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def commit():
    command = ["git", "-C", Path(__file__).parent, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="the machine, for the csv's name; without it nothing is written")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results", help="the csv's folder")
    parser.add_argument("--commit", help="what is measured; git is asked if it is not given")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work()
    results = {device: measured(device) for device in DEVICES}
    print("n    ", *(f"{device:>10} ms" for device in DEVICES), "   error alone and on the GPU")
    for i, n in enumerate(SIZES):
        times = (f"{results[device][i][0] * 1e3:13.3f}" for device in DEVICES)
        print(f"{n:5}", *times, f"  {results['alone'][i][1]:.1e} {results['cuda'][i][1]:.1e}")
    if options.name:
        info = pyblas_sgemm.info()
        gpu = info["gpus"][0]["name"] if info["gpus"] else ""
        model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        fixed = [gpu, model[0].split(":")[1].strip(), info["cpu"]["threads"], np.__version__,
                 options.commit or commit(), datetime.date.today()]  # fmt: skip
        with open(options.output / f"{options.name}-dropin-squares.csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["n", *(f"{device}_ms" for device in DEVICES), "alone_error", "cuda_error", "gpu",
                             "processor", "threads", "numpy", "commit", "date"])  # fmt: skip
            for i, n in enumerate(SIZES):
                writer.writerow([n, *(f"{results[device][i][0] * 1e3:.3f}" for device in DEVICES),
                                 f"{results['alone'][i][1]:.1e}", f"{results['cuda'][i][1]:.1e}", *fixed])  # fmt: skip


if __name__ == "__main__":
    main()
