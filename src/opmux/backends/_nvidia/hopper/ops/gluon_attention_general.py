"""`attention_general` without options by our kernels for Hopper, in Gluon.

Dense and packed sequences are one op and one kernel here, so the same sequence gives the same bits in either layout.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .....kernels.lib.attention import AttentionProblem, like
from .....kernels.lib.harness import Plan, host_code, strided
from .....kernels.lib.plans import checks
from .....kernels.lib.rows import OutputSpec
from .....specs import attention as attention_spec
from .....specs import attention_general as spec
from ... import ops  # noqa: F401 - as a whole, before its modules: another thread may be importing it
from ...ops.flash import no_options
from .gluon_attention import backward_in, fits_window, forward_in, gluon, supports

check, check_bwd = checks(spec.attention_general), checks(spec.attention_general_bwd)


def general_when(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> bool | str:
    check(q, k, v, *options)
    return no_options(*options) or fits_window(*options[10:12]) or supports(q, k, v, options[15])


def general_bwd_when(do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *options: Any) -> bool | str:
    check_bwd(do, q, k, v, o, lse, *options)
    return no_options(*options) or fits_window(*options[10:12]) or supports(q, k, v, options[15], do)


def _problem(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, right: int, scale: float | None
) -> tuple[AttentionProblem, OutputSpec]:
    """The problem, with all tokens of packed sequences as queries and keys, and the output spec of the statistics."""
    sizes = None if cu_q is None else (cu_q.shape[0] - 1, q.shape[2], k.shape[2])
    p = AttentionProblem.of(q, k, v, -1, right, scale, "ieee", sizes)
    return p, OutputSpec.of(q.shape[:3], attention_spec.stats_dtype(q))


@gluon("attention_general", general_when)
@host_code(spec.attention_general)
def attention_general_in_gluon(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    right: int,
    scale: float | None,
    seq_first: bool,
) -> Plan:
    p, stats = _problem(q, k, v, cu_q, right, scale)
    makes = {"o": like(q, seq_first=seq_first), "lse": stats}
    return forward_in(p, q, k, v, makes, cu_q is not None, strided(cu_q=cu_q, cu_k=cu_k))


@gluon("attention_general_bwd", general_bwd_when)
@host_code(spec.attention_general_bwd)
def attention_general_bwd_in_gluon(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    right: int,
    scale: float | None,
    seq_first: bool,
) -> Plan:
    p, stats = _problem(q, k, v, cu_q, right, scale)
    grads = {f"d{n}": like(t, seq_first=seq_first) for n, t in (("q", q), ("k", k), ("v", v))}
    none = OutputSpec.of((0,), q.dtype)  # no bias, no sink
    makes = {**grads, "dbias": none, "dsink": none, "delta": stats}
    return backward_in(p, do, q, k, v, o, makes, cu_q is not None, strided(lse=lse, cu_q=cu_q, cu_k=cu_k))
