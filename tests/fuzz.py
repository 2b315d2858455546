"""Products drawn at random for each kernel by its name: sizes at the borders of tiles, few rows, deep k, batches of every
layout, leading dimensions, scalars, and values that are hard in several ways at once. Each result must keep the bound of
its mode, and nothing round it may be written.

    python tests/fuzz.py --seconds 30                 # every GPU kernel that has tensor cores, and the choice itself
    python tests/fuzz.py --seconds 30 'skinny_*'      # these kernels
    python tests/fuzz.py --number 1234 --kernel NAME  # one product again

What it prints is enough to run a product again. It ends with 1 if one was wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time

import numpy as np

import engines
import reference
from engines import NOT_SUPPORTED, SUCCESS, ffi, lib, message
from problems import DATA, Problem, Product, patched
from test_gemm_ex import BF16, F16, F32, Case

TENSOR = ("wgmma_*", "mma_split_*", "mma_planes_*", "mma_tf32*", "wmma_tf32*", "half_*")
SIDES = (
    1, 2, 3, 7, 8, 16, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 143, 144, 145, 191, 192, 193, 255, 256, 257, 300,
)  # fmt: skip
DEPTHS = (32, 33, 40, 63, 64, 65, 96, 127, 128, 129, 192, 255, 256, 257, 320, 500, 513, 1000, 1030)
LIMITS = (0, 1, 4096, 100 << 10, 1 << 20, 4 << 20)
WORK = (1 << 22, 1 << 22, 1 << 23, 1 << 24, 1 << 26)  # multiply-adds; the reference takes longest


def _sizes(rng):
    """m, n, k and the number of products."""

    def side():
        return int(rng.choice(SIDES)) if rng.random() < 0.7 else int(rng.integers(1, 301))

    depth = int(rng.choice(DEPTHS)) if rng.random() < 0.8 else int(rng.integers(32, 1500))
    family = rng.choice(["tiles", "few", "deep", "batch", "many"], p=[0.3, 0.25, 0.15, 0.2, 0.1])
    m, n, batch = side(), side(), None
    if family == "few":
        n = int(rng.integers(300, 5000))
    elif family == "deep":
        m, n, depth = min(m, 64), min(n, 65), int(rng.choice([2000, 4096, 4097, 8191, 16384, 16500, 40000, 70001]))
    elif family == "batch":
        batch = int(rng.choice([1, 2, 3, 5, 40, 150]))
        m, n, depth = min(m, 130), min(n, 130), min(depth, 260)
    elif family == "many":
        m, n = int(rng.integers(300, 1100)), int(rng.integers(300, 1100))
    if rng.random() < 0.5:
        m, n = n, m
    work = int(rng.choice(WORK))
    while m * n * depth * (batch or 1) > work:
        if (batch or 1) > 2:
            batch //= 2
        elif depth > 64 and family != "deep":
            depth = max(33, depth // 2 | 1)
        elif m > n:
            m = m // 2 | 1
        else:
            n = n // 2 | 1
    return m, n, depth, batch


def _layout(rng, product):
    """Strides of a batch: shared, overlapping, backwards, interleaved, by pointers."""
    rows, columns = (product.m, product.n) if product.order == "F" else (product.n, product.m)
    inner = rows + product.gap[2]
    span = (columns - 1) * inner + rows
    stride = [None if rng.random() < 0.6 else int(rng.choice([0, 1, -4001, 4004, -7])) for _ in "AB"]
    turn = int(rng.choice([1, -1]))
    kind = rng.choice(["plain", "apart", "interleaved", "pointers"])
    if kind == "interleaved":
        return product.but(stride=(*stride, turn * rows), ldc=rows * product.batch + int(rng.integers(0, 9)))
    own = None if kind == "plain" else turn * (span + int(rng.integers(0, 40)))
    return product.but(stride=(*stride, own), pointers=bool(kind == "pointers"))


def drawn(number):
    """The product of that number."""
    rng = np.random.default_rng([23, number])
    m, n, k, batch = _sizes(rng)
    product = Product(
        m, n, k, *(str(x) for x in rng.choice(list("NT"), 2)),
        float(rng.choice([1, 1, 1, -1, 0.5, -0.3, 1.7, 2.0**-20, 2.0**20, 0])), float(rng.choice([0, 0, 0, 1, -0.5, 0.7])),
        str(rng.choice(["F", "C"])),
        tuple(int(x) for x in rng.choice([0, 0, 0, 1, 3, 4, 8, 13, 64], 3)),
        tuple(int(x) for x in rng.choice([0, 0, 0, 0, 1, 2, 3], 3)),
        batch=batch,
        data="patchwork" if rng.random() < 0.75 else str(rng.choice(list(DATA))),
    )  # fmt: skip
    if product.data in ("wider", "huge"):  # whose products come near the end of the range
        product = product.but(alpha=float(np.clip(product.alpha, -2, 2)))
    return product if batch is None else _layout(rng, product)


def drawn_half(number):
    """The same for 16-bit matrices."""
    rng = np.random.default_rng([29, number])
    p = drawn(number)
    types = [F16, BF16][rng.integers(2)], [F32, F16, BF16][rng.integers(3)]
    case = Case(
        p.m, p.n, p.k, p.transa + p.transb, types, p.alpha, p.beta, p.order, p.gap, p.offset,
        p.batch, p.stride, p.ldc, seed=number,
    )  # fmt: skip
    if rng.random() < 0.8:
        for matrix, axis, turned in ((case.a, 2, p.transa), (case.b, 1, p.transb)):
            shape = matrix.index.shape
            along = axis if turned == "N" else 3 - axis
            values = patched(rng, shape, along)
            if types[0] == F16:
                most = np.abs(values[np.isfinite(values)]).max(initial=0)
                values = np.ldexp(values, int(rng.choice([-10, 0, 8, 15])) - np.frexp(most)[1])
            matrix.words[matrix.index] = values.astype(types[0])
    return case


class Capture:
    """The calls inside run as a replayed graph."""

    def __init__(self, gpu, handle):
        self.gpu, self.handle = gpu, handle

    def __enter__(self):
        self.stream = self.gpu.xp.cuda.Stream(non_blocking=True)
        assert lib.pyblasSetStream(self.handle, ffi.cast("pyblasStream_t", self.stream.ptr)) == SUCCESS
        self.stream.begin_capture(self.gpu.xp.cuda.runtime.streamCaptureModeGlobal)
        return self

    def __exit__(self, *_):
        graph = self.stream.end_capture()
        if graph is not None:
            graph.launch(self.stream)
        self.stream.synchronize()
        assert lib.pyblasSetStream(self.handle, ffi.NULL) == SUCCESS


def wanted(gpu, alpha, a, b, beta, c, mode="fp32"):
    """reference.product() and the bound, with the GPU's float64. NumPy widens: CuPy would flush subnormals."""
    alpha, beta = np.float64(np.float32(alpha)), np.float64(np.float32(beta))
    value, magnitude = (np.zeros(np.broadcast_shapes(a.shape[:-1], c.shape[:-1]) + c.shape[-1:]) for _ in "vm")
    with np.errstate(invalid="ignore", over="ignore"):
        if alpha != 0 and a.shape[-1] > 0:
            x, y = (gpu.xp.asarray(operand.astype(np.float64)) for operand in (a, b))
            value = alpha * gpu.xp.asnumpy(gpu.xp.matmul(x, y))
            magnitude = abs(alpha) * gpu.xp.asnumpy(gpu.xp.matmul(abs(x), abs(y)))
        if beta != 0:
            scaled = beta * c.astype(np.float64)
            value, magnitude = value + scaled, magnitude + np.abs(scaled)
    return value, reference.bound(mode, a.shape[-1], alpha, magnitude)


