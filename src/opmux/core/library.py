"""Registration with torch: schema, kernel, fake kernel and gradient in `torch.ops.opmux`, and the hooks for Dynamo.

In compiled code, the op in torch.ops is one opaque call. Eager code does not go through torch's dispatcher, which takes
5 us to call a Python kernel (20 us for `custom_op`). Gradients of eager code are in `autograd.py`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import wiring
from . import autocast, autograd
from .entry import CallingConvention, EntryPoint, dispatch_modes, forward_ad, transforms_active
from .tensors import is_real, tensors_in

if TYPE_CHECKING:
    from .spec import Spec

_libraries: dict[str, torch.library.Library] = {}

# Set while our kernels override ATen's ops. It wraps a reference so that the torch ops it calls run ATen's kernels.
reference_guard: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None


def make_entry(spec: Spec, entries: Mapping[str, EntryPoint]) -> EntryPoint:
    """The entry of a spec, bound on first call by the default manager; `entries` has the entries of all specs."""

    def bind(entry: EntryPoint) -> None:
        wiring.manager().bind_typed(spec, entry)

    def under(entry: EntryPoint, policy: Any) -> Any:
        return wiring.manager().typed_pair(spec, entry, policy)

    def differentiable(*args: Any, **kwargs: Any) -> Any:
        """Runs at the first call that needs a gradient. By then the backward is declared."""
        entry.globals["_g"] = made = autograd.make_call(spec, entry, entries[spec.gradient.backward.key], traced)
        return made(*args, **kwargs)

    def traced(*args: Any, **kwargs: Any) -> Any:
        return run_traceable(spec, args, kwargs)

    native = spec.namespace.torchs
    form = CallingConvention.of(spec.name, spec.signature, differentiable=native or spec.grad is not None)
    form.native, form.check, form.traced = native, spec.check, traced
    if spec.primitive and not native:
        form.recast = autocast.recovering(spec, lambda: entry.fn)
    form.asks = spec.primitive and not dynamo_has_hooks()
    entry = EntryPoint(form, bind, under, spec.reference if native else differentiable)
    return entry


# ---- torch.library --------------------------------------------------------------------------------------------------


def define(spec: Spec, entry: EntryPoint) -> None:
    """Register the op's schema, kernel, fake kernel and gradient in torch.ops, and make Dynamo trace that op."""
    lib = _libraries[spec.key] = torch.library.Library(spec.space, "FRAGMENT")  # first, so that `undefine` finds it
    schema = spec.schema or torch.library.infer_schema(spec.reference, mutates_args=spec.mutates)
    lib.define(f"{spec.name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return entry.raw(*args, **kwargs)

    lib.impl(spec.name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(spec.key, spec.fake or spec.reference, lib=lib)
    if spec.grad is not None:
        _define_gradient(spec, lib)
    show_to_dynamo(spec, entry)


def undefine(spec: Spec) -> None:
    lib = _libraries.pop(spec.key, None)
    if lib is not None:
        lib._destroy()


def _define_gradient(spec: Spec, lib: torch.library.Library) -> None:
    def setup(ctx: Any, inputs: tuple, output: Any) -> None:
        outs = output if isinstance(output, tuple) else (output,)
        saves = sorted({s for s in spec.gradient.sources if s[0] != "grad"})
        kept = [_kept(kind, outs[i] if kind == "out" else inputs[i]) for kind, i in saves]
        ctx.save_for_backward(*(k for k in kept if isinstance(k, Tensor)))
        ctx.kept = [(s, None if isinstance(k, Tensor) else (k,)) for s, k in zip(saves, kept, strict=True)]
        ctx.numbers = {i: a for i, a in enumerate(inputs) if not isinstance(a, Tensor)}

    def backward(ctx: Any, *grads: Any) -> Any:
        plan = spec.gradient
        saved = iter(ctx.saved_tensors)
        found = {s: next(saved) if plain is None else plain[0] for s, plain in ctx.kept}
        if torch.is_grad_enabled():  # create_graph=True
            return tuple(autograd.differentiable_backward(spec, grads, found, ctx.numbers, ctx.needs_input_grad))
        results = packet(plan.backward)(*autograd.backward_args(plan, grads, found))
        return tuple(autograd.gradients_by_argument(plan, results, ctx.needs_input_grad))

    torch.library.register_autograd(spec.key, backward, setup_context=setup, lib=lib)


def _kept(kind: str, value: Any) -> Any:
    """The value to save. If the backward needs only shape and dtype ("look"), an expanded one-element tensor."""
    return value.new_empty(()).expand(value.shape) if kind == "look" else value


def packet(spec: Spec) -> Any:
    """The op in torch.ops."""
    return getattr(getattr(torch.ops, spec.space), spec.name)


def run_traceable(spec: Spec, args: tuple, kwargs: dict) -> Any:
    """Run an op so that torch's tracers and transforms can see it.

    A tracer or a dispatch mode sees the op in torch.ops. That op has no rules for forward AD, functorch and tensor
    subclasses. For these the reference runs, which is written in PyTorch ops.
    """
    looked_at = dispatch_modes() or any(not is_real(t) for t in tensors_in((args, kwargs)))
    if spec.namespace.ours and looked_at and forward_ad._current_level < 0 and not transforms_active():
        return packet(spec)(*args, **kwargs)
    fn = spec.reference
    return (fn if reference_guard is None else reference_guard(fn))(*args, **kwargs)


@functools.cache
def dynamo_has_hooks() -> bool:
    """Whether Dynamo's source has the private hooks that make it trace another function instead of an entry."""
    dynamo = Path(torch.__file__).parent / "_dynamo"
    inner, outer = dynamo / "variables" / "functions.py", dynamo / "eval_frame.py"
    return all(
        source.is_file() and words in source.read_text(encoding="utf-8")
        for source, words in ((inner, '"_torchdynamo_inline"'), (outer, '"_torchdynamo_orig_callable"'))
    )


def show_to_dynamo(spec: Spec, entry: EntryPoint) -> None:
    """Make Dynamo trace the op in torch.ops instead of the entry, whose ContextVar would break fullgraph=True.

    One hook is for an op called inside compiled code, the other for `torch.compile(opmux.ops.x)` itself. Without these
    hooks, the entry checks on each call whether it is being compiled, which takes 180 ns.
    """
    form, fn = entry.form, entry.fn
    instead = packet(spec).default if spec.namespace.ours else spec.reference
    entry.globals["_op"] = instead
    if form.asks:
        return
    traced = types.FunctionType(_under_dynamo.__code__, {"__builtins__": __builtins__, "_op": instead}, form.name)
    hooks: Any = fn
    hooks._torchdynamo_inline = hooks._torchdynamo_orig_callable = traced
    hooks._torchdynamo_wrapper_id = id(fn)


def _under_dynamo(*args: Any, **kwargs: Any) -> Any:
    """The code that Dynamo traces instead of an entry."""
    return _op(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821 - a global of the function


def fake_call(spec: Spec, args: tuple, kwargs: dict) -> Any:
    """Fake tensors with the shape, dtype and device of the op's results; no data is read."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_map_only

    with FakeTensorMode() as mode, torch.no_grad():
        fake_args, fake_kwargs = tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
        return (spec.fake or spec.reference)(*fake_args, **fake_kwargs)
