"""Cross entropy of tokens, one loss for each row: with class weights, label smoothing, a z-loss and capped logits.

`opmux.functional` has losses that reduce these rows to a number. The ops compute in float32 (float64 for float64
logits).
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, Index, at_least, between, contiguous, single
from ..core.errors import BadArgument
from ..core.spec import BadSamples, op
from ._numeric import rounded, wide
from .samples import Case, Change, Draw, Maker, bad_samples

Smoothing = Annotated[float, between(0, 1)]
Cap = Annotated[float, between(0, open=True)] | None

# Options: those of the op; weight: "same" (the logits' dtype) or "other" (another); ids: the target's dtype.
CASES = (
    Case((5, 64)),
    Case((1, 1)),
    Case((37,)),
    Case((2, 3, 17)),
    Case((0, 37)),
    Case((37, 1000), options={"ids": torch.int32}),
    Case((3, 9000)),
    Case((5, 64), options={"weight": "same"}),
    Case((5, 64), options={"weight": "other", "label_smoothing": 0.1}),
    Case((5, 37), options={"label_smoothing": 0.3}),
    Case((3, 9000), options={"label_smoothing": 0.1, "z_loss": 1e-3}),
    Case((5, 17), options={"softcap": 5.0}),
    Case((5, 70), options={"softcap": 2.0, "z_loss": 0.5, "weight": "same", "label_smoothing": 0.25}),
    Case((5, 64), options={"ignore_index": 3}),
    Case((4, 8), options={"ignored": True}),
    Case((37, 64), "t"),
    Case((2, 3, 64), "swapped"),
    Case((5, 64), "step"),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded"),
)


def _args(d: Draw) -> dict[str, Any]:
    logits = d.full(3.0)
    n = d.case.shape[-1]
    generator = torch.Generator().manual_seed(logits.numel())
    target = torch.randint(n, d.case.shape[:-1], generator=generator)
    ignore_index = d.option("ignore_index", -100)
    if d.option("ignored"):
        target.fill_(ignore_index)
    elif target.numel() > 2:
        target.view(-1)[1] = ignore_index
    options = {name: d.option(name, 0.0) for name in ("label_smoothing", "z_loss")}
    return {
        "logits": logits,
        "target": target.to(d.device, d.option("ids", torch.int64)),
        "weight": d.cols().abs() + 0.1 if d.option("weight") else None,
        "ignore_index": ignore_index,
        **options,
        "softcap": d.option("softcap"),
    }


def has_classes(op: str, logits: Tensor) -> None:
    """Raise if the logits have no columns: an empty row has no log-sum-exp and no largest logit."""
    if not logits.shape[-1]:
        raise BadArgument.of(op, "logits", "have at least 1 column", str(tuple(logits.shape)), ValueError)


def no_classes(maker: Maker) -> BadSamples:
    """Bad samples, whose logits have no columns."""
    match = r"logits must have at least 1 column; got \(5, 0\)"
    return bad_samples(maker, Change("logits", lambda x: x[:, :0].contiguous(), match), case=Case((5, 64)))


def capped(x: Tensor, softcap: float | None) -> Tensor:
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def _classes(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each row: its class (0 if ignored or out of range), whether it is not ignored, whether it is in range."""
    counts = target != ignore_index
    valid = (target >= 0) & (target < logits.shape[-1])
    return torch.where(counts & valid, target, 0).long(), counts, valid


TOKENS = Maker(_args, CASES)


