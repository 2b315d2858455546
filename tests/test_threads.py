"""Many threads at once: right bits, and no setting of one handle seen through another."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import engines
import pyblas_sgemm
import reference
from engines import SUCCESS, ffi, lib, message
from problems import Problem, Product

THREADS = 24


def at_once(count, work):
    """Runs work(i) on count threads that start together; raises what the first one raised."""
    barrier = threading.Barrier(count)
    failures = []

    def run(i):
        try:
            barrier.wait(timeout=60)
            work(i)
        except BaseException as error:  # noqa: BLE001 - any failure at all is the test's
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failures:
        raise failures[0]


def repeated(engine, handle, problem, expected, times):
    for _ in range(times):
        blocks = problem.blocks(engine)
        assert problem.call(engine, handle, blocks) == SUCCESS, message()
        reference.assert_same_bits(engine.host(blocks[2]), expected)


def alone(engine, problems):
    """C's buffer of each problem, computed with no other call around."""
    handle = engine.handle()
    results = []
    for problem in problems:
        blocks = problem.blocks(engine)
        assert problem.call(engine, handle, blocks) == SUCCESS, message()
        results.append(engine.host(blocks[2]))
        problem.check([engine.host(block) for block in blocks])
    assert lib.pyblasDestroy(handle) == SUCCESS
    return results


# Small ones on the calling thread, batches and large ones that go to the pool, and both orders.
MIX = [
    Product(20, 20, 500), Product(64, 64, 64, "T"), Product(5, 7, 9, batch=200), Product(150, 160, 170, "N", "T", 0.5, 1.0),
    Product(1, 500, 300, order="C"), Product(400, 1, 300), Product(16, 16, 16, batch=64, order="C"), Product(8, 300, 200),
]  # fmt: skip


def test_k1_the_published_case(engine):
    """24 threads, 500 calls each, on data of their own."""
    problems = [Problem(Product(20, 20, 500, alpha=1.0 + i)) for i in range(THREADS)]
    expected = alone(engine, problems)

    def work(i):
        handle = engine.handle()
        repeated(engine, handle, problems[i], expected[i], 500 if engine.name == "cpu" else 50)
        assert lib.pyblasDestroy(handle) == SUCCESS

    at_once(THREADS, work)


def test_k1_own_handles_on_own_data(engine):
    problems = [Problem(MIX[i % len(MIX)].but(alpha=1.0 + i)) for i in range(THREADS)]
    expected = alone(engine, problems)

    def work(i):
        handle = engine.handle()
        repeated(engine, handle, problems[i], expected[i], 40)
        assert lib.pyblasDestroy(handle) == SUCCESS

    at_once(THREADS, work)


def test_k1_one_shared_handle(engine, handle):
    problems = [Problem(MIX[i % len(MIX)].but(alpha=1.0 + i)) for i in range(THREADS)]
    expected = alone(engine, problems)
    at_once(THREADS, lambda i: repeated(engine, handle, problems[i], expected[i], 25))


def test_k1_settings_do_not_leak_between_handles(engine):
    """Each thread sets its own handle and finds its settings again after every call of all the others."""
    rows = [name for name, where, *_ in engines.kernel_rows() if where == engine.name]

    def work(i):
        handle = engine.handle()
        problem = Problem(Product(16 + i % 3, 16, 16))
        mode = 68 + i % 2
        kernel = rows[i % len(rows)] if i % 3 else ""
        assert lib.pyblasSetComputeMode(handle, mode) == SUCCESS
        assert lib.pyblasSetKernel(handle, kernel.encode()) == SUCCESS
        for _ in range(50):
            blocks = problem.blocks(engine)
            problem.call(engine, handle, blocks)
            mode_slot, kernel_slot = ffi.new("pyblasComputeType_t *"), ffi.new("const char **")
            assert lib.pyblasGetComputeMode(handle, mode_slot) == SUCCESS
            assert lib.pyblasGetKernel(handle, kernel_slot) == SUCCESS
            assert (int(mode_slot[0]), ffi.string(kernel_slot[0]).decode()) == (mode, kernel)
        assert lib.pyblasDestroy(handle) == SUCCESS

    at_once(THREADS, work)


def test_settings_change_while_others_compute(engine, handle):
    """A shared handle whose mode and kernel change all the time still gives right values."""
    problem = Problem(Product(40, 30, 50))
    stop = threading.Event()

    def work(i):
        if i == 0:
            try:
                for turn in range(300):
                    assert lib.pyblasSetComputeMode(handle, 68 + turn % 2) == SUCCESS
                    assert lib.pyblasSetWorkspaceLimit(handle, (turn % 3) << 20) == SUCCESS
            finally:
                stop.set()
            return
        while True:
            problem.solve(engine, handle)
            if stop.is_set():
                return

    at_once(8, work)


