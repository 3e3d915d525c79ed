"""The functions users hold: one per op, stable for the life of the process, each a call of a target that can change.

A function's text is generated from the op's signature, so that keywords, defaults and `inspect` work and no call is
packed into `*args`. What a call must look at (a live scope, the device, the dtype, whether a gradient is wanted)
is in the text only while it is needed: rebinding swaps the function's `__code__` for another variant.

What is bound is a *pair* `(target, recover)`: call the target, and pass what it raises to `recover`, which returns the
result of the next candidate or raises. One read of one global gives both, so no lock is needed.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import codegen
from .errors import OpmuxError
from .lock import cached_property
from .tensors import first_tensor, tensors_in

Pair = tuple[Callable[..., Any], Callable[[Exception, tuple, dict], Any]]

_casting: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", torch.is_autocast_enabled)

# Forward-mode AD says in `_current_level` whether a level is entered.
forward_ad: Any = torch.autograd.forward_ad
# How many dispatch modes (tracers, counters, checkpoints) look at what torch runs.
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
# Whether a transform of torch.func (vmap, grad, jvp) is at work.
transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active

# The one context variable: the innermost live policy scope (policy.Scope), or None.
scope: ContextVar[Any] = ContextVar("opmux_scope", default=None)

# What a binding is keyed by -> how the text picks the pair. `is_cpu` and `dtype` cost 100 ns each and
# `device.type` 800, so the latter is for processes with two kinds of accelerator.
PICK = {
    "": "{b}",
    "dtype": "{b}[{x}.dtype]",
    "device": "{b}[{x}.is_cpu]",
    "device dtype": "{b}[{x}.is_cpu][{x}.dtype]",
    "type": "{b}[{x}.device.type]",
    "type dtype": "{b}[{x}.device.type][{x}.dtype]",
}

# The same keys, for filling a table in.
LOOKS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "": (),
    "dtype": (lambda x: x.dtype,),
    "device": (lambda x: x.is_cpu,),
    "device dtype": (lambda x: x.is_cpu, lambda x: x.dtype),
    "type": (lambda x: x.device.type,),
    "type dtype": (lambda x: x.device.type, lambda x: x.dtype),
}

# Whether torch must be able to see the call: a tracer or a transform is active. Asking for all costs 60 to 150 ns.
TRACER_CHECKS = {
    "all": "_dual._current_level >= 0 or _modes() or _transforms()",
    "transforms": "_transforms()",  # of a kernel that asks for the rest by itself
    "": "",
}

BODY = """\
def {name}({params}):{ask}
    try:
{look}
    except KeyError:
        _t, _r = _miss({miss})
    except AttributeError:
        _bad({packed})
        raise
    try:
        return _t({passed})
    except Exception as _e:
        return _r(_e, {packed})
