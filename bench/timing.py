"""Seconds on the device, and the two libraries that are timed, called through C in the same way."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import math
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cupy as cp

GROUP_SECONDS = 3e-3  # a group lasts at least this long: events tick in half microseconds
MOST_LAUNCHES = 2000  # in one group
GROUPS = 9
# A GPU that multiplies for long lowers its clock to stay within its power. A group that lasts longer than that begins
# on a rested GPU, unless the product is to be timed under load.
LONG_SECONDS, REST_SECONDS = 8e-3, 0.2
CUBLAS_TF32_TENSOR_OP_MATH = 3
COMPUTE_MODES = {"fp32": 68, "fp32_pedantic": 69, "tf32": 77}  # pyblasComputeType_t


@dataclass(frozen=True)
class Shape:
    """A row-major product, ops as "NT", or batch of them, without gaps. Interleaved, the first rows of all its matrices
    lie side by side, then the second ones, as with heads in (token, head, dim)."""

    ops: str
    m: int
    n: int
    k: int
    batch: int = 1
    interleaved: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Elements of one A, B and C."""
        return self.m * self.k, self.k * self.n, self.m * self.n

    @property
    def bytes(self) -> int:
        return 4 * self.batch * sum(self.sizes)

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        batch = f"{self.batch} of " if self.batch > 1 else ""
        layout = " interleaved" if self.interleaved else ""
        return f"{batch}{self.m}x{self.n}x{self.k} {self.ops}{layout}"


@dataclass(frozen=True)
class Timing:
    median: float
    low: float
    high: float
    launches: int


class LibraryError(RuntimeError):
    pass


class Gemm:
    """One library's Sgemm and SgemmStridedBatched on column-major matrices, alpha = 1, beta = 0."""

    def __init__(self, library: ctypes.CDLL, prefix: str, handle: ctypes.c_void_p, plain: str, batched: str) -> None:
        self.library, self.handle = library, handle
        integer, pointer, scalar = ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_float)
        self._plain = getattr(library, prefix + plain)
        self._plain.argtypes = [pointer, integer, integer, integer, integer, integer, scalar, pointer, integer, pointer,
                                integer, scalar, pointer, integer]  # fmt: skip
        self._batched = getattr(library, prefix + batched)
        self._batched.argtypes = [pointer, integer, integer, integer, integer, integer, scalar, pointer, integer,
                                  ctypes.c_longlong, pointer, integer, ctypes.c_longlong, scalar, pointer, integer,
                                  ctypes.c_longlong, integer]  # fmt: skip
        self._one, self._zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))

    def call(self, shape: Shape, a: int, b: int, c: int) -> None:
        """Row-major C = A B is column-major C' = B' A'."""
        ta, tb = (int(op == "T") for op in shape.ops)
        lda = shape.m if ta else shape.k
        ldb = shape.k if tb else shape.n
        rows, strides = (lda, ldb, shape.n), shape.sizes
        if shape.interleaved:
            strides = rows
            lda, ldb, ldc = (shape.batch * row for row in rows)
        else:
            ldc = shape.n
        if shape.batch == 1:
            status = self._plain(self.handle, tb, ta, shape.n, shape.m, shape.k, self._one, b, ldb, a, lda, self._zero,
                                 c, ldc)  # fmt: skip
        else:
            status = self._batched(self.handle, tb, ta, shape.n, shape.m, shape.k, self._one, b, ldb, strides[1], a,
                                   lda, strides[0], self._zero, c, ldc, strides[2], shape.batch)  # fmt: skip
        if status:
            raise LibraryError(f"{shape}: status {status}")


class Cublas(Gemm):
    """cublasSgemm in strict FP32: the default math mode never uses TF32, the mode tf32 asks for it."""

    def __init__(self, stream: cp.cuda.Stream, compute: str = "fp32") -> None:
        library = ctypes.CDLL(cublas_path())
        handle = ctypes.c_void_p()
        _check(library.cublasCreate_v2(ctypes.byref(handle)))
        _check(library.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr)))
        self.workspace = cp.empty(32 << 20, cp.uint8)  # cuBLAS's own size on Hopper; given, so that graphs may hold it
        _check(
            library.cublasSetWorkspace_v2(handle, ctypes.c_void_p(self.workspace.data.ptr), ctypes.c_size_t(32 << 20))
        )
        if compute == "tf32":
            _check(library.cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH))
        version = ctypes.c_int()
        _check(library.cublasGetVersion_v2(handle, ctypes.byref(version)))
        self.version = version.value
        super().__init__(library, "cublas", handle, "Sgemm_v2", "SgemmStridedBatched")


