"""The shim that programs preload for their BLAS: what it takes, what it passes on, and that nobody notices. Each test is
a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pyblas_sgemm import _cffi

LIBRARIES = Path(_cffi.__file__).parent / "lib"
SHIM = LIBRARIES / "libpyblas_blas_preload.so"
SOURCES = Path(__file__).parent / "native" / "shim"
CC = os.environ.get("CC", "cc")


@pytest.fixture
def record(tmp_path):
    """Where a process under the shim writes what it did, and how to read it."""

    class Record:
        path = tmp_path / "record"

        def lines(self):
            return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

        def count(self, **wanted):
            return sum(line["count"] for line in self.lines() if all(line[key] == wanted[key] for key in wanted))

        def environment(self, verify=0, least="1e5"):
            return {
                **({} if least is None else {"PYBLAS_SGEMM_MIN_FLOPS": least}),
                "LD_PRELOAD": " ".join(filter(None, (os.environ.get("LD_PRELOAD"), str(SHIM)))),
                "PYBLAS_SGEMM_REPORT": str(self.path),
                "PYBLAS_SGEMM_VERIFY": str(verify),
            }

    return Record()


# ---- NumPy and SciPy -----------------------------------------------------------------------------------------------

BOUND = """
import sys
import numpy as np

UNIT = 2.0**-24
rng = np.random.default_rng(7)


def check(c, a, b, alpha=1.0, beta=0.0, before=0.0):
    k = a.shape[-1]
    a, b, before = (np.asarray(x, dtype=np.float64) for x in (a, b, before))
    want = alpha * (a @ b) + beta * before
    bound = (k + 2) * UNIT * (abs(alpha) * (abs(a) @ abs(b)) + abs(beta * before)) + (k + 2) * 2.0**-149
    assert c.dtype == np.float32 and c.shape == want.shape
    assert (abs(c - want) <= bound).all(), (a.shape, b.shape, (abs(c - want) / bound).max())
"""

MIXED = (
    BOUND
    + """
def extent():
    return int(rng.choice([rng.integers(2, 9), rng.integers(9, 65), rng.integers(65, 300)], p=[0.3, 0.4, 0.3]))


def matrix(rows, columns):
    kind = rng.integers(4)
    if kind == 0:
        return rng.standard_normal((rows, columns), dtype=np.float32)
    if kind == 1:
        return rng.standard_normal((columns, rows), dtype=np.float32).T
    if kind == 2:  # part of a larger one
        return rng.standard_normal((rows + 3, columns + 5), dtype=np.float32)[1:-2, 2:-3]
    return np.asfortranarray(rng.standard_normal((rows, columns), dtype=np.float32))


for i in range(1000):
    m, n, k = extent(), extent(), extent()
    a, b = matrix(m, k), matrix(k, n)
    how = i % 3
    if how == 0:
        c = a @ b
    elif how == 1:
        c = np.dot(a, b)
    else:
        c = np.full((m, n), np.nan, dtype=np.float32)
        np.matmul(a, b, out=c)
    check(c, a, b)
"""
)


def test_numpy_1000_mixed_shapes(prints, record):
    assert prints(MIXED, **record.environment(verify=1), timeout=300) == ""
    lines = record.lines()
    assert record.count() == 1000
    assert len({line["entry"] for line in lines}) == 1
    taken = [line for line in lines if line["taken"]]
    assert sum(line["count"] for line in taken) > 300
    assert all(2 * line["m"] * line["n"] * line["k"] >= 100000 for line in taken)
    assert all(line["checked"] == line["count"] and line["worst_ratio"] <= 1 for line in taken)
    declined = [line for line in lines if not line["taken"]]
    assert {line["reason"] for line in declined} == {"less work than PYBLAS_SGEMM_MIN_FLOPS"}


@pytest.mark.parametrize("least, taken", [("0", 3), ("1e5", 2), ("1e300", 0)])
def test_least_work(prints, record, least, taken):
    program = BOUND + (
        "for n in (4, 50, 100):\n    a, b = rng.standard_normal((2, n, n), dtype=np.float32)\n    check(a @ b, a, b)\n"
    )
    prints(program, **record.environment(least=least))
    assert (record.count(taken=True), record.count(taken=False)) == (taken, 3 - taken)


def test_least_work_unless_it_is_said(prints, record):
    """More of it where an extent is small."""
    taken, passed_on = [(65, 65, 65), (64, 130, 130), (400, 8, 400)], [(30, 30, 30), (64, 120, 120), (2, 400, 400)]
    program = BOUND + (
        f"for m, n, k in {taken + passed_on}:\n"
        "    a = rng.standard_normal((m, k), dtype=np.float32)\n"
        "    b = rng.standard_normal((k, n), dtype=np.float32)\n"
        "    check(a @ b, a, b)\n"
    )
    prints(program, **record.environment(least=None))
    found = {line["m"] * line["n"] * line["k"]: line["taken"] for line in record.lines()}
    assert found == {m * n * k: (m, n, k) in taken for m, n, k in taken + passed_on}


def test_numpy_stacks_einsum_and_tensordot(prints, record):
    prints(
        BOUND
        + """
