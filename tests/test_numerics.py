"""How exact the products are that the library chooses kernels for, and that wrong ones would be noticed."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

import adversary
import engines
import planes
import reference
import shapes
from engines import SUCCESS, lib, message
from problems import DATA, Problem, Product, solve

MODES = ["fp32", "fp32_pedantic"]
# 11 bits are promised of normal numbers only.
NOT_FOR_TF32 = ("subnormal", "tiny_lines", "tiny_products", "patchwork")
SIZES = [
    (1, 1, 5),
    (5, 7, 9),
    (33, 65, 129),
    (1, 130, 300),
    (130, 1, 300),
    (16, 16, 1030),
    (128, 96, 257),
    (8, 200, 64),
]


@pytest.fixture(params=MODES)
def mode(request, handle):
    assert lib.pyblasSetComputeMode(handle, engines.MODES[request.param]) == SUCCESS, message()
    return request.param


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("ops", shapes.OP_PAIRS)
def test_bound(engine, handle, mode, data, ops):
    for m, n, k in SIZES:
        for alpha, beta in [(1.0, 0.0), (-0.5, 1.0)]:
            solve(engine, handle, Product(m, n, k, *ops, alpha, beta, data=data), mode)


@pytest.mark.parametrize("data", DATA)
def test_bound_of_large_products(engine, handle, mode, data):
    for ops in shapes.OP_PAIRS:
        Problem(Product(300, 260, 517, *ops, 1.5, -0.5, data=data)).solve(engine, handle, mode)


@pytest.mark.parametrize("data", ["normal", "wide", "graded_inner", "one_huge", "cancelling", "patchwork"])
def test_bound_of_deep_products(engine, handle, mode, data):
    for ops in ("NN", "TN"):
        Problem(Product(5, 12, 1 << 20, *ops, 1.5, -0.5, data=data)).solve(engine, handle, mode)


@pytest.mark.parametrize("data", [data for data in DATA if data not in NOT_FOR_TF32])
def test_bound_in_the_mode_tf32(engine, handle, data):
    assert lib.pyblasSetComputeMode(handle, engines.MODES["tf32"]) == SUCCESS, message()
    for ops in shapes.OP_PAIRS:
        for m, n, k in [*SIZES, (300, 260, 517), (260, 300, 2100)]:
            solve(engine, handle, Product(m, n, k, *ops, 1.5, -0.5, data=data), "tf32")
    solve(engine, handle, Product(5, 12, 1 << 20, data=data), "tf32")


@pytest.mark.parametrize("ops", shapes.OP_PAIRS)
def test_integers_are_exact(engine, handle, mode, ops):
    for m, n, k in [*SIZES, (260, 300, 700)]:
        for beta in (0.0, 1.0):
            problem = Problem(Product(m, n, k, *ops, 1.0, beta, data="integers"))
            want, _ = reference.product(1.0, *problem.operands()[:2], beta, problem.operands()[2])
            reference.assert_same_bits(problem.solve(engine, handle, mode), want)


FRO_SIZES = [
    (64, 64, 64), (64, 64, 256), (96, 96, 512), (64, 64, 1024), (1, 300, 1024), (300, 1, 2048), (8, 256, 4096),
    (200, 4, 4096), (128, 128, 4096), (5, 5, 5000), (64, 64, 16384), (1, 64, 16384), (33, 33, 30000), (16, 16, 65536),
    (512, 512, 1024), (1024, 1024, 512), (768, 1280, 2048), (640, 512, 16384), (16, 1, 131072), (4, 4, 262144), (16, 16, 1048576),
]  # fmt: skip


def draws(size, ops):
    """Products of one size on so much random data that the norm of all results is no matter of luck."""
    m, n, _ = size
    return [Problem(Product(*size, *ops, data="normal", gap=(i, 0, 0))) for i in range(max(1, 200 // (m * n)))]


@pytest.mark.parametrize("size", FRO_SIZES, ids=lambda s: "x".join(map(str, s)))
def test_norm_of_the_error_on_random_data(engine, handle, mode, size):
    for ops in ("NN", "TN", "NT") if size[2] < 1 << 20 else ("NN",):
        got, want, peer = [], [], []
        for problem in draws(size, ops):
            a, b, _ = problem.operands()
            got.append(problem.solve(engine, handle, mode)[0])
            want.append(reference.product(1.0, a, b, 0.0, got[-1])[0][0])
            peer.append(engine.cublas(a[0], b[0]))
        limit = reference.fro_limit(mode, size[2])
        if mode == "fp32" and peer[0] is not None:
            beside = 1.05 * reference.fro_error(np.stack(peer), np.stack(want))
            limit = beside if size[2] < 1024 else max(limit, beside)
        error = reference.fro_error(np.stack(got), np.stack(want))
        assert error <= limit, f"{ops} {size}: {error:.3g}, more than {limit:.3g}"


@pytest.mark.parametrize("k", [1, 2, 17, 64])
def test_rounding_of_the_last_step(engine, handle, k):
    """beta*C and alpha*acc meet in one rounding, and alpha == 1 multiplies nothing."""
    rng = np.random.default_rng(k)
    a = np.zeros((1, k), dtype=np.float32)
    a[0, 0] = 1
    b = np.zeros((k, 256), dtype=np.float32)
    b[0] = rng.standard_normal(256, dtype=np.float32)
    c = rng.standard_normal((1, 256), dtype=np.float32)
    for alpha, beta in [(1.0, 0.0), (1.0, 1.0), (1.0, -0.7), (0.3, 0.0)]:
        alpha, beta = np.float32(alpha), np.float32(beta)
        got = _run(engine, handle, a, b, c, alpha, beta)
        scaled = beta * c  # one fp32 rounding
        want = (np.float64(alpha) * b[0].astype(np.float64) + scaled.astype(np.float64)).astype(np.float32)
        reference.assert_same_bits(got, want if beta else alpha * b[:1])


def _run(engine, handle, a, b, c, alpha, beta):
    """Row-major C of a product on plain matrices."""
    blocks = [engine.block(np.ascontiguousarray(x).ravel()) for x in (a, b, c)]
    arguments = {
        "transa": 0, "transb": 0, "m": a.shape[0], "n": b.shape[1], "k": a.shape[1], "alpha": alpha, "beta": beta,
        "lda": a.shape[1], "ldb": b.shape[1], "ldc": b.shape[1],
    }  # fmt: skip
    arguments |= {name: engine.address(block) for name, block in zip("ABC", blocks, strict=True)}
    assert engines.invoke("sgemm", handle, arguments, "C") == SUCCESS, message()
    engine.synchronize()
    return engine.host(blocks[2]).reshape(c.shape)


# ---- determinism -----------------------------------------------------------------------------------------------------

REPEATED = [
    Product(513, 259, 1031), Product(64, 64, 64, "T", "N", 0.5, 2.0), Product(1, 700, 900), Product(700, 1, 900, "T"),
    Product(7, 300, 2000, "N", "T"), Product(16, 16, 20000), Product(9, 8, 7, batch=300), Product(80, 70, 60, batch=9),
]  # fmt: skip
repeated = pytest.mark.parametrize("product", REPEATED, ids=lambda p: f"{p.batch or 1}x{p.m}x{p.n}x{p.k}")


@repeated
def test_same_bits_at_every_offset(engine, handle, product):
    first = Problem(product).solve(engine, handle)
    for offset in [(1, 0, 0), (0, 2, 0), (0, 0, 3), (1, 2, 3), (3, 3, 3)]:
        got = Problem(product.but(offset=offset)).solve(engine, handle)
        reference.assert_same_bits(got, first, str(offset))


@repeated
def test_same_bits_every_time(engine, handle, product):
    problem = Problem(product)
    first = problem.solve(engine, handle)
    for _ in range(25):
        blocks = problem.blocks(engine)
        assert problem.call(engine, handle, blocks) == SUCCESS
        reference.assert_same_bits(engine.host(blocks[2])[problem.c.index], first)


@repeated
def test_same_bits_on_any_number_of_threads(cpu, cpu_handle, product):
    before = lib.pyblasGetNumThreads()
    try:
        results = []
        for threads in sorted({1, 2, before}):
            if lib.pyblasSetNumThreads(threads) == SUCCESS:
                results.append(Problem(product).solve(cpu, cpu_handle))
    finally:
        assert lib.pyblasSetNumThreads(before) == SUCCESS
    for got in results[1:]:
        reference.assert_same_bits(got, results[0])


@pytest.mark.gpu
@repeated
def test_same_bits_on_two_streams_at_once(gpu, product):
    problem = Problem(product)
    streams = [gpu.xp.cuda.Stream(non_blocking=True) for _ in range(2)]
    handles = [gpu.handle() for _ in streams]
    for handle, stream in zip(handles, streams, strict=True):
        assert lib.pyblasSetStream(handle, engines.ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
    blocks = [[problem.blocks(gpu) for _ in streams] for _ in range(10)]
    gpu.synchronize()
    started = [problem.start(gpu, handle, one) for row in blocks for handle, one in zip(handles, row, strict=True)]
    assert all(status == SUCCESS for status, _ in started)
    gpu.synchronize()
    results = [gpu.host(one[2]) for row in blocks for one in row]
    for got in results[1:]:
        reference.assert_same_bits(got, results[0])
    for handle in handles:
        assert lib.pyblasDestroy(handle) == SUCCESS


DIGEST = """
import hashlib, sys
import engines
from problems import Problem, Product
from test_numerics import REPEATED

