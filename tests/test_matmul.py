"""matmul follows numpy.matmul: shapes, stacks, views, and out in any layout, in place or through a temporary."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyblas_sgemm
from pyblas_sgemm import InvalidValueError, _arrays, _matmul, matmul


def integers(shape, seed=0):
    """Small enough that every product and sum is exact, so results are compared for equality."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def exact(a, b):
    return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)


# ---- shapes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((7, 3, 4), (4, 5)),
        ((3, 4), (7, 4, 5)),
        ((7, 3, 4), (7, 4, 5)),
        ((7, 3, 4), (1, 4, 5)),
        ((2, 1, 3, 4), (7, 4, 5)),
        ((2, 7, 3, 4), (4,)),
        ((4,), (2, 7, 4, 5)),
        ((6, 1, 3, 4), (1, 7, 4, 5)),
        ((2, 3, 4, 3, 4), (2, 1, 4, 4, 5)),
        ((1, 1), (1, 1)),
        ((5, 0), (0,)),
        ((5, 0), (0, 3)),
        ((0, 4), (4, 5)),
        ((3, 4), (4, 0)),
        ((0, 3, 4), (4, 5)),
        ((0,), (0,)),
        ((2, 0, 3), (3, 4)),
        ((1, 2560, 8), (8, 3)),
    ],
    ids=str,
)
def test_shapes(a, b):
    a, b = integers(a, 1), integers(b, 2)
    want = exact(a, b)
    got = matmul(a, b)
    assert got.shape == want.shape and got.dtype == np.float32 and type(got) is type(want)
    assert (got == want).all()
    if want.ndim:
        out = np.full(want.shape, np.nan, np.float32)
        assert matmul(a, b, out=out) is out
        assert (out == want).all()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (3, 4)),
        ((4,), (3,)),
        ((3, 4), (5,)),
        ((5, 3, 1), (3, 1, 4)),
        ((2, 3, 4), (3, 4, 5)),
        ((1, 2560, 8), (9, 3)),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_named(a, b):
    with pytest.raises(ValueError, match=f"matmul: shapes {a} and {b}".replace("(", r"\(").replace(")", r"\)")):
        matmul(integers(a), integers(b))
    with pytest.raises(ValueError):
        np.matmul(integers(a), integers(b))


@pytest.mark.parametrize(("a", "b"), [((), (3,)), ((3,), ()), ((), ())])
def test_numbers_are_refused(a, b):
    with pytest.raises(ValueError, match="a number is not a matrix"):
        matmul(integers(a), integers(b))


def test_k_zero_is_zero_and_beta_counts():
    assert matmul(integers((5, 0)), integers((0,))).tolist() == [0] * 5
    out = integers((5, 3))
    want = 2 * out
    matmul(integers((5, 0)), integers((0, 3)), out=out, beta=2)
    assert (out == want).all()


# ---- dtypes and arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, ">f4", np.int32, np.float16, np.complex64, bool])
def test_other_dtypes_are_type_errors(dtype):
    good, bad = integers((3, 3)), np.ones((3, 3), dtype)
    for arguments in ((bad, good), (good, bad)):
        with pytest.raises(TypeError, match="float32 in native byte order is needed"):
            matmul(*arguments)
    with pytest.raises(TypeError, match="out"):
        matmul(good, good, out=bad)


def test_out_of_another_shape():
    for shape in ((3, 4), (4, 3), (3,), (1, 3, 3)):
        with pytest.raises(ValueError, match="out has shape"):
            matmul(integers((3, 2)), integers((2, 3)), out=np.zeros(shape, np.float32))


def test_read_only_arrays():
    a, out = integers((3, 3)), np.zeros((3, 3), np.float32)
    want = exact(a, a)
    a.flags.writeable = False
    assert (matmul(a, a) == want).all()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        matmul(a, a, out=out)
    assert not out.any()


def test_alpha_and_beta():
    a, b, c = integers((4, 5), 1), integers((5, 6), 2), integers((4, 6), 3)
    want = 2 * exact(a, b) - 3 * c
    assert matmul(a, b, out=c, alpha=2, beta=-3) is c
    assert (c == want).all()
    assert (matmul(a, b, alpha=np.float32(0.5)) == exact(a, b) / 2).all()
    with pytest.raises(ValueError, match="beta needs out"):
        matmul(a, b, beta=1)
    c[:] = np.nan
    assert (matmul(a, b, out=c) == exact(a, b)).all()
    assert not matmul(a, b, out=np.full_like(c, np.nan), alpha=0).any()