a, b = rng.standard_normal((5, 40, 30), dtype=np.float32), rng.standard_normal((5, 30, 50), dtype=np.float32)
check(a @ b, a, b)
check(np.tensordot(a[0], b[0], 1), a[0], b[0])
check(np.einsum("ik,kj->ij", a[1], b[1], optimize=True), a[1], b[1])
check(np.linalg.multi_dot([a[0], b[0]]), a[0], b[0])
special = a[0].copy()
special[3, 4], special[5, 6] = np.nan, np.inf
with np.errstate(invalid="ignore"):
    c = special @ b[0]
assert np.isnan(c[3]).all() and not np.isfinite(c[5]).any() and np.isfinite(c[[0, 1, 2, 4]]).all()
""",
        **record.environment(),
    )
    assert record.count(taken=True) == 9


def test_scipy_all_operations(prints, record):
    prints(
        BOUND
        + """
from scipy.linalg import blas
for m, n, k in ((3, 4, 5), (33, 65, 40), (200, 100, 150), (1, 600, 600)):
    for trans_a in (0, 1, 2):
        for trans_b in (0, 1):
            a = np.asfortranarray(rng.standard_normal((k, m) if trans_a else (m, k), dtype=np.float32))
            b = np.asfortranarray(rng.standard_normal((n, k) if trans_b else (k, n), dtype=np.float32))
            c = np.asfortranarray(rng.standard_normal((m, n), dtype=np.float32))
            out = blas.sgemm(1.5, a, b, beta=-0.5, c=c, trans_a=trans_a, trans_b=trans_b)
            check(out, a.T if trans_a else a, b.T if trans_b else b, 1.5, -0.5, c)
""",
        **record.environment(),
    )
    assert record.count() == 24
    assert record.count(taken=False) == 6
    assert {line["entry"][:5] for line in record.lines()} <= {"scipy", "sgemm"}


def test_what_is_not_a_product_of_floats_is_left_alone(prints, record):
    program = """
import hashlib
import numpy as np, scipy.linalg
rng = np.random.default_rng(1)
a = rng.standard_normal((150, 150))
x = a.astype(np.float32)
results = [a @ a, (a + 1j) @ a, x @ x[0], x @ x.T, np.linalg.inv(a), scipy.linalg.solve(a, a[0])]
print(hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest())
"""
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}
    assert prints(program, **one_thread) == prints(program, **one_thread, **record.environment())
    assert record.count() == 0


THREADS = (
    BOUND
    + """
import threading
pairs = [(rng.standard_normal((m, k), dtype=np.float32), rng.standard_normal((k, n), dtype=np.float32))
         for m, n, k in ((5, 6, 7), (50, 60, 70), (300, 200, 100), (2, 500, 500))]
faults = []

def work():
    try:
        for _ in range(20):
            for a, b in pairs:
                check(a @ b, a, b)
    except BaseException as error:
        faults.append(error)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not faults, faults
"""
)


def test_threads(prints, record):
    prints(THREADS, **record.environment())
    assert record.count(taken=True) == 8 * 20 * 3 and record.count(taken=False) == 8 * 20


def test_a_program_that_limits_its_blas_to_one_thread_limits_the_shim(prints, record):
    program = f"""
