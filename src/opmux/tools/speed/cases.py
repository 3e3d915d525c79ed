"""Arguments for torch's overloads at a given size: from calls of torch's functions, else from the schema.

A *program* calls a function of torch, and its backward, on a tensor of about the size that is asked for; the calls of
overloads that torch makes for it, with their arguments, are the cases. An overload that no program reaches gets its
arguments by their names and types. `out=` and in-place overloads take those of the functional one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...core.tensors import tensors_in
from ...faces.aten.overloads import Overload, functional
from ...faces.aten.schema import Shape

# What torch raises for arguments that an op does not take.
REFUSALS = (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError, AttributeError)
CASES = 3  # cases of one overload at one size, at most: along rows, along columns, another layout


@dataclass(frozen=True)
class Case:
    """One call of an overload."""

    args: tuple
    kwargs: dict[str, Any]

    @property
    def numel(self) -> int:
        """The size by which the C++ gate decides: that of the first tensor; of a factory, the size asked for."""
        first = next(iter(tensors_in((self.args, self.kwargs))), None)
        if first is not None:
            return first.numel()
        sizes = next((a for a in self.args if isinstance(a, (list, tuple))), None)
        made = 1
        for n in sizes or [a for a in self.args if isinstance(a, int)]:
            made *= int(n)
        return made

    @property
    def total(self) -> int:
        """The elements of all tensors, or of what a factory makes."""
        given = [t.numel() for t in tensors_in((self.args, self.kwargs))]
        return sum(given) if given else self.numel


class Calls(TorchDispatchMode):
    """Keeps the arguments of each overload that is called, as they were passed."""

    def __init__(self, wanted: set[str]) -> None:
        super().__init__()
        self.wanted = wanted
        self.found: dict[str, list[Case]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.").removesuffix(".default")
        if name in self.wanted and not self.found.get(name):
            self.found[name] = [Case(tuple(args), dict(kwargs))]
        return func(*args, **kwargs)


# ---- programs -------------------------------------------------------------------------------------------------------

Make = Callable[[Tensor], Any]


def _both(fn: Make) -> Make:
    """A function and its backward, with a gradient that has memory of its own."""

    def run(x: Tensor) -> None:
        x = x.detach().requires_grad_(x.is_floating_point())
        made = fn(x)
        out = made[0] if isinstance(made, (tuple, list)) else made
        if isinstance(out, Tensor) and out.requires_grad:
            torch.autograd.grad(out, x, torch.randn_like(out), allow_unused=True)

    return run


def _image(x: Tensor, channels: int = 64) -> Tensor:
    """The elements as images, [N, C, 32, 32] or less."""
    side = 32 if x.numel() >= channels * 32 * 32 else 8
    count = x.numel() // (channels * side * side)
    return x.reshape(-1)[: count * channels * side * side].view(count, channels, side, side)


def _heads(x: Tensor) -> Tensor:
    """The elements as queries, [B, H, S, 64]."""
    heads, length = (8, 512) if x.numel() >= 8 * 512 * 64 else (2, 8)
    return x.reshape(-1)[: x.numel() // (heads * length * 64) * heads * length * 64].view(-1, heads, length, 64)


def _square(x: Tensor) -> Tensor:
    """A matrix of [1024, n] or less whose product with itself is affordable."""
    n = min(x.shape[-1], 1024)
    return torch.randn(x.shape[-1], n, device=x.device).to(x.dtype)


def _index(x: Tensor, n: int | None = None) -> Tensor:
    """Rows of x, in random order."""
    return torch.randint(0, x.shape[0], (n or x.shape[0],), device=x.device)


def _columns(x: Tensor) -> Tensor:
    """For each element, a column."""
    return torch.randint(0, x.shape[1], x.shape, device=x.device)


def _weight(x: Tensor) -> Tensor:
    return torch.ones(x.shape[-1], dtype=x.dtype, device=x.device, requires_grad=x.is_floating_point())


def _classes(x: Tensor) -> Tensor:
    return torch.randint(0, x.shape[1], (x.shape[0],), device=x.device)


def _parts(x: Tensor) -> list[Tensor]:
    return [p.clone() for p in x.reshape(-1).chunk(16)]


def _foreach(name: str) -> Make:
    def run(x: Tensor) -> None:
        fn, one, two = getattr(torch, f"_foreach_{name}"), _parts(x), _parts(x)
        for args in ((one,), (one, two), (one, 2.0), (one, two, two)):
            with contextlib.suppress(*REFUSALS):
                fn(*args)

    return run


def _adam(x: Tensor) -> None:
    held = [[torch.zeros_like(p) for p in _parts(x)] for _ in range(5)]
    steps = [torch.ones((), device=x.device) for _ in held[0]]
    options: Any = {
        "lr": 1e-3,
        "beta1": 0.9,
        "beta2": 0.999,
        "weight_decay": 0.1,
        "eps": 1e-8,
        "amsgrad": False,
        "maximize": False,
    }
    for fn in (torch._fused_adamw_, torch._fused_adam_):
        fn(*held, steps, **options)


PROGRAMS: tuple[Make, ...] = (
    *map(_both, (
        lambda x: F.layer_norm(x, x.shape[-1:], _weight(x), _weight(x)),
        lambda x: F.rms_norm(x, x.shape[-1:], _weight(x), 1e-6),
        lambda x: F.group_norm(_image(x), 8),
        lambda x: F.batch_norm(_image(x), None, None, training=True),
        lambda x: F.batch_norm(_image(x), torch.zeros(64, device=x.device), torch.ones(64, device=x.device)),
        lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, 0),
        lambda x: torch.log_softmax(x, -1), lambda x: torch.log_softmax(x, 0),
        lambda x: F.cross_entropy(x, _classes(x)),
        lambda x: F.embedding(_index(x), x), lambda x: F.dropout(x, 0.1), lambda x: F.glu(x),
        *(lambda x, f=f: getattr(F, f)(x) for f in (
            "gelu", "silu", "relu", "relu6", "elu", "celu", "selu", "mish", "softplus", "hardswish", "hardsigmoid",
            "hardtanh", "leaky_relu", "logsigmoid", "tanhshrink", "softshrink", "hardshrink", "rrelu",
        )),
        lambda x: F.gelu(x, approximate="tanh"), lambda x: F.threshold(x, 0.1, 0.0), torch.tanh, torch.sigmoid,
        lambda x: F.prelu(x, torch.full((1,), 0.1, device=x.device, dtype=x.dtype)),
        lambda x: torch.cat([x, x], -1), lambda x: torch.cat([x, x]), lambda x: torch.stack([x, x]),
        lambda x: x.t().contiguous(), lambda x: x.gather(1, _columns(x)), lambda x: x[_index(x)],
        lambda x: x.index_select(0, _index(x)), lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.masked_fill(x > 0, 1.0), lambda x: x.repeat(2, 1), lambda x: x.flip(-1), lambda x: x.roll(3, -1),
        lambda x: x.tril(), lambda x: x.triu(), lambda x: F.pad(x, (8, 8)), lambda x: x.expand(2, *x.shape).clone(),
        lambda x: F.pad(_image(x), (1, 1, 1, 1), "reflect"), lambda x: F.pad(_image(x), (1, 1, 1, 1), "replicate"),
        lambda x: x @ _square(x), lambda x: torch.addmm(_weight(x)[: _square(x).shape[1]], x, _square(x)),
        lambda x: torch.bmm(x.view(-1, 64, 64), x.view(-1, 64, 64)),
        lambda x: torch.baddbmm(x.view(-1, 64, 64), x.view(-1, 64, 64), x.view(-1, 64, 64)),
        lambda x: torch.mv(x, _weight(x)), lambda x: torch.addmv(x[:, 0], x, _weight(x)),
        lambda x: torch.dot(x.view(-1), x.view(-1)), lambda x: torch.outer(x[0], x[0]),
        lambda x: F.scaled_dot_product_attention(_heads(x), _heads(x), _heads(x), is_causal=True),
        lambda x: F.conv2d(_image(x), torch.randn(64, 64, 3, 3, device=x.device).to(x.dtype), padding=1),
        lambda x: F.conv2d(_image(x), torch.randn(64, 1, 3, 3, device=x.device).to(x.dtype), padding=1, groups=64),
        lambda x: F.conv1d(_image(x).flatten(2), torch.randn(64, 64, 3, device=x.device).to(x.dtype), padding=1),
        lambda x: F.conv_transpose2d(_image(x), torch.randn(64, 64, 2, 2, device=x.device).to(x.dtype), stride=2),
        lambda x: F.max_pool2d(_image(x), 2), lambda x: F.avg_pool2d(_image(x), 2),
        lambda x: F.adaptive_avg_pool2d(_image(x), 1), lambda x: F.adaptive_max_pool2d(_image(x), 2),
        lambda x: F.adaptive_avg_pool2d(_image(x), 4),
        lambda x: F.max_pool1d(_image(x).flatten(2), 2), lambda x: F.avg_pool1d(_image(x).flatten(2), 2),
        *(lambda x, m=m: F.interpolate(_image(x), scale_factor=2, mode=m) for m in ("nearest", "bilinear", "bicubic")),
        lambda x: F.pixel_shuffle(_image(x), 2), lambda x: F.pixel_unshuffle(_image(x), 2),
        lambda x: torch.cdist(x[:64], x[:64]), lambda x: F.cosine_similarity(x, x + 1),
        *(lambda x, f=f: getattr(F, f)(x, torch.rand_like(x)) for f in (
            "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits",
        )),
        lambda x: F.kl_div(x, torch.rand_like(x), reduction="batchmean"),
        lambda x: F.binary_cross_entropy(torch.sigmoid(x), torch.rand_like(x)),
        lambda x: F.soft_margin_loss(x, torch.randn_like(x).sign()),
        lambda x: x.scatter_add(1, _columns(x), x.detach()), lambda x: x.index_add(0, _index(x), x.detach()),
        *(lambda x, f=f, d=d: getattr(torch, f)(x, d) for d in (-1, 0) for f in (
            "sum", "mean", "var", "std", "amax", "amin", "prod", "logsumexp", "cumsum", "cumprod", "logcumsumexp",
            "max", "min", "median", "norm", "var_mean", "std_mean", "aminmax",
        )),
        *(lambda x, f=f: getattr(torch, f)(x) for f in ("sum", "mean", "var", "max", "min", "prod", "norm", "std")),
        lambda x: torch.sort(x, -1), lambda x: torch.topk(x, 8, -1), lambda x: torch.kthvalue(x, 2),
    )),
    *(lambda x, f=f, d=d: getattr(torch, f)(x, d) for d in (-1, 0) for f in (
        "argmax", "argmin", "any", "all", "count_nonzero", "cummax", "cummin", "argsort", "nansum",
    )),
    *map(_foreach, (
        "add", "sub", "mul", "div", "sqrt", "rsqrt", "neg", "abs", "exp", "lerp", "addcmul", "addcdiv", "maximum",
        "minimum", "clamp_min", "clamp_max", "norm", "pow", "zero_", "add_", "mul_", "div_", "sub_", "sqrt_",
        "addcmul_", "addcdiv_", "lerp_", "copy_", "reciprocal", "sign",
    )),
    _adam,
    lambda x: x.to(torch.float32 if x.dtype != torch.float32 else torch.bfloat16),
    lambda x: x.float().to(x.dtype),
    lambda x: torch.empty_like(x).copy_(x), lambda x: torch.empty_like(x).t().copy_(x.t()),
    lambda x: torch.empty_like(x).fill_(1.0), lambda x: torch.zeros_like(x).zero_(),
    lambda x: torch.zeros(x.shape, dtype=x.dtype, device=x.device),
    lambda x: torch.ones(x.shape, dtype=x.dtype, device=x.device),
    lambda x: torch.full(x.shape, 2.0, dtype=x.dtype, device=x.device),
    lambda x: (torch.ones_like(x), torch.full_like(x, 2.0), torch.rand_like(x), torch.randn_like(x)),
    lambda x: torch.arange(x.numel(), device=x.device), lambda x: torch.arange(0, x.numel(), 1, device=x.device),
    lambda x: torch.linspace(0, 1, x.numel(), device=x.device), lambda x: torch.eye(1024, device=x.device),
    lambda x: (torch.rand(x.shape, device=x.device), torch.randn(x.shape, device=x.device)),
    lambda x: torch.empty_like(x).uniform_(), lambda x: torch.empty_like(x).normal_(),
    lambda x: torch.empty_like(x).exponential_(), lambda x: torch.empty_like(x).bernoulli_(0.5),
    lambda x: torch.bernoulli(torch.rand_like(x)), lambda x: torch.randint(0, 100, x.shape, device=x.device),
    lambda x: torch.randperm(x.numel(), device=x.device), lambda x: torch.multinomial(torch.rand_like(x) + 0.01, 4),
    lambda x: x.scatter(1, _columns(x), 1.0), lambda x: x.scatter(1, _columns(x), x),
    lambda x: x.scatter_reduce(1, _columns(x), x, "sum"), lambda x: x.index_fill(0, _index(x), 1.0),
    lambda x: x.index_copy(0, _index(x), x), lambda x: x.clone().index_put_((_index(x),), x),
    lambda x: x.clone().index_put_((_index(x),), x, accumulate=True), lambda x: torch.take(x, _index(x)),
    lambda x: x.masked_scatter(x > 0, x), lambda x: torch.masked_select(x, x > 0), lambda x: torch.nonzero(x > 0),
    lambda x: torch.isin(x, x[0]), lambda x: torch.unique(x.to(torch.int64)),
    lambda x: torch.searchsorted(torch.sort(x, -1)[0], x), lambda x: torch.bucketize(x, torch.sort(x[0])[0]),
    lambda x: torch.histc(x.float()), lambda x: torch.bincount((x.abs() % 1000).to(torch.int64).view(-1)),
    lambda x: x.diag(), lambda x: torch.diag_embed(x[:4]), lambda x: x.repeat_interleave(2, 0),
    lambda x: (x > 0).logical_not(), lambda x: torch.select_scatter(x, x[0], 0, 0),
    lambda x: torch.slice_scatter(x, x[1:], 0, 1), lambda x: torch.constant_pad_nd(x, (8, 8), 0.0),
    lambda x: torch.unfold_copy(x, 1, 8, 8), lambda x: F.unfold(_image(x), 3), lambda x: torch.vdot(x[0], x[0]),
    lambda x: F.one_hot(_classes(x)), lambda x: torch.trace(x), lambda x: torch.equal(x, x + 0),
)  # fmt: skip

# Values of numbers that a schema gives no default, by name.
_NUMBERS = {
    "dim": -1, "exponent": 2.0, "min": -1.0, "max": 1.0, "p": 0.5, "k": 1, "decimals": 2, "weight": 0.5, "value": 1.0,
    "n": 2, "diagonal": 0, "lambd": 0.5, "negative_slope": 0.1, "threshold": 0.1, "alpha": 1.0, "scale": 1.0,
    "input_scale": 1.0, "beta": 1.0, "eps": 1e-5, "lower": 0.1, "upper": 0.3, "reduction": 1, "delta": 1.0, "shifts": 3,
    "dims": -1, "from": 0.0, "to": 1.0, "mean": 0.0, "std": 1.0,
}  # fmt: skip


def by_schema(shape: Shape, x: Tensor) -> Case | None:
    """Arguments of a functional overload by their names and types; None if one of them is not known."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for a in shape.arguments:
        value = _value(a, x, first=not args)
        if value is _UNKNOWN:
            return None
        if not a.kwarg_only:
            args.append(value)
        elif not a.has_default_value():
            kwargs[a.name] = value
    return Case(tuple(args), kwargs) if tensors_in((args, kwargs)) else None


