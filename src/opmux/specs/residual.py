"""Residual connections with learned weights: attention over the outputs of earlier blocks, and several streams (mHC).

The ops compute in float32 (float64 for float64) and round once.
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, at_least
from ..core.rules import nonempty
from ..core.spec import Tol, op
from ..core.tensors import opmath_dtype
from ._numeric import rounded, wide
from .samples import Case, Draw, Maker

# Gradients of weights are sums over rows; implementations may add in another order.
SUMS = {torch.float32: Tol(1e-5, 2e-4), torch.float16: Tol(2e-3, 1e-2), torch.bfloat16: Tol(1.6e-2, 5e-2)}


def _drawn(d: Draw, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    return d.another(name, shape, d.case.layout if len(shape) > 1 else "packed", dtype)


# ---- attention residual ---------------------------------------------------------------------------------------------

# The shape is [blocks, *rows, n].
BLOCKS = (
    Case((3, 5, 64)),
    Case((8, 2, 3, 100)),
    Case((1, 4, 17)),
    Case((5, 37)),
    Case((2, 3, 5000)),
    Case((4, 0, 8)),
    Case((3, 7, 16), "t"),
    Case((2, 3, 64), "swapped"),
    Case((3, 4, 40), "sliced"),
    Case((3, 4, 16), "expanded"),
)


def _attn_args(d: Draw) -> dict[str, Any]:
    n = d.case.shape[-1]
    return {"v": d.full(), "w_query": _drawn(d, "query", (n,)), "w_norm": _drawn(d, "norm", (n,)), "eps": 1e-6}


def _attn_bwd_args(d: Draw) -> dict[str, Any]:
    args = _attn_args(d)
    _, alpha, rstd = attn_res.reference(**args)
    dy = _drawn(d, "dy", d.case.shape[1:])
    return {
        "dy": dy,
        "v": args["v"],
        "w_query": args["w_query"],
        "w_norm": args["w_norm"],
        "alpha": alpha,
        "rstd": rstd,
    }


Blocks = Float[Tensor, "blocks *rows n", nonempty(0), nonempty(-1)]
ATTN, ATTN_BWD = Maker(_attn_args, BLOCKS), Maker(_attn_bwd_args, BLOCKS)


@op(out="y alpha rstd", grad="attn_res_bwd", samples=ATTN, tol=SUMS)
def attn_res(
    v: Blocks, w_query: Float[Tensor, "n"], w_norm: Float[Tensor, "n"], eps: Annotated[float, at_least(0)] = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """The attention-weighted sum of the outputs of blocks: y = sum over blocks i of alpha_i v_i.

    alpha = softmax over i of sum(w_query * w_norm * v_i * rstd_i), rstd_i = 1 / sqrt(mean(v_i^2) + eps).

    Args:
        v: the output of each block.
        w_query: the query, the same for all rows.
        w_norm: the weight of the RMS norm of the keys.
        eps: added to the mean square.

    Returns:
        y [*rows, n], of v's dtype; alpha and rstd, float32 [blocks, *rows] (float64 for float64), without gradients.
    """
    x = wide(v)
    q = w_query.to(x.dtype) * w_norm.to(x.dtype)
    rstd = (x.square().mean(-1) + eps).rsqrt()
    alpha = ((x * q).sum(-1) * rstd).softmax(0)
    y = (alpha[..., None] * x).sum(0)
    return rounded(y, v.dtype), rounded(alpha, x.dtype), rounded(rstd, x.dtype)


@op(out="dv dw_query dw_norm", samples=ATTN_BWD, tol=SUMS)
def attn_res_bwd(
    dy: Grad[Tensor, "*rows n"],
    v: Blocks,
    w_query: Float[Tensor, "n"],
    w_norm: Float[Tensor, "n"],
    alpha: Float[Tensor, "blocks *rows"],
    rstd: Float[Tensor, "blocks *rows"],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of attn_res.

    With q = w_query * w_norm and t_i = alpha_i * (dy . v_i - sum over j of alpha_j dy . v_j):
    dv_i = alpha_i dy + t_i rstd_i (q - rstd_i^2 (q . v_i) / n v_i), dq = sum of t_i rstd_i v_i over rows and blocks.

    Args:
        dy: the gradient of y.
        v: the input of the forward.
        w_query: as in the forward.
        w_norm: as in the forward.
        alpha: the second result of the forward.
        rstd: the third result of the forward.

    Returns:
        dv, like v, dw_query = dq * w_norm, like w_query, and dw_norm = dq * w_query, like w_norm.
    """
    x, g = wide(v), wide(dy)
    query, norm, a, r = (t.to(x.dtype) for t in (w_query, w_norm, alpha, rstd))
    q = query * norm
    da = (g * x).sum(-1)
    t = a * (da - (a * da).sum(0)) * r
    along = r * r * (x * q).sum(-1) / x.shape[-1]
    dv = a[..., None] * g + t[..., None] * (q - along[..., None] * x)
    dq = (t[..., None] * x).flatten(0, -2).sum(0)
    return rounded(dv, v.dtype), rounded(dq * norm, w_query.dtype), rounded(dq * query, w_norm.dtype)


