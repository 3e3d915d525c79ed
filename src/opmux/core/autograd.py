"""Eager autograd: one `autograd.Function` per op, generated from the signatures of the op and of its backward.

The generated source names each argument: a loop over arguments, a dict of saved values and a `signature.bind` would
cost more than a small kernel. The forward also picks the backward's implementation, because autograd's worker threads
do not see context variables, and so do not see policy scopes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import wiring
from . import codegen
from .entry import CallingConvention, EntryPoint, dispatch_modes, followed, is_tensor, scope, transforms_active
from .errors import DispatchError
from .tensors import _PLAIN, _wrapped, is_plain, tensors_in

if TYPE_CHECKING:
    from .spec import Gradient, Spec

SavedValues = dict[tuple[str, int], Any]  # key: (kind, index); kind: "in", "out" or "look" (an input's shape and dtype)

# Runs instead of an op's implementation when a gradient is needed. `{special}` is true if an argument is a tensor
# subclass, is wrapped by functorch, or has a wrong type.
ENTRY = """\
def {name}({params}):
    if {special} or _entry.plan.own_gradient or _scope() is not None:
        return _with_gradient({passed})
    return _apply(_raw, {names})
"""

# `_ctx` gets the same attributes that `save_for_backward` and `mark_non_differentiable` set. Setting them here saves
# two Python calls.
FORWARD = """\
def forward(_ctx, _run, {names}):
    _returned = _run({passed})
{unpack}
    _ctx.to_save = {saved}
    _ctx.saved_objects = {objects}
{options}
    return {outs}
"""

BACKWARD = """\
def backward(_ctx, {grads}):
    if _is_grad_enabled():
        return _create_graph(_ctx, {grads_tuple})
{unneeded}
{saved}
    {objects} = _ctx.saved_objects
{merge}
    try:
        _returned = _target({args})
    except Exception as _error:
        _returned = _recover(_error, {packed}, {{}})
{unpack}
    return {returned}
"""


def make_call(spec: Spec, entry: EntryPoint, backward: EntryPoint, traced: Callable[..., Any]) -> Callable[..., Any]:
    """The function that runs a differentiable op so that autograd records it. It takes all arguments of the op."""
    special = [_is_special(name, kind) for name, kind in _kinds(spec).items() if kind != "plain"]
    if not spec.namespace.ours:  # for our own ops, the entry has already checked this
        special.append("_transforms()")
    params = ", ".join(p.split("=")[0] for p in entry.form.params.split(", "))
    text = ENTRY.format(
        name=entry.form.name,
        params=params,
        passed=entry.form.passed,
        names=", ".join(spec.names),
        special=" or ".join(special),
    )

    def slow_path(*args: Any, **kwargs: Any) -> Any:
        return with_gradient(spec, entry, backward, traced, args, kwargs)

    apply = _apply_of(spec, entry, backward)
    names: dict[str, Any] = {
        "_entry": entry,
        "_raw": entry.raw,
        "_apply": apply,
        "_with_gradient": slow_path,
        "_scope": scope.get,
        "_plain": _PLAIN,
        "_wrapped": _wrapped,
        "_all_plain": _all_plain,
        "_transforms": transforms_active,
    }
    names["_apply"] = wiring.accelerate()(spec, entry, backward, apply, lambda other: names.update(_apply=other))
    return codegen.function(text, entry.form.name, f"{spec.name} with a gradient", names)


def with_gradient(
    spec: Spec, entry: EntryPoint, backward: EntryPoint, traced: Callable[..., Any], args: tuple, kwargs: dict
) -> Any:
    """The slow path: for special tensors, policy scopes, autograd.Function impls, and calls by an impl's signature."""
    if transforms_active() or not _all_plain((args, kwargs)):
        return traced(*args, **kwargs)
    _, recover = followed(entry.pair(), args, kwargs)
    chain: Any = getattr(recover, "__self__", None)
    own = None if chain is None else chain.with_own_gradient(args, kwargs)
    run: Callable[..., Any] = lambda *_, **__: entry.raw(*args, **kwargs)
    if chain is not None and own is not None:
        # An autograd.Function runs with its own backward. If its forward fails, the fallback runs with our backward.
        call, index = own
        try:
            return chain.examined(index, call(*args, **kwargs), args, kwargs)
        except Exception as raised:
            if index == 0:
                run = functools.partial(_recover_from, raised, chain.recover, args, kwargs)
    try:
        try:
            full = _all_arguments(spec)(*args, **kwargs)
        except TypeError:  # called with the impl's own signature: autograd records what the impl does
            return entry.raw(*args, **kwargs)
        return _apply_of(spec, entry, backward)(run, *full)
    finally:
        del run  # see `Chain.run`


