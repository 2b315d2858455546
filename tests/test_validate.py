"""The checks of every product, in their order, through the C functions: the first that fails wins, and nothing is read
or written."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest

import engines
from engines import ARGUMENTS, INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, SUCCESS, ffi, invoke, lib, message

ENTRIES = list(ARGUMENTS)
every_entry = pytest.mark.parametrize("entry", ENTRIES)
every_order = pytest.mark.parametrize("order", ["F", "C"])
every_width = pytest.mark.parametrize("wide", [False, True], ids=["int", "int64"])

M, N, K, BATCH = 4, 3, 2, 2
UNTOUCHABLE = 8  # an address that faults when it is followed


@pytest.fixture
def legal(engine):
    """Arguments of a legal call of any entry: all 1-matrices, C = 5."""
    blocks = {name: engine.block(np.full(64, value, np.float32)) for name, value in zip("ABC", (1, 1, 5), strict=True)}
    start = {name: engine.address(block) for name, block in blocks.items()}
    tables = {name: engine.table([start[name] + 64 * i for i in range(BATCH)]) for name in "ABC"}

    def arguments(order="F", transa=0, transb=0):
        rows_a, columns_a = (M, K) if transa == 0 else (K, M)
        rows_b, columns_b = (K, N) if transb == 0 else (N, K)
        lds = (rows_a, rows_b, M) if order == "F" else (columns_a, columns_b, N)
        return {
            "transa": transa, "transb": transb, "m": M, "n": N, "k": K, "alpha": 1.0, "beta": 1.0,
            "A": start["A"], "B": start["B"], "C": start["C"], "lda": lds[0], "ldb": lds[1], "ldc": lds[2],
            "strideA": 16, "strideB": 16, "strideC": 16, "batchCount": BATCH,
            "Aarray": engine.address(tables["A"]), "Barray": engine.address(tables["B"]),
            "Carray": engine.address(tables["C"]),
        }  # fmt: skip

    arguments.blocks = blocks
    arguments.tables = tables
    return arguments


def refused(entry, handle, arguments, name, order="F", wide=False, status=INVALID_VALUE):
    """The call fails on that argument, by the caller's name and number; returns the message."""
    got = invoke(entry, handle, arguments, order, wide)
    assert got == status, f"{entry}, {name}: status {got}, {message()}"
    number = ARGUMENTS[entry].index(name) + 1
    assert message().startswith(f"{entry}: argument {number} ({name}) is "), message()
    return message()


def untouched(engine, legal):
    engine.synchronize()
    assert (engine.host(legal.blocks["C"]) == 5).all()


@every_entry
@every_order
@every_width
def test_the_legal_call_is_legal(engine, handle, legal, entry, order, wide):
    assert invoke(entry, handle, legal(order), order, wide) == SUCCESS, message()
    engine.synchronize()
    got = engine.host(legal.blocks["C"])
    matrices = 1 if entry == "sgemm" else BATCH
    assert [(got[16 * i : 16 * i + 12] == 7).all() for i in range(BATCH)] == [i < matrices for i in range(BATCH)]


# What is wrong, in the order of the checks: argument, and the values that make it so.
FAULTS = [
    ("transa", {"transa": 3}),
    ("transb", {"transb": 111}),
    ("m", {"m": -1}),
    ("n", {"n": -7}),
    ("k", {"k": -1}),
    ("batchCount", {"batchCount": -1}),
    ("lda", {"lda": 0}),
    ("ldb", {"ldb": -3}),
    ("ldc", {"ldc": 0}),
    ("strideC", {"strideC": 1}),
    ("alpha", {"alpha": None}),
    ("beta", {"beta": None}),
    ("C", {"C": 0, "Carray": 0}),
    ("A", {"A": 0, "Aarray": 0}),
    ("B", {"B": 0, "Barray": 0}),
]


def faults_of(entry):
    names = ARGUMENTS[entry]
    found = []
    for name, change in FAULTS:
        named = name if name in names else name + "array"
        if named in names:
            found.append((named, change))
    return found


@every_entry
@every_order
@every_width
def test_each_fault_is_named_and_the_first_wins(engine, handle, legal, entry, order, wide):
    faults = faults_of(entry)
    for i, (name, change) in enumerate(faults):
        refused(entry, handle, legal(order) | change, name, order, wide)
        for _, later in faults[i + 1 :]:
            if not set(later) & set(change):
                refused(entry, handle, legal(order) | later | change, name, order, wide)
        everything = legal(order)
        for _, later in reversed(faults[i:]):
            everything |= later
        refused(entry, handle, everything, name, order, wide)
    untouched(engine, legal)