# ---- streams --------------------------------------------------------------------------------------------------------

# The shape is [*rows, streams, n]. Option: weight="other" (the dtype of the coefficients).
STREAMS = (
    Case((5, 4, 64)),
    Case((2, 3, 4, 100), options={"weight": "other"}),
    Case((3, 1, 17)),
    Case((7, 3, 40)),
    Case((2, 5000)),
    Case((0, 4, 8)),
    Case((3, 2, 16), "t"),
    Case((3, 4, 64), "swapped"),
    Case((3, 4, 40), "sliced"),
    Case((2, 4, 16), "expanded"),
)


def _coefficients(d: Draw, name: str, shape: tuple[int, ...]) -> Tensor:
    wider = opmath_dtype(d.dtype)
    return _drawn(d, name, shape, wider if d.option("weight") == "other" else d.dtype)


def _pre_args(d: Draw) -> dict[str, Any]:
    return {"x": d.full(), "h": _coefficients(d, "h", d.case.shape[:-1])}


def _pre_bwd_args(d: Draw) -> dict[str, Any]:
    *rows, _, n = d.case.shape
    return {"dy": _drawn(d, "dy", (*rows, n)), **_pre_args(d)}


def _post_args(d: Draw) -> dict[str, Any]:
    *rows, streams, n = d.case.shape
    return {
        "x": d.full(),
        "f": _drawn(d, "f", (*rows, n)),
        "h_post": _coefficients(d, "post", (*rows, streams)),
        "h_res": _coefficients(d, "res", (*rows, streams, streams)),
    }


def _post_bwd_args(d: Draw) -> dict[str, Any]:
    return {"dy": _drawn(d, "dy", d.case.shape), **_post_args(d)}


PRE, PRE_BWD, POST, POST_BWD = (Maker(args, STREAMS) for args in (_pre_args, _pre_bwd_args, _post_args, _post_bwd_args))
Streams = Float[Tensor, "*rows streams n", nonempty(-2), nonempty(-1)]


@op(grad="mhc_pre_bwd", samples=PRE, tol=SUMS)
def mhc_pre(x: Streams, h: Float[Tensor, "*rows streams"]) -> Tensor:
    """Mix several streams into one: y = sum over streams i of h_i x_i.

    Args:
        x: the streams of each row.
        h: the coefficient of each stream.

    Returns:
        y [*rows, n], of x's dtype.
    """
    v = wide(x)
    return rounded((h.to(v.dtype)[..., None] * v).sum(-2), x.dtype)


@op(out="dx dh", samples=PRE_BWD, tol=SUMS)
def mhc_pre_bwd(dy: Grad[Tensor, "*rows n"], x: Streams, h: Float[Tensor, "*rows streams"]) -> tuple[Tensor, Tensor]:
    """The gradients of mhc_pre: dx_i = h_i dy, dh_i = dy . x_i.

    Args:
        dy: the gradient of y.
        x: as in the forward.
        h: as in the forward.

    Returns:
        dx, like x, and dh, like h.
    """
    v = wide(x)
    g = dy.to(v.dtype)[..., None, :]
    return rounded(h.to(v.dtype)[..., None] * g, x.dtype), rounded((g * v).sum(-1), h.dtype)


@op(grad="mhc_post_res_bwd", samples=POST, tol=SUMS)
def mhc_post_res(
    x: Streams,
    f: Float[Tensor, "*rows n"],
    h_post: Float[Tensor, "*rows streams"],
    h_res: Float[Tensor, "*rows streams streams"],
) -> Tensor:
    """Mix the streams and add the output of a layer to each: y_o = sum over i of h_res[o, i] x_i + h_post[o] f.

    Args:
        x: the streams of each row.
        f: the output of the layer.
        h_post: the coefficient of f for each stream.
        h_res: the coefficients of the streams x_i for each stream y_o.

    Returns:
        y, like x.
    """
    v = wide(x)
    mixed = (h_res.to(v.dtype)[..., None] * v[..., None, :, :]).sum(-2)
    return rounded(mixed + h_post.to(v.dtype)[..., None] @ f.to(v.dtype)[..., None, :], x.dtype)


