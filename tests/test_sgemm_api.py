"""sgemm, gemm_strided_batched, gemm_batched, Handle and compute_mode as Python sees them."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import pyblas_sgemm
from pyblas_sgemm import InvalidValueError, NotSupportedError, gemm_batched, gemm_strided_batched, sgemm

X = np.float32
A = np.array([[1, 3], [2, 4]], X)
B = np.array([[5, 7, 1], [6, 8, -2]], X)
C = np.array([[8, 4, -2], [2, 6, 10]], X)


def square(n, fill=1.0):
    return np.full((n, n), fill, X)


# ---- sgemm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transa", "transb"), ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("order", "CF")
def test_alpha_beta_and_all_orders(transa, transb, order):
    a, b = (A if transa == "N" else A.T), (B if transb == "N" else B.T)
    a, b, c = (np.array(x, order=order) for x in (a, b, C))
    lda, ldb, ldc = ((x.shape[1] if order == "C" else x.shape[0]) for x in (a, b, c))
    result = sgemm(transa, transb, 2, 3, 2, 2, a, lda, b, ldb, 0.5, c, ldc, order=order)
    assert result is c
    assert c.tolist() == [[50, 64, -11], [69, 95, -7]]


def test_row_major_recipes():
    a, b, c = np.arange(1, 7, dtype=X), np.arange(1, 13, dtype=X), np.zeros(8, X)
    sgemm("N", "N", 4, 2, 3, 1, b, 4, a, 3, 0, c, 4, order="F")
    assert c.tolist() == [38, 44, 50, 56, 83, 98, 113, 128]
    y = np.zeros(3, X)
    sgemm("T", "N", 3, 1, 2, 1, a, 2, np.array([1, 2], X), 2, 0, y, 3, order="F")
    assert y.tolist() == [5, 11, 17]


@pytest.mark.parametrize(
    ("op", "transposed"),
    [("N", 0), ("n", 0), (0, 0), (111, 0), ("T", 1), ("t", 1), ("C", 1), ("c", 1), (1, 1), (2, 1), (112, 1), (113, 1)],
)
def test_operations(op, transposed):
    c = np.zeros((2, 2), X)
    sgemm(op, "N", 2, 2, 2, 1, A, 2, np.eye(2, dtype=X), 2, 0, c, 2)
    assert (c == (A.T if transposed else A)).all()
    sgemm("N", op, 2, 2, 2, 1, np.eye(2, dtype=X), 2, A, 2, 0, c, 2)
    assert (c == (A.T if transposed else A)).all()


@pytest.mark.parametrize("op", ["", "X", "NN", "no", 3, -1, 110, 114, 1.0, True, None, b"N", ["N"], object()])
@pytest.mark.parametrize("name", ["transa", "transb"])
def test_other_operations_are_value_errors(op, name):
    ops = (op, "N") if name == "transa" else ("N", op)
    with pytest.raises(ValueError, match=f"{name} is .*; accepted are 'N', 'T', 'C' in either case, 0, 1, 2 and 111"):
        sgemm(*ops, 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2)


SIZES = ["m", "n", "k", "lda", "ldb", "ldc"]


def call_with_size(name, value):
    s = dict.fromkeys(SIZES, 2) | {name: value}
    return sgemm("N", "N", s["m"], s["n"], s["k"], 1, A, s["lda"], A, s["ldb"], 0, square(2), s["ldc"])


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_integers_of_64_bits(name):
    call_with_size(name, np.int64(2))
    call_with_size(name, np.uint8(2))
    for value in (2.0, 2.5, np.float32(2), np.float64(2), "2", None, [2]):
        with pytest.raises(TypeError, match=f"{name} is a .*; an integer is needed"):
            call_with_size(name, value)
    for value in (2**63, -(2**63) - 1, 2**64 + 2, 10**30):
        with pytest.raises(OverflowError, match=f"{name} is .* does not fit"):
            call_with_size(name, value)
    with pytest.raises(InvalidValueError, match=f"\\({name}\\) is -1"):
        call_with_size(name, -1)


def test_integers_beyond_64_bits_in_batches():
    for position in range(4):
        sizes = [1, 1, 1, 1]
        sizes[position] = 2**63
        with pytest.raises(OverflowError):
            gemm_strided_batched("N", "N", 1, 1, 1, 1, A, 1, sizes[0], A, 1, sizes[1], 0, C, 1, sizes[2], sizes[3])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lda": 3}, r"argument 8 \(lda\) is 3, must be at least .* = 4"),
        ({"ldb": 1}, r"argument 10 \(ldb\) is 1, must be at least .* = 2"),
        ({"ldc": 3}, r"argument 13 \(ldc\) is 3, must be at least .* = 4"),
        ({"m": 0, "lda": 0}, r"argument 8 \(lda\) is 0, must be at least"),
    ],
)
def test_leading_dimensions_that_are_too_small(changes, text):
    s = {"m": 4, "n": 3, "k": 2, "lda": 4, "ldb": 2, "ldc": 4} | changes
    c = np.full(12, 7, X)
    with pytest.raises(InvalidValueError, match=text):
        args = (np.ones(8, X), s["lda"], np.ones(6, X), s["ldb"], 0, c, s["ldc"])
        sgemm("N", "N", s["m"], s["n"], s["k"], 1, *args, order="F")
    assert (c == 7).all()


def test_ldc_beyond_n_and_a_buffer_that_just_fits():
    c = np.full(12, 7, X)
    sgemm("N", "N", 5, 2, 1, 1, np.ones(5, X), 5, np.ones(2, X), 1, 0, c, 7, order="F")
    assert c.tolist() == [1] * 5 + [7, 7] + [1] * 5


def test_empty_sizes_touch_nothing():
    nothing = np.zeros(0, X)
    c = square(2, 7)
    for m, n in ((0, 2), (2, 0), (0, 0)):
        assert sgemm("N", "N", m, n, 2, 1, nothing, 2, nothing, 2, 0, c, 2) is c
        assert sgemm("N", "N", m, n, 2, 1, nothing, 2, nothing, 2, 0, nothing, 2) is nothing
    assert (c == 7).all()
    gemm_strided_batched("N", "N", 2, 2, 2, 1, nothing, 2, 4, nothing, 2, 4, 0, nothing, 2, 4, 0)
    with pytest.raises(InvalidValueError, match="lda"):
        gemm_strided_batched("N", "N", 2, 2, 2, 1, nothing, 1, 4, nothing, 2, 4, 0, nothing, 2, 4, 0)
    sgemm("N", "N", 2, 2, 0, 1, nothing, 2, nothing, 2, 0.5, c, 2)
    assert (c == 3.5).all()


def test_operands_that_are_not_read_may_be_none():
    c = square(2)
    sgemm("N", "N", 2, 2, 2, 0, None, 2, None, 2, 3, c, 2)
    assert (c == 3).all()
    sgemm("N", "N", 2, 2, 0, 1, None, 2, None, 2, 0, c, 2)
    assert not c.any()
    for name, arrays in {"A": (None, A, c), "B": (A, None, c), "C": (A, A, None)}.items():
        with pytest.raises(InvalidValueError, match=f"\\({name}\\) is NULL"):
            sgemm("N", "N", 2, 2, 2, 1, arrays[0], 2, arrays[1], 2, 0, arrays[2], 2)


def test_read_only_c():
    c = square(2)
    c.flags.writeable = False
    with pytest.raises(ValueError, match="C is read-only"):
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, c, 2)
    assert (c == 1).all()


def test_temporaries():
    base = np.arange(1_000_000, dtype=X).reshape(1000, 1000) % 17
    c = np.empty((2, 2), X)
    for _ in range(100):
        a = sgemm("N", "N", 2, 2, 1000, 1, (base + base)[:2].copy(), 1000, (base - base) + 1, 1000, 0, c, 2)
        gc.collect(0)
        assert a[0, 0] == 2 * base[0].sum()


def test_numbers_go_to_float32_once():
    c = np.zeros((1, 1), X)
    sgemm("N", "N", 1, 1, 1, 0.1, np.ones((1, 1), X), 1, np.ones((1, 1), X), 1, 0.0, c, 1)
    assert c[0, 0] == X(0.1)
    with pytest.raises(OverflowError):
        sgemm("N", "N", 1, 1, 1, 10**400, np.ones((1, 1), X), 1, np.ones((1, 1), X), 1, 0.0, c, 1)


# ---- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize(("shared_a", "shared_b"), [(False, True), (True, False), (True, True), (False, False)])
def test_stride_zero_is_one_matrix_for_all(n, shared_a, shared_b):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (7, n, n)).astype(X) for _ in range(2))
    c, loop = np.zeros((7, n, n), X), np.zeros((7, n, n), X)
    strides = [0 if shared_a else n * n, 0 if shared_b else n * n]
    gemm_strided_batched("N", "T", n, n, n, 1, a, n, strides[0], b, n, strides[1], 0, c, n, n * n, 7)
    for i in range(7):
        sgemm("N", "T", n, n, n, 1, a[0 if shared_a else i], n, b[0 if shared_b else i], n, 0, loop[i], n)
    assert (c == loop).all()


def test_strides_beyond_the_buffer():
    a, c = np.ones((7, 5, 5), X), np.zeros((7, 5, 5), X)
    with pytest.raises(ValueError, match="A needs 625 elements, its buffer has 175"):
        gemm_strided_batched("N", "N", 5, 5, 5, 1, a, 5, 100, a, 5, 25, 0, c, 5, 25, 7)  # bytes by mistake
    with pytest.raises(ValueError, match="C needs 176 elements, its buffer has 175"):
        gemm_strided_batched("N", "N", 1, 5, 5, 1, a, 5, 25, a, 5, 25, 0, c, 5, 171, 2)


def test_outputs_that_meet():
    a, c = np.ones((4, 2, 2), X), np.zeros(64, X)
    for stride in (0, 1, 3):
        with pytest.raises(InvalidValueError, match="strideC"):
            gemm_strided_batched("N", "N", 2, 2, 2, 1, a, 2, 4, a, 2, 4, 0, c, 2, stride, 4)
    gemm_strided_batched("N", "N", 2, 2, 2, 1, a, 2, 4, a, 2, 4, 0, c, 8, 2, 4)  # interleaved
    assert c[:16].tolist() == [2] * 16 and not c[16:].any()


def test_attention_without_copies():
    rng = np.random.default_rng(3)
    tokens, heads, dim = 9, 4, 8
    q, k = (rng.integers(-3, 4, (tokens, heads, dim)).astype(X) for _ in range(2))
    scores = np.empty((heads, tokens, tokens), X)
    width = heads * dim
    gemm_strided_batched(
        "N", "T", tokens, tokens, dim, 1, q, width, dim, k, width, dim, 0, scores, tokens, tokens**2, heads
    )
    assert (scores == np.einsum("ihd,jhd->hij", q, k)).all()
    out = np.full((tokens, heads, dim), np.nan, X)
    gemm_strided_batched(
        "N", "N", tokens, dim, tokens, 1, scores, tokens, tokens**2, k, width, dim, 0, out, width, dim, heads
    )
    assert (out == np.einsum("hij,jhd->ihd", scores, k)).all()


@pytest.mark.parametrize("batch", [65535, 65536, 65537, 200_000])
def test_many_small_products(batch):
    a, c = np.ones(batch, X), np.zeros(batch, X)
    gemm_strided_batched("N", "N", 1, 1, 1, 1, a, 1, 1, a, 1, 1, 0, c, 1, 1, batch)
    assert (c == 1).all()


def test_gemm_batched():
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(-4, 5, (6, 5, 5)).astype(X) for _ in range(3))
    want = a @ b.transpose(0, 2, 1) * 2 + c * 3
    cs = list(c)
    assert gemm_batched("N", "T", 5, 5, 5, 2, list(a), 5, list(b), 5, 3, cs, 5) is cs
    assert (c == want).all()
    one = [np.eye(5, dtype=X)] * 6
    gemm_batched("N", "N", 5, 5, 5, 1, one, 5, b, 5, 0, c, 5)
    assert (c == b).all()
    assert gemm_batched("N", "N", 5, 5, 5, 1, [], 5, [], 5, 0, [], 5) == []


def test_gemm_batched_wants_sequences():
    for name, arrays in (("As", (None, [A], [A])), ("Bs", ([A], iter([A]), [A])), ("Cs", ([A], [A], 5))):
        with pytest.raises(TypeError, match=f"gemm_batched: {name} is a .*; a sequence of arrays is needed"):
            gemm_batched("N", "N", 2, 2, 2, 1, arrays[0], 2, arrays[1], 2, 0, arrays[2], 2)


def test_gemm_batched_checks_every_array():
    def arrays(**changes):
        xs = {
            "A": [square(3) for _ in range(4)],
            "B": [square(3) for _ in range(4)],
            "C": [square(3) for _ in range(4)],
        }
        for name, x in changes.items():
            xs[name][2] = x(xs) if callable(x) else x
        return xs

    def run(xs):
        return gemm_batched("N", "N", 3, 3, 3, 1, xs["A"], 3, xs["B"], 3, 0, xs["C"], 3)

    for name in "ABC":
        with pytest.raises(ValueError, match=rf"{name}s\[2\] needs 9 elements, its buffer has 8"):
            run(arrays(**{name: np.ones(8, X)}))
        with pytest.raises(TypeError, match=rf"{name}s\[2\] holds float64"):
            run(arrays(**{name: np.ones((3, 3))}))
    frozen = square(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"Cs\[2\] is read-only"):
        run(arrays(C=frozen))
    with pytest.raises(ValueError, match=r"Cs\[2\] overlaps Cs\[0\] in memory"):
        run(arrays(C=lambda xs: xs["C"][0]))
    with pytest.raises(ValueError, match=r"Cs\[2\] overlaps As\[3\] in memory"):
        run(arrays(C=lambda xs: xs["A"][3]))
    with pytest.raises(ValueError, match=r"Cs\[2\] overlaps Bs\[0\] in memory"):
        run(arrays(C=lambda xs: xs["B"][0]))
    with pytest.raises(ValueError, match="4 A, 3 B and 4 C"):
        xs = arrays()
        run(xs | {"B": xs["B"][:3]})


def test_gemm_batched_on_interleaved_columns():
    memory = np.zeros((4, 12), X)
    cs = [memory[:, i : i + 3] for i in range(0, 12, 3)]
    eye, b = np.eye(4, dtype=X), np.arange(12, dtype=X).reshape(4, 3)
    gemm_batched("N", "N", 4, 3, 4, 1, [eye] * 4, 4, [b] * 4, 3, 0, cs, 12)
    assert (memory == np.tile(b, 4)).all()
    cs[1] = memory[:, 2:5]
    with pytest.raises(ValueError, match=r"Cs\[1\] overlaps Cs\[0\]"):
        gemm_batched("N", "N", 4, 3, 4, 1, [eye] * 4, 4, [b] * 4, 3, 0, cs, 12)


# ---- compute modes -------------------------------------------------------------------------------------------------


def test_default_is_full_fp32():
    c = np.zeros((1, 1), X)
    sgemm("N", "N", 1, 1, 1, 1, np.full((1, 1), 1024.5, X), 1, np.ones((1, 1), X), 1, 0, c, 1)
    assert c[0, 0] == 1024.5
    a = np.array([[1.1111111, 2.2222222], [3.3333333, 4.4444444]], X)
    sgemm("N", "T", 2, 2, 2, 1, a, 2, a, 2, 0, c := np.zeros((2, 2), X), 2)
    np.testing.assert_allclose(c, [[6.1728387, 13.580245], [13.580245, 30.864195]], rtol=2e-7)


@pytest.mark.parametrize("mode", ["fp32", "fp32_pedantic"])
def test_modes_of_calls_handles_and_threads(mode):
    c = square(2, np.nan)
    sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, c, 2, compute=mode)
    assert (c == A @ A).all()
    with pyblas_sgemm.Handle(compute=mode) as handle:
        assert handle.compute == mode
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, c, 2, handle=handle)
    before = current()
    with pyblas_sgemm.compute_mode(mode):
        assert current() == mode
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, c, 2, compute="fp32")
        assert current() == mode
        with pyblas_sgemm.compute_mode("fp32"):
            assert current() == "fp32"
        assert current() == mode
    assert current() == before


def current():
    return pyblas_sgemm.Handle().compute


def test_compute_mode_belongs_to_its_thread():
    seen = []
    with pyblas_sgemm.compute_mode("fp32_pedantic"):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert current() == "fp32_pedantic"
    assert seen == ["fp32"]


def test_one_compute_mode_in_two_threads_at_once():
    """Its blocks end in the order in which they began: each thread is back where it was."""
    mode, inside, left, seen = pyblas_sgemm.compute_mode("tf32"), threading.Event(), threading.Event(), []

    def other():
        with pyblas_sgemm.compute_mode("fp32_pedantic"):
            with mode:
                inside.set()
                left.wait(60)
            seen.append(current())
        seen.append(current())

    thread = threading.Thread(target=other)
    with mode:
        thread.start()
        assert inside.wait(60)
    mine = current()
    left.set()
    thread.join()
    assert (mine, seen) == ("fp32", ["fp32_pedantic", "fp32"])


def test_compute_mode_ends_with_an_exception():
    mode = pyblas_sgemm.compute_mode("fp32_pedantic")
    for _ in range(2):
        with pytest.raises(KeyError), mode, mode:
            raise KeyError
        assert current() == "fp32"


@pytest.mark.parametrize("wrong", ["fp64", "FP32", "", None, 68])
def test_unknown_modes_are_value_errors(wrong):
    text = "accepted are 'fp32', 'fp32_pedantic', 'tf32'"
    with pytest.raises(ValueError, match=text):
        pyblas_sgemm.compute_mode(wrong)
    if wrong is not None:
        with pytest.raises(ValueError, match=text):
            pyblas_sgemm.Handle(compute=wrong)
        with pytest.raises(ValueError, match=text):
            sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, compute=wrong)


def test_tf32_wherever_a_mode_can_be_named():
    want = A @ A
    assert np.allclose(sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2, 7), 2, compute="tf32"), want, rtol=2e-3)
    assert np.allclose(pyblas_sgemm.matmul(A, A, compute="tf32"), want, rtol=2e-3)
    assert pyblas_sgemm.Handle(compute="tf32").compute == "tf32"
    with pyblas_sgemm.compute_mode("tf32"):
        assert current() == "tf32"
    assert current() == "fp32"


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )


def test_environment_handle_and_call_in_conflict():
    code = """
