"""What happens while a product of host arrays runs on GPUs: the caller is told, and Ctrl-C is heard.

The C library asks about twenty times a second, on the thread of the call, whether to go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._cffi import ffi, lib
from ._handle import Context
from ._status import SgemmError, check

if TYPE_CHECKING:
    from typing_extensions import Self

Progress = Callable[[float], object]


def require_callable(function: str, progress: object) -> None:
    if progress is not None and not callable(progress):
        raise TypeError(f"{function}: progress is a {type(progress).__name__}; a function of one number is needed")


class _Failure(threading.local):
    exception: BaseException | None = None


_failure = _Failure()


def _keep(kind: type[BaseException], exception: BaseException, traceback: TracebackType) -> None:
    """What the callback raises; KeyboardInterrupt may come anywhere in it."""
    _failure.exception = exception


@ffi.def_extern(error=1, onerror=_keep)  # type: ignore[untyped-decorator]
def progress_of_call(context: Any, done: float) -> int:
    progress = ffi.from_handle(context)[0]
    if progress is not None:
        progress(done)
    return 0


class Watched:
    """The C handle with GPUs and callback set for one call, put back afterwards. To be entered under its lock."""

    def __init__(self, context: Context, devices: tuple[int, ...], progress: Progress | None) -> None:
        self._context, self._devices, self._progress = context, devices, progress

    def __enter__(self) -> Self:
        _failure.exception = None
        self._told = ffi.new_handle((self._progress,))
        c = self._context.c
        check(lib.pyblasXtSetDevices(c, len(self._devices), ffi.new("int[]", self._devices or (0,))))
        check(lib.pyblasXtSetProgress(c, lib.progress_of_call, self._told))
        return self

    def check(self, status: int) -> None:
        """As check(); a product that its callback has stopped raises what the callback raised, and says what C holds."""
        failure, _failure.exception = _failure.exception, None
        try:
            check(status)
        except SgemmError as error:
            if failure is not None:
                raise failure from error
            raise
        if failure is not None:  # it came when the product was complete
            raise failure

    def __exit__(self, *failure: object) -> None:
        c = self._context.c
        lib.pyblasXtSetProgress(c, ffi.NULL, ffi.NULL)
        lib.pyblasXtSetDevices(c, 0, ffi.NULL)
