"""Declares torch's ops with ATen's names and signatures, read from ATen's schemas; the reference is torch's own op."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import codegen
from ..core.spec import Tol, op
from .samples import Maker

# Types in schemas -> Python annotations; `| None` is added for an optional argument.
TYPES = {
    "Tensor": "Tensor",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "List[int]": "list[int]",
    "List[bool]": "list[bool]",
    "List[float]": "list[float]",
}

# For ops whose CPU kernels in ATen accumulate in 16 bits; our kernels and ATen's CUDA kernels accumulate in 32 bits.
ROUGH: Mapping[torch.dtype, Tol] = {torch.float16: Tol(1e-2, 1e-2), torch.bfloat16: Tol(5e-2, 5e-2)}


def declare(
    name: str,
    doc: str,
    samples: Maker,
    *,
    out: str = "y",
    tol: Mapping[torch.dtype, Tol] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Any:
    """Declare torch.ops.aten.<name>, with the arguments of the functional overload.

    If torch lacks the op on the CPU, `reference` is the op's reference instead of torch's own op.
    """
    schema = getattr(torch.ops.aten, name).default._schema
    arguments = [f"{a.name}: {_annotation(a)}{_default(a)}" for a in schema.arguments]
    passed = ", ".join(a.name for a in schema.arguments)
    result = "Tensor" if len(schema.returns) == 1 else f"tuple[{', '.join(['Tensor'] * len(schema.returns))}]"
    text = f"def {name}({', '.join(arguments)}) -> {result}:\n    return _torchs({passed})\n"
    names = {"Tensor": Tensor, "_torchs": reference or _any_float(getattr(torch.ops.aten, name))}
    fn = codegen.function(text, name, f"reference of aten::{name}", names)
    fn.__doc__, fn.__module__ = doc, samples.build.__module__
    return op(fn, space="aten", samples=samples, out=out, tol=tol)


def _any_float(torchs: Any) -> Callable[..., Any]:
    """Call torch's op; without a 16-bit kernel (as on the CPU), compute in float32 and convert the results."""

    def call(*args: Any) -> Any:
        try:
            return torchs(*args)
        except NotImplementedError:
            halves = {a.dtype for a in args if isinstance(a, Tensor)} & {torch.float16, torch.bfloat16}
            if len(halves) != 1:
                raise
        (half,) = halves
        results = torchs(*(a.float() if isinstance(a, Tensor) and a.dtype is half else a for a in args))
        narrow = lambda t: t.to(half) if isinstance(t, Tensor) and t.dtype is torch.float32 else t
        return tuple(map(narrow, results)) if isinstance(results, tuple) else narrow(results)

    return call


def _annotation(argument: Any) -> str:
    text = str(argument.type)
    inner = text.removeprefix("Optional[").removesuffix("]") if text.startswith("Optional") else text
    return TYPES[inner] + (" | None" if inner is not text else "")


def _default(argument: Any) -> str:
    return f" = {argument.default_value!r}" if argument.has_default_value() else ""
