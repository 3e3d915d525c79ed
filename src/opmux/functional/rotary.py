"""Rotary embedding of q and k in one kernel, in the variants that models use.

All functions compute in float32 (float64 for float64), round once and return the dtype of q, even if the tables are
wider. q and k may have any strides. Results keep the inputs' order of dimensions in memory. So if q and k are views of
a linear layer's result, attention and caches get the layout that they expect. No argument is modified.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.errors import BadArgument
from ..specs import rope as spec


def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    layout: str = "bhsd",
    interleaved: bool = False,
    per_pair: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Rotate the first d2 elements of each head of q and k; copy the other elements.

    A pair (u, v) of a head becomes (u cos - v sin, v cos + u sin).

    Args:
        q: [batch, heads, length, d] for the layout "bhsd", [batch, length, heads, d] for "bshd".
        k: the same, with its own number of heads; or None.
        cos: [length, columns], [1, length, columns] or [batch, length, columns]; d2 columns, or d2/2 if `per_pair`.
            If a table requires a gradient, torch's ops compute everything.
        sin: like cos.
        layout: "bhsd" or "bshd".
        interleaved: pairs are (2i, 2i + 1) (Cohere); by default (i, i + d2/2) (Llama).
        per_pair: the tables have one column for each pair (gpt-oss).

    Returns:
        q and k, rotated; the second is None if k is None.
    """
    if layout not in ("bhsd", "bshd"):
        raise BadArgument.of("rope", "layout", "be 'bhsd' or 'bshd'", repr(layout))
    if k is None:
        return _alone(q, cos, sin, layout, interleaved, per_pair), None
    return _rotated(q, k, cos, sin, layout, interleaved, per_pair)


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """q * cos + rotate_half(q) * sin, and the same for k, as in transformers.

    Args:
        q: [batch, heads, length, d] if `unsqueeze_dim` is 1, [batch, length, heads, d] if it is 2.
        k: the same, with its own number of heads.
        cos: [1 or batch, length, d2]; if d2 < d, the other elements are copied (partial rotary embedding).
        sin: like cos.
        unsqueeze_dim: the dimension of the heads.

    Returns:
        q and k, rotated.
    """
    return _rotated(q, k, cos, sin, _layout("apply_rotary_pos_emb", unsqueeze_dim), False, False)


