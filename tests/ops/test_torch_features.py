"""Ops under torch.export, on DTensors, and under autocast with mixed dtypes."""

import sys

import fresh
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.export import Dim

import opmux
from opmux.core.errors import BadArgument

X, W, B = torch.randn(4, 8), torch.rand(8), torch.rand(8)
# For each op family that models use: a function that calls an op, and its arguments.
CALLS = {
    "silu": (lambda x: opmux.ops.silu(x), (X,)),
    "silu_mul": (lambda x: opmux.ops.silu_mul(x, x), (X,)),
    "rms_norm": (lambda x, w: opmux.ops.rms_norm(x, w)[0], (X, W)),
    "layer_norm": (lambda x, w, b: opmux.ops.layer_norm(x, w, b)[0], (X, W, B)),
    "softmax": (lambda x: opmux.ops.softmax(x, -1), (X,)),
    "add": (lambda x: opmux.ops.add(x, x), (X,)),
    "sum": (lambda x: opmux.ops.sum(x, [-1], False), (X,)),
    "cumsum": (lambda x: opmux.ops.cumsum(x, -1), (X,)),
    "linear": (lambda x, w: opmux.ops.linear(x, w.expand(3, 8).contiguous()), (X, W)),
    "attention": (lambda x: opmux.ops.attention(*[x.view(1, 1, -1, 8)] * 3)[0], (X,)),
}


class Calls(nn.Module):
    """A module whose forward has named arguments, because export's dynamic shapes refer to argument names."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x, w=None, b=None):
        return self.call(*(a for a in (x, w, b) if a is not None))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_ops_can_be_exported(name, strict):
    call, args = CALLS[name]
    shapes = dict(zip("xwb", ({0: Dim("rows", min=2, max=64)}, None, None)))
    shapes = {k: v for k, v in shapes.items() if k in "xwb"[: len(args)]}
    program = torch.export.export(Calls(call), args, dynamic_shapes=shapes, strict=strict)
    longer = torch.randn(7, 8)
    torch.testing.assert_close(program.module()(longer, *args[1:]), call(longer, *args[1:]))
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert f"opmux.{name}.default" in targets or (name == "add" and targets == {"aten.add.Tensor"}), targets


FIRST_USE = """
import torch, opmux
from torch.fx.experimental.proxy_tensor import make_fx
made = make_fx(lambda x: opmux.ops.add(x, x))(torch.ones(3))
print([str(node.target) for node in made.graph.nodes if node.op == "call_function"])
"""


@pytest.mark.slow
def test_tracing_is_not_affected_by_the_import_of_a_family():
    """The first call of an op imports op families, whose modules create tensors."""
    result = fresh.run([sys.executable, "-c", FIRST_USE])
    assert result.stdout == "['aten.add.Tensor']\n", result.stderr


# ---- DTensor --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("store") / "file"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", CALLS)
def test_ops_work_on_dtensors(name, mesh):
    if name == "cumsum" and torch.__version__.startswith("2.11."):
        pytest.skip("torch 2.11 has no sharding strategy for aten.flip, of which the gradient is made")
    call, args = CALLS[name]
    plain = [t.clone().requires_grad_() for t in args]
    spread = [distribute_tensor(t, mesh, [Replicate() if i else Shard(0)]).requires_grad_() for i, t in enumerate(args)]
    want, actual = call(*plain), call(*spread)
    assert isinstance(actual, DTensor)
    torch.testing.assert_close(actual.full_tensor(), want)
    want.square().sum().backward()
    actual.square().sum().backward()
    for one, other in zip(spread, plain):
        assert isinstance(one.grad, DTensor)
        torch.testing.assert_close(one.grad.full_tensor(), other.grad)


# ---- autocast -------------------------------------------------------------------------------------------------------

HALF = torch.bfloat16
V = X.view(1, 1, 4, 8)
# Calls with mixed dtypes, and the dtype of the result. Products have autocast's dtype. Other ops have the dtype of the
# first tensor if they support that (the weights of a norm may have another dtype), else the widest dtype.
MIXED = {
    "rms_norm": (lambda: opmux.ops.rms_norm(X.to(HALF), W)[0], HALF),
    "layer_norm": (lambda: opmux.ops.layer_norm(X.to(HALF), W, B)[0], HALF),
    "add_rms_norm": (lambda: opmux.ops.add_rms_norm(X.to(HALF), X, W)[0], torch.float32),
    "silu_mul": (lambda: opmux.ops.silu_mul(X.to(HALF), X), torch.float32),
    "silu_mul of two halves": (lambda: opmux.ops.silu_mul(X.to(HALF), X.half()), torch.float32),
    "linear": (lambda: opmux.ops.linear(X.to(HALF), torch.ones(3, 8)), HALF),
    "attention": (lambda: opmux.ops.attention(V.to(HALF), V, V)[0], HALF),
    "add": (lambda: opmux.ops.add(X.to(HALF), X), torch.float32),
}


@pytest.mark.parametrize("name", MIXED)
def test_autocast_accepts_mixed_dtypes(name):
    call, dtype = MIXED[name]
    with torch.autocast("cpu", dtype=HALF):
        assert call().dtype is dtype


def test_mixed_dtypes_raise_without_autocast():
    with pytest.raises(BadArgument, match="silu_mul: b must be bfloat16, the dtype of a; got float32"):
        opmux.ops.silu_mul(X.to(HALF), X)
    with torch.autocast("cpu", dtype=HALF), pytest.raises(BadArgument, match="must be"):
        opmux.ops.silu_mul(X.double(), X)  # autocast does not cast float64
    with torch.autocast("cpu", dtype=HALF), pytest.raises(BadArgument, match="must"):
        opmux.ops.silu_mul(X.to(HALF), X[:2])  # here the shapes are wrong, not the dtypes


def test_gradients_under_autocast_have_the_dtypes_of_their_parameters():
    a, b = X.to(HALF).requires_grad_(), X.clone().requires_grad_()
    with torch.autocast("cpu", dtype=HALF):
        y = opmux.ops.silu_mul(a, b)
    y.sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (HALF, torch.float32)
    c = X.clone().requires_grad_()
    (torch.nn.functional.silu(X.to(HALF).float()) * c).sum().backward()
    torch.testing.assert_close(b.grad, c.grad)
