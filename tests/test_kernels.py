"""Every kernel of the table by its name: a kernel that takes a call is right for it, one that refuses says why."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

import engines
import reference
import shapes
from engines import NOT_SUPPORTED, SUCCESS, lib, message
from problems import Problem, Product

NAN, INF = math.nan, math.inf
ROWS = engines.kernel_rows()
KERNELS = [
    pytest.param((name, where, modes, min_sm), id=name, marks=[pytest.mark.gpu] if where == "gpu" else [])
    for name, where, modes, min_sm in ROWS
]

SCALARS = [(1.0, 0.0), (0.5, -1.0), (-1.0, 1.0), (1.0, 1.0), (0.0, 0.5), (1.5, -0.0), (1.0, 0.5)]
GAPS = [(0, 0, 0), (1, 2, 3), (0, 4, 0), (7, 0, 1), (8, 8, 8)]
OFFSETS = [(0, 0, 0), (1, 2, 3), (3, 0, 1)]
ORDERS = ("F", "F", "C")
# Sizes that only narrow families take, so that each of them is met: vectors, few rows or columns, tiny and deep ones.
NARROW = [
    (1, 1, 1), (1, 1, 300), (1, 129, 65), (129, 1, 65), (2, 200, 70), (200, 2, 70), (4, 257, 130), (257, 4, 130),
    (8, 140, 96), (140, 8, 96), (16, 150, 40), (150, 16, 40), (4, 4, 4), (8, 8, 8), (16, 16, 16), (5, 7, 9),
    (3, 64, 200), (32, 32, 4100), (1, 33, 2050), (33, 1, 2050),
]  # fmt: skip


class Forced:
    """A handle that a kernel is forced on."""

    def __init__(self, row):
        self.name, where, self.modes, self.min_sm = row
        self.engine = engines.named(where)
        self.handle = self.engine.handle()
        engines.set_kernel(self.handle, self.name)
        self.taken = 0
        self.reasons = set()
        self.use("fp32" if "fp32" in self.modes else self.modes[0])

    def use(self, mode):
        self.mode = mode
        assert lib.pyblasSetComputeMode(self.handle, engines.MODES[mode]) == SUCCESS, message()

    def solve(self, product, poisons=reference.POISONS[:1]):
        """C, or None if the kernel refuses; then nothing was touched and there is a reason."""
        got = None
        for poison in poisons:
            problem = Problem(product, poison)
            blocks = problem.blocks(self.engine)
            status = problem.call(self.engine, self.handle, blocks)
            after = [self.engine.host(block) for block in blocks]
            if status == NOT_SUPPORTED:
                assert self.name in message(), message()
                self.reasons.add(message().split(" was forced, but ")[1])
                reference.assert_same_bits(after[2], problem.c.words, f"{product}: refused, yet written")
                return None
            assert status == SUCCESS, f"{product}: status {status}, {message()}"
            got = problem.check(after, self.mode)
        self.taken += 1
        return got

    def wants_newer_device(self):
        return self.engine.name == "gpu" and self.min_sm > int(self.engine.xp.cuda.Device().compute_capability)

    def refuses_batches(self):
        return all("batch" in reason or "arrays of pointers" in reason for reason in self.reasons)

    def assert_useful(self, batched=False):
        may_refuse = self.wants_newer_device() or (batched and self.refuses_batches())
        assert self.taken > 0 or may_refuse, f"{self.name} refused every shape of the test"


@pytest.fixture
def forced(request):
    forced = Forced(request.param)
    yield forced
    forced.engine.synchronize()
    assert lib.pyblasDestroy(forced.handle) == SUCCESS


every_kernel = pytest.mark.parametrize("forced", KERNELS, indirect=True)
every_op_pair = pytest.mark.parametrize("ops", shapes.OP_PAIRS)


def variants(sizes, ops, rounds=1):
    """Products of these sizes under changing scalars, gaps, offsets and orders."""
    settings = shapes.cycle(SCALARS, GAPS, OFFSETS, ORDERS)
    for _ in range(rounds):
        for m, n, k in sizes:
            (alpha, beta), gap, offset, order = next(settings)
            yield Product(m, n, k, *ops, alpha, beta, order, gap, offset)


def test_the_table_has_rows_of_both_engines_with_distinct_names():
    names = [name for name, *_ in ROWS]
    assert len(set(names)) == len(names)
    assert {where for _, where, *_ in ROWS} <= {"cpu", "gpu"}
    assert any(where == "cpu" for _, where, *_ in ROWS)
    for name, _, modes, _ in ROWS:
        assert modes, name
        assert set(modes) <= set(engines.MODES), name


@every_kernel
@every_op_pair
def test_sizes_round_tile_borders(forced, ops):
    for product in variants([*NARROW, *shapes.borders(40)], ops):
        forced.solve(product, reference.POISONS)
    forced.assert_useful()


@every_kernel
@every_op_pair
def test_families(forced, ops):
    for m, n, k in [*shapes.family(1 << 20), *NARROW[:6]]:
        forced.solve(Product(m, n, k, *ops))
        forced.solve(Product(m, n, k, *ops, alpha=0.5, beta=-1.0, gap=(4, 0, 4)))
    forced.assert_useful()


@every_kernel
def test_every_mode_the_row_names(forced):
    for mode in forced.modes:
        forced.use(mode)
        for ops in shapes.OP_PAIRS:
            for product in variants([(33, 65, 47), (5, 7, 9), (1, 40, 70), (70, 3, 161), (70, 3, 60)], ops):
                forced.solve(product)
    forced.assert_useful()
    for mode in set(engines.MODES) - set(forced.modes):
        forced.use(mode)
        assert forced.solve(Product(8, 8, 8)) is None


@every_kernel
@every_op_pair
def test_scalars(forced, ops):
    alphas = (0.0, -0.0, 1.0, -1.0, 0.5, NAN, INF)
    if forced.mode == "tf32":  # a sum near zero may have the other sign, and infinities show it
        alphas = alphas[:-1]
    betas = (0.0, -0.0, 1.0, -1.0, 0.5, NAN, INF)
    for m, n, k in [(7, 9, 5), (4, 4, 4), (33, 35, 17), (1, 37, 40), (37, 1, 40), (8, 8, 0), (130, 66, 0)]:
        for alpha in alphas:
            for beta in betas:
                product = Product(m, n, k, *ops, alpha, beta, gap=(1, 1, 1))
                got = forced.solve(product, reference.POISONS)
                if got is None:
                    continue
                if not product.reads_inputs and beta == 0:
                    assert (got.view(np.uint32) == 0).all(), f"{product}: not +0.0"
                elif not product.reads_inputs:
                    want = np.float32(beta) * Problem(product).c.values
                    assert np.array_equal(got, want, equal_nan=True), f"{product}: not beta*C exactly"
                elif math.isnan(alpha):
                    assert np.isnan(got).all(), f"{product}: alpha is NaN"
    forced.assert_useful()


@every_kernel
@every_op_pair
def test_nothing_to_do_leaves_every_bit(forced, ops):
    """beta == 1 with alpha == 0 or k == 0: also NaN keep their payload."""
    for alpha, k in [(0.0, 6), (-0.0, 6), (1.0, 0), (NAN, 0)]:
        problem = Problem(Product(9, 10, k, *ops, alpha, 1.0))
        payloads = np.arange(90, dtype=np.uint32).reshape(1, 9, 10) + np.uint32(0x7F800001)
        problem.c.words[problem.c.index] = payloads.view(np.float32)
        blocks = problem.blocks(forced.engine)
        assert problem.call(forced.engine, forced.handle, blocks) == SUCCESS, message()
        reference.assert_same_bits(forced.engine.host(blocks[2]), problem.c.words)


@every_kernel
@every_op_pair
@pytest.mark.parametrize("order", ["F", "C"])
def test_misaligned_pointers_give_the_same_bits(forced, ops, order):
    for m, n, k in [(66, 34, 35), (8, 8, 8), (1, 130, 64), (132, 4, 66), (16, 16, 160)]:
        product = Product(m, n, k, *ops, alpha=0.75, beta=0.5, order=order, gap=(2, 2, 2))
        first = forced.solve(product)
        for offset in [(1, 0, 0), (0, 2, 0), (0, 0, 3), (3, 1, 2), (2, 2, 2)]:
            got = forced.solve(product.but(offset=offset))
            assert (got is None) == (first is None), "legality looks at the pointers"
            if first is not None:
                reference.assert_same_bits(got, first, str(product))
    forced.assert_useful()


BATCHES = {
    "one": {"batch": 1},
    "contiguous": {"batch": 5},
    "shared A": {"batch": 4, "stride": (0, None, None)},
    "shared B": {"batch": 4, "stride": (None, 0, None)},
    "shared both": {"batch": 3, "stride": (0, 0, None)},
    "overlapping A": {"batch": 6, "stride": (1, None, None)},
    "negative": {"batch": 5, "stride": (-5003, -6007, -7001)},
    "apart": {"batch": 3, "stride": (5001, 5002, 5003), "gap": (1, 2, 3)},
    "pointers": {"batch": 5, "pointers": True, "stride": (5001, -5002, 5003)},
    "pointers, one A": {"batch": 3, "pointers": True, "stride": (0, 5002, -5003)},
    "wide": {"batch": 3, "wide": True},
}


@every_kernel
@every_op_pair
@pytest.mark.parametrize("kind", BATCHES)
def test_batches(forced, ops, kind):
    for m, n, k in [(4, 4, 4), (5, 7, 9), (16, 16, 16), (33, 20, 31), (1, 60, 50), (60, 1, 50)]:
        for (alpha, beta), order in zip([(1.0, 0.0), (0.5, -1.0)], "FC", strict=True):
            forced.solve(Product(m, n, k, *ops, alpha, beta, order, **BATCHES[kind]))
    if not forced.taken:  # split operands want more of k
        forced.solve(Product(30, 20, 162, *ops, 0.5, -1.0, **BATCHES[kind]))
    forced.assert_useful(batched=True)


@every_kernel
@every_op_pair
def test_interleaved_results(forced, ops):
    """The matrices of C lie between one another's columns, as heads do in (token, head, dim)."""
    for m, n, k, batch in [(4, 6, 5, 3), (16, 12, 8, 4), (64, 20, 16, 2), (1, 9, 40, 5)]:
        for sign in (1, -1):
            row_of_heads = m * batch
            forced.solve(Product(m, n, k, *ops, batch=batch, stride=(None, None, sign * m), ldc=row_of_heads))
            product = Product(
                n, m, k, *ops, 2.0, 0.5, "C", batch=batch, stride=(None, None, sign * m), ldc=row_of_heads
            )
            forced.solve(product)
    if not forced.taken:  # split operands want more of k
        forced.solve(Product(64, 20, 162, *ops, batch=2, stride=(None, None, 64), ldc=128))
    forced.assert_useful(batched=True)


