"""The split schemes of the tensor kernels in NumPy: planes bit for bit, products within the bound that docs/numerics.md
derives. multiply() can be told to make the mistakes that the tests must notice.

"f16x2", "bf16x3", "f16x1" and "f16x2_one" are the planes of wgmma, "skinny" what wgmma_skinny does: powers of two for each 64 of k, and
low halves without a scale where all of 64 rows allow it. "deep" is what wgmma_deep does: a power for each 64 of k of 128 rows
of either operand.

    python tests/planes.py > tests/data/planes.txt    # what the packing kernels are compared with
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import reference

UNFIT = 1 << 20
LOW_BITS = 11  # the low plane of f16x2 counts 2**-11
CHUNK = 64  # of k, summed by the tensor cores before the sums are added in float32
STEP = 16  # of k, in one instruction
LEAST_ONE_DEPTH = 513  # of k, from which on there is "f16x2_one"


def least_exponent(scheme, k):
    """Nonzero magnitudes of a row fit from 2**(exponent + this) on."""
    if scheme == "bf16x3":
        return -110
    if scheme == "f16x1":
        return -14
    if scheme == "f16x2_one":  # from where on they are not small
        return max(-14, 1 - int(np.floor(np.log2(k))))
    return -13 if k < 128 else max(-23, -13 - int(np.floor(np.log2(k / 4) / 2)))


def exponents(rows, scheme):
    """Of each row (along the last axis), UNFIT where its planes do not hold every element."""
    magnitude = np.abs(rows.astype(np.float64))
    finite = np.isfinite(magnitude)
    most = np.where(finite, magnitude, 0).max(axis=-1, initial=0)
    least = np.where(finite & (magnitude > 0), magnitude, np.inf).min(axis=-1, initial=np.inf)
    exponent = np.zeros(most.shape, dtype=np.int64)
    if scheme != "bf16x3":
        top = np.frexp(np.ldexp(np.rint(np.ldexp(np.frexp(most)[0], 11)), np.frexp(most)[1] - 11))[1] - 1  # of 11 bits
        exponent = np.where(most > 0, np.maximum((top - 14) // 2 * 2, -126), 0)
    if scheme == "f16x2_one":
        least = np.inf  # what is too small is left out
    fits = finite.all(axis=-1) & (least >= np.ldexp(1.0, exponent + least_exponent(scheme, rows.shape[-1])))
    return np.where(fits, exponent, UNFIT).astype(np.int32)


def _bfloat16(x, toward_zero=False):
    word = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if not toward_zero:
        word = word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))
    return (word & np.uint32(0xFFFF0000)).view(np.float32)


def small(rows, exponent, least=None):
    """Which elements "f16x2_one" leaves out of its planes: those below 2**(exponent + least)."""
    least = least_exponent("f16x2_one", rows.shape[-1]) if least is None else least
    limit = np.ldexp(1.0, np.where(exponent == UNFIT, -1000, exponent + least))[..., None]
    with np.errstate(invalid="ignore"):
        return (rows != 0) & (np.abs(rows.astype(np.float64)) < limit)


def split(rows, exponent, scheme):
    """Planes of each row, as float32 values; those of unfit rows mean nothing."""
    if scheme == "bf16x3":
        with np.errstate(invalid="ignore", over="ignore"):
            first = _bfloat16(rows, toward_zero=True)
            second = _bfloat16(rows - first)
            third = _bfloat16(rows - first - second)
        return np.stack([first, second, third])
    with np.errstate(all="ignore"):
        scaled = np.ldexp(rows, -np.where(exponent == UNFIT, 0, exponent)[..., None]).astype(np.float32)
        high = scaled.astype(np.float16).astype(np.float32)
        scale = 1 if scheme == "f16x2_one" else 1 << LOW_BITS
        low = ((scaled - high) * np.float32(scale)).astype(np.float16).astype(np.float32)
    return np.stack([high] if scheme == "f16x1" else [high, low])


@dataclass(frozen=True)
class Mistake:
    """What a wrong kernel leaves out."""

    dropped: tuple[int, int] | None = None  # one product of planes, as (plane of A, plane of B)
    promotes: bool = True  # sums leave the tensor cores every CHUNK of k
    plain_from: int | None = (
        None  # exponent from which on low halves have no scale, instead of the one there is room for
    )
    adds_small: bool = True  # what "f16x2_one" leaves out


PHASES = {
    "f16x2": [([(0, 1), (1, 0)], 2.0**-LOW_BITS), ([(0, 0)], 1.0)],
    "bf16x3": [([(0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0)], 1.0)],
    "f16x1": [([(0, 0)], 1.0)],
    "f16x2_one": [([(0, 1), (1, 0), (0, 0)], 1.0)],
}


def _truncated(x):
    """Toward zero to 24 bits, as the tensor cores leave a sum."""
    word = np.ascontiguousarray(x, dtype=np.float64).view(np.uint64)
    return (word & np.uint64(0xFFFFFFFFE0000000)).view(np.float64)


def _add_products(acc, left, right, of_chunk=slice(None)):
    """Rows of left times rows of right, by instructions, onto sums that stay in the tensor cores."""
    first, end, _ = of_chunk.indices(left.shape[-1])
    for step in range(first, end, STEP):
        part = slice(step, min(step + STEP, end))
        acc = _truncated(acc + left[:, part] @ right[:, part].T)
    return acc


def multiply(a, b, scheme, mistake=None):
    """A (m x k) times B (k x n) as a tensor kernel computes it; results that an unfit row enters come from float64."""
    mistake = mistake or Mistake()
    if scheme in ("skinny", "deep"):
        return (multiply_by_chunks if scheme == "skinny" else multiply_both_split)(a, b, mistake)
    if scheme == "f16x2_one" and a.shape[1] < LEAST_ONE_DEPTH:
        scheme = "f16x2"  # as the row of one sum does
    exponent_a, exponent_b = exponents(a, scheme), exponents(b.T, scheme)
    small_a, small_b = np.zeros(a.shape, dtype=bool), np.zeros(b.T.shape, dtype=bool)
    if scheme == "f16x2_one":
        small_a, small_b = small(a, exponent_a, mistake.plain_from), small(b.T, exponent_b, mistake.plain_from)
    zero = np.float32(0)
    planes_a = split(np.where(small_a, zero, a), exponent_a, scheme).astype(np.float64)
    planes_b = split(np.where(small_b, zero, b.T), exponent_b, scheme).astype(np.float64)
    k, chunk = a.shape[1], CHUNK if mistake.promotes else a.shape[1]
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, k, chunk):
            of_chunk = 0.0  # the phases meet in one multiply-add, so that the total is rounded once
            for products, weight in PHASES[scheme]:
                acc = np.zeros(total.shape)
                for i, j in products:
                    if (i, j) == mistake.dropped:
                        continue
                    acc = _add_products(acc, planes_a[i], planes_b[j], slice(first, first + chunk))
                of_chunk = np.float32(of_chunk + acc * weight)
            total = total + of_chunk
        result = np.ldexp(total.astype(np.float64), exponent_a[:, None] + exponent_b).astype(np.float32)
        if mistake.adds_small:
            add_small(result, a, small_a, b.T)
            add_small(result.T, b.T, small_b, np.where(small_a, zero, a))
        unfit = (exponent_a == UNFIT)[:, None] | (exponent_b == UNFIT)
        zero = np.zeros(total.shape, dtype=np.float32)
        return np.where(unfit, reference.product(1.0, a, b, 0.0, zero)[0], result).astype(np.float32)


def add_small(result, rows, where, other):
    """Adds to each row of result what small elements of that of rows contribute: sums in float32, in the order of k."""
    for row in where.any(axis=-1).nonzero()[0]:
        total = np.zeros(len(other), dtype=np.float32)
        for k in where[row].nonzero()[0]:
            total = (total + rows[row, k].astype(np.float64) * other[:, k]).astype(np.float32)
        result[row] += total


# ---- wgmma_skinny ------------------------------------------------------------------------------------------------------

GROUP, PACKED = 64, 32  # rows of the large operand that decide together, rows of the small one that share a power
LEAST_TOP, MOST_TOP = -46, 46  # exponents of the largest of 64 of k
TOP = 14  # of that, when it is scaled


def least_plain_exponent(k):
    """From which magnitudes on a low half needs no scale, where the largest is 2**TOP and more."""
    return max(-8, -3 - max(0, int(np.floor(np.log2(k / 128)))))


def _chunk_exponents(rows, scheme_k):
    """Of each row: the exponent of its power, and whether planes hold all elements."""
    magnitude = np.abs(rows.astype(np.float64))
    most = np.fmax.reduce(magnitude, axis=-1, initial=0)  # a NaN is no largest
    least = np.where(magnitude > 0, magnitude, np.inf).min(axis=-1, initial=np.inf)
    exponent = _top(most) - TOP
    inside = (most == 0) | ((most >= 2.0**LEAST_TOP) & (most < 2.0 ** (MOST_TOP + 1)))
    return exponent, most, inside, inside & (least >= np.ldexp(1.0, exponent + least_exponent("f16x2", scheme_k)))


def _top(most):
    finite = np.clip(most, 2.0**LEAST_TOP, 2.0**MOST_TOP)
    return np.frexp(finite)[1] - 1


def split_chunk(rows, exponent, low_bits):
    """Of 64 of k: high halves, and low ones that count 2**-low_bits."""
    with np.errstate(all="ignore"):
        scaled = np.ldexp(rows, -exponent[:, None]).astype(np.float32)
        high = scaled.astype(np.float16)
        low = ((scaled - high.astype(np.float32)) * np.float32(2**low_bits)).astype(np.float16)
    return high, low


def small_chunk(rows, k):
    """64 of k of the small operand: exponents, of which PACKED rows have one, which rows fit, and both halves."""
    _, own, _, fits = _chunk_exponents(np.where(np.isnan(rows), np.float32(np.inf), rows), k)
    exponent = np.zeros(len(rows), dtype=np.int64)
    for first in range(0, len(rows), PACKED):
        some = slice(first, first + PACKED)
        exponent[some] = _top(np.where(fits, own, 0)[some].max()) - TOP
    magnitude = np.abs(rows.astype(np.float64))
    with np.errstate(invalid="ignore"):
        enough = (magnitude == 0) | (magnitude >= np.ldexp(1.0, exponent + least_exponent("f16x2", k))[:, None])
    return exponent, fits & enough.all(axis=-1), *split_chunk(rows, exponent, LOW_BITS)


def large_chunk(rows, k, plain_from):
    """64 of k of the large operand: exponents, which rows fit, whether low halves have no scale, both halves, and the high
    ones for the other operand's low halves."""
    exponent, _, inside, fits = _chunk_exponents(rows, k)
    high, low = split_chunk(rows, exponent, LOW_BITS)
    _, plain_low = split_chunk(rows, exponent, 0)
    with np.errstate(all="ignore"):
        lowered = high * np.float16(2.0**-LOW_BITS)
        small = ~(np.abs(high) >= 2.0**plain_from) & ~np.isnan(high)
    plain = np.zeros(len(rows), dtype=bool)
    if rows.shape[1] == CHUNK:  # past the end of k there are zeros, as there are past the last row
        for first in range(0, len(rows) - GROUP + 1, GROUP):
            plain[first : first + GROUP] = not small[first : first + GROUP].any()
    return exponent, np.where(plain, inside, fits), plain, high, np.where(plain[:, None], plain_low, low), lowered


