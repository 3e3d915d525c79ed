"""Replacements for the Triton kernels of Transformer Engine's Python layer, for machines without CUDA.

NVIDIA's kernels run only on CUDA. When a module of the layer is imported, `replace` replaces its functions that launch
kernels with ours. The layer's public functions, autograd functions and checks are not replaced, and neither are
functions with parameters that ours lack.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...functional.vocab_parallel import vocab_parallel_cross_entropy
from ...specs import moe, residual

# ---- cross entropy --------------------------------------------------------------------------------------------------


class CrossEntropyFunction:
    """Replaces the autograd function that the layer's `parallel_cross_entropy` applies."""

    @staticmethod
    def apply(
        inp: Tensor,
        target: Tensor,
        label_smoothing: float = 0.0,
        reduce_loss: bool = False,
        dist_process_group: Any = None,
        ignore_idx: int = -100,
        *_: bool,  # 2.20: overwrite_input, a permission we do not use; 2.9: is_cg_capturable
    ) -> Tensor:
        rows = target.reshape(inp.shape[:2])
        losses = vocab_parallel_cross_entropy(
            inp,
            rows,
            group=dist_process_group,
            ignore_index=ignore_idx,
            label_smoothing=label_smoothing,
            reduction="none",
        ).float()
        return losses.sum() / (rows != ignore_idx).sum().clamp(min=1) if reduce_loss else losses


# ---- permutation by a mask ------------------------------------------------------------------------------------------


def make_row_id_map(routing_map: Tensor, num_tokens: int, num_experts: int) -> Tensor:
    """int32 [tokens, 2 * experts + 1]: each token's rows (largest first), the rows' experts, and the number of rows.

    Rows are ordered by expert, then by token. Unused entries are -1.
    """
    routed = routing_map[:num_tokens] != 0
    rows = (routed.T.reshape(-1).cumsum(0) - 1).view(num_experts, num_tokens).T
    rows, experts = torch.where(routed, rows, -1).sort(1, descending=True)
    experts = torch.where(rows < 0, -1, experts)
    return torch.cat([rows, experts, routed.sum(1, keepdim=True)], 1).int()


def _unpacked(row_id_map: Tensor, num_experts: int, pad_offsets: Tensor | None) -> tuple[Tensor, Tensor, int]:
    """Each token's rows and experts, both [tokens, topk], and topk. A token with fewer copies has rows of -1."""
    counts = row_id_map[:, 2 * num_experts]
    topk = max(1, int(counts.max())) if counts.numel() else 1  # synchronizes
    present = torch.arange(topk, device=counts.device) < counts[:, None]
    experts = torch.where(present, row_id_map[:, num_experts : num_experts + topk], 0).long()
    rows = row_id_map[:, :topk]
    if pad_offsets is not None:
        rows = rows + pad_offsets[experts]
    return torch.where(present, rows, -1).int(), experts, topk


def _row_map(rows: Tensor) -> Tensor:
    return rows.T.reshape(-1)


