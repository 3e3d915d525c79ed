"""A small Llama and a text to train it on: what `opmux demo` trains twice."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LENGTH = 60_000  # characters of the text
# The text is generated from sentences with gaps and these words, so it needs no file and copies no author.
WORDS = {
    "who": "keeper pilot sailor fisherman captain child stranger clerk cook surgeon".split(),
    "place": "harbour lighthouse tower breakwater market island channel reef shipyard".split(),
    "thing": "lamp notebook anchor letter compass engine sail rope lantern map bell".split(),
    "quality": "old bright quiet heavy narrow patient broken distant green silver".split(),
    "act": "carried found mended watched counted painted forgot lifted followed described".split(),
    "when": "at dawn|before the storm|in winter|when the tide turned|every evening|after the war".split("|"),
}
SENTENCES = (
    "The {quality} {who} {act} the {thing} {when}.",
    "{when}, the {who} of the {place} {act} a {quality} {thing}.",
    "Nobody in the {place} {act} the {thing}, but the {who} did.",
    '"Where is the {thing}?" asked the {who}. "In the {place}," said the {quality} {who}.',
    "A {thing} and a {thing} lay in the {place}, and the {who} {act} both.",
    "Something comes, something goes, and the {quality} {place} remains.",
)


def written(length: int = LENGTH) -> str:
    """A text of this many characters, the same on all machines."""
    drawn = random.Random(7)
    parts: list[str] = []
    size = 0
    while size < length:
        pieces = re.split(r"{(\w+)}", drawn.choice(SENTENCES))
        sentence = "".join(drawn.choice(WORDS[p]) if i % 2 else p for i, p in enumerate(pieces))
        parts.append(sentence[0].upper() + sentence[1:] + ("\n" if drawn.random() < 0.2 else " "))
        size += len(parts[-1])
    return "".join(parts)[:length]


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

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return self.batch * self.context


# For a device other than the CPU: on a small model, a GPU waits for Python most of the time.
LARGE = LlamaSize(dim=1024, layers=4, heads=16, kv_heads=4, hidden=2752, batch=16, context=512)


@dataclass(frozen=True)
class LlamaOps:
    """The ops that differ between the two runs. They return only results that the model needs."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]  # the normalised sum, the sum
    silu_mul: Callable[[Tensor, Tensor], Tensor]
    rope: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # rotated queries and keys


def _torch_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _torch_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.rms_norm(s, weight.shape, weight, eps), s


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _torch_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotate(q, cos, sin), rotate(k, cos, sin)


PLAIN = LlamaOps(_torch_rms_norm, _torch_add_rms_norm, lambda a, b: F.silu(a) * b, _torch_rope)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Causal attention; each key and value head serves several query heads."""

    def __init__(self, size: LlamaSize, ops: LlamaOps):
        super().__init__()
        self.size, self.ops = size, ops
        self.q = linear(size.dim, size.heads * size.head_dim)
        self.k = linear(size.dim, size.kv_heads * size.head_dim)
        self.v = linear(size.dim, size.kv_heads * size.head_dim)
        self.o = linear(size.heads * size.head_dim, size.dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, length, -1, self.size.head_dim).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = self.ops.rope(q, k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))


def rotary(size: LlamaSize, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rates = 10000.0 ** (-torch.arange(0, size.head_dim, 2, device=device, dtype=torch.float32) / size.head_dim)
    angles = torch.arange(size.context, device=device, dtype=torch.float32)[:, None] * rates
    return angles.cos().to(dtype), angles.sin().to(dtype)


class LlamaLayer(nn.Module):
    def __init__(self, size: LlamaSize, ops: LlamaOps):
        super().__init__()
        self.attention = Attention(size, ops)
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
        self.layers = nn.ModuleList(LlamaLayer(size, ops) for _ in range(size.layers))
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
    data = torch.frombuffer(bytearray(written().encode("ascii")), dtype=torch.uint8).long()
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