engine = engines.Cpu() if sys.argv[1] == "cpu" else engines.Gpu()
handle = engine.handle()
for product in REPEATED:
    print(hashlib.sha256(Problem(product).solve(engine, handle).tobytes()).hexdigest())
"""


def test_same_bits_in_a_fresh_process(engine, handle, prints):
    here = [hashlib.sha256(Problem(p).solve(engine, handle).tobytes()).hexdigest() for p in REPEATED]
    assert prints(DIGEST, engine.name).split() == here


IN_ORDER = """
import hashlib, sys
import engines
from problems import Problem, Product

engine = engines.Cpu() if sys.argv[1] == "cpu" else engines.Gpu()
handle = engine.handle()
sizes = [(1, 1, 1), (5, 7, 9), (20, 20, 500), (64, 64, 64), (1, 100, 900), (100, 1, 900), (5, 5, 4096), (90, 80, 70),
         (150, 160, 170), (300, 300, 300), (8, 400, 400)]
found = {}
for size in sizes if sys.argv[2] == "up" else reversed(sizes):
    product = Product(*size)
    found[size] = (engines.selected(handle, "N", "N", *size),
                   hashlib.sha256(Problem(product).solve(engine, handle).tobytes()).hexdigest())
for size in sizes:
    print(size, *found[size])
