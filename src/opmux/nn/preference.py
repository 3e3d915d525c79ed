"""Preference, policy and distillation losses as modules. The constructor takes the options, the call takes the tensors.

The modules have no parameters: the last layer's weight is an argument of the call, as in the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from ..functional import distillation, grpo, preference
from .losses import _WithOptions


class _FunctionLoss(_WithOptions):
    """Calls `function`, whose keyword-only arguments become attributes, except those that a subclass fixes."""

    function: ClassVar[Callable[..., Any]]
    fixed: ClassVar[dict[str, Any]]
    defaults: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, function: Callable[..., Any], **fixed: Any) -> None:
        parameters = inspect.signature(function).parameters.values()
        options = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in fixed]
        cls.function, cls.fixed, cls.defaults = staticmethod(function), fixed, {p.name: p.default for p in options}
        cls.__signature__ = inspect.Signature(options)  # pyright: ignore[reportAttributeAccessIssue]

    def __init__(self, **options: Any):
        for name in options.keys() - self.defaults.keys():
            known = ", ".join(self.defaults)
            raise TypeError(f"{type(self).__name__}: unknown option {name!r}; its options are {known}")
        super().__init__(**{**self.defaults, **options})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with these arguments and the options; an option passed here overrides the attribute."""
        return self.function(*args, **{**self.options, **self.fixed, **kwargs})

    def extra_repr(self) -> str:
        changed = ((name, value) for name, value in self.options.items() if value != self.defaults[name])
        return ", ".join(f"{name}={value!r}" for name, value in changed)


class FusedLinearDPOLoss(_FunctionLoss, function=preference.fused_linear_dpo):
    """`opmux.functional.fused_linear_dpo`, with its options as attributes."""


class FusedLinearORPOLoss(_FunctionLoss, function=preference.fused_linear_orpo):
    """`opmux.functional.fused_linear_orpo`, with its options as attributes."""


class FusedLinearCPOLoss(_FunctionLoss, function=preference.fused_linear_cpo):
    """`opmux.functional.fused_linear_cpo`, with its options as attributes."""


class FusedLinearSimPOLoss(_FunctionLoss, function=preference.fused_linear_simpo):
    """`opmux.functional.fused_linear_simpo`, with its options as attributes."""


class FusedLinearKTOLoss(_FunctionLoss, function=preference.fused_linear_kto):
    """`opmux.functional.fused_linear_kto`, with its options as attributes."""


class FusedLinearGRPOLoss(_FunctionLoss, function=grpo.fused_linear_grpo):
    """`opmux.functional.fused_linear_grpo`, with its options as attributes."""


class JSDDistillationLoss(_FunctionLoss, function=distillation.fused_linear_distillation, kind="jsd"):
    """`opmux.functional.fused_linear_distillation` of kind "jsd", with its other options as attributes."""


class CosineDistillationLoss(_FunctionLoss, function=distillation.fused_linear_distillation, kind="cosine"):
    """`opmux.functional.fused_linear_distillation` of kind "cosine", with its other options as attributes."""