@every_entry
@every_order
@every_width
def test_no_handle_comes_before_everything(engine, legal, entry, order, wide):
    for change in ({}, {"transa": 3, "m": -1, "lda": 0, "alpha": None, "C": 0, "Carray": 0}, {"m": 0}):
        assert invoke(entry, ffi.NULL, legal(order) | change, order, wide) == NOT_INITIALIZED
        assert "handle" in message()
    untouched(engine, legal)


@every_entry
def test_operations_are_numbers_zero_to_two(engine, handle, legal, entry):
    for transa, transb in itertools.product(range(3), repeat=2):
        assert invoke(entry, handle, legal("F", transa, transb)) == SUCCESS, message()
    for wrong in (3, 4, 78, 84, 111, 112, 113, 255):
        refused(entry, handle, legal() | {"transa": wrong}, "transa")
        assert re.search(rf"is {wrong}\b", message())
        refused(entry, handle, legal() | {"transb": wrong}, "transb")


@every_entry
@every_order
@every_width
def test_leading_dimensions_to_the_unit(engine, handle, legal, entry, order, wide):
    """The least legal one is taken, one less is refused, and the message says value, bound and rule."""
    for transa, transb in itertools.product(range(3), repeat=2):
        good = legal(order, transa, transb)
        assert invoke(entry, handle, good, order, wide) == SUCCESS, message()
        extents = {
            "lda": "mk" if order == "F" else "km",
            "ldb": "kn" if order == "F" else "nk",
            "ldc": "mm" if order == "F" else "nn",
        }
        for name, trans in (("lda", transa), ("ldb", transb), ("ldc", 0)):
            least = good[name]
            text = refused(entry, handle, good | {name: least - 1}, name, order, wide)
            extent = extents[name][1 if trans else 0]
            assert f" is {least - 1}, must be at least max(1, {extent}) = {least}" in text
            if name != "ldc":
                letter = "NTC"[trans]
                assert f"for trans{name[-1]}='{letter}'" in text


def test_the_message_in_full(handle, legal):
    arguments = legal() | {"lda": 3}
    assert invoke("sgemm", handle, arguments) == INVALID_VALUE
    assert message() == "sgemm: argument 8 (lda) is 3, must be at least max(1, m) = 4 for transa='N'"


@every_entry
@every_order
def test_no_leading_dimension_is_zero_even_of_nothing(handle, legal, entry, order):
    for empty in ({"m": 0}, {"n": 0}, {"k": 0}, {"m": 0, "n": 0, "k": 0}):
        for name in ("lda", "ldb", "ldc"):
            arguments = legal(order) | empty
            refused(entry, handle, arguments | {name: 0}, name, order)
            refused(entry, handle, arguments | {name: -1}, name, order)
        smallest = legal(order) | {"m": 0, "n": 0, "k": 0, "lda": 1, "ldb": 1, "ldc": 1}
        assert invoke(entry, handle, smallest, order) == SUCCESS, message()


@pytest.mark.parametrize("entry", ENTRIES[1:])
@every_order
def test_bad_arguments_are_errors_in_an_empty_batch_too(handle, legal, entry, order):
    for name, change in [("transa", {"transa": 9}), ("m", {"m": -1}), ("lda", {"lda": 0}), ("ldc", {"ldc": 1})]:
        refused(entry, handle, legal(order) | {"batchCount": 0} | change, name, order)


NULLS = {"alpha": None, "beta": None, "A": 0, "B": 0, "C": 0, "Aarray": 0, "Barray": 0, "Carray": 0}


@every_entry
@every_order
@every_width
def test_empty_results_succeed_on_null_pointers(engine, handle, legal, entry, order, wide):
    empties = [{"m": 0}, {"n": 0}, {"m": 0, "n": 0, "k": 0}]
    if entry != "sgemm":
        empties.append({"batchCount": 0})
    for empty in empties:
        assert invoke(entry, handle, legal(order) | empty | NULLS, order, wide) == SUCCESS, message()
        assert invoke(entry, handle, legal(order) | empty | {"beta": 0.0, "strideC": 0}, order, wide) == SUCCESS
    untouched(engine, legal)


@every_entry
@every_order
def test_null_scalars_are_errors_for_k_zero_too(engine, handle, legal, entry, order):
    for k in (0, K):
        for name in ("alpha", "beta"):
            text = refused(entry, handle, legal(order) | {"k": k, name: None}, name, order)
            assert "NULL" in text
        refused(entry, handle, legal(order) | NULLS | {"k": k}, "alpha", order)
        refused(entry, handle, legal(order) | NULLS | {"k": k, "alpha": 0.0}, "beta", order)
    untouched(engine, legal)


