"""Any array -> address, layout, device and stream; and whether C shares elements. Fakes stand for other libraries."""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import itertools
import sys
import types
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyblas_sgemm
from pyblas_sgemm import InvalidValueError, _arrays, _handle, _matmul, _sgemm
from pyblas_sgemm._arrays import Elements, View, view
from pyblas_sgemm._cffi import lib


class CudaArray:
    """What Numba and others show of an array on a GPU, around any address."""

    def __init__(self, shape, device=0, *, address=1 << 40, typestr="<f4", strides=None, readonly=False, stream=None):
        self.device = device
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (address, readonly),
            "version": 3,
            "strides": strides,
            "stream": stream,
        }

    def __dlpack_device__(self):
        return 2, self.device


class DLPackArray:
    """Shows a NumPy array's memory as a DLPack producer does that has no other interface."""

    def __init__(self, memory, kind=2, device=0, versioned=True, **lies):
        self.memory, self.kind, self.device, self.versioned, self.lies = memory, kind, device, versioned, lies
        self.streams = []

    def __dlpack_device__(self):
        return self.kind, self.device

    def __dlpack__(self, **arguments):
        if "max_version" in arguments and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(arguments.pop("stream", None))
        arguments.pop("dl_device", None)
        arguments.pop("copy", None)
        capsule = self.memory.__dlpack__(**arguments)
        tensor, _ = _arrays._read_capsule(capsule)
        tensor.device_type, tensor.device_id = self.kind, self.device
        for name, value in self.lies.items():
            setattr(tensor, name, value)
        return capsule


def floats(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# ---- views ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [floats(3, 4), floats(3, 4).T, floats(6, 8)[1::2, ::-2], floats(5)[::-1], np.array(3, np.float32), floats(0, 4)],
    ids=["c", "f", "steps", "reversed", "0-d", "empty"],
)
def test_numpy_array(x):
    seen = view(x, "x")
    assert (seen.address, seen.shape, seen.strides) == (x.ctypes.data, x.shape, x.strides)
    assert (seen.device, seen.library, seen.readonly, seen.size) == (None, "numpy", False, x.size)


def test_read_only_numpy_array():
    x = floats(3)
    x.flags.writeable = False
    assert view(x, "x").readonly


@pytest.mark.parametrize("make", [array.array, lambda code, values: memoryview(array.array(code, values))])
def test_buffer_protocol_shares_memory(make):
    x = make("f", [1, 2, 3])
    seen = view(x, "x")
    seen.array[1] = 7
    assert x[1] == 7 and seen.shape == (3,)


def test_memoryview_of_a_cast_buffer():
    raw = bytearray(24)
    x = memoryview(raw).cast("f", (2, 3))
    seen = view(x, "x")
    assert seen.shape == (2, 3) and not seen.readonly
    assert view(memoryview(bytes(24)).cast("f"), "x").readonly


@pytest.mark.parametrize(
    "x",
    [
        np.zeros(3),
        np.zeros(3, ">f4"),
        np.zeros(3, np.float16),
        np.zeros(3, np.int32),
        np.zeros(3, np.complex64),
        array.array("d", [1.0]),
        bytearray(12),
        b"abcd",
        [1.0, 2.0],
        1.0,
        None,
        object(),
        np.ma.masked_array(np.zeros(3, np.float32)),
        CudaArray((3,), typestr="<f8"),
        CudaArray((3,), typestr=">f4"),
        DLPackArray(np.zeros(3), kind=2),
        DLPackArray(np.zeros(3), kind=1),
        DLPackArray(np.zeros(3, np.float32), kind=8),
    ],
    ids=lambda x: type(x).__name__,
)
def test_anything_else_is_a_type_error_that_names_the_argument(x):
    with pytest.raises(TypeError, match=r"^sgemm: A "):
        view(x, "sgemm: A")


class Failing:
    """Raises when it is looked at through one interface."""

    def __init__(self, reason, **answers):
        self.reason = reason
        self.__dict__.update(answers)

    @property
    def __cuda_array_interface__(self):
        raise self.reason


class Exporter:
    """Answers to DLPack what it is told to."""

    def __init__(self, device=(2, 0), capsule=None):
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule


def cuda_array(**changes):
    x = CudaArray((2, 2))
    for name, value in changes.items():
        if value is KeyError:
            del x.__cuda_array_interface__[name]
        else:
            x.__cuda_array_interface__[name] = value
    return x


def released():
    x = memoryview(array.array("f", [1, 2]))
    x.release()
    return x


LIARS = {
    "no shape": cuda_array(shape=KeyError),
    "no typestr": cuda_array(typestr=KeyError),
    "no data": cuda_array(data=KeyError),
    "typestr is a list": cuda_array(typestr=["<f4"]),
    "data is None": cuda_array(data=None),
    "data of three": cuda_array(data=(1, 2, 3)),
    "address is text": cuda_array(data=("x", False)),
    "address below 0": cuda_array(data=(-4, False)),
    "address beyond 64 bits": cuda_array(data=(1 << 64, False)),
    "shape is a number": cuda_array(shape=4),
    "shape of floats": cuda_array(shape=(2.0, 2)),
    "shape below 0": cuda_array(shape=(-2, 2)),
    "shape beyond 64 bits": cuda_array(shape=(1 << 62, 1 << 62)),
    "strides for another shape": cuda_array(strides=(4,)),
    "strides of floats": cuda_array(strides=(8.0, 4.0)),
    "strides beyond 64 bits": cuda_array(strides=(1 << 70, 4)),
    "stream is text": cuda_array(stream="x"),
    "stream below 0": cuda_array(stream=-1),
    "device below 0": CudaArray((2, 2), device=-1),
    "device beyond 32 bits": CudaArray((2, 2), device=1 << 40),
    "device is None": CudaArray((2, 2), device=None),
    "interface is no dictionary": types.SimpleNamespace(__cuda_array_interface__=5),
    "interface raises": Failing(RuntimeError("gone")),
    "a released memoryview": released(),
    "DLPack device is None": Exporter(None),
    "DLPack device is text": Exporter("ab"),
    "DLPack device below 0": Exporter((2, -1)),
    "DLPack without a device": types.SimpleNamespace(__dlpack__=None),
    "DLPack capsule is None": Exporter(),
    "DLPack capsule is None, in host memory": Exporter((1, 0)),
    "DLPack capsule is None, in pinned memory": Exporter((3, 0)),
    "DLPack refuses": Exporter(capsule=BufferError("no")),
    "DLPack fails": Exporter(capsule=RuntimeError("no")),
    "DLPack on another device": DLPackArray(floats(2, 2), device_id=1),
    "DLPack in host memory after all": DLPackArray(floats(2, 2), device_type=1),
    "DLPack with dimensions below 0": DLPackArray(floats(2, 2), ndim=-1),
    "DLPack with vectors": DLPackArray(floats(2, 2), dtype_lanes=2),
    "DLPack beyond the last address": DLPackArray(floats(2, 2), byte_offset=(1 << 64) - 1),
}


@pytest.mark.parametrize("x", LIARS.values(), ids=LIARS)
def test_interfaces_that_make_no_sense_are_type_errors_that_name_the_argument(x):
    with pytest.raises(TypeError, match=r"^sgemm: A "):
        view(x, "sgemm: A")
    if not isinstance(x, memoryview):
        with pytest.raises(TypeError, match=r"^sgemm: alpha "):
            _arrays.scalars("sgemm", x, 0, None, None)


def test_a_newer_dlpack_is_refused():
    capsule = floats(2, 2).__dlpack__(max_version=(1, 0))
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    pointer = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dltensor_versioned")
    kept = _arrays._DLManagedTensorVersioned.from_address(pointer)
    assert kept.major == 1
    kept.major = 2
    try:
        with pytest.raises(TypeError, match=r"^sgemm: A .* DLPack 2\.\d+ is newer"):
            view(Exporter(capsule=capsule), "sgemm: A")
    finally:
        kept.major = 1


