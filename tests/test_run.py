"""The command `pyblas-sgemm run`: what it starts, how that ends, and what it reports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

COMMANDS = {
    "command": [str(Path(sysconfig.get_path("scripts"), "pyblas-sgemm")), "run"],
    "module": [sys.executable, "-m", "pyblas_sgemm", "run"],
}
REPORTS = {"bare": [], "reported": ["--report"]}
PROGRAM = """
import sys
import numpy as np
a = np.ones((100, 120), np.float32)
b = np.ones((120, 80), np.float32)
for _ in range(3):
    assert (a @ b == 120).all()
small = np.ones((4, 4), np.float32)
assert (small @ small == 4).all()
print(*sys.argv[1:])
"""


def environment(**more):
    return {name: value for name, value in os.environ.items() if not name.startswith("PYBLAS_SGEMM_")} | more


def run(*arguments, way="command", **more):
    command = [*COMMANDS[way], *map(str, arguments)]
    return subprocess.run(
        command, env=environment(**more), capture_output=True, text=True, timeout=120, check=False, cwd="/"
    )


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


@pytest.mark.parametrize("way", COMMANDS)
def test_a_python_file_with_its_own_options(program, way):
    done = run(program, "--report", "-x", "a b", way=way)
    assert (done.returncode, done.stdout, done.stderr) == (0, "--report -x a b\n", "")


def test_a_report(program):
    done = run("--report", program)
    assert (done.returncode, done.stdout) == (0, "\n")
    title, header, *rows = done.stderr.splitlines()
    assert re.fullmatch(r"pyblas-sgemm: 3 calls \(.* s\) taken, 1 call \(.* s\) declined, 1 process", title)
    assert header.split()[:3] == ["calls", "seconds", "GFLOP/s"]
    taken, declined = rows
    assert re.fullmatch(r" +3 .*sgemm\S* +100 x 80 x 120 NN +fp32", taken)
    assert re.fullmatch(r" +1 .*sgemm\S* +4 x 4 x 4 NN +declined: less work than PYBLAS_SGEMM_MIN_FLOPS", declined)


def test_verified(program):
    done = run("--verify", 2, "--min-flops", 0, "--compute", "fp32_pedantic", program)
    assert done.returncode == 0
    assert "4 calls" in done.stderr.splitlines()[0] and "0 calls" in done.stderr.splitlines()[0]
    assert " fp32_pedantic " in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("2 calls compared with float64. Worst error: ") and last.endswith(": within the bound.")


def test_children_are_in_the_report(program):
    shell = f"{sys.executable} {program} && {sys.executable} {program}"
    done = run("--report", "sh", "-c", shell)
    assert done.returncode == 0
    assert re.match(r"pyblas-sgemm: 6 calls .* taken, 2 calls .* declined, 2 processes", done.stderr)


def test_nothing_to_report():
    done = run("--report", "true")
    assert (done.returncode, done.stderr) == (0, "pyblas-sgemm: the program made no call that could be taken.\n")


@pytest.mark.parametrize("options", REPORTS.values(), ids=REPORTS)
def test_exit_status(options):
    assert run(*options, "sh", "-c", "exit 7").returncode == 7
    assert run(*options, "sh", "-c", "kill -KILL $$").returncode == -signal.SIGKILL
    assert run(*options, "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM


@pytest.mark.parametrize("options", REPORTS.values(), ids=REPORTS)
def test_programs_that_are_none(options, tmp_path):
    done = run(*options, "no-such-program")
    assert (done.returncode, done.stderr) == (127, "pyblas-sgemm: no-such-program is not to be found\n")
    (tmp_path / "text").write_text("no program")
    assert run(*options, tmp_path / "text").returncode == 126
    assert run(*options).returncode == 2


SIGNALLED = """
import signal, sys, time
def handler(number, frame):
    print("got", number, flush=True)
    sys.exit(30)
signal.signal({number}, handler)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("options", REPORTS.values(), ids=REPORTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_the_program(tmp_path, options, number):
    file = tmp_path / "signalled.py"
    file.write_text(SIGNALLED.format(number=int(number)))
    command = [*COMMANDS["command"], *options, str(file)]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as p:
        assert p.stdout.readline() == "ready\n"
        p.send_signal(number)
        assert p.stdout.read() == f"got {int(number)}\n"
        assert p.wait(30) == 30


@pytest.mark.parametrize("options", REPORTS.values(), ids=REPORTS)
def test_an_interrupt_by_the_terminal_comes_once(tmp_path, options):
    """From a pseudo-terminal, as Ctrl-C sends it: to all processes in the foreground."""
    file = tmp_path / "signalled.py"
    file.write_text(SIGNALLED.format(number=2).replace("sys.exit(30)", "time.sleep(0.5); sys.exit(30)"))
    child, terminal = os.forkpty()
    if child == 0:
        os.execve(COMMANDS["command"][0], [*COMMANDS["command"], *options, str(file)], environment())
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while b"got 2" not in said:
        said += os.read(terminal, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 30
    os.set_blocking(terminal, False)
    try:
        while more := os.read(terminal, 1000):
            said += more
    except OSError:  # closed by the other end
        pass
    os.close(terminal)
    assert said.count(b"got 2") == 1


def test_the_environment_is_kept_and_extended():
    """What is preloaded stays in front, a pipe's end kills as it does elsewhere, and only what is asked for is set."""
    done = run("sh", "-c", "echo $LD_PRELOAD; echo $OPENBLAS_THREAD_TIMEOUT$PYBLAS_SGEMM_DEVICE; kill -PIPE $$",
               LD_PRELOAD="libm.so.6")  # fmt: skip
    preloaded, others = done.stdout.splitlines()
    assert [Path(name).name for name in preloaded.split()][:1] == ["libm.so.6"]
    assert "libpyblas_blas_preload.so" in preloaded and "libpyblas_cublas_preload.so" in preloaded
    assert (others, done.returncode) == ("20", -signal.SIGPIPE)
    done = run("--device", "cpu", "sh", "-c", "echo $OPENBLAS_THREAD_TIMEOUT $PYBLAS_SGEMM_DEVICE",
               OPENBLAS_THREAD_TIMEOUT="7")  # fmt: skip
    assert done.stdout == "7 cpu\n"
