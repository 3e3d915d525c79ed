"""Transformer Engine's optimizers over lists of tensors: one launch; two for a capturable step, three for a norm."""

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
    norm_tiles,
    planned,
    run_chunks,
    scale_lists,
    squares,
    squares_of_each,
)
from ..lib.lists import TensorGroup, chunks_of, groups_of, table_of
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


def _check_key(value: Any) -> Any:
    """What the check of an argument depends on: a float's type, min(int, 2), or a tensor's dtype, shape and device."""
    kind = type(value)
    if kind is float:
        return kind
    if kind is int:
        return kind, min(value, 2)
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.device
    return kind if kind.__hash__ is None else value


def check(op: str, *args: Any) -> None:
    """Raise BadArgument if an argument is invalid. `args`: all arguments except tensor_lists, in order.

    Numbers change at every step. So arguments with the same `_check_key` as earlier ones are not checked again: looking
    up the key takes a third of the time of a check.
    """
    key = (op, *map(_check_key, args))
    if key in _checked:
        return
    fn = getattr(spec, op)
    fn.check(**dict(zip((n for n in fn.spec.names if n != "tensor_lists"), args, strict=True)))
    if len(_checked) >= 1024:
        _checked.clear()
    _checked[key] = None


# ---- scale and norm -------------------------------------------------------------------------------------------------


def _scale(op: str, flag: Tensor, lists: Any, held: Tensor | None, number: float) -> None:
    for group in groups_of(op, lists, flag):
        run_chunks(scale_lists, group, (flag, held, number), {"LANES": lanes(group.dtypes)}, "I O")


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
    groups = groups_of(op, lists, flag)
    if not groups:
        return ONE.empty(flag).zero_(), NONE.empty(flag)
    if len(groups) > 1:
        raise NotSupported("a norm over tensors of several dtypes")
    group, n = groups[0], len(groups[0].sizes)
    plan = planned(squares, group, (inv_scale is None,), lambda: _norm_plan(group))
    if not plan.launches:
        norms_of_each = OutputSpec.of((n,) if per_tensor else (0,), torch.float32)
        return ONE.empty(flag).zero_(), norms_of_each.empty(flag).zero_()
    chunks = chunks_of(group, plan.block)
    table, norm = table_of(group, chunks), ONE.empty(flag)
    shares, sums = (OutputSpec.of((k,), torch.float32).empty(flag) for k in (chunks.count, n))
    first, second, third = plan.launches
    first(table, chunks.rows, inv_scale, shares)
    second(table, shares, sums)
    if per_tensor:
        each = OutputSpec.of((n,), torch.float32).empty(flag)
        third(sums, flag, norm, each)
        return norm, each
    third(sums, flag, norm, sums)  # norms per tensor were not requested: their values may overwrite the sums of squares
    return norm, NONE.empty(flag)


