"""NVIDIA's Transformer Engine over opmux's tex, for tests that run it on the CPU."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
import torch

NEEDED = ("transformer_engine", "triton", "einops", "pydantic")


def skip_without(with_cuda: str) -> None:
    """Skip the calling test file if the layer cannot be imported. Also skip it, with the reason `with_cuda`, if there
    is a CUDA device.
    """
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
    if torch.cuda.is_available():
        pytest.skip(with_cuda, allow_module_level=True)


def load() -> ModuleType:
    """Import `transformer_engine.pytorch` with our tex, which an earlier test may have uninstalled."""
    import opmux.te

    opmux.te.install()
    return importlib.import_module("transformer_engine.pytorch")
