"""Products of Dask arrays: right for ragged chunks, the same bits on every scheduler, and after a worker was killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import reference

da = pytest.importorskip("dask.array")
import dask

import pyblas_sgemm.dask as product


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def on_threads(*arrays):
    with dask.config.set(scheduler="threads"):
        return dask.compute(*arrays)


A, B = normal(70, 50, seed=1), normal(50, 60, seed=2)
CHUNKS = [  # of m, k, n
    ((70,), (50,), (60,)),
    ((30, 30, 10), (20, 20, 10), (16, 16, 16, 12)),
    ((1, 69), (7, 3, 11, 1, 9, 9, 10), (59, 1)),
    ((70,), (1,) * 50, (60,)),
]


@pytest.mark.parametrize("m,k,n", CHUNKS)
def test_ragged_chunks(m, k, n):
    a, b = da.from_array(A, chunks=(m, k)), da.from_array(B, chunks=(k, n))
    c = product.matmul(a, b)
    assert (c.shape, c.chunks, c.dtype) == ((70, 60), (m, n), np.float32)
    (got,) = on_threads(c)
    reference.assert_product(got, 1.0, A, B, 0.0, got)


@pytest.mark.parametrize("m,k,n", CHUNKS)
@pytest.mark.parametrize("alpha,beta", [(1.0, 1.0), (-0.5, 2.0), (2.0, 0.0), (0.0, 0.5)])
def test_sgemm(m, k, n, alpha, beta):
    values = normal(70, 60, seed=3)
    if beta == 0:
        values[...] = np.nan
    before = values.copy()
    c = da.from_array(values, chunks=(m, n))
    got = product.sgemm(alpha, da.from_array(A, chunks=(m, k)), da.from_array(B, chunks=(k, n)), beta, c)
    (got,) = on_threads(got)
    # Each task rounds its sum once more.
    want, magnitude = reference.product(alpha, A, B, beta, before)
    reference.assert_close(got, want, reference.bound("fp32", 50 + len(k), alpha, magnitude))
    reference.assert_same_bits(values, before)


def test_stacks_are_broadcast():
    a, b = normal(3, 1, 20, 30, seed=4), normal(4, 30, 10, seed=5)
    x, y = da.from_array(a, chunks=(2, 1, 7, 11)), da.from_array(b, chunks=(3, 11, 6))
    c = product.matmul(x, y)
    assert c.chunks == ((2, 1), (3, 1), (7, 7, 6), (6, 4))
    (got,) = on_threads(c)
    want = a.astype(np.float64) @ b
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b)
    reference.assert_close(got, want, reference.bound("fp32", 30, 1.0, magnitude))


def test_transposed_chunks_and_an_empty_sum():
    (got,) = on_threads(product.matmul(da.from_array(B, chunks=(25, 30)).T, da.from_array(A, chunks=(35, 25)).T))
    reference.assert_product(got, 1.0, B.T, A.T, 0.0, got)
    empty = da.zeros((5, 0), chunks=(3, 0), dtype="float32")
    (got,) = on_threads(product.matmul(empty, empty.T))
    assert got.shape == (5, 5) and (got == 0).all()


def test_the_mode_reaches_every_block():
    a, b = da.from_array(A, chunks=(40, 20)), da.from_array(B, chunks=(20, 60))
    (got,) = on_threads(product.matmul(a, b, compute="fp32_pedantic"))
    reference.assert_product(got, 1.0, A, B, 0.0, got, "fp32_pedantic")
    with pytest.raises(ValueError, match="fp16"):
        product.matmul(a, b, compute="fp16")


def test_advice_that_works():
    a, b = da.from_array(A, chunks=(70, 20)), da.from_array(B, chunks=(30, 60))
    with pytest.raises(ValueError, match="chunks of k") as caught:
        product.matmul(a, b)
    b = eval(str(caught.value).split("b = ")[1], {"b": b})
    assert product.matmul(a, b).shape == (70, 60)
    c = da.zeros((70, 60), chunks=(10, 10), dtype="float32")
    with pytest.raises(ValueError, match="chunks of c") as caught:
        product.sgemm(1.0, a, b, 1.0, c)
    c = eval(str(caught.value).split("c = ")[1], {"c": c})
    assert product.sgemm(1.0, a, b, 1.0, c).shape == (70, 60)
    x, y = (
        da.zeros((6, 4, 5), chunks=(2, 4, 5), dtype="float32"),
        da.zeros((6, 5, 3), chunks=(3, 5, 3), dtype="float32"),
    )
    with pytest.raises(ValueError, match="axis -3") as caught:
        product.matmul(x, y)
    y = eval(str(caught.value).split("b = ")[1], {"b": y})
    assert product.matmul(x, y).shape == (6, 4, 3)


def test_errors_name_the_argument():
    a = da.zeros((4, 5), chunks=2, dtype="float32")
    for wrong, error, words in [
        (np.zeros((5, 4), np.float32), TypeError, "b is of type ndarray"),
        (da.zeros((5, 4), chunks=2), TypeError, "b has dtype float64"),
        (da.zeros(5, chunks=2, dtype="float32"), ValueError, "b has 1 dimensions"),
        (da.zeros((4, 4), chunks=2, dtype="float32"), ValueError, "5 columns and b has 4 rows"),
        (a.T[(a.T > 0).any(axis=1)], ValueError, "compute_chunk_sizes"),
    ]:
        with pytest.raises(error, match=words):
            product.matmul(a, wrong)
    with pytest.raises(ValueError, match=r"c has the shape \(4, 3\)"):
        product.sgemm(1.0, a, a.T, 1.0, da.zeros((4, 3), chunks=2, dtype="float32"))
    stack = da.zeros((3, 4, 5), chunks=2, dtype="float32")
    with pytest.raises(ValueError, match="axis -3 has 3 elements in a and 2 in b"):
        product.matmul(stack, stack[:2].swapaxes(1, 2))


def test_nobody_else_imports_dask(prints):
    said = prints("import sys, pyblas_sgemm; print(sorted(m for m in sys.modules if m.split('.')[0] == 'dask'))")
    assert said.strip() == "[]"


def test_the_bits_do_not_depend_on_schedulers():
    a, b = da.from_array(A, chunks=(30, 7)), da.from_array(B, chunks=(7, 25))
    c = product.sgemm(0.3, a, b, 0.7, da.from_array(normal(70, 60, seed=3), chunks=(30, 25)))
    with dask.config.set(scheduler="synchronous"):
        (want,) = dask.compute(c)
    for _ in range(5):
        reference.assert_same_bits(on_threads(c)[0], want)


# ---- a cluster of two processes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    settings = {"distributed.worker.memory.terminate": False, "distributed.scheduler.allowed-failures": 100}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit="1GB", dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def large(seed):
    """6000 x 5000 times 5000 x 7000 in ragged chunks that the workers make themselves."""
    rng = da.random.default_rng(seed)
    m, k, n = (1700, 1700, 1700, 900), (1100, 1100, 1100, 1100, 600), (2000, 2000, 2000, 1000)
    a = rng.standard_normal((6000, 5000), chunks=(m, k), dtype=np.float32)
    return a, rng.standard_normal((5000, 7000), chunks=(k, n), dtype=np.float32)


def peak_bytes(process):
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


@pytest.mark.large(host=4)
def test_a_large_product_on_two_workers(client):
    a, b = large(seed=7)
    # Every output against float64 would take as long as all other tests; a random mixture of rows sees each of them.
    mixture = np.random.default_rng(8).standard_normal((8, 6000))
    c = product.matmul(a, b).persist()
    got, mixed = dask.compute(mixture_of(mixture, c), mixture_of(mixture, a))
    want = mixed @ b.astype(np.float64).compute()
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error < 4e-7, error
    rows = [0, 1699, 1700, 5999]
    exact = a[rows].astype(np.float64).compute() @ b.astype(np.float64).compute()
    magnitude = np.abs(a[rows].compute()).astype(np.float64) @ np.abs(b.compute()).astype(np.float64)
    reference.assert_close(c[rows].compute(), exact, reference.bound("fp32", 5000, 1.0, magnitude))
    peaks = [peak_bytes(process) for process in client.run(os.getpid).values()]
    assert max(peaks) < 1 << 30, peaks


def mixture_of(mixture, a):
    return da.from_array(mixture, chunks=(8, a.chunks[0])) @ a.astype(np.float64)


def test_the_bits_are_those_of_one_process(client):
    a, b = da.from_array(A, chunks=(30, 7)), da.from_array(B, chunks=(7, 25))
    c = product.sgemm(0.3, a, b, 0.7, da.from_array(normal(70, 60, seed=3), chunks=(30, 25)))
    with dask.config.set(scheduler="synchronous"):
        (want,) = dask.compute(c)
    for _ in range(5):
        reference.assert_same_bits(client.compute(c).result(timeout=60), want)


def unfinished(client):
    """Tasks of a product that no worker has done yet."""

    def count(dask_scheduler):
        tasks = dask_scheduler.tasks.values()
        return sum("pyblas-sgemm" in str(task.key) and task.state in WAITING for task in tasks)

    return client.run_on_scheduler(count)


def until(fact):
    end = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < end
        time.sleep(0.002)


WAITING = ("waiting", "queued", "no-worker", "processing")


def test_a_worker_killed_half_way_changes_nothing(client):
    a = da.random.default_rng(9).standard_normal((1600, 4000), chunks=(400, 250), dtype=np.float32)
    c = product.matmul(a, a.T)
    want = client.compute(c).result(timeout=120)
    for _ in range(3):
        workers = list(client.run(os.getpid).values())
        result = client.compute(c)
        until(lambda: unfinished(client) > 0)
        until(lambda: unfinished(client) < 48)  # of 16 blocks with 4 tasks each
        assert not result.done(), "the product was over before a worker could be killed"
        os.kill(workers[0], signal.SIGKILL)
        reference.assert_same_bits(result.result(timeout=120), want)
        client.wait_for_workers(2, timeout=60)


def test_the_manual_s_program_runs(tmp_path):
    page = Path(__file__).parents[1] / "docs" / "distributed.md"
    program = re.search(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)[1]
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
