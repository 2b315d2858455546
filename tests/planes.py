"""The split schemes of the tensor kernels in NumPy: planes bit for bit, products within the bound that docs/numerics.md
derives. multiply() can be told to make the mistakes that the tests must notice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import reference

UNFIT = 1 << 20
LOW_BITS = 11  # the low plane of f16x2 counts 2**-11
CHUNK = 64  # of k, summed by the tensor cores before the sums are added in float32
STEP = 16  # of k, in one instruction


def least_exponent(scheme, k):
    """Nonzero magnitudes of a row fit from 2**(exponent + this) on."""
    if scheme == "bf16x3":
        return -110
    return -13 if k < 128 else max(-23, -13 - int(np.floor(np.log2(k / 4) / 2)))


def exponents(rows, scheme):
    """Of each row (along the last axis), UNFIT where its planes do not hold every element."""
    magnitude = np.abs(rows.astype(np.float64))
    finite = np.isfinite(magnitude)
    most = np.where(finite, magnitude, 0).max(axis=-1, initial=0)
    least = np.where(finite & (magnitude > 0), magnitude, np.inf).min(axis=-1, initial=np.inf)
    exponent = np.zeros(most.shape, dtype=np.int64)
    if scheme == "f16x2":
        top = np.frexp(np.ldexp(np.rint(np.ldexp(np.frexp(most)[0], 11)), np.frexp(most)[1] - 11))[1] - 1  # of 11 bits
        exponent = np.where(most > 0, np.maximum((top - 14) // 2 * 2, -126), 0)
    fits = finite.all(axis=-1) & (least >= np.ldexp(1.0, exponent + least_exponent(scheme, rows.shape[-1])))
    return np.where(fits, exponent, UNFIT).astype(np.int32)


def _bfloat16(x, toward_zero=False):
    word = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if not toward_zero:
        word = word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))
    return (word & np.uint32(0xFFFF0000)).view(np.float32)


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
        low = ((scaled - high) * np.float32(1 << LOW_BITS)).astype(np.float16).astype(np.float32)
    return np.stack([high, low])


@dataclass(frozen=True)
class Mistake:
    """What a wrong kernel leaves out."""

    dropped: tuple[int, int] | None = None  # one product of planes, as (plane of A, plane of B)
    promotes: bool = True  # sums leave the tensor cores every CHUNK of k


PHASES = {
    "f16x2": [([(0, 1), (1, 0)], 2.0**-LOW_BITS), ([(0, 0)], 1.0)],
    "bf16x3": [([(0, 2), (2, 0), (1, 1), (0, 1), (1, 0), (0, 0)], 1.0)],
}


def _truncated(x):
    """Toward zero to 24 bits, as the tensor cores leave a sum."""
    word = np.ascontiguousarray(x, dtype=np.float64).view(np.uint64)
    return (word & np.uint64(0xFFFFFFFFE0000000)).view(np.float64)


def multiply(a, b, scheme, mistake=None):
    """A (m x k) times B (k x n) as a tensor kernel computes it; results that an unfit row enters come from float64."""
    mistake = mistake or Mistake()
    exponent_a, exponent_b = exponents(a, scheme), exponents(b.T, scheme)
    planes_a = split(a, exponent_a, scheme).astype(np.float64)
    planes_b = split(b.T, exponent_b, scheme).astype(np.float64)
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
                    for step in range(first, min(first + chunk, k), STEP):
                        part = slice(step, min(step + STEP, first + chunk, k))
                        acc = _truncated(acc + planes_a[i][:, part] @ planes_b[j][:, part].T)
                of_chunk = np.float32(of_chunk + acc * weight)
            total = total + of_chunk
        result = np.ldexp(total.astype(np.float64), exponent_a[:, None] + exponent_b).astype(np.float32)
        unfit = (exponent_a == UNFIT)[:, None] | (exponent_b == UNFIT)
        zero = np.zeros(total.shape, dtype=np.float32)
        return np.where(unfit, reference.product(1.0, a, b, 0.0, zero)[0], result).astype(np.float32)
