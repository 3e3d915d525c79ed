"""Distances between two distributions, one loss for each row: Kullback-Leibler, Jensen-Shannon, total variation.

`opmux.functional` has losses that reduce these rows to a number. The ops compute in float32 (float64 for float64
input).
"""

from typing import Annotated, Any

import torch
from torch import Tensor

from ..core.contract import Float, Grad, Index, at_least, between, contiguous
from ..core.spec import op
from ._numeric import rounded, wide
from .samples import Case, Draw, Maker

Beta = Annotated[float, between(0, 1)]
Temperature = Annotated[float, between(0, open=True)]

# Options: those of the op, and labels: True ignores the second row, "ignored" ignores all rows.
SHAPES = (
    Case((5, 64)),
    Case((1, 1)),
    Case((37,)),
    Case((2, 3, 17)),
    Case((0, 37)),
    Case((5, 0)),
    Case((3, 9000)),
    Case((37, 64), "t"),
    Case((2, 3, 64), "swapped"),
    Case((5, 64), "step"),
    Case((5, 37), "sliced"),
    Case((5, 64), "expanded"),
    Case((5, 37), options={"target": "other"}),
)
LABELLED = (
    Case((5, 64), options={"labels": True}),
    Case((2, 3, 17), options={"labels": True, "ids": torch.int32}),
    Case((4, 8), options={"labels": "ignored"}),
    Case((5, 64), options={"labels": True, "ignore_index": 3}),
)
KL_CASES = (
    *SHAPES,
    Case((5, 64), options={"log_target": True}),
    Case((3, 9000), options={"log_target": True}),
    Case((5, 37), options={"eps": 0.5}),
    Case((5, 37), options={"zeros": True}),
)
JSD_CASES = (
    *SHAPES,
    *LABELLED,
    Case((5, 64), options={"beta": 0.0, "labels": True}),
    Case((5, 64), options={"beta": 1.0, "labels": True}),
    Case((3, 9000), options={"beta": 0.1}),
)


def _labels(d: Draw) -> Tensor | None:
    kind = d.option("labels")
    if not kind:
        return None
    rows = torch.Size(d.case.shape[:-1])
    labels = torch.arange(rows.numel()).view(rows) % 7
    ignore_index = d.option("ignore_index", -100)
    if kind == "ignored":
        labels.fill_(ignore_index)
    else:
        labels.view(-1)[1] = ignore_index
    return labels.to(d.device, d.option("ids", torch.int64))


def _target(d: Draw) -> Tensor:
    target = d.full()
    return target.float() if d.option("target") == "other" and d.dtype is not torch.float64 else target


def counted(labels: Tensor | None, ignore_index: int, rows: Tensor) -> Tensor:
    """Return `rows`, [*rows] or [*rows, n], with 0 in rows whose label is ignored."""
    if labels is None:
        return rows
    ignored = labels == ignore_index
    return rows.masked_fill(ignored if rows.dim() == labels.dim() else ignored[..., None], 0.0)


# ---- Kullback-Leibler -----------------------------------------------------------------------------------------------


def kl_elements(x: Tensor, y: Tensor, log_target: bool, eps: float) -> Tensor:
    """The term of each element in KL(target || exp(input)); 0 where the target probability is 0."""
    p = y.exp() if log_target else y
    log = y if log_target else y.clamp(min=eps).log()
    return p * (log - x).masked_fill(p == 0, 0.0)


def _kl_args(d: Draw) -> dict[str, Any]:
    log_target = d.option("log_target", False)
    x, y = d.full(), _target(d)
    if not log_target:
        y = y.square()
    if d.option("zeros"):
        y[..., ::2] = 0
    return {"input": x, "target": y, "log_target": log_target, "eps": d.option("eps", 1e-10)}


