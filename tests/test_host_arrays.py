"""Host arrays through GPUs: where a product goes by what call and environment say, and on a GPU the products themselves.

The plans, and the pipeline with failures at every step, are tested without a GPU in tests/native/test_xt.cpp.
"""

from __future__ import annotations

import numpy as np
import pytest

import engines
import pyblas_sgemm
from engines import OPS, SUCCESS, ffi, lib, message
from pyblas_sgemm import InvalidValueError, NotSupportedError, SgemmError, gemm_strided_batched, matmul, sgemm

A = np.arange(4, dtype=np.float32).reshape(2, 2)


def square():
    return np.full((2, 2), np.nan, np.float32)


def xt(handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, name="pyblasXtSgemm_64"):
    """The C function on addresses."""
    scalars = ffi.new("float[]", [alpha, beta])
    a, b, c = (ffi.cast("float *", x) for x in (a, b, c))
    return getattr(lib, name)(handle, OPS[ta], OPS[tb], m, n, k, scalars, a, lda, b, ldb, scalars + 1, c, ldc)


# ---- without a GPU -------------------------------------------------------------------------------------------------


def test_entries_on_a_cpu_handle_are_the_plain_ones(cpu_handle):
    x, y = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([[1, 0], [0, 1], [1, 1]])
    for name in ("pyblasXtSgemmRowMajor", "pyblasXtSgemmRowMajor_64"):
        c = square()
        arguments = (x.ctypes.data, 3, y.ctypes.data, 2, 0.0, c.ctypes.data, 2)
        assert xt(cpu_handle, "N", "N", 2, 2, 3, 1.0, *arguments, name=name) == SUCCESS
        assert (c == x @ y).all()
    for name in ("pyblasXtSgemm", "pyblasXtSgemm_64"):
        c = square()
        arguments = (y.ctypes.data, 2, x.ctypes.data, 3, 0.0, c.ctypes.data, 2)
        assert xt(cpu_handle, "N", "N", 2, 2, 3, 1.0, *arguments, name=name) == SUCCESS
        assert (c == x @ y).all()


def test_batches_on_a_cpu_handle(cpu_handle):
    x = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    scalars = ffi.new("float[]", [1, 0])
    for name in ("pyblasXtSgemmStridedBatchedRowMajor", "pyblasXtSgemmStridedBatchedRowMajor_64"):
        c = np.full_like(x, np.nan)
        at, out = (ffi.cast("float *", array.ctypes.data) for array in (x, c))
        status = getattr(lib, name)(cpu_handle, 0, 0, 2, 2, 2, scalars, at, 2, 4, at, 2, 4, scalars + 1, out, 2, 4, 3)
        assert status == SUCCESS
        assert (c == x @ x).all()


def test_settings_on_a_cpu_handle(cpu_handle):
    limit = ffi.new("size_t *")
    assert lib.pyblasXtSetMemoryLimit(cpu_handle, 1 << 30) == SUCCESS
    assert lib.pyblasXtGetMemoryLimit(cpu_handle, limit) == SUCCESS and limit[0] == 0
    assert lib.pyblasXtSetDevices(cpu_handle, 1, ffi.new("int[]", [0])) == SUCCESS
    assert lib.pyblasXtSetProgress(cpu_handle, ffi.NULL, ffi.NULL) == SUCCESS
    assert lib.pyblasXtGetMemoryLimit(ffi.NULL, limit) == engines.NOT_INITIALIZED
    assert lib.pyblasXtGetMemoryLimit(cpu_handle, ffi.NULL) == engines.INVALID_VALUE


def test_predictions_grow(cpu_handle):
    def predicted(*sizes):
        seconds = ffi.new("double *")
        assert lib.pyblasXtPredict(cpu_handle, 0, 0, *sizes, seconds) == SUCCESS, message()
        return seconds[0]

    assert 0 < predicted(64, 64, 64, 1) < predicted(4096, 4096, 4096, 1) < predicted(4096, 4096, 4096, 5)
    assert predicted(0, 5, 5, 1) == 0
    assert lib.pyblasXtPredict(cpu_handle, 0, 0, -1, 1, 1, 1, ffi.new("double *")) == engines.INVALID_VALUE
    assert lib.pyblasXtPredict(cpu_handle, 0, 0, 1, 1, 1, 1, ffi.NULL) == engines.INVALID_VALUE


