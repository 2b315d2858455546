"""More than one GPU: work goes to the arrays' device, and the caller's current device stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import engines
import pyblas_sgemm
from engines import INVALID_VALUE, NOT_SUPPORTED, SUCCESS, ffi, lib, message

# One launch; few outputs and deep k, which need workspace; tiles that ask for most of the shared memory.
SIZES = [(64, 48, 32), (33, 30, 5000), (300, 500, 700)]


def product(xp, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-8, 9, (m, k)).astype(np.float32), rng.integers(-8, 9, (k, n)).astype(np.float32)
    return xp.asarray(a), xp.asarray(b), a.astype(np.float64) @ b


@pytest.fixture
def devices(gpu):
    cupy = gpu.xp
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU")
    with cupy.cuda.Device(0):
        yield cupy
        assert cupy.cuda.runtime.getDevice() == 0


@pytest.mark.parametrize("device", [-2, -1, 10**6])
def test_no_handle_for_a_device_that_is_not_there(device):
    slot = ffi.new("pyblasHandle_t *")
    status = lib.pyblasCreateOnDevice(slot, device)
    assert status != SUCCESS and slot[0] == ffi.NULL and message()
    if device < 0:
        assert status == INVALID_VALUE and str(device) in message()
    assert lib.pyblasCreateOnDevice(ffi.NULL, 0) == INVALID_VALUE


@pytest.mark.gpu
def test_a_handle_for_a_device_by_number(gpu):
    count = gpu.xp.cuda.runtime.getDeviceCount()
    slot, number = ffi.new("pyblasHandle_t *"), ffi.new("int *")
    for device in range(count):
        before = gpu.xp.cuda.runtime.getDevice()
        assert lib.pyblasCreateOnDevice(slot, device) == SUCCESS, message()
        assert lib.pyblasGetDevice(slot[0], number) == SUCCESS and number[0] == device
        assert gpu.xp.cuda.runtime.getDevice() == before
        assert lib.pyblasDestroy(slot[0]) == SUCCESS
    assert lib.pyblasCreateOnDevice(slot, count) == INVALID_VALUE
    assert f"{count}, must be from 0 to {count - 1}" in message()


@pytest.mark.gpu
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_arrays_on_another_device_than_the_current_one(devices, size):
    m, n, k = size
    for device in (1, 0, 1):
        with devices.cuda.Device(device):
            a, b, want = product(devices, m, n, k, device)
            c = devices.full((m, n), np.nan, np.float32)
        for _ in range(2):  # the long way, then the short one
            pyblas_sgemm.sgemm("N", "N", m, n, k, 1.0, a, k, b, n, 0.0, c, n)
            made = pyblas_sgemm.matmul(a, b)
            assert devices.cuda.runtime.getDevice() == 0 and made.device.id == device
            with devices.cuda.Device(device):
                assert (devices.asnumpy(c) == want).all() and (devices.asnumpy(made) == want).all()
                c[...] = np.nan


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [row[0] for row in engines.kernel_rows() if row[1] == "gpu"])
def test_every_kernel_on_the_second_device(devices, kernel):
    """What a kernel is allowed is allowed on one device only, so each device has to be asked."""
    m, n, k = 24, 16, 700
    for device in (0, 1):
        with devices.cuda.Device(device):
            a, b, want = product(devices, m, n, k)
            c = devices.full((m, n), np.nan, np.float32)
        handle = pyblas_sgemm.Handle(device, kernel=kernel)
        try:
            pyblas_sgemm.sgemm("N", "N", m, n, k, 1.0, a, k, b, n, 0.0, c, n, handle=handle)
        except pyblas_sgemm.NotSupportedError:
            continue
        with devices.cuda.Device(device):
            assert (devices.asnumpy(c) == want).all(), device


@pytest.mark.gpu
def test_two_devices_in_one_call(devices):
    here = devices.ones((64, 64), np.float32)
    with devices.cuda.Device(1):
        there = devices.zeros((64, 64), np.float32)
    for arrays in ((here, here, there), (here, there, here), (there, here, here), (there, there, here)):
        for _ in range(2):
            with pytest.raises(ValueError, match=r"GPU 0.*GPU 1|GPU 1.*GPU 0"):
                pyblas_sgemm.sgemm("N", "N", 64, 64, 64, 1.0, arrays[0], 64, arrays[1], 64, 0.0, arrays[2], 64)
            with pytest.raises(ValueError, match=r"GPU 0.*GPU 1|GPU 1.*GPU 0"):
                pyblas_sgemm.matmul(arrays[0], arrays[1], out=arrays[2])
    with pyblas_sgemm.Handle(1) as handle, pytest.raises(ValueError, match="GPU 1"):
        pyblas_sgemm.sgemm("N", "N", 64, 64, 64, 1.0, here, 64, here, 64, 0.0, here, 64, handle=handle)


@pytest.mark.gpu
def test_one_handle_follows_arrays_on_every_device(devices):
    with pyblas_sgemm.Handle() as handle:
        for device, (m, n, k) in [(0, SIZES[1]), (1, SIZES[1]), (1, SIZES[2]), (0, SIZES[0])]:
            with devices.cuda.Device(device):
                a, b, want = product(devices, m, n, k)
                c = devices.empty((m, n), np.float32)
            pyblas_sgemm.sgemm("N", "N", m, n, k, 1.0, a, k, b, n, 0.0, c, n, handle=handle)
            with devices.cuda.Device(device):
                assert (devices.asnumpy(c) == want).all()
        handle.free_workspace()


@pytest.mark.gpu
def test_a_thread_for_each_device(devices):
    def work(device):
        with devices.cuda.Device(device), devices.cuda.Stream(non_blocking=True) as stream:
            for turn in range(30):
                m, n, k = SIZES[turn % len(SIZES)]
                a, b, want = product(devices, m, n, k, turn)
                got = pyblas_sgemm.matmul(a, b)
                stream.synchronize()
                assert (devices.asnumpy(got) == want).all(), (device, turn)
                assert devices.cuda.runtime.getDevice() == device

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, device) for device in (0, 1, 0, 1)]:
            done.result()


@pytest.mark.gpu
def test_a_capture_on_the_second_device(devices):
    m, n, k = SIZES[1]
    with devices.cuda.Device(1):
        stream = devices.cuda.Stream(non_blocking=True)
        a, b, want = product(devices, m, n, k)
        c = devices.zeros((m, n), np.float32)
        devices.cuda.Device(1).synchronize()
        with stream:
            stream.begin_capture()
            pyblas_sgemm.sgemm("N", "N", m, n, k, 1.0, a, k, b, n, 0.0, c, n)
            graph = stream.end_capture()
        for _ in range(3):
            c[...] = 0
            devices.cuda.Device(1).synchronize()
            graph.launch(stream)
            stream.synchronize()
            assert (devices.asnumpy(c) == want).all()


@pytest.mark.gpu
@pytest.mark.interop("torch")
def test_tensors_on_the_second_device(devices):
    import torch

    m, n, k = SIZES[0]
    a, b, want = product(np, m, n, k)
    a, b = torch.from_numpy(a).to("cuda:1"), torch.from_numpy(b).to("cuda:1")
    for _ in range(2):
        made = pyblas_sgemm.matmul(a, b)
        assert made.device.index == 1 and torch.cuda.current_device() == 0
        assert (made.cpu().numpy() == want).all()
        with pytest.raises(ValueError, match="GPU"):
            pyblas_sgemm.matmul(a, b.to("cuda:0"))


def test_a_machine_without_a_gpu_says_so():
    slot = ffi.new("pyblasHandle_t *")
    status = lib.pyblasCreateOnDevice(slot, 0)
    if status == SUCCESS:
        assert lib.pyblasDestroy(slot[0]) == SUCCESS
    elif status == NOT_SUPPORTED:
        assert "built without CUDA" in message()
    else:
        assert "GPU" in message()