def test_a_subclass_of_ndarray_cannot_tell_another_shape():
    class Lying(np.ndarray):
        shape = property(lambda self: (1000, 1000))
        size = property(lambda self: 1_000_000)
        strides = property(lambda self: (4000, 4))

    a, b, c = floats(2, 2), floats(100, 100), np.zeros((100, 100), np.float32)
    x = a.view(Lying)
    assert view(x, "x").shape == (2, 2)
    with pytest.raises(InvalidValueError, match="A needs 10000 elements, its buffer has 4"):
        pyblas_sgemm.sgemm("N", "N", 100, 100, 100, 1, x, 100, b, 100, 0, c, 100)
    np.testing.assert_array_equal(pyblas_sgemm.matmul(x, a), a @ a)
    assert pyblas_sgemm.matmul(a, a, out=x) is x
    assert a.tolist() == [[2, 3], [6, 11]]


def test_dtypes_that_are_equal_but_not_the_same_object():
    dtype = np.dtype(np.float32, metadata={"unit": "m"})
    assert dtype is not np.dtype(np.float32)
    a = np.ones((2, 2), dtype)
    assert pyblas_sgemm.matmul(a, a).tolist() == [[2, 2], [2, 2]]


def test_cuda_array_interface():
    seen = view(CudaArray((2, 3), 1, strides=(32, 4), readonly=True, stream=7), "x")
    assert seen.address == 1 << 40 and seen.shape == (2, 3) and seen.strides == (32, 4)
    assert (seen.device, seen.readonly, seen.stream, seen.library) == (1, True, 7, "interface")
    assert _arrays.current_stream(seen) == 7
    packed = view(CudaArray((2, 3, 5)), "x")
    assert packed.strides == (60, 20, 4) and _arrays.current_stream(packed) == 0
    empty = view(CudaArray((0, 3), address=None), "x")
    assert empty.address == 0 and empty.size == 0


def test_cuda_array_with_mask():
    x = CudaArray((3,))
    x.__cuda_array_interface__["mask"] = x
    with pytest.raises(TypeError, match="mask"):
        view(x, "x")


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("memory", [floats(3, 4), floats(3, 4).T, floats(6, 8)[1::2, ::2]], ids=["c", "f", "steps"])
def test_dlpack_on_a_gpu(memory, versioned):
    producer = DLPackArray(memory, kind=2, device=3, versioned=versioned)
    seen = view(producer, "x", 99)
    assert (seen.address, seen.shape, seen.strides) == (memory.ctypes.data, memory.shape, memory.strides)
    assert seen.device == 3 and producer.streams[-1] == 99
    view(producer, "x", 0)
    assert producer.streams[-1] == 1  # DLPack's name of the default stream


def test_dlpack_memory_is_returned_when_the_view_goes():
    memory = floats(3, 4).copy()
    gone = weakref.ref(memory)
    seen = view(DLPackArray(memory), "x")
    del memory
    gc.collect()
    assert gone() is not None
    del seen
    gc.collect()
    assert gone() is None


def test_dlpack_read_only_flag():
    memory = floats(3)
    memory.flags.writeable = False
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        with pytest.raises((BufferError, TypeError)):
            view(DLPackArray(memory), "x")
    else:
        assert view(DLPackArray(memory), "x").readonly


def test_dlpack_in_host_memory():
    memory = floats(2, 3)
    seen = view(DLPackArray(memory, kind=1), "x")
    assert seen.device is None and seen.address == memory.ctypes.data
    assert pyblas_sgemm.matmul(DLPackArray(memory, kind=1), np.ones(3, np.float32)).tolist() == [3, 12]


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_of_bfloat16_in_host_memory(versioned):
    """Which NumPy cannot look at."""

    def producer(x):
        return DLPackArray(x.view(np.uint16), kind=1, versioned=versioned, dtype_code=4)

    a, c = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3), np.zeros((2, 2), ml_dtypes.bfloat16)
    out = producer(c)
    assert pyblas_sgemm.gemm_ex("N", "T", 2, 2, 3, 1.0, producer(a), 3, producer(a), 3, 0.0, out, 2) is out
    assert c.tolist() == [[5, 14], [14, 50]]
    with pytest.raises(InvalidValueError, match="gemm_ex: C overlaps A"):
        pyblas_sgemm.gemm_ex("N", "T", 2, 2, 3, 1.0, producer(a), 3, producer(a), 3, 0.0, producer(a), 2)
    with pytest.raises(InvalidValueError, match="gemm_ex: B needs 6 elements, its buffer has 3"):
        pyblas_sgemm.gemm_ex("N", "T", 2, 2, 3, 1.0, producer(a), 3, producer(a[0]), 3, 0.0, out, 2)
    with pytest.raises(TypeError, match="sgemm: A is of type"):
        pyblas_sgemm.sgemm("N", "T", 2, 2, 3, 1.0, producer(a), 3, producer(a), 3, 0.0, np.zeros(4, np.float32), 2)


def test_jax_arrays_are_read_only():
    class Array(CudaArray):
        __module__ = "jaxlib.xla_extension"

    assert view(Array((3,)), "x").readonly


# ---- devices and streams -------------------------------------------------------------------------------------------


def call(a, b, c, **keywords):
    return pyblas_sgemm.sgemm("N", "N", 2, 2, 2, 1.0, a, 2, b, 2, 0.0, c, 2, **keywords)


@pytest.mark.parametrize("position", range(3))
def test_host_and_gpu_mixed(position):
    arrays = [CudaArray((2, 2)) for _ in range(3)]
    arrays[position] = floats(2, 2)
    with pytest.raises(TypeError, match=r"host memory and .* GPU 0|GPU 0 and .* host memory"):
        call(*arrays)


def test_two_gpus_mixed():
    with pytest.raises(ValueError, match="A is in GPU 0 and C in GPU 1"):
        call(CudaArray((2, 2)), CudaArray((2, 2)), CudaArray((2, 2), 1))
    with pytest.raises(ValueError, match="a is in GPU 0 and b in GPU 1"):
        pyblas_sgemm.matmul(CudaArray((2, 2)), CudaArray((2, 2), 1))


def test_read_only_output_on_a_gpu():
    with pytest.raises(ValueError, match="C is read-only"):
        call(CudaArray((2, 2)), CudaArray((2, 2)), CudaArray((2, 2), readonly=True))


def test_streams_of_any_library():
    class Named:
        def __cuda_stream__(self):
            return 0, 11

    class CuPyStream:
        ptr = 12

    class TorchStream:
        cuda_stream = 13

    streams = [10, np.int64(10), Named(), CuPyStream(), TorchStream()]
    assert [_arrays.stream_address(stream) for stream in streams] == [10, 10, 11, 12, 13]
    text = types.SimpleNamespace(ptr="x")
    nothing = types.SimpleNamespace(__cuda_stream__=lambda: None)
    for wrong in ("0", 1.0, True, object(), text, nothing):
        with pytest.raises(TypeError, match=r"^stream is of type"):
            _arrays.stream_address(wrong)
    for wrong in (-1, 1 << 64):
        with pytest.raises(ValueError, match=f"^stream is {wrong}"):
            _arrays.stream_address(wrong)
    with pytest.raises(ValueError, match="stream is given, but the arrays are in host memory"):
        call(floats(2, 2), floats(2, 2), floats(2, 2), stream=7)


# The whole way of GPU arrays, with a CPU handle in the place of the GPU's and host memory in the place of its memory.


class StandIn(_handle.Context):
    def __init__(self):
        super().__init__(None)
        self.device = 0
        self.streams = []

    def set_stream(self, stream):
        self.streams.append(stream)