def judged(got, want, allowed):
    """The largest error as a part of the bound; fails beyond it."""
    reference.assert_close(got, want, allowed)
    finite = np.isfinite(want)
    if not finite.any():
        return 0.0
    allowed = np.broadcast_to(allowed, want.shape)[finite]
    return float((np.abs(got[finite].astype(np.float64) - want[finite]) / np.maximum(allowed, 1e-300)).max())


def run(gpu, handle, number, mode):
    """The largest part of the bound, or None if the kernel refuses."""
    rng = np.random.default_rng([31, number])
    p = drawn(number)
    if mode == "tf32" and p.data in ("patchwork", "subnormal", "tiny_lines", "tiny_products"):
        p = p.but(data="wide")  # 11 bits are promised of normal numbers only
    problem = Problem(p, reference.POISONS[number % 2])
    blocks = problem.blocks(gpu)
    scalars = None
    if rng.random() < 0.15:  # on the device
        scalars = gpu.block(np.array([p.alpha, p.beta], dtype=np.float32))
        where = gpu.address(scalars)
        problem.product = p.but(alpha=("device", where), beta=("device", where + 4))
        assert lib.pyblasSetPointerMode(handle, 1) == SUCCESS
    gpu.synchronize()
    if rng.random() < 0.15 and not p.pointers:
        with Capture(gpu, handle):
            status, kept = problem.start(gpu, handle, blocks)
    else:
        status, kept = problem.start(gpu, handle, blocks)
    gpu.synchronize()
    del kept
    told = message()
    if scalars is not None:
        problem.product = p
        assert lib.pyblasSetPointerMode(handle, 0) == SUCCESS
    if status == NOT_SUPPORTED:
        return None
    assert status == SUCCESS, told
    got = problem.result([gpu.host(block) for block in blocks])
    return judged(got, *wanted(gpu, p.alpha, *problem.operands()[:2], p.beta, problem.operands()[2], mode))


