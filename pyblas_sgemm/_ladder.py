"""The command `pyblas-sgemm ladder`: every GPU kernel on one square product, as a table and on a roofline.

It needs CuPy or PyTorch, which hold the operands and time launches by events, and the packages of the extra `ladder`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._handle import Handle, KernelInfo, kernels
from ._info import info
from ._sgemm import sgemm
from ._status import NotSupportedError

GROUP_SECONDS, GROUPS = 0.02, 5  # launches between two events last that long; the median of some such groups counts
CHECKED_ROWS = 8  # of C, against float64
UNIT = 2.0**-24

# What others published of the same steps, by family, and of cuBLAS beside them: the share of a card's FP32 peak or of
# cuBLAS in percent, or the speed as a multiple of naive.
PUBLISHED = {
    "RTX 6000 Ada, 1024 x 1024 x 1024": (
        "times naive",
        {"naive": "1", "coalesced": "8.1", "smem_tile": "10.2", "thread_tile_1d": "27", "thread_tile_2d": "31",
         "vectorized": "44.5"},
    ),
    "RTX 4090, 1024 x 512 x 1024": (
        "% of cuBLAS",
        {"naive": "2.3", "coalesced": "18.8", "smem_tile": "23.2", "thread_tile_1d": "41.5", "thread_tile_2d": "69.3",
         "cuBLAS": "100"},
    ),
    "RTX 4090, 1001 x 513 x 777": (
        "% of cuBLAS",
        {"naive": "12.2", "coalesced": "25.9", "smem_tile": "30.8", "thread_tile_1d": "50.9", "thread_tile_2d": "85.6",
         "cuBLAS": "100"},
    ),
    "V100, 16384 x 16384 x 1024": (
        "% of peak",
        {"naive": "11.4", "thread_tile_2d": "51.7", "conflict_free": "74.3", "double_buffer": "80.6",
         "cuBLAS": "82.4"},
    ),
    "A100, 4096 x 4096 x 4096": (
        "% of peak",
        {"naive": "1 to 3", "smem_tile": "10 to 20", "thread_tile_2d": "40 to 60", "vectorized": "55 to 70",
         "async_pipeline": "70 to 80", "cuBLAS": "85 to 95"},
    ),
}  # fmt: skip


class LadderError(Exception):
    """A sentence for the person at the terminal."""


@dataclass(frozen=True)
class Step:
    """One kernel's run."""

    kernel: KernelInfo
    seconds: float
    error: float  # ||C - C64|| / ||C64|| of some rows


@dataclass(frozen=True)
class Card:
    """What the roof is made of, and what a block has room in."""

    name: str
    sm: int
    flops: float  # multiply-adds count two
    bandwidth: float  # bytes per second
    threads: int  # of a multiprocessor, like the next one
    shared_bytes: int


@dataclass(frozen=True)
class Ladder:
    card: Card
    size: int
    peer: str
    peer_seconds: float
    steps: Sequence[Step]
    refused: Sequence[tuple[str, str]] = ()  # name, reason

    def flops(self, seconds: float) -> float:
        return 2.0 * self.size**3 / seconds


@dataclass(frozen=True)
class Arrays:
    """An array library on one GPU."""

    peer: str
    random: Callable[[int], Any]
    empty: Callable[[int], Any]
    poison: Callable[[Any], object]  # so that a kernel is not judged by what another has left
    rows: Callable[[Any, Any], np.ndarray[Any, Any]]
    matmul: Callable[[Any, Any, Any], Any]
    seconds: Callable[[Callable[[], object], int], float]  # of that many calls, between two events


# ---- the run ----------------------------------------------------------------------------------------------------------


def run(size: int, output: Path) -> int:
    try:
        progress = required("rich.progress")
        required("matplotlib")
        device, name, sm = first_gpu(info())
        arrays = arrays_of(device)
        ladder = climb(arrays, card_of(arrays, device, name, sm), device, size, progress.track)
    except LadderError as error:
        print(f"pyblas-sgemm ladder: {error}", file=sys.stderr)
        return 1
    print(table(ladder))
    for file in write(ladder, output):
        print(f"wrote {file}")
    if wrong := [step.kernel.name for step in ladder.steps if not step.error <= limit(step.kernel, size)]:
        print(f"pyblas-sgemm ladder: errors beyond what their mode may have in {', '.join(wrong)}", file=sys.stderr)
        return 1
    return 0


