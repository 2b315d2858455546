"""One product laid out in memory: where every element lies, what lies between, and the check of all of it afterwards.

A and B are surrounded and interleaved with poison, C with canaries; C itself is poison where it must not be read.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace

import numpy as np

import reference
from engines import OPS, SUCCESS, invoke, message

GUARD = 64  # words before and after each buffer


@dataclass(frozen=True)
class Product:
    """The numbers of a call. gap is added to the least ld; offset is that of the first element from 64 bytes."""

    m: int
    n: int
    k: int
    transa: str = "N"
    transb: str = "N"
    alpha: float = 1.0
    beta: float = 0.0
    order: str = "F"
    gap: tuple[int, int, int] = (0, 0, 0)
    offset: tuple[int, int, int] = (0, 0, 0)
    batch: int | None = None  # None: the entry without batches
    stride: tuple[int | None, int | None, int | None] = (None, None, None)  # None: one matrix after the other
    ldc: int | None = None  # instead of the least one plus gap
    pointers: bool = False  # the entry that takes arrays of pointers
    wide: bool = False  # the _64 entry
    data: str = "normal"

    def but(self, **changes):
        return replace(self, **changes)

    @property
    def entry(self):
        if self.batch is None:
            return "sgemm"
        return "gemm_batched" if self.pointers else "gemm_strided_batched"

    @property
    def reads_inputs(self):
        return self.k > 0 and self.alpha != 0

    @property
    def shapes(self):
        """Rows and columns as they are stored."""
        a = (self.m, self.k) if self.transa == "N" else (self.k, self.m)
        b = (self.k, self.n) if self.transb == "N" else (self.n, self.k)
        return a, b, (self.m, self.n)


@dataclass
class Placed:
    """A batch of matrices inside a buffer of words."""

    words: np.ndarray
    index: np.ndarray  # batch x rows x columns -> position in words
    base: int
    ld: int
    stride: int

    @property
    def values(self):
        return self.words[self.index]

    def starts(self):
        return [self.base + i * self.stride for i in range(self.index.shape[0])]


def place(shape, order, ld, stride, batch, offset, fill):
    rows, columns = shape
    inner, outer = (rows, columns) if order == "F" else (columns, rows)
    span = max((outer - 1) * ld + inner, 0) if inner and outer else 0
    if stride is None:
        stride = span
    lowest = min(0, (batch - 1) * stride)
    base = GUARD + (-lowest + 15) // 16 * 16 + offset
    size = base + max(0, (batch - 1) * stride) + span + GUARD
    step_r, step_c = (1, ld) if order == "F" else (ld, 1)
    index = (
        base
        + np.arange(batch, dtype=np.int64)[:, None, None] * stride
        + np.arange(rows, dtype=np.int64)[:, None] * step_r
        + np.arange(columns, dtype=np.int64) * step_c
    )
    return Placed(fill(size), index, base, ld, stride)


def canaries(size):
    """Numbers between 1 and 2 that tell their place: hardly a multiply-add leaves one of them as it is."""
    return (np.arange(size, dtype=np.uint32) % 0x7FFFFF + 0x3F800001).view(np.float32)


def normal(rng, a, b):
    return rng.standard_normal(a, dtype=np.float32), rng.standard_normal(b, dtype=np.float32)


def uniform(rng, a, b):
    return rng.random(a, dtype=np.float32) - 0.5, rng.random(b, dtype=np.float32) - 0.5


def positive(rng, a, b):
    return rng.random(a, dtype=np.float32) + 0.5, rng.random(b, dtype=np.float32) + 0.5


def _powers(rng, shape, low, high):
    return np.exp2(rng.uniform(low, high, shape)).astype(np.float32)


def wide(rng, a, b):
    x, y = normal(rng, a, b)
    return x * _powers(rng, a, -20, 20), y * _powers(rng, b, -20, 20)


def wider(rng, a, b):
    x, y = normal(rng, a, b)
    return x * _powers(rng, a, -60, 60), y * _powers(rng, b, -60, 60)


def one_huge(rng, a, b):
    """One element of each row of A and of each column of B stands out by forty powers of two."""
    x, y = normal(rng, a, b)
    for values, axis in ((x, -1), (y, -2)):
        shape = list(values.shape)
        shape[axis] = 1
        place = rng.integers(0, values.shape[axis], shape)
        np.put_along_axis(values, place, np.take_along_axis(values, place, axis) * np.float32(2.0**40), axis)
    return x, y


def graded_outer(rng, a, b):
    """Rows of A and columns of B fall off over forty powers of two."""
    x, y = normal(rng, a, b)
    rows = np.exp2(-np.linspace(0, 40, a[-2]))[:, None].astype(np.float32)
    columns = np.exp2(-np.linspace(0, 40, b[-1])).astype(np.float32)
    return x * rows, y * columns


def graded_inner(rng, a, b):
    """Along k, A falls off and B grows."""
    x, y = normal(rng, a, b)
    fall = np.exp2(-np.linspace(0, 40, a[-1])).astype(np.float32)
    return x * fall, y * (np.float32(1) / fall)[:, None]


def cancelling(rng, a, b):
    """The second half of k takes back the first, so nothing but rounding and the last term is left."""
    x, y = normal(rng, a, b)
    half = a[-1] // 2
    x[..., half : 2 * half] = x[..., :half]
    y[..., half : 2 * half, :] = -y[..., :half, :]
    return x, y


def integers(rng, a, b):
    """Exact as long as 64 * k stays below 2**24."""
    return rng.integers(-8, 9, a).astype(np.float32), rng.integers(-8, 9, b).astype(np.float32)


def subnormal(rng, a, b):
    x, y = normal(rng, a, b)
    return x * np.float32(2.0**-130), y


def tiny_lines(rng, a, b):
    """Whole rows of A and columns of B here and there, partly subnormal, beside normal ones."""
    x, y = normal(rng, a, b)
    x[..., ::61, :] *= np.float32(1e-38)
    y[..., ::97] *= np.float32(1e-38)
    return x, y


def tiny_products(rng, a, b):
    """Factors are normal numbers, products and sums are not."""
    x, y = normal(rng, a, b)
    return x * np.float32(2.0**-70), y * np.float32(2.0**-72)


def huge(rng, a, b):
    """Sums of magnitudes come within two powers of two of 2**127."""
    x, y = uniform(rng, a, b)
    scale = np.float32(2.0**62)
    return x * scale, y * np.float32(2.0**64 / max(a[-1], 1))


def patched(rng, shape, along):
    """Values of one operand that are hard in several ways at once; k runs along the axis."""
    k = shape[along]
    pieces = -(-k // 64)
    depth = np.arange(k).reshape([k if axis == along else 1 for axis in range(len(shape))])
    lines, by_piece = np.array(shape), np.array(shape)
    lines[along], by_piece[along] = 1, pieces
    start, turn = ((1, 1), (2 - 2.0**-23, -1), (1 + 2.0**-11, 1), (2 - 2.0**-11, -1), (1, 0))[rng.integers(5)]
    values = start + turn * rng.integers(0, 16, shape) * 2.0**-23 if turn else start + rng.random(shape)
    if rng.random() < 0.7:
        values *= rng.choice([-1.0, 1.0], shape)
    reach = int(rng.choice([2, 11, 13, 14, 15, 18, 23, 25, 30, 40]))
    for fall in rng.choice(7, rng.integers(0, 3), replace=False):
        if fall == 0:  # lines differ
            values = np.ldexp(values, rng.integers(-reach, 1, lines))
        elif fall == 1:  # each 64 of k of a line by itself
            values = np.ldexp(values, np.take(rng.integers(-reach, 1, by_piece), depth.ravel() // 64, axis=along))
        elif fall == 2:  # every element
            values = np.ldexp(values, rng.integers(-reach, 1, shape))
        elif fall == 3:  # one of 64 stands out
            values = np.ldexp(values, np.where(rng.random(shape) < 1 / 64, 0, -reach))
        elif fall == 4:  # just at the ends of what planes hold
            values = np.ldexp(values, rng.choice([0, 0, 0, -3, -8, -13, -14, -22, -23, -24, -28], shape))
        elif fall == 5:  # along k
            values = np.ldexp(values, -depth * reach // k)
        else:  # few lines are far below their neighbours, or above
            values = np.ldexp(values, np.where(rng.random(lines) < 0.03, rng.choice([-130, -60, -35, 20]), 0))
    values = np.ldexp(values, rng.choice([0, 0, 0, 20, -30, -60, -100, -128]))
    values = values.astype(np.float32)
    for spot in rng.choice(6, rng.integers(0, 3), replace=False):
        value = (0.0, -0.0, 1e-41, 2.0**50, np.inf, np.nan)[spot]
        share = rng.choice([0.3, 0.5]) if spot < 2 else rng.choice([1, 3, 40]) / values.size
        where = rng.random(shape) < share
        if rng.random() < 0.3:  # only in one 64 of k
            where &= depth // 64 == rng.integers(pieces)
        values[where] = value
    return values


def patchwork(rng, a, b):
    """Anything at once, another mixture for each product: lines and pieces of k of very different magnitudes, elements at
    the ends of what planes of 16 bits hold, zeros, subnormals, infinities and NaN here and there."""
    return patched(rng, a, len(a) - 1), patched(rng, b, len(b) - 2)


DATA = {
    f.__name__: f
    for f in (
        normal, uniform, positive, wide, wider, one_huge, graded_outer, graded_inner, cancelling, integers, subnormal,
        tiny_lines, tiny_products, huge, patchwork
    )
}  # fmt: skip


@dataclass
class Problem:
    """The buffers of a product on the host, ready to be run anywhere any number of times."""

    product: Product
    poison: int = reference.POISONS[0]
    a: Placed = field(init=False)
    b: Placed = field(init=False)
    c: Placed = field(init=False)

    def __post_init__(self):
        p = self.product
        rng = np.random.default_rng(zlib.crc32(repr(p.but(offset=(0, 0, 0))).encode()))
        batch = 1 if p.batch is None else p.batch
        placed = []
        for i, shape in enumerate(p.shapes):
            ld = max(1, shape[0] if p.order == "F" else shape[1]) + p.gap[i]
            if i == 2 and p.ldc is not None:
                ld = p.ldc
            fill = canaries if i == 2 else lambda size: reference.poison(size, self.poison)
            placed.append(place(shape, p.order, ld, p.stride[i], batch, p.offset[i], fill))
        self.a, self.b, self.c = placed
        if p.reads_inputs:
            a, b = DATA[p.data](rng, (batch, p.m, p.k), (batch, p.k, p.n))
            self.a.words[self.a.index] = a if p.transa == "N" else a.swapaxes(1, 2)
            self.b.words[self.b.index] = b if p.transb == "N" else b.swapaxes(1, 2)
        if p.beta == 0:
            self.c.words[self.c.index] = reference.poison(1, self.poison)[0]
        else:
            c = rng.standard_normal(self.c.index.shape, dtype=np.float32)
            scale = np.float32(1)
            if p.data in ("subnormal", "tiny_lines", "tiny_products"):
                scale = np.float32(2.0**-130)
            elif p.data == "huge":
                scale = np.float32(2.0**123)
            elif p.data == "integers":
                c = np.rint(c)
            self.c.words[self.c.index] = c * scale

    def operands(self):
        """op(A), op(B) and C as they lie in the buffers."""
        p = self.product
        a, b = self.a.values, self.b.values
        return (
            a if p.transa == "N" else a.swapaxes(1, 2),
            b if p.transb == "N" else b.swapaxes(1, 2),
            self.c.values,
        )

    def call(self, engine, handle, blocks):
        """Runs it on blocks of the engine's memory; returns the status."""
        status, _ = self.start(engine, handle, blocks)
        engine.synchronize()
        return status

    def start(self, engine, handle, blocks):
        """Queues it; returns the status and what must be kept until it has run."""
        p = self.product
        arguments = {
            "transa": OPS[p.transa], "transb": OPS[p.transb], "m": p.m, "n": p.n, "k": p.k,
            "alpha": p.alpha, "beta": p.beta, "lda": self.a.ld, "ldb": self.b.ld, "ldc": self.c.ld,
            "batchCount": p.batch,
        }  # fmt: skip
        kept = []
        for name, placed, block in zip("ABC", (self.a, self.b, self.c), blocks, strict=True):
            start = engine.address(block)
            arguments[name] = start + 4 * placed.base
            arguments["stride" + name] = placed.stride
            if p.pointers:
                kept.append(engine.table([start + 4 * x for x in placed.starts()]))
                arguments[name + "array"] = engine.address(kept[-1])
        return invoke(p.entry, handle, arguments, p.order, p.wide), kept

    def blocks(self, engine):
        """Copies of the buffers in the engine's memory, ready for work on any stream."""
        blocks = [engine.block(placed.words) for placed in (self.a, self.b, self.c)]
        engine.synchronize()
        return blocks

    def solve(self, engine, handle, mode="fp32"):
        """Runs and checks it; returns C (batch x m x n)."""
        blocks = self.blocks(engine)
        status = self.call(engine, handle, blocks)
        assert status == SUCCESS, f"{self.product}: status {status}, {message()}"
        return self.check([engine.host(block) for block in blocks], mode)

    def check(self, after, mode="fp32"):
        """after holds the three buffers as the call left them."""
        got, p = self.result(after), self.product
        a, b, c = self.operands()
        reference.assert_product(got, p.alpha, a, b, p.beta, c, mode, label=str(p))
        return got

    def result(self, after):
        """C, where nothing but C was written."""
        label = str(self.product)
        for name, placed, words in zip("AB", (self.a, self.b), after, strict=False):
            reference.assert_same_bits(words, placed.words, f"{label}: {name} was written")
        outside = np.ones(self.c.words.size, dtype=bool)
        outside[self.c.index] = False
        reference.assert_same_bits(after[2][outside], self.c.words[outside], f"{label}: written outside C")
        return after[2][self.c.index]


def solve(engine, handle, product, mode="fp32"):
    """Runs and checks a product with each poison where one could be read."""
    got = Problem(product).solve(engine, handle, mode)
    if product.beta == 0 or not product.reads_inputs or any(product.gap):
        Problem(product, reference.POISONS[1]).solve(engine, handle, mode)
    return got
