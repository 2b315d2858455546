"""Times programs that use cuBLAS, with and without the preloaded shim, and compares their results with float64.

    python bench/dropin.py

Each program runs twice as a process of its own: alone, and with LD_PRELOAD; nothing else differs. A PyTorch transformer
block and MLPs, training steps; single products, batches, vectors and biases through PyTorch; products through
CuPy; and what a call costs the host, in C. Needs nvcc for the last, CuPy and PyTorch, and an installed pyblas_sgemm.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIELDS = ["program", "what", "plain_us", "shim_us", "ratio", "plain_error", "shim_error", "gpu", "driver",
          "cublas", "cupy", "torch", "commit", "date"]  # fmt: skip
Row = dict[str, Any]

# ---- the programs, which know nothing of the shim ----------------------------------------------------------------------


def torch_models() -> Iterator[Row]:
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """Pre-norm, with attention by PyTorch's fused function or written out as two products."""

        def __init__(self, width: int, heads: int, fused: bool) -> None:
            super().__init__()
            self.heads, self.fused = heads, fused
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def attention(self, x: Any) -> Any:
            batch, tokens, width = x.shape
            q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            if self.fused:
                y = functional.scaled_dot_product_attention(q, k, v)
            else:
                y = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width // self.heads), -1) @ v
            return self.out(y.transpose(1, 2).reshape(batch, tokens, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def mlp(width: int, layers: int) -> Any:
        return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))

    block = "transformer block, 8 x 1024 x 2048, 16 heads"
    cases: list[tuple[str, Callable[[], Any], tuple[int, ...], bool]] = [
        (f"{block}, fused attention", lambda: Block(2048, 16, True), (8, 1024, 2048), False),
        (f"{block}, attention by products", lambda: Block(2048, 16, False), (8, 1024, 2048), False),
        (f"{block}, attention by products, TF32", lambda: Block(2048, 16, False), (8, 1024, 2048), True),
        ("MLP, 8192 x 4096, 4 layers", lambda: mlp(4096, 4), (8192, 4096), False),
    ]
    for name, make, shape, tf32 in cases:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.manual_seed(1)
        model = make().cuda()
        x = torch.randn(shape, device="cuda", requires_grad=True)
        g = torch.randn(shape, device="cuda")
        parameters = [x, *model.parameters()]
        y = model(x)
        grads = torch.autograd.grad(y, parameters, g)
        exact_model = make().cuda().double()
        exact_model.load_state_dict(model.state_dict())
        exact_x = x.detach().double().requires_grad_()
        exact_y = exact_model(exact_x)
        exact = torch.autograd.grad(exact_y, [exact_x, *exact_model.parameters()], g.double())
        errors = [
            float((a.double() - b).norm() / b.norm())
            for a, b in zip([y.detach(), *grads], [exact_y.detach(), *exact], strict=True)
        ]
        del exact_model, exact_x, exact_y, exact, y, grads
        descent = torch.optim.SGD(parameters, lr=1e-9)
        seconds = []
        for i in range(13):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            descent.zero_grad()
            model(x).backward(g)
            descent.step()
            end.record()
            end.synchronize()
            if i >= 3:
                seconds.append(1e-3 * begin.elapsed_time(end))
        yield {"what": f"{name}, training step", "seconds": statistics.median(seconds), "error": max(errors)}
        del model, x, g, parameters, descent

    # A small one would show the host's time only; captured, it shows the device's.
    torch.manual_seed(1)
    model = mlp(1024, 4).cuda()
    x, g = (torch.randn(512, 1024, device="cuda") for _ in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.autograd.grad(model(x), model.parameters(), g)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            grads = torch.autograd.grad(model(x), model.parameters(), g)
        seconds = []
        for _ in range(13):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            seconds.append(1e-3 * begin.elapsed_time(end))
    exact_model = mlp(1024, 4).cuda().double()
    exact_model.load_state_dict(model.state_dict())
    exact = torch.autograd.grad(exact_model(x.double()), exact_model.parameters(), g.double())
    error = max(float((a.double() - b).norm() / b.norm()) for a, b in zip(grads, exact, strict=True))
    what = "MLP, 512 x 1024, 4 layers, forward and backward in a CUDA graph"
    yield {"what": what, "seconds": statistics.median(seconds), "error": error}


def torch_products(kinds: list[str]) -> Iterator[Row]:
    """Of float32, float16 and bfloat16 matrices, and of float32 matrices and vectors."""
    import torch
    from torch.nn import functional

    def rand(*shape: int, dtype: Any) -> Any:
        return torch.randn(shape, device="cuda", dtype=dtype)

    def cases(dtype: Any) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
        sizes = [(n, n, n) for n in (128, 256, 512, 1024, 2048, 4096, 8192)]
        sizes += [(1, 4096, 4096), (16, 4096, 4096), (64, 11008, 4096), (512, 4096, 4096), (4096, 4096, 64),
                  (64, 64, 65536), (1000, 1000, 1000), (4095, 4097, 1023)]  # fmt: skip
        for m, n, k in sizes:
            yield f"mm {m}x{n}x{k} NN", torch.mm, [rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)]
        for m, n, k in sizes[3:6]:
            yield f"mm {m}x{n}x{k} NT", torch.mm, [rand(m, k, dtype=dtype), rand(n, k, dtype=dtype).t()]
            yield f"mm {m}x{n}x{k} TN", torch.mm, [rand(k, m, dtype=dtype).t(), rand(k, n, dtype=dtype)]
        for batch, m, n, k in [(128, 1024, 1024, 128), (128, 1024, 128, 1024), (1000, 32, 32, 32), (64, 512, 512, 64)]:
            yield (f"bmm {batch} of {m}x{n}x{k}", torch.bmm,
                   [rand(batch, m, k, dtype=dtype), rand(batch, k, n, dtype=dtype)])  # fmt: skip
        if dtype == torch.float32:
            for m, n, k in [
                (64, 64, 64),
                (512, 4096, 4096),
                (8192, 2048, 2048),
                (8192, 8192, 2048),
                (8192, 2048, 8192),
            ]:
                yield (f"linear with bias {m}x{n}x{k}", functional.linear,
                       [rand(m, k, dtype=dtype), rand(n, k, dtype=dtype), rand(n, dtype=dtype)])  # fmt: skip

    def vectors() -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
        for m, k in [(64, 64), (256, 256), (1024, 1024), (4096, 1024), (1024, 4096), (4096, 4096), (16384, 16384),
                     (65536, 128), (128, 65536), (1000003, 16), (16, 1000003)]:  # fmt: skip
            yield f"mv {m}x{k} N", torch.mv, [rand(m, k, dtype=torch.float32), rand(k, dtype=torch.float32)]
            yield f"mv {m}x{k} T", torch.mv, [rand(k, m, dtype=torch.float32).t(), rand(k, dtype=torch.float32)]

    for kind in kinds:
        for name, function, arguments in vectors() if kind == "vectors" else cases(getattr(torch, kind)):
            result = function(*arguments)
            error = math.nan
            if result.numel() * arguments[0].shape[-1] <= 2**39:
                exact = function(*(argument.double() for argument in arguments))
                error = float((result.double() - exact).norm() / exact.norm())
                del exact
            # Captured, so that what is timed is the device's time.
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                function(*arguments)
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    for _ in range(10):
                        function(*arguments)
                seconds = []
                for i in range(6):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    graph.replay()
                    end.record()
                    end.synchronize()
                    if i:
                        seconds.append(1e-4 * begin.elapsed_time(end))
            yield {
                "what": name if kind in ("float32", "vectors") else f"{name} {kind}",
                "seconds": statistics.median(seconds),
                "error": error,
            }
            del graph, result


