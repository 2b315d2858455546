"""Times the library's kernels beside cublasSgemm in strict FP32 and writes one csv row for each.

    python bench/bench.py                                     # every family, the kernels that the library chooses
    python bench/bench.py --families ladder --kernels all --output bench/results/GPU-ladder.csv
    python bench/bench.py --kernels selected warp_tile_128x128x16
    python bench/bench.py --compute fp32_pedantic --output bench/results/GPU-pedantic.csv
    python bench/bench.py --families squares --sustained --output bench/results/GPU-sustained.csv

Needs CuPy, cuBLAS and an installed pyblas_sgemm. Inputs are random and rotate through twice the L2; `warm` is the time
on one set of operands, where a set fits the L2. The GPU rests before what takes long, but for --sustained.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cupy as cp
from timing import COMPUTE_MODES, Buffers, Cublas, Gemm, LibraryError, Pyblas, Shape, Timing, gpu_facts, time_groups

HERE = Path(__file__).parent
FIELDS = ["family", "compute", "batch_invariant", "ops", "m", "n", "k", "batch", "kernel", "choice", "ratio", "us", "us_low", "us_high", "tflops",
          "gbytes_s", "warm_ratio", "warm_us", "cublas_us", "cublas_warm_us", "error", "cublas_error", "launches", "gpu",
          "driver", "cublas", "sm_mhz", "memory_mhz", "watts", "commit", "date"]  # fmt: skip

SLOW, SLOW_FLOPS = ("naive", "coalesced"), 2e11  # seconds for each launch beyond that

# --sustained: a product is launched for so long before the first launch that is timed; smaller ones are left out.
LOADED_SECONDS, LOADED_FLOPS = 0.7, 1e11


def shapes(families: list[str]) -> Iterator[tuple[str, Shape]]:
    table = json.loads((HERE / "shapes.json").read_text())
    del table["note"]
    for family in families or table:
        entry = table[family]
        if isinstance(entry, dict):
            for sizes in entry["shapes"]:
                for ops in entry["ops"]:
                    yield family, shape_of(ops, sizes, entry.get("interleaved", False))
            continue
        for sizes in entry:
            yield family, shape_of("NN", [sizes] * 3 if isinstance(sizes, int) else sizes)


def shape_of(ops: str, sizes: list[int], interleaved: bool = False) -> Shape:
    *batch, m, n, k = sizes
    return Shape(ops, m, n, k, batch[0] if batch else 1, interleaved)


def measure(
    stream: cp.cuda.Stream, gemm: Gemm, buffers: Buffers, l2_bytes: int, loaded: float
) -> tuple[Timing, Timing | None, float]:
    """Rotating, on one set if it fits the L2, and the error. After so many seconds under load, if any."""
    shape = buffers.shape
    gemm.call(shape, *buffers.pointers(0))
    stream.synchronize()
    error = buffers.error(seed=1)
    cold = time_groups(stream, lambda index: gemm.call(shape, *buffers.pointers(index)), buffers.sets, loaded)
    warm = None
    if shape.bytes < l2_bytes:
        warm = time_groups(stream, lambda _: gemm.call(shape, *buffers.pointers(0)), 1)
    return cold, warm, error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="*", default=[], help="families of shapes.json; all if none is named")
    parser.add_argument("--kernels", nargs="+", default=["selected"], help="selected, all, or names of kernels")
    parser.add_argument("--compute", choices=list(COMPUTE_MODES), default="fp32", help="compute mode of this library")
    parser.add_argument("--batch-invariant", action="store_true", help="rows that do not depend on the others")
    parser.add_argument(
        "--sustained", action="store_true", help="time large products on a GPU that works without rests"
    )
    parser.add_argument("--commit", default=commit(), help="what is measured; git is asked if it is not given")
    parser.add_argument("--output", type=Path, help="csv file; bench/results/<GPU>.csv if not given")
    options = parser.parse_args()

    stream = cp.cuda.Stream(non_blocking=True)
    cublas, pyblas = Cublas(stream, options.compute), Pyblas(stream)
    pyblas.set_modes(options.compute, options.batch_invariant)
    loaded = LOADED_SECONDS if options.sustained else 0.0
    l2_bytes = cp.cuda.runtime.getDeviceProperties(0)["l2CacheSize"]
    facts = gpu_facts()
    kernels = gpu_kernels() if options.kernels == ["all"] else options.kernels
    output = options.output or HERE / "results" / (facts["gpu"].lower().replace(" ", "-") + ".csv")
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for number, (family, shape) in enumerate(shapes(options.families)):
            if options.sustained and shape.flops < LOADED_FLOPS:
                continue
            buffers = Buffers(shape, l2_bytes, seed=number)
            reference, reference_warm, reference_error = measure(stream, cublas, buffers, l2_bytes, loaded)
            for kernel in kernels:
                if kernel.startswith(SLOW) and shape.flops > SLOW_FLOPS:
                    continue
                pyblas.force("" if kernel == "selected" else kernel)
                try:
                    cold, warm, error = measure(stream, pyblas, buffers, l2_bytes, loaded)
                except LibraryError as refusal:
                    print(f"{shape}: {refusal}", file=sys.stderr)
                    continue
                row = facts | {
                    "family": family,
                    "compute": options.compute,
                    "batch_invariant": int(options.batch_invariant),
                    "ops": shape.ops,
                    "m": shape.m,
                    "n": shape.n,
                    "k": shape.k,
                    "batch": shape.batch,
                    "kernel": pyblas.selected(shape) if kernel == "selected" else kernel,
                    "choice": "selected" if kernel == "selected" else "forced",
                    "error": f"{error:.3g}",
                    "cublas_error": f"{reference_error:.3g}",
                    "launches": cold.launches,
                    "cublas": cublas.version,
                    "commit": options.commit,
                    "date": datetime.date.today().isoformat(),
                }
                row |= speeds(shape, cold, reference, warm, reference_warm) | clocks()
                writer.writerow(row)
                file.flush()
                print(f"{shape!s:28} {row['kernel']:28} {row['ratio']:>6} {row['us']:>10} us {row['tflops']:>7} TFLOPS"
                      f"  cuBLAS {row['cublas_us']:>10} us  error {row['error']}")  # fmt: skip
            del buffers
            cp.get_default_memory_pool().free_all_blocks()


def speeds(
    shape: Shape, cold: Timing, reference: Timing, warm: Timing | None, reference_warm: Timing | None
) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "ratio": f"{reference.median / cold.median:.3f}",
        "us": f"{cold.median * 1e6:.2f}",
        "us_low": f"{cold.low * 1e6:.2f}",
        "us_high": f"{cold.high * 1e6:.2f}",
        "tflops": f"{shape.flops / cold.median * 1e-12:.2f}",
        "gbytes_s": f"{shape.bytes / cold.median * 1e-9:.0f}",
        "cublas_us": f"{reference.median * 1e6:.2f}",
    }
    if warm and reference_warm:
        columns |= {
            "warm_ratio": f"{reference_warm.median / warm.median:.3f}",
            "warm_us": f"{warm.median * 1e6:.2f}",
            "cublas_warm_us": f"{reference_warm.median * 1e6:.2f}",
        }
    return columns


def gpu_kernels() -> list[str]:
    """The table's GPU rows, the choice of the library last."""
    import pyblas_sgemm

    return [row.name for row in pyblas_sgemm.kernels() if row.engine == "gpu" and "float32" in row.types] + ["selected"]


def clocks() -> dict[str, str]:
    """The clocks right after the measurement, while the card is still warm."""
    facts = gpu_facts()
    return {name: facts[name] for name in ("sm_mhz", "memory_mhz", "watts")}


def commit() -> str:
    answer = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
