"""Norms over channels and groups of them: group norm, batch norm, weight norm; and torch's functions made of them.

They compute in float32 (float64 for float64 inputs) and round once. Statistics are float32 (float64). Results are
fresh and contiguous, but where x is channels-last (4-d or 5-d), so are y and dx. An absent weight is 1 and an absent
bias 0; a backward gives their gradients all the same, in the dtype of the statistics.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Tol, op
from ._numeric import check_alike, check_dtype, rounded, wide
from .samples import OTHER, Case, Draw, Maker, errors

# Gradients of weights are sums over the batch: implementations add them in another order.
SUMS = {torch.float32: Tol(1e-5, 1e-4)}

# How 4-d and 5-d tensors may lie beside contiguous.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(x: Tensor) -> torch.memory_format:
    """How results of x's shape lie: channels-last if x does (and is not contiguous as well), else contiguous."""
    last = CHANNELS_LAST.get(x.dim())
    if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def laid(y: Tensor, x: Tensor) -> Tensor:
    """A result of x's shape: rounded once to its dtype, and in its memory format."""
    return y.reshape(x.shape).to(x.dtype, copy=True, memory_format=memory_format(x))


def sizes(x: Tensor) -> tuple[int, int, int]:
    """Samples, channels, places."""
    return x.shape[0], x.shape[1], x.shape[2:].numel()


def _check(
    op: str,
    x: Tensor,
    full: Mapping[str, Tensor] | None = None,
    /,
    **shaped: tuple[Tensor | None, tuple[int, ...], str],
) -> None:
    """Refuse what has no channels; `full` ones are shaped like x, the others as said, for the reason said."""
    if x.dim() < 2:
        raise ValueError(f"{op}: x must have at least two dimensions, samples and channels; got {tuple(x.shape)}")
    check_alike(op, "x", x, **(full or {}))
    _check_shapes(op, "x", x, shaped)


def _check_shapes(
    op: str, lead: str, x: Tensor, shaped: Mapping[str, tuple[Tensor | None, tuple[int, ...], str]]
) -> None:
    for name, (t, wanted, what) in shaped.items():
        if t is None:
            continue
        check_dtype(op, name, t.dtype)
        if tuple(t.shape) != wanted:
            raise ValueError(f"{op}: {name} must have shape {wanted}, {what} {tuple(x.shape)}; got {tuple(t.shape)}")
        if t.device != x.device:
            raise ValueError(f"{op}: {name} must be on {x.device}, the device of {lead}; got {t.device}")


def _channels(x: Tensor, **tensors: Tensor | None) -> dict[str, tuple[Tensor | None, tuple[int, ...], str]]:
    return {name: (t, tuple(x.shape[1:2]), "the channels of x") for name, t in tensors.items()}


def _by_channel(t: Tensor | None, like: Tensor) -> Tensor:
    """A number for each channel, beside [samples, channels, places]; absent, it is 1."""
    return like.new_ones(()) if t is None else t.to(like.dtype)[None, :, None]


def _mean(x: Tensor, dim: Any, count: int) -> Tensor:
    """The mean, 0 where there is nothing."""
    return x.sum(dim, keepdim=True) / torch.sym_max(count, 1)


# ---- samples --------------------------------------------------------------------------------------------------------

SHAPES = (
    Case((4, 6, 5)),
    Case((2, 12, 3, 3)),
    Case((5, 64)),
    Case((2, 6, 37)),
    Case((3, 6, 4, 4), "swapped"),
    Case((2, 2, 17, 19)),
    Case((2, 4, 2, 3, 5)),
    Case((0, 6, 5)),
    Case((3, 6, 0)),
    Case((7, 64), "t"),
    Case((4, 6, 8), "step"),
    Case((4, 6, 7), "sliced"),
    Case((4, 6, 8), "expanded"),
    Case((4, 6, 5), options={"weight": "other"}),
    Case((4, 6, 5), options={"weight": "none"}),
    Case((4, 6, 5), options={"bias": "none"}),
    Case((4, 6, 5), options={"weight": "none", "bias": "none"}),
    Case((4, 6, 5), options={"mean": 8.0, "eps": 1e-2}),
)


