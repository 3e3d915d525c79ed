"""tex's optimizer kernels: one call for the tensors of a whole model, as lists that run side by side.

All compute in float32, whatever the tensors hold, round once, and write in place; of a tensor and its companions in the
other lists the sizes count, not the shapes. What decides on the device (a flag, the learning rate of a captured graph)
is never read on the host. `chunk_size` says how NVIDIA's kernels cut the work, and means nothing here.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.spec import BadSample, BadSamples, Sample, Samples, Tol, op
from ._checks import check_choice, check_int, check_number, check_tensor, type_name
from .quant import FP8_MAX, bytes_of, exponents, inverse, magnitudes, scale_from

Lists = list[list[Tensor]]

# ---- which lists an op takes ----------------------------------------------------------------------------------------

FLOAT, HALVES = (torch.float32,), (torch.float32, torch.bfloat16, torch.float16)
BYTES = (torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


class Each(NamedTuple):
    """One of the lists: its name, what its tensors hold, and whether each is a single number."""

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

# op -> the sets of lists it takes, told apart by their number
FORMS: dict[str, tuple[tuple[Each, ...], ...]] = {
    "multi_tensor_scale": ((IN, OUT),),
    "multi_tensor_scale_tensor": ((IN, OUT),),
    "multi_tensor_l2norm": ((IN,),),
    "multi_tensor_unscale_l2norm": ((IN,),),
    "multi_tensor_adam": ((G, P, M, V), (G, P, M, V, MASTER)),
    "multi_tensor_adam_param_remainder": ((G, Each("parameters", (torch.bfloat16,)), M, V, REMAINDERS),),
    "multi_tensor_adam_fp8": ((G, FP8, M, V, MASTER, SCALE, AMAX, SCALE_INV),),
    "multi_tensor_adam_capturable": ((G, P, M, V),),
    "multi_tensor_adam_capturable_master": ((G, P, M, V, MASTER),),
    "multi_tensor_sgd": ((G, W, MOMENTUM), (G, W, MOMENTUM, Each("copies", HALVES))),
    "multi_tensor_compute_scale_and_scale_inv": (
        (Each("amaxes", FLOAT), Each("scales", FLOAT), Each("inverse scales", FLOAT)),
    ),
    "multi_tensor_compute_scale_inv_e8m0": ((Each("amaxes", (torch.bfloat16,)), Each("scale bytes", BYTES[:1])),),
}


def form_of(op: str, tensor_lists: Any) -> tuple[Each, ...]:
    """The lists that were given, or an error that says which an op takes."""
    if not isinstance(tensor_lists, (list, tuple)):
        raise TypeError(f"{op}: tensor_lists must be a list of lists of tensors; got {type_name(tensor_lists)}")
    for form in FORMS[op]:
        if len(form) == len(tensor_lists):
            return form
    wanted = " or ".join(f"{len(f)} list{'s' * (len(f) > 1)} ({', '.join(e.name for e in f)})" for f in FORMS[op])
    raise ValueError(f"{op}: tensor_lists must be {wanted}; got {len(tensor_lists)}")


def check_lists(op: str, tensor_lists: Any, flag: Tensor | None = None) -> None:
    """Refuse lists that do not run side by side, or hold what the op does not take."""
    form = form_of(op, tensor_lists)
    for i, (each, items) in enumerate(zip(form, tensor_lists, strict=True)):
        name = f"tensor_lists[{i}] ({each.name})"
        if not isinstance(items, (list, tuple)):
            raise TypeError(f"{op}: {name} must be a list of tensors; got {type_name(items)}")
        if len(items) != len(tensor_lists[0]):
            raise ValueError(f"{op}: {name} must have {len(tensor_lists[0])} tensors, as the first; got {len(items)}")
    first = tensor_lists[0][0] if tensor_lists[0] else None
    on = flag.device if flag is not None else first.device if isinstance(first, Tensor) else None
    for i, (each, items) in enumerate(zip(form, tensor_lists, strict=True)):
        for j, (lead, t) in enumerate(zip(tensor_lists[0], items, strict=True)):
            name = f"tensor_lists[{i}][{j}] (of the {each.name})"
            check_tensor(op, name, t, dtypes=each.dtypes, on=on)
            wanted = 1 if each.one else lead.numel()
            if t.numel() != wanted:
                raise ValueError(f"{op}: {name} must have {wanted} elements; got {t.numel()}")
            if each is V and t.dtype is not tensor_lists[2][j].dtype:
                raise TypeError(f"{op}: {name} must be {tensor_lists[2][j].dtype}, as the first moments; got {t.dtype}")


def check_one(op: str, name: str, value: Any, dtype: torch.dtype, on: Tensor | None = None) -> None:
    """Refuse what is no tensor of a single number of this dtype."""
    check_tensor(op, name, value, dtypes=(dtype,), on=on)
    if value.numel() != 1:
        raise ValueError(f"{op}: {name} must have one element; got {tuple(value.shape)}")


def check_flag(op: str, flag: Any, name: str = "noop_flag") -> None:
    check_one(op, name, flag, torch.int32)


def check_norm(op: str, noop_flag: Any, per_tensor: Any, inv_scale: Any = None, unscale: bool = False) -> None:
    check_flag(op, noop_flag)
    if unscale:
        check_one(op, "inv_scale", inv_scale, torch.float32, noop_flag)
    if per_tensor is not None and not isinstance(per_tensor, (bool, int)):
        raise TypeError(f"{op}: per_tensor must be a bool or None; got {type_name(per_tensor)}")


class Adam(NamedTuple):
    """The numbers of a step, as callers give them."""

    lr: Any
    beta1: Any
    beta2: Any
    epsilon: Any
    step: Any
    mode: Any
    bias_correction: Any
    weight_decay: Any

    def check(self, op: str, flag: Any, inv_scale: Any = None, held: bool = False) -> None:
        """Refuse what is no number; with `held`, what is no number in a tensor beside the flag."""
        check_flag(op, flag)
        if held:
            check_one(op, "lr", self.lr, torch.float32, flag)
            check_one(op, "step", self.step, torch.int32, flag)
            check_one(op, "inv_scale", inv_scale, torch.float32, flag)
        else:
            check_number(op, "lr", self.lr)
            check_int(op, "step", self.step, 1 if self.bias_correction else None)
        for name in ("beta1", "beta2", "epsilon", "weight_decay"):
            check_number(op, name, getattr(self, name))
        check_choice(op, "mode", self.mode, (0, 1))
        check_choice(op, "bias_correction", self.bias_correction, (0, 1))

    def corrections(self) -> tuple[Any, Any]:
        """What the moments are divided by; in float64, as 1 - 0.999 is nothing for float32."""
        if not self.bias_correction:
            return 1.0, 1.0
        if isinstance(self.step, Tensor):
            of = lambda beta: 1 - torch.full_like(self.step, beta, dtype=torch.float64) ** self.step
            return of(self.beta1).float().reshape(()), of(self.beta2).float().reshape(())
        return 1 - self.beta1**self.step, 1 - self.beta2**self.step

    def moved(self, g: Tensor, w: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weight and moments after the step, of float32 tensors."""
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


