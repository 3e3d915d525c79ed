"""Transformer Engine on older torch versions, which lack some names, and whose `is_fake` raises for some wrappers."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest
import te_layer
import torch
from torch._library import opaque_object
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

te_layer.skip_without("these run on the CPU; tests/gpu/test_gpu_te.py has the same for CUDA")
pytestmark = pytest.mark.filterwarnings("ignore")

BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def te():
    return te_layer.load()


def is_fake_of_torch_2_11(x):
    """torch 2.11's `is_fake`. It raises if only some inner tensors are fake, and also if there are no inner tensors."""
    if isinstance(x, fake_tensor.FakeTensor):
        return True
    if isinstance(x, torch.Tensor) and is_traceable_wrapper_subclass(x):
        names, _ = type(x).__tensor_flatten__(x)
        fakes = [is_fake_of_torch_2_11(getattr(x, name)) for name in names]
        if all(fakes) != any(fakes):
            raise AssertionError("got mixed fake and real tensors!")
        return all(fakes)
    return False


def of_rewritten_source(function):
    """Compile a function of the layer from its source, with its imports rewritten as for torch 2.11."""
    from opmux.faces.te import rewrite, torch_names

    imports = frozenset({(torch_names.FAKE, "is_fake")})
    namespace: dict = dict(function.__globals__)
    exec(
        rewrite.rewritten(textwrap.dedent(inspect.getsource(function)).encode(), "linear.py", "cpu", imports), namespace
    )
    return namespace[function.__name__]


@pytest.mark.parametrize("kind", ["identity", "hybrid"])
def test_weights_without_inner_tensors_work_although_torch_2_11s_is_fake_raises(te, kind, monkeypatch):
    from transformer_engine.common.recipe import CustomRecipe
    from transformer_engine.pytorch.tensor import hybrid_tensor, identity_tensor

    from opmux.core.tensors import is_real

    monkeypatch.setattr(fake_tensor, "is_fake", is_fake_of_torch_2_11)
    # Every constructor, and `layer.to`, calls `is_fake` through this function.
    check = te.Linear._prealloc_cublas_workspace
    monkeypatch.setattr(te.Linear, check.__name__, of_rewritten_source(check))
    none = identity_tensor.IdentityQuantizer
    current = lambda: te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, device=torch.device("cpu"))
    both = lambda: hybrid_tensor.HybridQuantizer(rowwise_quantizer=none(), columnwise_quantizer=current())
    recipe = CustomRecipe(qfactory=lambda role: none() if kind == "identity" else both())
    with te.quantized_model_init(enabled=True, recipe=recipe):
        layer = te.Linear(32, 32, params_dtype=BF16)
    assert isinstance(layer.weight, te.QuantizedTensor) and is_real(layer.weight)
    with pytest.raises(AssertionError, match="mixed fake and real"):
        fake_tensor.is_fake(layer.weight)
    x = torch.randn(32, 32, dtype=BF16, requires_grad=True)
    with te.autocast(enabled=True, recipe=recipe):
        layer.to("cpu")(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_is_fake_accepts_wrappers_with_and_without_inner_tensors(te, monkeypatch):
    from transformer_engine.pytorch.tensor.identity_tensor import IdentityQuantizer

    from opmux.faces.te import torch_names

    monkeypatch.setattr(fake_tensor, "is_fake", is_fake_of_torch_2_11)
    plain = torch.zeros(32, 32)
    quantized = te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, device=torch.device("cpu"))(plain)
    assert not any(torch_names.is_fake(t) for t in (plain, quantized, IdentityQuantizer()(plain), None))
    with fake_tensor.FakeTensorMode() as mode:
        assert torch_names.is_fake(mode.from_tensor(plain))
        assert torch_names.is_fake(mode.from_tensor(quantized))


def test_imports_are_replaced_one_name_at_a_time():
    from opmux.faces.te import rewrite

    source = b"def f():\n    from math import floor, ceil as up\n    from . import math\n"
    tree = rewrite._Everywhere(frozenset({("math", "ceil")})).visit(ast.parse(source))
    assert ast.unparse(tree).splitlines() == [
        "def f():",
        "    from opmux.faces.te.torch_names import ceil as up",
        "    from math import floor",
        "    from . import math",
    ]
    assert rewrite.may_need_rewrite(source, None, frozenset({("math", "ceil")}))
    assert not rewrite.may_need_rewrite(source, None, frozenset({("math", "sin")}))


# ---- torch.compile --------------------------------------------------------------------------------------------------

CONSTANTS = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13),
    reason="opaque constants of torch before 2.13 need a metaclass of torch's",
)


@CONSTANTS
def test_every_quantizer_without_tensors_is_an_opaque_constant(te):
    from transformer_engine.pytorch.dynamo import is_value_opaque_quantizer

    fp8 = te.DType.kFloat8E4M3
    quantizers = [
        te.Float8CurrentScalingQuantizer(fp8, device=torch.device("cpu")),
        te.Float8BlockQuantizer(fp8, rowwise=True, columnwise=True),
        te.MXFP8Quantizer(fp8),
        te.NVFP4Quantizer(),
    ]
    for quantizer in quantizers:
        assert is_value_opaque_quantizer(quantizer), quantizer
        assert type(quantizer).__name__ in opaque_object.get_opaque_type_name(type(quantizer))


@CONSTANTS
@pytest.mark.parametrize("name", ["block", "mxfp8", "nvfp4"])
def test_compiled_linear_is_one_graph_and_matches_eager(te, name, monkeypatch):
    """Gradients match too. For Blackwell's recipes, the device capability is faked."""
    from transformer_engine.common import recipe as recipes
    from transformer_engine.pytorch import quantization

    modules = {
        "block": recipes.Float8BlockScaling(),
        "mxfp8": recipes.MXFP8BlockScaling(),
        "nvfp4": recipes.NVFP4BlockScaling(disable_stochastic_rounding=True),
    }[name]
    monkeypatch.setattr(quantization, "_MXFP8_SUPPORT", (True, ""))
    monkeypatch.setattr(quantization, "_NVFP4_SUPPORT", (True, ""))
    torch._dynamo.reset()
    layer, x = te.Linear(128, 128, params_dtype=BF16), torch.randn(128, 128, dtype=BF16, requires_grad=True)

    def step(x):
        with te.autocast(enabled=True, recipe=modules):
            return layer(x)

    results = []
    for call in (torch.compile(step, fullgraph=True, backend="aot_eager"), step):
        y = call(x)
        results.append((y.detach(), *torch.autograd.grad(y, (x, layer.weight, layer.bias), torch.ones_like(y))))
    for compiled, eager in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
