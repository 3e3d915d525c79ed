"""tex's router ops for a mixture of experts: scores, top-k with groups and bias, and the load-balancing loss.

The ops compute in float32, and save float32 tensors for the backward. Experts with equal scores are chosen in the order
of their indices.
"""

from enum import IntEnum
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.contract import (
    AnyTensor,
    Float32,
    Int32,
    Int64,
    at_least,
    contiguous,
    dtypes,
    either,
    one_of,
    shape,
    single,
)
from ..core.errors import BadArgument
from ..core.rules import nonempty, up_to_size
from ..core.spec import Tol, op
from ..core.tensors import dtype_name
from .samples import Case, Change, Draw, Maker, bad_samples

# tex's enums, with NVIDIA's values.
RoutingMapFormat = IntEnum("RoutingMapFormat", {"BYTEMAP": 0, "BITMAP_U8": 1})
HistogramMode = IntEnum("HistogramMode", {"TWO_KERNEL": 0, "FUSED_ATOMIC": 1})
LOGITS = (torch.float32, torch.float16, torch.bfloat16)
COUNTS = (torch.int32, torch.int64, torch.float32, torch.bfloat16)
INTS = (torch.int16, torch.int32, torch.int64)
SCORES = ("softmax", "sigmoid", "sqrtsoftplus")
EPS = 1e-20
MAPS = {dtype: Tol(0, 0) for dtype in (torch.bool, torch.uint8, *INTS)}


# ---- arguments ------------------------------------------------------------------------------------------------------

LOW = dtypes(LOGITS)
Logits = AnyTensor[Tensor, "*tokens experts", LOW, nonempty(-1)]
Gradient = AnyTensor[Tensor, "*tokens experts", LOW]
Saved = Float32[Tensor, "*tokens experts", nonempty(-1)]
Bias = AnyTensor[Tensor, "experts", LOW]
Indices = AnyTensor[Tensor, "*tokens topk", dtypes(INTS)]
Probs = AnyTensor[Tensor, "num_rows num_cols", LOW]
Counts = AnyTensor[Tensor, "num_cols", dtypes(COUNTS)]
TopK = Annotated[int, up_to_size("logits")]
Score = Annotated[str, one_of(*SCORES)]
MapFormat = Annotated[Any, one_of(*RoutingMapFormat)]
Size = Annotated[int, at_least(0)]
Positive = Annotated[int, at_least(1)]


def groups_divide(op: str, logits: Tensor, topk: int, num_groups: int | None, group_topk: int | None) -> None:
    """Raise if group_topk is given and the experts cannot form equal groups of at least topk / group_topk experts."""
    if not group_topk or group_topk < 0:
        return
    experts = logits.shape[-1]
    if num_groups is None or num_groups < 1 or experts % num_groups:
        expected = f"divide {experts}, the experts, as {{group_topk}} is {group_topk}"
        raise BadArgument.of(op, "num_groups", expected, str(num_groups))
    if group_topk > num_groups or not 1 <= topk // group_topk <= experts // num_groups:
        groups = f"{num_groups} groups of {experts // num_groups} experts with {{topk}} {topk}"
        raise BadArgument.of(op, "group_topk", f"choose among {groups}", str(group_topk))


def bias_is_allowed(op: str, score_function: str, expert_bias: Tensor | None) -> None:
    if expert_bias is not None and score_function == "softmax":
        raise BadArgument.of(op, "expert_bias", "be None, as {score_function} is 'softmax'", "a Tensor")


def bounds_in_order(op: str, bin_bounds: Tensor, bin_bounds_validated: bool) -> None:
    """Raise unless the bounds are finite and ascending.

    Unless bin_bounds_validated is set, it reads the bounds and so waits for the device. Checks in a signature must not
    read data, so the op calls this check.
    """
    if not bin_bounds_validated:
        low, high = bin_bounds.tolist()
        if not (-torch.inf < low < high < torch.inf):
            raise BadArgument.of(op, "bin_bounds", "be finite, the lower first", f"[{low}, {high}]")


