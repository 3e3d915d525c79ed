"""Padding by reflection and by replication: forward and backward gather.

A function per dimension maps indices of the result to indices of the input. The gradient of an input element is the sum
over the results that copy it, in a fixed order, without atomics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..specs import padding as spec
from .lib.harness import Plan, planned
from .lib.launch import Launcher
from .lib.meta import output_specs
from .lib.planes import Planes, check_floats, lanes, per_axis, per_element, plane, unravel
from .lib.rows import OutputSpec, wide_of


@triton.jit
def source(at, before, n_in, REFLECT: tl.constexpr):
    """The input index that a result index copies."""
    at -= before
    if REFLECT:
        return n_in - 1 - tl.abs(n_in - 1 - tl.abs(at))
    else:
        return tl.minimum(tl.maximum(at, 0), n_in - 1)


@triton.jit
def copies(at, before, n_in, n_out, REFLECT: tl.constexpr):
    """The maximum number of results that copy one index of this block."""
    if REFLECT:  # the index itself, and its reflections before and after the input
        return 3
    else:
        first = tl.where(at == 0, 0, at + before)
        last = tl.where(at == n_in - 1, n_out - 1, at + before)
        return tl.max(last - first, 0) + 1


@triton.jit
def copy(at, k, before, n_in, n_out, REFLECT: tl.constexpr):
    """The index in the result of the k-th copy of an input index, and whether this copy exists."""
    if REFLECT:
        there = tl.where(k == 0, at + before, tl.where(k == 1, before - at, 2 * (n_in - 1) - at + before))
        real = (k == 0) | ((k == 1) & (at >= 1)) | ((k == 2) & (at <= n_in - 2))
        return there, real & (there >= 0) & (there < n_out)
    else:
        first = tl.where(at == 0, 0, at + before)
        last = tl.where(at == n_in - 1, n_out - 1, at + before)
        there = first + k
        return there, (there >= 0) & (there <= last) & (there < n_out)


def _pad(x_ptr, y_ptr, n, n_c, n_z, n_y, n_x, i_z, i_y, i_x, x_sn, x_sc, x_sz, x_sy, x_sx, p_z, p_y, p_x,
         REFLECT: tl.constexpr, RANK: tl.constexpr, LAST: tl.constexpr, TIGHT: tl.constexpr, INDEX: tl.constexpr,
         FULL: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    b, c, z, y, x = unravel(o, n_c, n_z, n_y, n_x, RANK, LAST)
    at = plane(b, c, x_sn, x_sc, TIGHT) + source(x, p_x, i_x, REFLECT) * x_sx
    if RANK > 1:
        at += source(y, p_y, i_y, REFLECT) * x_sy
    if RANK > 2:
        at += source(z, p_z, i_z, REFLECT) * x_sz
    tl.store(y_ptr + o, tl.load(x_ptr + at, mask=inside), mask=inside)


def _pad_bwd(dy_ptr, dx_ptr, n, n_c, n_z, n_y, n_x, o_z, o_y, o_x, dy_sn, dy_sc, dy_sz, dy_sy, dy_sx, p_z, p_y, p_x,
             REFLECT: tl.constexpr, RANK: tl.constexpr, LAST: tl.constexpr, TIGHT: tl.constexpr,
             INDEX: tl.constexpr, FULL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    b, c, z, y, x = unravel(o, n_c, n_z, n_y, n_x, RANK, LAST)
    base = plane(b, c, dy_sn, dy_sc, TIGHT)
    acc = tl.full([BLOCK], 0, WIDE)
    for k_z in range(copies(z, p_z, n_z, o_z, REFLECT) if RANK > 2 else 1):
        q_z, in_z = copy(z, k_z, p_z, n_z, o_z, REFLECT)
        for k_y in range(copies(y, p_y, n_y, o_y, REFLECT) if RANK > 1 else 1):
            q_y, in_y = copy(y, k_y, p_y, n_y, o_y, REFLECT)
            for k_x in range(copies(x, p_x, n_x, o_x, REFLECT)):
                q_x, in_x = copy(x, k_x, p_x, n_x, o_x, REFLECT)
                m = inside & in_z & in_y & in_x
                acc += tl.load(dy_ptr + base + q_z * dy_sz + q_y * dy_sy + q_x * dy_sx, mask=m, other=0.0).to(WIDE)
    tl.store(dx_ptr + o, acc, mask=inside)


pad = Launcher(_pad, sizes="n n_c x_sn x_sz x_sy x_sx")
pad_bwd = Launcher(_pad_bwd, sizes="n n_c dy_sn dy_sz dy_sy dy_sx")


def _before(padding: Sequence[int], rank: int) -> dict[str, int]:
    """The padding before each dimension; ATen lists the last dimension first."""
    return per_axis("p_", (*[0] * (3 - rank), *(padding[2 * i] for i in range(rank - 1, -1, -1))))


def _check_format(x: Planes) -> None:
    if x.last and not x.contiguous:
        raise NotSupported("channels-last: some of torch's kernels keep the format, others do not")


def _forward(name: str, rank: int) -> Callable[..., Plan]:
    torchs = getattr(torch.ops.aten, name)

    def plan(self: Tensor, padding: list[int]) -> Plan:
        check_floats(self)
        (output,) = output_specs(torchs, self, padding)
        x, out = Planes.of(self, rank), Planes.of(output, rank)
        _check_format(x)
        if not out.count:
            return Plan({"y": output})
        numbers, reflect = per_axis("i_", x.space) | _before(padding, rank), "reflection" in name
        launch = per_element(pad, rank, self.dtype, out, {"x": x}, numbers, {"x": "self"}, REFLECT=reflect)
        return Plan({"y": output}, [launch])

    return plan


def _backward(name: str, rank: int) -> Callable[..., Plan]:
    torchs = getattr(torch.ops.aten, name)

    def plan(grad_output: Tensor, self: Tensor, padding: list[int]) -> Plan:
        check_floats(grad_output, self)
        output_specs(torchs, grad_output, self, padding)
        x, dy = Planes.of(self, rank), Planes.of(grad_output, rank)
        _check_format(x)
        output = OutputSpec.of(self.shape, self.dtype)
        if not x.count:
            return Plan({"dx": output})
        numbers, reflect = per_axis("o_", dy.space) | _before(padding, rank), "reflection" in name
        launch = per_element(
            pad_bwd,
            rank,
            self.dtype,
            Planes.of(output, rank),
            {"dy": dy},
            numbers,
            {"dy": "grad_output"},
            REFLECT=reflect,
            WIDE=wide_of(self.dtype),
        )
        return Plan({"dx": output}, [launch])

    return plan


for _how in ("reflection", "replication"):
    for _rank in (1, 2, 3):
        _name = f"{_how}_pad{_rank}d"
        planned(spec.ops[_name])(_forward(_name, _rank))
        planned(spec.ops[f"{_name}_backward"])(_backward(f"{_name}_backward", _rank))
