"""The public header against everything that must say the same: the cffi declarations, the exported symbols, cuBLAS."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import c_header
from pyblas_sgemm import _cffi

PACKAGE = Path(_cffi.__file__).parent
SOURCE = Path(__file__).parents[1] / "native"
HEADER = (PACKAGE / "include" / "pyblas_sgemm.h").read_text()
DECLARED = c_header.functions(HEADER, "pyblas")
CONSTANTS = {name: value for enum in c_header.enums(HEADER).values() for name, value in enum.items()}
GEMMS = [
    "pyblasSgemm", "pyblasSgemmStridedBatched", "pyblasSgemmBatched", "pyblasGemmEx", "pyblasGemmStridedBatchedEx",
]  # fmt: skip


def test_the_parser_finds_every_function():
    assert len(DECLARED) == HEADER.count("\nPYBLAS_API ")
    assert DECLARED["pyblasSgemmBatched"].parameters[7] == ("const float*const[]", "Aarray")
    assert CONSTANTS["PYBLAS_COMPUTE_32F_FAST_TF32"] == 77


def test_the_installed_header_is_the_source():
    assert (SOURCE / "include" / "pyblas_sgemm.h").read_text() == HEADER


def test_cffi_declares_what_the_headers_declare():
    checked = c_header.functions((SOURCE / "python" / "checked.h").read_text(), "pyblas_checked")
    cdef = (SOURCE / "python" / "ffi.cdef.h").read_text()
    assert c_header.functions(cdef, "pyblas") == DECLARED | checked
    assert c_header.enums(cdef) == c_header.enums(HEADER)


def test_cffi_has_every_function_and_value():
    for name in DECLARED:
        assert callable(getattr(_cffi.lib, name)), name
    assert {name: getattr(_cffi.lib, name) for name in CONSTANTS} == CONSTANTS


def test_the_library_exports_exactly_what_the_header_declares():
    with (PACKAGE / "lib" / "libpyblas_sgemm.so").open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        exported = {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL"}
    assert exported == set(DECLARED)


def test_the_version_is_one_number():
    version = _cffi.ffi.new("int *")
    assert _cffi.lib.pyblasGetVersion(version) == 0
    major, minor, patch = map(int, metadata.version("pyblas-sgemm").split("."))
    assert version[0] == major * 10000 + minor * 100 + patch


def test_functions_and_values_are_those_of_cublas():
    assert c_header.differences(HEADER, *c_header.recorded()) == {}


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("row_major", ["", "RowMajor"])
def test_entries_with_64_bits_differ_in_their_sizes_only(name, row_major):
    narrow, wide = DECLARED[f"{name}{row_major}"], DECLARED[f"{name}{row_major}_64"]
    assert wide.returns == narrow.returns
    assert wide.parameters == tuple(("int64_t" if t == "int" else t, n) for t, n in narrow.parameters)


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("wide", ["", "_64"])
def test_row_major_entries_take_the_same_arguments(name, wide):
    assert DECLARED[f"{name}RowMajor{wide}"] == DECLARED[f"{name}{wide}"]


@pytest.mark.parametrize(
    ("compiler", "standard", "suffix"), [("cc", "c99", "c"), ("c++", "c++98", "cpp"), ("c++", "c++20", "cpp")]
)
def test_a_strict_client_compiles_and_links_every_function(tmp_path, compiler, standard, suffix):
    uses = "\n".join(f"    use((function){name});" for name in DECLARED)
    client = tmp_path / f"client.{suffix}"
    client.write_text(f"""
#include <pyblas_sgemm.h>
#include <pyblas_sgemm.h>

typedef void (*function)(void);
static int used = 0;
static void use(function f) {{ used += f != 0; }}

int main(void) {{
{uses}
    return used == {len(DECLARED)} ? 0 : 1;
}}
""")
    program = tmp_path / "client"
    lib = PACKAGE / "lib"
    # C++98 has neither long long nor <stdint.h>; both are there all the same.
    pedantic = ["-pedantic", "-Wno-long-long"] if standard == "c++98" else ["-pedantic"]
    strict = [f"-std={standard}", *pedantic, "-Wall", "-Wextra", "-Wno-cast-function-type", "-Werror"]
    with_library = [f"-I{PACKAGE / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}"]
    subprocess.run([compiler, *strict, *with_library, client, "-o", program, "-lpyblas_sgemm"], check=True)
    subprocess.run([program], check=True)


CUBLAS_STYLE = """
#define cublasSgemm cublasSgemm_v2
#define CUBLAS_CHECK(x) \\
  other(x);
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2, CUBLAS_OP_HERMITAN = 2, /* of C */ } cublasOperation_t;
CUBLASAPI cublasStatus_t CUBLASWINAPI cublasSgemm_v2(cublasHandle_t handle, int m, // rows
                                                     const float* alpha, /* host or device pointer */
                                                     float* const Carray[]);
CUBLASAPI const char* CUBLASWINAPI cublasGetStatusName(cublasStatus_t status);
"""


def test_the_parser_reads_the_style_of_cublas():
    found = c_header.functions(CUBLAS_STYLE, "cublas")
    assert found["cublasSgemm_v2"] == (
        "cublasStatus_t",
        (("cublasHandle_t", "handle"), ("int", "m"), ("const float*", "alpha"), ("float*const[]", "Carray")),
    )
    assert found["cublasGetStatusName"].returns == "const char*"
    assert c_header.enums(CUBLAS_STYLE)["cublasOperation_t"]["CUBLAS_OP_HERMITAN"] == 2
