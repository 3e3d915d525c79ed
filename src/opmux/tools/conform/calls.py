"""Calls of ATen's ops from the table of real shapes. Draws their tensors, and computes the expected and our results."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ...core.default import policy
from ...core.errors import NoImplementation, NotSupported
from ...core.spec import specs
from ...faces.aten.overloads import Overload, table
from ...faces.aten.schema import OverloadSchema
from ...faces.aten.switch import use
from .poison import poisoned
from .shapes import ModelCall, TensorSpec, UnderTest

# Arguments that must be positive for every op: inverse standard deviations, variances, norms.
POSITIVE = ("rstd", "invstd", "var", "norms")
# Ops that are defined, or well conditioned, only for positive numbers.
POSITIVE_OPS = ("log", "sqrt", "rsqrt", "pow", "xlogy", "lgamma", "digamma", "polygamma", "reciprocal", "div", "acosh")
BATCH_ARGUMENTS = {"native_group_norm": "N", "native_group_norm_backward": "N"}  # the argument repeats the batch size


class LeftToTorch(Exception):
    """Raised if our kernels leave a call to torch. The message says why."""


# ---- sizes ----------------------------------------------------------------------------------------------------------


def scaled(call: ModelCall, most: int) -> ModelCall | None:
    """The call with fewer rows, so that its largest tensor has at most `most` elements; None if that is impossible."""
    largest = max(call.tensor_specs, key=lambda k: k.numel)
    if largest.numel <= most:
        return call
    keeps_channels = "_norm" in call.op and len(largest.shape) > 3
    dims = largest.shape[:1] if keeps_channels else largest.shape[:-1]
    dim = next((d for d, n in enumerate(dims) if n > 1), None)
    if dim is None:
        return None
    before = largest.shape[dim]
    after = max(min(before, 2), most * before // largest.numel)  # keep two rows, which a variance needs
    if largest.numel // before * after > 16 * most:
        return None

    def cut(value: Any) -> Any:
        if not isinstance(value, TensorSpec) or len(value.shape) < 2:
            return value
        shape = list(value.shape)
        at = dim - len(largest.shape) + len(shape)  # the same dimension counted from the right, as in broadcasting
        for axis in {at, dim} if value.shape[0] == before and dim == 0 else {at}:
            if 0 <= axis < len(shape) and shape[axis] == before:
                shape[axis] = after
        return replace(value, shape=tuple(shape)) if value.stride is not None else TensorSpec(value.dtype, tuple(shape))

    args = list(tree_map(cut, list(call.args), is_leaf=lambda v: isinstance(v, TensorSpec)))
    counted = BATCH_ARGUMENTS.get(call.op)
    if counted is not None:
        args[OverloadSchema(call.op).names.index(counted)] = after
    return replace(call, args=tuple(args), kwargs={k: cut(v) for k, v in call.kwargs.items()})


# ---- tensors --------------------------------------------------------------------------------------------------------


@dataclass
class Arguments:
    """The arguments of one call; tensors are drawn once. `fresh` returns copies, because a call may write to them."""

    call: ModelCall
    dtype: torch.dtype
    device: torch.device

    def __post_init__(self) -> None:
        seed = zlib.crc32(f"{self.call.op} {self.call} {self.dtype}".encode())
        self._generator = torch.Generator(self.device).manual_seed(seed)
        names = OverloadSchema(self.call.op).names
        self.args = [self._value(names[i] if i < len(names) else "", a) for i, a in enumerate(self.call.args)]
        self.kwargs = {k: self._value(k, v) for k, v in self.call.kwargs.items()}

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, TensorSpec):
            return self._tensor(name, value)
        if isinstance(value, list):
            return [self._value(name, v) for v in value]
        if name == "half_to_float":
            return bool(value) and self.dtype in (torch.float16, torch.bfloat16)
        return self.dtype if value is UnderTest else value

    def _tensor(self, name: str, spec: TensorSpec) -> Tensor:
        dtype = self.dtype if spec.dtype is None else spec.dtype
        if self.dtype is torch.float64 and dtype.is_floating_point:
            dtype = torch.float64
        length = spec.numel if spec.stride is None else 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride))
        flat = self._numbers(name, length, dtype)
        return flat.view(spec.shape) if spec.stride is None else flat.as_strided(spec.shape, spec.stride)

    def _numbers(self, name: str, n: int, dtype: torch.dtype) -> Tensor:
        more = {"generator": self._generator, "device": self.device}
        if dtype is torch.bool:
            return torch.rand(n, **more) > 0.5
        if not dtype.is_floating_point:
            return torch.randint(0, 100, (n,), dtype=dtype, **more)
        x = torch.randn(n, dtype=torch.float64 if dtype is torch.float64 else torch.float32, **more)
        packet = self.call.op.partition(".")[0].strip("_")
        if any(p in name for p in POSITIVE):
            x = x.abs().clamp(0.5, 2.0)
        elif packet.startswith(POSITIVE_OPS):
            x = x.abs() + 0.5
        return x.to(dtype)

    def fresh(self, wide: bool = False) -> tuple[list[Any], dict[str, Any]]:
        """Copies with the same strides. With `wide`, float tensors and dtype arguments become float64."""
        return tree_map(lambda v: _copied(v, wide), (self.args, self.kwargs))


def _copied(value: Any, wide: bool) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if wide and value.is_floating_point else value
    if not isinstance(value, Tensor):
        return value
    whole = value.as_strided((value.untyped_storage().nbytes() // value.itemsize,), (1,), 0)
    to = torch.float64 if wide and value.is_floating_point() else value.dtype
    return whole.to(to, copy=True).as_strided(value.shape, value.stride(), value.storage_offset())


# ---- results --------------------------------------------------------------------------------------------------------


def truth(arguments: Arguments) -> list[Tensor]:
    args, kwargs = arguments.fresh(wide=True)
    shape = OverloadSchema(arguments.call.op)
    if "half_to_float" in kwargs:
        kwargs["half_to_float"] = False
    elif "half_to_float" in shape.names:
        args[shape.names.index("half_to_float")] = False
    return results(shape, args, kwargs)


def results(shape: OverloadSchema, args: list[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The results of a call, followed by the arguments that it wrote."""
    with torch.no_grad():
        returned = shape.op(*args, **kwargs)
    tensors = [t for t in tree_leaves(returned) if isinstance(t, Tensor)]
    arguments = dict(zip(shape.names, args)) | kwargs
    return tensors + [arguments[n] for n in shape.written if isinstance(arguments.get(n), Tensor)]


