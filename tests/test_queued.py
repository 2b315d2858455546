"""Products queued one behind the other. Kernels begin before those ahead have ended: they must see what these have
written, and leave nothing behind for the next."""

from __future__ import annotations

import numpy as np
import pytest

import engines
import shapes
from engines import OPS, SUCCESS, message

pytestmark = pytest.mark.gpu

ROUNDS = 12
# Of many kernels, with and without packing, by turns.
MIXED = [(512, 512, 512), (64, 64, 64), (1024, 1000, 1024), (130, 70, 1500), (1024, 1024, 1024), (300, 520, 96),
         (1024, 1024, 1024), (2048, 128, 640), (96, 96, 3000), (1000, 1024, 65)]  # fmt: skip


def queue(gpu, handle, a, b, c, m, n, k, ops, beta=0.0):
    lda, ldb = (m if ops[0] == "N" else k), (k if ops[1] == "N" else n)
    values = {"transa": OPS[ops[0]], "transb": OPS[ops[1]], "m": m, "n": n, "k": k, "alpha": 1.0, "A": a.data.ptr,
              "lda": lda, "B": b.data.ptr, "ldb": ldb, "beta": beta, "C": c.data.ptr, "ldc": m}  # fmt: skip
    assert engines.invoke("sgemm", handle, values) == SUCCESS, message()


def bits(array):
    return engines.named("gpu").host(array).view(np.uint32)


@pytest.mark.parametrize("ops", shapes.OP_PAIRS)
@pytest.mark.parametrize("n", [192, 512, 1000, 1024])
def test_a_result_is_the_next_products_operand(gpu, gpu_handle, n, ops):
    rng = np.random.default_rng(n)
    xp = gpu.xp
    first, factor = (xp.asarray(rng.standard_normal(n * n, dtype=np.float32)) for _ in range(2))
    factor /= np.float32(n**0.5)

    def chain(waits):
        results = [first]
        for i in range(ROUNDS):
            c = xp.full(n * n, np.nan, dtype=np.float32)
            left, right = (results[-1], factor) if i % 2 else (factor, results[-1])
            queue(gpu, gpu_handle, left, right, c, n, n, n, ops)
            results.append(c)
            if waits:
                gpu.synchronize()
        gpu.synchronize()
        return [bits(result) for result in results[1:]]

    want = chain(True)
    assert all(np.isfinite(result.view(np.float32)).all() for result in want)
    for _ in range(3):
        for step, (got, one) in enumerate(zip(chain(False), want, strict=True)):
            assert np.array_equal(got, one), f"step {step}"


def test_products_of_many_sizes(gpu, gpu_handle):
    rng = np.random.default_rng(5)
    xp = gpu.xp
    problems = []
    for i, (m, n, k) in enumerate(MIXED):
        a, b, c = (xp.asarray(rng.standard_normal(size, dtype=np.float32)) for size in (m * k, k * n, m * n))
        if i % 3 == 2:
            a[m * k // 2] = np.inf  # a row that planes do not hold
        problems.append((a, b, c, m, n, k, shapes.OP_PAIRS[i % 4]))

    def run(waits):
        results = [problem[2].copy() for problem in problems]
        for repeat in range(ROUNDS):
            for (a, b, _, m, n, k, ops), c in zip(problems, results, strict=True):
                queue(gpu, gpu_handle, a, b, c, m, n, k, ops, beta=0.5 if repeat else 1.0)
                if waits:
                    gpu.synchronize()
        gpu.synchronize()
        return [bits(result) for result in results]

    want = run(True)
    for _ in range(3):
        for problem, got, one in zip(problems, run(False), want, strict=True):
            assert np.array_equal(got, one), problem[3:]