import numpy as np, pyblas_sgemm as p
x = np.ones((2, 2), np.float32); c = np.zeros((2, 2), np.float32)
print(p.Handle().compute, p.Handle(compute="fp32").compute)
with p.compute_mode("fp32"):
    print(p.Handle().compute)
print(p.Handle().compute)
"""
    done = python(code, PYBLAS_SGEMM_COMPUTE="fp32_pedantic")
    assert (done.stdout.split(), done.stderr) == (["fp32_pedantic", "fp32", "fp32", "fp32_pedantic"], "")
    one, other = cpu_kernels()[:2]
    code = f"""
import pyblas_sgemm as p
print(p.Handle().kernel, p.Handle(kernel="{other.name}").kernel)
print(p.selected_kernel("N", "N", 9, 9, 9).name)
print(p.selected_kernel("N", "N", 9, 9, 9, handle=p.Handle(kernel="{other.name}")).name)
"""
    done = python(code, PYBLAS_SGEMM_KERNEL=one.name)
    assert (done.stdout.split(), done.stderr) == ([one.name, other.name] * 2, "")
    done = python("import numpy as np, pyblas_sgemm as p; p.Handle()", PYBLAS_SGEMM_COMPUTE="fp64")
    assert done.returncode == 1 and "PYBLAS_SGEMM_COMPUTE" in done.stderr and "fp64" in done.stderr


@pytest.mark.gpu
def test_what_runs_on_a_gpu_is_of_the_mode_that_goes_first():
    """Call, handle, thread, environment; told by the bits, which all three modes have of their own."""
    code = """
