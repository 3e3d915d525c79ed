"""tex's router of a mixture of experts: scores, top-k with groups and bias, and the loss that balances experts.

Scores, sums and what is kept for the backward are float32. Of equal scores the lowest expert comes first.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Tol, op
from ._checks import check_choice, check_int, check_number, check_tensor, type_name
from .samples import Case, Draw, Maker

# tex's enums, by NVIDIA's numbers.
RoutingMapFormat = IntEnum("RoutingMapFormat", {"BYTEMAP": 0, "BITMAP_U8": 1})
HistogramMode = IntEnum("HistogramMode", {"TWO_KERNEL": 0, "FUSED_ATOMIC": 1})
LOGITS = (torch.float32, torch.float16, torch.bfloat16)
COUNTS = (torch.int32, torch.int64, torch.float32, torch.bfloat16)
INTS = (torch.int32, torch.int64)
SCORES = ("softmax", "sigmoid", "sqrtsoftplus")
EPS = 1e-20
MAPS = {torch.bool: Tol(0, 0), torch.uint8: Tol(0, 0), torch.int32: Tol(0, 0), torch.int64: Tol(0, 0)}


# ---- what must be refused -------------------------------------------------------------------------------------------


def check_router(op: str, logits: Any, topk: Any, score_function: Any, routing_map_format: Any) -> None:
    check_tensor(op, "logits", logits, dtypes=LOGITS)
    if logits.dim() < 1 or not logits.shape[-1]:
        raise ValueError(f"{op}: logits must be [.., experts], of one expert or more; got {tuple(logits.shape)}")
    check_int(op, "topk", topk, 1, logits.shape[-1])
    check_choice(op, "score_function", score_function, SCORES)
    check_choice(op, "routing_map_format", routing_map_format, RoutingMapFormat)


def check_groups(op: str, experts: int, topk: int, num_groups: Any, group_topk: Any) -> None:
    for name, value in (("num_groups", num_groups), ("group_topk", group_topk)):
        if value is not None:
            check_int(op, name, value)
    if not group_topk or group_topk < 0:
        return
    if num_groups is None or num_groups < 1 or experts % num_groups:
        raise ValueError(
            f"{op}: num_groups must divide {experts}, the experts, as there is group_topk; got {num_groups}"
        )
    each = topk // group_topk
    if group_topk > num_groups or not 1 <= each <= experts // num_groups:
        most = f"{num_groups} groups of {experts // num_groups} experts with topk {topk}"
        raise ValueError(f"{op}: group_topk must choose among {most}; got {group_topk}")


def check_bias(op: str, bias: Any, logits: Tensor, score_function: Any, optional: bool = True) -> None:
    shape = (logits.shape[-1],)
    check_tensor(op, "expert_bias", bias, dtypes=LOGITS, shape=shape, on=logits, optional=optional, of="the experts")
    if bias is not None and score_function == "softmax":
        raise ValueError(f"{op}: expert_bias must be None with the score function softmax; got a Tensor")


def check_indices(op: str, topk_indices: Any, logits: Tensor, topk: int) -> None:
    check_tensor(
        op, "topk_indices", topk_indices, dtypes=INTS, shape=(*logits.shape[:-1], topk), on=logits, optional=True,
        of="topk for each token",
    )  # fmt: skip


def check_scale(op: str, scaling_factor: Any) -> None:
    if scaling_factor is not None:
        check_number(op, "scaling_factor", scaling_factor)


def check_forward(
    op: str, logits: Any, topk: Any, use_pre_softmax: Any, num_groups: Any, group_topk: Any, scaling_factor: Any,
    score_function: Any, expert_bias: Any, routing_map_format: Any, topk_indices: Any,
) -> None:  # fmt: skip
    check_router(op, logits, topk, score_function, routing_map_format)
    if not isinstance(use_pre_softmax, (bool, int)):
        raise TypeError(f"{op}: use_pre_softmax must be a bool; got {type_name(use_pre_softmax)}")
    check_groups(op, logits.shape[-1], topk, num_groups, group_topk)
    check_scale(op, scaling_factor)
    check_bias(op, expert_bias, logits, score_function)
    check_indices(op, topk_indices, logits, topk)


# ---- in torch -------------------------------------------------------------------------------------------------------


def score(x: Tensor, function: str) -> Tensor:
    if function == "softmax":
        return torch.softmax(x, -1)
    return torch.sigmoid(x) if function == "sigmoid" else torch.sqrt(F.softplus(x, threshold=20.0))


def best(x: Tensor, k: int) -> Tensor:
    """The k largest, the first of equal ones first."""
    return torch.sort(x, stable=True, dim=-1, descending=True).indices[..., :k]


def chosen(scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None) -> Tensor:
    """The experts of each token, out of the best groups: those whose best topk / group_topk scores add up to most."""
    if group_topk is not None and group_topk > 0 and num_groups is not None:
        groups = scores.unflatten(-1, (num_groups, -1))
        each = groups.gather(-1, best(groups, topk // group_topk)).sum(-1)
        kept = torch.zeros_like(each, dtype=torch.bool).scatter_(-1, best(each, group_topk), True)
        scores = groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    return best(scores, topk)


def mapped(indices: Tensor, experts: int, routing_map_format: Any) -> Tensor:
    """Which experts each token goes to: a bool for each, or a bit, the first in the lowest."""
    shape = (*indices.shape[:-1], experts)
    found = torch.zeros(shape, dtype=torch.bool, device=indices.device).scatter_(-1, indices, True)
    if int(routing_map_format) == 0:
        return found
    bits = F.pad(found, (0, -experts % 8)).unflatten(-1, (-1, 8)).to(torch.uint8)
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits << places).sum(-1, dtype=torch.uint8)


def unmapped(routing_map: Tensor, experts: int, routing_map_format: Any, dense: bool) -> Tensor:
    if dense:
        shape = (*routing_map.shape[:-1], experts)
        return torch.zeros(shape, dtype=torch.bool, device=routing_map.device).scatter_(-1, routing_map.long(), True)
    if int(routing_map_format) == 0:
        return routing_map != 0
    places = torch.arange(8, dtype=torch.uint8, device=routing_map.device)
    return ((routing_map[..., None] >> places) & 1).flatten(-2)[..., :experts] != 0


def routed(
    logits: Tensor, topk: int, pre: bool, num_groups: Any, group_topk: Any, factor: Any, function: str, bias: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, the experts in order, and what the backward needs."""
    x = logits.float()
    late = function == "softmax" and not pre
    scores = x if late else score(x, function)
    indices = chosen(scores if bias is None else scores + bias.float(), topk, num_groups, group_topk)
    picked = scores.gather(-1, indices)
    if late:
        picked = torch.softmax(picked, -1)
        kept = torch.full_like(x, -torch.inf).scatter_(-1, indices, picked)
    else:
        kept = x.clone() if function == "sqrtsoftplus" else scores
    if function != "softmax" and topk > 1:
        picked = picked / (picked.sum(-1, keepdim=True) + EPS)
    if factor is not None:
        picked = picked * factor
    return torch.zeros_like(x).scatter_(-1, indices, picked).to(logits.dtype), indices, kept.contiguous()


