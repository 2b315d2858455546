"""The command `pyblas-sgemm`, the same as `python -m pyblas_sgemm`.

Without arguments it says what it runs on, does real work on each device there is, compares the results with float64 and
the speed with the array library's own product, and ends with 0 only if every result lies within its error bound.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import pyblas_sgemm

from ._info import info, library_version, package_folder
from ._ladder import run as climb
from ._ladder import usual_error
from ._run import run as run_program

if TYPE_CHECKING:
    from typing_extensions import Self

UNIT = 2.0**-24  # a rounding to float32 is off by at most this, relatively
SPIN_SECONDS = 0.3  # BLAS threads of NumPy spin for 0.1 s after a product; nobody is timed before they sleep
FOLDERS = {
    "cmake-dir": "lib/cmake/pyblas_sgemm",
    "include-dir": "include",
    "pkgconfig-dir": "lib/pkgconfig",
    "lib-dir": "lib",
}


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return run_command(arguments)
    except BrokenPipeError:  # whoever reads has seen enough; what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run_command(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="pyblas-sgemm",
        description="Says what pyblas_sgemm runs on, then multiplies on each device and checks error and speed.",
    )
    parser.add_argument("--version", action="version", version=f"pyblas-sgemm {library_version()}")
    for option, folder in FOLDERS.items():
        parser.add_argument(f"--{option}", action="store_true", help=f"print the folder {folder} of this installation")
    commands = parser.add_subparsers(dest="command", metavar="{info,kernels,ladder,host,run}")
    info_command = commands.add_parser("info", help="print engines, GPUs, build and settings")
    info_command.add_argument("--json", action="store_true", help="as JSON")
    commands.add_parser("kernels", help="print the table of kernels")
    ladder = commands.add_parser("ladder", help="run every GPU kernel on one product and draw the roofline")
    ladder.add_argument("--size", type=extent, default=4096, help="m = n = k (default: %(default)s)")
    ladder.add_argument(
        "--output", type=Path, default=Path("ladder"), help="folder of the table and the plots (default: %(default)s)"
    )
    program = commands.add_parser(
        "run", help="run a program whose BLAS products this library takes", usage="%(prog)s [options] PROGRAM ..."
    )
    program.add_argument("--report", action="store_true", help="say afterwards what was taken, what was not, and why")
    program.add_argument("--verify", type=extent, metavar="N", help="compare one call in N with float64, and report")
    program.add_argument(
        "--device", type=place, metavar="{cpu,cuda,cuda:N,auto}", help="where products of host arrays are computed"
    )
    program.add_argument("--compute", choices=("fp32", "fp32_pedantic", "tf32"), help="how products are computed")
    program.add_argument("--min-flops", type=float, metavar="F", help="leave calls of less work to the program's BLAS")
    program.add_argument("program", metavar="PROGRAM", help="a command, or a .py file for this Python")
    program.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="what the program is given")
    host = commands.add_parser("host", help="multiply host arrays on GPUs, in tiles, and check the result")
    host.add_argument("--size", type=extent, default=16384, help="m = n = k (default: %(default)s)")
    host.add_argument("--devices", type=int, nargs="+", default=[0], help="GPUs that share the work (default: 0)")
    host.add_argument("--memory", type=extent, help="bytes of each GPU's memory that may be used")
    options = vars(parser.parse_args(arguments))

    folders = [folder for option, folder in FOLDERS.items() if options[option.replace("-", "_")]]
    if folders:
        print("\n".join(str(package_folder() / folder) for folder in folders))
    elif options["command"] == "info":
        print(json.dumps(info(), indent=2) if options["json"] else info())
    elif options["command"] == "kernels":
        print(kernel_table())
    elif options["command"] == "ladder":
        return climb(options["size"], options["output"])
    elif options["command"] == "run":
        return run_program(
            options["program"],
            options["arguments"],
            report=options["report"],
            verify=options["verify"] or 0,
            device=options["device"],
            compute=options["compute"],
            min_flops=options["min_flops"],
        )
    elif options["command"] == "host":
        return multiply_host_arrays(options["size"], options["devices"], options["memory"])
    else:
        return demonstrate()
    return 0


def extent(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a size")
    return number


def place(text: str) -> str:
    if re.fullmatch(r"cpu|auto|cuda(:\d+)?", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not cpu, cuda, cuda:N or auto")
    return text


def kernel_table() -> str:
    header = ("name", "engine", "types", "modes", "SM from")
    rows = [
        (row.name, row.engine, " ".join(row.types), " ".join(row.modes), f"{row.min_sm / 10:.1f}" if row.min_sm else "")
        for row in pyblas_sgemm.kernels()
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *rows))


# ---- the devices ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """One device and the array library that holds its memory, as far as the work below needs them."""

    title: str
    place: str | int  # what the keyword `device` of a call takes
    library: str
    put: Callable[[np.ndarray[Any, Any]], Any]
    get: Callable[[Any], np.ndarray[Any, Any]]
    matmul: Callable[..., Any]
    softmax: Callable[[Any], Any]  # of the rows, in place
    synchronize: Callable[[], None]


def cpu_device(facts: dict[str, Any]) -> Device:
    title = f"CPU ({facts['instruction_set']}, threads: {facts['threads']})"
    return Device(title, "cpu", "NumPy", np.array, np.array, np.matmul, softmax_of(np), lambda: None)


def gpu_devices(gpus: list[dict[str, Any]]) -> Iterator[Device]:
    """A device for each GPU that the library supports; prints why one is left out."""
    for gpu in gpus:
        title = f"GPU {gpu['device']} ({gpu['name']})"
        if not gpu["supported"]:
            print(f"\n{title} is not used: {gpu['reason']}")
            continue
        faults = []
        for device_of in (cupy_device, torch_device):
            try:
                device = device_of(gpu["device"], title)
            except (ImportError, OSError, RuntimeError) as error:
                faults.append(str(error).partition("\n")[0])
            else:
                yield device
                break
        else:
            print(
                f"\n{title} was found, but Python needs an array library to hold its memory, and none works here"
                f" ({'; '.join(faults)}): install CuPy (pip install 'cupy-cuda{gpu['cuda_version'].split('.')[0]}x[ctk]')"
                " or PyTorch."
            )


def cupy_device(number: int, title: str) -> Device:
    cupy = importlib.import_module("cupy")
    cupy.cuda.Device(number).use()
    cupy.zeros(1).fill(1)  # compiles: CuPy without its compiler is found out here
    synchronize = cupy.cuda.get_current_stream().synchronize
    return Device(title, number, "CuPy", cupy.asarray, cupy.asnumpy, cupy.matmul, softmax_of(cupy), synchronize)


def torch_device(number: int, title: str) -> Device:
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch finds no GPU")
    torch.cuda.set_device(number)

    def put(array: np.ndarray[Any, Any]) -> Any:
        return torch.from_numpy(array).cuda()

    def get(tensor: Any) -> np.ndarray[Any, Any]:
        return np.asarray(tensor.cpu())

    def softmax(rows: Any) -> None:
        rows -= rows.amax(-1, keepdim=True)
        rows.exp_()
        rows /= rows.sum(-1, keepdim=True)

    return Device(title, number, "PyTorch", put, get, torch.matmul, softmax, torch.cuda.synchronize)


def softmax_of(xp: Any) -> Callable[[Any], None]:
    def softmax(rows: Any) -> None:
        rows -= rows.max(-1, keepdims=True)
        xp.exp(rows, out=rows)
        rows /= rows.sum(-1, keepdims=True)

    return softmax


# ---- the work ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    work: str
    operations: float
    seconds: float
    peer_seconds: float
    error: float  # relative, in the Frobenius norm
    of_bound: float  # largest error of an element as a part of its bound; at most 1 if all is well

    @property
    def within_bound(self) -> bool:
        return self.of_bound <= 1  # false for NaN


def demonstrate() -> int:
    start = time.perf_counter()
    facts = info()
    print(facts, flush=True)
    try:
        outcomes = run_device(cpu_device(facts["cpu"]), size=1024, tokens=128, sequences=32)
        for device in gpu_devices(facts["gpus"]):
            outcomes += run_device(device, size=4096, tokens=512, sequences=8)
    except pyblas_sgemm.SgemmError as error:
        print(f"Failed: {error} ({error.name})")
        return 1
    wrong = [outcome.work for outcome in outcomes if not outcome.within_bound]
    print(f"\nTook {time.perf_counter() - start:.1f} s.")
    if wrong:
        print(f"Wrong: errors beyond the bound of fp32 in {'; '.join(wrong)}.")
        return 1
    print("All results are within the error bounds of fp32.")
    return 0


def run_device(device: Device, size: int, tokens: int, sequences: int) -> list[Outcome]:
    print(f"\n{device.title}")
    print(f"  {'':44}{'GFLOP/s':>9}{device.library:>9}{'ratio':>7}{'error':>10}{'of bound':>10}", flush=True)
    return [
        reported(run_sgemm(device, size)),
        reported(run_attention(device, tokens, sequences, heads=12, dim=64)),
    ]


def reported(outcome: Outcome) -> Outcome:
    print(
        f"  {outcome.work:44}{outcome.operations / outcome.seconds / 1e9:9.1f}"
        f"{outcome.operations / outcome.peer_seconds / 1e9:9.1f}{outcome.peer_seconds / outcome.seconds:7.2f}"
        f"{outcome.error:10.1e}{outcome.of_bound:10.2g}",
        flush=True,
    )
    return outcome


def run_sgemm(device: Device, size: int) -> Outcome:
    """C = A B, square. A sample of C's rows is compared, the last one among them."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    keywords = call_keywords(device)
    device_a, device_b = device.put(a), device.put(b)
    c, peer_c = (device.put(np.full((size, size), np.nan, dtype=np.float32)) for _ in range(2))

    def multiply() -> None:
        pyblas_sgemm.sgemm("N", "N", size, size, size, 1.0, device_a, size, device_b, size, 0.0, c, size, **keywords)

    seconds = median_seconds(multiply, device.synchronize)
    peer_seconds = median_seconds(lambda: device.matmul(device_a, device_b, out=peer_c), device.synchronize)

    rows = sample_of(rng, size, 128)
    expected = a[rows].astype(np.float64) @ b.astype(np.float64)
    bound = (size + 2) * (UNIT * (abs(a[rows]).astype(np.float64) @ abs(b).astype(np.float64)) + 2.0**-149)
    error, of_bound = compare(device.get(c)[rows], expected, bound)
    of_bound = max(of_bound, error / usual_error(size))
    return Outcome(f"sgemm {size} x {size} x {size}", 2.0 * size**3, seconds, peer_seconds, error, of_bound)


