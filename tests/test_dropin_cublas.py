"""The shims for cuBLAS without a GPU: what is passed on arrives as it was, and what is taken is right.

cuBLAS is a fake that records what reaches it, and GPUs are simulated by the CPU engine (tests/native/shim).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import c_header
from pyblas_sgemm import _cffi

PACKAGE = Path(_cffi.__file__).parent
PRELOAD = PACKAGE / "lib" / "libpyblas_cublas_preload.so"
ALONE = PACKAGE / "lib" / "libpyblas_cublas.so"
SOURCE = Path(__file__).parents[1] / "native" / "shim"
HERE = Path(__file__).parent / "native" / "shim"
FUNCTIONS, ENUMS = c_header.recorded()
DECLARED = c_header.functions((SOURCE / "cublas_abi.h").read_text(), "cublas")
PRODUCTS = [
    f"cublas{name}{wide}"
    for name in ("Sgemm_v2", "SgemmStridedBatched", "SgemmBatched", "SgemmEx", "GemmEx", "GemmStridedBatchedEx",
                 "GemmBatchedEx", "Sgemv_v2")
    for wide in ("", "_64")
]  # fmt: skip
HANDLES = [
    f"cublas{name}"
    for name in ("Create_v2", "Destroy_v2", "SetStream_v2", "GetStream_v2", "SetPointerMode_v2", "GetPointerMode_v2",
                 "SetMathMode", "GetMathMode", "SetAtomicsMode", "GetAtomicsMode", "SetSmCountTarget",
                 "GetSmCountTarget", "SetWorkspace_v2", "GetVersion_v2", "GetProperty", "GetCudartVersion",
                 "GetStatusName", "GetStatusString")
]  # fmt: skip
COPIES = [
    f"cublas{way}{what}{when}{wide}"
    for way in ("Set", "Get")
    for what in ("Vector", "Matrix")
    for when in ("", "Async")
    for wide in ("", "_64")
]
ABSENT = re.findall(r"^ABSENT\((\w+)\)$", (SOURCE / "cublas_absent.inc").read_text(), flags=re.MULTILINE)
PASSED_ON = 16  # what the fake answers


# ---- the interface -----------------------------------------------------------------------------------------------------


def exported(library: Path) -> set[str]:
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL"}


def test_the_libraries_export_what_they_stand_for():
    assert exported(PRELOAD) == {*PRODUCTS, "cublasLtMatmul", "cublasDestroy_v2", "cublasLtDestroy", "dlsym"}
    assert exported(ALONE) == {*PRODUCTS, *HANDLES, *COPIES, *ABSENT}
    assert len(ABSENT) == len(set(ABSENT)) and not {*PRODUCTS, *HANDLES, *COPIES} & {*ABSENT}


def test_declarations_are_those_of_cublas():
    for name, function in DECLARED.items():
        if name != "cublasLtDestroy":  # not in the record
            assert function == FUNCTIONS[name], name
    for name, constants in c_header.enums((SOURCE / "cublas_abi.h").read_text()).items():
        if name != "libraryPropertyType":
            assert constants.items() <= ENUMS[name].items(), name


# ---- building ----------------------------------------------------------------------------------------------------------


def compiled(output: Path, *sources: Path, options: list[object]) -> Path:
    command = ["c++", "-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", f"-I{SOURCE}", f"-I{PACKAGE / 'include'}",
               *sources, "-o", output, *options]  # fmt: skip
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


def product_definition(name: str) -> str:
    function = FUNCTIONS[name]
    parameters = ", ".join(f"{kind.removesuffix('[]')} {parameter}{'[]' * kind.endswith('[]')}"
                           for kind, parameter in function.parameters)  # fmt: skip
    return f'{function.returns} {name}({parameters}) {{ return note("{name}", {", ".join(p for _, p in function.parameters)}); }}\n'


def product_call(name: str) -> str:
    """With arguments that are all different, and 64-bit ones beyond 32 bits."""
    arguments = []
    for number, (kind, parameter) in enumerate(FUNCTIONS[name].parameters, 1):
        if kind == "cublasHandle_t":
            value = "handle"
        elif "*" in kind:
            value = f"pointer<{kind.removesuffix('[]') + '*' * kind.endswith('[]')}>(0x1000 + {16 * number})"
        elif kind == "int":
            value = str(1000 + number)
        elif kind in ("int64_t", "long long int"):
            value = f"0x1234500000 + {number}"
        else:
            value = f"static_cast<{kind}>({77 if parameter == 'computeType' else number % 2})"
        arguments.append(value)
    return f'std::printf("{name} %d\\n", FUNCTION({name})({", ".join(arguments)}));\n'


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the fakes and the programs."""
    folder = tmp_path_factory.mktemp("shim")
    for lt in ("", "Lt"):
        names = ["cublasLtMatmul"] if lt else PRODUCTS
        (folder / "products.inc").write_text("".join(map(product_definition, names)))
        compiled(folder / f"libcublas{lt}.so.12", HERE / "fake_cublas.cpp",
                 options=["-shared", f"-I{folder}", f"-Wl,-soname,libcublas{lt}.so.12", *["-DFAKE_LT"] * bool(lt)])  # fmt: skip
    (folder / "calls.inc").write_text("".join(map(product_call, PRODUCTS)))
    (folder / "libcublas.so.11").write_bytes((folder / "libcublas.so.12").read_bytes())
    compiled(folder / "libcuda.so.1", HERE / "simulated_cuda.cpp", options=["-shared", "-Wl,-soname,libcuda.so.1"])
    (folder / "simulated").mkdir()
    compiled(folder / "simulated" / "libpyblas_sgemm.so", HERE / "simulated_gpu.cpp",
             options=["-shared", "-Wl,-soname,libpyblas_sgemm.so", "-ldl"])  # fmt: skip
    found_here = [f"-I{folder}", f"-Wl,-rpath,{folder}", "-ldl", "-pthread"]
    cublas, lt, cuda = (folder / f"lib{name}" for name in ("cublas.so.12", "cublasLt.so.12", "cuda.so.1"))
    compiled(folder / "opens", HERE / "calls.cpp", options=found_here)
    compiled(folder / "linked", HERE / "calls.cpp", options=["-DLINKED", cublas, *found_here])
    compiled(folder / "plugin.so", HERE / "calls.cpp", options=["-shared", "-DLINKED", "-DPLUGIN", cublas, *found_here])
    compiled(folder / "host", HERE / "host.cpp", options=["-ldl"])
    compiled(folder / "products", HERE / "products.cpp", options=[cublas, lt, cuda, *found_here])
    compiled(folder / "standalone", HERE / "products.cpp",
             options=["-DSTANDALONE", f"-L{ALONE.parent}", "-lpyblas_cublas", cuda, *found_here,
                      f"-Wl,-rpath,{ALONE.parent}", f"-Wl,-rpath-link,{ALONE.parent}"])  # fmt: skip
    return folder


