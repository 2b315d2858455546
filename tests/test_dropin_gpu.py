"""PyTorch, CuPy and C++ programs that call cuBLAS, run as they are: alone, with the preloaded shim, and linked against
the library that stands in cuBLAS's place. Each compares its results with float64 itself."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import pyblas_sgemm
from pyblas_sgemm import _cffi

PACKAGE = Path(_cffi.__file__).parent
PRELOAD = PACKAGE / "lib" / "libpyblas_cublas_preload.so"
HERE = Path(__file__).parent / "native" / "shim"

pytestmark = pytest.mark.gpu
with_torch = pytest.mark.interop("torch")
PRELOADED = pytest.mark.parametrize("preloaded", [False, True], ids=["alone", "preloaded"])


@pytest.fixture
def record(prints, tmp_path):
    """Runs a program and returns its record: nothing if it ran alone."""

    def run(program: str, preloaded: bool, **environment: str) -> list[dict]:
        report = tmp_path / "report"
        if preloaded:
            environment |= {"LD_PRELOAD": str(PRELOAD), "PYBLAS_SGEMM_REPORT": str(report), "PYBLAS_SGEMM_VERIFY": "1"}
        prints(program, **environment)
        lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        for line in lines:
            assert line["worst_ratio"] < 1, line
            assert line["checked"] + line["skipped"] == (line["count"] if line["taken"] else 0), line
        assert bool(lines) == preloaded
        return lines

    return run


def taken(lines: list[dict]) -> set[str]:
    return {line["entry"] for line in lines if line["taken"]}


def left(lines: list[dict]) -> dict[str, str]:
    return {line["entry"]: line["reason"] for line in lines if not line["taken"]}


TORCH = """
import warnings
warnings.simplefilter("ignore")
import threading
import torch
from torch.nn import functional
torch.manual_seed(1)

def rand(*shape):
    return torch.randn(shape, device="cuda")

def close(result, exact, bound=1e-6):
    error = float((result.double() - exact).norm() / exact.norm())
    assert error < bound, (tuple(result.shape), error)
"""

MODEL = """
class Block(torch.nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width, bias=False)
    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(x)))
"""


@with_torch
@PRELOADED
def test_torch_products(record, preloaded):
    lines = record(
        TORCH
        + """
a, b, c = rand(777, 513), rand(513, 901), rand(777, 901)
ad, bd = a.double(), b.double()
close(a @ b, ad @ bd)
close(torch.addmm(c, a, b, alpha=1.5, beta=-0.5), 1.5 * (ad @ bd) - 0.5 * c.double())
close(a[:, ::1][:500, 3:400] @ b[3:400, 7:], ad[:500, 3:400] @ bd[3:400, 7:])
close(b.t() @ a.t(), bd.t() @ ad.t())
x, y = rand(33, 64, 100), rand(33, 100, 70)
close(x @ y, x.double() @ y.double())
close(torch.einsum("bij,bjk->ik", x, y), torch.einsum("bij,bjk->ik", x.double(), y.double()))
close(torch.baddbmm(rand(33, 64, 70) * 0, x, y, alpha=2), 2 * (x.double() @ y.double()))
bias = rand(901)
for w in (b.t().contiguous(), b.t()):
    close(functional.linear(a, w, bias), ad @ bd + bias.double())
v = rand(513)
close(a @ v, ad @ v.double())
close(a @ b[:, 5], ad @ bd[:, 5])
close(a.half() @ b.half(), a.half().double() @ b.half().double(), 1e-3)
close(ad @ bd, ad @ bd)
""",
        preloaded,
    )
    if preloaded:
        assert {"cublasSgemm_v2", "cublasSgemmStridedBatched", "cublasLtMatmul"} <= taken(lines)
        assert not any(line["taken"] for line in lines if line["type"] != "float32")


@with_torch
@PRELOADED
def test_torch_tf32_only_when_it_is_asked_for(record, preloaded):
    lines = record(
        TORCH
        + """
a, b, bias = rand(2048, 2048), rand(2048, 2048), rand(2048)
exact = a.double() @ b.double()
for allowed in (False, True, False):
    torch.backends.cuda.matmul.allow_tf32 = allowed
    for result in (a @ b, functional.linear(a, b.t(), bias) - bias):
        error = float((result.double() - exact).norm() / exact.norm())
        assert (1e-5 < error < 1e-3) if allowed else error < 1e-6, (allowed, error)