def map_shape(grad_probs: Tensor, topk: int, use_dense_indices: bool, routing_map_format: Any) -> tuple[int, ...]:
    *tokens, experts = grad_probs.shape
    return (*tokens, topk if use_dense_indices else experts if int(routing_map_format) == 0 else -(-experts // 8))


def map_dtype_fits(op: str, routing_map: Tensor, use_dense_indices: bool, routing_map_format: Any) -> None:
    maps = (torch.bool, torch.uint8) if int(routing_map_format) == 0 else (torch.uint8,)
    allowed = INTS if use_dense_indices else maps
    if routing_map.dtype not in allowed:
        got = dtype_name(routing_map.dtype)
        raise BadArgument.of(op, "routing_map", f"be {either(map(dtype_name, allowed))}", got, TypeError)


# ---- the references -------------------------------------------------------------------------------------------------


def score(x: Tensor, function: str) -> Tensor:
    if function == "softmax":
        return torch.softmax(x, -1)
    return torch.sigmoid(x) if function == "sigmoid" else torch.sqrt(F.softplus(x, threshold=20.0))


def best(x: Tensor, k: int) -> Tensor:
    """The indices of the k largest elements; among equal elements, lower indices come first."""
    return torch.sort(x, stable=True, dim=-1, descending=True).indices[..., :k]


def chosen(scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None) -> Tensor:
    """Choose topk experts for each token.

    With group_topk, choose only from the group_topk groups whose best topk / group_topk scores have the largest sum.
    """
    if group_topk is not None and group_topk > 0 and num_groups is not None:
        groups = scores.unflatten(-1, (num_groups, -1))
        each = groups.gather(-1, best(groups, topk // group_topk)).sum(-1)
        allowed = torch.zeros_like(each, dtype=torch.bool).scatter_(-1, best(each, group_topk), True)
        scores = groups.masked_fill(~allowed[..., None], -torch.inf).flatten(-2)
    return best(scores, topk)


def mapped(indices: Tensor, experts: int, routing_map_format: Any) -> Tensor:
    """The routing map: a bool for each expert, or a bit for each expert, with the first one in the lowest bit."""
    shape = (*indices.shape[:-1], experts)
    routed_to = torch.zeros(shape, dtype=torch.bool, device=indices.device).scatter_(-1, indices, True)
    if int(routing_map_format) == 0:
        return routed_to
    bits = F.pad(routed_to, (0, -experts % 8)).unflatten(-1, (-1, 8)).to(torch.uint8)
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits << shifts).sum(-1, dtype=torch.uint8)


def unmapped(routing_map: Tensor, experts: int, routing_map_format: Any, dense: bool) -> Tensor:
    if dense:
        shape = (*routing_map.shape[:-1], experts)
        return torch.zeros(shape, dtype=torch.bool, device=routing_map.device).scatter_(-1, routing_map.long(), True)
    if int(routing_map_format) == 0:
        return routing_map != 0
    shifts = torch.arange(8, dtype=torch.uint8, device=routing_map.device)
    return ((routing_map[..., None] >> shifts) & 1).flatten(-2)[..., :experts] != 0


def routed(
    logits: Tensor, topk: int, pre: bool, num_groups: Any, group_topk: Any, factor: Any, function: str, bias: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The probabilities, the chosen experts (best first), and the values saved for the backward."""
    x = logits.float()
    late = function == "softmax" and not pre
    scores = x if late else score(x, function)
    indices = chosen(scores if bias is None else scores + bias.float(), topk, num_groups, group_topk)
    picked = scores.gather(-1, indices)
    if late:
        picked = torch.softmax(picked, -1)
        saved = torch.full_like(x, -torch.inf).scatter_(-1, indices, picked)
    else:
        saved = x.clone() if function == "sqrtsoftplus" else scores
    if function != "softmax" and topk > 1:
        picked = picked / (picked.sum(-1, keepdim=True) + EPS)
    if factor is not None:
        picked = picked * factor
    return torch.zeros_like(x).scatter_(-1, indices, picked).to(logits.dtype), indices, saved.contiguous()


def slope(g: Tensor, saved: Tensor, score: Tensor, function: str) -> Tensor:
    """The gradient of the logits, from the gradient g of sigmoid(logits) or sqrt(softplus(logits))."""
    if function == "sigmoid":
        return g * score * (1 - score)
    return g * torch.where(saved > 20, 1.0, torch.sigmoid(saved)) / (2 * score + EPS)


def share_slope(g: Tensor, scores: Tensor) -> Tensor:
    """The gradient of the scores, from the gradient g of scores / (sum(scores) + EPS)."""
    total = scores.sum(-1, keepdim=True) + EPS
    return g / total - (g * scores).sum(-1, keepdim=True) / total / total


# ---- samples --------------------------------------------------------------------------------------------------------

ROUTES = (
    Case((5, 16), options={"topk": 2}),
    Case((4, 13), options={"topk": 3, "pre": True, "factor": 2.5}),
    Case((2, 3, 24), options={"topk": 4, "score": "sigmoid", "bias": True, "groups": (4, 2), "format": 1}),
    Case((5, 20), options={"topk": 1, "score": "sigmoid", "factor": 0.5, "dense": torch.int64}),
    Case((6, 37), options={"topk": 5, "score": "sqrtsoftplus", "bias": True, "dense": torch.int32}),
    Case((7, 40), options={"topk": 3, "score": "sigmoid", "dense": torch.int16}),
    Case((3, 12), options={"topk": 12, "score": "sqrtsoftplus", "scale": 30.0, "format": 1}),
    Case((5, 16), options={"topk": 4, "ties": True, "pre": True, "groups": (4, 2)}),
    Case((0, 8), options={"topk": 2}),
)


def _logits(d: Draw) -> Tensor:
    x = Draw(d.case, torch.float32, d.device).full(d.option("scale", 1.0))
    x = x.round() if d.option("ties") else x
    return x.to(d.dtype if d.dtype in LOGITS else torch.float32)


def _fwd_args(d: Draw) -> dict[str, Any]:
    logits, topk = _logits(d), d.option("topk")
    groups, group_topk = d.option("groups", (None, None))
    bias = Draw(Case(d.case.shape[-1:]), torch.float32, d.device).full(0.1) if d.option("bias") else None
    dense = d.option("dense")
    return {
        "logits": logits,
        "topk": topk,
        "use_pre_softmax": d.option("pre", False),
        "num_groups": groups,
        "group_topk": group_topk,
        "scaling_factor": d.option("factor"),
        "score_function": d.option("score", "softmax"),
        "expert_bias": bias,
        "routing_map_format": d.option("format", 0),
        "topk_indices": None if dense is None else logits.new_zeros((*logits.shape[:-1], topk), dtype=dense),
    }


def _bwd_args(d: Draw) -> dict[str, Any]:
    args = _fwd_args(d)
    _, routing_map, saved = fused_topk_with_score_function_fwd.reference(**args)
    grad = Draw(Case(d.case.shape, options={"of": d.case.id}), torch.float32, d.device).full().to(args["logits"].dtype)
    return {
        "routing_map": routing_map,
        "intermediate_output": saved,
        "grad_probs": grad,
        "grad_logits": torch.full_like(grad, torch.nan),
        **{k: args[k] for k in ("topk", "use_pre_softmax", "scaling_factor", "score_function")},
        "use_dense_indices": args["topk_indices"] is not None,
        "routing_map_format": args["routing_map_format"],
    }


def _aux_args(d: Draw) -> dict[str, Any]:
    args = _fwd_args(d)
    return {k: args[k] for k in ("logits", "topk", "score_function", "routing_map_format")}


def _aux_bwd_args(d: Draw) -> dict[str, Any]:
    args = _aux_args(d)
    _, _, saved = fused_score_for_moe_aux_loss_fwd.reference(**args)
    grad = Draw(Case(d.case.shape, options={"of": d.case.id}), torch.float32, d.device).full()
    out = torch.full_like(args["logits"], torch.nan)
    options = {k: args[k] for k in ("topk", "score_function")}
    return {"intermediate_output": saved, "grad_scores": grad, "grad_logits": out, **options}


FWD, BWD, AUX, AUX_BWD = (Maker(args, ROUTES) for args in (_fwd_args, _bwd_args, _aux_args, _aux_bwd_args))


# ---- top-k ----------------------------------------------------------------------------------------------------------


@op(
    space="tex",
    out="probs routing_map intermediate_output",
    mutates=("topk_indices",),
    samples=FWD,
    tol=MAPS,
    where=(groups_divide, bias_is_allowed),
    errors=bad_samples(
        FWD,
        Change("num_groups", 5, "num_groups must divide 24, the experts"),
        Change("group_topk", 5, "group_topk must choose among 4 groups of 6 experts"),
        Change("score_function", "softmax", "expert_bias must be None, as score_function is 'softmax'"),
        case=ROUTES[2],
    ),
)
def fused_topk_with_score_function_fwd(
    logits: Logits,
    topk: TopK,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: Score,
    expert_bias: Bias | None,
    routing_map_format: MapFormat = 0,
    topk_indices: Indices | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the topk experts with the highest scores for each token, and return their probabilities.

    score = softmax(logits), sigmoid(logits) or sqrt(softplus(logits)). The probability of a chosen expert is its score;
    for sigmoid and sqrtsoftplus with topk > 1, it is divided by the sum of the chosen experts' scores.

    Args:
        logits: the router's output.
        topk: the number of experts to choose for a token.
        use_pre_softmax: apply softmax to all experts before the choice, instead of to the chosen experts after it.
        num_groups: with group_topk, the number of equal groups that the experts are divided into.
        group_topk: choose only from this many groups: those whose best topk / group_topk scores have the largest sum.
            None and 0: choose from all experts.
        scaling_factor: multiplies the probabilities; None is 1.
        score_function: the function of the scores.
        expert_bias: added to the scores for the choice only; must be None for softmax.
        routing_map_format: 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).
        topk_indices: receives the chosen experts, best first; it is then returned instead of the map.

    Returns:
        probs, like logits: 0 for experts that were not chosen; routing_map; and intermediate_output, which the backward
        needs: float32, of logits' shape.
    """
    with torch.no_grad():
        options = (num_groups, group_topk, scaling_factor, score_function, expert_bias)
        probs, indices, saved = routed(logits, topk, bool(use_pre_softmax), *options)
        if topk_indices is not None:
            return probs, topk_indices.copy_(indices), saved
        return probs, mapped(indices, logits.shape[-1], routing_map_format), saved


@op(
    space="tex",
    out="",
    mutates=("grad_logits",),
    samples=BWD,
    where=map_dtype_fits,
    errors=bad_samples(
        BWD,
        Change("routing_map", torch.zeros(4, 13), "routing_map must be bool or uint8; got float32", TypeError),
        case=ROUTES[1],
    ),
)
def fused_topk_with_score_function_bwd(
    routing_map: AnyTensor[Tensor, "...", shape(map_shape, "the routing map of the forward")],
    intermediate_output: Saved,
    grad_probs: Gradient,
    grad_logits: Gradient,
    topk: Annotated[int, up_to_size("intermediate_output")],
    use_pre_softmax: bool,
    scaling_factor: float | None,
    score_function: Score,
    use_dense_indices: bool = False,
    routing_map_format: MapFormat = 0,
) -> None:
    """Write the gradient of fused_topk_with_score_function_fwd's logits to grad_logits.

    Args:
        routing_map: the second result of the forward.
        intermediate_output: the third result of the forward.
        grad_probs: the gradient of the probabilities.
        grad_logits: receives the gradient of the logits.
        topk: as in the forward.
        use_pre_softmax: as in the forward.
        scaling_factor: as in the forward.
        score_function: as in the forward.
        use_dense_indices: whether routing_map is the topk_indices of the forward.
        routing_map_format: as in the forward.
    """
    with torch.no_grad():
        saved = intermediate_output
        routed_to = unmapped(routing_map, grad_probs.shape[-1], routing_map_format, bool(use_dense_indices))
        g = torch.where(routed_to, grad_probs.float() * (1.0 if scaling_factor is None else scaling_factor), 0.0)
        if score_function == "softmax":
            p = saved if use_pre_softmax else torch.where(routed_to, saved, 0.0)
            grad_logits.copy_(p * (g - (g * p).sum(-1, keepdim=True)))
            return
        scores = score(saved, score_function) if score_function == "sqrtsoftplus" else saved
        if topk > 1:
            g = torch.where(routed_to, share_slope(g, torch.where(routed_to, scores, 0.0)), 0.0)
        grad_logits.copy_(slope(g, saved, scores, score_function))


# ---- top-k with a histogram -----------------------------------------------------------------------------------------


HISTOGRAMS = (
    Case((2, 3, 16), options={"topk": 3, "factor": 2.0, "bins": 8}),
    Case((5, 21), options={"topk": 2, "bins": 5, "format": 1}),
    Case((4, 12), options={"topk": 4, "bins": 1, "dense": torch.int32}),
)


def _histogram_args(d: Draw) -> dict[str, Any]:
    args = _fwd_args(d)
    experts = d.case.shape[-1]
    return {
        **{k: args[k] for k in ("logits", "topk", "scaling_factor")},
        "expert_bias": Draw(Case((experts,)), torch.float32, d.device).full(0.1),
        **{k: args[k] for k in ("routing_map_format", "topk_indices")},
        "histogram": torch.ones(experts, d.option("bins"), dtype=torch.int32, device=d.device),
        "bin_bounds": torch.tensor([-0.4, 0.7], device=d.device),
        "histogram_mode": 0,
        "bin_bounds_validated": True,
    }


QB = Maker(_histogram_args, HISTOGRAMS)


@op(
    space="tex",
    out="probs routing_map intermediate_output cutoff histogram",
    mutates=("topk_indices", "histogram"),
    samples=QB,
    tol=MAPS,
)
def fused_topk_with_score_function_qb_fwd(
    logits: Logits,
    topk: Annotated[int, up_to_size("logits", less=1)],
    scaling_factor: float | None,
    expert_bias: Bias,
    routing_map_format: MapFormat,
    topk_indices: Indices | None,
    histogram: Int32[Tensor, "experts bins", contiguous(), nonempty(-1)],
    bin_bounds: Float32[Tensor, "2"],
    histogram_mode: Annotated[Any, one_of(*HistogramMode)],
    bin_bounds_validated: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """fused_topk_with_score_function_fwd for sigmoid, with a histogram of how far scores are from a cutoff.

    The cutoff of a token is its (topk + 1)-th largest score + bias. The histogram of an expert counts cutoff - score
    (without the bias) of all tokens.

    Args:
        logits: the router's output.
        topk: the number of experts to choose for a token.
        scaling_factor: multiplies the probabilities; None is 1.
        expert_bias: added to the scores for the choice and the cutoff.
        routing_map_format: 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).
        topk_indices: receives the chosen experts, best first; it is then returned instead of the map.
        histogram: incremented in place. Bins have equal widths; the first and the last also count values outside.
        bin_bounds: the start of the first bin and the end of the last one.
        histogram_mode: accepted and ignored.
        bin_bounds_validated: skip the check that the bounds are finite and ascending, which waits for the device.

    Returns:
        The results of fused_topk_with_score_function_fwd; cutoff, float32, one element for each token; and histogram.
    """
    with torch.no_grad():
        bounds_in_order("fused_topk_with_score_function_qb_fwd", bin_bounds, bin_bounds_validated)
        experts, bins = histogram.shape
        options = (False, None, None, scaling_factor, "sigmoid", expert_bias)
        probs, indices, scores = routed(logits, topk, *options)
        biased = (scores + expert_bias.float()).view(-1, experts)
        cutoff = biased.gather(-1, best(biased, topk + 1)[:, -1:])
        low, high = bin_bounds[0], bin_bounds[1]
        bucket = (cutoff - scores.view(-1, experts) - low) * (torch.full_like(low, bins) / (high - low))
        bucket = bucket.floor().clamp(0, bins - 1).long() + torch.arange(experts, device=logits.device) * bins
        bucket = bucket.flatten()
        histogram.view(-1).scatter_add_(0, bucket, torch.ones_like(bucket, dtype=torch.int32))
        if topk_indices is None:
            return probs, mapped(indices, experts, routing_map_format), scores, cutoff[:, 0].contiguous(), histogram
        return probs, topk_indices.copy_(indices), scores, cutoff[:, 0].contiguous(), histogram


# ---- the load-balancing loss ----------------------------------------------------------------------------------------


@op(
    space="tex",
    out="scores routing_map intermediate_output",
    samples=AUX,
    tol=MAPS,
)
def fused_score_for_moe_aux_loss_fwd(
    logits: Logits, topk: TopK, score_function: Score, routing_map_format: MapFormat = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """The scores of all experts for the load-balancing loss, and a map of the topk highest.

    score = softmax(logits), or sigmoid(logits) or sqrt(softplus(logits)) divided by their sum over all experts.

    Args:
        logits: the router's output.
        topk: the number of experts in the map for a token.
        score_function: the function of the scores.
        routing_map_format: 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).

    Returns:
        scores, float32, of logits' shape; routing_map; and intermediate_output, float32, which the backward needs.
    """
    with torch.no_grad():
        x = logits.float()
        raw = score(x, score_function)
        scores = raw.clone() if score_function == "softmax" else raw / (raw.sum(-1, keepdim=True) + EPS)
        saved = x.clone() if score_function == "sqrtsoftplus" else raw
        routing_map = mapped(best(scores, topk), logits.shape[-1], routing_map_format)
        return scores.contiguous(), routing_map, saved.contiguous()


@op(space="tex", out="", mutates=("grad_logits",), samples=AUX_BWD)
def fused_score_for_moe_aux_loss_bwd(
    intermediate_output: Saved,
    grad_scores: Gradient,
    grad_logits: Gradient,
    topk: Annotated[int, up_to_size("intermediate_output")],
    score_function: Score,
) -> None:
    """Write the gradient of fused_score_for_moe_aux_loss_fwd's logits to grad_logits.

    Args:
        intermediate_output: the third result of the forward.
        grad_scores: the gradient of the scores.
        grad_logits: receives the gradient of the logits.
        topk: as in the forward.
        score_function: as in the forward.
    """
    with torch.no_grad():
        saved = intermediate_output
        g = grad_scores.float()
        if score_function == "softmax":
            grad_logits.copy_(saved * (g - (g * saved).sum(-1, keepdim=True)))
            return
        scores = score(saved, score_function) if score_function == "sqrtsoftplus" else saved
        grad_logits.copy_(slope(share_slope(g, scores), saved, scores, score_function))


def _balance(probs: Tensor, tokens_per_expert: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    total = (probs.sum(0, dtype=torch.float32) * tokens_per_expert.float()).sum()
    return (total * factor).to(probs.dtype), torch.stack([factor, torch.zeros_like(factor)])


def _loss_args(d: Draw) -> dict[str, Any]:
    rows, experts = d.case.shape
    counts = torch.arange(experts, device=d.device).to(d.option("counts", torch.int32))
    return {
        "probs": _logits(d).abs(),
        "tokens_per_expert": counts,
        "total_num_tokens": 40,
        "num_experts": experts,
        "num_rows": rows,
        "num_cols": experts,
        "topk": 2,
        "coeff": 0.01,
    }


def _loss_bwd_args(d: Draw) -> dict[str, Any]:
    args = _loss_args(d)
    return {
        "Const_buf": torch.tensor([0.25, 0.0], device=d.device),
        **{k: args[k] for k in ("tokens_per_expert", "num_rows", "num_cols")},
        "grad_aux_loss": torch.tensor(1.5, dtype=args["probs"].dtype, device=d.device),
    }


LOSSES = tuple(
    Case(shape, options={"counts": counts})
    for shape, counts in zip(((5, 16), (37, 13), (3, 8), (0, 8)), COUNTS, strict=True)
)
LOSS, LOSS_BWD = Maker(_loss_args, LOSSES), Maker(_loss_bwd_args, LOSSES)
LOSS_SAFE = Maker(
    lambda d: {k: torch.tensor(v, device=d.device) if k == "total_num_tokens" else v for k, v in _loss_args(d).items()},
    LOSSES,
)


@op(space="tex", out="aux_loss Const_buf", samples=LOSS)
def fused_moe_aux_loss_fwd(
    probs: Probs,
    tokens_per_expert: Counts,
    total_num_tokens: Positive,
    num_experts: Positive,
    num_rows: Size,
    num_cols: Size,
    topk: Positive,
    coeff: float,
) -> tuple[Tensor, Tensor]:
    """The load-balancing loss: C * sum(probs * tokens_per_expert), C = num_experts * coeff / topk / total_num_tokens^2.

    Args:
        probs: the scores of each token from fused_score_for_moe_aux_loss_fwd.
        tokens_per_expert: the number of tokens of each expert.
        total_num_tokens: the number of tokens, for C.
        num_experts: the number of experts, for C.
        num_rows: the number of rows of probs.
        num_cols: the number of columns of probs.
        topk: the number of experts of a token, for C.
        coeff: the coefficient of the loss.

    Returns:
        aux_loss, a 0-dim tensor of probs' dtype, and Const_buf = [C, 0], float32.
    """
    with torch.no_grad():
        factor = num_experts * coeff / topk / total_num_tokens / total_num_tokens
        return _balance(probs, tokens_per_expert, torch.full((), factor, dtype=torch.float32, device=probs.device))


@op(space="tex", out="aux_loss Const_buf", samples=LOSS_SAFE)
def fused_moe_aux_loss_fwd_graph_safe(
    probs: Probs,
    tokens_per_expert: Counts,
    total_num_tokens: Int64[Tensor, "...", single()],
    num_experts: Positive,
    num_rows: Size,
    num_cols: Size,
    topk: Positive,
    coeff: float,
) -> tuple[Tensor, Tensor]:
    """fused_moe_aux_loss_fwd with total_num_tokens on the device, so that it may change between CUDA graph replays.

    Args:
        probs: as in fused_moe_aux_loss_fwd.
        tokens_per_expert: as in fused_moe_aux_loss_fwd.
        total_num_tokens: the number of tokens, for C; one element.
        num_experts: as in fused_moe_aux_loss_fwd.
        num_rows: as in fused_moe_aux_loss_fwd.
        num_cols: as in fused_moe_aux_loss_fwd.
        topk: as in fused_moe_aux_loss_fwd.
        coeff: as in fused_moe_aux_loss_fwd.

    Returns:
        aux_loss, a 0-dim tensor of probs' dtype, and Const_buf = [C, 0], float32.
    """
    with torch.no_grad():
        total = total_num_tokens.reshape(()).float()
        return _balance(probs, tokens_per_expert, torch.full_like(total, num_experts * coeff / topk) / total / total)


@op(space="tex", out="grad_probs", samples=LOSS_BWD)
def fused_moe_aux_loss_bwd(
    Const_buf: Float32[Tensor, "...", nonempty()],
    tokens_per_expert: Counts,
    num_rows: Size,
    num_cols: Size,
    grad_aux_loss: AnyTensor[Tensor, "...", LOW, single()],
) -> Tensor:
    """The gradient of fused_moe_aux_loss_fwd's probs: C * tokens_per_expert * grad_aux_loss, the same in every row.

    Args:
        Const_buf: the second result of the forward; its first element is C.
        tokens_per_expert: as in the forward.
        num_rows: as in the forward.
        num_cols: as in the forward.
        grad_aux_loss: the gradient of the loss.

    Returns:
        grad_probs [num_rows, num_cols], of the dtype of grad_aux_loss.
    """
    with torch.no_grad():
        row = Const_buf.reshape(-1)[0] * tokens_per_expert.float() * grad_aux_loss.reshape(()).float()
        return row.to(grad_aux_loss.dtype).expand(num_rows, num_cols).clone(memory_format=torch.contiguous_format)