def test_out_does_not_accumulate_by_default():
    a, b = integers((4, 4), 1), integers((4, 4), 2)
    out = np.full((4, 4), 5, np.float32)
    for _ in range(2):
        assert (matmul(a, b, out=out) == exact(a, b)).all()


def test_compute_mode_of_a_call():
    a = integers((3, 3))
    assert (matmul(a, a, compute="fp32_pedantic") == exact(a, a)).all()
    with pytest.raises(ValueError, match="compute"):
        matmul(a, a, compute="fp64")


def test_buffers_give_numpy_arrays():
    result = matmul(memoryview(integers((2, 3))), memoryview(integers((3, 2))))
    assert isinstance(result, np.ndarray) and result.shape == (2, 2)


# ---- views ---------------------------------------------------------------------------------------------------------


def test_stacks_of_more_axes_than_numpy_broadcasts():
    ones = (1,) * (28 if np.__version__.startswith("1.") else 40)  # arrays of NumPy 1 have no more than 32 axes
    a, b = integers((*ones, 2, 3, 4)), integers((1, 1, 1, 2, 1, 4, 5))
    got = matmul(a, b)
    assert got.shape == (*ones[:-1], 2, 2, 3, 5)
    np.testing.assert_array_equal(got.reshape(2, 2, 3, 5), a.reshape(2, 3, 4) @ b.reshape(2, 1, 4, 5))


def test_a_result_beyond_all_memory():
    with pytest.raises(ValueError, match=r"the result, \(\d+, \d+\), has more than 2\^63 bytes"):
        matmul(np.empty((1 << 31, 0), np.float32), np.empty((0, 1 << 31), np.float32))


def test_broadcast_reversed_and_stepped_vectors():
    ones = np.ones((2, 4), np.float32)
    assert matmul(ones, np.broadcast_to(np.float32(1), (4, 1))).tolist() == [[4], [4]]
    v = np.arange(8, dtype=np.float32)
    assert matmul(v[::-1], v[::-1]) == 140
    assert matmul(v[::-1], v) == 56
    assert matmul(v[::2], v[1::2]) == exact(v[::2], v[1::2])
    assert matmul(v[::-2], v[::2]) == exact(v[::-2], v[::2])


def test_overlapping_windows():
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    w = np.lib.stride_tricks.as_strided(x, (2, 2, 2), (12, 4, 4))
    assert matmul(w, w).tolist() == [[[5, 8], [8, 13]], [[41, 50], [50, 61]]]


@pytest.mark.parametrize("stride", [0, 16, 4_000_000, -20])
def test_strides_of_single_axes_mean_nothing(stride):
    row = np.lib.stride_tricks.as_strided(integers(5, 1), (1, 5), (stride, 4))
    column = np.lib.stride_tricks.as_strided(integers(5, 2), (5, 1), (4, stride))
    assert (matmul(row, column) == exact(row.copy(), column.copy())).all()
    assert (matmul(column, row) == exact(column.copy(), row.copy())).all()


def test_stack_that_repeats_one_matrix_times_a_vector():
    a = np.broadcast_to(integers((2, 1)), (3, 2, 1))
    assert (matmul(a, integers((1,), 1)) == exact(a, integers((1,), 1))).all()
    assert (matmul(integers((1,), 1), a.swapaxes(1, 2)) == exact(integers((1,), 1), a.swapaxes(1, 2))).all()


def test_vectors_and_buffers_followed_by_nan():
    memory = np.full(16, np.nan, np.float32)
    memory[:4], memory[8:10] = [1, 2, 3, 4], [2, 1]
    assert matmul(memory[:4].reshape(2, 2), memory[8:10]).tolist() == [4, 10]


SLICES = [slice(None), slice(None, None, -1), slice(1, None), slice(None, -1), slice(None, None, 2), slice(1, None, 2)]


