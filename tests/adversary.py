"""Input made to lose bits in kernels that multiply planes: significands at the ends of planes, magnitudes that crowd below
the limits of half precision or just below the last bit of the largest product.

As a program it looks for the worst of it, changing what has come nearest to the bound so far:

    python tests/adversary.py --seconds 60            # on the model in planes.py
    python tests/adversary.py --seconds 60 --gpu      # on every such kernel of the GPU

It prints the worst recipes as lines of data/worst_input.jsonl, which the tests then keep, and ends with 1 if one of them
breaks the bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import planes
import reference

ROWS, COLUMNS = 64, 20  # as many rows as wgmma_skinny takes for one decision
DEPTHS = (32, 33, 40, 64, 65, 96, 127, 128, 129, 192, 256, 257, 500, 1000, 2048, 4096)
SCALES = (0, 0, -120, -60, 40)
SIGNIFICANDS, FALLS, SIGNS, REACH = 6, 7, 3, 33
RECORD = Path(__file__).parent / "data" / "worst_input.jsonl"


@dataclass(frozen=True)
class Operand:
    significand: int
    fall: int  # how magnitudes fall along k
    reach: int  # by how many powers of two
    sign: int
    scale: int

    def values(self, rng: np.random.Generator, shape: tuple[int, int], axis: int) -> np.ndarray:
        k, reach = shape[axis], self.reach
        index = np.arange(k).reshape((1, k) if axis else (k, 1))
        low_bits = rng.integers(0, 16, shape) * 2.0**-23
        significand = (
            1 + low_bits, 2 - low_bits - 2.0**-23, 1 + 2.0**-11 + low_bits, 1 + rng.random(shape), 1 + 2.0**-8 + low_bits,
            2 - 2.0**-11 - low_bits,
        )[self.significand]  # fmt: skip
        fall = (
            np.zeros(shape, dtype=int), rng.integers(0, reach + 1, shape), index * reach // k,
            (k - 1 - index) * reach // k, np.where(index % 16 == 0, 0, reach), np.where(index == 0, 0, reach),
            np.where(index == 1, 0, reach),
        )[self.fall]  # fmt: skip
        sign = (1, rng.choice([-1, 1], shape), np.where(index % 2, -1, 1))[self.sign]
        return (sign * np.ldexp(significand, self.scale - fall)).astype(np.float32)


@dataclass(frozen=True)
class Recipe:
    k: int
    a: Operand
    b: Operand
    seed: int

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([7, self.seed])
        return self.a.values(rng, (ROWS, self.k), 1), self.b.values(rng, (self.k, COLUMNS), 0)

    def changed(self, rng: np.random.Generator) -> Recipe:
        """With one of its numbers drawn anew."""
        other = drawn(rng)
        name = rng.choice(["k", "seed", "a", "b"], p=[0.15, 0.25, 0.3, 0.3])
        if name not in ("a", "b"):
            return replace(self, **{name: getattr(other, name)})
        part = rng.choice(["significand", "fall", "reach", "sign", "scale"])
        mine, new = getattr(self, name), getattr(other, name)
        return replace(self, **{name: replace(mine, **{part: getattr(new, part)})})


def drawn(rng: np.random.Generator) -> Recipe:
    def operand() -> Operand:
        significand, fall, reach, sign = (int(rng.integers(n)) for n in (SIGNIFICANDS, FALLS, REACH, SIGNS))
        return Operand(significand, fall, reach, sign, int(rng.choice(SCALES)))

    return Recipe(int(rng.choice(DEPTHS)), operand(), operand(), int(rng.integers(1 << 31)))


def made_up(number: int) -> Recipe:
    return drawn(np.random.default_rng([7, number]))


def recorded() -> list[Recipe]:
    found = []
    for line in RECORD.read_text().splitlines():
        recipe = json.loads(line)["recipe"]
        found.append(Recipe(recipe["k"], Operand(**recipe["a"]), Operand(**recipe["b"]), recipe["seed"]))
    return found


def of_bound(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """The largest error of an element as a part of its bound in the mode fp32; infinite if a result is not a number."""
    zero = np.zeros(got.shape, dtype=np.float32)
    want, magnitude = reference.product(1.0, a, b, 0.0, zero)
    part = float((np.abs(got - want) / reference.bound("fp32", a.shape[1], 1.0, magnitude)).max())
    return part if part >= 0 else np.inf


def worst(
    multiply: Callable[[np.ndarray, np.ndarray], np.ndarray | None], turns: Iterable[object], seed: int
) -> tuple[list[tuple[float, Recipe]], int]:
    """Of each depth the recipe that comes nearest to the bound, the nearest of all first, and how many were tried.
    multiply() answers None to what it refuses."""
    rng = np.random.default_rng(seed)
    best: dict[int, tuple[float, Recipe]] = {}
    tried = 0
    for _ in turns:
        new = not best or rng.random() < 0.2
        recipe = drawn(rng) if new else best[int(rng.choice(list(best)))][1].changed(rng)
        a, b = recipe.operands()
        if (got := multiply(a, b)) is None:
            continue
        tried += 1
        if (part := of_bound(got, a, b)) > best.get(recipe.k, (-1.0,))[0]:
            best[recipe.k] = part, recipe
    return sorted(best.values(), key=lambda found: -found[0]), tried


def turns_for(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def models() -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray | None]]:
    return {
        scheme: lambda a, b, scheme=scheme: planes.multiply(a, b, scheme)
        for scheme in ("f16x2", "bf16x3", "skinny", "deep")
    }


def kernels_of_the_gpu() -> dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray | None]]:
    import cupy

    import pyblas_sgemm

    def forced(name: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray | None]:
        handle = pyblas_sgemm.Handle(kernel=name)

        def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
            c = cupy.empty((ROWS, COLUMNS), cupy.float32)
            k = a.shape[1]
            try:
                pyblas_sgemm.sgemm("N", "N", ROWS, COLUMNS, k, 1, cupy.asarray(a), k, cupy.asarray(b), COLUMNS, 0, c, COLUMNS,
                                   handle=handle)  # fmt: skip
            except pyblas_sgemm.NotSupportedError:
                return None
            return cupy.asnumpy(c)

        return multiply

    families = ("wgmma", "wgmma_skinny", "wgmma_deep", "mma_split", "mma_planes")
    rows = [row for row in pyblas_sgemm.kernels() if row.family in families]
    return {row.name: forced(row.name) for row in rows if "fp32" in row.modes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="for all kernels together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="the kernels of the GPU instead of the model")
    parser.add_argument("--keep", type=int, default=4, help="depths of each kernel to print (default: %(default)s)")
    options = parser.parse_args()
    kernels = kernels_of_the_gpu() if options.gpu else models()
    broken = False
    for name, multiply in kernels.items():
        best, tried = worst(multiply, turns_for(options.seconds / len(kernels)), options.seed)
        print(f"{name}: {tried} inputs, at most {best[0][0]:.3f} of the bound", file=sys.stderr)
        for part, recipe in best[: options.keep]:
            print(json.dumps({"kernel": name, "of_bound": round(part, 3), "recipe": asdict(recipe)}), flush=True)
        broken |= best[0][0] > 1
    return broken


if __name__ == "__main__":
    sys.exit(main())
