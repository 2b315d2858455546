"""What went wrong in other libraries, one test per public case, named by its code, with the values it must have."""

from __future__ import annotations

import gc
import os
import tracemalloc

import numpy as np
import pytest

import pyblas_sgemm
import reference
from engines import SUCCESS, lib
from pyblas_sgemm import InvalidValueError, gemm_strided_batched, matmul, sgemm

NAN, INF = np.float32(np.nan), np.float32(np.inf)


@pytest.fixture
def S(engine):
    """Column-major sgemm, like cuBLAS, on flat buffers; takes NumPy arrays as well and copies them to the engine."""

    def call(ta, tb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc):
        A, B = (engine.array(x) if isinstance(x, np.ndarray) and engine.name == "gpu" else x for x in (A, B))
        return engine.numpy(sgemm(ta, tb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc, order="F"))

    return call


def ones(engine, *shape):
    return engine.xp.ones(shape, dtype=np.float32)


def f32(*rows):
    return np.array(rows, dtype=np.float32)


def poisoned(engine, *shape, word=reference.POISONS[0]):
    size = int(np.prod(shape))
    return engine.block(reference.poison(size, word)).reshape(shape)


both_poisons = pytest.mark.parametrize("word", reference.POISONS, ids=hex)


# ---- A. Scalars, NaN and Inf, empty sizes -----------------------------------------------------------------------------


@both_poisons
def test_a1_tiny_products_never_read_c(engine, word):
    one = ones(engine, 1)
    c = poisoned(engine, 1, word=word)
    keep = c.copy()
    for _ in range(10_000 if engine.name == "cpu" else 2_000):
        c.view(np.uint32)[...] = keep.view(np.uint32)
        sgemm("N", "N", 1, 1, 1, 1.0, one, 1, one, 1, 0.0, c, 1, order="F")
        assert c[0] == 1.0


@both_poisons
def test_a1_scores_never_read_c(engine, word):
    m, n, k = 3520, 64, 128
    c = poisoned(engine, m * n, word=word)
    sgemm("N", "N", m, n, k, 0.088, ones(engine, m * k), m, ones(engine, k * n), k, 0.0, c, m, order="F")
    assert (c == np.float32(0.088) * np.float32(128)).all()
    a, b, c = ones(engine, 55, 64, 128), ones(engine, 55, 128, 64), poisoned(engine, 55, 64, 64, word=word)
    gemm_strided_batched("N", "N", 64, 64, 128, 0.088, a, 128, 8192, b, 64, 8192, 0.0, c, 64, 4096, 55)
    assert (c == np.float32(0.088) * np.float32(128)).all()


@both_poisons
def test_a1_split_k_shape_never_reads_c(engine, word):
    m, n, k = 546, 9728, 2560
    c = poisoned(engine, m * n, word=word)
    sgemm("T", "N", m, n, k, 1.0, ones(engine, m * k), k, ones(engine, k * n), k, 0.0, c, m, order="F")
    assert (c == 2560.0).all()


@pytest.mark.parametrize("n", [2, 16, 100, 101, 512])
def test_a3_alpha_zero_ignores_nan(engine, S, n):
    nan = np.full(n * n, NAN)
    count = np.arange(1, n * n + 1, dtype=np.float32)
    for ops in ("NN", "NT", "TN", "TT"):
        for a in (nan, None):
            arguments = (*ops, n, n, n, 0.0, a, n, a, n)
            assert (S(*arguments, 2.0, engine.array(count), n) == 2 * count).all()
            reference.assert_same_bits(S(*arguments, 1.0, engine.array(count), n), count)
            reference.assert_same_bits(S(*arguments, 0.0, engine.array(count), n), np.zeros(n * n))
            reference.assert_same_bits(S(*arguments, 0.0, engine.array(nan), n), np.zeros(n * n))


def test_a5_k_zero_scales_c(engine, S):
    count = np.arange(1, 10, dtype=np.float32)
    empty = ones(engine, 0)
    for a in (empty, None):
        arguments = ("N", "N", 3, 3, 0, 1.0, a, 3, a, 1)
        reference.assert_same_bits(S(*arguments, 1.0, engine.array(count), 3), count)
        reference.assert_same_bits(S(*arguments, 0.5, engine.array(count), 3), count / 2)
        reference.assert_same_bits(S(*arguments, 0.0, engine.array(np.full(9, NAN)), 3), np.zeros(9))


def test_a5_empty_results_touch_nothing(engine):
    some, c = ones(engine, 9), engine.array(np.full(9, NAN))
    sgemm("N", "N", 0, 3, 3, 1.0, some, 1, some, 3, 0.0, c, 1, order="F")
    sgemm("N", "N", 3, 0, 3, 1.0, some, 3, some, 3, 0.0, c, 3, order="F")
    gemm_strided_batched("N", "N", 3, 3, 3, 1.0, some, 3, 9, some, 3, 9, 0.0, c, 3, 9, 0, order="F")
    assert np.isnan(engine.numpy(c)).all()
    with pytest.raises(InvalidValueError, match="lda"):
        sgemm("N", "N", 0, 3, 3, 1.0, some, 0, some, 3, 0.0, c, 1, order="F")


def test_a5_empty_products_through_python(engine):
    xp = engine.xp
    got = matmul(xp.zeros((5, 0), dtype=np.float32), xp.zeros(0, dtype=np.float32))
    reference.assert_same_bits(engine.numpy(got), np.zeros(5))
    assert matmul(xp.zeros((0, 4), dtype=np.float32), ones(engine, 4, 3)).shape == (0, 3)
    assert matmul(xp.zeros((2, 0, 4), dtype=np.float32), ones(engine, 4, 3)).shape == (2, 0, 3)
    assert matmul(xp.zeros((0, 2, 4), dtype=np.float32), ones(engine, 4, 3)).shape == (0, 2, 3)


