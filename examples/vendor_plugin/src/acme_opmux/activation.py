"""The product in SwiGLU, for rows whose length is a multiple of the vector length."""

import torch

LANES = 8


def whole_vectors(a, b):
    """A `when` function returns True, or the reason for its refusal, which `opmux.explain` shows to the user."""
    cols = a.shape[-1] if a.dim() else 1
    return cols % LANES == 0 or f"acme's unit takes rows of {LANES} n elements, these have {cols}"


def silu_mul(a, b):
    wide = torch.promote_types(a.dtype, torch.float32)
    return (torch.nn.functional.silu(a.to(wide)) * b.to(wide)).to(a.dtype)