@op(out="loss", grad="token_kl_div_bwd", samples=Maker(_kl_args, KL_CASES))
def token_kl_div(
    input: Float[Tensor, "*rows n"],
    target: Float[Tensor, "*rows n"],
    log_target: bool = False,
    eps: Annotated[float, at_least(0)] = 1e-10,
) -> Tensor:
    """The Kullback-Leibler divergence of each row: loss = sum(p * (log(max(p, eps)) - input)), p = target.

    Args:
        input: logarithms of probabilities.
        target: probabilities; their logarithms if log_target is set.
        log_target: whether target has logarithms: loss = sum(exp(target) * (target - input)).
        eps: the lower limit of p in log(p); unused with log_target.

    Returns:
        loss, float32 [*rows] (float64 for float64 input). It is differentiable in input, not in target. The term of an
        element with probability 0 is 0.
    """
    x = wide(input)
    return rounded(kl_elements(x, target.to(x.dtype), log_target, eps).sum(-1), x.dtype)


def _with_dloss(d: Draw, args: dict[str, Any]) -> dict[str, Any]:
    rows = d.full().narrow(-1, 0, min(1, d.case.shape[-1])).sum(-1)
    dloss = torch.full((), 0.5, device=d.device).expand(rows.shape) if d.case.layout == "expanded" else wide(rows)
    return {"dloss": dloss, **args}


@op(out="dinput", samples=Maker(lambda d: _with_dloss(d, _kl_args(d)), KL_CASES))
def token_kl_div_bwd(
    dloss: Grad[Tensor, "*rows"],
    input: Float[Tensor, "*rows n"],
    target: Float[Tensor, "*rows n"],
    log_target: bool = False,
    eps: Annotated[float, at_least(0)] = 1e-10,
) -> Tensor:
    """The gradient of token_kl_div: dinput = -dloss * p.

    Args:
        dloss: the gradient of loss.
        input: the input of the forward; only its dtype is used.
        target: as in the forward.
        log_target: as in the forward.
        eps: unused.

    Returns:
        dinput, like input.
    """
    y = target.to(wide(input).dtype)
    p = y.exp() if log_target else y
    return rounded(-p * dloss.to(p.dtype)[..., None], input.dtype)


# ---- Jensen-Shannon -------------------------------------------------------------------------------------------------


def jsd_elements(x: Tensor, y: Tensor, beta: float) -> Tensor:
    """The term of each element in the divergence of q = exp(x) and p = exp(y)."""
    q, p = x.exp(), y.exp()
    if beta == 0:
        return p * (y - x).masked_fill(p == 0, 0.0)
    if beta == 1:
        return q * (x - y).masked_fill(q == 0, 0.0)
    m = beta * p + (1 - beta) * q
    log_m = m.masked_fill(m == 0, 1.0).log()
    of_p = p * (y - log_m).masked_fill(p == 0, 0.0)
    return beta * of_p + (1 - beta) * q * (x - log_m).masked_fill(q == 0, 0.0)


def _jsd_slope(x: Tensor, y: Tensor, beta: float) -> Tensor:
    """The derivative of the divergence with respect to x."""
    q, p = x.exp(), y.exp()
    if beta == 0:
        return -p
    if beta == 1:
        return q * (x - y + 1).masked_fill(q == 0, 0.0)
    return (1 - beta) * q * (x - (beta * p + (1 - beta) * q).log()).masked_fill(q == 0, 0.0)


def _jsd_args(d: Draw) -> dict[str, Any]:
    tensors = {"input": d.full(), "target": _target(d), "labels": _labels(d)}
    return {**tensors, "beta": d.option("beta", 0.5), "ignore_index": d.option("ignore_index", -100)}