import cupy, numpy as np, pyblas_sgemm as p
n = 2048  # tf32 takes the kernel of fp32 where packing is most of the work
a, b = (cupy.asarray(np.random.default_rng(seed).standard_normal((n, n), dtype=np.float32)) for seed in (1, 2))

def bits(**words):
    c = cupy.empty((n, n), np.float32)
    return cupy.asnumpy(p.sgemm("N", "N", n, n, n, 1, a, n, b, n, 0, c, n, **words)).tobytes()

def name(**words):
    return p.selected_kernel("N", "N", n, n, n, device=0, **words).name

modes = ("fp32", "fp32_pedantic", "tf32")
bits_of, name_of = ({mode: what(compute=mode) for mode in modes} for what in (bits, name))
assert len(set(bits_of.values())) == len(set(name_of.values())) == 3, name_of
for what, of in (bits, bits_of), (name, name_of):
    assert what() == of["fp32_pedantic"]
    with p.compute_mode("fp32"):
        assert what() == of["fp32"]
        handle = p.Handle(compute="tf32")
        assert what(handle=handle) == of["tf32"]
        assert what(handle=handle, compute="fp32_pedantic") == of["fp32_pedantic"]
        assert what(handle=handle) == of["tf32"]
        assert what(handle=p.Handle()) == of["fp32"]
    assert what(handle=p.Handle()) == of["fp32_pedantic"]
