"""Turns the csv files of bench.py, host.py, host_arrays.py, dropin*.py and the like into the tables of README.md and
docs/, between their marks, and into plots.

python bench/report.py            # rewrites tables and plots
python bench/report.py --check    # fails if they are not those of the csv files
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

import plot

from pyblas_sgemm._ladder import compared

HERE = Path(__file__).parent
TITLES = {
    "squares": "Squares",
    "published": "Shapes of published comparisons",
    "odd": "Odd sizes",
    "transposes": "Transposed operands",
    "decode": "Few rows or columns",
    "few_rows": "Few rows against a large matrix, all op pairs",
    "tall": "Tall",
    "deep_k": "Deep sums",
    "attention": "Attention batches",
    "interleaved": "Attention batches whose heads are interleaved",
    "small_batch": "Batches of small products",
    "cases": "Sizes at which other libraries took a step or a slow path",
}

MODES = [
    ("The default, `fp32`", ""),
    ("The default under load", "-sustained"),
    ("`fp32_pedantic`: multiply-adds only", "-pedantic"),
    ("`tf32`, beside cuBLAS in its TF32 mode", "-tf32"),
    ("`fp32` with `batch_invariant`", "-invariant"),
]

LOADED = "; each product ran for 0.7 s before it was timed"
PEAK_TFLOPS = {"NVIDIA H200": 65.5}  # measured

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


def measured(rows: list[Row]) -> str:
    """What was measured, and when."""
    commits = list(dict.fromkeys(row["commit"] for row in rows))
    return f"commit{'s' * (len(commits) > 1)} {' and '.join(commits)}, {rows[0]['date']}"


def card(rows: list[Row]) -> str:
    row = rows[0]
    major, minor, patch = (int(row["cublas"]) // unit % 100 for unit in (10000, 100, 1))
    return f"One {row['gpu']}, driver {row['driver']}, cuBLAS {major}.{minor}.{patch}, {measured(rows)}"


def comparison(rows: list[Row], families: list[str], load: str = "") -> str:
    """The chosen kernels, a table for each family."""
    chosen = [row for row in rows if row["choice"] == "selected"]
    text = (
        f"{card(chosen)}. Row-major, random input, operands rotated through twice the L2{load}. Above"
        " 1, this library is faster. The error is ||C - C64|| / ||C64||."
    )
    lines = [text]
    for family in families:
        if members := [row for row in chosen if row["family"] == family]:
            lines += ["", f"{TITLES[family]}:", "", *table(members)]
    return "\n".join(lines)


def modes(gpu: str) -> str:
    """Every family, a part for each mode that was measured."""
    parts = []
    for title, name in MODES:
        if (HERE / "results" / f"{gpu}{name}.csv").exists():
            load = LOADED if name == "-sustained" else ""
            parts += [f"## {title}", "", comparison(read(f"{gpu}{name}.csv"), list(TITLES), load), ""]
    return "\n".join(parts).rstrip()


def ladder(rows: list[Row]) -> str:
    """Every kernel on the sizes of the ladder, a row for each kernel."""
    forced = [row for row in rows if row["family"] == "ladder" and row["choice"] == "forced"]
    sizes = list(dict.fromkeys(row["m"] for row in forced))
    lines = [
        f"{card(forced)}; squares, row-major.",
        "",
        "| kernel | " + " | ".join(f"{size}: us | TFLOPS | of cublasSgemm" for size in sizes) + " |",
        "|---|" + "---|---|---|" * len(sizes),
    ]
    for kernel in dict.fromkeys(row["kernel"] for row in forced):
        cells = []
        for size in sizes:
            found = [row for row in forced if row["kernel"] == kernel and row["m"] == size]
            cells += [f"{float(found[0]['us']):.1f}", f"{float(found[0]['tflops']):.1f}"] if found else ["", ""]
            cells.append(f"{float(found[0]['ratio']):.1%}" if found else "")
        lines.append(f"| `{kernel}` | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", published([row for row in forced if row["m"] == sizes[-1]])])


def published(rows: list[Row]) -> str:
    """Others' published figures of the same steps beside ours, each family by its fastest kernel."""
    best: dict[str, Row] = {}
    for row in rows:
        family = re.sub(r"_\d+x\d+x\d+.*", "", row["kernel"])
        if family not in best or float(row["us"]) < float(best[family]["us"]):
            best[family] = row
    naive, peak = best["naive"], PEAK_TFLOPS[rows[0]["gpu"]]
    cublas, operations = float(naive["cublas_us"]), 2.0 * int(naive["m"]) * int(naive["n"]) * int(naive["k"])
    us = {family: float(row["us"]) for family, row in best.items()} | {"cuBLAS": cublas}
    table = compared(
        {family: float(naive["us"]) / time for family, time in us.items()},
        {family: 100 * cublas / time for family, time in us.items()},
        {family: 100e-6 * operations / time / peak for family, time in us.items()},
    )
    size = rows[0]["m"]
    return (
        f"Published results of the same steps, on other cards and by other people, beside ours at {size} (the peak is the"
        f" {peak} TFLOPS that multiply-adds were measured to reach):\n\n{table}"
    )


