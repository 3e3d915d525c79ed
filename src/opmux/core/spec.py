"""The declaration of an op, from which its schema, fake kernel, CPU path, tests, benchmarks and docs are derived.

The decorated function *is* the reference. Names link a forward op to its backward op. `out` names the forward's
results. The backward takes gradients as `d<result>`, takes saved arguments and results under their names in the
forward, and returns `d<argument>`s. A spec says nothing about devices; an impl's `when` handles the limits of a chip.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .. import wiring
from . import codegen, extension, library
from .contract import Contract, Where
from .entry import EntryPoint, is_tensor
from .errors import BadArgument, BadSpec, UnknownName
from .loading import DeclaringImport, on_failure
from .lock import cached_property, lock
from .namespaces import ATEN, OURS, Namespace
from .tensors import first_tensor, mix, tensors_in

if TYPE_CHECKING:
    from .adapter import Adapter


class NameLookup(dict[str, tuple[str, ...]]):
    """The use of an unqualified op name -> the namespaces in which the name is looked up, in order."""

    FACES = "faces"  # stands for the namespaces that extensions add
    ORDERS: Mapping[str, tuple[str, ...]] = {
        "impl": (FACES, OURS.name, ATEN.name),  # OpImpl, per-op orders, plugins, manager.call
        "export": (OURS.name, FACES, ATEN.name),  # a vendor's __all__
        "row": (ATEN.name,),  # a vendor's get_specific_ops
        "ops": (OURS.name, FACES, ATEN.name),  # opmux.ops
    }

    def __missing__(self, use: str) -> tuple[str, ...]:
        order = self.ORDERS[use]
        self[use] = namespaces = tuple(s for n in order for s in (extension.spaces() if n == self.FACES else (n,)))
        return namespaces


NAME_LOOKUP = NameLookup()


@dataclass(frozen=True)
class Tol:
    """The tolerance of an impl's result a: |a - b| <= atol + rtol * |b|, where b is the reference's result."""

    rtol: float
    atol: float


EXACT = Tol(0.0, 0.0)
# Each tolerance is one rounding of the result, plus a margin for the order of summation.
TOL: Mapping[torch.dtype, Tol] = {
    torch.float64: Tol(1e-7, 1e-7),
    torch.float32: Tol(1.3e-6, 1e-5),
    torch.float16: Tol(2e-3, 1e-3),
    torch.bfloat16: Tol(1.6e-2, 1e-3),
}


@dataclass(frozen=True)
class Sample:
    """Arguments that an op must accept. `loose`: results differ between calls (addresses, random numbers)."""

    args: tuple
    kwargs: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    loose: bool = False


@dataclass(frozen=True)
class BadSample:
    """Arguments that an op must refuse, the exception it must raise, and a pattern its message must match.

    `typed`: every argument has the right Python type, so every impl must refuse the call, not only the entry.
    """

    args: tuple
    error: type[Exception]
    match: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    typed: bool = True


# Annotates an object whose state the op may update: a quantizer's amax and scale.
State = Annotated[Any, "state"]

Samples = Callable[[torch.dtype, torch.device], Iterable[Sample]]
BadSamples = Callable[[torch.device], Iterable[BadSample]]


@dataclass(frozen=True, eq=False)
class Spec:
    """One op. `reference` computes its results; the other fields say how to check, measure and describe the op."""

    name: str
    space: str
    reference: Callable[..., Any]
    out: tuple[str, ...]
    grad: str | None = None
    mutates: tuple[str, ...] = ()
    samples: Samples | None = None
    bad_samples: BadSamples | None = None  # for checks that annotations cannot express
    tol: Mapping[torch.dtype, Tol] = field(default_factory=lambda: TOL)
    traffic: Callable[..., int] | None = None
    flops: Callable[..., int] | None = None
    schema: str | None = None
    fake: Callable[..., Any] | None = None
    result: Callable[[Any], Any] | None = None  # converts what a foreign impl returns to this op's results
    looks: tuple[str, ...] = ()  # for a backward: arguments of which only shape and dtype are saved
    compared: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # results by name -> values that tests compare
    recompute: Callable[..., tuple] | None = None  # recomputes the results from saved values by name
    where: tuple[Where, ...] = ()  # checks of the arguments beyond their annotations
    adapter: Adapter | None = None  # for a function with a foreign signature: the ops it calls
    # Arguments that were added to the op later. An impl without such a parameter gets only calls that pass its default.
    added: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.space}::{self.name}"

    @cached_property
    def namespace(self) -> Namespace:
        return Namespace.named(self.space)

    @property
    def primitive(self) -> bool:
        """Whether the op is in torch.ops. If so, it is always called with its own signature, and traced as one op."""
        return self.namespace.primitive

    @property
    def family(self) -> str:
        """The name of the file that declares the op: `norm`, or `face_norm` for functions with another library's
        signatures.
        """
        return specs.family_of(self.reference.__module__)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations with shapes and rules."""
        return typing.get_type_hints(inspect.unwrap(self.reference), include_extras=True)

    @cached_property
    def contract(self) -> Contract:
        """The rules for the arguments."""
        own = Contract.of(self.name, {n: self.hints.get(n) for n in self.names}, self.where)
        return own if self.adapter is None else self.adapter.contract(own)

    @property
    def checked(self) -> bool:
        """Whether the reference first checks its arguments. For ATen's ops, torch does that."""
        if self.namespace.torchs and self.adapter is None:
            return False
        return self.namespace.ours or self.adapter is not None or self.contract.declared

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature, with plain types."""
        return plain_signature(self.reference)

    @cached_property
    def doc(self) -> str:
        """The docstring, with dtypes and shapes of the arguments."""
        return self.contract.documented(inspect.cleandoc(inspect.unwrap(self.reference).__doc__ or ""))

    @property
    def summary(self) -> str:
        """The docstring up to its arguments."""
        return inspect.cleandoc(inspect.unwrap(self.reference).__doc__ or "").partition("\n\nArgs:")[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.signature.parameters)

    @cached_property
    def required(self) -> frozenset[int]:
        """The positions of the arguments that must be tensors."""
        return frozenset(i for i, p in enumerate(self.signature.parameters.values()) if is_tensor(p.annotation))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The arguments that a call may change: those that the schema declares, and stateful objects."""
        stateful = (n for n, hint in self.hints.items() if any(map(_is_state, _annotations(hint))))
        return tuple(dict.fromkeys((*self.mutates, *stateful)))

    @cached_property
    def lead(self) -> str | None:
        """The first argument that must be a tensor; its dtype, device and shape determine the impl."""
        return next((p.name for p in self.signature.parameters.values() if is_tensor(p.annotation)), None)

    def first_tensor(self, args: tuple, kwargs: dict) -> Tensor | None:
        """The tensor that determines the impl, passed by position or keyword."""
        if self.lead is not None:
            at = self.names.index(self.lead)
            value = args[at] if at < len(args) else kwargs.get(self.lead)
            if isinstance(value, Tensor):
                return value
        return first_tensor(args, kwargs)

    @property
    def promoted(self) -> tuple[str, ...]:
        """The arguments after the first tensor that may have another dtype, be numbers, or be CPU tensors."""
        return ()

    @cached_property
    def _promoted_at(self) -> tuple[tuple[int, str], ...]:
        return tuple((self.names.index(name), name) for name in self.promoted)

    def mix(self, first: Tensor | None, args: tuple, kwargs: dict) -> tuple[Any, ...]:
        """How the arguments in `promoted` differ from the first tensor (see `tensors.mix`)."""
        at = self._promoted_at
        return mix(first, [args[i] if i < len(args) else kwargs.get(name) for i, name in at]) if at else ()

    def takes(self, args: tuple, kwargs: dict) -> bool:
        """Whether these arguments fit the op's signature. If not, they may fit an impl's own signature."""
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def bound(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The arguments with defaults filled in, if they fit the op's signature; else unchanged."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            return args, kwargs
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def tolerance(self, dtype: torch.dtype) -> Tol:
        """The tolerance for results of a dtype. A complex dtype has that of its real dtype; integers must be equal."""
        return self.tol.get(dtype.to_real() if dtype.is_complex else dtype, EXACT)

    @cached_property
    def parts(self) -> dict[str, Spec]:
        """The ops that the adapter calls, by key."""
        return {} if self.adapter is None else {s.key: s for s in self.adapter.over}

    @cached_property
    def gradient(self) -> Gradient:
        return Gradient.of(self, specs.find(self.grad or "", (self.space,)))

    def check(self, args: tuple, kwargs: dict) -> None:
        """Raise BadArgument for the first invalid argument."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:  # called with an impl's own signature
            return
        bound.apply_defaults()
        self.contract.check(bound.arguments)

    @cached_property
    def check_once(self) -> Callable[..., None]:
        """A function that checks all arguments, passed by position. It caches checks by dtypes, shapes and values.

        For three tensors, a cached check takes 2 us and a first check 30 us.
        """
        passed: dict[Any, None] = {}

        def first(key: Any, *args: Any) -> None:
            self.contract.check(dict(zip(self.names, args, strict=True)))
            if len(passed) >= MOST_CHECKS:
                passed.clear()
            passed[key] = None

        def signature() -> None: ...

        signature.__name__, signature.__signature__ = self.name, self.signature  # type: ignore[attr-defined]
        return codegen.lookup(signature, CHECKED, {"_found": passed, "_make": first}, "type({0}), {0}")

    def errors(self, device: torch.device | str) -> Iterator[BadSample]:
        """Calls that must raise: one for each way in which an argument can break its rules, then `bad_samples`."""
        device = torch.device(device)
        valid = list(self.samples(torch.float32, device)) if self.samples is not None else []
        complete = [{**dict(zip(self.names, s.args, strict=False)), **s.kwargs} for s in valid]
        named = {p.name for p in self.signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
        for a in self.contract.arguments if self.checked else ():
            base = next((g for g in complete if g.get(a.name) is not None), None)
            for flaw, typed, invalid in () if base is None else self.contract.bad(a, base):
                match = rf"^{self.name}: (.*\b)?{a.name}\b"
                args = tuple(v for n, v in invalid.items() if n not in named)
                kwargs = {n: v for n, v in invalid.items() if n in named}
                yield BadSample(args, BadArgument, match, kwargs, id=f"{a.name}: {flaw}", typed=typed)
        if self.bad_samples is not None:
            yield from self.bad_samples(device)

    def bytes_moved(self, *args: Any, **kwargs: Any) -> int:
        """The fewest bytes the op must move: each input read once, each result written once."""
        if self.traffic is not None:
            return self.traffic(*args, **kwargs)
        results = library.fake_call(self, args, kwargs)
        return sum(t.nbytes for t in (*tensors_in(args), *tensors_in(kwargs), *tensors_in(results)))


@dataclass(frozen=True, eq=False)
class Derived(Spec):
    """An op whose impls are made from those of other ops; it is not in `opmux.ops`.

    A policy for one of these `bases` applies to this op too.
    """

    bases: tuple[str, ...] = ()

    def lifted(self, impls_of: Callable[[str], tuple[Any, ...]]) -> Iterable[Any]:
        """The impls of this op, made from those of its bases."""
        return ()


@dataclass(frozen=True)
class Gradient:
    """How autograd calls the backward op: the source of each argument, and the target of each result."""

    backward: Spec
    sources: tuple[tuple[str, int], ...]  # ("grad" | "in" | "look" | "out", index)
    targets: tuple[int, ...]  # for each result of the backward, the index of the forward argument
    inputs: int
    differentiable: tuple[bool, ...]  # for each result of the forward: whether the backward takes its gradient

    @classmethod
    def of(cls, forward: Spec, backward: Spec) -> Gradient:
        grads = {f"d{o}": i for i, o in enumerate(forward.out)}
        ins = {n: i for i, n in enumerate(forward.names)}
        outs = {n: i for i, n in enumerate(forward.out)}
        sources = []
        for name in backward.names:
            for kind, known in (("grad", grads), ("in", ins), ("out", outs)):
                if name in known:
                    sources.append(("look" if kind == "in" and name in backward.looks else kind, known[name]))
                    break
            else:
                raise BadSpec(
                    f"{backward.key} takes '{name}', which is no argument of {forward.key} {tuple(ins)}, "
                    f"no result {tuple(outs)} and no gradient {tuple(grads)}"
                )
        targets = []
        for name in backward.out:
            if not name.startswith("d") or name[1:] not in ins:
                raise BadSpec(
                    f"{backward.key} returns '{name}': expected d<argument of {forward.key}>, "
                    f"one of {tuple(f'd{n}' for n in ins)}"
                )
            targets.append(ins[name[1:]])
        taken = {i for kind, i in sources if kind == "grad"}
        return cls(
            backward,
            tuple(sources),
            tuple(targets),
            len(ins),
            tuple(i in taken for i in range(len(outs))),
        )


CHECKED = "{0}.dtype, {0}.shape, {0}.device, {0}.is_contiguous()"  # everything that a check reads
MOST_CHECKS = 4096  # cached checks per op; a full cache is cleared, as it means that shapes rarely repeat


class Specs:
    """Every declared op by key. The modules that declare ops (the families) are imported on first use."""

    def __init__(self, roots: Mapping[str, str], implementers: tuple[str, ...] = ()):
        self.by_key: dict[str, Spec] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        self.entries: dict[str, EntryPoint] = {}
        self.derived: dict[str, Derived] = {}
        self.version = 0  # counts declarations and removals
        self._folded: tuple[int, dict[str, str]] = (-1, {})  # (version, case-folded name -> key)
        self.roots = roots  # package of families -> the prefix of its families' names
        self.implementers = implementers
        self._loaded: set[str] = set()
        self._declared_in: dict[str, DeclaringImport] = {}  # key -> its import, until that has succeeded

    def add(self, spec: Spec, entry: EntryPoint) -> None:
        """Declare an op. If the declaring import fails, the declaration is void and may be repeated."""
        declared_in = DeclaringImport.here()
        with lock.held:
            known = self.by_key.get(spec.key)
            if known is not None and not self._import_failed(spec.key):
                raise BadSpec(f"{spec.key} is declared twice: in {known.family} and {spec.family}")
            if known is not None:
                self.remove(known)
            on_failure(lambda: self.remove(spec), declared_in)
            if declared_in is not None:
                self._declared_in[spec.key] = declared_in
            self.entries[spec.key] = entry
            self.functions[spec.key] = entry.fn
            self.by_key[spec.key] = spec  # last, so that a thread that finds the spec also finds its function
            self.version += 1

    def remove(self, spec: Spec) -> None:
        """Undo a declaration."""
        with lock.held:
            if self.by_key.get(spec.key, spec) is not spec:
                return
            self.version += 1
            for table in (self.by_key, self.entries, self.functions, self._declared_in):
                table.pop(spec.key, None)
        library.undefine(spec)

    def sweep(self) -> None:
        """Undo the declarations of imports that have failed."""
        for key in [k for k in tuple(self._declared_in) if self._import_failed(k)]:
            spec = self.by_key.get(key)
            if spec is not None:
                self.remove(spec)

    def import_succeeded(self, key: str) -> bool:
        """Whether the import that declares an op has succeeded."""
        declared_in = self._declared_in.get(key)
        if declared_in is not None and declared_in.succeeded:
            self._declared_in.pop(key, None)
            return True
        return declared_in is None

    def _import_failed(self, key: str) -> bool:
        declared_in = self._declared_in.get(key)
        return declared_in is not None and declared_in.failed

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(self._modules)

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The module of each family."""
        modules = {}
        for root, prefix in self.roots.items():
            package = importlib.util.find_spec(root)
            paths = list(package.submodule_search_locations or ()) if package else []
            names = [m.name for m in pkgutil.iter_modules(paths)]
            modules |= {f"{prefix}{n}": f"{root}.{n}" for n in names if not n.startswith("_") and n != "samples"}
        return dict(sorted(modules.items()))

    def family_of(self, module: str) -> str:
        root, _, name = module.rpartition(".")
        return f"{self.roots.get(root, '')}{name}"

    def _unlikely(self, family: str, name: str) -> int:
        """A sort key: how unlikely a family is to declare an op. Importing all families takes 2 s, so only their source
        is read.
        """
        if family in self._loaded:
            return 0
        module = importlib.util.find_spec(self._modules[family])
        try:
            text = Path(module.origin).read_text(encoding="utf-8") if module and module.origin else ""
        except (OSError, UnicodeDecodeError):  # no source file: bytecode only, or in an archive
            text = ""
        return 1 if f"def {name}(" in text else 2 if name in text else 3

    def load(self, family: str) -> None:
        """Import a family. No lock is needed, because Python locks each module's import."""
        if family in self._loaded:
            return
        try:
            # Disable tracers: they would record the constants of a module, or turn them into FakeTensors.
            with _disable_current_modes():
                module = importlib.import_module(self._modules[family])
        except BaseException:
            self.sweep()
            raise
        if not getattr(module.__spec__, "_initializing", False):  # true if the module looks up its own op on import
            self._loaded.add(family)

    def load_all(self) -> None:
        for family in self.families:
            self.load(family)

    def load_implementers(self, family: str) -> None:
        """Import the modules that implement a family; they have the family's name. A missing module is no error, a
        broken one is.

        Without Triton, our kernels' modules cannot be imported; that is no error either.
        """
        for root in self.implementers:
            if importlib.util.find_spec(root) is None or importlib.util.find_spec(f"{root}.{family}") is None:
                continue
            try:
                with _disable_current_modes():
                    importlib.import_module(f"{root}.{family}")
            except ModuleNotFoundError as error:
                if error.name != "triton":
                    raise

    def lookup(self, name: str, spaces: tuple[str, ...]) -> Spec | None:
        """The spec of a qualified key, or of an unqualified name in these namespaces."""
        keys = (name,) if "::" in name else tuple(f"{s}::{name}" for s in spaces)
        for best, key in enumerate(keys):
            spec = self._if_imported(key)
            if spec is not None and (best == 0 or len(self._loaded) == len(self.families)):
                return spec
        for family in sorted(self.families, key=lambda f: self._unlikely(f, keys[0].rpartition("::")[2])):
            self.load(family)
            if keys[0] in self.by_key:
                return self.by_key[keys[0]]
        for key in keys:
            if key in self.by_key:
                return self.by_key[key]
        if self._folded[0] != self.version:
            self._folded = self.version, {k.casefold(): k for k in self.by_key}
        folded = self._folded[1]
        return next((self.by_key[folded[k.casefold()]] for k in keys if k.casefold() in folded), None)

    def _if_imported(self, key: str) -> Spec | None:
        """A declared op, once its family's import has finished; None if that import has failed."""
        spec = self.by_key.get(key)
        if spec is None or self.import_succeeded(key):
            return spec
        declared_in = self._declared_in.get(key)
        if declared_in is not None and declared_in.name in self._modules.values():
            self.load(self.family_of(declared_in.name))  # waits for the thread that imports it, or imports it again
        elif declared_in is not None and declared_in.failed:
            self.sweep()
        return self.by_key.get(key)

    def get(self, key: str) -> Spec | None:
        """The spec of a key, which may be a derived op; imports nothing."""
        return self.by_key.get(key) or self.derived.get(key)

    def find(self, name: str, spaces: tuple[str, ...] | None = None) -> Spec:
        spec = self.lookup(name, NAME_LOOKUP["impl"] if spaces is None else spaces)
        if spec is None:
            raise UnknownName("op", name, self.short_names())
        return spec

    def short_name(self, key: str) -> str:
        """The name of the op for an OpImpl or a policy. It is unqualified if that is unambiguous."""
        bare = key.rpartition("::")[2]
        owner = next((f"{s}::{bare}" for s in NAME_LOOKUP["impl"] if f"{s}::{bare}" in self.by_key), key)
        return bare if owner == key else key

    def short_names(self) -> list[str]:
        self.load_all()
        return sorted(self.short_name(k) for k in self.by_key)

    def __iter__(self) -> Iterator[Spec]:
        self.load_all()
        return iter(tuple(self.by_key.values()))


specs = Specs(*wiring.op_packages())


def op(
    reference: Callable[..., Any] | None = None,
    /,
    *,
    out: str = "y",
    grad: str | None = None,
    mutates: tuple[str, ...] = (),
    samples: Samples | None = None,
    errors: BadSamples | None = None,
    tol: Mapping[torch.dtype, Tol] | None = None,
    traffic: Callable[..., int] | None = None,
    flops: Callable[..., int] | None = None,
    schema: str | None = None,
    fake: Callable[..., Any] | None = None,
    result: Callable[[Any], Any] | None = None,
    looks: str = "",
    compared: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    recompute: Callable[..., tuple] | None = None,
    where: Where | tuple[Where, ...] = (),
    adapter: Adapter | None = None,
    added: str = "",
    space: str = OURS.name,
    name: str | None = None,
) -> Callable[..., Any]:
    """Declare an op. The decorated function is the op's reference. Returns the public function in `opmux.ops`.

    The public function has `.spec`, `.reference` and `.check(x=..., ...)`, which raises BadArgument.

    Only ops of the namespace `opmux` get a torch schema and a fake kernel. An op of the namespace `aten` is an op of
    torch, with ATen's name and signature. Torch's own kernel runs if a gradient is needed. It also runs in compiled
    code, where the compiler can fuse it.
    """

    def declare(reference: Callable[..., Any]) -> Callable[..., Any]:
        spec = Spec(
            name or reference.__name__,
            space,
            reference,
            tuple(out.split()),
            grad,
            tuple(mutates),
            samples,
            errors,
            {**TOL, **(tol or {})},
            traffic,
            flops,
            schema,
            fake,
            result,
            tuple(looks.split()),
            compared,
            recompute,
            where if isinstance(where, tuple) else (where,),
            adapter,
            tuple(added.split()),
        )
        _check_declaration(spec)
        if spec.checked:
            object.__setattr__(spec, "reference", checked(spec, reference))
            if fake is not None:
                object.__setattr__(spec, "fake", checked(spec, fake))
        entry = library.make_entry(spec, specs.entries)
        fn: Any = entry.fn
        fn.spec, fn.reference, fn.check = spec, spec.reference, lambda **arguments: spec.contract.check(arguments)
        fn.__doc__, fn.__module__ = spec.doc, reference.__module__
        fn.__qualname__, fn.__signature__ = spec.name, spec.signature
        fn.__annotations__ = typing.get_type_hints(inspect.unwrap(reference))
        specs.add(spec, entry)
        try:
            if spec.namespace.ours:
                library.define(spec, entry)
            elif spec.namespace.torchs:
                library.show_to_dynamo(spec, entry)
        except BaseException:
            specs.remove(spec)
            raise
        return fn

    return declare if reference is None else declare(reference)


def checked(spec: Spec, body: Callable[..., Any]) -> Callable[..., Any]:
    """`body` (an op's reference or fake kernel) as a function that first checks its arguments."""
    names, contract = spec.names, spec.contract
    defaults = {p.name: p.default for p in spec.signature.parameters.values() if p.default is not p.empty}
    # For functions with another library's signatures, `where` may read more than the cache key has, such as strides.
    cached = contract.plain and (spec.namespace.ours or not spec.where)

    def known(args: tuple) -> bool:
        """Check with the cache. Returns False if the arguments cannot be a cache key."""
        try:
            spec.check_once(*args)
        except BadArgument:
            raise
        except (TypeError, RuntimeError, AttributeError):  # a value without a shape, or not hashable
            return False
        return True

    @functools.wraps(body)
    def checked_call(*args: Any, **kwargs: Any) -> Any:
        if not cached or kwargs or len(args) != len(names) or not known(args):
            contract.check({**defaults, **dict(zip(names, args, strict=False)), **kwargs})
        return body(*args, **kwargs)

    checked_call.__signature__ = spec.signature  # type: ignore[attr-defined]  # without shapes, which torch cannot parse
    return checked_call


def plain_signature(fn: Callable[..., Any]) -> inspect.Signature:
    """A function's signature with plain types: `Float[Tensor, "n"]` becomes `Tensor`."""
    types = typing.get_type_hints(inspect.unwrap(fn))
    signature = inspect.signature(fn)
    params = [p.replace(annotation=types.get(p.name, p.annotation)) for p in signature.parameters.values()]
    returns = types.get("return", signature.return_annotation)
    return signature.replace(parameters=params, return_annotation=None if returns is type(None) else returns)


def _check_declaration(spec: Spec) -> None:
    missing = [m for m in spec.mutates if m not in spec.names]
    if missing:
        raise BadSpec(f"{spec.key} mutates {missing}, which it does not take; it takes {spec.names}")
    if len(set(spec.out)) != len(spec.out) or not all(o.isidentifier() for o in spec.out):
        raise BadSpec(f"{spec.key}: out={' '.join(spec.out)!r} must be distinct names separated by spaces")
    missing = [n for n in spec.added if spec.signature.parameters[n].default is inspect.Parameter.empty]
    if missing:
        raise BadSpec(f"{spec.key}: added arguments must have a default; {missing} have none")
    for p in spec.signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
            raise BadSpec(f"{spec.key}: parameter {p} must be named and passable by keyword")


def _is_state(annotation: Any) -> bool:
    return "state" in getattr(annotation, "__metadata__", ())


def _annotations(annotation: Any) -> tuple[Any, ...]:
    """An annotation, and its members if it is a list or union."""
    return (annotation, *getattr(annotation, "__args__", ()))
