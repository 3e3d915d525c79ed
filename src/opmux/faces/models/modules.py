"""Replaces the forwards of modules, and finds modules that must be called instead of fused.

`patch_model` changes no attribute that torch or other libraries read. The class of a module gets a forward that checks
`self`: a module with a `Patch` runs the fused forward, any other module runs the class's own forward. The patch is an
entry of the module's `__dict__`, so every copy has it (`copy.copy`, `copy.deepcopy`, replicas of `DataParallel`), and
`self` is always the module that was called. A forward that a library sets on the module (accelerate) calls the class's
forward, patched or not.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeGuard

from torch import nn
from torch.nn.modules import module as everywhere

from ...core.lock import ForkSafeLock

Forward = Callable[..., Any]

KEY = "_opmux_patch"  # the entry of a patched module's __dict__
# Libraries that replace a module's forward store the original in these attributes; accelerate uses `_old_forward`.
FORWARD_ATTRIBUTES = ("forward", "_old_forward")


# ---- modules that must be called ------------------------------------------------------------------------------------


def is_changed(module: nn.Module) -> bool:
    """Whether calling a module does more than its class's forward, because it has hooks or a forward of its own.

    A fused function must not bypass these, so it calls such a module instead of computing the module's result.
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or everywhere._global_forward_hooks
        or everywhere._global_forward_pre_hooks
        or everywhere._global_backward_hooks
        or everywhere._global_backward_pre_hooks
        or "forward" in module.__dict__
    )


def why_changed(module: nn.Module) -> str:
    """Why a module is changed (`is_changed`), for the report."""
    return "has a forward of its own" if "forward" in vars(module) else "has hooks"


def _has_old_backward_hook(module: nn.Module) -> bool:
    """Whether a module has a non-full backward hook, which gets the gradients of a single autograd node."""
    return bool(module._backward_hooks and module._is_full_backward_hook is False) or bool(
        everywhere._global_backward_hooks and everywhere._global_is_full_backward_hook is False
    )


# ---- forwards of classes --------------------------------------------------------------------------------------------


class Patch:
    """The forward of a patched module. Copies share it; a pickle contains None instead, and loads without opmux."""

    __slots__ = ("__weakref__", "forward", "slot")

    def __init__(self, slot: Slot, forward: Forward):
        self.slot, self.forward = slot, forward

    def __deepcopy__(self, memo: Any) -> Patch:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Slot:
    """Replaces the forward of a class whose modules may be patched."""

    def __init__(self, owner: type[nn.Module], original: Forward):
        self.owner, self.original = owner, original
        self.default = original  # for modules without a patch
        self.inherits = "forward" not in vars(owner)
        self.patches: weakref.WeakValueDictionary[Forward, Patch] = weakref.WeakValueDictionary()
        self.forward = _forward(self)

    def patch(self, forward: Forward) -> Patch:
        """The patch for modules of this class that run `forward`; it exists as long as a module refers to it."""
        existing = self.patches.get(forward)
        if existing is None:
            existing = self.patches[forward] = Patch(self, forward)
        return existing

    def install(self) -> None:
        self.owner.forward = self.forward

    def release(self) -> None:
        """Restore the class's own forward if no module is patched. Keep a forward that a user has set meanwhile."""
        if self.patches or self.default is not self.original or vars(self.owner).get("forward") is not self.forward:
            return
        if self.inherits:
            del self.owner.forward
        else:
            self.owner.forward = self.original


def _forward(slot: Slot) -> Forward:
    original = slot.original

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        patch = self.__dict__.get(KEY)
        run = slot.default if patch is None or patch.slot is not slot else patch.forward
        if (self._backward_hooks or everywhere._global_backward_hooks) and _has_old_backward_hook(self):
            run = original
        return run(self, *args, **kwargs)

    _slot_of[forward] = slot
    return forward


_slot_of: dict[Any, Slot] = {}  # current forward of a class -> slot
_slots: dict[tuple[type[nn.Module], Forward], Slot] = {}  # class and its own forward -> slot
_lock = ForkSafeLock()  # held while patching; calls of modules take no lock


def own_forward(cls: type[nn.Module]) -> Forward:
    """The forward that a class has without `patch_model`; it may be a user's replacement."""
    slot = _slot_of.get(cls.forward)
    return cls.forward if slot is None else slot.original


def slot_of(cls: type[nn.Module]) -> Slot:
    """The slot of the class that defines the forward of `cls`, which is `cls` or a base class."""
    return _slot(next(base for base in cls.__mro__ if "forward" in vars(base)), own_forward(cls))


def _slot(owner: type[nn.Module], original: Forward) -> Slot:
    slot = _slots.get((owner, original))
    if slot is None:
        slot = _slots[owner, original] = Slot(owner, original)
    return slot


def is_patched(model: nn.Module) -> bool:
    """Whether any module of a model runs a fused forward, because the module or its class is patched."""
    by_class = lambda slot: slot is not None and slot.default is not slot.original
    return any(KEY in vars(module) or by_class(_slot_of.get(type(module).forward)) for module in model.modules())


def patch_class(cls: type[nn.Module], forward: Forward) -> Slot:
    """Let all present and future modules of a class run `forward`, but not modules of its base classes."""
    with _lock.arm().held:
        slot = _slot(cls, own_forward(cls))
        slot.default = forward
        slot.install()
        return slot


def unpatch_class(slot: Slot) -> None:
    with _lock.arm().held:
        slot.default = slot.original
        slot.release()


def patch_module(module: nn.Module, forward: Forward) -> str:
    """Let one module run `forward`; returns the reason if that is impossible, else ""."""
    attributes = vars(module)
    with _lock.arm().held:
        slot = slot_of(type(module))
        name = "_old_forward" if "_hf_hook" in attributes and "_old_forward" in attributes else "forward"
        if name in attributes:
            bound = attributes[name]
            if not _is_bound(bound, module) or _plain(bound.__func__) is not slot.original:
                return "its forward was replaced on the module"
            attributes[name] = types.MethodType(slot.forward, module)
        attributes[KEY] = slot.patch(forward)
        slot.install()
    return ""


def unpatch_modules(*modules: nn.Module) -> Counter[str]:
    """Restore the modules' own forwards; returns how many modules of each class were patched."""
    restored: Counter[str] = Counter()
    with _lock.arm().held:
        for module in modules:
            attributes = vars(module)
            restored[type(module).__name__] += attributes.pop(KEY, None) is not None
            for name in FORWARD_ATTRIBUTES:
                bound = attributes.get(name)
                if _is_bound(bound, module) and bound.__func__ in _slot_of:
                    attributes[name] = types.MethodType(_slot_of[bound.__func__].original, module)
        for slot in list(_slots.values()):
            slot.release()
    return +restored


def _plain(function: Any) -> Any:
    slot = _slot_of.get(function)
    return function if slot is None else slot.original


def _is_bound(value: Any, module: nn.Module) -> TypeGuard[types.MethodType]:
    return isinstance(value, types.MethodType) and value.__self__ is module
