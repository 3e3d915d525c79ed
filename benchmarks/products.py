"""Matrix products by our kernels against cuBLAS, in one run on a GPU.

    python benchmarks/products.py [--json FILE]

Times are medians of device time with a cold cache; an error is the largest distance to the float64 product, in units of
cuBLAS' own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.testing import do_bench

from opmux.kernels import gemm

# m, n, k, and whether each factor is transposed in memory
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
    (64, 4096, 4096, "nt"),
]


def matrix(rows: int, cols: int, turned: bool, dtype: torch.dtype) -> Tensor:
    made = torch.randn(*((cols, rows) if turned else (rows, cols)), device="cuda", dtype=dtype)
    return made.t() if turned else made


def measured(m: int, n: int, k: int, layout: str, dtype: torch.dtype) -> dict[str, Any]:
    a, b = matrix(m, k, layout[0] == "t", dtype), matrix(k, n, layout[1] == "t", dtype)
    ours, cublas = gemm.matmul(a, b, None, 1.0, 1.0, None), torch.mm(a, b)
    few = slice(0, min(m, 64))
    exact = a[few].double() @ b.double()
    error = lambda y: (y[few].double() - exact).abs().max().item()
    ratio = error(ours) / max(error(cublas), 1e-30)
    quick = {"warmup": 15, "rep": 60, "return_mode": "median"}
    time_of = lambda fn: float(do_bench(fn, **quick))
    ms = [(time_of(lambda: gemm.matmul(a, b, None, 1.0, 1.0, None)), time_of(lambda: torch.mm(a, b))) for _ in range(2)]
    own, library = (min(pair[i] for pair in ms) for i in (0, 1))
    return {
        "shape": [m, n, k],
        "layout": layout,
        "dtype": str(dtype).removeprefix("torch."),
        "ours_us": round(1e3 * own, 2),
        "cublas_us": round(1e3 * library, 2),
        "ours_tflops": round(2e-9 * m * n * k / own, 1),
        "cublas_tflops": round(2e-9 * m * n * k / library, 1),
        "speed": round(library / own, 3),
        "error": round(ratio, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for dtype, shapes in ((torch.bfloat16, SHAPES), (torch.float32, SHAPES[:1])):
        for case in shapes:
            rows.append(found := measured(*case, dtype))
            print(found, flush=True)
    if given.json:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        about = {
            "chip": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "date": date.today().isoformat(),
            "commit": os.environ.get("COMMIT") or commit,
        }
        given.json.write_text(json.dumps({"about": about, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