@every_entry
@every_order
def test_nothing_to_do_succeeds_on_null_matrices(engine, handle, legal, entry, order):
    matrices = {name: 0 for name in NULLS if name not in ("alpha", "beta")}
    for change in ({"alpha": 0.0}, {"alpha": -0.0}, {"k": 0}, {"k": 0, "alpha": float("nan")}):
        assert invoke(entry, handle, legal(order) | matrices | change, order) == SUCCESS, message()
        assert invoke(entry, handle, legal(order) | change, order) == SUCCESS, message()
    untouched(engine, legal)


@every_entry
@every_order
def test_null_output_is_an_error_for_every_beta_that_writes(handle, legal, entry, order):
    name = "C" if entry != "gemm_batched" else "Carray"
    for alpha, beta, k in [(1.0, 0.0, K), (1.0, 1.0, K), (0.0, 0.0, K), (0.0, 2.0, K), (1.0, 0.0, 0), (1.0, 0.5, 0)]:
        arguments = legal(order) | {"alpha": alpha, "beta": beta, "k": k, "C": 0, "Carray": 0}
        assert "NULL" in refused(entry, handle, arguments, name, order)


@every_entry
@every_order
def test_null_inputs_are_legal_exactly_where_they_are_not_read(engine, handle, legal, entry, order):
    a, b = ("Aarray", "Barray") if entry == "gemm_batched" else ("A", "B")
    for name in (a, b):
        for beta in (0.0, 1.0, 0.5):
            text = refused(entry, handle, legal(order) | {name: 0, "beta": beta}, name, order)
            assert "NULL" in text
    untouched(engine, legal)
    expected = 5.0
    for change in ({"k": 0}, {"alpha": 0.0}, {"alpha": -0.0}):
        assert invoke(entry, handle, legal(order) | {a: 0, b: 0, "beta": 2.0} | change, order) == SUCCESS, message()
        engine.synchronize()
        expected *= 2
        assert engine.host(legal.blocks["C"])[0] == expected
    assert invoke(entry, handle, legal(order) | {a: 0, b: 0, "beta": 0.0, "k": 0}, order) == SUCCESS
    engine.synchronize()
    assert engine.host(legal.blocks["C"])[0] == 0


@every_entry
@every_order
def test_a_refused_call_follows_no_pointer(cpu, cpu_handle, entry, order):
    """Every pointer is one that cannot be followed; each fault found before step 8 must not mind."""
    addresses = {name: UNTOUCHABLE for name in NULLS if name not in ("alpha", "beta")}
    sizes = {"transa": 0, "transb": 0, "m": M, "n": N, "k": K, "batchCount": BATCH}
    strides = {"strideA": 16, "strideB": 16, "strideC": 16}
    lds = {"lda": 4, "ldb": 4, "ldc": 4}
    base = {"alpha": 1.0, "beta": 1.0} | addresses | sizes | strides | lds
    for name, change in faults_of(entry):
        if name not in ("A", "B", "C", "Aarray", "Barray", "Carray"):
            refused(entry, cpu_handle, base | change, name, order)
    for change in ({"m": 0}, {"n": 0}, {"k": 0}, {"alpha": 0.0}):
        assert invoke(entry, cpu_handle, base | change, order) == SUCCESS, message()


def test_row_major_names_are_the_callers(handle, legal):
    """Row-major products run with operands swapped inside; nobody may notice by a message."""
    base = legal("C") | {"m": 5, "n": 7, "k": 6, "lda": 6, "ldb": 7, "ldc": 7}
    for transa, transb, name, bound in [
        (0, 0, "lda", "max(1, k) = 6"), (0, 0, "ldb", "max(1, n) = 7"), (0, 0, "ldc", "max(1, n) = 7"),
        (1, 0, "lda", "max(1, m) = 5"), (0, 1, "ldb", "max(1, k) = 6"),
    ]:  # fmt: skip
        text = refused("sgemm", handle, base | {"transa": transa, "transb": transb, name: 2}, name, "C")
        assert f"is 2, must be at least {bound}" in text
    # In the caller's order: lda before ldb.
    refused("sgemm", handle, base | {"lda": 0, "ldb": 0}, "lda", "C")
    refused("sgemm", handle, base | {"transa": 9, "transb": 9}, "transa", "C")


def test_messages_of_success_are_not_touched(handle, legal):
    refused("sgemm", handle, legal() | {"m": -5}, "m")
    text = message()
    assert invoke("sgemm", handle, legal()) == SUCCESS
    assert message() == text
    assert "is -5" in text


# ---- matrices C of a batch must be disjoint ---------------------------------------------------------------------------


