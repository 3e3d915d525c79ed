"""Our layers for Hugging Face `kernels`: `kernelize(model, ...)` takes them from a mapping, without a download."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..core.errors import BadArgument
from ..faces.models.forms import form
from ..faces.models.modules import own_forward
from ..faces.models.replacements import REPLACEMENTS, ROPES, function_of, remember_activations

DEVICES = ("cuda", "rocm", "xpu", "npu", "cpu")
PARTS = ("rms_norm", "glu")  # parts of `patch_model` that replace one module; the others use several modules


@dataclass(frozen=True)
class OpmuxLayer:
    """What `kernels` calls a repository: `kernelize` gives a layer the forward of the class that `load` returns."""

    name: str
    forward: Callable[..., Any]

    def load(self) -> type[nn.Module]:
        return type(self.name, (nn.Module,), {"forward": self.forward, "can_torch_compile": True, "has_backward": True})

    def __str__(self) -> str:
        return f"opmux (layer `{self.name}`)"


def mapping(model: nn.Module, devices: Iterable[str] = DEVICES) -> dict[str, dict[str, OpmuxLayer]]:
    """A mapping for `kernels.use_kernel_mapping` with our layers for a model.

    `with use_kernel_mapping(mapping(model)): kernelize(model, mode=Mode.TRAINING)`. Our layers are RMS norms, gated
    MLPs and rotary embeddings. As in `patch_model`, our layer replaces a layer only if we know the source of that
    layer's forward.

    Args:
        model: a model whose layers are prepared for `kernels` (`use_kernel_forward_from_hub`). Layers of transformers
            are prepared if transformers supports the installed version of `kernels`.
        devices: the device types for which `kernelize` uses our layers.

    Returns:
        {name of a layer: {device type: layer}}.
    """
    remember_activations()
    forwards: dict[str, set[Callable[..., Any] | None]] = {}
    for module in model.modules():
        for layer in (module, *getattr(module, "_kernel_funcs", {}).values()):
            name = getattr(type(layer), "kernel_layer_name", None)
            if name is not None:
                forwards.setdefault(str(name), set()).add(_forward(layer))
    # `kernelize` has one layer for each name, so a name with two different layers is left out.
    layers = {name: OpmuxLayer(name, known) for name, (known, *more) in forwards.items() if known and not more}
    if not layers:
        found = (
            ", ".join(sorted(forwards)) or "none (`kernels` is missing, or transformers does not support its version)"
        )
        raise BadArgument.of(
            "mapping", "model", "have layers that are prepared for kernels and known to opmux", f"layers {found}"
        )
    return {name: dict.fromkeys(devices, layer) for name, layer in layers.items()}


def _forward(layer: nn.Module) -> Callable[..., Any] | None:
    """Our forward for a layer, or None."""
    function = function_of(layer)
    if function is not None:
        known = ROPES.get(form(function) or "")
        return None if known is None else _method(function, known[0])
    original = own_forward(type(layer))
    replacement = REPLACEMENTS.get(form(original, type(layer)) or "")
    return None if replacement is None or replacement.name not in PARTS else _made(original, replacement.make)


@functools.cache
def _made(original: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    return make(original)


@functools.cache
def _method(function: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    """Our function as a method, with the signature that `kernels` compares with the layer's."""
    ours = make(function)

    @functools.wraps(function)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return ours(*args[1:], **kwargs)

    forward.__signature__ = _with_self(function)  # pyright: ignore[reportAttributeAccessIssue]
    return forward


def _with_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature.replace(parameters=[first, *signature.parameters.values()])
