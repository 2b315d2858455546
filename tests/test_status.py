"""Status numbers become exceptions that Python knows, with the sentence of the call that failed."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

import pyblas_sgemm
from pyblas_sgemm import AllocError, InvalidValueError, NotSupportedError, SgemmError
from pyblas_sgemm._cffi import ffi, lib
from pyblas_sgemm._status import check, status_name

NAMES = {
    0: "PYBLAS_STATUS_SUCCESS",
    1: "PYBLAS_STATUS_NOT_INITIALIZED",
    3: "PYBLAS_STATUS_ALLOC_FAILED",
    7: "PYBLAS_STATUS_INVALID_VALUE",
    8: "PYBLAS_STATUS_ARCH_MISMATCH",
    11: "PYBLAS_STATUS_MAPPING_ERROR",
    13: "PYBLAS_STATUS_EXECUTION_FAILED",
    14: "PYBLAS_STATUS_INTERNAL_ERROR",
    15: "PYBLAS_STATUS_NOT_SUPPORTED",
}


@pytest.mark.parametrize("status", NAMES)
def test_every_status_has_its_own_name(status):
    assert status_name(status) == NAMES[status]


@pytest.mark.parametrize(
    ("kind", "builtin", "status"),
    [
        (SgemmError, RuntimeError, 14),
        (InvalidValueError, ValueError, 7),
        (NotSupportedError, NotImplementedError, 15),
        (AllocError, MemoryError, 3),
    ],
)
def test_kinds(kind, builtin, status):
    error = kind("why")
    assert isinstance(error, (SgemmError, RuntimeError)) and isinstance(error, builtin)
    assert (error.status, error.name, str(error)) == (status, NAMES[status], "why")


@pytest.mark.parametrize("status", [s for s in NAMES if s])
def test_check_raises_the_kind_of_a_status(status):
    kinds = {3: AllocError, 7: InvalidValueError, 15: NotSupportedError}
    with pytest.raises(SgemmError) as caught:
        check(status)
    assert type(caught.value) is kinds.get(status, SgemmError)
    assert caught.value.status == status and caught.value.name == NAMES[status]
    check(0)


@pytest.mark.parametrize(
    "error", [SgemmError("a", 13), InvalidValueError("b"), NotSupportedError("c"), AllocError("d", 3)]
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(error, protocol):
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (str(again), again.status, again.name) == (str(error), error.status, error.name)


def test_the_sentence_is_that_of_the_call():
    x = np.zeros((3, 3), np.float32)
    with pytest.raises(InvalidValueError, match=r"sgemm: argument 8 \(lda\) is 2, must be at least .* = 3") as caught:
        pyblas_sgemm.sgemm("N", "N", 3, 3, 3, 1.0, x, 2, x, 3, 0.0, x.copy(), 3)
    assert caught.value.status == 7
    with pytest.raises(InvalidValueError, match="sgemm: B needs 12 elements, its buffer has 9"):
        pyblas_sgemm.sgemm("N", "N", 3, 4, 3, 1.0, x, 3, x, 4, 0.0, np.zeros((3, 4), np.float32), 4)


def test_sentences_stay_in_their_thread():
    x = np.zeros(4, np.float32)
    barrier = threading.Barrier(4)
    texts = {}

    def fail(ld):
        for _ in range(100):
            barrier.wait()
            with pytest.raises(InvalidValueError) as caught:
                pyblas_sgemm.sgemm("N", "N", 9, 9, 9, 1.0, x, ld, x, 9, 0.0, x, 9)
            texts.setdefault(ld, set()).add(str(caught.value))

    threads = [threading.Thread(target=fail, args=(ld,)) for ld in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ld in range(4):
        (text,) = texts[ld]
        assert f"(lda) is {ld}," in text


def test_null_handle_is_not_initialized():
    with pytest.raises(SgemmError) as caught:
        check(lib.pyblasGetDevice(ffi.NULL, ffi.new("int *")))
    assert caught.value.status == 1 and str(caught.value)
