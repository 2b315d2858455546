"""The machine code of the tensor-core kernels, without a GPU: they multiply with the instructions they are named for, and
keep nothing in local memory between them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from test_resources import BUILT, LIBRARY, cuobjdump, function_of, uses

# Of each function the instruction that multiplies, and from which architecture on.
MULTIPLIES = {
    "wgmma": ("HGMMA", "90a"),
    "wgmma_deep": ("HGMMA", "90a"),
    "wgmma_skinny": ("HGMMA", "90a"),
    "half_wgmma": ("HGMMA", "90a"),
    "wmma_tf32": ("HMMA.168", "80"),
    "mma_tf32": ("HMMA.168", "80"),
    "wgmma_tf32": ("HGMMA", "90a"),
    "mma_split": ("HMMA.16816", "80"),
    "mma_planes": ("HMMA.16816", "80"),
}
# Of wgmma_deep's twelve multiplies, so many wait for a descriptor where no operand lies along k.
MOVED = 1
# Words of the stack that some kernels touch in each turn of the loop that multiplies, by architecture and a pattern of
# their mangled names: the two widest tiles of two planes of A and B lack one register, and so do few others.
IN_A_TURN = {
    ("90a", r"wgmmaI\w*PlaneTileILNS_6SchemeE0ELi128ELi(192|256)E"): 1,
    ("80", r"\dwmma_tf32E"): 2,
    ("100", r"\dmma_splitE"): 5,
    ("80", r"\dmma_planesI"): 4,
    ("86", r"\dmma_planesI"): 4,
    ("90a", r"\dmma_planesILb0ELb1E"): 6,
    ("120", r"\dmma_planesI"): 3,
    ("120", r"\dwmma_tf32E"): 1,
}


class Instruction(NamedTuple):
    address: int
    opcode: str
    target: int  # that an operand names, -1 if none does


def nvdisasm_folder() -> str:
    """Of the nvidia-cuda-nvdisasm package, or of a toolkit."""
    for file in metadata.files("nvidia-cuda-nvdisasm") or []:
        if file.name == "nvdisasm":
            return str(Path(str(file.locate())).parent)
    found = shutil.which("nvdisasm")
    assert found, "neither the package nvidia-cuda-nvdisasm nor a toolkit's nvdisasm is here"
    return str(Path(found).parent)


def instructions(architecture: str, functions: list[str]) -> dict[str, list[Instruction]]:
    """Of each function in their order."""
    path = f"{nvdisasm_folder()}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [
        cuobjdump(),
        "--dump-sass",
        "--gpu-architecture",
        f"sm_{architecture}",
        "--function",
        ",".join(functions),
    ]
    done = subprocess.run(
        [*command, LIBRARY], capture_output=True, text=True, check=False, env=os.environ | {"PATH": path}
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Instruction]] = {}
    for part in re.split(r"Function : ", done.stdout)[1:]:
        lines = re.findall(r"/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)([^;]*);", part)
        found[part.split(None, 1)[0]] = [
            Instruction(int(address, 16), opcode, int(target[1], 16) if target else -1)
            for address, opcode, operands in lines
            for target in [re.search(r"\b0x([0-9a-f]+)$", operands.strip()) if opcode.startswith("BRA") else None]
        ]
    return found


def loops_round(code: list[Instruction], multiply: str) -> list[list[Instruction]]:
    """For each multiply the innermost loop that it is in, once each: what lies between a branch and where it leads back to."""
    back = [(one.target, one.address) for one in code if 0 <= one.target <= one.address]
    loops = set()
    for one in code:
        if one.opcode.startswith(multiply):
            around = [(end - start, start, end) for start, end in back if start <= one.address <= end]
            loops |= {min(around)[1:]} if around else set()
    return [[one for one in code if start <= one.address <= end] for start, end in sorted(loops)]


def _number(architecture: str) -> int:
    return int(architecture.rstrip("a"))


@pytest.mark.parametrize("function", MULTIPLIES)
@pytest.mark.parametrize("architecture", BUILT)
def test_tensor_kernels_multiply_on_tensor_cores(architecture, function):
    multiply, least = MULTIPLIES[function]
    if architecture != least if least == "90a" else _number(architecture) < _number(least):
        return  # nothing is left of it there
    names = [name for name in uses(architecture) if function_of(name) == function]
    assert names, f"the build has no {function}"
    code = instructions(architecture, names)
    assert set(code) == set(names)
    for name, all_of_it in code.items():
        assert any(one.opcode.startswith(multiply) for one in all_of_it), f"{name} has no {multiply}"
        loops = loops_round(all_of_it, multiply)
        assert loops, f"{name} multiplies in no loop"
        # What is computed for rows that planes cannot hold is a call behind the loop, and may use the stack.
        for loop in loops:
            local = [one.opcode for one in loop if one.opcode.startswith(("LDL", "STL"))]
            allowed = sum(
                count for (where, what), count in IN_A_TURN.items() if where == architecture and re.search(what, name)
            )
            assert len(local) <= allowed, f"{name} moves {len(local)} words through local memory in each turn"
        # An operand that the compiler has to fetch before each multiply would halve its rate.
        if multiply == "HGMMA":
            opcodes = " ".join(one.opcode for one in all_of_it)
            between = re.findall(r"HGMMA\S* (?:R2UR\S* )+HGMMA", opcodes)
            allowed = MOVED if "wgmma_deepILb0ELb0E" in name else 0
            assert len(between) <= allowed, f"{name} moves registers between multiplies {len(between)} times"