@st.composite
def view_of(draw, shape, seed):
    """An array of that shape that is some view of a larger one."""
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
    slices = [draw(st.sampled_from(SLICES)) for _ in shape]
    extra = [{None: 1, -1: 1}.get(s.step, s.step or 1) for s in slices]
    full = [n * step + 2 for n, step in zip(shape, extra, strict=True)]
    memory = integers([full[i] for i in order], seed)
    inverse = np.argsort(order)
    x = memory.transpose(inverse)[tuple(slices)]
    x = x[tuple(slice(0, n) for n in shape)]
    if len(shape) and draw(st.integers(0, 5)) == 0:
        axis = draw(st.integers(0, len(shape) - 1))
        x = np.broadcast_to(x[(slice(None),) * axis + (slice(0, 1),)], shape)
    assert x.shape == tuple(shape)
    return x


sizes = st.integers(0, 6) | st.integers(1, 20)


@st.composite
def products(draw):
    """Two operands that fit, as views, and a view to write to."""
    k = draw(sizes)
    stack = draw(st.lists(st.integers(1, 4), max_size=3))
    shapes = []
    for matrix in ((draw(sizes), k), (k, draw(sizes))):
        kept = draw(st.integers(0, len(stack)))
        own = [1 if draw(st.integers(0, 3)) == 0 else n for n in stack[len(stack) - kept :]]
        shapes.append([*own, *matrix])
    if draw(st.integers(0, 5)) == 0:
        shapes[0] = [k]
    if draw(st.integers(0, 5)) == 0:
        shapes[1] = [k]
    a, b = (draw(view_of(shape, seed)) for seed, shape in enumerate(shapes, 1))
    want = exact(a, b)
    out = draw(view_of(want.shape, 3)) if want.ndim else None
    if out is not None and not out.flags.writeable:
        out = out.copy()
    return a, b, want, out


@given(products(), st.sampled_from([(1, 0), (2, 0), (1, 1), (-2, 0.5), (0, 2), (0, 0)]))
def test_any_views(case, scalars):
    a, b, want, out = case
    assert (matmul(a, b) == want).all()
    if out is None:
        return
    alpha, beta = scalars
    memory = out if out.base is None else out.base
    before = memory.copy()
    if beta == 0:
        out[...] = np.nan
    expected = np.float32(alpha) * want + (np.float32(beta) * out if beta else 0)
    assert matmul(a, b, out=out, alpha=alpha, beta=beta) is out
    assert (out == expected).all()
    # Nothing outside of out was written.
    after = memory.copy()
    _same_view(out, memory, after)[...] = 0
    _same_view(out, memory, before)[...] = 0
    assert (after == before).all()


def _same_view(x, memory, other):
    offset = x.ctypes.data - memory.ctypes.data
    return np.ndarray(x.shape, x.dtype, buffer=other.data, offset=offset, strides=x.strides)


@given(st.data())
def test_out_that_overlaps_the_inputs(data):
    n = data.draw(st.integers(1, 8))
    pool = integers(4 * n * n + 8, data.draw(st.integers(0, 99)))

    def some():
        offset = data.draw(st.integers(0, len(pool) - n * n))
        x = pool[offset : offset + n * n].reshape(n, n)
        return x.T if data.draw(st.booleans()) else x

    a, b, out = some(), some(), some()
    want = exact(a, b)
    matmul(a, b, out=out)
    assert (out == want).all()


# ---- out -----------------------------------------------------------------------------------------------------------


def test_fortran_ordered_out():
    a = np.arange(4, dtype=np.float32).reshape(2, 2)
    out = np.empty((2, 2), np.float32, order="F")
    assert matmul(a, a, out=out) is out
    assert out.tolist() == [[2, 3], [6, 11]]


def test_reversed_out_leaves_its_surroundings_alone():
    base = np.full((66, 66), 7, np.float32)
    out = base[1:-1, 1:-1][::-1, ::-1]
    a, b = integers((64, 64), 1), integers((64, 64), 2)
    matmul(a, b, out=out)
    assert (out == exact(a, b)).all()
    base[1:-1, 1:-1] = 7
    assert (base == 7).all()


def test_out_is_an_input():
    ones = np.ones((2, 999, 999), np.float32)
    assert matmul(ones, ones, out=ones) is ones
    assert (ones == 999).all()
    a, b = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)
    assert matmul(a, b, out=a).tolist() == [[19, 22], [43, 50]]
    a, x = np.array([[1, 2], [3, 4]], np.float32), np.array([5, 6], np.float32)
    assert matmul(a, x, out=x).tolist() == [17, 39]


