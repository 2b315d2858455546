"""sgemm, gemm_strided_batched, gemm_batched, their twins for 16-bit types and selected_kernel.

Each call first tries the short way: three arrays of NumPy that are blocks in C order, or of a GPU library that are blocks
in one order, strings and numbers as most callers write them, no settings. There Python only fetches addresses and one C
call judges and computes; whatever does not fit falls through to the long way, which knows every kind of array and has the
words for every mistake.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from . import _arrays
from ._arrays import Elements, View
from ._cffi import ffi, lib
from ._handle import (
    Context,
    Handle,
    SelectedKernel,
    context_for,
    cpu_for,
    destination,
    implicit,
    mode_number,
    parse_device,
    require_handle,
    thread,
    yes_or_no,
)
from ._progress import Progress, Watched, require_callable
from ._status import InvalidValueError, check

_OPERATIONS: dict[object, int] = {"N": 0, "n": 0, "T": 1, "t": 1, "C": 2, "c": 2}
_OPERATION_NUMBERS = {0: 0, 1: 1, 2: 2, 111: 0, 112: 1, 113: 2}
_ROW_MAJOR: int = lib.PYBLAS_CHECKED_ROW_MAJOR
_SHORT_FLAGS: dict[object, int] = {None: _ROW_MAJOR, "C": _ROW_MAJOR, "F": 0}

_checked_sgemm = lib.pyblas_checked_sgemm
_checked_gemm_strided_batched = lib.pyblas_checked_gemm_strided_batched
_checked_sgemm_on_gpu = lib.pyblas_checked_sgemm_on_gpu
_checked_gemm_strided_batched_on_gpu = lib.pyblas_checked_gemm_strided_batched_on_gpu
_short = _arrays.short
_from_buffer = ffi.from_buffer
_FLOATS = ffi.typeof("float[]")
_FLOAT32 = np.dtype(np.float32)
_ndarray = np.ndarray
# What a short call raises on arguments that do not fit it. The long way finds out whether they are a mistake.
GO_THE_LONG_WAY = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, BufferError, RuntimeError)
_UNDECIDED = {
    lib.PYBLAS_CHECKED_UNDECIDED_A: lib.PYBLAS_CHECKED_A_IS_DISJOINT,
    lib.PYBLAS_CHECKED_UNDECIDED_B: lib.PYBLAS_CHECKED_B_IS_DISJOINT,
}


def sgemm(
    transa: str | int,
    transb: str | int,
    m: int,
    n: int,
    k: int,
    alpha: Any,
    A: Any,
    lda: int,
    B: Any,
    ldb: int,
    beta: Any,
    C: Any,
    ldc: int,
    *,
    order: str | None = None,
    stream: Any = None,
    compute: str | None = None,
    batch_invariant: bool | None = None,
    device: str | int | None = None,
    devices: Sequence[str | int] | None = None,
    progress: Progress | None = None,
    handle: Handle | None = None,
) -> Any:
    """C := alpha * op(A) * op(B) + beta * C, in place; returns C.

    op(A) is m x k, op(B) is k x n and C is m x n. ``transa`` and ``transb`` are 'N', 'T' or 'C' in either case, 0, 1, 2
    or 111, 112, 113; for real data 'C' is 'T'. ``order='C'``: the matrices are row-major and ld is the length of a stored
    row in elements (lda >= k for 'N', m otherwise; ldb >= n for 'N', k otherwise; ldc >= n). ``order='F'``: column-major
    as in BLAS. None follows the arrays: those of two or more dimensions must agree, and where none speaks it is 'C'.

    Arrays are float32 on one device: NumPy, CuPy, PyTorch, Numba, or anything with __cuda_array_interface__, DLPack or
    the buffer protocol. A contiguous array is a flat buffer, read from its first element; any other must be 2-D with the
    strides that ``order`` and ld say. Nothing is cast or copied. With beta == 0, C is not read; with alpha == 0 or k == 0,
    A and B are not, and may be None.

    alpha and beta are numbers, or both 0-d arrays on the GPU, which are read when the product runs. On a GPU the work is
    queued on the current stream of C's library and the call returns; arrays of other libraries must be ready there.
    ``stream`` names another: an address, or a stream object of CuPy, PyTorch or anything with __cuda_stream__; then the
    caller keeps the arrays until the work is done, as their libraries do so only for streams of their own. ``compute``
    ('fp32', 'fp32_pedantic', 'tf32') and ``batch_invariant`` go before those of ``handle``. PyTorch tensors that require gradients are read as if detached; C must not be one.

    Arrays lie in one place, and the product is computed there, unless ``device`` says otherwise: 'cuda' or a GPU's number
    takes host arrays to that GPU in tiles, however large they are, and then A, B and C may lie in any mixture of places;
    'auto' does so where it is sooner; ``devices`` names several GPUs that share the work. Such a call returns when C is
    written, and ``progress`` is called meanwhile with the part that is done. If the callback raises, or Ctrl-C is
    pressed, the product stops, and the exception's cause says how much of C is written.

    Raises InvalidValueError (a ValueError) for arguments out of range, arrays that are too small (needed and available
    elements are named), a read-only C and a C that shares elements with A or B; TypeError for other dtypes and for host
    and GPU arrays in one call; OverflowError for integers beyond 64 bits; NotSupportedError and AllocError, which are
    a NotImplementedError and a MemoryError, and SgemmError for what the device cannot do.

    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> b = np.ones((3, 4), np.float32)
    >>> c = np.empty((2, 4), np.float32)
    >>> pyblas_sgemm.sgemm("N", "N", 2, 4, 3, 1.0, a, 3, b, 4, 0.0, c, 4)
    """
    if (
        stream is None
        and compute is None
        and batch_invariant is None
        and (device is None or A.__class__ is _ndarray)
        and devices is None
        and progress is None
        and handle is None
        and (alpha.__class__ is float or alpha.__class__ is int)
        and (beta.__class__ is float or beta.__class__ is int)
    ):
        short = status = None
        try:
            if (
                # Floats have no |, so this refuses m = 2.5, which would pass for 2 on its way to C.
                m | n | k | lda | ldb | ldc is not None
                and A.__class__ is B.__class__ is C.__class__ is _ndarray
                and A.dtype is B.dtype is C.dtype is _FLOAT32
            ):
                status = _checked_sgemm(
                    thread.host if device is None else cpu_for(device, order, m, n, k, 1),
                    _SHORT_FLAGS[order],
                    _OPERATIONS[transa],
                    _OPERATIONS[transb],
                    m,
                    n,
                    k,
                    alpha,
                    _from_buffer(_FLOATS, A),
                    A.size,
                    lda,
                    _from_buffer(_FLOATS, B),
                    B.size,
                    ldb,
                    beta,
                    _from_buffer(_FLOATS, C, True),
                    C.size,
                    ldc,
                )
            else:
                short = _short[C.__class__]
                gpu, queue, by_rows, at_a, size_a, at_b, size_b, at_c, size_c = short.blocks(A, B, C)
                status = _checked_sgemm_on_gpu(
                    thread.contexts[gpu].c,
                    queue,
                    by_rows * _ROW_MAJOR if order is None else _SHORT_FLAGS[order],
                    _OPERATIONS[transa],
                    _OPERATIONS[transb],
                    m,
                    n,
                    k,
                    alpha,
                    at_a,
                    size_a,
                    lda,
                    at_b,
                    size_b,
                    ldb,
                    beta,
                    at_c,
                    size_c,
                    ldc,
                )
        except GO_THE_LONG_WAY:
            pass
        if status == 0:
            if short is not None:
                short.written(C)
            return C
    call = _parse("sgemm", transa, transb, m, n, k, lda, ldb, ldc)
    return _run(call, alpha, A, B, beta, C, order, stream, compute, batch_invariant, device, handle, devices, progress)


def gemm_strided_batched(
    transa: str | int,
    transb: str | int,
    m: int,
    n: int,
    k: int,
    alpha: Any,
    A: Any,
    lda: int,
    strideA: int,
    B: Any,
    ldb: int,
    strideB: int,
    beta: Any,
    C: Any,
    ldc: int,
    strideC: int,
    batch_count: int,
    *,
    order: str | None = None,
    stream: Any = None,
    compute: str | None = None,
    batch_invariant: bool | None = None,
    device: str | int | None = None,
    devices: Sequence[str | int] | None = None,
    progress: Progress | None = None,
    handle: Handle | None = None,
) -> Any:
    """batch_count products as in ``sgemm``, in one call; returns C.

    Matrix i of each operand starts i * stride elements after its array's first element. strideA and strideB may be 0 (one
    matrix for all) and negative; the C matrices must not share an element, but may be interleaved, as the heads of
    attention are in (token, head, dim) arrays. A contiguous array of any shape is a flat buffer. Any other is 3-D with
    the batch on the first axis and strides (stride, ld, 1) for order 'C', (stride, 1, ld) for 'F' or its transpose
    (1, ld, stride); or 2-D where its stride is 0 or the batch is 1. Keywords and errors are those of ``sgemm``.

    >>> q = np.ones((16, 4, 8), np.float32)  # (token, head, dim)
    >>> scores = np.empty((4, 16, 16), np.float32)
    >>> pyblas_sgemm.gemm_strided_batched("N", "T", 16, 16, 8, 1.0, q, 32, 8, q, 32, 8, 0.0, scores, 16, 256, 4)
    """
    if (
        stream is None
        and compute is None
        and batch_invariant is None
        and (device is None or A.__class__ is _ndarray)
        and devices is None
        and progress is None
        and handle is None
        and (alpha.__class__ is float or alpha.__class__ is int)
        and (beta.__class__ is float or beta.__class__ is int)
    ):
        short = status = None
        try:
            if (
                # Floats have no |, so this refuses m = 2.5, which would pass for 2 on its way to C.
                m | n | k | lda | strideA | ldb | strideB | ldc | strideC | batch_count is not None
                and A.__class__ is B.__class__ is C.__class__ is _ndarray
                and A.dtype is B.dtype is C.dtype is _FLOAT32
            ):
                status = _checked_gemm_strided_batched(
                    thread.host if device is None else cpu_for(device, order, m, n, k, batch_count),
                    _SHORT_FLAGS[order],
                    _OPERATIONS[transa],
                    _OPERATIONS[transb],
                    m,
                    n,
                    k,
                    alpha,
                    _from_buffer(_FLOATS, A),
                    A.size,
                    lda,
                    strideA,
                    _from_buffer(_FLOATS, B),
                    B.size,
                    ldb,
                    strideB,
                    beta,
                    _from_buffer(_FLOATS, C, True),
                    C.size,
                    ldc,
                    strideC,
                    batch_count,
                )
            else:
                short = _short[C.__class__]
                gpu, queue, by_rows, at_a, size_a, at_b, size_b, at_c, size_c = short.blocks(A, B, C)
                status = _checked_gemm_strided_batched_on_gpu(
                    thread.contexts[gpu].c,
                    queue,
                    by_rows * _ROW_MAJOR if order is None else _SHORT_FLAGS[order],
                    _OPERATIONS[transa],
                    _OPERATIONS[transb],
                    m,
                    n,
                    k,
                    alpha,
                    at_a,
                    size_a,
                    lda,
                    strideA,
                    at_b,
                    size_b,
                    ldb,
                    strideB,
                    beta,
                    at_c,
                    size_c,
                    ldc,
                    strideC,
                    batch_count,
                )
        except GO_THE_LONG_WAY:
            pass
        if status == 0:
            if short is not None:
                short.written(C)
            return C
    call = _parse(
        "gemm_strided_batched", transa, transb, m, n, k, lda, ldb, ldc, strideA, strideB, strideC, batch_count
    )
    return _run(call, alpha, A, B, beta, C, order, stream, compute, batch_invariant, device, handle, devices, progress)


def gemm_batched(
    transa: str | int,
    transb: str | int,
    m: int,
    n: int,
    k: int,
    alpha: Any,
    As: Sequence[Any],
    lda: int,
    Bs: Sequence[Any],
    ldb: int,
    beta: Any,
    Cs: Sequence[Any],
    ldc: int,
    *,
    order: str | None = None,
    stream: Any = None,
    compute: str | None = None,
    batch_invariant: bool | None = None,
    device: str | int | None = None,
    handle: Handle | None = None,
) -> Sequence[Any]:
    """Products as in ``sgemm`` of the arrays of three sequences, all of the same sizes, in one call; returns Cs.

    Every array is checked as ``sgemm`` does, and no C may share an element with another C or with any A or B. Keywords
    and errors are those of ``sgemm``.

    >>> pyblas_sgemm.gemm_batched("N", "N", 2, 2, 2, 1.0, [a0, a1], 2, [b, b], 2, 0.0, [c0, c1], 2)
    """
    for name, arrays in (("As", As), ("Bs", Bs), ("Cs", Cs)):
        if not hasattr(arrays, "__len__"):
            raise TypeError(f"gemm_batched: {name} is a {type(arrays).__name__}; a sequence of arrays is needed")
    call = _parse("gemm_batched", transa, transb, m, n, k, lda, ldb, ldc, batch=len(Cs))
    if not len(As) == len(Bs) == len(Cs):
        raise InvalidValueError(
            f"gemm_batched: there are {len(As)} A, {len(Bs)} B and {len(Cs)} C; one number is needed"
        )
    return _run_batched(call, alpha, As, Bs, beta, Cs, order, stream, compute, batch_invariant, device, handle)


def gemm_ex(
    transa: str | int,
    transb: str | int,
    m: int,
    n: int,
    k: int,
    alpha: Any,
    A: Any,
    lda: int,
    B: Any,
    ldb: int,
    beta: Any,
    C: Any,
    ldc: int,
    *,
    order: str | None = None,
    stream: Any = None,
    compute: str | None = None,
    batch_invariant: bool | None = None,
    device: str | int | None = None,
    handle: Handle | None = None,
) -> Any:
    """As ``sgemm``, for float16 and bfloat16 matrices too; returns C.

    A and B have one dtype. C may be float32, float16 or bfloat16; with float32 A and B it is float32. Products are summed
    in float32, alpha and beta are float32, and what is not float32 is rounded once, at the end. bfloat16 arrays are those
    of PyTorch, CuPy or ml_dtypes, or have DLPack. Arguments, keywords and errors are those of ``sgemm``; dtypes that do not go together
    are a NotSupportedError.

    >>> a = np.arange(6, dtype=np.float16).reshape(2, 3)
    >>> c = np.empty((2, 2), np.float32)
    >>> pyblas_sgemm.gemm_ex("N", "T", 2, 2, 3, 1.0, a, 3, a, 3, 0.0, c, 2)
    """
    call = _parse("gemm_ex", transa, transb, m, n, k, lda, ldb, ldc)
    return _run(call, alpha, A, B, beta, C, order, stream, compute, batch_invariant, device, handle)


def gemm_strided_batched_ex(
    transa: str | int,
    transb: str | int,
    m: int,
    n: int,
    k: int,
    alpha: Any,
    A: Any,
    lda: int,
    strideA: int,
    B: Any,
    ldb: int,
    strideB: int,
    beta: Any,
    C: Any,
    ldc: int,
    strideC: int,
    batch_count: int,
    *,
    order: str | None = None,
    stream: Any = None,
    compute: str | None = None,
    batch_invariant: bool | None = None,
    device: str | int | None = None,
    handle: Handle | None = None,
) -> Any:
    """As ``gemm_strided_batched``, for the dtypes of ``gemm_ex``; returns C.

    >>> a = np.ones((3, 4, 5), np.float16)
    >>> c = np.empty((3, 4, 4), np.float16)
    >>> pyblas_sgemm.gemm_strided_batched_ex("N", "T", 4, 4, 5, 1.0, a, 5, 20, a, 5, 20, 0.0, c, 4, 16, 3)
    """
    call = _parse(
        "gemm_strided_batched_ex", transa, transb, m, n, k, lda, ldb, ldc, strideA, strideB, strideC, batch_count
    )
    return _run(call, alpha, A, B, beta, C, order, stream, compute, batch_invariant, device, handle)


def selected_kernel(
    transa: str | int,
    transb: str | int,
    m: int,
    n: int,
    k: int,
    *,
    batch_count: int = 1,
    order: str | None = None,
    compute: str | None = None,
    batch_invariant: bool | None = None,
    device: str | int | None = None,
    handle: Handle | None = None,
) -> SelectedKernel:
    """The kernel that a product of these sizes would run, and why: ``SelectedKernel(name, reason)``.

    Leading dimensions are the least possible, batches lie one behind the other, and beta is 0. ``device`` is 'cpu' (also
    None, unless the handle is bound to a GPU) or a GPU's number; ``order`` None is 'C'. Errors are those of ``sgemm``.

    >>> pyblas_sgemm.selected_kernel("N", "N", 512, 512, 512).name
    """
    call = _parse("selected_kernel", transa, transb, m, n, k, 1, 1, 1, batch=batch_count)
    # In row-major order the C library is asked about the transposed product, and would name the wrong one.
    for name, size in (("m", call.m), ("n", call.n), ("k", call.k), ("batch_count", call.batch)):
        if size < 0:
            raise InvalidValueError(f"selected_kernel: {name} is {size}, must be at least 0")
    require_handle(call.function, handle)
    number = parse_device("cpu" if device is None else device)
    if device is None and handle is not None and isinstance(handle.device, int):
        number = handle.device
    place = 0 if isinstance(number, str) else number
    context = implicit(place) if handle is None else handle.context(place)
    transpose = (call.transb, call.transa, call.n, call.m) if _by_rows(call.function, order, ()) else None
    ta, tb, rows, columns = transpose or (call.transa, call.transb, call.m, call.n)
    name, reason = ffi.new("char const **"), ffi.new("char const **")
    with Settings(context, handle, compute, batch_invariant):
        check(lib.pyblasSelectedKernel(context.c, ta, tb, rows, columns, call.k, call.batch, name, reason))
        return SelectedKernel(ffi.string(name[0]).decode(), ffi.string(reason[0]).decode())


# ---- the long way --------------------------------------------------------------------------------------------------

# In the place of an operand that is None: legal where it is not read, which the C library judges.
_NOTHING = View(None, None, "", 0, (), (), True, True, False, None)


class _Call(NamedTuple):
    """Sizes as the caller wrote them, as integers of at most 64 bits."""

    function: str
    transa: int
    transb: int
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    stride_a: int
    stride_b: int
    stride_c: int
    batch: int

    def elements(self, by_rows: bool, a: int = 0, b: int = 0, c: int = 0) -> tuple[Elements, Elements, Elements]:
        """What the matrices of A, B and C occupy from their addresses on."""
        m, n, k = self.m, self.n, self.k
        # Stored in rows, op(A) is k long unless it is transposed, and so on.
        length_a, vectors_a = (k, m) if (self.transa == 0) == by_rows else (m, k)
        length_b, vectors_b = (n, k) if (self.transb == 0) == by_rows else (k, n)
        length_c, vectors_c = (n, m) if by_rows else (m, n)
        return (
            Elements(a, length_a, vectors_a, self.lda, self.stride_a),
            Elements(b, length_b, vectors_b, self.ldb, self.stride_b),
            Elements(c, length_c, vectors_c, self.ldc, self.stride_c),
        )

    def predict(self, context: Context, by_rows: bool) -> float:
        """Seconds that the product would take, with host arrays."""
        ta, tb, m, n = self.transa, self.transb, self.m, self.n
        if by_rows:
            ta, tb, m, n = tb, ta, n, m
        seconds = ffi.new("double *")
        check(lib.pyblasXtPredict(context.c, ta, tb, m, n, self.k, self.batch, seconds))
        return float(seconds[0])

    def touches_memory(self, a: Elements, b: Elements, c: Elements) -> bool:
        """Whether the sizes are legal and not empty. If not, the C library answers, and there is no extent to check."""
        return (
            (self.m > 0 and self.n > 0 and self.batch > 0 and self.k >= 0)
            and (a.ld >= 1 and b.ld >= 1 and c.ld >= 1)
            and (a.ld >= a.length and b.ld >= b.length and c.ld >= c.length)
        )


def _parse(
    function: str,
    transa: object,
    transb: object,
    m: object,
    n: object,
    k: object,
    lda: object,
    ldb: object,
    ldc: object,
    stride_a: object = 0,
    stride_b: object = 0,
    stride_c: object = 0,
    batch: object = 1,
) -> _Call:
    sizes: tuple[Any, ...] = (m, n, k, lda, ldb, ldc, stride_a, stride_b, stride_c, batch)
    for x in sizes:
        if x.__class__ is not int or not _LEAST <= x <= _MOST:
            sizes = tuple(_size(function, name, size) for name, size in zip(_SIZES, sizes, strict=True))
            break
    ops = (_operation(function, "transa", transa), _operation(function, "transb", transb))
    return _Call(function, *ops, *sizes)


_SIZES = ("m", "n", "k", "lda", "ldb", "ldc", "strideA", "strideB", "strideC", "batch_count")
_LEAST, _MOST = -(2**63), 2**63 - 1


def _size(function: str, name: str, x: Any) -> int:
    try:
        value = operator.index(x)
    except TypeError:
        raise TypeError(f"{function}: {name} is a {type(x).__name__}; an integer is needed") from None
    if not _LEAST <= value <= _MOST:
        raise OverflowError(f"{function}: {name} is {value}, which does not fit into 64 bits")
    return value


def _operation(function: str, name: str, x: Any) -> int:
    if isinstance(x, str) and x in _OPERATIONS:
        return _OPERATIONS[x]
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool) and x in _OPERATION_NUMBERS:
        return _OPERATION_NUMBERS[int(x)]
    raise InvalidValueError(
        f"{function}: {name} is {x!r}; accepted are 'N', 'T', 'C' in either case, 0, 1, 2 and 111, 112, 113"
    )


def _by_rows(function: str, order: object, views: Sequence[tuple[str, View]]) -> bool:
    if order is None:
        return _arrays.infer_order(function, views)
    if order == "C":
        return True
    if order == "F":
        return False
    raise InvalidValueError(f"{function}: order is {order!r}; accepted are 'C', 'F' and None")


def _run(
    call: _Call,
    alpha: object,
    A: Any,
    B: Any,
    beta: object,
    C: Any,
    order: object,
    stream: object,
    compute: str | None,
    batch_invariant: bool | None,
    device: object,
    handle: Handle | None,
    devices: object = None,
    progress: Progress | None = None,
) -> Any:
    function = call.function
    require_callable(function, progress)
    batched = function.startswith("gemm_strided_batched")
    types = _arrays.ANY_TYPE if function.endswith("_ex") else _arrays.ONLY_FLOAT32
    wanted_stream = None if stream is None else _arrays.stream_address(stream)
    # C is looked at first: its library's stream is where DLPack producers must have A and B ready.
    seen_c = _NOTHING if C is None else _arrays.view(C, f"{function}: C", wanted_stream, types)
    if wanted_stream is None and seen_c.device is not None:
        wanted_stream = _arrays.current_stream(seen_c)
    seen_a = _NOTHING if A is None else _arrays.view(A, f"{function}: A", wanted_stream, types)
    seen_b = _NOTHING if B is None else _arrays.view(B, f"{function}: B", wanted_stream, types)
    named = [pair for pair in (("A", seen_a), ("B", seen_b), ("C", seen_c)) if pair[1] is not _NOTHING]
    by_rows = _by_rows(function, order, named)
    there = None
    if types is _arrays.ONLY_FLOAT32 and (device is not None or devices is not None or thread.device is not None):
        require_handle(function, handle)
        places = {seen.device for _, seen in named}
        there = destination(function, device, devices, handle, places, lambda context: call.predict(context, by_rows))
    if there is not None:
        place = None
        if stream is None:
            wanted_stream = None
        for seen in (seen_c, seen_a, seen_b):
            if seen.device is not None:
                _arrays.wait_for(seen)
    else:
        place = _arrays.common_device(function, named)
    _arrays.require_writable(function, "C", seen_c)
    alpha_value, beta_value, on_device = _arrays.scalars(function, alpha, beta, place, wanted_stream)

    sizes = call.elements(by_rows, seen_a.address, seen_b.address, seen_c.address)
    a, b, c = (e._replace(item=seen.item) for e, seen in zip(sizes, (seen_a, seen_b, seen_c), strict=True))
    room_a = room_b = room_c = (0, -1)  # nothing to check
    if call.touches_memory(a, b, c):
        if seen_a is not _NOTHING:
            room_a = _arrays.buffer(function, "A", seen_a, by_rows, a, call.batch, batched)
        if seen_b is not _NOTHING:
            room_b = _arrays.buffer(function, "B", seen_b, by_rows, b, call.batch, batched)
        if seen_c is not _NOTHING:
            room_c = _arrays.buffer(function, "C", seen_c, by_rows, c, call.batch, batched)

    flags = _ROW_MAJOR if by_rows else 0
    if batched:
        flags |= lib.PYBLAS_CHECKED_STRIDED_BATCHED
    alpha_address = beta_address = 0
    if on_device:
        flags |= lib.PYBLAS_CHECKED_DEVICE_SCALARS
        alpha_address, beta_address = (seen.address for seen in on_device)
    arguments = (
        call.transa,
        call.transb,
        call.m,
        call.n,
        call.k,
        alpha_value,
        alpha_address,
        a.address,
        *room_a,
        a.ld,
        a.stride,
        b.address,
        *room_b,
        b.ld,
        b.stride,
        beta_value,
        beta_address,
        c.address,
        *room_c,
        c.ld,
        c.stride,
        call.batch,
    )
    if there is not None:
        context = implicit(there.device) if handle is None else handle.context(there.device)
        flags |= lib.PYBLAS_CHECKED_ANY_MEMORY
    else:
        context = context_for(function, device, handle, place)
    settings = Settings(context, handle, compute, batch_invariant, stream, wanted_stream, bool(on_device))
    with settings, Watched(context, there.devices if there else (), progress) if there else nullcontext() as watched:
        product: Any = lib.pyblas_checked_gemm
        with_types: tuple[int, ...] = ()
        if types is _arrays.ANY_TYPE:
            product = lib.pyblas_checked_gemm_ex
            with_types = (context.mode, *_type_numbers(seen_a, seen_b, seen_c))
        status = product(context.c, flags, *with_types, *arguments)
        while status in _UNDECIDED:
            name, x = ("A", a) if status == lib.PYBLAS_CHECKED_UNDECIDED_A else ("B", b)
            _arrays.require_disjoint(function, name, x, "C", c, call.batch)
            flags |= _UNDECIDED[status]
            status = product(context.c, flags, *with_types, *arguments)
        (watched.check if watched else check)(status)
    # The arrays live until here, when the work is queued. Their libraries free memory in the order of the stream, or only
    # after it, so the work may go on when the caller has dropped the last reference.
    _arrays.written(seen_c)
    return C


def _type_numbers(*seen: View) -> list[int]:
    """The C library's numbers for the dtypes of A, B and C; one that is not there has that of the first that is."""
    present = [x for x in seen if x is not _NOTHING] or [_NOTHING]
    return [_arrays.TYPES[(present[0] if x is _NOTHING else x).dtype] for x in seen]