@op(out="loss", grad="token_jsd_bwd", samples=Maker(_jsd_args, JSD_CASES))
def token_jsd(
    input: Float[Tensor, "*rows n"],
    target: Float[Tensor, "*rows n"],
    labels: Index[Tensor, "*rows"] | None = None,
    beta: Beta = 0.5,
    ignore_index: int = -100,
) -> Tensor:
    """The generalized Jensen-Shannon divergence of each row, of q = exp(input) and p = exp(target).

    loss = beta * KL(p || m) + (1 - beta) * KL(q || m), m = beta * p + (1 - beta) * q;
    loss = KL(p || q) for beta = 0, KL(q || p) for beta = 1.

    Args:
        input: logarithms of the student's probabilities.
        target: logarithms of the teacher's probabilities.
        labels: the class of each row; rows with ignore_index have loss 0 and gradient 0.
        beta: the weight of the teacher in m.
        ignore_index: the label of rows to ignore.

    Returns:
        loss, float32 [*rows] (float64 for float64 input). It is differentiable in input, not in target. The term of an
        element with probability 0 is 0.
    """
    x = wide(input)
    return rounded(counted(labels, ignore_index, jsd_elements(x, target.to(x.dtype), beta).sum(-1)), x.dtype)


@op(out="dinput", samples=Maker(lambda d: _with_dloss(d, _jsd_args(d)), JSD_CASES))
def token_jsd_bwd(
    dloss: Grad[Tensor, "*rows"],
    input: Float[Tensor, "*rows n"],
    target: Float[Tensor, "*rows n"],
    labels: Index[Tensor, "*rows"] | None = None,
    beta: Beta = 0.5,
    ignore_index: int = -100,
) -> Tensor:
    """The gradient of token_jsd: dinput = dloss * (1 - beta) * q * (input - log(m)), with q and m of the forward.

    dinput = -dloss * p for beta = 0, dloss * q * (input - target + 1) for beta = 1.

    Args:
        dloss: the gradient of loss.
        input: the input of the forward.
        target: as in the forward.
        labels: as in the forward.
        beta: as in the forward.
        ignore_index: as in the forward.

    Returns:
        dinput, like input.
    """
    x = wide(input)
    dx = _jsd_slope(x, target.to(x.dtype), beta) * dloss.to(x.dtype)[..., None]
    return rounded(counted(labels, ignore_index, dx), input.dtype)


# ---- total variation ------------------------------------------------------------------------------------------------

TVD_CASES = (*SHAPES, *LABELLED)


def _tvd_args(d: Draw) -> dict[str, Any]:
    tensors = {"input": d.full(), "target": _target(d), "labels": _labels(d)}
    return {**tensors, "ignore_index": d.option("ignore_index", -100)}


