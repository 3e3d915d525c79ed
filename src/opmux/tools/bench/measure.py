"""Checks every result before it is timed, and measures memory and the machine's limits."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ...core.spec import EXACT, Sample, Spec, Tol
from ...core.tensors import dtype_name, tensors_in
from ..runner.check import Wrong, as_tuple
from ..runner.clock import Call, call_ms, wait

# Dtypes whose values float32 represents exactly. Such results are compared in float32, all others in float64.
NARROW = {torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2}
# Other libraries may round several times: torch's norm backwards exceed a spec's tolerance where terms cancel. So for
# other libraries, the spec's tolerance is multiplied by this factor, and may also be relative to the mean of a result.
LOOSE = 4


# ---- the gate -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """The reference's results for a sample, and the arguments that the op wrote, both by name."""

    spec: Spec
    sample: Sample
    results: dict[str, Any]

    @classmethod
    def of(cls, spec: Spec, sample: Sample) -> Truth:
        args, kwargs = _fresh(spec, sample)
        with torch.no_grad():
            results = as_tuple(spec.reference(*args, **kwargs))
        return cls(spec, sample, dict(zip(spec.out, results)) | _written(spec, args, kwargs))

    def check(
        self, build: Callable[[Spec, Sample], Call], gives: Sequence[str], *, exact: bool, random: bool = False
    ) -> float | None:
        """Compare a provider's results. Returns the largest difference, or raises Wrong if it exceeds the tolerance.

        `exact` is for impls of opmux. It requires the spec's own tolerance and the reference's dtypes, and makes two
        calls, because the second one may replay a recorded launch.
        """
        worst = 0.0
        args, kwargs = _fresh(self.spec, self.sample)
        call = build(self.spec, Sample(args, kwargs))
        for _ in range(1 + (exact and not self.spec.mutates)):
            results = as_tuple(call())
            if len(results) != len(gives):
                raise Wrong(f"{len(results)} results instead of {len(gives)} ({' '.join(gives)})")
            got = dict(zip(gives, results)) | (_written(self.spec, args, kwargs) if exact else {})
            for name, value in got.items():
                want = self.results[name]
                if random:
                    check_shape(name, value, want)
                else:
                    worst = max(worst, compare(name, value, want, self.spec, exact=exact))
        return None if random else worst


def _fresh(spec: Spec, sample: Sample) -> tuple[tuple, dict]:
    """The arguments, copied if the op writes any of them."""
    if not spec.mutates:
        return sample.args, sample.kwargs
    return tree_map_only(Tensor, torch.clone, (sample.args, sample.kwargs))


def _written(spec: Spec, args: tuple, kwargs: dict) -> dict[str, Any]:
    arguments = dict(zip(spec.names, args)) | kwargs
    return {f"{name} (written)": arguments[name] for name in spec.mutates if isinstance(arguments.get(name), Tensor)}


def compare(name: str, got: Any, want: Any, spec: Spec, *, exact: bool) -> float:
    """Compare one result. Returns the largest difference, or raises Wrong if it exceeds the tolerance."""
    if not isinstance(want, Tensor) or not isinstance(got, Tensor):
        if type(got) is not type(want) or (not isinstance(want, Tensor) and got != want):
            raise Wrong(f"{name} is {type(got).__name__}, expected {type(want).__name__}")
        return 0.0
    check_shape(name, got, want)
    if exact and got.dtype != want.dtype:
        raise Wrong(f"{name} is {dtype_name(got.dtype)}, expected {dtype_name(want.dtype)}")
    if want.numel() == 0:
        return 0.0
    if want.is_complex() and got.is_complex():
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    common = torch.float32 if {got.dtype, want.dtype} <= NARROW else torch.float64
    a, b = got.to(common), want.to(common)
    same = (got == want) | (a.isnan() & b.isnan())
    difference = (a - b).abs_().nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(same, 0.0)
    worst = difference.max().item()
    allowed, size = _tolerance(spec, got.dtype, want.dtype), b.abs()
    if not exact:
        allowed = Tol(LOOSE * allowed.rtol, LOOSE * (allowed.atol + allowed.rtol * size[size.isfinite()].mean().item()))
    far = ~same
    if got.is_floating_point() or want.is_floating_point():  # integers must be equal
        far &= ~((difference <= allowed.atol + allowed.rtol * size) & difference.isfinite())
    if bool(far.any()):
        share = far.sum().item() / far.numel()
        raise Wrong(f"{name} is off by up to {worst:.3g} ({share:.2%} of its elements are too far)", worst)
    return worst


def check_shape(name: str, got: Tensor, want: Tensor) -> None:
    if got.shape != want.shape:
        raise Wrong(f"{name} has shape {tuple(got.shape)}, expected {tuple(want.shape)}")


def _tolerance(spec: Spec, *dtypes: torch.dtype) -> Tol:
    """The larger of the spec's tolerances for these dtypes; integers must be exact."""
    tolerances = [spec.tolerance(d) for d in dtypes if d.is_floating_point]
    return max(tolerances, key=lambda t: t.rtol, default=EXACT)


def fits(spec: Spec, sample: Sample, device: torch.device) -> bool:
    """Whether the reference's arguments, and its temporaries in float32 or wider, fit in memory together."""
    tensors = tensors_in((sample.args, sample.kwargs))
    largest = max((t.numel() * max(t.itemsize, 4) for t in tensors), default=0)
    return 12 * largest < free_bytes(device)  # norms' backwards have eight such temporaries


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return sys.maxsize  # not Linux: unknown
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(fn: Call, device: torch.device) -> int | None:
    """The peak memory of a call beyond its arguments; None if unknown."""
    if device.type != "cuda":
        return None
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = fn()
    wait(device)
    del result
    return torch.cuda.max_memory_allocated(device) - before


# ---- the limits -----------------------------------------------------------------------------------------------------


@dataclass
class Limits:
    """The machine's limits, measured in the same run: the speed of a copy and the speed of a matrix product."""

    device: torch.device
    copy_gbs: float = 0.0
    matmul_tflops: dict[str, float] = field(default_factory=dict)

    def measure_copy(self, mib: int) -> None:
        a = torch.ones((mib << 20) // 2, dtype=torch.bfloat16, device=self.device)
        b = torch.empty_like(a)
        best = min(call_ms(lambda: b.copy_(a), self.device) for _ in range(3))  # the first run raises the GPU's clocks
        self.copy_gbs = 2 * a.nbytes / best / 1e6

    def matmul(self, dtype: torch.dtype) -> float:
        """TFLOP/s of torch's matrix product in a dtype, measured on first use."""
        name = dtype_name(dtype)
        if name not in self.matmul_tflops:
            n = 512 if self.device.type == "cpu" else 8192
            a, b = (torch.randn(n, n, device=self.device).to(dtype) for _ in range(2))
            self.matmul_tflops[name] = 2 * n**3 / call_ms(lambda: a @ b, self.device) / 1e9
        return self.matmul_tflops[name]

    def least_ms(self, nbytes: int, flops: int | None, dtype: torch.dtype) -> tuple[float, str]:
        """The minimal time for this much work, and the limit that determines it."""
        times = [(nbytes / self.copy_gbs / 1e6, "copy")]
        if flops and dtype.is_floating_point:
            times.append((flops / self.matmul(dtype) / 1e9, "matmul"))
        return max(times)
