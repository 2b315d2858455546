"""Handles: the C library's contexts, one per device and thread where the caller names none, and their settings."""

from __future__ import annotations

import atexit
import importlib.util
import operator
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from ._cffi import ffi, lib
from ._status import InvalidValueError, NotSupportedError, SgemmError, check

if TYPE_CHECKING:
    from typing_extensions import Self

MODES = {
    "fp32": lib.PYBLAS_COMPUTE_32F,
    "fp32_pedantic": lib.PYBLAS_COMPUTE_32F_PEDANTIC,
    "tf32": lib.PYBLAS_COMPUTE_32F_FAST_TF32,
}
_MODE_NAMES = {number: name for name, number in MODES.items()}


class KernelInfo(NamedTuple):
    """One row of the kernel table."""

    name: str
    family: str
    engine: str
    modes: tuple[str, ...]
    min_sm: int
    threads: int
    registers: int
    shared_bytes: int
    types: tuple[str, ...] = ("float32",)  # of A and B


class SelectedKernel(NamedTuple):
    """The kernel a product would run, and why it was chosen."""

    name: str
    reason: str


def mode_number(name: str) -> int:
    try:
        return int(MODES[name])
    except (KeyError, TypeError):
        raise InvalidValueError(f"compute is {name!r}; accepted are {', '.join(map(repr, MODES))}") from None


def yes_or_no(name: str, x: object) -> bool:
    if isinstance(x, (bool, np.bool_)) or (isinstance(x, (int, np.integer)) and x in (0, 1)):
        return bool(x)
    raise TypeError(f"{name} is {x!r}; True or False is needed")


def _bytes(name: str, x: Any, least: int) -> int:
    try:
        value = operator.index(x)
    except TypeError:
        raise TypeError(f"{name} is {x!r}; a number of bytes is needed") from None
    if not least <= value < 1 << 64:
        raise InvalidValueError(f"{name} is {value}; a number of bytes from {least} to 2^64 - 1 is needed")
    return value


# ---- C handles -----------------------------------------------------------------------------------------------------

# Once Python is going down, the driver may be gone before a handle is: the system takes back what is left. Names of
# modules become None then, which is false too.
_running = True


def _stop_running() -> None:
    global _running
    _running = False


atexit.register(_stop_running)


class Context:
    """One C handle. ``c`` is its pointer; the other attributes are what it is set to now."""

    __slots__ = ("c", "default_mode", "device", "lock", "mode")

    def __init__(self, device: int | None) -> None:
        out = ffi.new("pyblasHandle_t *")
        self.c = ffi.NULL
        if device is None:
            find_blas()
            check(lib.pyblasCreateCpu(out))
        else:
            check(lib.pyblasCreateOnDevice(out, device))
        self.c = out[0]
        self.device = device
        self.lock = threading.RLock()
        if device is not None:
            # gemm_batched gathers its addresses on the host.
            check(lib.pyblasSetArrayMode(self.c, lib.PYBLAS_ARRAY_MODE_HOST))
        mode = ffi.new("pyblasComputeType_t *")
        check(lib.pyblasGetComputeMode(self.c, mode))
        self.mode = self.default_mode = int(mode[0])

    def set_mode(self, mode: int) -> None:
        if mode != self.mode:
            check(lib.pyblasSetComputeMode(self.c, mode))
            self.mode = mode

    def set_stream(self, stream: int) -> None:
        check(lib.pyblasSetStream(self.c, ffi.cast("pyblasStream_t", stream)))

    def close(self) -> None:
        c, self.c = self.c, ffi.NULL
        if c != ffi.NULL:
            check(lib.pyblasDestroy(c))

    def __del__(self) -> None:
        if _running and self.c:
            lib.pyblasDestroy(self.c)


_blas_lock = threading.RLock()
# A fork waits for a thread that is finding the library, or the child would wait for a thread it does not have.
os.register_at_fork(before=_blas_lock.acquire, after_in_parent=_blas_lock.release, after_in_child=_blas_lock.release)
_blas_is_found = False


