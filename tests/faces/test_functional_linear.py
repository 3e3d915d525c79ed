"""A linear layer fused with activation and residual matches torch in float64: values, gradients, saved tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux.functional as ours
from opmux.core.errors import BadArgument

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ACTS = {
    None: lambda a: a,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda a: F.gelu(a, approximate="tanh"),
    "silu": F.silu,
    "srelu": lambda a: F.relu(a).square(),
    "qgelu": lambda a: a * torch.sigmoid(1.702 * a),
    "sigmoid": torch.sigmoid,
}
K, N = 24, 16


def of_torch(act, glu):
    def run(x, weight, bias, residual):
        y = F.linear(x, weight, bias)
        y = ACTS[act](y[..., :N]) * y[..., N:] if glu else ACTS[act](y)
        return y if residual is None else y + residual

    return run


def of_ours(act, glu):
    return lambda x, w, b, r: ours.linear(x, w, b, activation=act, glu=glu, residual=r)


def tensors(rows=(2, 5), glu=False, dtype=torch.float64, bias=True, residual=True):
    torch.manual_seed(1)
    n = 2 * N if glu else N
    tensors = [torch.randn(*rows, K), torch.randn(n, K) / K**0.5, torch.randn(n) if bias else None,
            torch.randn(*rows, N) if residual else None]  # fmt: skip
    return [None if t is None else t.to(dtype) for t in tensors]


def agree(fn, torchs, args, dtype):
    """Compare values and gradients, with two backward passes through one graph; inputs must not be written."""
    leaves = [None if t is None else t.requires_grad_() for t in args]
    doubles = [None if t is None else t.detach().double().requires_grad_() for t in leaves]
    there = lambda tensors: [t for t in tensors if t is not None]
    before = [t.detach().clone() for t in there(leaves)]
    y, want = fn(*leaves), torchs(*doubles)
    # Wide enough for gradients: they use the rounded product, and sum 10 or 32 products.
    tol = dict(rtol=32 * torch.finfo(dtype).eps, atol=32 * torch.finfo(dtype).eps)
    torch.testing.assert_close(y.double(), want, **tol)
    dy = torch.cos(torch.arange(y.numel())).view(y.shape).to(dtype)
    grads = [torch.autograd.grad(y, there(leaves), dy.to(y.dtype), retain_graph=True) for _ in range(2)]
    for leaf, a, b, w in zip(
        there(leaves), *grads, torch.autograd.grad(want, there(doubles), dy.double()), strict=True
    ):
        assert torch.equal(a, b) and a.dtype is leaf.dtype and a.shape == leaf.shape
        torch.testing.assert_close(a.double(), w, **tol)
    assert all(torch.equal(a, b) for a, b in zip(there(leaves), before, strict=True))
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act, glu", [(a, g) for a in ACTS for g in (False, True) if g or a != "sigmoid"])
def test_linear_act_matches_torch(act, glu, dtype):
    y = agree(of_ours(act, glu), of_torch(act, glu), tensors(glu=glu, dtype=dtype), dtype)
    assert y.dtype is dtype


@pytest.mark.parametrize("rows", [(), (1,), (3,), (0, 4), (2, 3, 4)])
@pytest.mark.parametrize("glu", [False, True])
def test_linear_act_accepts_any_rows_without_bias_and_residual(rows, glu):
    args = tensors(rows, glu, torch.float32, False, False)
    assert agree(of_ours("silu", glu), of_torch("silu", glu), args, torch.float32).shape == (*rows, N)


def test_linear_act_accepts_zero_in_or_out_features():
    x, w, b = torch.randn(3, 0), torch.randn(4, 0, requires_grad=True), torch.randn(4, requires_grad=True)
    y = ours.linear(x, w, b, activation="silu")
    torch.testing.assert_close(y, F.silu(b).expand(3, 4))
    y.sum().backward()
    assert w.grad.shape == (4, 0) and b.grad.any()
    w = torch.randn(0, 5, requires_grad=True)
    ours.linear(torch.randn(3, 5), w, activation="gelu", glu=True).sum().backward()
    assert w.grad.shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_float32_residual_makes_the_result_float32(dtype):
    *args, residual = tensors(dtype=dtype)
    agree(of_ours("gelu", False), of_torch("gelu", False), [*args, residual.float()], dtype)
    y = ours.linear(*args, residual=residual.float())
    assert y.dtype is torch.float32
    torch.testing.assert_close(y - residual.float(), ours.linear(*args).float(), rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("frozen", [{0}, {1}, {2}, {3}, {0, 1}, {0, 1, 2}, {1, 2, 3}])
@pytest.mark.parametrize("act, glu", [("silu", True), ("gelu", False), (None, False)])
def test_frozen_arguments_get_no_gradient(act, glu, frozen):
    """The other arguments get the same gradients as in torch."""
    leaves = [t.requires_grad_(i not in frozen) for i, t in enumerate(tensors(glu=glu))]
    needed = [t for t in leaves if t.requires_grad]
    grads = [torch.autograd.grad(fn(act, glu)(*leaves).sin().sum(), needed) for fn in (of_ours, of_torch)]
    torch.testing.assert_close(*grads)


def test_views_are_accepted_without_a_copy():
    wide = torch.randn(6, 2 * K)
    x, w = wide[:, K:], torch.randn(K, 2 * N).t()
    torch.testing.assert_close(
        ours.linear(x, w, activation="silu", glu=True), of_torch("silu", True)(x, w, None, None), rtol=1e-5, atol=1e-5
    )


def saved(fn, *leaves):
    """The number of elements saved for backward, except the arguments; tensors that share memory count once."""
    saved_tensors = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved_tensors.setdefault(t.data_ptr(), t), lambda t: t):
        assert fn(*leaves).requires_grad
    own = {t.data_ptr() for t in leaves if t is not None}
    return sum(t.numel() for address, t in saved_tensors.items() if address not in own)


def test_only_the_product_is_saved_for_backward():
    args = [t.requires_grad_() for t in tensors(glu=True)]
    assert saved(of_ours("silu", True), *args) == 10 * 2 * N
    args = [t.requires_grad_() for t in tensors()]
    assert saved(of_ours("relu", False), *args) == 10 * N
    assert saved(of_ours(None, False), *args) == 0
    x, w, b, r = (t.detach() for t in args)
    assert saved(of_ours("relu", False), x, w, b, r.requires_grad_()) == 0


@pytest.mark.parametrize("act, glu", [("gelu", False), ("silu", True), (None, True), (None, False)])
def test_linear_act_compiles_without_graph_breaks(act, glu):
    torch._dynamo.reset()  # all cases share one code object and so one cache of compiled graphs
    args = [t.requires_grad_() for t in tensors(glu=glu)]
    run = torch.compile(of_ours(act, glu), backend="aot_eager", fullgraph=True)
    graphs = []
    for fn in (run, of_torch(act, glu)):
        y = fn(*args)
        graphs.append((y, *torch.autograd.grad(y.sin().sum(), args)))
    torch.testing.assert_close(*graphs)
    with torch.no_grad():
        torch.testing.assert_close(run(*args), graphs[1][0])


def test_compiled_graphs_contain_the_custom_op():
    torch._dynamo.reset()
    graphs = []
    x, w, b, r = tensors(glu=True)
    run = torch.compile(of_ours("silu", True), backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)
    run(x, w, b, r)
    assert "opmux.linear_act" in graphs[0].code


def test_vmap_of_grad_matches_torch():
    x, *rest = tensors(glu=True, residual=False)
    gradient = lambda fn: torch.func.grad(lambda x: fn(x, *rest).sin().sum())
    torch.testing.assert_close(*(torch.func.vmap(gradient(fn("silu", True)))(x) for fn in (of_ours, of_torch)))
    torch.testing.assert_close(*(torch.func.jvp(lambda x, fn=fn: fn("gelu", True)(x, *rest), (x,), (x.cos(),))
                                 for fn in (of_ours, of_torch)))  # fmt: skip


@pytest.mark.parametrize("act, glu", [("gelu", False), ("silu", True), (None, True), (None, False)])
def test_second_derivatives_match_torch(act, glu):
    leaves, results = [t.requires_grad_() for t in tensors(glu=glu)], []
    for fn in (of_ours, of_torch):
        grads = torch.autograd.grad(fn(act, glu)(*leaves).sin().sum(), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))
    torch.testing.assert_close(*results)


def test_autocast_sets_the_compute_dtype():
    args = [t.requires_grad_() for t in tensors(dtype=torch.float32)]
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (fn("gelu", False)(*args) for fn in (of_ours, of_torch))
        plain = ours.linear(*args[:3], activation="relu")
        mixed = ours.linear(*args[:3], residual=args[3].half())
    assert got.dtype is want.dtype is mixed.dtype is torch.float32 and plain.dtype is torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    for a, b in zip(*(torch.autograd.grad(y.sum(), args) for y in (got, want)), strict=True):
        assert a.dtype is torch.float32
        torch.testing.assert_close(a, b, rtol=4e-2, atol=4e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert of_ours("gelu", False)(*tensors()).dtype is torch.float64


def test_meta_tensors_give_shapes_and_dtypes():
    x, w, b, r = (t.to("meta").requires_grad_() for t in tensors(glu=True, dtype=torch.bfloat16))
    y = ours.linear(x, w, b, activation="silu", glu=True, residual=r)
    y.sum().backward()
    assert y.shape == r.shape and all(t.grad.shape == t.shape for t in (x, w, b, r))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"weight": torch.randn(N, K + 1)}, r"^linear: weight must have shape \(n, 24\)"),
        ({"bias": torch.randn(3)}, r"^linear: bias must have shape \(16,\)"),
        ({"residual": torch.randn(5, N)}, r"^linear: residual must have shape \(2, 5, 16\)"),
        ({"residual": torch.randn(2, 5, N).bfloat16()}, "residual must be float32, as x is float32; got bfloat16"),
        ({"weight": torch.randn(N, K).half()}, "weight must be float32, the dtype of x; got float16"),
        ({"activation": "swish"}, "activation must be one of 'gelu_tanh', .*; got 'swish'"),
        ({"activation": "sigmoid"}, "activation must be None or one of .*, or glu be set; got 'sigmoid'"),
        ({"weight": torch.randn(3, K), "bias": None, "residual": None, "glu": True}, "weight must have an even number"),
        ({"weight": torch.randn(K)}, r"weight must have 2 dimensions, \[n, k\]; got \(24,\)"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
@pytest.mark.parametrize("grad", [False, True])
def test_invalid_arguments_raise(change, message, grad):
    x, w, b, r = tensors(dtype=torch.float32)
    arguments = {"x": x.requires_grad_(grad), "weight": w, "bias": b, "residual": r} | change
    with pytest.raises(BadArgument, match=message):
        ours.linear(**arguments)
    if "residual" not in change or change["residual"] is None:
        with pytest.raises(BadArgument, match=message):
            torch.func.vjp(lambda x: ours.linear(**arguments | {"x": x}), x)
