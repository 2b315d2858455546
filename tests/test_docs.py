"""What the manual and the small examples show is run: sessions print what stands under them, and all that is public is
named with its signature."""

import doctest
import inspect
import re
import subprocess
import sys
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
    shown = dict(re.findall(r"^    (\w+)\((.*?)\)$", API.read_text(), flags=re.MULTILINE | re.DOTALL))
    functions = {name for name in pyblas_sgemm.__all__ if inspect.isfunction(getattr(pyblas_sgemm, name))}
    assert functions <= set(shown)
    for name in functions:
        parameters = inspect.signature(getattr(pyblas_sgemm, name)).parameters.values()
        told = ["*"] if any(p.kind is p.KEYWORD_ONLY for p in parameters) else []
        for p in parameters:
            default = "" if p.default is p.empty else f"={p.default!r}"
            told.append({p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name + default)
        assert sorted(re.split(r",\s*", shown[name])) == sorted(told), name


def test_attention_example(tmp_path):
    example = DOCS.parent / "examples" / "attention.py"
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "CPU: 512 tokens, 12 heads of 64" in done.stdout
