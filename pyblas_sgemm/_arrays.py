"""Any array -> address, shape, strides, device, stream. The only module that knows NumPy from CuPy from PyTorch.

CuPy and PyTorch are looked up in ``sys.modules`` and never imported: an array of theirs cannot be here unless its library
is loaded. Nothing here reads or writes an element except the copies at the end, which only ``matmul`` uses.
"""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from ._cffi import ffi, lib
from ._status import InvalidValueError

FLOAT32 = np.dtype(np.float32)
FLOAT16 = np.dtype(np.float16)
ITEM = 4

# The C library's numbers for types of elements, by the names that NumPy, CuPy and PyTorch share.
TYPES: dict[str, int] = {
    "float32": lib.PYBLAS_R_32F,
    "float16": lib.PYBLAS_R_16F,
    "bfloat16": lib.PYBLAS_R_16BF,
}
_ITEMS = {"float32": ITEM, "float16": 2, "bfloat16": 2}
ONLY_FLOAT32 = ("float32",)
ANY_TYPE = tuple(TYPES)

# Steps that numpy.shares_memory may take; some hundredths of a second. Its stub knows only the two special values.
_MOST_WORK: Any = 1_000_000

_cast, _from_buffer = ffi.cast, ffi.from_buffer

_Exceptions: Any = getattr(np, "exceptions", np)  # NumPy 1.24 and older keep TooHardError in the main module

_DL_CPU, _DL_CUDA, _DL_CUDA_HOST, _DL_CUDA_MANAGED = 1, 2, 3, 13


class View(NamedTuple):
    """What a call needs to know of an array. Strides count bytes, as the libraries give them."""

    array: Any  # the library's own array: a NumPy array for host memory
    owner: Any  # keeps the memory
    library: str  # 'numpy', 'cupy', 'torch', or 'interface' for anything else on a GPU
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    by_rows: bool  # a block in C order; a stride along an axis of length 1 means nothing
    by_columns: bool  # a block in Fortran order
    readonly: bool
    device: int | None  # None: host memory
    stream: int | None = None  # of the interface, where the library has no current stream to ask for
    dtype: str = "float32"  # a name of TYPES

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def item(self) -> int:
        return _ITEMS[self.dtype]


class Elements(NamedTuple):
    """The elements a product touches: i < length, j < vectors, l < batch lie i + j * ld + l * stride from the address."""

    address: int
    length: int
    vectors: int
    ld: int
    stride: int = 0
    item: int = ITEM


# ---- from objects to views -----------------------------------------------------------------------------------------


def view(x: object, name: str, stream: int | None = None, types: tuple[str, ...] = ONLY_FLOAT32) -> View:
    """Look at an array. ``stream`` is where a DLPack producer on a GPU must have its data ready."""
    if isinstance(x, np.ndarray):
        return _numpy_view(x, x, name, types)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch_view(torch, x, name, types)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return _cupy_view(cupy, x, name, types)
    with _reading(name, x, "__cuda_array_interface__"):
        interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        return _interface_view(x, interface, name, types)
    try:
        memory = memoryview(cast(Any, x))
    except (TypeError, BufferError):
        pass
    except ValueError as reason:
        raise _unreadable(name, x, "buffer", reason) from reason
    else:
        kind = {"f": "float32", "e": "float16"}.get((memory.format or "").lstrip(_NATIVE))
        _require_type(name, f"items of format {memory.format!r}", kind, types)
        return _numpy_view(np.asarray(memory), x, name, types)
    if hasattr(x, "__dlpack__"):
        return _dlpack_view(x, name, stream, types)
    raise TypeError(
        f"{name} is of type {_type_name(x)}; an array with __cuda_array_interface__, DLPack or the buffer protocol is needed"
    )


def _type_name(x: object) -> str:
    kind = type(x)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# What objects that speak for their memory may raise, and what may be wrong with the answers.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, BufferError, RuntimeError)


def _unreadable(name: str, x: object, what: str, reason: BaseException) -> TypeError:
    told = str(reason) or type(reason).__name__
    return TypeError(f"{name} is of type {_type_name(x)}, whose {what} cannot be read: {told}")


