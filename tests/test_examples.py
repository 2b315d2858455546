"""The C and C++ examples, built as a user would build them against the installed package, and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from pyblas_sgemm import _cffi

PACKAGE = Path(_cffi.__file__).parent
SOURCE = Path(__file__).parents[1] / "examples" / "c"
SAYS = {"covariance": "covariance of 48 variables", "attention": "attention of 96 tokens"}


@pytest.fixture
def examples(tmp_path):
    return Path(shutil.copytree(SOURCE, tmp_path / "examples"))


def run(*command: object, cwd: Path, **environment: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"} | environment
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} in {cwd}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_examples(folder: Path) -> None:
    for name, text in SAYS.items():
        assert text in run(folder / name, cwd=folder)


@pytest.mark.parametrize("way", ["pyblas_sgemm_DIR", "CMAKE_PREFIX_PATH"])
def test_cmake_finds_the_package(examples, way):
    place = {"pyblas_sgemm_DIR": PACKAGE / "lib" / "cmake" / "pyblas_sgemm", "CMAKE_PREFIX_PATH": PACKAGE.parent}
    run("cmake", "-S", ".", "-B", "build", f"-D{way}={place[way]}", "-DCMAKE_BUILD_TYPE=Release", cwd=examples)
    run("cmake", "--build", "build", cwd=examples)
    check_examples(examples / "build")


def test_cmake_refuses_a_version_that_is_not_there(examples):
    lists = examples / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace("pyblas_sgemm REQUIRED", "pyblas_sgemm 99.0 REQUIRED"))
    command = ["cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={PACKAGE.parent}"]
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "pyblas_sgemm" in done.stderr


def test_pkg_config_and_make(examples):
    run("make", cwd=examples, PKG_CONFIG_PATH=str(PACKAGE / "lib" / "pkgconfig"))
    check_examples(examples)


def test_the_package_may_be_moved(examples):
    moved = shutil.copytree(PACKAGE, examples / "elsewhere" / "pyblas_sgemm")
    run("make", cwd=examples, PKG_CONFIG_PATH=str(moved / "lib" / "pkgconfig"))
    loaded = re.search(r"libpyblas_sgemm\.so => (\S+)", run("ldd", examples / "covariance", cwd=examples))
    assert Path(loaded[1]).resolve() == moved / "lib" / "libpyblas_sgemm.so"
    check_examples(examples)


def test_errors_reach_the_user(examples):
    source = examples / "covariance.c"
    wrong = source.read_text().replace("variables, &zero, whole, variables)", "variables, &zero, whole, 1)")
    assert wrong != source.read_text()
    source.write_text(wrong)
    run("make", "covariance", cwd=examples, PKG_CONFIG_PATH=str(PACKAGE / "lib" / "pkgconfig"))
    done = subprocess.run([examples / "covariance"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "PYBLAS_STATUS_INVALID_VALUE" in done.stderr
    assert "(ldc) is 1, must be at least max(1, m) = 48" in done.stderr


README = (SOURCE.parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def test_the_readme_s_python_runs(prints):
    on_the_cpu = [block for block in blocks("python") if "cupy" not in block]
    assert len(on_the_cpu) == 3
    assert prints("\n".join(on_the_cpu)) == on_the_cpu[-1].rsplit("# ", 1)[1].strip()


@pytest.mark.gpu
def test_the_readme_s_python_runs_on_the_gpu(prints):
    on_both = "\n".join(blocks("python")[:2])
    assert "cupy" in on_both
    check = "print(bool(abs(cp.asnumpy(c) - cp.asnumpy(a) @ cp.asnumpy(b)).max() < 1e-3))"
    assert prints(f"{on_both}\n{check}") == "True"


def test_the_readme_s_c_program_runs(tmp_path):
    (program,) = blocks("c")
    (tmp_path / "main.c").write_text(program)
    commands = next(block for block in blocks("sh") if "pkg-config" in block)
    (tmp_path / "build").write_text(commands)
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    assert run("sh", "-e", "build", cwd=tmp_path, PATH=path) == "22 28\n49 64\n"
