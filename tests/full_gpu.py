"""A GPU on which other memory leaves only a little free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_gpu(room: int) -> Iterator[int]:
    """Takes what is free but for room bytes, and what blocks of 1 MiB leave; gives the number of bytes that are left."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    runtime = cupy.cuda.runtime
    held, size = [], 1 << 34
    try:
        while size >= 1 << 20:
            if runtime.memGetInfo()[0] > size + room:
                try:
                    held.append(runtime.malloc(size))
                    continue
                except runtime.CUDARuntimeError:
                    pass
            size //= 2
        yield runtime.memGetInfo()[0]
    finally:
        for pointer in held:
            runtime.free(pointer)
