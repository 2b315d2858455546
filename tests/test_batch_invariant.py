"""batch_invariant: a row of C has the same bits in whatever product and batch it stands."""

from __future__ import annotations

from itertools import product as pairs

import numpy as np
import pytest

import engines
import pyblas_sgemm
import reference
import shapes
from engines import NOT_SUPPORTED, SUCCESS, ffi, lib, message
from problems import Problem, Product
from pyblas_sgemm import NotSupportedError, gemm_batched, gemm_strided_batched, matmul, sgemm

# n and k; between the sizes of the products of their rows, every kernel of an engine may be the best.
SIZES = [(1, 7), (3, 300), (40, 64), (130, 1029), (1, 5000), (300, 257), (16, 20000)]
ROWS = [1, 2, 5, 16, 17, 33, 128, 300]


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class Rows:
    """op(A) of m rows, op(B) and C in the layouts of one call; rows of them multiplied alone and together."""

    def __init__(self, engine, m, n, k, ops, order, alpha=1.25, beta=-0.5):
        self.engine, self.m, self.n, self.k, self.ops, self.order = engine, m, n, k, ops, order
        self.alpha, self.beta = alpha, beta
        a, b, self.c = random(1, m, k), random(2, k, n), random(3, m, n)
        self.a = a if ops[0] == "N" else np.ascontiguousarray(a.T)
        self.b = b if ops[1] == "N" else np.ascontiguousarray(b.T)
        lay = np.asfortranarray if order == "F" else np.ascontiguousarray
        self.a, self.b = engine.array(lay(self.a)), engine.array(lay(self.b))
        self.c = lay(self.c)

    def ld(self, x):
        return max(1, x.shape[0] if self.order == "F" else x.shape[1])

    def product(self, first, count, **keywords):
        """Rows of C from first on, by one call."""
        rows = slice(first, first + count)
        a = self.a[rows] if self.ops[0] == "N" else self.a[:, rows]
        c = self.engine.array(self.c)
        sgemm(
            *self.ops, count, self.n, self.k, self.alpha, a, self.ld(self.a), self.b, self.ld(self.b), self.beta,
            c[rows], self.ld(self.c), order=self.order, **{"batch_invariant": True} | keywords,
        )  # fmt: skip
        got = self.engine.numpy(c)
        reference.assert_same_bits(np.delete(got, rows, 0), np.delete(self.c, rows, 0), "other rows were written")
        return got[rows]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("ops", shapes.OP_PAIRS)
def test_rows_do_not_depend_on_their_number_or_place(engine, ops, order):
    for n, k in SIZES:
        for beta in (0.0, -0.5):
            rows = Rows(engine, 300, n, k, ops, order, beta=beta)
            whole = rows.product(0, 300)
            for count in ROWS:
                for first in {0, 1, 300 - count} if count < 300 else ():
                    label = f"{count} rows of {n} from {first} on, k={k}, beta={beta}"
                    reference.assert_same_bits(rows.product(first, count), whole[first : first + count], label)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("ops", shapes.OP_PAIRS)
def test_rows_do_not_depend_on_the_batch(engine, ops, order):
    for (n, k), m, batch in pairs(SIZES[:4], (1, 7), (2, 40)):
        rows = Rows(engine, m * batch, n, k, ops, order)
        whole = rows.product(0, m * batch)
        a, b, c = rows.a, rows.b, engine.array(rows.c)
        # The batch is a cut through the rows: consecutive ones, each a matrix with the leading dimension of the whole.
        step_a = m * (rows.ld(a) if (ops[0] == "N") == (order == "C") else 1)
        step_c = m * (rows.ld(c) if order == "C" else 1)
        gemm_strided_batched(
            *ops, m, n, k, rows.alpha, a, rows.ld(a), step_a, b, rows.ld(b), 0, rows.beta, c, rows.ld(c), step_c,
            batch, order=order, batch_invariant=True,
        )  # fmt: skip
        reference.assert_same_bits(engine.numpy(c), whole, f"{batch} batches of {m} x {n} x {k}")


def chosen(handle, n, k):
    name, reason = ffi.new("char const **"), ffi.new("char const **")
    assert lib.pyblasSelectedKernel(handle, 0, 0, 35, n, k, 1, name, reason) == SUCCESS, message()
    return ffi.string(name[0]).decode()


