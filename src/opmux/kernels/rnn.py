"""The fused cell of an LSTM, forward and backward: one pass over gates and states."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.contract import Float, same_dtype
from ..core.errors import NotSupported
from ..core.rules import nonempty
from ..specs import rnn as spec
from .lib.config import Tiles, tunable
from .lib.harness import Launch, Plan, Step, planned, strided
from .lib.launch import Launcher
from .lib.maths import libdevice
from .lib.rows import OutputSpec, wide_of


@triton.jit
def gate(input_ptr, hidden_ptr, input_bias_ptr, hidden_bias_ptr, at, col, inside, WIDE: tl.constexpr):
    v = tl.load(input_ptr + at, mask=inside, other=0.0).to(WIDE)
    v += tl.load(hidden_ptr + at, mask=inside, other=0.0).to(WIDE)
    if input_bias_ptr is not None:
        v += tl.load(input_bias_ptr + col, mask=inside, other=0.0).to(WIDE)
        v += tl.load(hidden_bias_ptr + col, mask=inside, other=0.0).to(WIDE)
    return v


@triton.jit
def sigmoid(v):
    return 1 / (1 + libdevice.exp(-v))


def _cell(
    input_gates_ptr,
    hidden_gates_ptr,
    cx_ptr,
    input_bias_ptr,
    hidden_bias_ptr,
    hy_ptr,
    cy_ptr,
    workspace_ptr,
    n,
    h,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = o < n
    col = o % h
    at = o // h * (4 * h) + col
    i = sigmoid(gate(input_gates_ptr, hidden_gates_ptr, input_bias_ptr, hidden_bias_ptr, at, col, inside, WIDE))
    f = sigmoid(gate(input_gates_ptr, hidden_gates_ptr, input_bias_ptr, hidden_bias_ptr, at + h, col + h, inside, WIDE))
    g = libdevice.tanh(
        gate(input_gates_ptr, hidden_gates_ptr, input_bias_ptr, hidden_bias_ptr, at + 2 * h, col + 2 * h, inside, WIDE)
    )
    z = sigmoid(
        gate(input_gates_ptr, hidden_gates_ptr, input_bias_ptr, hidden_bias_ptr, at + 3 * h, col + 3 * h, inside, WIDE)
    )
    c = f * tl.load(cx_ptr + o, mask=inside, other=0.0).to(WIDE) + i * g
    tl.store(cy_ptr + o, c, mask=inside)
    tl.store(hy_ptr + o, z * libdevice.tanh(c), mask=inside)
    tl.store(workspace_ptr + at, i, mask=inside)
    tl.store(workspace_ptr + at + h, f, mask=inside)
    tl.store(workspace_ptr + at + 2 * h, g, mask=inside)
    tl.store(workspace_ptr + at + 3 * h, z, mask=inside)


def _cell_bwd(
    grad_hy_ptr,
    grad_cy_ptr,
    cx_ptr,
    cy_ptr,
    workspace_ptr,
    dgates_ptr,
    dcx_ptr,
    n,
    h,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = o < n
    at = o // h * (4 * h) + o % h
    i = tl.load(workspace_ptr + at, mask=inside, other=0.0).to(WIDE)
    f = tl.load(workspace_ptr + at + h, mask=inside, other=0.0).to(WIDE)
    g = tl.load(workspace_ptr + at + 2 * h, mask=inside, other=0.0).to(WIDE)
    z = tl.load(workspace_ptr + at + 3 * h, mask=inside, other=0.0).to(WIDE)
    dh = tl.full([BLOCK], 0, WIDE)
    dc = tl.full([BLOCK], 0, WIDE)
    if grad_hy_ptr is not None:
        dh = tl.load(grad_hy_ptr + o, mask=inside, other=0.0).to(WIDE)
    if grad_cy_ptr is not None:
        dc = tl.load(grad_cy_ptr + o, mask=inside, other=0.0).to(WIDE)
    t = libdevice.tanh(tl.load(cy_ptr + o, mask=inside, other=0.0).to(WIDE))
    dc += dh * z * (1 - t * t)
    cx = tl.load(cx_ptr + o, mask=inside, other=0.0).to(WIDE)
    tl.store(dgates_ptr + at, dc * g * i * (1 - i), mask=inside)
    tl.store(dgates_ptr + at + h, dc * cx * f * (1 - f), mask=inside)
    tl.store(dgates_ptr + at + 2 * h, dc * i * (1 - g * g), mask=inside)
    tl.store(dgates_ptr + at + 3 * h, dh * t * z * (1 - z), mask=inside)
    tl.store(dcx_ptr + o, dc * f, mask=inside)


cell = Launcher(_cell, sizes="n h")
cell_bwd = Launcher(_cell_bwd, sizes="n h")


@tunable("lstm_cell")
def cell_tiles(dtype: torch.dtype) -> Tiles:
    return Tiles(128, BLOCK=512)


State = Float[Tensor, "n h", nonempty()]
OtherState = Float[Tensor, "n h", same_dtype("cx")]
Gates = Float[Tensor, "n 4*h", same_dtype("cx")]
Bias = Float[Tensor, "4*h", same_dtype("cx")]


@planned(spec.ops["_thnn_fused_lstm_cell"])
def lstm_cell(
    input_gates: Gates, hidden_gates: Gates, cx: State, input_bias: Bias | None, hidden_bias: Bias | None
) -> Plan:
    gates = dict(input_gates=input_gates, hidden_gates=hidden_gates, input_bias=input_bias, hidden_bias=hidden_bias)
    n, h = cx.shape
    if (input_bias is None) != (hidden_bias is None):
        raise NotSupported("one bias without the other")
    tiles = cell_tiles(dtype=cx.dtype)
    grid = (-(-cx.numel() // tiles["BLOCK"]),)
    launch = Launch(cell, grid, tiles.config(WIDE=wide_of(cx.dtype)), {"n": n * h, "h": h})
    state = OutputSpec.of(cx.shape, cx.dtype)
    makes = {"hy": state, "cy": state, "workspace": OutputSpec.of((n, 4 * h), cx.dtype)}
    return Plan(makes, [launch], strided(cx=cx, **gates))


@planned(spec.ops["_thnn_fused_lstm_cell_backward_impl"])
def lstm_cell_backward(
    grad_hy: OtherState | None,
    grad_cy: OtherState | None,
    cx: State,
    cy: OtherState,
    workspace: Gates,
    has_bias: bool,
) -> Plan:
    n, h = cx.shape
    states = dict(grad_hy=grad_hy, grad_cy=grad_cy, cy=cy)
    if grad_hy is None and grad_cy is None:
        raise NotSupported("no gradient is given")
    tiles = cell_tiles(dtype=cx.dtype)
    grid = (-(-cx.numel() // tiles["BLOCK"]),)
    steps: list[Step] = [Launch(cell_bwd, grid, tiles.config(WIDE=wide_of(cx.dtype)), {"n": n * h, "h": h})]
    makes = {"dgates": OutputSpec.of((n, 4 * h), cx.dtype), "dcx": OutputSpec.of(cx.shape, cx.dtype)}
    returns = ["dgates", "dcx", "dbias" if has_bias else "None"]
    if has_bias:
        makes["dbias"] = OutputSpec.of((4 * h,), cx.dtype)

        def add(dgates: Tensor, dbias: Tensor) -> None:
            torch.sum(dgates, 0, out=dbias)

        steps.append(add)
    return Plan(makes, steps, strided(cx=cx, workspace=workspace, **states), returns=returns)