@pytest.mark.parametrize("devices", [[], "cuda", 0, {0}, ["cpu"], ["auto"], ["cuda"], [1.5]])
def test_devices_that_are_none(devices):
    with pytest.raises(InvalidValueError, match="device"):
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(), 2, devices=devices)
    with pytest.raises(InvalidValueError, match="device"):
        matmul(A, A, devices=devices)


def test_device_and_devices_contradict_each_other():
    with pytest.raises(InvalidValueError, match="device and devices"):
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(), 2, device=0, devices=[0])


def test_auto_is_the_cpu_where_it_is_sooner():
    assert (matmul(A, A, device="auto") == A @ A).all()
    assert (sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(), 2, device="auto") == A @ A).all()
    with pytest.raises(InvalidValueError, match="auto"):
        pyblas_sgemm.Handle("auto")


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("order", [None, "C", "F"])
def test_words_for_the_cpu_change_no_bits(device, order):
    rng = np.random.default_rng(3)
    m, n, k = 21, 34, 55
    a, b = rng.standard_normal((2, m * k), np.float32), rng.standard_normal((2, k * n), np.float32)
    lda, ldb, ldc = (k, n, n) if order != "F" else (m, k, m)

    def products(**words):
        one, two = np.empty(m * n, np.float32), np.empty(2 * m * n, np.float32)
        sgemm("N", "N", m, n, k, 1.5, a[0], lda, b[0], ldb, 0, one, ldc, order=order, **words)
        pyblas_sgemm.gemm_strided_batched(
            "N", "N", m, n, k, 1, a, lda, m * k, b, ldb, k * n, 0, two, ldc, m * n, 2, order=order, **words
        )
        stacks = matmul(a.reshape(2, m, k), b.reshape(2, k, n), **words)
        return one, two, stacks, matmul(a[0].reshape(m, k), b[0].reshape(k, n), **words)

    plain = products()
    for _ in range(4):
        for x, y in zip(products(device=device), plain, strict=True):
            assert (x == y).all()


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_words_for_the_cpu_hide_no_mistake(device):
    with pytest.raises(InvalidValueError, match=r"argument 8 \(lda\)"):
        sgemm("N", "N", 2, 2, 2, 1, A, 1, A, 2, 0, square(), 2, device=device)
    with pytest.raises(InvalidValueError, match="must be at least 0"):
        sgemm("N", "N", -1, 2, 2, 1, A, 2, A, 2, 0, square(), 2, device=device)
    with pytest.raises(TypeError, match="float64"):
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, np.zeros((2, 2)), 2, device=device)
    with pytest.raises(InvalidValueError, match="device is 'CPU'"):
        matmul(A, A, device="CPU")


def test_products_that_stay_on_the_cpu():
    with pytest.raises(NotSupportedError, match="computed on the CPU"):
        pyblas_sgemm.gemm_batched("N", "N", 2, 2, 2, 1, [A], 2, [A], 2, 0, [square()], 2, device="cuda")
    half = A.astype(np.float16)
    with pytest.raises(NotSupportedError, match="computed on the CPU"):
        pyblas_sgemm.gemm_ex("N", "N", 2, 2, 2, 1, half, 2, half, 2, 0, square(), 2, device="cuda")


def test_memory_limits():
    with pyblas_sgemm.Handle(memory_limit=1 << 30) as handle:
        assert handle.memory_limit == 1 << 30
        for wrong in (0, -1, 2**64):
            with pytest.raises(InvalidValueError, match="memory_limit"):
                handle.memory_limit = wrong
    with pyblas_sgemm.Handle() as handle:
        assert handle.memory_limit is None