def test_messages_belong_to_their_thread(cpu, cpu_handle):
    def work(i):
        arguments = {
            "transa": 0, "transb": 0, "m": 1000 + i, "n": 1, "k": 1, "alpha": 1.0, "beta": 1.0, "A": 0, "B": 0, "C": 0,
            "lda": 900 + i, "ldb": 1, "ldc": 1,
        }  # fmt: skip
        assert message() == ""
        for _ in range(300):
            assert engines.invoke("sgemm", cpu_handle, arguments) == engines.INVALID_VALUE
            assert f"is {900 + i}," in message()

    at_once(THREADS, work)


def test_the_number_of_threads_changes_while_others_compute(cpu):
    problems = [Problem(MIX[i]) for i in range(len(MIX))]
    expected = alone(cpu, problems)
    most = lib.pyblasGetNumThreads()
    running = threading.Event()
    running.set()

    def work(i):
        if i == len(MIX):
            try:
                for turn in range(200):
                    assert lib.pyblasSetNumThreads(1 + turn % most) == SUCCESS
            finally:
                running.clear()
            return
        handle = cpu.handle()
        while True:
            repeated(cpu, handle, problems[i], expected[i], 1)
            if not running.is_set():
                break
        assert lib.pyblasDestroy(handle) == SUCCESS

    try:
        at_once(len(MIX) + 1, work)
    finally:
        assert lib.pyblasSetNumThreads(most) == SUCCESS


def test_python_calls_of_many_threads(engine):
    """The implicit handle is one per device and thread, so modes set in one thread stay there."""
    xp = engine.xp
    rng = np.random.default_rng(0)
    pairs = [
        (rng.standard_normal((20, 500), dtype=np.float32), rng.standard_normal((500, 20), dtype=np.float32))
        for _ in range(THREADS)
    ]
    expected = [engine.numpy(pyblas_sgemm.matmul(xp.asarray(a), xp.asarray(b))) for a, b in pairs]

    def work(i):
        a, b = (xp.asarray(x) for x in pairs[i])
        mode = ("fp32", "fp32_pedantic")[i % 2]
        for _ in range(60):
            if i % 2:
                with pyblas_sgemm.compute_mode(mode):
                    pyblas_sgemm.matmul(a, b)
            reference.assert_same_bits(engine.numpy(pyblas_sgemm.matmul(a, b)), expected[i])

    at_once(THREADS, work)


def test_m8_two_hundred_threads(cpu):
    """No limit on threads is compiled in."""
    problem = Problem(Product(30, 30, 30))
    expected = alone(cpu, [problem])[0]

    def work(i):
        handle = cpu.handle()
        repeated(cpu, handle, problem, expected, 3)
        assert lib.pyblasDestroy(handle) == SUCCESS

    at_once(200, work)


def test_threads_that_end_take_nothing_with_them(cpu, cpu_handle):
    problem = Problem(Product(64, 64, 300))
    expected = alone(cpu, [problem])[0]
    for _ in range(100):
        at_once(2, lambda i: repeated(cpu, cpu_handle, problem, expected, 1))


@pytest.mark.gpu
def test_k1_gpu_threads_with_own_streams(gpu):
    """Eight threads, each with a stream and a mode of its own, all on one device."""
    problems = [Problem(MIX[i].but(alpha=1.5)) for i in range(8)]
    expected = []
    for i, problem in enumerate(problems):
        handle = gpu.handle()
        assert lib.pyblasSetComputeMode(handle, 68 + i % 2) == SUCCESS
        blocks = problem.blocks(gpu)
        assert problem.call(gpu, handle, blocks) == SUCCESS, message()
        expected.append(gpu.host(blocks[2]))
        assert lib.pyblasDestroy(handle) == SUCCESS

    def work(i):
        stream = gpu.xp.cuda.Stream(non_blocking=True)
        handle = gpu.handle()
        assert lib.pyblasSetStream(handle, ffi.cast("pyblasStream_t", stream.ptr)) == SUCCESS
        assert lib.pyblasSetComputeMode(handle, 68 + i % 2) == SUCCESS
        with stream:
            for _ in range(30):
                blocks = problems[i].blocks(gpu)
                status, kept = problems[i].start(gpu, handle, blocks)
                assert status == SUCCESS, message()
                stream.synchronize()
                reference.assert_same_bits(gpu.host(blocks[2]), expected[i])
                del kept
        assert lib.pyblasDestroy(handle) == SUCCESS

    at_once(8, work)


@pytest.mark.gpu
def test_k4_first_use_of_the_gpu_in_a_new_thread(prints):
    program = """
import threading
import numpy as np
import cupy, pyblas_sgemm
told = []
def work():
    a = cupy.ones((40, 50), dtype=cupy.float32)
    told.append(float(pyblas_sgemm.matmul(a, a.T).sum()))
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(told[0])
"""
    assert float(prints(program)) == 40 * 40 * 50
