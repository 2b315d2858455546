"""Turns a csv of bench.py into the tables of README.md, between its marks.

python bench/report.py            # rewrites the tables
python bench/report.py --check    # fails if they are not those of the csv
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

HERE = Path(__file__).parent
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
TITLES = {
    "squares": "Squares",
    "ladder": "The ladder",
    "published": "Shapes of published comparisons",
    "odd": "Odd sizes",
    "transposes": "Transposed operands",
    "decode": "Few rows or columns",
    "tall": "Tall",
    "deep_k": "Deep sums",
    "attention": "Attention batches",
    "small_batch": "Batches of small products",
}

Row = dict[str, str]


def product(row: Row) -> str:
    batch = f"{row['batch']} x " if row["batch"] != "1" else ""
    ops = f" {row['ops']}" if row["ops"] != "NN" else ""
    return f"{batch}{row['m']} x {row['n']} x {row['k']}{ops}"


def table(rows: list[Row]) -> list[str]:
    lines = [
        "| m x n x k | times cublasSgemm | us | TFLOPS | cublasSgemm us | error | cublasSgemm error | kernel |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {product(row)} | {float(row['ratio']):.2f} | {float(row['us']):.1f} | {float(row['tflops']):.1f} "
            f"| {float(row['cublas_us']):.1f} | {float(row['error']):.1e} | {float(row['cublas_error']):.1e} "
            f"| `{row['kernel']}` |"
        )
    return lines


def report(rows: list[Row], families: list[str]) -> str:
    chosen = [row for row in rows if row["choice"] == "selected"]
    if not chosen:
        raise SystemExit("the csv holds no row of a selected kernel")
    first = chosen[0]
    major, minor, patch = (int(first["cublas"]) // unit % 100 for unit in (10000, 100, 1))
    card = f"One {first['gpu']}, driver {first['driver']}, cuBLAS {major}.{minor}.{patch}"
    text = (
        f"{card}, commit {first['commit']}, {first['date']}. Row-major, random input, operands rotated through twice the"
        " L2. Above 1, this library is faster. The error is ||C - C64|| / ||C64||."
    )
    lines = [text]
    for family in families:
        if members := [row for row in chosen if row["family"] == family]:
            lines += ["", f"{TITLES[family]}:", "", *table(members)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if README.md differs")
    parser.add_argument("--csv", type=Path, default=HERE / "results" / "nvidia-h200.csv")
    parser.add_argument("--families", nargs="+", choices=list(TITLES), default=["squares", "transposes", "attention"])
    parser.add_argument("--readme", type=Path, default=HERE.parent / "README.md")
    options = parser.parse_args()

    with options.csv.open(newline="") as file:
        text = report(list(csv.DictReader(file)), options.families)
    old = options.readme.read_text()
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        raise SystemExit(f"{options.readme} needs one {BEGIN} and one {END}")
    head, rest = old.split(BEGIN)
    new = f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"
    if options.check:
        if new != old:
            raise SystemExit(f"{options.readme.name} does not show {options.csv.name}: run bench/report.py")
    elif new != old:
        options.readme.write_text(new)
        print(f"{options.readme.name} shows {options.csv.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