""",
        preloaded,
    )
    if preloaded:
        modes = {line["compute"] for line in lines if line["taken"]}
        assert modes == {"fp32", "tf32"}


@with_torch
@PRELOADED
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "graph"])
def test_torch_autograd(record, preloaded, captured):
    lines = record(
        TORCH
        + MODEL
        + f"""
captured = {captured}
model = Block().cuda()
x, g = rand(4, 128, 256), rand(4, 128, 256)
def step():
    y = model(x)
    return [y, *torch.autograd.grad(y, model.parameters(), g)]
if not captured:
    results = step()
else:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # nothing of autograd may belong to the default stream
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for _ in range(3):
        x.copy_(rand(4, 128, 256))
        graph.replay()
torch.cuda.synchronize()
exact = Block().cuda().double()
exact.load_state_dict(model.state_dict())
y = exact(x.double())
for result, want in zip(results, [y, *torch.autograd.grad(y, exact.parameters(), g.double())]):
    close(result, want, 2e-6)
""",
        preloaded,
    )
    if preloaded:
        assert {"cublasSgemm_v2", "cublasSgemmStridedBatched"} <= taken(lines)
        skipped = sum(line["skipped"] for line in lines)
        assert (skipped > 0) == captured


@with_torch
@PRELOADED
def test_torch_streams_and_threads(record, preloaded):
    record(
        TORCH
        + """
failed = []
def work(i):
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            a, b = rand(300 + i, 400), rand(400, 500)
            for _ in range(20):
                c = a @ b
                d = torch.relu(c) @ b.t()
            torch.cuda.current_stream().synchronize()
            close(c, a.double() @ b.double())
            close(d, torch.relu(c).double() @ b.double().t())
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
""",
        preloaded,
    )


@PRELOADED
def test_cupy(record, preloaded):
    lines = record(
        """
import cupy as cp
import cupy.cublas
random = cp.random.default_rng(1)
def rand(*shape):
    return random.standard_normal(shape, dtype=cp.float32)
def close(result, exact, bound=1e-6):
    error = float(cp.linalg.norm(result - exact) / cp.linalg.norm(exact))
    assert error < bound, (result.shape, error)
a, b = rand(700, 300), rand(300, 500)
exact = a.astype("f8") @ b.astype("f8")
close(a @ b, exact)
close(cp.dot(b.T, a.T), exact.T)
close(cp.tensordot(a, b, 1), exact)
x, y = rand(20, 64, 96), rand(20, 96, 48)
close(x @ y, x.astype("f8") @ y.astype("f8"))
c = cp.zeros((700, 500), cp.float32, order="F")
cupy.cublas.gemm("N", "N", cp.asfortranarray(a), cp.asfortranarray(b), out=c)
close(c, exact)
with cp.cuda.Stream(non_blocking=True) as stream:
    p = rand(256, 256)
    stream.synchronize()
    q = p @ p
    stream.synchronize()
close(q, p.astype("f8") @ p.astype("f8"))
close(a.astype("f2") @ b.astype("f2"), exact, 5e-3)
""",
        preloaded,
    )
    if preloaded:
        assert {"cublasGemmEx", "cublasGemmStridedBatchedEx", "cublasSgemm_v2"} <= taken(lines)


@pytest.fixture
def two_gpus():
    if len(pyblas_sgemm.info()["gpus"]) < 2:
        pytest.skip("there is one GPU")


@with_torch
@PRELOADED
def test_torch_on_several_devices(two_gpus, record, preloaded):
    """One thread that goes from one to the other, and a thread for each."""
    lines = record(
        TORCH
        + """
failed = []
def work(*devices):
    try:
        for i, device in enumerate(devices * 3):
            a, b = (rand(*shape).to(device) for shape in ((200 + i, 300), (300, 400)))
            c = a @ b
            assert c.device.index == device, c.device
            close(c, a.double() @ b.double())
            x, bias = rand(4, 60, 300).to(device), rand(400).to(device)
            close(functional.linear(x[0], b.t(), bias), x[0].double() @ b.double() + bias.double())
            close(torch.bmm(x, b.expand(4, 300, 400)), x.double() @ b.double())
    except BaseException as error:
        failed.append(error)
