"""Products captured into CUDA graphs: from the first call on, replayed with new data, beside other work."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

import engines
import pyblas_sgemm
import reference
from engines import SUCCESS, ffi, lib, message
from problems import Problem, Product

pytestmark = pytest.mark.gpu

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
_KERNEL, _MEMSET, _MEM_ALLOC, _MEM_FREE = 0, 2, 10, 11
SIZES = [
    Product(64, 64, 64),
    Product(300, 300, 300, "T", "N", 0.5, 2.0),
    Product(8, 8, 20000),
    Product(16, 8, 9, batch=40),
]


def driver(name, *arguments):
    error = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    assert error == 0, f"{name}: CUDA error {error}"


class Capture:
    """What is queued on a stream inside the with block becomes a graph, through the driver itself."""

    def __init__(self, stream, mode=GLOBAL):
        self.stream = ctypes.c_void_p(stream.ptr)
        self.mode = mode
        self.graph, self.executable = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self):
        driver("cuStreamBeginCapture_v2", self.stream, ctypes.c_int(self.mode))
        return self

    def __exit__(self, kind, value, traceback):
        driver("cuStreamEndCapture", self.stream, ctypes.byref(self.graph))
        if kind is None:
            driver("cuGraphInstantiateWithFlags", ctypes.byref(self.executable), self.graph, ctypes.c_ulonglong(0))

    def replay(self):
        driver("cuGraphLaunch", self.executable, self.stream)

    def kinds(self):
        count = ctypes.c_size_t()
        driver("cuGraphGetNodes", self.graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        driver("cuGraphGetNodes", self.graph, nodes, ctypes.byref(count))
        kinds = []
        for node in nodes:
            kind = ctypes.c_int()
            driver("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
            kinds.append(kind.value)
        return kinds

    def close(self):
        driver("cuGraphExecDestroy", self.executable)
        driver("cuGraphDestroy", self.graph)


def refill(gpu, block, words):
    block.view(np.uint32)[...] = gpu.xp.asarray(words.view(np.uint32))


@pytest.fixture
def stream(gpu, gpu_handle):
    stream = gpu.xp.cuda.Stream(non_blocking=True)
    assert lib.pyblasSetStream(gpu_handle, ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
    return stream


def captured(gpu, handle, stream, problem, mode=GLOBAL):
    blocks = problem.blocks(gpu)
    gpu.synchronize()
    with Capture(stream, mode) as capture:
        status, kept = problem.start(gpu, handle, blocks)
    assert status == SUCCESS, message()
    return capture, blocks, kept


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread_local", "relaxed"])
@pytest.mark.parametrize("product", SIZES, ids=lambda p: f"{p.batch or 1}x{p.m}x{p.n}x{p.k}")
def test_k5_first_call_of_a_handle_is_captured(gpu, gpu_handle, stream, product, mode):
    problem = Problem(product)
    capture, blocks, _ = captured(gpu, gpu_handle, stream, problem, mode)
    kinds = capture.kinds()
    assert kinds
    assert _MEM_ALLOC not in kinds
    assert _MEM_FREE not in kinds
    gpu.synchronize()
    reference.assert_same_bits(gpu.host(blocks[2]), problem.c.words, "a captured call ran")
    capture.replay()
    stream.synchronize()
    problem.check([gpu.host(block) for block in blocks])
    capture.close()


FIRST = """
import numpy as np
import cupy
import engines, test_graphs
from engines import ffi, lib
from problems import Problem, Product

gpu = engines.Gpu()
problem = Problem(Product(70, 80, 90))
blocks = problem.blocks(gpu)
stream = cupy.cuda.Stream(non_blocking=True)
handle = gpu.handle()
assert lib.pyblasSetStream(handle, ffi.cast("pyblasStream_t", stream.ptr)) == 0
gpu.synchronize()
with test_graphs.Capture(stream, MODE) as capture:
    status, kept = problem.start(gpu, handle, blocks)
assert status == 0, engines.message()
capture.replay()
stream.synchronize()
problem.check([gpu.host(block) for block in blocks])
"""

FIRST_IN_PYTHON = """
import cupy
import pyblas_sgemm, test_graphs

a = cupy.ones((64, 64), dtype=cupy.float32)
c = cupy.zeros((64, 64), dtype=cupy.float32)
stream = cupy.cuda.Stream(non_blocking=True)
cupy.cuda.Device().synchronize()
with stream, test_graphs.Capture(stream, MODE) as capture:
    pyblas_sgemm.matmul(a, a, out=c)
