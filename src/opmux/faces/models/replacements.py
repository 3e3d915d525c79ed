"""Replacements for those forwards of `transformers` that have a known form.

Each replacement wraps the original forward, which still runs if ours would compute something else (for example, because
the weight has another dtype). Submodules are called as before, so that hooks, adapters (PEFT) and sharded parameters
(FSDP) work.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor, nn

from ...functional import moe, norms, rotary
from ...specs import activation
from . import attention, interface
from .forms import form, home_of, is_own, parsed, unwrapped
from .global_names import Values, with_globals
from .modules import is_changed, own_forward, slot_of

Forward = Callable[..., Any]


class Replacement(NamedTuple):
    """How to replace a function of a known form."""

    name: str  # its name in `include` and `exclude`
    make: Callable[[Forward], Forward]  # original forward -> our forward
    ops: tuple[str, ...]  # the ops that our forward calls
    inner: tuple[str, ...] = ()  # submodules that are called only if they are changed (`is_changed`)


# ---- norms ----------------------------------------------------------------------------------------------------------


class Norm(NamedTuple):
    """How a class computes an RMS norm: the attribute for eps, the offset added to the weight, and where it rounds."""

    eps: str
    offset: float
    casting: str

    def options(self, module: Any, x: Tensor) -> tuple[Any, ...] | None:
        """The arguments after x; None if there is no weight, the dtypes of x and result differ, or fx traces x."""
        weight = getattr(module, "weight", None)
        if weight is None or not isinstance(x, Tensor) or (weight.dtype is not x.dtype and self.casting != "gemma"):
            return None
        return weight, getattr(module, self.eps), self.offset, self.casting


NORMS = {
    "14571db77a71": Norm("variance_epsilon", 0.0, "llama"),  # Llama and most others
    "2eea69638a1d": Norm("eps", 0.0, "llama"),  # Llama 4
    "f62091d7e851": Norm("eps", 1.0, "gemma"),  # Gemma 1 to 3, Qwen3-Next
    "2b17a1741160": Norm("variance_epsilon", 0.0, "gemma"),  # OLMo 2 and 3, GPT-OSS
    "a3d4488eb42a": Norm("variance_epsilon", 0.0, "gemma"),  # Helium, Nemotron-H
    "75af0543fe47": Norm("eps", 0.0, "gemma"),  # Gemma 3n and 4
    "b5d8fc7b063a": Norm("eps", 0.0, "gemma"),  # Moshi
}


def rms_norm(norm: Norm, original: Forward) -> Forward:
    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        options = norm.options(self, hidden_states)
        return original(self, hidden_states) if options is None else norms.rms_norm(hidden_states, *options)

    return forward


class KnownNorm(NamedTuple):
    """A class of RMS norms: its own forward, and its forward while modules of the class are patched."""

    norm: Norm
    own: Forward
    patched: Forward


# Filled before a forward runs: torch.compile can trace a dict lookup, but not the recognition of a form.
_norm_of: dict[type[nn.Module], KnownNorm] = {}


def remember_norm(cls: type[nn.Module]) -> None:
    """Store how a class normalizes, if it is an RMS norm of a known form."""
    original = own_forward(cls)
    norm = NORMS.get(form(original, cls) or "")
    if norm is None:
        _norm_of.pop(cls, None)
    else:
        _norm_of[cls] = KnownNorm(norm, original, slot_of(cls).forward)


def _fused(module: nn.Module, x: Tensor) -> tuple[Any, ...] | None:
    """The arguments of our norm, which then replaces a call of the module; None if the module must be called."""
    known = _norm_of.get(type(module))
    if known is None or is_changed(module):
        return None
    forward = type(module).forward  # a user may have replaced it
    if forward is not known.own and forward is not known.patched:
        return None
    return known.norm.options(module, x)


# ---- layers: one op computes the residual sum and the norm after it -------------------------------------------------


def _passed_on(original: Forward) -> dict[str, Any]:
    """The arguments of a layer after hidden_states, with defaults. The layer passes them to its attention."""
    parameters = list(inspect.signature(original).parameters.values())[2:]
    return {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}


def pre_norm_layer(original: Forward) -> Forward:
    """y + mlp(norm(y)), where y = x + attention(norm(x))."""
    defaults = _passed_on(original)

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        options = _fused(self.post_attention_layernorm, hidden_states)
        if args or options is None:
            return original(self, hidden_states, *args, **kwargs)
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **{**defaults, **kwargs})
        if attended.dtype is not hidden_states.dtype:  # under autocast
            total = hidden_states + attended
            return total + self.mlp(self.post_attention_layernorm(total))
        normed, total = norms.add_rms_norm(attended, hidden_states, *options)
        return total + self.mlp(normed)

    return forward


def sandwich_layer(original: Forward) -> Forward:
    """y + norm(mlp(norm(y))), where y = x + norm(attention(norm(x)))."""
    defaults = _passed_on(original)

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        options = _fused(self.pre_feedforward_layernorm, hidden_states)
        if args or options is None:
            return original(self, hidden_states, *args, **kwargs)
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **{**defaults, **kwargs})
        attended = self.post_attention_layernorm(attended)
        if attended.dtype is not hidden_states.dtype:  # under autocast
            total = hidden_states + attended
            normed = self.pre_feedforward_layernorm(total)
        else:
            normed, total = norms.add_rms_norm(attended, hidden_states, *options)
        return total + self.post_feedforward_layernorm(self.mlp(normed))

    return forward


# ---- gated MLPs -----------------------------------------------------------------------------------------------------

# Activation classes of torch and of `transformers` -> the names of our ops.
ACTIVATIONS = {
    "torch.nn.modules.activation": {"SiLU": "silu"},
    "transformers.activations": {
        "SiLUActivation": "silu",
        "GELUTanh": "gelu_tanh",
        "PytorchGELUTanh": "gelu_tanh",
        "GELUActivation": "gelu",
    },
}
GATES = {"silu": activation.silu_mul, "gelu_tanh": activation.gelu_tanh_mul, "gelu": activation.gelu_mul}


class KnownActivation(NamedTuple):
    name: str
    forward: Forward  # forward of the class


_activation_of: dict[type[nn.Module], KnownActivation] = {}  # filled before a forward runs, like `_norm_of`


def remember_activations() -> None:
    """Find the activation classes, except those whose forward a user replaced."""
    _activation_of.clear()
    for module_name, names in ACTIVATIONS.items():
        home = importlib.import_module(module_name)
        for name, op in names.items():
            cls = getattr(home, name, None)
            if isinstance(cls, type) and cls.__module__ == module_name and is_own(cls.forward, home):
                _activation_of[cls] = KnownActivation(op, cls.forward)


def activation_of(act: Any) -> str | None:
    """The name of the op for an activation module; None if the module must be called."""
    known = _activation_of.get(type(act))
    if known is None or type(act).forward is not known.forward or is_changed(act):
        return None
    return known.name


def gate_of(act: Any, x: Any) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The op for act(a) * b in an MLP of x; None if the activation must be called, or if fx traces x."""
    name = activation_of(act)
    return None if name is None or not isinstance(x, Tensor) else GATES[name]