def find_blas() -> None:
    """Tell the library where scipy_openblas32 lies. Finding it costs some milliseconds, importing it forty."""
    global _blas_is_found
    with _blas_lock:
        if _blas_is_found:
            return
        _blas_is_found = True
        package = importlib.util.find_spec("scipy_openblas32")
        for folder in (package.submodule_search_locations or ()) if package else ():
            for path in sorted(Path(folder, "lib").glob("libscipy_openblas.so*")):
                # Refused once a product in C has loaded a BLAS; then that one is used.
                lib.pyblasSetBlasLibrary(os.fsencode(path))
                return


# ---- what belongs to a thread --------------------------------------------------------------------------------------


class _Thread(threading.local):
    """This thread's implicit handles, by device, and its compute mode.

    ``host`` is the C pointer of the CPU's handle. Short calls take it from here without a further question, so it is
    there only while PYBLAS_SGEMM_DEVICE leaves host arrays to the CPU.
    """

    host: Any

    def __init__(self) -> None:
        self.contexts: dict[int | None, Context] = {}
        self.compute: str | None = None
        self.outer: list[str | None] = []  # modes round those of the compute_mode blocks that this thread is in
        self.device = os.environ.get("PYBLAS_SGEMM_DEVICE") or None


thread = _Thread()


def implicit(device: int | None) -> Context:
    """This thread's handle for a device, made at its first use."""
    context = thread.contexts.get(device)
    if context is None:
        context = Context(device)
        if thread.compute is not None:
            context.set_mode(MODES[thread.compute])
        thread.contexts[device] = context
        if device is None and (thread.device is None or parse_device(thread.device, _DEVICE_VARIABLE) is None):
            thread.host = context.c
    return context


def require_usable(context: Context) -> None:
    """Fail in a process forked after the GPU was used, with the sentence that names the fork.

    An empty product asks. Without it the first to fail would be the array library, where it allocates the result.
    """
    null = ffi.NULL
    check(lib.pyblasSgemm_64(context.c, 0, 0, 0, 0, 0, null, null, 1, null, 1, null, null, 1))


class Destination(NamedTuple):
    """Where a product of host arrays, or of arrays in several places, is computed."""

    device: int
    devices: tuple[int, ...] = ()  # none: that one alone


def destination(
    function: str,
    device: object,
    devices: object,
    handle: Handle | None,
    places: Collection[int | None],
    predict: Callable[[Context], float],
) -> Destination | None:
    """Where to, by what the call, its handle or the environment says; None: where the arrays lie, all in one place.

    places are those of the arrays. predict tells a context's seconds, for 'auto'.
    """
    if devices is not None:
        if device is not None:
            raise InvalidValueError(f"{function}: device and devices are given; one of them is enough")
        numbers = tuple(_gpu_number(function, one) for one in _as_sequence(function, devices))
        return Destination(numbers[0], numbers)
    name = "device"
    if device is None:
        # The environment speaks of host arrays for which nobody else does.
        if thread.device is None or set(places) != {None} or (handle is not None and handle.device is not None):
            return None
        device, name = thread.device, _DEVICE_VARIABLE
    wish = parse_device(device, name)
    if wish is None or None not in places:
        return None
    gpus = sorted(place for place in places if place is not None)
    bound = handle.device if handle is not None else None
    if isinstance(wish, int):
        return Destination(wish)
    number = gpus[0] if gpus else bound if isinstance(bound, int) else 0
    if wish == "auto" and not gpus and not _gpu_is_sooner(number, predict):
        return None
    return Destination(number)


# Seconds of the least product of host memory on a GPU, by its number: what no other can be sooner than.
_least_seconds: dict[int, float] = {}


