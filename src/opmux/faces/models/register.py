"""`opmux.register_attention`: our attention, registered in `transformers`.

Continuous batching of transformers compares the attention's name with its own functions' names to decide whether to
replace the attention, create block tables, and reserve memory for masks. We wrap these checks so that they know our
names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import interface, paged
from .interface import NAME
from .paged import PREFIXED, SLIDING

# The name of a model's attention during continuous batching. No mask function has this name, so transformers creates no
# mask. The name has no prefix, because transformers 5.23 removes the prefix from PREFIXED.
BATCHED = "opmux_paged"
OURS = "_opmux"  # attribute that marks a replaced function


def register_attention() -> None:
    """Register our attention with `transformers` as "opmux".

    Then `from_pretrained(.., attn_implementation="opmux")` and `model.set_attn_implementation("opmux")` use it, for any
    model that gets its attention from transformers' `AttentionInterface`, also in continuous batching
    (`generate_batch`). A second call has no effect.
    """
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(NAME, interface.attend)
    AttentionMaskInterface.register(NAME, interface.mask)
    try:
        from transformers.generation.continuous_batching import cache, initialization
        from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
    except ImportError:  # this transformers has no continuous batching, or a version that we do not know
        return
    replaced = (
        (ContinuousBatchingManager, "switch_to_cb_friendly_attn", _switching),
        (initialization, "ensure_decode_fast_path_is_available", _with_tables),
        (cache, "is_flash_attention_requested", _without_masks),
    )
    if not all(hasattr(owner, name) for owner, name, _ in replaced):
        return
    for name in (BATCHED, PREFIXED):  # not compiled: compiled code copies the cache to write a part of it
        AttentionInterface.register(name, torch.compiler.disable(paged.attend))
    for owner, name, wrap in replaced:
        original = getattr(owner, name)
        if not hasattr(original, OURS):
            replacement = functools.wraps(original)(wrap(original))
            setattr(replacement, OURS, True)
            setattr(owner, name, replacement)


def _ours(config: Any) -> bool:
    return config._attn_implementation in (BATCHED, PREFIXED)


def _switching(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps a manager's choice of attention: models with "opmux" run our paged attention until the manager stops."""

    def switch(manager: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        if model.config._attn_implementation == NAME:
            model.set_attn_implementation(BATCHED)
            manager._original_attn_impl = NAME
        elif not _ours(model.config):
            original(manager, model, *args, **kwargs)

    return switch


def _with_tables(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps the check for block tables, because our attention supports them on any device if no layer has a window."""

    def ensure(config: Any, cb_config: Any, user_requested: bool) -> None:
        if not _ours(config):
            original(config, cb_config, user_requested)
        elif _slides(config):
            cb_config.max_blocks_per_request = 0

    return ensure


def _slides(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    return SLIDING in kinds if kinds is not None else getattr(config, "sliding_window", None) is not None


def _without_masks(original: Callable[..., bool]) -> Callable[..., bool]:
    """Wraps the check for flash attention: our attention passes it, so that no memory is reserved for masks.

    transformers also enables CUDA graphs and asynchronous batches for flash attention. It does so by other checks,
    which our attention does not pass: both stay disabled.
    """

    def requested(config: Any = None, *args: Any, **kwargs: Any) -> bool:
        return (config is not None and _ours(config)) or original(config, *args, **kwargs)

    return requested
