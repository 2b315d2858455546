"""What a product must be: float64 values with the rules of BLAS applied by hand, and how far each mode may be off."""

from __future__ import annotations

import numpy as np

U = 2.0**-24
SMALLEST = 2.0**-149
POISONS = (0x7FC00000, 0xFFFFFFFF)

_SHIFT_OF_TF32 = 13  # bits of the significand that TF32 has not


def product(alpha, a, b, beta, c):
    """alpha*A*B + beta*C in float64, and the sum of the magnitudes that went in.

    A and B come as op(A) and op(B); axes before the last two are batches. What BLAS does not read is not read here
    either, so NaN may lie there.
    """
    alpha, beta = np.float64(np.float32(alpha)), np.float64(np.float32(beta))
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2], c.shape[:-2]), a.shape[-2], b.shape[-1])
    value, magnitude = np.zeros(shape), np.zeros(shape)
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0 and a.shape[-1] > 0:
            value = alpha * _exact_matmul(a, b)
            magnitude = abs(alpha) * _exact_matmul(np.abs(a), np.abs(b))
        if beta != 0:
            scaled = beta * c.astype(np.float64)
            value = value + scaled
            magnitude = magnitude + np.abs(scaled)
    return value, magnitude


def _exact_matmul(a, b):
    # Deep sums in pieces that caches hold: at a million of k, NumPy needs seconds for sixteen rows otherwise.
    total = 0
    for start in range(0, a.shape[-1], 1 << 14):
        piece = slice(start, start + (1 << 14))
        x, y = a[..., piece].astype(np.float64), b[..., piece, :].astype(np.float64)
        if np.isfinite(x).all() and np.isfinite(y).all():
            total = total + np.matmul(x, y)
        else:
            # Plain loops: no BLAS decides here what becomes of Inf and NaN.
            total = total + np.einsum("...ij,...jk->...ik", x, y)
    return total


def bound(mode, k, alpha, magnitude):
    """How far each element may be from the float64 value."""
    if mode == "tf32":
        return (2.0**-10 + 2.0**-22 + (k + 2) * U) * magnitude
    underflow = k * abs(np.float64(alpha)) if k > 0 else 0.0
    return (k + 2) * U * magnitude + (underflow + 2) * SMALLEST


def fro_limit(mode, k):
    """Largest relative Frobenius error on random data where no cuBLAS is at hand; infinite where nothing is said."""
    if mode == "fp32_pedantic":
        return 3e-8 * np.sqrt(k) if k >= 64 else np.inf
    if k < 1024:
        return np.inf
    return 4e-7 if k <= 16384 else 8e-7


def fro_error(got, want):
    return np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want)


def to_tf32(x):
    """x rounded to TF32's ten bits, to nearest, ties to even: what a planted wrong kernel computes with."""
    word = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    half = np.uint32((1 << (_SHIFT_OF_TF32 - 1)) - 1)
    word = word + half + ((word >> np.uint32(_SHIFT_OF_TF32)) & np.uint32(1))
    return (word & np.uint32(0xFFFFFFFF << _SHIFT_OF_TF32 & 0xFFFFFFFF)).view(np.float32)


def poison(shape, word=POISONS[0]):
    return np.full(shape, word, dtype=np.uint32).view(np.float32)


def first_wrong(got, want, allowed):
    """A sentence about the first element out of bounds, None if there is none.

    NaN must meet NaN and an infinity itself; everything else stays within allowed.
    """
    got = np.asarray(got)
    want = np.broadcast_to(want, got.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        right = np.abs(got.astype(np.float64) - want) <= allowed
    special = ~np.isfinite(want)
    if special.any():
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        right = np.where(special, same, right)
    if right.all():
        return None
    index = tuple(int(i) for i in np.argwhere(~right)[0])
    allowed_here = np.broadcast_to(allowed, got.shape)[index]
    return (
        f"{np.count_nonzero(~right)} of {got.size} elements are wrong, first at {index}: "
        f"{got[index]!r} instead of {want[index]!r} within {allowed_here:.3g}"
    )


def assert_close(got, want, allowed, label=""):
    message = first_wrong(got, want, allowed)
    assert message is None, f"{label}: {message}"


def assert_same_bits(got, want, label=""):
    got, want = np.asarray(got, dtype=np.float32), np.asarray(want, dtype=np.float32)
    assert got.shape == want.shape, f"{label}: shape {got.shape} instead of {want.shape}"
    differ = np.ascontiguousarray(got).view(np.uint32) != np.ascontiguousarray(want).view(np.uint32)
    if differ.any():
        index = tuple(int(i) for i in np.argwhere(differ)[0])
        raise AssertionError(
            f"{label}: {np.count_nonzero(differ)} of {got.size} elements have other bits, first at {index}: "
            f"{got[index]!r} instead of {want[index]!r}"
        )


def assert_product(got, alpha, a, b, beta, c, mode="fp32", random=False, label=""):
    """got is alpha*A*B + beta*C within the mode's bound; random data must also meet the limit on its norm."""
    want, magnitude = product(alpha, a, b, beta, c)
    k = a.shape[-1]
    assert_close(got, want, bound(mode, k, alpha, magnitude), label)
    if random:
        error = fro_error(got, want)
        assert error <= fro_limit(mode, k), f"{label}: norm of the error is {error:.3g} at k = {k}"