class _Answer:
    """That the CPU is to compute a shape: for how many calls nobody asks again, and for how many after the next answer."""

    __slots__ = ("left", "next")

    def __init__(self) -> None:
        self.left, self.next = 0, 0


_answers: dict[tuple[int, int, int, int], _Answer] = {}
_MOST_ANSWERS, _MOST_CALLS, _FOR_GOOD = 4096, 63, 1 << 62


def cpu_for(device: object, order: object, m: int, n: int, k: int, batch: int) -> Any:
    """The C pointer of the CPU's handle, if device leaves a product of host arrays to it. Else some exception is raised.

    Transposition is left out: it has next to no part in a prediction.
    """
    host = thread.contexts[None].c
    if device == "cpu":
        return host
    if device != "auto":
        raise LookupError
    shape = (m, n, k, batch) if order == "F" else (n, m, k, batch)
    answer = _answers.get(shape)
    if answer is not None and answer.left > 0:
        answer.left -= 1
        return host

    def predict(context: Context) -> float:
        seconds = ffi.new("double *")
        check(lib.pyblasXtPredict(context.c, 0, 0, *shape, seconds))
        return float(seconds[0])

    if _gpu_is_sooner(0, predict):
        _answers.pop(shape, None)
        raise LookupError
    if answer is None and len(_answers) < _MOST_ANSWERS:
        answer = _answers[shape] = _Answer()
    if answer is not None:
        # What cannot be sooner on a GPU is settled, and the rest is settled more and more.
        settled = predict(thread.contexts[None]) < 0.5 * _least_seconds.get(0, 0)
        answer.left = _FOR_GOOD if settled else answer.next
        answer.next = min(2 * answer.next + 1, _MOST_CALLS)
    return host


def _gpu_is_sooner(number: int, predict: Callable[[Context], float]) -> bool:
    on_cpu = predict(implicit(None))
    if on_cpu <= _least_seconds.get(number, 0):
        return False
    try:
        gpu = implicit(number)
        if number not in _least_seconds:
            seconds = ffi.new("double *")
            check(lib.pyblasXtPredict(gpu.c, 0, 0, 1, 1, 1, 1, seconds))
            _least_seconds[number] = float(seconds[0])
        return predict(gpu) < on_cpu
    except SgemmError:  # there is none that can be used
        _least_seconds[number] = float("inf")
        return False


def _as_sequence(function: str, devices: object) -> Sequence[object]:
    if isinstance(devices, (str, bytes)) or not isinstance(devices, Sequence) or not devices:
        raise InvalidValueError(f"{function}: devices is {devices!r}; a sequence of GPUs is needed, such as [0, 1]")
    return devices


def _gpu_number(function: str, device: object) -> int:
    number = parse_device(device)
    if not isinstance(number, int):
        raise InvalidValueError(f"{function}: devices holds {device!r}; GPUs are named by number, or as 'cuda:N'")
    return number


def context_for(function: str, device: object, handle: Handle | None, arrays: int | None) -> Context:
    """The C handle for a call: on the device of its arrays, if that is what the caller, handle or environment wants."""
    require_handle(function, handle)
    if device is not None:
        _require_device(function, "device", device, arrays)
    elif arrays is None and thread.device is not None and (handle is None or handle.device is None):
        _require_device(function, _DEVICE_VARIABLE, thread.device, arrays)
    return implicit(arrays) if handle is None else handle.context(arrays)


def require_handle(function: str, handle: object) -> None:
    if handle is not None and not isinstance(handle, Handle):
        raise TypeError(f"{function}: handle is of type {type(handle).__name__}; a pyblas_sgemm.Handle is needed")


def _require_device(function: str, name: str, wish: object, arrays: int | None) -> None:
    number = parse_device(wish, name)
    if number == "auto":
        return
    if arrays is None:
        if number is not None:
            raise NotSupportedError(
                f"{function}: {name} is {wish!r}, but its host arrays are computed on the CPU; sgemm,"
                " gemm_strided_batched and matmul take theirs to a GPU"
            )
    elif number is None or (isinstance(number, int) and number != arrays):
        raise InvalidValueError(f"{function}: {name} is {wish!r}, but the arrays are on GPU {arrays}")