def gated_mlp(original: Forward, act: str = "act_fn") -> Forward:
    """down(act(gate(x)) * up(x))."""

    @functools.wraps(original)
    def forward(self: Any, x: Tensor) -> Tensor:
        gate = gate_of(getattr(self, act), x)
        return original(self, x) if gate is None else self.down_proj(gate(self.gate_proj(x), self.up_proj(x)))

    return forward


def dropped_mlp(original: Forward) -> Forward:
    """A gated MLP followed by dropout."""

    @functools.wraps(original)
    def forward(self: Any, x: Tensor) -> Tensor:
        gate = gate_of(self.act_fn, x)
        if gate is None:
            return original(self, x)
        y = self.down_proj(gate(self.gate_proj(x), self.up_proj(x)))
        return nn.functional.dropout(y, p=self.residual_dropout, training=self.training)

    return forward


def packed_mlp(original: Forward) -> Forward:
    """down(act(gate) * up), where one layer computes gate and up."""

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        gate = gate_of(self.activation_fn, hidden_states)
        if gate is None:
            return original(self, hidden_states)
        return self.down_proj(gate(*self.gate_up_proj(hidden_states).chunk(2, dim=-1)))

    return forward


def experts(original: Forward) -> Forward:
    """The weighted sum of a token's experts, each a gated MLP."""

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        name = activation_of(self.act_fn)
        if name is None:
            return original(self, hidden_states, top_k_index, top_k_weights)
        return moe.fused_moe(hidden_states, self.gate_up_proj, self.down_proj, top_k_index, top_k_weights, name)

    return forward