class Ran:
    """A finished program: its output, what reached the fake, what our handles were told, and the record."""

    def __init__(self, folder: Path, command: list[object], preloaded: bool, **environment: object) -> None:
        log, told, report = (folder / name for name in ("log", "told", "report"))
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYBLAS_SGEMM_")}
        variables |= {"FAKE_CUBLAS_LOG": str(log), "SIMULATED_LOG": str(told), "PYBLAS_SGEMM_REPORT": str(report)}
        variables |= {name: str(value) for name, value in environment.items()}
        if preloaded:
            variables["LD_PRELOAD"] = str(PRELOAD)
        done = subprocess.run(list(map(str, command)), env=variables, capture_output=True, text=True, timeout=60,
                              check=False)  # fmt: skip
        assert done.returncode == 0 and done.stderr == "", f"{done.returncode}\n{done.stdout}{done.stderr}"
        self.output = done.stdout
        self.reached, self.told, lines = (file.read_text().splitlines() if file.exists() else []
                                          for file in (log, told, report))  # fmt: skip
        self.record = [json.loads(line) for line in lines]


@pytest.fixture
def run(tmp_path):
    def run(*command: object, preloaded: bool = True, **environment: object) -> Ran:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return Ran(folder, list(command), preloaded, **environment)

    return run


@pytest.fixture
def simulated(built, run):
    """Runs a case of products.cpp on simulated GPUs."""
    environment = {"LD_LIBRARY_PATH": built / "simulated", "REAL_PYBLAS": PACKAGE / "lib" / "libpyblas_sgemm.so"}

    def simulated(case: str, program: str = "products", **more: object) -> Ran:
        return run(built / program, case, preloaded=program == "products", **environment, **more)

    return simulated


# ---- what is passed on -------------------------------------------------------------------------------------------------

WAYS = {
    "linked": lambda folder: [folder / "linked"],
    "in a plugin's scope": lambda folder: [folder / "host", folder / "plugin.so"],
    "opened by the program": lambda folder: [folder / "opens", folder / "libcublas.so.12"],
    "cuBLAS 11": lambda folder: [folder / "opens", folder / "libcublas.so.11"],
}


