"""matmul: NumPy's rules on top of gemm_strided_batched, by address and stride instead of by copy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from . import _arrays
from ._arrays import ITEM, View
from ._cffi import ffi, lib
from ._handle import Context, context_for, cpu_for, destination, implicit, require_usable, thread
from ._progress import Progress, Watched, require_callable
from ._sgemm import GO_THE_LONG_WAY, Settings
from ._status import InvalidValueError, check

_checked_matmul = lib.pyblas_checked_matmul
_checked_matmul_on_gpu = lib.pyblas_checked_matmul_on_gpu
_short = _arrays.short
_from_buffer = ffi.from_buffer
_FLOATS = ffi.typeof("float[]")
_FLOAT32 = np.dtype(np.float32)
_ndarray = np.ndarray
_empty = np.empty

# By the number of axes: what stands in front of a matrix's shape to make it that of a stack. Vectors have none.
_ONE_MATRIX: dict[int, tuple[int, ...]] = {2: (1,), 3: ()}


def matmul(
    a: Any,
    b: Any,
    *,
    out: Any = None,
    alpha: Any = 1,
    beta: Any = 0,
    compute: str | None = None,
    batch_invariant: bool | None = None,
    device: str | int | None = None,
    devices: Sequence[str | int] | None = None,
    progress: Progress | None = None,
) -> Any:
    """alpha * (a @ b) + beta * out, by the rules of ``numpy.matmul`` for float32.

    ``a`` is (..., m, k) or (k,), ``b`` is (..., k, n) or (k,); leading axes are broadcast, and the axis that stands for a
    vector is left out of the result, so that two vectors give a number. Arrays are those of ``sgemm``; views with any
    strides are multiplied in place as far as BLAS can say them: one axis of each matrix has unit stride, the other a
    stride of at least its length, and stacks may have any. Others (reversed, repeated or overlapping rows, no axis of
    unit stride) are copied first.

    ``out`` has the result's shape and any writable layout. It may overlap the inputs, or be laid out as BLAS cannot write;
    then the product goes through a temporary array. Without ``out`` the result is a new array of the inputs' library
    (PyTorch's, if one of them is a tensor). ``beta`` needs ``out``; alpha and beta are as in ``sgemm``, and so are
    ``compute``, ``batch_invariant``, ``device``, ``devices``, ``progress``, streams and errors. Gradients are not recorded.

    >>> pyblas_sgemm.matmul(np.ones((2, 3), np.float32), np.ones(3, np.float32))
    array([3., 3.], dtype=float32)
    """
    if (
        compute is None
        and batch_invariant is None
        and (device is None or a.__class__ is _ndarray)
        and devices is None
        and progress is None
        and alpha.__class__ is beta.__class__ is int
        and alpha == 1
        and beta == 0
    ):
        short, status, result = None, None, out
        try:
            if a.__class__ is b.__class__ is _ndarray and a.dtype is b.dtype is _FLOAT32:
                if out is None and a.ndim == b.ndim:
                    result = _empty((*a.shape[:-1], b.shape[-1]), _FLOAT32)
                if result.dtype is _FLOAT32 and result.__class__ is _ndarray and a.ndim == b.ndim == result.ndim:
                    status = _checked_matmul(
                        thread.host if device is None else _cpu_for(device, result.shape, a.shape[-1]),
                        _from_buffer(_FLOATS, a),
                        *_ONE_MATRIX[a.ndim],
                        *a.shape,
                        _from_buffer(_FLOATS, b),
                        *_ONE_MATRIX[b.ndim],
                        *b.shape,
                        _from_buffer(_FLOATS, result, True),
                        *_ONE_MATRIX[result.ndim],
                        *result.shape,
                    )
            else:
                short = _short[a.__class__]
                if out is None:
                    result = short.empty(a, _of_stacks(a.shape, b.shape))
                elif out.ndim != max(a.ndim, b.ndim):
                    raise ValueError
                gpu, queue, *stacks = short.stacks(a, b, result)
                status = _checked_matmul_on_gpu(thread.contexts[gpu].c, queue, *stacks)
        except GO_THE_LONG_WAY:
            pass
        if status == 0:
            if short is not None and out is not None:
                short.written(out)
            return result
    return _matmul(a, b, out, alpha, beta, compute, batch_invariant, device, devices, progress)


def _cpu_for(device: object, shape: tuple[int, ...], k: int) -> Any:
    *stack, m, n = shape
    return cpu_for(device, "C", m, n, k, math.prod(stack))


def _of_stacks(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a product of matrices or stacks. Where a stack of one is repeated it is wrong, which the C call refuses."""
    m, _ = a[-2:]
    _, n = b[-2:]
    return (*(a if len(a) >= len(b) else b)[:-2], m, n)


# ---- the long way --------------------------------------------------------------------------------------------------


class _Axis(NamedTuple):
    """An axis of the product and how far each array steps along it, in elements (0: not at all)."""

    length: int
    a: int
    b: int
    c: int

    def continues(self, inner: _Axis) -> bool:
        """Whether a step of this axis is the step after the last one of the inner axis, in every array."""
        n = inner.length
        return n == 1 or (self.a == n * inner.a and self.b == n * inner.b and self.c == n * inner.c)

    def with_inner(self, inner: _Axis) -> _Axis:
        """Both axes as one, if this one continues the inner one."""
        return self if inner.length == 1 else inner._replace(length=self.length * inner.length)


def _matmul(
    a: Any,
    b: Any,
    out: Any,
    alpha: object,
    beta: object,
    compute: str | None,
    batch_invariant: bool | None,
    device: object,
    devices: object,
    progress: Progress | None,
) -> Any:
    require_callable("matmul", progress)
    stream = None
    views: dict[str, View] = {}
    for name, x in (("out", out), ("a", a), ("b", b)):
        if name == "out" and x is None:
            continue
        views[name] = _arrays.view(x, f"matmul: {name}", stream)
        if stream is None and views[name].device is not None:
            stream = _arrays.current_stream(views[name])
    seen_a, seen_b, seen_out = views["a"], views["b"], views.get("out")
    stack, m, n, k, shape = _shapes(seen_a.shape, seen_b.shape)
    there = None
    if device is not None or devices is not None or thread.device is not None:
        places = {seen.device for seen in views.values()}
        there = destination(
            "matmul", device, devices, None, places, lambda context: _predict(context, m, n, k, math.prod(stack))
        )
    place = None
    if there is not None:
        stream = None
        for seen in views.values():
            if seen.device is not None:
                _arrays.wait_for(seen)
    else:
        place = _arrays.common_device("matmul", [(name, views[name]) for name in ("a", "b", "out") if name in views])
    alpha_value, beta_value, on_device = _arrays.scalars("matmul", alpha, beta, place, stream)

    if seen_out is None:
        if on_device or beta_value != 0:
            raise InvalidValueError("matmul: beta needs out")
        if place is not None:
            require_usable(context_for("matmul", device, None, place))
        like = seen_b if seen_b.library == "torch" or seen_a.library == "interface" else seen_a
        target = _arrays.view(_arrays.empty(like, shape), "matmul: out")
    else:
        if seen_out.shape != shape:
            raise InvalidValueError(
                f"matmul: out has shape {seen_out.shape}, but {seen_a.shape} @ {seen_b.shape} has shape {shape}"
            )
        _arrays.require_writable("matmul", "out", seen_out)
        target = seen_out
        reads = on_device or alpha_value != 0
        if not _is_one_to_one(seen_out) or (reads and any(_arrays.may_share(x, seen_out) for x in (seen_a, seen_b))):
            target = _arrays.packed_copy(seen_out)

    if m and n and 0 not in stack:
        plan: _Plan | str = _plan(seen_a, seen_b, target, stack, (m, n, k))
        copied: set[str] = set()
        while isinstance(plan, str):
            assert plan not in copied, "BLAS can be told of every packed array"
            copied.add(plan)
            seen = {"a": seen_a, "b": seen_b, "out": target}[plan]
            copy = _arrays.packed_copy(seen)
            if plan == "a":
                seen_a = copy
            elif plan == "b":
                seen_b = copy
            else:
                target = copy
            plan = _plan(seen_a, seen_b, target, stack, (m, n, k))
        context = implicit(there.device) if there else context_for("matmul", device, None, place)
        with (
            Settings(context, None, compute, batch_invariant, None, stream, bool(on_device)),
            Watched(context, there.devices, progress) if there else nullcontext() as watched,
        ):
            _queue(context, plan, seen_a, seen_b, target, alpha_value, beta_value, on_device, watched)
    if seen_out is None:
        return _arrays.hand_back(target, (views["a"], views["b"]))
    if target is not seen_out:
        _arrays.assign(seen_out, target)
    _arrays.written(seen_out)
    return out


def _predict(context: Context, m: int, n: int, k: int, batch: int) -> float:
    seconds = ffi.new("double *")
    check(lib.pyblasXtPredict(context.c, 0, 0, n, m, k, batch, seconds))
    return float(seconds[0])


def _shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], int, int, int, tuple[int, ...]]:
    """Broadcast stack, m, n, k, and the shape of the result."""
    if not a or not b:
        raise InvalidValueError(f"matmul: shapes {a} and {b}: a number is not a matrix; multiply with *")
    k, rows = a[-1], b[-2] if len(b) > 1 else b[-1]
    if k != rows:
        raise InvalidValueError(f"matmul: shapes {a} and {b} do not fit: the inner sizes are {k} and {rows}")
    stack, other = a[:-2], b[:-2]
    if stack != other:
        pairs = list(itertools.zip_longest(reversed(stack), reversed(other), fillvalue=1))
        if any(x != y and 1 not in (x, y) for x, y in pairs):
            raise InvalidValueError(f"matmul: shapes {a} and {b}: the stacks cannot be broadcast together")
        stack = tuple(x if y == 1 else y for x, y in reversed(pairs))
    m, n = a[-2] if len(a) > 1 else 1, b[-1] if len(b) > 1 else 1
    shape = stack + (() if len(a) == 1 else (m,)) + (() if len(b) == 1 else (n,))
    if math.prod(shape) >= 1 << 61:
        raise InvalidValueError(f"matmul: shapes {a} and {b}: the result, {shape}, has more than 2^63 bytes")
    return stack, m, n, k, shape