def order_of_sums(kernel):
    """Planes are summed in the tensor cores; all other kernels add one after another."""
    return next((scheme for scheme in ("f16x2", "f16x1") if scheme in kernel), "multiply-adds")


@pytest.mark.parametrize("mode", ["fp32", "fp32_pedantic", "tf32"])
def test_kernels_of_one_order_give_the_same_bits(engine, handle, mode):
    """Which of them runs depends on sizes, so they must agree; a kernel that does not keep it is refused by name."""
    assert lib.pyblasSetBatchInvariant(handle, 1) == lib.pyblasSetComputeMode(handle, engines.MODES[mode]) == SUCCESS
    for n, k in [(1, 7), (40, 64), (33, 257), (130, 1029), (16, 5000)]:
        rows = Rows(engine, 35, n, k, ("N", "N"), "C")
        want = {order_of_sums(chosen(handle, n, k)): rows.product(0, 35, compute=mode)}
        kept = 0
        for name, where, *_ in engines.kernel_rows():
            if where != engine.name:
                continue
            forced = pyblas_sgemm.Handle(kernel=name, batch_invariant=True, compute=mode)
            try:
                got = rows.product(0, 35, handle=forced, batch_invariant=None)
            except NotSupportedError:
                continue
            kept += 1
            reference.assert_same_bits(got, want.setdefault(order_of_sums(name), got), f"{name}, n={n}, k={k}")
        assert kept