def multiply_by_chunks(a, b, mistake):
    """The large operand a times b as wgmma_skinny computes them in one range of k."""
    k = a.shape[1]
    plain_from = least_plain_exponent(k) if mistake.plain_from is None else mistake.plain_from
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    fit_a, fit_b = np.ones(a.shape[0], dtype=bool), np.ones(b.shape[1], dtype=bool)

    def product(left, right, pair, acc):
        if pair == mistake.dropped:
            return acc
        return _add_products(acc, left.astype(np.float64), right.astype(np.float64))

    with np.errstate(all="ignore"):
        for first in range(0, k, CHUNK):
            part = slice(first, first + CHUNK)
            exponent_a, fits, plain, high_a, low_a, lowered = large_chunk(a[:, part], k, plain_from)
            fit_a &= fits
            exponent_b, fits, high_b, low_b = small_chunk(b[part].T, k)
            fit_b &= fits
            crossed = product(low_a, high_b, (1, 0), np.zeros(total.shape))
            scaled = product(high_a, low_b, (0, 1), crossed) * 2.0**-LOW_BITS
            unscaled = product(lowered, low_b, (0, 1), crossed)
            power = exponent_a[:, None] + exponent_b
            acc = np.where(plain[:, None], unscaled, scaled)
            if mistake.promotes:
                total = (total + np.ldexp(product(high_a, high_b, (0, 0), acc), power)).astype(np.float32)
            else:
                acc = product(high_a, high_b, (0, 0), acc + np.ldexp(total.astype(np.float64), -power))
                total = np.ldexp(acc, power).astype(np.float32)
        zero = np.zeros(total.shape, dtype=np.float32)
        return np.where(fit_a[:, None] & fit_b, total, reference.product(1.0, a, b, 0.0, zero)[0]).astype(np.float32)


