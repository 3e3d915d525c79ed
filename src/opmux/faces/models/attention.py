"""Attention of one new token, computed by torch's flash attention.

On a Hopper GPU `F.scaled_dot_product_attention` prefers cuDNN, which builds a plan for every new shape: 1.75 ms on an
H200. In `generate` each new token has one more key than the token before, so every call builds a plan. Flash attention
needs no plan, splits the keys over the whole GPU, and reads grouped keys (GQA) without repeating them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .forms import home_of, unwrapped

Forward = Callable[..., Any]

FUNCTIONS = "ALL_ATTENTION_FUNCTIONS"  # the global variable from which a forward gets its attention function
# Arguments that have no effect for one query without a mask. If any other argument is set, transformers' function runs.
IGNORED = frozenset(
    "position_ids use_cache sliding_window is_causal cache_position output_router_logits output_hidden_states labels "
    "image_sizes".split()
)

flash: Callable[..., Any] = torch._scaled_dot_product_flash_attention


@functools.cache
def has_flash(device: torch.device) -> bool:
    """Whether torch's flash attention runs on a device: NVIDIA GPUs from Ampere on."""
    if device.type != "cuda" or torch.version.cuda is None or not torch.backends.cuda.is_flash_attention_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether flash attention supports these tensors, no gradient is needed, and the user has not disabled it."""
    batch, heads, _, width = query.shape
    dtype = query.dtype
    return (
        not torch.is_grad_enabled()
        and has_flash(query.device)
        and (dtype is torch.bfloat16 or dtype is torch.float16)
        and key.dtype is dtype
        and value.dtype is dtype
        and width <= 256
        and width % 8 == 0
        and key.shape == value.shape
        and key.shape[0] == batch
        and key.shape[2] > 0
        and key.shape[3] == width
        and heads % key.shape[1] == 0
        and query.stride(3) == key.stride(3) == value.stride(3) == 1
        and not torch.is_autocast_enabled("cuda")  # under autocast torch's attention casts its inputs
        and torch.backends.cuda.flash_sdp_enabled()
    )


def _has_other_options(options: dict[str, Any]) -> bool:
    return any(name not in IGNORED and value is not None and value is not False for name, value in options.items())


@functools.cache
def with_one_query_path(original: Forward) -> Forward:
    """transformers' "sdpa" attention, except that flash attention computes calls with one query and no mask."""

    @functools.wraps(original)
    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if (
            attention_mask is None
            and not torch.compiler.is_compiling()
            and query.shape[2] == 1
            and dropout == 0.0
            and (kwargs.keys() <= IGNORED or not _has_other_options(kwargs))
            and fits(query, key, value)
        ):
            return flash(query, key, value, scale=scaling)[0].transpose(1, 2).contiguous(), None
        return original(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)

    return attend


class Functions:
    """A mapping of a model's attention functions, in which ours replaces transformers' own "sdpa"."""

    def __init__(self, home: Any):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        self.home, self.native = home, sdpa_attention_forward
        self.ours = with_one_query_path(sdpa_attention_forward)

    def get_interface(self, name: str, default: Forward) -> Forward:
        function = getattr(self.home, FUNCTIONS).get_interface(name, default)
        return self.ours if function is self.native else function


_functions: dict[Any, Functions] = {}  # Python module -> its functions


def functions_of(original: Any) -> Functions | None:
    """The attention functions to use in a forward; None if the forward does not decode with a cache."""
    inner = unwrapped(original)
    names = getattr(getattr(inner, "__code__", None), "co_names", ())
    if FUNCTIONS not in names or "get_interface" not in names:
        return None
    home = home_of(inner)
    if home is None or "past_key_values" not in inspect.signature(inner).parameters:
        return None
    return _functions.setdefault(home, Functions(home))
