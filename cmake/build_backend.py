"""scikit-build-core, with nvcc among the build requirements where a GPU is there and a toolkit is not."""

from __future__ import annotations

import os
from typing import Any

import scikit_build_core.build as backend
from scikit_build_core.build import *

from cuda_toolkit import WHEELS, BuildError, wants_wheels


def compiler(config_settings: dict[str, Any] | None) -> list[str]:
    mode = (config_settings or {}).get("cmake.define.PYBLAS_CUDA") or os.environ.get("PYBLAS_CUDA", "")
    try:
        return WHEELS if wants_wheels(mode) else []
    except BuildError as error:
        raise SystemExit(str(error)) from None


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*backend.get_requires_for_build_wheel(config_settings), *compiler(config_settings)]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*backend.get_requires_for_build_editable(config_settings), *compiler(config_settings)]