@pytest.fixture
def stand_in(monkeypatch):
    context = StandIn()
    monkeypatch.setitem(_handle.thread.contexts, 0, context)
    return context


@pytest.fixture
def cupy(monkeypatch):
    """A module that answers what is asked of CuPy, with arrays around NumPy's."""
    module = types.ModuleType("cupy")

    class ndarray:
        def __init__(self, memory, device=0):
            self.memory = memory
            self.dtype, self.shape, self.strides, self.flags = memory.dtype, memory.shape, memory.strides, memory.flags
            self.size, self.ndim = memory.size, memory.ndim
            self._c_contiguous, self._f_contiguous = memory.flags.c_contiguous, memory.flags.f_contiguous
            self.data = types.SimpleNamespace(ptr=memory.ctypes.data, device_id=device)
            self.device = module.cuda.Device(device)

        def __setitem__(self, index, value):
            self.memory[index] = value.memory

    module.ndarray = ndarray
    module.empty = lambda shape, dtype: ndarray(np.full(shape, np.nan, dtype))
    module.cuda = types.SimpleNamespace(
        get_current_stream=lambda device: types.SimpleNamespace(ptr=700 + device),
        Device=lambda device: contextlib.nullcontext(device),
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture
def torch(monkeypatch):
    """The same for PyTorch. Tensors count how often they are written."""
    module = types.ModuleType("torch")
    module.float32, module.float64, module.strided = "torch.float32", "torch.float64", "torch.strided"

    class Tensor:
        layout, requires_grad = "torch.strided", False

        def __init__(self, memory, device=0):
            self.memory, self.index, self.writes, self.ndim = memory, device, 0, memory.ndim
            self.dtype = getattr(module, str(memory.dtype))
            self.shape, self.device = memory.shape, types.SimpleNamespace(type="cuda", index=device)
            self.is_cuda = True

        def stride(self):
            return tuple(step // 4 for step in self.memory.strides)

        def data_ptr(self):
            return self.memory.ctypes.data

        def is_contiguous(self):
            return self.memory.flags.c_contiguous

        def numel(self):
            return self.memory.size

        def get_device(self):
            return self.index

        def is_neg(self):
            return False

        def is_inference(self):
            return False

        def detach(self):
            return self

        def copy_(self, other):
            self.memory[...] = other.memory

        def new_empty(self, shape):
            return Tensor(np.full(shape, np.nan, np.float32), self.index)

    class Parameter(Tensor):
        requires_grad = True

    def increment_version(tensor):
        tensor.writes += 1

    module.Tensor, module.nn = Tensor, types.SimpleNamespace(Parameter=Parameter)
    module.empty = lambda shape, dtype, device: Tensor(np.full(shape, np.nan, np.float32))
    module.cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=800 + device))
    module._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 800 + device)
    graph = types.SimpleNamespace(increment_version=increment_version)
    module.autograd = types.SimpleNamespace(graph=graph)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture
def short_calls(monkeypatch, stand_in):
    """Streams of the short calls that a GPU would have been given and that were answered with success."""
    streams = []

    def passing(entry):
        def call(handle, stream, *rest):
            status = entry(handle, 0, *rest)
            if status == 0:
                streams.append(stream)
            return status

        return call

    for module, names in (
        (_sgemm, ("_checked_sgemm_on_gpu", "_checked_gemm_strided_batched_on_gpu")),
        (_matmul, ("_checked_matmul_on_gpu",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, passing(getattr(module, name)))
    return streams


def interface(memory, stream=None, readonly=False):
    return CudaArray(memory.shape, address=memory.ctypes.data, strides=memory.strides, stream=stream, readonly=readonly)


def test_cupy_arrays_run_on_its_current_stream(cupy, stand_in):
    a, b, c = floats(2, 3), floats(3, 4), np.full((2, 4), np.nan, np.float32)
    at_a, at_b, at_c = map(cupy.ndarray, (a, b, c))
    assert pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, at_a, 3, at_b, 4, 0.0, at_c, 4) is at_c
    assert (c == a @ b).all() and stand_in.streams == [700]
    pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, at_a, 3, at_b, 4, 1.0, at_c, 4, stream=9)
    assert (c == 2 * (a @ b)).all() and stand_in.streams == [700, 9]
    with pytest.raises(ValueError, match="A needs 12 elements, its buffer has 6"):
        pyblas_sgemm.sgemm("N", "N", 4, 4, 3, 1.0, at_a, 3, at_b, 4, 1.0, at_c, 4)
    with pytest.raises(ValueError, match="device is 'cpu', but the arrays are on GPU 0"):
        pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, at_a, 3, at_b, 4, 1.0, at_c, 4, device="cpu")
    for device in ("cuda", "cuda:0", 0):
        pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, at_a, 3, at_b, 4, 0.0, at_c, 4, device=device)
    with pytest.raises(ValueError, match="device is 1, but the arrays are on GPU 0"):
        pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, at_a, 3, at_b, 4, 0.0, at_c, 4, device=1)
    with pyblas_sgemm.Handle("cpu") as handle, pytest.raises(ValueError, match="handle is for host memory"):
        pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, at_a, 3, at_b, 4, 0.0, at_c, 4, handle=handle)


def test_matmul_of_cupy_arrays(cupy, stand_in):
    a, b = floats(2, 3), floats(3, 4)
    result = pyblas_sgemm.matmul(cupy.ndarray(a), cupy.ndarray(b))
    assert isinstance(result, cupy.ndarray) and (result.memory == a @ b).all()
    assert stand_in.streams == [700]
    for x in (a[:, ::-1], a[:, ::2]):  # the first is copied
        y = floats(x.shape[1], 2)
        assert (pyblas_sgemm.matmul(cupy.ndarray(x), cupy.ndarray(y)).memory == x @ y).all()
    square = floats(3, 3)
    want = square @ square
    at = cupy.ndarray(square)
    assert pyblas_sgemm.matmul(at, at, out=at) is at and (square == want).all()
    scalar = pyblas_sgemm.matmul(cupy.ndarray(floats(3)), cupy.ndarray(floats(3)))
    assert isinstance(scalar, cupy.ndarray) and scalar.shape == () and scalar.memory == 5


def test_batches_of_cupy_arrays_by_address(cupy, stand_in):
    a, b, c = (floats(3, 2, 2) + i for i in range(3))
    want = a @ b
    pyblas_sgemm.gemm_batched(
        "N", "N", 2, 2, 2, 1, [*map(cupy.ndarray, a)], 2, [*map(cupy.ndarray, b)], 2, 0, [*map(cupy.ndarray, c)], 2
    )
    assert (c == want).all() and stand_in.streams == [700]


LIBRARIES = ["cupy", "torch"]


@pytest.fixture(params=LIBRARIES)
def library(request, short_calls):
    """Makes arrays of one library, which it has met, and knows its current stream."""
    module = request.getfixturevalue(request.param)
    array = module.ndarray if request.param == "cupy" else module.Tensor
    _arrays.view(array(floats(1)), "x")
    array.stream = 700 if request.param == "cupy" else 800
    return array


@pytest.mark.parametrize("order", ["C", "F", None])
@pytest.mark.parametrize("ops", ["NN", "NT", "TN", "TT"])
def test_short_calls_on_gpu_arrays(library, short_calls, ops, order):
    m, n, k = 3, 4, 5
    a, b = floats(m, k), floats(k, n) % 7
    stored = [a if ops[0] == "N" else a.T, b if ops[1] == "N" else b.T]
    for alpha, beta in ((1.0, 0.0), (2, 3.0)):
        c = np.full((m, n), np.nan if beta == 0 else 1, np.float32)
        want = alpha * (a @ b) + (beta if beta else 0)
        # Blocks in C order: those of Fortran order are their transposes, one-dimensional for the library.
        flat = [np.ascontiguousarray(x.T if order == "F" else x) for x in (*stored, c)]
        xs = [library(x.ravel() if order == "F" else x) for x in flat]
        before = len(short_calls)
        result = pyblas_sgemm.sgemm(
            *ops, m, n, k, alpha, xs[0], flat[0].shape[1], xs[1], flat[1].shape[1], beta, xs[2], flat[2].shape[1],
            order=order,
        )  # fmt: skip
        assert result is xs[2] and short_calls[before:] == [library.stream]
        got = flat[2].T if order == "F" else flat[2]
        assert (got == want).all()
        assert getattr(result, "writes", 1) == 1