# ---- wgmma_deep --------------------------------------------------------------------------------------------------------

TILE = 128  # rows that share a power


def deep_chunk(rows, k):
    """64 of k of either operand: exponents, of which TILE rows have one, which rows fit, and both halves. A NaN is as good
    as any other element: its row's results are NaN."""
    magnitude = np.abs(rows.astype(np.float64))
    with np.errstate(invalid="ignore"):
        within = np.where(magnitude < 2.0 ** (MOST_TOP + 1), magnitude, 0)
    exponent = np.zeros(len(rows), dtype=np.int64)
    for first in range(0, len(rows), TILE):
        exponent[first : first + TILE] = _top(within[first : first + TILE].max()) - TOP
    held = (
        (magnitude == 0)
        | np.isnan(magnitude)
        | (within >= np.ldexp(1.0, exponent + least_exponent("f16x2", k))[:, None])
    )
    return exponent, held.all(axis=-1), *split_chunk(rows, exponent, LOW_BITS)


def multiply_both_split(a, b, mistake):
    """a times b as wgmma_deep computes them in one range of k."""
    k = a.shape[1]
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    fit_a, fit_b = np.ones(a.shape[0], dtype=bool), np.ones(b.shape[1], dtype=bool)
    with np.errstate(all="ignore"):
        for first in range(0, k, CHUNK):
            part = slice(first, first + CHUNK)
            exponent_a, fits, *halves_a = deep_chunk(a[:, part], k)
            fit_a &= fits
            exponent_b, fits, *halves_b = deep_chunk(b[part].T, k)
            fit_b &= fits
            power = exponent_a[:, None] + exponent_b
            acc = np.zeros(total.shape) if mistake.promotes else np.ldexp(total.astype(np.float64), LOW_BITS - power)
            for pairs, weight in PHASES["f16x2"]:
                for i, j in reversed(pairs):
                    if (i, j) != mistake.dropped:
                        acc = _add_products(acc, halves_a[i].astype(np.float64), halves_b[j].astype(np.float64))
                acc *= weight
            acc = np.ldexp(acc, power)
            total = (total + acc if mistake.promotes else acc).astype(np.float32)
        zero = np.zeros(total.shape, dtype=np.float32)
        return np.where(fit_a[:, None] & fit_b, total, reference.product(1.0, a, b, 0.0, zero)[0]).astype(np.float32)