HOST_CALLS = [
    ("C", ["C"], ""),
    ("CuPy: `sgemm`", ["sgemm", "gemm_strided_batched"], "cupy"),
    ("`matmul(out=)`", ["matmul(out=)"], "cupy"),
    ("`cupy.matmul(out=)`", ["cupy.matmul(out=)"], "cupy"),
    ("PyTorch: `sgemm`", ["sgemm", "gemm_strided_batched"], "torch"),
    ("`matmul(out=)`", ["matmul(out=)"], "torch"),
    ("`torch.matmul(out=)`", ["torch.matmul(out=)"], "torch"),
]


def host_times(rows: list[Row]) -> str:
    """What calls cost the host, a row for each product."""
    first = rows[0]
    text = (
        f"One {first['gpu']}, driver {first['driver']}, host {first['cpu']}, Python {first['python']}, CuPy"
        f" {first['cupy']}, PyTorch {first['torch']}, commit {first['commit']}, {first['date']}; microseconds."
    )
    lines = [
        text,
        "",
        "| m x n x k | bare launches | " + " | ".join(title for title, _, _ in HOST_CALLS) + " |",
        "|---|---|" + "---|" * len(HOST_CALLS),
    ]
    for sizes in dict.fromkeys((row["m"], row["n"], row["k"], row["batch"]) for row in rows):
        found = [row for row in rows if (row["m"], row["n"], row["k"], row["batch"]) == sizes]
        batch = f"{sizes[3]} x " if sizes[3] != "1" else ""
        cells = [f"{batch}{' x '.join(sizes[:3])}", f"{found[0]['launches']}: {float(found[0]['bare_us']):.1f}"]
        for _, names, arrays in HOST_CALLS:
            us = [row["us"] for row in found if row["call"] in names and row["arrays"] == arrays]
            cells.append(f"{float(us[0]):.1f}" if us else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def programs(rows: list[Row]) -> str:
    """Programs alone and with the preloaded shim, then what a call costs the host."""
    first = rows[0]
    major, minor, patch = (int(first["cublas"]) // unit % 100 for unit in (10000, 100, 1))
    text = (
        f"One {first['gpu']}, driver {first['driver']}, cuBLAS {major}.{minor}.{patch}, PyTorch {first['torch']}, CuPy"
        f" {first['cupy']}, {measured(rows)}. The error is ||X - X64|| / ||X64||, of models the"
        " largest among their output and all gradients."
    )
    lines = [
        text,
        "",
        "| program | | times as fast | us alone | us with the shim | error alone | error with the shim |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["program"] not in ("C", "left to cuBLAS"):
            errors = [f"{float(row[name]):.1e}".replace("nan", "") for name in ("plain_error", "shim_error")]
            lines.append(
                f"| {row['program']} | {row['what']} | {float(row['ratio']):.2f} | {float(row['plain_us']):.1f} "
                f"| {float(row['shim_us']):.1f} | {' | '.join(errors)} |"
            )
    left = sorted(float(row["ratio"]) for row in rows if row["program"] == "left to cuBLAS")
    left_text = (
        f"Of {len(left)} products of 16-bit types or with a vector, {sum(ratio >= 1 for ratio in left)} are no slower with"
        f" `PYBLAS_SGEMM_TAKE_ALL=1`; the median is {left[len(left) // 2]:.2f} times cuBLAS's speed."
    )
    lines += [
        "",
        left_text,
        "",
        "| call in C, host's time | us direct | us through the shim |",
        "|---|---|---|",
    ]
    for row in rows:
        if row["program"] == "C":
            lines.append(f"| {row['what']} | {float(row['plain_us']):.2f} | {float(row['shim_us']):.2f} |")
    return "\n".join(lines)


def numpy_programs(rows: list[Row]) -> str:
    """NumPy's products of mixed shapes with the shim for a host BLAS, by the work of a product."""
    first = rows[0]
    threads = "one thread" if first["threads"] == "1" else f"{first['threads']} threads"
    text = (
        f"{len(rows)} shapes with extents from 2 to 2048, all layouts, on {threads} of an {first['processor']} "
        f"({first['cpu']}); NumPy {first['numpy']} with {first['numpy_blas']}, commit {first['commit']}. Time of"
        " `numpy.matmul(out=)` under the shim over its time alone; below 1, the shim is faster."
    )
    lines = [
        text,
        "",
        "| 2 m n k | shapes | median | least | most |",
        "|---|---|---|---|---|",
    ]
    found: dict[str, list[float]] = {}
    for row in rows:
        work = 2 * int(row["m"]) * int(row["n"]) * int(row["k"])
        title = "passed on" if row["taken"] == "0" else f"from 10^{max(4, len(str(work)) - 1)}"
        found.setdefault(title, []).append(float(row["ratio"]))
    for title in sorted(found, key=lambda title: (title != "passed on", title)):
        ratios = sorted(found[title])
        cells = (ratios[len(ratios) // 2], ratios[0], ratios[-1])
        lines.append(f"| {title} | {len(ratios)} | " + " | ".join(f"{ratio:.2f}" for ratio in cells) + " |")
    return "\n".join(lines)


def squares(rows: list[Row]) -> str:
    """NumPy's square products, alone and with the shim for a host BLAS, on the CPU and on a GPU."""
    first = rows[0]
    lines = [
        (
            f"`numpy.matmul(out=)` of n x n x n, {first['threads']} processors and one {first['gpu']}; NumPy {first['numpy']},"
            f" commit {first['commit']}, {first['date']}. The error is that of some rows, ||X - X64|| / ||X64||."
        ),
        "",
        "| n | ms alone | `--device cpu` | `--device cuda` | `--device auto` | error alone | error on the GPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        times = " | ".join(f"{float(row[f'{place}_ms']):.2f}" for place in ("alone", "cpu", "cuda", "auto"))
        lines.append(f"| {row['n']} | {times} | {row['alone_error']} | {row['cuda_error']} |")
    return "\n".join(lines)


def processor(rows: list[Row]) -> str:
    """The CPU engine beside NumPy, then what batch_invariant costs."""
    first = rows[0]
    how = "one thread of each, by the processor's time it took" if first["threads"] == "1" else "both on all of them"
    usual = [row for row in rows if row["batch_invariant"] == "0"]
    lines = [
        f"{first['cores']} cores of an {first['processor']} ({first['cpu']}), NumPy {first['numpy']} with "
        + f"{first['numpy_blas']}, commit {first['commit']}; {how}. Row-major, through Python; above 1, this library is faster.",
        "",
        "| m x n x k | times numpy.matmul | us | GFLOPS | numpy.matmul us | error | kernel |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in usual:
        lines.append(
            f"| {product(row)} | {float(row['ratio']):.2f} | {float(row['ours_us']):.1f} | {float(row['gflops']):.0f} "
            f"| {float(row['numpy_us']):.1f} | {float(row['fro_error']):.1e} | `{row['kernel']}` |"
        )
    lines += [
        "",
        "With `batch_invariant`:",
        "",
        "| m x n x k | times its time without | us | kernel |",
        "|---|---|---|---|",
    ]
    without = {product(row): float(row["ours_us"]) for row in usual}
    for row in rows:
        if row["batch_invariant"] == "1":
            us = float(row["ours_us"])
            lines.append(f"| {product(row)} | {us / without[product(row)]:.2f} | {us:.1f} | `{row['kernel']}` |")
    return "\n".join(lines)


def host_arrays(rows: list[Row], auto: list[Row]) -> str:
    """Products of host arrays beside the bounds of the machine, then what device='auto' is worth."""
    first, most = rows[0], max(int(row["gpus"]) for row in rows)
    lines = [
        (
            f"{most} {first['gpu']} of one host and {first['processors']} processors, driver {first['driver']}, commit {first['commit']},"
            f" {first['date']}. Compute: the same product in GPU memory; link: A and B in, C out, at the speed of pinned"
            " memory; of bound: the longer of the two over the time."
        ),
        "",
        "| size | memory | GPU memory | GPUs | library | seconds | TFLOPS | compute | link | of bound |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        limit = f"{float(row['cap_gib']):g} GiB" if float(row["cap_gib"]) else "as much as there is"
        lines.append(
            f"| {row['size']} | {row['memory']} | {limit} | {row['gpus']} | {row['library']} | {float(row['seconds']):.3f}"
            f" | {float(row['tflops']):.0f} | {float(row['compute_seconds']):.3f} | {float(row['link_seconds']):.3f}"
            f" | {float(row['of_bound']):.2f} |"
        )
    worst = max(auto, key=lambda row: float(row["slower"]))
    on_gpu = sum(float(row["gpu_us"]) < float(row["cpu_us"]) for row in auto)
    lines += [
        "",
        (
            f"`auto` on {len(auto)} shapes of pageable memory, of which {on_gpu} are sooner on the GPU (commit {auto[0]['commit']},"
            f" {auto[0]['date']}): at most {float(worst['slower']):.2f} times the better of CPU and GPU, for {worst['batch']} x"
            f" {worst['m']} x {worst['n']} x {worst['k']}."
        ),
    ]
    return "\n".join(lines)


def squares_plot(gpu: str) -> str:
    """How fast squares are, by size, beside cublasSgemm."""

    def of_squares(name: str) -> list[Row]:
        rows = [row for row in read(name) if row["family"] == "squares" and row["choice"] == "selected"]
        return [row for row in rows if int(row["m"]) >= 256]

    rows, pedantic = of_squares(f"{gpu}.csv"), of_squares(f"{gpu}-pedantic.csv")
    cublas = [float(row["tflops"]) * float(row["us"]) / float(row["cublas_us"]) for row in rows]
    series = {
        "fp32, the default": [float(row["tflops"]) for row in rows],
        "fp32_pedantic": [float(row["tflops"]) for row in pedantic],
        "cublasSgemm": cublas,
    }
    return plot.lines(f"n x n x n on one {rows[0]['gpu']}", "TFLOPS", [row["m"] for row in rows], series)


def ladder_plot(rows: list[Row]) -> str:
    """The fastest kernel of each family on the largest square."""
    forced = [row for row in rows if row["family"] == "ladder" and row["choice"] == "forced"]
    size = max(int(row["m"]) for row in forced)
    forced = [row for row in forced if int(row["m"]) == size]
    best: dict[str, float] = {}
    for row in forced:
        family = re.sub(r"_\d+x\d+x\d+.*", "", row["kernel"])
        best[family] = max(best.get(family, 0.0), float(row["tflops"]))
    cublas = 2e-6 * size**3 / float(forced[0]["cublas_us"])
    title = f"{size} x {size} x {size} on one {forced[0]['gpu']}, the fastest kernel of each family, TFLOPS"
    return plot.bars(title, "TFLOPS", best, ("cublasSgemm", cublas))


def read(name: str) -> list[Row]:
    with (HERE / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def show(page: Path, text: str, check: bool, marks: str = "bench") -> None:
    begin, end = f"<!-- {marks}:begin -->", f"<!-- {marks}:end -->"
    old = page.read_text()
    if old.count(begin) != 1 or old.count(end) != 1:
        raise SystemExit(f"{page} needs one {begin} and one {end}")
    head, rest = old.split(begin)
    new = f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    if new == old:
        return
    if check:
        raise SystemExit(f"{page.name} does not show the figures of bench/results: run bench/report.py")
    page.write_text(new)
    print(f"{page.name} is new", file=sys.stderr)


def draw(page: Path, picture: str, check: bool) -> None:
    if page.exists() and page.read_text() == picture:
        return
    if check:
        raise SystemExit(f"{page.name} does not show the figures of bench/results: run bench/report.py")
    page.write_text(picture)
    print(f"{page.name} is new", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a page differs")
    parser.add_argument("--gpu", default="nvidia-h200", help="whose csv files in bench/results")
    parser.add_argument("--cpu", default="zen5_2cores", help="whose csv files in bench/results")
    parser.add_argument("--dropin-cpu", default="zen5_2cores", help="whose csv file of dropin_cpu.py")
    parser.add_argument(
        "--families",
        nargs="+",
        choices=list(TITLES),
        default=["squares", "decode", "attention", "small_batch"],
    )
    options = parser.parse_args()
    root = HERE.parent
    show(root / "README.md", comparison(read(f"{options.gpu}.csv"), options.families), options.check)
    show(root / "docs" / "kernels.md", ladder(read(f"{options.gpu}-ladder.csv")), options.check)
    draw(root / "docs" / "squares.svg", squares_plot(options.gpu), options.check)
    draw(root / "docs" / "ladder.svg", ladder_plot(read(f"{options.gpu}-ladder.csv")), options.check)
    show(root / "docs" / "speed.md", modes(options.gpu), options.check)
    show(root / "docs" / "python-api.md", host_times(read(f"{options.gpu}-host.csv")), options.check)
    show(root / "docs" / "drop-in.md", programs(read(f"{options.gpu}-dropin.csv")), options.check)
    numpy = numpy_programs(read(f"cpu_{options.dropin_cpu}_dropin.csv"))
    show(root / "docs" / "drop-in.md", numpy, options.check, "numpy")
    show(root / "docs" / "drop-in.md", squares(read(f"{options.gpu}-dropin-squares.csv")), options.check, "squares")
    large, auto = read(f"{options.gpu}-host-arrays.csv"), read(f"{options.gpu}-auto.csv")
    show(root / "docs" / "host-arrays.md", host_arrays(large, auto), options.check)
    show(root / "docs" / "cpu.md", processor(read(f"cpu_{options.cpu}.csv")), options.check)


if __name__ == "__main__":
    main()