@contextmanager
def _reading(name: str, x: object, what: str) -> Iterator[None]:
    """Whatever comes of what another library says, the caller is told which argument it was."""
    try:
        yield
    except _MALFORMED as reason:
        raise _unreadable(name, x, what, reason) from reason


_NATIVE = "<=@" if sys.byteorder == "little" else ">=@"


def _require_type(name: str, dtype: object, kind: str | None, types: tuple[str, ...]) -> str:
    """kind, which dtype was found to be, if it is one of types."""
    if kind is None or kind not in types:
        wanted = " or ".join(filter(None, (", ".join(types[:-1]), types[-1])))
        raise TypeError(f"{name} holds {dtype}; {wanted} in native byte order is needed")
    return kind


def _kind(dtype: Any) -> str | None:
    """The name of a dtype of NumPy's; bfloat16 is one that another package makes known to it."""
    if dtype == FLOAT32:
        return "float32"
    if dtype == FLOAT16:
        return "float16"
    return "bfloat16" if dtype.name == "bfloat16" and dtype.isnative else None


def _numpy_view(x: np.ndarray[Any, Any], owner: object, name: str, types: tuple[str, ...]) -> View:
    kind = _require_type(name, x.dtype, _kind(x.dtype), types)
    # np.ma would be imported here, and a fork at that moment leaves the child waiting; no masked array exists without it.
    if isinstance(x, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise TypeError(f"{name} is a masked array; pass its data or a filled copy")
    if x.__class__ is not np.ndarray:
        x = np.asarray(x)  # a subclass may tell another shape than that of its memory
    flags = x.flags
    # NumPy's own way to the address makes an object first and takes twice the time, but works for any strides.
    quick = flags.c_contiguous and kind != "bfloat16"  # which the buffer protocol does not know
    address = int(_cast("uintptr_t", _from_buffer(x))) if quick else x.ctypes.data
    readonly = not flags.writeable or (owner is not x and _is_jax(owner))
    rows, columns = flags.c_contiguous, flags.f_contiguous
    return View(x, owner, "numpy", address, x.shape, x.strides, rows, columns, readonly, None, None, kind)


def _is_jax(x: object) -> bool:
    # JAX's arrays are constants to its compiler, whatever the interfaces say about writing.
    return type(x).__module__.partition(".")[0] in ("jax", "jaxlib")


def _torch_view(torch: Any, x: Any, name: str, types: tuple[str, ...]) -> View:
    kind = _require_type(name, x.dtype, str(x.dtype).removeprefix("torch."), types)
    if x.layout is not torch.strided or x.device.type not in ("cpu", "cuda"):
        raise TypeError(
            f"{name} is a {x.layout} tensor on {x.device}; a strided one on the CPU or a CUDA device is needed"
        )
    if x.is_neg():
        raise TypeError(f"{name} is a view of numbers whose signs are still to be changed; pass its resolve_neg()")
    # Reading a tensor that requires gradients is fine, as through detach(): the product is not recorded. Writing into one
    # behind autograd's back is not.
    item = _ITEMS[kind]
    with _reading(name, x, "memory"):  # nested tensors, and those that a transform of functions is at work on
        shape, strides, address = tuple(x.shape), tuple(step * item for step in x.stride()), x.data_ptr()
    if x.device.index is not None and torch.Tensor not in short:
        short[torch.Tensor] = short[torch.nn.Parameter] = _ShortTorch(torch)
    blocks = _blocks(shape, strides, item)
    return View(x, x, "torch", address, shape, strides, *blocks, x.requires_grad, x.device.index, None, kind)


def _cupy_view(cupy: Any, x: Any, name: str, types: tuple[str, ...]) -> View:
    kind = _require_type(name, x.dtype, _kind(x.dtype), types)
    flags, memory = x.flags, x.data
    rows, columns = flags.c_contiguous, flags.f_contiguous
    if cupy.ndarray not in short and hasattr(x, "_c_contiguous"):
        short[cupy.ndarray] = _ShortCupy(cupy)
    return View(x, x, "cupy", memory.ptr, x.shape, x.strides, rows, columns, False, memory.device_id, None, kind)


def _interface_view(x: Any, interface: dict[str, Any], name: str, types: tuple[str, ...]) -> View:
    with _reading(name, x, "__cuda_array_interface__"):
        typestr, mask, stream = str(interface["typestr"]), interface.get("mask"), interface.get("stream")
        address, readonly = interface["data"]
        address = _address(address or 0)
        stream = None if stream is None else _address(stream)
        knows_device = hasattr(x, "__dlpack_device__")
        device = _ordinal(x.__dlpack_device__()[1]) if knows_device else _device_of_address(address)
        told = tuple(interface["shape"]), interface.get("strides")
    kind = _require_type(name, typestr, {FLOAT32.str: "float32", FLOAT16.str: "float16"}.get(typestr), types)
    if mask is not None:
        raise TypeError(f"{name} has a mask")
    item = int(typestr[2:])
    with _reading(name, x, "__cuda_array_interface__"):
        shape, strides = _layout_told(*told, 1, item)
    readonly = bool(readonly) or _is_jax(x)
    blocks = _blocks(shape, strides, item)
    return View(x, x, "interface", address, shape, strides, *blocks, readonly, device, stream, kind)


def _address(x: Any) -> int:
    value = operator.index(x)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} is no address")
    return value


