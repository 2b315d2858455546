"""Handles: what they are set to, what settings refuse, and that a setting touches nothing else."""

from __future__ import annotations

import re

import numpy as np
import pytest

import engines
import reference
from engines import INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, SUCCESS, ffi, lib, message
from problems import Problem, Product

CPU_NAMES = [name for name, where, *_ in engines.kernel_rows() if where == "cpu"]
GPU_NAMES = [name for name, where, *_ in engines.kernel_rows() if where == "gpu"]


def value_of(getter, handle, kind):
    slot = ffi.new(kind)
    assert getter(handle, slot) == SUCCESS, message()
    return slot[0]


def compute_mode(handle):
    return int(value_of(lib.pyblasGetComputeMode, handle, "pyblasComputeType_t *"))


def forced_kernel(handle):
    return ffi.string(value_of(lib.pyblasGetKernel, handle, "const char **")).decode()


# ---- library ----------------------------------------------------------------------------------------------------------


def test_version_is_that_of_the_header():
    version = ffi.new("int *")
    assert lib.pyblasGetVersion(version) == SUCCESS
    assert version[0] >= 100
    assert lib.pyblasGetVersion(ffi.NULL) == INVALID_VALUE


def test_g1_every_status_prints_its_own_name():
    names = {
        0: "SUCCESS", 1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
        11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED",
    }  # fmt: skip
    for number, name in names.items():
        assert ffi.string(lib.pyblasGetStatusName(number)).decode() == f"PYBLAS_STATUS_{name}"
    for unknown in (2, 99):
        assert lib.pyblasGetStatusName(unknown) != ffi.NULL
        assert b"PYBLAS_STATUS" not in ffi.string(lib.pyblasGetStatusName(unknown))


def test_device_queries_say_a_number_or_a_reason():
    count = ffi.new("int *")
    assert lib.pyblasDeviceCount(count) == SUCCESS
    info = ffi.new("pyblasDeviceInfo_t *")
    if count[0] == 0:
        assert message(), "no GPU, and no reason"
    for device in range(count[0]):
        assert lib.pyblasDeviceInfo(device, info) == SUCCESS, message()
        assert ffi.string(info.name)
        assert info.sm >= 30
        assert info.memory_bytes > 0
        assert bool(info.supported) == (ffi.string(info.reason) == b"")
    for device in (-1, count[0], 1000):
        status = lib.pyblasDeviceInfo(device, info)
        assert status == (INVALID_VALUE if count[0] else NOT_INITIALIZED)
        assert message()
    assert lib.pyblasDeviceCount(ffi.NULL) == INVALID_VALUE
    assert lib.pyblasDeviceInfo(0, ffi.NULL) == INVALID_VALUE


@pytest.mark.gpu
def test_device_info_is_what_the_runtime_says(gpu):
    count = ffi.new("int *")
    assert lib.pyblasDeviceCount(count) == SUCCESS
    assert count[0] == gpu.xp.cuda.runtime.getDeviceCount()
    info = ffi.new("pyblasDeviceInfo_t *")
    for device in range(count[0]):
        assert lib.pyblasDeviceInfo(device, info) == SUCCESS
        told = gpu.xp.cuda.runtime.getDeviceProperties(device)
        assert ffi.string(info.name) == told["name"]
        assert info.sm == 10 * told["major"] + told["minor"]
        assert info.supported == 1, ffi.string(info.reason)
        assert info.cuda_version == gpu.xp.cuda.runtime.driverGetVersion()


def test_without_a_gpu_a_gpu_handle_says_why(prints):
    """CUDA_VISIBLE_DEVICES hides every GPU there may be."""
    program = """
import engines
from engines import ffi, lib
slot = ffi.new("pyblasHandle_t *")
assert lib.pyblasCreate(slot) != 0
assert slot[0] == ffi.NULL
print(engines.message())
"""
    reason = prints(program, CUDA_VISIBLE_DEVICES="")
    assert "GPU" in reason


def test_cpu_facts():
    info = ffi.new("pyblasCpuInfo_t *")
    assert lib.pyblasCpuInfo(info) == SUCCESS
    assert ffi.string(info.instruction_set).decode() in ("avx512", "avx2", "generic")
    assert info.threads == lib.pyblasGetNumThreads() >= 1
    assert bool(ffi.string(info.blas)) == bool(ffi.string(info.blas_path))
    assert lib.pyblasCpuInfo(ffi.NULL) == INVALID_VALUE