import ctypes
import numpy as np
from threadpoolctl import threadpool_limits
ours = ctypes.CDLL({str(LIBRARIES / "libpyblas_sgemm.so")!r})
a = np.ones((200, 200), np.float32)
a @ a
before = ours.pyblasGetNumThreads()
with threadpool_limits(1, user_api="blas"):
    a @ a
    assert ours.pyblasGetNumThreads() == 1
a @ a
assert ours.pyblasGetNumThreads() == before
"""
    prints(program, **record.environment())
    prints(program.replace("    assert ours.pyblasGetNumThreads() == 1\n", "    assert before == 1\n"),
           OMP_NUM_THREADS="1", **record.environment())  # fmt: skip
    assert record.count(taken=True) == 6


@pytest.mark.parametrize("device", ["cuda", "cuda:999", "999", "auto", "nonsense"])
def test_without_such_a_gpu_the_cpu_computes(prints, record, device):
    program = BOUND + "a, b = rng.standard_normal((2, 400, 400), dtype=np.float32)\ncheck(a @ b, a, b)\n"
    prints(program, PYBLAS_SGEMM_DEVICE=device, CUDA_VISIBLE_DEVICES="", **record.environment())
    assert [line["compute"] for line in record.lines()] == ["fp32"]


@pytest.mark.gpu
def test_products_of_host_memory_on_a_gpu(prints, record):
    prints(MIXED, PYBLAS_SGEMM_DEVICE="cuda", **record.environment(verify=1), timeout=300)
    taken = [line for line in record.lines() if line["taken"]]
    assert {line["compute"] for line in taken} == {"fp32 on GPU 0"}
    assert all(line["checked"] == line["count"] and line["worst_ratio"] <= 1 for line in taken)


@pytest.mark.gpu
def test_auto_sends_to_the_gpu_what_is_sooner_there(prints, record):
    program = """
import numpy as np
for n in (30, 60, 150, 4096):
    a = np.ones((n, n), np.float32)
    assert (a @ a == n).all()
"""
    prints(program, PYBLAS_SGEMM_DEVICE="auto", **record.environment())
    computed = {line["m"]: line["compute"] for line in record.lines()}
    assert computed == {30: "", 60: "fp32", 150: "fp32", 4096: "fp32 on GPU 0"}  # 30: left to the program's BLAS
    record.path.unlink()
    prints(program, PYBLAS_SGEMM_DEVICE="auto", PYBLAS_SGEMM_GPU_MIN_FLOPS="1e6", **record.environment())
    computed = {line["m"]: line["compute"] for line in record.lines()}
    assert computed == {30: "", 60: "fp32", 150: "fp32 on GPU 0", 4096: "fp32 on GPU 0"}


@pytest.mark.gpu
def test_fork_after_the_gpu(prints, record):
    program = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of fork with threads alive
import numpy as np
a = np.ones((300, 300), np.float32)
assert (a @ a == 300).all()
child = os.fork()
if child == 0:
    assert (a @ a == 300).all()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert (a @ a == 300).all()
"""
    prints(program, PYBLAS_SGEMM_DEVICE="cuda", **record.environment())
    computed = sorted((line["compute"], line["count"]) for line in record.lines())
    assert computed == [("fp32", 1), ("fp32 on GPU 0", 2)]


def test_fork(prints, record):
    prints(
        BOUND
        + """
import os, signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)
signal.alarm(60)
a, b = rng.standard_normal((2, 300, 300), dtype=np.float32)

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(error)
            os._exit(1)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0

in_child(lambda: check(a @ b, a, b))  # before the engine has started
check(a @ b, a, b)
in_child(lambda: [check(a @ b, a, b) for _ in range(3)])
check(a @ b, a, b)
""",
        **record.environment(),
    )
    assert record.count(taken=True) == 1 + 3 + 2
    assert len({line["pid"] for line in record.lines()}) == 3


