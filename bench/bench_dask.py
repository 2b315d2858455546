"""Products of Dask arrays with CuPy chunks beside one product of the same sizes that lies in GPU memory whole.

    python bench/bench_dask.py [--size 65536] [--chunk 8192]

Both compute the same number of operations on one GPU; what the blocks lose is Dask's. The faster of two counts.
"""

from __future__ import annotations

import argparse
import time

import cupy as cp
import dask
import dask.array as da

import pyblas_sgemm
import pyblas_sgemm.dask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=65536, help="rows, columns and depth")
    parser.add_argument("--chunk", type=int, default=8192, help="rows and columns of a chunk")
    parser.add_argument("--scheduler", default="synchronous", choices=["synchronous", "threads"])
    options = parser.parse_args()
    size, chunk = options.size, options.chunk
    flops = 2.0 * size**3

    whole = [cp.random.default_rng(seed).standard_normal((size, size), dtype=cp.float32) for seed in (1, 2)]
    resident = best(lambda: pyblas_sgemm.matmul(*whole))
    # Without a name Dask hashes all that the arrays hold.
    a, b = (da.from_array(x, chunks=chunk, name=False, asarray=False) for x in whole)
    with dask.config.set(scheduler=options.scheduler):
        c = pyblas_sgemm.dask.matmul(a, b)
        blocks = best(lambda: dask.persist(c))
        got = c[: chunk // 8, :chunk].compute()
    want = whole[0][: chunk // 8].astype(cp.float64) @ whole[1][:, :chunk].astype(cp.float64)
    error = float(cp.linalg.norm(got - want) / cp.linalg.norm(want))
    print(f"{size}^3: resident {flops / resident / 1e12:.1f} TFLOPS, in chunks of {chunk} {flops / blocks / 1e12:.1f} TFLOPS, "
          f"{resident / blocks:.3f} of it; error {error:.1e}")  # fmt: skip


def best(call) -> float:
    seconds = []
    for _ in range(2):
        cp.get_default_memory_pool().free_all_blocks()
        cp.cuda.Device().synchronize()
        begin = time.perf_counter()
        result = call()
        cp.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - begin)
        del result
    return min(seconds)


if __name__ == "__main__":
    main()
