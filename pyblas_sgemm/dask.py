"""Products of Dask arrays: ``matmul`` and ``sgemm`` by blocks, each block of C the sum of its products in a fixed order.

    C[i, j] :=  A[i, 0] B[0, j] + A[i, 1] B[1, j] + A[i, 2] B[2, j] + ...
                `------------- one task ------------'  `--- the next ...

A task takes some products, one after another, into one new block; it changes none of its inputs, so it may run twice, on
any worker, after any failure. Chunks are NumPy's or CuPy's. The bits of C depend on the chunks, not on schedulers,
workers or the order in which they end.

Needs Dask: ``pip install 'dask[array,distributed]'``. Nothing else imports this module.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import dask.array as da
from dask.array.utils import meta_from_array
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from . import _matmul
from ._handle import MODES

__all__ = ["matmul", "sgemm"]

# Products of a task. Each task but a block's first copies the sum so far: one part in some hundreds of the time that
# these products take. And all their chunks are with the worker at once.
TERMS = 4


def matmul(a: Any, b: Any, *, compute: str | None = None) -> Any:
    """a @ b of Dask arrays of float32, as a Dask array; nothing is computed yet.

    ``a`` is (..., m, k) and ``b`` is (..., k, n), both with two dimensions at least; leading axes are broadcast as in
    ``numpy.matmul``. Chunks may be ragged, but those of k must agree, and those of each leading axis where both arrays
    have it; otherwise a ValueError says which rechunk() makes them fit, since moving data is the caller's decision. C has
    the chunks of ``a`` along m and of ``b`` along n. ``compute`` is as in ``pyblas_sgemm.sgemm``, for all blocks.

    >>> import dask.array as da, pyblas_sgemm.dask
    >>> a = da.ones((6000, 5000), chunks=(2000, 2500), dtype="float32")
    >>> pyblas_sgemm.dask.matmul(a, a.T).chunks
    ((2000, 2000, 2000), (2000, 2000, 2000))
    """
    return _product(1.0, a, b, 0.0, None, compute)


def sgemm(alpha: float, a: Any, b: Any, beta: float, c: Any, *, compute: str | None = None) -> Any:
    """alpha * (a @ b) + beta * c as a new Dask array; ``c`` keeps its values.

    ``c`` has the shape and the chunks of ``matmul(a, b)``. With beta == 0 it is not read. Everything else is as there.
    """
    return _product(alpha, a, b, beta, c, compute)


def _product(alpha: float, a: Any, b: Any, beta: float, c: Any, compute: str | None) -> Any:
    operands = {"a": a, "b": b} | ({} if c is None else {"c": c})
    for name, array in operands.items():
        _check_array(name, array)
    if compute is not None and compute not in MODES:
        raise ValueError(f"compute is {compute!r}; accepted are {', '.join(map(repr, MODES))}")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"a has {a.shape[-1]} columns and b has {b.shape[-2]} rows; the shapes are {a.shape} and {b.shape}"
        )
    if a.chunks[-1] != b.chunks[-2]:
        raise ValueError(
            f"chunks of k are {a.chunks[-1]} in a and {b.chunks[-2]} in b; they fit after "
            f"b = b.rechunk({{{b.ndim - 2}: {a.chunks[-1]}}})"
        )
    chunks = (*_stacks(a, b), a.chunks[-2], b.chunks[-1])
    if c is not None and c.chunks != chunks:
        shape = tuple(map(sum, chunks))
        if c.shape != shape:
            raise ValueError(f"c has the shape {c.shape}, and a @ b has {shape}")
        raise ValueError(f"chunks of c are {c.chunks}; they fit after c = c.rechunk({chunks})")
    start = None if c is None or beta == 0 else c

    name = f"pyblas-sgemm-{tokenize(alpha, a, b, beta, start, compute)}"
    layer: dict[Any, Any] = {}
    depth = a.numblocks[-1]
    for place in itertools.product(*(range(len(sizes)) for sizes in chunks)):
        *stack, i, j = place
        so_far: Any = None if start is None else (start.name, *place)
        for first in range(0, depth, TERMS):
            terms = range(first, min(first + TERMS, depth))
            last = terms.stop == depth
            key = (name, *place) if last else (f"{name}-{terms.stop}", *place)
            layer[key] = (
                _add_products,
                so_far,
                alpha,
                beta if first == 0 else 1.0,
                [(a.name, *_own_stack(stack, a), i, k) for k in terms],
                [(b.name, *_own_stack(stack, b), k, j) for k in terms],
                compute,
            )
            so_far = key
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[a, b, *([] if start is None else [start])])
    return da.Array(graph, name, chunks, meta=meta_from_array(a._meta, len(chunks), dtype="float32"))


def _check_array(name: str, array: Any) -> None:
    if not isinstance(array, da.Array):
        raise TypeError(
            f"{name} is of type {type(array).__name__}, must be a Dask array (dask.array.from_array makes one)"
        )
    if array.dtype != "float32":
        raise TypeError(f"{name} has dtype {array.dtype}, must be float32")
    if array.ndim < 2:
        raise ValueError(f"{name} has {array.ndim} dimensions, must have 2 at least")
    if any(math.isnan(size) for sizes in array.chunks for size in sizes):
        raise ValueError(f"{name} has chunks of unknown size; {name}.compute_chunk_sizes() finds them")


def _stacks(a: Any, b: Any) -> tuple[tuple[int, ...], ...]:
    """Chunks of the leading axes of a @ b."""
    found = []
    for axis in range(-max(a.ndim, b.ndim), -2):
        mine, other = (array.chunks[axis] if axis >= -array.ndim else (1,) for array in (a, b))
        if mine == other or sum(other) == 1:
            found.append(mine)
        elif sum(mine) == 1:
            found.append(other)
        elif sum(mine) == sum(other):
            raise ValueError(
                f"chunks of axis {axis} are {mine} in a and {other} in b; they fit after "
                f"b = b.rechunk({{{b.ndim + axis}: {mine}}})"
            )
        else:
            raise ValueError(f"axis {axis} has {sum(mine)} elements in a and {sum(other)} in b")
    return tuple(found)


def _own_stack(stack: list[int], array: Any) -> list[int]:
    """Where along its leading axes an operand's block lies; axes that are broadcast have one."""
    own = stack[len(stack) - (array.ndim - 2) :]
    return [0 if array.shape[axis] == 1 else number for axis, number in enumerate(own)]


def _add_products(start: Any, alpha: float, beta: float, a: list[Any], b: list[Any], compute: str | None) -> Any:
    """beta * start + alpha * (a[0] @ b[0] + a[1] @ b[1] + ...) as a new array."""
    total = start
    for number, (x, y) in enumerate(zip(a, b, strict=True)):
        if total is None:
            total = _matmul.matmul(x, y, alpha=alpha, compute=compute)
        else:
            out = total if number else total.copy()
            total = _matmul.matmul(x, y, out=out, alpha=alpha, beta=1.0 if number else beta, compute=compute)
    return total