DAEMONS = """
import threading, time
def forever():
    while True:
        a @ a
for _ in range(3):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.1)
sys.exit(21)
"""
EXITS = {
    "falls off the end": ("", 0),
    "sys.exit": ("sys.exit(17)", 17),
    "os._exit": ("import os; os._exit(9)", 9),
    "exit handlers": ("import atexit; atexit.register(lambda: a @ a); sys.exit(5)", 5),
    "daemons in a product": (DAEMONS, 21),
}


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("recording", [False, True])
def test_exit(python, record, how, recording):
    ending, status = EXITS[how]
    environment = record.environment(verify=2)
    if not recording:
        environment = {"LD_PRELOAD": environment["LD_PRELOAD"]}
    program = "import sys, numpy as np\na = np.ones((400, 400), np.float32)\na @ a\n" + ending
    done = python(program, **environment)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_the_package_itself_works_under_its_shim(prints, record):
    program = """
import numpy as np
import pyblas_sgemm
a = np.ones((300, 300), np.float32)
assert (pyblas_sgemm.matmul(a, a) == 300).all() and (a @ a == 300).all()
"""
    prints(program, **record.environment())
    prints(program, PYBLAS_SGEMM_KERNEL="cpu_blas", **record.environment())
    assert record.count() == 2


# ---- programs in C and Fortran -------------------------------------------------------------------------------------


