"""Times products of float16 and bfloat16 matrices, and of float32 in the mode tf32, beside cublasGemmEx.

    python bench/gemm_ex.py

Prints a table. Needs CuPy, cuBLAS and an installed pyblas_sgemm. Both libraries are called through C with the same arguments; inputs are
random, groups of launches alternate, and each begins on a card that has rested for some milliseconds.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable

import cupy as cp
from timing import Cublas, LibraryError, Pyblas, gpu_facts

TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType
KINDS = {  # types of A and B and of C, compute type
    "bfloat16": ("bfloat16", "bfloat16", 68),
    "float16": ("float16", "float16", 68),
    "float16, C float32": ("float16", "float32", 68),
    "tf32": ("float32", "float32", 77),
}
SIZES = [1024, 2048, 4096, 8192]
OPS = ["NN", "NT", "TN", "TT"]
GROUPS, REST = 7, 4e-3


def entry(library: ctypes.CDLL, name: str) -> Callable[..., int]:
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    function = getattr(library, name)
    function.argtypes = [pointer, *[integer] * 5, pointer, pointer, integer, integer, pointer, integer, integer, pointer,
                         pointer, integer, integer, integer, integer]  # fmt: skip
    return function  # type: ignore[no-any-return]


def random_bits(kind: str, count: int, seed: int) -> cp.ndarray:
    values = cp.random.default_rng(seed).standard_normal(count, dtype=cp.float32)
    if kind == "float16":
        return values.astype(cp.float16)
    if kind == "bfloat16":  # the upper half of a float32, rounded
        return ((values.view(cp.uint32) + 0x8000) >> 16).astype(cp.uint16)
    return values


def as_float64(kind: str, bits: cp.ndarray) -> cp.ndarray:
    if kind == "bfloat16":
        bits = (bits.astype(cp.uint32) << 16).view(cp.float32)
    elif kind == "float16":
        bits = bits.view(cp.float16)
    return bits.astype(cp.float64)


def seconds(stream: cp.cuda.Stream, runs: list[Callable[[], None]], launches: int) -> list[float]:
    """The median of each run's groups, which take turns."""
    begin, end = cp.cuda.Event(), cp.cuda.Event()
    times: list[list[float]] = [[] for _ in runs]
    for group in range(GROUPS + 1):
        for run, taken in zip(runs, times, strict=True):
            time.sleep(REST)
            begin.record(stream)
            for _ in range(launches):
                run()
            end.record(stream)
            end.synchronize()
            if group:
                taken.append(cp.cuda.get_elapsed_time(begin, end) * 1e-3 / launches)
    return [statistics.median(taken) for taken in times]


def row(stream: cp.cuda.Stream, cublas: Cublas, pyblas: Pyblas, kind: str, n: int, ops: str) -> str:
    inputs, output, compute = KINDS[kind]
    a, b = (random_bits(inputs, n * n, seed) for seed in (1, 2))
    c = {name: cp.empty(n * n, cp.float32 if output == "float32" else cp.uint16) for name in ("pyblas", "cublas")}
    stream.synchronize()
    one, zero = ctypes.byref(ctypes.c_float(1)), ctypes.byref(ctypes.c_float(0))
    ta, tb = (int(op == "T") for op in ops)
    functions = {"pyblas": entry(pyblas.library, "pyblasGemmEx"), "cublas": entry(cublas.library, "cublasGemmEx")}
    handles = {"pyblas": pyblas.handle, "cublas": cublas.handle}

    def call(name: str) -> None:
        status = functions[name](handles[name], ta, tb, n, n, n, one, a.data.ptr, TYPES[inputs], n, b.data.ptr,
                                 TYPES[inputs], n, zero, c[name].data.ptr, TYPES[output], n, compute, -1)  # fmt: skip
        if status:
            raise LibraryError(f"{name} answers {status}")

    ours, theirs = seconds(stream, [lambda: call("pyblas"), lambda: call("cublas")], 8 if n < 4096 else 3)
    # Column-major: columns of C from columns of op(B).
    x, y = as_float64(inputs, a).reshape(n, n), as_float64(inputs, b).reshape(n, n)
    columns = cp.arange(0, n, n // 64)
    exact = (y[:, columns].T if tb else y[columns]) @ (x.T if ta else x)
    errors = {
        name: float(cp.linalg.norm(as_float64(output, bits).reshape(n, n)[columns] - exact) / cp.linalg.norm(exact))
        for name, bits in c.items()
    }
    flops = 2e-12 * n**3
    return (
        f"| {kind} | {n} | {ops} | {theirs / ours:.2f} | {ours * 1e6:.0f} | {flops / ours:.0f} | {flops / theirs:.0f} |"
        f" {errors['pyblas']:.1e} | {errors['cublas']:.1e} |"
    )


def main() -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    cublas, pyblas = Cublas(stream), Pyblas(stream)
    facts = gpu_facts()
    print(
        f"One {facts['gpu']}, driver {facts['driver']}, cuBLAS {cublas.version}; column-major squares, C of A's type unless"
    )
    print("another is named. The error is that of 64 columns, in the Frobenius norm.\n")
    print("| A and B | size | ops | times cublasGemmEx | us | TFLOPS | cublasGemmEx TFLOPS | error | its error |")
    print("|---|---|---|---|---|---|---|---|---|")
    with stream:
        for kind in KINDS:
            for n in SIZES:
                for ops in OPS if n >= 4096 else OPS[:1]:
                    print(row(stream, cublas, pyblas, kind, n, ops), flush=True)


if __name__ == "__main__":
    main()