def test_short_calls_of_batches(library, short_calls):
    a, b, c = floats(4, 2, 3), floats(4, 3, 5) % 7, np.full((4, 2, 5), np.nan, np.float32)
    at_c = library(c)
    pyblas_sgemm.gemm_strided_batched("N", "N", 2, 5, 3, 1.0, library(a), 3, 6, library(b), 5, 15, 0.0, at_c, 5, 10, 4)
    assert (c == a @ b).all() and short_calls == [library.stream] and getattr(at_c, "writes", 1) == 1
    with pytest.raises(ValueError, match="A needs 24 elements, its buffer has 18"):
        pyblas_sgemm.gemm_strided_batched(
            "N", "N", 2, 5, 3, 1.0, library(a[:3]), 3, 6, library(b), 5, 15, 0.0, at_c, 5, 10, 4
        )


def test_fortran_order_of_cupy_arrays_is_inferred(cupy, short_calls):
    a, b, c = (np.asfortranarray(x) for x in (floats(2, 3), floats(3, 4), np.zeros((2, 4), np.float32)))
    _arrays.view(cupy.ndarray(a), "x")
    pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1, *(cupy.ndarray(a), 2, cupy.ndarray(b), 3), 0, cupy.ndarray(c), 2)
    assert (c == a @ b).all() and short_calls == [700]
    with pytest.raises(ValueError, match="name the order"):
        pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1, *(cupy.ndarray(a), 2, cupy.ndarray(floats(3, 4)), 4), 0,
                           cupy.ndarray(c), 2)  # fmt: skip


def test_what_short_calls_leave_to_the_long_way(library, short_calls, stand_in):
    a, c = floats(4, 4), np.zeros((4, 4), np.float32)

    def product(a, b, c, m=4, k=4, **keywords):
        return pyblas_sgemm.sgemm("N", "N", m, 4, k, 1, a, 4, b, 4, 0, c, 4, **keywords)

    for keywords in ({"stream": 5}, {"compute": "fp32_pedantic"}, {"batch_invariant": True}, {"device": 0}):
        product(library(a), library(a), library(c), **keywords)
        assert (c == a @ a).all()
        c[:] = 0
    wide = np.zeros((4, 8), np.float32)
    pyblas_sgemm.sgemm("N", "N", 4, 4, 4, 1, library(a), 4, library(a), 4, 0, library(wide[:, 4:]), 8)
    assert (wide[:, 4:] == a @ a).all() and not wide[:, :4].any()
    product(interface(a), library(a), library(c))
    assert (c == a @ a).all()
    for mistake, error, text in (
        (lambda: product(library(a), library(a, 1), library(c)), ValueError, "GPU 0.*GPU 1|GPU 1.*GPU 0"),
        (lambda: product(library(a), a, library(c)), TypeError, "host memory"),
        (lambda: product(library(a), library(a.astype(np.float64)), library(c)), TypeError, "float64"),
        (lambda: product(library(a), library(a), library(c), m=5), ValueError, "A needs 20 elements"),
        (lambda: product(library(a), library(a), library(c), m=2.5), TypeError, "m is a float"),
        (lambda: product(library(a), library(a), library(c), k=5), ValueError, "lda"),
        (lambda: product(library(c), library(a), library(c)), ValueError, "C overlaps A"),
        (lambda: product(library(a), library(a), library(c), order="X"), ValueError, "order is 'X'"),
        (lambda: pyblas_sgemm.matmul(library(a), library(floats(3, 4))), ValueError, "inner sizes"),
        (lambda: pyblas_sgemm.matmul(library(a), library(a, 1)), ValueError, "GPU 0.*GPU 1|GPU 1.*GPU 0"),
        (lambda: pyblas_sgemm.matmul(library(a), library(a), out=library(wide)), ValueError, "out has shape"),
        (lambda: pyblas_sgemm.matmul(library(a), library(a), out=library(c[None])), ValueError, "out has shape"),
        (lambda: pyblas_sgemm.matmul(library(a[None]), library(a), out=library(c)), ValueError, "out has shape"),
    ):
        before = c.copy()
        with pytest.raises(error, match=text):
            mistake()
        assert (c == before).all()
    assert short_calls == []


def test_tensors_that_require_gradients_may_be_scalars(torch):
    class WithGradients(torch.Tensor):
        requires_grad = True

        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

    alpha, beta = (WithGradients(np.array(x, np.float32)) for x in (2, 3))
    _, _, views = _arrays.scalars("sgemm", alpha, beta, 0, 7)
    assert [float(seen.array.memory) for seen in views] == [2, 3]


def test_tensors_that_cannot_be_written_or_read_say_what_to_pass(torch, short_calls):
    a = torch.Tensor(floats(2, 2))
    expanded = torch.Tensor(np.lib.stride_tricks.as_strided(floats(1), (2, 2), (0, 0)))
    with pytest.raises(InvalidValueError, match=r"matmul: out is expanded.*clone"):
        pyblas_sgemm.matmul(a, a, out=expanded)
    with pytest.raises(InvalidValueError, match=r"sgemm: C is expanded.*clone"):
        pyblas_sgemm.sgemm("N", "N", 2, 2, 2, 1, a, 2, a, 2, 0, expanded, 2)
    negated = torch.Tensor(floats(2, 2))
    negated.is_neg = lambda: True
    with pytest.raises(TypeError, match=r"matmul: a is a view .*resolve_neg"):
        pyblas_sgemm.matmul(negated, a)

    def nothing():
        raise RuntimeError("no storage")

    abstract = torch.Tensor(floats(2, 2))
    abstract.data_ptr = nothing
    with pytest.raises(TypeError, match=r"matmul: b is of type .*Tensor, whose memory cannot be read: no storage"):
        pyblas_sgemm.matmul(a, abstract)


def test_parameters_are_read_and_not_written(torch, short_calls):
    a, c = floats(4, 4), np.zeros((4, 4), np.float32)
    weight = torch.nn.Parameter(a)
    _arrays.view(weight, "x")
    pyblas_sgemm.sgemm("N", "T", 4, 4, 4, 1, torch.Tensor(a), 4, weight, 4, 0, torch.Tensor(c), 4)
    assert (c == a @ a.T).all()
    assert (pyblas_sgemm.matmul(weight, weight).memory == a @ a).all()
    assert short_calls == [800, 800]
    with pytest.raises(ValueError, match="requires gradients"):
        pyblas_sgemm.sgemm("N", "N", 4, 4, 4, 1, torch.Tensor(a), 4, weight, 4, 0, torch.nn.Parameter(c), 4)


@given(st.data())
def test_short_matmul_of_any_strides(data):
    """Whatever the short call takes, it does as NumPy does; what BLAS can be told of, it takes."""
    m, n, k, stack = (data.draw(st.integers(1, 4)) for _ in range(4))
    a_shape, b_shape = (data.draw(st.sampled_from([(rows, columns), (stack, rows, columns)]))
                        for rows, columns in ((m, k), (k, n)))  # fmt: skip
    a, b = (data.draw(matrices(shape)) for shape in (a_shape, b_shape))
    want = a @ b
    c = data.draw(matrices(want.shape))
    context = _handle.Context(None)
    status = lib.pyblas_checked_matmul_on_gpu(
        context.c, 0, 1, *itertools.chain.from_iterable((x.ctypes.data, *_arrays._stack(x.shape, x.strides))
                                                        for x in (a, b, c))
    )  # fmt: skip
    said = [x.ndim == 2 or x.shape[0] == 1 or x.strides[0] > 0 for x in (a, b, c)]
    blocks = all(x.flags.c_contiguous for x in (a, b, c))
    assert status == 0 or not blocks or not all(said)
    if status == 0:
        assert (c == want).all()