def slope(g: Tensor, kept: Tensor, score: Tensor, function: str) -> Tensor:
    """The gradient of logits, from that of their sigmoids or the roots of their softplus."""
    if function == "sigmoid":
        return g * score * (1 - score)
    return g * torch.where(kept > 20, 1.0, torch.sigmoid(kept)) / (2 * score + EPS)


def share_slope(g: Tensor, scores: Tensor) -> Tensor:
    """The gradient of scores, from that of scores / (their sum + eps)."""
    total = scores.sum(-1, keepdim=True) + EPS
    return g / total - (g * scores).sum(-1, keepdim=True) / total / total


# ---- samples --------------------------------------------------------------------------------------------------------

ROUTES = (
    Case((5, 16), options={"topk": 2}),
    Case((4, 13), options={"topk": 3, "pre": True, "factor": 2.5}),
    Case((2, 3, 24), options={"topk": 4, "score": "sigmoid", "bias": True, "groups": (4, 2), "format": 1}),
    Case((5, 20), options={"topk": 1, "score": "sigmoid", "factor": 0.5, "dense": torch.int64}),
    Case((6, 37), options={"topk": 5, "score": "sqrtsoftplus", "bias": True, "dense": torch.int32}),
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
    of = _fwd_args(d)
    _, routing_map, kept = fused_topk_with_score_function_fwd.reference(**of)
    grad = Draw(Case(d.case.shape, options={"of": d.case.id}), torch.float32, d.device).full().to(of["logits"].dtype)
    return {
        "routing_map": routing_map,
        "intermediate_output": kept,
        "grad_probs": grad,
        "grad_logits": torch.full_like(grad, torch.nan),
        **{k: of[k] for k in ("topk", "use_pre_softmax", "scaling_factor", "score_function")},
        "use_dense_indices": of["topk_indices"] is not None,
        "routing_map_format": of["routing_map_format"],
    }


def _aux_args(d: Draw) -> dict[str, Any]:
    of = _fwd_args(d)
    return {k: of[k] for k in ("logits", "topk", "score_function", "routing_map_format")}


def _aux_bwd_args(d: Draw) -> dict[str, Any]:
    of = _aux_args(d)
    _, _, kept = fused_score_for_moe_aux_loss_fwd.reference(**of)
    grad = Draw(Case(d.case.shape, options={"of": d.case.id}), torch.float32, d.device).full()
    out = torch.full_like(of["logits"], torch.nan)
    rest = {k: of[k] for k in ("topk", "score_function")}
    return {"intermediate_output": kept, "grad_scores": grad, "grad_logits": out, **rest}


FWD, BWD, AUX, AUX_BWD = (Maker(args, ROUTES) for args in (_fwd_args, _bwd_args, _aux_args, _aux_bwd_args))
Way = tuple[str, Callable[[Any], Any], type[Exception], str]


def _wrong(good: Maker, case: Case, *ways: Way) -> BadSamples:
    def bad(device: torch.device) -> Iterator[BadSample]:
        for number, (name, spoil, error, says) in enumerate(ways):
            args = good.named(case, torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), error, f"{name} {says}", id=f"{name} {number}")

    return bad


