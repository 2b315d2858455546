"""What the compiler made of the GPU kernels, read from the installed library without a GPU: every kernel keeps to the
footprint that its row states, and none spills or keeps anything in local memory."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import pyblas_sgemm
from conftest import build_architectures
from pyblas_sgemm import _cffi

LIBRARY = Path(_cffi.__file__).parent / "lib" / "libpyblas_sgemm.so"
REGISTERS = 1 << 16  # of a multiprocessor
ROWS = [row for row in pyblas_sgemm.kernels() if row.engine == "gpu"]


class Use(NamedTuple):
    registers: int  # of a thread
    stack: int  # bytes of a thread; what is spilled lies there
    shared: int  # bytes of a block, without the dynamic part
    local: int  # bytes of a thread


@cache
def cuobjdump() -> str:
    """The program of the nvidia-cuda-cuobjdump package, or of a toolkit."""
    for file in importlib.metadata.files("nvidia-cuda-cuobjdump") or []:
        if file.name == "cuobjdump":
            return str(file.locate())
    found = shutil.which("cuobjdump")
    assert found, "neither the package nvidia-cuda-cuobjdump nor a toolkit's cuobjdump is here"
    return found


@cache
def report(*options: str) -> str:
    done = subprocess.run([cuobjdump(), *options, LIBRARY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def uses(architecture: str) -> dict[str, Use]:
    """Of each kernel, by its mangled name."""
    text = report("--dump-resource-usage", "--gpu-architecture", f"sm_{architecture}")
    pattern = r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
    # From SM 9.0 on the report counts the 1 KB that the system keeps in each block.
    system = 1024 if int(re.sub(r"\D", "", architecture)) >= 90 else 0
    return {
        name: Use(int(registers), int(stack), int(shared) - system, int(local))
        for name, registers, stack, shared, local in re.findall(pattern, text)
    }


def bounds() -> dict[str, tuple[int, int]]:
    """Threads of a block and what its __launch_bounds__ leave to each, in registers; by mangled name, from PTX. 255 where
    they name no number of blocks."""
    found = {}
    pattern = r"\.entry (\w+)\([^)]*\)\s*((?:\.\w+ [\d, ]+\s*)*)"
    for name, directives in re.findall(pattern, report("--dump-ptx")):
        numbers = {key: int(value) for key, value in re.findall(r"\.(\w+) (\d+)", directives)}
        if threads := numbers.get("maxntid"):
            blocks = numbers.get("minnctapersm")
            found[name] = (threads, min(255, REGISTERS // (threads * blocks) // 8 * 8) if blocks else 255)
    return found


def function_of(mangled: str) -> str:
    """The function's own name, without its namespaces."""
    function, rest = "", mangled.removeprefix("_ZN")
    while length := re.match(r"\d+", rest):
        end = length.end() + int(length[0])
        function, rest = rest[length.end() : end], rest[end:]
    return function


def family_of(mangled: str) -> str | None:
    """The family whose rows run a kernel, by the function's name; None where it serves several families."""
    function = function_of(mangled)
    fitting = [row.family for row in ROWS if f"{function}_".startswith(f"{row.family}_")]
    return max(fitting, key=len, default=None)


# Bytes of stack that a thread of these functions takes at most, by architecture. Their tiles need all registers that a
# thread can have, and a few values beside the multiply are spilled round it; wgmma, wgmma_deep and wgmma_skinny keep
# registers there while they call a function.
SPILLED = {
    "75": {"slices": 8},
    "80": {"mma_planes": 24, "slices": 8, "wmma_tf32": 8},
    "86": {"mma_planes": 24, "slices": 8, "warp_tile": 48},
    "90a": {
        "half_wgmma": 8, "mma_planes": 32, "pack_planes": 8, "slices": 8, "warp_tile": 8, "wgmma": 536, "wgmma_deep": 440,
        "wgmma_skinny": 240,
    },
    "100": {"mma_split": 24},
    "120": {"mma_planes": 32, "wmma_tf32": 8},
}  # fmt: skip
# Of these, what the library was built for; the release wheel has all.
BUILT = [name for name in SPILLED if name in build_architectures().split()]


@pytest.mark.parametrize("architecture", BUILT)
def test_nothing_is_spilled_or_kept_in_local_memory(architecture):
    kernels = uses(architecture)
    assert len(kernels) >= len({row.family for row in ROWS})
    assert not {name: use for name, use in kernels.items() if use.local}
    assert not {
        name: use for name, use in kernels.items() if use.stack > SPILLED[architecture].get(function_of(name), 0)
    }


@pytest.mark.parametrize("architecture", BUILT)
def test_kernels_keep_to_the_footprint_of_their_family(architecture):
    seen = set()
    for name, use in uses(architecture).items():
        if family := family_of(name):
            rows = [row for row in ROWS if row.family == family]
            assert use.registers <= max(row.registers for row in rows), name
            assert use.shared <= max(row.shared_bytes for row in rows), name
            seen.add(family)
    assert {"naive", "vectorized", "async_pipeline", "warp_tile"} <= seen


def test_launch_bounds_leave_no_more_than_a_row_states():
    """Where a block's bounds say more than its threads, they are the row's own."""
    for name, (threads, registers) in bounds().items():
        if family := family_of(name):
            stated = {(row.threads, row.registers) for row in ROWS if row.family == family}
            assert threads in {threads for threads, _ in stated}, name
            assert registers == 255 or (threads, registers) in stated, name


def test_blocks_fit_a_multiprocessor():
    for row in ROWS:
        assert row.threads * row.registers <= REGISTERS, row.name
        assert row.shared_bytes <= 227 * 1024, row.name