@st.composite
def matrices(draw, shape):
    """A view of small integers with axes in any order, gaps and steps."""
    axes = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    memory = np.random.default_rng(draw(st.integers(0, 99))).integers(-4, 5, [
        shape[axis] * step + draw(st.integers(0, 2)) for axis, step in zip(axes, steps, strict=True)
    ]).astype(np.float32)  # fmt: skip
    x = memory[tuple(slice(0, shape[axis] * step, step) for axis, step in zip(axes, steps, strict=True))]
    return x.transpose(np.argsort(axes))


@pytest.mark.parametrize(
    "shapes",
    [((2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (1, 3, 4))],
    ids=str,
)
def test_short_matmul_makes_its_result(library, short_calls, shapes):
    a, b = (floats(*shape) % 7 for shape in shapes)
    result = pyblas_sgemm.matmul(library(a), library(b))
    assert type(result) is library and result.memory.shape == (a @ b).shape
    assert (result.memory == a @ b).all() and short_calls == [library.stream]
    out = np.full((a @ b).shape, np.nan, np.float32)
    at = library(out)
    assert pyblas_sgemm.matmul(library(a), library(b), out=at) is at
    assert (out == a @ b).all() and short_calls == [library.stream] * 2 and getattr(at, "writes", 1) == 1
    turned = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    assert (pyblas_sgemm.matmul(library(a), library(turned)).memory == a @ b).all()
    assert short_calls == [library.stream] * 3


def test_the_library_of_c_decides_the_stream(cupy, stand_in):
    a, b, c = floats(2, 3), floats(3, 4), np.zeros((2, 4), np.float32)
    producer = DLPackArray(b, device=0)
    pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, cupy.ndarray(a), 3, producer, 4, 0.0, interface(c, stream=5), 4)
    assert (c == a @ b).all() and stand_in.streams == [5] and producer.streams[-1] == 5
    pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, interface(a, stream=5), 3, producer, 4, 0.0, cupy.ndarray(c), 4)
    assert stand_in.streams == [5, 700] and producer.streams[-1] == 700


def test_interfaces_cannot_be_made_or_copied(stand_in):
    a, c = floats(3, 3), np.zeros((3, 3), np.float32)
    pyblas_sgemm.matmul(interface(a), interface(a, readonly=True), out=interface(c))
    assert (c == a @ a).all()
    with pytest.raises(TypeError, match=r"CudaArray cannot be made here; pass out"):
        pyblas_sgemm.matmul(interface(a), interface(a))
    with pytest.raises(TypeError, match=r"CudaArray would have to be copied"):
        pyblas_sgemm.matmul(interface(a), interface(a), out=interface(a))


# ---- scalars -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "x",
    [2, 2.0, np.float32(2), np.float64(2), np.int8(2), np.array(2, np.float32), np.array(2), np.float16(2)],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'dtype', '')}",
)
def test_host_scalars(x):
    eye = np.eye(2, dtype=np.float32)
    assert call_with(x, eye, 0).tolist() == [[2, 0], [0, 2]]
    assert pyblas_sgemm.matmul(eye, eye, alpha=x).tolist() == [[2, 0], [0, 2]]
    assert call_with(1, eye, x, c=eye.copy()).tolist() == [[3, 0], [0, 3]]


def call_with(alpha, a, beta, c=None):
    c = np.full((2, 2), np.nan, np.float32) if c is None else c
    return pyblas_sgemm.sgemm("N", "N", 2, 2, 2, alpha, a, 2, np.eye(2, dtype=np.float32), 2, beta, c, 2)


def test_booleans_are_numbers():
    eye = np.eye(2, dtype=np.float32)
    assert call_with(True, eye, False).tolist() == eye.tolist()
    assert call_with(np.True_, eye, np.False_).tolist() == eye.tolist()


@pytest.mark.parametrize(
    "x",
    [1j, np.complex64(1), np.array(1j), "1", b"1", None, [1.0], np.ones(1, np.float32), np.ones((1, 1)), object()],
    ids=lambda x: f"{type(x).__name__}-{getattr(x, 'dtype', '')}",
)
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_other_scalars_are_type_errors(x, name):
    eye = np.eye(2, dtype=np.float32)
    with pytest.raises(TypeError, match=name):
        call_with(*((x, eye, 0) if name == "alpha" else (1, eye, x)), c=eye.copy())


def test_scalars_on_a_gpu_come_together():
    gpu = [CudaArray((2, 2), address=(i + 1) << 40) for i in range(3)]
    number = CudaArray((), address=1 << 30)
    for alpha, beta in ((number, 0), (1, number)):
        with pytest.raises(TypeError, match="one of alpha and beta is on a GPU"):
            _arrays.scalars("sgemm", alpha, beta, 0, None)
    with pytest.raises(TypeError, match="shape"):
        _arrays.scalars("sgemm", CudaArray((1,)), CudaArray((1,)), 0, None)
    with pytest.raises(TypeError, match="alpha is in GPU 0 and the matrices in host memory"):
        pyblas_sgemm.sgemm("N", "N", 2, 2, 2, number, floats(2, 2), 2, floats(2, 2), 2, number, floats(2, 2), 2)
    with pytest.raises(TypeError, match="alpha is in GPU 1 and the matrices in GPU 0"):
        other = CudaArray((), 1)
        pyblas_sgemm.sgemm("N", "N", 2, 2, 2, other, gpu[0], 2, gpu[1], 2, other, gpu[2], 2)
    _, _, views = _arrays.scalars("sgemm", number, CudaArray((), address=1 << 31), 0, None)
    assert [seen.address for seen in views] == [1 << 30, 1 << 31]


# ---- order ---------------------------------------------------------------------------------------------------------

C_ORDER, F_ORDER = floats(3, 4), np.asfortranarray(floats(3, 4))
SILENT = [floats(12), floats(1, 5), floats(5, 1), floats(0, 3), floats(24)[::2]]


@pytest.mark.parametrize(
    ("arrays", "by_rows"),
    [
        ([C_ORDER], True),
        ([F_ORDER], False),
        ([C_ORDER, C_ORDER[:, :2]], True),
        ([F_ORDER, F_ORDER[:2]], False),
        ([floats(2, 3, 4)], True),
        ([np.asfortranarray(floats(2, 3, 4))], False),
        ([floats(2, 3, 4)[:, :, :3]], True),
        ([floats(2, 4, 3).transpose(0, 2, 1)], False),  # strides (stride, 1, ld)
        ([C_ORDER[:, :1]], True),
        ([F_ORDER[:1]], False),
        (SILENT, True),
        ([F_ORDER, *SILENT], False),
        ([C_ORDER, *SILENT], True),
        ([], True),
    ],
)
def test_order_follows_the_arrays(arrays, by_rows):
    assert _arrays.infer_order("sgemm", [(str(i), view(x, "x")) for i, x in enumerate(arrays)]) is by_rows