@op(out="dx df dh_post dh_res", samples=POST_BWD, tol=SUMS)
def mhc_post_res_bwd(
    dy: Grad[Tensor, "*rows streams n"],
    x: Streams,
    f: Float[Tensor, "*rows n"],
    h_post: Float[Tensor, "*rows streams"],
    h_res: Float[Tensor, "*rows streams streams"],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of mhc_post_res.

    dx_i = sum over o of h_res[o, i] dy_o, df = sum over o of h_post[o] dy_o, dh_post[o] = dy_o . f,
    dh_res[o, i] = dy_o . x_i.

    Args:
        dy: the gradient of y.
        x: as in the forward.
        f: as in the forward.
        h_post: as in the forward.
        h_res: as in the forward.

    Returns:
        dx, df, dh_post and dh_res, like x, f, h_post and h_res.
    """
    v = wide(x)
    g, layer, post, res = (t.to(v.dtype) for t in (dy, f, h_post, h_res))
    dx = (res[..., None] * g[..., :, None, :]).sum(-3)
    df = (post[..., None] * g).sum(-2)
    dpost, dres = (g * layer[..., None, :]).sum(-1), (g[..., :, None, :] * v[..., None, :, :]).sum(-1)
    return rounded(dx, x.dtype), rounded(df, f.dtype), rounded(dpost, h_post.dtype), rounded(dres, h_res.dtype)


# ---- Sinkhorn -------------------------------------------------------------------------------------------------------

# The shape is [*rows, n, n].
SQUARES = (
    Case((5, 4, 4)),
    Case((2, 3, 3, 3), options={"iterations": 1}),
    Case((40, 2, 2), options={"iterations": 5, "eps": 1e-2}),
    Case((3, 1, 1)),
    Case((7, 7), options={"iterations": 3, "eps": 0.0}),
    Case((0, 4, 4)),
    Case((3, 4, 4), "t"),
    Case((3, 4, 4), "sliced"),
    Case((3, 4, 4), "expanded"),
)


def _sinkhorn_args(d: Draw) -> dict[str, Any]:
    return {"logits": d.full(), "iterations": d.option("iterations", 20), "eps": d.option("eps", 1e-6)}


def _sinkhorn_bwd_args(d: Draw) -> dict[str, Any]:
    return {"dh": _drawn(d, "dh", d.case.shape), **_sinkhorn_args(d)}


Squares = Float[Tensor, "*rows n n", nonempty(-1)]
Iterations = Annotated[int, at_least(1)]
Added = Annotated[float, at_least(0)]


@op(out="h", grad="sinkhorn_bwd", samples=Maker(_sinkhorn_args, SQUARES), tol=SUMS)
def sinkhorn(logits: Squares, iterations: Iterations = 20, eps: Added = 1e-6) -> Tensor:
    """Sinkhorn normalisation: turn logits into matrices whose rows and columns sum to nearly 1.

    h = softmax(logits) + eps over rows, then h = h / (sum of each column + eps). This is followed iterations - 1 times
    by h = h / (sum of each row + eps) and h = h / (sum of each column + eps).

    Args:
        logits: the matrices.
        iterations: the number of divisions by the sums of columns.
        eps: added to the softmax and to each sum.

    Returns:
        h, like logits: computed in float32 (float64 for float64) and rounded once.
    """
    h = wide(logits).softmax(-1) + eps
    h = h / (h.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        h = h / (h.sum(-1, keepdim=True) + eps)
        h = h / (h.sum(-2, keepdim=True) + eps)
    return rounded(h, logits.dtype)


def _divided(x: Tensor, dim: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / by and by, where by is (the sum of x along dim) + eps."""
    by = x.sum(dim, keepdim=True) + eps
    return x / by, by


@op(out="dlogits", samples=Maker(_sinkhorn_bwd_args, SQUARES), tol=SUMS)
def sinkhorn_bwd(
    dh: Grad[Tensor, "*rows n n"], logits: Squares, iterations: Iterations = 20, eps: Added = 1e-6
) -> Tensor:
    """The gradient of sinkhorn; the intermediate matrices are recomputed.

    Backwards through each division h = x / by: dx = (dh - sum(dh * h)) / by, with the sum over the same rows or
    columns; then through the softmax p: dlogits = p * (dp - sum(dp * p)).

    Args:
        dh: the gradient of h.
        logits: as in the forward.
        iterations: as in the forward.
        eps: as in the forward.

    Returns:
        dlogits, like logits.
    """
    p = wide(logits).softmax(-1)
    dims = [-2, *(-1, -2) * (iterations - 1)]
    steps = [_divided(p + eps, -2, eps)]
    for dim in dims[1:]:
        steps.append(_divided(steps[-1][0], dim, eps))
    g = dh.to(p.dtype)
    for dim, (x, by) in zip(reversed(dims), reversed(steps), strict=True):
        g = (g - (g * x).sum(dim, keepdim=True)) / by
    return rounded(p * (g - (g * p).sum(-1, keepdim=True)), logits.dtype)