assert (cupy.asnumpy(c) == 0).all()
capture.replay()
stream.synchronize()
assert (cupy.asnumpy(c) == 64).all()
"""


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL], ids=["global", "thread_local"])
@pytest.mark.parametrize("program", [FIRST, FIRST_IN_PYTHON], ids=["C", "Python"])
def test_k5_first_call_of_the_process_is_captured(prints, program, mode):
    prints(program.replace("MODE", str(mode)))


@pytest.mark.parametrize("product", SIZES, ids=lambda p: f"{p.batch or 1}x{p.m}x{p.n}x{p.k}")
def test_k5_replays_with_new_data(gpu, gpu_handle, stream, product):
    warm = Problem(product)
    warm.solve(gpu, gpu_handle)
    capture, blocks, _ = captured(gpu, gpu_handle, stream, warm)
    rng = np.random.default_rng(3)
    for _ in range(100):
        for placed in (warm.a, warm.b):
            placed.words[placed.index] = rng.standard_normal(placed.index.shape, dtype=np.float32)
        if product.beta:
            warm.c.words[warm.c.index] = rng.standard_normal(warm.c.index.shape, dtype=np.float32)
        with stream:
            for block, placed in zip(blocks, (warm.a, warm.b, warm.c), strict=True):
                refill(gpu, block, placed.words)
            capture.replay()
        stream.synchronize()
        warm.check([gpu.host(block) for block in blocks])
    capture.close()


# From a tile of each kernel to ranges of k that are added afterwards, and products side by side.
OF_PLANES = [
    Product(200, 140, 160, "T", "N", 0.5, 2.0, gap=(0, 3, 1)),
    Product(40, 300, 2100, gap=(1, 0, 0)),
    Product(70, 50, 130, "N", "T", batch=5),
]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row[0]) for row in engines.kernel_rows() if row[0].startswith(engines.OF_PLANES)]
)
def test_what_planes_cannot_hold_is_met_in_a_replay(gpu, gpu_handle, stream, row):
    """A graph that was captured with ordinary values finds by itself, at each replay, what has to be computed otherwise:
    it holds kernels and nothing that the host would do."""
    engines.set_kernel(gpu_handle, row[0])
    mode = "fp32" if "fp32" in row[2] else "tf32"
    assert lib.pyblasSetComputeMode(gpu_handle, engines.MODES[mode]) == SUCCESS
    for product in OF_PLANES:
        problem = Problem(product)
        blocks = problem.blocks(gpu)
        gpu.synchronize()
        with Capture(stream) as capture:
            status, _ = problem.start(gpu, gpu_handle, blocks)
        if status == engines.NOT_SUPPORTED:  # the ladder's steps take no batches, and older GPUs no planes
            assert product.batch or gpu.xp.cuda.Device().compute_capability != "90", message()
            capture.close()
            continue
        assert status == SUCCESS, message()
        assert set(capture.kinds()) <= {_KERNEL, _MEMSET}
        rng = np.random.default_rng(len(row[0]))
        shape_a, shape_b = (placed.index.shape for placed in (problem.a, problem.b))
        for values in ("normal", "infinities", "wide", "normal", "tiny", "normal"):
            a, b = rng.standard_normal(shape_a, dtype=np.float32), rng.standard_normal(shape_b, dtype=np.float32)
            if values == "infinities":
                a[:, 3, 5], b[:, 7, 2], b[:, 8, 9] = np.inf, np.nan, -np.inf
            elif values == "wide":
                a, b = (np.ldexp(x, rng.integers(-60, 1, x.shape)) for x in (a, b))
            elif values == "tiny":
                a[:, 7], b[:, :, 3] = np.float32(1e-18), np.float32(1e-18)
            problem.a.words[problem.a.index], problem.b.words[problem.b.index] = a, b
            with stream:
                for block, placed in zip(blocks, (problem.a, problem.b, problem.c), strict=True):
                    refill(gpu, block, placed.words)
                capture.replay()
            stream.synchronize()
            problem.check([gpu.host(block) for block in blocks], mode)
        capture.close()


@pytest.mark.parametrize("limit", [0, 100 << 10, 1 << 20, 3 << 20])
@pytest.mark.parametrize("product", OF_PLANES, ids=lambda p: f"{p.batch or 1}x{p.m}x{p.n}x{p.k}")
def test_little_workspace_is_enough_for_a_capture(gpu, gpu_handle, stream, product, limit):
    assert lib.pyblasSetWorkspaceLimit(gpu_handle, limit) == SUCCESS
    problem = Problem(product)
    capture, blocks, _ = captured(gpu, gpu_handle, stream, problem)
    for _ in range(2):
        with stream:
            refill(gpu, blocks[2], problem.c.words)
            capture.replay()
        stream.synchronize()
        problem.check([gpu.host(block) for block in blocks])
    capture.close()


@pytest.mark.parametrize("product", SIZES[:3], ids=lambda p: f"{p.m}x{p.n}x{p.k}")
def test_capture_gives_the_bits_of_a_plain_call(gpu, gpu_handle, stream, product):
    problem = Problem(product)
    plain = problem.solve(gpu, gpu_handle)
    capture, blocks, _ = captured(gpu, gpu_handle, stream, problem)
    capture.replay()
    stream.synchronize()
    reference.assert_same_bits(problem.check([gpu.host(block) for block in blocks]), plain)
    capture.close()


def test_host_scalars_are_baked_in_and_device_scalars_are_not(gpu, gpu_handle, stream):
    problem = Problem(Product(40, 30, 20, alpha=2.0, beta=0.5))
    capture, blocks, _ = captured(gpu, gpu_handle, stream, problem)
    capture.replay()
    stream.synchronize()
    problem.check([gpu.host(block) for block in blocks])
    capture.close()

    scalars = gpu.block(np.array([2.0, 0.5], dtype=np.float32))
    where = gpu.address(scalars)
    assert lib.pyblasSetPointerMode(gpu_handle, 1) == SUCCESS
    problem.product = problem.product.but(alpha=("device", where), beta=("device", where + 4))
    capture, blocks, _ = captured(gpu, gpu_handle, stream, problem)
    for alpha, beta in [(2.0, 0.5), (-1.0, 0.0), (0.0, 3.0), (1.0, 1.0)]:
        problem.product = problem.product.but(alpha=alpha, beta=beta)
        refill(gpu, scalars, np.array([alpha, beta], dtype=np.float32))
        refill(gpu, blocks[2], problem.c.words)
        gpu.synchronize()
        capture.replay()
        stream.synchronize()
        problem.check([gpu.host(block) for block in blocks])
    capture.close()


def test_replay_right_after_other_work(gpu, gpu_handle, stream):
    """The captured workspace is the graph's alone: calls in between on the same handle do not disturb a replay."""
    problem = Problem(SIZES[2])
    others = [Problem(p) for p in (Product(8, 8, 30000), Product(300, 200, 100), Product(32, 32, 9000))]
    capture, blocks, _ = captured(gpu, gpu_handle, stream, problem)
    other_blocks = [other.blocks(gpu) for other in others]
    want = None
    gpu.synchronize()
    for _ in range(20):
        for other, own in zip(others, other_blocks, strict=True):
            status, kept = other.start(gpu, gpu_handle, own)
            assert status == SUCCESS, message()
        with stream:
            refill(gpu, blocks[2], problem.c.words)
        capture.replay()
        for other, own in zip(others, other_blocks, strict=True):
            status, kept = other.start(gpu, gpu_handle, own)
            assert status == SUCCESS, message()
        stream.synchronize()
        del kept
        got = problem.check([gpu.host(block) for block in blocks])
        want = got if want is None else want
        reference.assert_same_bits(got, want)
        for other, own in zip(others, other_blocks, strict=True):
            other.check([gpu.host(block) for block in own])
    capture.close()