@op(
    out="loss lse predicted",
    grad="token_cross_entropy_bwd",
    samples=TOKENS,
    errors=no_classes(TOKENS),
    where=has_classes,
)
def token_cross_entropy(
    logits: Float[Tensor, "*rows n"],
    target: Index[Tensor, "*rows"],
    weight: Float[Tensor, "n"] | None = None,
    ignore_index: int = -100,
    label_smoothing: Smoothing = 0.0,
    z_loss: Annotated[float, at_least(0)] = 0.0,
    softcap: Cap = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The cross entropy of each row of logits x with its class t.

    loss = (1 - s) * w[t] * (lse - x[t]) + s / n * sum(w * (lse - x)) + z_loss * lse^2,
    lse = log(sum(exp(x))), s = label_smoothing; x is softcap * tanh(logits / softcap) if softcap is given.

    Args:
        logits: the scores of n classes for each row.
        target: the class of each row.
        weight: the weight w of each class; 1 if it is None.
        ignore_index: rows with this class have loss 0 and gradient 0.
        label_smoothing: the share of the target probability that is spread over all classes.
        z_loss: the weight of lse^2, which keeps lse near 0.
        softcap: the limit of the logits, as in Gemma 2.

    Returns:
        loss and lse, float32 [*rows] (float64 for float64), and predicted, int64 [*rows]: the class of the largest
        logit. Only loss is differentiable, in logits. A class outside 0 to n - 1 that is not ignore_index gives NaN.
    """
    x = capped(wide(logits), softcap)
    index, counts, valid = _classes(logits, target, ignore_index)
    lse = torch.logsumexp(x, -1)
    w = x.new_ones(x.shape[-1]) if weight is None else weight.to(x.dtype)
    class_weight = w.take(index)
    loss = (1 - label_smoothing) * class_weight * (lse - x.gather(-1, index[..., None])[..., 0])
    if z_loss:  # with z_loss 0, 0 * inf would be NaN
        loss = loss + z_loss * lse * lse
    if label_smoothing:
        loss = loss + label_smoothing / x.shape[-1] * (w * (lse[..., None] - x)).sum(-1)
    loss = torch.where(valid, loss, torch.nan).masked_fill(~counts, 0.0)
    return rounded(loss, x.dtype), rounded(lse, x.dtype), x.argmax(-1)


def _bwd_args(d: Draw) -> dict[str, Any]:
    args = _args(d)
    loss, lse, _ = token_cross_entropy.reference(**args)
    dloss = torch.full((), 0.5, device=d.device).expand(loss.shape) if d.case.layout == "expanded" else loss.cos()
    return {"dloss": dloss, "logits": args.pop("logits"), "target": args.pop("target"), "lse": lse, **args}


TOKENS_BWD = Maker(_bwd_args, CASES)


@op(out="dlogits", samples=TOKENS_BWD, errors=no_classes(TOKENS_BWD), where=has_classes)
def token_cross_entropy_bwd(
    dloss: Grad[Tensor, "*rows"],
    logits: Float[Tensor, "*rows n"],
    target: Index[Tensor, "*rows"],
    lse: Float[Tensor, "*rows"],
    weight: Float[Tensor, "n"] | None = None,
    ignore_index: int = -100,
    label_smoothing: Smoothing = 0.0,
    z_loss: Annotated[float, at_least(0)] = 0.0,
    softcap: Cap = None,
) -> Tensor:
    """The gradient of token_cross_entropy.

    p = exp(x - lse): dx = dloss * ((1 - s) * w[t] * (p - [t]) + s / n * (sum(w) * p - w) + 2 * z_loss * lse * p),
    where [t] is 1 in column t and 0 in all other columns.

    Args:
        dloss: the gradient of loss.
        logits: the input of the forward.
        target: as in the forward.
        lse: the second result of the forward.
        weight: as in the forward.
        ignore_index: as in the forward.
        label_smoothing: as in the forward.
        z_loss: as in the forward.
        softcap: as in the forward.

    Returns:
        dlogits, like logits: dx, times the derivative of the softcap if it is given.
    """
    x = capped(wide(logits), softcap)
    index, counts, valid = _classes(logits, target, ignore_index)
    p = torch.exp(x - lse.to(x.dtype)[..., None])
    w = x.new_ones(x.shape[-1]) if weight is None else weight.to(x.dtype)
    class_weight = (1 - label_smoothing) * w.take(index)[..., None]
    dx = class_weight * p
    if z_loss:
        dx = dx + 2 * z_loss * lse.to(x.dtype)[..., None] * p
    if label_smoothing:
        dx = dx + label_smoothing / x.shape[-1] * (w.sum() * p - w)
    dx = dx.scatter_add(-1, index[..., None], -class_weight.expand(*index.shape, 1))
    if softcap is not None:
        dx = dx * (1 - (x / softcap) ** 2)
    dx = dx * dloss.to(x.dtype)[..., None]
    dx = torch.where(valid[..., None], dx, torch.nan).masked_fill(~counts[..., None], 0.0)
    return rounded(dx, logits.dtype)


def _bwd_in_place_args(d: Draw) -> dict[str, Any]:
    args = _bwd_args(d)
    return {"logits": args["logits"].contiguous(), **{n: v for n, v in args.items() if n != "logits"}}


TOKENS_IN_PLACE = Maker(_bwd_in_place_args, CASES)


@op(out="", mutates=("logits",), samples=TOKENS_IN_PLACE, errors=no_classes(TOKENS_IN_PLACE), where=has_classes)
def token_cross_entropy_bwd_(
    logits: Float[Tensor, "*rows n", contiguous()],
    dloss: Grad[Tensor, "*rows"],
    target: Index[Tensor, "*rows"],
    lse: Float[Tensor, "*rows"],
    weight: Float[Tensor, "n"] | None = None,
    ignore_index: int = -100,
    label_smoothing: Smoothing = 0.0,
    z_loss: Annotated[float, at_least(0)] = 0.0,
    softcap: Cap = None,
) -> None:
    """token_cross_entropy_bwd in place: overwrite the logits with their gradient.

    Args:
        logits: the input of the forward; on return its gradient.
        dloss: the gradient of loss.
        target: as in the forward.
        lse: the second result of the forward.
        weight: as in the forward.
        ignore_index: as in the forward.
        label_smoothing: as in the forward.
        z_loss: as in the forward.
        softcap: as in the forward.
    """
    logits.copy_(
        token_cross_entropy_bwd.reference(
            dloss, logits, target, lse, weight, ignore_index, label_smoothing, z_loss, softcap
        )
    )


# ---- with the entropy of the row ------------------------------------------------------------------------------------

Temperature = Annotated[float, between(0, open=True)]
ENTROPY_CASES = (
    *(case for case in CASES if not {"weight", "label_smoothing", "z_loss", "softcap"} & set(case.options)),
    Case((5, 64), options={"temperature": 0.7}),
    Case((3, 9000), options={"temperature": 2.0, "ids": torch.int32}),
)


def _entropy_args(d: Draw) -> dict[str, Any]:
    args = _args(d)
    shared = {name: args[name] for name in ("logits", "target", "ignore_index")}
    return {**shared, "temperature": d.option("temperature", 1.0)}


ENTROPY = Maker(_entropy_args, ENTROPY_CASES)


@op(out="nll entropy lse", samples=ENTROPY, errors=no_classes(ENTROPY), where=has_classes)
def token_nll_entropy(
    logits: Float[Tensor, "*rows n"],
    target: Index[Tensor, "*rows"],
    ignore_index: int = -100,
    temperature: Temperature = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The negative log-probability of each row's class t, and the entropy of the row, for x = logits / temperature.

    nll = lse - x[t], entropy = lse - sum(p * x), p = exp(x - lse), lse = log(sum(exp(x))).

    Args:
        logits: the scores of n classes for each row.
        target: the class of each row.
        ignore_index: rows with this class have nll 0, entropy 0 and gradient 0.
        temperature: divides the logits.

    Returns:
        nll, entropy and lse, float32 [*rows] (float64 for float64). A class outside 0 to n - 1 that is not ignore_index
        gives NaN for nll and entropy.
    """
    x = wide(logits) / temperature
    index, counts, valid = _classes(logits, target, ignore_index)
    lse = torch.logsumexp(x, -1)
    log_p = x - lse[..., None]
    p = log_p.exp()
    entropy = -(p * log_p.masked_fill(p == 0, 0.0)).sum(-1)
    nll = -log_p.gather(-1, index[..., None])[..., 0]
    results = (torch.where(valid, row, torch.nan).masked_fill(~counts, 0.0) for row in (nll, entropy))
    nll, entropy = (rounded(row, x.dtype) for row in results)
    return nll, entropy, rounded(lse, x.dtype)


def _entropy_bwd_args(d: Draw) -> dict[str, Any]:
    args = _entropy_args(d)
    nll, entropy, lse = token_nll_entropy.reference(**args)
    tensors = {"logits": args.pop("logits").contiguous(), "target": args.pop("target")}
    return {**tensors, "dnll": nll.cos(), "dentropy": nll.sin() + 0.5, "entropy": entropy, "lse": lse, **args}


ENTROPY_BWD = Maker(_entropy_bwd_args, ENTROPY_CASES)


@op(out="", mutates=("logits",), samples=ENTROPY_BWD, errors=no_classes(ENTROPY_BWD), where=has_classes)
def token_nll_entropy_bwd_(
    logits: Float[Tensor, "*rows n", contiguous()],
    target: Index[Tensor, "*rows"],
    dnll: Grad[Tensor, "*rows"],
    dentropy: Grad[Tensor, "*rows"],
    entropy: Float[Tensor, "*rows"],
    lse: Float[Tensor, "*rows"],
    ignore_index: int = -100,
    temperature: Temperature = 1.0,
) -> None:
    """Overwrite the logits with their gradient in token_nll_entropy.

    dlogits = (dnll * (p - [t]) - dentropy * p * (log(p) + entropy)) / temperature, where [t] is 1 in column t, else 0.

    Args:
        logits: the input of the forward; on return its gradient.
        target: as in the forward.
        dnll: the gradient of nll.
        dentropy: the gradient of entropy.
        entropy: the second result of the forward.
        lse: the third result of the forward.
        ignore_index: as in the forward.
        temperature: as in the forward.
    """
    x = wide(logits) / temperature
    index, counts, valid = _classes(logits, target, ignore_index)
    dnll, dentropy, entropy, lse = (row.to(x.dtype)[..., None] for row in (dnll, dentropy, entropy, lse))
    log_p = x - lse
    p = log_p.exp()
    dx = dnll * p - dentropy * p * (log_p.masked_fill(p == 0, 0.0) + entropy)
    dx = dx.scatter_add(-1, index[..., None], -dnll.expand(*index.shape, 1)) / temperature
    logits.copy_(torch.where(valid[..., None], dx, torch.nan).masked_fill(~counts[..., None], 0.0))


# ---- classes sharded over processes ---------------------------------------------------------------------------------


def _shard_args(d: Draw) -> dict[str, Any]:
    args = _args(d)
    lse = torch.logsumexp(wide(args["logits"]), -1) + 0.5  # as if other shards had more columns
    first = d.option("first", 0)
    dloss = torch.full((), 0.5, device=d.device).expand(lse.shape) if d.case.layout == "expanded" else lse.cos()
    tensors = {"dloss": dloss, "logits": args["logits"], "target": args["target"], "lse": lse, "first": first}
    return {
        **tensors,
        "ignore_index": args["ignore_index"],
        "own": d.option("own", 1.0),
        "spread": d.option("spread", 0.0),
    }


SHARDS = Maker(
    _shard_args,
    (
        *(case for case in ENTROPY_CASES if "temperature" not in case.options),
        Case((5, 64), options={"first": 30}),
        Case((5, 64), options={"first": 64, "own": 0.9, "spread": 0.01}),
        Case((3, 9000), options={"first": 100, "own": 0.9, "spread": 0.01}),
    ),
)


@op(out="dlogits", samples=SHARDS)
def token_shard_cross_entropy_bwd(
    dloss: Grad[Tensor, "*rows"],
    logits: Float[Tensor, "*rows n"],
    target: Index[Tensor, "*rows"],
    lse: Float[Tensor, "*rows"],
    first: Annotated[int, at_least(0)] = 0,
    ignore_index: int = -100,
    own: float = 1.0,
    spread: float = 0.0,
) -> Tensor:
    """The gradient of the n logits from class `first` on, in a cross entropy whose classes are sharded.

    dlogits = dloss * (exp(logits - lse) - own * [target] - spread), where [target] is 1 in the target's column, else 0.

    Args:
        dloss: the gradient of the loss of each row.
        logits: the scores of the classes from first to first + n - 1.
        target: the class of each row; it may be outside this shard.
        lse: log(sum(exp(logits))) over the classes of all shards.
        first: the class of the first column.
        ignore_index: rows with this class have gradient 0.
        own: subtracted in the target's column; 1 without label smoothing.
        spread: subtracted in every column, for label smoothing.

    Returns:
        dlogits, like logits.
    """
    x = wide(logits)
    index = target.long() - first
    local = (index >= 0) & (index < x.shape[-1])
    dx = torch.exp(x - lse.to(x.dtype)[..., None]) - spread
    if x.shape[-1]:
        term = torch.where(local, -own, 0.0).to(x.dtype)
        dx = dx.scatter_add(-1, torch.where(local, index, 0)[..., None], term[..., None])
    dx = dx * dloss.to(x.dtype)[..., None]
    return rounded(dx.masked_fill((target == ignore_index)[..., None], 0.0), logits.dtype)


# ---- a factor on the device -----------------------------------------------------------------------------------------

SCALED = (Case((37,)), Case((5, 64)), Case((2, 3, 17), options={"factor": 1.0}), Case((0,)), Case((1000, 37)))


def _scale_args(d: Draw) -> dict[str, Any]:
    return {"x": d.full(), "factor": torch.tensor(d.option("factor", -0.3), device=d.device)}


@op(out="", mutates=("x",), samples=Maker(_scale_args, SCALED))
def scale_(x: Float[Tensor, "...", contiguous()], factor: Float[Tensor, "...", single()]) -> None:
    """Multiply x in place by a factor on the device: x = x * factor. Kernels do not touch x if the factor is 1.

    Args:
        x: the tensor to multiply.
        factor: one element, on x's device.
    """
    x.copy_(wide(x) * factor.reshape(()).to(wide(x).dtype))
