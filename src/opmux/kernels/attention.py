"""Attention on dense batches and on packed sequences."""

from __future__ import annotations

from torch import Tensor

from ..specs import attention as spec
from .lib.attention import AttentionProblem, backward_plan, forward_plan, like
from .lib.harness import Plan, Zeros, planned, strided
from .lib.products import precision
from .lib.rows import OutputSpec


@planned(spec.attention, state={"precision": precision})
def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, precision: str) -> Plan:
    p = AttentionProblem.of(q, k, v, -1, 0 if causal else -1, scale, precision)
    makes = {"o": like(q, p.dim_v), "lse": OutputSpec.of(q.shape[:3], spec.stats_dtype(q))}
    return forward_plan(p, q, k, v, makes, (p.heads * p.queries, p.queries))


@planned(spec.attention_bwd, state={"precision": precision})
def attention_bwd(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float | None,
    precision: str,
) -> Plan:
    p = AttentionProblem.of(q, k, v, -1, 0 if causal else -1, scale, precision)
    makes = {"dq": like(q), "dk": like(k), "dv": like(v)}
    stats = OutputSpec.of(q.shape[:3], spec.stats_dtype(q))
    return backward_plan(p, do, q, k, v, o, makes, stats, (p.heads * p.queries, p.queries), strided(lse=lse))


@planned(spec.attention_varlen, state={"precision": precision})
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    scale: float | None,
    precision: str,
) -> Plan:
    p = AttentionProblem.of(q, k, v, left, right, scale, precision, (cu_q.shape[0] - 1, max_q, max_k))
    tokens, heads = q.shape[:2]
    makes = {"o": Zeros(like(q, p.dim_v)), "lse": Zeros(OutputSpec.of((heads, tokens), spec.stats_dtype(q)))}
    plan = forward_plan(p, q, k, v, makes, (0, tokens))
    return Plan(plan.makes, plan.steps, [*plan.strided, *strided(cu_q=cu_q, cu_k=cu_k)])


@planned(spec.attention_varlen_bwd, state={"precision": precision})
def attention_varlen_bwd(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    scale: float | None,
    precision: str,
) -> Plan:
    p = AttentionProblem.of(q, k, v, left, right, scale, precision, (cu_q.shape[0] - 1, max_q, max_k))
    makes = {"dq": Zeros(like(q)), "dk": Zeros(like(k)), "dv": Zeros(like(v))}
    stats = OutputSpec.of((q.shape[1], q.shape[0]), spec.stats_dtype(q))
    return backward_plan(p, do, q, k, v, o, makes, stats, (0, q.shape[0]), strided(lse=lse, cu_q=cu_q, cu_k=cu_k))
