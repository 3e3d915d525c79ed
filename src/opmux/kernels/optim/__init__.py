"""tex's optimizer kernels: one launch for all tensors of the lists; two for a capturable step, three for a norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.errors import NotSupported
from ...core.registry import impl
from ...specs import optim as spec
from ..lib.config import Tiles
from ..lib.fp8 import cast_of
from ..lib.launch import Launcher
from ..lib.list_kernels import (
    TYPES,
    ListPlan,
    lanes,
    launched,
    norm_tiles,
    planned,
    scale_lists,
    squares,
    squares_of_each,
)
from ..lib.lists import Seen, chunks_of, seen, table_of
from ..lib.plans import keep
from ..lib.rows import DEVICES, OutputSpec
from . import device

norms = Launcher(device.norms, sizes="")
adam = Launcher(device.adam, sizes="")
hold = Launcher(device.hold, sizes="")
sgd = Launcher(device.sgd, sizes="")
scales = Launcher(device.scales, sizes="")
e8m0 = Launcher(device.e8m0, sizes="")


_checked: dict[Any, None] = keep({})


def _look(value: Any) -> Any:
    """What a check depends on: a float's type, an int's value up to 2, a tensor's dtype, shape and device."""
    kind = type(value)
    if kind is float:
        return kind
    if kind is int:
        return kind, min(value, 2)
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.device
    return kind if kind.__hash__ is None else value


def check(op: str, *given: Any) -> None:
    """Raise BadArgument if an argument is invalid. `given`: all arguments except tensor_lists, in order.

    Numbers change at every step. So arguments with the same `_look` as earlier ones are not checked again: the lookup
    takes a third of the time of a check.
    """
    key = (op, *map(_look, given))
    if key in _checked:
        return
    fn = getattr(spec, op)
    fn.check(**dict(zip((n for n in fn.spec.names if n != "tensor_lists"), given, strict=True)))
    if len(_checked) >= 1024:
        _checked.clear()
    _checked[key] = None


# ---- scale and norm -------------------------------------------------------------------------------------------------


def _scale(op: str, flag: Tensor, lists: Any, held: Tensor | None, number: float) -> None:
    for what in seen(op, lists, flag):
        launched(scale_lists, what, (flag, held, number), {"LANES": lanes(what.dtypes)}, "I O")


@impl(spec.multi_tensor_scale, devices=DEVICES)
def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Any, scale: float) -> None:
    check("multi_tensor_scale", chunk_size, noop_flag, scale)
    _scale("multi_tensor_scale", noop_flag, tensor_lists, None, float(scale))


@impl(spec.multi_tensor_scale_tensor, devices=DEVICES)
def multi_tensor_scale_tensor(chunk_size: int, is_infinite: Tensor, tensor_lists: Any, scale: Tensor) -> None:
    check("multi_tensor_scale_tensor", chunk_size, is_infinite, scale)
    _scale("multi_tensor_scale_tensor", is_infinite, tensor_lists, scale, 1.0)


ONE, NONE = OutputSpec.of((1,), torch.float32), OutputSpec.of((0,), torch.float32)


def _norm(
    op: str, flag: Tensor, lists: Any, inv_scale: Tensor | None, per_tensor: bool | None
) -> tuple[Tensor, Tensor]:
    found = seen(op, lists, flag)
    if not found:
        return ONE.empty(flag).zero_(), NONE.empty(flag)
    if len(found) > 1:
        raise NotSupported("a norm over tensors of several dtypes")
    what, n = found[0], len(found[0].sizes)
    plan = planned(squares, what, (inv_scale is None,), lambda: _norm_plan(what))
    if not plan.launches:
        return ONE.empty(flag).zero_(), OutputSpec.of((n,), torch.float32).empty(
            flag
        ).zero_() if per_tensor else NONE.empty(flag)
    cut = chunks_of(what, plan.block)
    table, norm = table_of(what, cut), ONE.empty(flag)
    shares, sums = (OutputSpec.of((k,), torch.float32).empty(flag) for k in (cut.count, n))
    first, second, third = plan.launches
    first(table, cut.rows, inv_scale, shares)
    second(table, shares, sums)
    if per_tensor:
        each = OutputSpec.of((n,), torch.float32).empty(flag)
        third(sums, flag, norm, each)
        return norm, each
    third(sums, flag, norm, sums)  # norms per tensor are not requested: their values overwrite the sums of squares
    return norm, NONE.empty(flag)


