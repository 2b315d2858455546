"""Children made by fork, and the ends of processes. Each test is a process of its own."""

from __future__ import annotations

import signal
import sys

import pytest

PARENT = """
import os, signal, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own warning of fork with threads alive; ours are asleep
import numpy as np
import pyblas_sgemm
from pyblas_sgemm import sgemm

signal.alarm(60)


def ones(n, xp=np):
    a, b, c = (xp.ones((n, n), dtype=xp.float32) for _ in range(3))
    sgemm("N", "N", n, n, n, 1.0, a, n, b, n, 0.0, c, n, order="F")
    assert bool((c == n).all()), c


def in_child(work, seconds=5):
    # Runs work in a forked child that has that long; returns its exit status.
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"child: {type(error).__name__}: {error}\\n")
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("threads", ["1", "0"], ids=["one thread", "all threads"])
@pytest.mark.parametrize("size", [7, 8, 500])
def test_l1_products_before_and_after_fork(prints, size, threads):
    prints(
        PARENT
        + f"""
from pyblas_sgemm._cffi import lib
assert lib.pyblasSetNumThreads({threads}) == 0
for n in (7, 8, 500):
    ones(n)
def child():
    for n in ({size}, 7, 8, 500):
        ones(n)
assert in_child(child) == 0
ones({size})
"""
    )


def test_l1_batches_before_and_after_fork(prints):
    prints(
        PARENT
        + """
from pyblas_sgemm import gemm_strided_batched
def batch():
    a = np.ones((300, 16, 16), dtype=np.float32)
    c = np.empty_like(a)
    gemm_strided_batched("N", "N", 16, 16, 16, 1.0, a, 16, 256, a, 16, 256, 0.0, c, 16, 256, 300, order="C")
    assert (c == 16).all()
batch()
assert in_child(batch) == 0
assert in_child(lambda: [batch() for _ in range(5)]) == 0
batch()
"""
    )


def test_l1_fork_while_another_thread_computes(prints):
    """The pool's locks may be held at the moment of the fork; the child must not inherit that."""
    prints(
        PARENT
        + """
import threading
stop = threading.Event()
def busy():
    while not stop.is_set():
        ones(200)
thread = threading.Thread(target=busy)
thread.start()
try:
    for _ in range(20):
        assert in_child(lambda: [ones(n) for n in (7, 8, 200)]) == 0
finally:
    stop.set()
    thread.join()
"""
    )


def test_l1_a_handle_that_another_thread_has(prints):
    """Its lock is held at the moment of the fork, and so may be the mode of that thread's call."""
    prints(
        PARENT
        + """
import threading
handle = pyblas_sgemm.Handle()
a = np.ones((500, 500), dtype=np.float32)
stop, started = threading.Event(), threading.Event()
def busy():
    c = np.empty_like(a)
    while not stop.is_set():
        sgemm("N", "N", 500, 500, 500, 1, a, 500, a, 500, 0, c, 500, compute="fp32_pedantic", handle=handle)
        started.set()
def child():
    c = np.empty((2, 2), dtype=np.float32)
    sgemm("N", "N", 2, 2, 2, 1, a, 2, a, 2, 0, c, 2, order="C", handle=handle)
    assert (c == 2).all()
    assert handle.context(None).mode == 68  # fp32
    handle.batch_invariant = True
    handle.close()
thread = threading.Thread(target=busy)
thread.start()
assert started.wait(30)
try:
    for _ in range(10):
        assert in_child(child) == 0
finally:
    stop.set()
    thread.join()
"""
    )


def test_l1_a_fork_inside_a_call_leaves_its_locks(prints):
    """The forking thread has the lock itself, and gives it back in both processes."""
    prints(
        PARENT
        + """
handle = pyblas_sgemm.Handle()
def child():
    ones(20)
with handle.context(None).lock:
    assert in_child(child) == 0
    child = os.fork()
if child == 0:
    signal.alarm(5)
    handle.compute = "fp32_pedantic"
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
handle.close()
"""
    )


def test_l1_grandchildren(prints):
    prints(
        PARENT
        + """
ones(300)
def child():
    ones(300)
    assert in_child(lambda: ones(300)) == 0
    ones(300)
assert in_child(child) == 0
"""
    )


def test_l1_multiprocessing_with_fork(prints):
    """Workers of a forked pool, and handles made before it."""
    prints(
        PARENT
        + """
import multiprocessing
ones(500)
def work(n):
    ones(n)
    return n
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert pool.map_async(work, [7, 8, 500, 64, 500, 7]).get(30) == [7, 8, 500, 64, 500, 7]
ones(500)
"""
    )


def test_l1_settings_and_handles_live_on_in_the_child(prints):
    prints(
        PARENT
        + """
import engines
from engines import lib
from problems import Problem, Product
cpu = engines.Cpu()
handle = cpu.handle()
name = engines.kernel_rows()[-1][0]
assert lib.pyblasSetComputeMode(handle, 69) == 0
problem = Problem(Product(70, 80, 90))
want = problem.solve(cpu, handle)
def child():
    assert (problem.solve(cpu, handle) == want).all()
    assert lib.pyblasDestroy(handle) == 0
assert in_child(child) == 0
problem.solve(cpu, handle)
"""
    )