def _ordinal(x: Any) -> int:
    value = operator.index(x)
    if not 0 <= value < 1 << 31:
        raise ValueError(f"{value} is no number of a device")
    return value


def _layout_told(
    shape: Iterable[Any], strides: Iterable[Any] | None, unit: int, item: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in bytes. unit is that of the strides that are told; none are told of a block in C order."""
    shape = tuple(operator.index(count) for count in shape)
    steps = _packed_strides(shape, item) if strides is None else tuple(operator.index(step) * unit for step in strides)
    if len(steps) != len(shape) or min(shape, default=0) < 0:
        raise ValueError(f"no array has shape {shape} and strides {steps}")
    if any(not -1 << 63 <= x < 1 << 63 for x in (*shape, *steps)):
        raise ValueError(f"shape {shape} and strides {steps} do not fit into 64 bits")
    return shape, steps


def _is_packed(shape: Sequence[int], strides: Sequence[int], item: int) -> bool:
    step = item
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count != 1:
            if stride != step:
                return False
            step *= count
    return True


def _blocks(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> tuple[bool, bool]:
    """Whether the array is a block in C and in Fortran order. An empty array is both."""
    if 0 in shape:
        return True, True
    return _is_packed(shape, strides, item), _is_packed(shape[::-1], strides[::-1], item)


def _packed_strides(shape: Sequence[int], item: int) -> tuple[int, ...]:
    strides, step = [], item
    for count in reversed(shape):
        strides.append(step)
        step *= count
    return tuple(reversed(strides))


def _device_of_address(address: int) -> int:
    """The interface does not say on which device memory lies; the driver, which its owner has started, does."""
    device_ordinal_attribute = 9
    ordinal = ctypes.c_int(0)
    try:
        query = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except OSError:
        return 0  # the handle for this device will say that there is no driver
    query(ctypes.byref(ordinal), ctypes.c_int(device_ordinal_attribute), ctypes.c_uint64(address))
    return ordinal.value


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    )


def _dlpack_view(x: Any, name: str, stream: int | None, types: tuple[str, ...]) -> View:
    with _reading(name, x, "__dlpack_device__"):
        kind, device = (operator.index(number) for number in x.__dlpack_device__())
    on_host = kind in (_DL_CPU, _DL_CUDA_HOST)
    if on_host and "bfloat16" not in types:  # which NumPy's own way does not know
        try:
            return _numpy_view(np.from_dlpack(x), x, name, types)
        except _MALFORMED as reason:
            raise TypeError(f"{name} is of type {_type_name(x)}, which NumPy cannot look at: {reason}") from reason
    if not on_host and kind not in (_DL_CUDA, _DL_CUDA_MANAGED):
        raise TypeError(f"{name} lies on a DLPack device of type {kind}; host memory or a CUDA device is needed")
    # The producer makes our stream wait for its own. 1 is DLPack's name of the default stream.
    arguments = {} if on_host else {"stream": stream or 1}
    with _reading(name, x, "DLPack export"):
        device = _ordinal(device)
        try:
            capsule = x.__dlpack__(max_version=(1, 0), **arguments)
        except TypeError:
            capsule = x.__dlpack__(**arguments)
        tensor, readonly = _read_capsule(capsule)
        homes = (_DL_CPU, _DL_CUDA_HOST) if on_host else (_DL_CUDA, _DL_CUDA_MANAGED)
        if tensor.device_type not in homes or tensor.device_id != device:
            raise ValueError(
                f"its device is {tensor.device_type}, {tensor.device_id} and was said to be {kind}, {device}"
            )
    known = {(2, 32, 1): "float32", (2, 16, 1): "float16", (4, 16, 1): "bfloat16"}
    found = known.get((tensor.dtype_code, tensor.dtype_bits, tensor.dtype_lanes))
    dtype = _require_type(name, f"DLPack type {tensor.dtype_code} of {tensor.dtype_bits} bits", found, types)
    item = tensor.dtype_bits // 8
    with _reading(name, x, "DLPack export"):
        axes, steps = tensor.ndim, tensor.strides
        if axes < 0:
            raise ValueError(f"it has {axes} dimensions")
        shape, strides = _layout_told(tensor.shape[:axes], steps[:axes] if steps else None, item, item)
        address = _address((tensor.data or 0) + tensor.byte_offset)
    # The capsule keeps the memory: as it is not renamed, its own destructor calls the deleter.
    owner = (x, capsule)
    readonly = readonly or _is_jax(x)
    blocks = _blocks(shape, strides, item)
    where = None if on_host else device
    return View(x, owner, "interface", address, shape, strides, *blocks, readonly, where, stream, dtype)


def _read_capsule(capsule: object) -> tuple[_DLTensor, bool]:
    api = ctypes.pythonapi
    is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", api))
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    if is_valid(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(pointer(capsule, b"dltensor_versioned"))
        if managed.major > 1:
            raise TypeError(f"DLPack {managed.major}.{managed.minor} is newer than this library knows")
        return managed.dl_tensor, bool(managed.flags & 1)
    return _DLTensor.from_address(pointer(capsule, b"dltensor")), False


# ---- devices and streams -------------------------------------------------------------------------------------------


def place(device: int | None) -> str:
    return "host memory" if device is None else f"GPU {device}"


def common_device(function: str, views: Iterable[tuple[str, View]]) -> int | None:
    """The one device of all arrays; an error that names both if there are two."""
    first: tuple[str, int | None] | None = None
    for name, seen in views:
        if first is None:
            first = name, seen.device
        elif seen.device != first[1]:
            text = f"{function}: {first[0]} is in {place(first[1])} and {name} in {place(seen.device)}"
            raise (TypeError if None in (first[1], seen.device) else InvalidValueError)(text)
    return None if first is None else first[1]


def require_writable(function: str, name: str, seen: View) -> None:
    if seen.readonly:
        reason = ", as it requires gradients; pass its detach()" if seen.library == "torch" else ""
        raise InvalidValueError(f"{function}: {name} is read-only{reason}")
    if seen.library == "torch" and any(n > 1 and step == 0 for n, step in zip(seen.shape, seen.strides, strict=True)):
        raise InvalidValueError(f"{function}: {name} is expanded, so its elements stand for several; pass its clone()")


def stream_address(stream: object) -> int:
    """The CUDA stream a caller named: an address, or a stream object of any library."""
    if isinstance(stream, (int, np.integer)) and not isinstance(stream, bool):
        if not 0 <= stream < 1 << 64:
            raise InvalidValueError(f"stream is {stream}; an address is needed, or a stream object")
        return int(stream)
    with _reading("stream", stream, "address"):
        if hasattr(stream, "__cuda_stream__"):
            return _address(stream.__cuda_stream__()[1])
        for attribute in ("ptr", "cuda_stream"):  # CuPy, PyTorch
            if hasattr(stream, attribute):
                return _address(getattr(stream, attribute))
    raise TypeError(f"stream is of type {_type_name(stream)}; an address or an object with __cuda_stream__ is needed")


def current_stream(seen: View) -> int:
    """The stream that an array's library works on now."""
    if seen.library == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream(seen.device).ptr)
    if seen.library == "torch":
        return int(sys.modules["torch"].cuda.current_stream(seen.device).cuda_stream)
    return seen.stream or 0