@op(out="loss", grad="token_tvd_bwd", samples=Maker(_tvd_args, TVD_CASES))
def token_tvd(
    input: Float[Tensor, "*rows n"],
    target: Float[Tensor, "*rows n"],
    labels: Index[Tensor, "*rows"] | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """The total variation distance of each row: loss = sum(|input - target|) / 2.

    Args:
        input: probabilities.
        target: probabilities.
        labels: the class of each row; rows with ignore_index have loss 0 and gradient 0.
        ignore_index: the label of rows to ignore.

    Returns:
        loss, float32 [*rows] (float64 for float64 input). It is differentiable in input, not in target.
    """
    x = wide(input)
    return rounded(counted(labels, ignore_index, (x - target.to(x.dtype)).abs().sum(-1) / 2), x.dtype)


@op(out="dinput", samples=Maker(lambda d: _with_dloss(d, _tvd_args(d)), TVD_CASES))
def token_tvd_bwd(
    dloss: Grad[Tensor, "*rows"],
    input: Float[Tensor, "*rows n"],
    target: Float[Tensor, "*rows n"],
    labels: Index[Tensor, "*rows"] | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """The gradient of token_tvd: dinput = dloss * sign(input - target) / 2.

    Args:
        dloss: the gradient of loss.
        input: the input of the forward.
        target: as in the forward.
        labels: as in the forward.
        ignore_index: as in the forward.

    Returns:
        dinput, like input; 0 where input equals target.
    """
    x = wide(input)
    dx = (x - target.to(x.dtype)).sign() / 2 * dloss.to(x.dtype)[..., None]
    return rounded(counted(labels, ignore_index, dx), input.dtype)


# ---- Jensen-Shannon of logits ---------------------------------------------------------------------------------------

LOGITS_CASES = (
    *(case for case in JSD_CASES if case.shape[-1]),
    Case((5, 64), options={"temperature": 2.0, "labels": True}),
)


def _logits_args(d: Draw) -> dict[str, Any]:
    args = _jsd_args(d)
    tensors = {"student": args.pop("input"), "teacher": args.pop("target"), "labels": args.pop("labels")}
    return {
        **tensors,
        "beta": args["beta"],
        "temperature": d.option("temperature", 1.0),
        "ignore_index": args["ignore_index"],
    }


@op(out="loss student_lse teacher_lse slope", samples=Maker(_logits_args, LOGITS_CASES))
def token_logits_jsd(
    student: Float[Tensor, "*rows n"],
    teacher: Float[Tensor, "*rows n"],
    labels: Index[Tensor, "*rows"] | None = None,
    beta: Beta = 0.5,
    temperature: Temperature = 1.0,
    ignore_index: int = -100,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """token_jsd of log_softmax(student / temperature) and log_softmax(teacher / temperature).

    Args:
        student: the student's logits.
        teacher: the teacher's logits.
        labels: the class of each row; rows with ignore_index have loss 0 and gradient 0.
        beta: as in token_jsd.
        temperature: divides the logits.
        ignore_index: the label of rows to ignore.

    Returns:
        loss, student_lse, teacher_lse and slope, float32 [*rows] (float64 for a float64 student): the divergence,
        log(sum(exp(logits / temperature))) of student and teacher, and the row's sum of the gradient of token_jsd.
    """
    x = wide(student)
    x, y = x / temperature, teacher.to(x.dtype) / temperature
    x_lse, y_lse = torch.logsumexp(x, -1), torch.logsumexp(y, -1)
    x, y = x - x_lse[..., None], y - y_lse[..., None]
    rows = counted(labels, ignore_index, jsd_elements(x, y, beta).sum(-1)), x_lse, y_lse, _jsd_slope(x, y, beta).sum(-1)
    loss, student_lse, teacher_lse, slope = (rounded(row, x.dtype) for row in rows)
    return loss, student_lse, teacher_lse, slope


def _logits_bwd_args(d: Draw) -> dict[str, Any]:
    args = _logits_args(d)
    loss, student_lse, teacher_lse, slope = token_logits_jsd.reference(**args)
    tensors = {"student": args.pop("student").contiguous(), "teacher": args.pop("teacher"), "dloss": loss.cos()}
    return {**tensors, "student_lse": student_lse, "teacher_lse": teacher_lse, "slope": slope, **args}


@op(out="", mutates=("student",), samples=Maker(_logits_bwd_args, LOGITS_CASES))
def token_logits_jsd_bwd_(
    student: Float[Tensor, "*rows n", contiguous()],
    teacher: Float[Tensor, "*rows n"],
    dloss: Grad[Tensor, "*rows"],
    student_lse: Float[Tensor, "*rows"],
    teacher_lse: Float[Tensor, "*rows"],
    slope: Float[Tensor, "*rows"],
    labels: Index[Tensor, "*rows"] | None = None,
    beta: Beta = 0.5,
    temperature: Temperature = 1.0,
    ignore_index: int = -100,
) -> None:
    """Overwrite the student's logits with their gradient in token_logits_jsd.

    dstudent = dloss * (g - q * slope) / temperature, where g is the gradient of token_jsd.

    Args:
        student: as in the forward; on return its gradient.
        teacher: as in the forward.
        dloss: the gradient of loss.
        student_lse: the second result of the forward.
        teacher_lse: the third result of the forward.
        slope: the fourth result of the forward.
        labels: as in the forward.
        beta: as in the forward.
        temperature: as in the forward.
        ignore_index: as in the forward.
    """
    x = wide(student)
    y = teacher.to(x.dtype) / temperature - teacher_lse.to(x.dtype)[..., None]
    x = x / temperature - student_lse.to(x.dtype)[..., None]
    dx = _jsd_slope(x, y, beta) - x.exp() * slope.to(x.dtype)[..., None]
    dx = dx * (dloss.to(x.dtype)[..., None] / temperature)
    student.copy_(counted(labels, ignore_index, dx))
