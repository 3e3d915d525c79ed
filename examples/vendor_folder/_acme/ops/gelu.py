"""gelu(self, approximate="none"): x * (1 + erf(x / sqrt(2))) / 2, and its gradient."""

import torch
import triton
import triton.language as tl

from opmux.core import NotSupported

BLOCK = 1024


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m).to(tl.float32)
    b_y = 0.5 * b_x * (1.0 + tl.erf(b_x * 0.7071067811865476))
    tl.store(y_ptr + o, b_y, mask=m)


@triton.jit
def gelu_backward_kernel(x_ptr, dy_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m).to(tl.float32)
    b_dy = tl.load(dy_ptr + o, mask=m).to(tl.float32)
    cdf = 0.5 * (1.0 + tl.erf(b_x * 0.7071067811865476))
    pdf = tl.exp(-0.5 * b_x * b_x) * 0.3989422804014327
    tl.store(dx_ptr + o, b_dy * (cdf + b_x * pdf), mask=m)


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        if x.numel():
            gelu_kernel[(triton.cdiv(x.numel(), BLOCK),)](x_ptr=x, y_ptr=y, n=x.numel(), BLOCK=BLOCK)
        return y

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dy, dx = dy.contiguous(), torch.empty_like(x)
        if x.numel():
            grid = (triton.cdiv(x.numel(), BLOCK),)
            gelu_backward_kernel[grid](x_ptr=x, dy_ptr=dy, dx_ptr=dx, n=x.numel(), BLOCK=BLOCK)
        return dx


def gelu(self, *, approximate="none"):
    if approximate != "none" or self.dtype is torch.float64:
        raise NotSupported("only the erf form, up to float32")
    if not self.is_contiguous():
        raise NotSupported("only contiguous tensors")
    return Gelu.apply(self)