def test_host_arrays_of_pointers_are_baked_in(gpu, gpu_handle, stream):
    """Their values travel into workspace that belongs to the graph: arrays may change, and other calls may use ours."""
    assert lib.pyblasSetArrayMode(gpu_handle, 0) == SUCCESS
    engine = engines.GpuWithHostTables()
    problem = Problem(Product(7, 8, 9, alpha=2.0, beta=0.5, batch=3000, pointers=True))
    other = Problem(Product(5, 4, 6, batch=4000, pointers=True))
    capture, blocks, tables = captured(engine, gpu_handle, stream, problem)
    kinds = capture.kinds()
    assert _MEM_ALLOC not in kinds
    assert _MEM_FREE not in kinds
    for table in tables:
        table[:] = 0
    other_blocks = other.blocks(gpu)
    gpu.synchronize()
    for _ in range(10):
        status, other_tables = other.start(engine, gpu_handle, other_blocks)
        assert status == SUCCESS, message()
        with stream:
            refill(gpu, blocks[2], problem.c.words)
        capture.replay()
        for table in other_tables:
            table[:] = 0
        stream.synchronize()
        problem.check([gpu.host(block) for block in blocks])
        other.check([gpu.host(block) for block in other_blocks])
    capture.close()


def test_k5_another_thread_works_meanwhile(gpu, gpu_handle, stream):
    """It uses a handle and a stream of its own, and its calls do not break the capture."""
    problem = Problem(SIZES[1])
    other = Problem(Product(200, 100, 50))
    other_handle = gpu.handle()
    other_stream = gpu.xp.cuda.Stream(non_blocking=True)
    assert lib.pyblasSetStream(other_handle, ffi.cast("pyblasStream_t", other_stream.ptr)) == SUCCESS
    other_blocks = other.blocks(gpu)
    assert other.call(gpu, other_handle, other_blocks) == SUCCESS
    blocks = problem.blocks(gpu)
    gpu.synchronize()
    running, stop, failures = threading.Event(), threading.Event(), []

    def work():
        gpu.xp.cuda.Device().use()
        while not stop.is_set():
            status, _ = other.start(gpu, other_handle, other_blocks)
            if status != SUCCESS:
                failures.append(message())
            running.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert running.wait(30)
    try:
        for _ in range(20):
            with Capture(stream, GLOBAL) as capture:
                status, _ = problem.start(gpu, gpu_handle, blocks)
            assert status == SUCCESS, message()
            capture.replay()
            stream.synchronize()
            problem.check([gpu.host(block) for block in blocks])
            refill(gpu, blocks[2], problem.c.words)
            gpu.xp.cuda.get_current_stream().synchronize()
            capture.close()
    finally:
        stop.set()
        thread.join()
    assert not failures
    gpu.synchronize()
    assert lib.pyblasDestroy(other_handle) == SUCCESS