def apply_rotary_pos_emb_interleaved(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb for neighbouring pairs, with tables whose two halves are equal (GLM, Ernie, Helium).

    Args:
        q: as in apply_rotary_pos_emb.
        k: as in apply_rotary_pos_emb.
        cos: [1 or batch, length, d2]; only the first d2/2 columns are read, one for each pair.
        sin: like cos.
        unsqueeze_dim: the dimension of the heads.

    Returns:
        q and k, rotated.
    """
    layout, pairs = _layout("apply_rotary_pos_emb_interleaved", unsqueeze_dim), cos.shape[-1] // 2
    return _rotated(q, k, cos[..., :pairs], sin[..., :pairs], layout, True, True)


def apply_multimodal_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: Sequence[int], unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb with several tables, each for a section of the columns (Qwen2-VL).

    Args:
        q: as in apply_rotary_pos_emb.
        k: as in apply_rotary_pos_emb.
        cos: [n, batch, length, d], one table for each axis, such as time, height and width.
        sin: like cos.
        mrope_section: the sizes of the sections of each half of a head; they add up to d/2. Section i uses table i % n.
        unsqueeze_dim: the dimension of the heads.

    Returns:
        q and k, rotated.
    """
    name, sections = "apply_multimodal_rotary_pos_emb", [*mrope_section] * 2
    layout = _layout(name, unsqueeze_dim)
    if cos.dim() != 4 or sin.shape != cos.shape:
        expected = "be [axes, batch, length, d] and like each other"
        raise BadArgument.of(name, "cos and sin", expected, f"{tuple(cos.shape)} and {tuple(sin.shape)}")
    if sum(sections) != cos.shape[-1]:
        expected = f"add up to {cos.shape[-1] // 2}, half of the columns of cos {tuple(cos.shape)}"
        raise BadArgument.of(name, "mrope_section", expected, str(list(mrope_section)))
    cos, sin = (
        torch.cat([part[i % t.shape[0]] for i, part in enumerate(t.split(sections, -1))], -1) for t in (cos, sin)
    )
    return _rotated(q, k, cos, sin, layout, False, False)


def apply_rotary_pos_emb_vision(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """apply_rotary_pos_emb for image patches (the vision towers of Qwen-VL and others).

    Args:
        q: [patches, heads, d] or [batch, patches, heads, d].
        k: like q.
        cos: [patches, d] or [batch, patches, d].
        sin: like cos.

    Returns:
        q and k, rotated.
    """
    if q.dim() == 4:
        return _rotated(q, k, cos, sin, "bshd", False, False)
    q, k = _rotated(q[None], k[None], cos, sin, "bshd", False, False)
    return q[0], k[0]


def apply_rotary_emb(q: Tensor, k: Tensor, freqs_cis: Tensor, unsqueeze_dim: int = 2) -> tuple[Tensor, Tensor]:
    """Multiply neighbouring pairs, as complex numbers, by freqs_cis (Llama 4, DeepSeek-V2).

    Args:
        q: [batch, length, heads, d] if `unsqueeze_dim` is 2, [batch, heads, length, d] if it is 1.
        k: the same, with its own number of heads.
        freqs_cis: complex, [length, d/2] or [1 or batch, length, d/2]. Dimensions of size 1 are ignored.
        unsqueeze_dim: the dimension of the heads.

    Returns:
        q and k, rotated.
    """
    name = "apply_rotary_emb"
    layout = _layout(name, unsqueeze_dim)
    batch, length = q.shape[0], q.shape[3 - unsqueeze_dim]
    pairs = freqs_cis.shape[-1]
    if not freqs_cis.is_complex():
        raise BadArgument.of(name, "freqs_cis", "be complex", str(freqs_cis.dtype), TypeError)
    if freqs_cis.numel() not in (length * pairs, batch * length * pairs):
        expected = f"have a row for each of {length} positions, or for each of {batch} x {length}"
        raise BadArgument.of(name, "freqs_cis", expected, str(tuple(freqs_cis.shape)))
    batches = 1 if freqs_cis.numel() == length * pairs else batch
    cos, sin = torch.view_as_real(freqs_cis.resolve_conj().reshape(batches, length, pairs)).unbind(-1)
    return _rotated(q, k, cos, sin, layout, True, True)


def _layout(name: str, unsqueeze_dim: int) -> str:
    if unsqueeze_dim not in (1, 2):
        raise BadArgument.of(name, "unsqueeze_dim", "be 1 or 2, the dimension of the heads", repr(unsqueeze_dim))
    return "bhsd" if unsqueeze_dim == 1 else "bshd"


def _memory(x: Tensor, layout: str) -> str:
    """The memory order of the dimensions of x, as a layout name."""
    strides, heads = x.stride(), 1 if layout == "bhsd" else 2
    return "bshd" if len(strides) == 4 and strides[heads] <= strides[3 - heads] else "bhsd"


def _learned(cos: Tensor, sin: Tensor) -> bool:
    """Whether tables need a gradient. Our ops do not compute it, because few models need it; torch's ops do."""
    return torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad)


def _rotated(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, layout: str, interleaved: bool, per_pair: bool
) -> tuple[Tensor, Tensor]:
    op = spec.rope_qk.reference if _learned(cos, sin) else spec.rope_qk
    return op(q, k, cos, sin, layout, _memory(q, layout), interleaved, per_pair)


def _alone(x: Tensor, cos: Tensor, sin: Tensor, layout: str, interleaved: bool, per_pair: bool) -> Tensor:
    """Rotate one tensor."""
    if per_pair:
        cos, sin = (t.repeat_interleave(2, -1) if interleaved else torch.cat([t, t], -1) for t in (cos, sin))
    op = spec.rope_fwd.reference if _learned(cos, sin) else spec.rope_fwd
    memory = _memory(x, layout) if x.dim() == 4 else layout
    if memory == layout:
        return op(x, cos, sin, None, None, layout, interleaved)
    return op(x.transpose(1, 2), cos, sin, None, None, memory, interleaved).transpose(1, 2)