work(0, 1)
threads = [threading.Thread(target=work, args=devices) for devices in ((0,), (1,), (1, 0), (0, 1))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
""",
        preloaded,
    )
    if preloaded:
        assert {"cublasSgemm_v2", "cublasSgemmStridedBatched", "cublasLtMatmul"} <= taken(lines)


@PRELOADED
def test_cupy_on_several_devices(two_gpus, record, preloaded):
    lines = record(
        """
import cupy as cp
for i in range(6):
    with cp.cuda.Device(i % 2), cp.cuda.Stream(non_blocking=True) as stream:
        random = cp.random.default_rng(i)
        a, b = random.standard_normal((100 + i, 300), cp.float32), random.standard_normal((300, 200), cp.float32)
        c = a @ b
        exact = a.astype("f8") @ b.astype("f8")
        assert c.device.id == i % 2 and float(cp.linalg.norm(c - exact) / cp.linalg.norm(exact)) < 1e-6
        stream.synchronize()
""",
        preloaded,
    )
    if preloaded:
        assert "cublasGemmEx" in taken(lines)


@with_torch
def test_the_exit_status_and_nothing_printed(python):
    for ending, status in (("", 0), ("import sys; sys.exit(7)", 7), ("import os; os._exit(9)", 9)):
        done = python(TORCH + "rand(100, 100) @ rand(100, 100)\n" + ending, LD_PRELOAD=str(PRELOAD))
        assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


# ---- C++ ---------------------------------------------------------------------------------------------------------------


def nvidia(pattern: str) -> Path:
    """A file of the packages that PyTorch brings."""
    folders = importlib.util.find_spec("nvidia").submodule_search_locations
    return next(path for folder in folders for path in sorted(Path(folder).glob(f"**/{pattern}")))


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """One program written against cublas_v2.h, linked with cuBLAS and with the library in its place."""
    folder = tmp_path_factory.mktemp("cublas")
    cublas, runtime = nvidia("libcublas.so.*"), nvidia("libcudart.so.*")
    headers = {nvidia("cublas_v2.h").parent, nvidia("cuda_runtime_api.h").parent}
    toolkit = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1] / "include"  # for crt/
    command = ["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", HERE / "cublas_program.cpp",
               *(f"-isystem{header}" for header in headers), f"-idirafter{toolkit}", runtime, f"-Wl,-rpath,{runtime.parent}"]  # fmt: skip
    linked = {"cublas": [cublas, f"-Wl,-rpath,{cublas.parent}", f"-Wl,-rpath-link,{cublas.parent}"],
              "ours": [f"-L{PRELOAD.parent}", "-lpyblas_cublas", f"-Wl,-rpath,{PRELOAD.parent}",
                       f"-Wl,-rpath-link,{PRELOAD.parent}"]}  # fmt: skip
    for name, options in linked.items():
        subprocess.run([*command, "-o", folder / name, *options], check=True)
    return folder


@with_torch
@pytest.mark.parametrize("way", ["alone", "preloaded", "linked"])
def test_a_program_written_against_cublas(programs, tmp_path, way):
    report = tmp_path / "report"
    environment = os.environ | {"PYBLAS_SGEMM_REPORT": str(report), "PYBLAS_SGEMM_VERIFY": "1"}
    if way == "preloaded":
        environment["LD_PRELOAD"] = str(PRELOAD)
    program = programs / ("ours" if way == "linked" else "cublas")
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    assert bool(lines) == (way != "alone")
    for line in lines:
        assert line["worst_ratio"] < 1, line
    if lines:
        assert taken(lines) >= {
            "cublasSgemm_v2", "cublasSgemm_v2_64", "cublasSgemmStridedBatched", "cublasSgemmBatched", "cublasGemmEx",
            "cublasGemmStridedBatchedEx",
        }  # fmt: skip
        if way == "preloaded":
            assert left(lines)["cublasSgemmStridedBatched"] == "arguments that the library refuses"  # strideC = 0