ROUTE_WAYS: tuple[Way, ...] = (
    ("logits", lambda t: t.double(), TypeError, "must be float32, float16 or bfloat16; got float64"),
    ("topk", lambda v: 99, ValueError, "must be at least 1 and at most"),
    ("score_function", lambda v: "tanh", ValueError, "must be one of 'softmax', 'sigmoid', 'sqrtsoftplus'; got 'tanh'"),
    ("routing_map_format", lambda v: 2, ValueError, "must be one of BYTEMAP, BITMAP_U8; got 2"),
)
GRAD_WAYS: tuple[Way, ...] = (
    ("intermediate_output", lambda t: t.half(), TypeError, "must be float32; got float16"),
    ("grad_logits", lambda t: t[:, 1:], ValueError, "must have shape"),
    ("topk", lambda v: 0, ValueError, "must be at least 1"),
)


# ---- top-k ----------------------------------------------------------------------------------------------------------


@op(
    space="tex",
    out="probs routing_map intermediate_output",
    mutates=("topk_indices",),
    samples=FWD,
    tol=MAPS,
    errors=_wrong(
        FWD,
        ROUTES[2],
        *ROUTE_WAYS,
        ("num_groups", lambda v: 5, ValueError, "must divide 24"),
        ("group_topk", lambda v: 5, ValueError, "must choose among 4 groups of 6 experts"),
        ("expert_bias", lambda t: t[1:], ValueError, r"must have shape \(24\)"),
        ("topk_indices", lambda v: torch.zeros(2, 3, 3).int(), ValueError, r"must have shape \(2, 3, 4\)"),
        ("scaling_factor", lambda v: "2", TypeError, "must be a number; got str"),
    ),
)
def fused_topk_with_score_function_fwd(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: Tensor | None,
    routing_map_format: Any = 0,
    topk_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(probabilities of the topk experts, 0 elsewhere; which they are; what the backward needs, in float32).

    The scores are softmax before or after the choice, sigmoid, or the root of softplus; of the last two those chosen
    are divided by their sum. expert_bias counts for the choice alone. topk_indices, where given, is written and
    takes the place of the map.
    """
    with torch.no_grad():
        given = (num_groups, group_topk, scaling_factor, score_function, expert_bias)
        name, pre = "fused_topk_with_score_function_fwd", use_pre_softmax
        check_forward(name, logits, topk, pre, *given, routing_map_format, topk_indices)
        probs, indices, kept = routed(logits, topk, bool(pre), *given)
        if topk_indices is not None:
            return probs, topk_indices.copy_(indices), kept
        return probs, mapped(indices, logits.shape[-1], routing_map_format), kept


def check_backward(
    op: str, routing_map: Any, kept: Any, grad_probs: Any, grad_logits: Any, topk: Any, use_pre_softmax: Any,
    scaling_factor: Any, score_function: Any, use_dense_indices: Any, routing_map_format: Any,
) -> None:  # fmt: skip
    check_tensor(op, "grad_probs", grad_probs, dtypes=LOGITS)
    if grad_probs.dim() < 1 or not grad_probs.shape[-1]:
        raise ValueError(f"{op}: grad_probs must be [.., experts]; got {tuple(grad_probs.shape)}")
    shape, experts = tuple(grad_probs.shape), grad_probs.shape[-1]
    check_int(op, "topk", topk, 1, experts)
    check_choice(op, "score_function", score_function, SCORES)
    check_choice(op, "routing_map_format", routing_map_format, RoutingMapFormat)
    check_scale(op, scaling_factor)
    for name, flag in (("use_pre_softmax", use_pre_softmax), ("use_dense_indices", use_dense_indices)):
        if not isinstance(flag, (bool, int)):
            raise TypeError(f"{op}: {name} must be a bool; got {type_name(flag)}")
    like: dict[str, Any] = dict(shape=shape, on=grad_probs, of="that of grad_probs")
    check_tensor(op, "intermediate_output", kept, dtypes=(torch.float32,), **like)
    check_tensor(op, "grad_logits", grad_logits, dtypes=LOGITS, **like)
    dtypes, last = (
        ((torch.bool, torch.uint8), experts) if int(routing_map_format) == 0 else ((torch.uint8,), -(-experts // 8))
    )
    dtypes, last = (INTS, topk) if use_dense_indices else (dtypes, last)
    check_tensor(op, "routing_map", routing_map, dtypes=dtypes, shape=(*shape[:-1], last), on=grad_probs)


@op(
    space="tex",
    out="",
    mutates=("grad_logits",),
    samples=BWD,
    errors=_wrong(
        BWD,
        ROUTES[1],
        *GRAD_WAYS,
        ("routing_map", lambda t: t.float(), TypeError, "must be bool or uint8; got float32"),
        ("routing_map", lambda t: t[1:], ValueError, "must have shape"),
        ("grad_probs", lambda t: t.double(), TypeError, "must be float32, float16 or bfloat16; got float64"),
        ("score_function", lambda v: None, ValueError, "must be one of"),
    ),
)
def fused_topk_with_score_function_bwd(
    routing_map: Tensor,
    intermediate_output: Tensor,
    grad_probs: Tensor,
    grad_logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    scaling_factor: float | None,
    score_function: str,
    use_dense_indices: bool = False,
    routing_map_format: Any = 0,
) -> None:
    """Writes the gradient of fused_topk_with_score_function_fwd's logits to grad_logits."""
    with torch.no_grad():
        flags = (topk, use_pre_softmax, scaling_factor, score_function, use_dense_indices, routing_map_format)
        name, kept = "fused_topk_with_score_function_bwd", intermediate_output
        check_backward(name, routing_map, kept, grad_probs, grad_logits, *flags)
        here = unmapped(routing_map, grad_probs.shape[-1], routing_map_format, bool(use_dense_indices))
        g = torch.where(here, grad_probs.float() * (1.0 if scaling_factor is None else scaling_factor), 0.0)
        if score_function == "softmax":
            p = kept if use_pre_softmax else torch.where(here, kept, 0.0)
            grad_logits.copy_(p * (g - (g * p).sum(-1, keepdim=True)))
            return
        scores = score(kept, score_function) if score_function == "sqrtsoftplus" else kept
        if topk > 1:
            g = torch.where(here, share_slope(g, torch.where(here, scores, 0.0)), 0.0)
        grad_logits.copy_(slope(g, kept, scores, score_function))


# ---- top-k with a histogram -----------------------------------------------------------------------------------------


def check_histogram(
    op: str, logits: Any, topk: Any, scaling_factor: Any, expert_bias: Any, routing_map_format: Any, topk_indices: Any,
    histogram: Any, bin_bounds: Any, histogram_mode: Any, bin_bounds_validated: Any,
) -> None:  # fmt: skip
    check_router(op, logits, topk, "sigmoid", routing_map_format)
    check_int(op, "topk", topk, 1, logits.shape[-1] - 1)
    check_scale(op, scaling_factor)
    check_bias(op, expert_bias, logits, "sigmoid", optional=False)
    check_indices(op, topk_indices, logits, topk)
    shape = (logits.shape[-1], None)
    check_tensor(op, "histogram", histogram, dtypes=(torch.int32,), shape=shape, on=logits, of="bins for each expert")
    if not histogram.is_contiguous() or not histogram.shape[1]:
        words = "contiguous, of one bin or more"
        raise ValueError(f"{op}: histogram must be {words}; got {tuple(histogram.shape)}, {histogram.stride()}")
    check_tensor(op, "bin_bounds", bin_bounds, dtypes=(torch.float32,), shape=(2,), on=logits)
    check_choice(op, "histogram_mode", histogram_mode, HistogramMode)
    if not bin_bounds_validated:  # asked for: it waits for the device
        low, high = bin_bounds.tolist()
        if not (-torch.inf < low < high < torch.inf):
            raise ValueError(f"{op}: bin_bounds must be finite, the lower first; got [{low}, {high}]")


HISTOGRAMS = (
    Case((2, 3, 16), options={"topk": 3, "factor": 2.0, "bins": 8}),
    Case((5, 21), options={"topk": 2, "bins": 5, "format": 1}),
    Case((4, 12), options={"topk": 4, "bins": 1, "dense": torch.int32}),
)


def _histogram_args(d: Draw) -> dict[str, Any]:
    of = _fwd_args(d)
    experts = d.case.shape[-1]
    return {
        **{k: of[k] for k in ("logits", "topk", "scaling_factor")},
        "expert_bias": Draw(Case((experts,)), torch.float32, d.device).full(0.1),
        **{k: of[k] for k in ("routing_map_format", "topk_indices")},
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
    errors=_wrong(
        QB,
        HISTOGRAMS[0],
        ROUTE_WAYS[0],
        ("topk", lambda v: 16, ValueError, "must be at least 1 and at most 15"),
        ("expert_bias", lambda t: None, TypeError, "must be a Tensor; got None"),
        ("histogram", lambda t: t.long(), TypeError, "must be int32; got int64"),
        ("bin_bounds", lambda t: t[:1], ValueError, r"must have shape \(2\)"),
        ("histogram_mode", lambda v: 5, ValueError, "must be one of TWO_KERNEL, FUSED_ATOMIC; got 5"),
    ),
)
def fused_topk_with_score_function_qb_fwd(
    logits: Tensor,
    topk: int,
    scaling_factor: float | None,
    expert_bias: Tensor,
    routing_map_format: Any,
    topk_indices: Tensor | None,
    histogram: Tensor,
    bin_bounds: Tensor,
    histogram_mode: Any,
    bin_bounds_validated: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Sigmoid top-k, the (topk + 1)-th biased score of each token as its cutoff, and each expert's distances to it
    counted into histogram [experts, bins], whose bins are even between bin_bounds and open at both ends."""
    with torch.no_grad():
        where = (routing_map_format, topk_indices)
        name, rest = (
            "fused_topk_with_score_function_qb_fwd",
            (histogram, bin_bounds, histogram_mode, bin_bounds_validated),
        )
        check_histogram(name, logits, topk, scaling_factor, expert_bias, *where, *rest)
        experts, bins = histogram.shape
        given = (False, None, None, scaling_factor, "sigmoid", expert_bias)
        probs, indices, scores = routed(logits, topk, *given)
        biased = (scores + expert_bias.float()).view(-1, experts)
        cutoff = biased.gather(-1, best(biased, topk + 1)[:, -1:])
        low, high = bin_bounds[0], bin_bounds[1]
        place = (cutoff - scores.view(-1, experts) - low) * (torch.full_like(low, bins) / (high - low))
        place = place.floor().clamp(0, bins - 1).long() + torch.arange(experts, device=logits.device) * bins
        place = place.flatten()
        histogram.view(-1).scatter_add_(0, place, torch.ones_like(place, dtype=torch.int32))
        if topk_indices is None:
            return probs, mapped(indices, experts, routing_map_format), scores, cutoff[:, 0].contiguous(), histogram
        return probs, topk_indices.copy_(indices), scores, cutoff[:, 0].contiguous(), histogram


# ---- the loss that balances experts ---------------------------------------------------------------------------------


@op(
    space="tex",
    out="scores routing_map intermediate_output",
    samples=AUX,
    tol=MAPS,
    errors=_wrong(AUX, ROUTES[0], *ROUTE_WAYS),
)
def fused_score_for_moe_aux_loss_fwd(
    logits: Tensor, topk: int, score_function: str, routing_map_format: Any = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """(scores of all experts in float32, those that are no softmax divided by their sum; the map of the topk; what the
    backward needs)."""
    with torch.no_grad():
        check_router("fused_score_for_moe_aux_loss_fwd", logits, topk, score_function, routing_map_format)
        x = logits.float()
        raw = score(x, score_function)
        scores = raw.clone() if score_function == "softmax" else raw / (raw.sum(-1, keepdim=True) + EPS)
        kept = x.clone() if score_function == "sqrtsoftplus" else raw
        routing_map = mapped(best(scores, topk), logits.shape[-1], routing_map_format)
        return scores.contiguous(), routing_map, kept.contiguous()


def check_aux_backward(op: str, kept: Any, grad_scores: Any, grad_logits: Any, topk: Any, score_function: Any) -> None:
    check_tensor(op, "intermediate_output", kept, dtypes=(torch.float32,))
    if kept.dim() < 1 or not kept.shape[-1]:
        raise ValueError(f"{op}: intermediate_output must be [.., experts]; got {tuple(kept.shape)}")
    like: dict[str, Any] = dict(shape=tuple(kept.shape), on=kept, of="that of intermediate_output")
    check_tensor(op, "grad_scores", grad_scores, dtypes=LOGITS, **like)
    check_tensor(op, "grad_logits", grad_logits, dtypes=LOGITS, **like)
    check_int(op, "topk", topk, 1, kept.shape[-1])
    check_choice(op, "score_function", score_function, SCORES)


@op(
    space="tex",
    out="",
    mutates=("grad_logits",),
    samples=AUX_BWD,
    errors=_wrong(AUX_BWD, ROUTES[1], *GRAD_WAYS, ("grad_scores", lambda t: t[1:], ValueError, "must have shape")),
)
def fused_score_for_moe_aux_loss_bwd(
    intermediate_output: Tensor, grad_scores: Tensor, grad_logits: Tensor, topk: int, score_function: str
) -> None:
    """Writes the gradient of fused_score_for_moe_aux_loss_fwd's logits to grad_logits."""
    with torch.no_grad():
        kept, name = intermediate_output, "fused_score_for_moe_aux_loss_bwd"
        check_aux_backward(name, kept, grad_scores, grad_logits, topk, score_function)
        g = grad_scores.float()
        if score_function == "softmax":
            grad_logits.copy_(kept * (g - (g * kept).sum(-1, keepdim=True)))
            return
        scores = score(kept, score_function) if score_function == "sqrtsoftplus" else kept
        grad_logits.copy_(slope(share_slope(g, scores), kept, scores, score_function))


def check_loss(
    op: str, probs: Any, tokens_per_expert: Any, num_experts: Any, num_rows: Any, num_cols: Any, topk: Any, coeff: Any
) -> None:
    check_int(op, "num_rows", num_rows, 0)
    check_int(op, "num_cols", num_cols, 0)
    check_tensor(op, "probs", probs, dtypes=LOGITS, shape=(num_rows, num_cols), of="num_rows x num_cols")
    check_tensor(
        op, "tokens_per_expert", tokens_per_expert, dtypes=COUNTS, shape=(num_cols,), on=probs, of="num_cols"
    )  # fmt: skip
    check_int(op, "num_experts", num_experts, 1)
    check_int(op, "topk", topk, 1)
    check_number(op, "coeff", coeff)


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
    of = _loss_args(d)
    return {
        "Const_buf": torch.tensor([0.25, 0.0], device=d.device),
        **{k: of[k] for k in ("tokens_per_expert", "num_rows", "num_cols")},
        "grad_aux_loss": torch.tensor(1.5, dtype=of["probs"].dtype, device=d.device),
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
LOSS_WAYS: tuple[Way, ...] = (
    ("probs", lambda t: t[1:], ValueError, r"must have shape \(5, 16\)"),
    (
        "tokens_per_expert",
        lambda t: t.double(),
        TypeError,
        "must be int32, int64, float32 or bfloat16; got float64",
    ),
    ("num_rows", lambda v: "5", TypeError, "must be an int; got str"),
    ("topk", lambda v: 0, ValueError, "must be at least 1; got 0"),
    ("coeff", lambda v: None, TypeError, "must be a number; got None"),
)


@op(
    space="tex",
    out="aux_loss Const_buf",
    samples=LOSS,
    errors=_wrong(
        LOSS, LOSSES[0], *LOSS_WAYS, ("total_num_tokens", lambda v: 0, ValueError, "must be at least 1; got 0")
    ),
)
def fused_moe_aux_loss_fwd(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int,
    num_experts: int,
    num_rows: int,
    num_cols: int,
    topk: int,
    coeff: float,
) -> tuple[Tensor, Tensor]:
    """(C * the sum of probs * tokens_per_expert, in probs' dtype; [C, 0] in float32), with
    C = num_experts * coeff / topk / total_num_tokens^2."""
    with torch.no_grad():
        name = "fused_moe_aux_loss_fwd"
        check_loss(name, probs, tokens_per_expert, num_experts, num_rows, num_cols, topk, coeff)
        check_int(name, "total_num_tokens", total_num_tokens, 1)
        factor = num_experts * coeff / topk / total_num_tokens / total_num_tokens
        return _balance(probs, tokens_per_expert, torch.full((), factor, dtype=torch.float32, device=probs.device))


@op(
    space="tex",
    out="aux_loss Const_buf",
    samples=LOSS_SAFE,
    errors=_wrong(
        LOSS_SAFE, LOSSES[0], *LOSS_WAYS, ("total_num_tokens", lambda t: t.int(), TypeError, "must be int64; got int32")
    ),
)
def fused_moe_aux_loss_fwd_graph_safe(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: Tensor,
    num_experts: int,
    num_rows: int,
    num_cols: int,
    topk: int,
    coeff: float,
) -> tuple[Tensor, Tensor]:
    """fused_moe_aux_loss_fwd with the number of tokens on the device, where a graph may change it."""
    with torch.no_grad():
        name = "fused_moe_aux_loss_fwd_graph_safe"
        check_loss(name, probs, tokens_per_expert, num_experts, num_rows, num_cols, topk, coeff)
        check_total(name, total_num_tokens, probs)
        total = total_num_tokens.reshape(()).float()
        return _balance(probs, tokens_per_expert, torch.full_like(total, num_experts * coeff / topk) / total / total)


def check_total(op: str, total: Any, probs: Tensor) -> None:
    check_tensor(op, "total_num_tokens", total, dtypes=(torch.int64,), on=probs)
    if total.numel() != 1:
        raise ValueError(f"{op}: total_num_tokens must be one number; got {tuple(total.shape)}")


def check_loss_backward(op: str, const: Any, tokens_per_expert: Any, num_rows: Any, num_cols: Any, grad: Any) -> None:
    check_int(op, "num_rows", num_rows, 0)
    check_int(op, "num_cols", num_cols, 0)
    check_tensor(op, "Const_buf", const, dtypes=(torch.float32,))
    if not const.numel():
        raise ValueError(f"{op}: Const_buf must have one number or more; got {tuple(const.shape)}")
    check_tensor(op, "tokens_per_expert", tokens_per_expert, dtypes=COUNTS, shape=(num_cols,), on=const, of="num_cols")
    check_tensor(op, "grad_aux_loss", grad, dtypes=LOGITS, on=const)
    if grad.numel() != 1:
        raise ValueError(f"{op}: grad_aux_loss must be one number; got {tuple(grad.shape)}")


@op(
    space="tex",
    out="grad_probs",
    samples=LOSS_BWD,
    errors=_wrong(
        LOSS_BWD,
        LOSSES[0],
        ("Const_buf", lambda t: t.double(), TypeError, "must be float32; got float64"),
        ("tokens_per_expert", lambda t: t[1:], ValueError, r"must have shape \(16\)"),
        ("num_cols", lambda v: None, TypeError, "must be an int; got None"),
        ("grad_aux_loss", lambda t: t.int(), TypeError, "must be float32, float16 or bfloat16; got int32"),
    ),
)
def fused_moe_aux_loss_bwd(
    Const_buf: Tensor, tokens_per_expert: Tensor, num_rows: int, num_cols: int, grad_aux_loss: Tensor
) -> Tensor:
    """The gradient of probs, [num_rows, num_cols] in grad_aux_loss' dtype: C * tokens_per_expert * grad_aux_loss."""
    with torch.no_grad():
        given = (Const_buf, tokens_per_expert, num_rows, num_cols, grad_aux_loss)
        check_loss_backward("fused_moe_aux_loss_bwd", *given)
        row = Const_buf.reshape(-1)[0] * tokens_per_expert.float() * grad_aux_loss.reshape(()).float()
        return row.to(grad_aux_loss.dtype).expand(num_rows, num_cols).clone(memory_format=torch.contiguous_format)