def _norm_plan(what: Seen) -> ListPlan:
    tiles, n = norm_tiles(width=what.dtypes[0].itemsize), len(what.sizes)
    count = sum(-(-k // tiles["BLOCK"]) for k in what.sizes)
    if not count:
        return ListPlan(tiles["BLOCK"], ())
    constants = {"I": TYPES[what.dtypes[0]], "LANES": lanes(what.dtypes)}
    launches = (
        squares.ready((count, 1, 1), (), tiles.config(**constants)),
        squares_of_each.ready((n, 1, 1), (), Tiles(512, BLOCK=4096).config(CHUNK=tiles["BLOCK"])),
        norms.ready((1, 1, 1), (n,), Tiles(256, BLOCK=1024).config()),
    )
    return ListPlan(tiles["BLOCK"], launches)


@impl(spec.multi_tensor_l2norm, devices=DEVICES)
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Any, per_tensor: bool | None
) -> tuple[Tensor, Tensor]:
    check("multi_tensor_l2norm", chunk_size, noop_flag, per_tensor)
    return _norm("multi_tensor_l2norm", noop_flag, tensor_lists, None, per_tensor)


@impl(spec.multi_tensor_unscale_l2norm, devices=DEVICES)
def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Any, inv_scale: Tensor, per_tensor: bool | None
) -> tuple[Tensor, Tensor]:
    check("multi_tensor_unscale_l2norm", chunk_size, noop_flag, inv_scale, per_tensor)
    return _norm("multi_tensor_unscale_l2norm", noop_flag, tensor_lists, inv_scale, per_tensor)


# ---- Adam -----------------------------------------------------------------------------------------------------------


def _adam(
    op: str, lists: Any, flag: Tensor, how: spec.Adam, home: str, held: Tensor | None = None, fp8: Any = None
) -> None:
    """One step on all tensors. `home`: where the weights are stored: parameter, master or remainder."""
    lr, inv_c1, inv_c2 = 0.0, 1.0, 1.0
    if held is None:
        c1, c2 = how.corrections()
        lr, inv_c1, inv_c2 = float(how.lr), 1 / c1, 1 / c2
    beta1, beta2 = float(how.beta1), float(how.beta2)
    rates = (beta1, 1 - beta1, beta2, 1 - beta2, float(how.epsilon), inv_c1, inv_c2, float(how.weight_decay))
    for what in seen(op, lists, flag):
        constants = {
            "L2": bool(how.mode == 0),
            "HOME": home,
            "CAST": None if fp8 is None else cast_of(fp8),
            "LISTS": len(lists),
            "S": TYPES[what.dtypes[2]],
            "LANES": lanes(what.dtypes),
        }
        launched(adam, what, (held, lr, *rates), constants, "G P")


@impl(spec.multi_tensor_adam, devices=DEVICES)
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Any,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    how = spec.Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    check("multi_tensor_adam", chunk_size, noop_flag, *how)
    form = spec.FORMS["multi_tensor_adam"].form("multi_tensor_adam", tensor_lists)
    _adam("multi_tensor_adam", tensor_lists, noop_flag, how, "master" if spec.MASTER in form else "parameter")