def test_a6_zero_factors_are_not_skipped(engine, S):
    assert np.isnan(S("N", "N", 1, 1, 1, 1.0, f32(INF), 1, f32(0), 1, 0.0, ones(engine, 1), 1)).all()
    got = engine.numpy(matmul(engine.array(f32([NAN, 1], [2, 3])), engine.array(f32([0], [1]))))
    assert np.isnan(got[0, 0])
    assert got[1, 0] == 3


def test_a6_padding_never_enters(engine, S):
    a = np.full((2, 8), NAN)  # columns of A with ld 8
    a[:, :3] = f32([1, 3, 5], [2, 4, 6])
    b = np.full((2, 5), NAN)
    b[:, :2] = np.eye(2)
    c = np.full((2, 6), 7, dtype=np.float32)
    got = S("N", "N", 3, 2, 2, 1.0, a.ravel(), 8, b.ravel(), 5, 0.0, engine.array(c.ravel()), 6).reshape(2, 6)
    assert (got[:, :3] == f32([1, 3, 5], [2, 4, 6])).all()
    assert (got[:, 3:] == 7).all()


def test_a6_neighbours_never_enter(engine):
    a = engine.array(np.array([1, 3, 2, 4, *[NAN] * 60], dtype=np.float32))
    x = engine.array(np.array([2, 1, *[NAN] * 62], dtype=np.float32))
    y = engine.array(np.full(64, 9, dtype=np.float32))
    sgemm("N", "N", 2, 1, 2, 1.0, a[:4], 2, x[:2], 2, 0.0, y[:2], 2, order="F")
    assert engine.numpy(y).tolist() == [4, 10] + [9] * 62


# ---- B. Order and leading dimension -----------------------------------------------------------------------------------


def test_b1_row_major_by_swapping_operands(engine, S):
    a = np.arange(1, 7, dtype=np.float32)
    b = np.arange(1, 13, dtype=np.float32)
    want = [38, 44, 50, 56, 83, 98, 113, 128]
    assert S("N", "N", 4, 2, 3, 1.0, b, 4, a, 3, 0.0, ones(engine, 8), 4).tolist() == want
    a2, b2 = engine.array(a.reshape(2, 3)), engine.array(b.reshape(3, 4))
    got = sgemm("N", "N", 2, 4, 3, 1.0, a2, 3, b2, 4, 0.0, ones(engine, 2, 4), 4)
    assert engine.numpy(got).ravel().tolist() == want
    x = f32(1, 2)
    assert S("T", "N", 3, 1, 2, 1.0, a, 2, x, 2, 0.0, ones(engine, 3), 3).tolist() == [5, 11, 17]
    with pytest.raises(ValueError, match=r"(?s)A.*8.*6"):
        S("T", "N", 3, 1, 2, 1.0, a, 3, x, 2, 0.0, ones(engine, 3), 3)


def test_b1_fortran_arrays_do_not_silently_give_b_times_a(engine):
    rng = np.random.default_rng(0)
    a, b = (np.asfortranarray(rng.standard_normal((5, 5)), dtype=np.float32) for _ in range(2))
    c = np.zeros((5, 5), dtype=np.float32, order="F")
    got = sgemm("N", "N", 5, 5, 5, 1.0, engine.array(a), 5, engine.array(b), 5, 0.0, engine.array(c), 5)
    np.testing.assert_allclose(engine.numpy(got), a @ b, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="order"):
        sgemm("N", "N", 5, 5, 5, 1.0, engine.array(a), 5, ones(engine, 5, 5), 5, 0.0, ones(engine, 5, 5), 5)


def test_b2_messages_say_what_is_expected(engine, capfd):
    a, b, c = ones(engine, 64), ones(engine, 64), engine.array(np.full(64, 5, dtype=np.float32))
    for name, least, lda, ldb, ldc in [("lda", 4, 3, 2, 4), ("ldb", 2, 4, 1, 4), ("ldc", 4, 4, 2, 3)]:
        wrong = {"lda": lda, "ldb": ldb, "ldc": ldc}[name]
        with pytest.raises(InvalidValueError, match=rf"{name}\) is {wrong}, must be at least .*= {least}") as caught:
            sgemm("N", "N", 4, 3, 2, 1.0, a, lda, b, ldb, 0.0, c, ldc, order="F")
        assert isinstance(caught.value, ValueError)
        assert caught.value.name == "PYBLAS_STATUS_INVALID_VALUE"
    assert (engine.numpy(c) == 5).all()
    assert capfd.readouterr() == ("", "")


def test_b2_the_last_column_of_c_needs_no_padding(engine):
    m, n, k, ldc = 5, 2, 3, 7
    c = engine.array(np.full(12, 5, dtype=np.float32))
    sgemm("N", "N", m, n, k, 1.0, ones(engine, 15), m, ones(engine, 6), k, 0.0, c, ldc, order="F")
    assert engine.numpy(c).tolist() == [3] * 5 + [5] * 2 + [3] * 5
    with pytest.raises(ValueError, match=r"C.*12.*11"):
        sgemm("N", "N", m, n, k, 1.0, ones(engine, 15), m, ones(engine, 6), k, 0.0, c[:11], ldc, order="F")


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("ops", ["NN", "NT", "TN", "TT"])
def test_b4_beta_is_applied_once(engine, ops, order):
    a, b, c = f32([1, 3], [2, 4]), f32([5, 7, 1], [6, 8, -2]), f32([8, 4, -2], [2, 6, 10])
    stored_a, stored_b = (a if ops[0] == "N" else a.T), (b if ops[1] == "N" else b.T)
    flat = [engine.array(x.ravel(order=order)) for x in (stored_a, stored_b, c)]
    lds = [x.shape[0 if order == "F" else 1] for x in (stored_a, stored_b, c)]
    for beta, want in [(0.5, f32([50, 64, -11], [69, 95, -7])), (0.0, f32([46, 62, -10], [68, 92, -12]))]:
        out = flat[2].copy()
        sgemm(*ops, 2, 3, 2, 2.0, flat[0], lds[0], flat[1], lds[1], beta, out, lds[2], order=order)
        assert (engine.numpy(out).reshape((2, 3), order=order) == want).all()
    # And with the operands in swapped order: the transpose of the result.
    swap = {"N": "T", "T": "N"}
    out = engine.array(c.T.ravel(order=order))
    ldt = 3 if order == "F" else 2
    sgemm(
        swap[ops[1]], swap[ops[0]], 3, 2, 2, 2.0, flat[1], lds[1], flat[0], lds[0], 0.5, out, ldt, order=order
    )  # fmt: skip
    got = engine.numpy(out).reshape((3, 2), order=order).T
    assert got.tolist() == [[50, 64, -11], [69, 95, -7]]