def batched_experts(original: Forward) -> Forward:
    """Gated MLPs of all experts, each with its own rows."""

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        gate = gate_of(self.act_fn, hidden_states)
        if gate is None:
            return original(self, hidden_states)
        rows = hidden_states.view(self.gate_up_proj.shape[0], -1, self.hidden_size)
        gated = gate(*rows.bmm(self.gate_up_proj).chunk(2, dim=-1))
        return gated.bmm(self.down_proj).view(-1, self.hidden_size)

    return forward


# ---- rotary embeddings ----------------------------------------------------------------------------------------------


def rope_with_tables(rotate: Forward, original: Forward, widens: bool = False) -> Forward:
    """Replaces a rotary embedding that gets tables of cosines and sines.

    `widens`: the original's result has the dtype of the tables. If that differs from q's, the original runs.
    """

    @functools.wraps(original)
    def apply(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not isinstance(q, Tensor) or (widens and cos.dtype is not q.dtype):
            return original(q, k, cos, sin, *args, **kwargs)
        return rotate(q, k, cos, sin, *args, **kwargs)

    return apply


def _of_pairs(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    return rotary.rope(q, k, cos, sin, layout=_layout(unsqueeze_dim), per_pair=True)


def _of_neighbours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    return rotary.rope(q, k, cos, sin, layout=_layout(unsqueeze_dim), interleaved=True)


def _split_pairs(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, position_ids: Any = None, unsqueeze_dim: int = 1
) -> Any:
    """Rotate adjacent pairs, then deinterleave: the first elements of all pairs, then the second elements."""
    q, k = (x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for x in (q, k))
    pairs = cos.shape[-1] // 2
    return _of_pairs(q, k, cos[..., :pairs], sin[..., :pairs], unsqueeze_dim)


def _layout(unsqueeze_dim: int) -> str:
    return "bhsd" if unsqueeze_dim == 1 else "bshd"


def rope_of_one(original: Forward) -> Forward:
    """Replaces a rotary embedding of one tensor, q or k."""

    @functools.wraps(original)
    def apply(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
        if not isinstance(x, Tensor) or cos.dtype is not x.dtype:
            return original(x, cos, sin, unsqueeze_dim)
        return rotary.rope(x, None, cos, sin, layout=_layout(unsqueeze_dim))[0]

    return apply


def rope_of_complex(unsqueeze_dim: int, original: Forward) -> Forward:
    """Replaces a rotary embedding that multiplies complex numbers."""

    @functools.wraps(original)
    def apply(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(xq, Tensor):
            return original(xq, xk, freqs_cis)
        return rotary.apply_rotary_emb(xq, xk, freqs_cis.to(xq.device), unsqueeze_dim)

    return apply


def _by_tables(rotate: Forward, widens: bool = False) -> tuple[Callable[[Forward], Forward], str]:
    return functools.partial(rope_with_tables, rotate, widens=widens), "rope_qk"


# Form of a rotary embedding -> a function that wraps the original with ours, and the op that ours calls.
ROPES: dict[str, tuple[Callable[[Forward], Forward], str]] = {
    "4c3f0b3ce7a4": _by_tables(rotary.apply_rotary_pos_emb, widens=True),  # Llama and most others
    "99b60b4acac4": _by_tables(rotary.apply_rotary_pos_emb, widens=True),  # part of each head: GLM-4.5, Qwen3-Next
    "a0fafaa254f8": _by_tables(rotary.apply_rotary_pos_emb, widens=True),  # rotates part of each head: Phi-3
    "4b19c01086c8": _by_tables(rotary.apply_rotary_pos_emb, widens=True),  # rotates part of each head: Nemotron
    "a3a41b193d23": _by_tables(rotary.apply_rotary_pos_emb),  # OLMo
    "a76f2182d841": _by_tables(_of_neighbours),  # Cohere
    "4e4c8336d005": _by_tables(rotary.apply_rotary_pos_emb_interleaved, widens=True),  # GLM-4
    "628b3b3c64db": _by_tables(rotary.apply_rotary_pos_emb_interleaved, widens=True),  # Helium
    "60fa71a5c4a0": _by_tables(rotary.apply_rotary_pos_emb_interleaved),  # Ernie
    "80e421f44bb7": _by_tables(_of_pairs, widens=True),  # GPT-OSS
    "787b85c02eaa": _by_tables(_split_pairs, widens=True),  # DeepSeek-V3
    "f1342eed6e24": _by_tables(rotary.apply_rotary_pos_emb_vision),  # vision towers of Qwen-VL and others
    "e0ee85963f41": (rope_of_one, "rope_fwd"),  # Gemma 3n and 4
    "5f5a64244d61": (functools.partial(rope_of_complex, 2), "rope_qk"),  # Llama 4
    "ef0857d20eb8": (functools.partial(rope_of_complex, 1), "rope_qk"),  # DeepSeek-V2
}


def rotating(original: Forward) -> Replacement | None:
    """The replacement for a forward that calls a rotary embedding of a known form, or None."""
    inner = unwrapped(original)
    home = home_of(inner)
    if not inspect.isfunction(inner) or home is None:
        return None
    called = {name: vars(home).get(name) for name in inner.__code__.co_names}
    forms = {name: form(fn) for name, value in called.items() if (fn := function_of(value)) is not None}
    matches = tuple((name, called[name], known) for name, known in forms.items() if known in ROPES)
    return _rotating(home, matches) if matches else None


def function_of(value: Any) -> Any:
    """The function `value`, or the function that Hugging Face `kernels` has wrapped in a module `value`; else None."""
    if isinstance(value, nn.Module) and hasattr(value, "kernel_layer_name"):
        value = inspect.getclosurevars(type(value).forward).nonlocals.get("func")
    return value if inspect.isfunction(value) else None


def _is_kernelized(value: Any) -> bool:
    """Whether `kernelize` has replaced a function; it sets a forward on the module also if it finds no kernel."""
    bound = vars(value).get("forward")
    return bound is not None and getattr(bound, "__func__", None) is not type(value).forward


@functools.cache
def _rotating(home: types.ModuleType, matches: tuple[tuple[str, Any, str], ...]) -> Replacement:
    ours = {name: _unless_replaced(home, name, fn, ROPES[known][0](function_of(fn))) for name, fn, known in matches}
    ops = tuple(dict.fromkeys(ROPES[known][1] for _, _, known in matches))
    return Replacement("rope", functools.partial(with_globals, values=Values(ours)), ops)


def _unless_replaced(home: types.ModuleType, name: str, original: Any, ours: Forward) -> Forward:
    """Calls `ours`, unless a user has replaced `original` in the module; then calls the user's function."""
    is_module = isinstance(original, nn.Module)

    @functools.wraps(function_of(original))
    def function(*args: Any, **kwargs: Any) -> Any:
        current = getattr(home, name)
        replaced = current is not original or (is_module and _is_kernelized(current))
        return (current if replaced else ours)(*args, **kwargs)

    return function


# ---- attention of one new token -------------------------------------------------------------------------------------


def attending(original: Forward) -> Replacement | None:
    """The replacement for a forward that gets its attention from transformers and decodes with a cache; else None."""
    ours = attention.functions_of(original)
    return None if ours is None else _attending(ours)


@functools.cache
def _attending(ours: attention.Functions) -> Replacement:
    values = Values({attention.FUNCTIONS: ours})
    return Replacement("attention", functools.partial(with_globals, values=values), ())


# ---- the causal mask ------------------------------------------------------------------------------------------------

MASKING = "create_causal_mask"


def is_transformers(fn: Any) -> bool:
    """Whether a function is transformers' own, not a user's replacement."""
    home = sys.modules.get(getattr(fn, "__module__", ""))
    return home is not None and home.__name__.startswith("transformers.") and is_own(inspect.unwrap(fn), home)


def makes_a_causal_mask(original: Any) -> bool:
    """Whether a forward makes a causal mask and no other mask."""
    return _masks_made(original) == [MASKING]


def why_mask_is_left(original: Any) -> str:
    """Why a forward that makes causal masks keeps them; "" if it makes none."""
    made = _masks_made(original)
    others = [name for name in made if name != MASKING]
    return f"mask is left: it also calls {', '.join(others)}" if MASKING in made and others else ""


def _masks_made(original: Any) -> list[str]:
    """The functions of transformers by which a forward makes masks; empty if a user has replaced the causal one."""
    inner = unwrapped(original)
    names = getattr(getattr(inner, "__code__", None), "co_names", ())
    if home_of(inner) is None or not is_transformers(vars(home_of(inner)).get(MASKING)):
        return []
    return [name for name in names if "mask" in name and name.startswith("create")]


def without_mask(original: Forward) -> Forward:
    """Skip the causal mask in training on whole sequences. torch's attention and ours can be causal without a mask.

    transformers does the same, but not under torch.compile, where it cannot check whether the positions belong to one
    sequence. We skip the mask only if no positions are passed.
    """
    maskless = with_globals(original, Values({MASKING: lambda *args, **kwargs: None}))
    names = ("attention_mask", "position_ids", "past_key_values")
    home = home_of(inspect.unwrap(original))
    create = getattr(home, MASKING)

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        whole_sequences = self.training and len(args) < 2 and all(kwargs.get(name) is None for name in names)
        needless = whole_sequences and self.config._attn_implementation in ("sdpa", interface.NAME)
        if needless and getattr(home, MASKING) is not create:  # a user replaced it
            needless = False
        return (maskless if needless else original)(self, *args, **kwargs)

    return forward


# ---- functions that are not replaced --------------------------------------------------------------------------------


def has_no_gate(original: Any) -> bool:
    """Whether an MLP has no gate, that is, no elementwise product: down(act(up(x)))."""
    definition = parsed(original)
    return definition is not None and not any(isinstance(node, ast.Mult) for node in ast.walk(definition))


# ---- by form --------------------------------------------------------------------------------------------------------

REPLACEMENTS: dict[str, Replacement] = {
    **{
        known: Replacement("rms_norm", functools.partial(rms_norm, norm), ("rms_norm",))
        for known, norm in NORMS.items()
    },
    "c3f0e0ba1b0c": Replacement(
        "add_rms_norm", pre_norm_layer, ("add_rms_norm",), ("post_attention_layernorm",)
    ),  # Llama and most others
    "5c3da0679365": Replacement(
        "add_rms_norm", pre_norm_layer, ("add_rms_norm",), ("post_attention_layernorm",)
    ),  # Mixtral
    "5764296cdaea": Replacement(
        "add_rms_norm", sandwich_layer, ("add_rms_norm",), ("pre_feedforward_layernorm",)
    ),  # Gemma 2 and 3
    "fab599dfa88c": Replacement("glu", gated_mlp, ("silu_mul",), ("act_fn",)),  # Llama and most others
    "8f737011e74d": Replacement("glu", gated_mlp, ("silu_mul",), ("act_fn",)),  # Qwen2
    "2ae30676928b": Replacement(
        "glu", functools.partial(gated_mlp, act="activation_fn"), ("silu_mul",), ("activation_fn",)
    ),  # Llama 4
    "913b2e3133aa": Replacement("glu", batched_experts, ("silu_mul",), ("act_fn",)),  # Llama 4's experts
    "4858ed3dfd39": Replacement("glu", dropped_mlp, ("silu_mul",), ("act_fn",)),  # Seed-OSS
    "bfe0db06d67e": Replacement("glu", packed_mlp, ("silu_mul",), ("activation_fn",)),  # Phi-3, GLM-4
    "1d0f59c7624d": Replacement("moe", experts, ("grouped_mm",), ("act_fn",)),  # Mixtral and most others
    "88d3c92d0b34": Replacement("moe", experts, ("grouped_mm",), ("act_fn",)),  # the same in transformers 5.17
}
# Known forms that are not replaced -> reason.
LEFT = {
    # GPT-OSS
    "1e66fd9afa1d": "its experts have biases and a clamped gate; transformers computes them by grouped products",
}
NAMES = ("rms_norm", "add_rms_norm", "glu", "rope", "attention", "moe", "mask", "loss", "cross_entropy")