def cupy_products() -> Iterator[Row]:
    import cupy as cp

    random = cp.random.default_rng(1)

    def cases() -> Iterator[tuple[str, Callable[[], Any], Any]]:
        a, b = (random.standard_normal((4096, 4096), dtype=cp.float32) for _ in range(2))
        out = cp.empty_like(a)
        exact = a.astype("f8") @ b.astype("f8")
        yield "matmul 4096", lambda: cp.matmul(a, b), exact
        yield "matmul(out=) 4096", lambda: cp.matmul(a, b, out=out), exact
        yield "dot 4096", lambda: cp.dot(a, b), exact
        x, y = (random.standard_normal((128, 512, 512), dtype=cp.float32) for _ in range(2))
        yield "matmul 128 of 512", lambda: cp.matmul(x, y), cp.matmul(x.astype("f8"), y.astype("f8"))

    for name, call, exact in cases():
        error = float(cp.linalg.norm(call() - exact) / cp.linalg.norm(exact))
        seconds = []
        for i in range(8):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            begin.record()
            for _ in range(5):
                call()
            end.record()
            end.synchronize()
            if i:
                seconds.append(2e-4 * cp.cuda.get_elapsed_time(begin, end))
        yield {"what": name, "seconds": statistics.median(seconds), "error": error}


