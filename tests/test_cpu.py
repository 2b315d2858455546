"""The CPU engine: every row under every instruction set, up to the last byte of a page; threads, fork, and the BLAS."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

import engines
from engines import SUCCESS, ffi, lib, message
from problems import Problem, Product

ROWS = [name for name, where, _, _ in engines.kernel_rows() if where == "cpu"]
SETS = ("avx512", "avx2", "generic")


def expected_set(asked):
    """What the machine makes of a wish: no more than it has."""
    flags = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            flags = set(line.split(":")[1].split())
            break
    have = ["generic"]
    if {"avx2", "fma"} <= flags:
        have.append("avx2")
        if {"avx512f", "avx512vl", "avx512bw", "avx512dq", "bmi2"} <= flags:
            have.append("avx512")
    return min((asked, have[-1]), key=SETS[::-1].index)


COMMON = """
import ctypes, mmap, os, sys, threading
import numpy as np
import engines
from engines import SUCCESS, NOT_SUPPORTED, ffi, lib, message
from problems import Problem, Product
import pyblas_sgemm

ROWS = [name for name, where, _, _ in engines.kernel_rows() if where == "cpu"]
cpu = engines.named("cpu")
handle = cpu.handle()
facts = ffi.new("pyblasCpuInfo_t *")


def info():
    assert lib.pyblasCpuInfo(facts) == SUCCESS, message()
    return {name: ffi.string(getattr(facts, name)).decode() for name in ("instruction_set", "blas", "blas_path")}


def threads():
    return len(os.listdir("/proc/self/task"))


def product(n, m=None, k=None, **more):
    Problem(Product(m or n, n, k or n, **more)).solve(cpu, handle)


class Known:
    # A problem and its checked result. Comparing bytes leaves NumPy, its BLAS and its locks out of threads and children.
    def __init__(self, *numbers, **more):
        self.problem = Problem(Product(*numbers, **more))
        self.c = self.run(handle)
        self.problem.check([placed.words for placed in (self.problem.a, self.problem.b)] + [self.c])

    def run(self, handle):
        blocks = self.problem.blocks(cpu)
        assert self.problem.call(cpu, handle, blocks) == SUCCESS, message()
        return blocks[2]

    def again(self, handle):
        assert self.run(handle).tobytes() == self.c.tobytes(), self.problem.product
"""

# ---- every row, every instruction set ------------------------------------------------------------------------------

EDGES = """
# Round the heights and widths of the tiles of each instruction set, and the depths at which sums begin afresh.
SHAPES = [
    (1, 1, 1), (1, 17, 5), (17, 1, 5), (3, 5, 7), (4, 4, 4), (8, 8, 8), (9, 15, 16), (16, 16, 16), (31, 6, 33),
    (33, 13, 2), (48, 8, 255), (49, 25, 257), (63, 65, 64), (64, 6, 256), (65, 7, 300), (129, 12, 40), (12, 129, 40),
    (257, 258, 65), (300, 2, 515), (2, 300, 515), (7, 66, 4100), (66, 7, 4100), (1, 700, 600), (700, 1, 600),
]
SCALARS = [(1.0, 0.0), (-1.5, 0.5), (0.75, 1.0), (1.0, -1.0), (0.0, 2.0), (2.0, -0.0), (0.0, 0.0)]
GAPS = [(0, 0, 0), (3, 1, 2), (1, 0, 5), (16, 16, 16)]
"""

PROGRAM = (
    COMMON
    + EDGES
    + """
