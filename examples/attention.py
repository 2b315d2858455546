"""Attention, softmax(Q K^T / sqrt(dim)) V for every head, as two calls of gemm_strided_batched and no copies.

    python examples/attention.py

A projection layer leaves Q, K and V in one array of shape (token, 3, head, dim). Seen as a matrix of tokens x dim, one
head of Q begins at head * dim and its rows are 3 * heads * dim elements apart. That is a leading dimension and a batch
stride, which is all a strided batched product needs; libraries that want (head, token, dim) must copy first. The result
comes out as (token, head, dim), the heads interleaved in the rows of C, ready for the next layer.

Runs on NumPy arrays and, if CuPy sees a GPU, on CuPy arrays by the same function.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import numpy as np

import pyblas_sgemm

Array = Any  # of NumPy or CuPy


def attention(qkv: Array, xp: Any = np) -> Array:
    """(token, 3, head, dim) in float32 to (token, head, dim); `xp` is the array's module."""
    tokens, _, heads, dim = qkv.shape
    width = heads * dim
    flat = qkv.reshape(-1)
    q, k, v = flat, flat[width:], flat[2 * width :]  # three starting points in the same memory
    scores = xp.empty((heads, tokens, tokens), dtype=np.float32)
    out = xp.empty((tokens, heads, dim), dtype=np.float32)

    # fmt: off
    pyblas_sgemm.gemm_strided_batched(                        # scores[h] = Q[h] K[h]^T / sqrt(dim)
        "N", "T", tokens, tokens, dim,
        1 / math.sqrt(dim), q, 3 * width, dim,                # ld: from token to token; stride: from head to head
        k, 3 * width, dim,
        0.0, scores, tokens, tokens * tokens, heads, order="C",
    )
    # fmt: on
    scores -= scores.max(axis=-1, keepdims=True)
    xp.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    # fmt: off
    pyblas_sgemm.gemm_strided_batched(                        # out[h] = scores[h] V[h]
        "N", "N", tokens, dim, tokens,
        1.0, scores, tokens, tokens * tokens,
        v, 3 * width, dim,
        0.0, out, width, dim, heads, order="C",               # C's heads interleave: disjoint, so legal
    )
    # fmt: on
    return out


def attention_float64(qkv: np.ndarray) -> np.ndarray:
    """The same in float64 by NumPy."""
    q, k, v = qkv.astype(np.float64).transpose(1, 2, 0, 3)
    scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True) @ v).swapaxes(0, 1)


def main() -> int:
    qkv = np.random.default_rng(0).standard_normal((512, 3, 12, 64), dtype=np.float32)
    expected = attention_float64(qkv)
    results = {"CPU": attention(qkv)}
    if importlib.util.find_spec("cupy"):
        import cupy

        if cupy.is_available():
            results["GPU"] = attention(cupy.asarray(qkv), cupy).get()
    right = True
    for device, result in results.items():
        error = float(abs(result - expected).max())
        right = right and error <= 1e-5
        print(f"{device}: 512 tokens, 12 heads of 64; largest difference from float64 {error:.1e}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