def test_b4_out_does_not_accumulate(engine):
    a, b = engine.array(f32([1, 3], [2, 4])), engine.array(f32([5, 7, 1], [6, 8, -2]))
    out = engine.array(np.full((2, 3), NAN))
    for _ in range(2):
        matmul(a, b, out=out, alpha=2.0)
        assert (engine.numpy(out) == f32([46, 62, -10], [68, 92, -12])).all()


# ---- C. Views, out arguments, dtypes ----------------------------------------------------------------------------------


def test_c1_broadcast_and_reversed_vectors(engine):
    xp = engine.xp
    one = xp.broadcast_to(ones(engine, 1, 1), (4, 1))
    assert engine.numpy(matmul(ones(engine, 2, 4), one)).tolist() == [[4], [4]]
    v = xp.arange(8, dtype=np.float32)[::-1]
    assert float(matmul(v, v)) == 140
    w = xp.arange(8, dtype=np.float32)
    assert float(matmul(w, v)) == 56
    base = np.arange(48, dtype=np.float32).reshape(6, 8)
    a, b = engine.array(base)[::2, ::2], engine.array(base)[:4, ::-2]
    assert (engine.numpy(matmul(a, b)) == base[::2, ::2] @ base[:4, ::-2]).all()
    x = engine.array(np.arange(8, dtype=np.float32))[::2]
    assert (engine.numpy(matmul(a, x)) == base[::2, ::2] @ np.arange(8, dtype=np.float32)[::2]).all()


def test_c1_the_raw_call_refuses_such_views(engine):
    xp = engine.xp
    good, c = ones(engine, 4, 4), ones(engine, 4, 4)
    v = xp.arange(16, dtype=np.float32)[::-1]
    wide = xp.ones((8, 8), dtype=np.float32)
    for bad in (v, xp.broadcast_to(ones(engine, 1), (4, 4)), wide[::2, ::2], wide[:4, ::2], wide[:4, :4][::-1]):
        with pytest.raises(ValueError):
            sgemm("N", "N", 4, 4, 4, 1.0, bad, 4, good, 4, 0.0, c, 4, order="C")
        with pytest.raises(ValueError):
            sgemm("N", "N", 4, 4, 4, 1.0, good, 4, good, 4, 0.0, bad, 4, order="C")
    assert (engine.numpy(c) == 1).all()


def test_c3_out_in_any_layout(engine):
    xp = engine.xp
    a = xp.arange(4, dtype=np.float32).reshape(2, 2)
    out = xp.empty((2, 2), dtype=np.float32, order="F")
    assert matmul(a, a, out=out) is out
    assert engine.numpy(out).tolist() == [[2, 3], [6, 11]]
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-8, 8, (64, 64)).astype(np.float32) for _ in range(2))
    for steps in [(-1, -1), (-1, 1), (1, -1)]:
        base = engine.array(np.full((70, 70), 7, dtype=np.float32))
        out = base[3:67, 3:67][:: steps[0], :: steps[1]]
        matmul(engine.array(x), engine.array(y), out=out)
        assert (engine.numpy(out) == x @ y).all()
        after = engine.numpy(base).copy()
        after[3:67, 3:67] = 7
        assert (after == 7).all()


def test_c5_matmul_may_overlap(engine):
    a = ones(engine, 2, 999, 999)
    matmul(a, a, out=a)
    assert (engine.numpy(a) == 999).all()
    a, b = engine.array(f32([1, 2], [3, 4])), engine.array(f32([5, 6], [7, 8]))
    matmul(a, b, out=a)
    assert engine.numpy(a).tolist() == [[19, 22], [43, 50]]
    a, b = engine.array(f32([1, 2], [3, 4])), engine.array(f32(5, 6))
    matmul(a, b, out=b)
    assert engine.numpy(b).tolist() == [17, 39]
    flat = np.arange(200, dtype=np.float32)
    shared = engine.array(flat)
    matmul(shared[:100].reshape(10, 10), shared[50:150].reshape(10, 10), out=shared[95:195].reshape(10, 10))
    want = flat.copy()
    want[95:195] = (flat[:100].reshape(10, 10) @ flat[50:150].reshape(10, 10)).ravel()
    np.testing.assert_allclose(engine.numpy(shared), want, rtol=1e-6)


def test_c5_sgemm_refuses_overlap(engine):
    a, b = engine.array(np.arange(100, dtype=np.float32)), ones(engine, 100)
    before = engine.numpy(a).copy()
    for inputs in [(a, b), (b, a)]:
        with pytest.raises(ValueError, match=r"overlap|shares"):
            sgemm("N", "N", 5, 5, 5, 1.0, inputs[0], 5, inputs[1], 5, 0.0, a, 5, order="F")
        with pytest.raises(ValueError, match=r"overlap|shares"):
            sgemm("N", "N", 5, 5, 5, 1.0, inputs[0][:25], 5, inputs[1][:25], 5, 0.0, a[24:49], 5, order="F")
    assert (engine.numpy(a) == before).all()
    # Interleaved pieces share no element: rows of 10, A on the left and C on the right.
    rows = engine.array(np.arange(50, dtype=np.float32))
    eye = engine.array(np.eye(5, dtype=np.float32).ravel())
    sgemm("N", "N", 5, 5, 5, 1.0, rows, 10, eye, 5, 0.0, rows[5:], 10, order="F")
    got = engine.numpy(rows).reshape(5, 10)
    assert (got[:, 5:] == got[:, :5]).all()