assert info()["instruction_set"] == sys.argv[1], info()
count = 0
for row in ROWS:
    engines.set_kernel(handle, row)
    for shape in SHAPES:
        for pair in ("NN", "NT", "TN", "TT"):
            (alpha, beta), gap = SCALARS[count % 7], GAPS[count % 4]
            p = Product(*shape, pair[0], pair[1], alpha, beta, "FC"[count % 2], gap, (count % 3, count % 5, count % 16))
            Problem(p).solve(cpu, handle)
            count += 1
    for pair in ("NN", "NT", "TN", "TT"):
        for shape, batch in (((8, 8, 8), 37), ((5, 7, 9), 3), ((70, 20, 30), 11), ((16, 33, 300), 5)):
            (alpha, beta), gap = SCALARS[count % 7], GAPS[count % 4]
            p = Product(*shape, pair[0], pair[1], alpha, beta, gap=gap, batch=batch, pointers=count % 3 == 0)
            Problem(p).solve(cpu, handle)
            if not p.pointers:
                m, n, k = shape
                Problem(p.but(stride=(0, -(k + gap[1]) * (n + gap[1] + k), None))).solve(cpu, handle)
            count += 1
print(count)
"""
)


@pytest.mark.parametrize("asked", SETS)
def test_rows_under_each_instruction_set(prints, asked):
    printed = prints(PROGRAM, expected_set(asked), PYBLAS_SGEMM_CPU=asked, timeout=300)
    assert int(printed) == len(ROWS) * 4 * (24 + 4)


def test_an_empty_instruction_set_is_no_wish(prints):
    assert prints(COMMON + 'print(info()["instruction_set"])', PYBLAS_SGEMM_CPU="") == expected_set("avx512")


def test_the_check_sees_faults(cpu, cpu_handle):
    """Each kind of damage that the tests of rows look for is found when it is there."""
    problem = Problem(Product(20, 30, 40, beta=0.0, gap=(1, 1, 3)))
    blocks = problem.blocks(cpu)
    assert problem.call(cpu, cpu_handle, blocks) == SUCCESS, message()
    problem.check(blocks)
    first, last = problem.c.index[0, 0, 0], problem.c.index[0, -1, -1]
    for buffer, place, value in (
        (2, last, np.nan),
        (2, first, 1e3),
        (2, last + 1, 0.0),
        (0, problem.a.index[0, 0, 0], 0.0),
    ):
        damaged = [block.copy() for block in blocks]
        damaged[buffer][place] = value
        with pytest.raises(AssertionError):
            problem.check(damaged)


# ---- memory --------------------------------------------------------------------------------------------------------

GUARDED = (
    COMMON
    + EDGES
    + """
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGE = mmap.PAGESIZE