@impl(spec.multi_tensor_adam_param_remainder, devices=DEVICES)
def multi_tensor_adam_param_remainder(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Any,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    how = spec.Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    check("multi_tensor_adam_param_remainder", chunk_size, noop_flag, *how)
    _adam("multi_tensor_adam_param_remainder", tensor_lists, noop_flag, how, "remainder")


@impl(spec.multi_tensor_adam_fp8, devices=DEVICES)
def multi_tensor_adam_fp8(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Any,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    fp8_dtype: torch.dtype,
) -> None:
    how = spec.Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    check("multi_tensor_adam_fp8", chunk_size, noop_flag, *how, fp8_dtype)
    _adam("multi_tensor_adam_fp8", tensor_lists, noop_flag, how, "master", fp8=fp8_dtype)


HELD = OutputSpec.of((5,), torch.float32)
_holds: dict[Any, Callable[..., Any]] = keep({})


def _captured(op: str, flag: Tensor, lists: Any, how: spec.Adam, inv_scale: Any, home: str) -> None:
    key = (flag.device, bool(how.bias_correction))
    launch = _holds.get(key)
    if launch is None:
        launch = _holds[key] = hold.ready((1, 1, 1), (), Tiles(32).config(CORRECT=key[1]))
    found = seen(op, lists, flag)
    if found:
        held = HELD.empty(flag)
        launch(flag, how.lr, how.step, inv_scale, held, spec.log_of(how.beta1), spec.log_of(how.beta2))
        _adam(op, lists, flag, how, home, held)


@impl(spec.multi_tensor_adam_capturable, devices=DEVICES)
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Any,
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: Tensor,
) -> None:
    how = spec.Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    check("multi_tensor_adam_capturable", chunk_size, noop_flag, *how, inv_scale)
    _captured("multi_tensor_adam_capturable", noop_flag, tensor_lists, how, inv_scale, "parameter")


@impl(spec.multi_tensor_adam_capturable_master, devices=DEVICES)
def multi_tensor_adam_capturable_master(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Any,
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: Tensor,
) -> None:
    how = spec.Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    check("multi_tensor_adam_capturable_master", chunk_size, noop_flag, *how, inv_scale)
    _captured("multi_tensor_adam_capturable_master", noop_flag, tensor_lists, how, inv_scale, "master")


# ---- SGD and scales -------------------------------------------------------------------------------------------------


@impl(spec.multi_tensor_sgd, devices=DEVICES)
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Any,
    wd: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    given = (wd, momentum, dampening, lr, nesterov, first_run, wd_after_momentum, scale)
    check("multi_tensor_sgd", chunk_size, noop_flag, *given)
    numbers = (float(wd), float(momentum), 1.0 - float(dampening), float(lr), float(scale))
    decay = "none" if not wd else "after" if wd_after_momentum else "before"
    for what in seen("multi_tensor_sgd", tensor_lists, noop_flag):
        constants = {
            "DECAY": decay,
            "MOVES": bool(momentum != 0),
            "NESTEROV": bool(nesterov),
            "FIRST": bool(first_run),
            "LISTS": len(tensor_lists),
            "C": TYPES[what.dtypes[-1]],
            "LANES": lanes(what.dtypes),
        }
        launched(sgd, what, (noop_flag, *numbers), constants, "G W M")


@impl(spec.multi_tensor_compute_scale_and_scale_inv, devices=DEVICES)
def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    noop_flag: Tensor | None,
    tensor_lists: Any,
    max_fp8: float,
    force_pow_2_scales: bool,
    epsilon: float,
) -> None:
    op = "multi_tensor_compute_scale_and_scale_inv"
    check(op, chunk_size, noop_flag, max_fp8, force_pow_2_scales, epsilon)
    for what in seen(op, tensor_lists):
        launched(scales, what, (float(max_fp8), float(epsilon)), {"POW2": bool(force_pow_2_scales)})


@impl(spec.multi_tensor_compute_scale_inv_e8m0, devices=DEVICES)
def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, dummy: Any, tensor_lists: Any) -> None:
    op = "multi_tensor_compute_scale_inv_e8m0"
    check(op, chunk_size, None)
    for what in seen(op, tensor_lists):
        launched(e8m0, what, (1 / 448,), {})