def test_c7_submatrix_views_are_not_copied(engine):
    rng = np.random.default_rng(0)
    p, q = (np.asfortranarray(rng.integers(-4, 5, (1000, 1000)), dtype=np.float32) for _ in range(2))
    b = np.asfortranarray(rng.integers(-4, 5, (500, 500)), dtype=np.float32)
    P, Q, B = engine.array(p), engine.array(q), engine.array(b)
    A, C = P[:500, :500], Q[:500, :500]
    if engine.name == "cpu":
        A.flags.writeable = False
        tracemalloc.start()
    sgemm("N", "N", 500, 500, 500, 1.0, A, 1000, B, 500, 1.0, C, 1000, order="F")
    if engine.name == "cpu":
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000
    want = q.copy()
    want[:500, :500] += p[:500, :500] @ b
    assert (engine.numpy(Q) == want).all()
    matmul(A, B, out=C)
    want[:500, :500] = p[:500, :500] @ b
    assert (engine.numpy(Q) == want).all()


def strided(engine, array, shape, strides):
    """A view by element strides."""
    return engine.xp.lib.stride_tricks.as_strided(array, shape, tuple(4 * s for s in strides))


@pytest.mark.parametrize("unused", [0, 1, 4, 10**6, -1, -7])
def test_c8_strides_of_axes_of_length_one_mean_nothing(engine, unused):
    five = engine.xp.arange(5, dtype=np.float32)
    row = strided(engine, five, (1, 5), (unused, 1))
    column = strided(engine, five, (5, 1), (1, unused))
    assert engine.numpy(matmul(row, column)).tolist() == [[30]]
    assert (engine.numpy(matmul(column, row)) == np.outer(range(5), range(5))).all()
    assert engine.numpy(matmul(row, engine.xp.eye(5, dtype=np.float32))).tolist() == [[0, 1, 2, 3, 4]]


def test_c8_overlapping_windows(engine):
    x = engine.array(f32(1, 2, 3, 4, 5, 6))
    windows = strided(engine, x, (2, 2, 2), (3, 1, 1))
    got = engine.numpy(matmul(windows, windows))
    assert got.tolist() == [[[5, 8], [8, 13]], [[41, 50], [50, 61]]]


def test_c9_byte_order(cpu):
    del cpu
    a = np.arange(9, dtype=np.float32).reshape(3, 3)
    x = np.arange(3, dtype=">f4")
    with pytest.raises(TypeError, match=r">f4|byte"):
        matmul(a, x)
    with pytest.raises(TypeError):
        sgemm("N", "N", 3, 1, 3, 1.0, a, 3, x, 1, 0.0, np.zeros(3, np.float32), 1, order="C")
    assert matmul(a, x.astype(np.float32)).tolist() == [5, 14, 23]


def test_c9_dtypes(engine):
    xp = engine.xp
    a = ones(engine, 3, 3)
    for dtype in (np.float64, np.int64, np.int32, np.complex64, np.bool_, np.float16):
        with pytest.raises(TypeError):
            matmul(a, xp.ones((3, 3), dtype=dtype))
        with pytest.raises(TypeError):
            matmul(a, a, out=xp.ones((3, 3), dtype=dtype))
        with pytest.raises(TypeError):
            sgemm("N", "N", 3, 3, 3, 1.0, a, 3, a, 3, 0.0, xp.ones((3, 3), dtype=dtype), 3)


def test_c9_shapes(engine):
    a = ones(engine, 3, 3)
    with pytest.raises(ValueError):
        matmul(a, a, out=ones(engine, 3, 4))
    with pytest.raises(ValueError):
        matmul(a, a, out=ones(engine, 2, 3, 3))
    with pytest.raises(ValueError):
        matmul(ones(engine, 5, 3, 1), ones(engine, 3, 1, 4))
    with pytest.raises(ValueError):
        matmul(ones(engine, 2, 3), ones(engine, 2, 3))
    for zero_d in [(a, engine.xp.float32(2) if engine.name == "cpu" else a[0, 0]), (a[0, 0], a)]:
        with pytest.raises((ValueError, TypeError)):
            matmul(*zero_d)
    scalar = matmul(ones(engine, 7), ones(engine, 7))
    assert np.ndim(scalar) == 0
    assert float(scalar) == 7


def test_c9_read_only(cpu):
    del cpu
    a = np.ones((4, 4), dtype=np.float32)
    fixed = a.copy()
    fixed.flags.writeable = False
    assert (matmul(fixed, fixed) == 4).all()
    with pytest.raises(ValueError, match=r"read-only|writ"):
        matmul(a, a, out=fixed)
    with pytest.raises(ValueError, match="read-only"):
        sgemm("N", "N", 4, 4, 4, 1.0, a, 4, a, 4, 0.0, fixed, 4)
    assert (fixed == 1).all()


# ---- D. Large sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("size", [(8, 8, 64), (16, 16, 8), (1, 1, 1)], ids=str)
def test_d1_every_batch_is_computed(engine, size, batch):
    m, n, k = size
    stride_a, stride_b = (m * k, k * n) if batch < 100_000 else (0, 0)
    a, b = (ones(engine, (batch if s else 1) * x) for s, x in ((stride_a, m * k), (stride_b, k * n)))
    c = poisoned(engine, batch, m * n)
    gemm_strided_batched("N", "N", m, n, k, 1.0, a, m, stride_a, b, k, stride_b, 0.0, c, m, m * n, batch, order="F")
    got = engine.numpy(c)
    assert (got[-1] == k).all()
    assert (got == k).all()