# ---- planes as they are recorded ---------------------------------------------------------------------------------------

RECORD = Path(__file__).parent / "data" / "planes.txt"
RECORDED_ROWS, RECORDED_DEPTHS = 5, (40, 130, 600)
SPANS = ((4, 0), (12, 40), (20, -120), (30, 100))  # powers of two, and of them all


def recorded_rows(span, k, rows=RECORDED_ROWS):
    """Numbers as native/simt/test_planes.cpp makes them."""
    reach, scale = SPANS[span]
    place = np.arange(rows * k, dtype=np.uint64) + np.uint64((span * 10000 + k) << 20)
    with np.errstate(over="ignore"):
        x = place + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
        uniform = ((x >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) / np.float32(1 << 23)
        power = (x % np.uint64(2 * reach + 1)).astype(np.int64) - reach + scale
        return np.ldexp(uniform, power).astype(np.float32).reshape(rows, k)


def _checksum(words):
    total = 0xCBF29CE484222325
    for word in words.tolist():
        total = (total ^ word) * 0x100000001B3 % (1 << 64)
    return f"{total:016x}"


def words(plane, scheme):
    if scheme == "bf16x3":
        return (plane.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return plane.astype(np.float16).view(np.uint16)


def table():
    """A line for each row: its exponent, and of each plane a checksum of its words, of which -0 counts as 0."""
    lines = []
    for scheme in ("f16x2", "bf16x3", "f16x1", "f16x2_one"):
        for span in range(len(SPANS)):
            for k in RECORDED_DEPTHS:
                if scheme == "f16x2_one" and (span > 0 or k < LEAST_ONE_DEPTH):  # packed in vain
                    continue
                rows = recorded_rows(span, k)
                exponent = exponents(rows, scheme)
                if scheme == "f16x2_one":
                    rows = np.where(small(rows, exponent), np.float32(0), rows)
                held = split(rows, exponent, scheme)
                for row in range(RECORDED_ROWS):
                    text = f"{scheme} {span} {k} {row} "
                    if exponent[row] == UNFIT:
                        lines.append(text + "unfit")
                        continue
                    sums = (_checksum(words(plane[row] + np.float32(0), scheme)) for plane in held)
                    lines.append(text + f"{exponent[row]} {' '.join(sums)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
