"""Rotary embeddings match transformers' own functions in values, gradients and memory layout."""

from __future__ import annotations

import importlib

import pytest
import torch

import opmux.functional as F
from opmux.core.errors import BadArgument

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def modeling(model):
    pytest.importorskip("transformers")
    return importlib.import_module(f"transformers.models.{model}.modeling_{model}")


def heads(*shape, dtype=torch.float32, seed=0):
    """A [b, h, s, d] view of memory in the order [b, s, h, d], like models' views of a linear layer's result."""
    b, h, s, d = shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, s, h, d, generator=generator).to(dtype).transpose(1, 2)


def tables(b, s, d, dtype=torch.float32, interleaved=False):
    angles = torch.arange(s)[:, None] * 10.0 ** -torch.linspace(0, 2, d // 2) + torch.arange(b)[:, None, None]
    both = angles.repeat_interleave(2, -1) if interleaved else torch.cat([angles, angles], -1)
    return both.cos().to(dtype), both.sin().to(dtype)


def strides_of(t):
    """The strides of the dimensions with more than one element."""
    return [stride for n, stride in zip(t.shape, t.stride(), strict=True) if n > 1]


def same(ours, theirs, q, k, *rest, **options):
    """Values and gradients agree; our results have the layout of q and k, and no input is written."""
    leaves, results = [t.detach().requires_grad_() for t in (q, k)], []
    before = [t.clone() for t in (q, k, *(t for t in rest if torch.is_tensor(t)))]
    for fn in (ours, theirs):
        outs = fn(*leaves, *rest, **options)
        seeds = [torch.cos(torch.arange(o.numel())).view(o.shape).to(o.dtype) for o in outs]
        grads = torch.autograd.grad(outs, leaves, seeds, retain_graph=True)
        again = torch.autograd.grad(outs, leaves, seeds)
        assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True))
        results.append((*outs, *grads))
    eps = torch.finfo(q.dtype).eps
    # transformers may round each product and the sum; each rounding is at most half an ulp of |q| + |k|.
    most = 4 * max(t.abs().max().item() for t in (q, k)) * eps
    for a, b in zip(*results, strict=True):
        assert a.dtype is q.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b.to(a.dtype), rtol=2 * eps, atol=most)
    for a, b in zip(results[0], (q, k, q, k), strict=True):
        assert strides_of(a) == strides_of(b)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, *rest), strict=False))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rope_matches_llama(dtype):
    llama = modeling("llama").apply_rotary_pos_emb
    q, k = heads(2, 4, 5, 16, dtype=dtype), heads(2, 2, 5, 16, dtype=dtype, seed=1)
    for b in (1, 2):
        same(F.apply_rotary_pos_emb, llama, q, k, *tables(b, 5, 16, dtype))
        same(F.apply_rotary_pos_emb, llama, q.transpose(1, 2), k.transpose(1, 2), *tables(b, 5, 16, dtype), 2)


def test_contiguous_heads_give_contiguous_results():
    llama = modeling("llama").apply_rotary_pos_emb
    q, k = heads(2, 4, 5, 8).contiguous(), heads(2, 1, 5, 8).contiguous()
    same(F.apply_rotary_pos_emb, llama, q, k, *tables(1, 5, 8))
    same(F.apply_rotary_pos_emb, llama, q[:, :, :1].contiguous(), k[:, :, :1].contiguous(), *tables(1, 1, 8))


def test_rope_accepts_views_of_one_projection():
    """q and k are views of [b, s, all heads]; the results are dense, with dimensions in the same memory order."""
    packed = torch.randn(2, 5, 8 * 16).view(2, 5, 8, 16).transpose(1, 2)
    cos, sin = tables(2, 5, 16)
    got = F.apply_rotary_pos_emb(packed[:, :4], packed[:, 4:6], cos, sin)
    want = modeling("llama").apply_rotary_pos_emb(packed[:, :4], packed[:, 4:6], cos, sin)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride() and a.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("model", ["phi3", "qwen3_5", "glm4_moe"])