def ours(arguments: Arguments) -> list[Tensor]:
    """Run only our kernels; raises LeftToTorch if they decline the call."""
    args, kwargs = arguments.fresh()
    shape = OverloadSchema(arguments.call.op)
    try:
        with use(mode="all"), policy("flagos", strict=True), poisoned():
            return results(shape, args, kwargs)
    except (NotSupported, NoImplementation) as error:
        raise LeftToTorch(str(error).splitlines()[0]) from None


# ---- forms that no model calls --------------------------------------------------------------------------------------


def derived(overload: Overload, shape: tuple[int, ...], dtype: torch.dtype) -> ModelCall | None:
    """A call of an overload, made from samples of the op that computes it. None if they do not fit the overload."""
    base = specs.by_key[overload.bases[0]]
    samples: Any = base.samples
    if base.space != "aten" or not hasattr(samples, "at"):
        return None
    try:
        sample = samples.at((2, *shape[1:])[: len(shape)], dtype, "meta")
    except (TypeError, ValueError, RuntimeError, KeyError):
        return None
    named = dict(zip(base.names, sample.args)) | sample.kwargs
    arguments: dict[str, Any] = {}
    for argument in overload.shape.arguments:
        name = argument.name
        if name in overload.shape.outs:
            arguments[name] = None
        elif name in named:
            fitted = _fitted(str(argument.type), named[name], dtype, shape)
            if fitted is None and named[name] is not None:
                return None
            arguments[name] = fitted
        elif not argument.has_default_value():
            return None
    return _with_outs(overload.shape, arguments, dtype)


def sibling(overload: Overload, rows: Sequence[ModelCall]) -> ModelCall | None:
    """A call of this `out=` or in-place overload, made from a model's call of another overload of the op."""
    shape = overload.shape
    for row in rows:
        other = OverloadSchema(row.op)
        if other.packet == shape.packet.removesuffix("_") and not other.written and _alike(other, shape):
            arguments = dict(zip(other.names, row.args)) | row.kwargs
            return _with_outs(shape, arguments, torch.bfloat16)
    return None


def _alike(a: OverloadSchema, b: OverloadSchema) -> bool:
    """Whether two overloads take the same arguments, apart from `out=`."""
    types = lambda shape: [(x.name, str(x.type)) for x in shape.arguments if x.name not in shape.outs]
    return types(a) == types(b)


def _fitted(kind: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Any:
    if kind.startswith("Optional"):
        kind = kind.removeprefix("Optional[").removesuffix("]")
    if kind == "Tensor":
        if not isinstance(value, Tensor):
            return None
        size = shape if value.dim() == len(shape) else tuple(value.shape)
        return TensorSpec(None if value.dtype is dtype else value.dtype, size)
    return 2 if isinstance(value, Tensor) else value


def _with_outs(shape: OverloadSchema, arguments: dict[str, Any], dtype: torch.dtype) -> ModelCall | None:
    """Add `out=` tensors to the call, with the shapes and dtypes that torch infers on meta tensors."""
    call = ModelCall(shape.name, (), arguments, ("samples",))
    if not shape.outs:
        return call
    forms = (o.shape for o in table().values() if o.shape.packet == shape.packet and not o.shape.written)
    plain = next((form for form in forms if _alike(form, shape)), None)
    if plain is None:
        return None
    to_meta = lambda v: torch.empty(v.shape, dtype=v.dtype or dtype, device="meta") if isinstance(v, TensorSpec) else v
    meta_arguments = {k: dtype if v is UnderTest else to_meta(v) for k, v in arguments.items() if k not in shape.outs}
    try:
        results = tree_leaves(plain.op(**meta_arguments))
    except (TypeError, ValueError, RuntimeError):
        return None
    if len(results) != len(shape.outs):
        return None
    return replace(call, kwargs=arguments | {n: TensorSpec.of(t, dtype) for n, t in zip(shape.outs, results)})