def _recover_from(error: Exception, recover: Callable[..., Any], args: tuple, kwargs: dict, *_: Any, **__: Any) -> Any:
    try:
        raise error
    except Exception as raised:  # raised again, so that it is the context of the exception that `recover` raises
        return recover(raised, args, kwargs)
    finally:
        del error  # see `Chain.run`


@functools.cache
def _all_arguments(spec: Spec) -> Callable[..., tuple]:
    """A function that returns all arguments of the op in order. It is ten times faster than `signature.bind`."""
    form = CallingConvention.of(spec.name, spec.signature, differentiable=False)
    text = f"def {form.name}({form.params}):\n    return ({', '.join(spec.names)},)\n"
    return codegen.function(text, form.name, f"arguments of {spec.name}", dict(form.defaults))


def _apply_of(spec: Spec, entry: EntryPoint, backward: EntryPoint) -> Callable[..., Any]:
    """`apply` of the op's Function; one per entry, because each entry has its own backward.

    This is the C function that `autograd.Function.apply` calls. That Python function is skipped, because the entry has
    already made its checks (transforms, dead functorch wrappers).
    """
    apply = entry.apply
    if apply is None:
        body = _make_forward_and_backward(spec, backward)
        function: Any = type(name_of(spec), (torch.autograd.Function,), {n: staticmethod(f) for n, f in body.items()})
        parent: Any = super(torch.autograd.Function, function)
        apply = entry.apply = parent.apply
    return apply


def name_of(spec: Spec) -> str:
    """The name of the op's Function."""
    return "".join(word.capitalize() for word in spec.name.split("_"))


# ---- generated source -----------------------------------------------------------------------------------------------


def _kinds(spec: Spec) -> dict[str, str]:
    """The kind of each argument: "tensor", "optional" (tensor or None), "mixed" (tensor or other) or "plain"."""
    kinds = {}
    for p in spec.signature.parameters.values():
        if is_tensor(p.annotation):
            kinds[p.name] = "tensor"
        elif is_tensor(p.annotation, optional=True):
            kinds[p.name] = "optional"
        elif p.annotation in (Any, p.empty) or Tensor in getattr(p.annotation, "__args__", ()):
            kinds[p.name] = "mixed"
        else:
            kinds[p.name] = "plain"
    return kinds


def _is_special(name: str, kind: str) -> str:
    """A Python expression that is true if an argument is not a plain tensor."""
    if kind == "mixed":
        return f"not _all_plain({name})"
    condition = f"type({name}) not in _plain or _wrapped({name})"
    return condition if kind == "tensor" else f"({name} is not None and ({condition}))"


def _all_plain(value: Any) -> bool:
    return all(is_plain(t) for t in tensors_in(value))


class Saved:
    """What an op's forward saves: tensors by `save_for_backward`, other arguments as attributes of the context."""

    def __init__(self, spec: Spec):
        self.kinds = _kinds(spec)
        self.tensors: list[tuple[str, int]] = []
        for source in sorted({s for s in spec.gradient.sources if s[0] != "grad"}):
            if source[0] == "out" or self.kinds[spec.names[source[1]]] != "plain":
                self.tensors.append(source)
        self.others = [i for i, n in enumerate(spec.names) if self.kinds[n] in ("plain", "mixed")]

    def values(self, ctx: Any) -> tuple[SavedValues, dict[int, Any]]:
        """The saved values by source (see `SavedValues`), and the non-tensor arguments by position."""
        values: SavedValues = dict(zip(self.tensors, ctx.saved_tensors, strict=True))
        numbers = dict(zip(self.others, ctx.saved_objects[1:], strict=True))
        for i, value in numbers.items():
            if values.get(("in", i)) is None:
                values["in", i] = value
        return values, numbers


def _make_forward_and_backward(spec: Spec, backward: EntryPoint) -> dict[str, Callable[..., Any]]:
    """Forward and backward of an op's Function."""
    plan, saved = spec.gradient, Saved(spec)

    def create_graph(ctx: Any, grads: tuple) -> tuple:
        needed = ctx.needs_input_grad[1:]
        if all(grads[i] is None for kind, i in plan.sources if kind == "grad"):
            return (None,) * (1 + len(needed))
        return (None, *differentiable_backward(spec, grads, *saved.values(ctx), needed))

    names = {
        "_Tensor": Tensor,
        "_backward_pair": backward.pair,
        "_is_grad_enabled": torch.is_grad_enabled,
        "_create_graph": create_graph,
        "_results": functools.partial(results_of, spec),
        "_gradients": functools.partial(results_of, plan.backward),
        "_shape_only": shape_only,
    }
    functions = {}
    for name, text in (("forward", _forward_text(spec, saved)), ("backward", _backward_text(spec, saved))):
        lines = [line for line in text.splitlines(keepends=True) if line.strip()]
        functions[name] = codegen.function("".join(lines), name, f"{name} of {spec.name}", names)
    return functions