def test_mixed_orders_must_be_named():
    with pytest.raises(ValueError, match="B is in C order and A in Fortran order; name the order"):
        pyblas_sgemm.sgemm("N", "N", 3, 4, 4, 1.0, F_ORDER, 4, floats(4, 4), 4, 0.0, floats(3, 4), 4)
    # Named, a block is a flat buffer whatever its shape says.
    c = np.zeros((3, 4), np.float32)
    pyblas_sgemm.sgemm("N", "N", 3, 4, 4, 1.0, F_ORDER, 4, np.eye(4, dtype=np.float32), 4, 0.0, c, 4, order="C")
    assert c.ravel().tolist() == F_ORDER.ravel("K").tolist()


def test_fortran_matrices_are_not_multiplied_the_other_way_round():
    a, b = np.asfortranarray(floats(3, 3)), np.asfortranarray(floats(3, 3)[::-1])
    c = np.zeros((3, 3), np.float32, order="F")
    pyblas_sgemm.sgemm("N", "N", 3, 3, 3, 1.0, a, 3, b, 3, 0.0, c, 3)
    assert c.tolist() == (a @ b).tolist()


@pytest.mark.parametrize("order", ["c", "A", "K", 0, "CF", True])
def test_other_orders_are_value_errors(order):
    with pytest.raises(ValueError, match="order"):
        call(floats(2, 2), floats(2, 2), floats(2, 2), order=order)


# ---- layout and extent ---------------------------------------------------------------------------------------------


def test_strided_views_in_place():
    big_a, big_b, big_c = (np.random.default_rng(i).random((20, 30)).astype(np.float32) for i in range(3))
    before = big_c.copy()
    a, b, c = big_a[2:7, 3:9], big_b[1:7, 4:12], big_c[5:10, 6:14]
    assert pyblas_sgemm.sgemm("N", "N", 5, 8, 6, 1.0, a, 30, b, 30, 0.0, c, 30) is c
    np.testing.assert_allclose(c, a @ b, rtol=1e-6)
    before[5:10, 6:14] = c
    assert (big_c == before).all()
    a, b, c = (np.asfortranarray(x)[:4, :4] for x in (big_a, big_b, big_c))
    pyblas_sgemm.sgemm("N", "T", 4, 4, 4, 1.0, a, 20, b, 20, 0.0, c, 20)
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-6)


@pytest.mark.parametrize(
    ("a", "lda"),
    [
        (floats(6, 6)[:3, :3], 3),
        (floats(6, 6)[::2, :3], 6),
        (floats(6, 6)[:3, ::2], 6),
        (floats(6, 6)[::-1][:3, :3], 6),
        (floats(6, 6)[:3, :3].T, 6),
        (floats(18)[::2], 3),
        (np.broadcast_to(np.float32(1), (3, 3)), 3),
        (floats(3, 3, 3)[:, :, 0], 3),
    ],
    ids=["ld", "row step", "column step", "reversed", "transposed", "1-D", "broadcast", "last axis"],
)
def test_views_that_ld_does_not_describe(a, lda):
    with pytest.raises(ValueError, match=r"A is not contiguous.* strides"):
        pyblas_sgemm.sgemm("N", "N", 3, 3, 3, 1.0, a, lda, floats(3, 3), 3, 0.0, floats(3, 3), 3, order="C")


@pytest.mark.parametrize("stride", [0, 16, 4_000_000, -4])
def test_strides_of_single_axes_mean_nothing(stride):
    row = np.lib.stride_tricks.as_strided(floats(5), (1, 5), (stride, 4))
    column = np.lib.stride_tricks.as_strided(floats(5), (5, 1), (4, stride))
    c = np.zeros((1, 1), np.float32)
    pyblas_sgemm.sgemm("N", "N", 1, 1, 5, 1.0, row, 5, column, 1, 0.0, c, 1)
    assert c.item() == 30


def test_shapes_of_views_are_extents():
    big = floats(10, 10)
    with pytest.raises(ValueError, match=r"A needs 9 elements, 3 x 3, its array has 8, 4 x 2"):
        pyblas_sgemm.sgemm("N", "N", 3, 3, 3, 1.0, big[:4, :2], 10, floats(3, 3), 3, 0.0, floats(3, 3), 3, order="C")
    with pytest.raises(ValueError, match=r"A needs 6 elements, 2 x 3, its array has 4, 2 x 2"):
        f = np.asfortranarray(big)[:2, :2]
        pyblas_sgemm.sgemm("N", "N", 2, 3, 3, 1.0, f, 10, floats(3, 3), 3, 0.0, floats(2, 3), 2, order="F")