def run_attention(device: Device, tokens: int, sequences: int, heads: int, dim: int) -> Outcome:
    """softmax(Q K^T / sqrt(dim)) V for all heads of all sequences by two calls. Q, K, V and the result are
    (token, sequence, head, dim) and stay so: a head of a sequence is a matrix whose rows are `width` apart and which
    begins `dim` after the one before. The speed is that of the two products; the error is that of the whole."""
    rng = np.random.default_rng(2)
    batch, width = sequences * heads, sequences * heads * dim
    q, k, v = (rng.standard_normal((tokens, batch, dim), dtype=np.float32) for _ in range(3))
    device_q, device_k, device_v = device.put(q), device.put(k), device.put(v)
    scores = device.put(np.full((batch, tokens, tokens), np.nan, dtype=np.float32))
    out = device.put(np.full((tokens, batch, dim), np.nan, dtype=np.float32))
    alpha, keywords = 1 / math.sqrt(dim), call_keywords(device)

    # fmt: off
    def multiply_keys() -> None:
        pyblas_sgemm.gemm_strided_batched(
            "N", "T", tokens, tokens, dim, alpha, device_q, width, dim, device_k, width, dim,
            0.0, scores, tokens, tokens * tokens, batch, **keywords,
        )

    def multiply_values() -> None:
        pyblas_sgemm.gemm_strided_batched(
            "N", "N", tokens, dim, tokens, 1.0, scores, tokens, tokens * tokens, device_v, width, dim,
            0.0, out, width, dim, batch, **keywords,
        )
    # fmt: on

    def multiply_both() -> None:
        multiply_keys()
        multiply_values()

    multiply_keys()
    device.softmax(scores)
    multiply_values()
    result = device.get(out)
    seconds = median_seconds(multiply_both, device.synchronize)

    peer_q, peer_k, peer_v = (x.swapaxes(0, 1) for x in (device_q, device_k, device_v))
    peer_out = device.put(np.empty((batch, tokens, dim), dtype=np.float32))

    def multiply_both_by_peer() -> None:
        device.matmul(peer_q, peer_k.swapaxes(1, 2), out=scores)
        device.matmul(scores, peer_v, out=peer_out)

    peer_seconds = median_seconds(multiply_both_by_peer, device.synchronize)

    sample = sample_of(rng, batch, 16)
    expected, bound = attention_float64(*(x[:, sample].swapaxes(0, 1).astype(np.float64) for x in (q, k, v)))
    return Outcome(
        f"attention {sequences} x {heads} heads, {tokens} x {dim}",
        4.0 * batch * tokens * tokens * dim,
        seconds,
        peer_seconds,
        *compare(result[:, sample].swapaxes(0, 1), expected, bound),
    )


