"""Rope against independent results: complex numbers, autograd, and one position at a time."""

import math

import pytest
import torch

import opmux
from opmux.core.spec import specs
from opmux.specs import rope

CPU = torch.device("cpu")
SBHD, BSHD, THD = 0, 1, 2


def rotate(x, angle, interleaved):
    """Rotate one head by one angle for each pair, with complex numbers."""
    d = x.shape[-1]
    pair = x.double().view(*x.shape[:-1], d // 2, 2) if interleaved else x.double().unflatten(-1, (2, d // 2)).mT
    rotated = torch.view_as_real(torch.view_as_complex(pair.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    return rotated.flatten(-2) if interleaved else rotated.mT.flatten(-2)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["sbhd", "bshd", "bhsd"])
def test_rope_equals_a_product_of_complex_numbers(layout, interleaved):
    angle = torch.randn(5, 8, dtype=torch.float64) * 3
    both = angle.repeat_interleave(2, -1) if interleaved else torch.cat([angle, angle], -1)
    x = torch.randn(2, 5, 3, 20, dtype=torch.float64)
    want = torch.cat([rotate(x[..., :16], angle[None, :, None], interleaved), x[..., 16:]], -1)
    permutation = {"sbhd": (1, 0, 2, 3), "bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3)}[layout]
    permuted = x.permute(permutation)
    for table, sin in ((both, None), (both.cos(), both.sin())):
        got = opmux.ops.rope_fwd(permuted, table, sin, layout=layout, interleaved=interleaved)
        torch.testing.assert_close(got, want.permute(permutation), rtol=1e-12, atol=1e-12)
        assert got.is_contiguous()


def test_backward_is_the_transpose_even_if_the_angles_of_a_pair_differ():
    for spec in (specs.find("rope_fwd", ("opmux",)),):
        for sample in spec.samples(torch.float64, CPU):
            x, *rest = sample.args
            leaf = x.detach().clone().requires_grad_()
            y = spec.reference(leaf, *rest)
            dy = torch.randn_like(y)
            (want,) = torch.autograd.grad(y, leaf, dy)
            torch.testing.assert_close(rope.rope_bwd.reference(dy, *rest), want, rtol=1e-12, atol=1e-12)


def positions_of(length, start, cp_size, cp_rank):
    """The positions of a rank's tokens. A sequence has 2 * cp_size pieces; rank r has piece r from the front and piece
    r from the end.
    """
    pieces = torch.arange(length * cp_size).chunk(2 * cp_size)
    mine = torch.cat([pieces[cp_rank], pieces[2 * cp_size - 1 - cp_rank]]) if cp_size > 1 else torch.arange(length)
    return [int(p) + start for p in mine]


@pytest.mark.parametrize("cp_size, cp_rank", [(1, 0), (2, 0), (2, 1), (3, 1)])
@pytest.mark.parametrize("started", [False, True])
def test_tex_rotates_every_token_by_the_angles_of_its_position(started, cp_size, cp_rank):
    """The expected values rotate each token separately. Tests all formats."""
    freqs = torch.randn(64, 1, 1, 8)
    lengths = (4, 2, 6)
    edges = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32) * cp_size
    x = torch.randn(sum(lengths), 2, 8)
    starts = torch.tensor([3, 0, 5], dtype=torch.int32) if started else None
    got = opmux.ops.fused_rope_forward(x, freqs, starts, THD, False, edges, cp_size, cp_rank)
    want, start = [], 0
    for i, n in enumerate(lengths):
        for k, position in enumerate(positions_of(n, int(starts[i]) if started else 0, cp_size, cp_rank)):
            want.append(one(x[start + k], freqs[position, 0, 0]))
        start += n
    torch.testing.assert_close(got, torch.stack(want))
    x = torch.randn(6, 3, 2, 8)
    got = opmux.ops.fused_rope_forward(x, freqs, starts, SBHD, False, None, cp_size, cp_rank)
    rows = [positions_of(6, int(starts[b]) if started else 0, cp_size, cp_rank) for b in range(3)]
    want = torch.stack([torch.stack([one(x[s, b], freqs[rows[b][s], 0, 0]) for b in range(3)]) for s in range(6)])
    torch.testing.assert_close(got, want)
    swapped = opmux.ops.fused_rope_forward(x.transpose(0, 1), freqs, starts, BSHD, False, None, cp_size, cp_rank)
    torch.testing.assert_close(swapped, want.transpose(0, 1).contiguous())


def one(x, angles):
    half = angles.shape[-1] // 2
    out = x.clone()
    for i in range(half):
        a, b = float(angles[i]), float(angles[i + half])
        out[..., i] = x[..., i] * math.cos(a) - x[..., i + half] * math.sin(a)
        out[..., i + half] = x[..., i + half] * math.cos(b) + x[..., i] * math.sin(b)
    return out


def test_tex_packed_heads_equal_rope_of_each_part():
    qkv = torch.randn(5, 2, 3, 40)
    q_freqs, k_freqs = torch.randn(5, 1, 1, 8), torch.randn(5, 1, 1, 6)
    q, k, v = opmux.ops.fused_qkv_rope_forward(qkv, q_freqs, k_freqs, None, [24, 8, 8], SBHD, True, 1, 0)
    assert q.shape == (5, 2, 9, 8) and k.shape == v.shape == (5, 2, 3, 8)
    assert torch.equal(v, qkv[..., 32:]) and v.data_ptr() != qkv.data_ptr()
    torch.testing.assert_close(
        q, opmux.ops.fused_rope_forward(qkv[..., :24].reshape(5, 2, 9, 8), q_freqs, None, SBHD, True, None, 1, 0)
    )
    leaf = qkv.double().requires_grad_()
    outs = specs.find("rope_fwd").reference
    parts = [
        outs(leaf[..., :24].reshape(5, 2, 9, 8), q_freqs[:, 0, 0], None, None, None, "sbhd", True),
        outs(leaf[..., 24:32], k_freqs[:, 0, 0], None, None, None, "sbhd", True),
        leaf[..., 32:],
    ]
    grads = [torch.randn(p.shape) for p in parts]
    (want,) = torch.autograd.grad(parts, leaf, [g.double() for g in grads])
    got = opmux.ops.fused_qkv_rope_backward(*grads, q_freqs, k_freqs, [24, 8, 8], SBHD, True, 1, 0)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_tex_functions_record_no_gradient_and_copy_nothing():
    x, freqs = torch.randn(4, 2, 3, 8, requires_grad=True), torch.randn(4, 1, 1, 8)
    y = opmux.ops.fused_rope_forward(x, freqs, None, SBHD, False, None, 1, 0)
    assert not y.requires_grad
    back = opmux.ops.fused_rope_backward(y, torch.cat([freqs[..., :4]] * 2, -1), None, SBHD, False, None, 1, 0)
    there = opmux.ops.fused_rope_forward(back, torch.cat([freqs[..., :4]] * 2, -1), None, SBHD, False, None, 1, 0)
    torch.testing.assert_close(there, y)


def test_packed_heads_are_differentiable():
    """Tests autograd through rope_qkv_fwd, with a start position for each sequence."""
    qkv = torch.randn(2, 3, 2, 44, dtype=torch.float64, requires_grad=True)
    q_angles, k_angles = torch.randn(12, 8, dtype=torch.float64), torch.randn(12, 12, dtype=torch.float64)
    starts = torch.tensor([0, 3])
    call = lambda t: opmux.ops.rope_qkv_fwd(t, q_angles, k_angles, [24, 12, 8], starts, "bshd", True)
    assert torch.autograd.gradcheck(call, qkv)


GOOD = {"freqs": torch.zeros(6, 1, 1, 16), "q_freqs": torch.zeros(6, 1, 1, 16), "k_freqs": torch.zeros(6, 1, 1, 16),
        "input": torch.zeros(6, 2, 3, 16), "qkv_input": torch.zeros(6, 2, 3, 48), "qkv_split_arg_list": [16, 16, 16],
        "start_positions": torch.zeros(2, dtype=torch.int32), "qkv_format": SBHD, "interleaved": False,
        "cu_seqlens": None, "cp_size": 1, "cp_rank": 0}  # fmt: skip


@pytest.mark.parametrize(
    "names, argument, wrong, message",
    [
        ("input", "input", torch.zeros(2, 3, 16), "must have 4 dimensions, as qkv_format is sbhd"),
        ("input", "freqs", torch.zeros(6, 1, 1, 16).double(), "must be float32; got float64"),
        ("input", "freqs", torch.zeros(6, 2, 1, 16), r"must have shape \[positions, 1, 1, _\]"),
        ("input", "freqs", torch.zeros(6, 1, 1, 15), "must have shape"),
        ("input", "freqs", torch.zeros(6, 1, 1, 18), "must have at most 16 columns, the size of a head of input"),
        ("input", "freqs", torch.zeros(3, 1, 1, 16), "must have 6 positions or more, the length of input"),
        ("input", "start_positions", torch.zeros(3, dtype=torch.int32), r"must have shape \(2,\)"),
        ("input", "qkv_format", 7, "must be one of NVTE_SBHD, NVTE_BSHD, NVTE_THD; got 7"),
        ("input", "cp_rank", 1, "must be less than 1, the cp_size; got 1"),
        ("input", "cp_size", 0, "must be at least 1; got 0"),
        ("input", "interleaved", "no", "must be a bool; got 'no'"),
        ("qkv", "qkv_input", torch.zeros(6, 2, 3, 47), "must have a last dimension of 48, as qkv_split_arg_list is"),
        ("qkv", "k_freqs", torch.zeros(2, 1, 1, 16), "must have 6 positions or more"),
        ("qkv", "qkv_split_arg_list", [16, 16], "must be three sizes"),
        ("qkv", "qkv_split_arg_list", [16, "16", 16], "must be a list of ints; got '16' at index 1"),
        ("qkv", "qkv_format", THD, "must be one of NVTE_SBHD, NVTE_BSHD; got 2"),
    ],
)
def test_wrong_tex_arguments_raise_with_the_ops_name(names, argument, wrong, message):
    """Errors use tex's argument names, whichever implementation runs."""
    op = opmux.ops.fused_rope_forward if names == "input" else opmux.ops.fused_qkv_rope_forward
    arguments = {n: GOOD[n] for n in op.spec.names} | {argument: wrong}
    for fn in (op, op.spec.reference):
        with pytest.raises((TypeError, ValueError), match=f"^{op.spec.name}: {argument} {message}"):
            fn(**arguments)