def compiled(folder: Path, output: str, *arguments: object, compiler: str = CC) -> Path:
    command = [compiler, "-O1", "-o", folder / output, *arguments, "-lm"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / output


def ran(command, **environment):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYBLAS_SGEMM_")}
    done = subprocess.run(
        list(map(str, command)), env=variables | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def fake(tmp_path):
    return compiled(tmp_path, "libfake.so", "-shared", "-fPIC", SOURCES / "fake_blas.c")


@pytest.mark.parametrize("lengths", [(), ("-DFORTRAN_LENGTHS",)], ids=["no lengths", "hidden lengths"])
def test_a_program_linked_with_a_blas(tmp_path, record, fake, lengths):
    program = compiled(tmp_path, "program", *lengths, SOURCES / "blas_caller.c", fake, f"-Wl,-rpath,{tmp_path}")
    assert ran([program], **record.environment(verify=1)) == "right\n"
    for entry in ("sgemm_", "cblas_sgemm", "cblas_sgemm_batch_strided"):
        assert record.count(entry=entry, taken=True) == 4, entry
        assert record.count(entry=entry, taken=False) == 4, entry  # what the fake calls in turn is not counted
    assert all(line["worst_ratio"] <= 1 for line in record.lines())
    assert sum(line["checked"] for line in record.lines()) == 12


def test_a_program_whose_blas_is_the_shim_alone(tmp_path, record):
    program = compiled(tmp_path, "program", SOURCES / "blas_caller.c", SHIM, f"-Wl,-rpath,{LIBRARIES}")
    environment = record.environment()
    del environment["LD_PRELOAD"]
    assert ran([program], **environment) == "right\n"
    assert record.count(taken=True) == 24


def test_a_blas_loaded_for_a_plugin_only(tmp_path, prints, record, fake):
    """RTLD_LOCAL: no scope that the shim is in has the real functions."""
    plugin = compiled(tmp_path, "plugin.so", "-shared", "-fPIC", "-DPLUGIN", SOURCES / "blas_caller.c", fake,
                      f"-Wl,-rpath,{tmp_path}")  # fmt: skip
    program = """
import ctypes, sys
plugin = ctypes.CDLL(sys.argv[1], 0)
out = (ctypes.c_int * 3)()
assert plugin.call_all() == 0
plugin.counts(out)
print(*out)
"""
    said = prints(program, str(plugin), **record.environment())
    # The small calls: 4 of each; those of the batch are three CBLAS calls each, and those call sgemm_.
    assert said.split() == ["right", "20", "16", "4"]
    assert record.count(taken=True) == record.count(taken=False) == 12


def test_the_engines_own_blas_may_call_itself_by_public_names(tmp_path, prints, record, fake):
    """The fake's cblas_sgemm calls sgemm_, which leads to the shim, on the engine's threads too."""
    program = """
import numpy as np, pyblas_sgemm
pyblas_sgemm.info()
a = np.arange(700 * 700, dtype=np.float32).reshape(700, 700) % 7
assert (a @ a == a.astype(np.float64) @ a).all()
assert pyblas_sgemm.info()["cpu"]["blas_path"].endswith("libfake.so")
"""
    prints(program, PYBLAS_SGEMM_BLAS_LIB=str(fake), PYBLAS_SGEMM_KERNEL="cpu_blas", **record.environment())
    assert record.count(entry="scipy_cblas_sgemm64_", taken=True) <= 1
    assert record.count(taken=True) >= 1


FORTRAN = """
program caller
  implicit none
  external sgemm
  integer, parameter :: n = 60
  real :: a(n, n), b(n, n), c(n, n)
  integer :: i, j
  do j = 1, n
    do i = 1, n
      a(i, j) = real(mod(i * j, 7))
      b(i, j) = real(mod(i + j, 5))
    end do
  end do
  c = 1.0
  call sgemm('N', 'Transpose', n, n, n, 2.0, a, n, b, n, -1.0, c, n)
  if (all(c == 2.0 * matmul(a, transpose(b)) - 1.0)) print '(a)', 'right'
end program
"""


FORTRAN_COMPILERS = [name for name in ("gfortran", "flang", "ifx") if shutil.which(name)]

if FORTRAN_COMPILERS:  # elsewhere a C program that passes what they pass has to do

    @pytest.mark.parametrize("compiler", FORTRAN_COMPILERS)
    def test_a_fortran_program(tmp_path, record, fake, compiler):
        (tmp_path / "caller.f90").write_text(FORTRAN)
        link = (fake, f"-Wl,-rpath,{tmp_path}")
        program = compiled(tmp_path, "program", tmp_path / "caller.f90", *link, compiler=compiler)
        assert ran([program], **record.environment()).strip() == "right"
        assert record.count(entry="sgemm_", taken=True) == 1


# ---- wrong arguments -----------------------------------------------------------------------------------------------

CALLS = """
import ctypes, sys
import numpy as np

shim = ctypes.CDLL(None)
FORTRAN = {"sgemm_": 32, "sgemm": 32, "scipy_sgemm_": 32, "sgemm_64_": 64, "sgemm_64": 64, "scipy_sgemm_64_": 64}
CBLAS = {"cblas_sgemm": 32, "scipy_cblas_sgemm": 32, "cblas_sgemm64_": 64, "cblas_sgemm_64": 64,
         "scipy_cblas_sgemm64_": 64}
BATCH = {"cblas_sgemm_batch_strided": 32, "scipy_cblas_sgemm_batch_strided": 32, "cblas_sgemm_batch_strided64_": 64,
         "cblas_sgemm_batch_strided_64": 64, "scipy_cblas_sgemm_batch_strided64_": 64}
integer = {32: ctypes.c_int32, 64: ctypes.c_int64}
a, b = np.ones((2, 50, 50), np.float32)
c = np.full((50, 50), 7, np.float32)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def fortran(name, transa="N", transb="N", m=4, n=5, k=6, lda=50, ldb=50, ldc=50, alpha=1.0, beta=0.0):
    whole = integer[FORTRAN[name]]
    sizes = [ctypes.byref(whole(x)) for x in (m, n, k, lda, ldb, ldc)]
    scalars = [ctypes.byref(ctypes.c_float(x)) for x in (alpha, beta)]
    getattr(shim, name)(transa.encode(), transb.encode(), *sizes[:3], scalars[0], pointer(a), sizes[3], pointer(b),
                        sizes[4], scalars[1], pointer(c), sizes[5])


def cblas(name, layout=102, transa=111, transb=111, m=4, n=5, k=6, lda=50, ldb=50, ldc=50, alpha=1.0, beta=0.0):
    whole = integer[CBLAS[name]]
    getattr(shim, name)(layout, transa, transb, whole(m), whole(n), whole(k), ctypes.c_float(alpha), pointer(a),
                        whole(lda), pointer(b), whole(ldb), ctypes.c_float(beta), pointer(c), whole(ldc))


def batch(name, layout=102, transa=111, transb=111, m=4, n=5, k=6, lda=50, ldb=50, ldc=50, stride=10, count=2,
          stride_c=10, alpha=1.0, beta=0.0):
    whole = integer[BATCH[name]]
    getattr(shim, name)(layout, transa, transb, whole(m), whole(n), whole(k), ctypes.c_float(alpha), pointer(a),
                        whole(lda), whole(stride), pointer(b), whole(ldb), whole(stride), ctypes.c_float(beta),
                        pointer(c), whole(ldc), whole(stride_c), whole(count))


def untouched():
    assert (c == 7).all()
    sys.stderr.flush()
"""

FORTRAN_FAULTS = [
    ("transa='x'", 1), ("transb='?'", 2), ("m=-1", 3), ("n=-1", 4), ("k=-1", 5), ("lda=3", 8), ("transa='T', lda=5", 8),
    ("ldb=5", 10), ("transb='c', ldb=4", 10), ("ldc=3", 13), ("m=0, lda=0", 8), ("transa='!', m=-1, lda=0", 1),
]  # fmt: skip
CBLAS_FAULTS = [
    ("layout=100", 1), ("transa=110", 2), ("transb=115", 3), ("m=-1", 4), ("n=-1", 5), ("k=-1", 6), ("lda=3", "lda"),
    ("layout=101, lda=5", "lda"), ("layout=101, transa=112, lda=3", "lda"), ("ldb=5", "ldb"),
    ("layout=101, ldb=4", "ldb"), ("transb=113, ldb=4", "ldb"), ("ldc=3", "ldc"), ("layout=101, ldc=4", "ldc"),
    ("m=-1, n=-1", 4), ("layout=101, m=-1, n=-1", 5), ("layout=101, lda=1, ldb=1", "ldb"), ("lda=1, ldb=1", "lda"),
]  # fmt: skip
NUMBERS = {
    "cblas_sgemm": {"lda": 9, "ldb": 11, "ldc": 14},
    "cblas_sgemm_batch_strided": {"lda": 9, "ldb": 12, "ldc": 16},
}


def test_wrong_arguments_to_the_fortran_names(python, record):
    calls = "".join(f"    fortran(name, {fault})\n    untouched()\n" for fault, _ in FORTRAN_FAULTS)
    done = python(CALLS + f"for name in FORTRAN:\n{calls}print(len(FORTRAN))", **record.environment())
    assert (done.returncode, done.stdout) == (0, "6\n")
    expected = [
        f" ** On entry to SGEMM parameter number {number:2} had an illegal value" for _, number in FORTRAN_FAULTS
    ]
    assert done.stderr.splitlines() == expected * 6
    assert record.lines() == []


@pytest.mark.parametrize("routine, names", [("cblas_sgemm", "CBLAS"), ("cblas_sgemm_batch_strided", "BATCH")])
def test_wrong_arguments_to_the_cblas_names(python, record, routine, names):
    call = {"CBLAS": "cblas", "BATCH": "batch"}[names]
    faults = CBLAS_FAULTS + ([("count=-1", 18)] if names == "BATCH" else [])
    calls = "".join(f"    {call}(name, {fault})\n    untouched()\n" for fault, _ in faults)
    done = python(CALLS + f"for name in {names}:\n{calls}print(len({names}))", **record.environment())
    assert (done.returncode, done.stdout) == (0, "5\n")
    expected = []
    for fault, number in faults:
        number = NUMBERS[routine].get(number, number)
        expected.append(f"Parameter {number} to routine {routine} was incorrect")
        value = fault.split("=")[-1]
        expected += {1: [f"Illegal layout setting, {value}"], 2: [f"Illegal TransA setting, {value}"],
                     3: [f"Illegal TransB setting, {value}"]}.get(number, [])  # fmt: skip
    assert done.stderr.splitlines() == expected * 5
    assert record.lines() == []


def test_the_programs_own_handlers_are_called(tmp_path, python, record):
    (tmp_path / "own.c").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        "void xerbla_(const char *name, const int *number, size_t length) {\n"
        '    fprintf(stderr, "own: [%.*s] %d\\n", (int)length, name, *number);\n}\n'
        "void cblas_xerbla(int number, const char *routine, const char *form, ...) {\n"
        '    fprintf(stderr, "own: %s %d %s", routine, number, *form ? form : "\\n");\n}\n'
    )
    own = compiled(tmp_path, "own.so", "-shared", "-fPIC", tmp_path / "own.c")
    calls = (
        f"ctypes.CDLL({str(own)!r}, ctypes.RTLD_GLOBAL)\n"
        "fortran('sgemm_', lda=1)\ncblas('cblas_sgemm', ldb=1)\ncblas('cblas_sgemm', transb=9)\nuntouched()\n"
    )
    done = python(CALLS + calls, **record.environment())
    assert done.returncode == 0
    said = ["own: [SGEMM ] 8", "own: cblas_sgemm 11 ", "own: cblas_sgemm 3 Illegal TransB setting, %d"]
    assert done.stderr.splitlines() == said


def test_a_library_that_would_end_the_process_is_not_asked(python, record, fake):
    """Handlers of a BLAS are those of the reference, which stop."""
    calls = (
        f"ctypes.CDLL({str(fake)!r}, ctypes.RTLD_GLOBAL)\n"
        "fortran('sgemm_', lda=1)\ncblas('cblas_sgemm', ldb=1)\nuntouched()\nprint('alive')\n"
    )
    done = python(CALLS + calls, **record.environment())
    assert (done.returncode, done.stdout) == (0, "alive\n")
    assert "fake" not in done.stderr and len(done.stderr.splitlines()) == 2


def test_quick_returns_and_scaling(prints, record):
    """What the reference leaves alone stays as it is, with pointers that nobody may follow."""
    prints(
        CALLS
        + """
for name in FORTRAN:
    fortran(name, m=0)
    fortran(name, n=0)
    fortran(name, k=0, beta=1.0)
    fortran(name, alpha=0.0, beta=1.0)
for name in CBLAS:
    cblas(name, m=0)
    cblas(name, k=0, beta=1.0)
for name in BATCH:
    batch(name, count=0)
    batch(name, n=0)
untouched()
a[:] = np.nan
cblas("cblas_sgemm", m=50, n=50, k=50, alpha=0.0, beta=2.0)
assert (c == 14).all()
fortran("sgemm_", m=50, n=50, k=0, beta=0.5)
assert (c == 7).all()
cblas("cblas_sgemm", transa=114, m=50, n=50, k=50)  # as OpenBLAS has it
assert np.isnan(c).all()
""",
        **record.environment(),
    )


@pytest.mark.parametrize("name", ["sgemm_64_", "cblas_sgemm64_", "cblas_sgemm_batch_strided64_"])
def test_64_bit_integers_are_read_whole(python, record, name):
    """2^32 + 4 rows are more than a leading dimension of 50, where 4 would not be."""
    call = "fortran" if name.startswith("sgemm") else "batch" if "batch" in name else "cblas"
    done = python(CALLS + f"{call}({name!r}, m=2**32 + 4)\nuntouched()\n", **record.environment())
    assert done.returncode == 0
    assert "parameter number  8 " in done.stderr or "Parameter 9 " in done.stderr


def test_c_matrices_of_a_batch_that_overlap(tmp_path, prints, record, fake):
    """They are multiplied one after another: by the real library, or by ours where there is none."""
    calls = """
expected = np.full((50, 50), 7, np.float32)
for i in range(3):
    flat = expected.ravel()[i * 50:i * 50 + 40 * 50].reshape(40, 50)
    flat[:, :] = 50 * 1.0 + flat
batch("cblas_sgemm_batch_strided", m=50, n=40, k=50, count=3, stride=0, stride_c=50, beta=1.0)
assert (c == expected).all()
"""
    prints(CALLS + calls, **record.environment())
    assert record.count(taken=True) == 1
    record.path.unlink()
    prints(CALLS + f"ctypes.CDLL({str(fake)!r}, ctypes.RTLD_GLOBAL)\n" + calls, **record.environment())
    assert [line["reason"] for line in record.lines()] == ["the C matrices overlap"]


def test_every_exported_name_is_one_of_a_blas():
    said = subprocess.run(["nm", "-D", "--defined-only", SHIM], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in said.splitlines()}
    assert len(names) == 16 and all("sgemm" in name for name in names)