def test_number_of_threads(prints):
    program = """
import os
import engines
from engines import lib
most = len(os.sched_getaffinity(0))
assert lib.pyblasGetNumThreads() == most
assert lib.pyblasSetNumThreads(-1) == engines.INVALID_VALUE
assert "-1" in engines.message()
assert lib.pyblasGetNumThreads() == most
for many in (most + 1, 10**6):  # whatever is answered, never more than there are
    lib.pyblasSetNumThreads(many)
    assert lib.pyblasGetNumThreads() == most
assert lib.pyblasSetNumThreads(1) == 0
assert lib.pyblasGetNumThreads() == 1
assert lib.pyblasSetNumThreads(0) == 0
assert lib.pyblasGetNumThreads() == most
"""
    prints(program)


def test_kernel_table_ends_and_says_so():
    names = [name for name, *_ in engines.kernel_rows(types=None)]
    info = ffi.new("pyblasKernelInfo_t *")
    for index in (-1, len(names), 100000):
        assert lib.pyblasKernelName(index) == ffi.NULL
        assert lib.pyblasKernelInfo(index, info) == INVALID_VALUE
    assert lib.pyblasKernelInfo(0, ffi.NULL) == INVALID_VALUE


# ---- life -------------------------------------------------------------------------------------------------------------


def test_null_is_no_handle():
    slot = ffi.new("int *")
    assert lib.pyblasDestroy(ffi.NULL) == NOT_INITIALIZED
    assert lib.pyblasGetDevice(ffi.NULL, slot) == NOT_INITIALIZED
    assert lib.pyblasSetStream(ffi.NULL, ffi.NULL) == NOT_INITIALIZED
    assert lib.pyblasSetKernel(ffi.NULL, b"x") == NOT_INITIALIZED
    assert lib.pyblasSetComputeMode(ffi.NULL, 68) == NOT_INITIALIZED
    assert lib.pyblasSetPointerMode(ffi.NULL, 0) == NOT_INITIALIZED
    assert lib.pyblasSetArrayMode(ffi.NULL, 0) == NOT_INITIALIZED
    assert lib.pyblasSetBatchInvariant(ffi.NULL, 0) == NOT_INITIALIZED
    assert lib.pyblasSetWorkspace(ffi.NULL, ffi.NULL, 0) == NOT_INITIALIZED
    assert lib.pyblasSetWorkspaceLimit(ffi.NULL, 0) == NOT_INITIALIZED
    assert lib.pyblasFreeWorkspace(ffi.NULL) == NOT_INITIALIZED
    assert lib.pyblasCreateCpu(ffi.NULL) == INVALID_VALUE
    assert lib.pyblasCreate(ffi.NULL) == INVALID_VALUE


def test_device_of_a_handle(engine, handle):
    device = value_of(lib.pyblasGetDevice, handle, "int *")
    assert device == (-1 if engine.name == "cpu" else engine.xp.cuda.Device().id)
    assert lib.pyblasGetDevice(handle, ffi.NULL) == INVALID_VALUE


def test_many_handles(engine):
    handles = [engine.handle() for _ in range(200)]
    assert len({int(ffi.cast("uintptr_t", h)) for h in handles}) == 200
    product = Product(9, 8, 7)
    for handle in handles[::50]:
        Problem(product).solve(engine, handle)
    for handle in handles:
        assert lib.pyblasDestroy(handle) == SUCCESS


# ---- settings ---------------------------------------------------------------------------------------------------------


def test_settings_as_they_come(engine, handle):
    assert compute_mode(handle) == 68
    assert value_of(lib.pyblasGetPointerMode, handle, "pyblasPointerMode_t *") == 0
    assert value_of(lib.pyblasGetArrayMode, handle, "pyblasArrayMode_t *") == (0 if engine.name == "cpu" else 1)
    assert value_of(lib.pyblasGetBatchInvariant, handle, "int *") == 0
    assert value_of(lib.pyblasGetStream, handle, "pyblasStream_t *") == ffi.NULL
    assert forced_kernel(handle) == ""
    if engine.name == "gpu":
        assert value_of(lib.pyblasGetWorkspaceLimit, handle, "size_t *") == 1280 << 20