@every_kernel
def test_more_batches_than_a_grid_axis_holds(forced):
    for m, n, k, batch in [(2, 2, 3, 65537), (1, 1, 1, 200000), (3, 1, 2, 65536)]:
        forced.solve(Product(m, n, k, batch=batch))
    forced.solve(Product(2, 2, 2, "T", "N", batch=65537, pointers=True))
    if not forced.taken:  # split operands want more of k
        forced.solve(Product(2, 3, 162, batch=65537))
    forced.assert_useful(batched=True)


FAR = (1 << 30) + 7  # elements from column to column; the fourth starts beyond what 32 bits count


@every_kernel
@pytest.mark.large(host=1, gpu=14)
@pytest.mark.parametrize("far", ["lda", "ldb", "ldc", "strideA", "strideB", "strideC"])
def test_offsets_beyond_32_bits(forced, far):
    """Hardly any of the memory is touched: it lies between the columns or matrices."""
    xp = forced.engine.xp
    rng = np.random.default_rng(0)
    for ops in shapes.OP_PAIRS:
        # Four of everything: a matrix is four columns of four, a batch four matrices.
        values = {name: rng.standard_normal((4, 4, 4), dtype=np.float32) for name in "ABC"}
        arguments = {"transa": engines.OPS[ops[0]], "transb": engines.OPS[ops[1]], "m": 4, "n": 4, "k": 4}
        arguments |= {"alpha": 1.0, "beta": 0.5, "batchCount": 4 if far.startswith("stride") else 1}
        buffers = {}
        for name in "ABC":
            ld = FAR if far == "ld" + name.lower() else 4
            stride = FAR if far == "stride" + name else 16
            buffers[name] = xp.empty(3 * max(ld, stride) + 64, dtype=np.float32)
            for i in range(arguments["batchCount"]):
                for j in range(4):
                    start = i * stride + j * ld
                    buffers[name][start : start + 4] = xp.asarray(values[name][i, j])
            arguments |= {"ld" + name.lower(): ld, "stride" + name: stride}
            arguments[name] = forced.engine.address(buffers[name])
        status = engines.invoke("gemm_strided_batched", forced.handle, arguments)
        forced.engine.synchronize()
        if status == NOT_SUPPORTED:
            continue
        assert status == SUCCESS, message()
        forced.taken += 1
        for i in range(arguments["batchCount"]):
            a, b, c = (values[name][i].T for name in "ABC")
            a, b = (a if ops[0] == "N" else a.T), (b if ops[1] == "N" else b.T)
            starts = [i * arguments["strideC"] + j * arguments["ldc"] for j in range(4)]
            got = np.stack([forced.engine.numpy(buffers["C"][start : start + 4]) for start in starts], axis=1)
            reference.assert_product(got, 1.0, a, b, 0.5, c, forced.mode, label=f"{far} {ops} {i}")
        del buffers
    forced.assert_useful(batched=True)


