"""How exact the library's products are beside cuBLAS in float32 and in TF32, as the tables of docs/numerics.md: the kernel
that is chosen, and every mode and scheme by itself.

    python bench/errors.py            # prints the tables
    python bench/errors.py --write    # and puts them between the marks of docs/numerics.md

Needs CuPy, cuBLAS and an installed pyblas_sgemm. What is exact comes from float64 products on the GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np
from cupy.cuda import cublas, device

import pyblas_sgemm

DOCUMENT = Path(__file__).parent.parent / "docs" / "numerics.md"
BEGIN, END = "<!-- errors:begin -->", "<!-- errors:end -->"
SIDE = 1024
DEPTHS = [64, 256, 1024, 4096, 16384, 65536]
DEFAULT_MATH, TF32_MATH = 0, 3
U = 2.0**-24

Operands = tuple[Any, Any]


def normal(random: Any, k: int) -> Operands:
    return random.standard_normal((SIDE, k), dtype=cp.float32), random.standard_normal((k, SIDE), dtype=cp.float32)


def positive(random: Any, k: int) -> Operands:
    return random.random((SIDE, k), dtype=cp.float32), random.random((k, SIDE), dtype=cp.float32)


def wide(random: Any, k: int) -> Operands:
    a, b = normal(random, k)
    return tuple(x * cp.exp2(random.random(x.shape, dtype=cp.float32) * 40 - 20) for x in (a, b))


def graded(random: Any, k: int) -> Operands:
    a, b = normal(random, k)
    fall = cp.exp2(-cp.linspace(0, 24, k, dtype=cp.float32))
    return a * fall, b / fall[:, None]


DATA: dict[str, Callable[[Any, int], Operands]] = {
    "normal": normal,
    "uniform in [0, 1)": positive,
    "normal, times 2^-20 to 2^20": wide,
    "A falls, B grows by 2^24 along k": graded,
}


def by_cublas(a: Any, b: Any, math: int) -> Any:
    """a @ b; column-major cuBLAS sees row-major operands transposed, and in the other order."""
    c = cp.empty((a.shape[0], b.shape[1]), dtype=cp.float32)
    one_and_zero = np.array([1, 0], dtype=np.float32)
    handle = device.get_cublas_handle()
    cublas.setMathMode(handle, math)
    one, zero = one_and_zero.ctypes.data, one_and_zero.ctypes.data + 4
    n, k = b.shape[1], a.shape[1]
    cublas.sgemm(handle, 0, 0, n, a.shape[0], k, one, b.data.ptr, n, a.data.ptr, k, zero, c.data.ptr, n)
    cublas.setMathMode(handle, DEFAULT_MATH)
    return c


def errors(got: Any, exact: Any, magnitude: Any) -> str:
    """Relative norm of the error, and the largest one of an element in u |A| |B|."""
    off = got.astype(cp.float64) - exact
    norm = float(cp.linalg.norm(off) / cp.linalg.norm(exact))
    return f"{norm:.1e}, {float((cp.abs(off) / magnitude).max()) / U:.2g}"


# Modes, and schemes by the name of a kernel.
WAYS: dict[str, tuple[str, str | None]] = {
    "`fp32_pedantic`": ("fp32_pedantic", None),
    "`f16x2`": ("fp32", "wgmma_128x128x64_f16x2"),
    "`bf16x3`": ("fp32", "wgmma_128x128x64_bf16x3"),
    "`mma_planes`": ("fp32", "mma_planes_128x128x32_f16x2"),
    "`mma_split`": ("fp32", "mma_split_128x64x32_bf16x3"),
    "`tf32`": ("tf32", None),
}


def by_way(a: Any, b: Any, compute: str, kernel: str | None) -> Any:
    c = cp.empty((SIDE, SIDE), dtype=cp.float32)
    k = a.shape[1]
    with pyblas_sgemm.Handle(device=0, compute=compute, kernel=kernel) as handle:
        try:
            pyblas_sgemm.sgemm("N", "N", SIDE, SIDE, k, 1, a, k, b, SIDE, 0, c, SIDE, order="C", handle=handle)
        except pyblas_sgemm.NotSupportedError:  # too short for the scheme
            return None
        cp.cuda.get_current_stream().synchronize()
    return c


def table_of_ways() -> list[str]:
    lines = [f"| data | k | {' | '.join(WAYS)} |", f"|---|---|{'---|' * len(WAYS)}"]
    for name, make in DATA.items():
        for k in DEPTHS:
            a, b = make(cp.random.default_rng(k), k)
            x, y = a.astype(cp.float64), b.astype(cp.float64)
            exact, magnitude = x @ y, cp.abs(x) @ cp.abs(y)
            results = [by_way(a, b, *way) for way in WAYS.values()]
            cells = ["" if result is None else errors(result, exact, magnitude) for result in results]
            lines.append(f"| {name} | {k} | {' | '.join(cells)} |")
    return lines


def table() -> list[str]:
    lines = ["| data | k | this library | cuBLAS float32 | cuBLAS TF32 | kernel |", "|---|---|---|---|---|---|"]
    for name, make in DATA.items():
        for k in DEPTHS:
            a, b = make(cp.random.default_rng(k), k)
            x, y = a.astype(cp.float64), b.astype(cp.float64)
            exact, magnitude = x @ y, cp.abs(x) @ cp.abs(y)
            kernel = pyblas_sgemm.selected_kernel("N", "N", SIDE, SIDE, k, device=0).name
            results = [pyblas_sgemm.matmul(a, b), by_cublas(a, b, DEFAULT_MATH), by_cublas(a, b, TF32_MATH)]
            cells = " | ".join(errors(result, exact, magnitude) for result in results)
            lines.append(f"| {name} | {k} | {cells} | `{kernel}` |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="rewrite the tables of docs/numerics.md")
    write = parser.parse_args().write
    name = cp.cuda.runtime.getDeviceProperties(0)["name"].decode()
    chosen = [f"One {name}, C of {SIDE} x {SIDE}, the kernel that the library chooses.", "", *table()]
    by_name = ["The same input in the other modes, and to each scheme by itself.", "", *table_of_ways()]
    text = "\n".join([*chosen, "", *by_name])
    print(text)
    if write:
        before, rest = DOCUMENT.read_text().split(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
