"""Measures what the selection costs: the time of the chosen kernel over that of the best one forced by name.

    python bench/regret.py                        # shapes.json and 200 random shapes, a csv row for each kernel of each
    python bench/fit.py bench/results/GPU-regret.csv    # what the predictions miss, and the regret once more

Kernels that are predicted to take more than --within times the best prediction are not run, and of those that are, the
csv keeps the chosen one and what takes at most 1.5 times the best. Needs what bench.py needs.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path

import cupy as cp
import numpy as np
import timing
from fit import NEAR, report
from timing import Buffers, LibraryError, Pyblas, Shape, gpu_facts, time_groups

from bench import HERE, gpu_kernels, shapes

FIELDS = ["source", "ops", "m", "n", "k", "batch", "kernel", "chosen", "us", "us_low", "predicted_us", "gpu", "driver",
          "commit"]  # fmt: skip
MOST_FLOPS, MOST_BYTES = 2e11, 1e9  # of a random product


def random_shapes(count: int, seed: int = 0) -> Iterator[Shape]:
    """Sizes spread evenly in their logarithms, most of them multiples of 4, a third of them batches."""
    random = np.random.default_rng(seed)
    while count > 0:
        m, n, k = (int(size) for size in np.exp(random.uniform(0, np.log(8192), 3)).round())
        if random.random() < 0.6:
            m, n, k = (max(4, size // 4 * 4) for size in (m, n, k))
        batch = int(np.exp(random.uniform(0, np.log(2048)))) if random.random() < 0.3 else 1
        shape = Shape("".join(random.choice(list("NT"), 2)), m, n, k, batch)
        if shape.flops <= MOST_FLOPS and shape.bytes <= MOST_BYTES:
            yield shape
            count -= 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200, help="how many random shapes")
    parser.add_argument("--within", type=float, default=3.0, help="times the best prediction")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that many")
    parser.add_argument("--commit", default="unknown", help="what is measured")
    parser.add_argument("--output", type=Path, help="csv file; bench/results/<GPU>-regret.csv if not given")
    options = parser.parse_args()

    timing.GROUP_SECONDS, timing.MOST_LAUNCHES, timing.GROUPS = 1e-3, 200, 5
    began = time.monotonic()
    stream = cp.cuda.Stream(non_blocking=True)
    pyblas = Pyblas(stream)
    l2_bytes = cp.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]
    facts = gpu_facts()
    kernels = [name for name in gpu_kernels() if name != "selected"]
    output = options.output or HERE / "results" / (facts["gpu"].lower().replace(" ", "-") + "-regret.csv")
    listed = {shape: family for family, shape in shapes([]) if shape.flops < 2e12}
    work = [*listed.items(), *((shape, "random") for shape in random_shapes(options.random))]
    rows = []
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for number, (shape, source) in enumerate(work):
            if time.monotonic() - began > options.seconds:
                print(f"out of time after {number} of {len(work)} shapes")
                break
            pyblas.force("")
            chosen, best = pyblas.prediction(shape)
            buffers = Buffers(shape, l2_bytes, seed=number)
            measured = []
            for kernel in kernels:
                pyblas.force(kernel)
                try:
                    predicted = pyblas.prediction(shape)[1]
                    if predicted > options.within * best and kernel != chosen:
                        continue
                    cold = time_groups(
                        stream, lambda index, s=shape, b=buffers: pyblas.call(s, *b.pointers(index)), buffers.sets
                    )
                except LibraryError:
                    continue  # refused
                row = {"source": source, "ops": shape.ops, "m": shape.m, "n": shape.n, "k": shape.k,
                       "batch": shape.batch, "kernel": kernel, "chosen": int(kernel == chosen),
                       "us": f"{cold.median * 1e6:.2f}", "us_low": f"{cold.low * 1e6:.2f}",
                       "predicted_us": f"{predicted * 1e6:.2f}", "gpu": facts["gpu"], "driver": facts["driver"],
                       "commit": options.commit}  # fmt: skip
                measured.append({name: str(value) for name, value in row.items()})
            fastest = min(float(row["us"]) for row in measured)
            near = [row for row in measured if row["chosen"] == "1" or float(row["us"]) <= NEAR * fastest]
            writer.writerows(near)
            rows += near
            file.flush()
            del buffers
            cp.get_default_memory_pool().free_all_blocks()
    report(rows)


if __name__ == "__main__":
    main()