@every_kernel
@every_op_pair
def test_infinities_and_nan_go_where_ieee_sends_them(forced, ops):
    """One row and one column are special; all others stay as they are."""
    for m, n, k in [(6, 5, 4), (8, 8, 8), (35, 34, 33), (1, 50, 20), (50, 1, 20), (20, 24, 162)]:
        for special in (NAN, INF, -INF):
            for alpha, beta in [(1.0, 0.0), (2.0, 1.0)]:
                problem = Problem(Product(m, n, k, *ops, alpha, beta, gap=(1, 1, 1)))
                a, b = problem.a.values, problem.b.values
                i, j, p = m // 2, n // 2, k // 2
                a[(0, i, p) if ops[0] == "N" else (0, p, i)] = special
                b[(0, p, j) if ops[1] == "N" else (0, j, p)] = 0.0
                if beta:
                    problem.c.words[problem.c.index[0, 0, 0]] = -special
                problem.a.words[problem.a.index] = a
                problem.b.words[problem.b.index] = b
                blocks = problem.blocks(forced.engine)
                status = problem.call(forced.engine, forced.handle, blocks)
                if status != NOT_SUPPORTED:
                    assert status == SUCCESS, message()
                    problem.check([forced.engine.host(block) for block in blocks], forced.mode)