def test_without_a_gpu_device_cuda_says_why(python):
    code = """
import numpy as np, pyblas_sgemm as p
x = np.ones((2, 2), np.float32)
print(p.matmul(x, x, device="auto")[0, 0], p.matmul(x, x, device="cpu")[0, 0])
for words in ({"device": "cuda"}, {"device": 0}, {"devices": [0, 1]}):
    try:
        p.matmul(x, x, **words)
    except p.SgemmError as error:
        print("no GPU" in str(error) or "no GPU code" in str(error))
"""
    done = python(code, CUDA_VISIBLE_DEVICES="")
    assert (done.stdout.split(), done.stderr) == (["2.0", "2.0", "True", "True", "True"], "")


@pytest.mark.parametrize("device", ["cuda", "0"])
def test_the_environment_names_a_gpu_for_host_arrays(python, device):
    code = """
import numpy as np, pyblas_sgemm as p
x = np.ones((2, 2), np.float32)
print(p.sgemm("N", "N", 2, 2, 2, 1.0, x, 2, x, 2, 0.0, x + 1, 2, device="cpu")[0, 0])
print(p.sgemm("N", "N", 2, 2, 2, 1.0, x, 2, x, 2, 0.0, x + 1, 2, handle=p.Handle("cpu"))[0, 0])
for call in (lambda: p.matmul(x, x), lambda: p.sgemm("N", "N", 2, 2, 2, 1.0, x, 2, x, 2, 0.0, x + 1, 2)):
    for _ in range(2):
        try:
            print(call())
        except p.SgemmError as error:
            print("GPU" in str(error))
"""
    done = python(code, PYBLAS_SGEMM_DEVICE=device, CUDA_VISIBLE_DEVICES="")
    assert (done.stdout.split(), done.stderr) == (["2.0", "2.0", "True", "True", "True", "True"], "")


@pytest.mark.parametrize("device", ["cuda", "0", "auto"])
def test_the_environment_does_not_speak_of_questions(python, device):
    code = """
import pyblas_sgemm as p
names = {p.selected_kernel("N", "N", 4, 4, 4, **words).name for words in ({}, {"device": "cpu"})}
print(names <= {row.name for row in p.kernels() if row.engine == "cpu"})
"""
    done = python(code, PYBLAS_SGEMM_DEVICE=device, CUDA_VISIBLE_DEVICES="")
    assert (done.stdout.split(), done.stderr) == (["True"], "")


def test_the_environment_leaves_host_arrays_to_the_cpu(python):
    code = "import numpy as np, pyblas_sgemm as p; print(p.matmul(*[np.ones(2, np.float32)] * 2))"
    for words in ({}, {"PYBLAS_SGEMM_DEVICE": "cpu"}, {"PYBLAS_SGEMM_DEVICE": "auto"}):
        done = python(code, **words)
        assert (done.stdout.split(), done.stderr) == (["2.0"], "")


# ---- on a GPU ------------------------------------------------------------------------------------------------------


def pinned(x):
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(x.nbytes)
    copy = np.frombuffer(memory, np.float32, x.size).reshape(x.shape)
    copy[...] = x
    return copy


def on_gpu(x):
    import cupy

    return cupy.asarray(x)


HOMES = {"pageable": np.copy, "pinned": pinned, "gpu": on_gpu}
PADDING = np.float32(-77)


class Product:
    """Row-major matrices with gaps between their rows; NaN in those of A and B, and in C where it is not read."""

    def __init__(self, ta, tb, m, n, k, beta, pad):
        rng = np.random.default_rng([m, n, k])
        self.call = (ta, tb, m, n, k)
        shapes = [(m, k) if ta == "N" else (k, m), (k, n) if tb == "N" else (n, k), (m, n)]
        self.arrays = []
        for rows, columns in shapes:
            array = np.full((rows, columns + pad), np.nan, np.float32)
            array[:, :columns] = rng.standard_normal((rows, columns), dtype=np.float32)
            self.arrays.append(array)
        a, b, c = (
            array[:, :columns].astype(np.float64) for array, (_, columns) in zip(self.arrays, shapes, strict=True)
        )
        self.beta, self.n = beta, n
        self.want = 1.5 * (a if ta == "N" else a.T) @ (b if tb == "N" else b.T) + beta * c
        self.arrays[2][:, n:] = PADDING
        if beta == 0:
            self.arrays[2][:, :n] = np.nan

    def run(self, homes, **keywords):
        """C on the host, after the product."""
        a, b, c = (HOMES[home](array) for home, array in zip(homes, self.arrays, strict=True))
        lds = [array.shape[1] for array in self.arrays]
        out = sgemm(*self.call, 1.5, a, lds[0], b, lds[1], self.beta, c, lds[2], order="C", **keywords)
        assert out is c
        return c if isinstance(c, np.ndarray) else c.get()

    def check(self, got):
        error = np.linalg.norm(got[:, : self.n] - self.want) / np.linalg.norm(self.want)
        assert error <= 4e-7
        assert (got[:, self.n :] == PADDING).all()