@pytest.mark.gpu
def test_l3_gpu_in_the_parent_and_in_the_child(prints):
    """(a) A clear error that names fork and advises spawn. (b) The CPU works in the same child."""
    prints(
        PARENT
        + """
import cupy
a = cupy.ones((8, 8), dtype=cupy.float32)
pyblas_sgemm.matmul(a, a)
cupy.cuda.Device().synchronize()
from engines import ffi, lib
slot = ffi.new("pyblasHandle_t *")
assert lib.pyblasCreate(slot) == 0
def child():
    try:
        pyblas_sgemm.matmul(a, a)
    except RuntimeError as error:
        assert "fork" in str(error) and "spawn" in str(error), error
    else:
        raise AssertionError("no error")
    other = ffi.new("pyblasHandle_t *")
    assert lib.pyblasCreate(other) != 0
    text = ffi.string(lib.pyblasGetLastErrorMessage()).decode()
    assert "fork" in text and "spawn" in text, text
    assert lib.pyblasDestroy(slot[0]) == 0
    for n in (7, 8, 500):
        ones(n)
assert in_child(child) == 0
pyblas_sgemm.matmul(a, a)
cupy.cuda.Device().synchronize()
"""
    )


@pytest.mark.gpu
def test_l3_asking_is_not_using(prints):
    """(c) The parent imports, asks for everything that can be asked, and computes on the CPU; the child uses the GPU."""
    prints(
        PARENT
        + """
pyblas_sgemm.info()
pyblas_sgemm.kernels()
from engines import ffi, lib
count, info = ffi.new("int *"), ffi.new("pyblasDeviceInfo_t *")
assert lib.pyblasDeviceCount(count) == 0 and count[0] > 0
assert lib.pyblasDeviceInfo(0, info) == 0
ones(100)
def child():
    import cupy
    ones(100, cupy)
    slot = ffi.new("pyblasHandle_t *")
    assert lib.pyblasCreate(slot) == 0
assert in_child(child, 40) == 0  # it imports CuPy, starts CUDA and compiles CuPy's kernels
import cupy
ones(100, cupy)
"""
    )


def test_l3_asking_without_a_gpu_survives_fork_too(prints):
    prints(
        PARENT
        + """
pyblas_sgemm.info()
pyblas_sgemm.kernels()
def child():
    pyblas_sgemm.info()
    ones(50)
assert in_child(child) == 0
"""
    )


# ---- exit -------------------------------------------------------------------------------------------------------------

WORK = """
import os, sys, threading
import numpy as np
import pyblas_sgemm
if sys.argv[1] == "cpu":
    xp = np
else:
    import cupy as xp

def work(n=300):
    a = xp.ones((n, n), dtype=xp.float32)
    c = pyblas_sgemm.matmul(a, a)
    assert float(c[0, 0]) == n

thread = threading.Thread(target=work)
thread.start()
work()
thread.join()
"""

DAEMON = """
import time
started = threading.Event()
def forever():
    a = xp.ones((900, 900), dtype=xp.float32)
    while True:
        pyblas_sgemm.matmul(a, a)
        started.set()
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
assert started.wait(30)
time.sleep(0.05)
"""

ENDS = {
    "falls off the end": ("", 0),
    "sys.exit": ("sys.exit(17)", 17),
    "sys.exit in a thread": ("threading.Thread(target=sys.exit, args=(3,)).start()", 0),
    "exit handlers": ("import atexit; atexit.register(work); sys.exit(5)", 5),
    "os._exit": ("os._exit(9)", 9),
    "daemons in a call": (DAEMON, 0),
    "daemons in a call, sys.exit": (DAEMON + "sys.exit(21)", 21),
    "global arrays and handles": ("h = pyblas_sgemm.Handle() if xp is np else None; keep = [xp.ones(10)]", 0),
}


@pytest.mark.parametrize("where", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("how", ENDS)
def test_l4_exit(python, where, how):
    """The exit status is the one asked for, and nothing is printed."""
    ending, status = ENDS[how]
    done = python(WORK + ending, where, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.parametrize("where", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("daemons", [False, True])
def test_l4_exit_by_exception(python, where, daemons):
    done = python(WORK + (DAEMON if daemons else "") + "raise KeyError('my own')", where, timeout=120)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "KeyError: 'my own'"
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("where", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_l4_exit_by_signal(python, where):
    assert sys.platform == "linux"
    done = python(WORK + "import signal; os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait()", where)
    assert done.returncode == -signal.SIGTERM
    assert (done.stdout, done.stderr) == ("", "")


def test_l4_the_c_handle_outlives_main(python):
    """A handle that nobody destroys, and one destroyed by an exit handler."""
    program = """
import atexit
import engines
from engines import lib
from problems import Problem, Product
cpu = engines.Cpu()
left, destroyed = cpu.handle(), cpu.handle()
Problem(Product(100, 100, 100)).solve(cpu, left)
def last():
    Problem(Product(100, 100, 100)).solve(cpu, destroyed)
    assert lib.pyblasDestroy(destroyed) == 0
atexit.register(last)
"""
    done = python(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
