"""An op as torch sees it: schema, kernel, fake kernel and gradient in `torch.ops.opmux`, and eager autograd.

Compiled code sees the opaque op; eager code never goes through torch's dispatcher to reach ours (a Python kernel
behind it costs 5 us, `custom_op` 20). Autograd in eager is one `autograd.Function` per op, which takes the backward's
binding along from the forward: context variables do not reach autograd's worker threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import wiring
from .errors import DispatchError
from .facts import is_plain, is_real, tensors
from .jump import Form, Jump, forward_ad, live_modes, transforms_active

if TYPE_CHECKING:
    from .spec import Spec

_libraries: dict[str, torch.library.Library] = {}

# Wraps a reference before it runs, while ATen itself may lead to our kernels: a reference must not come back to them.
reference_guard: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None


def whole_reference(spec: Spec) -> Callable[..., Any]:
    """An op's reference, of a composition with the references of its parts."""
    return spec.reference if spec.primitive else wiring.manager().reference(spec)


def make_jump(spec: Spec, jumps: Mapping[str, Jump]) -> Jump:
    """The stable function of a spec, bound on first call by the default manager; `jumps` has those of all specs."""

    def bind(jump: Jump) -> None:
        wiring.manager().bind_typed(spec, jump)

    def under(jump: Jump, policy: Any) -> Any:
        return wiring.manager().typed_pair(spec, jump, policy)

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        return with_gradient(spec, jump, jumps[spec.gradient.backward.key], args, kwargs)

    def live(*args: Any, **kwargs: Any) -> Any:
        return visible(spec, args, kwargs)

    native = spec.space == "aten"
    form = Form.of(spec.name, spec.signature, differentiable=native or spec.grad is not None)
    form.native, form.check, form.live = native, spec.check, live
    form.asks = spec.primitive and not dynamo_has_hooks()
    jump = Jump(form, bind, under, spec.reference if native else differentiable)
    return jump


# ---- eager autograd -------------------------------------------------------------------------------------------------


def with_gradient(spec: Spec, jump: Jump, backward: Jump, args: tuple, kwargs: dict) -> Any:
    """Run a differentiable op so that autograd records it; forward and backward are chosen here, together."""
    if transforms_active() or not all(is_plain(t) for t in tensors((args, kwargs))):
        return visible(spec, args, kwargs)
    pair = jump.pair()
    target, recover = getattr(pair[0], "follow", lambda *given: pair)(args, kwargs)
    error = None
    chain: Any = getattr(recover, "__self__", None)
    own = None if chain is None else chain.with_own_gradient(args, kwargs)
    if chain is not None and own is not None:
        # an autograd.Function: it keeps what it likes and brings its own backward; if it fails, ours takes over
        call, place = own
        try:
            return chain.examined(place, call(*args, **kwargs), args, kwargs)
        except Exception as raised:
            if place == 0:
                error, recover = raised, chain.recover
    how = (target, recover, error, len(args), tuple(kwargs), backward.pair())
    if kwargs or len(args) < len(spec.names):  # by name, with defaults left out; binding costs 10 us
        try:
            bound = spec.signature.bind(*args, **kwargs)
        except TypeError:  # called by an interface of the impl's own: autograd sees the impl
            return jump.raw(*args, **kwargs)
        bound.apply_defaults()
        args = tuple(bound.arguments.values())
    return _function(spec).apply(how, *args)


@functools.cache
def _function(spec: Spec) -> Any:
    """The autograd.Function of an op. What it saves is the op's declared arguments and results, nothing private."""
    plan = spec.gradient
    saves = sorted({s for s in plan.sources if s[0] != "grad"})

    def forward(ctx: Any, how: tuple, *args: Any) -> Any:
        target, recover, error, count, keywords, ctx.backward_pair = how
        given, named = args[:count], {n: args[spec.names.index(n)] for n in keywords}
        try:
            if error is not None:
                raise error
            results = target(*given, **named)
        except Exception as raised:
            results = recover(raised, given, named)
        outs = _results(spec, results)
        kept = _kept(saves, args, outs)
        ctx.save_for_backward(*(k if isinstance(k, Tensor) else None for k in kept))
        ctx.plain = [None if isinstance(k, Tensor) else k for k in kept]
        ctx.numbers = [_TENSOR if isinstance(a, Tensor) else a for a in args]
        ctx.mark_non_differentiable(*(o for o, d in zip(outs, plan.differentiable, strict=True) if not d))
        return outs if isinstance(results, (tuple, list)) else results

    def backward(ctx: Any, *grads: Any) -> Any:
        kept = [p if t is None else t for t, p in zip(ctx.saved_tensors, ctx.plain, strict=True)]
        found = dict(zip(saves, kept, strict=True))
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # create_graph=True
            return (None, *_differentiable_backward(spec, grads, found, ctx.numbers, needed))
        args = tuple(grads[i] if kind == "grad" else found[kind, i] for kind, i in plan.sources)
        target, recover = ctx.backward_pair
        try:
            results = target(*args)
        except Exception as error:
            results = recover(error, args, {})
        return (None, *_deal(plan, results, needed))

    name = "".join(word.capitalize() for word in spec.name.split("_"))
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), body)