@pytest.mark.gpu
@pytest.mark.parametrize("ta", "NT")
@pytest.mark.parametrize("tb", "NT")
@pytest.mark.parametrize("beta", [0, 0.5])
def test_tiles_and_panels_of_every_kind(ta, tb, beta):
    product = Product(ta, tb, 601, 2101, 4203, beta, 3)
    product.check(product.run(("pageable", "pinned", "pageable"), device="cuda"))


@pytest.mark.gpu
def test_bits_do_not_depend_on_memory_or_its_kind():
    import cupy

    product = Product("N", "T", 500, 4100, 9000, 0.5, 1)
    first = product.run(("pageable", "pageable", "pageable"), device="cuda")
    product.check(first)
    with pyblas_sgemm.Handle(memory_limit=400 << 20) as handle:
        for homes in (
            ("pageable", "pageable", "pageable"),
            ("pinned", "pinned", "pinned"),
            ("gpu", "pageable", "pinned"),
            ("pinned", "gpu", "pageable"),
            ("pageable", "pinned", "gpu"),
            ("gpu", "gpu", "pageable"),
        ):
            again = product.run(homes, device="cuda", handle=handle)
            assert (again.view(np.uint32) == first.view(np.uint32)).all(), homes
    if cupy.cuda.runtime.getDeviceCount() > 1:
        again = product.run(("pageable", "pageable", "pageable"), devices=[0, 1])
        assert (again.view(np.uint32) == first.view(np.uint32)).all()


@pytest.mark.gpu
def test_mixtures_need_a_device():
    with pytest.raises(TypeError, match="host memory"):
        sgemm("N", "N", 2, 2, 2, 1, on_gpu(A), 2, A, 2, 0, square(), 2)
    with pytest.raises(TypeError, match="host memory"):
        sgemm("N", "N", 2, 2, 2, 1, on_gpu(A), 2, A, 2, 0, square(), 2, device="cpu")
    assert (sgemm("N", "N", 2, 2, 2, 1, on_gpu(A), 2, A, 2, 0, square(), 2, device="cuda") == A @ A).all()


@pytest.mark.gpu
def test_matmul_of_stacks_and_views(gpu):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((7, 1, 60, 50), dtype=np.float32)
    b = rng.standard_normal((3, 40, 50), dtype=np.float32).swapaxes(1, 2)
    got = matmul(a, b, device="cuda")
    assert isinstance(got, np.ndarray) and got.shape == (7, 3, 60, 40)
    assert np.allclose(got, a.astype(np.float64) @ b, atol=1e-4)
    out = np.ones_like(got)
    assert matmul(a, b, out=out, beta=2, devices=[0]) is out
    assert np.allclose(out, got + 2, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["apart", "interleaved", "shared", "backwards"])
@pytest.mark.parametrize("home", ["pageable", "pinned"])
def test_batches(layout, home):
    batch, m, n, k = 300, 40, 24, 33
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((batch, m, k), (batch, k, n)))
    want = a.astype(np.float64) @ (b[:1] if layout == "shared" else b)
    c = np.full((batch, m, n), np.nan, np.float32)
    lda, stride_a, ldc, stride_c, stride_b = k, m * k, n, m * n, k * n
    first = a
    if layout == "interleaved":
        a, c = np.ascontiguousarray(a.swapaxes(0, 1)), np.ascontiguousarray(c.swapaxes(0, 1))
        first, lda, stride_a, ldc, stride_c = a, batch * k, k, batch * n, n
    if layout == "shared":
        stride_b = 0
    a, b, c = (HOMES[home](x) for x in (a, b, c))
    first = a
    if layout == "backwards":
        first, stride_a, want = a[::-1], -stride_a, a[::-1].astype(np.float64) @ b
    gemm_strided_batched(
        "N", "N", m, n, k, 1, first, lda, stride_a, b, n, stride_b, 0, c, ldc, stride_c, batch, order="C", device="cuda"
    )
    got = c.swapaxes(0, 1) if layout == "interleaved" else c
    assert np.allclose(got, want, atol=1e-4)


