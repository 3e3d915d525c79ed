"""Matrix products by our kernels, compared with torch's in one run on a GPU: cuBLAS, _scaled_mm and _grouped_mm.

Linear layers with an activation, a gate or a residual are compared with the same expression, eager and compiled.

    python benchmarks/products.py [--json FILE]

Times are medians of device time with a cold cache. An error is our largest difference from the float64 product, divided
by torch's. A table of all times comes last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from about import about
from torch import Tensor
from triton.testing import do_bench

import opmux
import opmux.functional as ours
from opmux.kernels import gemm, grouped

BF16, F16, F32, E4M3 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
# m, n, k, and for each factor whether it is transposed in memory
SHAPES = [
    (4096, 4096, 4096, "nt"),
    (8192, 8192, 8192, "nt"),
    (8192, 28672, 4096, "nt"),
    (4096, 4096, 4096, "nn"),
    (4096, 4096, 4096, "tn"),
    (8192, 8192, 8192, "tn"),
    (8192, 8192, 2048, "nt"),
    (8192, 2048, 8192, "nt"),
    (2048, 2048, 2048, "nt"),
    (1024, 1024, 1024, "nt"),
    (512, 4096, 4096, "nt"),
    (16, 8192, 8192, "nt"),
    (16, 8192, 8192, "nn"),
    (1, 2048, 8192, "nt"),
    (1, 8192, 2048, "nt"),
    (1, 128256, 2048, "nt"),
    (1, 8192, 8192, "nn"),
    (2, 8192, 8192, "nt"),
    (4, 8192, 8192, "nt"),
    (8, 8192, 8192, "nt"),
    (64, 4096, 4096, "nt"),
]
FP8_SHAPES = [(4096, 4096, 4096), (8192, 8192, 8192), (16, 8192, 8192), (1, 8192, 8192)]
GROUPED = [(16384, 4096, 2048, 64), (1024, 4096, 2048, 64)]  # rows, n, k, groups
FOLLOWED = [(8192, 14336, 4096), (512, 14336, 4096), (16, 14336, 4096)]  # tokens, intermediate, hidden


def matrix(rows: int, cols: int, transposed: bool, dtype: torch.dtype) -> Tensor:
    tensor = torch.randn(*((cols, rows) if transposed else (rows, cols)), device="cuda", dtype=dtype)
    return tensor.t() if transposed else tensor


def measured(m: int, n: int, k: int, layout: str, dtype: torch.dtype) -> dict[str, Any]:
    a, b = matrix(m, k, layout[0] == "t", dtype), matrix(k, n, layout[1] == "t", dtype)
    ours, cublas = gemm.matmul(a, b, None, 1.0, 1.0, None), torch.mm(a, b)
    few = slice(0, min(m, 64))
    exact = a[few].double() @ b.double()
    error = lambda y: (y[few].double() - exact).abs().max().item()
    ratio = error(ours) / max(error(cublas), 1e-30)
    own, library = best_of(lambda: gemm.matmul(a, b, None, 1.0, 1.0, None), lambda: torch.mm(a, b))
    return {
        "shape": [m, n, k],
        "layout": layout,
        "dtype": str(dtype).removeprefix("torch."),
        "ours_us": round(1e3 * own, 2),
        "torch_us": round(1e3 * library, 2),
        "ours_tflops": round(2e-9 * m * n * k / own, 1),
        "torch_tflops": round(2e-9 * m * n * k / library, 1),
        "speed": round(library / own, 3),
        "error": round(ratio, 3),
    }


def best_of(*fns: Callable[[], Any]) -> list[float]:
    """For each function, the better of two medians, in milliseconds."""
    quick = {"warmup": 15, "rep": 60, "return_mode": "median"}
    rounds = [[float(do_bench(fn, **quick)) for fn in fns] for _ in range(2)]
    return [min(times) for times in zip(*rounds)]


def compared(what: str, flops: int, ours: Callable[[], Tensor], torchs: Callable[[], Tensor]) -> dict[str, Any]:
    """Times of our kernel and of torch's, which may not support the shape or the scales."""
    try:
        torchs()
        own, library = best_of(ours, torchs)
    except (RuntimeError, ValueError) as error:
        (own,), library = best_of(ours), None
        what += f", torch: {str(error).splitlines()[0][:60]}"
    row = {"what": what, "ours_us": round(1e3 * own, 2), "ours_tflops": round(1e-9 * flops / own, 1)}
    return row if library is None else {**row, "torch_us": round(1e3 * library, 2), "speed": round(library / own, 3)}