def test_partial_rope_matches_transformers(model):
    theirs = modeling(model).apply_rotary_pos_emb
    same(F.apply_rotary_pos_emb, theirs, heads(2, 4, 5, 16), heads(2, 2, 5, 16, seed=1), *tables(1, 5, 8))


@pytest.mark.parametrize("model, d2", [("glm", 8), ("glm4", 8), ("helium", 16), ("ernie4_5", 16)])
def test_interleaved_rope_with_half_tables_matches_transformers(model, d2):
    theirs = modeling(model).apply_rotary_pos_emb
    args = heads(2, 4, 5, 16), heads(2, 2, 5, 16, seed=1), *tables(2, 5, d2)
    same(F.apply_rotary_pos_emb_interleaved, theirs, *args)


def test_interleaved_rope_matches_cohere():
    args = heads(2, 4, 5, 16), heads(2, 2, 5, 16, seed=1), *tables(1, 5, 16, interleaved=True)
    ours = lambda *args: F.rope(*args, interleaved=True)
    same(ours, modeling("cohere").apply_rotary_pos_emb, *args)


def test_rope_with_one_column_per_pair_matches_gpt_oss():
    cos, sin = (t[..., :8] for t in tables(2, 5, 16))
    ours = lambda *args: F.rope(*args, per_pair=True)
    same(ours, modeling("gpt_oss").apply_rotary_pos_emb, heads(2, 4, 5, 16), heads(2, 2, 5, 16, seed=1), cos, sin)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_vision_rope_matches_transformers(dtype):
    theirs = modeling("qwen2_vl").apply_rotary_pos_emb_vision
    q, k = (torch.randn(7, 3, 16).to(dtype) for _ in range(2))
    cos, sin = (t[0] for t in tables(1, 7, 16))
    same(F.apply_rotary_pos_emb_vision, theirs, q, k, cos, sin)
    same(F.apply_rotary_pos_emb_vision, theirs, q[None], k[None], cos[None], sin[None])


@pytest.mark.parametrize("axes, sections", [(3, (2, 3, 3)), (2, (4, 4))])
def test_multimodal_rope_matches_the_formula(axes, sections):
    """The formula of Qwen2-VL as its authors published it."""

    def theirs(q, k, cos, sin, sections, unsqueeze_dim=1):
        cos, sin = (
            torch.cat([part[i % axes] for i, part in enumerate(t.split([*sections] * 2, -1))], -1) for t in (cos, sin)
        )
        return modeling("llama").apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)

    cos, sin = (torch.stack([t + i / 10 for i in range(axes)]) for t in tables(2, 5, 16))
    q, k = heads(2, 4, 5, 16), heads(2, 2, 5, 16, seed=1)
    same(F.apply_multimodal_rotary_pos_emb, theirs, q, k, cos, sin, sections)
    same(F.apply_multimodal_rotary_pos_emb, theirs, q.transpose(1, 2), k.transpose(1, 2), cos, sin, sections, 2)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_complex_rope_matches_transformers(dtype):
    q, k = (heads(2, h, 5, 16, dtype=dtype).transpose(1, 2) for h in (4, 2))
    for b in (1, 2):
        freqs = torch.complex(*(t[..., :8].contiguous() for t in tables(b, 5, 16)))
        same(F.apply_rotary_emb, modeling("llama4").apply_rotary_emb, q, k, freqs)
    same(F.apply_rotary_emb, modeling("llama4").apply_rotary_emb, q, k, freqs.conj())
    vision = modeling("llama4").vision_apply_rotary_emb
    same(F.apply_rotary_emb, vision, q, k, freqs[0].clone())
    first = lambda q, k, freqs: modeling("deepseek_v2").apply_rotary_emb(q, k, freqs)
    by_heads = lambda q, k, freqs: F.apply_rotary_emb(q, k, freqs, 1)
    same(by_heads, first, q.transpose(1, 2), k.transpose(1, 2), freqs)