def written(t: Tensor, value: Tensor, skip: Tensor | None = None) -> None:
    """Write a value of any shape and dtype into a tensor, unless the flag is set."""
    value = value.reshape(t.shape).to(t.dtype)
    with torch.inference_mode(t.is_inference()), torch.no_grad():  # in this order: the first turns gradients on
        t.copy_(value if skip is None else torch.where(skip, t, value))


def raised(flag: Tensor, bad: Tensor) -> None:
    """Set a flag where something is bad; nothing clears it."""
    written(flag, torch.where(bad, 1, flag.reshape(())))


def abreast(t: Tensor, lead: Tensor) -> Tensor:
    """A companion of a tensor in float32, in the shape of the tensor."""
    return t.float().reshape(lead.shape)


# ---- samples --------------------------------------------------------------------------------------------------------

SIZES = ((5, 7), (64,), (0,), (2, 3, 16))
EXACT = {torch.uint8: Tol(0, 0), torch.int16: Tol(0, 0), torch.int32: Tol(0, 0)}
ADAM = {
    "lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "step": 2, "mode": 1, "bias_correction": 1,
    "weight_decay": 0.1,
}  # fmt: skip
SGD = {
    "wd": 0.1, "momentum": 0.9, "dampening": 0.1, "lr": 1e-2, "nesterov": False, "first_run": False,
    "wd_after_momentum": False, "scale": 0.5,
}  # fmt: skip


