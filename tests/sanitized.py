"""Products of every GPU kernel for compute-sanitizer: op pairs, edges, gaps, scalars and batches, few of each.

    compute-sanitizer --tool memcheck python tests/sanitized.py
    compute-sanitizer --tool racecheck python tests/sanitized.py 'warp_tile_*' 'producer_tile_*'

Patterns choose kernels; without any, all of them and the default selection run. racecheck is slow enough to ask for a few.
Results are checked too, so a fault that changes them ends with an error also without the sanitizer.
"""

from __future__ import annotations

import fnmatch
import sys

import engines
import pyblas_sgemm
from engines import SUCCESS, ffi, lib, message
from problems import Problem, Product
from test_gemm_ex import BF16, F16, F32, Case, refuses

PRODUCTS = [
    Product(33, 17, 65),
    Product(33, 17, 65, "T", "N", 0.5, 2.0, gap=(3, 1, 2), offset=(1, 2, 3)),
    Product(70, 9, 300, "N", "T", -1.0, 0.5, gap=(0, 3, 1)),
    Product(5, 130, 40, "T", "T", 2.0, 1.0, offset=(3, 0, 1)),
    Product(1, 66, 513),
    Product(66, 1, 513, "T", "N"),
    Product(16, 16, 5000, "N", "T"),
    Product(300, 300, 300, "T", "N"),
    Product(4, 12, 0, beta=0.5),
    Product(5, 7, 9, batch=50),
    Product(31, 30, 29, "T", "T", 1.0, 0.5, batch=7, gap=(1, 0, 3)),
    Product(16, 8, 9, batch=40, pointers=True),
    # What planes cannot hold, whole or in ranges of k.
    Product(150, 70, 200, "T", "N", 0.5, 2.0, gap=(1, 0, 3), data="wider"),
    Product(40, 140, 1100, "N", "T", gap=(0, 1, 0), data="one_huge"),
    Product(20, 33, 130, batch=5, data="wider"),
]

# Of 16-bit matrices: such as the copy engine takes, several tiles of them side by side, and such as it does not.
HALF_PRODUCTS = [
    Case(33, 17, 65, "NN", (F16, F32)),
    Case(520, 136, 200, "NT", (BF16, BF16), beta=0.5),
    Case(136, 264, 72, "TN", (F16, F16), alpha=-1.0, gap=(8, 8, 8)),
    Case(264, 40, 136, "TT", (BF16, F32), alpha=0.5, beta=1.0, gap=(1, 2, 3), offset=(1, 2, 3)),
    Case(16, 24, 0, "NN", (F16, BF16), beta=0.5),
    Case(24, 40, 136, "NN", (F16, F32), batch=5),
]


def main(patterns: list[str]) -> None:
    gpu = engines.Gpu()
    gpu.xp.cuda.set_allocator(None)  # a pool would hide where an array ends
    handle = gpu.handle()
    known = {row.name: row for row in pyblas_sgemm.kernels() if row.engine == "gpu"}
    rows = list(known)
    if patterns:
        rows = [row for row in rows if any(fnmatch.fnmatch(row, pattern) for pattern in patterns)]
        assert rows, f"no kernel is called {' or '.join(patterns)}"
    done = dict.fromkeys(rows if patterns else ["", *rows], 0)
    for name in done:
        mode = "fp32" if not name or "fp32" in known[name].modes else known[name].modes[0]
        assert lib.pyblasSetKernel(handle, name.encode()) == SUCCESS, message()
        assert lib.pyblasSetComputeMode(handle, engines.MODES[mode]) == SUCCESS, message()
        for case in HALF_PRODUCTS if not name or "float16" in known[name].types else []:
            if not refuses((name,), case):
                case.solve(gpu, handle)
                done[name] += 1
        for product in PRODUCTS if not name or "float32" in known[name].types else []:
            problem = Problem(product)
            blocks = problem.blocks(gpu)
            status = problem.call(gpu, handle, blocks)
            if name and status == lib.PYBLAS_STATUS_NOT_SUPPORTED:  # the kernel refuses this shape
                continue
            assert status == SUCCESS, f"{name}: {product}: {message()}"
            problem.check([gpu.host(block) for block in blocks], mode)
            done[name] += 1
    assert lib.pyblasSetKernel(handle, ffi.NULL) == SUCCESS
    assert lib.pyblasDestroy(handle) == SUCCESS
    for name, count in done.items():
        print(f"{name or 'chosen'}: {count} products")
        assert count, f"{name} refused everything"


if __name__ == "__main__":
    main(sys.argv[1:])
