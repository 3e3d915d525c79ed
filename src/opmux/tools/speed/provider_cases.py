"""The calls that `opmux tune --providers` times: sizes of real models, and functions that make arguments from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core.spec import specs
from ...core.tensors import dtype_name
from .. import arguments

E4M3 = torch.float8_e4m3fn
Sizes = tuple[int, ...]

ROWS = (1, 16, 512, 4096, 8192)
# (outputs, inputs) of the four linear layers of Llama 3: qkv, o, gate with up, down
LLAMA_8B = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
LLAMA_70B = ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672))
SQUARES = ((4096, 4096, 4096), (8192, 8192, 8192))
PRODUCTS = (*SQUARES, *((m, n, k) for m in ROWS for n, k in (*LLAMA_8B, *LLAMA_70B)), (1, 128256, 4096))
TRAINED = tuple(s for s in PRODUCTS if s[0] >= 512)
GATES = tuple((m, n, k) for m in ROWS for n, k in (LLAMA_8B[2], LLAMA_70B[2]))
DOWN = tuple((m, n, k) for m in ROWS for n, k in (LLAMA_8B[3], LLAMA_70B[3]))
# (rows, outputs, inputs, groups) of the experts of Qwen3 30B and Mixtral
GROUPS = (
    (1024, 1536, 2048, 128),
    (16384, 1536, 2048, 128),
    (1024, 4096, 2048, 64),
    (16384, 4096, 2048, 64),
    (8192, 28672, 4096, 8),
)
# (batch, heads, kv_heads, tokens, dim)
ATTENTION = (
    *((4, 32, kv, seq, dim) for dim in (128, 64, 256) for kv in (8, 32) for seq in (512, 2048, 4096, 8192)),
    *((1, 32, kv, seq, 128) for kv in (8, 32) for seq in (2048, 8192, 32768)),
)
GENERAL = tuple((4, 32, 8, seq, 128) for seq in (512, 2048, 4096))
# (batch, heads, kv_heads, keys, dim)
DECODE = tuple((batch, 32, 8, keys, 128) for batch in (1, 16, 64) for keys in (1024, 8192, 32768))
LATENT = tuple((batch, 128, keys) for batch in (1, 16, 64) for keys in (1024, 8192))
PAGE = 64
LARGEST = 2**44  # limit for the product of all sizes, which belong to several tensors


@dataclass(frozen=True)
class Cases:
    """The calls of one op: all combinations of `sizes` and `options`."""

    names: str  # the names of the sizes
    make: Callable[..., tuple]  # called with (dtype, device, *sizes, **options)
    sizes: tuple[Sizes, ...]
    options: tuple[dict[str, Any], ...] = ({},)

    def read(self, op: str, text: str) -> Sizes:
        """Parse sizes that were given on the command line."""
        sizes, names = arguments.shape(text, LARGEST), self.names.split()
        if len(sizes) != len(names) or 0 in sizes:
            raise arguments.BadOption(
                f"--shape {text!r} does not fit {op}. Allowed: {' x '.join(names)}, none of them 0"
            )
        return sizes


def _new(dtype: torch.dtype, device: torch.device, *shape: int) -> Tensor:
    values = torch.randn(shape, device=device, dtype=torch.float32 if dtype.itemsize == 1 else dtype)
    return values.mul_(shape[-1] ** -0.5).to(dtype)


def _linear(dtype: torch.dtype, device: torch.device, m: int, n: int, k: int) -> tuple:
    return _new(dtype, device, m, k), _new(dtype, device, n, k), None


def _linear_bwd(dtype: torch.dtype, device: torch.device, m: int, n: int, k: int) -> tuple:
    return _new(dtype, device, m, n), *_linear(dtype, device, m, n, k)[:2]


def _gated(dtype: torch.dtype, device: torch.device, m: int, n: int, k: int, save: bool) -> tuple:
    return *_linear(dtype, device, m, n + n % 2, k), None, "silu", True, save


def _added(dtype: torch.dtype, device: torch.device, m: int, n: int, k: int) -> tuple:
    return *_linear(dtype, device, m, n, k), _new(dtype, device, m, n), None, False, False


def _gemm(dtype: torch.dtype, device: torch.device, m: int, n: int, k: int, trans: str) -> tuple:
    a = _new(dtype, device, *((k, m) if trans[0] == "t" else (m, k)))
    b = _new(dtype, device, *((n, k) if trans[1] == "t" else (k, n)))
    return a, b, None, trans[0] == "t", trans[1] == "t", 1.0, None


def _matmul(dtype: torch.dtype, device: torch.device, batch: int, m: int, n: int, k: int) -> tuple:
    return _new(dtype, device, batch, m, k), _new(dtype, device, batch, k, n), None, 1.0, 1.0, None


def _scaled(dtype: torch.dtype, device: torch.device, m: int, n: int, k: int, by_rows: bool, fast: bool) -> tuple:
    a, b = (_new(E4M3, device, rows, k).view(torch.uint8) for rows in (m, n))
    scales = (torch.ones(rows if by_rows else 1, device=device) for rows in (m, n))
    return a, b, *scales, E4M3, E4M3, None, dtype, fast


def _blocks(dtype: torch.dtype, device: torch.device, m: int, n: int, k: int, a_rows: int, b_rows: int) -> tuple:
    a, b = (_new(E4M3, device, rows, k).view(torch.uint8) for rows in (m, n))
    scales = (torch.ones(-(-r // by), -(-k // 128), device=device) for r, by in ((m, a_rows), (n, b_rows)))
    return a, b, *scales, E4M3, E4M3, None, a_rows, b_rows, dtype


def _ends(rows: int, groups: int, device: torch.device) -> Tensor:
    """The end index of each group. Groups have different sizes, and may be empty."""
    cuts = torch.randint(rows + 1, (groups - 1,), generator=torch.Generator().manual_seed(0)).sort().values
    return torch.cat([cuts, torch.tensor([rows])]).to(device, torch.int32)


def _grouped(dtype: torch.dtype, device: torch.device, rows: int, n: int, k: int, groups: int, trans_b: bool) -> tuple:
    b = _new(dtype, device, groups, *((n, k) if trans_b else (k, n)))
    return _new(dtype, device, rows, k), b, _ends(rows, groups, device), trans_b


def _grouped_bwd(dtype: torch.dtype, device: torch.device, rows: int, n: int, k: int, groups: int) -> tuple:
    return _new(dtype, device, rows, n), *_grouped(dtype, device, rows, n, k, groups, True)


def _wgrad(dtype: torch.dtype, device: torch.device, rows: int, n: int, k: int, groups: int) -> tuple:
    return _new(dtype, device, rows, n), _new(dtype, device, rows, k), _ends(rows, groups, device)


def _attention(
    dtype: torch.dtype, device: torch.device, batch: int, heads: int, kv_heads: int, seq: int, dim: int, causal: bool
) -> tuple:
    q, k, v = (_new(dtype, device, batch, h, seq, dim) for h in (heads, kv_heads, kv_heads))
    return q, k, v, causal, None


def _varlen(
    dtype: torch.dtype, device: torch.device, batch: int, heads: int, kv_heads: int, seq: int, dim: int, causal: bool
) -> tuple:
    """Arguments with sequences of equal length, because the choice of an impl depends on their number and length."""
    q, k, v = (_new(dtype, device, batch * seq, h, dim) for h in (heads, kv_heads, kv_heads))
    cu = torch.arange(batch + 1, device=device, dtype=torch.int32) * seq
    return q, k, v, cu, cu, seq, seq, -1, 0 if causal else -1, None


def _general(
    dtype: torch.dtype,
    device: torch.device,
    batch: int,
    heads: int,
    kv_heads: int,
    seq: int,
    dim: int,
    left: int,
    softcap: float,
    sinks: bool,
) -> tuple:
    """Causal attention as in Gemma 2 (soft cap; every other layer has a window) and gpt-oss (sinks)."""
    q, k, v, *_ = _attention(dtype, device, batch, heads, kv_heads, seq, dim, True)
    sink = torch.zeros(heads, device=device) if sinks else None
    packed = (None, None, None, None, 0, 0)
    return q, k, v, None, None, sink, None, *packed, left, 0, True, softcap, 0.0, None, False, False


def _backward(forward: str, make: Callable[..., tuple]) -> Callable[..., tuple]:
    """A function that makes a backward's arguments: the forward's arguments and results, and the incoming gradient."""

    def made(*sizes: Any, **options: Any) -> tuple:
        q, k, v, *rest = make(*sizes, **options)
        o, lse = specs.functions[f"opmux::{forward}"](q, k, v, *rest)
        return torch.randn_like(o), q, k, v, o, lse, *rest

    return made


def _decode(
    dtype: torch.dtype, device: torch.device, batch: int, heads: int, kv_heads: int, keys: int, dim: int, cache: Any
) -> tuple:
    pages = -(-keys // PAGE)
    k, v = (_new(cache or dtype, device, batch * pages, PAGE, kv_heads, dim) for _ in range(2))
    table = torch.randperm(batch * pages).view(batch, pages).to(device, torch.int32)
    lengths = torch.full((batch,), keys, device=device)
    return _new(dtype, device, batch, 1, heads, dim), k, v, lengths, table, None, None, None, -1, 0.0, None


def _mla(dtype: torch.dtype, device: torch.device, batch: int, heads: int, keys: int) -> tuple:
    pages = -(-keys // PAGE)
    table = torch.randperm(batch * pages).view(batch, pages).to(device, torch.int32)
    cache, lengths = _new(dtype, device, batch * pages, PAGE, 576), torch.full((batch,), keys, device=device)
    return _new(dtype, device, batch, 1, heads, 576), cache, lengths, 512, table, None, None


BOTH = (True, False)
CAUSAL = tuple({"causal": c} for c in BOTH)
OPTIONS = tuple(
    {"left": left, "softcap": cap, "sinks": s}
    for left, cap, s in ((-1, 50.0, False), (4095, 50.0, False), (127, 0.0, True))
)
HEADS = "batch heads kv_heads tokens dim"
# The ops that models call most often come first. If the time runs out, only rarer ops are not measured.
TIMED: dict[str, tuple[Cases, ...]] = {
    "linear": (Cases("m n k", _linear, PRODUCTS),),
    "attention": (Cases(HEADS, _attention, ATTENTION, CAUSAL),),
    "attention_bwd": (Cases(HEADS, _backward("attention", _attention), ATTENTION, CAUSAL),),
    "linear_bwd": (Cases("m n k", _linear_bwd, TRAINED),),
    "linear_act": (
        Cases("m n k", _gated, GATES, ({"save": False}, {"save": True})),
        Cases("m n k", _added, DOWN),
    ),
    "scaled_gemm": (
        Cases("m n k", _scaled, PRODUCTS, tuple({"by_rows": False, "fast": f} for f in BOTH)),
        Cases("m n k", _scaled, PRODUCTS, ({"by_rows": True, "fast": True},)),
    ),
    "block_scaled_gemm": (Cases("m n k", _blocks, PRODUCTS, ({"a_rows": 1, "b_rows": 128},)),),
    "grouped_mm": (Cases("rows n k groups", _grouped, GROUPS, ({"trans_b": True}, {"trans_b": False})),),
    "grouped_mm_wgrad": (Cases("rows n k groups", _wgrad, GROUPS),),
    "grouped_mm_bwd": (Cases("rows n k groups", _grouped_bwd, GROUPS),),
    "gemm": (
        Cases("m n k", _gemm, PRODUCTS, ({"trans": "nt"},)),
        Cases("m n k", _gemm, TRAINED, ({"trans": "nn"}, {"trans": "tn"})),
    ),
    "attention_decode": (Cases("batch heads kv_heads keys dim", _decode, DECODE, ({"cache": None}, {"cache": E4M3})),),
    "mla_decode": (Cases("batch heads keys", _mla, LATENT),),
    "attention_varlen": (Cases(HEADS, _varlen, ATTENTION, CAUSAL),),
    "attention_varlen_bwd": (Cases(HEADS, _backward("attention_varlen", _varlen), ATTENTION, CAUSAL),),
    "attention_general": (Cases(HEADS, _general, GENERAL, OPTIONS),),
    "attention_general_bwd": (Cases(HEADS, _backward("attention_general", _general), GENERAL, OPTIONS),),
    "matmul": (Cases("batch m n k", _matmul, ((64, 512, 512, 128), (128, 2048, 2048, 128), (8, 4096, 4096, 4096))),),
}


@dataclass(frozen=True)
class TimedCall:
    """One call of an op that is timed."""

    op: str
    cases: Cases
    sizes: Sizes
    options: dict[str, Any]
    dtype: torch.dtype

    def __str__(self) -> str:
        options = [str(v) if isinstance(v, str) else f"{k}={v}" for k, v in self.options.items() if v is not None]
        return " ".join([self.op, "x".join(map(str, self.sizes)), dtype_name(self.dtype), *options])

    def arguments(self, device: torch.device) -> tuple:
        return self.cases.make(self.dtype, device, *self.sizes, **self.options)


def calls(ops: list[str], shapes: list[str], dtypes: list[torch.dtype]) -> Iterator[TimedCall]:
    """Every call of these ops; `shapes` replace the listed sizes."""
    for op in ops:
        for cases in TIMED[op]:
            for sizes in [cases.read(op, text) for text in shapes] or cases.sizes:
                for options in cases.options:
                    for dtype in dtypes:
                        yield TimedCall(op, cases, sizes, options, dtype)
