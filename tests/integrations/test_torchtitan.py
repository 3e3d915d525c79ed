"""Overrides for torchtitan: its layers run our kernels, with the same parameters and results."""

from dataclasses import dataclass

import pytest
import torch

titan = pytest.importorskip("torchtitan.config", reason="needs torchtitan")
if not hasattr(titan, "apply_overrides"):
    pytest.skip("needs a torchtitan with overrides (0.3)", allow_module_level=True)
from torchtitan.models.common.feed_forward import FeedForward  # noqa: E402
from torchtitan.models.common.linear import Linear  # noqa: E402
from torchtitan.models.common.nn_modules import RMSNorm  # noqa: E402

from opmux.integrations.torchtitan import OpmuxTitanFeedForward, OpmuxTitanRMSNorm  # noqa: E402


class Model(titan.Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(titan.Configurable.Config):
        norm: RMSNorm.Config
        mlp: FeedForward.Config


def config():
    linear = lambda n, m: Linear.Config(in_features=n, out_features=m)
    mlp = FeedForward.Config(w1=linear(16, 24), w2=linear(24, 16), w3=linear(16, 24))
    return Model.Config(norm=RMSNorm.Config(normalized_shape=16, eps=1e-6), mlp=mlp)


def layers(*imports):
    """The norm and the MLP that a configuration with these overrides builds, with fixed parameters."""
    cfg = config()
    titan.apply_overrides(titan.OverrideConfig(imports=list(imports)), cfg)
    torch.manual_seed(0)
    built = cfg.norm.build(), cfg.mlp.build()
    for layer in built:
        for parameter in layer.parameters():
            torch.nn.init.uniform_(parameter, -1, 1)
    return built


def test_overridden_layers_compute_the_same():
    module = "opmux.integrations.torchtitan"
    ours, theirs = layers(f"{module}.rms_norm", f"{module}.feed_forward"), layers()
    assert [type(layer) for layer in ours] == [OpmuxTitanRMSNorm, OpmuxTitanFeedForward]
    for our, their in zip(ours, theirs, strict=True):
        assert our.state_dict().keys() == their.state_dict().keys()
        x, results = torch.randn(5, 16), []
        for layer in (our, their):
            leaf = x.clone().requires_grad_()
            out = layer(leaf)
            out.sum().backward()
            results.append((out, leaf.grad, *(p.grad for p in layer.parameters())))
        torch.testing.assert_close(*results, rtol=2e-5, atol=2e-5)