def _run_batched(
    call: _Call,
    alpha: object,
    As: Sequence[Any],
    Bs: Sequence[Any],
    beta: object,
    Cs: Sequence[Any],
    order: object,
    stream: object,
    compute: str | None,
    batch_invariant: bool | None,
    device: object,
    handle: Handle | None,
) -> Sequence[Any]:
    function = call.function
    wanted_stream = None if stream is None else _arrays.stream_address(stream)
    views: dict[str, list[View]] = {}
    for name, xs in (("C", Cs), ("A", As), ("B", Bs)):
        views[name] = [_arrays.view(x, f"{function}: {name}s[{i}]", wanted_stream) for i, x in enumerate(xs)]
        if wanted_stream is None and views["C"] and views["C"][0].device is not None:
            wanted_stream = _arrays.current_stream(views["C"][0])
    named = [(f"{name}s[{i}]", seen) for name in "ABC" for i, seen in enumerate(views[name])]
    place = _arrays.common_device(function, named)
    for i, seen in enumerate(views["C"]):
        _arrays.require_writable(function, f"Cs[{i}]", seen)
    by_rows = _by_rows(function, order, named)
    alpha_value, beta_value, on_device = _arrays.scalars(function, alpha, beta, place, wanted_stream)

    elements = {
        name: [sizes._replace(address=seen.address) for seen in views[name]]
        for name, sizes in zip("ABC", call.elements(by_rows), strict=True)
    }
    if call.touches_memory(*call.elements(by_rows)):
        for name in "ABC":
            for i, seen in enumerate(views[name]):
                _require_inside(function, f"{name}s[{i}]", seen, by_rows, elements[name][i])
        _require_disjoint_outputs(function, elements["C"])
        if on_device or alpha_value != 0:
            for name in "AB":
                _require_disjoint_inputs(function, name, elements[name], elements["C"])

    arrays = {name: ffi.new("uintptr_t[]", [e.address for e in elements[name]]) for name in "ABC"}
    addresses = {name: int(ffi.cast("uintptr_t", arrays[name])) for name in "ABC"}
    alpha_address, beta_address = (seen.address for seen in on_device) if on_device else (0, 0)
    flags = lib.PYBLAS_CHECKED_ROW_MAJOR * by_rows | lib.PYBLAS_CHECKED_DEVICE_SCALARS * bool(on_device)
    context = context_for(function, device, handle, place)
    with Settings(context, handle, compute, batch_invariant, stream, wanted_stream, bool(on_device)):
        check(
            lib.pyblas_checked_gemm_batched(
                context.c,
                flags,
                call.transa,
                call.transb,
                call.m,
                call.n,
                call.k,
                alpha_value,
                alpha_address,
                addresses["A"],
                call.lda,
                addresses["B"],
                call.ldb,
                beta_value,
                beta_address,
                addresses["C"],
                call.ldc,
                call.batch,
            )
        )
    for seen in views["C"]:
        _arrays.written(seen)
    return Cs


