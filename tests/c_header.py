"""Reads functions and enums out of C headers. Run as a program, it compares ours with a real cuBLAS header."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parent / "data" / "cublas_abi.json"

# Ours beside cuBLAS's. The names that cuBLAS's users write are macros for the _v2 symbols.
TWINS = {
    "pyblasCreate": "cublasCreate_v2",
    "pyblasDestroy": "cublasDestroy_v2",
    "pyblasSetStream": "cublasSetStream_v2",
    "pyblasGetStream": "cublasGetStream_v2",
    "pyblasSetPointerMode": "cublasSetPointerMode_v2",
    "pyblasGetPointerMode": "cublasGetPointerMode_v2",
    "pyblasSetWorkspace": "cublasSetWorkspace_v2",
    "pyblasGetStatusName": "cublasGetStatusName",
    "pyblasSgemm": "cublasSgemm_v2",
    "pyblasSgemm_64": "cublasSgemm_v2_64",
    "pyblasSgemmStridedBatched": "cublasSgemmStridedBatched",
    "pyblasSgemmStridedBatched_64": "cublasSgemmStridedBatched_64",
    "pyblasSgemmBatched": "cublasSgemmBatched",
    "pyblasSgemmBatched_64": "cublasSgemmBatched_64",
    "pyblasGemmEx": "cublasGemmEx",
    "pyblasGemmEx_64": "cublasGemmEx_64",
    "pyblasGemmStridedBatchedEx": "cublasGemmStridedBatchedEx",
    "pyblasGemmStridedBatchedEx_64": "cublasGemmStridedBatchedEx_64",
}
HEADERS = ("cublas_v2.h", "cublas_api.h", "cublasLt.h", "library_types.h")
ENUMS = {
    "pyblasStatus_t": "cublasStatus_t",
    "pyblasOperation_t": "cublasOperation_t",
    "pyblasPointerMode_t": "cublasPointerMode_t",
    "pyblasComputeType_t": "cublasComputeType_t",
    "pyblasDataType_t": "cudaDataType",
    "pyblasGemmAlgo_t": "cublasGemmAlgo_t",
}
OUR_TYPES = {"cublas": "pyblas", "cudaStream_t": "pyblasStream_t", "cudaDataType": "pyblasDataType_t"}


class Function(NamedTuple):
    returns: str
    parameters: tuple[tuple[str, str], ...]  # type and name

    @property
    def types(self) -> tuple[str, ...]:
        return (self.returns, *(kind for kind, _ in self.parameters))


def bare(text: str) -> str:
    """Without comments, preprocessor lines and macros that say nothing about a type."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\b(PYBLAS_API|CUBLASAPI|CUBLASWINAPI|CUDARTAPI|extern)\b", " ", text)


def parameter(text: str) -> tuple[str, str]:
    """("const float*const[]", "Aarray") for "const float *const Aarray[]"."""
    found = re.fullmatch(r"(.*?)(\w+)\s*(\[\])?", text.strip(), flags=re.DOTALL)
    assert found, f"no parameter: {text}"
    return plain(found[1]) + (found[3] or ""), found[2]


def plain(kind: str) -> str:
    return re.sub(r"\s*\*\s*", "*", " ".join(kind.split()))


def functions(text: str, prefix: str) -> dict[str, Function]:
    pattern = rf"([\w \t\n*]+?)\b({prefix}\w+)\s*\(([^(){{}};]*)\)\s*;"
    found = {}
    for returns, name, inside in re.findall(pattern, bare(text)):
        if plain(returns) in ("", "return"):  # a call in the body of an inline function
            continue
        parameters = [] if inside.strip() in ("", "void") else inside.split(",")
        found[name] = Function(plain(returns), tuple(parameter(text) for text in parameters))
    return found


def enums(text: str) -> dict[str, dict[str, int]]:
    """Constants of each named enum. Each has a value of its own, made of numbers and earlier ones, or follows the one
    before."""
    found = {}
    known: dict[str, int] = {}
    for inside, name in re.findall(r"typedef\s+enum\s*\w*\s*\{([^}]*)\}\s*(\w+)\s*;", bare(text)):
        constants: dict[str, int] = {}
        last = -1
        for item in filter(None, (item.strip() for item in inside.split(","))):
            constant, _, value = (part.strip() for part in item.partition("="))
            last = eval(value, {"__builtins__": {}}, known) if value else last + 1
            constants[constant] = known[constant] = last
        found[name] = constants
    return found


def ours_for(kind: str) -> str:
    for theirs, ours in OUR_TYPES.items():
        kind = kind.replace(theirs, ours)
    return kind


def recorded() -> tuple[dict[str, Function], dict[str, dict[str, int]]]:
    table = json.loads(DATA.read_text())
    declared = {
        name: Function(plain(entry["returns"]), tuple(parameter(text) for text in entry["parameters"]))
        for name, entry in table["functions"].items()
    }
    return declared, table["enums"]


def differences(
    header: str, their_functions: dict[str, Function], their_enums: dict[str, dict[str, int]]
) -> dict[str, str]:
    """What in our header is not cuBLAS's with another prefix, by our name."""
    our_functions, our_enums = functions(header, "pyblas"), enums(header)
    found = {}
    for name, twin in TWINS.items():
        expected = tuple(map(ours_for, their_functions[twin].types))
        if our_functions[name].types != expected:
            found[name] = f"{our_functions[name].types} is not {expected} of {twin}"
        if "emm" in name:
            our_names = [name for _, name in our_functions[name].parameters]
            their_names = [name for _, name in their_functions[twin].parameters]
            if our_names != their_names:
                found[name] = f"{our_names} are not {their_names} of {twin}"
    for name, twin in ENUMS.items():
        for constant, value in our_enums[name].items():
            expected_value = their_enums[twin].get(constant.replace("PYBLAS_R_", "CUDA_R_").replace("PYBLAS", "CUBLAS"))
            if value != expected_value:
                found[constant] = f"{value} is not {expected_value} of {twin}"
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python tests/c_header.py <folder of cublas_v2.h>", file=sys.stderr)
        return 2
    real = "\n".join((Path(arguments[0]) / name).read_text() for name in HEADERS)
    ours = (Path(__file__).parents[1] / "native" / "include" / "pyblas_sgemm.h").read_text()
    real_functions, real_enums = functions(real, "cublas"), enums(real)
    wrong = differences(ours, real_functions, real_enums)
    kept_functions, kept_enums = recorded()
    for name, function in kept_functions.items():
        if real_functions.get(name) != function:
            wrong[f"recorded {name}"] = f"{function} is not {real_functions.get(name)}"
    for name, constants in kept_enums.items():
        for constant, value in constants.items():
            if real_enums.get(name, {}).get(constant) != value:
                wrong[f"recorded {constant}"] = f"{value} is not {real_enums.get(name, {}).get(constant)}"
    shim = Path(__file__).parents[1] / "native" / "shim"
    linked = functions((shim / "cublas_abi.h").read_text(), "cublas").keys()
    linked |= set(re.findall(r"ABSENT\((\w+)\)", (shim / "cublas_absent.inc").read_text()))
    for name, function in functions((Path(arguments[0]) / "cublas_api.h").read_text(), "cublas").items():
        if function.returns == "cublasStatus_t" and name not in linked:
            wrong[name] = "not a name of libpyblas_cublas"
    for name, text in wrong.items():
        print(f"{name}: {text}")
    print(f"{len(TWINS)} functions and {len(ENUMS)} enums compared with {arguments[0]}, {len(wrong)} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