def required(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        missing = package.partition(".")[0]
        raise LadderError(f"it needs {missing}, which is not installed: pip install rich matplotlib") from error


def first_gpu(facts: dict[str, Any]) -> tuple[int, str, int]:
    """Number, name and compute capability times ten."""
    for gpu in facts["gpus"]:
        if gpu["supported"]:
            return gpu["device"], gpu["name"], int(gpu["sm"].replace(".", ""))
    reasons = [f"GPU {gpu['device']} ({gpu['name']}): {gpu['reason']}" for gpu in facts["gpus"]]
    raise LadderError(f"there is no GPU to run on. {' '.join(reasons) or facts['no_gpu_reason']}")


def climb(arrays: Arrays, card: Card, device: int, size: int, track: Callable[..., Iterable[Any]]) -> Ladder:
    a, b, c = arrays.random(size), arrays.random(size), arrays.empty(size)
    peer_seconds = median_seconds(arrays, lambda: arrays.matmul(a, b, c))
    rows = np.unique(np.linspace(0, size - 1, CHECKED_ROWS).astype(int))
    everything = np.arange(size)
    expected = arrays.rows(a, rows).astype(np.float64) @ arrays.rows(b, everything).astype(np.float64)
    steps, refused = [], []
    table = [row for row in kernels() if row.engine == "gpu" and "float32" in row.types and row.min_sm <= card.sm]
    for row in track(table, description="Climbing"):
        mode = mode_of(row)
        with Handle(device, kernel=row.name) as handle:

            def multiply(handle: Handle = handle, mode: str = mode) -> None:
                sgemm("N", "N", size, size, size, 1.0, a, size, b, size, 0.0, c, size, order="C", compute=mode,
                      handle=handle)  # fmt: skip

            arrays.poison(c)
            try:
                multiply()
            except NotSupportedError as refusal:
                refused.append((row.name, str(refusal).partition("was forced, but ")[2] or str(refusal)))
                continue
            off = np.linalg.norm(arrays.rows(c, rows) - expected) / np.linalg.norm(expected)
            steps.append(Step(row, median_seconds(arrays, multiply), float(off)))
    return Ladder(card, size, arrays.peer, peer_seconds, steps, refused)


def mode_of(row: KernelInfo) -> str:
    return "fp32" if "fp32" in row.modes else row.modes[0]


def limit(row: KernelInfo, size: int) -> float:
    """Of a kernel's relative error."""
    return (size + 2) * UNIT + 2.0**-10 + 2.0**-22 if mode_of(row) == "tf32" else usual_error(size)


def usual_error(depth: int) -> float:
    """The relative error that multiply-adds one after another make of random data. The bound of an element is what the
    worst data may do, and lets kernels pass that round their inputs; this does not."""
    return UNIT / 2 * math.sqrt(max(depth, 64))


def median_seconds(arrays: Arrays, call: Callable[[], object]) -> float:
    call()
    once = arrays.seconds(call, 1)
    calls = max(1, round(GROUP_SECONDS / once))
    groups = GROUPS if once < 1 else 1
    return statistics.median(arrays.seconds(call, calls) / calls for _ in range(groups))


# ---- the GPU ----------------------------------------------------------------------------------------------------------


def arrays_of(device: int) -> Arrays:
    faults = []
    for make in (cupy_arrays, torch_arrays):
        try:
            return make(device)
        except (ImportError, OSError, RuntimeError) as error:
            faults.append(str(error).partition("\n")[0])
    raise LadderError(
        f"it needs CuPy or PyTorch to hold arrays on the GPU, and neither works here ({'; '.join(faults)}): "
        "pip install 'cupy-cuda13x[ctk]', or with a driver of CUDA 12 'cupy-cuda12x[ctk]'"
    )


def cupy_arrays(device: int) -> Arrays:
    cupy = importlib.import_module("cupy")
    cupy.cuda.Device(device).use()
    generator = cupy.random.default_rng(1)

    def seconds(call: Callable[[], object], calls: int) -> float:
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(begin, end)) * 1e-3

    return Arrays(
        "CuPy (cuBLAS)",
        lambda size: generator.standard_normal((size, size), dtype=cupy.float32),
        lambda size: cupy.empty((size, size), cupy.float32),
        lambda array: array.fill(np.nan),
        lambda array, rows: np.asarray(cupy.asnumpy(array[rows])),
        lambda a, b, c: cupy.matmul(a, b, out=c),
        seconds,
    )