def test_rope_without_k_matches_gemma3n():
    """Gemma 3n rotates q and k in separate calls."""
    theirs = modeling("gemma3n").apply_rotary_pos_emb
    q, (cos, sin) = heads(2, 4, 5, 16), tables(2, 5, 16)
    for x, dim, layout in ((q, 1, "bhsd"), (q.transpose(1, 2), 2, "bshd"), (q.contiguous(), 1, "bhsd")):
        got, none = F.rope(x, None, cos, sin, layout=layout)
        torch.testing.assert_close(got, theirs(x, cos, sin, dim))
        assert none is None and got.stride() == x.stride()


def test_frozen_keys_get_no_gradient_and_tables_can_learn():
    llama = modeling("llama").apply_rotary_pos_emb
    q, k = heads(1, 2, 3, 8).requires_grad_(), heads(1, 1, 3, 8)
    cos, sin = (t.requires_grad_() for t in tables(1, 3, 8))
    for fixed in (True, False):
        leaves = (q,) if fixed else (q, cos, sin)
        args = (q, k, cos.detach(), sin.detach()) if fixed else (q, k, cos, sin)
        got, want = (
            torch.autograd.grad([y.sin().sum() for y in fn(*args) if y.requires_grad], leaves)
            for fn in (F.apply_rotary_pos_emb, llama)
        )
        torch.testing.assert_close(got, want)


def test_rope_accepts_an_empty_batch():
    q, k = torch.randn(0, 2, 3, 8, requires_grad=True), torch.randn(0, 1, 3, 8)
    got = F.apply_rotary_pos_emb(q, k, *tables(1, 3, 8))
    got[0].sum().backward()
    assert got[0].shape == q.shape == q.grad.shape and got[1].shape == k.shape


def test_tables_of_a_wider_dtype_do_not_change_the_result_dtype():
    q, k = heads(1, 2, 3, 8, dtype=torch.bfloat16), heads(1, 1, 3, 8, dtype=torch.bfloat16)
    cos, sin = tables(1, 3, 8)
    got, exact = F.apply_rotary_pos_emb(q, k, cos, sin), F.apply_rotary_pos_emb(q.double(), k.double(), cos, sin)
    for a, b in zip(got, exact, strict=True):
        assert a.dtype is torch.bfloat16
        torch.testing.assert_close(a.double(), b, rtol=2**-8, atol=1e-6)  # our result is rounded once


def test_rope_compiles_without_graph_breaks():
    q, k = heads(2, 4, 5, 16).requires_grad_(), heads(2, 2, 5, 16).requires_grad_()
    cos, sin = tables(1, 5, 16)
    call = lambda q, k: F.apply_rotary_pos_emb(q * 2, k, cos, sin)
    got = torch.compile(call, backend="aot_eager", fullgraph=True)(q, k)
    torch.testing.assert_close(got, call(q, k))
    grads = [torch.autograd.grad([y.sin().sum() for y in outs], (q, k)) for outs in (got, call(q, k))]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda q, k, c: F.apply_rotary_pos_emb(q, k, c, c, 3), "unsqueeze_dim must be 1 or 2"),
        (lambda q, k, c: F.apply_rotary_pos_emb(q, k, c[:, :2], c[:, :2]), "cos must have 3 rows"),
        (lambda q, k, c: F.apply_rotary_pos_emb(q, k[:, :, :2], c, c), "k must have the length of q"),
        (lambda q, k, c: F.apply_rotary_pos_emb(q[0], k, c, c), "q must have 4 dimensions"),
        (lambda q, k, c: F.rope(q, k, c, c, layout="sbhd"), "layout must be 'bhsd' or 'bshd'"),
        (lambda q, k, c: F.rope(q, k, c, c, per_pair=True), "cos must have at most 4 columns"),
        (lambda q, k, c: F.apply_rotary_emb(q, k, c), "freqs_cis must be complex"),
        (lambda q, k, c: F.apply_rotary_emb(q, k, c[:, :2].cfloat(), 1), "freqs_cis must have a row for each of 3"),
        (lambda q, k, c: F.apply_multimodal_rotary_pos_emb(q, k, c, c, [4]), r"cos and sin must be \[axes"),
        (lambda q, k, c: F.apply_multimodal_rotary_pos_emb(q, k, c[None], c[None], [3]), "mrope_section must add up"),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(BadArgument, match=message):
        call(torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8), torch.randn(1, 3, 8))