def test_d1_sizes_are_never_cut(engine):
    small = ones(engine, 64)
    out = ones(engine, 64)
    with pytest.raises((ValueError, OverflowError)):
        gemm_strided_batched("N", "N", 1, 1, 1, 1.0, small, 1, 1, small, 1, 1, 0.0, out, 1, 1, 2**32 + 1, order="F")
    with pytest.raises((ValueError, OverflowError)):
        sgemm("N", "N", 2, 2, 2, 1.0, small, 2**31 + 1, small, 2, 0.0, out, 2, order="F")
    with pytest.raises((ValueError, OverflowError)):
        sgemm("N", "N", 2**32 + 1, 1, 1, 1.0, small, 2**32 + 1, small, 1, 0.0, out, 2**32 + 1, order="F")
    with pytest.raises((ValueError, OverflowError)):
        sgemm("N", "N", 1, 1, 1, 1.0, small, 2**70, small, 1, 0.0, out, 1, order="F")
    assert (engine.numpy(out) == 1).all()
    # One column needs no second one: any ld fits.
    sgemm("N", "N", 4, 1, 1, 1.0, small, 2**31 + 1, small, 2**33, 0.0, out, 2**40, order="F")
    assert engine.numpy(out)[:5].tolist() == [1, 1, 1, 1, 1]


@pytest.mark.large(host=12, gpu=12)
def test_d3_batches_beyond_four_billion_bytes(engine):
    m = n = 512
    batch, guard = 8209, 64
    a = engine.array(np.repeat(np.arange(batch, dtype=np.float32) % 97, m))
    words = engine.xp.empty(batch * m * n + 2 * guard, dtype=np.float32)
    words[:guard] = words[-guard:] = 5
    c = words[guard:-guard]
    gemm_strided_batched("N", "N", m, n, 1, 1.0, a, m, m, ones(engine, n), 1, 0, 0.0, c, m, m * n, batch, order="F")
    matrices = c.reshape(batch, m * n)
    want = engine.xp.arange(batch) % 97
    assert (matrices.min(axis=1) == want).all()
    assert (matrices.max(axis=1) == want).all()
    assert matrices[8208, 0] == 60
    assert (words[:guard] == 5).all()
    assert (words[-guard:] == 5).all()


@pytest.mark.large(host=10, gpu=10)
def test_d5_offsets_beyond_32_bits_along_k(engine):
    rows, columns = 16_909_322, 127
    x = engine.xp.zeros(rows * columns, dtype=np.float32)
    x.reshape(rows, columns)[-1000:, 5] = 1
    c = poisoned(engine, 1)
    sgemm("N", "T", 1, 1, rows, 1.0, x[5:], columns, x[5:], columns, 0.0, c, 1, order="F")
    assert c[0] == 1000


@pytest.mark.large(host=12, gpu=12)
def test_d5_offsets_beyond_32_bits_in_rows(engine):
    rows, columns = 35_783, 65_133
    a = ones(engine, rows, columns)
    c = poisoned(engine, rows)
    sgemm("N", "N", rows, 1, columns, 1.0, a, columns, ones(engine, columns), 1, 0.0, c, 1, order="C")
    assert (c == 65_133).all()


@pytest.mark.large(host=16, gpu=18)
def test_d5_offsets_beyond_32_bits_between_columns(engine):
    rows = 100_000_000
    x = engine.xp.empty((rows, 40), dtype=np.float32, order="F")
    x[:, :32] = 1
    a, c = x[:, :30], x[:, 30:32]
    sgemm("N", "N", rows, 2, 30, 1.0, a, rows, ones(engine, 60), 30, 0.0, c, rows, order="F")
    assert (c == 30).all()
    assert (x[:, 29] == 1).all()


def test_d6_more_rows_than_a_float_counts(engine):
    rows = 2**23 + 1
    c = ones(engine, rows)
    sgemm("N", "N", rows, 1, 4, 1.0, ones(engine, rows * 4), 4, ones(engine, 4), 1, 1.0, c, 1, order="C")
    assert (c == 5).all()


@pytest.mark.large(host=11, gpu=11)
def test_d6_more_elements_than_an_int_counts(engine):
    n = 46_341
    a, b = ones(engine, n), ones(engine, n)
    a[-1], b[-1] = 3, 5
    c = engine.xp.empty((n, n), dtype=np.float32)
    sgemm("N", "N", n, n, 1, 1.0, a, 1, b, n, 0.0, c, n, order="C")
    assert c[-1, -1] == 15
    assert (c[:-1, :-1] == 1).all()
    assert (c[-1, :-1] == 3).all()
    assert (c[:-1, -1] == 5).all()


def test_d6_lda_times_m_beyond_an_int(engine):
    m, n, k, lda = 40_000, 2, 3, 70_000
    a = ones(engine, lda * k)
    c = poisoned(engine, m * n)
    sgemm("N", "N", m, n, k, 1.0, a, lda, ones(engine, k * n), k, 0.0, c, m, order="F")
    assert (c == 3).all()


# ---- E. Precision -----------------------------------------------------------------------------------------------------


def test_e1_fp32_is_fp32(engine):
    one = ones(engine, 1, 1)
    for n in (1, 16, 130):
        a = engine.xp.full((n, 1), 1024.5, dtype=np.float32)
        assert (engine.numpy(matmul(a, one)) == 1024.5).all()
        eye = engine.xp.eye(n, dtype=np.float32)
        assert (engine.numpy(matmul(eye, a)) == 1024.5).all()
    a = engine.array(f32([1.1111111, 2.2222222], [3.3333333, 4.4444444]))
    want = f32([6.1728387, 13.580245], [13.580245, 30.864195])
    np.testing.assert_allclose(engine.numpy(matmul(a, a.T)), want, rtol=1.2e-7)
    np.testing.assert_allclose(engine.numpy(matmul(a, a.T, compute="fp32_pedantic")), want, rtol=1.2e-7)


def test_e1_tf32_when_asked_for(engine, prints):
    """Inputs may be rounded to eleven bits then: 1024.5 times 1 is 1024, 1024.5 or 1025, and nothing else."""
    for n in (4, 40, 400):
        a = engine.array(np.full((n, n), 1024.5, np.float32))
        eye = engine.xp.eye(n, dtype=np.float32)
        got = engine.numpy(matmul(eye, a, compute="tf32"))
        assert np.isin(got, f32(1024, 1024.5, 1025)).all()
        assert (engine.numpy(matmul(eye, a)) == 1024.5).all()  # and only in the call that asked
    a = engine.array(f32([1.1111111, 2.2222222], [3.3333333, 4.4444444]))
    want = f32([6.1728387, 13.580245], [13.580245, 30.864195])
    np.testing.assert_allclose(engine.numpy(matmul(a, a.T, compute="tf32")), want, rtol=2e-3)
    program = "import pyblas_sgemm; print(pyblas_sgemm.Handle().compute)"
    assert prints(program, PYBLAS_SGEMM_COMPUTE="tf32") == "tf32"