@pytest.mark.parametrize("mode", ["fp32", "fp32_pedantic", "tf32"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_of_large_products(engine, mode, order):
    for n, k in [(200, 520), (1024, 129), (33, 4097)]:
        rows = Rows(engine, 2048, n, k, ("N", "N"), order)
        whole = rows.product(0, 2048, compute=mode)
        for first, count in [(0, 1), (77, 1), (2047, 1), (5, 16), (1000, 130), (300, 1023)]:
            label = f"{count} rows of {n} from {first} on, k={k}"
            got = rows.product(first, count, compute=mode)
            reference.assert_same_bits(got, whole[first : first + count], label)


@pytest.mark.parametrize("ops", ["NN", "TT"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_do_not_depend_on_what_the_others_hold(engine, ops, order):
    """Infinities, NaNs and rows whose elements lie far apart take other ways, alone or many of them in a tile."""
    rng = np.random.default_rng(7)
    for n, k, odd_rows in [(130, 600, 1), (70, 1029, 6), (300, 517, 150), (40, 257, 3)]:
        rows = Rows(engine, 300, n, k, ops, order)
        plain = rows.product(0, 300)
        a = engine.numpy(rows.a) if ops[0] == "N" else engine.numpy(rows.a).T
        b = engine.numpy(rows.b) if ops[1] == "N" else engine.numpy(rows.b).T
        a, b = a.copy(), b.copy()
        odd = rng.choice(300, odd_rows, replace=False)
        for number, row in enumerate(odd):
            a[row, rng.integers(k)] = [np.inf, np.nan, 1e-38, 3e38, -np.inf, 1e-20][number % 6]

        def lay(x, op, order=order):
            x = x if op == "N" else x.T
            return engine.array((np.asfortranarray if order == "F" else np.ascontiguousarray)(x))

        rows.a = lay(a, ops[0])
        usual = np.setdiff1d(np.arange(300), odd)
        for special_columns in (0, 2, 40):
            b[rng.integers(k), :special_columns] = 1e-38  # a column of op(B) is every row's
            rows.b = lay(b, ops[1])
            whole = rows.product(0, 300)
            if special_columns == 0:
                reference.assert_same_bits(whole[usual], plain[usual], f"{n=} {k=}")
            for row in [*odd[:4], *usual[:3], 299]:
                got = rows.product(int(row), 1)
                np.testing.assert_array_equal(got, whole[row : row + 1], f"row {row}, {n=} {k=} {special_columns=}")
            np.testing.assert_array_equal(rows.product(100, 130), whole[100:230])


def test_a_forced_kernel_that_does_not_keep_it_is_refused(engine, handle):
    answers = set()
    assert lib.pyblasSetBatchInvariant(handle, 1) == SUCCESS
    for name, where, *_ in engines.kernel_rows():
        if where != engine.name:
            continue
        problem = Problem(Product(40, 24, 33))
        engines.set_kernel(handle, name)
        status = problem.call(engine, handle, problem.blocks(engine))
        assert status in (SUCCESS, NOT_SUPPORTED)
        if status == NOT_SUPPORTED:
            assert name in message()
            answers.add(message().partition("but ")[2])
        else:
            problem.solve(engine, handle)
    assert any("batch_invariant" in answer for answer in answers)


@pytest.mark.parametrize("mode", ["fp32", "fp32_pedantic"])
def test_it_keeps_the_bound_of_the_mode(engine, handle, mode):
    assert lib.pyblasSetBatchInvariant(handle, 1) == SUCCESS
    assert lib.pyblasSetComputeMode(handle, engines.MODES[mode]) == SUCCESS
    for ops, data in pairs(shapes.OP_PAIRS, ("normal", "wide", "cancelling", "integers", "subnormal")):
        for m, n, k in [(1, 1, 5), (33, 65, 129), (1, 130, 300), (8, 200, 64), (300, 260, 517)]:
            Problem(Product(m, n, k, *ops, 1.5, -0.5, data=data)).solve(engine, handle, mode)


def test_selection_says_what_runs(engine, handle):
    """The kernel that is named is one that may run, also for sizes that usually take another."""
    name, reason = ffi.new("char const **"), ffi.new("char const **")
    assert lib.pyblasSetBatchInvariant(handle, 1) == SUCCESS
    for m, n, k in [(1, 1, 1), (512, 512, 512), (1, 4096, 4096), (32, 32, 262144)]:
        assert lib.pyblasSelectedKernel(handle, 0, 0, m, n, k, 1, name, reason) == SUCCESS, message()
        chosen = ffi.string(name[0]).decode()
        engines.set_kernel(handle, chosen)
        problem = Problem(Product(5, 6, 77))
        assert problem.call(engine, handle, problem.blocks(engine)) == SUCCESS, message()
        engines.set_kernel(handle, None)


# ---- the keyword ---------------------------------------------------------------------------------------------------


def test_call_beats_handle(engine):
    forced = next(  # one that does not keep it tells which setting reached the library
        name for name, where, *_ in engines.kernel_rows() if where == engine.name and not _keeps(engine, name)
    )
    a, c = engine.array(random(1, 4, 4)), engine.array(random(2, 4, 4))

    def run(**keywords):
        sgemm("N", "N", 4, 4, 4, 1, a, 4, a, 4, 0, c, 4, **keywords)
        gemm_strided_batched("N", "N", 4, 4, 4, 1, a, 4, 0, a, 4, 0, 0, c, 4, 0, 1, **keywords)
        gemm_batched("N", "N", 4, 4, 4, 1, [a], 4, [a], 4, 0, [c], 4, **keywords)

    for on in (False, True):
        handle = pyblas_sgemm.Handle(kernel=forced, batch_invariant=on)
        assert handle.batch_invariant is on
        run(handle=handle, batch_invariant=False)
        with pytest.raises(NotSupportedError, match="batch_invariant"):
            run(handle=handle, batch_invariant=True)
        if on:
            with pytest.raises(NotSupportedError, match="batch_invariant"):
                run(handle=handle)
        else:
            run(handle=handle)
        handle.batch_invariant = False
        run(handle=handle)


def _keeps(engine, name):
    a = engine.array(random(1, 4, 4))
    try:
        sgemm(
            "N", "N", 4, 4, 4, 1, a, 4, a, 4, 0, engine.array(random(2, 4, 4)), 4,
            handle=pyblas_sgemm.Handle(kernel=name, batch_invariant=True),
        )  # fmt: skip
    except NotSupportedError as refusal:
        return "batch_invariant" not in str(refusal)
    return True


def test_the_keyword_leaves_nothing_behind(engine):
    """A call with the keyword, or one that fails with it, does not change the next call's bits."""
    a, b = engine.array(random(1, 16, 5000)), engine.array(random(2, 5000, 16))
    before = engine.numpy(matmul(a, b))
    invariant = engine.numpy(matmul(a, b, batch_invariant=True))
    with pytest.raises(ValueError, match="lda"):
        sgemm("N", "N", 2, 2, 2, 1, a, 1, b, 2, 0, engine.array(random(3, 2, 2)), 2, batch_invariant=True)
    reference.assert_same_bits(engine.numpy(matmul(a, b)), before)
    for i in (0, 3, 15):
        reference.assert_same_bits(engine.numpy(matmul(a[i], b, batch_invariant=True)), invariant[i])


def test_matmul_of_stacks(engine):
    a, b = engine.array(random(1, 5, 9, 70)), engine.array(random(2, 70, 20))
    whole = engine.numpy(matmul(a, b, batch_invariant=True))
    for i, rows in pairs(range(5), (slice(0, 9), slice(2, 3), slice(4, 9))):
        reference.assert_same_bits(engine.numpy(matmul(a[i, rows], b, batch_invariant=True)), whole[i, rows])


def test_arrays_of_pointers(engine):
    a, b = engine.array(random(1, 6, 3, 300)), engine.array(random(2, 300, 40))
    whole = engine.numpy(matmul(a, b, batch_invariant=True))
    cs = [engine.array(random(3, 3, 40)) for _ in range(6)]
    gemm_batched("N", "N", 3, 40, 300, 1, list(a), 300, [b] * 6, 40, 0, cs, 40, batch_invariant=True)
    reference.assert_same_bits(np.stack([engine.numpy(c) for c in cs]), whole)


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_small_workspace_is_small_for_all_rows(gpu):
    """Less than the planes of large products may need means another order of sums, for few rows too."""
    handle = pyblas_sgemm.Handle(batch_invariant=True, workspace_limit=64 << 20)
    rows = Rows(gpu, 2048, 300, 1029, "NN", "C")
    whole = rows.product(0, 2048, handle=handle, batch_invariant=None)
    for first, count in [(0, 1), (1000, 17), (2047, 1)]:
        got = rows.product(first, count, handle=handle, batch_invariant=None)
        reference.assert_same_bits(got, whole[first : first + count])


@pytest.mark.gpu
@pytest.mark.large(gpu=6)
def test_products_in_panels(gpu):
    """Planes of all of it would be more than the handle's workspace; behind pointers it is cut alike."""
    m, n, k = 12000, 8000, 16384
    a, b = (
        gpu.xp.random.default_rng(seed).standard_normal(s, dtype=np.float32) for seed, s in ((1, (m, k)), (2, (k, n)))
    )
    whole = matmul(a, b, batch_invariant=True)
    c = gpu.xp.empty_like(whole)
    gemm_batched("N", "N", m, n, k, 1, [a], k, [b], n, 0, [c], n, batch_invariant=True)
    reference.assert_same_bits(gpu.numpy(c[::97]), gpu.numpy(whole[::97]))
    for row in (0, 6001, m - 1):
        reference.assert_same_bits(
            gpu.numpy(matmul(a[row : row + 1], b, batch_invariant=True)), gpu.numpy(whole[row : row + 1])
        )


@pytest.mark.gpu
def test_a_full_gpu_changes_no_bits(gpu_alone, prints):
    program = """
import cupy, pyblas_sgemm
from full_gpu import full_gpu
random = cupy.random.default_rng(1)
a, b = random.standard_normal((3000, 3000), dtype=cupy.float32), random.standard_normal((3000, 3000), dtype=cupy.float32)
c = cupy.empty((3000, 3000), dtype=cupy.float32)
handle = pyblas_sgemm.Handle(batch_invariant=True)
product = ("N", "N", 3000, 3000, 3000, 1, a, 3000, b, 3000, 0)
want = pyblas_sgemm.sgemm(*product, c.copy(), 3000, handle=handle)
pyblas_sgemm.sgemm("N", "N", 700, 700, 3000, 1, a, 3000, b, 3000, 0, c, 3000, handle=handle)  # its kernels are loaded
handle.free_workspace()
with full_gpu(44 << 20) as left:
    assert left < 60 << 20  # and the planes need 72 MB
    pyblas_sgemm.sgemm(*product, c, 3000, handle=handle)
    cupy.cuda.Device().synchronize()
assert (c == want).all()
"""
    prints(program)
