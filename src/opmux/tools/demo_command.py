"""`opmux demo`: its options, its view, its report and its exit code."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from .. import ops as opmux_ops
from ..core.tensors import dtype_name
from . import arguments, demo_page, demo_view, llama, screen
from .demo import TOLERANCE, Counted, Gaps, Session, train


def run(
    steps: int, device: str | None, dtype: str | None, seed: int, seconds: float = 60.0, html: Path | None = None
) -> int:
    if not 0 < seconds < math.inf:
        raise arguments.BadOption(f"--seconds {seconds:g} is not allowed. Allowed: more than 0")
    at = arguments.device(device)
    small = at.type == "cpu"
    kind = arguments.dtype(("float32" if small else "bfloat16") if dtype is None else dtype, TOLERANCE)
    counted = [
        Counted(op) for op in (opmux_ops.rms_norm, opmux_ops.add_rms_norm, opmux_ops.silu_mul, opmux_ops.rope_qk)
    ]
    size = llama.LlamaSize() if small else llama.LARGE
    session = Session(size, at, kind, seed, steps, time.monotonic() + seconds, counted)
    with demo_view.showing(session) as show, _quiet(), _one_thread():
        train(session, show)
    gaps = Gaps.between(session.plain, session.ours, TOLERANCE[dtype_name(kind)], session.horizon)
    demo_view.report(screen.out(), session, gaps)
    if html is not None:
        screen.write(html, demo_page.page(session, gaps))
        screen.err().print(f"written: {html}", style="dim", markup=False)
    return 0 if gaps.agree else 1


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="mkldnn_matmul failed")  # on a CPU without bfloat16; only slow
        yield


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: more threads gain little with this model, and wait for each other if other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