def test_e1_call_beats_handle_beats_environment(prints):
    program = """
import numpy as np, pyblas_sgemm
from pyblas_sgemm import Handle, compute_mode
assert Handle().compute == "fp32_pedantic"
with compute_mode("fp32"):
    assert Handle().compute == "fp32"
    with compute_mode("fp32_pedantic"):
        assert Handle().compute == "fp32_pedantic"
    assert Handle().compute == "fp32"
    assert Handle(compute="fp32_pedantic").compute == "fp32_pedantic"
assert Handle().compute == "fp32_pedantic"
a = np.ones((8, 8), np.float32)
for compute in ("fp32", "fp32_pedantic", None):
    assert (pyblas_sgemm.matmul(a, a, compute=compute) == 8).all()
assert Handle().compute == "fp32_pedantic"
"""
    prints(program, PYBLAS_SGEMM_COMPUTE="fp32_pedantic")


@pytest.mark.parametrize("n", [16, 3, 100])
def test_e3_infinities(engine, n):
    inf = engine.xp.full((n, n), np.inf, dtype=np.float32)
    one = ones(engine, n, n)
    for compute in ("fp32", "fp32_pedantic"):
        assert (engine.numpy(matmul(inf, inf, compute=compute)) == INF).all()
        assert (engine.numpy(matmul(inf, -one, compute=compute)) == -INF).all()
        mixed = np.ones((n, n), dtype=np.float32)
        mixed[1, 0], mixed[1, 2] = INF, -INF
        got = engine.numpy(matmul(engine.array(mixed), one, compute=compute))
        assert np.isnan(got[1]).all()
        assert (np.delete(got, 1, axis=0) == n).all()
        largest = engine.xp.full((n, 1), np.finfo(np.float32).max, dtype=np.float32)
        half = engine.xp.full((1, n), 0.5, dtype=np.float32)
        assert (engine.numpy(matmul(largest, half, compute=compute)) == np.float32(1.7014117e38)).all()


@pytest.mark.parametrize("n", [1, 33])
def test_e5_subnormals_are_kept(engine, n):
    """n x n products in which only one term is not zero."""

    def product(x, y):
        a, b = np.zeros((n, n), dtype=np.float32), np.zeros((n, n), dtype=np.float32)
        a[:, 0], b[0] = x, y
        return engine.numpy(matmul(engine.array(a), engine.array(b)))

    reference.assert_same_bits(product(2.0**-126, 0.5), np.full((n, n), 0x00400000, np.uint32).view(np.float32))
    reference.assert_same_bits(product(2.0, 2.0**-149), np.full((n, n), 0x00000002, np.uint32).view(np.float32))
    tiny = np.arange(1, n * n + 1, dtype=np.uint32).view(np.float32).reshape(n, n)
    c = engine.array(tiny)
    sgemm("N", "N", n, n, n, 0.0, ones(engine, n, n), n, ones(engine, n, n), n, 1.0, c, n)
    reference.assert_same_bits(engine.numpy(c), tiny)
    c = engine.array(tiny)
    zero = engine.xp.zeros((n, n), dtype=np.float32)
    sgemm("N", "N", n, n, n, 1.0, zero, n, ones(engine, n, n), n, 1.0, c, n)
    reference.assert_same_bits(engine.numpy(c), tiny)


# ---- F. Reproducibility -----------------------------------------------------------------------------------------------


def test_f1_rows_keep_their_bits_in_the_batch_invariant_mode(engine):
    v = engine.array(f32(0.7372549, 0.25882354, 0.00392157))
    alone = engine.numpy(matmul(ones(engine, 1, 3), v, batch_invariant=True))
    np.testing.assert_allclose(alone, 1.0, rtol=1.3e-7)
    for rows in (1, 2, 16, 17):
        np.testing.assert_allclose(engine.numpy(matmul(ones(engine, rows, 3), v)), 1.0, rtol=1.3e-7)
        got = engine.numpy(matmul(ones(engine, rows, 3), v, batch_invariant=True))
        reference.assert_same_bits(got, np.repeat(alone, rows))
    rng = np.random.default_rng(1)
    stack, b = (engine.array(rng.standard_normal(s, dtype=np.float32)) for s in ((100, 30, 8), (8, 20)))
    whole = engine.numpy(matmul(stack, b, batch_invariant=True))
    for size in (2, 50):
        for i in range(0, 100, size):
            part = engine.numpy(matmul(stack[i : i + size], b, batch_invariant=True))
            reference.assert_same_bits(part, whole[i : i + size])
    a, b = (engine.array(rng.standard_normal(s, dtype=np.float32)) for s in ((128, 4096), (4096, 64)))
    whole = engine.numpy(matmul(a, b, batch_invariant=True))
    for m in (1, 2, 16, 17):
        reference.assert_same_bits(engine.numpy(matmul(a[:m], b, batch_invariant=True)), whole[:m])


def test_f3_same_bits_at_any_address_and_time(engine):
    rng = np.random.default_rng(0)
    m, n, k = 513, 259, 1031
    a, b = rng.standard_normal(m * k, dtype=np.float32), rng.standard_normal(k * n, dtype=np.float32)
    first = None
    for turn in range(100):
        shift = turn % 4
        room = [engine.block(np.zeros(x + 4, np.float32)) for x in (m * k, k * n, m * n)]
        views = [x[shift : shift + size] for x, size in zip(room, (m * k, k * n, m * n), strict=True)]
        views[0][...], views[1][...] = engine.array(a), engine.array(b)
        sgemm("N", "N", m, n, k, 1.0, views[0], k, views[1], n, 0.0, views[2], n, order="C")
        got = engine.numpy(views[2])
        first = got.copy() if first is None else first
        reference.assert_same_bits(got, first)