def _queue(
    context: Context,
    plan: _Plan,
    a: View,
    b: View,
    c: View,
    alpha: float,
    beta: float,
    on_device: list[View],
    watched: Watched | None,
) -> None:
    alpha_address, beta_address = (seen.address for seen in on_device) if on_device else (0, 0)
    flags = (
        lib.PYBLAS_CHECKED_STRIDED_BATCHED
        | lib.PYBLAS_CHECKED_A_IS_DISJOINT
        | lib.PYBLAS_CHECKED_B_IS_DISJOINT
        | lib.PYBLAS_CHECKED_ROW_MAJOR * plan.by_rows
        | lib.PYBLAS_CHECKED_DEVICE_SCALARS * bool(on_device)
        | lib.PYBLAS_CHECKED_ANY_MEMORY * bool(watched)
    )
    checked = watched.check if watched else check
    batch = plan.batch
    for index in itertools.product(*(range(axis.length) for axis in plan.loops)):
        at_a = at_b = at_c = 0
        for i, axis in zip(index, plan.loops, strict=True):
            at_a += i * axis.a
            at_b += i * axis.b
            at_c += i * axis.c
        checked(
            lib.pyblas_checked_gemm(
                context.c,
                flags,
                plan.transa,
                plan.transb,
                plan.m,
                plan.n,
                plan.k,
                alpha,
                alpha_address,
                a.address + at_a * ITEM,
                0,
                -1,
                plan.lda,
                batch.a,
                b.address + at_b * ITEM,
                0,
                -1,
                plan.ldb,
                batch.b,
                beta,
                beta_address,
                c.address + at_c * ITEM,
                0,
                -1,
                plan.ldc,
                batch.c,
                batch.length,
            )
        )


