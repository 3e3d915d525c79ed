"""Attention of each position to its neighbors in one dimension; memory grows with the window, not with length^2."""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, Rule, at_least, same_dtype
from ..core.spec import Tol, op
from ._numeric import rounded, wide
from .samples import Case, Draw, Maker

SUMS = {torch.float32: Tol(1e-5, 1e-4), torch.float16: Tol(2e-3, 5e-3), torch.bfloat16: Tol(1.6e-2, 3e-2)}

# The shape is [batch, heads, length, d].
CASES = (
    Case((2, 3, 20, 16)),
    Case((1, 2, 37, 24), options={"dilation": 3}),
    Case((2, 1, 70, 64), options={"kernel_size": 33, "scale": 0.3}),
    Case((1, 1, 5, 8), options={"kernel_size": 63, "dilation": 2}),
    Case((1, 2, 9, 16), options={"kernel_size": 1}),
    Case((2, 2, 0, 16)),
    Case((0, 2, 4, 16)),
    Case((2, 10, 3, 16), "swapped", {"kernel_size": 3}),
    Case((1, 2, 12, 20), "sliced"),
    Case((2, 2, 8, 16), "expanded"),
)


def _args(d: Draw) -> dict[str, Any]:
    k, v = (d.another(name, d.case.shape, d.case.layout) for name in "kv")
    options = {"kernel_size": d.option("kernel_size", 7), "dilation": d.option("dilation", 1)}
    return {"q": d.full(), "k": k, "v": v, **options, "scale": d.option("scale")}


def _bwd_args(d: Draw) -> dict[str, Any]:
    args = _args(d)
    o, lse = neighborhood_attention.reference(**args)
    qkv = {name: args.pop(name) for name in ("q", "k", "v")}
    return {"do": Draw(Case(d.case.shape, d.case.layout), d.dtype, d.device).full(), **qkv, "o": o, "lse": lse, **args}


class odd(Rule):
    """The value must be odd."""

    def problem(self, value: Any, given: Any) -> str | None:
        return None if value % 2 else "be odd"

    def wrong(self, value: Any) -> Any:
        yield "even", 4

    def doc(self) -> str:
        return "odd"


Heads = Float[Tensor, "batch heads length d"]
LikeQ = Float[Tensor, "batch heads length d", same_dtype("q")]
Window = Annotated[int, at_least(1), odd()]
Step = Annotated[int, at_least(1)]


def scale_of(q: Tensor, scale: float | None) -> float:
    return max(q.shape[-1], 1) ** -0.5 if scale is None else scale


def _steps(length: int, kernel_size: int, dilation: int) -> range:
    """The offsets at which at least one position has a neighbor in range."""
    farthest = min(kernel_size // 2, max(length - 1, 0) // dilation) * dilation
    return range(-farthest, farthest + 1, dilation)


def _shifted(x: Tensor, step: int) -> Tensor:
    """x[i + step] for each position i; zeros if i + step is out of range."""
    empty = torch.zeros_like(x[..., : abs(step), :])
    return torch.cat([x[..., step:, :], empty], -2) if step >= 0 else torch.cat([empty, x[..., :step, :]], -2)


def _inside(x: Tensor, step: int) -> Tensor:
    """For each position i: whether i + step is in range."""
    position = torch.arange(x.shape[-2], device=x.device) + step
    return (position >= 0) & (position < x.shape[-2])


@op(out="o lse", grad="neighborhood_attention_bwd", samples=Maker(_args, CASES), tol=SUMS)
def neighborhood_attention(
    q: Heads, k: LikeQ, v: LikeQ, kernel_size: Window = 7, dilation: Step = 1, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of each position i to its neighbors i + dilation * s with |s| <= kernel_size // 2.

    o_i = sum over neighbors j of p_ij v_j, p_i = softmax over j of scale * q_i . k_j. Neighbors out of range are left
    out. Time and memory grow with length times kernel_size.

    Args:
        q: the queries.
        k: the keys.
        v: the values.
        kernel_size: the number of neighbors of a position, itself included.
        dilation: the distance between neighbors.
        scale: multiplies the scores; None is 1 / sqrt(d).

    Returns:
        o, like q, contiguous: computed in float32 (float64 for float64) and rounded once. lse, float32
        [batch, heads, length] (float64 for float64): log(sum(exp(scores))) of each position; it has no gradient.
    """
    x, y, z = wide(q), wide(k), wide(v)
    steps = _steps(q.shape[2], kernel_size, dilation)
    scores = torch.stack([(x * _shifted(y, s)).sum(-1).masked_fill(~_inside(q, s), -torch.inf) for s in steps], -1)
    scores = scores * scale_of(q, scale)
    lse = scores.logsumexp(-1)
    p = (scores - lse[..., None]).exp()
    o = torch.zeros_like(x)
    for column, s in enumerate(steps):
        o = o + p[..., column, None] * _shifted(z, s)
    return rounded(o, q.dtype), rounded(lse, x.dtype)


@op(out="dq dk dv", samples=Maker(_bwd_args, CASES), tol=SUMS)
def neighborhood_attention_bwd(
    do: Grad[Tensor, "batch heads length d"],
    q: Heads,
    k: LikeQ,
    v: LikeQ,
    o: LikeQ,
    lse: Float[Tensor, "batch heads length"],
    kernel_size: Window = 7,
    dilation: Step = 1,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of neighborhood_attention; the probabilities are recomputed from lse.

    p_ij = exp(scale * q_i . k_j - lse_i), ds_ij = scale * p_ij * (do_i . v_j - do_i . o_i):
    dq_i = sum over j of ds_ij k_j, dk_j = sum over i of ds_ij q_i, dv_j = sum over i of p_ij do_i.

    Args:
        do: the gradient of o.
        q: as in the forward.
        k: as in the forward.
        v: as in the forward.
        o: the first result of the forward.
        lse: the second result of the forward.
        kernel_size: as in the forward.
        dilation: as in the forward.
        scale: as in the forward.

    Returns:
        dq, dk and dv, like q, contiguous.
    """
    x, y, z, g, m = wide(q), wide(k), wide(v), wide(do).to(wide(q).dtype), lse.to(wide(q).dtype)
    factor = scale_of(q, scale)
    delta = (g * wide(o)).sum(-1)
    dq, dk, dv = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for s in _steps(q.shape[2], kernel_size, dilation):
        key, value = _shifted(y, s), _shifted(z, s)
        p = torch.where(_inside(q, s), ((x * key).sum(-1) * factor - m).exp(), 0.0)
        ds = (p * ((g * value).sum(-1) - delta) * factor)[..., None]
        dq = dq + ds * key
        dk = dk + _shifted(ds * x, -s)
        dv = dv + _shifted(p[..., None] * g, -s)
    return rounded(dq, q.dtype), rounded(dk, k.dtype), rounded(dv, v.dtype)
