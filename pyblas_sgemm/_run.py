"""The command `pyblas-sgemm run`: a program that knows nothing of this library runs on it, and says afterwards how."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._info import package_folder

SHIMS = ("libpyblas_cublas_preload.so", "libpyblas_blas_preload.so")
# OpenBLAS's threads spin for 0.1 s after each product of theirs, on the processors that ours then need. 2^20 cycles
# keep them awake from one call to the next.
OPENBLAS_SPIN = {"OPENBLAS_THREAD_TIMEOUT": "20"}
# Those that end a process or that programs wait for. What a terminal sends reaches the program without our help.
PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
FROM_KERNEL = 0x80  # si_code of a signal that no process sent
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as env(1) and shells answer
MOST_ROWS = 40


class RunError(Exception):
    """A sentence for the person at the terminal."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.status = status


def run(
    program: str,
    arguments: Sequence[str],
    *,
    report: bool = False,
    verify: int = 0,
    device: str | None = None,
    compute: str | None = None,
    min_flops: float | None = None,
) -> int:
    """The program's exit status. Without a report this process becomes the program."""
    try:
        command = command_line(program, arguments)
        environment = environment_of(device, compute, min_flops)
        if not (report or verify):
            return become(command, environment)
        with tempfile.TemporaryDirectory(prefix="pyblas-sgemm-") as folder:
            record = Path(folder, "record")
            environment |= {"PYBLAS_SGEMM_REPORT": str(record), "PYBLAS_SGEMM_VERIFY": str(verify)}
            status = watch(command, environment)
            print(table(read(record), bool(verify)), file=sys.stderr, flush=True)
    except RunError as error:
        print(f"pyblas-sgemm: {error}", file=sys.stderr)
        return error.status
    if status < 0:
        die_of(-status)
    return status


def command_line(program: str, arguments: Sequence[str]) -> list[str]:
    if program.endswith(".py") and Path(program).is_file():
        return [sys.executable, program, *arguments]
    if not shutil.which(program):
        exists = Path(program).exists() and os.sep in program
        raise RunError(
            f"{program} {'cannot be executed' if exists else 'is not to be found'}",
            NOT_EXECUTABLE if exists else NOT_FOUND,
        )
    return [program, *arguments]


def environment_of(device: str | None, compute: str | None, min_flops: float | None) -> dict[str, str]:
    """This process's environment with the shims preloaded behind what is preloaded already."""
    folder = package_folder() / "lib"
    shims = [str(folder / name) for name in SHIMS if (folder / name).is_file()]
    if not shims:
        raise RunError(f"there is nothing to preload in {folder}")
    if any(character in str(folder) for character in " :"):
        raise RunError(f"LD_PRELOAD cannot name files in {folder}: the path has a space or a colon in it")
    environment = OPENBLAS_SPIN | dict(os.environ)
    environment["LD_PRELOAD"] = " ".join([*environment.get("LD_PRELOAD", "").split(), *shims])
    settings = {"DEVICE": device, "COMPUTE": compute, "MIN_FLOPS": None if min_flops is None else repr(min_flops)}
    environment |= {f"PYBLAS_SGEMM_{name}": value for name, value in settings.items() if value is not None}
    return environment


# ---- the process ------------------------------------------------------------------------------------------------------


