"""A small Llama and a text to train it on: the program that `opmux demo` runs twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TEXT = """\
A lighthouse keeper once tried to write down everything the sea did in a single day. By noon he had filled a notebook
with waves, and by evening he had filled another with the pauses between them. At night he read both books and found
that they said nearly the same thing: something comes, something goes, and the rocks remain. So on the second day he
wrote only one line, and under it he left room for what was different. In a year the book was still thin, and sailors
who came up the stairs to read it said that they could hear the water in it. A good description, the keeper told them,
says once what stays the same, and then has time to look at what does not. The lamp turned, the ships went by, each one
by its own engine, some with sails and some with steam, and every one of them found the harbour by the same light.
"""


@dataclass(frozen=True)
class LlamaSize:
    vocab: int = 256  # bytes
    dim: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 344
    batch: int = 4
    context: int = 64
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


@dataclass(frozen=True)
class LlamaOps:
    """The three ops that differ between the two runs. They return only results that the model needs."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]  # the normalised sum, the sum
    silu_mul: Callable[[Tensor, Tensor], Tensor]


def _torch_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _torch_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.rms_norm(s, weight.shape, weight, eps), s


PLAIN = LlamaOps(_torch_rms_norm, _torch_add_rms_norm, lambda a, b: F.silu(a) * b)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Causal attention; each key and value head serves several query heads."""

    def __init__(self, size: LlamaSize):
        super().__init__()
        self.size = size
        self.q = linear(size.dim, size.heads * size.head_dim)
        self.k = linear(size.dim, size.kv_heads * size.head_dim)
        self.v = linear(size.dim, size.kv_heads * size.head_dim)
        self.o = linear(size.heads * size.head_dim, size.dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, -1, self.size.head_dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


def rotary(size: LlamaSize, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rates = 10000.0 ** (-torch.arange(0, size.head_dim, 2, device=device, dtype=torch.float32) / size.head_dim)
    angles = torch.arange(size.context, device=device, dtype=torch.float32)[:, None] * rates
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class LlamaLayer(nn.Module):
    def __init__(self, size: LlamaSize):
        super().__init__()
        self.attention = Attention(size)
        self.norm = nn.Parameter(torch.ones(size.dim))  # between attention and MLP
        self.gate, self.up = linear(size.dim, size.hidden), linear(size.dim, size.hidden)
        self.down = linear(size.hidden, size.dim)


class Llama(nn.Module):
    """The model. Each residual is added in the norm after it, so all norms except the first one are add_rms_norm."""

    def __init__(self, size: LlamaSize, ops: LlamaOps):
        super().__init__()
        self.size, self.ops = size, ops
        self.embedding = nn.Embedding(size.vocab, size.dim)
        self.first_norm = nn.Parameter(torch.ones(size.dim))
        self.layers = nn.ModuleList(LlamaLayer(size) for _ in range(size.layers))
        # The norm after each layer, which is the next layer's first norm or the final norm.
        self.norms = nn.ParameterList(torch.ones(size.dim) for _ in range(size.layers))
        self.head = linear(size.dim, size.vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        ops, eps = self.ops, self.size.eps
        h: Any = self.embedding(tokens)
        cos, sin = rotary(self.size, h.device, h.dtype)
        y = ops.rms_norm(h, self.first_norm, eps)
        layers: Any = self.layers
        for layer, norm in zip(layers, self.norms, strict=True):
            y, h = ops.add_rms_norm(layer.attention(y, cos, sin), h, layer.norm, eps)
            y, h = ops.add_rms_norm(layer.down(ops.silu_mul(layer.gate(y), layer.up(y))), h, norm, eps)
        return self.head(y)


def batches(size: LlamaSize, steps: int, seed: int) -> Tensor:
    """Random pieces of the text, [steps, batch, context + 1] bytes. The CPU draws them: the same on all machines."""
    data = torch.frombuffer(bytearray(TEXT.encode("ascii")), dtype=torch.uint8).long()
    drawn = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - size.context - 1, (steps, size.batch), generator=drawn)
    return data[starts[..., None] + torch.arange(size.context + 1)]


def build(size: LlamaSize, ops: LlamaOps, seed: int, device: torch.device, dtype: torch.dtype) -> Llama:
    """Build the model. The same seed gives the same weights for all ops and devices."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Llama(size, ops)
    return model.to(device, dtype)


def loss_of(model: Llama, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1])
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.flatten(0, 1).to(wide), batch[:, 1:].flatten())
