"""Single-precision matrix products on NVIDIA GPUs and on the CPU.

``matmul`` multiplies arrays as NumPy does; ``sgemm``, ``gemm_strided_batched`` and ``gemm_batched`` are BLAS's call with
NumPy, CuPy, PyTorch and other arrays, and ``gemm_ex`` takes float16 and bfloat16 ones; ``info()`` says what they run on.
"""

import importlib.util as _util

if _util.find_spec("._cffi", __name__) is None:
    raise ImportError(
        "pyblas_sgemm is not built here: run 'pip install .' in the source folder and start Python outside of it"
    )

from ._handle import Handle, KernelInfo, SelectedKernel, compute_mode, kernels
from ._info import info, library_version
from ._matmul import matmul
from ._sgemm import (
    gemm_batched,
    gemm_ex,
    gemm_strided_batched,
    gemm_strided_batched_ex,
    selected_kernel,
    sgemm,
)
from ._status import AllocError, InvalidValueError, NotSupportedError, SgemmError

__version__ = library_version()

__all__ = [
    "AllocError",
    "Handle",
    "InvalidValueError",
    "KernelInfo",
    "NotSupportedError",
    "SelectedKernel",
    "SgemmError",
    "__version__",
    "compute_mode",
    "gemm_batched",
    "gemm_ex",
    "gemm_strided_batched",
    "gemm_strided_batched_ex",
    "info",
    "kernels",
    "matmul",
    "selected_kernel",
    "sgemm",
]