def meet(m, n, ldc, stride, batch):
    """Whether two of the matrices share an element, by writing all of them down."""
    matrix = (np.arange(m)[:, None] + np.arange(n) * ldc).ravel()
    elements = (matrix + np.arange(batch)[:, None] * stride).ravel()
    return len(np.unique(elements)) < elements.size


def answer(handle, m, n, ldc, stride, batch, order="F", wide=False, named="strideC"):
    """What the library says about C alone: k == 0 with beta == 1 follows no pointer."""
    if order == "C":
        m, n = n, m
    enough = 1 << 62 if wide else 1 << 30
    arguments = {
        "transa": 0, "transb": 0, "m": m, "n": n, "k": 0, "alpha": 1.0, "beta": 1.0, "A": 0, "B": 0, "C": UNTOUCHABLE,
        "lda": enough, "ldb": enough, "ldc": ldc, "strideA": 0, "strideB": 0, "strideC": stride, "batchCount": batch,
    }  # fmt: skip
    status = invoke("gemm_strided_batched", handle, arguments, order, wide)
    assert status in (SUCCESS, INVALID_VALUE)
    if status == INVALID_VALUE:
        assert f"({named})" in message(), message()
    return status == SUCCESS


@every_order
def test_disjointness_of_every_small_batch(cpu_handle, order):
    for m, n, gap in itertools.product(range(1, 5), range(1, 5), range(5)):
        ldc = m + gap
        for stride, batch in itertools.product(range(-2 * ldc - 3, (n + 1) * ldc + 3), (1, 2, 3, 5)):
            legal = batch == 1 or not meet(m, n, ldc, stride, batch)
            assert answer(cpu_handle, m, n, ldc, stride, batch, order) == legal, (m, n, ldc, stride, batch)


def test_disjointness_of_odd_strides(cpu_handle):
    """Strides that are no multiple of ldc meet late or never: exactly as the elements say."""
    rng = random.Random(5)
    counts = {True: 0, False: 0}
    for _ in range(4000):
        m, n = rng.randint(1, 9), rng.randint(1, 12)
        ldc = m + rng.randint(0, 40)
        stride = rng.randint(-3 * ldc, 3 * ldc)
        batch = rng.randint(2, 40)
        legal = not meet(m, n, ldc, stride, batch)
        counts[legal] += 1
        assert answer(cpu_handle, m, n, ldc, stride, batch) == legal, (m, n, ldc, stride, batch)
    assert min(counts.values()) > 500


def test_disjointness_of_layouts_people_use(cpu_handle):
    tokens, heads, dim = 384, 12, 64
    # Row-major (token, head, dim): head h starts at h * dim in rows of heads * dim.
    assert answer(cpu_handle, dim, tokens, heads * dim, dim, heads)
    assert not answer(cpu_handle, dim, tokens, heads * dim, dim, heads + 1)
    assert not answer(cpu_handle, dim, tokens, heads * dim, dim - 1, heads)
    # One after the other, both ways, and shared.
    assert answer(cpu_handle, 100, 50, 128, 128 * 49 + 100, 1000)
    assert answer(cpu_handle, 100, 50, 128, -(128 * 49 + 100), 1000)
    assert not answer(cpu_handle, 100, 50, 128, 128 * 48 + 100, 2)
    assert not answer(cpu_handle, 100, 50, 128, 0, 2)
    assert answer(cpu_handle, 100, 50, 128, 0, 1)
    # Vectors: columns of one matrix, rows of one matrix.
    assert answer(cpu_handle, 1, 1, 1, 1, 1 << 30)
    assert answer(cpu_handle, 1, 1000, 1000, 1, 1000)
    assert not answer(cpu_handle, 1, 1000, 1000, 1, 1001)


@every_order
def test_disjointness_beyond_32_bits(cpu_handle, order):
    big = 1 << 40
    assert answer(cpu_handle, 3, 4, 7, big, 1 << 20, order, wide=True)
    assert answer(cpu_handle, 1 << 20, 1 << 20, 1 << 20, big, 1 << 10, order, wide=True)
    assert not answer(cpu_handle, 1 << 20, 1 << 20, 1 << 20, big - 1, 2, order, wide=True)
    # Interleaved, and one too many.
    assert answer(cpu_handle, 1 << 10, 1 << 20, 1 << 30, 1 << 10, 1 << 20, order, wide=True)
    assert not answer(cpu_handle, 1 << 10, 1 << 20, 1 << 30, 1 << 10, (1 << 20) + 1, order, wide=True)
    # They meet only after a million steps: d * stride == t * ldc for the first time at d = ldc.
    prime = 1000003
    assert not answer(cpu_handle, 1, 1 << 40, prime, prime + 1, prime + 1, order, wide=True)
    assert answer(cpu_handle, 1, 1 << 40, prime, prime + 1, prime, order, wide=True)