@pytest.mark.gpu
def test_what_is_not_read_and_not_written():
    nothing = np.full((2, 2), np.nan, np.float32)
    c = np.float32([[1, 2], [3, 4]])
    assert (sgemm("N", "N", 2, 2, 2, 0, nothing, 2, nothing, 2, 2, c, 2, device="cuda") == [[2, 4], [6, 8]]).all()
    assert (sgemm("N", "N", 2, 2, 0, 1, None, 1, None, 2, 0.5, c, 2, device="cuda") == [[1, 2], [3, 4]]).all()
    assert (sgemm("N", "N", 2, 2, 0, 1, None, 1, None, 2, 0, c, 2, device="cuda") == 0).all()
    got = sgemm("N", "N", 2, 2, 2, np.nan, A, 2, A, 2, 0, c, 2, device="cuda")
    assert np.isnan(got).all()


@pytest.mark.gpu
def test_rows_of_a_batch_invariant_product():
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((3000, 5000), (5000, 2000)))
    whole = matmul(a, b, device="cuda", batch_invariant=True)
    for rows in (slice(0, 1), slice(1500, 1700)):
        part = matmul(a[rows], b, device="cuda", batch_invariant=True)
        assert (part.view(np.uint32) == whole[rows].view(np.uint32)).all()


@pytest.mark.gpu
def test_too_little_memory_is_told_in_numbers():
    product = Product("N", "N", 1500, 1500, 1500, 0, 0)
    with pyblas_sgemm.Handle(memory_limit=1 << 20) as handle, pytest.raises(MemoryError, match=r"\d+ bytes") as raised:
        product.run(("pageable",) * 3, device="cuda", handle=handle)
    assert "C is unchanged" in str(raised.value) and "1048576" in str(raised.value)


@pytest.mark.gpu
def test_memory_from_the_environment(python):
    code = """
import numpy as np, pyblas_sgemm as p
x = np.ones((2000, 2000), np.float32)
try:
    p.matmul(x, x, device="cuda")
except (MemoryError, ValueError) as error:
    print(error)
"""
    assert "1048576" in python(code, PYBLAS_SGEMM_MEMORY="1M").stdout
    assert "PYBLAS_SGEMM_MEMORY" in python(code, PYBLAS_SGEMM_MEMORY="much").stdout
    assert python(code, PYBLAS_SGEMM_MEMORY="2G").stdout == ""


@pytest.mark.gpu
@pytest.mark.large(host=6, gpu=2)
def test_a_product_that_its_callback_stops():
    n = 16384
    a = np.ones((n, n), np.float32)
    c = np.full((n, n), PADDING)

    class Enough(Exception):
        pass

    def stop(done):
        assert 0 <= done < 1
        raise Enough

    with pyblas_sgemm.Handle(memory_limit=1 << 30) as handle:
        with pytest.raises(Enough) as raised:
            sgemm("N", "N", n, n, n, 1, a, n, a, n, 0, c, n, handle=handle, device="cuda", progress=stop)
        assert isinstance(raised.value.__cause__, SgemmError)
        assert "stopped" in str(raised.value.__cause__) and "unchanged" in str(raised.value.__cause__)
        assert ((c == n) | (c == PADDING)).all()
        # The next product is as if nothing had been.
        sgemm("N", "N", n, n, n, 1, a, n, a, n, 0, c, n, handle=handle, device="cuda")
        assert (c == n).all()