def run_half(gpu, handle, number):
    case = drawn_half(number)
    status, got = case.run(gpu, handle)
    if status == NOT_SUPPORTED:
        return None
    assert status == SUCCESS, message()
    want, allowed = case.wanted(lambda *product: wanted(gpu, *product))
    got = got.astype(np.float32)
    if case.types[1] == F16:  # what may as well round to an infinity
        with np.errstate(invalid="ignore"):
            over = np.isfinite(want) & (np.abs(want) + allowed >= 65520)
            sure = np.isfinite(want) & (np.abs(want) - allowed >= 65520)
        assert (got[sure] == np.sign(want[sure]) * np.inf).all(), "no infinity"
        got, want = np.where(over, 0, got), np.where(over, 0, want)
    return judged(got, want, allowed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", help="of kernel names")
    parser.add_argument("--seconds", type=float, default=30, help="for all kernels together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="where the numbers of products begin, in millions")
    parser.add_argument("--number", type=int, help="this product alone")
    options = parser.parse_args()
    gpu = engines.Gpu()
    patterns = options.patterns or TENSOR
    rows = {name: modes for name, where, modes, _ in engines.kernel_rows(types=None) if where == "gpu"}
    floats = {name for name, *_ in engines.kernel_rows()}
    names = [name for name in rows if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    chosen = [] if options.patterns else [("", "fp32", 0), ("", "tf32", 0), ("", "fp32", 1)]
    turns = chosen + [(name, "fp32" if "fp32" in rows[name] else rows[name][0], 0) for name in names]
    done = {turn: [0, 0, 0.0, 0] for turn in turns}  # taken, refused, worst, its number
    handles = {}
    for name, mode, invariant in turns:
        handle = handles[name, mode, invariant] = gpu.handle()
        engines.set_kernel(handle, name)
        assert lib.pyblasSetComputeMode(handle, engines.MODES[mode]) == SUCCESS, message()
        assert lib.pyblasSetBatchInvariant(handle, invariant) == SUCCESS
    wrong = 0
    number = options.seed * 10**6 if options.number is None else options.number
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        for turn in turns:
            name, mode, invariant = turn
            number += options.number is None
            handle = handles[turn]
            rng = np.random.default_rng([37, number])
            limit = int(rng.choice(LIMITS)) if rng.random() < 0.2 else 1280 << 20
            assert lib.pyblasSetWorkspaceLimit(handle, limit) == SUCCESS
            half = bool(name and name not in floats) or (not name and mode == "fp32" and rng.random() < 0.25)
            try:
                part = run_half(gpu, handle, number) if half else run(gpu, handle, number, mode)
                assert name or part is not None, f"no kernel: {message()}"
            except AssertionError as error:
                wrong += 1
                what = drawn_half(number) if half else drawn(number)
                print(f"WRONG {name or 'chosen'} {mode} invariant {invariant} limit {limit} number {number}: {what}\n"
                      f"      {str(error)[-400:]}", flush=True)  # fmt: skip
                continue
            finally:
                gpu.synchronize()
            count = done[turn]
            if part is None:
                count[1] += 1
                continue
            count[0] += 1
            if part > count[2]:
                count[2:] = part, number
        if options.number is not None:
            break
    for (name, mode, invariant), (taken, refused, worst, number) in done.items():
        print(f"{name or 'chosen'}{', batch-invariant' if invariant else ''} {mode}: {taken} products, {refused} refused, "
              f"at most {worst:.3f} of the bound ({number})")  # fmt: skip
    print(f"{wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