def wait_for(seen: View) -> None:
    """Until an array is there that a product reads in its own time, not in that of the array's stream."""
    if seen.library == "cupy":
        sys.modules["cupy"].cuda.get_current_stream(seen.device).synchronize()
    elif seen.library == "torch":
        sys.modules["torch"].cuda.current_stream(seen.device).synchronize()


# ---- short calls on GPUs -------------------------------------------------------------------------------------------

# Device, stream, whether all are in C order (otherwise all are in Fortran order), and address and size of three arrays.
Blocks = tuple[int, int, bool, int, int, int, int, int, int]

# Device, stream, bytes that steps count, then address, sizes and steps of three stacks of matrices.
Stacks = tuple[int, ...]


class Short(Protocol):
    """What short calls ask of a GPU library: a few attributes of its own arrays, and nothing else.

    The methods raise, no matter what, if the arrays are not float32 of this library on one device, or lie in other ways
    than they know; then the long way has a look.
    """

    def blocks(self, a: Any, b: Any, c: Any) -> Blocks: ...

    def stacks(self, a: Any, b: Any, c: Any) -> Stacks: ...

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any: ...

    def written(self, x: Any) -> None: ...


# By the exact class of an array. The long way fills it when it first meets one.
short: dict[type, Short] = {}


class _ShortCupy:
    def __init__(self, cupy: Any) -> None:
        self._array, self._empty, self._device = cupy.ndarray, cupy.empty, cupy.cuda.Device
        self._current_device, self._current_stream = cupy.cuda.runtime.getDevice, cupy.cuda.get_current_stream

    def _place(self, a: Any, b: Any, c: Any) -> tuple[int, int, int, int, int]:
        if not (a.__class__ is b.__class__ is c.__class__ is self._array and a.dtype is b.dtype is c.dtype is FLOAT32):
            raise TypeError
        a, b, c = a.data, b.data, c.data
        device = c.device_id
        if not a.device_id == b.device_id == device:
            raise ValueError
        return device, self._current_stream(device).ptr, a.ptr, b.ptr, c.ptr

    def blocks(self, a: Any, b: Any, c: Any) -> Blocks:
        device, stream, at_a, at_b, at_c = self._place(a, b, c)
        # flags has the same under public names, and makes an object each time.
        by_rows = a._c_contiguous and b._c_contiguous and c._c_contiguous
        if not by_rows and not (a._f_contiguous and b._f_contiguous and c._f_contiguous):
            raise ValueError
        return device, stream, by_rows, at_a, a.size, at_b, b.size, at_c, c.size

    def stacks(self, a: Any, b: Any, c: Any) -> Stacks:
        device, stream, at_a, at_b, at_c = self._place(a, b, c)
        return (
            *(device, stream, 1, at_a, *_stack(a.shape, a.strides)),
            *(at_b, *_stack(b.shape, b.strides), at_c, *_stack(c.shape, c.strides)),
        )

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        device = like.data.device_id
        if self._current_device() == device:
            return self._empty(shape, FLOAT32)
        with self._device(device):
            return self._empty(shape, FLOAT32)

    def written(self, x: Any) -> None:
        pass