@every_kernel
@pytest.mark.parametrize("data", ["subnormal", "tiny_lines", "tiny_products", "huge", "integers", "wide"])
def test_range(forced, data):
    if forced.mode == "tf32" and data in ("subnormal", "tiny_lines", "tiny_products"):
        return  # 11 bits are promised of normal numbers only
    for ops in shapes.OP_PAIRS:
        for m, n, k in [(9, 7, 5), (33, 33, 33), (1, 40, 64), (40, 1, 64), (8, 8, 8), (24, 40, 160)]:
            for beta in (0.0, 1.0):
                product = Product(m, n, k, *ops, 1.0, beta, data=data)
                got = forced.solve(product)
                if got is not None and data == "integers":
                    want, _ = reference.product(1.0, *Problem(product).operands()[:2], beta, Problem(product).c.values)
                    assert (got == want).all(), f"{product}: integers are not exact"
    forced.assert_useful()


@pytest.mark.parametrize("forced", [row for row in KERNELS if row.id != "cpu_blas"], indirect=True)
@every_op_pair
def test_the_last_step_rounds_once(forced, ops):
    """fma(alpha, acc, beta*C), and alpha == 1 multiplies nothing. A BLAS may do it its own way."""
    for m, n, k in [
        (33, 35, 17),
        (8, 8, 8),
        (5, 7, 9),
        (1, 61, 40),
        (61, 1, 40),
        (130, 67, 33),
        (4, 4, 4),
        (20, 24, 162),
    ]:
        for alpha, beta in [(0.3, -0.7), (1.0, -0.7), (0.3, 1.0), (0.3, 0.0)]:
            problem = Problem(Product(m, n, k, *ops, alpha, beta, gap=(1, 1, 1)))
            a, b, c = problem.operands()
            # One term of each sum is not zero, and its product is exact, also where operands are split.
            a[..., 1:], b[:, 1:] = 0, 0
            a.view(np.uint32)[...] &= 0xFFFFE000 if forced.mode == "tf32" else 0xFFFFFFF0
            b[:, 0] = np.exp2(np.rint(b[:, 0]))
            problem.a.words[problem.a.index] = a if ops[0] == "N" else a.swapaxes(1, 2)
            problem.b.words[problem.b.index] = b if ops[1] == "N" else b.swapaxes(1, 2)
            blocks = problem.blocks(forced.engine)
            status = problem.call(forced.engine, forced.handle, blocks)
            if status == NOT_SUPPORTED:
                continue
            assert status == SUCCESS, message()
            forced.taken += 1
            got = problem.check([forced.engine.host(block) for block in blocks], forced.mode)
            want = np.float64(np.float32(alpha)) * (a[..., :1] * b[:, :1])
            if beta:
                want = want + (np.float32(beta) * c).astype(np.float64)
            reference.assert_same_bits(got, want.astype(np.float32), str(problem.product))
    forced.assert_useful()


