"""Small ops of language models on a GPU, in bfloat16: rope of q and k, gated units, residual add with rms norm.

    python benchmarks/llm_ops.py [--json FILE]

Times are medians; all providers alternate in one run. GBps is the number of bytes that must move (each input read once,
each result written once) divided by the time. A share is relative to a copy of the same number of bytes in the same
run. Host times are measured on a call whose kernel takes less time than its launch: rope of one token, as in decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import opmux
import opmux.functional as ours

BF16 = torch.bfloat16


def milliseconds(call: Callable[[], object]) -> float:
    from triton.testing import do_bench

    return do_bench(call, warmup=50, rep=150, return_mode="median")


def host_microseconds(call: Callable[[], object], times: int = 500) -> float:
    """The host's time of a call, without waiting for the device."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, time.perf_counter() - begin)
    torch.cuda.synchronize()
    return best / times * 1e6


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").to(BF16)


class Case(NamedTuple):
    """An op, and torch's composition for the same tensors; `ours_backward` takes gradients, inputs and constants."""

    name: str
    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...] = ()
    ours_backward: Callable[..., Any] | None = None


def tensors(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def heads(batch: int, count: int, length: int, dim: int) -> Tensor:
    """Heads as a linear layer returns them: [batch, length, heads, dim] in memory."""
    return drawn(batch, length, count, dim).transpose(1, 2)


def tables(length: int, dim: int) -> tuple[Tensor, Tensor]:
    rates = 10000.0 ** (-torch.arange(0, dim, 2, device="cuda") / dim)
    angles = torch.arange(length, device="cuda")[:, None] * rates
    both = torch.cat([angles, angles], -1)[None]
    return both.cos().to(BF16), both.sin().to(BF16)


def torch_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rope as in transformers."""

    def half(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    cos, sin = cos[:, None], sin[:, None]
    return q * cos + half(q) * sin, k * cos + half(k) * sin


def torch_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    s = x + residual
    return F.rms_norm(s, weight.shape, weight, 1e-6), s


def cases() -> list[Case]:
    cases = []
    rope_bwd = lambda dq, dk, q, k, cos, sin: opmux.ops.rope_qk_bwd(dq, dk, cos, sin, "bhsd", "bshd")
    for length, dim in ((2048, 64), (2048, 128), (8192, 128)):
        q, k = heads(4, 32, length, dim), heads(4, 8, length, dim)
        name = f"rope 4 x (32 + 8) x {length} x {dim}"
        cases.append(Case(name, ours.apply_rotary_pos_emb, torch_rope, (q, k), tables(length, dim), rope_bwd))
    for columns in (8192, 14336):
        a, b = drawn(8192, columns), drawn(8192, columns)
        units = {
            "silu_mul": (ours.swiglu, lambda a, b: F.silu(a) * b, opmux.ops.silu_mul_bwd),
            "gelu_tanh_mul": (
                ours.geglu, lambda a, b: F.gelu(a, approximate="tanh") * b, opmux.ops.gelu_tanh_mul_bwd
            ),
        }  # fmt: skip
        for name, (mine, torchs, backward) in units.items():
            cases.append(Case(f"{name} 8192 x {columns}", mine, torchs, (a, b), (), backward))
    for columns in (2048, 4096, 8192):
        add = lambda x, r, w: opmux.ops.add_rms_norm(x, r, w, 1e-6)[:2]
        args = drawn(8192, columns), drawn(8192, columns)
        cases.append(Case(f"add_rms_norm 8192 x {columns}", add, torch_add_rms_norm, args, (drawn(columns),)))
    return cases


def copy_of(size: int) -> float:
    """Milliseconds of a copy that reads and writes `size` bytes together."""
    a, b = (torch.empty(size // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    return milliseconds(lambda: b.copy_(a))


def bytes_of(*values: Any) -> int:
    return sum(t.nbytes for value in values for t in tensors(value))


def check(got: Any, want: Any, what: str) -> None:
    """Raise if the error is more than 1 % of the values, a limit that allows for torch's repeated rounding."""
    for a, b in zip(tensors(got), tensors(want), strict=True):
        error = ((a.double() - b.double()).norm() / b.double().norm()).item()
        assert error < 1e-2, f"{what}: {error:.1e} from torch in float64"


def measured(case: Case) -> dict[str, Any]:
    compiled = torch.compile(case.torchs)
    outs = tensors(case.torchs(*case.inputs, *case.constants))
    exact = case.torchs(*(t.double() for t in (*case.inputs, *case.constants)))
    check(case.ours(*case.inputs, *case.constants), exact, case.name)
    size = bytes_of(case.inputs, case.constants, outs)
    row: dict[str, Any] = {"bytes": size}
    providers = {"ours": case.ours, "torch": case.torchs, "torch.compile": compiled}
    row["forward"] = timed(size, {n: lambda fn=fn: fn(*case.inputs, *case.constants) for n, fn in providers.items()})
    if case.ours_backward is None:
        return row
    grads = tuple(torch.empty_like(o).copy_(o) for o in outs)
    doubles = tuple(t.double().requires_grad_() for t in case.inputs)
    wide = tensors(case.torchs(*doubles, *(t.double() for t in case.constants)))
    want = torch.autograd.grad(wide, doubles, tuple(g.double() for g in grads))
    backward = lambda: case.ours_backward(*grads, *case.inputs, *case.constants)  # type: ignore[misc]
    check(backward(), want, f"{case.name}, backward")
    calls: dict[str, Callable[[], object]] = {"ours": backward}
    for name in ("torch", "torch.compile"):
        leaves = tuple(t.detach().requires_grad_() for t in case.inputs)
        graph = tensors(providers[name](*leaves, *case.constants))
        calls[name] = lambda graph=graph, leaves=leaves: torch.autograd.grad(graph, leaves, grads, retain_graph=True)
    saved = () if case.name.startswith("rope") else case.inputs  # rope's backward needs only its tables
    row["backward"] = timed(bytes_of(grads, case.constants, saved, case.inputs), calls)
    return row


def timed(size: int, calls: dict[str, Callable[[], object]]) -> dict[str, Any]:
    copy = copy_of(size)
    row: dict[str, Any] = {"copy": {"ms": round(copy, 4), "GBps": round(size / copy / 1e6)}}
    for name, call in calls.items():
        ms = milliseconds(call)
        row[name] = {"ms": round(ms, 4), "GBps": round(size / ms / 1e6), "share": round(copy / ms, 3)}
    return row


def decoding() -> dict[str, Any]:
    """Microseconds of the host for one token, without gradients."""
    q, k, (cos, sin) = heads(1, 32, 1, 64), heads(1, 8, 1, 64), tables(1, 64)
    providers = {"ours": ours.apply_rotary_pos_emb, "torch": torch_rope, "torch.compile": torch.compile(torch_rope)}
    rows = {}
    with torch.no_grad():
        for name, fn in providers.items():
            rows[name] = round(host_microseconds(lambda fn=fn: fn(q, k, cos, sin)), 2)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import triton

    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = (
        os.environ.get("OPMUX_COMMIT")
        or subprocess.run(git, capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
    )
    record: dict[str, Any] = {
        "chip": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "date": date.today().isoformat(), "commit": commit,
    }  # fmt: skip
    print(record)
    torch.manual_seed(0)
    for case in cases():
        record[case.name] = measured(case)
        for direction in ("forward", "backward"):
            for name, row in record[case.name].get(direction, {}).items():
                print(f"  {case.name:34} {direction:9} {name:14} {row}")
    record["host_us, rope of one token"] = decoding()
    print("  host_us, rope of one token", record["host_us, rope of one token"])
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
