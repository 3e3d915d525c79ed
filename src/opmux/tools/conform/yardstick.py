"""The allowed error of a result: about twice the error of torch's own result in the same dtype.

The true result is computed in float64. An error is relative to the number and to the size of the whole result:
|got - truth| / (|truth| + rms(truth)). Our largest error may be twice torch's, plus one rounding to the result's dtype,
plus the expected error of a sum in the compute dtype, which depends on the number of terms.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.spec import Tol
from .compare import first_of, numbers

TIMES = 2.0
FEW = 64  # the rms of up to this many results may be small by chance; use at least the rms of a sum of the terms
MANY = 64  # a sum of more terms may cancel, so use at least 1 / MANY of a term's size as rms
ROUNDINGS = 8.0  # allowed roundings, in the compute dtype
LEAST = 1e-12  # least allowed error in float64: the truth is torch's own result, and algorithms round differently
FP8_STEPS = {torch.float8_e4m3fn: 2.0**-3, torch.float8_e5m2: 2.0**-2}  # largest relative distance of adjacent numbers
FP8_RARE = 1e-4  # share of results that may be rounded in the other direction


def far_off(name: str, got: Tensor, native: Tensor | None, truth: Tensor, terms: float, size: float) -> str | None:
    """Describe the first number of a float result that is too far from the truth; None if there is none.

    `native` is torch's result or None. `terms` is the average number of argument elements on which a result depends,
    and `size` is their root mean square.
    """
    if got.shape != truth.shape:
        return f"{name} has shape {tuple(got.shape)}, expected {tuple(truth.shape)}"
    if not got.numel():
        return None
    want = truth.double()
    rounded = want.to(got.dtype).double()  # infinite if beyond the range of the dtype; that is no error
    whole = torch.where(rounded.isfinite(), want, 0.0)
    rms = whole.square().mean().sqrt()
    if got.numel() <= FEW:
        rms = torch.maximum(rms, torch.as_tensor(size * math.sqrt(terms), dtype=rms.dtype, device=rms.device))
    if terms > MANY:
        rms = torch.clamp(rms, min=size / MANY)
    scale = want.abs() + rms
    off = _relative(got, want, rounded, scale)
    allowed = _limit(got.dtype, terms)
    if native is not None and native.dtype.is_floating_point and native.shape == want.shape:
        # Ignore torch's error where only torch's result is infinite or NaN.
        torchs_error = _relative(native, want, rounded, scale).nan_to_num(nan=0.0, posinf=0.0)
        allowed += TIMES * torchs_error.max().item()
    wrong = ~(off <= allowed)  # NaN is wrong
    if not bool(wrong.any()):
        return None
    at, where = first_of(wrong, name)
    nan = int((wrong & got.isnan()).sum())
    nans = f", {nan} of them are NaN" if nan else ""
    return (
        f"{where} is {got[at].item():.7g}, the truth is {want[at].item():.7g}: off by {off[at].item():.3g} of its "
        f"scale, allowed {allowed:.2g}; {int(wrong.sum())} of {wrong.numel()} numbers are too far{nans}"
    )


def _relative(got: Tensor, want: Tensor, rounded: Tensor, scale: Tensor) -> Tensor:
    """|got - want| / scale. It is 0 where both are equal or both are NaN, and NaN where only one of them is NaN."""
    x = got.double()
    beyond = x.isinf() & (want.abs() > torch.finfo(got.dtype).max) & (x.sign() == want.sign())
    same = (x == rounded) & ~rounded.isfinite() | (x == want) | (x.isnan() & want.isnan()) | beyond
    return torch.where(same, 0.0, (x - want).abs() / scale)


def _limit(dtype: torch.dtype, terms: float) -> float:
    computed = torch.float64 if dtype is torch.float64 else torch.float32
    own = LEAST if dtype is torch.float64 else torch.finfo(dtype).eps
    return own + ROUNDINGS * torch.finfo(computed).eps * (1 + math.log2(max(terms, 1.0)))


def differs(name: str, got: Tensor, want: Tensor, tol: Tol) -> str | None:
    """Describe the first difference that exceeds the tolerance, from a result in the same dtype; None if none does."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{name} is {got.dtype} {tuple(got.shape)}, expected {want.dtype} {tuple(want.shape)}"
    return None if torch.equal(got, want) else numbers(name, got, want, tol)


def fp8_differs(name: str, got: Tensor, want: Tensor, dtype: torch.dtype) -> str | None:
    """Describe the first difference of float8 bytes. None if a few numbers are rounded in the other direction."""
    a, b = (t.view(dtype).float() for t in (got, want))
    step = torch.clamp(b.abs() * FP8_STEPS[dtype], min=torch.finfo(dtype).smallest_normal * FP8_STEPS[dtype])
    off = (a != b) & ~(a.isnan() & b.isnan())
    far = off & ~((a - b).abs() <= step)
    if bool(far.any()) or off.float().mean().item() > FP8_RARE:
        at, where = first_of(far if bool(far.any()) else off, name)
        return (
            f"{where} is {a[at].item():.7g}, expected {b[at].item():.7g}; {int(off.sum())} of {off.numel()} "
            f"numbers differ, {int(far.sum())} of them by more than a step of {str(dtype).removeprefix('torch.')}"
        )
    return None