@every_kernel
def test_wide_entry_gives_the_same_bits(forced):
    for ops in shapes.OP_PAIRS:
        for m, n, k in [(17, 19, 23), (8, 8, 8), (1, 40, 64), (40, 1, 64)]:
            product = Product(m, n, k, *ops, 0.5, 2.0, gap=(3, 0, 1))
            # The seed of the data is the product's text, so the narrow call runs on the wide one's data.
            problem = Problem(product.but(wide=True))
            results = []
            for wide in (True, False):
                problem.product = product.but(wide=wide)
                blocks = problem.blocks(forced.engine)
                if problem.call(forced.engine, forced.handle, blocks) == SUCCESS:
                    results.append(problem.check([forced.engine.host(block) for block in blocks], forced.mode))
            assert len(results) in (0, 2)
            if results:
                reference.assert_same_bits(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("forced", [row for row in KERNELS if row.values[0][1] == "gpu"], indirect=True)
def test_scalars_on_the_device(forced):
    """The kernel reads them first: zero alpha never loads A or B, zero beta never loads C."""
    assert lib.pyblasSetPointerMode(forced.handle, 1) == SUCCESS
    for ops in shapes.OP_PAIRS:
        for m, n, k in [(9, 7, 5), (33, 35, 40), (1, 40, 64), (40, 1, 64), (130, 66, 17)]:
            for alpha, beta in [(1.0, 0.0), (0.0, 0.0), (0.0, 2.0), (0.5, -1.0), (0.0, 1.0), (NAN, 0.0)]:
                problem = Problem(Product(m, n, k, *ops, alpha, beta, gap=(1, 0, 2)))
                scalars = forced.engine.block(np.array([alpha, beta], dtype=np.float32))
                where = forced.engine.address(scalars)
                blocks = problem.blocks(forced.engine)
                problem.product = problem.product.but(alpha=("device", where), beta=("device", where + 4))
                status = problem.call(forced.engine, forced.handle, blocks)
                problem.product = problem.product.but(alpha=alpha, beta=beta)
                if status != NOT_SUPPORTED:
                    assert status == SUCCESS, message()
                    problem.check([forced.engine.host(block) for block in blocks], forced.mode)


# Kernels whose warps wait for each other's copies, and products for them that the L2 does not hold.
FOLLOWING = [
    pytest.param(row.values[0], (m, n, k, *ops), id=f"{row.id}-{ops}", marks=row.marks)
    for row in KERNELS
    for start, m, n, k, pairs in [
        ("wgmma_deep", 128, 128, 65536, shapes.OP_PAIRS),
        ("wgmma_skinny", 48944, 26, 1920, ["NN"]),
    ]
    if row.id.startswith(start)
    for ops in pairs
]


@pytest.mark.gpu
@pytest.mark.parametrize(("forced", "product"), FOLLOWING, indirect=["forced"])
def test_products_that_follow_each_other_stay_right(forced, product):
    """What warps ask for comes late, and in another order than they asked, only in some of many products whose operands do
    not stay in the L2. A barrier that is waited for wrongly ends in wrong results, in a launch failure or never."""
    problem = Problem(Product(*product))
    sets = [problem.blocks(forced.engine) for _ in range(2)]
    for _ in range(300):
        for blocks in sets:
            assert problem.call(forced.engine, forced.handle, blocks) == SUCCESS, message()
    for blocks in sets:
        problem.check([forced.engine.host(block) for block in blocks], forced.mode)


GUARDED = """
import ctypes, itertools, mmap, sys
import numpy as np
import engines, reference, shapes
from problems import Product, Problem

libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE


def fenced(values, at_end):
    # values up against a page that no one may touch, behind them or before them
    data = np.ascontiguousarray(values, dtype=np.float32)
    pages = -(-data.nbytes // PAGE)
    block = mmap.mmap(-1, (pages + 2) * PAGE)
    whole = np.frombuffer(block, dtype=np.uint8)
    start = whole.ctypes.data
    for page in (0, pages + 1):
        assert libc.mprotect(ctypes.c_void_p(start + page * PAGE), PAGE, 0) == 0
    first = PAGE + (pages * PAGE - data.nbytes if at_end else 0)
    view = whole[first : first + data.nbytes].view(np.float32)
    view[...] = data
    return view


name = sys.argv[1]
handle = engines.Cpu().handle()
engines.set_kernel(handle, name)
taken = 0
sizes = [(1, 1, 1), (3, 2, 1), (5, 7, 9), (8, 8, 8), (16, 16, 16), (17, 5, 33), (1, 105, 107), (65, 1, 127), (31, 33, 35),
         (64, 4, 32), (4, 4, 129), (130, 66, 19)]
for (m, n, k), ops, order, at_end in itertools.product(sizes, shapes.OP_PAIRS, "FC", (True, False)):
    p = Product(m, n, k, *ops, order=order, beta=0.5)
    problem = Problem(p)
    blocks = [fenced(x.words[x.base : x.base + x.stride], at_end) for x in (problem.a, problem.b, problem.c)]
    arguments = dict(transa=engines.OPS[p.transa], transb=engines.OPS[p.transb], m=m, n=n, k=k, alpha=1.0, beta=0.5,
                     lda=problem.a.ld, ldb=problem.b.ld, ldc=problem.c.ld,
                     A=blocks[0].ctypes.data, B=blocks[1].ctypes.data, C=blocks[2].ctypes.data)
    status = engines.invoke("sgemm", handle, arguments, order)
    assert status in (engines.SUCCESS, engines.NOT_SUPPORTED), engines.message()
    if status == engines.SUCCESS:
        after = problem.c.words.copy()
        after[problem.c.base : problem.c.base + problem.c.stride] = blocks[2]
        problem.check([problem.a.words, problem.b.words, after])
        taken += 1
print(taken)
"""


@pytest.mark.parametrize("name", [name for name, where, *_ in ROWS if where == "cpu"])
def test_cpu_kernels_stay_inside_the_buffers(prints, name):
    """The words next to each buffer cannot be touched at all: a stray load ends the process."""
    assert sys.platform == "linux"
    assert int(prints(GUARDED, name)) > 0
