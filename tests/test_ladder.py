"""pyblas-sgemm ladder without a GPU: what it says where something is missing, and what it makes of recorded figures."""

import importlib
import xml.etree.ElementTree

import numpy as np
import pytest

import reference
from pyblas_sgemm import KernelInfo, NotSupportedError
from pyblas_sgemm import __main__ as program
from pyblas_sgemm import _ladder as ladder

CARD = ladder.Card("NVIDIA H200", 90, 66.9e12, 4.0e12, 2048, 233472)


def step(name, microseconds, threads, registers, shared):
    family = name.rpartition("_128x")[0] or name.rpartition("_32x")[0]
    return ladder.Step(
        KernelInfo(name, family, "gpu", ("fp32",), 75, threads, registers, shared), microseconds * 1e-6, 5.7e-7
    )


RECORDED = ladder.Ladder(
    CARD,
    4096,
    "CuPy (cuBLAS)",
    2675.6e-6,
    [
        step("naive_32x32x1", 275923.7, 1024, 64, 0),
        step("smem_tile_32x32x32", 21141.3, 1024, 64, 8448),
        step("conflict_free_128x128x8", 3715.3, 256, 128, 8448),
        step("conflict_free_128x128x8_swizzled", 3599.0, 256, 128, 8192),
    ],
    [("skinny_32x4x128", "both m and n are larger")],
)


@pytest.fixture
def refusal(monkeypatch, capsys, tmp_path):
    """Runs the command with some of its names replaced; returns the sentence it ends with."""

    def run(**replaced):
        for name, value in replaced.items():
            monkeypatch.setattr(ladder, name, value)
        assert program.main(["ladder", "--output", str(tmp_path / "out")]) == 1
        out, err = capsys.readouterr()
        assert out == "" and not (tmp_path / "out").exists()
        return err

    return run


def test_no_gpu(refusal):
    said = refusal(info=lambda: {"gpus": [], "no_gpu_reason": "libnvidia-ml.so.1 is not here"})
    assert said == "pyblas-sgemm ladder: there is no GPU to run on. libnvidia-ml.so.1 is not here\n"


def test_a_gpu_without_code_for_it(refusal):
    gpu = {"device": 0, "name": "Tesla K80", "sm": "3.7", "supported": False, "reason": "no code for SM 3.7"}
    said = refusal(info=lambda: {"gpus": [gpu], "no_gpu_reason": ""})
    assert "GPU 0 (Tesla K80): no code for SM 3.7" in said


@pytest.mark.parametrize("package", ["rich", "matplotlib"])
def test_a_package_is_missing(refusal, monkeypatch, package):
    def absent(name):
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {package!r}")
        return importlib.import_module(name)

    monkeypatch.setattr(ladder, "importlib", type("Importing", (), {"import_module": staticmethod(absent)}))
    assert f"it needs {package}, which is not installed: pip install rich matplotlib" in refusal()


def test_no_array_library(refusal):
    def absent(device):
        raise ImportError("No module named 'an_array_library'")

    gpu = {"device": 0, "name": "NVIDIA H200", "sm": "9.0", "supported": True, "reason": ""}
    said = refusal(info=lambda: {"gpus": [gpu]}, cupy_arrays=absent, torch_arrays=absent)
    assert "CuPy or PyTorch" in said and "an_array_library" in said


@pytest.mark.parametrize("size", ["0", "-4", "many"])
def test_sizes_that_are_none(size, capsys):
    with pytest.raises(SystemExit) as end:
        program.main(["ladder", "--size", size])
    assert end.value.code == 2
    assert "--size" in capsys.readouterr().err


def test_intensity_is_that_of_the_tile():
    found = [ladder.intensity(one.kernel) for one in RECORDED.steps]
    assert found == [0.25, 8, 32, 32]


def test_blocks_are_bound_by_registers_threads_or_shared_memory():
    naive, *_, swizzled = (one.kernel for one in RECORDED.steps)
    assert ladder.blocks(naive, CARD) == 1
    assert ladder.blocks(swizzled, CARD) == 2
    assert ladder.blocks(swizzled._replace(registers=32), CARD) == 8
    assert ladder.blocks(swizzled._replace(registers=32, shared_bytes=100 << 10), CARD) == 2


def test_the_table_and_the_published_figures():
    text = ladder.text(RECORDED)
    assert "# 4096 x 4096 x 4096 on NVIDIA H200" in text
    assert "| `smem_tile_32x32x32` | 8 | 64 | 8448 | 50% | 21141.3 | 6.5 | 9.7 | 12.7 | 13.1 | 5.7e-07 |" in text
    assert "| `smem_tile` | 13.1 | 12.7 | 9.7 | 10.2 | 23.2 | 30.8 |  | 10 to 20 |" in text
    # A family stands with its fastest kernel.
    assert "| `conflict_free` | 76.7 | 74.3 | 57.1 |  |  |  | 74.3 |  |" in text
    assert "| cuBLAS | 103.1 | 100.0 | 76.8 |  | 100 | 100 | 82.4 | 85 to 95 |" in text
    assert "- `skinny_32x4x128`: both m and n are larger" in text


