"""The machine code of the tensor-core kernels, without a GPU: they multiply with the instructions they are named for, and
keep nothing in local memory between them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from test_resources import BUILT, LIBRARY, cuobjdump, function_of, uses

# Of each function the instruction that multiplies, and from which architecture on.
MULTIPLIES = {
    "wgmma": ("HGMMA", "90a"),
    "wgmma_skinny": ("HGMMA", "90a"),
    "half_wgmma": ("HGMMA", "90a"),
    "wmma_tf32": ("HMMA.168", "80"),
    "mma_tf32": ("HMMA.168", "80"),
    "wgmma_tf32": ("HGMMA", "90a"),
    "mma_split": ("HMMA.16816", "80"),
}
# What some kernels alone may do among their multiplies, by a pattern of their mangled names.
# Words read back from the stack: the widest tile of two planes of A and B lacks one register.
READ_BACK = {r"wgmmaI\w*PlaneTileILNS_6SchemeE0ELi128ELi256E": 1}
# Times an operand is fetched between two multiplies: once a step, in the tile of 32 columns.
FETCHED = {r"wgmma_skinnyI\w*Tile32E": 1}


def allowed(exceptions: dict[str, int], mangled: str) -> int:
    return sum(count for pattern, count in exceptions.items() if re.search(pattern, mangled))


def nvdisasm_folder() -> str:
    """Of the nvidia-cuda-nvdisasm package, or of a toolkit."""
    for file in metadata.files("nvidia-cuda-nvdisasm") or []:
        if file.name == "nvdisasm":
            return str(Path(str(file.locate())).parent)
    found = shutil.which("nvdisasm")
    assert found, "neither the package nvidia-cuda-nvdisasm nor a toolkit's nvdisasm is here"
    return str(Path(found).parent)


def instructions(architecture: str, functions: list[str]) -> dict[str, list[str]]:
    """Opcodes of each function in their order."""
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
    found: dict[str, list[str]] = {}
    for part in re.split(r"Function : ", done.stdout)[1:]:
        found[part.split(None, 1)[0]] = re.findall(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", part)
    return found


@pytest.mark.parametrize("function", MULTIPLIES)
@pytest.mark.parametrize("architecture", BUILT)
def test_tensor_kernels_multiply_on_tensor_cores(architecture, function):
    multiply, least = MULTIPLIES[function]
    if architecture != least and least == "90a":
        return  # nothing is left of it there
    names = [name for name in uses(architecture) if function_of(name) == function]
    assert names, f"the build has no {function}"
    code = instructions(architecture, names)
    assert set(code) == set(names)
    for name, opcodes in code.items():
        places = [place for place, opcode in enumerate(opcodes) if opcode.startswith(multiply)]
        assert places, f"{name} has no {multiply}"
        # What is computed for rows that planes cannot hold is a call behind the multiplies, and may use the stack.
        loop = opcodes[places[0] : places[-1] + 1]
        local = [opcode for opcode in loop if opcode.startswith(("LDL", "STL"))]
        assert len(local) <= allowed(READ_BACK, name), (
            f"{name} moves {len(local)} words through local memory between its multiplies"
        )
        # An operand that the compiler has to fetch before each multiply would halve its rate.
        if multiply == "HGMMA":
            between = re.findall(r"HGMMA\S* (?:R2UR\S* )+HGMMA", " ".join(opcodes))
            assert len(between) <= allowed(FETCHED, name), (
                f"{name} moves registers between multiplies {len(between)} times"
            )