_UNKNOWN = object()
_INDICES = {"index", "indices", "offsets", "target", "tgt", "bin_width", "sorter", "lengths", "mapping"}


def _value(a: Any, x: Tensor, first: bool) -> Any:
    kind = str(a.type)
    if kind == "Tensor":
        if a.name in ("mask", "condition"):
            return x > 0
        if a.name == "value":
            return x.new_ones(())
        if a.name in _INDICES and not first:  # a wrong one is an error of the device, which ends the process
            return _UNKNOWN
        if a.name == "p":
            return _like(x.float())
        return x if first else _like(x)
    if kind == "List[Tensor]":
        return [x, _like(x)]
    if a.name in ("min", "max") and "Optional" in kind:
        return (_like(x) - 1 if a.name == "min" else _like(x)) if "Tensor" in kind else _NUMBERS[a.name]
    if a.has_default_value():
        return a.default_value
    if kind.startswith("Optional"):
        return None
    if kind == "bool":
        return False
    if kind == "List[int]":
        return [-1] if a.name in ("dim", "dims") else list(x.shape) if a.name in ("size", "shape") else _UNKNOWN
    value = _NUMBERS.get(a.name, 2.0 if kind == "number" else _UNKNOWN)
    return int(value) if kind == "int" and value is not _UNKNOWN else value