def multiply_host_arrays(size: int, devices: list[int], memory: int | None) -> int:
    """C = A B of host arrays on GPUs; a sample of C's rows is compared. Ends with 0 if they are within their bound."""
    rng = np.random.default_rng(1)
    a, b = (np.resize(rng.standard_normal(1 << 22, dtype=np.float32), (size, size)) for _ in range(2))
    c = np.full((size, size), np.nan, dtype=np.float32)
    try:
        with pyblas_sgemm.Handle(compute="fp32", memory_limit=memory) as handle, Bar("multiplying") as bar:
            start = time.perf_counter()
            pyblas_sgemm.sgemm(
                "N", "N", size, size, size, 1.0, a, size, b, size, 0.0, c, size,
                order="C", handle=handle, devices=devices, progress=bar,
            )  # fmt: skip
            seconds = time.perf_counter() - start
    except pyblas_sgemm.SgemmError as error:
        print(f"Failed: {error} ({error.name})")
        return 1
    rows = sample_of(rng, size, min(size, 16))
    x, y = a[rows].astype(np.float64), b.astype(np.float64)
    expected = x @ y
    relative, of_bound = compare(c[rows], expected, (size + 2) * (UNIT * (abs(x) @ abs(y)) + 2.0**-149))
    of_bound = max(of_bound, relative / usual_error(size))
    print(
        f"sgemm {size} x {size} x {size} of host arrays on GPU {', '.join(map(str, devices))}: {seconds:.3f} s,"
        f" {2e-9 * size**3 / seconds:.0f} GFLOP/s; error {relative:.1e}, {of_bound:.2g} of its bound"
    )
    return 0 if of_bound <= 1 else 1