def _differentiable_backward(
    spec: Spec, grads: tuple, found: dict[tuple[str, int], Any], numbers: list[Any], needed: tuple[bool, ...]
) -> list[Any]:
    """Gradients that torch can differentiate again: the backward's reference, on values that are part of the graph.

    A saved result that has no gradient of its own (the rstd of a norm) would count as a constant. It is computed again
    from the arguments; where those were not saved, the gradients raise when they are differentiated.
    """
    plan = spec.gradient
    lost = [i for kind, i in plan.sources if kind == "out" and not plan.differentiable[i] and _is_float(found[kind, i])]
    if lost:
        again = _recomputed(spec, found, numbers)
        if again is None:
            with torch.no_grad():
                results = plan.backward.reference(*_sources(plan, grads, found))
            return _once(spec, _deal(plan, results, needed))
        found = {**found, **{("out", i): again[i] for i in lost}}
    return _deal(plan, plan.backward.reference(*_sources(plan, grads, found)), needed)


_TENSOR = object()  # stands for a tensor argument among the numbers that a forward keeps


def _recomputed(spec: Spec, found: dict[tuple[str, int], Any], numbers: list[Any]) -> tuple | None:
    """The results of a forward, from what was saved of its arguments; None where too little was.

    An optional argument that the backward does not take (a bias) has no part in the results that it does take.
    """
    if spec.recompute is not None:
        known = {spec.names[i]: v for i, v in enumerate(numbers) if v is not _TENSOR}
        known |= {(spec.out if kind == "out" else spec.names)[i]: v for (kind, i), v in found.items()}
        return spec.recompute(**known)
    args = [found.get(("in", i), None if v is _TENSOR else v) for i, v in enumerate(numbers)]
    if any(v is _TENSOR and ("in", i) not in found and i in spec.required for i, v in enumerate(numbers)):
        return None
    return _results(spec, spec.reference(*args))


def _sources(plan: Any, grads: tuple, found: dict[tuple[str, int], Any]) -> list[Any]:
    return [grads[i] if kind == "grad" else found[kind, i] for kind, i in plan.sources]


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _kept(saves: list[tuple[str, int]], inputs: tuple, outs: tuple) -> list[Any]:
    """What a forward keeps for its backward; of what is looked at alone, a tensor of that look with no memory."""
    kept = []
    for kind, i in saves:
        value = outs[i] if kind == "out" else inputs[i]
        kept.append(value.new_empty(()).expand(value.shape) if kind == "look" else value)
    return kept


def _results(spec: Spec, results: Any) -> tuple:
    """What an impl returned, as a tuple of the op's results; an error that names the op where there are others."""
    outs = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    if len(outs) != len(spec.out):
        raise DispatchError(
            f"an impl of {spec.key} returned {len(outs)} results; the op has {len(spec.out)}: {spec.out}"
        )
    return outs


def _once(spec: Spec, gradients: list[Any]) -> list[Any]:
    """Gradients under create_graph=True: they raise when differentiated again, as they would otherwise be constants.

    (`once_differentiable` looks at the incoming gradient alone, and lets `y.sum()` through.)
    """
    words = f"{spec.key} can be differentiated once: its backward has no gradient of its own".encode()
    raises = torch._C._functions.DelayedError(words, sum(g is not None for g in gradients))  # pyright: ignore[reportAttributeAccessIssue]
    made = raises(*(g.detach().requires_grad_() for g in gradients if g is not None))
    marked = iter(made if isinstance(made, tuple) else (made,))
    return [None if g is None else next(marked) for g in gradients]


def _deal(plan: Any, results: Any, needed: tuple[bool, ...]) -> list[Any]:
    """Gradients in the order of the forward's arguments; None where none is wanted."""
    dealt: list[Any] = [None] * len(needed)
    for index, gradient in zip(plan.targets, _results(plan.backward, results), strict=True):
        if index < len(needed) and needed[index]:  # torch.ops leaves trailing defaults out
            dealt[index] = gradient
    return dealt


# ---- torch.library --------------------------------------------------------------------------------------------------


