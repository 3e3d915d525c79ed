"""add(self, other, alpha): self + alpha * other, with broadcasting and type promotion."""

import torch
import triton
import triton.language as tl

from opmux.core import NotSupported

BLOCK = 1024


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, alpha, BLOCK: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    b_x = tl.load(x_ptr + o, mask=m)
    b_y = tl.load(y_ptr + o, mask=m)
    tl.store(out_ptr + o, b_x + alpha * b_y, mask=m)


def add(self, other, *, alpha=1):
    if not isinstance(other, torch.Tensor) or other.device != self.device:
        raise NotSupported("numbers and CPU scalars are left to torch")
    dtype = torch.result_type(self, other)
    if not dtype.is_floating_point or isinstance(alpha, complex):
        raise NotSupported("only floats")
    x, y = (t.to(dtype).contiguous() for t in torch.broadcast_tensors(self, other))
    out = torch.empty_like(x)
    grid = (triton.cdiv(out.numel(), BLOCK),)
    if out.numel():
        add_kernel[grid](x_ptr=x, y_ptr=y, out_ptr=out, n=out.numel(), alpha=float(alpha), BLOCK=BLOCK)
    return out
