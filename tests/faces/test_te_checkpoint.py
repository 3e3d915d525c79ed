"""Activation recomputation does not change the results of Transformer Engine's FP8 modules."""

from __future__ import annotations

import pytest
import te_layer
import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

te_layer.skip_without("these run on the CPU")
pytestmark = pytest.mark.filterwarnings("ignore")

BF16, HIDDEN = torch.bfloat16, 128


@pytest.fixture(scope="module")
def te():
    return te_layer.load()


@pytest.fixture(scope="module")
def recipes(te):
    from transformer_engine.common import recipe
    from transformer_engine.pytorch.tensor.hybrid_tensor import HybridQuantizer

    current = lambda: te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, device=torch.device("cpu"))
    mxfp8 = lambda: te.MXFP8Quantizer(te.DType.kFloat8E4M3)
    hybrid = lambda: HybridQuantizer(rowwise_quantizer=current(), columnwise_quantizer=mxfp8())
    of_role = lambda role: mxfp8() if "grad" in str(getattr(role, "tensor_type", role)) else hybrid()
    return {
        "delayed": lambda: recipe.DelayedScaling(amax_history_len=4),
        "current": recipe.Float8CurrentScaling,
        "block": recipe.Float8BlockScaling,
        "mxfp8": lambda: recipe.CustomRecipe(qfactory=lambda role: mxfp8()),
        "hybrid": lambda: recipe.CustomRecipe(qfactory=of_role),
    }


MODULES = {
    "Linear": lambda te: te.Linear(HIDDEN, HIDDEN, params_dtype=BF16),
    "LayerNormMLP": lambda te: te.LayerNormMLP(HIDDEN, 2 * HIDDEN, params_dtype=BF16),
    "TransformerLayer": lambda te: te.TransformerLayer(
        HIDDEN, 2 * HIDDEN, 4, params_dtype=BF16, hidden_dropout=0.0, attention_dropout=0.0
    ),
}


def steps(te, name, recipe, run):
    """Results and gradients of two steps of a new module; with delayed scaling, step 2 uses the amax of step 1."""
    te.quantization.FP8GlobalStateManager.reset()
    torch.manual_seed(3)
    layer = MODULES[name](te)
    x = torch.randn(128, 1, HIDDEN).to(BF16).requires_grad_()
    results = []
    for _ in range(2):
        y = run(layer, x, lambda: te.autocast(enabled=True, recipe=recipe))
        y.sum().backward()
        leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
        results += [y.detach(), *(t.grad for t in leaves)]
        x.grad = None
        layer.zero_grad(set_to_none=True)
    return results


def plain(layer, x, autocast):
    with autocast():
        return layer(x)


@pytest.mark.parametrize("mode", ["reentrant", "not reentrant", "torch's"])
@pytest.mark.parametrize("recipe", ["delayed", "current", "block", "mxfp8", "hybrid"])
def test_recomputation_gives_the_same_results(te, recipes, recipe, mode):
    """Tests te.checkpoint in both modes, and torch's checkpoint with autocast inside the checkpointed function."""

    def run(layer, x, autocast):
        if mode == "torch's":
            return torch_checkpoint(lambda x: plain(layer, x, autocast), x, use_reentrant=False)
        with autocast():
            return te.checkpoint(layer, x, use_reentrant=mode == "reentrant")

    if mode == "torch's" and recipe == "delayed":
        pytest.skip("torch's checkpoint does not restore the amax history that delayed scaling updates in the forward")
    for name in MODULES:
        for result, exact in zip(
            steps(te, name, recipes[recipe](), run), steps(te, name, recipes[recipe](), plain), strict=True
        ):
            torch.testing.assert_close(result, exact, rtol=0, atol=0, msg=lambda m, name=name: f"{name}: {m}")


def test_torchs_checkpoint_raises_inside_te_autocast(te, recipes):
    """The backward recomputes the layer after te.autocast has ended; without FP8 the layer saves fewer tensors."""
    from torch.utils.checkpoint import CheckpointError

    layer, x = MODULES["Linear"](te), torch.randn(128, HIDDEN).to(BF16).requires_grad_()
    with te.autocast(enabled=True, recipe=recipes["current"]()):
        y = torch_checkpoint(layer, x, use_reentrant=False)
    with pytest.raises(CheckpointError, match="A different number of tensors was saved"):
        y.sum().backward()