class Pyblas(Gemm):
    """This library, from the installed package."""

    def __init__(self, stream: cp.cuda.Stream) -> None:
        found = importlib.util.find_spec("pyblas_sgemm")
        if found is None or found.origin is None:
            raise LibraryError("pyblas_sgemm is not installed")
        library = ctypes.CDLL(str(Path(found.origin).parent / "lib" / "libpyblas_sgemm.so"))
        library.pyblasGetLastErrorMessage.restype = ctypes.c_char_p
        handle = ctypes.c_void_p()
        self.library = library
        self._check(library.pyblasCreate(ctypes.byref(handle)))
        self._check(library.pyblasSetStream(handle, ctypes.c_void_p(stream.ptr)))
        super().__init__(library, "pyblas", handle, "Sgemm", "SgemmStridedBatched")

    def set_modes(self, compute: str, batch_invariant: bool) -> None:
        self._check(self.library.pyblasSetComputeMode(self.handle, COMPUTE_MODES[compute]))
        self._check(self.library.pyblasSetBatchInvariant(self.handle, int(batch_invariant)))

    def force(self, kernel: str) -> None:
        self._check(self.library.pyblasSetKernel(self.handle, kernel.encode()))

    def free_workspace(self) -> None:
        """Each graph's too, none of which is launched again."""
        self._check(self.library.pyblasFreeWorkspace(self.handle))

    def selected(self, shape: Shape) -> str:
        return self.prediction(shape)[0]

    def prediction(self, shape: Shape) -> tuple[str, float]:
        """The kernel that would run, and its predicted seconds."""
        ta, tb = (int(op == "T") for op in shape.ops)
        name, reason = ctypes.c_char_p(), ctypes.c_char_p()
        long = ctypes.c_int64
        self._check(
            self.library.pyblasSelectedKernel(
                self.handle, tb, ta, long(shape.n), long(shape.m), long(shape.k), long(shape.batch),
                ctypes.byref(name), ctypes.byref(reason),
            )
        )  # fmt: skip
        told = re.search(r"([0-9.e+-]+) us", (reason.value or b"").decode())
        return (name.value or b"").decode(), float(told[1]) * 1e-6 if told else 0.0

    def call(self, shape: Shape, a: int, b: int, c: int) -> None:
        try:
            super().call(shape, a, b, c)
        except LibraryError as error:
            raise LibraryError(f"{error}: {self.library.pyblasGetLastErrorMessage().decode()}") from None

    def _check(self, status: int) -> None:
        if status:
            raise LibraryError(self.library.pyblasGetLastErrorMessage().decode())


def _check(status: int) -> None:
    if status:
        raise LibraryError(f"cuBLAS answers {status}")


def cublas_path() -> str:
    """libcublas of the nvidia wheels if they are there, otherwise the system's."""
    found = importlib.util.find_spec("nvidia")
    for folder in found.submodule_search_locations or [] if found else []:
        if paths := sorted(Path(folder).glob("**/libcublas.so.*")):
            return str(paths[-1])
    if name := ctypes.util.find_library("cublas"):
        return name
    raise LibraryError("libcublas is not here: pip install nvidia-cublas")


