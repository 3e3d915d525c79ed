"""A plugin of vLLM: the entry point "opmux" of the group `vllm.general_plugins`, which vLLM calls in each process."""

from __future__ import annotations

from ..faces.aten.switch import enable
from ..settings import VLLM


def register() -> None:
    """Call `opmux.enable()` if OPMUX_VLLM=1, else do nothing. vLLM may call this more than once in a process."""
    if VLLM.get():
        enable()