def _require_inside(function: str, name: str, seen: View, by_rows: bool, wanted: Elements) -> None:
    available = _arrays.buffer(function, name, seen, by_rows, wanted, 1, False)[1]
    if seen.address % _arrays.ITEM:
        raise InvalidValueError(f"{function}: {name} starts at an address that is not a multiple of 4 bytes")
    needed = _extent(wanted)
    if 0 <= available < needed:
        raise InvalidValueError(f"{function}: {name} needs {needed} elements, its buffer has {available}")


def _extent(e: Elements) -> int:
    return (e.vectors - 1) * e.ld + e.length if e.vectors and e.length else 0


def _require_disjoint_outputs(function: str, outputs: list[Elements]) -> None:
    extent = _extent(outputs[0]) * _arrays.ITEM
    addresses = np.array([e.address for e in outputs], np.uint64)
    order = np.argsort(addresses, kind="stable")
    if bool(np.all(np.diff(addresses[order]) >= extent)):
        return
    ranked = [int(i) for i in order]
    for position, i in enumerate(ranked):
        for j in ranked[position + 1 :]:
            if outputs[j].address >= outputs[i].address + extent:
                break
            _arrays.require_disjoint(function, f"Cs[{min(i, j)}]", outputs[i], f"Cs[{max(i, j)}]", outputs[j])