_DEVICE_VARIABLE = "environment variable PYBLAS_SGEMM_DEVICE"


def parse_device(device: object, name: str = "device") -> int | str | None:
    """None for 'cpu', a number for a GPU, 'cuda' for whichever, 'auto' for the sooner of CPU and GPU."""
    if device == "cpu":
        return None
    if device == "cuda" or device == "auto":
        return str(device)
    number = device.removeprefix("cuda:") if isinstance(device, str) else device
    if isinstance(number, str) and number.isascii() and number.isdecimal():
        number = int(number)
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 1 << 31:
        return number
    raise InvalidValueError(f"{name} is {device!r}; accepted are None, 'cpu', 'cuda', 'cuda:N', N and 'auto'")


class compute_mode:
    """Context manager: how this thread's products are computed, unless a call or its handle says otherwise.

    ``name`` is 'fp32' (FP32 accuracy by any means, the default), 'fp32_pedantic' (FP32 multiply-adds only) or 'tf32'.
    It goes before PYBLAS_SGEMM_COMPUTE, and other threads do not see it. Unknown names are an InvalidValueError; a mode
    that the library does not have is a NotSupportedError on entering.

    >>> with pyblas_sgemm.compute_mode("fp32_pedantic"):
    ...     c = pyblas_sgemm.matmul(a, b)
    """

    def __init__(self, name: str) -> None:
        mode_number(name)
        self.name = name

    def __enter__(self) -> Self:
        implicit(None)  # so that a mode nobody has is refused here
        before = thread.compute
        _set_thread_mode(self.name)
        thread.outer.append(before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _set_thread_mode(thread.outer.pop())


def _set_thread_mode(name: str | None) -> None:
    before = thread.compute
    try:
        for context in thread.contexts.values():
            context.set_mode(context.default_mode if name is None else MODES[name])
    except BaseException:
        for context in thread.contexts.values():
            context.set_mode(context.default_mode if before is None else MODES[before])
        raise
    thread.compute = name


# ---- handles that callers hold -------------------------------------------------------------------------------------


class Handle:
    """Settings for products, and the C handles that carry them out.

    ``device`` None follows the arrays of each call, with one C handle per device; 'cpu' or a GPU's number binds the
    handle to it, and arrays elsewhere are a ValueError. ``compute`` is a name as in ``compute_mode``, ``kernel`` forces a
    kernel of ``kernels()``, ``batch_invariant`` asks for rows of C that do not depend on the number of rows, and
    ``workspace_limit`` is the most bytes of device memory the handle may keep for one stream, and ``memory_limit`` the
    most that a product of host arrays may use of a GPU. What is not given follows the thread's compute mode and the
    environment. Several threads may use one handle: its calls run one after another.

    >>> with pyblas_sgemm.Handle(compute="fp32_pedantic") as handle:
    ...     pyblas_sgemm.sgemm("N", "N", 2, 2, 2, 1.0, a, 2, b, 2, 0.0, c, 2, handle=handle)

    Raises InvalidValueError for settings that do not exist, NotSupportedError for those the library does not have or a
    device that cannot be used.
    """

    def __init__(
        self,
        device: str | int | None = None,
        *,
        compute: str | None = None,
        kernel: str | None = None,
        batch_invariant: bool | None = None,
        workspace_limit: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        number = None if device is None else parse_device(device)
        if number == "auto":
            raise InvalidValueError("device is 'auto'; a handle is for the CPU, for one GPU, or with None for all")
        self._follows = device is None
        self._device = 0 if number == "cuda" else number
        self._contexts: dict[int | None, Context] = {}
        self._lock = threading.RLock()
        self._closed = False
        self._compute: str | None = None
        self._kernel = ""
        self._batch_invariant = False
        self._workspace_limit: int | None = None
        self._memory_limit: int | None = None
        _handles.add(self)
        engine = _engine_of(kernel) if kernel else None
        # A handle that follows has a C handle for the CPU from the start, so that settings are judged when they are made.
        if not self._follows or engine != "gpu":
            self.context(None if self._follows else self._bound())
        if compute is not None:
            self.compute = compute
        if kernel:
            self.kernel = kernel
        if batch_invariant is not None:
            self.batch_invariant = batch_invariant
        if workspace_limit is not None:
            self.workspace_limit = workspace_limit
        if memory_limit is not None:
            self.memory_limit = memory_limit

    def _bound(self) -> int | None:
        assert not isinstance(self._device, str)
        return self._device

    def context(self, device: int | None) -> Context:
        """The C handle for a device."""
        with self._lock:
            if self._closed:
                raise InvalidValueError("the handle is closed")
            if not self._follows and device != self._device:
                raise InvalidValueError(
                    f"the handle is for {_device_name(self._bound())} and the arrays are in {_device_name(device)}"
                )
            context = self._contexts.get(device)
            if context is None:
                context = Context(device)
                self._apply(context)
                self._contexts[device] = context
            return context

    def after_fork(self) -> None:
        """In the child, which has the forking thread alone: locks of other threads would be held for ever.

        What such a thread was in the middle of changing is made anew at the next call.
        """
        if not _is_mine(self._lock):
            self._lock = threading.RLock()
        for device, context in list(self._contexts.items()):
            if not _is_mine(context.lock):
                del self._contexts[device]

    def _apply(self, context: Context) -> None:
        if self._compute is not None:
            context.set_mode(MODES[self._compute])
        if self._kernel:
            check(lib.pyblasSetKernel(context.c, self._kernel.encode()))
        if self._batch_invariant:
            check(lib.pyblasSetBatchInvariant(context.c, 1))
        if self._workspace_limit is not None:
            check(lib.pyblasSetWorkspaceLimit(context.c, self._workspace_limit))
        if self._memory_limit is not None:
            check(lib.pyblasXtSetMemoryLimit(context.c, self._memory_limit))

    def _set(self, call: Callable[[Context], int]) -> None:
        with self._lock:
            if self._closed:
                raise InvalidValueError("the handle is closed")
            for context in self._contexts.values():
                with context.lock:
                    check(call(context))

    @property
    def device(self) -> str | int | None:
        """'cpu', a GPU's number, or None if the handle follows the arrays."""
        return None if self._follows else "cpu" if self._device is None else self._device

    @property
    def compute(self) -> str:
        """How products are computed: what was set, else the thread's mode, else the environment's, else 'fp32'."""
        return self._compute or current_compute()

    @compute.setter
    def compute(self, name: str) -> None:
        number = mode_number(name)
        with self._lock:
            if self._closed:
                raise InvalidValueError("the handle is closed")
            for context in self._contexts.values():
                with context.lock:
                    context.set_mode(number)
            self._compute = name

    @property
    def follows_compute(self) -> bool:
        """Whether no mode was set here, so that the thread's counts."""
        return self._compute is None

    @property
    def kernel(self) -> str | None:
        """The forced kernel, or None if the library chooses. Setting it to None lets it choose."""
        if self._kernel:
            return self._kernel
        with self._lock:
            for context in self._contexts.values():
                name = ffi.new("char const **")
                check(lib.pyblasGetKernel(context.c, name))
                return ffi.string(name[0]).decode() or None
        return None

    @kernel.setter
    def kernel(self, name: str | None) -> None:
        engine = _engine_of(name) if name else None
        text = (name or "").encode()
        with self._lock:
            for context in list(self._contexts.values()):
                if self._follows and engine == ("gpu" if context.device is None else "cpu"):
                    # Arrays there get their refusal when they come.
                    self._contexts.pop(context.device)
            self._set(lambda context: int(lib.pyblasSetKernel(context.c, text)))
            self._kernel = name or ""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row of C is the same however many rows and batches the call has."""
        return self._batch_invariant

    @batch_invariant.setter
    def batch_invariant(self, on: bool) -> None:
        on = yes_or_no("batch_invariant", on)
        self._set(lambda context: int(lib.pyblasSetBatchInvariant(context.c, on)))
        self._batch_invariant = on

    @property
    def workspace_limit(self) -> int:
        """Most bytes of device memory the handle may keep for one stream."""
        if self._workspace_limit is not None:
            return self._workspace_limit
        with self._lock:
            context = self.context(None if self._follows else self._bound())
            limit = ffi.new("size_t *")
            check(lib.pyblasGetWorkspaceLimit(context.c, limit))
            return int(limit[0])

    @workspace_limit.setter
    def workspace_limit(self, limit: int) -> None:
        limit = _bytes("workspace_limit", limit, 0)
        self._set(lambda context: int(lib.pyblasSetWorkspaceLimit(context.c, limit)))
        self._workspace_limit = limit

    @property
    def memory_limit(self) -> int | None:
        """Most bytes that a product of host arrays may use of a GPU; None: the environment's, or four fifths of what is
        free when it begins."""
        return self._memory_limit

    @memory_limit.setter
    def memory_limit(self, limit: int) -> None:
        limit = _bytes("memory_limit", limit, 1)
        self._set(lambda context: int(lib.pyblasXtSetMemoryLimit(context.c, limit)))
        self._memory_limit = limit

    def free_workspace(self) -> None:
        """Free the device memory the handle keeps. Graphs that were captured with it must not be replayed."""
        self._set(lambda context: int(lib.pyblasFreeWorkspace(context.c)))

    def close(self) -> None:
        """Destroy the C handles. Closing twice does no harm; using a closed handle is an InvalidValueError."""
        with self._lock:
            self._closed = True
            while self._contexts:
                context = self._contexts.popitem()[1]
                with context.lock:
                    context.close()

    @property
    def closed(self) -> bool:
        """Whether ``close()`` was called."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Handle cannot be copied or pickled, as it stands for memory of this process; make a new one")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"compute={self.compute!r}, kernel={self.kernel!r}"
        return f"<pyblas_sgemm.Handle device={self.device!r}, {state}>"


_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _is_mine(lock: threading.RLock) -> bool:
    """Whether this thread has the lock, or can have it."""
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


def _after_fork() -> None:
    for handle in list(_handles):
        handle.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _device_name(device: int | None) -> str:
    return "host memory" if device is None else f"GPU {device}"


def current_compute() -> str:
    """The mode of this thread's products on the CPU and, unless it is set per handle, on GPUs."""
    return _MODE_NAMES[implicit(None).mode]


def _engine_of(kernel: str) -> str:
    for row in kernels():
        if row.name == kernel:
            return row.engine
    raise InvalidValueError(f"kernel is {kernel!r}; there are {', '.join(row.name for row in kernels())}")


def kernels() -> list[KernelInfo]:
    """The kernel table of this build: name, family, engine, compute modes, lowest architecture and footprint of each.

    >>> [kernel.name for kernel in pyblas_sgemm.kernels() if kernel.engine == "gpu"]
    """
    rows: list[KernelInfo] = []
    info = ffi.new("pyblasKernelInfo_t *")
    while lib.pyblasKernelName(len(rows)) != ffi.NULL:
        check(lib.pyblasKernelInfo(len(rows), info))
        name, family, engine, modes, types = (
            ffi.string(text).decode() for text in (info.name, info.family, info.engine, info.modes, info.types)
        )
        block = int(info.threads), int(info.registers), int(info.shared_bytes)
        rows.append(
            KernelInfo(name, family, engine, tuple(modes.split()), int(info.min_sm), *block, tuple(types.split()))
        )
    return rows
