"""`opmux.functional.attention` matches plain torch: options, layouts, gradients and errors."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import opmux.functional as ours
from opmux.core.errors import BadArgument

B, H, G, S, K, D = 2, 4, 2, 7, 9, 8
SLOPES = torch.tensor([0.5, 0.25, 1.0, 2.0])


def new(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def plain(q, k, v, *, left=-1, right=-1, shift=0, bias=None, slopes=None, softcap=0.0, sink=None):
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    s = softcap * torch.tanh(s / softcap) if softcap else s
    s = s if bias is None else s + bias
    away = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] - shift
    s = s if slopes is None else s - slopes.view(-1, 1, 1) * away.abs()
    s = s.masked_fill((away > right) & (right >= 0) | (away < -left) & (left >= 0), -math.inf)
    if sink is not None:
        s = torch.cat([s, sink.view(-1, 1, 1).expand(*s.shape[:3], 1)], -1)
    p = torch.nan_to_num(s.softmax(-1))
    return (p if sink is None else p[..., :-1]) @ v


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({}, {}),
        ({"causal": True}, {"right": 0, "shift": K - S}),
        ({"causal": True, "top_left": True}, {"right": 0}),
        ({"window": (2, 1), "softcap": 3.0}, {"left": 2, "right": 1, "shift": K - S, "softcap": 3.0}),
        ({"causal": True, "window": (2, 5), "top_left": True}, {"left": 2, "right": 0}),
        ({"bias": (1, H, S, K), "sink": True}, {}),
        ({"bias": (K,), "sink": 0.0}, {"sink": torch.zeros(H)}),
        ({"alibi": SLOPES}, {"slopes": SLOPES, "shift": K - S}),
    ],
    ids=lambda o: " ".join(o),
)  # fmt: skip
def test_results_and_gradients_match_the_formula(options, same):
    leaves = [new(B, H, S, D), new(B, G, K, D), new(B, G, K, D + 4)]
    options, same = dict(options), dict(same)
    if "bias" in options:
        leaves.append(new(*options["bias"]))
        options["bias"] = same["bias"] = leaves[-1]
    if options.get("sink") is True:
        leaves.append(new(H))
        options["sink"] = same["sink"] = leaves[-1]
    got, want = ours.attention(*leaves[:3], **options), plain(*leaves[:3], **same)
    torch.testing.assert_close(got, want)
    g = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(got, leaves, g), torch.autograd.grad(want, leaves, g), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("layout", "dim_order"), [("bshd", (0, 2, 1, 3)), ("sbhd", (2, 0, 1, 3))])
def test_results_of_each_layout_match(layout, dim_order):
    q, k, v = new(B, H, S, D), new(B, G, K, D), new(B, G, K, D)
    want, lse = ours.attention(q, k, v, softcap=2.0, return_lse=True)
    got, same = ours.attention(
        *(t.permute(dim_order).contiguous() for t in (q, k, v)), softcap=2.0, layout=layout, return_lse=True
    )
    assert got.is_contiguous()
    torch.testing.assert_close(got, want.permute(dim_order))
    torch.testing.assert_close(same, lse)


@pytest.mark.parametrize(
    "options", [{"causal": True}, {"causal": True, "softcap": 5.0}, {"top_left": True, "causal": True}]
)
def test_packed_and_padded_sequences_match_separate_calls(options):
    lengths = (3, 0, S)
    cu = torch.tensor([0, 3, 3, 10], dtype=torch.int32)
    q, k, v = new(10, H, D), new(10, G, D), new(10, G, D)
    got, lse = ours.attention(q, k, v, cu_seqlens_q=cu, max_seqlen_q=S, max_seqlen_k=S, return_lse=True, **options)
    parts = [
        ours.attention(*(t[None, a : a + n].transpose(1, 2) for t in (q, k, v)), **options)
        for n, a in zip(lengths, (0, 3, 3))
    ]
    torch.testing.assert_close(got, torch.cat([p[0].transpose(0, 1) for p in parts]))
    assert lse.shape == (H, 10)
    padded = [torch.nn.utils.rnn.pad_sequence(t.split(lengths), batch_first=True, padding_value=9.0) for t in (q, k, v)]
    dense = ours.attention(*padded, layout="bshd", seqlens_q=torch.tensor(lengths), **options)
    want = torch.nn.utils.rnn.pad_sequence(got.split(lengths), batch_first=True)
    torch.testing.assert_close(dense, want)


@pytest.mark.parametrize("causal", [False, True])
def test_seqlens_k_without_seqlens_q_masks_padded_keys(causal):
    lengths = (4, K)
    q, k, v = new(2, H, 3, D), new(2, G, K, D), new(2, G, K, D)
    want = torch.cat(
        [
            ours.attention(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n], causal=causal)
            for i, n in enumerate(lengths)
        ]
    )
    used = torch.tensor(lengths, dtype=torch.int32)
    torch.testing.assert_close(ours.attention(q, k, v, causal=causal, seqlens_k=used), want)
    rows = [t.transpose(1, 2).flatten(0, 1) for t in (q, k, v)]
    ends = {"cu_seqlens_q": torch.tensor([0, 3, 6]), "cu_seqlens_k": torch.tensor([0, K, 2 * K])}
    packed = ours.attention(*rows, causal=causal, seqlens_k=used.long(), **ends)
    torch.testing.assert_close(packed.unflatten(0, (2, 3)).transpose(1, 2), want)


def test_backward_uses_the_dropout_mask_of_the_forward():
    q, k = new(1, 2, 64, 16), new(1, 2, 65, 16)
    v = torch.eye(65, dtype=torch.float64).expand(1, 2, 65, 65).clone().requires_grad_()
    p = plain(q, k, v)  # v is the identity, so o contains the probabilities
    output = ours.attention(q, k, v, dropout_p=0.25, generator=torch.Generator().manual_seed(1))
    keep = output != 0
    want = p / 0.75 * keep
    torch.testing.assert_close(output, want)
    assert abs(keep.double().mean() - 0.75) < 0.02
    g = torch.randn_like(output)
    dq, dk, dv = torch.autograd.grad(output, (q, k, v), g)
    torch.testing.assert_close((dq, dk), torch.autograd.grad(want, (q, k), g))
    torch.testing.assert_close(dv, want.mT @ g)


def test_a_bool_mask_means_what_it_means_in_torch():
    q, k, v = new(B, H, S, D), new(B, H, K, D), new(B, H, K, D)
    mask = torch.rand(B, 1, S, K) < 0.7
    mask[0, 0, 0] = False  # a fully masked query
    torch.testing.assert_close(ours.attention(q, k, v, bias=mask), F.scaled_dot_product_attention(q, k, v, mask))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": "hbsd"}, "layout must be 'bhsd', 'bshd' or 'sbhd'; got 'hbsd'"),
        ({"bias": torch.zeros(3, H, S, K)}, r"bias must have shape \(2, 4, 7, 9\), or 1 in any of the first three"),
        ({"cu_seqlens_q": torch.tensor([0, 3])}, r"q must be \[tokens, heads, dim\]; got \(2, 4, 7, 8\)"),
        ({"seqlens_q": torch.tensor([3])}, "seqlens_q must have a length for each of 2 sequences"),
        ({"sink": torch.zeros(3)}, r"sink must have shape \(4,\)"),
        ({"dropout_p": 1.5}, "dropout_p must be between 0 and 1"),
    ],
)
def test_errors_name_the_arguments_of_the_function(change, words):
    with pytest.raises(BadArgument, match=f"^attention: {words}"):
        ours.attention(new(B, H, S, D), new(B, G, K, D), new(B, G, K, D), **change)