def _require_disjoint_inputs(function: str, name: str, inputs: list[Elements], outputs: list[Elements]) -> None:
    """Only pairs whose address ranges meet are looked at; all outputs are equally long, so they are found by bisection."""
    extent, c_extent = _extent(inputs[0]) * _arrays.ITEM, _extent(outputs[0]) * _arrays.ITEM
    if extent == 0:
        return
    addresses = np.array([e.address for e in outputs], np.uint64)
    order = np.argsort(addresses, kind="stable")
    firsts = addresses[order]
    starts = np.array([e.address for e in inputs], np.uint64)
    low = np.searchsorted(firsts + np.uint64(c_extent), starts, "right")
    high = np.searchsorted(firsts, starts + np.uint64(extent), "left")
    for i in np.flatnonzero(low < high):
        for j in order[low[i] : high[i]]:
            _arrays.require_disjoint(function, f"{name}s[{i}]", inputs[i], f"Cs[{j}]", outputs[j])


class Settings:
    """The C handle as one call wants it: stream, compute mode and the place of the scalars, put back afterwards."""

    __slots__ = ("before", "context", "invariant", "mode", "scalars_on_device", "stream", "was_invariant")

    def __init__(
        self,
        context: Context,
        handle: Handle | None,
        compute: str | None,
        batch_invariant: bool | None,
        stream: object = None,
        wanted_stream: int | None = None,
        scalars_on_device: bool = False,
    ) -> None:
        if stream is not None and context.device is None:
            raise InvalidValueError("stream is given, but the arrays are in host memory")
        self.context = context
        self.stream = wanted_stream or 0
        self.scalars_on_device = scalars_on_device
        self.mode = None if compute is None else mode_number(compute)
        if compute is None and handle is not None and handle.follows_compute and thread.compute is not None:
            self.mode = mode_number(thread.compute)
        self.was_invariant = handle is not None and handle.batch_invariant
        self.invariant = (
            self.was_invariant if batch_invariant is None else yes_or_no("batch_invariant", batch_invariant)
        )

    def __enter__(self) -> None:
        context = self.context
        context.lock.acquire()
        self.before = context.mode
        try:
            if self.mode is not None:
                context.set_mode(self.mode)
            if self.invariant != self.was_invariant:
                check(lib.pyblasSetBatchInvariant(context.c, self.invariant))
            if context.device is not None:
                context.set_stream(self.stream)
            if self.scalars_on_device:
                check(lib.pyblasSetPointerMode(context.c, lib.PYBLAS_POINTER_MODE_DEVICE))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *failure: object) -> None:
        context = self.context
        try:
            context.set_mode(self.before)
            if self.invariant != self.was_invariant:
                lib.pyblasSetBatchInvariant(context.c, self.was_invariant)
            if self.scalars_on_device:
                lib.pyblasSetPointerMode(context.c, lib.PYBLAS_POINTER_MODE_HOST)
        finally:
            context.lock.release()