_ONE = _Axis(1, 0, 0, 0)


class _Plan(NamedTuple):
    by_rows: bool
    transa: int
    transb: int
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int
    batch: _Axis
    loops: list[_Axis]


def _plan(a: View, b: View, c: View, stack: tuple[int, ...], sizes: tuple[int, int, int]) -> _Plan | str:
    """How BLAS is asked for the product; or the name of an array that it cannot be told of as it lies."""
    for name, seen in (("a", a), ("b", b), ("out", c)):
        if seen.address % ITEM:
            return name
        for stride in seen.strides:
            if stride % ITEM:
                return name
    m, n, k = sizes
    step_a, step_b, step_c = _steps(a), _steps(b), _steps(c)
    # A vector is a matrix of one row (a) or one column (b); the step along the axis it lacks means nothing.
    if len(a.shape) == 1:
        step_a = [0, *step_a]
        step_c = [*step_c[:-1], 0, *step_c[-1:]] if len(b.shape) > 1 else [*step_c, 0]
    if len(b.shape) == 1:
        step_b = [*step_b, 0]
        step_c = [*step_c, 0]
    rows = _Axis(m, step_a[-2], 0, step_c[-2])
    columns = _Axis(n, 0, step_b[-1], step_c[-1])
    depth_a, depth_b = step_a[-1], step_b[-2]

    axes: list[_Axis] = []
    for position, count in enumerate(stack):
        if count != 1:
            from_end = len(stack) - position
            axis = _Axis(
                count,
                _stack_step(a.shape, step_a, from_end),
                _stack_step(b.shape, step_b, from_end),
                step_c[position],
            )
            axes.append(axes.pop().with_inner(axis) if axes and axes[-1].continues(axis) else axis)
    # A stack along which only one operand moves is more rows, or more columns, of one product.
    while axes and axes[-1].a != 0 == axes[-1].b and axes[-1].continues(rows):
        rows = axes.pop().with_inner(rows)
    while axes and axes[-1].b != 0 == axes[-1].a and axes[-1].continues(columns):
        columns = axes.pop().with_inner(columns)

    layout = _layout(rows.length, columns.length, rows.c, columns.c)
    layout_a = _layout(rows.length, k, rows.a, depth_a)
    layout_b = _layout(k, columns.length, depth_b, columns.b)
    if layout is None:
        return "out"
    if layout_a is None:
        return "a"
    if layout_b is None:
        return "b"
    by_rows, ldc = layout
    batch = max(axes, key=lambda axis: axis.length, default=_ONE)
    return _Plan(
        by_rows,
        int(layout_a[0] != by_rows),
        int(layout_b[0] != by_rows),
        rows.length,
        columns.length,
        k,
        layout_a[1],
        layout_b[1],
        ldc,
        batch,
        [axis for axis in axes if axis is not batch],
    )