class _ShortTorch:
    def __init__(self, torch: Any) -> None:
        self._tensor, self._read, self._float32 = torch.Tensor, (torch.Tensor, torch.nn.Parameter), torch.float32
        # The public way makes a Stream object, which takes longer than all the rest.
        self._current_stream = getattr(
            torch._C, "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
        )

    def _place(self, a: Any, b: Any, c: Any) -> tuple[int, int, int, int, int]:
        if not (
            c.__class__ is self._tensor
            and a.__class__ in self._read
            and b.__class__ in self._read
            and a.dtype is b.dtype is c.dtype is self._float32
            and a.is_cuda
            and b.is_cuda
            and c.is_cuda
            and not (a.is_neg() or b.is_neg() or c.is_neg() or c.requires_grad)
        ):
            raise TypeError
        device = c.get_device()
        if not a.get_device() == b.get_device() == device:
            raise ValueError
        return device, self._current_stream(device), a.data_ptr(), b.data_ptr(), c.data_ptr()

    def blocks(self, a: Any, b: Any, c: Any) -> Blocks:
        device, stream, at_a, at_b, at_c = self._place(a, b, c)
        if not (a.is_contiguous() and b.is_contiguous() and c.is_contiguous()):
            raise ValueError
        return device, stream, True, at_a, a.numel(), at_b, b.numel(), at_c, c.numel()

    def stacks(self, a: Any, b: Any, c: Any) -> Stacks:
        device, stream, at_a, at_b, at_c = self._place(a, b, c)
        return (
            *(device, stream, ITEM, at_a, *_stack(a.shape, a.stride())),
            *(at_b, *_stack(b.shape, b.stride()), at_c, *_stack(c.shape, c.stride())),
        )

    def empty(self, like: Any, shape: tuple[int, ...]) -> Any:
        return like.new_empty(shape)

    def written(self, x: Any) -> None:
        _count_write(x)


