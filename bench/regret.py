"""Measures what the selection costs: the time of the chosen kernel over that of the best one forced by name.

    python bench/regret.py                        # shapes.json and 200 random shapes, a csv row for each kernel of each
    python bench/fit.py bench/results/GPU-regret.csv    # what the predictions miss, and the regret once more

Each kernel is held against the best of the strictest mode that allows it, so that the same rows judge the choices of
fp32_pedantic, fp32 and tf32. Those that are predicted to take more than --within times the best prediction are not run,
and those whose second launch takes more than --keep times the best so far are left there. The others are timed once;
the chosen ones, and what is near the best, then by turns: a clock that sinks is the same for all of them. The csv keeps
the chosen ones, and what takes at most --keep times the best: a fit of rates wants both to be 2 or more. Needs what
bench.py needs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import cupy as cp
import numpy as np
import timing
from fit import LADDER, MODES, report
from timing import Buffers, Launches, LibraryError, Pyblas, Shape, gpu_facts

from bench import HERE, gpu_kernels, shapes

FIELDS = ["source", "ops", "m", "n", "k", "batch", "kernel", "mode", "chosen", "pedantic", "tf32", "us", "us_low",
          "predicted_us", "gpu", "driver", "commit"]  # fmt: skip
MOST_FLOPS, MOST_BYTES = 2e11, 1e9  # of a random product
# A product of so many operations heats the card, and the next one is timed at a lower clock: it rests before each.
# Kernels far from the best predictions are left out then, and those of the ladder.
HOT_FLOPS, HOT_WITHIN, REST_SECONDS = 5e10, 1.4, 0.02
LONG_FLOPS, LONG_WITHIN = 5e11, 1.1
NEAR, ROUNDS, HOT_ROUNDS = 1.2, 4, 2  # what takes less than so many times the best is timed so often again
EVENTS_SECONDS = 4e-5  # the host takes for a launch alone between two events, while the GPU waits
DIRECT_SECONDS = 2e-3  # a launch of so many needs no others


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


def odd_shapes(count: int) -> Iterator[Shape]:
    """Squares whose rows of C, or all rows, have an odd length, or one of 2 more than whole 16 bytes; then contested
    shapes with rows of C of an odd length."""
    squares = []
    for size in (256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096):
        squares += [Shape("NT", size, size + 1, size), Shape("NN", size + 1, size + 1, size + 1)]
        squares += [Shape("TN", size, size - 2, size), Shape("NT", size, size + 4, size)]
    others = (dataclasses.replace(shape, n=shape.n | 1) for shape in contested_shapes(count, seed=2027))
    yield from itertools.islice(itertools.chain(squares, others), count)


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


class Contest:
    """The kernels of one product, beside each other."""

    def __init__(self, stream: cp.cuda.Stream, pyblas: Pyblas, shape: Shape, buffers: Buffers) -> None:
        self.stream, self.pyblas, self.shape, self.buffers = stream, pyblas, shape, buffers
        hot = shape.flops > HOT_FLOPS
        self.rest, self.rounds = (REST_SECONDS, HOT_ROUNDS) if hot else (0.0, ROUNDS)
        self.launches: dict[str, Launches] = {}
        self.times: dict[str, list[float]] = {}
        self.mode: dict[str, str] = {}  # the strictest that allows the kernel
        self.launched: dict[str, str] = {}  # the mode in which it is timed

    def best(self, mode: str) -> float:
        """Of what the mode allows, as far as it was timed."""
        allowed = list(MODES)[: list(MODES).index(mode) + 1]
        times = [statistics.median(times) for kernel, times in self.times.items() if self.mode[kernel] in allowed]
        return min(times, default=float("inf"))

    def enter(self, kernel: str, mode: str, launched: str, at_most: float) -> None:
        """Times a kernel once, unless two launches say that it takes more than so many times the best. It is launched in
        another mode than the one where it counts: all are in the loosest that they serve."""

        pyblas, shape, buffers = self.pyblas, self.shape, self.buffers  # not self: the operands are to go with it

        def launch(index: int) -> None:
            pyblas.call(shape, *buffers.pointers(index))

        self.prepare(kernel, launched)
        launches = Launches(self.stream, launch, buffers.sets)
        most = at_most * self.best(mode) + EVENTS_SECONDS
        if launches.once > most and launches.group() > most:
            return
        first = launches.once
        if first < DIRECT_SECONDS:
            launches.capture()
            first = launches.group()
        self.launches[kernel], self.times[kernel] = launches, [first]
        self.mode[kernel], self.launched[kernel] = mode, launched

    def prepare(self, kernel: str, launched: str) -> None:
        self.pyblas.set_modes(launched, False)
        self.pyblas.force(kernel)
        time.sleep(self.rest)

    def take_turns(self, chosen: list[str]) -> None:
        near = [kernel for kernel, times in self.times.items()
                if kernel in chosen or times[0] < NEAR * self.best(self.mode[kernel])]  # fmt: skip
        for _ in range(self.rounds):
            for kernel in near:
                self.prepare(kernel, self.launched[kernel])
                self.times[kernel].append(self.launches[kernel].group())


def candidates(shape: Shape, predicted: dict[str, float], fastest: dict[str, float], most: float) -> list[str]:
    """What is launched at all, the best prediction first; fastest is that of the kernel's mode."""
    hot = shape.flops > HOT_FLOPS
    if hot:
        most = min(most, LONG_WITHIN if shape.flops > LONG_FLOPS else HOT_WITHIN)
    near = [kernel for kernel, seconds in predicted.items() if seconds <= most * fastest[kernel]]
    return sorted((kernel for kernel in near if not (hot and kernel.startswith(LADDER))), key=predicted.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200, help="how many random shapes")
    parser.add_argument("--seed", type=int, default=0, help="of the random shapes")
    parser.add_argument("--contested", type=int, default=0, help="how many instead, between those of several families")
    parser.add_argument("--odd", type=int, default=0, help="how many instead, with rows of C of an odd length")
    parser.add_argument("--within", type=float, default=3.0, help="times the best prediction")
    parser.add_argument("--keep", type=float, default=1.5, help="times the best measured")
    parser.add_argument("--part", default="0/1", help="i/n: each n-th shape from the i-th on, to share them among GPUs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that many")
    parser.add_argument("--commit", default="unknown", help="what is measured")
    parser.add_argument("--output", type=Path, help="csv file; bench/results/<GPU>-regret.csv if not given")
    options = parser.parse_args()

    timing.GROUP_SECONDS, timing.MOST_LAUNCHES = 0.5e-3, 200
    began = time.monotonic()
    stream = cp.cuda.Stream(non_blocking=True)
    pyblas = Pyblas(stream)
    l2_bytes = cp.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]
    facts = gpu_facts()
    kernels = [name for name in gpu_kernels() if name != "selected"]
    output = options.output or HERE / "results" / (facts["gpu"].lower().replace(" ", "-") + "-regret.csv")
    listed = {shape: family for family, shape in shapes([])}
    work = [*listed.items(), *((shape, "random") for shape in random_shapes(options.random, options.seed))]
    if options.contested or options.odd:
        work = [(shape, "contested") for shape in contested_shapes(options.contested)]
        work += [(shape, "odd rows") for shape in odd_shapes(options.odd)]
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
            predicted = {mode: predictions(pyblas, kernels, shape, mode) for mode in MODES}
            mode_of = {kernel: mode for mode in reversed(MODES) for kernel in predicted[mode][1]}
            loosest = {kernel: mode for mode in MODES for kernel in predicted[mode][1]}  # that does not refuse it
            expected = {kernel: predicted[mode][1][kernel] for kernel, mode in loosest.items()}
            choices = list(dict.fromkeys(chosen for chosen, _ in predicted.values()))
            contest = Contest(stream, pyblas, shape, Buffers(shape, l2_bytes, seed=number))
            fastest = {kernel: min(predicted[mode][1].values()) for kernel, mode in mode_of.items()}
            for kernel in choices:
                contest.enter(kernel, mode_of[kernel], loosest[kernel], float("inf"))
            for kernel in candidates(shape, expected, fastest, options.within):
                if kernel not in choices:
                    contest.enter(kernel, mode_of[kernel], loosest[kernel], options.keep)
            contest.take_turns(choices)
            measured = []
            for kernel, times in contest.times.items():
                row = {"source": source, "ops": shape.ops, "m": shape.m, "n": shape.n, "k": shape.k,
                       "batch": shape.batch, "kernel": kernel, "mode": mode_of[kernel],
                       "us": f"{statistics.median(times) * 1e6:.2f}", "us_low": f"{min(times) * 1e6:.2f}",
                       "predicted_us": f"{expected[kernel] * 1e6:.2f}", "gpu": facts["gpu"],
                       "driver": facts["driver"], "commit": options.commit}  # fmt: skip
                row |= {column: int(kernel == predicted[mode][0]) for mode, column in MODES.items()}
                measured.append({name: str(value) for name, value in row.items()})
            near = [row for row in measured if row["kernel"] in choices
                    or float(row["us"]) <= options.keep * contest.best(row["mode"]) * 1e6]  # fmt: skip
            writer.writerows(near)
            rows += near
            file.flush()
            del contest
            pyblas.free_workspace()
            cp.get_default_memory_pool().free_all_blocks()
    report(rows)


if __name__ == "__main__":
    main()