def test_out_whose_elements_stand_for_two():
    memory = np.zeros(3, np.float32)
    out = np.lib.stride_tricks.as_strided(memory, (2, 2), (4, 4))
    matmul(np.eye(2, dtype=np.float32), np.full((2, 2), 5, np.float32), out=out)
    assert memory.tolist() == [5, 5, 5]


# ---- copies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[:200, :200],
        lambda x: x[:200, :200].T,
        lambda x: x[::2],
        lambda x: x[::2].T[:, ::3],
        lambda x: x.reshape(4, 75, 300)[::-1],
        lambda x: x.reshape(75, 4, 300).transpose(1, 0, 2),
        lambda x: x.reshape(75, 4, 300).transpose(1, 2, 0),
        lambda x: np.broadcast_to(x, (3, 300, 300)),
        lambda x: x[:, 0],
    ],
    ids=[
        "c",
        "f",
        "corner",
        "corner.T",
        "row step",
        "column step",
        "reversed stack",
        "heads",
        "heads.T",
        "shared",
        "vector",
    ],
)
def test_views_are_not_copied(view, monkeypatch):
    x = integers((300, 300))
    if view(x)[..., 0].size and not any(step == 4 for step in view(x).strides) and view(x).ndim > 1:
        pytest.fail("the view has no axis of unit stride")
    monkeypatch.setattr(_arrays, "packed_copy", lambda seen: pytest.fail("copied"))
    a = view(x)
    b = integers((a.shape[-1], 5))
    assert (matmul(a, b) == exact(a, b)).all()
    transposed = a.swapaxes(-1, -2) if a.ndim > 1 else a
    c = integers((5, transposed.shape[-2] if a.ndim > 1 else len(a)))
    assert (matmul(c, transposed) == exact(c, transposed)).all()


def test_a_corner_is_updated_in_place():
    p, q = np.asfortranarray(integers((1000, 1000), 1)), np.asfortranarray(integers((1000, 1000), 2))
    p.flags.writeable = False
    before = q.copy()
    b = np.asfortranarray(integers((500, 500), 3))
    want = exact(p[:500, :500], b)
    tracemalloc.start()
    try:
        matmul(p[:500, :500], b, out=q[:500, :500])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert (q[:500, :500] == want).all()
    q[:500, :500] = before[:500, :500]
    assert (q == before).all()


def _plan(a, b):
    out = np.empty(np.matmul(a, b).shape, np.float32)
    a, b, out = (_arrays.view(x, "x") for x in (a, b, out))
    stack, m, n, k, _ = _matmul._shapes(a.shape, b.shape)
    return _matmul._plan(a, b, out, stack, (m, n, k))


def test_stacks_become_one_call():
    plan = _plan(integers((6, 7, 3, 4)), integers((4, 5)))  # rows of one product
    assert (plan.m, plan.n, plan.k, plan.batch.length, plan.loops) == (126, 5, 4, 1, [])
    plan = _plan(integers((6, 7, 3, 4)), integers((6, 7, 4, 5)))
    assert (plan.m, plan.batch.length, plan.loops) == (3, 42, [])
    plan = _plan(integers((6, 1, 3, 4)), integers((1, 7, 4, 5)))
    assert (plan.batch.length, [axis.length for axis in plan.loops]) == (7, [6])
    plan = _plan(integers((9, 12, 8)).transpose(1, 0, 2), integers((9, 12, 8)).transpose(1, 2, 0))  # heads
    assert (plan.m, plan.n, plan.k, plan.batch.length, plan.loops) == (9, 9, 8, 12, [])


def test_temporaries_live_as_long_as_the_call():
    rng = np.random.default_rng(0)
    a, b = rng.random((300, 300), np.float32), rng.random((300, 300), np.float32)
    want = matmul(a + b, a - b)
    for _ in range(50):
        assert (matmul((a + b), (a - b)) == want).all()


def test_errors_are_ours_and_pythons():
    with pytest.raises(InvalidValueError):
        matmul(integers((2, 3)), integers((2, 3)))
    with pytest.raises(pyblas_sgemm.SgemmError):
        matmul(integers((2, 3)), integers((2, 3)))
