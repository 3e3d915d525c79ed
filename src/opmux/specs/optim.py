"""tex's multi-tensor optimizer ops: one call for all tensors of a model, in parallel lists.

The ops compute in float32 for all dtypes, round once, and write in place. Tensors at the same index in different lists
have equally many elements, but may differ in shape. The host never reads values on the device (a flag, the learning
rate of a captured graph). `chunk_size`, by which NVIDIA's kernels divide the work, is ignored.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ..core.contract import Float32, Int32, Rule, one_of, shown, single
from ..core.errors import BadArgument
from ..core.spec import Sample, Samples, op
from ..core.tensors import dtype_name
from ._checks import check_tensor
from .quant import FP8_MAX, bytes_of, exponents, inverse, magnitudes, scale_from

# ---- which lists an op takes ----------------------------------------------------------------------------------------

FLOAT, HALVES = (torch.float32,), (torch.float32, torch.bfloat16, torch.float16)
BYTES = (torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


class Each(NamedTuple):
    """One of the parallel lists: its name, the dtypes of its tensors, and whether each tensor has a single element."""

    name: str
    dtypes: tuple[torch.dtype, ...]
    one: bool = False


G, P = Each("gradients", HALVES), Each("parameters", HALVES)
M, V = (Each(name, (torch.float32, torch.bfloat16)) for name in ("first moments", "second moments"))
MASTER = Each("master weights", FLOAT)
SCALE, AMAX, SCALE_INV = (Each(name, FLOAT, one=True) for name in ("scales", "amaxes", "inverse scales"))
FP8, REMAINDERS = Each("FP8 parameters", BYTES), Each("remainders", (torch.int16,))
IN, OUT = Each("inputs", HALVES), Each("outputs", HALVES)
W, MOMENTUM = Each("weights", HALVES), Each("momenta", HALVES)


@dataclass(frozen=True)
class lists(Rule):
    """The rule for parallel lists of tensors; each allowed form has a different number of lists."""

    forms: tuple[tuple[Each, ...], ...]
    flag: str | None = "noop_flag"  # the argument whose device all tensors are on

    def form(self, op: str, value: Any) -> tuple[Each, ...]:
        """The form that has as many lists as `value`; raises if no form does."""
        if not isinstance(value, (list, tuple)):
            raise BadArgument.of(op, "tensor_lists", "be a list of lists of tensors", shown(value), TypeError)
        for form in self.forms:
            if len(form) == len(value):
                return form
        raise BadArgument.of(op, "tensor_lists", f"be {self.doc()}", f"{len(value)} lists")

    def check(self, op: str, name: str, value: Any, given: Mapping[str, Any]) -> None:
        form = self.form(op, value)
        for i, (each, items) in enumerate(zip(form, value, strict=True)):
            part = f"{name}[{i}] ({each.name})"
            if not isinstance(items, (list, tuple)):
                raise BadArgument.of(op, part, "be a list of tensors", shown(items), TypeError)
            if len(items) != len(value[0]):
                raise BadArgument.of(op, part, f"have {len(value[0])} tensors, as the first list has", str(len(items)))
        flag = given.get(self.flag or "")
        on = value[0][0] if flag is None and value[0] else flag
        for i, (each, items) in enumerate(zip(form, value, strict=True)):
            for j, t in enumerate(items):
                part = f"{name}[{i}][{j}] ({each.name})"
                check_tensor(op, part, t, dtypes=each.dtypes)
                if each is V and t.dtype is not value[2][j].dtype:
                    expected = f"be {dtype_name(value[2][j].dtype)}, the dtype of the first moment"
                    raise BadArgument.of(op, part, expected, dtype_name(t.dtype), TypeError)
                count = 1 if each.one else value[0][j].numel()
                if t.numel() != count:
                    raise BadArgument.of(op, part, f"have {count} elements", str(t.numel()))
                if on is not None and t.device != on.device:
                    why = f", the device of {{{self.flag}}}" if flag is not None else ""
                    raise BadArgument.of(op, part, f"be on {on.device}{why}", str(t.device))

    def wrong(self, value: Any) -> Iterator[tuple[str, Any]]:
        def changed(i: int, j: int, t: Any) -> list[list[Any]]:
            return [[t if (i, j) == (a, b) else u for b, u in enumerate(items)] for a, items in enumerate(value)]

        last, t = len(value) - 1, value[-1][0]
        yield "no list", value[0][0]
        yield "8 lists more", [*value, *[[]] * 8]
        yield "None in it", changed(0, 0, None)
        yield "bools in it", changed(last, 1, value[-1][1].bool())
        yield "another device", changed(last, 0, torch.empty_like(t, device="meta" if t.is_cpu else "cpu"))
        if last:
            yield "a shorter list", [value[0], value[1][:-1], *value[2:]]
            yield "a shorter tensor", changed(1, 1, value[1][1][:-1])

    def doc(self) -> str:
        return " or ".join(f"[{', '.join(e.name for e in form)}]" for form in self.forms)


FORMS = {  # by op
    "multi_tensor_scale": lists(((IN, OUT),)),
    "multi_tensor_scale_tensor": lists(((IN, OUT),), "is_infinite"),
    "multi_tensor_l2norm": lists(((IN,),)),
    "multi_tensor_unscale_l2norm": lists(((IN,),)),
    "multi_tensor_adam": lists(((G, P, M, V), (G, P, M, V, MASTER))),
    "multi_tensor_adam_param_remainder": lists(((G, Each("parameters", (torch.bfloat16,)), M, V, REMAINDERS),)),
    "multi_tensor_adam_fp8": lists(((G, FP8, M, V, MASTER, SCALE, AMAX, SCALE_INV),)),
    "multi_tensor_adam_capturable": lists(((G, P, M, V),)),
    "multi_tensor_adam_capturable_master": lists(((G, P, M, V, MASTER),)),
    "multi_tensor_sgd": lists(((G, W, MOMENTUM), (G, W, MOMENTUM, Each("copies", HALVES)))),
    "multi_tensor_compute_scale_and_scale_inv": lists(
        ((Each("amaxes", FLOAT), Each("scales", FLOAT), Each("inverse scales", FLOAT)),), None
    ),
    "multi_tensor_compute_scale_inv_e8m0": lists(
        ((Each("amaxes", (torch.bfloat16,)), Each("scale bytes", BYTES[:1])),), None
    ),
}

Lists = list[list[Tensor]]
Flag = Int32[Tensor, "...", single()]
DeviceFloat = Float32[Tensor, "...", single()]  # a number on the device
DeviceInt = Int32[Tensor, "...", single()]
Switch = Annotated[int | bool, one_of(0, 1)]


def counts_from_one(op: str, step: int, bias_correction: int) -> None:
    """Raise for step 0 with bias correction, which would divide by zero."""
    if bias_correction and step < 1:
        raise BadArgument.of(op, "step", "be at least 1 with {bias_correction}", str(step))


# ---- arithmetic -----------------------------------------------------------------------------------------------------


class Adam(NamedTuple):
    """The caller's options of a step, unchanged; lr and step may be tensors."""

    lr: Any
    beta1: Any
    beta2: Any
    epsilon: Any
    step: Any
    mode: Any
    bias_correction: Any
    weight_decay: Any

    def corrections(self) -> tuple[Any, Any]:
        """The bias corrections of the moments; in float64, because 1 - 0.999^step loses digits in float32."""
        if not self.bias_correction:
            return 1.0, 1.0
        if isinstance(self.step, Tensor):
            correction = lambda beta: 1 - torch.full_like(self.step, beta, dtype=torch.float64) ** self.step
            return correction(self.beta1).float().reshape(()), correction(self.beta2).float().reshape(())
        return 1 - float(self.beta1) ** int(self.step), 1 - float(self.beta2) ** int(self.step)

    def updated(self, g: Tensor, w: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The new weight and moments, from float32 tensors."""
        c1, c2 = self.corrections()
        lr = self.lr.reshape(()) if isinstance(self.lr, Tensor) else self.lr
        if self.mode == 0:
            g = g + self.weight_decay * w
        m = self.beta1 * m + (1 - self.beta1) * g
        v = self.beta2 * v + (1 - self.beta2) * g * g
        update = (m / c1) / ((v / c2).sqrt() + self.epsilon)
        if self.mode == 1:
            update = update + self.weight_decay * w
        return w - lr * update, m, v


def assign(t: Tensor, value: Tensor, skip: Tensor | None = None) -> None:
    """Copy a value of any shape and dtype to t, unless `skip` is set."""
    value = value.reshape(t.shape).to(t.dtype)
    with torch.inference_mode(t.is_inference()), torch.no_grad():  # in this order: inference_mode may enable gradients
        t.copy_(value if skip is None else torch.where(skip, t, value))


def set_flag(flag: Tensor, bad: Tensor) -> None:
    """Set the flag to 1 if `bad` is true; otherwise leave it unchanged."""
    assign(flag, torch.where(bad, 1, flag.reshape(())))


def float_like(t: Tensor, like: Tensor) -> Tensor:
    """Convert t to float32 and to the shape of `like`, the tensor at the same index in the first list."""
    return t.float().reshape(like.shape)


# ---- samples --------------------------------------------------------------------------------------------------------

SIZES = ((5, 7), (64,), (0,), (2, 3, 16))

ADAM = {
    "lr": 1e-2,
    "beta1": 0.9,
    "beta2": 0.99,
    "epsilon": 1e-8,
    "step": 2,
    "mode": 1,
    "bias_correction": 1,
    "weight_decay": 0.1,
}
SGD = {
    "wd": 0.1,
    "momentum": 0.9,
    "dampening": 0.1,
    "lr": 1e-2,
    "nesterov": False,
    "first_run": False,
    "wd_after_momentum": False,
    "scale": 0.5,
}


def draw_tensors(each: Each, dtype: torch.dtype, device: Any, generator: torch.Generator) -> list[Tensor]:
    """Draw the tensors of a list, in `dtype` if the list allows this dtype."""
    kind = dtype if dtype in each.dtypes else each.dtypes[0]
    tensors = []
    for size in SIZES:
        t = torch.randn((1,) if each.one else size, generator=generator)
        if each in (V, SCALE, AMAX, SCALE_INV) or each.name in ("amaxes", "scales"):
            t = t.abs() + 0.5
        if not kind.is_floating_point:
            t = t * (100 if each is REMAINDERS else 0)
        tensors.append(t.to(kind).to(device))
    return tensors


def samples(name: str, *variants: dict[str, Any], flag: int | None = 0, last: tuple[str, ...] = ()) -> Samples:
    """Samples of an op, one for each variant; a variant has the op's numeric arguments by name, in order.

    A variant may also have `lists` (the index of the form), `flag` (the value of the flag) and `state` (the dtype of
    the moments). Numbers named in `last` are passed as tensors.
    """

    def make(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for variant in variants:
            generator = torch.Generator().manual_seed(len(name))
            numbers = {k: v for k, v in variant.items() if k not in ("lists", "flag", "state")}
            labels = [f"{k}={v}" for k, v in variant.items()]
            for k in last:
                kind = torch.int32 if k == "step" else torch.float32
                numbers[k] = torch.full((1,), numbers[k], dtype=kind, device=device)
            moments = variant.get("state", dtype)
            lists = [
                draw_tensors(each, moments if each in (M, V) else dtype, device, generator)
                for each in FORMS[name].forms[variant.get("lists", 0)]
            ]
            noop = None if flag is None else torch.full((1,), variant.get("flag", flag), dtype=torch.int32)
            noop = None if noop is None else noop.to(device)
            yield Sample((2048, noop, lists, *numbers.values()), id=" ".join(labels) or "plain")

    return make


# ---- scale and norm -------------------------------------------------------------------------------------------------

SCALES = samples("multi_tensor_scale", {"scale": 0.3}, {"scale": -2.0, "flag": 1})
DEVICE_SCALES = samples("multi_tensor_scale_tensor", {"scale": 0.3}, last=("scale",))


def scaled(flag: Tensor, tensor_lists: Lists, scale: Any) -> None:
    bad = torch.zeros((), dtype=torch.bool, device=flag.device)
    for x, out in zip(*tensor_lists, strict=True):
        bad = bad | ~torch.isfinite(x).all()
        assign(out, x.float() * scale)
    set_flag(flag, bad)


@op(space="tex", out="", mutates=("noop_flag", "tensor_lists"), samples=SCALES)
def multi_tensor_scale(
    chunk_size: int, noop_flag: Flag, tensor_lists: Annotated[Lists, FORMS["multi_tensor_scale"]], scale: float
) -> None:
    """Scale tensors: outputs = inputs * scale.

    Args:
        chunk_size: not used.
        noop_flag: set to 1 if an input is not finite. The flag does not stop the computation.
        tensor_lists: the tensors; outputs are written in place.
        scale: the factor.
    """
    with torch.no_grad():
        scaled(noop_flag, tensor_lists, scale)


@op(space="tex", out="", mutates=("is_infinite", "tensor_lists"), samples=DEVICE_SCALES)
def multi_tensor_scale_tensor(
    chunk_size: int,
    is_infinite: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_scale_tensor"]],
    scale: DeviceFloat,
) -> None:
    """multi_tensor_scale with the scale on the device.

    Args:
        chunk_size: not used.
        is_infinite: set to 1 if an input is not finite. The flag does not stop the computation.
        tensor_lists: the tensors; outputs are written in place.
        scale: the factor, on the device.
    """
    with torch.no_grad():
        scaled(is_infinite, tensor_lists, scale.reshape(()))


NORMS = samples("multi_tensor_l2norm", {"per_tensor": True}, {"per_tensor": False}, {"per_tensor": None})
UNSCALED_NORMS = samples(
    "multi_tensor_unscale_l2norm",
    {"inv_scale": 0.25, "per_tensor": True},
    {"inv_scale": 3.0, "per_tensor": None},
    last=("inv_scale",),
)


def norms(flag: Tensor, tensors: list[Tensor], inv_scale: Tensor | None, per_tensor: Any) -> tuple[Tensor, Tensor]:
    empty = torch.empty(0, dtype=torch.float32, device=flag.device)
    if not tensors:
        return torch.zeros(1, dtype=torch.float32, device=flag.device), empty
    values = [t.float() if inv_scale is None else t.float() * inv_scale.reshape(()) for t in tensors]
    each = torch.stack([torch.linalg.vector_norm(v) for v in values])
    total = torch.linalg.vector_norm(each).reshape(1)
    set_flag(flag, ~torch.isfinite(total[0]))
    return total, each if per_tensor else empty


@op(space="tex", out="norm norms", mutates=("noop_flag",), samples=NORMS)
def multi_tensor_l2norm(
    chunk_size: int,
    noop_flag: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_l2norm"]],
    per_tensor: bool | None,
) -> tuple[Tensor, Tensor]:
    """The L2 norm of all tensors together, and of each tensor.

    Args:
        chunk_size: not used.
        noop_flag: set to 1 if the norm is not finite.
        tensor_lists: the tensors.
        per_tensor: whether to return the norm of each tensor.

    Returns:
        norm, of all tensors, float32 [1]; norms, of each tensor, float32 [tensors], or empty without per_tensor.
    """
    with torch.no_grad():
        return norms(noop_flag, tensor_lists[0], None, per_tensor)


@op(space="tex", out="norm norms", mutates=("noop_flag",), samples=UNSCALED_NORMS)
def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop_flag: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_unscale_l2norm"]],
    inv_scale: DeviceFloat,
    per_tensor: bool | None,
) -> tuple[Tensor, Tensor]:
    """multi_tensor_l2norm of the tensors times inv_scale; the tensors are not written.

    Args:
        chunk_size: not used.
        noop_flag: set to 1 if the norm is not finite.
        tensor_lists: the tensors.
        inv_scale: the factor, on the device.
        per_tensor: whether to return the norm of each tensor.

    Returns:
        norm, of all tensors, float32 [1]; norms, of each tensor, float32 [tensors], or empty without per_tensor.
    """
    with torch.no_grad():
        return norms(noop_flag, tensor_lists[0], inv_scale, per_tensor)


# ---- Adam -----------------------------------------------------------------------------------------------------------

WRITES = ("tensor_lists",)
ADAMS = samples(
    "multi_tensor_adam",
    ADAM,
    {**ADAM, "mode": 0, "lists": 1},
    {**ADAM, "bias_correction": 0, "lists": 1, "state": torch.bfloat16},
)
REMAINDER_ADAMS = samples("multi_tensor_adam_param_remainder", ADAM, {**ADAM, "mode": 0})
FP8_ADAMS = samples(
    "multi_tensor_adam_fp8",
    {**ADAM, "fp8_dtype": torch.float8_e4m3fn},
    {**ADAM, "mode": 0, "fp8_dtype": torch.float8_e5m2},
)
ON_DEVICE = ("lr", "step", "inv_scale")
CAPTURABLE_ADAMS, MASTER_ADAMS = (
    samples(name, {**ADAM, "inv_scale": 0.5}, {**ADAM, "inv_scale": 1.0, "mode": 0, "flag": 1}, last=ON_DEVICE)
    for name in ("multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master")
)


@op(space="tex", out="", mutates=WRITES, samples=ADAMS, where=counts_from_one)
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_adam"]],
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: Switch,
    bias_correction: Switch,
    weight_decay: float,
) -> None:
    """One step of Adam or AdamW, in place.

    m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; p -= lr * m / (sqrt(v) + epsilon), with m and v
    divided by 1 - beta^step if bias_correction is set.

    Args:
        chunk_size: not used.
        noop_flag: not read.
        tensor_lists: the tensors. Master weights, if given, are updated in float32, and parameters become rounded
            copies of them.
        lr: the learning rate.
        beta1: the decay of the first moments.
        beta2: the decay of the second moments.
        epsilon: added to the square root of the second moments.
        step: the number of the step, from 1.
        mode: 0 adds weight_decay * p to the gradients (Adam), 1 to the update (AdamW).
        bias_correction: whether to correct the moments for their initial value 0.
        weight_decay: the weight decay.
    """
    adam = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        for g, p, m, v, *master in zip(*tensor_lists, strict=True):
            w = master[0] if master else p
            for t, value in zip((p, m, v), adam.updated(*(float_like(t, g) for t in (g, w, m, v))), strict=True):
                if t is p and master:
                    assign(master[0], value)
                assign(t, value)


def whole_weights(results: dict[str, Any]) -> dict[str, Any]:
    """Join parameters and remainders to float32 weights, which tests compare instead of the two halves.

    No tolerance fits the remainder alone: an error in the weight's last bit changes the remainder, and may carry into
    the parameter. Even torch's own sqrt differs in the last bit between processors.
    """
    compared = dict(results)
    for remainder in [name for name in results if name.startswith("tensor_lists[4]")]:
        parameter = remainder.replace("[4]", "[1]", 1)
        compared[f"{parameter} and its remainder"] = joined(compared.pop(parameter), compared.pop(remainder))
    return compared


@op(space="tex", out="", mutates=WRITES, samples=REMAINDER_ADAMS, where=counts_from_one, compared=whole_weights)
def multi_tensor_adam_param_remainder(
    chunk_size: int,
    noop_flag: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_adam_param_remainder"]],
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: Switch,
    bias_correction: Switch,
    weight_decay: float,
) -> None:
    """multi_tensor_adam on float32 weights in two halves: bfloat16 parameters (rounded) and int16 remainders.

    Args:
        chunk_size: not used.
        noop_flag: not read.
        tensor_lists: the tensors.
        lr: as in multi_tensor_adam, like all other arguments.
    """
    adam = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        for g, p, m, v, low in zip(*tensor_lists, strict=True):
            w = joined(p.reshape(g.shape), low.reshape(g.shape))
            w, new_m, new_v = adam.updated(float_like(g, g), w, float_like(m, g), float_like(v, g))
            high, new_low = split(w)
            for t, value in ((p, high), (low, new_low), (m, new_m), (v, new_v)):
                assign(t, value)


def joined(p: Tensor, low: Tensor) -> Tensor:
    """Join two halves to a float32 tensor: p is the upper half, rounded to nearest, and `low` is the lower half."""
    high = p.contiguous().view(torch.int16).int() - (low < 0).int()
    return ((high << 16) | (low.int() & 0xFFFF)).view(torch.float32)


def split(w: Tensor) -> tuple[Tensor, Tensor]:
    bits = w.contiguous().view(torch.int32)
    low = bits.to(torch.int16)  # the cast keeps the lower 16 bits
    high = ((bits >> 16) + (low < 0)).to(torch.int16)
    return high.view(torch.bfloat16), low


@op(space="tex", out="", mutates=WRITES, samples=FP8_ADAMS, where=counts_from_one)
def multi_tensor_adam_fp8(
    chunk_size: int,
    noop_flag: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_adam_fp8"]],
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: Switch,
    bias_correction: Switch,
    weight_decay: float,
    fp8_dtype: Annotated[torch.dtype, one_of(*FP8_MAX)],
) -> None:
    """multi_tensor_adam on master weights; parameters become FP8 bytes of master weight * scale.

    Args:
        chunk_size: not used.
        noop_flag: not read.
        tensor_lists: the tensors. Amaxes become max(amax, max |master weight|), inverse scales become 1 / scale.
        lr: as in multi_tensor_adam, like all other arguments but fp8_dtype.
        fp8_dtype: the float8 dtype of the parameters.
    """
    adam = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        for g, p, m, v, master, scale, amax, scale_inv in zip(*tensor_lists, strict=True):
            w, new_m, new_v = adam.updated(*(float_like(t, g) for t in (g, master, m, v)))
            for t, value in ((master, w), (m, new_m), (v, new_v)):
                assign(t, value)
            assign(p.view(torch.uint8), bytes_of(w * scale.reshape(()), fp8_dtype))
            if w.numel():
                assign(amax, torch.maximum(amax.reshape(()), magnitudes(w).max()))
                assign(scale_inv, inverse(scale))


def capturable_step(flag: Tensor, tensor_lists: Lists, adam: Adam, inv_scale: Tensor) -> None:
    """An Adam step whose learning rate, step number and flag are on the device; it unscales gradients in place."""
    skip = flag.reshape(()) == 1
    for g, p, m, v, *master in zip(*tensor_lists, strict=True):
        unscaled = g.float() * inv_scale.reshape(())
        w, new_m, new_v = adam.updated(unscaled, *(float_like(t, g) for t in (master[0] if master else p, m, v)))
        for t, value in zip((g, p, m, v, *master), (unscaled, w, new_m, new_v, w), strict=False):
            assign(t, value, skip)


@op(space="tex", out="", mutates=WRITES, samples=CAPTURABLE_ADAMS)
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_adam_capturable"]],
    lr: DeviceFloat,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: DeviceInt,
    mode: Switch,
    bias_correction: Switch,
    weight_decay: float,
    inv_scale: DeviceFloat,
) -> None:
    """multi_tensor_adam with lr, step and inv_scale on the device, for CUDA graphs. Gradients are scaled in place.

    Args:
        chunk_size: not used.
        noop_flag: nothing is written if it is 1.
        tensor_lists: the tensors.
        lr: the learning rate.
        beta1: as in multi_tensor_adam, like all arguments that are not listed here.
        step: the number of the step, from 1.
        inv_scale: multiplies the gradients.
    """
    adam = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        capturable_step(noop_flag, tensor_lists, adam, inv_scale)


@op(space="tex", out="", mutates=WRITES, samples=MASTER_ADAMS)
def multi_tensor_adam_capturable_master(
    chunk_size: int,
    noop_flag: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_adam_capturable_master"]],
    lr: DeviceFloat,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: DeviceInt,
    mode: Switch,
    bias_correction: Switch,
    weight_decay: float,
    inv_scale: DeviceFloat,
) -> None:
    """multi_tensor_adam_capturable on master weights; parameters become rounded copies of them.

    Args:
        chunk_size: not used.
        noop_flag: nothing is written if it is 1.
        tensor_lists: the tensors.
        lr: the learning rate.
        beta1: as in multi_tensor_adam, like all arguments that are not listed here.
        step: the number of the step, from 1.
        inv_scale: multiplies the gradients.
    """
    adam = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        capturable_step(noop_flag, tensor_lists, adam, inv_scale)


# ---- SGD ------------------------------------------------------------------------------------------------------------

SGDS = samples(
    "multi_tensor_sgd",
    SGD,
    {**SGD, "nesterov": True, "dampening": 0.0, "wd_after_momentum": True, "lists": 1},
    {**SGD, "first_run": True, "wd": 0.0},
    {**SGD, "momentum": 0.0, "flag": 1},
    {**SGD, "momentum": 0.0, "lists": 1},
)


@op(space="tex", out="", mutates=WRITES, samples=SGDS)
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: Flag,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_sgd"]],
    wd: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: Switch,
    first_run: Switch,
    wd_after_momentum: Switch,
    scale: float,
) -> None:
    """One step of SGD, in place; gradients are not written.

    g = scale * gradient + wd * w; m = momentum * m + (1 - dampening) * g; w -= lr * m, with nesterov lr * (g +
    momentum * m). lr times the update is rounded to the dtype of the weight before it is subtracted: a half-precision
    weight is rounded twice, as by NVIDIA's kernel.

    Args:
        chunk_size: not used.
        noop_flag: nothing is written if it is not 0.
        tensor_lists: the tensors; copies become the rounded weights.
        wd: the weight decay.
        momentum: the decay of the momenta m; if it is 0, they are neither read nor written.
        dampening: gradients are multiplied by 1 - dampening when they are added to the momenta.
        lr: the learning rate.
        nesterov: whether to use Nesterov momentum.
        first_run: whether to set the momenta to g, without dampening.
        wd_after_momentum: whether to add wd * w to the update instead of the gradients.
        scale: multiplies the gradients.
    """
    with torch.no_grad():
        skip = noop_flag.reshape(()) != 0
        for g, w, buffer, *copy in zip(*tensor_lists, strict=True):
            value, weight = g.float() * scale, float_like(w, g)
            if wd and not wd_after_momentum:
                value = value + wd * weight
            if momentum:
                update = value if first_run else float_like(buffer, g) * momentum + (1 - dampening) * value
                value = value + momentum * update if nesterov else update
                assign(buffer, update, skip)
            if wd and wd_after_momentum:
                value = value + wd * weight
            weight = (weight - (lr * value).to(w.dtype).float()).to(w.dtype)
            for t in (w, *copy):
                assign(t, weight, skip)


# ---- scales ---------------------------------------------------------------------------------------------------------

SCALE_INVS = samples(
    "multi_tensor_compute_scale_and_scale_inv",
    {"max_fp8": 448.0, "force_pow_2_scales": False, "epsilon": 0.0},
    {"max_fp8": 57344.0, "force_pow_2_scales": True, "epsilon": 1.0},
)
E8M0S = samples("multi_tensor_compute_scale_inv_e8m0", {}, flag=None)


@op(space="tex", out="", mutates=WRITES, samples=SCALE_INVS)
def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    noop_flag: Tensor | None,
    tensor_lists: Annotated[Lists, FORMS["multi_tensor_compute_scale_and_scale_inv"]],
    max_fp8: float,
    force_pow_2_scales: Switch,
    epsilon: float,
) -> None:
    """The scales of current scaling: scale = max_fp8 / max(amax, epsilon), inverse scale = 1 / scale.

    If the quotient overflows, the scale is the largest float32; if amax is 0 or not finite, it is 1.

    Args:
        chunk_size: not used.
        noop_flag: not read.
        tensor_lists: the tensors; scales and inverse scales are written in place.
        max_fp8: the largest number of the FP8 format.
        force_pow_2_scales: whether scales are rounded down to powers of two.
        epsilon: the lower limit of amax.
    """
    with torch.no_grad():
        for amax, scale, scale_inv in zip(*tensor_lists, strict=True):
            value = scale_from(amax, max_fp8, bool(force_pow_2_scales), epsilon)
            assign(scale, value)
            assign(scale_inv, inverse(value))


@op(space="tex", out="", mutates=WRITES, samples=E8M0S)
def multi_tensor_compute_scale_inv_e8m0(
    chunk_size: int, dummy: Any, tensor_lists: Annotated[Lists, FORMS["multi_tensor_compute_scale_inv_e8m0"]]
) -> None:
    """The scales of MXFP8: scale byte = the E8M0 exponent of amax / 448, rounded up.

    Args:
        chunk_size: not used.
        dummy: not used.
        tensor_lists: the tensors; scale bytes are written in place.
    """
    with torch.no_grad():
        for amax, scale_inv in zip(*tensor_lists, strict=True):
            assign(scale_inv, exponents(amax.float(), torch.float8_e4m3fn))


LEAST_LOG = -1e4  # replaces log(0): with step 0, -inf * 0 would be NaN


def log_of(beta: float) -> float:
    """log(beta), for kernels that compute beta^step as exp(step * log(beta))."""
    return math.log(beta) if beta > 0 else LEAST_LOG