def _like(x: Tensor) -> Tensor:
    return torch.rand(x.shape, device=x.device).mul_(0.7).add_(0.25).to(x.dtype) if x.is_floating_point() else x.clone()


# ---- all overloads --------------------------------------------------------------------------------------------------


def sized(numel: int, dtype: torch.dtype, device: str) -> Tensor:
    """A matrix of about so many elements, for functions that take any values."""
    columns = 4096 if numel >= 1 << 24 else 1024 if numel >= 1 << 16 else 64
    if not dtype.is_floating_point:
        return torch.randint(1, 60, (numel // columns, columns), dtype=dtype, device=device)
    return torch.rand(numel // columns, columns, device=device).mul_(0.7).add_(0.25).to(dtype)


def derived(overload: Overload, case: Case, native: Callable[..., Any]) -> Case | None:
    """The case of a functional overload for its in-place or `out=` form."""
    shape = overload.shape
    if shape.kind == "out":
        try:
            made = native(*case.args, **case.kwargs)
        except REFUSALS:
            return None
        outs = made if isinstance(made, (tuple, list)) else (made,)
        if len(outs) != len(shape.outs) or not all(isinstance(o, Tensor) for o in outs):
            return None
        return Case(case.args, case.kwargs | dict(zip(shape.outs, outs, strict=True)))
    first = case.args[0]
    written = [t.clone() for t in first] if isinstance(first, (list, tuple)) else first.clone()
    return Case((written, *case.args[1:]), case.kwargs)


class Sources:
    """Which programs reach which overloads; found out once, on small tensors."""

    def __init__(self, names: Iterable[str], device: str, dtypes: Iterable[torch.dtype]):
        self.wanted, self.device = set(names), device
        self.programs: dict[tuple[torch.dtype, str], list[Make]] = {}
        for dtype in dtypes:
            for program in PROGRAMS:
                for name in self._run(program, sized(1 << 13, dtype, device)):
                    found = self.programs.setdefault((dtype, name), [])
                    if len(found) < CASES:
                        found.append(program)

    def _run(self, program: Make, x: Tensor) -> dict[str, list[Case]]:
        calls = Calls(self.wanted)
        with torch.enable_grad(), calls, contextlib.suppress(*REFUSALS):  # not of this dtype, size or version of torch
            program(x)
        return calls.found  # also those that it called before it was refused

    def cases(self, overload: Overload, numel: int, dtype: torch.dtype) -> Iterator[Case]:
        """The cases of an overload at a size, each with tensors of its own."""
        plain, shape = functional(overload), overload.shape
        own = None if plain is not None or overload.adapter is not None else by_schema(shape, self._sized(numel, dtype))
        if own is not None:  # a pointwise op; in a program it may get tensors of any size
            yield own
            return
        for program in self.programs.get((dtype, overload.name), ()):
            found = self._run(program, self._sized(numel, dtype)).get(overload.name, ())
            yield from (case for case in found if 8 * case.total >= numel)
        if (dtype, overload.name) in self.programs:
            return
        if plain is not None:
            for case in self.cases(plain, numel, dtype):
                made = derived(overload, case, plain.shape.op)
                if made is not None:
                    yield made
        elif shape.kind in ("functional", "inplace"):
            case = by_schema(shape, self._sized(numel, dtype))
            if case is not None:
                yield case

    def _sized(self, numel: int, dtype: torch.dtype) -> Tensor:
        return sized(numel, dtype, self.device)