def drawn(each: Each, dtype: torch.dtype, device: Any, generator: torch.Generator) -> list[Tensor]:
    """A list of the kind, of the dtype where it may be."""
    kind = dtype if dtype in each.dtypes else each.dtypes[0]
    made = []
    for size in SIZES:
        t = torch.randn((1,) if each.one else size, generator=generator)
        if each in (V, SCALE, AMAX, SCALE_INV) or each.name in ("amaxes", "scales"):
            t = t.abs() + 0.5
        if not kind.is_floating_point:
            t = t * (100 if each is REMAINDERS else 0)
        made.append(t.to(kind).to(device))
    return made


def samples(name: str, *variants: dict[str, Any], flag: int | None = 0, last: tuple[str, ...] = ()) -> Samples:
    """Samples of an op: each variant names its numbers in order, `lists` which form, `flag` what is in the flag.

    Numbers named in `last` are given as tensors.
    """

    def make(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for variant in variants:
            generator = torch.Generator().manual_seed(len(name))
            numbers = {k: v for k, v in variant.items() if k not in ("lists", "flag", "state")}
            words = [f"{k}={v}" for k, v in variant.items()]
            for k in last:
                kind = torch.int32 if k == "step" else torch.float32
                numbers[k] = torch.full((1,), numbers[k], dtype=kind, device=device)
            of = variant.get("state", dtype)
            lists = [
                drawn(each, of if each in (M, V) else dtype, device, generator)
                for each in FORMS[name][variant.get("lists", 0)]
            ]
            noop = None if flag is None else torch.full((1,), variant.get("flag", flag), dtype=torch.int32)
            noop = None if noop is None else noop.to(device)
            yield Sample((2048, noop, lists, *numbers.values()), id=" ".join(words) or "plain")

    return make


def spoiled(good: Samples, **wrong: Any) -> BadSamples:
    """Bad samples: lists that are too few, of other lengths, sizes and dtypes; numbers that are none."""

    def bad(device: torch.device) -> Iterator[BadSample]:
        def lists_with(change: Callable[[list], Any]) -> tuple:
            chunk, flag, lists, *rest = next(iter(good(torch.float32, device))).args
            change(lists)
            return chunk, flag, lists, *rest

        yield BadSample(lists_with(lambda x: x.extend([[]] * 8)), ValueError, "tensor_lists must be .* list", id="more")
        yield BadSample(
            lists_with(lambda x: x[0].__setitem__(0, None)), TypeError, r"tensor_lists\[0\]\[0\].*must be", id="none"
        )
        yield BadSample(
            lists_with(lambda x: x[-1].__setitem__(1, x[-1][1].bool())), TypeError, r"\[1\].*must be .*bool", id="bools"
        )
        yield BadSample(
            lists_with(lambda x: x[-1].__setitem__(0, x[-1][0].to("meta"))), ValueError, "must be on .*meta", id="away"
        )
        if len(lists_with(lambda x: None)[2]) > 1:
            yield BadSample(lists_with(lambda x: x[1].pop()), ValueError, "must have 4 tensors.*got 3", id="few")
            yield BadSample(
                lists_with(lambda x: x[1].__setitem__(1, x[1][1][:-1])), ValueError, "64 elements; got 63", id="short"
            )
        for at, value in wrong.items():
            args = [*lists_with(lambda x: None)]
            args[int(at[1:])] = value
            yield BadSample(tuple(args), TypeError, "must be .*got", id=f"argument {at[1:]}")

    return bad


# ---- scale and norm -------------------------------------------------------------------------------------------------

SCALES = samples("multi_tensor_scale", {"scale": 0.3}, {"scale": -2.0, "flag": 1})
SCALES_HELD = samples("multi_tensor_scale_tensor", {"scale": 0.3}, last=("scale",))


def scaled(flag: Tensor, tensor_lists: Lists, scale: Any) -> None:
    bad = torch.zeros((), dtype=torch.bool, device=flag.device)
    for given, out in zip(*tensor_lists, strict=True):
        bad = bad | ~torch.isfinite(given).all()
        written(out, given.float() * scale)
    raised(flag, bad)


@op(
    space="tex",
    out="",
    mutates=("noop_flag", "tensor_lists"),
    samples=SCALES,
    errors=spoiled(SCALES, _1=None, _3="1"),
)
def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, scale: float) -> None:
    """out = in * scale for lists [in, out]; the flag is set to 1 where an input is not finite, and stops nothing."""
    with torch.no_grad():
        check_flag("multi_tensor_scale", noop_flag)
        check_number("multi_tensor_scale", "scale", scale)
        check_lists("multi_tensor_scale", tensor_lists, noop_flag)
        scaled(noop_flag, tensor_lists, scale)