@pytest.mark.parametrize("name", ["A", "B", "C"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_one_element_less_than_needed(name, order):
    # 3 x 5 times 5 x 4, leading dimensions of 7, column- and row-major
    needed = {"C": {"A": 19, "B": 32, "C": 18}, "F": {"A": 31, "B": 26, "C": 24}}[order]
    for missing in (0, 1):
        x = {key: np.zeros(count - missing * (key == name), np.float32) for key, count in needed.items()}
        arguments = ("N", "N", 3, 4, 5, 1.0, x["A"], 7, x["B"], 7, 0.0, x["C"], 7)
        if missing:
            text = f"sgemm: {name} needs {needed[name]} elements, its buffer has {needed[name] - 1}"
            with pytest.raises(InvalidValueError, match=text):
                pyblas_sgemm.sgemm(*arguments, order=order)
        else:
            pyblas_sgemm.sgemm(*arguments, order=order)


def test_extents_beyond_64_bits_do_not_wrap():
    x = np.zeros(4, np.float32)
    big = 2**62
    with pytest.raises(ValueError, match=f"A needs {big * big - big + 1} elements, its buffer has 4"):
        pyblas_sgemm.sgemm("N", "N", big, 1, 1, 1.0, x, big, x, 1, 0.0, x, 1, order="C")
    with pytest.raises(ValueError, match=f"A needs {(2**32) * 2**33 + 1} elements, its buffer has 4"):
        pyblas_sgemm.gemm_strided_batched("N", "N", 1, 1, 1, 1.0, x, 1, 2**33, x, 1, 0, 0.0, x, 1, 1, 2**32 + 1)
    with pytest.raises(ValueError, match=f"A needs {2**31 + 2} elements, its buffer has 4"):
        pyblas_sgemm.sgemm("N", "N", 2, 1, 1, 1.0, x, 2**31 + 1, x, 1, 0.0, x.copy(), 1, order="C")


def test_negative_strides_need_elements_in_front():
    x, c = floats(4), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="A needs 3 elements in front of its first, its buffer has 0"):
        pyblas_sgemm.gemm_strided_batched("N", "N", 1, 1, 1, 1.0, x, 1, -1, x, 1, 0, 0.0, c, 1, 1, 4)
    reversed_stack = floats(4, 2, 3)[::-1, :, :2]
    eye = np.eye(2, dtype=np.float32)
    c = np.zeros((4, 2, 2), np.float32)
    pyblas_sgemm.gemm_strided_batched("N", "N", 2, 2, 2, 1.0, reversed_stack, 3, -6, eye, 2, 0, 0.0, c, 2, 4, 4)
    assert (c == reversed_stack).all()


def test_three_dimensional_views():
    heads = floats(5, 3, 8)  # (token, head, dim)
    by_head = heads.transpose(1, 0, 2)[:, :, :4]
    eye = np.eye(4, dtype=np.float32)
    c = np.zeros((3, 5, 4), np.float32)
    pyblas_sgemm.gemm_strided_batched("N", "N", 5, 4, 4, 1.0, by_head, 24, 8, eye, 4, 0, 0.0, c, 4, 20, 3)
    assert (c == by_head).all()
    for fortran in (by_head.transpose(0, 2, 1), by_head.transpose(2, 1, 0)):
        c[:] = 0
        pyblas_sgemm.gemm_strided_batched(
            "N", "N", 4, 5, 4, 1.0, eye, 4, 0, fortran, 24, 8, 0.0, c, 4, 20, 3, order="F"
        )
        assert (c == by_head).all()
    with pytest.raises(ValueError, match="B is not contiguous"):
        pyblas_sgemm.gemm_strided_batched(
            "N", "N", 5, 4, 4, 1.0, eye, 4, 0, by_head, 24, 9, 0.0, c, 4, 20, 3, order="C"
        )


@st.composite
def stacks(draw, batch, rows, columns, by_rows):
    """A view (batch, rows, columns) of a larger array, its ld and its batch stride."""
    outer, inner = (rows, columns) if by_rows else (columns, rows)
    step, gap, before = (draw(st.integers(low, 3)) for low in (1, 0, 0))
    if draw(st.booleans()):  # interleaved as (outer, batch, inner)
        memory = floats(outer, batch * step, inner + gap + before)
        x = memory[:, ::step, before : before + inner].transpose(1, 0, 2)
    else:
        memory = floats(batch * step, outer, inner + gap + before)
        x = memory[::step, :, before : before + inner]
    if draw(st.booleans()):
        x = x[::-1]
    x = x if by_rows else x.transpose(0, 2, 1)
    return x, x.strides[1 if by_rows else 2] // 4, x.strides[0] // 4


@given(st.data(), st.integers(1, 4), st.booleans(), st.sampled_from(["NN", "NT", "TN", "TT"]))
def test_any_stack_that_strides_describe(data, batch, by_rows, ops):
    m, n, k = (data.draw(st.integers(1, 5)) for _ in range(3))
    a, lda, stride_a = data.draw(stacks(batch, *((m, k) if ops[0] == "N" else (k, m)), by_rows))
    b, ldb, stride_b = data.draw(stacks(batch, *((k, n) if ops[1] == "N" else (n, k)), by_rows))
    c, ldc, stride_c = data.draw(stacks(batch, m, n, by_rows))
    a %= 7
    b %= 5
    want = (a if ops[0] == "N" else a.swapaxes(1, 2)) @ (b if ops[1] == "N" else b.swapaxes(1, 2))
    before = c.base.copy()
    order = "C" if by_rows else "F"
    pyblas_sgemm.gemm_strided_batched(
        *ops, m, n, k, 1, a, lda, stride_a, b, ldb, stride_b, 0, c, ldc, stride_c, batch, order=order
    )
    assert (c == want).all()
    after = c.base.copy()
    for memory in (before, after):
        offset = c.ctypes.data - c.base.ctypes.data
        np.ndarray(c.shape, c.dtype, memory.data, offset, c.strides)[...] = 0
    assert (before == after).all()


def test_misaligned_arrays():
    raw = np.zeros(17, np.uint8)
    x = np.frombuffer(raw.data, np.float32, 4, offset=1).reshape(2, 2)
    assert x.ctypes.data % 4
    with pytest.raises(ValueError, match="A starts at an address that is not a multiple of 4"):
        call(x, floats(2, 2), floats(2, 2))
    assert pyblas_sgemm.matmul(x, floats(2, 2)).tolist() == [[0, 0], [0, 0]]


# ---- overlap -------------------------------------------------------------------------------------------------------


def bytes_of(e, batch):
    first = (
        e.address + 4 * (i + j * e.ld + matrix * e.stride)
        for matrix in range(batch)
        for j in range(e.vectors)
        for i in range(e.length)
    )
    return {at + byte for at in first for byte in range(4)}


BASE = 1 << 20
small = st.integers(0, 4)


@st.composite
def elements(draw, same=None):
    length = draw(small)
    ld = same.ld if same else draw(st.integers(max(1, length), 9))
    stride = same.stride if same else draw(st.integers(-30, 30))
    address = BASE + draw(st.integers(-100, 100)) * draw(st.sampled_from([4, 4, 4, 1]))
    return Elements(address, min(length, ld), draw(small), ld, stride)


@given(st.data(), st.integers(1, 4))
def test_equal_strides_are_decided_exactly(data, batch):
    x = data.draw(elements())
    y = data.draw(elements(same=x))
    answer = lib.pyblas_checked_overlap(*x, *y, batch)
    assert answer == bool(bytes_of(x, batch) & bytes_of(y, batch))


def test_equal_strides_exhaustively():
    for batch, ld, stride in itertools.product((1, 2, 3), (1, 2, 4), (-5, -1, 0, 1, 3, 8)):
        for shape_x, shape_y in itertools.product(itertools.product((1, 2), (1, 3)), repeat=2):
            if max(shape_x[0], shape_y[0]) > ld:
                continue
            y = Elements(BASE, *shape_y, ld, stride)
            taken = bytes_of(y, batch)
            for offset in range(-40, 41):
                x = Elements(BASE + 4 * offset, *shape_x, ld, stride)
                answer = lib.pyblas_checked_overlap(*x, *y, batch)
                assert answer == bool(bytes_of(x, batch) & taken), (x, y, batch)


@given(st.data(), st.integers(1, 4))
def test_any_strides_are_decided_or_passed_on(data, batch):
    x, y = data.draw(elements()), data.draw(elements())
    truth = bool(bytes_of(x, batch) & bytes_of(y, batch))
    answer = lib.pyblas_checked_overlap(*x, *y, batch)
    assert answer in (-1, truth)
    if truth:
        with pytest.raises(InvalidValueError, match="C overlaps A"):
            _arrays.require_disjoint("sgemm", "A", x, "C", y, batch)
    else:
        _arrays.require_disjoint("sgemm", "A", x, "C", y, batch)


def test_large_batches_are_decided_quickly():
    batch = 10**9
    x = Elements(BASE, 2, 3, 8, 24)
    assert lib.pyblas_checked_overlap(*x, *x._replace(address=BASE + 8), batch) == 0
    assert lib.pyblas_checked_overlap(*x, *x._replace(address=BASE + 4), batch) == 1
    assert lib.pyblas_checked_overlap(*x, *x._replace(address=BASE + 4 * 24 * batch), batch) == 0


def test_undecided_overlap_counts_and_says_so(monkeypatch):
    monkeypatch.setattr(_arrays, "_MOST_WORK", 1)
    x = Elements(BASE, 3, 50, 7, 1000)
    y = Elements(BASE + 16, 3, 50, 11, 1300)
    with pytest.raises(InvalidValueError, match="was not decided within 1 steps, which counts as overlap"):
        _arrays.require_disjoint("sgemm", "A", x, "C", y, 40)


def test_interleaved_columns_are_legal_and_true_overlap_is_not():
    pool = np.random.default_rng(0).random((6, 12)).astype(np.float32)
    a, b, c = pool[:, 0:4], pool[:4, 4:8], pool[:, 8:12]
    want = a @ b
    pyblas_sgemm.sgemm("N", "N", 6, 4, 4, 1.0, a, 12, b, 12, 0.0, c, 12)
    np.testing.assert_allclose(c, want, rtol=1e-6)
    before = pool.copy()
    with pytest.raises(ValueError, match="C overlaps A in memory"):
        pyblas_sgemm.sgemm("N", "N", 6, 4, 4, 1.0, a, 12, b, 12, 0.0, pool[:, 3:7], 12)
    with pytest.raises(ValueError, match="C overlaps B in memory"):
        pyblas_sgemm.sgemm("N", "N", 4, 4, 4, 1.0, floats(4, 4), 4, b, 12, 0.0, b, 12)
    assert (pool == before).all()


def test_overlap_of_unlike_strides_is_decided_by_numpy():
    pool = np.zeros(64, np.float32)
    a, c = pool[:32], pool[1:]
    # a uses the even numbers, c the odd ones; their leading dimensions are 2 and 4.
    pyblas_sgemm.sgemm("N", "N", 8, 1, 1, 1.0, a, 2, floats(1) + 1, 1, 0.0, c, 4, order="C")
    with pytest.raises(ValueError, match="C overlaps A"):
        pyblas_sgemm.sgemm("N", "N", 8, 1, 1, 1.0, a, 2, floats(1) + 1, 1, 0.0, pool, 4, order="C")


def test_what_is_not_read_may_overlap():
    c = floats(2, 2)
    pyblas_sgemm.sgemm("N", "N", 2, 2, 2, 0.0, c, 2, c, 2, 2.0, c, 2)
    assert c.tolist() == [[0, 2], [4, 6]]
    pyblas_sgemm.sgemm("N", "N", 2, 2, 0, 1.0, c, 2, c, 2, 2.0, c, 2, order="C")
    assert c.tolist() == [[0, 4], [8, 12]]


def test_views_are_tuples_of_what_a_call_needs():
    seen = view(floats(2, 2), "x")
    assert isinstance(seen, View) and seen.size == 4


# ---- the real libraries --------------------------------------------------------------------------------------------


@pytest.mark.interop("torch")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_on_the_cpu():
    import torch

    a, b = torch.randn(5, 7), torch.randn(7, 3)
    result = pyblas_sgemm.matmul(a, b)
    assert isinstance(result, torch.Tensor)
    assert torch.allclose(result, a @ b, atol=1e-5)
    assert torch.allclose(pyblas_sgemm.matmul(a.T, a), a.T @ a, atol=1e-5)
    out = torch.empty(3, 5).T
    assert pyblas_sgemm.matmul(a, b, out=out) is out
    assert torch.allclose(out, a @ b, atol=1e-5)
    c = torch.empty(5, 3)
    version = c._version
    assert pyblas_sgemm.sgemm("N", "N", 5, 3, 7, 1.0, a, 7, b, 3, 0.0, c, 3) is c
    assert torch.allclose(c, a @ b, atol=1e-5)
    assert c._version > version
    assert pyblas_sgemm.matmul(torch.ones(3), torch.ones(3)).item() == 3
    needs_gradient = torch.randn(5, 7, requires_grad=True)
    assert not pyblas_sgemm.matmul(needs_gradient, b).requires_grad
    with pytest.raises(ValueError, match="read-only"):
        pyblas_sgemm.matmul(a, b, out=torch.empty(5, 3, requires_grad=True))
    for wrong in (a.double(), a.bfloat16(), a.to_sparse(), torch.nested.nested_tensor([a, a])):
        with pytest.raises(TypeError, match="matmul: a "):
            pyblas_sgemm.matmul(wrong, b)
    with pytest.raises(TypeError, match=r"matmul: a is of type torch\.Tensor, whose memory cannot be read"):
        torch.func.vmap(lambda x: pyblas_sgemm.matmul(x, b))(torch.ones(2, 5, 7))


@pytest.mark.interop("jax")
def test_jax_on_the_cpu():
    import jax
    import jax.numpy as jnp

    with jax.default_device(jax.devices("cpu")[0]):
        a, b = jnp.arange(6, dtype=jnp.float32).reshape(2, 3), jnp.ones((3, 4), jnp.float32)
        result = pyblas_sgemm.matmul(a, b)
        assert isinstance(result, jax.Array)
        assert result.tolist() == (a @ b).tolist()
        with pytest.raises(ValueError, match="read-only"):
            pyblas_sgemm.matmul(a, b, out=jnp.zeros((2, 4), jnp.float32))
        c = np.zeros((2, 4), np.float32)
        pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, a, 3, b, 4, 0.0, c, 4)
        assert c.tolist() == (a @ b).tolist()