def test_compute_modes(engine, handle):
    assert lib.pyblasSetComputeMode(handle, 69) == SUCCESS, message()
    assert compute_mode(handle) == 69
    Problem(Product(33, 20, 40)).solve(engine, handle, "fp32_pedantic")
    assert lib.pyblasSetComputeMode(handle, 77) == SUCCESS, message()
    assert compute_mode(handle) == 77
    Problem(Product(33, 20, 40)).solve(engine, handle, "tf32")
    assert lib.pyblasSetComputeMode(handle, 69) == SUCCESS, message()
    for wrong in (0, 1, 64, 70, 1000):
        assert lib.pyblasSetComputeMode(handle, wrong) == INVALID_VALUE
        assert str(wrong) in message()
    assert compute_mode(handle) == 69
    assert lib.pyblasSetComputeMode(handle, 68) == SUCCESS
    assert compute_mode(handle) == 68


def test_batch_invariance_is_a_setting(engine, handle):
    for on in (0, 1, 1, 0, 1):
        assert lib.pyblasSetBatchInvariant(handle, on) == SUCCESS, message()
        assert value_of(lib.pyblasGetBatchInvariant, handle, "int *") == on
    for wrong in (2, -1):
        assert lib.pyblasSetBatchInvariant(handle, wrong) == INVALID_VALUE
        assert str(wrong) in message()
    assert value_of(lib.pyblasGetBatchInvariant, handle, "int *") == 1
    Problem(Product(33, 20, 40)).solve(engine, handle)
    other = engine.handle()
    assert value_of(lib.pyblasGetBatchInvariant, other, "int *") == 0
    assert lib.pyblasDestroy(other) == SUCCESS


def test_pointer_mode(engine, handle):
    assert lib.pyblasSetPointerMode(handle, 2) == INVALID_VALUE
    on_device = lib.pyblasSetPointerMode(handle, 1)
    assert on_device == (NOT_SUPPORTED if engine.name == "cpu" else SUCCESS)
    assert value_of(lib.pyblasGetPointerMode, handle, "pyblasPointerMode_t *") == (0 if engine.name == "cpu" else 1)
    assert lib.pyblasSetPointerMode(handle, 0) == SUCCESS


def test_array_mode(engine, handle):
    assert lib.pyblasSetArrayMode(handle, 2) == INVALID_VALUE
    assert lib.pyblasSetArrayMode(handle, 1) == (NOT_SUPPORTED if engine.name == "cpu" else SUCCESS)
    assert lib.pyblasSetArrayMode(handle, 0) == SUCCESS
    assert value_of(lib.pyblasGetArrayMode, handle, "pyblasArrayMode_t *") == 0


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 7, 3000, 70000])
def test_arrays_of_pointers_in_host_memory(gpu_handle, batch):
    """Array mode HOST on a GPU handle: the arrays may go right after the call."""
    assert lib.pyblasSetArrayMode(gpu_handle, 0) == SUCCESS
    engine = engines.GpuWithHostTables()
    for alpha in (2.0, 0.0):
        problem = Problem(Product(3, 4, 5, alpha=alpha, beta=0.5, batch=batch, pointers=True))
        blocks = problem.blocks(engine)
        status, tables = problem.start(engine, gpu_handle, blocks)
        for table in tables:
            table[:] = 0
        assert status == SUCCESS, message()
        engine.synchronize()
        problem.check([engine.host(block) for block in blocks])


def test_null_in_an_array_of_pointers_is_found_where_the_host_can_look(cpu, cpu_handle):
    problem = Problem(Product(3, 4, 5, batch=4, pointers=True))
    blocks = problem.blocks(cpu)
    for broken in range(3):
        made = []

        def table(addresses, broken=broken, made=made):
            made.append(None)
            return np.array([0 if len(made) - 1 == broken and i == 2 else a for i, a in enumerate(addresses)], np.uintp)

        engine = type("Engine", (engines.Cpu,), {"table": staticmethod(table)})()
        assert problem.call(engine, cpu_handle, blocks) == INVALID_VALUE
        assert f"({'ABC'[broken]}array)" in message()
    reference.assert_same_bits(blocks[2], problem.c.words)


