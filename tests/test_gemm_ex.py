"""Products of 16-bit matrices: every type, layout and kernel against float64, and what Python makes of the arrays."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import engines
import reference
import shapes
from engines import INVALID_VALUE, NOT_SUPPORTED, OPS, SUCCESS, ffi, lib, message
from problems import place
from pyblas_sgemm import InvalidValueError, NotSupportedError, gemm_ex, gemm_strided_batched_ex, kernels

NAN, INF = math.nan, math.inf
F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
NUMBERS = {F32: 0, F16: 2, BF16: 14}
ROUNDOFF = {F32: 0.0, F16: 2.0**-11, BF16: 2.0**-8}
LEAST = {F32: 0.0, F16: 2.0**-25, BF16: 2.0**-134}
PAIRS = [(F16, F32), (F16, F16), (F16, BF16), (BF16, F32), (BF16, BF16), (BF16, F16), (F32, F32)]
HALF_PAIRS = PAIRS[:-1]
MODES = {"fp32": 68, "fp32_pedantic": 69, "tf32": 77}
every_pair = pytest.mark.parametrize("types", PAIRS, ids=lambda pair: f"{pair[0].name}-{pair[1].name}")
every_half_pair = pytest.mark.parametrize("types", HALF_PAIRS, ids=lambda pair: f"{pair[0].name}-{pair[1].name}")
every_op_pair = pytest.mark.parametrize("ops", shapes.OP_PAIRS)
ROWS = [
    pytest.param(
        (row.name, row.engine, row.min_sm), id=row.name, marks=[pytest.mark.gpu] if row.engine == "gpu" else []
    )
    for row in kernels()
    if "float16" in row.types
]


def poisoned(dtype):
    return lambda size: np.full(size, NAN, dtype)


def canaries(dtype):
    """Numbers that tell their place, none of them NaN."""

    def fill(size):
        if dtype == F32:
            return (np.arange(size, dtype=np.uint32) % 0x7FFFFF + 0x3F800001).view(dtype)
        return (np.arange(size, dtype=np.uint16) % 0x37FF + 0x0401).view(dtype)

    return fill


def words(x):
    return x.view(np.uint32 if x.dtype.itemsize == 4 else np.uint16)


class Case:
    """One product laid out in memory, with poison between the elements of A and B and canaries round those of C."""

    def __init__(
        self, m, n, k, ops, types, alpha=1.0, beta=0.0, order="F", gap=(0, 0, 0), offset=(0, 0, 0), batch=None,
        stride=(None, None, None), ldc=None, scale=1.0, seed=0,
    ):  # fmt: skip
        self.m, self.n, self.k, self.ops, self.types = m, n, k, ops, types
        self.alpha, self.beta, self.order, self.batch = alpha, beta, order, batch
        count = 1 if batch is None else batch
        a, b, c = (m, k) if ops[0] == "N" else (k, m), (k, n) if ops[1] == "N" else (n, k), (m, n)
        lds = [max(1, shape[0 if order == "F" else 1]) + g for shape, g in zip((a, b, c), gap, strict=True)]
        if ldc is not None:
            lds[2] = ldc
        self.a = place(a, order, lds[0], stride[0], count, offset[0], poisoned(types[0]))
        self.b = place(b, order, lds[1], stride[1], count, offset[1], poisoned(types[0]))
        self.c = place(c, order, lds[2], stride[2], count, offset[2], canaries(types[1]))
        rng = np.random.default_rng([seed, m, n, k])
        for matrix, factor in ((self.a, scale), (self.b, 1.0)):
            values = rng.standard_normal(matrix.index.shape, dtype=np.float32) * np.float32(factor)
            matrix.words[matrix.index] = values.astype(types[0])
        old = rng.standard_normal(self.c.index.shape, dtype=np.float32).astype(types[1])
        self.c.words[self.c.index] = np.full_like(old, NAN) if beta == 0 else old

    def __repr__(self):
        return f"{self.ops} {self.m}x{self.n}x{self.k} {self.types} {self.alpha} {self.beta} {self.order} {self.batch}"

    def arguments(self, addresses, compute="fp32", narrow=False):
        item = self.types[0].itemsize, self.types[0].itemsize, self.types[1].itemsize
        at = [p + matrix.base * i for p, matrix, i in zip(addresses, (self.a, self.b, self.c), item, strict=True)]
        at = [ffi.cast("void *", p) for p in at]
        alpha, beta = (ffi.new("float *", x) for x in (self.alpha, self.beta))
        number_a, number_c = NUMBERS[self.types[0]], NUMBERS[self.types[1]]
        front = [OPS[self.ops[0]], OPS[self.ops[1]], self.m, self.n, self.k, alpha]
        if self.batch is None:
            rest = [at[0], number_a, self.a.ld, at[1], number_a, self.b.ld, beta, at[2], number_c, self.c.ld]
        else:
            rest = [
                at[0], number_a, self.a.ld, self.a.stride, at[1], number_a, self.b.ld, self.b.stride, beta, at[2],
                number_c, self.c.ld, self.c.stride, self.batch,
            ]  # fmt: skip
        name = "pyblasGemmEx" if self.batch is None else "pyblasGemmStridedBatchedEx"
        name += ("RowMajor" if self.order == "C" else "") + ("" if narrow else "_64")
        return getattr(lib, name), [*front, *rest, MODES[compute], -1]

    def run(self, engine, handle, compute="fp32", narrow=False):
        """The status, and C as it is afterwards."""
        # Bytes: nothing on the way may touch the payload of a NaN.
        blocks = [engine.array(words(x.words)) for x in (self.a, self.b, self.c)]
        function, arguments = self.arguments([engine.address(block) for block in blocks], compute, narrow)
        status = function(handle, *arguments)
        engine.synchronize()
        after = [np.ascontiguousarray(engine.numpy(block)) for block in blocks]
        assert np.array_equal(after[0], words(self.a.words)), f"{self}: A was written"
        assert np.array_equal(after[1], words(self.b.words)), f"{self}: B was written"
        outside = np.ones(self.c.words.size, bool)
        outside[self.c.index] = False
        assert np.array_equal(after[2][outside], words(self.c.words)[outside]), f"{self}: bytes round C were written"
        return status, after[2].view(self.types[1])[self.c.index]

    def wanted(self, exact=None):
        """C in float64, and how far each element may be off; exact() may tell what reference.product() does, with the bound
        of float32."""
        a, b = (matrix.words[matrix.index].astype(np.float32) for matrix in (self.a, self.b))
        a = a if self.ops[0] == "N" else a.swapaxes(1, 2)
        b = b if self.ops[1] == "N" else b.swapaxes(1, 2)
        c = self.c.words[self.c.index].astype(np.float32)
        if exact is None:
            value, magnitude = reference.product(self.alpha, a, b, self.beta, c)
            allowed = reference.bound("fp32", self.k, self.alpha, magnitude)
        else:
            value, allowed = exact(self.alpha, a, b, self.beta, c)
        if self.types[1] != F32:
            with np.errstate(invalid="ignore"):
                allowed = allowed + ROUNDOFF[self.types[1]] * (np.abs(value) + allowed) + LEAST[self.types[1]]
        return value, allowed

    def solve(self, engine, handle, compute="fp32", narrow=False):
        status, got = self.run(engine, handle, compute, narrow)
        assert status == SUCCESS, f"{self}: {status}, {message()}"
        want, allowed = self.wanted()
        if self.types[1] == F16:
            over = np.abs(want) + allowed >= 65520
            want = np.where(over, np.sign(want) * INF, want)
        reference.assert_close(got.astype(np.float32), want, allowed, str(self))
        return got


SIZES = [
    (1, 1, 1), (1, 1, 300), (2, 3, 4), (5, 7, 9), (16, 16, 16), (33, 31, 65), (64, 64, 64), (65, 1, 130), (1, 129, 70),
    (128, 128, 64), (129, 130, 131), (96, 200, 257), (300, 20, 520),
]  # fmt: skip
SETTINGS = [
    {"alpha": 1.0, "beta": 0.0},
    {"alpha": 0.5, "beta": -1.0, "gap": (1, 2, 3), "order": "C"},
    {"alpha": -1.0, "beta": 1.0, "gap": (8, 8, 8), "offset": (8, 8, 8)},
    {"alpha": 1.5, "beta": 0.5, "gap": (0, 8, 1), "offset": (1, 0, 1), "order": "C"},
    {"alpha": 1.0, "beta": -0.0, "gap": (7, 1, 0), "offset": (4, 3, 2)},
]


@every_pair
@every_op_pair
def test_products(engine, handle, ops, types):
    for i, (m, n, k) in enumerate(SIZES):
        Case(m, n, k, ops, types, **SETTINGS[i % len(SETTINGS)]).solve(engine, handle, narrow=i % 2 == 0)


def refuses(row, case):
    """The tile whose sums stay in the tensor cores is for a C of 16 bits and what the copy engine takes."""
    return row[0] == "half_wgmma_256x128x64" and (case.types[1] == F32 or case.a.ld % 8 or case.b.ld % 8)


@pytest.mark.parametrize("row", ROWS)
@every_half_pair
@every_op_pair
def test_every_kernel(row, ops, types):
    engine = engines.named(row[1])
    handle = engine.handle()
    engines.set_kernel(handle, row[0])
    newer = engine.name == "gpu" and row[2] > int(engine.xp.cuda.Device().compute_capability)
    for i, (m, n, k) in enumerate([*SIZES, (130, 260, 0), (257, 70, 1030), (40, 300, 100)]):
        for change in range(2):
            case = Case(m, n, k, ops, types, **SETTINGS[(2 * i + change) % len(SETTINGS)])
            if newer or refuses(row, case):
                nothing_to_do = k == 0 and case.beta == 1
                assert case.run(engine, handle)[0] == (SUCCESS if nothing_to_do else NOT_SUPPORTED)
            else:
                case.solve(engine, handle)
    assert lib.pyblasDestroy(handle) == SUCCESS


@pytest.mark.parametrize("row", ROWS)
@every_op_pair
def test_misaligned_pointers_give_the_same_bits(row, ops):
    engine = engines.named(row[1])
    handle = engine.handle()
    engines.set_kernel(handle, row[0])
    for types in ((F16, F32), (BF16, BF16)):
        for m, n, k in [(66, 34, 200), (136, 264, 72)]:
            status, first = Case(m, n, k, ops, types, gap=(6, 6, 6)).run(engine, handle)
            for offset in [(1, 0, 0), (0, 2, 0), (0, 0, 3), (5, 4, 1)]:
                again, got = Case(m, n, k, ops, types, gap=(6, 6, 6), offset=offset).run(engine, handle)
                assert again == status
                assert np.array_equal(words(got), words(first)), f"{row[0]} {ops} {types} {m} {n} {k} {offset}"
    assert lib.pyblasDestroy(handle) == SUCCESS


BATCHES = [
    {"batch": 1}, {"batch": 5}, {"batch": 0}, {"batch": 4, "stride": (0, None, None)},
    {"batch": 4, "stride": (None, 0, None)}, {"batch": 3, "stride": (-5003, -6007, -7001)},
    {"batch": 3, "stride": (-5008, 6000, 7001), "gap": (0, 3, 1)}, {"batch": 6, "stride": (8, 16, None)},
]  # fmt: skip


@every_half_pair
@every_op_pair
def test_batches(engine, handle, ops, types):
    for m, n, k in [(4, 4, 4), (5, 7, 9), (40, 24, 48), (1, 60, 50)]:
        for (alpha, beta), order in zip([(1.0, 0.0), (0.5, -1.0)], "FC", strict=True):
            for batch in BATCHES:
                case = Case(m, n, k, ops, types, alpha, beta, order, **batch)
                if batch["batch"] == 0:
                    assert case.run(engine, handle)[0] == SUCCESS
                else:
                    case.solve(engine, handle)
    # The heads of C lie between one another's columns.
    Case(64, 20, 32, ops, types, batch=3, stride=(None, None, 64), ldc=192).solve(engine, handle)


@every_half_pair
def test_scalars_and_empty_sizes(engine, handle, types):
    for m, n, k in [(33, 17, 40), (4, 4, 0), (130, 70, 0)]:
        for alpha in (0.0, 1.0, -0.5, NAN):
            for beta in (0.0, 1.0, 0.5, NAN):
                case = Case(m, n, k, ("N", "T"), types, alpha, beta)
                if alpha == 0:
                    for matrix in (case.a, case.b):
                        matrix.words[matrix.index] = NAN
                before = case.c.words[case.c.index]
                status, got = case.run(engine, handle)
                assert status == SUCCESS, message()
                if k == 0 or alpha == 0:
                    old = before.astype(np.float32)
                    want = np.zeros_like(old) if beta == 0 else np.float32(beta) * old
                    assert np.array_equal(
                        got.astype(np.float32), want.astype(types[1]).astype(np.float32), equal_nan=True
                    )
                    if beta == 0:
                        assert not words(np.ascontiguousarray(got)).any(), "not +0"
                    if beta == 1:
                        assert np.array_equal(words(np.ascontiguousarray(got)), words(np.ascontiguousarray(before)))
                elif math.isnan(alpha) or math.isnan(beta):
                    assert np.isnan(got.astype(np.float32)).all()
                else:
                    case.solve(engine, handle)
    for m, n in ((0, 3), (3, 0)):
        case = Case(m, n, 4, ("N", "N"), types)
        assert case.run(engine, handle)[0] == SUCCESS


@every_half_pair
@every_op_pair
def test_infinities_and_nan_go_where_ieee_sends_them(engine, handle, ops, types):
    for m, n, k in [(6, 5, 4), (35, 34, 33), (140, 270, 70)]:
        for special in (NAN, INF, -INF):
            case = Case(m, n, k, ops, types)
            a, b = (matrix.words[matrix.index] for matrix in (case.a, case.b))
            i, j, p = m // 2, n // 2, k // 2
            a[(0, i, p) if ops[0] == "N" else (0, p, i)] = special
            b[(0, p, j) if ops[1] == "N" else (0, j, p)] = 0.0
            case.a.words[case.a.index], case.b.words[case.b.index] = a, b
            case.solve(engine, handle)


def test_all_of_the_range_of_float16(engine, handle):
    """Subnormal numbers count, and the largest ones do not overflow on the way."""
    every = np.arange(1 << 16, dtype=np.uint16).view(F16)
    finite = every[np.isfinite(every)]
    for size in (64, 256):
        case = Case(size, size, 1, ("N", "N"), (F16, F32))
        rng = np.random.default_rng(size)
        for matrix in (case.a, case.b):
            matrix.words[matrix.index] = rng.choice(finite, matrix.index.shape)
        a, b = (matrix.words[matrix.index].astype(np.float32) for matrix in (case.a, case.b))
        status, got = case.run(engine, handle)
        assert status == SUCCESS
        reference.assert_same_bits(got + np.float32(0), a @ b + np.float32(0))  # one product each, and exact


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["float16", "bfloat16"])
def test_results_are_rounded_to_nearest_even(engine, handle, dtype):
    """C := beta * C, and a product with one: each float32 becomes what NumPy makes of it."""
    rng = np.random.default_rng(5)
    case = Case(64, 512, 1, ("N", "N"), (dtype, dtype), alpha=1.0, beta=0.0)
    exponents = np.exp2(rng.integers(-12, 8, case.a.index.shape))
    case.a.words[case.a.index] = (rng.standard_normal(case.a.index.shape) * exponents).astype(dtype)
    a, b = (matrix.words[matrix.index].astype(np.float32) for matrix in (case.a, case.b))
    status, got = case.run(engine, handle)
    assert status == SUCCESS
    with np.errstate(over="ignore"):
        want = (a @ b).astype(dtype)
    assert np.array_equal(words(np.ascontiguousarray(got)), words(np.ascontiguousarray(want)))


def test_sums_are_float32(engine, handle):
    """No float16 accumulator: 2048 + 8, and partial sums that leave its range."""
    for row, total in (
        ([2048] + [1] * 8, 2056.0),
        ([32000] * 4 + [-32000] * 4, 0.0),
        (([32000] * 4 + [-32000] * 4) * 8192, 0.0),
    ):
        case = Case(1, 8, len(row), ("N", "N"), (F16, F32))
        case.a.words[case.a.index] = np.array(row, F16).reshape(1, 1, -1)
        case.b.words[case.b.index] = 1
        status, got = case.run(engine, handle)
        assert status == SUCCESS
        assert (got == total).all(), got


def error_of(engine, handle, dtype, k):
    case = Case(96, 80, k, ("T", "N"), (dtype, F32))
    return reference.fro_error(case.solve(engine, handle), case.wanted()[0])


def test_the_error_is_that_of_float32_sums(engine, handle):
    for dtype in (F16, BF16):
        for k in (256, 4096, 16384):
            assert error_of(engine, handle, dtype, k) <= (8e-7 if engine.name == "gpu" else 4e-7), k


@pytest.mark.gpu
@pytest.mark.parametrize("row", [row for row in ROWS if row.id.startswith("half_wgmma_128")])
def test_sums_leave_the_tensor_cores_in_time(gpu, gpu_handle, row):
    """Every 512 of k; until then their error grows with k."""
    engines.set_kernel(gpu_handle, row[0])
    if row[2] > int(gpu.xp.cuda.Device().compute_capability):
        return
    for dtype in (F16, BF16):
        for k in (64, 1024, 4096, 8192, 8256, 20000):
            assert error_of(gpu, gpu_handle, dtype, k) <= 4e-7 + 1e-9 * min(k, 512), k


def test_float16_with_sizes_and_alignment_that_vectors_do_not_fit(engine, handle):
    a, b = np.arange(6, dtype=F16), np.arange(12, dtype=F16)
    case = Case(2, 4, 3, ("N", "N"), (F16, F32))
    case.a.words[case.a.base : case.a.base + 6] = a
    case.b.words[case.b.base : case.b.base + 12] = b
    assert case.run(engine, handle)[1].tolist() == [[[10, 28, 46, 64], [13, 40, 67, 94]]]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["float16", "bfloat16"])
def test_rows_do_not_depend_on_their_number(engine, handle, dtype):
    assert lib.pyblasSetBatchInvariant(handle, 1) == SUCCESS
    for n, k, c_type in [(70, 700, F32), (256, 1030, dtype)]:
        case = Case(600, n, k, ("N", "N"), (dtype, c_type), order="C")
        whole = case.solve(engine, handle)
        for rows in (1, 2, 17, 128, 257):
            part = Case(rows, n, k, ("N", "N"), (dtype, c_type), order="C")
            part.a.words[part.a.index] = case.a.words[case.a.index][:, :rows]
            part.b.words[part.b.index] = case.b.words[case.b.index]
            assert np.array_equal(words(part.solve(engine, handle)), words(whole[:, :rows]))


def test_compute_types(engine, handle):
    case = Case(40, 30, 50, ("N", "T"), (BF16, F32))
    exact = case.solve(engine, handle)
    case.solve(engine, handle, "fp32_pedantic")
    # Rounding to TF32 leaves 16-bit numbers as they are.
    reference.assert_same_bits(case.solve(engine, handle, "tf32"), exact)
    case = Case(40, 30, 50, ("N", "T"), (F32, F32))
    case.solve(engine, handle)
    case.solve(engine, handle, "fp32_pedantic")


@pytest.mark.gpu
def test_scalars_on_the_device(gpu, gpu_handle):
    assert lib.pyblasSetPointerMode(gpu_handle, lib.PYBLAS_POINTER_MODE_DEVICE) == SUCCESS
    for alpha, beta in [(0.5, -1.0), (0.0, 0.5), (1.0, 0.0), (0.0, 1.0)]:
        case = Case(150, 90, 70, ("T", "N"), (F16, F16), alpha, beta)
        blocks = [gpu.array(words(x.words)) for x in (case.a, case.b, case.c)]
        scalars = gpu.xp.asarray([alpha, beta], dtype=gpu.xp.float32)
        function, arguments = case.arguments([gpu.address(block) for block in blocks])
        arguments[5] = ffi.cast("void *", scalars.data.ptr)
        arguments[12] = ffi.cast("void *", scalars.data.ptr + 4)
        assert function(gpu_handle, *arguments) == SUCCESS, message()
        gpu.synchronize()
        got = gpu.numpy(blocks[2]).view(F16)[case.c.index]
        want, allowed = case.wanted()
        reference.assert_close(got.astype(np.float32), want, allowed)


def refused(handle, case, status, *parts, **changes):
    function, arguments = case.arguments([0, 0, 0])
    names = [
        "transa", "transb", "m", "n", "k", "alpha", "A", "Atype", "lda", "B", "Btype", "ldb", "beta", "C", "Ctype",
        "ldc", "computeType", "algo",
    ]  # fmt: skip
    for name, value in changes.items():
        arguments[names.index(name)] = value
    assert function(handle, *arguments) == status
    for part in parts:
        assert part in message(), message()


def test_types_are_judged_after_the_operations(engine, handle):
    case = Case(4, 3, 5, ("N", "N"), (F16, F32))
    refused(handle, case, INVALID_VALUE, "argument 1 (transa)", transa=7, Atype=99)
    refused(handle, case, NOT_SUPPORTED, "argument 8 (Atype) is 99", Atype=99, m=-1)
    refused(handle, case, NOT_SUPPORTED, "argument 11 (Btype) is 14 (bfloat16)", "Atype = 2 (float16)", Btype=14)
    refused(handle, case, NOT_SUPPORTED, "argument 15 (Ctype) is 1,", Ctype=1)
    refused(handle, case, NOT_SUPPORTED, "argument 15 (Ctype) is 2", "float32", Atype=0, Btype=0, Ctype=2)
    refused(handle, case, NOT_SUPPORTED, "argument 17 (computeType) is 64", computeType=64)
    refused(handle, case, INVALID_VALUE, "gemm_ex: argument 3 (m) is -1", m=-1)
    refused(handle, case, INVALID_VALUE, "argument 9 (lda) is 3, must be at least max(1, m) = 4 for transa='N'", lda=3)
    refused(handle, case, INVALID_VALUE, "argument 12 (ldb) is 4", ldb=4)
    refused(handle, case, INVALID_VALUE, "argument 16 (ldc) is 3", ldc=3)
    refused(handle, case, INVALID_VALUE, "argument 14 (C) is NULL", C=ffi.NULL)


def test_a_kernel_for_other_types_is_refused_by_name(cpu_handle, cpu):
    case = Case(4, 3, 5, ("N", "N"), (F16, F32))
    engines.set_kernel(cpu_handle, "cpu_small")
    status, _ = case.run(cpu, cpu_handle)
    assert status == NOT_SUPPORTED
    assert "does not compute with matrices of these types" in message()


# ---- Python --------------------------------------------------------------------------------------------------------


@every_pair
def test_numpy_arrays(types):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((6, 5)).astype(types[0]), rng.standard_normal((5, 4)).astype(types[0])
    want = a.astype(np.float64) @ b.astype(np.float64)
    limit = 1e-6 + ROUNDOFF[types[1]] * np.abs(want)
    c = np.full((6, 4), NAN, types[1])
    assert gemm_ex("N", "N", 6, 4, 5, 1.0, a, 5, b, 4, 0.0, c, 4) is c
    assert (np.abs(c.astype(np.float64) - want) <= limit).all()
    c = np.asfortranarray(np.full((6, 4), NAN, types[1]))
    gemm_ex("T", "T", 6, 4, 5, 1.0, np.asfortranarray(a.T), 5, np.asfortranarray(b.T), 4, 0.0, c, 6)
    assert (np.abs(c.astype(np.float64) - want) <= limit).all()
    stack = np.full((3, 6, 4), NAN, types[1])
    gemm_strided_batched_ex("N", "N", 6, 4, 5, 1.0, a, 5, 0, b, 4, 0, 0.0, stack, 4, 24, 3, compute="fp32_pedantic")
    assert (np.abs(stack.astype(np.float64) - want) <= limit).all()
    view = np.full((6, 8), 7, types[1])
    gemm_ex("N", "N", 6, 4, 5, 1.0, a, 5, b, 4, 0.0, view[:, 2:6], 8)
    assert (np.abs(view[:, 2:6].astype(np.float64) - want) <= limit).all()
    assert (view[:, :2] == 7).all()
    assert (view[:, 6:] == 7).all()


def test_arrays_that_are_not_read_may_be_absent():
    c = np.full((2, 2), 3, F16)
    gemm_ex("N", "N", 2, 2, 2, 0.0, None, 2, None, 2, 0.5, c, 2)
    assert (c == 1.5).all()


def test_buffers_of_float16():
    a = np.arange(4, dtype=F16)
    c = np.empty(4, F32)
    gemm_ex("N", "N", 2, 2, 2, 1.0, memoryview(a), 2, memoryview(a), 2, 0.0, c, 2)
    assert c.tolist() == [2, 3, 6, 11]


def test_what_python_refuses():
    a, c = np.ones((3, 3), F16), np.ones((3, 3), F32)
    with pytest.raises(NotSupportedError, match=r"gemm_ex: argument 11 \(Btype\) is 14 \(bfloat16\)"):
        gemm_ex("N", "N", 3, 3, 3, 1.0, a, 3, a.astype(BF16), 3, 0.0, c, 3)
    with pytest.raises(TypeError, match="gemm_ex: A holds float64; float32, float16 or bfloat16"):
        gemm_ex("N", "N", 3, 3, 3, 1.0, a.astype(float), 3, a, 3, 0.0, c, 3)
    with pytest.raises(TypeError, match="C holds >f2"):
        gemm_ex("N", "N", 3, 3, 3, 1.0, a, 3, a, 3, 0.0, a.astype(">f2"), 3)
    with pytest.raises(InvalidValueError, match="gemm_ex: B needs 9 elements, its buffer has 6"):
        gemm_ex("N", "N", 3, 3, 3, 1.0, a, 3, a[:2], 3, 0.0, c, 3)
    with pytest.raises(InvalidValueError, match=r"gemm_strided_batched_ex: argument 18 \(ldc\)"):
        gemm_strided_batched_ex("N", "N", 3, 3, 3, 1.0, a, 3, 0, a, 3, 0, 0.0, c, 2, 9, 1)
    with pytest.raises(InvalidValueError, match="not a multiple of 2 bytes"):
        odd = np.frombuffer(bytearray(19), np.uint8)[1:]
        gemm_ex("N", "N", 3, 3, 3, 1.0, _raw(odd, "<f2", 9), 3, a, 3, 0.0, c, 3)


def _raw(memory, typestr, size):
    class Raw:
        def __init__(self):
            address = memory.ctypes.data
            self.__array_interface__ = {"version": 3, "typestr": typestr, "data": (address, False), "shape": (size,)}

    return np.asarray(Raw())


def test_overlap_between_types_is_exact():
    room = np.zeros(64, F32)
    halves = room.view(F16)
    a = np.ones((4, 4), F16)
    with pytest.raises(InvalidValueError, match="gemm_ex: C overlaps A"):
        gemm_ex("N", "N", 4, 4, 4, 1.0, halves[:16], 4, a, 4, 0.0, room[:16], 4, order="F")
    with pytest.raises(InvalidValueError, match="gemm_ex: C overlaps A"):
        gemm_ex("N", "N", 4, 4, 4, 1.0, halves[31:47], 4, a, 4, 0.0, room[:16], 4, order="F")
    # Columns of C, 4 floats in every 8, and between them columns of A: 4 halves in every 16.
    c, between = room[:28], halves[8:]
    between[:] = 1
    gemm_ex("N", "N", 4, 4, 4, 1.0, between, 16, a, 4, 0.0, c, 8, order="F")
    assert all((room[8 * j : 8 * j + 4] == 4).all() for j in range(4))
    with pytest.raises(InvalidValueError, match="C overlaps A"):
        gemm_ex("N", "N", 4, 4, 4, 1.0, halves[7:], 16, a, 4, 0.0, c, 8, order="F")


@pytest.mark.interop("torch")
@pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_torch_tensors(where):
    import torch

    for dtype in (torch.float16, torch.bfloat16):
        for out in (dtype, torch.float32):
            a, b = torch.randn(40, 30, device=where).to(dtype), torch.randn(30, 20, device=where).to(dtype)
            c = torch.empty(40, 20, dtype=out, device=where)
            assert gemm_ex("N", "N", 40, 20, 30, 1.0, a, 30, b, 20, 0.0, c, 20) is c
            torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=2.0**-8, atol=1e-4)
            gemm_ex("N", "N", 40, 20, 30, 1.0, a.t(), 40, b.t(), 30, 0.0, torch.empty_like(c).t(), 40, order="F")


@pytest.mark.gpu
def test_cupy_arrays():
    import cupy

    a, b = cupy.random.rand(40, 30).astype(cupy.float16), cupy.random.rand(30, 20).astype(cupy.float16)
    c = cupy.empty((40, 20), cupy.float32)
    assert gemm_ex("N", "N", 40, 20, 30, 1.0, a, 30, b, 20, 0.0, c, 20) is c
    want = a.astype(cupy.float64) @ b.astype(cupy.float64)
    cupy.testing.assert_allclose(c, want, rtol=1e-6)


@pytest.mark.large(host=6)
def test_more_results_than_32_bits_count(cpu, cpu_handle):
    """One column times one row, 46341 squared results."""
    n = 46341
    a = np.arange(n, dtype=np.uint32).astype(np.uint8).astype(BF16)
    c = np.empty(n * n, BF16)
    alpha, beta = ffi.new("float *", 1.0), ffi.new("float *", 0.0)
    at, to = (ffi.cast("void *", x.ctypes.data) for x in (a, c))
    status = lib.pyblasGemmEx(cpu_handle, 0, 0, n, n, 1, alpha, at, 14, n, at, 14, 1, beta, to, 14, n, 68, -1)
    assert status == SUCCESS, message()
    assert c[-1] == np.float32(a[-1]) * np.float32(a[-1])
    for column in (0, 23170, n - 1):
        want = (a.astype(np.float32) * np.float32(a[column])).astype(BF16)
        assert np.array_equal(words(c[column * n : (column + 1) * n]), words(want))
