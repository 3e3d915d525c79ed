"""Group norm, batch norm and weight norm, and functions with the signatures of torch.nn.functional that call them.

The ops compute in float32 (float64 for float64) and round once. Statistics are float32 (float64). Results are new
contiguous tensors; if x is channels-last (4-d or 5-d), y and dx are too. A missing weight is 1 and a missing bias is 0.
A backward returns gradients even for a missing weight and bias, in the dtype of the statistics.
"""

import math
from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, dim_of, shape
from ..core.errors import BadArgument
from ..core.spec import op
from ._numeric import SUMS, rounded, wide
from .samples import OTHER, Case, Change, Draw, Maker, bad_samples

# The channels-last memory formats of 4-d and 5-d tensors.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def memory_format(x: Tensor) -> torch.memory_format:
    """The memory format of results: channels-last if x is channels-last and not also contiguous, else contiguous."""
    last = CHANNELS_LAST.get(x.dim())
    if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def laid(y: Tensor, x: Tensor) -> Tensor:
    """Convert y to x's shape, dtype and memory format."""
    return y.reshape(x.shape).to(x.dtype, copy=True, memory_format=memory_format(x))


def sizes(x: Tensor) -> tuple[int, int, int]:
    """The numbers of samples, channels, and positions."""
    return x.shape[0], x.shape[1], x.shape[2:].numel()


X = Float[Tensor, "samples channels *places"]
DY = Grad[Tensor, "samples channels *places"]
Channels = Float[Tensor, "channels"]


def _by_channel(t: Tensor | None, like: Tensor) -> Tensor:
    """t, with a value per channel, in a shape that broadcasts to [samples, channels, positions]; 1 if t is None."""
    return like.new_ones(()) if t is None else t.to(like.dtype)[None, :, None]


def _mean(x: Tensor, dim: Any, count: int) -> Tensor:
    """The mean along dim; 0 if dim is empty."""
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
    """Draw the argument `name`; its option "none" gives None, "other" another dtype. A bias has the weight's dtype."""
    if d.option(name) == "none":
        return None
    dtype = OTHER[d.dtype] if d.option("weight" if name == "bias" else name) == "other" else d.dtype
    return d.another(name, shape, d.case.layout if len(shape) == 1 else "packed", dtype)


def _x(d: Draw) -> Tensor:
    return d.full() + d.option("mean", 0.0) if "mean" in d.case.options else d.full()


# ---- group norm -----------------------------------------------------------------------------------------------------


def groups_divide(op: str, x: Tensor, num_groups: int) -> None:
    if num_groups < 1 or x.shape[1] % num_groups:
        raise BadArgument.of(op, "num_groups", f"divide {x.shape[1]}, the channels of {{x}}", str(num_groups))


Groups = Float[Tensor, "samples num_groups", shape(lambda x, num_groups: (x.shape[0], num_groups))]


def _grouped(x: Tensor, num_groups: int) -> Tensor:
    """View [samples, channels, positions] as [samples, groups, elements of a group]."""
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
WIDE = Case((5, 64))
GROUPS = [Change("num_groups", n, "num_groups must divide 64, the channels of x; got") for n in (0, 3)]


@op(
    out="y mean rstd",
    grad="group_norm_bwd",
    samples=GROUP,
    errors=bad_samples(GROUP, *GROUPS, case=WIDE),
    where=groups_divide,
)
def group_norm(
    x: X, num_groups: int, weight: Channels | None = None, bias: Channels | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm: y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps), with the biased variance.

    Each group of adjacent channels in a sample has its own mean and var.

    Args:
        x: the input.
        num_groups: the number of groups; it divides the number of channels.
        weight: the scale of each channel; None is 1.
        bias: added to each channel; None is 0.
        eps: added to the variance.

    Returns:
        y, like x, and mean and rstd, float32 [samples, num_groups] (float64 for float64).
    """
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
    args = _group_args(d)
    _, mean, rstd = group_norm.reference(**args)
    return {
        "dy": d.grad(),
        "x": args["x"],
        "weight": args["weight"],
        "mean": mean,
        "rstd": rstd,
        "num_groups": args["num_groups"],
    }


GROUP_BWD = Maker(_group_bwd_args, GROUP.cases)


@op(
    out="dx dweight dbias",
    samples=GROUP_BWD,
    errors=bad_samples(
        GROUP_BWD, Change("num_groups", 4, r"mean must have shape \(5, 4\), as x is \(5, 64\)"), case=WIDE
    ),
    where=groups_divide,
    tol=SUMS,
)
def group_norm_bwd(
    dy: DY, x: X, weight: Channels | None, mean: Groups, rstd: Groups, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of group_norm.

    g = dy * weight, x' = (x - mean) * rstd: dx = rstd * (g - mean(g) - x' * mean(g * x')), with means over each group;
    dweight = sum(dy * x'), dbias = sum(dy) over each channel.

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        weight: as in the forward.
        mean: the second result of the forward.
        rstd: the third result of the forward.
        num_groups: as in the forward.

    Returns:
        dx, like x, and dweight and dbias [channels], of weight's dtype (that of the statistics without a weight).
    """
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


