"""What the manual and the small examples show is run: sessions print what stands under them, and all that is public is
named with its signature."""

import doctest
import inspect
import re
import subprocess
import sys
from inspect import Signature
from pathlib import Path

import pytest

import pyblas_sgemm

DOCS = Path(__file__).parents[1] / "docs"
API = DOCS / "python-api.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md") if ">>> " in path.read_text()))
def test_sessions_of_a_page(page):
    text = re.sub(r"^```.*$", "", (DOCS / page).read_text(), flags=re.MULTILINE)  # a fence would count as output
    session = doctest.DocTestParser().get_doctest(text, {}, page, str(DOCS / page), 0)
    report = []
    result = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(session, out=report.append)
    assert result.attempted
    assert not result.failed, "".join(report)


def test_the_page_names_all_that_is_public():
    text = API.read_text()
    missing = [name for name in pyblas_sgemm.__all__ if f"`{name}" not in text]
    assert not missing


def test_the_signatures_are_those_of_the_functions():
    text = API.read_text()
    for name in pyblas_sgemm.__all__:
        function = getattr(pyblas_sgemm, name)
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
            shown = re.search(rf"^    {name}(\(.*?\))$", text, flags=re.MULTILINE | re.DOTALL)
            assert shown, name
            assert re.sub(r"\s+", " ", shown[1]) == str(
                signature.replace(parameters=bare, return_annotation=Signature.empty)
            )


def test_the_kernel_that_is_shown_is_the_one_that_is_there():
    shown = re.findall(r"^```cpp\n(.*?)^```$", (DOCS / "adding_a_kernel.md").read_text(), re.DOTALL | re.MULTILINE)
    assert shown
    source = (DOCS.parent / "native" / "kernels" / "ladder" / "thread_tile_1d.cu").read_text()
    for code in shown:
        assert code in source


def test_links_lead_somewhere():
    for page in [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]:
        text = page.read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, title = target.partition("#")
            if file.startswith("http"):
                continue
            there = page.parent / file if file else page
            assert there.exists(), f"{page.name}: {target}"
            if title:
                titles = re.findall(r"^#+ (.*)$", there.read_text(), flags=re.MULTILINE)
                anchors = {re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-") for words in titles}
                assert title in anchors, f"{page.name}: {target}"


def test_files_that_are_named_exist():
    """Paths in backquotes, of the folders that the source has; strip.cu is the kernel that the reader writes."""
    for page in [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]:
        for path in re.findall(
            r"`((?:native|tests|bench|docs|examples|pyblas_sgemm|cmake)/[\w./]+)`", page.read_text()
        ):
            there = DOCS.parent / path
            assert there.name == "strip.cu" or there.exists() or list(there.parent.glob(f"{there.name}.*")), (
                f"{page.name}: {path}"
            )


def test_tables_are_those_of_the_measurements():
    command = [sys.executable, DOCS.parent / "bench" / "report.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_attention_example(tmp_path):
    example = DOCS.parent / "examples" / "attention.py"
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "CPU: 512 tokens, 12 heads of 64" in done.stdout