def define(spec: Spec, jump: Jump) -> None:
    """Give the op its schema, kernel, fake and gradient in torch.ops, and let Dynamo see that instead of us."""
    lib = _libraries[spec.key] = torch.library.Library(spec.space, "FRAGMENT")  # kept at once: `undefine` must find it
    schema = spec.schema or torch.library.infer_schema(spec.reference, mutates_args=spec.mutates)
    lib.define(f"{spec.name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return jump.raw(*args, **kwargs)

    lib.impl(spec.name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(spec.key, spec.fake or spec.reference, lib=lib)
    if spec.grad is not None:
        _define_gradient(spec, lib)
    show_to_dynamo(spec, jump)


def undefine(spec: Spec) -> None:
    lib = _libraries.pop(spec.key, None)
    if lib is not None:
        lib._destroy()


def _define_gradient(spec: Spec, lib: torch.library.Library) -> None:
    def setup(ctx: Any, inputs: tuple, output: Any) -> None:
        plan = spec.gradient
        outs = output if isinstance(output, tuple) else (output,)
        saves = sorted({s for s in plan.sources if s[0] != "grad"})
        kept = _kept(saves, inputs, outs)
        ctx.save_for_backward(*(k for k in kept if isinstance(k, Tensor)))
        ctx.kept = [(s, None if isinstance(k, Tensor) else (k,)) for s, k in zip(saves, kept, strict=True)]
        ctx.numbers = [_TENSOR if isinstance(a, Tensor) else a for a in inputs]

    def backward(ctx: Any, *grads: Any) -> Any:
        plan = spec.gradient
        saved = iter(ctx.saved_tensors)
        found = {s: next(saved) if plain is None else plain[0] for s, plain in ctx.kept}
        if torch.is_grad_enabled():  # create_graph=True
            return tuple(_differentiable_backward(spec, grads, found, ctx.numbers, ctx.needs_input_grad))
        results = packet(plan.backward)(*_sources(plan, grads, found))
        return tuple(_deal(plan, results, ctx.needs_input_grad))

    torch.library.register_autograd(spec.key, backward, setup_context=setup, lib=lib)


def packet(spec: Spec) -> Any:
    """The op in torch.ops."""
    return getattr(getattr(torch.ops, spec.space), spec.name)


def visible(spec: Spec, args: tuple, kwargs: dict) -> Any:
    """Compute an op in a form that torch can look into.

    A tracer or a dispatch mode sees the op in torch.ops. Forward AD and functorch need formulas that the op does not
    have, and subclasses rules: they see its reference, which is plain PyTorch.
    """
    looked_at = live_modes() or any(not is_real(t) for t in tensors((args, kwargs)))
    if spec.space == "opmux" and looked_at and forward_ad._current_level < 0 and not transforms_active():
        return packet(spec)(*args, **kwargs)
    fn = whole_reference(spec)
    return (fn if reference_guard is None else reference_guard(fn))(*args, **kwargs)


@functools.cache
def dynamo_has_hooks() -> bool:
    """Whether this torch's Dynamo can be told to trace another function: private hooks, so its source is asked."""
    dynamo = Path(torch.__file__).parent / "_dynamo"
    inner, outer = dynamo / "variables" / "functions.py", dynamo / "eval_frame.py"
    return all(
        source.is_file() and words in source.read_text(encoding="utf-8")
        for source, words in ((inner, '"_torchdynamo_inline"'), (outer, '"_torchdynamo_orig_callable"'))
    )


def show_to_dynamo(spec: Spec, jump: Jump) -> None:
    """Let Dynamo trace the op instead of the jump: a ContextVar or a lock on the path would fail fullgraph.

    One hook is for the op called inside compiled code, the other for `torch.compile(opmux.ops.x)` itself. Where there
    are none, the jump's text asks whether it is being compiled, which costs eager calls 180 ns.
    """
    form, fn = jump.form, jump.fn
    instead = packet(spec).default if spec.space == "opmux" else spec.reference
    jump.globals["_op"] = instead
    if form.asks:
        return
    names = {"_op": instead, **form.defaults}
    text = f"def {form.name}({form.params}):\n    return _op({form.passed})\n"
    exec(compile(text, f"<opmux {form.name} under torch.compile>", "exec"), names)
    hooks: Any = fn
    hooks._torchdynamo_inline = hooks._torchdynamo_orig_callable = names[form.name]
    hooks._torchdynamo_wrapper_id = id(fn)


def fake_call(spec: Spec, args: tuple, kwargs: dict) -> Any:
    """What the op returns for tensors like these, in shape, dtype and device, with no data touched."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map_only

    with FakeTensorMode() as mode, torch.no_grad():
        fake_args, fake_kwargs = tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
        return (spec.fake or spec.reference)(*fake_args, **fake_kwargs)