def has_variance(op: str, x: Tensor) -> None:
    """Raise if each channel has only one value: the unbiased variance needs two."""
    if x.shape[0] * x.shape[2:].numel() == 1:
        raise BadArgument.of(op, "x", "have more than one value per channel, to have a variance", str(tuple(x.shape)))


def both_running(op: str, running_mean: Tensor | None, running_var: Tensor | None) -> None:
    if (running_mean is None) != (running_var is None):
        missing, present = ("running_mean", "running_var")[:: 1 if running_mean is None else -1]
        raise BadArgument.of(op, missing, f"be given, as {{{present}}} is", "None")


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
    values = _drawn(d, name, d.case.shape[1:2])
    assert values is not None
    return values.abs() + 0.5


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
ONE_VALUE = Change("x", lambda x: x[:1], "x must have more than one value per channel, to have a variance; got")


@op(
    out="y mean rstd new_mean new_var",
    grad="batch_norm_bwd",
    samples=BATCH,
    errors=bad_samples(
        BATCH,
        ONE_VALUE,
        Change("running_var", None, "running_var must be given, as running_mean is; got None"),
        Change("running_mean", None, "running_mean must be given, as running_var is; got None"),
        case=Case((5, 64), options={"running": "same"}),
    ),
    where=(has_variance, both_running),
)
def batch_norm(
    x: X,
    weight: Channels | None = None,
    bias: Channels | None = None,
    running_mean: Channels | None = None,
    running_var: Channels | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Batch norm: y = (x - mean) * rstd * weight + bias, rstd = rsqrt(var(x) + eps), with the biased variance.

    Each channel has its own mean and var, over samples and positions. The new running statistics are returned; the
    arguments are not changed.

    Args:
        x: the input.
        weight: the scale of each channel; None is 1.
        bias: added to each channel; None is 0.
        running_mean: the running mean before this batch.
        running_var: the running variance before this batch.
        momentum: the weight of this batch in the new running statistics.
        eps: added to the variance.

    Returns:
        y, like x; mean and rstd, float32 [channels] (float64 for float64); new_mean and new_var, the new running
        statistics: (1 - momentum) * old + momentum * those of the batch, with the unbiased variance. If no running
        statistics are given, they are the batch's own; if the batch is empty, they are the old ones.
    """
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
    args = _batch_args(d)
    _, mean, rstd, *_ = batch_norm.reference(**args)
    return {"dy": d.grad(), "x": args["x"], "weight": args["weight"], "mean": mean, "rstd": rstd}


BATCH_BWD = Maker(_batch_bwd_args, (*SHAPES, Case((70, 3))))


@op(
    out="dx dweight dbias",
    samples=BATCH_BWD,
    tol=SUMS,
)
def batch_norm_bwd(
    dy: DY, x: X, weight: Channels | None, mean: Channels, rstd: Channels
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of batch_norm.

    x' = (x - mean) * rstd: dx = weight * rstd * (dy - mean(dy) - x' * mean(dy * x')), dweight = sum(dy * x'),
    dbias = sum(dy), with means and sums over each channel.

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        weight: as in the forward.
        mean: the second result of the forward.
        rstd: the third result of the forward.

    Returns:
        dx, like x, and dweight and dbias [channels], of weight's dtype (that of the statistics without a weight).
    """
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
)
def batch_norm_infer(
    x: X,
    mean: Channels,
    var: Channels,
    weight: Channels | None = None,
    bias: Channels | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Batch norm in eval mode: y = (x - mean) * rsqrt(var + eps) * weight + bias, with given statistics.

    Args:
        x: the input.
        mean: the mean of each channel.
        var: the variance of each channel.
        weight: the scale of each channel; None is 1.
        bias: added to each channel; None is 0.
        eps: added to the variance.

    Returns:
        y, like x.
    """
    v = wide(x).reshape(sizes(x))
    y = (v - _by_channel(mean, v)) * torch.rsqrt(_by_channel(var, v) + eps) * _by_channel(weight, v)
    return laid(y if bias is None else y + _by_channel(bias, v), x)


def _infer_bwd_args(d: Draw) -> dict[str, Any]:
    args = _infer_args(d)
    return {"dy": d.grad(), **{name: args[name] for name in ("x", "mean", "var", "weight", "eps")}}


INFER_BWD = Maker(_infer_bwd_args, INFER.cases)


@op(
    out="dx dmean dvar dweight dbias",
    samples=INFER_BWD,
    tol=SUMS,
)
def batch_norm_infer_bwd(
    dy: DY, x: X, mean: Channels, var: Channels, weight: Channels | None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of batch_norm_infer.

    rstd = rsqrt(var + eps), x' = (x - mean) * rstd: dx = dy * weight * rstd, dweight = sum(dy * x') and
    dbias = sum(dy) over each channel, dmean = -weight * rstd * dbias, dvar = -weight * rstd^2 * dweight / 2.

    Args:
        dy: the gradient of y.
        x: the input of the forward.
        mean: as in the forward.
        var: as in the forward.
        weight: as in the forward.
        eps: as in the forward.

    Returns:
        dx, dmean and dvar, like x, mean and var; dweight and dbias [channels], of weight's dtype (without a weight
        float32, or float64 for float64).
    """
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
    """The numbers of elements before, along and after dim; (1, 1, all) if dim is None or, as in torch, -1."""
    if dim is None or dim == -1:
        return 1, 1, v.numel()
    axis = dim % v.dim()
    return math.prod(v.shape[:axis]), v.shape[axis], math.prod(v.shape[axis + 1 :])


def norm_shape(v: Tensor, dim: int | None) -> tuple[int, ...]:
    """The shape of the norms: v's shape with 1 for every dimension but dim; () for one norm of the whole tensor."""
    if dim is None or dim == -1:
        return ()
    axis = dim % v.dim()
    return tuple(n if i == axis else 1 for i, n in enumerate(v.shape))


V = Float[Tensor, "*lead last"]
PerNorm = Float[Tensor, "...", shape(norm_shape, none=True)]
Dim = Annotated[int, dim_of("v")]


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


@op(
    out="w norm",
    grad="weight_norm_bwd",
    samples=WEIGHT,
)
def weight_norm(v: V, g: PerNorm, dim: Dim | None = 0) -> tuple[Tensor, Tensor]:
    """Weight norm: w = v * g / norm, with norm the 2-norm of v over every dimension but dim.

    Args:
        v: the direction of the weight.
        g: the length of the weight: v's shape with 1 for every dimension but dim; 0-dim if dim is None or -1.
        dim: each index of this dimension has its own norm; None (or -1, as in torch) is one norm of the whole tensor.

    Returns:
        w, like v, and norm, float32 (float64 for float64), of g's shape.
    """
    u = wide(v).reshape(around(v, dim))
    norm = (u * u).sum((0, 2), keepdim=True).sqrt()  # vector_norm on the CPU is off by 1e-4 for a million elements
    w = u * (g.to(u.dtype).reshape(norm.shape) / norm)
    return rounded(w.reshape(v.shape), v.dtype), rounded(norm.reshape(g.shape), u.dtype)


def _weight_bwd_args(d: Draw) -> dict[str, Any]:
    args = _weight_args(d)
    _, norm = weight_norm.reference(**args)
    return {"dw": d.grad(), "v": args["v"], "g": args["g"], "norm": norm, "dim": args["dim"]}


WEIGHT_BWD = Maker(_weight_bwd_args, WEIGHT.cases)


@op(
    out="dv dg",
    samples=WEIGHT_BWD,
    tol=SUMS,
)
def weight_norm_bwd(
    dw: Grad[Tensor, "*lead last"], v: V, g: PerNorm, norm: PerNorm, dim: Dim | None = 0
) -> tuple[Tensor, Tensor]:
    """The gradients of weight_norm: dg = sum(dw * v'), dv = g / norm * (dw - v' * dg), v' = v / norm.

    Args:
        dw: the gradient of w.
        v: as in the forward.
        g: as in the forward.
        norm: the second result of the forward.
        dim: as in the forward.

    Returns:
        dv and dg, like v and g.
    """
    u = wide(v).reshape(around(v, dim))
    scale = 1 / norm.to(u.dtype).reshape(1, -1, 1)
    unit, dz = u * scale, dw.to(u.dtype).reshape(u.shape)
    dg = (dz * unit).sum((0, 2), keepdim=True)
    dv = g.to(u.dtype).reshape(dg.shape) * scale * (dz - unit * dg)
    return rounded(dv.reshape(v.shape), v.dtype), rounded(dg.reshape(g.shape), g.dtype)


# ---- torch.nn.functional: the same arguments and errors; running statistics are updated in place --------------------


def functional_group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """torch.nn.functional.group_norm."""
    group_norm.check(x=input, num_groups=num_groups, weight=weight, bias=bias)
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
    """torch.nn.functional.instance_norm, computed as a group norm with one channel per group.

    Running statistics are updated with the samples' statistics, averaged over the batch.
    """
    if not use_input_stats:
        return functional_batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if input.dim() > 1 and input.shape[2:].numel() == 1:
        _one_value("spatial", input)
    args = {"x": input, "weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    batch_norm.spec.contract.check(args, "instance_norm")
    n, c, _ = sizes(input)
    if running_mean is None or running_var is None or not input.numel():
        return group_norm(input, c, weight, bias, eps)[0]
    # Viewed as one sample with n * c channels, so that batch norm returns statistics per sample and channel.
    one = input.reshape(1, n * c, *input.shape[2:])
    repeated = [None if t is None else t.repeat(n) for t in (weight, bias)]
    y, _, _, mean, var = batch_norm(one, *repeated, None, None, 1.0, eps)
    with torch.no_grad():
        for running, batch in ((running_mean, mean), (running_var, var)):
            running.copy_((1 - momentum) * running.to(batch.dtype) + momentum * batch.reshape(n, c).mean(0))
    return y.reshape(input.shape)


def _one_value(kind: str, input: Tensor) -> None:
    value = {"channel": "1 value per channel", "spatial": "1 spatial element"}[kind]
    raise ValueError(f"Expected more than {value} when training, got input size {tuple(input.shape)}")
