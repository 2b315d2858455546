"""Sizes to test: the families that are measured, made small enough, and sizes round the borders of tiles."""

from __future__ import annotations

import itertools
import random

# m, n, k; batched families put the batch first.
FAMILIES = {
    "squares": [(64, 64, 64), (128, 128, 128), (256, 256, 256), (384, 384, 384), (1024, 1024, 1024)],
    "published": [(1024, 1024, 512), (1001, 777, 513), (4096, 4096, 1024), (512, 512, 1024)],
    "odd": [(300, 200, 20), (127, 129, 131), (2047, 2049, 1023), (4095, 4097, 4093)],
    "decode": [
        (1, 4096, 4096), (1, 14336, 4096), (4, 4096, 4096), (8, 4096, 4096), (16, 4096, 4096), (16, 14336, 4096),
        (64, 4096, 4096), (128, 4096, 14336), (4096, 1, 4096), (4096, 8, 4096),
    ],
    "few_rows": [(16, 4096, 4096), (64, 4096, 14336), (128, 4096, 14336), (256, 4096, 14336), (512, 4096, 4096)],
    "tall": [(65536, 256, 256), (1048576, 16, 16), (1048576, 3, 64), (256, 262144, 64)],
    "deep_k": [(256, 256, 65536), (32, 32, 262144), (16, 16, 1048576), (33, 33, 903168)],
}  # fmt: skip
BATCHED = {
    "attention": [
        (384, 128, 128, 64), (384, 128, 64, 128), (96, 512, 512, 64), (96, 512, 64, 512), (32, 1024, 1024, 128),
        (1024, 1, 2048, 128), (1024, 1, 128, 2048),
    ],
    "small_batch": [
        (100000, 4, 4, 4), (100000, 8, 8, 8), (65536, 5, 7, 9), (10000, 16, 16, 16), (10000, 32, 32, 32),
        (2000, 64, 64, 64), (500, 100, 100, 100), (512, 256, 256, 256),
    ],
}  # fmt: skip

OP_PAIRS = ("NN", "NT", "TN", "TT")
BORDERS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 127, 128, 129, 130)


def scaled(shape, work):
    """The shape with its largest extents halved until the product of all is at most work; odd extents stay odd."""
    shape = list(shape)
    while _size(shape) > work:
        i = shape.index(max(shape))
        shape[i] = shape[i] // 2 | (shape[i] & 1)
    return tuple(shape)


def _size(shape):
    size = 1
    for extent in shape:
        size *= extent
    return size


def family(work, name=None):
    """Distinct scaled shapes of one family, or of all that have no batch."""
    chosen = FAMILIES if name is None else {name: FAMILIES[name]}
    return list(dict.fromkeys(scaled(s, work) for shapes in chosen.values() for s in shapes))


def batched_family(work):
    return list(dict.fromkeys(scaled(s, work) for shapes in BATCHED.values() for s in shapes))


def borders(count, seed=0, work=1 << 21):
    """Triples of border sizes: each size stands in each place, and small ones meet large ones."""
    rng = random.Random(seed)
    triples = []
    columns = []
    while len(triples) < count:
        if not columns:
            columns = list(zip(*(rng.sample(BORDERS, len(BORDERS)) for _ in range(3)), strict=True))
        triple = columns.pop()
        if _size(triple) <= work:
            triples.append(triple)
    return triples


def cycle(*choices):
    """Endless combinations of choices in which neighbours differ in every place."""
    return zip(*(itertools.cycle(c) for c in choices), strict=False)