def _drawn(d: Draw, name: str, shape: tuple[int, ...]) -> Tensor | None:
    """An argument of another shape than x; the option of its name makes it absent, or of another dtype (a bias has the
    weight's)."""
    if d.option(name) == "none":
        return None
    how = d.option("weight" if name == "bias" else name)
    case = Case(shape, d.case.layout if len(shape) == 1 else "packed", {"of": d.case.id, "name": name})
    return Draw(case, OTHER[d.dtype] if how == "other" else d.dtype, d.device).full()


def _x(d: Draw) -> Tensor:
    return d.full() + d.option("mean", 0.0) if "mean" in d.case.options else d.full()


def _also(wrong: BadSamples, good: Maker, *rows: tuple[str, str, Any, str], **options: Any) -> BadSamples:
    """Bad samples, and more of them: (id, the argument, what it becomes or a function of it, what must be said)."""

    def bad(device: torch.device) -> Iterator[BadSample]:
        yield from wrong(device)
        for id, name, value, says in rows:
            args = good.named(Case((5, 64), options=options), torch.float32, device)
            args[name] = value(args[name]) if isinstance(value, Callable) else value
            yield BadSample(tuple(args.values()), ValueError, says, id=id)

    return bad


FLAT_X = ("one dimension", "x", lambda x: x[0], "x must have at least two dimensions, samples and channels; got")


# ---- group norm -----------------------------------------------------------------------------------------------------


def check_group(
    op: str,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None = None,
    dy: Tensor | None = None,
    mean: Tensor | None = None,
    rstd: Tensor | None = None,
) -> None:
    by_group = ((x.shape[0] if x.dim() else 0, num_groups), "the samples and groups of x")
    stats = {"mean": (mean, *by_group), "rstd": (rstd, *by_group)}
    _check(op, x, {} if dy is None else {"dy": dy}, **_channels(x, weight=weight, bias=bias), **stats)
    if num_groups < 1 or x.shape[1] % num_groups:
        raise ValueError(
            f"{op}: num_groups must divide the channels of x {tuple(x.shape)} evenly; got {num_groups} for {x.shape[1]}"
        )


