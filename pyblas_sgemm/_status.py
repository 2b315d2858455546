"""Exceptions, and the one way from a status number to them."""

from __future__ import annotations

from ._cffi import ffi, lib


class SgemmError(RuntimeError):
    """A call failed. ``status`` is the C library's number, ``name`` its name, the text says what and why.

    Its subclasses are also what Python would raise: ``InvalidValueError`` is a ``ValueError``, ``NotSupportedError`` a
    ``NotImplementedError`` and ``AllocError`` a ``MemoryError``.
    """

    status: int = lib.PYBLAS_STATUS_INTERNAL_ERROR

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status

    def __reduce__(self) -> tuple[type[SgemmError], tuple[str, int]]:
        return type(self), (str(self), self.status)

    @property
    def name(self) -> str:
        """The status's name in C: ``'PYBLAS_STATUS_INVALID_VALUE'`` for 7."""
        return status_name(self.status)


class InvalidValueError(SgemmError, ValueError):
    """An argument is out of range, does not fit its array, or contradicts another."""

    status = lib.PYBLAS_STATUS_INVALID_VALUE


class NotSupportedError(SgemmError, NotImplementedError):
    """The library or the device cannot do this."""

    status = lib.PYBLAS_STATUS_NOT_SUPPORTED


class AllocError(SgemmError, MemoryError):
    """Memory for the call could not be had."""

    status = lib.PYBLAS_STATUS_ALLOC_FAILED


_CLASSES: dict[int, type[SgemmError]] = {
    lib.PYBLAS_STATUS_ALLOC_FAILED: AllocError,
    lib.PYBLAS_STATUS_INVALID_VALUE: InvalidValueError,
    lib.PYBLAS_STATUS_NOT_SUPPORTED: NotSupportedError,
}


def status_name(status: int) -> str:
    """Name of a status number."""
    return _text(lib.pyblasGetStatusName(status))


def check(status: int) -> None:
    """Raise the exception of a status, with the sentence that its call left behind on this thread."""
    if status == 0:
        return
    if status < 0:
        status, message = -status, _text(lib.pyblas_checked_message())
    else:
        message = _text(lib.pyblasGetLastErrorMessage())
    raise _CLASSES.get(status, SgemmError)(message or status_name(status), status)


def _text(chars: object) -> str:
    text: bytes = ffi.string(chars)
    return text.decode("utf-8", "replace")