@op(
    space="tex",
    out="",
    mutates=("is_infinite", "tensor_lists"),
    samples=SCALES_HELD,
    errors=spoiled(SCALES_HELD, _1=None, _3=0.5),
)
def multi_tensor_scale_tensor(chunk_size: int, is_infinite: Tensor, tensor_lists: Lists, scale: Tensor) -> None:
    """multi_tensor_scale with the scale on the device."""
    with torch.no_grad():
        check_flag("multi_tensor_scale_tensor", is_infinite, "is_infinite")
        check_one("multi_tensor_scale_tensor", "scale", scale, torch.float32, is_infinite)
        check_lists("multi_tensor_scale_tensor", tensor_lists, is_infinite)
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
    whole = torch.linalg.vector_norm(each).reshape(1)
    raised(flag, ~torch.isfinite(whole[0]))
    return whole, each if per_tensor else empty


@op(
    space="tex",
    out="norm norms",
    mutates=("noop_flag",),
    samples=NORMS,
    errors=spoiled(NORMS, _1=None, _3="yes"),
)
def multi_tensor_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, per_tensor: bool | None
) -> tuple[Tensor, Tensor]:
    """The norm of all tensors together, float32 [1], and of each if asked for; one that is not finite sets the flag."""
    with torch.no_grad():
        check_norm("multi_tensor_l2norm", noop_flag, per_tensor)
        check_lists("multi_tensor_l2norm", tensor_lists, noop_flag)
        return norms(noop_flag, tensor_lists[0], None, per_tensor)


@op(
    space="tex",
    out="norm norms",
    mutates=("noop_flag",),
    samples=UNSCALED_NORMS,
    errors=spoiled(UNSCALED_NORMS, _1=None, _3=0.5, _4="yes"),
)
def multi_tensor_unscale_l2norm(
    chunk_size: int, noop_flag: Tensor, tensor_lists: Lists, inv_scale: Tensor, per_tensor: bool | None
) -> tuple[Tensor, Tensor]:
    """multi_tensor_l2norm of the tensors times inv_scale; they stay as they are."""
    with torch.no_grad():
        check_norm("multi_tensor_unscale_l2norm", noop_flag, per_tensor, inv_scale, unscale=True)
        check_lists("multi_tensor_unscale_l2norm", tensor_lists, noop_flag)
        return norms(noop_flag, tensor_lists[0], inv_scale, per_tensor)