def _scattered(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Return y [count] with y[rows[t, k]] = values[t, k], and 0 elsewhere."""
    spare = values.new_zeros(count + 1)  # the extra element collects missing copies
    return spare.index_put_((torch.where(rows < 0, count, rows).long(),), values)[:-1]


def permute_with_mask_map(
    inp: Tensor,
    row_id_map: Tensor,
    probs: Tensor | None,
    scale: Tensor | None,
    num_tokens: int,
    num_experts: int,
    num_out_tokens: int,
    hidden_size: int,
    scale_hidden_dim: int | None,
    pad_offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Copy each token, its scales and its probabilities to its rows; rows without a token are 0."""
    rows, experts, topk = _unpacked(row_id_map, num_experts, pad_offsets)
    moved_scale = None if scale is None else moe.moe_spread(scale, _row_map(rows), topk, num_out_tokens)
    moved_probs = None
    if probs is not None:
        own = probs.gather(1, experts)
        moved_probs = _scattered(own, rows, num_out_tokens)
        rows = torch.where(own == 0, -1, rows)  # probability 0 marks padding of the routing map: its row is 0
    return moe.moe_spread(inp, _row_map(rows), topk, num_out_tokens), moved_scale, moved_probs


def unpermute_with_mask_map(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None,
    permuted_probs: Tensor | None,
    num_tokens: int,
    num_experts: int,
    hidden_size: int,
    pad_offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Sum each token's rows in float32; with `merging_probs`, multiply each row by its probability."""
    rows, experts, topk = _unpacked(row_id_map, num_experts, pad_offsets)
    weights = None if merging_probs is None else merging_probs.gather(1, experts)
    merged = moe.moe_collect(inp, _row_map(rows), weights, topk, round_once=True)
    if permuted_probs is None:
        return merged, None
    own = torch.where(rows < 0, 0, permuted_probs[rows.clamp(min=0).long()])
    return merged, _by_expert(own, rows, experts, num_experts)


def _by_expert(values: Tensor, rows: Tensor, experts: Tensor, num_experts: int) -> Tensor:
    """Return y [tokens, experts] with y[t, experts[t, k]] = values[t, k], and 0 elsewhere."""
    spare = values.new_zeros(values.shape[0], num_experts + 1)
    return spare.scatter_(1, torch.where(rows < 0, num_experts, experts), values)[:, :-1].contiguous()


def unpermute_with_mask_map_bwd_with_merging_probs(
    fwd_output_grad: Tensor,
    row_id_map: Tensor,
    fwd_input: Tensor,
    merging_probs: Tensor,
    num_tokens: int,
    num_experts: int,
    num_out_tokens: int,
    hidden_size: int,
    pad_offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of `unpermute_with_mask_map` for inp (0 in rows without a token) and merging_probs."""
    rows, experts, topk = _unpacked(row_id_map, num_experts, pad_offsets)
    dx, dprobs = moe.moe_collect_bwd(
        fwd_output_grad,
        fwd_input.to(fwd_output_grad.dtype),
        _row_map(rows),
        merging_probs.gather(1, experts),
        topk,
        round_once=True,
    )
    return dx, _by_expert(dprobs, rows, experts, num_experts)


# ---- sorted chunks --------------------------------------------------------------------------------------------------


def make_chunk_sort_map(split_sizes: Tensor, sorted_indices: Tensor, num_tokens: int, num_splits: int) -> Tensor:
    """int32 [tokens]: each token's position after the chunks are sorted; tokens after the last chunk do not move."""
    sizes, order = split_sizes.long(), sorted_indices.long()
    ends = sizes.cumsum(0)
    starts = torch.empty_like(ends)
    starts[order] = sizes[order].cumsum(0) - sizes[order]
    token = torch.arange(num_tokens, device=split_sizes.device)
    chunk = torch.searchsorted(ends, token, right=True).clamp(max=num_splits - 1)
    moved = starts[chunk] + token - (ends - sizes)[chunk]
    return torch.where(token < ends[-1], moved, token).int()


def sort_chunks_by_map(
    inp: Tensor, row_id_map: Tensor, probs: Tensor | None, num_tokens: int, hidden_size: int, is_forward: bool
) -> tuple[Tensor, Tensor | None]:
    """Forward: y[map[t]] = x[t], for rows and probabilities. Backward: y[t] = x[map[t]]."""
    source = row_id_map.long()
    if is_forward:
        source = torch.empty_like(source).index_copy_(0, source, torch.arange(num_tokens, device=source.device))
    return inp.index_select(0, source), None if probs is None else probs.index_select(0, source)


# ---- sums of groups, padding ----------------------------------------------------------------------------------------


def compute_grouped_dbias(dy: Tensor, offsets: Tensor, num_groups: int, dbias: Tensor | None = None) -> Tensor:
    """dbias[g] += dy[offsets[g]:offsets[g + 1]].sum(0), in float32."""
    return _grouped_sum(dy.float(), offsets, num_groups, dbias)[0]


def compute_grouped_dbias_dscales(
    dy: Tensor,
    scales: Tensor,
    bias: Tensor,
    offsets: Tensor,
    dbias: Tensor | None = None,
    dscales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """For rows i of group g: dbias[g] += sum_i(scales[i] * dy[i]), dscales[i] += dot(dy[i], bias[g]); float32."""
    rows = dy.float()
    dbias, group, inside = _grouped_sum(rows * scales.float()[:, None], offsets, bias.shape[0], dbias)
    slope = torch.where(inside, (rows * bias.float()[group]).sum(1), 0)
    return dbias, slope if dscales is None else dscales.add_(slope)


def _grouped_sum(rows: Tensor, offsets: Tensor, groups: int, total: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of each group's rows, the group of each row, and whether the row is in a group."""
    row = torch.arange(rows.shape[0], device=rows.device)
    group = torch.searchsorted(offsets[1:].contiguous(), row, right=True)
    inside = (group < groups) & (row >= offsets[0])
    group = group.clamp(max=groups - 1)
    if total is None:
        total = rows.new_zeros(groups, rows.shape[1])
    return total.index_add_(0, group, torch.where(inside[:, None], rows, 0)), group, inside


def pad_columnwise_scale_inv(inp: Tensor) -> Tensor:
    """Pad with zeros to multiples of 128 rows and 4 columns."""
    rows, columns = inp.shape
    padded = inp.new_zeros(rows + -rows % 128, columns + -columns % 4)
    padded[:rows, :columns] = inp
    return padded


# ---- hyper-connections ----------------------------------------------------------------------------------------------


class _GradToBuffer(torch.autograd.Function):
    """Casts x to float32. Several uses of x add their gradients in a shared float32 buffer.

    In the backward, the first use stores its gradient in the buffer, the others add theirs, and the last use returns
    the sum as the gradient of x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, buffer: Tensor, first: bool, last: bool) -> Tensor:
        ctx.buffer, ctx.first, ctx.last, ctx.dtype = buffer, first, last, x.dtype
        return x.float() if x.dtype is not torch.float32 else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        total = ctx.buffer.view(grads[0].shape)
        total.copy_(grads[0]) if ctx.first else total.add_(grads[0])
        return total.to(ctx.dtype) if ctx.last else None, None, None, None


def _with_buffer(x: Tensor, buffer: Tensor | None, first: bool = False, last: bool = False) -> Tensor:
    if buffer is None:
        return x
    if buffer.dtype is not torch.float32 or buffer.numel() != x.numel():
        raise AssertionError("fused_grad_x_acc_buffer must be fp32, with as many elements as x")
    return _GradToBuffer.apply(x, buffer, first, last)  # pyright: ignore[reportReturnType]


def mhc_fused_projection(
    x: Tensor,
    phi: Tensor,
    use_tf32: bool = True,
    norm_weight: Tensor | None = None,
    fused_grad_x_acc_buffer: Tensor | None = None,
    use_split_k: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return H = x (phi * norm_weight)^T, padded to 32 columns, and the mean square of each row of x; float32."""
    rows = _with_buffer(x, fused_grad_x_acc_buffer, last=True).float()
    matrix = phi.float() if norm_weight is None else phi.float() * norm_weight.float()
    mixed = torch.nn.functional.pad(rows @ matrix.T, (0, 32 - phi.shape[0]))
    return mixed, rows.square().mean(-1)


def mhc_fused_scale(H: Tensor, alpha: Tensor, beta: Tensor, ms: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split h = H / rms into three parts; return sigmoid(a_pre h + b), 2 sigmoid(a_post h + b) and a_res h + b."""
    parts = [n, n, n * n]
    rms = (ms.float() + torch.finfo(torch.float32).eps).sqrt()
    scaled = (
        H[:, : sum(parts)].float()
        / rms[:, None]
        * torch.repeat_interleave(alpha.float(), torch.tensor(parts, device=alpha.device), output_size=sum(parts))
    )
    pre, post, res = (scaled + beta.float().reshape(-1)).split(parts, -1)
    return torch.sigmoid(pre).to(H.dtype), (2 * torch.sigmoid(post)).to(H.dtype), res.to(H.dtype)


def mhc_fused_sinkhorn(H_res: Tensor, n: int = 4, recompute_hist: bool = True, iters: int = 20) -> Tensor:
    """Sinkhorn normalization of softmax(H_res): divide rows and columns by their sums, `iters` times."""
    return residual.sinkhorn(H_res, iters, 0.0)


def mhc_fused_aggregate(
    x: Tensor, H_pre: Tensor, n: int, use_tf32: bool = True, fused_grad_x_acc_buffer: Tensor | None = None
) -> Tensor:
    """Matrix product of x [s, b, C, n] and H_pre [s, b, n]: the result is [s, b, C]."""
    streams = _with_buffer(x, fused_grad_x_acc_buffer).mT
    return residual.mhc_pre(streams, H_pre).to(x.dtype)


def mhc_fused_expand_combine(
    f: Tensor,
    bias: Tensor | None,
    H_post: Tensor,
    x: Tensor,
    H_res: Tensor,
    n: int,
    use_tf32: bool = True,
    fused_grad_x_acc_buffer: Tensor | None = None,
) -> Tensor:
    """Return (f + bias) H_post (outer product) + x H_res (matrix product), [s, b, C, n]."""
    layer = f if bias is None else f.float() + bias.float()
    streams = _with_buffer(x, fused_grad_x_acc_buffer, first=True).mT
    return residual.mhc_post_res(streams, layer, H_post, H_res.mT).mT.to(x.dtype).contiguous()


# ---- the table ------------------------------------------------------------------------------------------------------

SERVED: dict[str, tuple[Any, ...]] = {
    "pytorch.cross_entropy": (CrossEntropyFunction,),
    "pytorch.triton.permutation": (
        make_row_id_map,
        permute_with_mask_map,
        unpermute_with_mask_map,
        unpermute_with_mask_map_bwd_with_merging_probs,
        make_chunk_sort_map,
        sort_chunks_by_map,
    ),
    "pytorch.triton.grouped_dbias_dscales": (compute_grouped_dbias, compute_grouped_dbias_dscales),
    "pytorch.triton.pad": (pad_columnwise_scale_inv,),
    "pytorch.triton.mhc": (
        mhc_fused_projection,
        mhc_fused_scale,
        mhc_fused_sinkhorn,
        mhc_fused_aggregate,
        mhc_fused_expand_combine,
    ),
}


def replace(name: str, module: types.ModuleType) -> None:
    """Replace functions of a module of the layer; `name` is the module's name without the package name."""
    for ours in SERVED.get(name, ()):
        theirs = getattr(module, ours.__name__, None)
        replacement = None if theirs is None else ours if isinstance(ours, type) else with_parameters_of(theirs, ours)
        if replacement is not None:
            setattr(module, ours.__name__, replacement)


def with_parameters_of(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any] | None:
    """Give `ours` the parameters of `theirs`; None if `ours` lacks one of them, or requires another."""
    signature, known = inspect.signature(theirs), inspect.signature(ours).parameters
    needed = {name for name, p in known.items() if p.default is p.empty}
    if not needed <= set(signature.parameters) <= set(known):
        return None

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(**signature.bind(*args, **kwargs).arguments)

    return call