def _forward_text(spec: Spec, saved: Saved) -> str:
    plan, outs = spec.gradient, [f"_out_{n}" for n in spec.out]
    saves = []
    for kind, i in saved.tensors:
        name = outs[i] if kind == "out" else spec.names[i]
        if kind == "look":
            name = f"_shape_only({name})"
        elif kind == "in" and saved.kinds[name] == "mixed":
            name = f"{name} if isinstance({name}, _Tensor) else None"
        saves.append(name)
    objects = ["_backward_pair()"]
    for name in (spec.names[i] for i in saved.others):
        mixed = saved.kinds[name] == "mixed"
        objects.append(f"None if isinstance({name}, _Tensor) else {name}" if mixed else name)
    constants = [o for o, d in zip(outs, plan.differentiable, strict=True) if not d]
    options = [f"    _ctx.non_differentiable = {_tuple(constants)}"] if constants else []
    # By default autograd replaces a missing gradient by zeros, which costs one kernel launch per unused result.
    if sum(plan.differentiable) == 1:
        options.append("    _ctx.materialize_grads = False")
    elif constants:
        options.append("    _ctx._materialize_non_diff_grads = False")
    return FORWARD.format(
        names=", ".join(spec.names),
        passed=CallingConvention.of(spec.name, spec.signature, differentiable=False).passed,
        unpack=_unpack(outs, "_results"),
        saved=_tuple(saves),
        objects=_tuple(objects),
        options="\n".join(options),
        outs=", ".join(outs),
    )


def _backward_text(spec: Spec, saved: Saved) -> str:
    plan = spec.gradient
    grads = [f"_grad_{n}" for n in spec.out]
    mixed = [spec.names[i] for i in saved.others if saved.kinds[spec.names[i]] == "mixed"]
    value = {("in", i): n for i, n in enumerate(spec.names)} | {("look", i): n for i, n in enumerate(spec.names)}
    value |= {("out", i): f"_out_{n}" for i, n in enumerate(spec.out)} | {("grad", i): n for i, n in enumerate(grads)}
    in_graph = {spec.names[i] for kind, i in saved.tensors if kind == "in"}
    merge = [f"    {n} = _saved_{n} if {n} is None else {n}" for n in mixed if n in in_graph]
    merge += [f"    {n} = _saved_{n}" for n in mixed if n not in in_graph]
    objects = [f"_saved_{spec.names[i]}" if spec.names[i] in mixed else spec.names[i] for i in saved.others]
    results = [f"_d_{spec.names[i]}" for i in plan.targets]
    returned = ["None"] * (1 + len(spec.names))
    for i, result in zip(plan.targets, results, strict=True):
        # autograd ignores a gradient for a tensor that needs none, but raises on a gradient for None
        sure = saved.kinds[spec.names[i]] == "tensor"
        returned[1 + i] = result if sure else f"{result} if _ctx.needs_input_grad[{1 + i}] else None"
    unneeded = []
    if sum(plan.differentiable) == 1:
        unneeded.append(f"{grads[plan.differentiable.index(True)]} is None")
    if any(k != "plain" and i not in plan.targets for i, k in enumerate(saved.kinds.values())):
        needs = [f"_ctx.needs_input_grad[{1 + i}]" for i in sorted(plan.targets)]
        unneeded.append(f"not ({' or '.join(needs)})")
    no_gradients = _tuple(["None"] * len(returned))
    return BACKWARD.format(
        grads=", ".join(grads),
        grads_tuple=_tuple(grads),
        unneeded=f"    if {' or '.join(unneeded)}:\n        return {no_gradients}" if unneeded else "",
        saved=f"    {_tuple([value[s] for s in saved.tensors])} = _ctx.saved_tensors" if saved.tensors else "",
        objects=_tuple(["(_target, _recover)", *objects]),
        merge="\n".join(merge),
        args=", ".join(value[s] for s in plan.sources),
        packed=_tuple([value[s] for s in plan.sources]),
        unpack=_unpack(results, "_gradients"),
        returned=_tuple(returned),
    )


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _unpack(names: list[str], convert: str) -> str:
    """Source lines that unpack what an impl returned: a tuple of results, or a single tensor."""
    if len(names) == 1:
        return f"    {names[0]} = _returned if type(_returned) is _Tensor else {convert}(_returned)[0]"
    wrong = f"type(_returned) is not tuple or len(_returned) != {len(names)}"
    return f"    if {wrong}:\n        _returned = {convert}(_returned)\n    {_tuple(names)} = _returned"