# ---- Adam -----------------------------------------------------------------------------------------------------------

WRITES = ("tensor_lists",)
ADAM_WRONG = {"_1": None, "_3": "1", "_7": 2.5}
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
HELD = ("lr", "step", "inv_scale")
CAPTURABLE_ADAMS, MASTER_ADAMS = (
    samples(name, {**ADAM, "inv_scale": 0.5}, {**ADAM, "inv_scale": 1.0, "mode": 0, "flag": 1}, last=HELD)
    for name in ("multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master")
)


@op(space="tex", out="", mutates=WRITES, samples=ADAMS, errors=spoiled(ADAMS, **ADAM_WRONG))
def multi_tensor_adam(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """Adam on lists [g, p, m, v] or [g, p, m, v, master]: mode 0 adds weight_decay * w to g, mode 1 to the update.

    With master weights those are what moves, in float32, and p is their rounded copy. The flag is not looked at.
    """
    how = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        how.check("multi_tensor_adam", noop_flag)
        check_lists("multi_tensor_adam", tensor_lists, noop_flag)
        for g, p, m, v, *master in zip(*tensor_lists, strict=True):
            w = master[0] if master else p
            for t, value in zip((p, m, v), how.moved(*(abreast(t, g) for t in (g, w, m, v))), strict=True):
                if t is p and master:
                    written(master[0], value)
                written(t, value)


def whole_weights(written: dict[str, Any]) -> dict[str, Any]:
    """Of parameters and remainders, the float32 weights that they are the halves of.

    The lower half has no tolerance of its own: an error in the weight's last place is one in the remainder's, and may
    carry into the parameter. Even torch's own sqrt differs there between processors.
    """
    found = dict(written)
    for rest in [name for name in written if name.startswith("tensor_lists[4]")]:
        parameter = rest.replace("[4]", "[1]", 1)
        found[f"{parameter} and its remainder"] = joined(found.pop(parameter), found.pop(rest))
    return found


@op(
    space="tex",
    out="",
    mutates=WRITES,
    samples=REMAINDER_ADAMS,
    errors=spoiled(REMAINDER_ADAMS, **ADAM_WRONG),
    compared=whole_weights,
)
def multi_tensor_adam_param_remainder(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    lr: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: int,
    mode: int,
    bias_correction: int,
    weight_decay: float,
) -> None:
    """multi_tensor_adam on [g, p, m, v, remainder]: bfloat16 p, rounded, and 16 bits beside it are a float32 weight."""
    how = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        how.check("multi_tensor_adam_param_remainder", noop_flag)
        check_lists("multi_tensor_adam_param_remainder", tensor_lists, noop_flag)
        for g, p, m, v, low in zip(*tensor_lists, strict=True):
            w = joined(p.reshape(g.shape), low.reshape(g.shape))
            w, new_m, new_v = how.moved(abreast(g, g), w, abreast(m, g), abreast(v, g))
            high, rest = parted(w)
            for t, value in ((p, high), (low, rest), (m, new_m), (v, new_v)):
                written(t, value)


def joined(p: Tensor, low: Tensor) -> Tensor:
    """The float32 whose upper half, rounded to nearest, is p, and whose lower half is `low`."""
    high = p.contiguous().view(torch.int16).int() - (low < 0).int()
    return ((high << 16) | (low.int() & 0xFFFF)).view(torch.float32)


def parted(w: Tensor) -> tuple[Tensor, Tensor]:
    bits = w.contiguous().view(torch.int32)
    low = bits.to(torch.int16)  # wraps: the lower half
    high = ((bits >> 16) + (low < 0)).to(torch.int16)
    return high.view(torch.bfloat16), low


@op(space="tex", out="", mutates=WRITES, samples=FP8_ADAMS, errors=spoiled(FP8_ADAMS, **ADAM_WRONG, _11=torch.int8))
def multi_tensor_adam_fp8(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
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
    """multi_tensor_adam on [g, p, m, v, master, scale, amax, scale_inv]: p is master * scale, as FP8 bytes."""
    how = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        how.check("multi_tensor_adam_fp8", noop_flag)
        check_fp8("multi_tensor_adam_fp8", fp8_dtype)
        check_lists("multi_tensor_adam_fp8", tensor_lists, noop_flag)
        for g, p, m, v, master, scale, amax, scale_inv in zip(*tensor_lists, strict=True):
            w, new_m, new_v = how.moved(*(abreast(t, g) for t in (g, master, m, v)))
            for t, value in ((master, w), (m, new_m), (v, new_v)):
                written(t, value)
            written(p.view(torch.uint8), bytes_of(w * scale.reshape(()), fp8_dtype))
            if w.numel():
                written(amax, torch.maximum(amax.reshape(()), magnitudes(w).max()))
                written(scale_inv, inverse(scale))


def check_fp8(op: str, dtype: Any) -> None:
    if not isinstance(dtype, torch.dtype) or dtype not in FP8_MAX:
        raise TypeError(f"{op}: fp8_dtype must be float8_e4m3fn or float8_e5m2; got {dtype}")


def captured(op: str, flag: Any, tensor_lists: Any, how: Adam, inv_scale: Any) -> None:
    """A step whose learning rate, number and flag are on the device; gradients are unscaled for good."""
    how.check(op, flag, inv_scale, held=True)
    check_lists(op, tensor_lists, flag)
    skip = flag.reshape(()) == 1
    for g, p, m, v, *master in zip(*tensor_lists, strict=True):
        unscaled = g.float() * inv_scale.reshape(())
        w, new_m, new_v = how.moved(unscaled, *(abreast(t, g) for t in (master[0] if master else p, m, v)))
        for t, value in zip((g, p, m, v, *master), (unscaled, w, new_m, new_v, w), strict=False):
            written(t, value, skip)


@op(
    space="tex",
    out="",
    mutates=WRITES,
    samples=CAPTURABLE_ADAMS,
    errors=spoiled(CAPTURABLE_ADAMS, _1=None, _3=0.1, _7=1, _11=1.0),
)
def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
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
    """multi_tensor_adam on [g, p, m, v] with lr, step and inv_scale on the device: nothing if the flag is 1.

    g becomes g * inv_scale.
    """
    how = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        captured("multi_tensor_adam_capturable", noop_flag, tensor_lists, how, inv_scale)


@op(
    space="tex",
    out="",
    mutates=WRITES,
    samples=MASTER_ADAMS,
    errors=spoiled(MASTER_ADAMS, _1=None, _3=0.1, _7=1, _11=1.0),
)
def multi_tensor_adam_capturable_master(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
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
    """multi_tensor_adam_capturable on [g, p, m, v, master]."""
    how = Adam(lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay)
    with torch.no_grad():
        captured("multi_tensor_adam_capturable_master", noop_flag, tensor_lists, how, inv_scale)


# ---- SGD ------------------------------------------------------------------------------------------------------------

SGDS = samples(
    "multi_tensor_sgd",
    SGD,
    {**SGD, "nesterov": True, "dampening": 0.0, "wd_after_momentum": True, "lists": 1},
    {**SGD, "first_run": True, "wd": 0.0},
    {**SGD, "momentum": 0.0, "flag": 1},
    {**SGD, "momentum": 0.0, "lists": 1},
)


def check_sgd(op: str, flag: Any, **numbers: Any) -> None:
    check_flag(op, flag)
    for name, value in numbers.items():
        if name in ("nesterov", "first_run", "wd_after_momentum"):
            check_choice(op, name, value, (0, 1))
        else:
            check_number(op, name, value)


@op(space="tex", out="", mutates=WRITES, samples=SGDS, errors=spoiled(SGDS, _1=None, _3="1", _6="1"))
def multi_tensor_sgd(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: Lists,
    wd: float,
    momentum: float,
    dampening: float,
    lr: float,
    nesterov: bool,
    first_run: bool,
    wd_after_momentum: bool,
    scale: float,
) -> None:
    """SGD on lists [g, w, momentum] or [g, w, momentum, copy of w]; nothing if the flag is set.

    On the first run the momentum becomes g * scale (and decay), without dampening. g stays as it is.
    """
    with torch.no_grad():
        check_sgd(
            "multi_tensor_sgd", noop_flag, wd=wd, momentum=momentum, dampening=dampening, lr=lr, nesterov=nesterov,
            first_run=first_run, wd_after_momentum=wd_after_momentum, scale=scale,
        )  # fmt: skip
        check_lists("multi_tensor_sgd", tensor_lists, noop_flag)
        skip = noop_flag.reshape(()) != 0
        for g, w, kept, *copy in zip(*tensor_lists, strict=True):
            value, weight = g.float() * scale, abreast(w, g)
            if wd and not wd_after_momentum:
                value = value + wd * weight
            if momentum:
                moving = value if first_run else abreast(kept, g) * momentum + (1 - dampening) * value
                value = value + momentum * moving if nesterov else moving
                written(kept, moving, skip)
            if wd and wd_after_momentum:
                value = value + wd * weight
            weight = weight - lr * value
            for t in (w, *copy):
                written(t, weight, skip)


# ---- scales ---------------------------------------------------------------------------------------------------------

SCALE_INVS = samples(
    "multi_tensor_compute_scale_and_scale_inv",
    {"max_fp8": 448.0, "force_pow_2_scales": False, "epsilon": 0.0},
    {"max_fp8": 57344.0, "force_pow_2_scales": True, "epsilon": 1.0},
)
E8M0S = samples("multi_tensor_compute_scale_inv_e8m0", {}, flag=None)


def check_scales(op: str, max_fp8: Any, force_pow_2_scales: Any, epsilon: Any) -> None:
    check_number(op, "max_fp8", max_fp8)
    check_choice(op, "force_pow_2_scales", force_pow_2_scales, (0, 1))
    check_number(op, "epsilon", epsilon)


@op(space="tex", out="", mutates=WRITES, samples=SCALE_INVS, errors=spoiled(SCALE_INVS, _3="448", _5=None))
def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    noop_flag: Tensor | None,
    tensor_lists: Lists,
    max_fp8: float,
    force_pow_2_scales: bool,
    epsilon: float,
) -> None:
    """scale = max_fp8 / amax (1 where that is no number) and scale_inv = 1 / scale, of [amax, scale, scale_inv]."""
    with torch.no_grad():
        check_scales("multi_tensor_compute_scale_and_scale_inv", max_fp8, force_pow_2_scales, epsilon)
        check_lists("multi_tensor_compute_scale_and_scale_inv", tensor_lists)
        for amax, scale, scale_inv in zip(*tensor_lists, strict=True):
            value = scale_from(amax, max_fp8, bool(force_pow_2_scales), epsilon)
            written(scale, value)
            written(scale_inv, inverse(value))


@op(space="tex", out="", mutates=WRITES, samples=E8M0S, errors=spoiled(E8M0S))
def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, dummy: Any, tensor_lists: Lists) -> None:
    """The E8M0 byte of amax / 448, rounded up, of lists [bfloat16 amax, byte]."""
    with torch.no_grad():
        check_lists("multi_tensor_compute_scale_inv_e8m0", tensor_lists)
        for amax, scale_inv in zip(*tensor_lists, strict=True):
            written(scale_inv, exponents(amax.float(), torch.float8_e4m3fn))


LEAST_LOG = -1e4  # of a beta of 0, so that times a step of 0 it is 0


def log_of(beta: float) -> float:
    """For kernels that raise a beta to the power of a step: its logarithm."""
    return math.log(beta) if beta > 0 else LEAST_LOG
