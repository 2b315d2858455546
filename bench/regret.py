"""Measures what the selection costs: the time of the chosen kernel over that of the best one forced by name.

    python bench/regret.py                        # shapes.json and 200 random shapes, a csv row for each kernel of each
    python bench/fit.py bench/results/GPU-regret.csv    # what the predictions miss, and the regret once more

Each kernel is held against the best of the strictest mode that allows it, so that the same rows judge the choices of
fp32_pedantic, fp32 and tf32. Those that are predicted to take more than --within times the best prediction are not run.
The csv keeps the chosen ones, and what takes at most --keep times the best: a fit of rates wants both to be 2 or more.
Needs what bench.py needs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import cupy as cp
import numpy as np
import timing
from fit import LADDER, MODES, legal, report
from timing import Buffers, LibraryError, Pyblas, Shape, gpu_facts, time_groups

from bench import HERE, gpu_kernels, shapes

FIELDS = ["source", "ops", "m", "n", "k", "batch", "kernel", "mode", "chosen", "pedantic", "tf32", "us", "us_low",
          "predicted_us", "gpu", "driver", "commit"]  # fmt: skip
MOST_FLOPS, MOST_BYTES = 2e11, 1e9  # of a random product
# A product of so many operations heats the card, and the next one is timed at a lower clock: it rests before each, and
# kernels far from the best predictions are left out.
HOT_FLOPS, HOT_WITHIN, REST_SECONDS = 5e10, 1.6, 0.05


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


def contested_shapes(count: int, seed: int = 2026) -> Iterator[Shape]:
    """Sizes between those of several families, where predictions decide: they are there for the fit."""
    random = np.random.default_rng(seed)

    def between(low: int, high: int, step: int = 1) -> int:
        return int(max(step, round(float(np.exp(random.uniform(np.log(low), np.log(high)))) / step) * step))

    def ops() -> str:
        return "NN" if random.random() < 0.4 else "".join(random.choice(list("NT"), 2))

    def step() -> int:
        return 1 if random.random() < 0.25 else 4 if random.random() < 0.4 else 16

    found: dict[Shape, None] = {}
    while len(found) < count:
        kinds = []
        s = step()
        kinds.append((ops(), between(256, 3000, s), between(256, 3000, s), between(128, 4096, s), 1))
        s = step()
        kinds.append((ops(), between(1024, 60000, s), between(2, 64), between(64, 4096, s), 1))
        s = step()
        kinds.append((ops(), between(2, 64), between(1024, 60000, s), between(64, 8192, s), 1))
        s = step()
        kinds.append((ops(), between(16, 256, s), between(16, 256, s), between(2048, 100000, s), 1))
        s, batch = step(), between(2, 256)
        kinds.append((ops(), between(16, 1024, s), between(16, 1024, s), between(16, 1024, s), batch))
        s = step()
        kinds.append((ops(), between(8, 4000, s), between(8, 4000, s), between(4, 128, s), 1))
        size = between(192, 2048, 64)
        kinds.append((ops(), size, size, size, 1))
        s = step()
        tall = between(4096, 200000, s), between(16, 512, s), between(16, 512, s)
        kinds.append((ops(), *tall, 1))
        for shape in itertools.starmap(Shape, kinds):
            if shape.flops < MOST_FLOPS / 10 and shape.bytes < MOST_BYTES / 2:
                found[shape] = None
    yield from itertools.islice(found, count)


def predictions(pyblas: Pyblas, kernels: list[str], shape: Shape, mode: str) -> tuple[str, dict[str, float]]:
    """The kernel that the mode takes, and the predicted seconds of all that do not refuse."""
    pyblas.set_modes(mode, False)
    pyblas.force("")
    chosen, found = pyblas.selected(shape), {}
    for kernel in kernels:
        with contextlib.suppress(LibraryError):
            pyblas.force(kernel)
            found[kernel] = pyblas.prediction(shape)[1]
    return chosen, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200, help="how many random shapes")
    parser.add_argument("--seed", type=int, default=0, help="of the random shapes")
    parser.add_argument("--contested", type=int, default=0, help="how many instead, between those of several families")
    parser.add_argument("--within", type=float, default=3.0, help="times the best prediction")
    parser.add_argument("--keep", type=float, default=1.5, help="times the best measured")
    parser.add_argument("--part", default="0/1", help="i/n: each n-th shape from the i-th on, to share them among GPUs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that many")
    parser.add_argument("--commit", default="unknown", help="what is measured")
    parser.add_argument("--output", type=Path, help="csv file; bench/results/<GPU>-regret.csv if not given")
    options = parser.parse_args()

    timing.GROUP_SECONDS, timing.MOST_LAUNCHES, timing.GROUPS = 0.7e-3, 200, 5
    began = time.monotonic()
    stream = cp.cuda.Stream(non_blocking=True)
    pyblas = Pyblas(stream)
    l2_bytes = cp.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]
    facts = gpu_facts()
    kernels = [name for name in gpu_kernels() if name != "selected"]
    output = options.output or HERE / "results" / (facts["gpu"].lower().replace(" ", "-") + "-regret.csv")
    listed = {shape: family for family, shape in shapes([]) if shape.flops < 2e12}
    work = [*listed.items(), *((shape, "random") for shape in random_shapes(options.random, options.seed))]
    if options.contested:
        work = [(shape, "contested") for shape in contested_shapes(options.contested)]
        kernels = [name for name in kernels if not name.startswith(LADDER)]
    part, parts = map(int, options.part.split("/"))
    rows = []
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for number, (shape, source) in itertools.islice(enumerate(work), part, None, parts):
            if time.monotonic() - began > options.seconds:
                print(f"out of time after {number} of {len(work)} shapes")
                break
            predicted = {
                mode: predictions(pyblas, kernels, shape, mode) for mode in MODES
            }  # tf32, the last, allows all
            mode_of = {kernel: mode for mode in reversed(MODES) for kernel in predicted[mode][1]}
            choices = {chosen for chosen, _ in predicted.values()}
            buffers = Buffers(shape, l2_bytes, seed=number)
            measured = []
            for kernel, seconds in predicted["tf32"][1].items():
                mode = mode_of[kernel]
                hot = shape.flops > HOT_FLOPS
                within = min(HOT_WITHIN, options.within) if hot else options.within
                if seconds > within * min(predicted[mode][1].values()) and kernel not in choices:
                    continue
                if hot:
                    time.sleep(REST_SECONDS)
                pyblas.force(kernel)
                cold = time_groups(
                    stream, lambda index, s=shape, b=buffers: pyblas.call(s, *b.pointers(index)), buffers.sets
                )
                row = {"source": source, "ops": shape.ops, "m": shape.m, "n": shape.n, "k": shape.k,
                       "batch": shape.batch, "kernel": kernel, "mode": mode, "us": f"{cold.median * 1e6:.2f}",
                       "us_low": f"{cold.low * 1e6:.2f}", "predicted_us": f"{seconds * 1e6:.2f}", "gpu": facts["gpu"],
                       "driver": facts["driver"], "commit": options.commit}  # fmt: skip
                row |= {column: int(kernel == predicted[mode][0]) for mode, column in MODES.items()}
                measured.append({name: str(value) for name, value in row.items()})
            fastest = {mode: min(float(row["us"]) for row in legal(measured, mode)) for mode in MODES}
            near = [row for row in measured
                    if row["kernel"] in choices or float(row["us"]) <= options.keep * fastest[row["mode"]]]  # fmt: skip
            writer.writerows(near)
            rows += near
            file.flush()
            del buffers
            cp.get_default_memory_pool().free_all_blocks()
    report(rows)


if __name__ == "__main__":
    main()