PROGRAMS: dict[str, Callable[[], Iterator[Row]]] = {
    "PyTorch models": torch_models,
    "PyTorch": lambda: torch_products(["float32"]),
    "CuPy": cupy_products,
    "left to cuBLAS": lambda: torch_products(["vectors", "float16", "bfloat16"]),  # taken here all the same
}

# ---- running them ------------------------------------------------------------------------------------------------------


def shim_library() -> Path:
    from pyblas_sgemm import _cffi

    return Path(_cffi.__file__).parent / "lib" / "libpyblas_cublas_preload.so"


def run(program: str, environment: dict[str, str]) -> list[Row]:
    done = subprocess.run(
        [sys.executable, __file__, "--program", program],
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{program}: exit status {done.returncode}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def compared(program: str) -> Iterator[Row]:
    preload = {"LD_PRELOAD": str(shim_library()), "PYBLAS_SGEMM_TAKE_ALL": str(int(program == "left to cuBLAS"))}
    plain, shim = run(program, {}), run(program, preload)
    for alone, ours in zip(plain, shim, strict=True):
        yield {
            "program": program,
            "what": alone["what"],
            "plain_us": f"{1e6 * alone['seconds']:.2f}",
            "shim_us": f"{1e6 * ours['seconds']:.2f}",
            "ratio": f"{alone['seconds'] / ours['seconds']:.3f}",
            "plain_error": f"{alone['error']:.2e}",
            "shim_error": f"{ours['error']:.2e}",
        }


def host_calls() -> Iterator[Row]:
    """Microseconds that a call in C takes the host: cuBLAS's own, and what the shim adds."""
    lib = shim_library().parent
    cublas = cublas_library()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "dropin_host"
        subprocess.run(
            ["nvcc", "-O3", "-std=c++17", HERE / "dropin_host.cpp", "-o", program, f"-I{lib.parent / 'include'}",
             f"-I{HERE.parent / 'native' / 'shim'}", f"-L{lib}", "-lpyblas_sgemm", f"-Xlinker={cublas}", "-ldl",
             f"-Xlinker=-rpath={lib}", f"-Xlinker=-rpath={cublas.parent}"],
            check=True,
        )  # fmt: skip
        for what, environment in (("taken", {}), ("declined", {"PYBLAS_SGEMM_MIN_FLOPS": "1e30"})):
            done = subprocess.run(
                [program, cublas], env=os.environ | environment | {"LD_PRELOAD": str(shim_library())},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            for line in done.stdout.splitlines():
                told = json.loads(line)
                direct = told["ours_us"] if what == "taken" else told["cublas_us"]
                yield {"program": "C", "what": f"{told['what']}, {what}",
                       "plain_us": f"{direct:.3f}", "shim_us": f"{told['shim_us']:.3f}",
                       "ratio": f"{direct / told['shim_us']:.3f}"}  # fmt: skip


def cublas_library() -> Path:
    import importlib.util

    found = importlib.util.find_spec("nvidia")
    folders = list(found.submodule_search_locations or []) if found else []
    folders += ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]
    for folder in folders:
        if paths := sorted(Path(folder).glob("**/libcublas.so.*")):
            return paths[0]
    raise RuntimeError("libcublas is not here")


def facts(name: str) -> Row:
    import cupy as cp
    from timing import gpu_facts

    gpu = gpu_facts()
    torch = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True,
                           text=True, check=False)  # fmt: skip
    return {
        "gpu": gpu["gpu"],
        "driver": gpu["driver"],
        "cublas": cp.cuda.cublas.getVersion(cp.cuda.device.get_cublas_handle()),
        "cupy": cp.__version__,
        "torch": torch.stdout.strip(),
        "commit": name,
        "date": datetime.date.today().isoformat(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)  # this process is the program
    parser.add_argument("--only", action="append", help="a program, or 'C'; all if not given")
    parser.add_argument("--commit", help="what is measured; git is asked if it is not given")
    parser.add_argument("--output", type=Path, help="csv file; bench/results/<GPU>-dropin.csv if not given")
    options = parser.parse_args()
    if options.program:
        for row in PROGRAMS[options.program]():
            print(json.dumps(row), flush=True)
        return

    if not options.commit:
        from bench import commit

        options.commit = commit()
    known = facts(options.commit)
    output = options.output or HERE / "results" / (known["gpu"].lower().replace(" ", "-") + "-dropin.csv")
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for program in [*PROGRAMS, "C"]:
            if options.only and program not in options.only:
                continue
            for row in host_calls() if program == "C" else compared(program):
                writer.writerow(row | known)
                file.flush()
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