# ---- G. Status and errors ---------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_g1_a_full_gpu_is_out_of_memory_and_nothing_else(gpu_alone, prints):
    program = """
import cupy, pyblas_sgemm
from full_gpu import full_gpu
a = cupy.ones((64, 64), dtype=cupy.float32)
c = cupy.zeros((64, 64), dtype=cupy.float32)
with full_gpu(8 << 20) as left:
    assert left < 16 << 20
    try:
        pyblas_sgemm.matmul(a, a, out=c)
        cupy.cuda.Device().synchronize()
        assert (cupy.asnumpy(c) == 64).all()
    except pyblas_sgemm.AllocError as error:
        assert any(character.isdigit() for character in str(error)), error
        assert "memory" in str(error), error
pyblas_sgemm.matmul(a, a, out=c)
assert (cupy.asnumpy(c) == 64).all()
"""
    prints(program)


# ---- H. Alignment and odd sizes ---------------------------------------------------------------------------------------


def test_h1_sizes_that_are_no_multiple_of_a_vector(engine):
    got = matmul(ones(engine, 1, 107), ones(engine, 107, 105))
    assert (engine.numpy(got) == 107).all()
    m, n, k = 1024, 1953, 2048
    c = poisoned(engine, m * n)
    arguments = ("T", "N", m, n, k, 1.0, ones(engine, m * k))
    sgemm(*arguments, 2048, ones(engine, 7920 * n), 7920, 0.0, c, m, order="F")
    assert (c == 2048).all()
    with pytest.raises(InvalidValueError, match="lda"):
        sgemm(*arguments, 1024, ones(engine, 7920 * n), 7920, 0.0, c, m, order="F")


@pytest.mark.parametrize("k", [32, 64, 96, 128])
def test_h1_narrow_tiles_stay_inside_c(engine, k):
    words = engine.array(np.full(64 * 4 + 64, 5, dtype=np.float32))
    sgemm("N", "N", 64, 4, k, 1.0, ones(engine, 64 * k), 64, ones(engine, k * 4), k, 0.0, words[32:-32], 64, order="F")
    got = engine.numpy(words)
    assert (got[32:-32] == k).all()
    assert (got[:32] == 5).all()
    assert (got[-32:] == 5).all()


def test_h3_small_odd_sizes(engine):
    c = poisoned(engine, 7 * 61)
    sgemm("N", "N", 7, 61, 68, 1.0, ones(engine, 7 * 68), 7, ones(engine, 68 * 61), 68, 0.0, c, 7, order="F")
    assert (c == 68).all()


# ---- I. Batch strides -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 300])
@pytest.mark.parametrize("shared", ["A", "B", "AB", ""])
def test_i1_shared_operands_equal_a_loop(engine, size, shared):
    rng = np.random.default_rng(size)
    batch, square = 7, size * size
    a, b = (rng.integers(-8, 9, batch * square).astype(np.float32) for _ in range(2))
    stride_a, stride_b = (0 if name in shared else square for name in "AB")
    c = poisoned(engine, batch * square)
    A, B = engine.array(a), engine.array(b)
    gemm_strided_batched(
        "N", "T", size, size, size, 1.0, A, size, stride_a, B, size, stride_b, 0.0, c, size, square, batch, order="F"
    )  # fmt: skip
    for i in range(batch):
        one = poisoned(engine, square)
        x, y = A[i * stride_a :], B[i * stride_b :]
        sgemm("N", "T", size, size, size, 1.0, x, size, y, size, 0.0, one, size, order="F")
        assert (c[i * square : (i + 1) * square] == one).all()


def test_i1_a_shared_matrix_through_python(engine):
    shape = (2560, 8192, 28672) if engine.name == "gpu" else (256, 819, 2867)
    got = matmul(ones(engine, 1, *shape[:2]), ones(engine, *shape[1:]))
    assert got.shape == (1, shape[0], shape[2])
    assert (got == shape[1]).all()


def test_i1_strides_in_bytes_are_noticed(engine):
    a = ones(engine, 7, 25)
    c = ones(engine, 7, 25)
    with pytest.raises(ValueError, match=r"A.*625.*175"):
        gemm_strided_batched("N", "N", 5, 5, 5, 1.0, a, 5, 100, a, 5, 25, 0.0, c, 5, 25, 7, order="F")
    assert (engine.numpy(c) == 1).all()


# ---- J. Memory (the speed of these cases is measured in bench/) ------------------------------------------------------


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_j7_memory_is_flat_over_calls(engine):
    a, b, c = (ones(engine, 64, 64) for _ in range(3))
    batch = ones(engine, 200, 9, 9)
    out = ones(engine, 200, 9, 9)

    def turn(times):
        for _ in range(times):
            sgemm("N", "N", 64, 64, 64, 1.0, a, 64, b, 64, 0.0, c, 64)
            matmul(a, b, out=c)
            gemm_strided_batched("N", "N", 9, 9, 9, 1.0, batch, 9, 81, batch, 9, 81, 0.0, out, 9, 81, 200)
        engine.synchronize()

    turn(500)
    gc.collect()
    before = resident()
    turn(5_000)
    gc.collect()
    assert resident() - before < 8 << 20


def test_j7_large_products_allocate_nothing_in_python(cpu):
    del cpu
    a, b, c = (np.ones((600, 600), dtype=np.float32) for _ in range(3))
    matmul(a, b, out=c)
    tracemalloc.start()
    for _ in range(10):
        matmul(a, b.T, out=c)
        sgemm("N", "T", 600, 600, 600, 1.0, a, 600, b, 600, 0.0, c, 600)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_j7_handles_give_their_memory_back(engine):
    a, c = ones(engine, 64, 64), ones(engine, 64, 64)

    def turn(times):
        for _ in range(times):
            with pyblas_sgemm.Handle() as handle:
                sgemm("N", "N", 64, 64, 64, 1.0, a, 64, a, 64, 0.0, c, 64, handle=handle)
                handle.free_workspace()
        gc.collect()

    turn(50)
    before = resident()
    turn(1_000)
    assert resident() - before < 8 << 20