@every_order
def test_ranges_beyond_63_bits_are_refused(cpu_handle, order):
    for stride, batch in [(1 << 62, 3), (-(1 << 62), 3), ((1 << 63) - 1, 2), (-(1 << 63), 2), (1 << 40, 1 << 40)]:
        assert not answer(cpu_handle, 4, 4, 4, stride, batch, order, wide=True), (stride, batch)
    for n in (1 << 40, (1 << 63) - 1):
        assert not answer(cpu_handle, 1, n, n, 1, 2, order, wide=True, named="ldc")
    # 2**61 elements are 2**63 bytes.
    assert answer(cpu_handle, 4, 4, 4, 1 << 30, 1 << 30, order, wide=True)


def test_row_major_disjointness_is_that_of_rows(cpu_handle):
    """m and n change places: a batch that is legal by rows is not by columns."""
    arguments = {
        "transa": 0, "transb": 0, "m": 8, "n": 2, "k": 0, "alpha": 1.0, "beta": 1.0, "A": 0, "B": 0, "C": UNTOUCHABLE,
        "lda": 8, "ldb": 8, "ldc": 8, "strideA": 0, "strideB": 0, "strideC": 2, "batchCount": 4,
    }  # fmt: skip
    assert invoke("gemm_strided_batched", cpu_handle, arguments, "C") == SUCCESS, message()
    assert invoke("gemm_strided_batched", cpu_handle, arguments, "F") == INVALID_VALUE
    arguments |= {"m": 2, "n": 8}
    assert invoke("gemm_strided_batched", cpu_handle, arguments, "F") == SUCCESS, message()
    assert invoke("gemm_strided_batched", cpu_handle, arguments, "C") == INVALID_VALUE


# ---- scalars on the device --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@every_entry
@every_order
def test_device_scalars_are_unknown_to_the_checks(gpu, gpu_handle, entry, order):
    assert lib.pyblasSetPointerMode(gpu_handle, 1) == SUCCESS
    scalars = gpu.block(np.array([0.0, 1.0], np.float32))
    c = gpu.block(np.full(64, 5, np.float32))
    table = gpu.table([gpu.address(c), gpu.address(c) + 64])
    where = gpu.address(scalars)
    base = {
        "transa": 0, "transb": 0, "m": M, "n": N, "k": K, "alpha": ("device", where), "beta": ("device", where + 4),
        "A": 0, "B": 0, "C": gpu.address(c), "lda": 4, "ldb": 4, "ldc": 4, "Aarray": 0, "Barray": 0,
        "Carray": gpu.address(table), "strideA": 16, "strideB": 16, "strideC": 16, "batchCount": BATCH,
    }  # fmt: skip
    suffix = "array" if entry == "gemm_batched" else ""
    # alpha happens to be 0, but the host cannot know.
    refused(entry, gpu_handle, base, "A" + suffix, order)
    refused(entry, gpu_handle, base | {"k": 0, "C": 0, "Carray": 0}, "C" + suffix, order)
    refused(entry, gpu_handle, base | {"alpha": None}, "alpha", order)
    refused(entry, gpu_handle, base | {"beta": None}, "beta", order)
    assert invoke(entry, gpu_handle, base | {"k": 0}, order) == SUCCESS, message()
    assert invoke(entry, gpu_handle, base | {"m": 0} | NULLS, order) == SUCCESS, message()
    gpu.synchronize()
    assert (gpu.host(c) == 5).all()


def test_a_cpu_handle_has_no_device_scalars(cpu_handle):
    assert lib.pyblasSetPointerMode(cpu_handle, 1) == NOT_SUPPORTED
    assert message()
    mode = ffi.new("pyblasPointerMode_t *")
    assert lib.pyblasGetPointerMode(cpu_handle, mode) == SUCCESS
    assert mode[0] == 0


def test_sizes_of_the_int_entries_are_not_cut(cpu_handle):
    """What does not fit an int cannot even be passed."""
    arguments = {
        "transa": 0, "transb": 0, "m": 1 << 31, "n": 1, "k": 1, "alpha": 1.0, "beta": 1.0, "A": 0, "B": 0, "C": 0,
        "lda": 1, "ldb": 1, "ldc": 1,
    }  # fmt: skip
    with pytest.raises(OverflowError):
        engines.invoke("sgemm", cpu_handle, arguments)
    refused("sgemm", cpu_handle, arguments, "lda", wide=True)