"""


@dataclass
class Plan:
    """What an entry must look at, and what it finds there: a pair, or a table of pairs that `make` fills as needed."""

    key: str
    table: Any
    make: Callable[[Any], Pair] | None = None
    tracers: str = "all"  # which tracers the entry asks for: a key of TRACER_CHECKS
    first: Callable[[tuple, dict], Any] = first_tensor
    own_gradient: bool = True  # whether an impl may be an autograd.Function, with a backward of its own
    pair: Pair | None = None  # this plan as one pair, once an entry points to it or it was asked for

    def follow(self, args: tuple, kwargs: dict) -> Pair:
        """The pair that a call with these arguments ends at."""
        found = self.first(args, kwargs)
        return self.miss(_NoTensor if found is None else found)

    def miss(self, x: Any) -> Pair:
        """The pair for a first tensor that the table does not know yet."""
        if self.make is None:
            return self.table
        at = self.table
        *outer, last = (look(x) for look in LOOKS[self.key])
        for part in outer:
            at = at.setdefault(part, {})
        pair = at.get(last)
        if pair is None:
            try:
                pair = at.setdefault(
                    last, self.make(x)
                )  # with nothing locked: it asks impls whether they are available
            except OpmuxError as error:
                raise error from None  # the KeyError that led here says nothing
        return pair


def reraise(error: Exception, args: tuple, kwargs: dict) -> Any:
    """The `recover` of a target that falls back by itself."""
    raise error


@dataclass
class Form:
    """How an op is called, as text: its parameters, how they are passed on, where its first tensor is."""

    name: str
    params: str
    passed: str
    packed: str  # "(args tuple), {kwargs}", for the slow paths
    first: str | None  # an expression for the first tensor
    wants_grad: str | None  # an expression that says whether a tensor argument requires grad
    defaults: dict[str, Any] = field(default_factory=dict)
    keyword_defaults: dict[str, Any] = field(default_factory=dict)
    native: bool = False  # whether torch's own op is called where autocast or a forward gradient wants it
    asks: bool = False  # whether the text asks if it is being compiled (where Dynamo has no hook to be told)
    check: Callable[[tuple, dict], None] = lambda args, kwargs: None  # names an argument that should be a tensor
    gate: str = ""  # a question of the text, and what to return where the answer is no: "x not in y: return z"
    traced: Callable[..., Any] | None = None  # what is called instead where torch must be able to look into the op
    codes: dict[tuple[bool, str, bool, str], types.CodeType] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, signature: inspect.Signature, differentiable: bool) -> Form:
        params, passed, positional, keyword, defaults, by_keyword, wants = [], [], [], [], {}, {}, []
        first = None
        for p in signature.parameters.values():
            if p.kind is p.KEYWORD_ONLY and "*" not in params:
                params.append("*")
            text = p.name
            if p.default is not p.empty:
                defaults[f"_d_{p.name}"] = p.default
                if p.kind is p.KEYWORD_ONLY:
                    by_keyword[p.name] = p.default
                text += f"=_d_{p.name}"
            params.append(text)
            passed.append(f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name)
            (keyword if p.kind is p.KEYWORD_ONLY else positional).append(p.name)
            if is_tensor(p.annotation):
                first = first or p.name
                wants.append(f"{p.name}.requires_grad")
            elif is_tensor(p.annotation, optional=True):
                wants.append(f"({p.name} is not None and {p.name}.requires_grad)")
            elif torch.Tensor in getattr(p.annotation, "__args__", ()):  # a tensor or a number
                wants.append(f"_asked({p.name}, 'requires_grad', False)")
        packed = f"({''.join(n + ', ' for n in positional)}), {{{', '.join(f'{n!r}: {n}' for n in keyword)}}}"
        if first is None:
            first = f"_first({packed})"
        return cls(
            name,
            ", ".join(params),
            ", ".join(passed),
            packed,
            first,
            " or ".join(wants) if differentiable else None,
            defaults,
            by_keyword,
        )

    @classmethod
    def open(cls, name: str, differentiable: bool = False) -> Form:
        """The form of a call whose arguments are handed on as given."""
        wants = "_wants(_args, _kwargs)" if differentiable else None
        ident = "".join(c if c.isalnum() else "_" for c in name)
        return cls(
            ident,
            "*_args, **_kwargs",
            "*_args, **_kwargs",
            "_args, _kwargs",
            "_first(_args, _kwargs)",
            wants,
        )

    def code(self, grad: bool, tracers: str, scoped: bool, key: str) -> types.CodeType:
        """The code object of one variant; compiled once."""
        variant = grad, "" if self.traced is None else tracers, scoped, key
        made = self.codes.get(variant)
        if made is None:
            words = [w for w in ("grad" if grad else "", variant[1], "scoped" if scoped else "", key) if w]
            where = f"{self.name} ({', '.join(words)})" if words else self.name
            text = self._text(*variant)
            made = self.codes[variant] = codegen.function(text, self.name, where, dict(self.defaults)).__code__
        return made

    def _text(self, grad: bool, tracers: str, scoped: bool, key: str) -> str:
        pick = PICK[key].format(b=slot(key), x="_x" if "(" in str(self.first) else self.first)
        if key and "(" in str(self.first):
            pick = f"({pick.replace('_x.', '(_x := ' + str(self.first) + ').', 1)})"
        look = []
        if grad and self.wants_grad:
            # _g recovers by itself: it becomes the target, so that its errors pass through reraise
            wants = f"_grad() and ({self.wants_grad})"
            if self.native:
                wants = f"({wants}) or _casting()"
            look.append(f"_t, _r = (_g, _reraise) if {wants} else ")
        if scoped:
            look.insert(0, "_s = _scope()\n")
            pick = f"({pick} if _s is None else _s.pairs[_k])"
        head = "".join(look)
        if "_t, _r = " not in head:
            head += "_t, _r = "
        lines = (head + pick).split("\n")
        return BODY.format(
            name=self.name,
            params=self.params,
            ask=self._ask(tracers),
            passed=self.passed,
            packed=self.packed,
            miss=f"{self.first}) if _s is None else _s.miss(_k" if scoped else self.first,
            look="\n".join("        " + line for line in lines),
        )

    def _ask(self, tracers: str) -> str:
        first = ""
        if self.asks:
            first = f"\n    if _compiling():\n        return _op({self.passed})"
        elif self.gate:
            first = f"\n    {self.gate}"
        return f"{first}\n    if {TRACER_CHECKS[tracers]}:\n        return _traced({self.passed})" if tracers else first

    @cached_property
    def ungated(self) -> Form:
        """The same without the gate, for callers behind it."""
        return replace(self, gate="", codes={}) if self.gate else self

    def layer(self, plan: Plan) -> Callable[..., Any]:
        """A function that follows a plan and falls back, to be used as the target of a pair."""
        names = self.globals({slot(plan.key): plan.table, "_miss": plan.miss})
        made: Any = self.ungated.function(names, grad=False, tracers=plan.tracers, key=plan.key)
        made.follow = plan.follow  # what it would pick, for who must know before calling
        return made

    def pair(self, plan: Plan) -> Pair:
        """A plan as a pair: the one it holds, or a layer over its table."""
        if plan.key == "":
            return plan.table
        if plan.pair is None:
            plan.pair = (self.layer(plan), reraise)
        return plan.pair

    def globals(self, more: dict[str, Any]) -> dict[str, Any]:
        return {
            "__builtins__": __builtins__,
            "_grad": torch.is_grad_enabled,
            "_compiling": torch.compiler.is_compiling,
            "_scope": scope.get,
            "_first": _look_at,
            "_wants": _wants_grad,
            "_asked": getattr,
            "_casting": _casting,
            "_dual": forward_ad,
            "_modes": dispatch_modes,
            "_transforms": transforms_active,
            "_traced": self.traced,
            "_reraise": reraise,
            "_bad": self.check,
            **more,
        }

    def function(self, globals: dict[str, Any], *, grad: bool, tracers: str, key: str = "") -> types.FunctionType:
        fn = types.FunctionType(self.code(grad, tracers, False, key), globals, self.name)
        by_position = [v for n, v in self.defaults.items() if n.removeprefix("_d_") not in self.keyword_defaults]
        fn.__defaults__ = tuple(by_position) or None
        fn.__kwdefaults__ = dict(self.keyword_defaults) or None
        return fn


class EntryPoint:
    """The stable functions of one op, and the plan that says what they call.

    `fn` is the public one; `raw` is the same below autograd and tracers (for their own use and for compiled graphs).
    """

    def __init__(
        self,
        form: Form,
        bind: Callable[[EntryPoint], None],
        under: Callable[[EntryPoint, Any], Pair],
        differentiable: Callable[..., Any] | None = None,
    ):
        self.form = form
        self.bound = False
        self.scoped = False
        self.keep = False  # whether tables may hold on to it when no scope is live
        self.apply: Callable[..., Any] | None = None  # of the op's autograd.Function, made when first asked for

        self._bind = bind
        self._under = under

        def first_call(*args: Any, **kwargs: Any) -> Any:
            if scope.get() is None:
                bind(self)
            else:
                self.watch_scopes(True)
            return self.raw(*args, **kwargs)

        self._unbound = Plan("", (first_call, reraise))
        self.plan = self._unbound
        self.globals = form.globals({"_k": self, "_g": differentiable})
        self.globals[slot("")] = self._unbound.table
        self.fn = form.function(self.globals, grad=True, tracers="all")
        direct = form.wants_grad is None and form.traced is None
        self.raw = self.fn if direct else form.function(self.globals, grad=False, tracers="")

    def point(self, plan: Plan) -> None:
        """Call what `plan` says."""
        if plan.key == "":
            plan.pair = plan.table
        self._aim(plan)
        self.bound = True  # last: interrupted before it, the next call binds again

    def unbind(self) -> None:
        """Choose anew at the next call."""
        self.bound = False
        self._aim(self._unbound)

    def watch_scopes(self, scoped: bool) -> None:
        self.scoped = scoped
        self._swap()

    def pair(self) -> Pair:
        """What a call made here and now would run; held by autograd for the backward."""
        inner = scope.get()
        if inner is None:
            return self.plan.pair or self.pair_of_process()
        return inner.pairs.get(self) or inner.miss(self)

    def pair_of_process(self) -> Pair:
        """What a call outside of every scope would run."""
        if not self.bound:
            self._bind(self)
        return self.form.pair(self.plan)

    def under(self, policy: Any) -> Pair:
        """What a call under this policy runs."""
        return self._under(self, policy)

    def _aim(self, plan: Plan) -> None:
        # The table first, then the code that reads it: another thread runs the old code on the old table or the new.
        self.plan = plan
        self.globals["_miss"] = plan.miss
        self.globals[slot(plan.key)] = plan.table
        self._swap()

    def _swap(self) -> None:
        tracers = "all" if self.scoped else self.plan.tracers  # a scope may lead anywhere
        self.fn.__code__ = self.form.code(True, tracers, self.scoped, self.plan.key)
        if self.raw is not self.fn:
            self.raw.__code__ = self.form.code(False, "", self.scoped, self.plan.key)


def slot(key: str) -> str:
    """The global that holds the table of a variant: one name each, so that a swap cannot mix two."""
    return "_b_" + key.replace(" ", "_")


def is_tensor(annotation: Any, optional: bool = False) -> bool:
    if annotation is torch.Tensor:
        return not optional
    args = getattr(annotation, "__args__", ())
    return optional and torch.Tensor in args and type(None) in args and len(args) == 2


class _NoTensor:
    """Stands for the first tensor of a call that has none."""

    dtype = None
    is_cpu = True
    device = types.SimpleNamespace(type="cpu")


def _look_at(args: tuple, kwargs: dict) -> Any:
    found = first_tensor(args, kwargs)
    return _NoTensor if found is None else found


def _wants_grad(args: tuple, kwargs: dict) -> bool:
    return any(t.requires_grad for t in tensors_in(args)) or any(t.requires_grad for t in tensors_in(kwargs))