"""
    done = python(code, PYBLAS_SGEMM_COMPUTE="fp32_pedantic")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_handle_is_not_copied(again):
    """A copy would destroy the C handles of the first a second time."""
    with pyblas_sgemm.Handle() as handle, pytest.raises(TypeError, match="a Handle cannot be copied or pickled"):
        again(handle)


# ---- devices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["gpu", "", -1, 1.0, True, "cuda:x", 1 << 31, f"cuda:{1 << 64}", "cuda:²", "٣"])
def test_unknown_devices_are_value_errors(device):
    with pytest.raises(ValueError, match="device is"):
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, device=device)
    with pytest.raises(ValueError, match="device is"):
        pyblas_sgemm.Handle(device)


def test_device_cpu():
    assert (sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, device="cpu") == A @ A).all()


# ---- handles -------------------------------------------------------------------------------------------------------


def test_handle_settings():
    handle = pyblas_sgemm.Handle("cpu", workspace_limit=1 << 20)
    assert handle.device == "cpu" and handle.workspace_limit == 1 << 20
    handle.workspace_limit = 0
    assert handle.workspace_limit == 0
    handle.compute = "fp32_pedantic"
    assert handle.compute == "fp32_pedantic" and handle.batch_invariant is False
    assert handle.kernel is None
    handle.free_workspace()
    assert "cpu" in repr(handle) and "fp32_pedantic" in repr(handle)
    handle.close()
    handle.close()
    assert handle.closed and "closed" in repr(handle)
    for use in (
        lambda: sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, handle=handle),
        handle.free_workspace,
        lambda: setattr(handle, "compute", "fp32"),
        lambda: setattr(handle, "workspace_limit", 1),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_handle_that_follows_the_arrays():
    with pyblas_sgemm.Handle() as handle:
        assert handle.device is None
        assert (sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, handle=handle) == A @ A).all()
        assert handle.workspace_limit >= 0


def test_handle_of_another_type():
    with pytest.raises(TypeError, match="sgemm: handle is of type str"):
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, handle="cpu")
    with pytest.raises(TypeError, match="selected_kernel: handle is of type int"):
        pyblas_sgemm.selected_kernel("N", "N", 2, 2, 2, handle=5)


@pytest.mark.parametrize(("name", "least"), [("workspace_limit", 0), ("memory_limit", 1)])
def test_limits_that_are_no_sizes(name, least):
    for limit in (least - 1, 2**64):
        with pytest.raises(ValueError, match=f"{name} is {limit}; a number of bytes from {least}"):
            pyblas_sgemm.Handle("cpu", **{name: limit})
    for limit in ("1", 1.5):
        with pytest.raises(TypeError, match=f"{name} is {limit!r}; a number of bytes"):
            pyblas_sgemm.Handle("cpu", **{name: limit})


def test_batch_invariant_is_yes_or_no():
    for on in (True, np.True_, 1, np.int64(1)):
        assert pyblas_sgemm.Handle("cpu", batch_invariant=on).batch_invariant is True
    for wrong in ("no", 2, 0.0, []):
        with pytest.raises(TypeError, match="batch_invariant is"):
            pyblas_sgemm.Handle("cpu", batch_invariant=wrong)
        with pytest.raises(TypeError, match="batch_invariant is"):
            sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, batch_invariant=wrong)


def test_progress_is_a_function():
    for wrong in (1, "all"):
        with pytest.raises(TypeError, match="sgemm: progress is a"):
            sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, progress=wrong)
        with pytest.raises(TypeError, match="matmul: progress is a"):
            pyblas_sgemm.matmul(A, A, progress=wrong)


@pytest.mark.parametrize("several", [[2.0], [[2.0]], [], [2, 3]])
def test_an_array_of_several_is_no_scalar(several):
    with pytest.raises(TypeError, match=r"sgemm: beta has shape .*; a number or a 0-d array is needed"):
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, np.array(several), square(2), 2)


def test_scalars_beyond_floats_are_overflow_errors_that_name_the_argument():
    with pytest.raises(OverflowError, match="sgemm: alpha is an integer of 1329 bits"):
        sgemm("N", "N", 2, 2, 2, 10**400, A, 2, A, 2, 0, square(2), 2)
    with pytest.raises(OverflowError, match="sgemm: beta is an integer"):
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, -(10**400), square(2), 2)


def cpu_kernels():
    return [row for row in pyblas_sgemm.kernels() if row.engine == "cpu"]


def test_kernel_table():
    rows = pyblas_sgemm.kernels()
    assert rows and len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.engine in ("cpu", "gpu") and row.modes and set(row.modes) <= {"fp32", "fp32_pedantic", "tf32"}
        assert row.name.startswith(row.family) or row.family
        for number in (row.min_sm, row.threads, row.registers):
            assert (number == 0) == (row.engine == "cpu")


@pytest.mark.parametrize("row", cpu_kernels(), ids=lambda row: row.name)
def test_forced_kernels(row):
    with pyblas_sgemm.Handle("cpu", kernel=row.name) as handle:
        assert handle.kernel == row.name
        try:
            chosen = pyblas_sgemm.selected_kernel("N", "N", 8, 8, 8, handle=handle)
        except NotSupportedError:
            return  # it says so instead of being replaced
        assert chosen.name == row.name
        c = square(8)
        sgemm("N", "N", 8, 8, 8, 1, square(8), 8, square(8), 8, 0, c, 8, handle=handle)
        assert (c == 8).all()
        handle.kernel = None
        assert handle.kernel is None


def test_kernels_of_another_engine_are_never_replaced_silently():
    for name in [row.name for row in pyblas_sgemm.kernels() if row.engine == "gpu"][:1]:
        late = pyblas_sgemm.Handle()
        sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, handle=late)
        late.kernel = name
        for handle in (late, pyblas_sgemm.Handle(kernel=name)):
            assert handle.kernel == name
            with pytest.raises(pyblas_sgemm.SgemmError, match=name):
                sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, handle=handle)
            handle.kernel = None
            assert (sgemm("N", "N", 2, 2, 2, 1, A, 2, A, 2, 0, square(2), 2, handle=handle) == A @ A).all()


def test_kernels_that_do_not_exist():
    with pytest.raises(ValueError, match="kernel is 'fast'; there are"):
        pyblas_sgemm.Handle(kernel="fast")
    handle = pyblas_sgemm.Handle()
    with pytest.raises(ValueError, match="kernel is 'fast'; there are"):
        handle.kernel = "fast"
    assert handle.kernel is None


def test_selected_kernel():
    names = {row.name for row in cpu_kernels()}
    for batch in (1, 1000):
        chosen = pyblas_sgemm.selected_kernel("N", "T", 64, 32, 16, batch_count=batch)
        assert chosen.name in names and chosen.reason
    row_major = pyblas_sgemm.selected_kernel("N", "T", 3, 4096, 512, order="C")
    column_major = pyblas_sgemm.selected_kernel("T", "N", 4096, 3, 512, order="F")
    assert row_major.name == column_major.name
    for order in "CF":
        for name, sizes in (("m", (-1, 1, 1)), ("n", (1, -1, 1)), ("k", (1, 1, -1))):
            with pytest.raises(InvalidValueError, match=f"selected_kernel: {name} is -1, must be at least 0"):
                pyblas_sgemm.selected_kernel("N", "N", *sizes, order=order)
        with pytest.raises(InvalidValueError, match="selected_kernel: batch_count is -2, must be at least 0"):
            pyblas_sgemm.selected_kernel("N", "N", 1, 1, 1, batch_count=-2, order=order)
    with pytest.raises(ValueError, match="transb"):
        pyblas_sgemm.selected_kernel("N", "X", 1, 1, 1)


def test_one_handle_in_many_threads():
    handle = pyblas_sgemm.Handle()
    rng = np.random.default_rng(5)
    a = rng.integers(-8, 9, (20, 20)).astype(X)
    want = a @ a
    wrong = []

    def work(mode):
        for _ in range(100):
            c = np.full((20, 20), np.nan, X)
            sgemm("N", "N", 20, 20, 20, 1, a, 20, a, 20, 0, c, 20, handle=handle, compute=mode)
            if not (c == want).all():
                wrong.append(mode)

    threads = [threading.Thread(target=work, args=(mode,)) for mode in ("fp32", "fp32_pedantic", None) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and handle.compute == "fp32"


# ---- import and exit -----------------------------------------------------------------------------------------------


def test_import_is_light():
    code = """
