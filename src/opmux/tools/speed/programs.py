"""Programs that call torch's functions and their backward, so that overloads get arguments that fit together.

Each program takes a matrix and uses almost all of its elements. If this torch refuses a call for its dtype or device,
the program ends there, and the calls before it are still used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

# What torch raises for arguments that an op does not take.
REFUSALS = (RuntimeError, TypeError, NotImplementedError, ValueError, IndexError, AttributeError)

Program = Callable[[Tensor], Any]


def both(fn: Program) -> Program:
    """A program that calls a function and its backward. The incoming gradient is contiguous, not expanded."""

    def run(x: Tensor) -> None:
        x = x.detach().requires_grad_(x.is_floating_point())
        y = fn(x)
        out = y[0] if isinstance(y, (tuple, list)) else y
        if isinstance(out, Tensor) and out.requires_grad:
            torch.autograd.grad(out, x, torch.randn_like(out), allow_unused=True)

    return run


# ---- tensors made of x ----------------------------------------------------------------------------------------------


def _blocks(x: Tensor, *sizes: int) -> Tensor:
    """The elements as blocks of these sizes, without the remainder."""
    count = x.numel() // torch.Size(sizes).numel()
    return x.reshape(-1)[: count * torch.Size(sizes).numel()].view(count, *sizes)


def _image(x: Tensor) -> Tensor:
    """The elements as images, [N, 64, 32, 32] or smaller."""
    side = 32 if x.numel() >= 64 * 32 * 32 else 8
    return _blocks(x, 64, side, side)


def _volume(x: Tensor) -> Tensor:
    """The elements as volumes, [N, 16, 16, 16, 16] or smaller."""
    side = 16 if x.numel() >= 16**4 else 4
    return _blocks(x, 16, side, side, side)


def _signal(x: Tensor) -> Tensor:
    """The elements as signals, [N, 64, length]."""
    return _image(x).flatten(2)


def _heads(x: Tensor) -> Tensor:
    """The elements as queries, [B, H, S, 64]."""
    heads, length = (8, 512) if x.numel() >= 8 * 512 * 64 else (2, 8)
    return _blocks(x, heads, length, 64)


def _tokens(x: Tensor) -> Tensor:
    """The elements as queries, [B, S, H, 64]."""
    return _heads(x).transpose(1, 2)


def _square(x: Tensor) -> Tensor:
    """A random matrix [n, 1024] or smaller to multiply x by, so that the product is not too slow."""
    return _random(x, x.shape[-1], min(x.shape[-1], 1024))


def _random(x: Tensor, *sizes: int) -> Tensor:
    return torch.randn(sizes, device=x.device).to(x.dtype)


def _index(x: Tensor, n: int | None = None) -> Tensor:
    """Random row indices of x."""
    return torch.randint(0, x.shape[0], (n or x.shape[0],), device=x.device)


def _columns(x: Tensor) -> Tensor:
    """A random column index for each element."""
    return torch.randint(0, x.shape[1], x.shape, device=x.device)


def _weight(x: Tensor) -> Tensor:
    return torch.ones(x.shape[-1], dtype=x.dtype, device=x.device, requires_grad=x.is_floating_point())


def _number(x: Tensor, value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=x.device)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance for the channels of images."""
    return torch.zeros(64, device=x.device), torch.ones(64, device=x.device)