class Buffers:
    """Sets of operands of one shape, side by side, random, together larger than twice the L2 where memory allows."""

    def __init__(self, shape: Shape, l2_bytes: int, seed: int) -> None:
        self.shape = shape
        self.each = [(size * shape.batch + 63) // 64 * 64 for size in shape.sizes]
        together = 2 * l2_bytes / (4 * sum(self.each))
        # A set that is many times the L2 finds nothing of itself there.
        self.sets = max(1, min(MOST_LAUNCHES, math.ceil(together) + 1)) if together > 0.1 else 1
        random = cp.random.default_rng(seed)
        self.pool = cp.empty(self.sets * sum(self.each), cp.float32)
        for begin in range(0, self.pool.size, 1 << 28):
            part = self.pool[begin : begin + (1 << 28)]
            part[:] = random.standard_normal(part.size, dtype=cp.float32)
        cp.cuda.Device().synchronize()  # the products run on a stream of their own

    def pointers(self, index: int) -> tuple[int, int, int]:
        a = self.pool.data.ptr + 4 * sum(self.each) * (index % self.sets)
        return a, a + 4 * self.each[0], a + 4 * (self.each[0] + self.each[1])

    def error(self, seed: int) -> float:
        """||C - C64|| / ||C64|| of the first set, on some of its rows and batches."""
        shape, start = self.shape, 0
        stored = [(shape.k, shape.m) if shape.ops[0] == "T" else (shape.m, shape.k),
                  (shape.n, shape.k) if shape.ops[1] == "T" else (shape.k, shape.n), (shape.m, shape.n)]  # fmt: skip
        matrices = []
        for (rows, columns), each in zip(stored, self.each, strict=True):
            flat = self.pool[start : start + rows * columns * shape.batch]
            matrices.append(flat.reshape(rows, shape.batch, columns).transpose(1, 0, 2) if shape.interleaved
                            else flat.reshape(shape.batch, rows, columns))  # fmt: skip
            start += each
        choose = cp.random.default_rng(seed)
        difference = norm = 0.0
        for index in {0, shape.batch // 2, shape.batch - 1}:
            a, b, c = (stack[index] for stack in matrices)
            rows = cp.unique(choose.integers(0, shape.m, 128))
            a = a.T if shape.ops[0] == "T" else a
            exact = a[rows].astype(cp.float64) @ (b.T if shape.ops[1] == "T" else b).astype(cp.float64)
            difference += float(((c[rows] - exact) ** 2).sum())
            norm += float((exact**2).sum())
        return math.sqrt(difference / norm)


class Launches:
    """Launches of one kernel, launch(i) on set i of its operands, timed between two events."""

    def __init__(self, stream: cp.cuda.Stream, launch: Callable[[int], None], sets: int) -> None:
        self.stream, self.launch, self.sets = stream, launch, sets
        self.begin, self.end = cp.cuda.Event(), cp.cuda.Event()
        self.graph: cp.cuda.Graph | None = None
        self.count = 1
        with stream:
            launch(0)
            stream.synchronize()
        self.once = self.group()

    def capture(self) -> None:
        """A group is a graph from now on, so that the host's part of a call does not count."""
        sets = self.sets
        launches = max(1, min(MOST_LAUNCHES, max(sets if sets > 1 else 0, math.ceil(GROUP_SECONDS / self.once))))
        if launches > sets > 1:
            launches = math.ceil(launches / sets) * sets if launches < 4 * sets else launches
        with self.stream:
            self.stream.begin_capture()
            for index in range(launches):
                self.launch(index)
            self.graph, self.count = self.stream.end_capture(), launches
        self.group()

    def group(self) -> float:
        """Seconds of one launch."""
        with self.stream:
            self.begin.record(self.stream)
            if self.graph:
                self.graph.launch(self.stream)
            else:
                self.launch(1)
            self.end.record(self.stream)
            self.end.synchronize()
        return float(cp.cuda.get_elapsed_time(self.begin, self.end)) * 1e-3 / self.count


def time_groups(stream: cp.cuda.Stream, launch: Callable[[int], None], sets: int, loaded: float = 0.0) -> Timing:
    """Seconds of one launch: the median over groups.

    loaded: for so many seconds launches follow each other before the first group, and groups do without rests.
    """
    launches = Launches(stream, launch, sets)
    launches.capture()
    start = time.monotonic()
    while time.monotonic() - start < loaded:
        launches.group()
    rests = not loaded and launches.count * launches.once > LONG_SECONDS

    def group() -> float:
        if rests:
            time.sleep(REST_SECONDS)
        return launches.group()

    times = sorted(group() for _ in range(GROUPS))
    return Timing(statistics.median(times), times[0], times[-1], launches.count)


def gpu_facts() -> dict[str, str]:
    """Name, driver and clocks as found."""
    fields = ["name", "driver_version", "clocks.sm", "clocks.mem", "power.draw"]
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", "0"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    return dict(zip(["gpu", "driver", "sm_mhz", "memory_mhz", "watts"], answer, strict=True))
