"""The two places where products run, behind one set of verbs, and the C entries called without any Python between."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from pyblas_sgemm._cffi import ffi, lib

OPS = {"N": 0, "T": 1, "C": 2}
MODES = {"fp32": 68, "fp32_pedantic": 69, "tf32": 77}
SUCCESS, NOT_INITIALIZED, ALLOC_FAILED, INVALID_VALUE, NOT_SUPPORTED = 0, 1, 3, 7, 15

# The caller's arguments of each product, in order: position + 1 is the number that messages name.
_FRONT = ["transa", "transb", "m", "n", "k", "alpha"]
ARGUMENTS = {
    "sgemm": [*_FRONT, "A", "lda", "B", "ldb", "beta", "C", "ldc"],
    "gemm_strided_batched": [
        *_FRONT, "A", "lda", "strideA", "B", "ldb", "strideB", "beta", "C", "ldc", "strideC", "batchCount",
    ],
    "gemm_batched": [*_FRONT, "Aarray", "lda", "Barray", "ldb", "beta", "Carray", "ldc", "batchCount"],
}  # fmt: skip
_FUNCTIONS = {
    "sgemm": "pyblasSgemm",
    "gemm_strided_batched": "pyblasSgemmStridedBatched",
    "gemm_batched": "pyblasSgemmBatched",
}
_POINTERS = {"A", "B", "C", "Aarray", "Barray", "Carray"}


def invoke(entry, handle, arguments, order="F", wide=False):
    """Calls the C function and returns its status. Pointers are addresses, 0 is NULL; alpha and beta are numbers, None
    for NULL, or an address that a ("device", address) pair holds."""
    function = getattr(lib, _FUNCTIONS[entry] + ("RowMajor" if order == "C" else "") + ("_64" if wide else ""))
    kept = []
    values = []
    for name in ARGUMENTS[entry]:
        value = arguments[name]
        if name in ("alpha", "beta"):
            if value is None:
                value = ffi.NULL
            elif isinstance(value, tuple):
                value = ffi.cast("float *", value[1])
            else:
                value = ffi.new("float *", value)
                kept.append(value)
        elif name in _POINTERS:
            value = ffi.cast("void *", value)
        values.append(value)
    return function(handle, *values)


def message():
    return ffi.string(lib.pyblasGetLastErrorMessage()).decode()


def driver_is_started():
    """Whether this process has called cuInit. NVML may load libcuda, to ask its version, and does not start it."""
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount
    except OSError:
        return False
    not_initialized = 3
    return ask(ctypes.byref(ctypes.c_int())) != not_initialized


OF_PLANES = ("wgmma_", "mma_split_", "mma_planes_")  # how names of kernels begin that split numbers for tensor cores


def kernel_rows(types="float32"):
    """Name, engine, modes and least architecture of the kernels for matrices of a type; None: of the whole table."""
    rows = []
    info = ffi.new("pyblasKernelInfo_t *")
    while lib.pyblasKernelName(len(rows)) != ffi.NULL:
        assert lib.pyblasKernelInfo(len(rows), info) == SUCCESS
        name, engine, modes, takes = (
            ffi.string(text).decode() for text in (info.name, info.engine, info.modes, info.types)
        )
        rows.append((name, engine, modes.split(), info.min_sm, takes.split()))
    return [row[:4] for row in rows if types is None or types in row[4]]


def set_kernel(handle, name):
    status = lib.pyblasSetKernel(handle, ffi.NULL if name is None else name.encode())
    assert status == SUCCESS, message()


def selected(handle, transa, transb, m, n, k, batch=1):
    name, reason = ffi.new("const char **"), ffi.new("const char **")
    status = lib.pyblasSelectedKernel(handle, OPS[transa], OPS[transb], m, n, k, batch, name, reason)
    assert status == SUCCESS, message()
    return ffi.string(name[0]).decode(), ffi.string(reason[0]).decode()


class Engine:
    """Memory and handles of one place. Arrays are flat blocks of float32 that start on 64 bytes or better."""

    def handle(self):
        slot = ffi.new("pyblasHandle_t *")
        status = self._create(slot)
        assert status == SUCCESS, message()
        return slot[0]


class Cpu(Engine):
    name = "cpu"
    xp = np

    def _create(self, slot):
        return lib.pyblasCreateCpu(slot)

    def array(self, host):
        """A copy of any NumPy array, with its layout."""
        return host.copy(order="K")

    def numpy(self, array):
        return array

    def block(self, words):
        room = np.empty(words.size + 16, dtype=np.float32)
        skip = (-room.ctypes.data // 4) % 16
        block = room[skip : skip + words.size]
        block[...] = words
        return block

    def host(self, block):
        return block

    def address(self, block):
        return block.ctypes.data

    def table(self, addresses):
        """An array of pointers as the batched entry takes it."""
        return np.array(addresses, dtype=np.uintp)

    def synchronize(self):
        pass

    def cublas(self, a, b):
        return None


class Gpu(Engine):
    name = "gpu"

    def __init__(self):
        import cupy

        self.xp = cupy

    def _create(self, slot):
        return lib.pyblasCreate(slot)

    def array(self, host):
        if host.flags.f_contiguous and not host.flags.c_contiguous:
            return self.xp.asarray(host.T).T
        return self.xp.asarray(host)

    def numpy(self, array):
        return self.xp.asnumpy(array)

    def block(self, words):
        # Through integers: nothing on the way may touch the payload of a NaN.
        return self.xp.asarray(np.ascontiguousarray(words).view(np.uint32)).view(np.float32)

    def host(self, block):
        return self.xp.asnumpy(block.view(np.uint32)).view(np.float32)

    def address(self, block):
        return block.data.ptr

    def table(self, addresses):
        return self.xp.asarray(np.array(addresses, dtype=np.uint64))

    def synchronize(self):
        self.xp.cuda.Device().synchronize()

    def cublas(self, a, b):
        """a @ b by cublasSgemm, None where there is no cuBLAS."""
        try:
            from cupy.cuda import cublas
        except ImportError:
            return None
        (m, k), n = a.shape, b.shape[1]
        x, y = (self.xp.asarray(np.ascontiguousarray(matrix)) for matrix in (a, b))
        z = self.xp.empty((m, n), dtype=np.float32)
        scalars = np.array([1, 0], dtype=np.float32)
        one, zero = scalars.ctypes.data, scalars.ctypes.data + 4
        # Row-major operands in the other order: what column-major cuBLAS sees is the transposed product.
        handle = self.xp.cuda.device.get_cublas_handle()
        cublas.sgemm(handle, 0, 0, n, m, k, one, y.data.ptr, n, x.data.ptr, k, zero, z.data.ptr, n)
        return self.xp.asnumpy(z)


class GpuWithHostTables(Gpu):
    """Matrices on the GPU, the arrays of pointers to them in host memory: for array mode HOST."""

    def table(self, addresses):
        return np.array(addresses, dtype=np.uintp)

    def address(self, block):
        return block.ctypes.data if isinstance(block, np.ndarray) else super().address(block)


@cache
def named(name):
    return Cpu() if name == "cpu" else Gpu()