@pytest.mark.gpu
def test_cupy_arrays_views_streams_and_scalars():
    import cupy

    rng = cupy.random.default_rng(0)
    a, b = (rng.random((64, 64), dtype=cupy.float32) for _ in range(2))
    want = cupy.asnumpy(a).astype(np.float64) @ cupy.asnumpy(b)
    result = pyblas_sgemm.matmul(a, b)
    assert isinstance(result, cupy.ndarray)
    np.testing.assert_allclose(cupy.asnumpy(result), want, rtol=1e-5)
    np.testing.assert_allclose(cupy.asnumpy(pyblas_sgemm.matmul(a.T, b[::-1])), cupy.asnumpy(a.T @ b[::-1]), rtol=1e-5)
    c = cupy.zeros((64, 64), cupy.float32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        pyblas_sgemm.sgemm("N", "N", 64, 64, 64, 1.0, a, 64, b, 64, 0.0, c, 64)
        stream.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(c), want, rtol=1e-5)
    other = cupy.cuda.Stream(non_blocking=True)
    c[:] = 0
    cupy.cuda.get_current_stream().synchronize()
    alpha, beta = cupy.array(2, cupy.float32), cupy.array(0, cupy.float32)
    pyblas_sgemm.sgemm("N", "N", 64, 64, 64, alpha, a, 64, b, 64, beta, c, 64, stream=other)
    other.synchronize()
    np.testing.assert_allclose(cupy.asnumpy(c), 2 * want, rtol=1e-5)
    with pytest.raises(TypeError, match="one of alpha and beta"):
        pyblas_sgemm.sgemm("N", "N", 64, 64, 64, alpha, a, 64, b, 64, 0.0, c, 64)
    with pytest.raises(TypeError, match="host memory"):
        pyblas_sgemm.sgemm("N", "N", 64, 64, 64, 1.0, cupy.asnumpy(a), 64, b, 64, 0.0, c, 64)
    with pytest.raises(ValueError, match="C overlaps A"):
        pyblas_sgemm.sgemm("N", "N", 64, 64, 64, 1.0, c, 64, b, 64, 0.0, c, 64)
    assert pyblas_sgemm.matmul(a, b, out=b) is b
    np.testing.assert_allclose(cupy.asnumpy(b), want, rtol=1e-5)


@pytest.mark.gpu
def test_batches_of_cupy_arrays():
    import cupy

    rng = np.random.default_rng(1)
    host = rng.random((3, 5, 16, 16), dtype=np.float32)
    a, b, c = (cupy.asarray(x) for x in host)
    pyblas_sgemm.gemm_batched("N", "T", 16, 16, 16, 1.0, list(a), 16, list(b), 16, 0.0, list(c), 16)
    np.testing.assert_allclose(cupy.asnumpy(c), host[0] @ host[1].transpose(0, 2, 1), rtol=1e-5)
    pyblas_sgemm.gemm_strided_batched("N", "N", 16, 16, 16, 1.0, a, 16, 256, b, 16, 0, 0.0, c, 16, 256, 5)
    np.testing.assert_allclose(cupy.asnumpy(c), host[0] @ host[1][0], rtol=1e-5)
    np.testing.assert_allclose(cupy.asnumpy(pyblas_sgemm.matmul(a, b[:1])), host[0] @ host[1][:1], rtol=1e-5)


@pytest.mark.gpu
def test_interfaces_on_a_gpu():
    import cupy

    class Interface:
        def __init__(self, x):
            self.x = x

        @property
        def __cuda_array_interface__(self):
            return self.x.__cuda_array_interface__

    class DLPack:
        def __init__(self, x):
            self.x = x

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

        def __dlpack__(self, **arguments):
            return self.x.__dlpack__(**arguments)

    a, b = cupy.arange(6, dtype=cupy.float32).reshape(2, 3), cupy.ones((3, 4), cupy.float32)
    for wrap_a, wrap_b in itertools.product((Interface, DLPack), repeat=2):
        c = cupy.empty((2, 4), cupy.float32)
        pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, wrap_a(a), 3, wrap_b(b), 4, 0.0, c, 4)
        assert cupy.asnumpy(c).tolist() == [[3] * 4, [12] * 4]
        c[:] = 0
        cupy.cuda.get_current_stream().synchronize()
        pyblas_sgemm.matmul(wrap_a(a), wrap_b(b), out=Interface(c))
        assert cupy.asnumpy(c).tolist() == [[3] * 4, [12] * 4]
