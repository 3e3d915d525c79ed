"""Errors of our products and attention, compared with the vendor's libraries over random shapes on a GPU.

    python benchmarks/accuracy.py [--shapes 1000] [--processes 8] [--only attention] [--json FILE]

Each kind of call gets `--shapes` random shapes (odd sizes, transposed factors, grouped heads). The error of a result is
the norm of its difference from the float64 result, but at least the float32 rounding error of the sum. A ratio is our
error divided by the error of torch's call on the same tensors (cuBLAS, flash or cuDNN attention). `larger` counts
shapes with a ratio above 1.01, or with a result of ours that is not finite.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from about import about
from torch import Tensor

from opmux.backends._nvidia.hopper.ops import gluon_attention, gluon_blocks
from opmux.kernels import attention, gemm, grouped

BF16, F16, F32, F64, E4M3 = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn
CUDA = "cuda"
# name, float64 result, our result, torch's result, and how many numbers each element sums
Result = tuple[str, Tensor, Tensor, Tensor, int]


def size(draw: random.Random, most: int = 2048) -> int:
    return draw.choice((1, 2, 3, draw.randint(5, 64), draw.randint(65, most)))


def matrix(rows: int, columns: int, transposed: bool, dtype: torch.dtype) -> Tensor:
    tensor = torch.randn(*((columns, rows) if transposed else (rows, columns)), device=CUDA, dtype=dtype)
    return tensor.t() if transposed else tensor


# ---- kinds ----------------------------------------------------------------------------------------------------------


def products(dtype: torch.dtype, draw: random.Random) -> Iterator[Result]:
    m, n, k = (size(draw) for _ in range(3))
    a, b = matrix(m, k, draw.random() < 0.5, dtype), matrix(k, n, draw.random() < 0.5, dtype)
    yield "y", a.double() @ b.double(), gemm.matmul(a, b, None, 1.0, 1.0, None), torch.mm(a, b), k


def fp8(scaling: str, draw: random.Random) -> Iterator[Result]:
    """FP8 products, with one scale, a scale per row or a scale per block; torch needs multiples of 16 or 128."""
    step = 128 if scaling == "blocks" else 16
    m, n, k = size(draw), *(-(-size(draw) // step) * step for _ in range(2))
    a, b = (torch.randn(rows, k, device=CUDA).to(E4M3) for rows in (m, n))
    data = (a.view(torch.uint8), b.view(torch.uint8))
    if scaling == "blocks":
        m = a.shape[0]
        s = torch.rand(k // 128, m, device=CUDA).t() + 0.1, torch.rand(n // 128, k // 128, device=CUDA) + 0.1
        args = (*data, *s, E4M3, E4M3, None, 1, 128, BF16)
        chip = gluon_attention.usable() is True and gluon_blocks.takes(*args) is True
        ours = gluon_blocks.block_scaled_gemm_in_gluon(*args) if chip else gemm.block_scaled_gemm(*args)
        theirs = torch._scaled_mm(a, b.t(), s[0], s[1].t(), out_dtype=BF16)
        whole = s[0].repeat_interleave(128, 1), s[1].repeat_interleave(128, 0).repeat_interleave(128, 1)
    else:
        s = (torch.rand(rows, device=CUDA) + 0.1 for rows in ((m, n) if scaling == "rows" else (1, 1)))
        s = tuple(t.view(*shape) if scaling == "rows" else t for t, shape in zip(s, ((m, 1), (1, n)), strict=True))
        ours = gemm.scaled_gemm(*data, *s, E4M3, E4M3, None, BF16, False)
        theirs = torch._scaled_mm(a, b.t(), *s, out_dtype=BF16)
        whole = s[0], s[1].view(-1, 1)
    exact = (a.double() * whole[0].double()) @ (b.double() * whole[1].double()).t()
    yield "y", exact, ours, theirs, k


def groups(dtype: torch.dtype, draw: random.Random) -> Iterator[Result]:
    """Products of rows in uneven groups, some of them empty; torch needs multiples of 8 for n and k."""
    rows, count = size(draw), draw.randint(1, 16)
    n, k = (-(-size(draw, 1024) // 8) * 8 for _ in range(2))
    cuts = sorted(draw.randint(0, rows) for _ in range(count - 1))
    ends = torch.tensor([*cuts, rows], dtype=torch.int32, device=CUDA)
    x, w = torch.randn(rows, k, device=CUDA, dtype=dtype), torch.randn(count, n, k, device=CUDA, dtype=dtype)
    exact = torch.cat([x[a:b].double() @ w[i].double().t() for i, (a, b) in enumerate(zip([0, *cuts], [*cuts, rows]))])
    yield "y", exact, grouped.grouped_mm(x, w, ends, True), torch._grouped_mm(x, w.mT, offs=ends), k


def attended(dtype: torch.dtype, draw: random.Random) -> Iterator[Result]:
    """Attention, forward and backward; torch itself chooses flash or cuDNN attention."""
    batch, kv_heads, group = draw.randint(1, 3), draw.choice((1, 2, 3)), draw.choice((1, 1, 2, 4))
    dim, causal = draw.choice((16, 32, 40, 64, 64, 80, 128, 128, 128, 256)), draw.random() < 0.5
    queries = max(size(draw, 1500), 2)
    keys = queries if causal else max(size(draw, 1500), 2)  # with one key, dq is 0 plus rounding noise
    new = lambda heads, rows: torch.randn(batch, heads, rows, dim, device=CUDA, dtype=dtype)
    q, k, v = new(kv_heads * group, queries), new(kv_heads, keys), new(kv_heads, keys)
    do = new(kv_heads * group, queries)

    def with_gradients(dtype: torch.dtype) -> list[Tensor]:
        a, b, c = leaves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        o = F.scaled_dot_product_attention(a, b, c, is_causal=causal, enable_gqa=group > 1)
        return [o.detach(), *torch.autograd.grad(o, leaves, do.to(dtype))]

    chip = gluon_attention.usable() is True and gluon_attention.attention_when(q, k, v, causal) is True
    fwd = gluon_attention.attention_in_gluon if chip else attention.attention
    bwd = gluon_attention.attention_bwd_in_gluon if chip else attention.attention_bwd
    o, lse = fwd(q, k, v, causal, None)
    ours = [o, *bwd(do, q, k, v, o, lse, causal, None)]
    each = zip(("o", "dq", "dk", "dv"), with_gradients(F64), ours, with_gradients(dtype), strict=True)
    for name, exact, mine, theirs in each:
        yield name, exact, mine, theirs, max(queries, keys) * dim


KINDS: dict[str, Callable[[random.Random], Iterator[Result]]] = {
    **{f"product {str(d)[6:]}": lambda draw, d=d: products(d, draw) for d in (BF16, F16, F32)},
    **{
        f"fp8 {scaling}": lambda draw, scaling=scaling: fp8(scaling, draw)
        for scaling in ("one scale", "rows", "blocks")
    },
    "groups bfloat16": lambda draw: groups(BF16, draw),
    **{f"attention {str(d)[6:]}": lambda draw, d=d: attended(d, draw) for d in (BF16, F16)},
}


# ---- comparing ------------------------------------------------------------------------------------------------------


def ratios(kind: str, seed: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(f"{kind} {seed}")
    torch.manual_seed(seed)
    for name, exact, ours, theirs, summed in KINDS[kind](draw):
        floor = max(exact.norm().item(), 1e-6) * 2**-23 * math.sqrt(summed)
        mine, other = ((t.double() - exact).norm().item() for t in (ours, theirs))
        shape, finite = list(exact.shape), math.isfinite(mine)
        if not math.isfinite(other):
            raise ValueError(f"torch's {name} of {shape} is not finite")
        ratio = max(mine, floor) / max(other, floor) if finite else 1e9
        yield {"kind": f"{kind} {name}", "seed": seed, "ratio": ratio, "shape": shape, "finite": finite}


def share(kinds: list[str], shapes: int, which: int, total: int, file: Path) -> None:
    """The work of one process: test every `total`th shape, and write a line for each result."""
    torch.backends.cuda.matmul.allow_tf32 = False
    with file.open("w") as lines:
        for kind in kinds:
            for seed in range(which, shapes, total):
                try:
                    rows = list(ratios(kind, seed))
                except Exception as error:  # Triton's errors have no common base class
                    rows = [{"kind": kind, "seed": seed, "error": str(error).splitlines()[0][:200]}]
                lines.write("".join(json.dumps(row) + "\n" for row in rows))
                lines.flush()


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    summaries = []
    for kind in sorted({r["kind"] for r in rows}):
        mine = [r for r in rows if r["kind"] == kind]
        good = [r for r in mine if "error" not in r]
        row: dict[str, Any] = {"kind": kind, "shapes": len(good)}
        if good:
            worst = max(good, key=lambda r: r["ratio"] if r["finite"] else math.inf)
            values = [r["ratio"] for r in good]
            row |= {
                "mean": round(statistics.geometric_mean([max(v, 1e-9) for v in values]), 4),
                "worst": round(worst["ratio"], 3),
                "of": worst["shape"],
                "seed": worst["seed"],
                "larger": sum(not r["finite"] or r["ratio"] > 1.01 for r in good),
            }
        if len(good) < len(mine):
            errors = [r for r in mine if "error" in r]
            row |= {"raised": len(errors), "error": errors[0]["error"], "seed": errors[0]["seed"]}
        summaries.append(row)
    return summaries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--only", default="", help="only kinds whose name starts with this")
    parser.add_argument("--seconds", type=float, default=math.inf, help="report what there is after this time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lines", type=Path, help="a folder for every single result")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if kind.startswith(options.only)]
    if options.part is not None:
        share(kinds, options.shapes, options.part, options.processes, options.file)
        return
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.lines or Path(temporary)
        folder.mkdir(exist_ok=True)
        files = [folder / f"{i}.jsonl" for i in range(options.processes)]
        command = [sys.executable, __file__, "--shapes", str(options.shapes), "--processes", str(options.processes)]
        children = [
            subprocess.Popen([*command, "--only", options.only, "--part", str(i), "--file", str(file)])
            for i, file in enumerate(files)
        ]
        while any(c.poll() is None for c in children) and time.perf_counter() - start < options.seconds:
            time.sleep(1)
            lines = sum(file.read_text().count("\n") for file in files if file.exists())
            print(f"\r{lines} results, {time.perf_counter() - start:.0f} s", end="", flush=True)
        failed = sum(child.poll() not in (None, 0) for child in children)
        for child in children:
            child.terminate()
        print()
        rows = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    results = summary(rows)
    for row in results:
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"about": about(), "results": results}, indent=1) + "\n")
    if failed:
        sys.exit(f"{failed} processes ended with an error: their shapes are missing")


if __name__ == "__main__":
    main()