@pytest.mark.gpu
@pytest.mark.large(host=6, gpu=2)
def test_ctrl_c(prints):
    code = """
import os, signal, threading, numpy as np, pyblas_sgemm as p
n = 16384
a, c = np.ones((n, n), np.float32), np.full((n, n), -77, np.float32)
handle = p.Handle(memory_limit=1 << 30)
p.matmul(a[:64, :64], a[:64, :64], device="cuda")
timer = threading.Timer(0.12, os.kill, (os.getpid(), signal.SIGINT))
timer.start()
try:
    while True:
        c[:] = -77
        p.sgemm("N", "N", n, n, n, 1.0, a, n, a, n, 0.0, c, n, handle=handle, device="cuda")
except KeyboardInterrupt as stop:
    print(bool(((c == n) | (c == -77)).all()))
p.sgemm("N", "N", n, n, n, 1.0, a, n, a, n, 0.0, c, n, handle=handle, device="cuda")
print(bool((c == n).all()))
"""
    assert prints(code).split() == ["True", "True"]


@pytest.mark.gpu
@pytest.mark.large(host=10, gpu=2)
@pytest.mark.parametrize("home", ["pageable", "pinned"])
def test_n1_larger_than_the_memory_it_may_use(gpu_alone, home):
    """20000^3 in a gigabyte, with gaps between rows."""
    import cupy

    n, ld, cap = 20000, 20003, 1 << 30
    rng = np.random.default_rng(1)
    line = rng.standard_normal(1 << 20, dtype=np.float32)
    # Rows that begin a little later than the one before, in a line of their own.
    windows = [np.lib.stride_tricks.as_strided(line[1000 * i :], (n, ld), (4 * 37, 4)) for i in range(3)]
    a, b, c = (HOMES[home](window) for window in windows)
    rows, columns = [0, n // 2, n - 1], slice(19000, n)
    want = a[rows, :n].astype(np.float64) @ b[:, columns].astype(np.float64) + 0.5 * c[rows, columns]
    free = cupy.cuda.runtime.memGetInfo()[0]
    least = [free]
    with pyblas_sgemm.Handle(memory_limit=cap) as handle:
        sgemm("N", "N", 64, 64, 64, 1, a, ld, b, ld, 1, c[:64, :64].copy(), 64, order="C", handle=handle, device=0)
        free = cupy.cuda.runtime.memGetInfo()[0]
        sgemm(
            "N", "N", n, n, n, 1, a, ld, b, ld, 0.5, c, ld, order="C", handle=handle, device="cuda",
            progress=lambda done: least.append(cupy.cuda.runtime.memGetInfo()[0]),
        )  # fmt: skip
    assert np.linalg.norm(c[rows, columns] - want) / np.linalg.norm(want) <= 4e-7
    assert free - min(least) <= cap + (128 << 20)  # kernels that are loaded meanwhile take some, too
    assert (c[:, n:] == windows[2][:, n:]).all()


@pytest.mark.gpu
@pytest.mark.large(host=12, gpu=2)
def test_more_than_2_to_the_31_elements(gpu_alone):
    m, n, k = 46500, 46500, 3
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    a[-1], b[:, -1] = 2, 5
    c = np.empty((m, n), np.float32)
    with pyblas_sgemm.Handle(memory_limit=1 << 30) as handle:
        sgemm("N", "N", m, n, k, 1, a, k, b, n, 0, c, n, handle=handle, device="cuda")
    assert c[0, 0] == 3 and c[-1, 0] == 6 and c[0, -1] == 15 and c[-1, -1] == 30
    assert (c[-1, :-1] == 6).all() and (c[:-1, -1] == 15).all() and (c[m // 2, : n - 1] == 3).all()


@pytest.mark.gpu
def test_auto_is_right_wherever_it_goes():
    """It tries both places where they are about as fast, and then stays in one."""
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 1100, 1100), np.float32)
    places = [matmul(a, b, device=place) for place in ("cpu", "cuda")]
    results = [matmul(a, b, device="auto") for _ in range(12)]
    assert all(any((x == y).all() for y in places) for x in results)


@pytest.mark.gpu
def test_auto_takes_large_products_to_the_gpu():
    a = np.ones((6000, 6000), np.float32)
    whole = matmul(a, a, device="auto")
    assert (whole == 6000).all()