def test_files(tmp_path):
    page, png, svg = ladder.write(RECORDED, tmp_path / "new" / "folder")
    assert page.read_text() == ladder.text(RECORDED)
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 10_000
    drawn = "".join(xml.etree.ElementTree.parse(svg).getroot().itertext())
    assert drawn or svg.stat().st_size > 10_000


def test_every_published_figure_is_of_a_step_that_there_is():
    families = {"naive", "coalesced", "smem_tile", "thread_tile_1d", "thread_tile_2d", "vectorized", "conflict_free",
                "double_buffer", "async_pipeline", "cuBLAS"}  # fmt: skip
    assert {family for _, figures in ladder.PUBLISHED.values() for family in figures} == families


# ---- the whole command, on a made-up GPU ------------------------------------------------------------------------------

SIZE = 100
GPU = {"device": 0, "name": "NVIDIA H200", "sm": "9.0", "supported": True, "reason": ""}
TABLE = [
    KernelInfo("naive_32x32x1", "naive", "gpu", ("fp32",), 75, 1024, 64, 0),
    KernelInfo("skinny_32x4x128", "skinny", "gpu", ("fp32",), 75, 128, 64, 0),
    KernelInfo("smem_tile_32x32x32", "smem_tile", "gpu", ("fp32",), 75, 1024, 64, 8448),
    KernelInfo("tile_of_a_later_card", "tile", "gpu", ("fp32",), 100, 128, 64, 0),
    KernelInfo("half_tile_128x128x32", "half_tile", "gpu", ("fp32",), 75, 128, 64, 0, types=("float16",)),
    KernelInfo("cpu_naive", "cpu_naive", "cpu", ("fp32",), 0, 0, 0, 0),
]


@pytest.fixture
def made_up(monkeypatch, capsys, tmp_path):
    """Runs the command on NumPy arrays, with a fault in one of the kernels. Returns its status, what it said and the
    folder of its files."""
    rng = np.random.default_rng(1)
    arrays = ladder.Arrays(
        "NumPy",
        lambda size: rng.standard_normal((size, size), dtype=np.float32),
        lambda size: np.empty((size, size), np.float32),
        lambda array: array.fill(np.nan),
        lambda array, rows: array[rows],
        lambda a, b, c: np.matmul(a, b, out=c),
        lambda call, calls: [call() for _ in range(calls)] and calls * 1e-3,
    )

    class Forced:
        def __init__(self, device, kernel):
            self.kernel = kernel

        def __enter__(self):
            return self

        def __exit__(self, *failure):
            pass

    def run(fault=None):
        def sgemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, *, order, compute, handle):
            if handle.kernel.startswith("skinny"):
                raise NotSupportedError(f"sgemm: {handle.kernel} was forced, but both m and n are larger")
            if fault and handle.kernel.startswith("smem_tile"):
                fault(a, b, c)
            else:
                np.matmul(a, b, out=c)

        for name, value in {"info": lambda: {"gpus": [GPU]}, "arrays_of": lambda device: arrays, "kernels": lambda: TABLE,
                            "card_of": lambda *_: CARD, "Handle": Forced, "sgemm": sgemm}.items():  # fmt: skip
            monkeypatch.setattr(ladder, name, value)
        status = program.main(["ladder", "--size", str(SIZE), "--output", str(tmp_path)])
        return status, *capsys.readouterr(), tmp_path

    return run


def test_every_kernel_of_the_card_is_run_and_told(made_up):
    status, out, err, folder = made_up()
    assert (status, err) == (0, "")
    assert "Climbing" in out and "100%" in out  # the progress bar
    told = [line.split("`")[1] for line in out.splitlines() if line.startswith("| `")]
    assert told == ["naive_32x32x1", "smem_tile_32x32x32"]
    page = (folder / "ladder.md").read_text()
    assert f"# {SIZE} x {SIZE} x {SIZE} on NVIDIA H200" in page
    assert "- `skinny_32x4x128`: both m and n are larger" in page
    assert "later_card" not in page and "half_tile" not in page and "cpu_naive" not in page
    assert {file.name for file in folder.iterdir()} == {"ladder.md", "ladder.png", "ladder.svg"}


def leaves_a_row_out(a, b, c):
    np.matmul(a[:-1], b, out=c[:-1])


def writes_nothing(a, b, c):
    pass


def rounds_its_inputs(a, b, c):
    np.matmul(reference.to_tf32(a), reference.to_tf32(b), out=c)


@pytest.mark.parametrize("fault", [leaves_a_row_out, writes_nothing, rounds_its_inputs])
def test_a_wrong_kernel_is_named(made_up, fault):
    status, _, err, _ = made_up(fault)
    assert status == 1
    assert err == "pyblas-sgemm ladder: errors beyond what their mode may have in smem_tile_32x32x32\n"


@pytest.mark.gpu
def test_the_ladder_on_the_gpu(prints, tmp_path):
    code = f"from pyblas_sgemm import __main__; print(__main__.main(['ladder', '--size', '256', '--output', '{tmp_path}']))"
    said = prints(code)
    assert said.endswith("0") and "`naive_32x32x1`" in said and "`async_pipeline" in said
    assert (tmp_path / "ladder.png").is_file() and (tmp_path / "ladder.svg").is_file()
