"""Attention with every option. Uses the kernels of `attention`; options that a call does not use are compiled out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..core.errors import NotSupported
from ..specs import attention_general as spec
from ..specs.attention import stats_dtype
from .lib.attention import AttentionProblem, Layout, Options, backward_plan, bwd_q_tiles, forward_plan, like, sink_tiles
from .lib.attention_kernels import backward_bias, backward_sink
from .lib.harness import Launch, Plan, Zeros, planned, strided
from .lib.philox import seed_on_host
from .lib.products import precision
from .lib.rows import OutputSpec, wide_of


def _bias_layout(bias: Tensor) -> tuple[tuple[int, int, int], bool]:
    """The strides of the bias (0 for a broadcast dimension), and whether the bias must be made contiguous first."""
    at = Layout.of(bias)
    b, h, row = (0 if n == 1 else s for n, s in zip(bias.shape, at.strides))
    return (b, h, row), at.copied


def _problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    cu_q: Tensor | None,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    at_end: bool,
    softcap: float,
    dropout_p: float,
    scale: float | None,
    precision: str,
) -> tuple[AttentionProblem, list[str]]:
    """The sizes of a call, and the names of tensors that must be made contiguous: the bias or none."""
    if dropout_p == 1:
        raise NotSupported("dropout_p=1")
    strides, copied = (None, False) if bias is None else _bias_layout(bias)
    options = Options(at_end, softcap, dropout_p, strides, slopes is not None)
    packed = None if cu_q is None else spec.longest(q, k, cu_q, max_q, max_k)
    return AttentionProblem.of(q, k, v, left, right, scale, precision, packed, options), ["bias"] if copied else []


def _finished(plan: Plan, q: Tensor, seed: Tensor | None, copied: list[str]) -> Plan:
    """Add the seed to a plan: as a pointer, or as two numbers that are read from the host at each call."""
    copied = [*plan.strided, *copied]
    if seed is None or not seed_on_host(q, seed):
        return Plan(plan.makes, plan.steps, [*copied, *strided(seed=seed)], plan.before)
    read = lambda step: step.with_numbers(key=lambda seed: seed[0], counter=lambda seed: seed[1]).named(seed=None)
    steps = [read(s) if isinstance(s, Launch) and "key" in s.kernel.numbers else s for s in plan.steps]
    return Plan(plan.makes, steps, copied, {**plan.before, "seed": Tensor.tolist})


def _outputs(padded: bool, **makes: OutputSpec) -> dict[str, Any]:
    """Output specs. With padding, the outputs are zeroed first, because the kernels do not write padding."""
    return {name: Zeros(output) if padded else output for name, output in makes.items()}


@planned(spec.attention_general, state={"precision": precision})
def attention_general(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    sink: Tensor | None,
    seed: Tensor | None,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    q_sizes: Tensor | None,
    k_sizes: Tensor | None,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    at_end: bool,
    softcap: float,
    dropout_p: float,
    scale: float | None,
    seq_first: bool,
    precision: str,
) -> Plan:
    p, copied = _problem(
        q, k, v, bias, slopes, cu_q, max_q, max_k, left, right, at_end, softcap, dropout_p, scale, precision
    )
    heads, rows = q.shape[1:3]
    padded = cu_q is not None or q_sizes is not None
    makes = _outputs(padded, o=like(q, p.dim_v, seq_first), lse=OutputSpec.of(q.shape[:3], stats_dtype(q)))
    plan = forward_plan(p, q, k, v, makes, (heads * rows, rows))
    small = strided(slopes=slopes, sink=sink, cu_q=cu_q, cu_k=cu_k, q_sizes=q_sizes, k_sizes=k_sizes)
    return _finished(plan, q, seed if p.options.dropout_p else None, [*copied, *small])


@planned(spec.attention_general_bwd, state={"precision": precision})
def attention_general_bwd(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    sink: Tensor | None,
    seed: Tensor | None,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    q_sizes: Tensor | None,
    k_sizes: Tensor | None,
    max_q: int,
    max_k: int,
    left: int,
    right: int,
    at_end: bool,
    softcap: float,
    dropout_p: float,
    scale: float | None,
    bias_grad: bool,
    seq_first: bool,
    precision: str,
) -> Plan:
    p, copied = _problem(
        q, k, v, bias, slopes, cu_q, max_q, max_k, left, right, at_end, softcap, dropout_p, scale, precision
    )
    heads, rows = q.shape[1:3]
    padded = cu_q is not None or q_sizes is not None
    gradient = lambda t: like(t, seq_first=seq_first)
    makes = _outputs(padded, dq=gradient(q), dk=gradient(k), dv=gradient(v))
    none = OutputSpec.of((0,), q.dtype)
    makes["dbias"] = none if bias is None or not bias_grad else OutputSpec.of(bias.shape, bias.dtype)
    makes["dsink"] = none if sink is None else OutputSpec.of(sink.shape, sink.dtype)
    stats = OutputSpec.of(q.shape[:3], stats_dtype(q))
    plan = backward_plan(
        p, do, q, k, v, o, makes, Zeros(stats) if padded else stats, (heads * rows, rows), strided(lse=lse)
    )
    makes, steps = dict(plan.makes), list(plan.steps)
    if bias is not None and bias_grad:
        if p.empty or not p.keys:
            makes["dbias"] = Zeros(makes["dbias"])
        else:
            steps.append(_bias_launch(p, bias, steps[0].numbers, (heads * rows, rows)))
    if sink is not None:
        if p.empty:
            makes["dsink"] = Zeros(makes["dsink"])
        else:
            numbers = {"batches": q.shape[0], "queries": rows, "lse_batch": heads * rows, "lse_head": rows}
            sums = sink_tiles(dtype=q.dtype).config(WIDE=wide_of(q.dtype))
            steps.append(Launch(backward_sink, (heads,), sums, numbers))
    small = strided(slopes=slopes, sink=sink, cu_q=cu_q, cu_k=cu_k, q_sizes=q_sizes, k_sizes=k_sizes)
    plan = Plan(makes, steps, plan.strided, plan.before)
    return _finished(plan, q, seed if p.options.dropout_p else None, [*copied, *small])


def _bias_launch(p: AttentionProblem, bias: Tensor, numbers: Mapping[str, Any], lse: tuple[int, int]) -> Launch:
    """A program for each tile of the bias; if the bias has one row, a tile covers all queries."""
    tiles = bwd_q_tiles(**p.facts())
    batches, heads, rows, keys = bias.shape
    down, right = (1 if rows == 1 else -(-rows // tiles["BLOCK_M"])), -(-keys // tiles["BLOCK_N"])
    launch = p.launch(backward_bias, tiles, (down * right, batches * heads), {}, lse, p.heads)
    sizes = {"batches": p.batch, "own_batches": batches, "own_heads": heads, "own_rows": rows}
    return launch.with_numbers(**{n: v for n, v in numbers.items() if n not in launch.numbers}, **sizes)