def test_a_refused_call_leaves_the_capture_valid(gpu, gpu_handle, stream):
    problem = Problem(SIZES[0])
    blocks = problem.blocks(gpu)
    gpu.synchronize()
    with Capture(stream) as capture:
        assert problem.start(gpu, gpu_handle, blocks)[0] == SUCCESS
        problem.a.ld, ld = 1, problem.a.ld
        assert problem.start(gpu, gpu_handle, blocks)[0] == engines.INVALID_VALUE
        problem.a.ld = ld
    capture.replay()
    stream.synchronize()
    problem.check([gpu.host(block) for block in blocks])
    capture.close()


def test_j7_memory_stays_flat_over_streams_and_captures(gpu_alone, gpu, gpu_handle):
    """A thousand streams and a hundred captures on one handle keep no more than the cap, and free_workspace frees it."""
    cupy = gpu.xp
    problem = Problem(SIZES[2])
    blocks = problem.blocks(gpu)
    problem.call(gpu, gpu_handle, blocks)

    def free():
        gpu.synchronize()
        return cupy.cuda.runtime.memGetInfo()[0]

    before = free()
    for _ in range(1000):
        stream = cupy.cuda.Stream(non_blocking=True)
        assert lib.pyblasSetStream(gpu_handle, ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
        assert problem.start(gpu, gpu_handle, blocks)[0] == SUCCESS, message()
        stream.synchronize()
        del stream
    assert lib.pyblasSetStream(gpu_handle, ffi.NULL) == SUCCESS
    after_streams = free()
    assert before - after_streams < 600 << 20
    stream = cupy.cuda.Stream(non_blocking=True)
    assert lib.pyblasSetStream(gpu_handle, ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
    for _ in range(100):
        with Capture(stream) as capture:
            assert problem.start(gpu, gpu_handle, blocks)[0] == SUCCESS, message()
        capture.close()
    assert lib.pyblasSetStream(gpu_handle, ffi.NULL) == SUCCESS
    assert lib.pyblasFreeWorkspace(gpu_handle) == SUCCESS
    assert before - free() < 64 << 20
    problem.solve(gpu, gpu_handle)


def test_python_calls_are_captured(gpu):
    cupy = gpu.xp
    a = cupy.ones((64, 32), dtype=cupy.float32)
    b = cupy.ones((32, 48), dtype=cupy.float32)
    c = cupy.zeros((64, 48), dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    gpu.synchronize()
    with stream, Capture(stream) as capture:
        pyblas_sgemm.sgemm("N", "N", 64, 48, 32, 1.0, a, 32, b, 48, 1.0, c, 48)
    assert (cupy.asnumpy(c) == 0).all()
    for turn in range(1, 4):
        capture.replay()
        stream.synchronize()
        assert (cupy.asnumpy(c) == 32 * turn).all()
    capture.close()