def become(command: list[str], environment: dict[str, str]) -> int:
    sys.stdout.flush()
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise RunError(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from None


def watch(command: list[str], environment: dict[str, str]) -> int:
    """Runs the program as a child that gets the signals sent to this process. A signal that ended it is negative."""
    waited_for = {*PASSED_ON, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        try:
            child = os.posix_spawnp(command[0], command, environment, setsigmask=mask, setsigdef=IGNORED_BY_PYTHON)
        except OSError as error:
            raise RunError(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from None
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            signalled = signal.sigwaitinfo(waited_for)
            # A terminal's signals go to the child too, because it is in the foreground with us.
            if signalled.si_signo != signal.SIGCHLD and signalled.si_code != FROM_KERNEL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signalled.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def die_of(number: int) -> None:
    """Ends this process as the program ended, but without a core file of its own."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# ---- the report -------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """Calls of one shape with one fate."""

    line: dict[str, Any]
    processes: set[int] = field(default_factory=set)
    count: int = 0
    seconds: float = 0.0
    checked: int = 0
    skipped: int = 0
    worst_error: float = 0.0
    worst_ratio: float = 0.0

    def add(self, line: dict[str, Any]) -> None:
        self.processes.add(line["pid"])
        self.count += line["count"]
        # Where the device was timed, that is what the call took; the host only queued it.
        timed = line["timed"]
        self.seconds += line["device_seconds"] / timed * line["count"] if timed else line["host_seconds"]
        self.checked += line["checked"]
        self.skipped += line["skipped"]
        self.worst_error = max(self.worst_error, line["worst_error"])
        self.worst_ratio = max(self.worst_ratio, line["worst_ratio"])

    @property
    def operations(self) -> float:
        return 2.0 * float(math.prod(self.line[name] for name in ("m", "n", "k", "batch"))) * self.count

    @property
    def work(self) -> str:
        line = self.line
        batch = f"{line['batch']} x " if line["batch"] != 1 else ""
        types = "" if line["type"] == line["c_type"] == "float32" else f" {line['type']}"
        return f"{batch}{line['m']} x {line['n']} x {line['k']} {line['transa']}{line['transb']}{types}"

    @property
    def fate(self) -> str:
        return self.line["compute"] if self.line["taken"] else f"declined: {self.line['reason']}"


def read(record: Path) -> list[Row]:
    """The rows of all processes, those that took longest first."""
    rows: dict[tuple[Any, ...], Row] = {}
    names = ("entry", "taken", "reason", "type", "c_type", "compute", "transa", "transb", "m", "n", "k", "batch")
    for text in record.read_text().splitlines() if record.is_file() else ():
        line = json.loads(text)
        rows.setdefault(tuple(line[name] for name in names), Row(line)).add(line)
    return sorted(rows.values(), key=lambda row: row.seconds, reverse=True)


def table(rows: Sequence[Row], verified: bool) -> str:
    taken = [row for row in rows if row.line["taken"]]
    declined = [row for row in rows if not row.line["taken"]]
    if not rows:
        return "pyblas-sgemm: the program made no call that could be taken."
    header = ["calls", "seconds", "GFLOP/s", "function", "m x n x k", "computed as"]
    if verified:
        header += ["checked", "error", "of bound"]
    lines = [header]
    for row in rows[:MOST_ROWS]:
        speed = f"{row.operations / row.seconds / 1e9:.1f}" if row.seconds else ""
        lines.append([str(row.count), f"{row.seconds:.6f}", speed, row.line["entry"], row.work, row.fate])
        if verified:
            checked = row.checked > 0
            lines[-1] += [
                str(row.checked) if row.line["taken"] else "",
                f"{row.worst_error:.1e}" if checked else "",
                f"{row.worst_ratio:.2g}" if checked else "",
            ]
    processes = len(set().union(*(row.processes for row in rows)))
    text = [f"pyblas-sgemm: {totals(taken)} taken, {totals(declined)} declined, {counted(processes, 'process')}"]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text += ["  ".join(map(str.rjust, line[:3], widths[:3])) + "  " + aligned(line[3:], widths[3:]) for line in lines]
    if len(rows) > MOST_ROWS:
        text.append(f"and {totals(rows[MOST_ROWS:])} of {counted(len(rows) - MOST_ROWS, 'other shape')}")
    if verified:
        text.append(verdict(taken))
    return "\n".join(text)


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(map(str.ljust, cells, widths)).rstrip()


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def totals(rows: Iterable[Row]) -> str:
    rows = list(rows)
    return f"{counted(sum(row.count for row in rows), 'call')} ({sum(row.seconds for row in rows):.3f} s)"


def verdict(taken: Sequence[Row]) -> str:
    checked = sum(row.checked for row in taken)
    skipped = sum(row.skipped for row in taken)
    left = f"; {counted(skipped, 'call')} could not be checked" if skipped else ""
    if not checked:
        return f"No call was compared with float64{left}."
    worst = max(taken, key=lambda row: row.worst_ratio)
    judged = "within" if worst.worst_ratio <= 1 else "BEYOND"
    return (
        f"{counted(checked, 'call')} compared with float64{left}. Worst error: {worst.worst_ratio:.2g} of its bound, in "
        f"{worst.line['entry']} {worst.work}: {judged} the bound."
    )