def _steps(seen: View) -> list[int]:
    return [stride // ITEM for stride in seen.strides]


def _stack_step(shape: tuple[int, ...], steps: Sequence[int], from_end: int) -> int:
    """Step along a stack axis, counted from the matrices outwards; 0 where the operand is broadcast."""
    position = len(shape) - 2 - from_end
    return 0 if position < 0 or shape[position] == 1 else steps[position]


def _layout(rows: int, columns: int, row_step: int, column_step: int) -> tuple[bool, int] | None:
    """Whether a matrix lies in rows, and its leading dimension; None if BLAS cannot say it.

    The step along an axis of length 1, or of an empty matrix, means nothing.
    """
    for by_rows, length, vectors, unit, step in (
        (True, columns, rows, column_step, row_step),
        (False, rows, columns, row_step, column_step),
    ):
        if length <= 1 or unit == 1:
            if vectors <= 1 or length == 0:
                return by_rows, max(1, length)
            if step >= max(1, length):
                return by_rows, step
    return None


def _is_one_to_one(out: View) -> bool:
    """Whether no element of out stands for two. Says no also where only a closer look could tell."""
    reach = ITEM
    for count, stride in sorted(zip(out.shape, out.strides, strict=True), key=lambda axis: abs(axis[1])):
        if count == 0:
            return True
        if count > 1:
            if abs(stride) < reach:
                return False
            reach += (count - 1) * abs(stride)
    return True
