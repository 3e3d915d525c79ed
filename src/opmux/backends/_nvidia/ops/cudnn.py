"""Batch norm through cuDNN."""

import torch
from torch import Tensor

from ....kernels.lib.plans import checks
from ....specs import channel_norm as spec
from .tags import library

check_batch_norm, check_batch_norm_bwd = checks(spec.batch_norm), checks(spec.batch_norm_bwd)
DTYPES = frozenset({torch.float16, torch.float32})


def cudnn(oldest: int = 8) -> bool | str:
    """Whether torch has a cuDNN that is new enough."""
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    major = (version or 0) // (10_000 if (version or 0) >= 90_000 else 1000)  # 8907 is 8.9.7, 90100 is 9.1.0
    return True if major >= oldest else f"needs cuDNN {oldest}; torch has {f'cuDNN {major}' if version else 'none'}"


def limits(x: Tensor, eps: float = 1.0) -> bool | str:
    """True, or why not.

    For channels-last, cuDNN's backward needs a buffer from its forward, which our op does not save.
    """
    if x.dtype not in DTYPES or x.dim() not in (4, 5) or not x.is_contiguous():
        return "takes contiguous float16 and float32 of 4 and 5 dimensions"
    if x.shape[1] < 2 or x.shape[2:].numel() < 2 or not x.numel() or x.shape[0] > 65535 or eps <= 0:
        return "takes at least 2 channels and 2 positions, 1 to 65535 samples, and an eps above 0"
    return True


def batch_when(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> bool | str:
    check_batch_norm(x, weight, bias, running_mean, running_var, momentum, eps)
    return limits(x, eps)


def batch_bwd_when(dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor) -> bool | str:
    check_batch_norm_bwd(dy, x, weight, mean, rstd)
    return limits(x)


def _filled(t: Tensor | None, value: float, x: Tensor) -> Tensor:
    """One float32 number per channel, as cuDNN needs: t, or a tensor filled with `value`."""
    return x.new_full((x.shape[1],), value, dtype=torch.float32) if t is None else t.to(torch.float32).contiguous()


@library("batch_norm", "cudnn", dtypes=DTYPES, when=batch_when, available=cudnn)
def batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    old = (running_mean, running_var)
    new = [x.new_zeros(x.shape[1], dtype=torch.float32) if t is None else t.to(torch.float32, copy=True) for t in old]
    rate = 1.0 if running_mean is None else momentum  # without running statistics, the new ones are the batch's
    y, mean, rstd, _ = torch.ops.aten.cudnn_batch_norm.default(
        x, _filled(weight, 1.0, x), _filled(bias, 0.0, x), new[0], new[1], True, rate, eps
    )
    new_mean, new_var = (n if t is None else n.to(t.dtype) for n, t in zip(new, old, strict=True))
    return y, mean, rstd, new_mean, new_var


@library("batch_norm_bwd", "cudnn", when=batch_bwd_when, available=cudnn)
def batch_norm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    nothing = x.new_empty(0, dtype=torch.uint8)
    w, mu, r = _filled(weight, 1.0, x), _filled(mean, 0.0, x), _filled(rstd, 0.0, x)
    dx, dw, db = torch.ops.aten.cudnn_batch_norm_backward.default(
        x, dy.to(x.dtype).contiguous(), w, None, None, mu, r, 1e-5, nothing
    )
    dtype = torch.float32 if weight is None else weight.dtype
    return dx, dw.to(dtype), db.to(dtype)
