"""Compares our attention kernels with torch's flash, cuDNN, memory-efficient and compiled flex attention on a GPU.

    python benchmarks/attention.py [--json FILE]

`ours` is our kernel for this chip; `any chip` is our generic kernel, if `ours` is a different one. Times are medians of
device time with a cold cache. TFLOP/s count only unmasked pairs of a query and a key. `error` is our error divided by
that of torch's flash attention; both are relative to the float64 result, in norm. A case's row omits providers that
refuse the case.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from about import about
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

from opmux.backends._nvidia.hopper.ops import gluon_attention as gluon
from opmux.kernels import attention as kernels
from opmux.kernels import attention_general as general
from opmux.specs import attention_general as spec


class Shape(NamedTuple):
    batch: int
    heads: int
    kv_heads: int
    seq: int
    dim: int
    causal: bool

    def flops(self, products: int) -> float:
        pairs = self.seq * (self.seq + 1) / 2 if self.causal else self.seq**2
        return 2.0 * products * self.batch * self.heads * pairs * self.dim


SHAPES = [
    Shape(4, 32, 32, 4096, 128, True),
    Shape(4, 32, 8, 4096, 128, True),
    Shape(4, 32, 32, 4096, 128, False),
    Shape(4, 32, 32, 4096, 64, True),
    Shape(4, 16, 16, 4096, 256, True),
]
LENGTHS = (4096, 1024, 3000, 517, 2048, 37, 4096, 1566)  # 16384 tokens, ragged
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
REFUSALS = (RuntimeError, NotImplementedError, ValueError)


def new(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def us(fn: Callable[[], Any]) -> float:
    return 1e3 * float(do_bench(fn, warmup=15, rep=60, return_mode="median"))


# ---- providers ------------------------------------------------------------------------------------------------------


def ours(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Our forward and backward kernels for these tensors: the kernels for this chip, or else the generic ones."""
    if gluon.usable() is True and gluon.attention_when(q, k, v, causal) is True:
        return gluon.attention_in_gluon, gluon.attention_bwd_in_gluon
    return kernels.attention, kernels.attention_bwd


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def flex(causal: bool, seq: int) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    causal_mask = lambda b, h, i, j: i >= j
    mask = create_block_mask(causal_mask, None, None, seq, seq, device="cuda") if causal else None
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def times(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> tuple[float, float]:
    """The time of the forward, and the time of the backward with a retained graph."""
    forward = us(lambda: attend(q, k, v))
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    o = attend(*leaves)
    return forward, us(lambda: torch.autograd.grad(o, leaves, do, retain_graph=True))


def own_times(
    fwd: Callable[..., Any], bwd: Callable[..., Any], do: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool
) -> tuple[float, float]:
    o, lse = fwd(q, k, v, causal, None)
    return us(lambda: fwd(q, k, v, causal, None)), us(lambda: bwd(do, q, k, v, o, lse, causal, None))


# ---- cases ----------------------------------------------------------------------------------------------------------


def relative(got: Tensor, exact: Tensor) -> float:
    return ((got.double() - exact).norm() / exact.norm()).item()


def errors(shape: Shape) -> dict[str, float]:
    """For each result, our error divided by that of torch's flash attention, on one batch of 1024 tokens."""
    q, do = (new(1, shape.heads, 1024, shape.dim) for _ in range(2))
    k, v = (new(1, shape.kv_heads, 1024, shape.dim) for _ in range(2))

    def with_gradients(dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        o = sdpa(*leaves, shape.causal)
        return [o.detach(), *torch.autograd.grad(o, leaves, do.to(dtype))]

    exact = with_gradients(torch.float64)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs = with_gradients(torch.bfloat16)
    fwd, bwd = ours(q, k, v, shape.causal)
    o, lse = fwd(q, k, v, shape.causal, None)
    results = [o, *bwd(do, q, k, v, o, lse, shape.causal, None)]
    errors_by_name = zip(("o", "dq", "dk", "dv"), results, theirs, exact, strict=True)
    return {name: round(relative(a, x) / max(relative(b, x), 1e-30), 3) for name, a, b, x in errors_by_name}


def dense(shape: Shape) -> dict[str, Any]:
    b, h, g, s, d, causal = shape
    q, do, k, v = new(b, h, s, d), new(b, h, s, d), new(b, g, s, d), new(b, g, s, d)
    chosen, any_chip = ours(q, k, v, causal), (kernels.attention, kernels.attention_bwd)
    measured = {"ours": own_times(*chosen, do, q, k, v, causal)}
    if chosen != any_chip:
        measured["any chip"] = own_times(*any_chip, do, q, k, v, causal)
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                measured[name] = times(lambda *t: sdpa(*t, causal), q, k, v, do)
        except REFUSALS as error:
            print(f"{name} refuses {shape}: {str(error).splitlines()[0]}", flush=True)
    if shape == SHAPES[0]:  # a compilation takes seconds
        measured["flex"] = times(flex(causal, s), q, k, v, do)
    moved = sum(t.numel() * t.element_size() for t in (q, k, v, q))  # o is as large as q
    copied = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
    return {
        "case": "dense",
        "shape": shape._asdict(),
        "copy_us": round(us(copied.clone), 1),  # a lower limit: reads q, k, v and writes o
        "tflops": {
            name: [round(shape.flops(n) / t / 1e6, 1) for n, t in zip((2, 5), pair, strict=True)]
            for name, pair in measured.items()
        },
        "error": errors(shape),
    }


def varlen(heads: int = 32, kv_heads: int = 8, dim: int = 128) -> dict[str, Any]:
    tokens = sum(LENGTHS)
    cu = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0).int()
    q, do, k, v = (
        new(tokens, heads, dim),
        new(tokens, heads, dim),
        new(tokens, kv_heads, dim),
        new(tokens, kv_heads, dim),
    )
    rest = (cu, cu, max(LENGTHS), max(LENGTHS), -1, 0, None)

    def own(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> tuple[float, float]:
        o, lse = fwd(q, k, v, *rest)
        return us(lambda: fwd(q, k, v, *rest)), us(lambda: bwd(do, q, k, v, o, lse, *rest))

    measured = {}
    if gluon.usable() is True and gluon.varlen_when(q, k, v, *rest) is True:
        measured["ours"] = own(gluon.attention_varlen_in_gluon, gluon.attention_varlen_bwd_in_gluon)
    measured["any chip" if measured else "ours"] = own(kernels.attention_varlen, kernels.attention_varlen_bwd)
    flops = sum(Shape(1, heads, kv_heads, n, dim, True).flops(1) for n in LENGTHS)
    flash = us(
        lambda: torch.ops.aten._flash_attention_forward(
            q, k, v, cu, cu, max(LENGTHS), max(LENGTHS), 0.0, True, False, scale=dim**-0.5
        )
    )
    rates = {
        name: [round(n * flops / t / 1e6, 1) for n, t in zip((2, 5), pair, strict=True)]
        for name, pair in measured.items()
    }
    rates["flash"] = [round(2 * flops / flash / 1e6, 1)]
    return {"case": f"varlen {heads}/{kv_heads} heads, dim {dim}, {len(LENGTHS)} sequences, causal", "tflops": rates}


def options() -> list[dict[str, Any]]:
    """Measure the cost of each option: time the general op at the first shape, forward and backward."""
    b, h, g, s, d, _ = SHAPES[0]
    q, do, k, v = new(b, h, s, d), new(b, h, s, d), new(b, g, s, d), new(b, g, s, d)
    bias, heads = new(1, h, s, s), torch.rand(h, device="cuda")
    seed = torch.tensor([7, 3], device="cuda")
    cases: dict[str, dict[str, Any]] = {
        "window 512": {"left": 512},
        "ALiBi": {"slopes": heads},
        "soft-cap": {"softcap": 30.0},
        "sink": {"sink": heads},
        "bias and its gradient": {"bias": bias, "bias_grad": True},
        "dropout": {"dropout_p": 0.1, "seed": seed},
    }
    names = spec.attention_general.spec.names[3:]
    usual = {"max_q": 0, "max_k": 0, "left": -1, "right": 0, "at_end": True, "softcap": 0.0, "dropout_p": 0.0}
    rows = []
    for name, kwargs in cases.items():
        args = [{**usual, "bias_grad": False, "seq_first": False, **kwargs}.get(n) for n in names]
        o, lse = general.attention_general(q, k, v, *args)
        forward = us(lambda args=args: general.attention_general(q, k, v, *args))
        backward = us(lambda args=args, o=o, lse=lse: general.attention_general_bwd(do, q, k, v, o, lse, *args))
        rows.append({"case": f"option: {name}", "ours_us": [round(forward, 1), round(backward, 1)]})
    return rows


# ---- report ---------------------------------------------------------------------------------------------------------


def shown(row: dict[str, Any]) -> str:
    if "ours_us" in row:
        return f"{row['case']:<44} forward {row['ours_us'][0]:8.1f} us  backward {row['ours_us'][1]:8.1f} us"
    rates = "  ".join(f"{n} {'/'.join(map(str, pair))}" for n, pair in row["tflops"].items())
    what = " ".join(f"{n}={v}" for n, v in row["shape"].items()) if "shape" in row else row["case"]
    return f"{what:<72} TFLOP/s forward/backward: {rates}" + (f"  error {row['error']}" if "error" in row else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for measure in (*(lambda s=s: [dense(s)] for s in SHAPES), lambda: [varlen()], options):
        rows += (new_rows := measure())
        print(*map(shown, new_rows), sep="\n", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about(), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
