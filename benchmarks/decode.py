"""Decoding on a GPU: attention to a paged or contiguous cache, and MLA, compared with the bandwidth of a copy.

    python benchmarks/decode.py [--json FILE] [--quick]

Times are medians of device time with a cold cache. A share is the bandwidth at which keys and values are read, divided
by the bandwidth (read and write) of a copy in the same run; the goal is 0.8. `torch` is torch's flash attention on the
same keys and values in a contiguous cache, because it supports neither pages nor float8. An error is the largest
difference from float64, relative to the largest number of the result.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from about import about
from torch import Tensor
from triton.testing import do_bench

import opmux
import opmux.functional as ours
from opmux.core import specs

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 64
MOST = 24 << 30  # maximum bytes of a cache
# batch, keys, page (0: contiguous), dtype of the cache
CASES = [
    *((batch, keys, PAGE, BF16) for batch in (1, 16, 64) for keys in (1024, 8192, 32768)),
    *((16, 8192, page, BF16) for page in (0, 16, 256)),
    *((batch, keys, PAGE, E4M3) for batch in (1, 16, 64) for keys in (1024, 32768)),
    (16, 8192, 16, E4M3),
]
LATENT = [(batch, keys, heads, BF16) for batch in (1, 64) for keys in (1024, 8192) for heads in (16, 128)]
LATENT += [(64, 8192, 16, E4M3)]


def microseconds(call: Callable[[], object], rep: int = 40) -> float:
    return 1e3 * float(do_bench(call, warmup=10, rep=rep, return_mode="median"))


def copy_speed() -> float:
    """Bytes per microsecond that a copy of 1 GiB reads and writes."""
    a, b = (torch.empty(2**29, dtype=BF16, device="cuda") for _ in range(2))
    return 2 * a.nbytes / microseconds(lambda: b.copy_(a))


def drawn(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    tensor = torch.empty(shape, dtype=BF16, device="cuda").normal_()
    return tensor if dtype is BF16 else tensor.to(dtype)


def pages_of(batch: int, keys: int, page: int) -> Tensor | None:
    if not page:
        return None
    return torch.randperm(batch * keys // page, device="cuda").view(batch, -1).int()


def first_of(cache: Tensor, table: Tensor | None) -> Tensor:
    """The keys or values of a cache's first sequence, contiguous."""
    if table is None:
        return cache[:1]
    return cache.view(torch.uint8)[table[0].long()].view(cache.dtype).flatten(0, 1)[None]


def error_of(got: Tensor, name: str, *args: Any) -> float:
    """The error of the result for the first sequence."""
    wide = [a.double() if torch.is_tensor(a) and a.dtype is BF16 else a for a in args]
    want = specs.find(name).reference(*wide)[0]
    return ((got[:1].double() - want).abs().max() / want.abs().max()).item()


def row(shape: list[int], case: dict[str, Any], us: float, moved: int, speed: float, error: float) -> dict[str, Any]:
    figures = {"us": round(us, 1), "share": round(moved / us / speed, 3), "error": float(f"{error:.2g}")}
    return {"shape": shape, **case, **figures}


def of_attention(batch: int, keys: int, page: int, dtype: torch.dtype, speed: float) -> dict[str, Any]:
    cache = (batch * keys // page, page) if page else (batch, keys)
    q, lengths, table = (
        drawn(batch, 1, HEADS, DIM),
        torch.full((batch,), keys, device="cuda"),
        pages_of(batch, keys, page),
    )
    k, v = (drawn(*cache, KV_HEADS, DIM, dtype=dtype) for _ in range(2))
    call = lambda: ours.attention_decode(q, k, v, lengths, table=table)
    k_rows, v_rows = (first_of(t, table) for t in (k, v))
    rest = (lengths[:1], None, None, None, None, -1, 0.0, None)
    error = error_of(call(), "attention_decode", q[:1], k_rows, v_rows, *rest)
    case: dict[str, Any] = {"op": "attention", "page": page, "cache": str(dtype).removeprefix("torch.")}
    result = row([batch, keys, HEADS, KV_HEADS, DIM], case, microseconds(call), k.nbytes + v.nbytes, speed, error)
    if dtype is BF16:
        flat = [t.view(batch, keys, KV_HEADS, DIM).transpose(1, 2) for t in (k, v)]
        flash: Any = torch._scaled_dot_product_flash_attention
        result["torch_us"] = round(microseconds(lambda: flash(q.transpose(1, 2), *flat)), 1)
    return result


def of_mla(batch: int, keys: int, heads: int, dtype: torch.dtype, speed: float) -> dict[str, Any]:
    q, cache = drawn(batch, 1, heads, 576), drawn(batch * keys // PAGE, PAGE, 576, dtype=dtype)
    lengths, table = torch.full((batch,), keys, device="cuda"), pages_of(batch, keys, PAGE)
    call = lambda: ours.mla_decode(q, cache, lengths, table=table)
    error = error_of(call(), "mla_decode", q[:1], first_of(cache, table), lengths[:1], 512, None, None, None)
    case: dict[str, Any] = {"op": "mla", "page": PAGE, "cache": str(dtype).removeprefix("torch.")}
    us = microseconds(call)
    result = row([batch, keys, heads, 1, 576], case, us, cache.nbytes, speed, error)
    return {**result, "tflops": round(2e-6 * batch * keys * heads * (576 + 512) / us, 1)}


def of_writing(batch: int, dtype: torch.dtype, speed: float) -> dict[str, Any]:
    k, cache = drawn(batch, 1, KV_HEADS, DIM), drawn(batch * 16, PAGE, KV_HEADS, DIM, dtype=dtype)
    lengths, table = torch.full((batch,), 1000, device="cuda"), pages_of(batch, 16 * PAGE, PAGE)
    us = microseconds(lambda: ours.write_kv_cache(k, k, cache, cache, lengths, table=table))
    case: dict[str, Any] = {"op": "write", "page": PAGE, "cache": str(dtype).removeprefix("torch.")}
    moved = 2 * k.numel() * (2 + dtype.itemsize)
    return row([batch, 1, KV_HEADS, KV_HEADS, DIM], case, us, moved, speed, 0.0)


def shown(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = [names, *([str(found.get(name, "")) for name in names] for found in rows)]
    wide = [max(len(line[i]) for line in table) for i in range(len(names))]
    for line in table:
        print("  ".join(word.rjust(size) for word, size in zip(line, wide)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="every third case")
    options = parser.parse_args()
    every, rows, speed = 3 if options.quick else 1, [], copy_speed()
    with opmux.policy("flagos", strict=True):
        for batch, keys, page, dtype in CASES[::every]:
            if 2 * batch * keys * KV_HEADS * DIM * dtype.itemsize <= MOST:
                rows.append(of_attention(batch, keys, page, dtype, speed))
        rows += [of_mla(*case, speed) for case in LATENT[::every]]
        rows += [of_writing(64, kept, speed) for kept in (BF16, E4M3)]
    if options.json:
        options.json.write_text(
            json.dumps({"about": about(copy_gb_per_s=round(speed / 1e3)), "results": rows}, indent=1) + "\n"
        )
    print(f"{torch.cuda.get_device_name()}: a copy moves {speed / 1e3:.0f} GB/s")
    shown(rows)


if __name__ == "__main__":
    main()