def torch_arrays(device: int) -> Arrays:
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no GPU")
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)

    def seconds(call: Callable[[], object], calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    return Arrays(
        "PyTorch (cuBLAS)",
        lambda size: torch.randn(size, size, device="cuda"),
        lambda size: torch.empty(size, size, device="cuda"),
        lambda array: array.fill_(np.nan),
        lambda array, rows: np.asarray(array[torch.from_numpy(rows).cuda()].cpu()),
        lambda a, b, c: torch.mm(a, b, out=c),
        seconds,
    )


def card_of(arrays: Arrays, device: int, name: str, sm: int) -> Card:
    """The FP32 peak by the driver's clock and number of multiprocessors; bandwidth by a copy of 256 MB."""
    driver = ctypes.CDLL("libcuda.so.1")
    handle, value = ctypes.c_int(), ctypes.c_int()

    def attribute(number: int) -> int:
        if driver.cuDeviceGet(ctypes.byref(handle), device) or driver.cuDeviceGetAttribute(
            ctypes.byref(value), number, handle
        ):
            raise LadderError("the driver does not describe the GPU")
        return value.value

    clock, processors, threads, shared = (attribute(number) for number in (13, 16, 39, 81))  # kHz first
    lanes = 64 if sm in (70, 72, 75, 80) else 128
    source, target = arrays.random(8192), arrays.empty(8192)

    def copy() -> None:
        target[...] = source

    bandwidth = 2 * 4 * 8192**2 / median_seconds(arrays, copy)
    return Card(name, sm, 2e3 * clock * lanes * processors, bandwidth, threads, shared)


# ---- what is told -----------------------------------------------------------------------------------------------------


def intensity(kernel: KernelInfo) -> float:
    """FLOP for each byte asked of global memory: a block of BM x BN reads BM + BN values for each k. Without a tile in
    shared memory (depth 1) each multiply-add asks for two values."""
    tile = re.search(r"_(\d+)x(\d+)x(\d+)", kernel.name)
    if tile is None or tile[3] == "1":
        return 0.25
    rows, columns = int(tile[1]), int(tile[2])
    return rows * columns / (2 * (rows + columns))


def blocks(kernel: KernelInfo, card: Card) -> int:
    """How many blocks one multiprocessor has room for. Each takes 1 KB of shared memory more than it asks for."""
    by_registers = (1 << 16) // (kernel.registers * kernel.threads)
    by_threads = card.threads // kernel.threads
    by_shared = card.shared_bytes // (kernel.shared_bytes + 1024)
    return max(1, min(by_registers, by_threads, by_shared))


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(ladder: Ladder) -> str:
    card, naive = ladder.card, next((step.seconds for step in ladder.steps if step.kernel.family == "naive"), None)
    header = ["kernel", "FLOP per byte", "registers, at most", "shared memory", "occupancy, at least", "us", "TFLOPS", "% of peak",
              f"% of {ladder.peer}", "times naive", "error"]  # fmt: skip
    rows = [
        [
            f"`{step.kernel.name}`",
            f"{intensity(step.kernel):.3g}",
            str(step.kernel.registers),
            str(step.kernel.shared_bytes),
            f"{blocks(step.kernel, card) * step.kernel.threads / card.threads:.0%}",
            f"{step.seconds * 1e6:.1f}",
            f"{ladder.flops(step.seconds) / 1e12:.1f}",
            f"{100 * ladder.flops(step.seconds) / card.flops:.1f}",
            f"{100 * ladder.peer_seconds / step.seconds:.1f}",
            f"{naive / step.seconds:.1f}" if naive else "",
            f"{step.error:.1e}",
        ]
        for step in ladder.steps
    ]
    return markdown(header, rows)


def compared(times_naive: dict[str, float], of_peer: dict[str, float], of_peak: dict[str, float]) -> str:
    """The published figures beside ours, in percent of cuBLAS and of the peak; by family, of its fastest kernel."""
    ours = {"times naive": times_naive, "% of cuBLAS": of_peer, "% of peak": of_peak}
    header = [
        "step",
        *(f"ours, {what}" for what in ours),
        *(f"{card}: {what}" for card, (what, _) in PUBLISHED.items()),
    ]
    families = dict.fromkeys(family for _, figures in PUBLISHED.values() for family in figures)
    rows = [
        [
            "cuBLAS" if family == "cuBLAS" else f"`{family}`",
            *(f"{figures[family]:.1f}" if family in figures else "" for figures in ours.values()),
            *(figures.get(family, "") for _, figures in PUBLISHED.values()),
        ]
        for family in [name for name in of_peak if name in families]
    ]
    return markdown(header, rows)


def comparison(ladder: Ladder) -> str:
    best: dict[str, float] = {}
    for step in ladder.steps:
        family = step.kernel.family
        best[family] = min(best.get(family, step.seconds), step.seconds)
    best["cuBLAS"] = ladder.peer_seconds
    return compared(
        {family: best["naive"] / seconds for family, seconds in best.items()} if "naive" in best else {},
        {family: 100 * ladder.peer_seconds / seconds for family, seconds in best.items()},
        {family: 100 * ladder.flops(seconds) / ladder.card.flops for family, seconds in best.items()},
    )


def text(ladder: Ladder) -> str:
    size, card = ladder.size, ladder.card
    roof = (
        f"Peak {card.flops / 1e12:.1f} TFLOPS by clock and number of multiprocessors; bandwidth"
        f" {card.bandwidth / 1e12:.2f} TB/s, measured by a copy. {ladder.peer}: {ladder.peer_seconds * 1e6:.1f} us."
    )
    beside = "Beside published results of the same steps on other cards (ratios compare, times do not):"
    parts = [f"# {size} x {size} x {size} on {card.name}", roof, table(ladder), beside, comparison(ladder)]
    if ladder.refused:
        parts.append("\n".join(f"- `{name}`: {reason}" for name, reason in ladder.refused))
    return "\n\n".join(parts) + "\n"


def write(ladder: Ladder, output: Path) -> list[Path]:
    """ladder.md and the roofline as ladder.png and ladder.svg."""
    output.mkdir(parents=True, exist_ok=True)
    page = output / "ladder.md"
    page.write_text(text(ladder))
    figure = roofline(ladder)
    plots = [output / "ladder.png", output / "ladder.svg"]
    for plot in plots:
        figure.savefig(plot, dpi=150, bbox_inches="tight")
    return [page, *plots]


def roofline(ladder: Ladder) -> Any:
    """TFLOPS over FLOP per byte asked of global memory. Caches answer part of what is asked, so that a kernel may stand
    above the slope of the memory behind them."""
    card = ladder.card
    figure = required("matplotlib.figure").Figure(figsize=(9, 6))
    axes = figure.add_subplot()
    ridge = card.flops / card.bandwidth
    axes.plot([0.1, ridge, 200], [0.1 * card.bandwidth / 1e12, card.flops / 1e12, card.flops / 1e12], "k-", lw=1.5)
    axes.text(ridge * 1.1, card.flops / 1e12 * 1.05, f"{card.flops / 1e12:.1f} TFLOPS")
    axes.text(0.11, 0.14 * card.bandwidth / 1e12, f"{card.bandwidth / 1e12:.2f} TB/s", rotation=35)
    peer = ladder.flops(ladder.peer_seconds) / 1e12
    axes.axhline(peer, color="gray", ls="--", lw=1)
    axes.text(0.11, peer * 0.85, ladder.peer, color="gray")
    for step in ladder.steps:
        x, y = intensity(step.kernel), ladder.flops(step.seconds) / 1e12
        axes.plot(x, y, "o", label=f"{step.kernel.name}: {y:.1f}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP for each byte asked of global memory")
    axes.set_ylabel("TFLOPS")
    axes.set_title(f"{ladder.size} x {ladder.size} x {ladder.size}, {card.name}")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
