"""What the manual and the small examples show is run: sessions print what stands under them, and all that is public is
named with its signature."""

import csv
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
SOURCES = {".c", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".inc", ".py", ".cmake"}
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


def test_every_room_is_in_the_plan_of_the_house():
    """Folders with sources in them, and the modules of the package."""
    root, plan = DOCS.parent, (DOCS / "architecture.md").read_text()
    tops = ["bench", "cmake", "examples", "native", "pyblas_sgemm", "tests"]
    sources = [file for top in tops for file in (root / top).rglob("*.*") if file.suffix in SOURCES]
    named = set(re.findall(r"`([\w./]+)`", plan))
    for folder in {file.parent.relative_to(root) for file in sources}:
        room = folder if folder.parts[0] == "native" else Path(folder.parts[0])
        assert any(name == str(room) or name.startswith(f"{room}/") for name in named), room
    for module in (root / "pyblas_sgemm").glob("*.py"):
        assert module.name == "__init__.py" or f"`{module.name}`" in plan or f"/{module.name}`" in plan, module


def test_every_variable_that_is_read_is_told():
    read = set()
    for top in ("native", "pyblas_sgemm"):
        for file in (DOCS.parent / top).rglob("*.*"):
            if file.suffix in SOURCES:
                read |= set(re.findall(r"""(?:getenv\(|environ.*?)"PYBLAS_SGEMM_(\w+)\"""", file.read_text()))
    settings = (DOCS.parent / "README.md").read_text().partition("\n## Settings")[2]
    assert {"COMPUTE", "DEVICE", "REPORT"} <= read
    assert not [name for name in read if f"`PYBLAS_SGEMM_{name}`" not in settings and f"`_{name}`" not in settings]


def test_every_command_is_told():
    done = subprocess.run(
        [sys.executable, "-m", "pyblas_sgemm", "--help"], cwd=DOCS, capture_output=True, text=True, check=True
    )
    commands = re.search(r"\{([\w,]+)\}", done.stdout)[1].split(",")
    table = API.read_text().partition("\n## The command")[2]
    assert commands and not [name for name in commands if f"| `{name}" not in table]


def test_every_page_is_in_the_contents():
    contents, site = (DOCS / "index.md").read_text(), (DOCS.parent / "mkdocs.yml").read_text()
    for page in DOCS.glob("*.md"):
        assert page.name in site
        assert page.name == "index.md" or f"({page.name})" in contents


def test_tables_are_those_of_the_measurements():
    command = [sys.executable, DOCS.parent / "bench" / "report.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_the_first_figures_of_the_readme_are_those_of_the_table():
    text = " ".join((DOCS.parent / "README.md").read_text().split())
    said = re.search(r"squares of (\d+) to (\d+) are computed by tensor cores ([\d.]+) to ([\d.]+) times as fast", text)
    rows = re.findall(r"\| (\d+) x \1 x \1 \| ([\d.]+) \|.*?\| ([-\d.e]+) \| ([-\d.e]+) \| `(wgmma_\w+)` \|", text)
    found = [row for row in rows if int(said[1]) <= int(row[0]) <= int(said[2])]
    ratios = [float(ratio) for _, ratio, *_ in found]
    assert {int(found[0][0]), int(found[-1][0])} == {int(said[1]), int(said[2])}
    assert 0 <= min(ratios) - float(said[3]) < 0.15 and 0 <= max(ratios) - float(said[4]) < 0.15
    assert all(float(ours) < float(theirs) for _, _, ours, theirs, _ in found)


def measured(mode):
    """The chosen kernels' rows, by product."""
    with (DOCS.parent / "bench" / "results" / f"nvidia-h200{mode}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["choice"] == "selected"]
    return {tuple(row[name] for name in ("family", "ops", "m", "n", "k", "batch")): row for row in rows}


def test_tensor_cores_cost_neither_time_nor_accuracy():
    """What is measured of the default mode: where another kernel is chosen than for multiply-adds alone, no product takes
    longer, and from k = 512 on tensor cores err no more than cuBLAS does in float32."""
    pedantic = measured("-pedantic")
    for product, row in measured("").items():
        if row["kernel"] != pedantic[product]["kernel"]:
            assert float(row["us"]) <= float(pedantic[product]["us"]), product
        if row["kernel"].startswith("wgmma") and int(row["k"]) >= 512:
            assert float(row["error"]) <= float(row["cublas_error"]), product


def test_attention_example(tmp_path):
    example = DOCS.parent / "examples" / "attention.py"
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "CPU: 512 tokens, 12 heads of 64" in done.stdout