def _affine(x: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias for the channels of images, both trainable."""
    return _weight(x[0, :1].expand(64)), _weight(x[0, :1].expand(64))


def _classes(x: Tensor) -> Tensor:
    return torch.randint(0, x.shape[1], (x.shape[0],), device=x.device)


def _parts(x: Tensor) -> list[Tensor]:
    return [p.clone() for p in x.reshape(-1).chunk(16)]


def _empty(x: Tensor, *sizes: int) -> Tensor:
    return torch.empty(sizes or (x.numel(),), dtype=x.dtype, device=x.device)


def _generator(x: Tensor) -> torch.Generator:
    return torch.Generator(device=x.device)


# ---- larger programs ------------------------------------------------------------------------------------------------


def _bags(x: Tensor) -> None:
    """Embedding bags of four rows, with a weight for each row."""
    table = x.detach().requires_grad_()
    index, offsets = _index(x), torch.arange(0, x.shape[0], 4, device=x.device)
    weights = torch.rand(index.shape, device=x.device).to(x.dtype).requires_grad_()
    out = F.embedding_bag(index, table, offsets, mode="sum", per_sample_weights=weights)
    grad = torch.randn_like(out)
    torch.autograd.grad(out, (table, weights), grad)
    bag, size = torch.arange(x.shape[0], device=x.device) // 4, torch.full_like(offsets, 4)
    aten._embedding_bag_dense_backward(grad, index, bag, size, torch.zeros_like(size), x.shape[0], False, 0, None)


def _foreach(name: str) -> Program:
    """All overloads of a foreach function."""

    def run(x: Tensor) -> None:
        fn, one, two = getattr(torch, name), _parts(x), _parts(x)
        numbers = [2.0] * len(one)
        for args in (
            (one,),
            (one, two),
            (one, 2.0),
            (one, numbers),
            (one, _number(x, 2.0)),
            (2.0, one),
            (one, two, 0.5),
            (one, two, numbers),
            (one, two, two),
            (one, two, two, numbers),
            (one, two, two, torch.tensor(numbers)),
        ):
            with contextlib.suppress(*REFUSALS):
                fn(*args)

    return run


def _optimizers(x: Tensor) -> None:
    """A step of each fused optimizer, with the learning rate as a number and as a tensor."""
    options: Any = {"weight_decay": 0.1, "maximize": False}
    adam = options | {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False}
    sgd = options | {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "is_first_step": False}
    for rate in (1e-3, _number(x, 1e-3)):
        for name, state, steps, keywords in (
            ("_fused_adamw_", 2, True, adam),
            ("_fused_adam_", 2, True, adam),
            ("_fused_sgd_", 1, False, sgd),
            ("_fused_adagrad_", 1, True, options | {"lr_decay": 0.0, "eps": 1e-8}),
        ):
            held: list[Any] = [[torch.zeros_like(p) for p in _parts(x)] for _ in range(2 + state)]
            if keywords is adam:
                held.append([])  # the state of amsgrad
            if steps:
                held.append([_number(x, 1.0) for _ in held[0]])
            with contextlib.suppress(*REFUSALS):
                getattr(torch, name)(*held, lr=rate, **keywords)


def _unscale(x: Tensor) -> None:
    torch._amp_foreach_non_finite_check_and_unscale_(_parts(x), _number(x, 0.0).view(1), _number(x, 1.0).view(1))


def _int8_product(x: Tensor) -> None:
    torch._int_mm(x.to(torch.int8), _square(x).to(torch.int8))


def _fp8(x: Tensor, *sizes: int) -> Tensor:
    return _random(x, *sizes).to(torch.float8_e4m3fn)


def _fp8_product(x: Tensor) -> None:
    """A float8 product with one scale per tensor."""
    b = _fp8(x, min(x.shape[1], 1024), x.shape[1]).t()
    torch._scaled_mm(x.to(b.dtype), b, _number(x, 1.0), _number(x, 1.0), out_dtype=torch.bfloat16)


def _fp8_product_of_rows(x: Tensor) -> None:
    """A float8 product with one scale per row and per column."""
    b = _fp8(x, min(x.shape[1], 1024), x.shape[1]).t()
    row, column = torch.ones(x.shape[0], 1, device=x.device), torch.ones(1, b.shape[1], device=x.device)
    torch._scaled_mm(x.to(b.dtype), b, row, column, out_dtype=torch.bfloat16)


def _fp8_grouped_product(x: Tensor) -> None:
    count, ends = _groups(x)
    b = _fp8(x, count, min(x.shape[1], 1024), x.shape[1]).transpose(1, 2)
    row, column = torch.ones(x.shape[0], device=x.device), torch.ones(count, b.shape[2], device=x.device)
    torch._scaled_grouped_mm(x.to(b.dtype), b, row, column, offs=ends, out_dtype=torch.bfloat16)


def _groups(x: Tensor) -> tuple[int, Tensor]:
    """The number of groups of rows, and the index where each group ends."""
    count = min(8, x.shape[0] // 16)
    return count, torch.arange(1, count + 1, device=x.device, dtype=torch.int32) * (x.shape[0] // count)


def _grouped_product(x: Tensor) -> None:
    count, ends = _groups(x)
    torch._grouped_mm(x, _random(x, count, x.shape[1], min(x.shape[1], 1024)), offs=ends)


def _efficient_attention(x: Tensor) -> Any:
    q = _tokens(x)
    return aten._efficient_attention_forward(q, q, q, None, None, None, None, None, 0.0, 1, True)


def _flash_attention(x: Tensor) -> Any:
    q = _tokens(x)
    return aten._flash_attention_forward(q, q, q, None, None, q.shape[1], q.shape[1], 0.0, True, False)


def _lstm_cell(x: Tensor) -> Any:
    """The gates of an LSTM cell, after its matrix products."""
    return aten._thnn_fused_lstm_cell(x, x, x[:, : x.shape[1] // 4].contiguous())


def _fused_rms_norm(x: Tensor) -> None:
    """Calls the op below autograd, because on a CPU torch composes it from other ops."""
    with torch._C._AutoDispatchBelowAutograd():
        aten._fused_rms_norm(x, x.shape[-1:], torch.ones_like(x[0]), 1e-6)


def _weight_norm(x: Tensor) -> Any:
    return torch._weight_norm(x, x.detach().norm(2, 1, keepdim=True), 0)


def _grid_sample(images: Tensor) -> Any:
    n, _, *sizes = images.shape
    grid = torch.rand(n, *sizes, len(sizes), device=images.device).mul_(2).sub_(1).to(images.dtype)
    return F.grid_sample(images, grid, align_corners=False)


# ---- all of them ----------------------------------------------------------------------------------------------------

PROGRAMS: tuple[Program, ...] = (
    *map(both, (
        lambda x: F.layer_norm(x, x.shape[-1:], _weight(x), _weight(x)),
        lambda x: F.rms_norm(x, x.shape[-1:], _weight(x), 1e-6),
        lambda x: F.group_norm(_image(x), 8, *_affine(x)),
        lambda x: F.batch_norm(_image(x), *_statistics(x), *_affine(x), training=True),
        lambda x: F.batch_norm(_image(x), *_statistics(x)),
        lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, 0),
        lambda x: torch.log_softmax(x, -1), lambda x: torch.log_softmax(x, 0),
        lambda x: F.cross_entropy(x, _classes(x)),
        lambda x: F.embedding(_index(x), x), lambda x: F.dropout(x, 0.1), lambda x: F.glu(x),
        *(lambda x, f=f: getattr(F, f)(x) for f in (
            "gelu", "silu", "relu", "relu6", "elu", "celu", "selu", "mish", "softplus", "hardswish", "hardsigmoid",
            "hardtanh", "leaky_relu", "logsigmoid", "tanhshrink", "softshrink", "hardshrink", "rrelu",
        )),
        lambda x: F.gelu(x, approximate="tanh"), lambda x: F.threshold(x, 0.1, 0.0), torch.tanh, torch.sigmoid,
        lambda x: F.prelu(x, torch.full((1,), 0.1, device=x.device, dtype=x.dtype)),
        lambda x: torch.cat([x, x], -1), lambda x: torch.cat([x, x]), lambda x: torch.stack([x, x]),
        lambda x: x.t().contiguous(), lambda x: x.gather(1, _columns(x)), lambda x: x[_index(x)],
        lambda x: x.index_select(0, _index(x)), lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.masked_fill(x > 0, 1.0), lambda x: x.repeat(2, 1), lambda x: x.flip(-1), lambda x: x.roll(3, -1),
        lambda x: x.tril(), lambda x: x.triu(), lambda x: F.pad(x, (8, 8)), lambda x: x.expand(2, *x.shape).clone(),
        lambda x: F.pad(_image(x), (1, 1, 1, 1), "reflect"), lambda x: F.pad(_image(x), (1, 1, 1, 1), "replicate"),
        lambda x: x @ _square(x), lambda x: torch.addmm(_weight(x)[: _square(x).shape[1]], x, _square(x)),
        lambda x: torch.bmm(x.view(-1, 64, 64), x.view(-1, 64, 64)),
        lambda x: torch.baddbmm(x.view(-1, 64, 64), x.view(-1, 64, 64), x.view(-1, 64, 64)),
        lambda x: torch.mv(x, _weight(x)), lambda x: torch.addmv(x[:, 0], x, _weight(x)),
        lambda x: torch.dot(x.view(-1), x.view(-1)), lambda x: torch.outer(x[0], x[0]),
        lambda x: F.scaled_dot_product_attention(_heads(x), _heads(x), _heads(x), is_causal=True),
        lambda x: F.conv2d(_image(x), _random(x, 64, 64, 3, 3), padding=1),
        lambda x: F.conv2d(_image(x), _random(x, 64, 1, 3, 3), padding=1, groups=64),
        lambda x: F.conv1d(_signal(x), _random(x, 64, 64, 3), padding=1),
        lambda x: F.conv_transpose2d(_image(x), _random(x, 64, 64, 2, 2), stride=2),
        lambda x: F.max_pool2d(_image(x), 2), lambda x: F.avg_pool2d(_image(x), 2),
        lambda x: F.adaptive_avg_pool2d(_image(x), 1), lambda x: F.adaptive_max_pool2d(_image(x), 2),
        lambda x: F.adaptive_avg_pool2d(_image(x), 4),
        lambda x: F.max_pool1d(_signal(x), 2), lambda x: F.avg_pool1d(_signal(x), 2),
        *(lambda x, m=m: F.interpolate(_image(x), scale_factor=2, mode=m) for m in ("nearest", "bilinear", "bicubic")),
        lambda x: F.pixel_shuffle(_image(x), 2), lambda x: F.pixel_unshuffle(_image(x), 2),
        lambda x: torch.cdist(x[:64], x[:64]), lambda x: F.cosine_similarity(x, x + 1),
        *(lambda x, f=f: getattr(F, f)(x, torch.rand_like(x)) for f in (
            "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits",
        )),
        lambda x: F.kl_div(x, torch.rand_like(x), reduction="batchmean"),
        lambda x: F.binary_cross_entropy(torch.sigmoid(x), torch.rand_like(x)),
        lambda x: F.soft_margin_loss(x, torch.randn_like(x).sign()),
        lambda x: x.scatter_add(1, _columns(x), x.detach()), lambda x: x.index_add(0, _index(x), x.detach()),
        *(lambda x, f=f, d=d: getattr(torch, f)(x, d) for d in (-1, 0) for f in (
            "sum", "mean", "var", "std", "amax", "amin", "prod", "logsumexp", "cumsum", "cumprod", "logcumsumexp",
            "max", "min", "median", "norm", "var_mean", "std_mean", "aminmax",
        )),
        *(lambda x, f=f: getattr(torch, f)(x) for f in ("sum", "mean", "var", "max", "min", "prod", "norm", "std")),
        # Attention on a GPU, in half precision. Kernels are called by name, because torch's choice depends on its
        # version.
        lambda x: aten._scaled_dot_product_flash_attention(_heads(x), _heads(x), _heads(x), 0.0, True),
        lambda x: aten._scaled_dot_product_efficient_attention(_heads(x), _heads(x), _heads(x), None, True, 0.0, True),
        _flash_attention, _efficient_attention, _lstm_cell, _weight_norm,
        lambda x: torch.logit(x, 1e-3),
        lambda x: torch.cdist(x[:512], x[:512], 1.0), lambda x: F.pdist(x[:512], 1.5),
        lambda x: F.avg_pool3d(_volume(x), 2), lambda x: F.max_pool3d(_volume(x), 2),
        lambda x: F.adaptive_avg_pool3d(_volume(x), 2), lambda x: F.adaptive_max_pool3d(_volume(x), 2),
        lambda x: F.max_unpool2d(*F.max_pool2d(_image(x), 2, return_indices=True), 2),
        lambda x: F.max_unpool3d(*F.max_pool3d(_volume(x), 2, return_indices=True), 2),
        lambda x: F.fractional_max_pool2d(_image(x), 2, output_ratio=(0.5, 0.5)),
        *(lambda x, m=m: F.pad(_signal(x), (1, 1), m) for m in ("reflect", "replicate")),
        *(lambda x, m=m: F.pad(_volume(x), (1,) * 6, m) for m in ("reflect", "replicate")),
        *(lambda x, m=m: F.interpolate(_signal(x), scale_factor=2, mode=m) for m in (
            "nearest", "nearest-exact", "linear",
        )),
        *(lambda x, m=m: F.interpolate(_volume(x), scale_factor=2, mode=m) for m in (
            "nearest", "nearest-exact", "trilinear",
        )),
        lambda x: F.interpolate(_image(x), scale_factor=2, mode="nearest-exact"),
        *(lambda x, m=m: F.interpolate(_image(x), scale_factor=0.5, mode=m, antialias=True) for m in (
            "bilinear", "bicubic",
        )),
        lambda x: _grid_sample(_image(x)), lambda x: _grid_sample(_volume(x)),
        lambda x: F.unfold(_image(x), 3), lambda x: F.fold(F.unfold(_image(x), 3), _image(x).shape[2:], 3),
        lambda x: F.cross_entropy(_image(x), torch.randint(0, 64, _image(x)[:, 0].shape, device=x.device)),
        lambda x: torch.zeros_like(x).masked_scatter(x.detach() > 0.5, x),
        lambda x: torch.segment_reduce(x, "sum", lengths=torch.full((x.shape[0] // 8,), 8, device=x.device)),
        lambda x: x.view(2, -1)[0], lambda x: x.view(-1, 64, 16)[:, 3], lambda x: x[1:], lambda x: x[:, 32:],
        lambda x: x.diagonal(), lambda x: x.unfold(1, 8, 8),
        lambda x: torch.addr(x, x[:, 0], x[0]), lambda x: F.channel_shuffle(_image(x), 8),
        lambda x: torch.addbmm(_random(x, 64, 64), x.view(-1, 64, 64), x.view(-1, 64, 64)),
        lambda x: torch.linalg.cross(_blocks(x, 3), _blocks(x, 3) + 1),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
        lambda x: torch.fake_quantize_per_tensor_affine(x, _number(x, 0.1), _number(x, 0, torch.int32), 0, 255),
        lambda x: torch.fake_quantize_per_channel_affine(
            x, torch.full((x.shape[0],), 0.1, device=x.device),
            torch.zeros(x.shape[0], dtype=torch.int32, device=x.device), 0, 0, 255,
        ),
        lambda x: torch._fake_quantize_learnable_per_tensor_affine(
            x, _number(x, 0.1).view(1), _number(x, 0.0).view(1), 0, 255
        ),
        lambda x: torch.native_dropout(x, 0.1, True),
        *(lambda x, o=o: torch.norm(x, o) for o in (1, 3)),
        lambda x: torch.sort(x, -1), lambda x: torch.topk(x, 8, -1), lambda x: torch.kthvalue(x, 2),
    )),
    *(lambda x, f=f, d=d: getattr(torch, f)(x, d) for d in (-1, 0) for f in (
        "argmax", "argmin", "any", "all", "count_nonzero", "cummax", "cummin", "argsort", "nansum",
    )),
    *(_foreach(n) for n in dir(torch) if n.startswith("_foreach_") and not n.endswith("_")),
    lambda x: aten._foreach_copy(_parts(x), _parts(x)), lambda x: aten._foreach_add.Tensor(_parts(x), _number(x, 2.0)),
    _optimizers, _unscale, _bags, _int8_product, _grouped_product, _fp8_product, _fp8_product_of_rows,
    _fp8_grouped_product,
    lambda x: x.to(torch.float32 if x.dtype != torch.float32 else torch.bfloat16),
    lambda x: x.float().to(x.dtype),
    lambda x: torch.empty_like(x).copy_(x), lambda x: torch.empty_like(x).t().copy_(x.t()),
    lambda x: torch.empty_like(x).fill_(1.0), lambda x: torch.zeros_like(x).zero_(),
    lambda x: torch.zeros(x.shape, dtype=x.dtype, device=x.device),
    lambda x: torch.ones(x.shape, dtype=x.dtype, device=x.device),
    lambda x: torch.full(x.shape, 2.0, dtype=x.dtype, device=x.device),
    lambda x: (torch.ones_like(x), torch.full_like(x, 2.0), torch.rand_like(x), torch.randn_like(x)),
    lambda x: torch.arange(x.numel(), device=x.device), lambda x: torch.arange(0, x.numel(), 1, device=x.device),
        lambda x: (torch.rand(x.shape, device=x.device), torch.randn(x.shape, device=x.device)),
    lambda x: torch.empty_like(x).uniform_(), lambda x: torch.empty_like(x).normal_(),
    lambda x: torch.empty_like(x).exponential_(), lambda x: torch.empty_like(x).bernoulli_(0.5),
    lambda x: torch.bernoulli(torch.rand_like(x)),
    lambda x: torch.randperm(x.numel(), device=x.device), lambda x: torch.multinomial(torch.rand_like(x) + 0.01, 4),
    lambda x: x.scatter(1, _columns(x), 1.0), lambda x: x.scatter(1, _columns(x), x),
    lambda x: x.scatter_reduce(1, _columns(x), x, "sum"), lambda x: x.index_fill(0, _index(x), 1.0),
    lambda x: x.index_copy(0, _index(x), x), lambda x: x.clone().index_put_((_index(x),), x),
    lambda x: x.clone().index_put_((_index(x),), x, accumulate=True), lambda x: torch.take(x, _index(x)),
    lambda x: x.masked_scatter(x > 0, x), lambda x: torch.masked_select(x, x > 0), lambda x: torch.nonzero(x > 0),
    lambda x: torch.isin(x, x[0]), lambda x: torch.unique(x.to(torch.int64)),
    lambda x: torch.searchsorted(torch.sort(x, -1)[0], x), lambda x: torch.bucketize(x, torch.sort(x[0])[0]),
    lambda x: torch.histc(x.float()), lambda x: torch.bincount((x.abs() % 1000).to(torch.int64).view(-1)),
    lambda x: x.diag(), lambda x: torch.diag_embed(x[:4]), lambda x: x.repeat_interleave(2, 0),
    lambda x: (x > 0).logical_not(), lambda x: torch.select_scatter(x, x[0], 0, 0),
    lambda x: torch.slice_scatter(x, x[1:], 0, 1), lambda x: torch.constant_pad_nd(x, (8, 8), 0.0),
    lambda x: torch.unfold_copy(x, 1, 8, 8), lambda x: torch.vdot(x[0], x[0]),
    lambda x: F.one_hot(_classes(x)), lambda x: torch.trace(x), lambda x: torch.equal(x, x + 0),
    lambda x: torch.fill(x, _number(x, 2.0)), lambda x: aten.copy(x, x + 1), lambda x: torch.polar(x, x),
    lambda x: aten.bernoulli.Tensor(x, torch.rand_like(x)), _fused_rms_norm,
    # Norms, convolutions and products that torch calls only on a GPU, or for some arguments.
    lambda x: aten._native_batch_norm_legit.no_stats(_image(x), None, None, True, 0.1, 1e-5),
    lambda x: aten._native_batch_norm_legit(_image(x), None, None, *_statistics(x), True, 0.1, 1e-5),
    lambda x: aten._native_batch_norm_legit_no_training(_image(x), None, None, *_statistics(x), 0.1, 1e-5),
    lambda x: aten._conv_depthwise2d(_image(x), _random(x, 64, 1, 3, 3), [3, 3], None, [1, 1], [1, 1], [1, 1]),
    lambda x: aten.conv_depthwise3d(_volume(x), _random(x, 16, 1, 3, 3, 3), [3] * 3, None, [1] * 3, [1] * 3, [1] * 3),
    lambda x: torch.mm(x, _square(x), out_dtype=torch.float32),
    lambda x: torch.addmm(
        torch.zeros(_square(x).shape[1], device=x.device), x, _square(x), out_dtype=torch.float32
    ),
    lambda x: torch.bmm(_blocks(x, 64, 64), _blocks(x, 64, 64), out_dtype=torch.float32),
    lambda x: torch.baddbmm(
        _blocks(x, 64, 64).float(), _blocks(x, 64, 64), _blocks(x, 64, 64), out_dtype=torch.float32
    ),
    lambda x: aten._masked_scale(x, (x > 0.5).to(torch.uint8), 1.25),
    lambda x: aten.norm.ScalarOpt_dtype(x, 2.0, dtype=torch.float32),
    lambda x: aten.norm.ScalarOpt_dim_dtype(x, 2.0, [-1], False, dtype=torch.float32),
    lambda x: aten.adaptive_avg_pool3d_backward.grad_input(
        F.adaptive_avg_pool3d(_volume(x), 2), _volume(x), grad_input=torch.empty_like(_volume(x))
    ),
    # Indices.
    lambda x: aten._unsafe_index(x, [_index(x)]), lambda x: aten._unsafe_index_put(x, [_index(x)], x),
    lambda x: aten._index_put_impl(x, [_index(x)], x),
    lambda x: aten._unsafe_masked_index(x, x[:, :1] > 0.5, [_index(x)], 0),
    lambda x: aten._unsafe_masked_index_put_accumulate(x, x[:, :1] > 0.5, [_index(x)], x),
    lambda x: aten.put(x, torch.randperm(x.numel(), device=x.device), x.view(-1)),
    lambda x: x.index_fill(0, _index(x), _number(x, 1.0, x.dtype)),
    lambda x: x.scatter(1, _columns(x), x, reduce="add"), lambda x: x.scatter(1, _columns(x), 2.0, reduce="add"),
    lambda x: x.index_reduce(0, _index(x), x, "amax"), lambda x: torch.nonzero_static(x > 0.5, size=x.numel() // 2),
    lambda x: torch.searchsorted(x.view(-1).sort()[0], 0.5), lambda x: torch.bucketize(0.5, x.view(-1).sort()[0]),
    lambda x: torch.repeat_interleave(torch.full((x.numel(),), 2, device=x.device)),
    # Copies of views.
    lambda x: torch._chunk_cat([x, x], 0, 4), lambda x: torch.permute_copy(x, (1, 0)),
    lambda x: torch.transpose_copy(x, 0, 1), lambda x: torch.narrow_copy(x, 1, 1, x.shape[1] - 1),
    lambda x: torch.select_copy(x.view(2, -1), 0, 1), lambda x: torch.split_copy(x, x.shape[0] // 4),
    lambda x: torch.split_with_sizes_copy(x, [x.shape[0] // 4] * 4),
    lambda x: torch.as_strided_copy(x, x.shape[::-1], (1, x.shape[1])),
    lambda x: torch.as_strided_scatter(x, x.t().contiguous(), x.shape[::-1], (1, x.shape[1])),
    lambda x: torch.diagonal_scatter(x, x.diagonal() + 1),
    # Factory functions: random numbers, ranges, and `out=` tensors to fill.
    lambda x: torch.randint(100, x.shape, device=x.device), lambda x: torch.randint(0, 100, x.shape, device=x.device),
    lambda x: torch.randint(100, x.shape, generator=_generator(x), device=x.device),
    lambda x: torch.randint(0, 100, x.shape, generator=_generator(x), device=x.device),
    *(lambda x, a=a: torch.randint_like(x, *a) for a in ((100,), (0, 100))),
    *(lambda x, a=a: torch.randint_like(x, *a, generator=_generator(x)) for a in ((100,), (0, 100))),
    *(lambda x, f=f: getattr(torch, f)(x.shape, generator=_generator(x), device=x.device) for f in ("rand", "randn")),
    *(lambda x, f=f: getattr(torch, f)(x, generator=_generator(x)) for f in ("rand_like", "randn_like")),
    lambda x: torch.randperm(x.numel(), generator=_generator(x), device=x.device),
    lambda x: torch.normal(0.0, 1.0, x.shape, device=x.device), lambda x: torch.normal(x, x),
    *(lambda x, f=f: getattr(torch, f)(0, 1, x.numel(), device=x.device) for f in ("linspace", "logspace")),
    *(lambda x, f=f, ends=ends: getattr(torch, f)(*ends(x), x.numel(), device=x.device)
      for f in ("linspace", "logspace") for ends in (
        lambda x: (_number(x, 0.0), _number(x, 1.0)), lambda x: (_number(x, 0.0), 1), lambda x: (0, _number(x, 1.0)),
    )),
    *(lambda x, f=f, ends=ends: getattr(torch, f)(*ends(x), x.numel(), out=_empty(x))
      for f in ("linspace", "logspace") for ends in (
        lambda x: (0, 1),
        lambda x: (_number(x, 0.0), _number(x, 1.0)), lambda x: (_number(x, 0.0), 1), lambda x: (0, _number(x, 1.0)),
    )),
    *(lambda x, f=f: f(0, x.numel() - 1, device=x.device) for f in (aten.range.default, aten.range.step)),
    lambda x: aten.range.out(0, x.numel() - 1, out=_empty(x)),  # torch 2.11 ends the process at range.out_ on CUDA
    lambda x: aten.arange.out(x.numel(), out=_empty(x)), lambda x: torch.arange(0, x.numel(), 1, out=_empty(x)),
    lambda x: torch.arange(0, x.numel(), device=x.device),
    lambda x: torch.eye(isqrt(x.numel()), device=x.device), lambda x: torch.eye(*x.shape, device=x.device),
    lambda x: torch.eye(isqrt(x.numel()), out=_empty(x, isqrt(x.numel()), isqrt(x.numel()))),
    lambda x: torch.eye(*x.shape, out=torch.empty_like(x)),
    *(lambda x, f=f: getattr(torch, f)(x.shape, out=torch.empty_like(x)) for f in ("zeros", "ones", "rand")),
    *(lambda x, f=f: getattr(aten, f).out(x, out=torch.empty_like(x)) for f in ("_to_copy", "zeros_like", "ones_like")),
    *(lambda x, f=f: getattr(aten, f).out(x, x.shape, out=torch.empty_like(x)) for f in ("new_zeros", "new_ones")),
    lambda x: torch.full(x.shape, 2, out=torch.empty_like(x)),
    lambda x: aten.full_like.out(x, 2, out=torch.empty_like(x)),
    lambda x: aten.new_full.out(x, x.shape, 2, out=torch.empty_like(x)),
    lambda x: torch.randint(0, 100, x.shape, out=torch.empty_like(x)),
    lambda x: torch.randint(0, 100, x.shape, generator=_generator(x), out=torch.empty_like(x)),
)  # fmt: skip