"""


def test_same_bits_whatever_ran_before(engine, prints):
    """Nothing that is loaded, warmed up or grown by one call changes the next: small sizes first, large sizes first."""
    assert prints(IN_ORDER, engine.name, "up") == prints(IN_ORDER, engine.name, "down")


def test_same_bits_with_one_processor(cpu, cpu_handle, prints):
    here = [hashlib.sha256(Problem(p).solve(cpu, cpu_handle).tobytes()).hexdigest() for p in REPEATED]
    program = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + DIGEST
    assert prints(program, "cpu").split() == here


# ---- the checkers notice what they are there for ----------------------------------------------------------------------


@pytest.mark.parametrize("k", [32, 64, 128, 256, 512, 1024, 2048, 4096, 16384])
def test_planted_tf32_is_noticed(k):
    """At a large k the bound of each element alone lets TF32 pass; the norm does not."""
    rng = np.random.default_rng(1)
    a = rng.standard_normal((64, k), dtype=np.float32)
    b = rng.standard_normal((k, 64), dtype=np.float32)
    c = np.zeros((64, 64), dtype=np.float32)
    good = (a.astype(np.float64) @ b).astype(np.float32)
    reference.assert_product(good, 1.0, a, b, 0.0, c, random=True)
    bad = (reference.to_tf32(a).astype(np.float64) @ reference.to_tf32(b)).astype(np.float32)
    with pytest.raises(AssertionError):
        reference.assert_product(bad, 1.0, a, b, 0.0, c, random=True)
    reference.assert_product(bad, 1.0, a, b, 0.0, c, mode="tf32")


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, _, modes, _ in engines.kernel_rows() if modes == ["tf32"]])
def test_kernels_of_the_mode_tf32_would_be_noticed_in_fp32(gpu, gpu_handle, name):
    """What a planted one would compute, by those that there are."""
    assert lib.pyblasSetComputeMode(gpu_handle, engines.MODES["tf32"]) == SUCCESS
    engines.set_kernel(gpu_handle, name)
    rng = np.random.default_rng(2)
    c = np.zeros((64, 64), dtype=np.float32)
    for k in (64, 512, 4096, 16384):
        if not _takes(gpu_handle, 64, 64, k):
            continue
        a, b = rng.standard_normal((64, k), dtype=np.float32), rng.standard_normal((k, 64), dtype=np.float32)
        got = _run(gpu, gpu_handle, a, b, c, 1.0, 0.0)
        reference.assert_product(got, 1.0, a, b, 0.0, c, mode="tf32")
        with pytest.raises(AssertionError):
            reference.assert_product(got, 1.0, a, b, 0.0, c, random=True)


def test_to_tf32_rounds_to_ten_bits():
    x = np.array([1024.5, 1025.5, 1.0, -3.0000002, 1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11], dtype=np.float32)
    want = np.array([1024, 1026, 1, -3, 1 + 2.0**-10, 1, 1 + 2.0**-9], dtype=np.float32)
    reference.assert_same_bits(reference.to_tf32(x), want)


def _rounded(alpha, a, b, beta, c):
    return reference.product(alpha, a, b, beta, c)[0].astype(np.float32)


def _planted(kind, p, a, b, c):
    """C as a kernel with that fault would leave it."""
    if kind == "beta dropped":
        return _rounded(p.alpha, a, b, 0.0, c)
    if kind == "beta applied twice":
        return _rounded(p.alpha, a, b, p.beta, np.float32(p.beta) * c)
    if kind == "alpha dropped":
        return _rounded(1.0, a, b, p.beta, c)
    if kind == "last k left out":
        return _rounded(p.alpha, a[..., :-1], b[..., :-1, :], p.beta, c)
    if kind == "last row not computed":
        good = _rounded(p.alpha, a, b, p.beta, c)
        good[:, -1] = c[:, -1]
        return good
    if kind == "batches swapped":
        return _rounded(p.alpha, a, b, p.beta, c)[::-1]
    if kind == "one NaN":
        good = _rounded(p.alpha, a, b, p.beta, c)
        good[0, 2, 1] = np.nan
        return good
    if kind == "sixteen-bit sum":
        return _rounded(p.alpha, a, b, p.beta, c).astype(np.float16).astype(np.float32)
    raise ValueError(kind)


@pytest.mark.parametrize(
    "kind",
    ["beta dropped", "beta applied twice", "alpha dropped", "last k left out", "last row not computed",
     "batches swapped", "one NaN", "sixteen-bit sum"],
)  # fmt: skip
def test_planted_fault_in_values_is_noticed(kind):
    problem = Problem(Product(7, 5, 9, alpha=0.75, beta=0.5, batch=2, gap=(1, 1, 1)))
    a, b, c = problem.operands()
    good = problem.c.words.copy()
    good[problem.c.index] = _rounded(0.75, a, b, 0.5, c)
    problem.check([problem.a.words, problem.b.words, good])
    bad = problem.c.words.copy()
    bad[problem.c.index] = _planted(kind, problem.product, a, b, c)
    with pytest.raises(AssertionError, match=r"elements are wrong, first at \(\d, \d, \d\)"):
        problem.check([problem.a.words, problem.b.words, bad])


@pytest.mark.parametrize("word", reference.POISONS)
@pytest.mark.parametrize("place", ["before", "gap", "after", "A", "B"])
def test_planted_stray_write_is_noticed(place, word):
    problem = Problem(Product(7, 5, 9, beta=0.0, gap=(1, 1, 1)), word)
    a, b, c = problem.operands()
    after = [x.words.copy() for x in (problem.a, problem.b, problem.c)]
    after[2][problem.c.index] = _rounded(1.0, a, b, 0.0, c)
    problem.check(after)
    first, last = problem.c.index.min(), problem.c.index.max()
    index = {"before": first - 1, "gap": first + 7, "after": last + 1, "A": 3, "B": problem.b.base}[place]
    victim = after["AB".index(place) if place in "AB" else 2]
    victim[index] = 0.0
    with pytest.raises(AssertionError, match="written"):
        problem.check(after)


@pytest.mark.parametrize("what", ["C at beta == 0", "A in its gap", "A at alpha == 0"])
@pytest.mark.parametrize("word", reference.POISONS)
def test_planted_stray_read_is_noticed(what, word):
    """Poison that a kernel reads comes out as NaN."""
    alpha = 0.0 if what == "A at alpha == 0" else 1.0
    problem = Problem(Product(7, 5, 9, alpha=alpha, gap=(1, 1, 1)), word)
    a, b, c = problem.operands()
    after = problem.c.words.copy()
    with np.errstate(invalid="ignore"):
        if what == "C at beta == 0":
            wrong = a @ b + np.float32(0) * c
        elif what == "A in its gap":
            wrong = a @ b + np.float32(0) * problem.a.words[problem.a.base + 7]
        else:
            wrong = np.float32(0) * (a @ b)
    after[problem.c.index] = wrong
    with pytest.raises(AssertionError, match="wrong"):
        problem.check([problem.a.words, problem.b.words, after])


def test_a_wrong_infinity_and_a_missing_nan_are_noticed():
    want = np.array([np.inf, -np.inf, np.nan, 1.0])
    assert reference.first_wrong(want.astype(np.float32), want, 0.0) is None
    for i, value in [
        (0, -np.inf),
        (0, np.nan),
        (0, 3e38),
        (1, np.inf),
        (2, 0.0),
        (2, np.inf),
        (3, np.nan),
        (3, np.inf),
    ]:
        got = want.astype(np.float32)
        got[i] = value
        assert reference.first_wrong(got, want, 1e30) is not None, (i, value)


def test_a_limit_of_nan_passes_nothing():
    assert reference.first_wrong(np.float32([1.0]), np.array([1.0]), np.nan) is not None


# ---- every kernel that multiplies planes, forced ----------------------------------------------------------------------

LEAST_DEPTH = 160  # that all of them take


def _kernels_of_planes(handle, k=LEAST_DEPTH):
    """Each of them in turn that takes the depth, forced on the handle; none where the GPU has none."""
    for name, *_ in engines.kernel_rows():
        if name.startswith(engines.OF_PLANES):
            engines.set_kernel(handle, name)
            if _takes(handle, 64, 64, k):
                yield name


def _takes(handle, m, n, k):
    name, reason = engines.ffi.new("const char **"), engines.ffi.new("const char **")
    return lib.pyblasSelectedKernel(handle, 0, 0, m, n, k, 1, name, reason) == SUCCESS


@pytest.mark.gpu
@pytest.mark.parametrize("data", DATA)
def test_kernels_of_planes_keep_the_bound(gpu, gpu_handle, data):
    variants = itertools.cycle(zip(shapes.OP_PAIRS, [(1.0, 0.0), (-0.5, 1.0), (1.5, -0.5), (1.0, 0.0)], strict=True))
    for _ in _kernels_of_planes(gpu_handle):
        for m, n, k in [(40, 130, 33), (130, 40, 64), (96, 72, 127), (70, 90, 163), (33, 66, 515), (64, 64, 2100)]:
            ops, (alpha, beta) = next(variants)
            if not _takes(gpu_handle, m, n, k):
                continue
            Problem(Product(m, n, k, *ops, alpha, beta, data=data)).solve(gpu, gpu_handle)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
def test_kernels_of_planes_keep_the_bound_on_made_up_data(gpu, gpu_handle, seed):
    inputs = [adversary.made_up(64 * seed + i).operands() for i in range(64)]
    inputs += [recipe.operands() for recipe in adversary.recorded()] if seed == 0 else []
    zero = np.zeros((FEW_ROWS, FEW_COLUMNS), dtype=np.float32)
    for name in _kernels_of_planes(gpu_handle):
        for i, (a, b) in enumerate(inputs):
            if not _takes(gpu_handle, FEW_ROWS, FEW_COLUMNS, a.shape[1]):
                continue
            got = _run(gpu, gpu_handle, a, b, zero, 1.0, 0.0)
            reference.assert_product(got, 1.0, a, b, 0.0, zero, label=f"{name}, seed {seed}, input {i}")


@pytest.mark.gpu
@pytest.mark.parametrize("k", [64, 256, 1024, 4096, 16384, 65536, 1 << 20])
def test_kernels_of_planes_keep_the_norm(gpu, gpu_handle, k):
    problem = Problem(Product(24, 40, k, "T", "N"))
    a, b, c = problem.operands()
    want = reference.product(1.0, a, b, 0.0, c)[0]
    for name in _kernels_of_planes(gpu_handle, k):
        if _takes(gpu_handle, 24, 40, k):
            error = reference.fro_error(problem.solve(gpu, gpu_handle), want)
            chunk = 32 if name.startswith(("mma_split_", "mma_planes_")) else planes.CHUNK
            assert error <= 1.1 * _error_of_planes(k, chunk), f"{name}: {error:.3g}"


@pytest.mark.gpu
@pytest.mark.parametrize("k", [64, 320, 4160])
def test_small_elements_beside_large_ones_keep_the_bound(gpu, gpu_handle, k):
    """In each 64 of k the largest element meets zeros, so that nothing hides the errors of those that are so many powers of
    two smaller: enough rows for tiles without edges, and smaller by what two halves hold with and without a scale."""
    rng = np.random.default_rng(k)
    zero = np.zeros((192, 40), dtype=np.float32)
    for name in _kernels_of_planes(gpu_handle):
        if not _takes(gpu_handle, 192, 40, k):
            continue
        for smaller in (2, 10, 14, 17, 18, 19, 20, 22, 24, 27, 30):
            a = (rng.uniform(1, 2, (192, k)) * rng.choice([-1, 1], (192, k)) * 2.0**-smaller).astype(np.float32)
            b = rng.uniform(1, 2, (k, 40)).astype(np.float32)
            a[:, ::64], b[::64] = 1.5, 0
            for left, right, none in ((a, b, zero), (b.T, a.T, zero.T)):
                got = _run(gpu, gpu_handle, left, right, none, 1.0, 0.0)
                reference.assert_product(got, 1.0, left, right, 0.0, none, label=f"{name}, 2^-{smaller}")


class Workspace:
    """Memory given to a handle, read as the kernels lay it out: parts that start at multiples of 256 bytes."""

    def __init__(self, gpu, handle):
        self.gpu, self.memory, self.at = gpu, gpu.xp.zeros(16 << 20, dtype=gpu.xp.uint8), 0
        where = engines.ffi.cast("void *", self.memory.data.ptr)
        assert lib.pyblasSetWorkspace(handle, where, self.memory.nbytes) == SUCCESS, message()

    def take(self, shape, dtype):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        start, self.at = self.at, self.at + -(-size // 256) * 256
        return self.gpu.xp.asnumpy(self.memory[start : start + size]).view(dtype).reshape(shape)


def _same_words(got, want, scheme, label):
    """Along the last axis in any order, and -0 is as good as 0."""
    got, want = np.where(got == 0x8000, 0, got), planes.words(want + np.float32(0), scheme)
    got, want = np.sort(got), np.sort(want)
    assert np.array_equal(got, want), f"{label}: {np.argwhere(got != want)[:4].tolist()}"


KERNEL_OF_SCHEME = {
    "f16x2": "wgmma_128x128x64_f16x2", "bf16x3": "wgmma_128x128x64_bf16x3", "f16x1": "wgmma_128x128x64_f16x1",
    "f16x2_one": "wgmma_128x256x64_f16x2_one",
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("ops", shapes.OP_PAIRS)
@pytest.mark.parametrize("scheme", KERNEL_OF_SCHEME)
def test_packed_planes_are_those_of_the_model(gpu, gpu_handle, scheme, ops):
    """Exponents, which rows do not fit and every word, as the GPU leaves them in workspace; by one block and by clusters."""
    mode = "tf32" if scheme == "f16x1" else "fp32"
    assert lib.pyblasSetComputeMode(gpu_handle, engines.MODES[mode]) == SUCCESS
    engines.set_kernel(gpu_handle, KERNEL_OF_SCHEME[scheme])
    one = scheme == "f16x2_one"
    if not _takes(gpu_handle, 64, 64, planes.LEAST_ONE_DEPTH if one else LEAST_DEPTH):
        return
    spans = {40: 0, 130: 1, 512: 2, 1100: 0, 3000: 3, 9000: 1}
    if one:
        spans = dict.fromkeys((600, 1100, 3000, 9000), 0)
    for k, span in spans.items():
        a, b = planes.recorded_rows(span, k, 70), planes.recorded_rows(span if one else (span + 1) % 4, k, 37)
        if one:  # few enough to be added one by one
            a, b = np.where(np.abs(a) < 2.0**-8, 1, a), np.where(np.abs(b) < 2.0**-8, 1, b)
            a[3, k - 1], a[3, 5], a[69, k // 2], b[5, 5], b[36, 77] = 2.0**-40, -1e-30, 1e-40, 1e-20, -1e-11
        workspace = Workspace(gpu, gpu_handle)
        x, y = a if ops[0] == "T" else a.T, b if ops[1] == "N" else b.T  # as they lie in memory
        blocks = [gpu.block(np.ascontiguousarray(values).ravel()) for values in (x, y, np.zeros((37, 70), np.float32))]
        arguments = {
            "transa": engines.OPS[ops[0]], "transb": engines.OPS[ops[1]], "m": 70, "n": 37, "k": k, "alpha": 1.0,
            "beta": 0.0, "lda": x.shape[1], "ldb": y.shape[1], "ldc": 70,
        }  # fmt: skip
        arguments |= {name: gpu.address(block) for name, block in zip("ABC", blocks, strict=True)}
        assert engines.invoke("sgemm", gpu_handle, arguments) == SUCCESS, message()
        gpu.synchronize()
        for rows, across in ((a, ops[0] == "N"), (b, ops[1] == "T")):
            label = f"{'A' if rows is a else 'B'}, k = {k}"
            exponent = planes.exponents(rows, scheme)
            if one:
                small = planes.small(rows, exponent)
                slices = np.zeros(len(rows), dtype=np.int64)
                for row, at in np.argwhere(small):
                    slices[row] |= 1 << int(at >> (int(np.ceil(np.log2(k / 32)))))
                got = workspace.take(2 * len(rows) + 3, np.int32)
                assert got[: len(rows)].tolist() == exponent.tolist(), label
                assert got[len(rows) : 2 * len(rows)].view(np.uint32).tolist() == slices.tolist(), label
                assert got[2 * len(rows)] == small.sum() > 0, label
                if rows is a:
                    assert got[-2:].view(np.float32).tolist() == [0, 1], "the other scheme's alpha and beta"
                rows = np.where(small, np.float32(0), rows)
            else:
                assert workspace.take(len(rows), np.int32).tolist() == exponent.tolist(), label
            if across:
                workspace.take((min(1024, -(-k // 64), 128), len(rows), 2), np.uint32)  # of packing alone
            held = planes.split(rows, exponent, scheme)
            lines, unit = (k, 8) if across else (len(rows), 64)
            ld = -(-(len(rows) if across else k) // unit) * unit
            got = workspace.take((len(held), lines, ld), np.uint16)
            got = got[:, :, : len(rows)].swapaxes(1, 2) if across else got[:, :, :k]
            fits = exponent != planes.UNFIT
            _same_words(got[:, fits, :, None], held[:, fits, :, None], scheme, label)
    assert lib.pyblasSetWorkspace(gpu_handle, engines.ffi.NULL, 0) == SUCCESS


@pytest.mark.gpu
@pytest.mark.parametrize("ops", shapes.OP_PAIRS)
@pytest.mark.parametrize("side", [32, 64, 128])
def test_packed_chunks_are_those_of_the_model(gpu, gpu_handle, side, ops):
    """The same of wgmma_skinny: powers and words of the small operand, and which rows of either do not fit."""
    engines.set_kernel(gpu_handle, f"wgmma_skinny_128x{side}x64")
    if not _takes(gpu_handle, 64, 64, LEAST_DEPTH):
        return
    m, n = 150, 37
    for k, span in ((40, 0), (130, 0), (192, 1), (400, 2)):
        rng = np.random.default_rng([span, k])
        a, b = planes.recorded_rows(span, k, m), planes.recorded_rows(0, k, n)
        a[: 64 + span * 20] = rng.standard_normal((64 + span * 20, k))  # whose low halves need no scale
        b[3, 5], b[7, k - 1], b[20] = np.nan, 1e-20, b[20] * np.float32(2.0**-40)
        a[66, 1], a[140, k - 1] = np.inf, np.float32(2.0**50)
        workspace = Workspace(gpu, gpu_handle)
        x, y = a if ops[0] == "T" else a.T, b if ops[1] == "N" else b.T
        blocks = [gpu.block(np.ascontiguousarray(values).ravel()) for values in (x, y, np.zeros((n, m), np.float32))]
        arguments = {
            "transa": engines.OPS[ops[0]], "transb": engines.OPS[ops[1]], "m": m, "n": n, "k": k, "alpha": 1.0,
            "beta": 0.0, "lda": x.shape[1], "ldb": y.shape[1], "ldc": m,
        }  # fmt: skip
        arguments |= {name: gpu.address(block) for name, block in zip("ABC", blocks, strict=True)}
        assert engines.invoke("sgemm", gpu_handle, arguments) == SUCCESS, message()
        gpu.synchronize()
        tiles, chunks = -(-n // side), -(-k // planes.CHUNK)
        marks = workspace.take((2, tiles, 128 + side), np.int32)
        powers = workspace.take((chunks, tiles * side), np.float32)
        got = workspace.take((2, n, chunks * planes.CHUNK), np.uint16)
        fit_a, fit_b = np.ones(m, dtype=bool), np.ones(n, dtype=bool)
        for chunk in range(chunks):
            part = slice(chunk * planes.CHUNK, min((chunk + 1) * planes.CHUNK, k))
            exponent, fits, *halves = planes.small_chunk(b[:, part], k)
            want = np.where(fits, 1, -1) * np.ldexp(np.float32(1), exponent)
            assert powers[chunk, :n].tolist() == want.tolist(), f"k = {k}, chunk {chunk}"
            for plane, half in enumerate(halves):
                # Zeros past the end of k; the order in a step is the kernel's own affair.
                want = np.zeros((fits.sum(), planes.CHUNK // planes.STEP, planes.STEP), dtype=np.float32)
                want.reshape(len(want), planes.CHUNK)[:, : half.shape[1]] = half[fits]
                held = got[plane, fits, chunk * planes.CHUNK : (chunk + 1) * planes.CHUNK].reshape(want.shape)
                _same_words(held, want, "f16x2", f"k = {k}, chunk {chunk}, plane {plane}")
            fit_a &= planes.large_chunk(a[:, part], k, planes.least_plain_exponent(k))[1]
            fit_b &= fits
        assert 0 < fit_a.sum() < m and 0 < fit_b.sum() < n
        for tile in range(tiles):
            unfit_a = np.concatenate([marks[0, tile, :128], marks[1, tile, : m - 128]]) == planes.UNFIT
            assert (unfit_a == ~fit_a).all(), f"k = {k}: rows {(unfit_a == fit_a).nonzero()[0]}"
            mine = slice(tile * side, min((tile + 1) * side, n))
            for item in marks[:, tile]:
                assert ((item[128 : 128 + mine.stop - mine.start] == planes.UNFIT) == ~fit_b[mine]).all(), f"k = {k}"
    assert lib.pyblasSetWorkspace(gpu_handle, engines.ffi.NULL, 0) == SUCCESS


@pytest.mark.gpu
def test_tensor_cores_keep_two_more_bits(gpu, gpu_handle):
    """What the derivation of the bound says of the instruction: addends are cut off two bits or more below the last
    bit of the largest."""
    a, b = np.zeros((8, LEAST_DEPTH), dtype=np.float32), np.zeros((LEAST_DEPTH, 8), dtype=np.float32)
    a[:, 0], b[0] = 1, 1
    a[:, 1:16], b[1:16] = 2.0**-12, 2.0**-13
    for name in _kernels_of_planes(gpu_handle):
        got = _run(gpu, gpu_handle, a, b, np.zeros((8, 8), dtype=np.float32), 1.0, 0.0)
        assert (got >= 1 + 3 * 2.0**-23).all(), name


def _error_of_planes(k, chunk=planes.CHUNK):
    """Relative norm of the error on normal data: splitting, and what adding to the totals loses, with the root of k."""
    return np.hypot(1.8e-7, 2e-8 * np.sqrt(k / chunk))


# ---- split schemes, in NumPy: what the tensor kernels promise, and that wrong ones would be noticed -------------------

every_scheme = pytest.mark.parametrize("scheme", ["f16x2", "bf16x3", "skinny", "deep", "f16x2_one"])
FEW_ROWS, FEW_COLUMNS = adversary.ROWS, adversary.COLUMNS


def _operands(data, k, seed=0):
    rng = np.random.default_rng([seed, k, *data.encode()])
    return DATA[data](rng, (FEW_ROWS, k), (k, FEW_COLUMNS))


def _check_planes(a, b, scheme, random=False, mistake=None):
    zero = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    got = planes.multiply(a, b, scheme, mistake)
    reference.assert_product(got, 1.0, a, b, 0.0, zero, random=random, label=f"{scheme} at k = {a.shape[1]}")


def test_the_recorded_planes_are_those_of_the_model():
    """tests/native/simt/test_planes.cpp compares the packing kernels with the same lines."""
    assert planes.RECORD.read_text() == planes.table()
    assert 20 < planes.table().count("unfit") < planes.table().count("\n") - 60


@every_scheme
@pytest.mark.parametrize("data", DATA)
def test_planes_keep_the_bound(scheme, data):
    for k in (32, 33, 64, 127, 128, 500, 2048):
        for seed in range(3):
            _check_planes(*_operands(data, k, seed), scheme, random=data == "normal")


@every_scheme
@pytest.mark.parametrize("seed", range(4))
def test_planes_keep_the_bound_on_made_up_data(scheme, seed):
    for number in range(64 * seed, 64 * seed + 64):
        _check_planes(*adversary.made_up(number).operands(), scheme)


@every_scheme
@pytest.mark.parametrize("recipe", adversary.recorded(), ids=lambda recipe: f"k={recipe.k}, {recipe.seed}")
def test_planes_keep_the_bound_on_the_worst_input_that_was_found(scheme, recipe):
    _check_planes(*recipe.operands(), scheme)


def test_the_search_for_bad_input_finds_what_breaks_the_bound():
    mistake = planes.Mistake(dropped=(0, 1))
    best, tried = adversary.worst(lambda a, b: planes.multiply(a, b, "f16x2", mistake), range(40), seed=1)
    assert tried == 40 and best[0][0] > 1
    best, _ = adversary.worst(lambda a, b: None, range(4), seed=1)
    assert not best


@every_scheme
def test_planes_keep_the_bound_where_small_meets_small(scheme):
    """All of a column's weight on elements as small as may fit, in A and B at the same k: low planes carry everything,
    and their product is the one that is left out."""
    for k in (32, 127, 128, 512, 2048, 8192):
        rng = np.random.default_rng(k)
        least = 2.0 ** (planes.least_exponent("f16x2", k) - 14)
        for smallest in (least / 2, least, 2 * least):
            a = (smallest * (1 + rng.random((FEW_ROWS, k)))).astype(np.float32)
            b = (smallest * (1 + rng.random((k, FEW_COLUMNS)))).astype(np.float32)
            a[:, 0], b[1, :] = 1.0, 1.0
            a[:, 1], b[0, :] = 0.0, 0.0
            _check_planes(a, b, scheme)


@every_scheme
@pytest.mark.parametrize("k", [64, 1024, 4096, 16384, 65536])
def test_planes_keep_the_norm(scheme, k):
    a, b = _operands("normal", k)
    _check_planes(a, b, scheme, random=True)
    error = reference.fro_error(planes.multiply(a, b, scheme), a.astype(np.float64) @ b)
    assert error <= _error_of_planes(k)


@pytest.mark.parametrize(("scheme", "k"), [("f16x2", 64), ("bf16x3", 64), ("f16x2_one", 600)])
def test_planes_of_infinities_and_nan_are_unfit(scheme, k):
    a, b = _operands("normal", k)
    a[3, 5], a[4, 6], b[7, 2] = np.inf, np.nan, -np.inf
    unfit = planes.exponents(a, scheme) == planes.UNFIT
    assert unfit.nonzero()[0].tolist() == [3, 4]
    _check_planes(a, b, scheme)


def test_chunks_of_infinities_and_nan_are_unfit():
    """A NaN of the large operand is multiplied as it is; of the small one it makes its row unfit, and no other."""
    a, b = _operands("normal", 64)
    a[3, 5], a[4, 6], a[5, 7], b[7, 2] = np.inf, np.nan, np.float32(1e-20), np.nan
    _, fits, plain, *_ = planes.large_chunk(a, 64, planes.least_plain_exponent(64))
    assert (~fits).nonzero()[0].tolist() == [3, 5] and not plain.any()
    exponent, fits, *_ = planes.small_chunk(b.T, 64)
    assert (~fits).nonzero()[0].tolist() == [2] and len(set(exponent)) == 1
    _check_planes(a, b, "skinny")


def test_what_is_out_of_bounds_is_no_other_rows_affair_where_128_share_a_power():
    a, b = _operands("normal", 64)
    a[3, 5], a[4, 6], a[5, 7], b[7, 2], b[8, 1] = np.inf, np.nan, np.float32(1e-20), np.nan, np.float32(1e30)
    plain = planes.deep_chunk(np.where(np.abs(a) > 1e-19, a, 1).astype(np.float32), 64)
    exponent, fits, *_ = planes.deep_chunk(a, 64)
    assert (~fits).nonzero()[0].tolist() == [3, 5] and len(set(exponent)) == 1 and exponent[0] == plain[0][0]
    assert (~planes.deep_chunk(b.T, 64)[1]).nonzero()[0].tolist() == [1]
    _check_planes(a, b, "deep")


@pytest.mark.parametrize("k", [64, 320, 4160])
def test_low_halves_without_a_scale_keep_the_bound_and_a_wrong_limit_is_noticed(k):
    """In each 64 of k the largest element meets zeros, and all others are as small as low halves allow, or smaller, with
    half of their last bit to lose, always in one direction."""
    limit = planes.least_plain_exponent(k)
    plain, worst = set(), {}
    for plain_from in (limit, -14):
        for smaller in range(10, 29):
            rng = np.random.default_rng([k, smaller])
            a = np.full((FEW_ROWS, k), 2.0**-smaller + 2.0**-39, dtype=np.float32)
            b = rng.uniform(1, 2, (k, FEW_COLUMNS)).astype(np.float32)
            a[:, ::64], b[::64] = 1.5, 0
            plain.add(bool(planes.large_chunk(a[:, :64], k, plain_from)[2].all()))
            got = planes.multiply(a, b, "skinny", planes.Mistake(plain_from=plain_from))
            worst[plain_from] = max(worst.get(plain_from, 0.0), adversary.of_bound(got, a, b))
    assert plain == {True, False}
    assert worst[limit] <= 1 < worst[-14], worst


@pytest.mark.parametrize("k", [513, 2048, 8192])
def test_small_elements_keep_the_bound_and_are_missed_where_they_stay_or_are_not_added(k):
    """In each 64 of k the largest element meets zeros; the others are smaller by one factor, with half of the last bit that
    low halves without a scale have to lose, always in one direction."""
    worst = {}
    mistakes = {"none": None, "stay": planes.Mistake(plain_from=-40), "left out": planes.Mistake(adds_small=False)}
    for label, mistake in mistakes.items():
        for smaller in range(20, 40):
            rng = np.random.default_rng([k, smaller])
            a = np.full((FEW_ROWS, k), 2.0**-smaller + 2.0**-39, dtype=np.float32)
            b = rng.uniform(1, 2, (k, FEW_COLUMNS)).astype(np.float32)
            a[:, ::64], b[::64] = 1.5, 0
            got = planes.multiply(a, b, "f16x2_one", mistake)
            worst[label] = max(worst.get(label, 0.0), adversary.of_bound(got, a, b))
    assert worst["none"] <= 1 < min(worst["stay"], worst["left out"]), worst


@pytest.mark.parametrize("k", [600, 4096])
def test_small_elements_of_both_operands_are_multiplied_once(k):
    """Where they meet, nothing else is in the sum."""
    rng = np.random.default_rng(k)
    a, b = np.zeros((FEW_ROWS, k), dtype=np.float32), np.zeros((k, FEW_COLUMNS), dtype=np.float32)
    a[:, 7:90] = rng.uniform(1, 2, (FEW_ROWS, 83)) * 2.0**-30
    b[50:99] = rng.uniform(1, 2, (49, FEW_COLUMNS)) * 2.0**-40
    a[:, 0], b[1] = 1, 1
    assert planes.small(a, planes.exponents(a, "f16x2_one")).sum() == 83 * FEW_ROWS
    _check_planes(a, b, "f16x2_one")


@every_scheme
@pytest.mark.parametrize("k", [1024, 4096, 16384])
@pytest.mark.parametrize(
    "mistake",
    [
        planes.Mistake(dropped=(0, 1)),
        planes.Mistake(dropped=(1, 0)),
        planes.Mistake(dropped=(0, 0)),
        planes.Mistake(promotes=False),
    ],
    ids=["hi*lo dropped", "lo*hi dropped", "hi*hi dropped", "no promotion"],
)
def test_planted_fault_of_planes_is_noticed(scheme, k, mistake):
    a, b = _operands("normal", k)
    with pytest.raises(AssertionError):
        _check_planes(a, b, scheme, random=True, mistake=mistake)
