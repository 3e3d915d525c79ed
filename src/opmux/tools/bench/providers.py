"""The providers of an op: opmux as a user calls it, a single impl, torch, torch.compile, and other libraries."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from ...core.default import get_default_manager, policy
from ...core.errors import UnknownName
from ...core.registry import BackendImplKind
from ...core.spec import Sample, Spec, specs
from .native import Backward, Native, backward_of, call_of, native, shortened

OURS, NATIVE, COMPILE, REFERENCE = "ours", "native", "compile", "reference"
# The providers that run torch's kernels. Ours must not be slower than any of them.
TORCH = (NATIVE, COMPILE, REFERENCE)

Build = Callable[[Spec, Sample], Callable[[], Any]]


@dataclass(frozen=True)
class BenchProvider:
    """A library or impl that computes an op. `build` returns the call, which is timed inside the context `around`."""

    name: str
    build: Build
    gives: tuple[str, ...]  # the op's names of the results that the call returns
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    impl: str | None = None  # opmux's impl ("": chosen by dispatch), checked more strictly; None: another library
    random: bool = False  # only the shapes of results are compared


# ---- opmux ----------------------------------------------------------------------------------------------------------


def ours(spec: Spec) -> BenchProvider:
    """`opmux.ops.<name>`: the impl that dispatch chooses."""
    return BenchProvider(OURS, _public, spec.out, impl="")


def one_impl(spec: Spec, impl_id: str) -> BenchProvider:
    """A single impl. If it fails, no other is called."""
    only = functools.partial(policy, per_op={spec.key: f"impl:{impl_id}"}, strict=True)
    name = REFERENCE if impl_id == "reference.torch" else impl_id
    return BenchProvider(name, _public, spec.out, only, impl_id)


def _public(spec: Spec, sample: Sample) -> Callable[[], Any]:
    return call_of(specs.functions[spec.key], shortened(spec, sample))


def impl_ids(spec: Spec) -> list[str]:
    """Every impl of an op; for a composition, also those made from the impls of its parts."""
    return [v.impl.impl_id for v in get_default_manager().explain(spec.key).verdicts]


def vendor_impl_ids(spec: Spec) -> list[str]:
    """The vendors' impls of an op, which are measured by default besides `ours`."""
    verdicts = get_default_manager().explain(spec.key).verdicts
    return [v.impl.impl_id for v in verdicts if v.impl.kind is BackendImplKind.VENDOR]


# ---- torch ----------------------------------------------------------------------------------------------------------


def torch_native(spec: Spec) -> BenchProvider:
    """Torch's own call. If there is none, the provider is the reference and is named so."""
    way = native(spec)
    if way is None:
        return BenchProvider(REFERENCE, lambda spec, sample: call_of(spec.reference, sample), spec.out)
    return BenchProvider(NATIVE, _builder(way), _gives(way, spec), random=_is_random(way))


