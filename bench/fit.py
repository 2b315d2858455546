"""Reads what regret.py has measured: how far each kernel's prediction is off, and what that costs.

    python bench/fit.py bench/results/GPU-regret.csv

For each kernel and op pair it prints the factor by which its predicted seconds are to be multiplied (the median of
measured over predicted among the shapes where the kernel is one of the best), and the spread that no factor removes.
Efficiencies in the kernels' files are divided by that factor. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path

Row = dict[str, str]
NEAR = 1.5  # times the best measured: further away a prediction decides nothing
LADDER = ("naive", "coalesced", "smem_tile", "thread_tile", "vectorized", "conflict_free", "double_buffer", "async_",
          "wmma_tf32", "mma_tf32", "wgmma_tf32")  # fmt: skip
MODES = {"fp32_pedantic": "pedantic", "fp32": "chosen", "tf32": "tf32"}  # strictest first; where the csv has its choice


def by_shape(rows: list[Row]) -> list[list[Row]]:
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in ("source", "ops", "m", "n", "k", "batch"))].append(row)
    return list(groups.values())


def name(row: Row) -> str:
    batch = f"{row['batch']} of " if row["batch"] != "1" else ""
    return f"{batch}{row['m']}x{row['n']}x{row['k']} {row['ops']}"


def seconds(row: Row) -> float:
    return float(row["us"])


def legal(rows: list[Row], mode: str) -> list[Row]:
    """What the mode allows: each row names the strictest one that does."""
    modes = list(MODES)
    return [row for row in rows if row["mode"] in modes[: modes.index(mode) + 1]]


def factors(rows: list[Row]) -> None:
    """Row-major ops are told; inside, NN is NN, NT is TN and so on."""
    ratios = defaultdict(list)
    for group in by_shape(rows):
        for row in group:
            if seconds(row) <= NEAR * min(map(seconds, legal(group, row["mode"]))):
                ratios[row["kernel"], row["ops"]].append((seconds(row) / float(row["predicted_us"]), name(row)))
    print(f"{'kernel':32} ops  shapes  factor   10%    90%   lowest and highest")
    for (kernel, ops), found in sorted(ratios.items()):
        values = sorted(ratio for ratio, _ in found)
        low, high = values[len(values) // 10], values[-1 - len(values) // 10]
        print(f"{kernel:32} {ops:4} {len(values):6}  {statistics.median(values):6.3f} {low:6.2f} {high:6.2f}   "
              f"{min(found)[1]}, {max(found)[1]}")  # fmt: skip


def regrets(rows: list[Row], mode: str) -> list[tuple[float, Row, Row]]:
    """Of each shape, the time of the mode's choice over that of the best kernel that it allows, with both."""
    found = []
    for group in by_shape(rows):
        chosen = next((row for row in group if row[MODES[mode]] == "1"), None)
        if chosen:
            best = min(legal(group, mode), key=seconds)
            found.append((seconds(chosen) / seconds(best), chosen, best))
    return sorted(found, key=lambda item: -item[0])


def report(rows: list[Row], most: int = 40) -> None:
    factors(rows)
    for mode in MODES:
        found = regrets(rows, mode)
        geomean = math.exp(statistics.fmean(math.log(regret) for regret, *_ in found))
        above = sum(regret > 1.15 for regret, *_ in found)
        print(
            f"{mode}: regret of {len(found)} shapes: geomean {geomean:.4f}, worst {found[0][0]:.3f}, {above} above 1.15"
        )
        for regret, chosen, best in found[:most]:
            print(f"{regret:6.3f} {name(chosen):28} {chosen['kernel']} {chosen['us']} us (predicted"
                  f" {chosen['predicted_us']}), best {best['kernel']} {best['us']} ({best['predicted_us']})")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, nargs="+")
    options = parser.parse_args()
    rows = []
    for path in options.csv:
        with path.open(newline="") as file:
            rows += list(csv.DictReader(file))
    report(rows)


if __name__ == "__main__":
    main()