def _grouped(x: Tensor, num_groups: int) -> Tensor:
    """[samples, groups, the rest], of [samples, channels, places]."""
    n, c, s = x.shape
    return x.reshape(n, num_groups, c // num_groups * s)


def _group_args(d: Draw) -> dict[str, Any]:
    channels = d.case.shape[1:2]
    return {
        "x": _x(d),
        "num_groups": d.option("groups", 2),
        "weight": _drawn(d, "weight", channels),
        "bias": _drawn(d, "bias", channels),
        "eps": d.option("eps", 1e-5),
    }


GROUP = Maker(
    _group_args,
    (
        *SHAPES,
        *(Case((2, 6, 5), options={"groups": g}) for g in (1, 3, 6)),
        Case((2, 24), options={"groups": 8}),
        Case((1, 6), options={"groups": 6}),
        Case((1, 64, 7, 7), options={"groups": 32}),
    ),
)
GROUPS = [
    (f"{n} groups", "num_groups", n, r"num_groups must divide the channels of x \(5, 64\) evenly; got") for n in (0, 3)
]


@op(
    out="y mean rstd",
    grad="group_norm_bwd",
    samples=GROUP,
    errors=_also(errors(GROUP, x="ints", weight="short ints away", bias="short ints away"), GROUP, FLAT_X, *GROUPS),
)
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps): statistics, with the biased variance, of each
    group of adjacent channels of each sample; weight and bias of each channel."""
    check_group("group_norm", x, num_groups, weight, bias)
    v = wide(x).reshape(sizes(x))
    grouped = _grouped(v, num_groups)
    count = grouped.shape[2]
    mean = _mean(grouped, -1, count)
    centred = grouped - mean
    rstd = torch.rsqrt(_mean(centred * centred, -1, count) + eps)
    y = (centred * rstd).reshape(v.shape) * _by_channel(weight, v)
    if bias is not None:
        y = y + _by_channel(bias, v)
    return laid(y, x), rounded(mean[..., 0], v.dtype), rounded(rstd[..., 0], v.dtype)


def _group_bwd_args(d: Draw) -> dict[str, Any]:
    of = _group_args(d)
    _, mean, rstd = group_norm.reference(**of)
    return {
        "dy": d.grad(),
        "x": of["x"],
        "weight": of["weight"],
        "mean": mean,
        "rstd": rstd,
        "num_groups": of["num_groups"],
    }


GROUP_BWD = Maker(_group_bwd_args, GROUP.cases)


@op(
    out="dx dweight dbias",
    samples=GROUP_BWD,
    errors=_also(
        errors(GROUP_BWD, dy="short ints away", weight="short", mean="few", rstd="few away"),
        GROUP_BWD,
        FLAT_X,
        ("other groups", "num_groups", 4, r"mean must have shape \(5, 4\), the samples and groups of x"),
    ),
    tol=SUMS,
)
def group_norm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """g = dy * weight, x' = (x - mean) * rstd: dx = rstd * (g - mean(g) - x' * mean(g * x')), the means of each group;
    dweight = sum(dy * x'), dbias = sum(dy), of each channel, in weight's dtype."""
    check_group("group_norm_bwd", x, num_groups, weight, None, dy, mean, rstd)
    v = wide(x).reshape(sizes(x))
    dz = dy.to(v.dtype).reshape(v.shape)
    mu, r = mean.to(v.dtype)[..., None], rstd.to(v.dtype)[..., None]
    xhat = (_grouped(v, num_groups) - mu) * r
    g = _grouped(dz * _by_channel(weight, v), num_groups)
    count = g.shape[2]
    dx = r * (g - _mean(g, -1, count) - xhat * _mean(g * xhat, -1, count))
    dtype = v.dtype if weight is None else weight.dtype
    dweight, dbias = (dz * xhat.reshape(v.shape)).sum((0, 2)), dz.sum((0, 2))
    return laid(dx, x), rounded(dweight, dtype), rounded(dbias, dtype)


# ---- batch norm -----------------------------------------------------------------------------------------------------


def check_batch(
    op: str, x: Tensor, dy: Tensor | None = None, several: bool = False, /, **channels: Tensor | None
) -> None:
    """Refuse what does not fit; `several` values are needed of each channel where their variance is estimated."""
    _check(op, x, {} if dy is None else {"dy": dy}, **_channels(x, **channels))
    if several and x.shape[0] * x.shape[2:].numel() == 1:
        raise ValueError(f"{op}: x must have more than one value per channel, to have a variance; got {tuple(x.shape)}")
    if (channels.get("running_mean") is None) != (channels.get("running_var") is None):
        given = "running_mean" if channels["running_var"] is None else "running_var"
        raise ValueError(f"{op}: running_mean and running_var must both be given or both be None; got {given} alone")


def _batch_args(d: Draw) -> dict[str, Any]:
    channels = d.case.shape[1:2]
    running = d.option("running")
    return {
        "x": _x(d),
        "weight": _drawn(d, "weight", channels),
        "bias": _drawn(d, "bias", channels),
        "running_mean": _drawn(d, "running", channels) if running else None,
        "running_var": _variance(d, "running") if running else None,
        "momentum": d.option("momentum", 0.1),
        "eps": d.option("eps", 1e-5),
    }


def _variance(d: Draw, name: str) -> Tensor:
    drawn = _drawn(d, name, d.case.shape[1:2])
    assert drawn is not None
    return drawn.abs() + 0.5


BATCH = Maker(
    _batch_args,
    (
        *SHAPES,
        Case((4, 6, 5), options={"running": "same"}),
        Case((37, 64), options={"running": "other", "momentum": 0.7}),
        Case((0, 6, 5), options={"running": "same"}),
        Case((70, 3)),
    ),
)
BATCH_WRONG = {
    "x": "ints",
    "weight": "short away",
    "bias": "short ints",
    "running_mean": "short",
    "running_var": "short ints",
}
ONE_VALUE = ("one value", "x", lambda x: x[:1], "x must have more than one value per channel, to have a variance; got")


@op(
    out="y mean rstd new_mean new_var",
    grad="batch_norm_bwd",
    samples=BATCH,
    errors=_also(
        errors(BATCH, {"running": "same"}, **BATCH_WRONG),
        BATCH,
        FLAT_X,
        ONE_VALUE,
        ("half running", "running_var", None, "must both be given or both be None; got running_mean alone"),
        running="same",
    ),
)
def batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps): statistics, with the biased variance, of each
    channel over samples and places.

    new_mean and new_var are what the running statistics become: (1 - momentum) * old + momentum * the batch's, with the
    unbiased variance. With none given they are the batch's own; of an empty batch they are the old.
    """
    check_batch(
        "batch_norm", x, None, True, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var
    )
    v = wide(x).reshape(sizes(x))
    count = v.shape[0] * v.shape[2]
    mean = _mean(v, (0, 2), count)
    centred = v - mean
    squares = (centred * centred).sum((0, 2), keepdim=True)
    rstd = torch.rsqrt(squares / torch.sym_max(count, 1) + eps)
    y = centred * rstd * _by_channel(weight, v)
    if bias is not None:
        y = y + _by_channel(bias, v)
    new_mean, new_var = mean[0, :, 0], squares[0, :, 0] / torch.sym_max(count - 1, 1)
    if running_mean is not None and running_var is not None:
        rate = momentum if count else 0.0
        new_mean = rounded((1 - rate) * running_mean.to(v.dtype) + rate * new_mean, running_mean.dtype)
        new_var = rounded((1 - rate) * running_var.to(v.dtype) + rate * new_var, running_var.dtype)
    else:
        new_mean, new_var = rounded(new_mean, v.dtype), rounded(new_var, v.dtype)
    return laid(y, x), rounded(mean[0, :, 0], v.dtype), rounded(rstd[0, :, 0], v.dtype), new_mean, new_var


def _batch_bwd_args(d: Draw) -> dict[str, Any]:
    of = _batch_args(d)
    _, mean, rstd, *_ = batch_norm.reference(**of)
    return {"dy": d.grad(), "x": of["x"], "weight": of["weight"], "mean": mean, "rstd": rstd}


BATCH_BWD = Maker(_batch_bwd_args, (*SHAPES, Case((70, 3))))


@op(
    out="dx dweight dbias",
    samples=BATCH_BWD,
    errors=_also(
        errors(BATCH_BWD, dy="short ints away", weight="short", mean="short", rstd="short away"), BATCH_BWD, FLAT_X
    ),
    tol=SUMS,
)
def batch_norm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """x' = (x - mean) * rstd: dx = weight * rstd * (dy - mean(dy) - x' * mean(dy * x')), dweight = sum(dy * x'),
    dbias = sum(dy), of each channel, in weight's dtype."""
    check_batch("batch_norm_bwd", x, dy, weight=weight, mean=mean, rstd=rstd)
    v = wide(x).reshape(sizes(x))
    dz, mu, r = dy.to(v.dtype).reshape(v.shape), _by_channel(mean, v), _by_channel(rstd, v)
    count = v.shape[0] * v.shape[2]
    xhat = (v - mu) * r
    dx = _by_channel(weight, v) * r * (dz - _mean(dz, (0, 2), count) - xhat * _mean(dz * xhat, (0, 2), count))
    dtype = v.dtype if weight is None else weight.dtype
    return laid(dx, x), rounded((dz * xhat).sum((0, 2)), dtype), rounded(dz.sum((0, 2)), dtype)


def _infer_args(d: Draw) -> dict[str, Any]:
    channels = d.case.shape[1:2]
    return {
        "x": _x(d),
        "mean": _drawn(d, "running", channels),
        "var": _variance(d, "running"),
        "weight": _drawn(d, "weight", channels),
        "bias": _drawn(d, "bias", channels),
        "eps": d.option("eps", 1e-5),
    }


INFER = Maker(_infer_args, (*SHAPES, Case((1, 6)), Case((4, 6, 5), options={"running": "other"})))


@op(
    grad="batch_norm_infer_bwd",
    samples=INFER,
    errors=_also(
        errors(INFER, x="ints", mean="short away", var="short", weight="short ints", bias="short"), INFER, FLAT_X
    ),
)
def batch_norm_infer(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """y = (x - mean) * rsqrt(var + eps) * weight + bias, with statistics of each channel that are given."""
    check_batch("batch_norm_infer", x, mean=mean, var=var, weight=weight, bias=bias)
    v = wide(x).reshape(sizes(x))
    y = (v - _by_channel(mean, v)) * torch.rsqrt(_by_channel(var, v) + eps) * _by_channel(weight, v)
    return laid(y if bias is None else y + _by_channel(bias, v), x)


def _infer_bwd_args(d: Draw) -> dict[str, Any]:
    of = _infer_args(d)
    return {"dy": d.grad(), **{name: of[name] for name in ("x", "mean", "var", "weight", "eps")}}


INFER_BWD = Maker(_infer_bwd_args, INFER.cases)


@op(
    out="dx dmean dvar dweight dbias",
    samples=INFER_BWD,
    errors=_also(
        errors(INFER_BWD, dy="short ints away", mean="short", var="short away", weight="short"), INFER_BWD, FLAT_X
    ),
    tol=SUMS,
)
def batch_norm_infer_bwd(
    dy: Tensor, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """rstd = rsqrt(var + eps), x' = (x - mean) * rstd: dx = dy * weight * rstd, dweight = sum(dy * x'),
    dbias = sum(dy), dmean = -weight * rstd * dbias, dvar = -weight * rstd^2 * dweight / 2, of each channel."""
    check_batch("batch_norm_infer_bwd", x, dy, mean=mean, var=var, weight=weight)
    v = wide(x).reshape(sizes(x))
    dz, r = dy.to(v.dtype).reshape(v.shape), torch.rsqrt(_by_channel(var, v) + eps)
    scale = (_by_channel(weight, v) * r)[0, :, 0]
    dweight, dbias = (dz * (v - _by_channel(mean, v)) * r).sum((0, 2)), dz.sum((0, 2))
    dtype = v.dtype if weight is None else weight.dtype
    return (
        laid(dz * scale[None, :, None], x),
        rounded(-scale * dbias, mean.dtype),
        rounded(-0.5 * scale * r[0, :, 0] * dweight, var.dtype),
        rounded(dweight, dtype),
        rounded(dbias, dtype),
    )


# ---- weight norm ----------------------------------------------------------------------------------------------------


def around(v: Tensor, dim: int | None) -> tuple[int, int, int]:
    """v as [before, length of dim, after]; over the whole tensor, [1, 1, all]. As in torch, -1 means the whole."""
    if dim is None or dim == -1:
        return 1, 1, v.numel()
    at = dim % v.dim()
    return math.prod(v.shape[:at]), v.shape[at], math.prod(v.shape[at + 1 :])


def norm_shape(v: Tensor, dim: int | None) -> tuple[int, ...]:
    """The shape of the norms: v's with 1 in place of every other dimension; 0-dim for the whole tensor."""
    if dim is None or dim == -1:
        return ()
    at = dim % v.dim()
    return tuple(n if i == at else 1 for i, n in enumerate(v.shape))


def check_weight(
    op: str, v: Tensor, dim: int | None, g: Tensor, dw: Tensor | None = None, norm: Tensor | None = None
) -> None:
    if v.dim() == 0:
        raise ValueError(f"{op}: v must have at least one dimension; got a 0-dim tensor")
    if dim is not None and not -v.dim() <= dim < v.dim():
        given = f"{-v.dim()} to {v.dim() - 1}, or None for the whole tensor, as v is {tuple(v.shape)}; got {dim}"
        raise ValueError(f"{op}: dim must be from {given}")
    check_alike(op, "v", v, **({} if dw is None else {"dw": dw}))
    by_norm = (norm_shape(v, dim), "that of the norms of v")
    _check_shapes(op, "v", v, {"g": (g, *by_norm), "norm": (norm, *by_norm)})


def _weight_args(d: Draw) -> dict[str, Any]:
    v, dim = d.full(d.option("scale", 1.0)), d.option("dim", 0)
    return {"v": v, "g": _drawn(d, "weight", norm_shape(v, dim)), "dim": dim}


WEIGHT = Maker(
    _weight_args,
    (
        Case((6, 5, 3)),
        Case((5, 64)),
        Case((37,)),
        *(Case((6, 5, 3), options={"dim": d}) for d in (1, 2, -1, -2, None)),
        Case((37, 64), "t", {"dim": 1}),
        Case((12, 37), "t"),
        Case((5, 4, 8), "swapped", {"dim": 1}),
        Case((5, 64), "step"),
        Case((5, 37), "sliced", {"dim": None}),
        Case((5, 64), "expanded"),
        Case((0, 5)),
        Case((5, 0)),
        Case((5, 64), options={"weight": "other", "dim": 1}),
        Case((5, 64), options={"scale": 100.0}),
        Case((3, 1000)),
        Case((70, 3), options={"dim": 1}),
    ),
)
DIMS = ("no such dim", "dim", 2, r"dim must be from -2 to 1, or None for the whole tensor, as v is \(5, 64\); got 2")
NORMS = ("g of another dim", "g", lambda g: g.new_zeros(1, 64), r"g must have shape \(5, 1\), that of the norms of v")


@op(
    out="w norm",
    grad="weight_norm_bwd",
    samples=WEIGHT,
    errors=_also(errors(WEIGHT, v="0-dim ints", g="few ints away"), WEIGHT, DIMS, NORMS),
)
def weight_norm(v: Tensor, g: Tensor, dim: int | None = 0) -> tuple[Tensor, Tensor]:
    """w = v * g / norm, with the 2-norm over every dimension but dim, or over all (None, or -1 as in torch)."""
    check_weight("weight_norm", v, dim, g)
    u = wide(v).reshape(around(v, dim))
    norm = (u * u).sum((0, 2), keepdim=True).sqrt()  # on the CPU vector_norm adds one by one: 1e-4 off for a million
    w = u * (g.to(u.dtype).reshape(norm.shape) / norm)
    return rounded(w.reshape(v.shape), v.dtype), rounded(norm.reshape(g.shape), u.dtype)


def _weight_bwd_args(d: Draw) -> dict[str, Any]:
    of = _weight_args(d)
    _, norm = weight_norm.reference(**of)
    return {"dw": d.grad(), "v": of["v"], "g": of["g"], "norm": norm, "dim": of["dim"]}


WEIGHT_BWD = Maker(_weight_bwd_args, WEIGHT.cases)


@op(
    out="dv dg",
    samples=WEIGHT_BWD,
    errors=_also(
        errors(WEIGHT_BWD, dw="short ints away", v="0-dim", g="few", norm="few away"), WEIGHT_BWD, DIMS, NORMS
    ),
    tol=SUMS,
)
def weight_norm_bwd(dw: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int | None = 0) -> tuple[Tensor, Tensor]:
    """v' = v / norm: dg = sum(dw * v'), dv = g / norm * (dw - v' * dg)."""
    check_weight("weight_norm_bwd", v, dim, g, dw, norm)
    u = wide(v).reshape(around(v, dim))
    scale = 1 / norm.to(u.dtype).reshape(1, -1, 1)
    unit, dz = u * scale, dw.to(u.dtype).reshape(u.shape)
    dg = (dz * unit).sum((0, 2), keepdim=True)
    dv = g.to(u.dtype).reshape(dg.shape) * scale * (dz - unit * dg)
    return rounded(dv.reshape(v.shape), v.dtype), rounded(dg.reshape(g.shape), g.dtype)


# ---- as torch.nn.functional has them: the same arguments, the same errors, running statistics updated in place ------


def functional_group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """torch.nn.functional.group_norm."""
    check_group("group_norm", input, num_groups, weight, bias)
    if input.numel() == num_groups:
        _one_value("channel", input)
    return group_norm(input, num_groups, weight, bias, eps)[0]


def functional_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.batch_norm."""
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: running_mean and running_var must be given in evaluation; got None")
        return batch_norm_infer(input, running_mean, running_var, weight, bias, eps)
    if input.dim() > 1 and input.shape[0] * input.shape[2:].numel() == 1:
        _one_value("channel", input)
    y, _, _, *new = batch_norm(input, weight, bias, running_mean, running_var, momentum, eps)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            torch._foreach_copy_([running_mean, running_var], new)
    return y


def functional_instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.instance_norm: groups of one channel; running statistics follow the mean of all samples."""
    if not use_input_stats:
        return functional_batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    check_batch(
        "instance_norm", input, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var
    )  # fmt: skip
    n, c, places = sizes(input)
    if places == 1:
        _one_value("spatial", input)
    if running_mean is None or running_var is None or not input.numel():
        return group_norm(input, c, weight, bias, eps)[0]
    # every channel of every sample is one of a batch of one: its statistics are what the running ones follow
    one = input.reshape(1, n * c, *input.shape[2:])
    repeated = [None if t is None else t.repeat(n) for t in (weight, bias)]
    y, _, _, mean, var = batch_norm(one, *repeated, None, None, 1.0, eps)
    with torch.no_grad():
        for running, batch in ((running_mean, mean), (running_var, var)):
            running.copy_((1 - momentum) * running.to(batch.dtype) + momentum * batch.reshape(n, c).mean(0))
    return y.reshape(input.shape)


def _one_value(of: str, input: Tensor) -> None:
    value = {"channel": "1 value per channel", "spatial": "1 spatial element"}[of]
    raise ValueError(f"Expected more than {value} when training, got input size {tuple(input.shape)}")