def arguments_alone(lines: list[str]) -> list[str]:
    """Without the handle, which is another address in each run."""
    return [re.sub(r"^(\S+) \S+", r"\1", line) for line in lines]


@pytest.mark.parametrize("way", WAYS)
def test_without_a_gpu_everything_reaches_cublas_as_it_was(built, run, way):
    alone, ours = (run(*WAYS[way](built), preloaded=preloaded) for preloaded in (False, True))
    assert ours.output == alone.output == "".join(f"{name} {PASSED_ON}\n" for name in PRODUCTS)
    assert arguments_alone(ours.reached) == arguments_alone(alone.reached)
    assert [line.split()[0] for line in ours.reached] == [*PRODUCTS, "cublasDestroy_v2"]
    assert alone.record == []
    assert Counter(line["entry"] for line in ours.record) == Counter(PRODUCTS)
    for line in ours.record:
        assert not line["taken"] and line["reason"], line
        assert line["count"] == 1


def test_no_record_without_being_asked(built, run):
    assert run(built / "linked", PYBLAS_SGEMM_REPORT="").record == []


def test_each_cublas_in_a_process_gets_its_own_calls(built, tmp_path):
    """Two plugins with a cuBLAS each, in scopes of their own."""
    program = f"""
import ctypes
for version in (11, 12):
    cublas = ctypes.CDLL("{built}/libcublas.so.%d" % version)
    handle = ctypes.c_void_p()
    assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0
    stream = ctypes.c_void_p(version)
    assert cublas.cublasSetStream_v2(handle, stream) == 0
    assert cublas.cublasSgemm_v2(handle, *range(13)) == {PASSED_ON}
    assert cublas.cublasDestroy_v2(handle) == 0
"""
    environment = os.environ | {"LD_PRELOAD": str(PRELOAD), "FAKE_CUBLAS_LOG": str(tmp_path / "log")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len((tmp_path / "log").read_text().splitlines()) == 4


def test_dlsym_still_knows_who_asks(tmp_path):
    """RTLD_NEXT is meant from where the program's code lies, not from the shim's."""
    source = tmp_path / "next.cpp"
    source.write_text("""
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
extern "C" __attribute__((visibility("default"))) int atoi(const char *text) noexcept {
    const auto next = reinterpret_cast<int (*)(const char *)>(dlsym(RTLD_NEXT, "atoi"));
    return next == atoi ? -1 : next(text) + 1;
}
int main() {
    std::printf("%d %d\\n", atoi("41"), dlsym(RTLD_DEFAULT, "cublasSgemm_v2") != nullptr);
}
""")
    program = compiled(tmp_path / "next", source, options=["-rdynamic", "-fno-builtin", "-ldl"])
    done = subprocess.run([program], env=os.environ | {"LD_PRELOAD": str(PRELOAD)}, capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert done.stdout == "42 1\n"


# ---- what is taken -----------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("program", ["products", "standalone"])


def checked(ran: Ran) -> list[dict]:
    """The record, if all of it was taken and every call was checked and right."""
    for line in ran.record:
        assert line["taken"], line
        assert (line["checked"], line["skipped"]) == (line["count"], 0), line
        assert line["worst_ratio"] < 1, line
        assert line["timed"] == line["count"] and line["device_seconds"] > 0, line
    assert not [line for line in ran.reached if not line.startswith("cublasDestroy")]
    return ran.record


@BOTH
@pytest.mark.parametrize("case", ["single", "batches", "vectors"])
def test_products_are_right_and_the_record_agrees(simulated, program, case):
    record = checked(simulated(case, program, PYBLAS_SGEMM_VERIFY=1, PYBLAS_SGEMM_TAKE_ALL=1))
    assert sum(line["count"] for line in record) == {"single": 72, "batches": 4, "vectors": 24}[case]
    shapes = {(line["m"], line["n"], line["k"], line["batch"]) for line in record}
    assert shapes == {"single": {(37, 29, 41, 1)}, "batches": {(17, 19, 23, 5)}, "vectors": {(1, 31, 43, 1), (1, 43, 31, 1)}}[case]  # fmt: skip


def test_products_by_descriptors(simulated):
    ran = simulated("lt", PYBLAS_SGEMM_VERIFY=1)
    taken = [line for line in ran.record if line["taken"]]
    assert sum(line["count"] for line in taken) == sum(line["checked"] for line in taken) == 4
    assert max(line["worst_ratio"] for line in taken) < 1
    assert {line["reason"] for line in ran.record if not line["taken"]} == {
        "an unusual bias", "C and D are two matrices", "types", "an epilogue", "vectors of scalars",
        "compute type or math mode", "scaled matrices", "a transposed or triangular C", "an unusual layout",
        "layouts that do not fit",
    }  # fmt: skip
    assert len(ran.reached) == 12  # with the one that destroys the handle


def test_what_a_working_gpu_is_not_asked_reaches_cublas_as_it_was(simulated):
    """C matrices that meet among it, which the linked library takes one after another."""
    ran = simulated("left_to_cublas")
    assert ran.reached[:-1] == ran.output.splitlines() and len(ran.reached) == 10
    assert not any(line["taken"] for line in ran.record)
    counts = Counter()
    for line in ran.record:
        counts[line["reason"].partition(" that cuBLAS is faster in")[0]] += line["count"]
    assert counts == {
        "arguments that the library refuses": 6, "types": 1, "compute type or math mode": 1,
        "a vector, where cuBLAS is faster": 1,
    }  # fmt: skip


def test_c_matrices_that_meet_in_the_linked_library(simulated):
    assert simulated("overlapping", "standalone", PYBLAS_SGEMM_VERIFY=1).record


@BOTH
def test_the_handle_is_told_what_the_program_says(simulated, program):
    told = [line.split()[1:] for line in simulated("settings", program, PYBLAS_SGEMM_REPORT="").told]
    assert told[0] == ["create", "0"] and told[-1] == ["destroy", "0"]
    names = [" ".join(line) if line[0] in ("pointer", "mode") else line[0] for line in told[1:-1]]
    assert names == [
        "sgemm", "stream", "sgemm", "sgemm", "pointer 1", "sgemm", "pointer 0", "mode 4d", "sgemm", "mode 45", "sgemm",
        "mode 44", "sgemm",
    ]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("asked", "mode"), [("fp32_pedantic", "fp32_pedantic"), ("", "fp32")])
def test_the_environment_sets_the_mode_of_programs_that_ask_for_none(simulated, program, asked, mode):
    record = simulated("settings", program, PYBLAS_SGEMM_COMPUTE=asked).record
    counts = Counter()
    for line in record:
        counts[line["compute"]] += line["count"]
    assert counts == ({"fp32": 5, "tf32": 1, "fp32_pedantic": 1} if mode == "fp32" else {"tf32": 1, mode: 6})


def test_little_work_may_be_left_to_cublas(simulated, built, run):
    work = 2 * 20 * 30 * 40
    assert simulated("settings", PYBLAS_SGEMM_MIN_FLOPS=work).record[0]["taken"]
    environment = {"LD_LIBRARY_PATH": built / "simulated", "REAL_PYBLAS": PACKAGE / "lib" / "libpyblas_sgemm.so"}
    ran = run(built / "linked", PYBLAS_SGEMM_MIN_FLOPS=1e99, PYBLAS_SGEMM_TAKE_ALL=1, **environment)
    assert {line["reason"] for line in ran.record if line["type"] == "float32"} == {
        "less work than PYBLAS_SGEMM_MIN_FLOPS"
    }


def test_what_cublas_does_better_is_left_to_it_unless_all_is_asked_for(simulated):
    assert {line["reason"] for line in simulated("half").record} == {"types that cuBLAS is faster in"}
    assert len(checked(simulated("half", PYBLAS_SGEMM_TAKE_ALL=1, PYBLAS_SGEMM_VERIFY=1))) == 4
    assert checked(simulated("half", "standalone", PYBLAS_SGEMM_VERIFY=1))


@BOTH
def test_a_captured_call_is_neither_timed_nor_checked(simulated, program):
    (line,) = simulated("capture", program, PYBLAS_SGEMM_VERIFY=1).record
    assert line["taken"]
    assert (line["count"], line["checked"], line["skipped"], line["timed"]) == (1, 0, 1, 0)


def test_a_handle_of_ours_for_each_device_until_cublas_destroys_its_own(simulated):
    told = [line.split()[:2] for line in simulated("devices").told]
    assert told == [
        ["0", "create"], ["0", "sgemm"], ["3", "create"], ["3", "sgemm"],  # one cuBLAS handle
        ["3", "create"], ["3", "sgemm"], ["3", "destroy"],  # another
        ["0", "destroy"], ["3", "destroy"],
    ]  # fmt: skip


@BOTH
def test_threads(simulated, program):
    ran = simulated("threads", program, PYBLAS_SGEMM_VERIFY=7)
    assert sum(line["count"] for line in ran.record) == 8 * 20 * 2
    created, destroyed = (sum(word in line for line in ran.told) for word in (" create ", " destroy "))
    assert created == destroyed


@BOTH
def test_a_forked_child_has_a_record_of_its_own(simulated, program):
    record = simulated("fork", program).record
    assert sorted(line["count"] for line in record) == [1, 2]
    assert len({line["pid"] for line in record}) == 2


# ---- the library that is linked ----------------------------------------------------------------------------------------


def test_without_a_gpu_there_is_no_handle(built, run):
    assert run(built / "standalone", "single", preloaded=False).output == "Create: 1\n"


def test_copies_of_the_linked_library(simulated):
    simulated("copies", "standalone")


def test_the_rest_of_the_linked_library(tmp_path, built):
    source = tmp_path / "rest.cpp"
    source.write_text("""
#include <cstdio>
#include "cublas_abi.h"
extern "C" cublasStatus_t cublasDgemm_v2(cublasHandle_t, int, int, int, int, int, const double *, const double *, int,
                                         const double *, int, const double *, double *, int);
int main() {
    int major = 0, minor = 0, patch = 0, version = 0;
    if (cublasGetProperty(MAJOR_VERSION, &major) || cublasGetProperty(MINOR_VERSION, &minor) ||
        cublasGetProperty(PATCH_LEVEL, &patch))
        return 1;
    std::printf("%d.%d.%d %s %s\\n", major, minor, patch, cublasGetStatusName(CUBLAS_STATUS_INVALID_VALUE),
                cublasGetStatusString(CUBLAS_STATUS_SUCCESS));
    std::printf("%d %d %d\\n", cublasGetVersion_v2(nullptr, &version), cublasDestroy_v2(nullptr),
                cublasSgemm_v2(nullptr, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, nullptr, nullptr, 1, nullptr, 1, nullptr,
                               nullptr, 1));
    cublasHandle_t handle = nullptr;
    if (cublasCreate_v2(&handle))
        return 1;
    float c = 7;
    const float one = 1;
    const auto ex = [&](cudaDataType type, cublasComputeType_t compute) {
        return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, &one, type, 1, &one, type, 1, &one, &c, type,
                            1, compute, CUBLAS_GEMM_DEFAULT);
    };
    int count = -1;
    const int got = cublasGetVersion_v2(handle, &version);
    std::printf("%d %d\\n", got, version);
    std::printf("%d %d %d\\n", ex(CUDA_R_32F, CUBLAS_COMPUTE_32F), ex(static_cast<cudaDataType>(1), CUBLAS_COMPUTE_64F),
                ex(CUDA_R_32F, CUBLAS_COMPUTE_32F_EMULATED_16BFX9));
    std::printf("%g\\n", c);
    const int set = cublasSetSmCountTarget(handle, 5), read = cublasGetSmCountTarget(handle, &count);
    std::printf("%d %d %d\\n", set, read, count);
    std::printf("%d %d\\n", cublasSetWorkspace_v2(handle, nullptr, 0),
                cublasSetWorkspace_v2(handle, reinterpret_cast<void *>(8), 256));
    std::printf("%d\\n", cublasSetPointerMode_v2(handle, static_cast<cublasPointerMode_t>(7)));
    std::printf("%d\\n", cublasDgemm_v2(handle, 0, 0, 1, 1, 1, nullptr, nullptr, 1, nullptr, 1, nullptr, nullptr, 1));
    return cublasDestroy_v2(handle);
}
""")
    program = compiled(tmp_path / "rest", source,
                       options=[f"-L{ALONE.parent}", "-lpyblas_cublas", f"-Wl,-rpath,{ALONE.parent}",
                                f"-Wl,-rpath-link,{ALONE.parent}"])  # fmt: skip
    environment = {"LD_LIBRARY_PATH": str(built / "simulated"), "REAL_PYBLAS": str(PACKAGE / "lib" / "libpyblas_sgemm.so")}  # fmt: skip
    done = subprocess.run([program], env=os.environ | environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "13.0.2 CUBLAS_STATUS_INVALID_VALUE success",
        "1 1 1",
        "0 130002",
        "0 15 0",
        "9",
        "0 0 5",
        "0 7",
        "7",
        "15",
    ]
