"""Any legal call at all: sizes, operations, leading dimensions, strides, offsets, scalars, order and batches drawn at
random, with poison in every gap and canaries round C."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import engines
import reference
from engines import SUCCESS, lib, message
from problems import DATA, Problem, Product

EXTENTS = st.one_of(
    st.integers(1, 9), st.integers(1, 40), st.sampled_from([63, 64, 65, 96, 127, 128, 129, 130, 255, 257])
)
SCALARS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0]), st.floats(-4, 4, width=32, allow_subnormal=False)
)
GAPS = st.one_of(st.just(0), st.integers(0, 5), st.sampled_from([8, 16, 31, 64]))
OFFSETS = st.integers(0, 3)


@st.composite
def products(draw):
    m, n = draw(EXTENTS), draw(EXTENTS)
    k = draw(st.one_of(st.just(0), EXTENTS, st.sampled_from([300, 513, 1025])))
    return Product(
        m, n, k, draw(st.sampled_from("NTC")), draw(st.sampled_from("NTC")), draw(SCALARS), draw(SCALARS),
        order=draw(st.sampled_from("FC")),
        gap=(draw(GAPS), draw(GAPS), draw(GAPS)),
        offset=(draw(OFFSETS), draw(OFFSETS), draw(OFFSETS)),
        wide=draw(st.booleans()),
        data=draw(st.sampled_from(["normal", "patchwork", "wide", "integers", "uniform", "cancelling", "tiny_products"])),
    )  # fmt: skip


@st.composite
def batches(draw):
    small = st.one_of(st.integers(1, 9), st.sampled_from([16, 17, 32, 33, 64]))
    m, n, k = draw(small), draw(small), draw(st.one_of(st.just(0), small))
    product = draw(products()).but(m=m, n=n, k=k, batch=draw(st.integers(1, 12)), pointers=draw(st.booleans()))
    inner = (m if product.order == "F" else n) + product.gap[2]
    outer = n if product.order == "F" else m
    span = (outer - 1) * inner + inner
    free = st.one_of(st.none(), st.just(0), st.integers(-3000, 3000))
    stride_c = draw(st.one_of(st.none(), st.integers(span, span + 50), st.integers(-span - 50, -span)))
    ldc = None
    if draw(st.booleans()):  # interleaved
        apart = inner + draw(st.integers(0, 3))
        stride_c = draw(st.sampled_from([1, -1])) * apart
        ldc = apart * product.batch + draw(st.integers(0, 7))
    return product.but(stride=(draw(free), draw(free), stride_c), ldc=ldc)


@st.composite
def any_batches(draw):
    """Strides of C that may or may not be legal."""
    product = draw(batches())
    return product.but(stride=(*product.stride[:2], draw(st.integers(-200, 200))), pointers=False, ldc=None)


def solve(name, product, poison):
    engine = engines.named(name)
    handle = engine.handle()
    try:
        Problem(product, poison).solve(engine, handle)
    finally:
        lib.pyblasDestroy(handle)


every_engine = pytest.mark.parametrize("name", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
poisons = st.sampled_from(reference.POISONS)


@every_engine
@settings(max_examples=400)
@given(product=products(), poison=poisons)
def test_any_product(name, product, poison):
    solve(name, product, poison)


@every_engine
@settings(max_examples=300)
@given(product=batches(), poison=poisons)
def test_any_batch(name, product, poison):
    solve(name, product, poison)


@every_engine
@settings(max_examples=200)
@given(product=any_batches())
def test_a_batch_is_refused_exactly_if_results_meet(name, product):
    problem = Problem(product)
    index = problem.c.index
    distinct = len(set(index.ravel().tolist())) == index.size
    engine = engines.named(name)
    handle = engine.handle()
    try:
        blocks = problem.blocks(engine)
        status = problem.call(engine, handle, blocks)
        if distinct:
            assert status == SUCCESS, message()
            problem.check([engine.host(block) for block in blocks])
        else:
            assert status == engines.INVALID_VALUE
            assert "strideC" in message()
            reference.assert_same_bits(engine.host(blocks[2]), problem.c.words)
    finally:
        lib.pyblasDestroy(handle)


@every_engine
@settings(max_examples=100)
@given(product=products(), data=st.data())
def test_any_kernel_by_name(name, product, data):
    rows = [row for row in engines.kernel_rows() if row[1] == name]
    assume(rows)
    kernel = data.draw(st.sampled_from([row[0] for row in rows]))
    engine = engines.named(name)
    handle = engine.handle()
    try:
        engines.set_kernel(handle, kernel)
        problem = Problem(product)
        blocks = problem.blocks(engine)
        status = problem.call(engine, handle, blocks)
        after = [engine.host(block) for block in blocks]
        if status == engines.NOT_SUPPORTED:
            reference.assert_same_bits(after[2], problem.c.words)
        else:
            assert status == SUCCESS, message()
            problem.check(after)
    finally:
        lib.pyblasDestroy(handle)


@settings(max_examples=200)
@given(
    m=st.integers(1, 12), n=st.integers(1, 12), k=st.integers(0, 12), order=st.sampled_from("FC"),
    ops=st.sampled_from(["NN", "NT", "TN", "TT"]), data=st.sampled_from(sorted(DATA)), batch=st.integers(1, 4),
)  # fmt: skip
def test_the_layouts_of_the_tests_are_what_they_say(m, n, k, order, ops, data, batch):
    """The tests' own indexing, against plain NumPy reshapes."""
    problem = Problem(Product(m, n, k, *ops, order=order, batch=batch, gap=(2, 0, 1), data=data))
    a, b, _ = problem.operands()
    assert a.shape == (batch, m, k)
    assert b.shape == (batch, k, n)
    rows, columns = problem.product.shapes[0]
    placed = problem.a
    for i in range(batch if rows and columns else 0):
        start = placed.base + i * placed.stride
        outer, inner = (columns, rows) if order == "F" else (rows, columns)
        block = [placed.words[start + j * placed.ld : start + j * placed.ld + inner] for j in range(outer)]
        stored = block if order == "C" else list(zip(*block, strict=True))
        want = a[i] if ops[0] == "N" else a[i].T
        reference.assert_same_bits(stored, want)