class Bar:
    """A progress bar on stderr for work that takes longer than a second, if there is a terminal and rich is installed."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._start = time.perf_counter()
        self._shown: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: float) -> None:
        if self._shown is None:
            if time.perf_counter() - self._start < 1 or not sys.stderr.isatty():
                return
            try:
                rich = importlib.import_module("rich.progress")
            except ImportError:
                return
            console = importlib.import_module("rich.console").Console(stderr=True)
            self._shown = rich.Progress(console=console, transient=True)
            self._shown.start()
            self._task = self._shown.add_task(self._title, total=1.0)
        self._shown.update(self._task, completed=done)

    def __exit__(self, *failure: object) -> None:
        if self._shown is not None:
            self._shown.stop()


def sample_of(rng: np.random.Generator, size: int, count: int) -> Any:
    """Some of range(size), the last one among them."""
    return np.append(rng.permutation(size - 1)[: count - 1], size - 1)


def call_keywords(device: Device) -> dict[str, Any]:
    """Said in each call, because the environment may say otherwise and the bound is that of fp32."""
    return {"order": "C", "compute": "fp32", "device": device.place}


def attention_float64(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """Attention of (head, token, dim) and how far a float32 computation may be from it.

    If every score is off by at most d, each weight is off by a factor of at most exp(2 d). d is the bound of the first
    product plus the rounding of the difference from the row's maximum. The exponential (8 roundings at most, above and
    below the fraction line), the sum, the division and the second product add their own.
    """
    tokens, dim = q.shape[1:]
    alpha = float(np.float32(1 / math.sqrt(dim)))
    scores = alpha * q @ k.swapaxes(1, 2)
    below_maximum = scores.max(axis=-1, keepdims=True) - scores
    off = UNIT * ((dim + 2) * alpha * abs(q) @ abs(k).swapaxes(1, 2) + below_maximum)
    weights = np.exp(-below_maximum)
    weights /= weights.sum(axis=-1, keepdims=True)
    relative = np.expm1(2 * off.max(axis=-1, keepdims=True) + (16 + tokens + 2 + tokens + 2) * UNIT)
    return weights @ v, relative * (weights @ abs(v))


def compare(result: Any, expected: Any, bound: Any) -> tuple[float, float]:
    """The relative error of the whole, and the largest error of an element as a part of its bound."""
    difference = abs(result - expected)
    return float(np.linalg.norm(difference) / np.linalg.norm(expected)), float((difference / bound).max())


def median_seconds(call: Callable[[], object], synchronize: Callable[[], None], budget: float = 0.6) -> float:
    """Time of one call: the median of some runs, each long enough for the clock, after warming up."""

    def run(calls: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize()
        return (time.perf_counter() - start) / calls

    time.sleep(SPIN_SECONDS)
    run(1)
    once = run(1)
    calls = max(1, math.ceil(0.01 / once))
    runs = min(11, max(3, int(budget / (once * calls))))
    return statistics.median(run(calls) for _ in range(runs))


if __name__ == "__main__":
    sys.exit(main())
