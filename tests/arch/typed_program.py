"""A program as a user writes it: type checkers in strict mode find no error in it, and it runs."""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor, nn

import opmux
import opmux.functional as F
import opmux.nn as onn
import opmux.ops
from opmux.core import BackendImplKind, OpImpl, impl
from opmux.core.errors import BadArgument


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = onn.RMSNorm(width)
        self.mlp = onn.SwiGLUMLP(width, 2 * width)
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        mixed: Tensor = self.mlp(normed)
        logits: Tensor = self.head(mixed)
        return logits


@impl(opmux.ops.relu, id="user.relu", kind=BackendImplKind.VENDOR, vendor="user", devices=["cpu"])
def relu(self: Tensor) -> Tensor:
    return self.clamp(min=0)


@impl("silu_mul", id="user.silu_mul", kind=BackendImplKind.VENDOR, vendor="user")
def silu_mul(a: Tensor, b: Tensor) -> Tensor:
    return nn.functional.silu(a) * b


@opmux.policy("reference", strict=True)
def normed(x: Tensor, weight: Tensor) -> Tensor:
    y, _rstd = opmux.ops.rms_norm(x, weight, eps=1e-5)
    return y


@opmux.use(include=["softmax"], mode="all")
def probabilities(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def step(model: Block, x: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), targets)
    if not isinstance(loss, Tensor):
        loss = loss.loss
    torch.autograd.backward(loss)  # torch's `Tensor.backward` has no types
    return loss.detach()


def patched() -> str:
    try:
        report = opmux.patch_model(nn.Linear(2, 2), include=["rms_norm"])
    except opmux.core.OpmuxError as error:
        return str(error)
    undone: int = len(report.replaced)
    opmux.unpatch_model(nn.Linear(2, 2))
    return f"{report}: {undone}"


def main() -> None:
    enabled: list[str] = opmux.enable(mode="auto")
    model, x = Block(16), torch.randn(4, 16)
    assert_type(relu(x), Tensor)
    assert_type(probabilities(x), Tensor)
    assert_type(normed(x, torch.ones(16)), Tensor)
    print(len(enabled), step(model, x, torch.zeros(4, dtype=torch.int64)).item())
    opmux.disable()
    with opmux.policy("vendor:user", per_op={"silu_mul": "reference|*"}):
        y: Tensor = opmux.ops.relu(x)
    with opmux.policy("opmux") as scope, opmux.use(mode="all") as block:
        print(normed(x, torch.ones(16)).sum().item(), probabilities(y).shape, scope, block)
    explanation = opmux.explain("rms_norm", x, torch.ones(16))
    print(explanation.chosen.impl_id if explanation.chosen is not None else "none", explanation)
    for verdict in explanation.verdicts:
        print(verdict.impl.impl_id, verdict.status, verdict.reason)
    found = opmux.compare(model, x, loss=lambda logits: F.softmax(logits).mean(), seconds=0.05, float64=False)
    print(found.right, found.fastest.name, [(row.name, row.ms, row.speed) for row in found.rows])
    print(patched())
    opmux.set_policy("vendor", deny=["user"])
    opmux.set_policy("opmux", deny=[])
    callback = opmux.integrations.OpmuxCallback
    print(callback.__name__, OpImpl.__name__, BadArgument.__name__, opmux.__version__)


if __name__ == "__main__":
    main()