def shape_only(value: Tensor) -> Tensor:
    """An expanded one-element tensor with this shape and dtype, for a backward that does not read the argument's data.

    The element is shared by all calls, because allocating it takes longer than the rest of a forward.
    """
    if dispatch_modes():  # a mode may return a fake tensor
        return value.new_empty(()).expand(value.shape)
    return _element(value.dtype, value.device).expand(value.shape)


@functools.cache
def _element(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty((), dtype=dtype, device=device)


def results_of(spec: Spec, results: Any) -> tuple:
    """The results that an impl returned, as a tuple; raises if their number is wrong."""
    outs = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    if len(outs) != len(spec.out):
        raise DispatchError(
            f"an impl of {spec.key} returned {len(outs)} results; the op has {len(spec.out)}: {spec.out}"
        )
    return outs


# ---- create_graph=True ----------------------------------------------------------------------------------------------


def differentiable_backward(
    spec: Spec, grads: tuple, saved_values: SavedValues, numbers: dict[int, Any], needed: tuple[bool, ...]
) -> list[Any]:
    """Gradients that torch can differentiate again: the backward's reference computes them from values in the graph.

    A saved result that is not differentiable (the rstd of a norm) would be a constant in the graph, so it is recomputed
    from the arguments. If the arguments were not saved, differentiating the gradients raises.
    """
    plan = spec.gradient
    saved = [i for kind, i in plan.sources if kind == "out" and not plan.differentiable[i]]
    constants = [i for i in saved if _is_float(saved_values["out", i])]
    if constants:
        recomputed = _recomputed(spec, saved_values, numbers)
        if recomputed is None:
            with torch.no_grad():
                results = plan.backward.reference(*backward_args(plan, grads, saved_values))
            return _raise_if_differentiated_again(spec, gradients_by_argument(plan, results, needed))
        saved_values = {**saved_values, **{("out", i): recomputed[i] for i in constants}}
    return gradients_by_argument(plan, plan.backward.reference(*backward_args(plan, grads, saved_values)), needed)


def _recomputed(spec: Spec, saved_values: SavedValues, numbers: dict[int, Any]) -> tuple | None:
    """The results of the forward, recomputed from its saved arguments; None if some were not saved.

    An optional argument that the backward does not take (a bias) is None here. It does not change the results that the
    backward takes.
    """
    known = {spec.names[i]: v for i, v in numbers.items()}
    if spec.recompute is not None:
        known |= {(spec.out if kind == "out" else spec.names)[i]: v for (kind, i), v in saved_values.items()}
        return spec.recompute(**known)
    known |= {spec.names[i]: v for (kind, i), v in saved_values.items() if kind == "in"}
    if any(spec.names[i] not in known for i in spec.required):
        return None
    left_out = {n: None for n, kind in _kinds(spec).items() if kind != "plain"}
    return results_of(spec, spec.reference(**left_out | known))


def backward_args(plan: Gradient, grads: tuple, saved_values: SavedValues) -> list[Any]:
    return [grads[i] if kind == "grad" else saved_values[kind, i] for kind, i in plan.sources]


def gradients_by_argument(plan: Gradient, results: Any, needed: tuple[bool, ...]) -> list[Any]:
    """One gradient per argument of the forward, in order; None for an argument that needs none."""
    returned: list[Any] = [None] * len(needed)
    for index, gradient in zip(plan.targets, results_of(plan.backward, results), strict=True):
        if index < len(needed) and needed[index]:  # `needed` is shorter if trailing defaults were omitted
            returned[index] = gradient
    return returned


def _raise_if_differentiated_again(spec: Spec, gradients: list[Any]) -> list[Any]:
    """Make gradients of create_graph=True raise if they are differentiated; otherwise they would act as constants.

    (`once_differentiable` raises only if the incoming gradient requires grad. The gradient of `y.sum()` does not.)
    """
    message = f"{spec.key} can be differentiated once: its backward has no gradient of its own".encode()
    raises = torch._C._functions.DelayedError(message, sum(g is not None for g in gradients))  # pyright: ignore[reportAttributeAccessIssue]
    outputs = raises(*(g.detach().requires_grad_() for g in gradients if g is not None))
    marked = iter(outputs if isinstance(outputs, tuple) else (outputs,))
    return [None if g is None else next(marked) for g in gradients]


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