def torch_compile(spec: Spec, dynamic: bool | None) -> BenchProvider:
    """torch.compile of the native call; for a backward op, the compiled backward of the native forward."""
    way = native(spec) or Native(spec.reference)
    compiled = functools.cache(lambda fn: torch.compile(lambda *args, **kwargs: fn(*args, **kwargs), dynamic=dynamic))
    return BenchProvider(COMPILE, _builder(way, compiled), _gives(way, spec), _compiling, random=_is_random(way))


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Let compiled backwards run twice, and compile up to 64 shapes.

    By default a compiled backward frees its saved tensors, and the ninth shape runs uncompiled.
    """
    import torch._dynamo.config
    import torch._functorch.config

    with torch._functorch.config.patch(donated_buffer=False), torch._dynamo.config.patch(recompile_limit=64):
        yield


def _builder(way: Native | Backward, wrap: Callable[[Any], Callable[..., Any]] = lambda fn: fn) -> Build:
    if isinstance(way, Backward):
        return lambda spec, sample: backward_of(wrap(way.native.call), way, spec, sample)
    return lambda spec, sample: call_of(wrap(way.call), shortened(spec, sample) if way.short else sample)


def _gives(way: Native | Backward, spec: Spec) -> tuple[str, ...]:
    return spec.out if isinstance(way, Backward) else way.results(spec)


def _is_random(way: Native | Backward) -> bool:
    return way.native.random if isinstance(way, Backward) else way.random


# ---- other libraries ------------------------------------------------------------------------------------------------

# op -> (function of liger_kernel.transformers.functional; how to make its arguments from the op's; the results that it
# returns). The RMS norms' last argument, `in_place`, is False: otherwise they would overwrite dy with the gradient.
LIGER: dict[str, tuple[str, Callable[..., tuple], str]] = {
    "rms_norm": ("liger_rms_norm", lambda x, w, eps, offset, casting: (x, w, eps, offset, casting, False), "y"),
    "add_rms_norm": (
        "liger_fused_add_rms_norm",
        lambda x, r, w, eps, offset, casting: (x, r, w, eps, offset, casting, False),
        "y s",
    ),
    "layer_norm": ("liger_layer_norm", lambda x, w, b, eps, offset: (x, w + offset if offset else w, b, eps), "y"),
    "softmax": ("liger_softmax", lambda x, dim: (x,), "y"),
    "silu_mul": ("liger_swiglu", lambda a, b: (a, b), "y"),
    "gelu_tanh_mul": ("liger_geglu", lambda a, b: (a, b), "y"),
    "srelu": ("liger_relu_squared", lambda x: (x,), "y"),
}


@functools.cache
def load(module: str) -> tuple[Any, str]:
    """Another library, or the reason why it is not available."""
    try:
        return importlib.import_module(module), ""
    except Exception as error:  # without a device, some libraries raise other errors
        return None, f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"


def liger(spec: Spec) -> BenchProvider | None:
    """Liger's function for an op, or autograd's backward of the function; None if Liger has no such op."""
    functional, _ = load("liger_kernel.transformers.functional")
    way = native(spec)
    name = way.forward.name if isinstance(way, Backward) else spec.name
    if functional is None or name not in LIGER or spec.space != "opmux":
        return None
    function, takes, gives = LIGER[name]
    fn = getattr(functional, function, None)
    if fn is None:
        return None
    call = lambda *args: fn(*takes(*args))
    if isinstance(way, Backward):
        forward = Native(call, gives, way.native.recompute)
        return BenchProvider("liger", _builder(Backward(way.forward, forward)), spec.out)
    return BenchProvider("liger", _builder(Native(call, gives)), tuple(gives.split()))


def flaggems(spec: Spec) -> BenchProvider | None:
    """Torch's native call, made while FlagGems overrides ATen's kernels."""
    package, _ = load("flag_gems")
    way = native(spec)
    if package is None or way is None:
        return None
    return BenchProvider("flaggems", _builder(way), _gives(way, spec), package.use_gems, random=_is_random(way))


FOREIGN = {"liger": ("liger_kernel.transformers.functional", liger), "flaggems": ("flag_gems", flaggems)}


# ---- choosing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProviderChoice:
    """The providers to measure: from the command line, or the defaults for the device."""

    names: tuple[str, ...]
    impls: bool  # also measure every vendor's impl
    dynamic: bool | None = False

    @classmethod
    def of(cls, text: str | None, device: str, ops: list[Spec], dynamic: bool = False) -> ProviderChoice:
        if text is None:
            # On a CPU, torch.compile takes a minute, and the other libraries do not run.
            defaults = (OURS, NATIVE) if device == "cpu" else (OURS, NATIVE, COMPILE, *FOREIGN)
            return cls(defaults, True, None if dynamic else False)
        names = tuple(dict.fromkeys(w.strip() for w in text.split(",") if w.strip()))
        known = [OURS, NATIVE, COMPILE, REFERENCE, *FOREIGN, *(i for s in ops for i in impl_ids(s))]
        for name in names:
            if name not in known:
                raise UnknownName("provider", name, known)
        return cls(names, False, None if dynamic else False)

    def notes(self) -> list[str]:
        """A note for each library that is not available."""
        tried = {name: load(FOREIGN[name][0])[1] for name in self.names if name in FOREIGN}
        return [f"{name} is skipped: {why}" for name, why in tried.items() if why]

    def of_op(self, spec: Spec) -> list[BenchProvider]:
        """The providers of an op, without duplicate names."""
        names = [*self.names, *(vendor_impl_ids(spec) if self.impls else [])]
        providers = [self._one(spec, name) for name in names]
        return list({p.name: p for p in providers if p is not None}.values())

    def _one(self, spec: Spec, name: str) -> BenchProvider | None:
        makers: dict[str, Callable[[Spec], BenchProvider | None]] = {
            OURS: ours,
            NATIVE: torch_native,
            COMPILE: lambda spec: torch_compile(spec, self.dynamic),
            REFERENCE: lambda spec: one_impl(spec, "reference.torch"),
            **{library: make for library, (_, make) in FOREIGN.items()},
        }
        if name in makers:
            return makers[name](spec)
        return one_impl(spec, name) if name in impl_ids(spec) else None
