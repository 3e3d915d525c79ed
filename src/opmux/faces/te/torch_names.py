"""Replacements for names that Transformer Engine imports from torch, for torch versions that lack them or have a bug.

torch is not changed: `rewrite` makes the layer import these names from this module.

- `fake_tensor.is_fake` of torch 2.11 raises "got mixed fake and real tensors!" for a wrapper without inner tensors,
  such as the layer's identity and hybrid tensors.
- `opaque_object.register_custom_class` and `is_opaque_constant_type` have older names in torch 2.13. Without the new
  names `torch.compile(fullgraph=True)` fails for the layer's `Linear`. Before torch 2.13, classes of opaque constants
  need a metaclass from torch, so the layer still has graph breaks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._library import opaque_object
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
FAKE, OPAQUE = fake_tensor.__name__, opaque_object.__name__


def is_fake(x: object) -> bool:
    """torch's `is_fake`; False for a wrapper without inner tensors."""
    if isinstance(x, torch.Tensor) and is_traceable_wrapper_subclass(x):
        names, _ = type(x).__tensor_flatten__(x)  # pyright: ignore[reportAttributeAccessIssue]
        return any(is_fake(getattr(x, name)) for name in names)
    return fake_tensor.is_fake(x)


def register_custom_class(cls: type, *, typ: str, **options: Any) -> None:
    """Newer name of `register_opaque_type`, which calls a "constant" a "value"."""
    opaque_object.register_opaque_type(cls, typ="value" if typ == "constant" else typ, **options)


def is_opaque_constant_type(cls: Any) -> bool:
    return opaque_object.is_opaque_value_type(cls)


def replaced() -> frozenset[tuple[str, str]]:
    """(module, name) of the imports from torch that `rewrite` redirects to this module."""
    names = set()
    if TORCH < (2, 13):
        names.add((FAKE, "is_fake"))
    elif not hasattr(opaque_object, "register_custom_class"):
        names |= {(OPAQUE, "register_custom_class"), (OPAQUE, "is_opaque_constant_type")}
    return frozenset(names)