import sys, numpy
before = set(sys.modules)
import pyblas_sgemm
heavy = {"scipy", "cupy", "torch", "jax", "scipy_openblas32"}
print(sorted(heavy & set(sys.modules)))
pyblas_sgemm.matmul(numpy.ones(3, numpy.float32), numpy.ones(3, numpy.float32))
print(sorted(heavy & set(sys.modules)))
"""
    done = python(code)
    assert (done.stdout.splitlines(), done.stderr) == (["[]", "[]"], "")


@pytest.mark.parametrize(
    "ending", ["", "raise SystemExit(3)", "import sys; sys.exit(3)", "1 / 0", "import os; os._exit(3)"]
)
def test_exits_are_quiet(ending):
    code = f"""
import threading, numpy as np, pyblas_sgemm as p
x = np.ones((300, 300), np.float32)
keep = p.Handle("cpu")
def work():
    while True:
        p.matmul(x, x)
threading.Thread(target=work, daemon=True).start()
other = threading.Thread(target=lambda: p.matmul(x, x))
other.start(); other.join()
p.matmul(x, x)
{ending}
"""
    done = python(code)
    expected = 0 if not ending else 1 if ending == "1 / 0" else 3
    assert done.returncode == expected and done.stdout == ""
    assert done.stderr.strip().endswith("ZeroDivisionError: division by zero") if expected == 1 else done.stderr == ""


def test_handles_go_with_their_threads():
    counts = []

    def work():
        pyblas_sgemm.matmul(A, A)
        from pyblas_sgemm import _handle

        counts.append(len(_handle.thread.contexts))

    for _ in range(50):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    gc.collect()
    from pyblas_sgemm._handle import Context

    assert counts == [1] * 50
    assert sum(type(x) is Context for x in gc.get_objects()) < 20


def test_the_blas_is_scipy_openblas():
    code = "import pyblas_sgemm, numpy as np; pyblas_sgemm.matmul(*[np.ones((9, 9), np.float32)] * 2); print(pyblas_sgemm.info())"
    assert "scipy_openblas" in python(code, PYBLAS_SGEMM_BLAS_LIB="").stdout


def test_an_unbuilt_source_tree_says_what_to_do(tmp_path):
    folder = tmp_path / "pyblas_sgemm"
    folder.mkdir()
    for source in Path(pyblas_sgemm.__file__).parent.glob("*.py"):
        (folder / source.name).write_bytes(source.read_bytes())
    done = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pyblas_sgemm")
    assert done.stderr.splitlines()[-1].startswith("ImportError: pyblas_sgemm is not built here: run 'pip install .'")


def test_a_product_in_c_may_come_first():
    code = """
import numpy as np
from pyblas_sgemm._cffi import ffi, lib
import pyblas_sgemm
handle = ffi.new("pyblasHandle_t *")
lib.pyblasCreateCpu(handle)
x = np.ones((600, 600), np.float32)
c = np.zeros_like(x)
at = [ffi.cast("float *", array.ctypes.data) for array in (x, c)]
scalars = ffi.new("float[2]", [1, 0])
args = (600, 600, 600, scalars, at[0], 600, at[0], 600, scalars + 1, at[1], 600)
assert lib.pyblasSgemm(handle[0], 0, 0, *args) == 0
print((pyblas_sgemm.matmul(x, x) == c).all())
"""
    done = python(code)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_names_of_the_package():
    for name in pyblas_sgemm.__all__:
        assert getattr(pyblas_sgemm, name) is not None
        if callable(getattr(pyblas_sgemm, name)):
            assert getattr(pyblas_sgemm, name).__doc__