def _norm_plan(group: TensorGroup) -> ListPlan:
    tiles, n = norm_tiles(width=group.dtypes[0].itemsize), len(group.sizes)
    count = sum(-(-k // tiles["BLOCK"]) for k in group.sizes)
    if not count:
        return ListPlan(tiles["BLOCK"], ())
    constants = {"I": TYPES[group.dtypes[0]], "LANES": lanes(group.dtypes)}
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
# `numbers` of these ops: the fields of spec.Adam in order, then the op's last argument, if it has one.


def _adam(
    op: str, lists: Any, flag: Tensor, options: spec.Adam, weights_in: str, held: Tensor | None = None, fp8: Any = None
) -> None:
    """One step on all tensors. `weights_in`: whether the weights are stored as parameter, master or remainder."""
    lr, inv_c1, inv_c2 = 0.0, 1.0, 1.0
    if held is None:
        c1, c2 = options.corrections()
        lr, inv_c1, inv_c2 = float(options.lr), 1 / c1, 1 / c2
    beta1, beta2 = float(options.beta1), float(options.beta2)
    rates = (beta1, 1 - beta1, beta2, 1 - beta2, float(options.epsilon), inv_c1, inv_c2, float(options.weight_decay))
    for group in groups_of(op, lists, flag):
        constants = {
            "L2": bool(options.mode == 0),
            "WEIGHTS_IN": weights_in,
            "CAST": None if fp8 is None else cast_of(fp8),
            "LISTS": len(lists),
            "S": TYPES[group.dtypes[2]],
            "LANES": lanes(group.dtypes),
        }
        run_chunks(adam, group, (held, lr, *rates), constants, "G P")


@impl(spec.multi_tensor_adam, devices=DEVICES)
def multi_tensor_adam(chunk_size: int, noop_flag: Tensor, tensor_lists: Any, *numbers: Any) -> None:
    options = spec.Adam(*numbers)
    check("multi_tensor_adam", chunk_size, noop_flag, *options)
    form = spec.FORMS["multi_tensor_adam"].form("multi_tensor_adam", tensor_lists)
    _adam("multi_tensor_adam", tensor_lists, noop_flag, options, "master" if spec.MASTER in form else "parameter")


@impl(spec.multi_tensor_adam_param_remainder, devices=DEVICES)
def multi_tensor_adam_param_remainder(chunk_size: int, noop_flag: Tensor, tensor_lists: Any, *numbers: Any) -> None:
    options = spec.Adam(*numbers)
    check("multi_tensor_adam_param_remainder", chunk_size, noop_flag, *options)
    _adam("multi_tensor_adam_param_remainder", tensor_lists, noop_flag, options, "remainder")


@impl(spec.multi_tensor_adam_fp8, devices=DEVICES)
def multi_tensor_adam_fp8(chunk_size: int, noop_flag: Tensor, tensor_lists: Any, *numbers: Any) -> None:
    *adam, fp8_dtype = numbers
    options = spec.Adam(*adam)
    check("multi_tensor_adam_fp8", chunk_size, noop_flag, *options, fp8_dtype)
    _adam("multi_tensor_adam_fp8", tensor_lists, noop_flag, options, "master", fp8=fp8_dtype)


HELD = OutputSpec.of((5,), torch.float32)
_holds: dict[Any, Callable[..., Any]] = keep({})


def _capturable(op: str, flag: Tensor, lists: Any, options: spec.Adam, inv_scale: Any, weights_in: str) -> None:
    key = (flag.device, bool(options.bias_correction))
    launch = _holds.get(key)
    if launch is None:
        launch = _holds[key] = hold.ready((1, 1, 1), (), Tiles(32).config(CORRECT=key[1]))
    groups = groups_of(op, lists, flag)
    if groups:
        held = HELD.empty(flag)
        launch(flag, options.lr, options.step, inv_scale, held, spec.log_of(options.beta1), spec.log_of(options.beta2))
        _adam(op, lists, flag, options, weights_in, held)


@impl(spec.multi_tensor_adam_capturable, devices=DEVICES)
def multi_tensor_adam_capturable(chunk_size: int, noop_flag: Tensor, tensor_lists: Any, *numbers: Any) -> None:
    *adam, inv_scale = numbers
    options = spec.Adam(*adam)
    check("multi_tensor_adam_capturable", chunk_size, noop_flag, *options, inv_scale)
    _capturable("multi_tensor_adam_capturable", noop_flag, tensor_lists, options, inv_scale, "parameter")


@impl(spec.multi_tensor_adam_capturable_master, devices=DEVICES)
def multi_tensor_adam_capturable_master(chunk_size: int, noop_flag: Tensor, tensor_lists: Any, *numbers: Any) -> None:
    *adam, inv_scale = numbers
    options = spec.Adam(*adam)
    check("multi_tensor_adam_capturable_master", chunk_size, noop_flag, *options, inv_scale)
    _capturable("multi_tensor_adam_capturable_master", noop_flag, tensor_lists, options, inv_scale, "master")


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
    options = (wd, momentum, dampening, lr, nesterov, first_run, wd_after_momentum, scale)
    check("multi_tensor_sgd", chunk_size, noop_flag, *options)
    numbers = (float(wd), float(momentum), 1.0 - float(dampening), float(lr), float(scale))
    decay = "none" if not wd else "after" if wd_after_momentum else "before"
    for group in groups_of("multi_tensor_sgd", tensor_lists, noop_flag):
        constants = {
            "DECAY": decay,
            "MOVES": bool(momentum != 0),
            "NESTEROV": bool(nesterov),
            "FIRST": bool(first_run),
            "LISTS": len(tensor_lists),
            "C": TYPES[group.dtypes[-1]],
            "LANES": lanes(group.dtypes),
        }
        run_chunks(sgd, group, (noop_flag, *numbers), constants, "G W M")


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
    for group in groups_of(op, tensor_lists):
        run_chunks(scales, group, (float(max_fp8), float(epsilon)), {"POW2": bool(force_pow_2_scales)})


@impl(spec.multi_tensor_compute_scale_inv_e8m0, devices=DEVICES)
def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, dummy: Any, tensor_lists: Any) -> None:
    op = "multi_tensor_compute_scale_inv_e8m0"
    check(op, chunk_size, None)
    for group in groups_of(op, tensor_lists):
        run_chunks(e8m0, group, (1 / 448,), {})