# ---- K. Devices (several, threads and graphs have files of their own) -------------------------------------------------


@pytest.mark.gpu
def test_k4_host_and_device_arrays_do_not_mix(gpu):
    device, host = ones(gpu, 4, 4), np.ones((4, 4), dtype=np.float32)
    for a, b, c in [(device, host, device), (host, device, device), (device, device, host), (host, host, device)]:
        with pytest.raises(TypeError):
            sgemm("N", "N", 4, 4, 4, 1.0, a, 4, b, 4, 0.0, c, 4)
        with pytest.raises(TypeError):
            matmul(a, b, out=c)


# ---- M. Loading -------------------------------------------------------------------------------------------------------

TWO_BY_TWO = """
import numpy as np, pyblas_sgemm
a = np.array([[1, 2], [3, 4]], np.float32)
c = np.zeros((2, 2), np.float32)
pyblas_sgemm.sgemm("N", "N", 2, 2, 2, 1.0, a, 2, a, 2, 0.0, c, 2)
assert c.tolist() == [[7, 10], [15, 22]]
"""


def test_m1_without_a_gpu_the_cpu_works_and_a_query_says_why(prints):
    program = TWO_BY_TWO + "print(pyblas_sgemm.info())"
    assert "GPU" in prints(program, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("level", ["generic", "avx2", "avx512"])
def test_m3_instruction_sets_below_the_best_work(prints, level):
    """OpenBLAS's own switch is left alone; ours chooses among the kernels of the CPU engine."""
    program = TWO_BY_TWO + (
        "import engines, reference\n"
        "from problems import Problem, Product\n"
        "cpu = engines.Cpu(); handle = cpu.handle()\n"
        "for p in (Product(33, 20, 17), Product(1, 70, 60), Product(8, 8, 8, batch=9), Product(200, 150, 130)):\n"
        "    Problem(p).solve(cpu, handle)\n"
        "info = engines.ffi.new('pyblasCpuInfo_t *'); engines.lib.pyblasCpuInfo(info)\n"
        "print(engines.ffi.string(info.instruction_set).decode())\n"
    )
    best = prints(program).split()[-1]
    levels = ["generic", "avx2", "avx512"]
    told = prints(program, PYBLAS_SGEMM_CPU=level).split()[-1]
    assert told in (level, best)
    assert levels.index(told) <= levels.index(best)


def test_m8_one_processor_and_many(prints):
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + TWO_BY_TWO
    program += "from pyblas_sgemm._cffi import lib; assert lib.pyblasGetNumThreads() == 1\n"
    program += "x = np.ones((400, 300), np.float32); assert (pyblas_sgemm.matmul(x, x.T) == 300).all()"
    prints(program)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "package",
    [pytest.param("torch", marks=pytest.mark.interop("torch")),
     pytest.param("sklearn", marks=pytest.mark.interop("sklearn")),
     pytest.param("faiss", marks=pytest.mark.interop("faiss"))],
)  # fmt: skip
def test_m8_beside_libraries_with_an_openmp_of_their_own(python, package, first):
    program = (f"import {package}\n" + TWO_BY_TWO) if first else (TWO_BY_TWO + f"import {package}\n" + TWO_BY_TWO)
    done = python(program)
    assert done.returncode == 0, done.stderr


def test_m9_temporaries_live_long_enough(engine):
    rng = np.random.default_rng(0)
    x, y = (engine.array(rng.integers(-4, 5, (1000, 1000)).astype(np.float32)) for _ in range(2))
    v = engine.array(rng.integers(-4, 5, (1000, 1)).astype(np.float32))
    want = engine.numpy(x + y).astype(np.float64) @ engine.numpy(v) * 2
    for turn in range(1000):
        c = engine.xp.empty((1000, 1), dtype=np.float32)
        sgemm("N", "N", 1000, 1, 1000, 1.0, x + y, 1000, v + v, 1, 0.0, c, 1)
        if turn % 50 == 0:
            gc.collect()
            assert (engine.numpy(c) == want).all()
    assert (engine.numpy(c) == want).all()


def test_m9_host_arrays_may_go_right_after_the_call():
    for turn in range(200):
        a = np.full((100, 100), turn, dtype=np.float32)
        c = matmul(a, a)
        a[...] = np.nan
        del a
        assert (c == 100.0 * turn * turn).all()


def test_m9_scalars_of_any_kind(engine):
    a = ones(engine, 4, 4)
    scalars = [
        2,
        2.0,
        np.float32(2),
        np.float64(2),
        np.int64(2),
        np.array(2.0),
        np.array(2, dtype=np.float32),
        True + 1,
    ]
    for alpha in scalars:
        for beta in scalars:
            c = ones(engine, 4, 4)
            sgemm("N", "N", 4, 4, 4, alpha, a, 4, a, 4, beta, c, 4)
            assert (engine.numpy(c) == 10).all()
    with pytest.raises(TypeError):
        sgemm("N", "N", 4, 4, 4, "2", a, 4, a, 4, 0.0, ones(engine, 4, 4), 4)


@pytest.mark.gpu
def test_m9_scalars_on_the_device(gpu):
    a, c = ones(gpu, 4, 4), ones(gpu, 4, 4)
    two, half = gpu.xp.array(2, dtype=np.float32), gpu.xp.array(0.5, dtype=np.float32)
    sgemm("N", "N", 4, 4, 4, two, a, 4, a, 4, half, c, 4)
    assert (gpu.numpy(c) == 8.5).all()
    for alpha, beta in [(two, 0.5), (2.0, half)]:
        with pytest.raises(TypeError):
            sgemm("N", "N", 4, 4, 4, alpha, a, 4, a, 4, beta, c, 4)


def test_m9_the_number_of_threads_can_be_set_after_import():
    before = lib.pyblasGetNumThreads()
    assert lib.pyblasSetNumThreads(1) == SUCCESS
    assert lib.pyblasGetNumThreads() == 1
    assert lib.pyblasSetNumThreads(before) == SUCCESS