def test_streams(engine, handle):
    if engine.name == "cpu":
        assert lib.pyblasSetStream(handle, ffi.NULL) == SUCCESS
        assert lib.pyblasSetStream(handle, ffi.cast("pyblasStream_t", 16)) == NOT_SUPPORTED
        return
    stream = engine.xp.cuda.Stream(non_blocking=True)
    assert lib.pyblasSetStream(handle, ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
    assert int(ffi.cast("uintptr_t", value_of(lib.pyblasGetStream, handle, "pyblasStream_t *"))) == stream.ptr
    Problem(Product(65, 66, 67)).solve(engine, handle)
    assert lib.pyblasSetStream(handle, ffi.NULL) == SUCCESS
    assert value_of(lib.pyblasGetStream, handle, "pyblasStream_t *") == ffi.NULL


# Keeps a stream busy for so many cycles.
HOLD = 'extern "C" __global__ void hold(long long cycles) { long long t = clock64(); while (clock64() - t < cycles); }'


@pytest.mark.gpu
def test_work_is_queued_on_the_stream_and_nothing_waits(gpu, gpu_handle):
    """The call returns while the stream is still held up by work in front of it."""
    cupy = gpu.xp
    stream = cupy.cuda.Stream(non_blocking=True)
    assert lib.pyblasSetStream(gpu_handle, ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
    problem = Problem(Product(64, 64, 64))
    problem.solve(gpu, gpu_handle)  # first use may load code
    blocks = problem.blocks(gpu)
    hold = cupy.RawKernel(HOLD, "hold")
    gpu.synchronize()
    with stream:
        hold((1,), (1,), (np.int64(400_000_000),))
    status, kept = problem.start(gpu, gpu_handle, blocks)
    assert status == SUCCESS
    assert not stream.done, "the call waited for the stream"
    stream.synchronize()
    problem.check([gpu.host(block) for block in blocks])
    del kept


@pytest.mark.gpu
def test_what_planes_cannot_hold_makes_no_call_wait(gpu, gpu_handle):
    """Infinities and rows of too many powers of two are found on the device: calls that meet them return before anything
    has run."""
    cupy = gpu.xp
    stream = cupy.cuda.Stream(non_blocking=True)
    assert lib.pyblasSetStream(gpu_handle, ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
    problem = Problem(Product(130, 200, 1030, data="wider"))
    a = problem.a.values
    a[0, 3, 5], a[0, 9, 700] = np.inf, np.nan
    problem.a.words[problem.a.index] = a
    names = [name for name in GPU_NAMES if name.startswith(engines.OF_PLANES)]
    started = {}

    def start(name):
        engines.set_kernel(gpu_handle, name)
        blocks = problem.blocks(gpu)
        gpu.synchronize()
        return blocks

    for name in names:  # first use may load code
        if problem.call(gpu, gpu_handle, start(name)) == SUCCESS:
            started[name] = start(name)
    hold = cupy.RawKernel(HOLD, "hold")
    with stream:
        hold((1,), (1,), (np.int64(400_000_000),))
    for name, blocks in started.items():
        engines.set_kernel(gpu_handle, name)
        assert problem.start(gpu, gpu_handle, blocks)[0] == SUCCESS, message()
        assert not stream.done, f"{name} waited for the stream"
    stream.synchronize()
    for blocks in started.values():
        problem.check([gpu.host(block) for block in blocks])


SYNC = """
import os
import numpy as np, cupy
import engines
from engines import ffi, lib, message
from problems import Problem, Product
from test_handle import HOLD
gpu = engines.Gpu()
handle = gpu.handle()
stream = cupy.cuda.Stream(non_blocking=True)
assert lib.pyblasSetStream(handle, ffi.cast("pyblasStream_t", stream.ptr)) == 0
problem = Problem(Product(64, 48, 80))
problem.solve(gpu, handle)
blocks = problem.blocks(gpu)
hold = cupy.RawKernel(HOLD, "hold")
with stream:
    hold((1,), (1,), (np.int64(200_000_000),))
status, kept = problem.start(gpu, handle, blocks)
assert status == 0 and stream.done
problem.check([gpu.host(block) for block in blocks])
nowhere = dict(transa=0, transb=0, m=64, n=48, k=80, alpha=1.0, A=256, lda=64, B=256, ldb=80, beta=0.0, C=256, ldc=64)
print(engines.invoke("sgemm", handle, nowhere), engines.selected(handle, "N", "N", 64, 48, 80)[0], message(), flush=True)
os._exit(0)  # nothing can be done on a GPU after such a fault
"""


@pytest.mark.gpu
def test_waiting_after_each_call_names_the_kernel_of_a_fault(prints):
    status, kernel, text = prints(SYNC, PYBLAS_SGEMM_SYNC="1").split(maxsplit=2)
    assert status == "13" and kernel in text and "(m=64 n=48 k=80 batch=1)" in text, text


# ---- kernels by name --------------------------------------------------------------------------------------------------


def test_forcing_a_kernel(engine, handle):
    names = CPU_NAMES if engine.name == "cpu" else GPU_NAMES
    for name in names:
        engines.set_kernel(handle, name)
        assert forced_kernel(handle) == name
    for nothing in (ffi.NULL, b""):
        assert lib.pyblasSetKernel(handle, names[0].encode()) == SUCCESS
        assert lib.pyblasSetKernel(handle, nothing) == SUCCESS
        assert forced_kernel(handle) == ""


def test_a_name_that_is_no_kernel(handle):
    assert lib.pyblasSetKernel(handle, b"fast_2") == INVALID_VALUE
    assert "fast_2" in message()
    assert forced_kernel(handle) == ""


def test_a_kernel_of_the_other_engine(engine, handle):
    for name in GPU_NAMES if engine.name == "cpu" else CPU_NAMES:
        assert lib.pyblasSetKernel(handle, name.encode()) == NOT_SUPPORTED
        assert name in message()
    assert forced_kernel(handle) == ""


def test_a_forced_kernel_is_never_replaced(engine, handle):
    """Where it refuses, the call is NOT_SUPPORTED with the reason; where selection would differ, it still runs."""
    rows = [row for row in engines.kernel_rows() if row[1] == engine.name]
    sizes = [(1, 1, 1), (8, 8, 8), (1, 300, 300), (300, 1, 300), (200, 200, 200)]
    for name, *_ in rows:
        engines.set_kernel(handle, name)
        for m, n, k in sizes:
            slots = ffi.new("const char **"), ffi.new("const char **")
            status = lib.pyblasSelectedKernel(handle, 0, 0, m, n, k, 1, *slots)
            problem = Problem(Product(m, n, k))
            blocks = problem.blocks(engine)
            assert problem.call(engine, handle, blocks) == status
            if status == SUCCESS:
                assert ffi.string(slots[0][0]).decode() == name
                assert "forced" in ffi.string(slots[1][0]).decode()
            else:
                assert status == NOT_SUPPORTED
                assert name in message()
                reference.assert_same_bits(engine.host(blocks[2]), problem.c.words)


def test_selection_names_a_kernel_of_the_engine_and_a_reason(engine, handle):
    names = CPU_NAMES if engine.name == "cpu" else GPU_NAMES
    for m, n, k, batch in [
        (1, 1, 1, 1),
        (5, 7, 3, 3),
        (4096, 4096, 4096, 1),
        (1, 10**6, 64, 1),
        (4, 4, 4, 10**7),
        (5, 5, 0, 1),
    ]:
        for transa in "NT":
            name, reason = engines.selected(handle, transa, "N", m, n, k, batch)
            assert name in names
            assert reason
    for m, n, k in [(0, 5, 5), (5, 0, 5)]:  # no result
        name, reason = engines.selected(handle, "N", "N", m, n, k)
        assert name == ""
        assert reason


def test_selection_checks_its_arguments(handle):
    slots = ffi.new("const char **"), ffi.new("const char **")
    for m, n, k, batch in [(-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, -1), (1 << 62, 4, 4, 1)]:
        assert lib.pyblasSelectedKernel(handle, 0, 0, m, n, k, batch, *slots) == INVALID_VALUE
    assert lib.pyblasSelectedKernel(handle, 5, 0, 1, 1, 1, 1, *slots) == INVALID_VALUE
    assert lib.pyblasSelectedKernel(handle, 0, 0, 1, 1, 1, 1, ffi.NULL, slots[1]) == INVALID_VALUE


@pytest.mark.parametrize("function", ["selected_kernel", "xt_predict"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((5, 9, -1, 1, 1, 1), "argument 1 (transa) is 5, must be 0 (N), 1 (T) or 2 (C)"),
        ((0, 7, -1, 1, 1, 1), "argument 2 (transb) is 7, must be 0 (N), 1 (T) or 2 (C)"),
        ((0, 0, -1, -2, 1, 1), "argument 3 (m) is -1, must be at least 0"),
        ((0, 0, 1, -2, -3, 1), "argument 4 (n) is -2, must be at least 0"),
        ((0, 0, 1, 1, -3, -4), "argument 5 (k) is -3, must be at least 0"),
        ((0, 0, 1, 1, 1, -4), "argument 6 (batchCount) is -4, must be at least 0"),
        ((0, 0, 2**62, 4, 4, 1), "matrices of these sizes span more than 2^63 bytes"),
        ((0, 1, 2**40, 2**40, 0, 1), "matrices of these sizes span more than 2^63 bytes"),
        ((1, 0, 1, 2**32, 2**32, 1), "matrices of these sizes span more than 2^63 bytes"),
        ((0, 0, 2**20, 2**20, 2**20, 2**30), "matrices of these sizes span more than 2^63 bytes"),
        ((0, 0, 2**63 - 1, 2**63 - 1, 2**63 - 1, 2**63 - 1), "matrices of these sizes span more than 2^63 bytes"),
    ],
)
def test_questions_name_their_own_arguments(handle, function, arguments, said):
    if function == "selected_kernel":
        slots = ffi.new("const char **"), ffi.new("const char **")
        assert lib.pyblasSelectedKernel(handle, *arguments, *slots) == INVALID_VALUE
    else:
        assert lib.pyblasXtPredict(handle, *arguments, ffi.new("double *")) == INVALID_VALUE
    assert message() == f"{function}: {said}"


# ---- workspace --------------------------------------------------------------------------------------------------------

DEEP = [Product(8, 8, 20000), Product(300, 200, 3000), Product(64, 64, 8192, "T", "N", 0.5, 2.0)]


def test_workspace_limits_change_the_kernel_not_the_success(engine, handle):
    for limit in (0, 1, 4096, 1 << 20, 1 << 30):
        assert lib.pyblasSetWorkspaceLimit(handle, limit) == SUCCESS
        if engine.name == "gpu":
            assert value_of(lib.pyblasGetWorkspaceLimit, handle, "size_t *") == limit
        for product in DEEP:
            Problem(product).solve(engine, handle)
    assert lib.pyblasFreeWorkspace(handle) == SUCCESS
    Problem(DEEP[0]).solve(engine, handle)


# That tensor cores take where there are some: squares, few rows, batches and a deep k.
OF_PLANES = [
    Product(520, 500, 512, "T", "N", 0.5, 2.0, gap=(0, 1, 0)), Product(100, 1500, 600), Product(1500, 40, 600, "N", "T"),
    Product(300, 260, 200, batch=5), Product(64, 96, 10000), Product(64, 64, 512, batch=5, pointers=True),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("given", [False, True], ids=["owned", "given"])
@pytest.mark.parametrize("product", OF_PLANES, ids=lambda p: f"{p.batch or 1}x{p.m}x{p.n}x{p.k}")
def test_tensor_kernels_do_with_any_workspace(gpu, gpu_handle, product, given):
    """Smaller panels, then kernels that want none: every call succeeds, and each kernel by name is right or says that the
    workspace is too small."""
    problem = Problem(product)
    a, b, c = problem.operands()
    want, magnitude = reference.product(product.alpha, a, b, product.beta, c)
    allowed = reference.bound("fp32", product.k, product.alpha, magnitude)

    def call(name):
        engines.set_kernel(gpu_handle, name)
        blocks = problem.blocks(gpu)
        status = problem.call(gpu, gpu_handle, blocks)
        if status == SUCCESS:
            got = problem.result([gpu.host(block) for block in blocks])
            reference.assert_close(got, want, allowed, f"{name} with {size} bytes")
        else:
            assert status == NOT_SUPPORTED, message()
        return status

    kinds = set()
    for size in (0, 1000, 40 << 10, 300 << 10, 1 << 20, 5 << 20):
        memory = gpu.xp.full(size + 512, 0xA5, dtype=gpu.xp.uint8)
        assert memory.data.ptr % 256 == 0
        if given:
            assert lib.pyblasSetWorkspace(gpu_handle, ffi.cast("void *", memory.data.ptr + 256), size) == SUCCESS
        else:
            assert lib.pyblasSetWorkspaceLimit(gpu_handle, size) == SUCCESS
        assert call(None) == SUCCESS, message()
        for name in (name for name in GPU_NAMES if name.startswith(engines.OF_PLANES)):
            if call(name) != SUCCESS:
                kinds.add("workspace" in message())
        outside = gpu.xp.asnumpy(memory)
        assert (outside[:256] == 0xA5).all()
        assert (outside[256 + size :] == 0xA5).all()
    assert True in kinds, "no kernel wanted workspace"


@pytest.mark.gpu
@pytest.mark.parametrize("product", OF_PLANES[:5], ids=lambda p: f"{p.batch or 1}x{p.m}x{p.n}x{p.k}")
def test_the_workspace_that_is_named_is_enough(gpu, gpu_handle, product):
    """The reason of a choice says how many bytes it takes: with so many the choice is the same, with one less it is not."""
    sizes = product.transa, product.transb, product.m, product.n, product.k, product.batch or 1

    def choice():
        name, reason = engines.selected(gpu_handle, *sizes)
        named = re.search(r", with (\d+) bytes of workspace$", reason)
        return name, int(named[1]) if named else 0

    name, size = choice()
    if product == OF_PLANES[0] and gpu.xp.cuda.Device().compute_capability == "90":
        assert name.startswith("wgmma_") and size > 0
    memory = gpu.xp.zeros(max(size, 1), dtype=gpu.xp.uint8)
    for given in (size, size - 1) if size else ():
        assert lib.pyblasSetWorkspace(gpu_handle, ffi.cast("void *", memory.data.ptr), given) == SUCCESS
        assert (choice() == (name, size)) == (given == size)
        Problem(product.but(gap=(0, 0, 0), beta=0.0)).solve(gpu, gpu_handle)


@pytest.mark.gpu
def test_given_workspace(gpu, gpu_handle):
    memory = gpu.xp.zeros(1 << 20, dtype=gpu.xp.uint8)
    start = memory.data.ptr
    for offset in (1, 4, 128, 255):
        assert lib.pyblasSetWorkspace(gpu_handle, ffi.cast("void *", start + offset), 1000) == INVALID_VALUE
        assert "256" in message()
    assert lib.pyblasSetWorkspace(gpu_handle, ffi.NULL, 1000) == INVALID_VALUE
    for pointer, size in [(start, 1 << 20), (start, 256), (start, 0), (0, 0)]:
        assert lib.pyblasSetWorkspace(gpu_handle, ffi.cast("void *", pointer), size) == SUCCESS
        for product in DEEP:
            Problem(product).solve(gpu, gpu_handle)
    gpu.synchronize()


@pytest.mark.gpu
def test_given_workspace_is_not_overrun_and_goes_with_the_stream(gpu, gpu_handle):
    memory = gpu.xp.full(1 << 20, 0xA5, dtype=gpu.xp.uint8)
    size = 1 << 18
    assert lib.pyblasSetWorkspace(gpu_handle, ffi.cast("void *", memory.data.ptr + (1 << 16)), size) == SUCCESS
    for product in DEEP:
        Problem(product).solve(gpu, gpu_handle)
    words = gpu.xp.asnumpy(memory)
    assert (words[: 1 << 16] == 0xA5).all()
    assert (words[(1 << 16) + size :] == 0xA5).all()
    # Another stream: back to the handle's own, so this memory stays as it is.
    stream = gpu.xp.cuda.Stream(non_blocking=True)
    assert lib.pyblasSetStream(gpu_handle, ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
    memory.fill(0x5A)
    gpu.synchronize()
    for product in DEEP:
        Problem(product).solve(gpu, gpu_handle)
    assert (gpu.xp.asnumpy(memory) == 0x5A).all()


@pytest.mark.gpu
@pytest.mark.parametrize("end", ["destroy", "free"])
def test_workspace_is_not_freed_under_work(gpu, end):
    """A handle may go, or give its memory back, while its products still run."""
    product = Product(33, 30, 200_000, data="integers")
    problem = Problem(product)
    for stream in (None, gpu.xp.cuda.Stream(non_blocking=True)):
        for _ in range(10):
            handle, blocks = gpu.handle(), problem.blocks(gpu)
            if stream is not None:
                assert lib.pyblasSetStream(handle, ffi.cast("void *", stream.ptr)) == SUCCESS
            for _ in range(3):
                status, _ = problem.start(gpu, handle, blocks)
                assert status == SUCCESS, message()
            if end == "free":
                assert lib.pyblasFreeWorkspace(handle) == SUCCESS
            else:
                assert lib.pyblasDestroy(handle) == SUCCESS
            gpu.synchronize()
            problem.check([gpu.host(block) for block in blocks])
            if end == "free":
                assert lib.pyblasDestroy(handle) == SUCCESS


@pytest.mark.gpu
def test_workspace_limit_is_kept(gpu_alone, gpu, gpu_handle):
    """What a handle takes for itself stays under its limit, for any number of calls, and is given back."""
    cupy = gpu.xp
    gpu.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    Problem(DEEP[0]).solve(gpu, gpu_handle)
    assert lib.pyblasFreeWorkspace(gpu_handle) == SUCCESS
    cupy.get_default_memory_pool().free_all_blocks()
    before = cupy.cuda.runtime.memGetInfo()[0]
    assert lib.pyblasSetWorkspaceLimit(gpu_handle, 8 << 20) == SUCCESS
    for product in DEEP * 5:
        Problem(product).solve(gpu, gpu_handle)
    cupy.get_default_memory_pool().free_all_blocks()
    assert before - cupy.cuda.runtime.memGetInfo()[0] <= (8 << 20) + (64 << 20)
    assert lib.pyblasFreeWorkspace(gpu_handle) == SUCCESS


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(900, 700, 300), (2100, 300, 400), (300, 2100, 400)], ids=str)
@pytest.mark.parametrize("pointers", [False, True], ids=["strided", "pointers"])
def test_less_workspace_cuts_planes_smaller(gpu, gpu_handle, pointers, sizes):
    """The same kernel with the same bits, panel by panel, down to where one does not fit."""
    names = [name for name in GPU_NAMES if name.startswith("wgmma_128x128x64_f16x2")]
    if not names or gpu.xp.cuda.Device().compute_capability != "90":
        pytest.skip("no planes here")
    problem = Problem(Product(*sizes, "T", "N", 0.5, 2.0, batch=5, pointers=pointers))
    engines.set_kernel(gpu_handle, names[0])
    whole = problem.solve(gpu, gpu_handle)
    for limit in (8 << 20, 3 << 20, 1 << 20):  # the planes of one product: 2.0 to 4.0 MiB
        assert lib.pyblasSetWorkspaceLimit(gpu_handle, limit) == SUCCESS
        reference.assert_same_bits(problem.solve(gpu, gpu_handle), whole, f"{limit} bytes")
    assert lib.pyblasSetWorkspaceLimit(gpu_handle, 100 << 10) == SUCCESS
    assert problem.call(gpu, gpu_handle, problem.blocks(gpu)) == NOT_SUPPORTED
    assert "workspace" in message()


# ---- environment ------------------------------------------------------------------------------------------------------

CREATE = """
import engines
from engines import ffi, lib
slot = ffi.new("pyblasHandle_t *")
status = lib.pyblasCreateCpu(slot)
mode, name = ffi.new("pyblasComputeType_t *"), ffi.new("const char **")
if status == 0:
    lib.pyblasGetComputeMode(slot[0], mode)
    lib.pyblasGetKernel(slot[0], name)
    print(status, int(mode[0]), ffi.string(name[0]).decode())
else:
    print(status, engines.message())
"""


def test_environment_sets_mode_and_kernel(prints):
    assert prints(CREATE).split() == ["0", "68"]
    assert prints(CREATE, PYBLAS_SGEMM_COMPUTE="fp32_pedantic", PYBLAS_SGEMM_KERNEL=CPU_NAMES[0]).split() == [
        "0", "69", CPU_NAMES[0],
    ]  # fmt: skip
    assert prints(CREATE, PYBLAS_SGEMM_COMPUTE="", PYBLAS_SGEMM_KERNEL="").split() == ["0", "68"]


@pytest.mark.parametrize("variable", ["PYBLAS_SGEMM_COMPUTE", "PYBLAS_SGEMM_KERNEL"])
def test_bad_environment_is_an_error_that_names_the_variable(prints, variable):
    told = prints(CREATE, **{variable: "nonsense"})
    assert told.startswith(str(INVALID_VALUE))
    assert variable in told
    assert "nonsense" in told


def test_a_gpu_kernel_in_the_environment_leaves_the_cpu_alone(prints):
    for name in GPU_NAMES[:1]:
        assert prints(CREATE, PYBLAS_SGEMM_KERNEL=name).split() == ["0", "68"]