def guarded(elements, at_end):
    # An array that ends where, or begins where, readable memory does.
    size = -(-elements * 4 // PAGE) * PAGE
    base = libc.mmap(None, size + 2 * PAGE, 0, 0x22, -1, 0)
    assert base not in (None, ctypes.c_void_p(-1).value)
    assert libc.mprotect(base + PAGE, size, 3) == 0
    start = base + PAGE + (size - elements * 4 if at_end else 0)
    return np.frombuffer((ctypes.c_float * elements).from_address(start), dtype=np.float32)


if len(sys.argv) > 1:  # to see that the guard bites
    block = guarded(100, True)
    print(block[99])
    print(ctypes.c_float.from_address(block.ctypes.data + 400).value)

rng = np.random.default_rng(5)
count = 0
for row in ROWS:
    engines.set_kernel(handle, row)
    for m, n, k in SHAPES:
        for pair in ("NN", "NT", "TN", "TT"):
            gap = count % 3
            a_shape = (m, k) if pair[0] == "N" else (k, m)
            b_shape = (k, n) if pair[1] == "N" else (n, k)
            arrays, lds = [], []
            for rows, columns in (a_shape, b_shape, (m, n)):
                ld = rows + gap
                arrays.append(guarded((columns - 1) * ld + rows, count % 2 == 0))
                lds.append(ld)
            a, b, c = arrays
            for x in arrays:
                x[:] = rng.integers(-4, 5, x.size)
            at = lambda x, ld, shape: np.lib.stride_tricks.as_strided(x, shape, (4, 4 * ld)).astype(np.float64)
            op = lambda x, t: x if t == "N" else x.T
            beta = (0.0, 1.0)[count % 2]
            want = op(at(a, lds[0], a_shape), pair[0]) @ op(at(b, lds[1], b_shape), pair[1]) + beta * at(c, lds[2], (m, n))
            arguments = dict(transa=engines.OPS[pair[0]], transb=engines.OPS[pair[1]], m=m, n=n, k=k, alpha=1.0,
                             beta=beta, A=a.ctypes.data, B=b.ctypes.data, C=c.ctypes.data,
                             lda=lds[0], ldb=lds[1], ldc=lds[2])
            assert engines.invoke("sgemm", handle, arguments) == SUCCESS, message()
            assert (at(c, lds[2], (m, n)) == want).all(), (row, m, n, k, pair)
            count += 1
            for x in arrays:
                start = x.ctypes.data // PAGE * PAGE
                libc.munmap(ctypes.c_void_p(start - PAGE), ctypes.c_size_t(-(-x.size * 4 // PAGE) * PAGE + 2 * PAGE))
print(count)
"""
)


@pytest.mark.parametrize("asked", SETS)
def test_nothing_is_read_outside_the_operands(prints, asked):
    printed = prints(GUARDED, PYBLAS_SGEMM_CPU=asked, timeout=300)
    assert int(printed) == len(ROWS) * 24 * 4


def test_the_guard_bites(python):
    done = python(GUARDED, "touch")
    assert done.returncode == -signal.SIGSEGV, (done.returncode, done.stderr)
    assert done.stdout == "" or done.stdout.split() == ["0.0"]


@pytest.mark.parametrize("offset", [0, 4, 1], ids=["64 bytes", "16 bytes", "4 bytes"])
@pytest.mark.parametrize(
    "product",
    [
        Product(16, 16, 16, batch=17000),
        Product(128, 128, 8, batch=270),
        Product(2100, 2112, 5, alpha=2.0),
        Product(2112, 2000, 300, "T", gap=(0, 0, 16)),
        Product(32, 16, 7, batch=8500, beta=1.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("row", ["cpu_small", "cpu_packed"])
def test_results_larger_than_a_cache(cpu, cpu_handle, row, product, offset):
    """They are written past the caches where their alignment allows it."""
    engines.set_kernel(cpu_handle, row)
    Problem(product.but(offset=(0, 0, offset))).solve(cpu, cpu_handle)


FAR = (
    COMMON
    + """
# Leading dimensions and strides beyond 32 bits on memory that is reserved but hardly used.
def far(elements):
    return np.frombuffer(mmap.mmap(-1, elements * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000), np.float32)

ld = 2**31 + 5
a, b, c = far(ld + 8), np.arange(6, dtype=np.float32), far(2 * ld + 8)
a[:3], a[ld : ld + 3] = (1, 2, 3), (4, 5, 6)
c[: 2 * ld + 3 : ld] = np.nan
arguments = dict(transa=0, transb=0, m=3, n=3, k=2, alpha=1.0, beta=0.0, A=a.ctypes.data, B=b.ctypes.data,
                 C=c.ctypes.data, lda=ld, ldb=2, ldc=ld)
for row in [None, *ROWS]:
    engines.set_kernel(handle, row)
    status = engines.invoke("sgemm", handle, arguments, wide=True)
    if row == "cpu_blas":
        assert status == NOT_SUPPORTED and "32 bits" in message(), (status, message())
        continue
    assert status == SUCCESS, message()
    for j in range(3):
        assert (c[j * ld : j * ld + 3] == b[2 * j] * a[:3] + b[2 * j + 1] * a[ld : ld + 3]).all(), (row, j)
    c[: 2 * ld + 3 : ld] = np.nan
arguments |= dict(lda=3, ldc=3, strideA=ld, strideB=0, strideC=ld, batchCount=2, n=2, k=1)
for row in [None, *ROWS]:
    engines.set_kernel(handle, row)
    assert engines.invoke("gemm_strided_batched", handle, arguments, wide=True) == SUCCESS, message()
    assert (c[ld : ld + 6] == np.outer([0, 2], [4, 5, 6]).ravel()).all(), (row, c[ld : ld + 6])
print("right")
"""
)


def test_distances_beyond_32_bits(prints):
    assert prints(FAR) == "right"


# ---- threads -------------------------------------------------------------------------------------------------------

# Each is large enough for several threads: tiles, strips, pieces of k, batches.
SHARED = [
    Product(513, 259, 1031),
    Product(900, 700, 600, "T", "T", 0.5, 0.5),
    Product(8, 3000, 1500),
    Product(3000, 8, 1500, "N", "T"),
    Product(1, 4000, 900, "T", "N"),
    Product(4000, 1, 900),
    Product(33, 33, 60000, "T", "N"),
    Product(32, 32, 32, batch=300),
    Product(130, 70, 64, "N", "T", 1.0, 1.0, batch=40),
]


@pytest.mark.parametrize("product", SHARED, ids=str)
@pytest.mark.parametrize("row", [None, *ROWS])
def test_bits_do_not_depend_on_threads(cpu, cpu_handle, row, product):
    engines.set_kernel(cpu_handle, row)
    problem = Problem(product)
    results = []
    try:
        for threads in (1, 0, 1, 0):
            assert lib.pyblasSetNumThreads(threads) == SUCCESS, message()
            blocks = problem.blocks(cpu)
            assert problem.call(cpu, cpu_handle, blocks) == SUCCESS, message()
            results.append(blocks[2].tobytes())
    finally:
        assert lib.pyblasSetNumThreads(0) == SUCCESS
    problem.check(blocks)
    assert len(set(results)) == 1


def test_threads_start_for_large_work_only(prints):
    """J6: nothing that is done in microseconds starts or wakes a thread; a thread is there when it is worth it."""
    printed = prints(
        COMMON
        + """
before = threads()
for n in (1, 8, 32, *range(90, 111)):
    product(n)
product(1, 2, 4000, transa="T", order="F")
product(8, batch=100)
assert threads() == before, (before, threads())
product(600)
print(threads() - before, min(len(os.sched_getaffinity(0)), lib.pyblasGetNumThreads()) - 1)
"""
    )
    started, wanted = map(int, printed.split())
    assert (started > 0) == (wanted > 0) and started <= wanted


def test_no_more_threads_than_processors(prints):
    printed = prints(
        COMMON
        + """
one = {min(os.sched_getaffinity(0))}
most = lib.pyblasGetNumThreads()
assert 1 <= most <= len(os.sched_getaffinity(0))
for asked in (1, 256, 100000, 0):
    assert lib.pyblasSetNumThreads(asked) == SUCCESS, message()
    assert lib.pyblasGetNumThreads() == min(asked or most, most), asked
assert lib.pyblasSetNumThreads(-1) == engines.INVALID_VALUE and "threads" in message()
assert lib.pyblasGetNumThreads() == most
os.sched_setaffinity(0, one)
assert lib.pyblasGetNumThreads() == 1
before = threads()
product(600)
assert threads() == before
print(facts.threads if lib.pyblasCpuInfo(facts) == SUCCESS else None)
""",
    )
    assert printed == "1"


@pytest.mark.parametrize("asked, wanted", [("1", 1), ("256", 0), ("9" * 30, 0), ("0", 0), ("", 0)])
def test_threads_from_the_environment(prints, asked, wanted):
    program = COMMON + "product(600)\nprint(lib.pyblasGetNumThreads())"
    assert int(prints(program, PYBLAS_SGEMM_THREADS=asked)) == (wanted or lib.pyblasGetNumThreads())


@pytest.mark.parametrize(
    "variable, wrong", [("THREADS", "many"), ("THREADS", "-1"), ("THREADS", "1e3"), ("CPU", "AVX2")]
)
def test_wrong_settings_of_the_engine(prints, variable, wrong):
    """They do not pass for another setting: 1e3 is not one thread."""
    program = """
import engines
handle = engines.ffi.new("pyblasHandle_t *")
assert engines.lib.pyblasCreateCpu(handle) == engines.INVALID_VALUE
print(engines.ffi.string(engines.lib.pyblasGetLastErrorMessage()).decode())
"""
    told = prints(program, **{f"PYBLAS_SGEMM_{variable}": wrong})
    assert told.startswith(f"environment variable PYBLAS_SGEMM_{variable} is '{wrong}', must be ")


def test_m8_two_hundred_callers(prints):
    """More callers than any BLAS has places for: all are served, the process lives."""
    printed = prints(
        COMMON
        + """
rows = ROWS[-1], ROWS[-2]
known = {}
for row in rows:
    engines.set_kernel(handle, row)
    known[row] = Known(256, 200, 120)
wrong, start = [], threading.Barrier(200)
def work(row):
    mine = cpu.handle()
    engines.set_kernel(mine, row)
    start.wait()
    try:
        for _ in range(3):
            known[row].again(mine)
    except BaseException as error:
        wrong.append(error)
    lib.pyblasDestroy(mine)
callers = [threading.Thread(target=work, args=(rows[i % 2],)) for i in range(200)]
for caller in callers: caller.start()
for caller in callers: caller.join()
assert not wrong, wrong[0]
print("served")
""",
        timeout=300,
    )
    assert printed == "served"


def test_fork_while_other_threads_compute(prints):
    """The child neither hangs nor computes wrong, wherever the parent's other threads were."""
    printed = prints(
        COMMON
        + """
import signal
cases = [Known(300, 300, 300), Known(8, 8, 8), Known(1000, 1000, 50), Known(32, 32, 32, batch=300)]
engines.set_kernel(handle, "cpu_blas")
by_blas = Known(300, 300, 300)
engines.set_kernel(handle, None)
stop = threading.Event()
def work(case, row):
    mine = cpu.handle()
    engines.set_kernel(mine, row)
    while not stop.is_set():
        case.again(mine)
busy = [threading.Thread(target=work, args=a, daemon=True) for a in ((cases[0], None), (by_blas, "cpu_blas"), (cases[1], None))]
for thread in busy: thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        for case in cases: case.again(handle)
        engines.set_kernel(handle, "cpu_blas")
        by_blas.again(handle)
        # The parent's helpers are not here: the child has made its own.
        os._exit(0 if (threads() > 1) == (lib.pyblasGetNumThreads() > 1) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
for thread in busy: thread.join()
print("alive")
""",
        timeout=300,
    )
    assert printed == "alive"


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os.kill(os.getpid(), 15)"])
def test_exit_with_a_daemon_thread_inside_a_call(python, end):
    program = (
        COMMON
        + """
import time
def work():
    mine = cpu.handle()
    problem = Problem(Product(700, 700, 700))
    blocks = problem.blocks(cpu)
    while True:
        problem.call(cpu, mine, blocks)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
"""
        + end
    )
    done = python(program)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM if "kill" in end else 0, "", "")


INVARIANT = (
    COMMON
    + """
from pyblas_sgemm import Handle, sgemm
assert info()["instruction_set"] == sys.argv[1], info()
rng = np.random.default_rng(7)
handles = []
for row in ROWS:
    candidate = Handle(kernel=row, batch_invariant=True)
    try:
        sgemm("N", "N", 1, 1, 1, 1, *(np.ones((1, 1), np.float32), 1) * 2, 0, np.ones((1, 1), np.float32), 1, handle=candidate)
        handles.append(candidate)
    except pyblas_sgemm.NotSupportedError:
        assert row in ("cpu_naive", "cpu_blas"), row
handles.append(Handle(batch_invariant=True))
count = 0
# Sums of one piece and of many, tiles of every height, copies and none, results for one thread and for several.
for m, n, k in ((70, 50, 30), (1100, 300, 300), (40, 33, 20000), (8, 1500, 1200), (300, 1, 2000), (1, 1, 70000)):
    for pair in ("NN", "NT", "TN", "TT"):
        for order in "CF":
            lay = np.ascontiguousarray if order == "C" else np.asfortranarray
            x, y, z = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (k, n), (m, n)))
            a, b = lay(x if pair[0] == "N" else x.T), lay(y if pair[1] == "N" else y.T)
            ld = lambda v: v.shape[1 if order == "C" else 0]
            def rows_of(first, number, by):
                c = lay(z.copy())
                part = slice(first, first + number)
                sgemm(*pair, number, n, k, -0.75, a[part] if pair[0] == "N" else a[:, part], ld(a), b, ld(b), 1.5,
                      c[part], ld(c), order=order, handle=by)
                return c[part].view(np.int32)
            want = rows_of(0, m, handles[-1])
            for by in handles:
                for threads in (1, 0):
                    assert lib.pyblasSetNumThreads(threads) == SUCCESS
                    assert (rows_of(0, m, by) == want).all(), (by, m, n, k, pair, order, threads)
                for first, number in ((0, 1), (m - 1, 1), (m // 3, m - m // 3), (m // 2, 17)):
                    if first + number <= m:
                        got = rows_of(first, number, by)
                        assert (got == want[first : first + number]).all(), (by, m, n, k, pair, order, first, number)
                        count += 1
print(len(handles), count > 500)
"""
)


@pytest.mark.parametrize("asked", SETS)
def test_batch_invariant_under_each_instruction_set(prints, asked):
    """All rows that keep it give one another's bits, for rows alone and together, whoever computes them."""
    assert prints(INVARIANT, expected_set(asked), PYBLAS_SGEMM_CPU=asked, timeout=300) == "4 True"


# ---- the BLAS ------------------------------------------------------------------------------------------------------


def test_info_names_the_blas():
    facts = ffi.new("pyblasCpuInfo_t *")
    assert lib.pyblasCpuInfo(facts) == SUCCESS
    assert ffi.string(facts.blas), "no BLAS was found though scipy-openblas32 is a dependency"
    assert "openblas" in ffi.string(facts.blas).decode().lower()
    assert Path(ffi.string(facts.blas_path).decode()).is_file()


def test_without_a_blas(prints):
    printed = prints(
        COMMON
        + """
assert info() == {"instruction_set": info()["instruction_set"], "blas": "", "blas_path": ""}, info()
product(700, 520, 600, gap=(1, 2, 3))
engines.set_kernel(handle, "cpu_blas")
problem = Problem(Product(20, 20, 20))
assert problem.call(cpu, handle, problem.blocks(cpu)) == NOT_SUPPORTED
print(message())
""",
        PYBLAS_SGEMM_BLAS_LIB="none",
    )
    assert "cpu_blas" in printed and "BLAS" in printed


@pytest.mark.parametrize("file", ["/nowhere/libblas.so", "libm.so.6"])
def test_a_named_file_that_is_no_blas_is_told(prints, file):
    printed = prints(COMMON + "print(info()); product(600)", PYBLAS_SGEMM_BLAS_LIB=file)
    facts = eval(printed)  # the repr of a dictionary, printed by the program above
    assert facts["blas"] == "" and file in facts["blas_path"]


def test_set_blas_library(prints):
    printed = prints(
        COMMON
        + """
path = info()["blas_path"]
assert lib.pyblasSetBlasLibrary(b"/nowhere/libblas.so") == NOT_SUPPORTED and path in message(), message()
assert lib.pyblasSetBlasLibrary(b"x" * 5000) == engines.INVALID_VALUE
assert info()["blas_path"] == path
product(600)
print("kept")
"""
    )
    assert printed == "kept"


# ---- selection -----------------------------------------------------------------------------------------------------


def test_every_row_but_the_naive_one_wins_somewhere(cpu_handle):
    """With 512-bit vectors the BLAS does not: the own kernels are ahead of it at every size."""
    sizes = [(8, 8, 8, 1), (200, 200, 200, 1), (8, 4096, 4096, 1), (4096, 1, 4096, 1), (2048, 2048, 2048, 1),
             (600, 600, 600, 1), (128, 128, 64, 384)]  # fmt: skip
    won = {engines.selected(cpu_handle, a, b, *size)[0] for size in sizes for a in "NT" for b in "NT"}
    facts = ffi.new("pyblasCpuInfo_t *")
    assert lib.pyblasCpuInfo(facts) == SUCCESS, message()
    beaten = {"cpu_blas"} if ffi.string(facts.instruction_set) == b"avx512" else set()
    assert won == set(ROWS) - {"cpu_naive"} - beaten, won