def _stack(shape: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes and steps of a stack of matrices; a matrix is a stack of one."""
    if len(shape) == 2:
        return (1, *shape, 0, *steps)
    if len(shape) == 3:
        return (*shape, *steps)
    raise ValueError


# ---- scalars -------------------------------------------------------------------------------------------------------


def scalars(
    function: str, alpha: object, beta: object, device: int | None, stream: int | None
) -> tuple[float, float, list[View]]:
    """alpha and beta as floats, or the views of two 0-d arrays on the product's GPU."""
    if isinstance(alpha, float) and isinstance(beta, float):
        return float(alpha), float(beta), []
    views = []
    values = []
    for name, x in ((f"{function}: alpha", alpha), (f"{function}: beta", beta)):
        value = _host_scalar(name, x)
        if value is None:
            seen = view(x, name, stream)
            if seen.shape != ():
                raise TypeError(f"{name} has shape {seen.shape}; a number or a 0-d array is needed")
            if seen.device is None:
                value = float(seen.array[()])
            else:
                views.append(seen)
        values.append(value)
    if not views:
        return cast(float, values[0]), cast(float, values[1]), []
    if len(views) == 1:
        raise TypeError(f"{function}: one of alpha and beta is on a GPU; both are needed in one place")
    for name, seen in zip(("alpha", "beta"), views, strict=True):
        if seen.device != device:
            raise TypeError(f"{function}: {name} is in {place(seen.device)} and the matrices in {place(device)}")
    return 0.0, 0.0, views


def _host_scalar(name: str, x: object) -> float | None:
    """A number's value; None for something that may be an array."""
    if isinstance(x, (float, int, np.floating, np.integer, np.bool_)):
        try:
            return float(x)
        except OverflowError:
            raise OverflowError(
                f"{name} is an integer of {int(x).bit_length()} bits, which no float can hold"
            ) from None
    if isinstance(x, np.ndarray):
        if x.shape != ():
            raise TypeError(f"{name} has shape {x.shape}; a number or a 0-d array is needed")
        if x.dtype.kind in "fiub":
            return float(x[()])
        raise TypeError(f"{name} holds {x.dtype}; a real number is needed")
    if isinstance(x, (complex, np.complexfloating, str, bytes)) or x is None:
        raise TypeError(f"{name} is a {_type_name(x)}; a real number is needed")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if x.device.type != "cpu" or x.dim() != 0:
            return None  # nothing more is asked of it here: with gradients it has no interface
        if x.is_complex():
            raise TypeError(f"{name} is a {x.dtype}; a real number is needed")
        return float(x.item())
    with _reading(name, x, "__cuda_array_interface__"):
        if hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__"):
            return None
    try:
        return float(cast(Any, x))
    except (TypeError, ValueError):
        raise TypeError(f"{name} is of type {_type_name(x)}; a real number is needed") from None


# ---- layout --------------------------------------------------------------------------------------------------------


def infer_order(function: str, views: Iterable[tuple[str, View]]) -> bool:
    """True for 'C', False for 'F': what the arrays of two or more dimensions say."""
    says: dict[bool, str] = {}
    for name, seen in views:
        if len(seen.shape) < 2:
            continue
        by_rows = _says_rows(seen)
        if by_rows is None:
            continue
        says.setdefault(by_rows, name)
        if len(says) == 2:
            raise InvalidValueError(
                f"{function}: {says[True]} is in C order and {says[False]} in Fortran order; name the order ('C' or 'F')"
            )
    return False not in says


def _says_rows(seen: View) -> bool | None:
    shape, strides = seen.shape, seen.strides
    by_rows, by_columns = seen.by_rows, seen.by_columns
    if not by_rows and not by_columns:
        by_rows = shape[-1] == 1 or strides[-1] == seen.item
        by_columns = shape[0] == 1 or strides[0] == seen.item or (len(shape) == 3 and strides[1] == seen.item)
        if by_rows and by_columns:  # an axis of length 1 fits any order; the other one speaks
            by_rows, by_columns = (
                strides[-1] == seen.item and shape[-1] != 1,
                strides[-1] != seen.item and shape[-1] != 1,
            )
    return None if by_rows == by_columns else by_rows


def buffer(
    function: str, name: str, seen: View, by_rows: bool, wanted: Elements, batch: int, batched: bool
) -> tuple[int, int]:
    """Elements the operand may use in front of its address and from it on.

    A block of any shape is a flat buffer. Anything else must be the matrices themselves: with strides equal to order, ld
    and batch stride, and as many rows and columns as are needed; then there is nothing left to check (-1).
    """
    if seen.by_rows or seen.by_columns:
        return 0, min(seen.size, (1 << 63) - 1)
    if wanted.length == 0 or wanted.vectors == 0:
        return 0, -1
    layouts: list[tuple[int, ...]] = []
    if len(seen.shape) == 2 and (batch == 1 or wanted.stride == 0):
        layouts = [(0, 1) if by_rows else (1, 0)]
    elif len(seen.shape) == 3 and batched:
        layouts = [(0, 1, 2)] if by_rows else [(0, 2, 1), (2, 1, 0)]
    counts = (batch, wanted.vectors, wanted.length)
    steps = (wanted.stride, wanted.ld, 1)
    for axes in layouts:
        shape = [seen.shape[axis] for axis in axes]
        strides = [seen.strides[axis] for axis in axes]
        needed, step = counts[-len(axes) :], steps[-len(axes) :]
        # The stride of an axis along which one step or none is taken means nothing.
        if any(
            n > 1 and have > 1 and st != s * seen.item
            for n, have, st, s in zip(needed, shape, strides, step, strict=True)
        ):
            continue
        if any(n > have for n, have in zip(needed, shape, strict=True)):
            raise InvalidValueError(
                f"{function}: {name} needs {math.prod(needed)} elements, {_times(needed, axes)},"
                f" its array has {seen.size}, {_times(shape, axes)}"
            )
        return 0, -1
    expected = f"({wanted.ld}, 1)" if by_rows else f"(1, {wanted.ld})"
    if batched:
        expected += f" and a batch stride of {wanted.stride}"
    have = tuple(stride // seen.item if stride % seen.item == 0 else stride / seen.item for stride in seen.strides)
    raise InvalidValueError(
        f"{function}: {name} is not contiguous, so it must be 2-D{' or 3-D' if batched else ''} with strides equal to"
        f" order and ld, {expected}; its strides are {have} and its shape is {seen.shape}"
    )


def _times(counts: Sequence[int], axes: Sequence[int]) -> str:
    return " x ".join(str(counts[axes.index(axis)]) for axis in sorted(axes))


# ---- overlap -------------------------------------------------------------------------------------------------------


def require_disjoint(function: str, name: str, x: Elements, c_name: str, c: Elements, batch: int = 1) -> None:
    """Raise unless the two share no element: exactly where that can be found out, and undecided counts as sharing."""
    answer = lib.pyblas_checked_overlap(*x, *c, batch)
    if answer < 0:
        answer = _shares_memory(_Addresses.of_elements(x, batch), _Addresses.of_elements(c, batch))
    if answer == 1:
        raise InvalidValueError(f"{function}: {c_name} overlaps {name} in memory")
    if answer < 0:
        raise InvalidValueError(
            f"{function}: whether {c_name} overlaps {name} in memory was not decided within {_MOST_WORK} steps,"
            " which counts as overlap; equal leading dimensions and strides are always decided"
        )


class _Addresses:
    """Looks like an array to NumPy, which computes with its addresses and never follows them."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{item}",
            "data": (address, False),
            "shape": shape,
            "strides": strides,
        }

    @classmethod
    def of_elements(cls, x: Elements, batch: int) -> _Addresses:
        strides = (x.item * x.stride, x.item * x.ld, x.item)
        return cls(x.address, (batch, x.vectors, x.length), strides, x.item)


def _shares_memory(x: _Addresses, y: _Addresses) -> int:
    try:
        return int(np.shares_memory(np.asarray(x), np.asarray(y), _MOST_WORK))
    except _Exceptions.TooHardError:
        return -1


def _range(x: View) -> tuple[int, int]:
    first = end = x.address
    for count, stride in zip(x.shape, x.strides, strict=True):
        if count == 0:
            return x.address, x.address
        if stride < 0:
            first += (count - 1) * stride
        else:
            end += (count - 1) * stride
    return first, end + x.item


def _ranges_meet(x: View, y: View) -> bool:
    x_first, x_end = _range(x)
    y_first, y_end = _range(y)
    return x_first < y_end and y_first < x_end


def may_share(x: View, y: View) -> bool:
    """Whether two arrays share an element; undecided counts as sharing."""
    if x.device != y.device or not _ranges_meet(x, y):
        return False
    as_addresses = (_Addresses(seen.address, seen.shape, seen.strides, seen.item) for seen in (x, y))
    return _shares_memory(*as_addresses) != 0


# ---- arrays that matmul makes --------------------------------------------------------------------------------------


def empty(like: View, shape: tuple[int, ...]) -> Any:
    """A new array of an array's library, in C order, on its device."""
    if like.library == "torch":
        torch = sys.modules["torch"]
        device = "cpu" if like.device is None else f"cuda:{like.device}"
        return torch.empty(shape, dtype=torch.float32, device=device)
    if like.device is None:
        return np.empty(shape, np.float32)
    if like.library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(like.device):
            return cupy.empty(shape, np.float32)
    numba = sys.modules.get("numba.cuda")
    if numba is not None and type(like.array).__module__.startswith("numba"):
        return numba.device_array(shape, np.float32)
    raise TypeError(
        f"matmul: {_type_name(like.array)} cannot be made here; pass out, or CuPy or PyTorch arrays of the same memory"
    )


def hand_back(result: View, inputs: Sequence[View]) -> Any:
    """A new result as its caller expects it: NumPy's numbers for two vectors, JAX's arrays for JAX's."""
    if "jax" in sys.modules and any(_is_jax(seen.owner) for seen in inputs):
        return sys.modules["jax"].numpy.asarray(result.array)
    return result.array[()] if result.library == "numpy" and result.shape == () else result.owner


def packed_copy(seen: View) -> View:
    """The same values in a new array in C order."""
    if seen.library == "interface":
        raise TypeError(
            f"matmul: {_type_name(seen.array)} would have to be copied, as BLAS cannot be told of it as it lies;"
            " pass a CuPy array or a PyTorch tensor of the same memory"
        )
    result = view(empty(seen, seen.shape), "a copy")
    assign(result, seen)
    return result


def assign(target: View, source: View) -> None:
    """target[...] = source, on the library's current stream. Both are of one library and shape."""
    if target.library == "torch":
        target.array.detach().copy_(source.array.detach())
    elif target.library == "cupy":
        with target.array.device:
            target.array[...] = source.array
    else:
        target.array[...] = source.array


def written(seen: View) -> None:
    """Tell a library that an array of its was written, if it keeps count."""
    if seen.library == "torch":
        _count_write(seen.array)


def _count_write(x: Any) -> None:
    # Autograd compares versions to find values that were saved for a gradient and then changed.
    increment = getattr(sys.modules["torch"].autograd.graph, "increment_version", None)
    if increment is not None and not x.is_inference():
        increment(x)