def of_fp8(m: int, n: int, k: int) -> list[dict[str, Any]]:
    a, b = (torch.randn(rows, k, device="cuda").to(E4M3) for rows in (m, n))
    bytes_of = (a.view(torch.uint8), b.view(torch.uint8))
    one = torch.ones(1, device="cuda")
    each = torch.rand(m, 1, device="cuda"), torch.rand(1, n, device="cuda")
    blocks = torch.rand(k // 128, m, device="cuda").t(), torch.rand(n // 128, k // 128, device="cuda")
    size, flops = f"{m}x{n}x{k}", 2 * m * n * k
    mm = lambda sa, sb, fast: torch._scaled_mm(a, b.t(), sa, sb, out_dtype=BF16, use_fast_accum=fast)
    ours = lambda sa, sb, fast: gemm.scaled_gemm(*bytes_of, sa, sb, E4M3, E4M3, None, BF16, fast)
    rows = [
        compared(f"fp8 {size}", flops, lambda: ours(one, one, True), lambda: mm(one, one, True)),
        compared(f"fp8 exact {size}", flops, lambda: ours(one, one, False), lambda: mm(one, one, False)),
        compared(f"fp8 rows {size}", flops, lambda: ours(*each, True), lambda: mm(*each, True)),
    ]
    block = lambda: opmux.ops.block_scaled_gemm(*bytes_of, *blocks, E4M3, E4M3, None, 1, 128, BF16)
    with opmux.policy(per_op={"block_scaled_gemm": "flagos"}):  # runs our kernel for this chip, if there is one
        rows += [
            compared(f"fp8 blocks {size}", flops, block, lambda: mm(blocks[0], blocks[1].t(), False)),
            compared(f"fp8 blocks, torch with one scale {size}", flops, block, lambda: mm(one, one, True)),
        ]
    return rows


def of_groups(rows: int, n: int, k: int, groups: int) -> list[dict[str, Any]]:
    """Products of uneven groups, some of them empty."""
    cuts = torch.randint(rows + 1, (groups - 1,), generator=torch.Generator().manual_seed(0)).sort().values
    ends = torch.cat([cuts, torch.tensor([rows])]).to("cuda", torch.int32)
    x, w = (torch.randn(*shape, device="cuda", dtype=BF16) for shape in ((rows, k), (groups, n, k)))
    dy = torch.randn(rows, n, device="cuda", dtype=BF16)
    size, flops = f"{rows}x{n}x{k} in {groups}", 2 * rows * n * k
    mm = lambda a, b: torch._grouped_mm(a, b, offs=ends)
    return [
        compared(f"grouped {size}", flops, lambda: grouped.grouped_mm(x, w, ends, True), lambda: mm(x, w.mT)),
        compared(f"grouped dx {size}", flops, lambda: grouped.grouped_mm(dy, w, ends, False), lambda: mm(dy, w)),
        compared(f"grouped dw {size}", flops, lambda: grouped.grouped_mm_wgrad(dy, x, ends), lambda: mm(dy.t(), x)),
    ]


def of_followed(m: int, n: int, k: int) -> list[dict[str, Any]]:
    """A linear layer with gelu, the gate of a SwiGLU, and the product down to the residual.

    "ours" is our kernel in inference; "saving" also saves the product for a backward; "chosen" is what
    `opmux.functional.linear` runs. Names with "step" are forward and backward together.
    """
    new = lambda *shape: torch.randn(*shape, device="cuda", dtype=BF16) * 0.02
    x, hidden, dy, dhidden = new(m, k), new(m, n), new(m, k), new(m, n)
    up, bias, gate_up, down = new(n, k), new(n), new(2 * n, k), new(k, n)

    def gated(x: Tensor, w: Tensor, b: Tensor | None, r: Tensor | None) -> Tensor:
        a, b = F.linear(x, w).chunk(2, -1)
        return F.silu(a) * b

    plans: list[tuple[str, Callable[..., Tensor], tuple[Any, ...], dict[str, Any], Tensor]] = [
        ("gelu", lambda x, w, b, r: F.gelu(F.linear(x, w, b)), (x, up, bias, None), {"activation": "gelu"}, dhidden),
        ("swiglu", gated, (x, gate_up, None, None), {"activation": "silu", "glu": True}, dhidden),
        ("residual", lambda x, w, b, r: F.linear(x, w) + r, (hidden, down, None, x), {}, dy),
    ]
    rows = []
    for name, eager, args, options, grad in plans:
        compiled = torch.compile(eager)
        chosen = lambda *t, o=options: ours.linear(*t[:3], **o, residual=t[3])
        kernel = lambda save, a=args, o=options: gemm.linear_act(*a, o.get("activation"), o.get("glu", False), save)
        leaves = [None if t is None else t.clone().requires_grad_() for t in args]

        def step(fn: Callable[..., Tensor], leaves: Any = leaves, grad: Tensor = grad) -> Callable[[], Any]:
            return lambda: torch.autograd.grad(fn(*leaves), [t for t in leaves if t is not None], grad)

        forward = {"ours": lambda f=kernel: f(False), "saving": lambda f=kernel: f(True)}
        forward |= {w: lambda f=f, a=args: f(*a) for w, f in (("chosen", chosen), ("eager", eager))}
        forward["compiled"] = lambda f=compiled, a=args: f(*a)
        whole = {"chosen": step(chosen), "eager": step(eager), "compiled": step(compiled)}
        with torch.no_grad():
            times = dict(zip(forward, best_of(*forward.values())))
        steps = dict(zip(whole, best_of(*whole.values())))
        flops = 2 * m * args[1].numel()
        rows.append({
            "what": f"linear {name} {m}x{args[1].shape[0]}x{args[1].shape[1]}",
            **{f"{word}_us": round(1e3 * t, 2) for word, t in times.items()},
            "ours_tflops": round(1e-9 * flops / times["ours"], 1),
            "speed": round(min(times["eager"], times["compiled"]) / times["ours"], 3),
            **{f"{word}_step_us": round(1e3 * t, 2) for word, t in steps.items()},
        })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each row: what was measured, our time, torch's time, and their ratio."""
    lines = [("what", "ours us", "torch us", "ratio")]
    for row in rows:
        what = row.get("what") or "{dtype} {} {layout}".format("x".join(map(str, row["shape"])), **row)
        times = (row["ours_us"], row.get("torch_us", row.get("eager_us", "")), row.get("speed", ""))
        lines.append((what, *map(str, times)))
    widths = [max(map(len, column)) for column in zip(*lines)]
    rest = lambda line: "".join(word.rjust(size + 2) for word, size in zip(line[1:], widths[1:]))
    return "\n".join(line[0].ljust(widths[0]) + rest(line) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for dtype, shapes in ((BF16, SHAPES), (F32, SHAPES[:1])):
        for case in shapes:
            rows.append(row := measured(*case, dtype))
            print(row, flush=True)
    for make, cases in ((of_fp8, FP8_SHAPES), (of_groups, GROUPED), (of_followed, FOLLOWED)):
        for case in cases:
            rows += (row := make(*case))
            print(*row, sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"about": about(), "results": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
