"""Transformer Engine's functions over opmux. Made by `make docs` from the specs; do not edit."""

from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

class CommOverlapAlgo(IntEnum):
    BULK_OVERLAP_AG = 0
    BULK_OVERLAP_RS = 1
    SPLIT_PIPELINED_AG_P2P = 2
    SPLIT_PIPELINED_RS = 3
    SPLIT_PIPELINED_RS_P2P = 4
    ATOMIC_GEMM_RS = 5
    ATOMIC_GEMM_AG_P2P = 6
    ATOMIC_GEMM_RS_P2P = 7
    EXTERNAL_BULK_OVERLAP_AG = 8

class CommOverlapType(IntEnum):
    RS = 0
    AG = 1

class DType(IntEnum):
    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10

class FP8BwdTensors(IntEnum):
    GRAD_OUTPUT1 = 0
    GRAD_INPUT1 = 1
    GRAD_OUTPUT2 = 2
    GRAD_INPUT2 = 3
    GRAD_OUTPUT3 = 4
    GRAD_INPUT3 = 5

class FP8FwdTensors(IntEnum):
    GEMM1_INPUT = 0
    GEMM1_WEIGHT = 1
    GEMM1_OUTPUT = 2
    GEMM2_INPUT = 3
    GEMM2_WEIGHT = 4
    GEMM2_OUTPUT = 5
    GEMM3_INPUT = 6
    GEMM3_WEIGHT = 7
    GEMM3_OUTPUT = 8

class Float8BlockScaleTensorFormat(IntEnum):
    GEMM_READY = 0
    COMPACT = 1
    INVALID = 2

class NVTEQBHistogramMode(IntEnum):
    TWO_KERNEL = 0
    FUSED_ATOMIC = 1

class NVTERoutingMapFormat(IntEnum):
    BYTEMAP = 0
    BITMAP_U8 = 1

class NVTEScalingMode(IntEnum):
    NVTE_DELAYED_TENSOR_SCALING = 0
    NVTE_MXFP8_1D_SCALING = 1
    NVTE_BLOCK_SCALING_1D = 2
    NVTE_BLOCK_SCALING_2D = 3
    NVTE_NVFP4_1D_SCALING = 4
    NVTE_INVALID_SCALING = 100

class NVTE_Bias_Type(IntEnum):
    NVTE_NO_BIAS = 0
    NVTE_PRE_SCALE_BIAS = 1
    NVTE_POST_SCALE_BIAS = 2
    NVTE_ALIBI = 3

class NVTE_Fused_Attn_Backend(IntEnum):
    NVTE_No_Backend = -1
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2

class NVTE_Mask_Type(IntEnum):
    NVTE_NO_MASK = 0
    NVTE_PADDING_MASK = 1
    NVTE_CAUSAL_MASK = 2
    NVTE_PADDING_CAUSAL_MASK = 3
    NVTE_CAUSAL_BOTTOM_RIGHT_MASK = 4
    NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK = 5

class NVTE_QKV_Format(IntEnum):
    NVTE_SBHD = 0
    NVTE_BSHD = 1
    NVTE_THD = 2
    NVTE_BSHD_2SBHD = 3
    NVTE_SBHD_2BSHD = 4
    NVTE_THD_2BSHD = 5
    NVTE_THD_2SBHD = 6
    NVTE_BHSD = 7
    NVTE_QKV_Format_NOT_SET = 8

class NVTE_QKV_Layout(IntEnum):
    NVTE_SB3HD = 0
    NVTE_SBH3D = 1
    NVTE_SBHD_SB2HD = 2
    NVTE_SBHD_SBH2D = 3
    NVTE_SBHD_SBHD_SBHD = 4
    NVTE_BS3HD = 5
    NVTE_BSH3D = 6
    NVTE_BSHD_BS2HD = 7
    NVTE_BSHD_BSH2D = 8
    NVTE_BSHD_BSHD_BSHD = 9
    NVTE_T3HD = 10
    NVTE_TH3D = 11
    NVTE_THD_T2HD = 12
    NVTE_THD_TH2D = 13
    NVTE_THD_THD_THD = 14
    NVTE_SBHD_BSHD_BSHD = 15
    NVTE_BSHD_SBHD_SBHD = 16
    NVTE_THD_BSHD_BSHD = 17
    NVTE_THD_SBHD_SBHD = 18
    NVTE_Paged_KV_BSHD_BSHD_BSHD = 19
    NVTE_Paged_KV_BSHD_SBHD_SBHD = 20
    NVTE_Paged_KV_SBHD_BSHD_BSHD = 21
    NVTE_Paged_KV_SBHD_SBHD_SBHD = 22
    NVTE_Paged_KV_THD_BSHD_BSHD = 23
    NVTE_Paged_KV_THD_SBHD_SBHD = 24
    NVTE_BHSD_BHSD_BHSD = 25
    NVTE_QKV_Layout_NOT_SET = 26

class NVTE_Softmax_Type(IntEnum):
    NVTE_VANILLA_SOFTMAX = 0
    NVTE_OFF_BY_ONE_SOFTMAX = 1
    NVTE_LEARNABLE_SOFTMAX = 2

class CommOverlap:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class CommOverlapBase:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class CommOverlapCore:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class CommOverlapHelper:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class CommOverlapP2P:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class CommOverlapP2PBase:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class FP8TensorMeta:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

class TEXBackendBase:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

def bgrad_group_quantize(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None = None, tensor_offsets: Tensor | None = None) -> tuple[Any, Tensor]:
    """(group_quantize, column sums of each member [num_tensors, columns] in tensor's dtype).

    Args:
        tensor (float [rows, columns])
        quantizer (of the format block or mxfp8)
        num_tensors (at least 1)
        first_dims (int64 [num_tensors], optional)
        last_dims (None)
        tensor_offsets (int64 [num_tensors+1], optional)
    """

def bgrad_quantize(input: Tensor, quantizer: Any) -> list[Any]:
    """[grad_bias, quantized]: the sum of input over its rows, in its dtype, and the quantized input.

    Args:
        input (float [..])
    """

def bulk_allocate(shapes: list[list[int]], dtypes: list[Any], device: Any | None = None, alignments: list[int] | None = None) -> list[Tensor]:
    """Tensors of these shapes and dtypes in one buffer, each aligned to its alignment (default: its element size).

    Args:
        shapes (each each at least 0)
        dtypes (as many as shapes, each a DType or a torch.dtype)
        device (a torch.device or its name)
        alignments (as many as shapes, each at least 1)
    """

def bulk_overlap_ag_with_external_gemm(allgather_communicator: Any, send_stream: Any, recv_stream: Any) -> None:
    """All-gather the buffer of a CommOverlap on the streams of another object, parallel to that object's gemm; then
    synchronize the current stream.
    """

def clamped_dswiglu(grad: Tensor, fwd_input: Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0) -> Any:
    """The gradient of clamped_swiglu's input: 0 where it was clamped.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def clamped_swiglu(input: Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0) -> Any:
    """f(min(a, limit)) * (clamp(b, -limit, limit) + glu_linear_offset), f(a) = a * sigmoid(alpha * a).

    Args:
        input (float [*rows, 2*n])
    """

def compute_amax(input: Tensor, amax: Tensor) -> None:
    """amax = max |input|, in place.

    Args:
        input (float [..])
        amax (float32 [..], one element)
    """

def convert_bshd_to_thd(tensor: Tensor, cu_seqlens: Tensor, t: int) -> Tensor:
    """Concatenate the sequences to [t, h, d]; zeros after the last.

    Args:
        tensor (any [b, s, h, d])
        cu_seqlens (index [_], at least b + 1 elements)
        t (at least 0)
    """

def convert_thd_to_bshd(tensor: Tensor, cu_seqlens: Tensor, b: int, max_seq_len: int) -> Tensor:
    """Split concatenated sequences to [b, max_seq_len, h, d], padded with zeros.

    Args:
        tensor (any [t, h, d])
        cu_seqlens (index [_], at least b + 1 elements)
        b (at least 0)
        max_seq_len (at least 0)
    """

def copy_data_ptrs_to_device(tensors: list[Tensor], device: Any) -> Tensor:
    """The addresses of tensors: int64, on a device.

    Args:
        device (a torch.device or its name)
    """

def copy_to_kv_cache(new_k: Tensor, new_v: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cu_new_lens: Tensor, cu_cached_lens: Tensor, kv_format: Any, b: int, max_ctx_len: int, max_seq_len: int, max_pages_per_seq: int, is_non_paged: bool) -> None:
    """Append the new tokens of each sequence to the caches, [pages, page, h, d], in place.

    cu_cached_lens includes the new tokens. A non-paged cache has one page per sequence, and page_table has the previous
    index of each current sequence. The pages of the current sequences are first moved to the front.

    Args:
        new_k (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8, [s, b, h, d], [b, s, h, d] or [t, h, d], as kv_format says)
        new_v (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8, [s, b, h, d], [b, s, h, d] or [t, h, d], as kv_format says)
        k_cache (any, of the dtype of new_k, [pages, max_seq_len / max_pages_per_seq, h, d])
        v_cache (any, of the dtype of new_v, [pages, max_seq_len / max_pages_per_seq, h, d])
        page_table (index, 1 or 2 dimensions, [b, pages] or [b])
        cu_new_lens (index [_], at least b + 1 elements)
        cu_cached_lens (index [_], at least b + 1 elements)
        kv_format (NVTE_SBHD, NVTE_BSHD or NVTE_THD)
        b (at least 0)
        max_seq_len (at least 1)
        max_pages_per_seq (at least 1)
    """

def create_empty_quantized_tensor(quantizer: Any, shape: list[int], dtype: torch.dtype, device: Any, pin_memory: bool) -> Any:
    """A quantized tensor with uninitialized buffers, except for the padding of scales, which is 0.

    dtype is the dtype that the tensor reports; the buffers are the quantizer's.

    Args:
        quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        shape (each at least 0)
        dtype (one of float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2)
        device (a torch.device or its name)
    """

def create_nvshmem_tensor(shape: Any, dtype: Any) -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed._symmetric_memory.empty."""

def cusolvermp_ctx_create(nccl_comm_ptr: int, nranks: int, rank: int) -> int:
    """The number of a new context for newton_schulz with a single rank.

    Args:
        nranks (at least 1)
        rank (at least 0, less than nranks)
    """

def cusolvermp_ctx_destroy(ctx_ptr: int) -> None:
    """Destroy a context."""

def dbias_dgelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dbias_dqgelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = x * sigmoid(1.702 x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dbias_drelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = max(x, 0).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dbias_dsilu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = x * sigmoid(x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dbias_dsrelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> list[Any]:
    """[dbias, dact]: dact = grad * f'(fwd_input), dbias its sum over rows before rounding, in grad's dtype, f(x) = max(x, 0)^2.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
    """

def dequantize(input: Any, otype: torch.dtype) -> Tensor:
    """The dequantized tensor, in otype.

    Args:
        input (a quantized tensor)
        otype (one of float16, bfloat16, float32, float64)
    """

def device_supports_multicast(device_id: int = -1) -> bool:
    """False: multicast is not supported.

    Args:
        device_id (at least -1)
    """

def dgeglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dgelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = sigmoid(x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dqgeglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = x * sigmoid(1.702 x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dqgelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = x * sigmoid(1.702 x).

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dreglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = max(x, 0).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def drelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = max(x, 0).

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dropout_bwd(grad_output: Any, mask: Tensor, dropout_probability: float, grad_input: Tensor | None = None) -> Tensor:
    """grad_output / (1 - p) where the bit of the mask is set, else 0.

    Args:
        grad_output (float or quantized)
        mask (uint8 [..], on the device of grad_output)
        dropout_probability (between 0 and 1)
    """

def dropout_fwd(input: Any, dropout_probability: float, out: Tensor | None = None) -> list[Tensor]:
    """[y, mask]: y = input / (1 - p) or 0; mask has one bit per element. Uses torch's default generator.

    Args:
        input (float or quantized)
        dropout_probability (between 0 and 1)
    """

def dsilu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = x * sigmoid(x).

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dsituglu(grad: Tensor, fwd_input: Tensor, quantizer: Any, beta1: float = 4.0, beta2: float = 25.0) -> Any:
    """The gradient of situglu's input.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dsreglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = max(x, 0)^2.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def dsrelu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """grad * f'(fwd_input), f(x) = max(x, 0)^2.

    Args:
        grad (float [*shape])
        fwd_input (float [*shape])
    """

def dswiglu(grad: Tensor, fwd_input: Tensor, quantizer: Any) -> Any:
    """[da, db] = [grad * b * f'(a), grad * f(a)], with a and b the halves of the last dimension of fwd_input, f(x) = x * sigmoid(x).

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
    """

def ep_combine(handle_mem: Any, expert_out: Any, result: Any) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_combine_bwd(handle_mem: Any, grad: Any, grad_expert_out: Any, grad_scale_inv: Any = None, grad_expert_out_scale_inv: Any = None) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_dispatch(handle_mem: Any, topk_idx: Any, tokens: Any, topk_weights: Any, recv_tokens: Any, recv_topk_weights: Any, tokens_scale_inv: Any = None, recv_scale_inv: Any = None) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_dispatch_bwd(handle_mem: Any, grad: Any, g_recv_topk_weights: Any, grad_tokens: Any, grad_topk_weights: Any) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_finalize() -> None:
    """No-op: no expert-parallel group is open."""

def ep_get_zero_copy() -> bool:
    """False: no expert-parallel group is open."""

def ep_handle_mem_size(top_k: Any, dispatch_output_per_expert_alignment: Any = 0) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_initialize(comm_ptr: Any, group_name: Any, num_experts: Any, max_tokens_per_rank: Any, max_recv_tokens_per_rank: Any, hidden_dim: Any, max_num_sms: Any = 0, max_token_dtype: Any = None, zero_copy: Any = False, num_topk: Any = 0, drop_on_overflow: Any = False) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_prepare(handle_mem: Any, topk_idx: Any, tokens_per_expert: Any, top_k: Any, dispatch_output_per_expert_alignment: Any, total_recv_tokens: Any) -> Any:
    """Not supported: it needs NCCL's expert parallel library (2.30.4) and several GPUs. Use torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank."""

def ep_zero_copy_supported() -> bool:
    """False."""

def fa_prepare_bwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[s, b, n, 3 * h] from three [b, s, n, h]: q, k and v of each head are adjacent.

    Args:
        q (float [b, s, n, h])
        k (float [b, s, n, h], of the dtype of q)
        v (float [b, s, n, h], of the dtype of q)
    """

def fa_prepare_fwd(qkvi: Tensor) -> Tensor:
    """[3, b, s, n, h] from the interleaved [s, b, n, 3, h]; `qkvi` is its slice for q.

    Args:
        qkvi (float [s, b, n, h])
    """

def fp8_block_scaling_compute_partial_amax(tensor: Tensor, amax: Tensor, h: int, w: int, start_offset: int, block_len: int) -> None:
    """amax[i, j] = max |x| over the shard's elements in block (i, j) of block_len x block_len (128); 0 if none.

    Args:
        tensor (float32, bfloat16 or float16 [..], a piece of the h x w matrix)
        amax (float32, one for each block, and padding)
        h (at least 0)
        w (at least 0)
        start_offset (at least 0)
        block_len (one of 128)
    """

def fp8_block_scaling_partial_cast(inp: Tensor, out: Tensor, scale: Tensor, h: int, w: int, start_offset: int, block_len: int, out_dtype: torch.dtype) -> None:
    """out = shard * scales of its block_len x block_len (128) blocks, in out_dtype, as bytes.

    Args:
        inp (float32, bfloat16 or float16 [..], a piece of the h x w matrix)
        out (uint8, float8_e4m3fn or float8_e5m2 [..], as many as inp's elements)
        scale (float32, one for each block, and padding)
        h (at least 0)
        w (at least 0)
        start_offset (at least 0)
        block_len (one of 128)
        out_dtype (one of float8_e4m3fn, float8_e5m2)
    """

def fp8_transpose(input: Tensor, dtype: torch.dtype, *, out: Tensor | None) -> Tensor:
    """Transpose FP8 data [..., K] to bytes [K, ...], into out if given.

    Args:
        input (uint8, float8_e4m3fn or float8_e5m2 [..])
        dtype (one of float8_e4m3fn, float8_e5m2)
        out (uint8 [..], as many as input's elements, optional)
    """

def fused_amax_and_scale_update_after_reduction(amax_reduction_buffer: Tensor, amax_histories: list[Tensor], scales: list[Tensor], amax_compute_algo: str, fp8_dtype: torch.dtype, margin: float) -> None:
    """Roll the amax histories [L, n] by one and update each scale, for all tensors at once.

    The newest amax comes from the buffer (concatenated for all tensors), or from history[0] if the buffer has 0. If the
    newest amax is not 0, append it, shift the history, and zero history[0]. A scale becomes fp8_max * 2^-margin / amax,
    where amax is the newest one or the maximum of the history; if amax is not positive, the scale is not changed.

    Args:
        amax_reduction_buffer (float32 [..])
        amax_histories (each , each contiguous, each on the device of amax_reduction_buffer)
        scales (each , each contiguous, each on the device of amax_reduction_buffer, as many as amax_histories)
        amax_compute_algo (one of 'max', 'most_recent')
        fp8_dtype (one of float8_e4m3fn, float8_e5m2)
    """

def fused_attn_bwd(max_seqlen_q: int, max_seqlen_kv: int, attn_scale: float, p_dropout: float, set_zero: bool, qkv_layout: Any, o_format: Any, do_format: Any, dqkv_layout: Any, qkv_scale_inv_format: Any, do_scale_inv_format: Any, bias_type: Any, attn_mask_type: Any, softmax_type: Any, window_size: Any, bottom_right_diagonal: bool, deterministic: bool, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, Q: Any, K: Any, V: Any, O: Any, dO: Any, fake_dtype: torch.dtype, Aux_CTX_Tensors: list[Any], cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None, s_quantizer: Any | None, dp_quantizer: Any | None, dqkv_quantizer: Any | None, cuda_graph: bool) -> list[Any]:
    """[dQ, dK, dV, dBias or None, dSoftmaxOffset or None], from S and rng_state of the forward.

    Aux_CTX_Tensors are the forward's results without O and Max. S and O may cover more keys than K has, if a sequence
    is distributed over several devices.

    Args:
        max_seqlen_q (at least 0)
        max_seqlen_kv (at least 0)
        p_dropout (between 0 and 1)
        qkv_layout (a member of NVTE_QKV_Layout other than NVTE_QKV_Layout_NOT_SET)
        o_format (NVTE_SBHD, NVTE_BSHD, NVTE_THD, NVTE_BHSD or NVTE_QKV_Format_NOT_SET)
        do_format (NVTE_SBHD, NVTE_BSHD, NVTE_THD, NVTE_BHSD or NVTE_QKV_Format_NOT_SET)
        dqkv_layout (a member of NVTE_QKV_Layout other than NVTE_QKV_Layout_NOT_SET)
        bias_type (NVTE_NO_BIAS, NVTE_PRE_SCALE_BIAS, NVTE_POST_SCALE_BIAS or NVTE_ALIBI)
        attn_mask_type (a member of NVTE_Mask_Type)
        softmax_type (NVTE_VANILLA_SOFTMAX, NVTE_OFF_BY_ONE_SOFTMAX or NVTE_LEARNABLE_SOFTMAX)
        window_size ((left, right), -1 for all)
        Q (float or quantized)
        K (float or quantized)
        V (float or quantized)
        O (float or quantized)
        dO (float or quantized)
        fake_dtype (one of float16, bfloat16, float32, float64)
        s_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        dp_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        dqkv_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
    """

def fused_attn_fwd(max_seqlen_q: int, max_seqlen_kv: int, is_training: bool, attn_scale: float, p_dropout: float, set_zero: bool, qkv_layout: Any, o_format: Any, qkv_scale_inv_format: Any, bias_type: Any, attn_mask_type: Any, softmax_type: Any, window_size: Any, bottom_right_diagonal: bool, cu_seqlens_q: Tensor | None, cu_seqlens_kv: Tensor | None, Q: Any, K: Any, V: Any, fake_dtype: torch.dtype, cu_seqlens_q_padded: Tensor | None, cu_seqlens_kv_padded: Tensor | None, page_table_k: Tensor | None, page_table_v: Tensor | None, s_quantizer: Any | None, o_quantizer: Any | None, Bias: Tensor | None, SoftmaxOffset: Tensor | None, rng_gen: Any | None, rng_elts_per_thread: int, return_max_logit: bool, cuda_graph: bool) -> list[Any]:
    """[O, S, (Max), rng_state, (Bias), (SoftmaxOffset)]: fused attention with NVIDIA's arguments.

    S is the logarithm of the softmax's denominator, [b, h, sq, 1], or [tokens, h, 1] if Q is THD (0 for padding); Max
    is the largest score of each query, in the same shape. A query that attends to no key gives O = 0, S = Max = -inf.
    The dropout mask depends only on rng_state.

    Args:
        max_seqlen_q (at least 0)
        max_seqlen_kv (at least 0)
        p_dropout (between 0 and 1)
        qkv_layout (a member of NVTE_QKV_Layout other than NVTE_QKV_Layout_NOT_SET)
        o_format (NVTE_SBHD, NVTE_BSHD, NVTE_THD, NVTE_BHSD or NVTE_QKV_Format_NOT_SET)
        bias_type (NVTE_NO_BIAS, NVTE_PRE_SCALE_BIAS, NVTE_POST_SCALE_BIAS or NVTE_ALIBI)
        attn_mask_type (a member of NVTE_Mask_Type)
        softmax_type (NVTE_VANILLA_SOFTMAX, NVTE_OFF_BY_ONE_SOFTMAX or NVTE_LEARNABLE_SOFTMAX)
        window_size ((left, right), -1 for all)
        Q (float or quantized)
        K (float or quantized)
        V (float or quantized)
        fake_dtype (one of float16, bfloat16, float32, float64)
        s_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        o_quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        rng_gen (a torch.Generator on the device of Q)
    """

def fused_moe_aux_loss_bwd(Const_buf: Tensor, tokens_per_expert: Tensor, num_rows: int, num_cols: int, grad_aux_loss: Tensor) -> Tensor:
    """The gradient of fused_moe_aux_loss_fwd's probs: C * tokens_per_expert * grad_aux_loss, the same in every row.

    Args:
        Const_buf (float32 [..], at least one element): the second result of the forward; its first element is C.
        tokens_per_expert (int32, int64, float32 or bfloat16 [num_cols]): as in the forward.
        num_rows (at least 0): as in the forward.
        num_cols (at least 0): as in the forward.
        grad_aux_loss (float32, float16 or bfloat16 [..], one element): the gradient of the loss.

    Returns:
        grad_probs [num_rows, num_cols], of the dtype of grad_aux_loss.
    """

def fused_moe_aux_loss_fwd(probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: int, num_experts: int, num_rows: int, num_cols: int, topk: int, coeff: float) -> tuple[Tensor, Tensor]:
    """The load-balancing loss: C * sum(probs * tokens_per_expert), C = num_experts * coeff / topk / total_num_tokens^2.

    Args:
        probs (float32, float16 or bfloat16 [num_rows, num_cols]): the scores of each token from fused_score_for_moe_aux_loss_fwd.
        tokens_per_expert (int32, int64, float32 or bfloat16 [num_cols]): the number of tokens of each expert.
        total_num_tokens (at least 1): the number of tokens, for C.
        num_experts (at least 1): the number of experts, for C.
        num_rows (at least 0): the number of rows of probs.
        num_cols (at least 0): the number of columns of probs.
        topk (at least 1): the number of experts of a token, for C.
        coeff: the coefficient of the loss.

    Returns:
        aux_loss, a 0-dim tensor of probs' dtype, and Const_buf = [C, 0], float32.
    """

def fused_moe_aux_loss_fwd_graph_safe(probs: Tensor, tokens_per_expert: Tensor, total_num_tokens: Tensor, num_experts: int, num_rows: int, num_cols: int, topk: int, coeff: float) -> tuple[Tensor, Tensor]:
    """fused_moe_aux_loss_fwd with total_num_tokens on the device, so that it may change between CUDA graph replays.

    Args:
        probs (float32, float16 or bfloat16 [num_rows, num_cols]): as in fused_moe_aux_loss_fwd.
        tokens_per_expert (int32, int64, float32 or bfloat16 [num_cols]): as in fused_moe_aux_loss_fwd.
        total_num_tokens (int64 [..], one element): the number of tokens, for C; one element.
        num_experts (at least 1): as in fused_moe_aux_loss_fwd.
        num_rows (at least 0): as in fused_moe_aux_loss_fwd.
        num_cols (at least 0): as in fused_moe_aux_loss_fwd.
        topk (at least 1): as in fused_moe_aux_loss_fwd.
        coeff: as in fused_moe_aux_loss_fwd.

    Returns:
        aux_loss, a 0-dim tensor of probs' dtype, and Const_buf = [C, 0], float32.
    """

def fused_multi_row_padding(input: Tensor, output: Tensor, input_row_list: list[int], padded_input_row_list: list[int]) -> None:
    """Copy blocks of rows to output, each followed by zeros up to its padded size. An empty block is skipped.

    Args:
        input (any [x_rows, n]): the concatenated blocks.
        output (any [y_rows, n], of the dtype of x): written; rows after the last block are not changed.
        input_row_list: the rows of each block.
        padded_input_row_list: the rows of each block in output.
    """

def fused_multi_row_unpadding(input: Tensor, output: Tensor, input_row_list: list[int], unpadded_input_row_list: list[int]) -> None:
    """Copy the first rows of each block of input to output, where blocks are concatenated without padding.

    Args:
        input (any [x_rows, n]): the concatenated blocks.
        output (any [y_rows, n], of the dtype of x): written; rows after the last block are not changed.
        input_row_list: the rows of each block in input.
        unpadded_input_row_list: the number of rows to copy from each block.
    """

def fused_qkv_rope_backward(q_grad_out: Tensor, k_grad_out: Tensor, v_grad_out: Tensor, q_freqs: Tensor, k_freqs: Tensor, qkv_split_arg_list: list[int], qkv_format: Any, interleaved: bool, cp_size: int, cp_rank: int) -> Tensor:
    """The gradient of fused_qkv_rope_forward's qkv_input. Positions count from 0, as NVIDIA's do.

    Args:
        q_grad_out (float [a, b, q_heads, dim]): the gradient of q.
        k_grad_out (float [a, b, heads, dim], of the dtype of dq): the gradient of k.
        v_grad_out (float [a, b, heads, dim_v], of the dtype of dq): the gradient of v; the other arguments are those of fused_qkv_rope_forward.

    Returns:
        A new contiguous tensor of qkv_input's shape and dtype.
    """

def fused_qkv_rope_forward(qkv_input: Tensor, q_freqs: Tensor, k_freqs: Tensor, start_positions: Tensor | None, qkv_split_arg_list: list[int], qkv_format: Any, interleaved: bool, cp_size: int, cp_rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """(q, k, v) of packed heads: rope_qkv_fwd by the angles q_freqs and k_freqs.

    Args:
        qkv_input (float [_, _, heads, width]): each head holds q, k and v, of the sizes in qkv_split_arg_list.
        q_freqs (float32 [q_positions, 1, 1, _]): the angles of each position for q.
        k_freqs (float32 [k_positions, 1, 1, _]): the angles of each position for k.
        start_positions (index [sequences], optional): the position of each sequence's first token; None for 0. Ignored if cp_size > 1, as NVIDIA does
            here and in no other function.
        qkv_split_arg_list: three sizes; the second is the head size of q and k, the first a multiple of it.
        qkv_format (one of NVTE_SBHD, NVTE_BSHD): the order of the dimensions of qkv_input.
        interleaved: rotate pairs (2i, 2i + 1) instead of (i, i + d2/2).
        cp_size (at least 1): context parallelism, as in fused_rope_forward.
        cp_rank (at least 0, less than cp_size): the index of this rank.

    Returns:
        q, k and v: new contiguous tensors, q in heads of the size of k's.
    """

def fused_rope_backward(output_grads: Tensor, freqs: Tensor, start_positions: Tensor | None, qkv_format: Any, interleaved: bool, cu_seqlens: Tensor | None, cp_size: int, cp_rank: int) -> Tensor:
    """The gradient of fused_rope_forward's input.

    Args:
        output_grads (float [..]): the gradient of the result; the other arguments are those of fused_rope_forward.

    Returns:
        A new contiguous tensor of output_grads' shape and dtype.
    """

def fused_rope_forward(input: Tensor, freqs: Tensor, start_positions: Tensor | None, qkv_format: Any, interleaved: bool, cu_seqlens: Tensor | None, cp_size: int, cp_rank: int) -> Tensor:
    """rope_fwd of input by the angles freqs.

    Args:
        input (float [..]): heads, with the dimensions that qkv_format names.
        freqs (float32 [positions, 1, 1, _]): the angles of each position, for at least as many positions as the longest sequence has.
        start_positions (index [sequences], optional): the position of each sequence's first token; None for 0.
        qkv_format (one of NVTE_SBHD, NVTE_BSHD, NVTE_THD): the order of the dimensions of input.
        interleaved: rotate pairs (2i, 2i + 1) instead of (i, i + d2/2).
        cu_seqlens (index [edges], optional): for NVTE_THD, the start of each sequence, and the end of the last; ignored in other formats.
        cp_size (at least 1): the number of context-parallel ranks. Each sequence has 2 * cp_size pieces, and input has two of them:
            piece cp_rank from the front and from the back.
        cp_rank (at least 0, less than cp_size): the index of this rank.

    Returns:
        A new contiguous tensor of input's shape and dtype.
    """

def fused_score_for_moe_aux_loss_bwd(intermediate_output: Tensor, grad_scores: Tensor, grad_logits: Tensor, topk: int, score_function: str) -> None:
    """Write the gradient of fused_score_for_moe_aux_loss_fwd's logits to grad_logits.

    Args:
        intermediate_output (float32 [*tokens, experts], at least one element along the last dimension): the third result of the forward.
        grad_scores (float32, float16 or bfloat16 [*tokens, experts]): the gradient of the scores.
        grad_logits (float32, float16 or bfloat16 [*tokens, experts]): receives the gradient of the logits.
        topk (from 1 to the size of the last dimension of intermediate_output): as in the forward.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): as in the forward.
    """

def fused_score_for_moe_aux_loss_fwd(logits: Tensor, topk: int, score_function: str, routing_map_format: Any = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The scores of all experts for the load-balancing loss, and a map of the topk highest.

    score = softmax(logits), or sigmoid(logits) or sqrt(softplus(logits)) divided by their sum over all experts.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): the router's output.
        topk (from 1 to the size of the last dimension of logits): the number of experts in the map for a token.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): the function of the scores.
        routing_map_format (one of BYTEMAP, BITMAP_U8): 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).

    Returns:
        scores, float32, of logits' shape; routing_map; and intermediate_output, float32, which the backward needs.
    """

def fused_topk_with_score_function_bwd(routing_map: Tensor, intermediate_output: Tensor, grad_probs: Tensor, grad_logits: Tensor, topk: int, use_pre_softmax: bool, scaling_factor: float | None, score_function: str, use_dense_indices: bool = False, routing_map_format: Any = 0) -> None:
    """Write the gradient of fused_topk_with_score_function_fwd's logits to grad_logits.

    Args:
        routing_map (any, the routing map of the forward): the second result of the forward.
        intermediate_output (float32 [*tokens, experts], at least one element along the last dimension): the third result of the forward.
        grad_probs (float32, float16 or bfloat16 [*tokens, experts]): the gradient of the probabilities.
        grad_logits (float32, float16 or bfloat16 [*tokens, experts]): receives the gradient of the logits.
        topk (from 1 to the size of the last dimension of intermediate_output): as in the forward.
        use_pre_softmax: as in the forward.
        scaling_factor: as in the forward.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): as in the forward.
        use_dense_indices: whether routing_map is the topk_indices of the forward.
        routing_map_format (one of BYTEMAP, BITMAP_U8): as in the forward.
    """

def fused_topk_with_score_function_fwd(logits: Tensor, topk: int, use_pre_softmax: bool, num_groups: int | None, group_topk: int | None, scaling_factor: float | None, score_function: str, expert_bias: Tensor | None, routing_map_format: Any = 0, topk_indices: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the topk experts with the highest scores for each token, and return their probabilities.

    score = softmax(logits), sigmoid(logits) or sqrt(softplus(logits)). The probability of a chosen expert is its score;
    for sigmoid and sqrtsoftplus with topk > 1, it is divided by the sum of the chosen experts' scores.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): the router's output.
        topk (from 1 to the size of the last dimension of logits): the number of experts to choose for a token.
        use_pre_softmax: apply softmax to all experts before the choice, instead of to the chosen experts after it.
        num_groups: with group_topk, the number of equal groups that the experts are divided into.
        group_topk: choose only from this many groups: those whose best topk / group_topk scores have the largest sum.
            None and 0: choose from all experts.
        scaling_factor: multiplies the probabilities; None is 1.
        score_function (one of 'softmax', 'sigmoid', 'sqrtsoftplus'): the function of the scores.
        expert_bias (float32, float16 or bfloat16 [experts], optional): added to the scores for the choice only; must be None for softmax.
        routing_map_format (one of BYTEMAP, BITMAP_U8): 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).
        topk_indices (int16, int32 or int64 [*tokens, topk], optional): receives the chosen experts, best first; it is then returned instead of the map.

    Returns:
        probs, like logits: 0 for experts that were not chosen; routing_map; and intermediate_output, which the backward
        needs: float32, of logits' shape.
    """

def fused_topk_with_score_function_qb_fwd(logits: Tensor, topk: int, scaling_factor: float | None, expert_bias: Tensor, routing_map_format: Any, topk_indices: Tensor | None, histogram: Tensor, bin_bounds: Tensor, histogram_mode: Any, bin_bounds_validated: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """fused_topk_with_score_function_fwd for sigmoid, with a histogram of how far scores are from a cutoff.

    The cutoff of a token is its (topk + 1)-th largest score + bias. The histogram of an expert counts cutoff - score
    (without the bias) of all tokens.

    Args:
        logits (float32, float16 or bfloat16 [*tokens, experts], at least one element along the last dimension): the router's output.
        topk (from 1 to 1 less than the size of the last dimension of logits): the number of experts to choose for a token.
        scaling_factor: multiplies the probabilities; None is 1.
        expert_bias (float32, float16 or bfloat16 [experts]): added to the scores for the choice and the cutoff.
        routing_map_format (one of BYTEMAP, BITMAP_U8): 0: a bool for each expert; 1: a bit for each (uint8, the first expert in the lowest bit).
        topk_indices (int16, int32 or int64 [*tokens, topk], optional): receives the chosen experts, best first; it is then returned instead of the map.
        histogram (int32 [experts, bins], contiguous, at least one element along the last dimension): incremented in place. Bins have equal widths; the first and the last also count values outside.
        bin_bounds (float32 [2]): the start of the first bin and the end of the last one.
        histogram_mode (one of TWO_KERNEL, FUSED_ATOMIC): accepted and ignored.
        bin_bounds_validated: skip the check that the bounds are finite and ascending, which waits for the device.

    Returns:
        The results of fused_topk_with_score_function_fwd; cutoff, float32, one element for each token; and histogram.
    """

def geglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        input (float [*rows, 2*n])
    """

def gelu(input: Tensor, quantizer: Any) -> Any:
    """f(input), f(x) = x * (0.5 + 0.5 * tanh(sqrt(2/pi) * (x + 0.044715 x^3))).

    Args:
        input (float [..])
    """

def generic_gemm(A: Any, transA: bool, B: Any, transB: bool, D: Any, quantizer: Any, output_dtype: torch.dtype | None, bias: Tensor | None, bias_type: torch.dtype | None, gelu: bool, gelu_in: Tensor | None, grad: bool, workspace: Any, workspace_size: Any, accumulate: bool, use_split_accumulator: bool, comm_overlap: Any = None, comm_type: Any = None, extra_output: Tensor | None = None, bulk_overlap: bool = False, alpha: float = 1.0, beta: float | None = None) -> list[Any]:
    """[D, bias_grad, pre_gelu_out, extra_output] with D = alpha op(B) op(A) + beta D, for row-major A and B.

    Forward: bias and then gelu (tanh) are applied before D is rounded; pre_gelu_out is gelu's input. With grad: gelu
    multiplies by gelu'(gelu_in), and a bias requests bias_grad, the sum over the rows of B. A quantizer quantizes D.

    Args:
        bias (float [..], optional)
    """

def get_cublasLt_version() -> int:
    """120900, whatever is installed.

    From 130300 on Transformer Engine uses GroupedTensors for expert gemms. Their sizes are on the device, and our gemms
    would read them on the host. For older versions it uses lists of gemms. FP8 needs at least 120103.
    """

def get_cudnn_version() -> int:
    """cuDNN's version, major * 10000 + minor * 100 + patch: that of torch's cuDNN, or 91200 without one.

    Transformer Engine uses it to choose an attention backend among those that get_fused_attn_backend reports.
    """

def get_fused_attn_backend(is_training: Any, q_dtype: torch.dtype | None, kv_dtype: torch.dtype | None, qkv_layout: Any, bias_type: Any, attn_mask_type: Any, softmax_type: Any, p_dropout: Any, num_attn_heads: Any, num_gqa_groups: Any, max_seqlen_q: Any, max_seqlen_kv: Any, head_dim_qk: Any, head_dim_v: Any, window_size_left: Any, window_size_right: Any, return_max_logit: Any, cuda_graph: Any, deterministic: Any) -> Any:
    """The backend for a call with these arguments, a member of NVTE_Fused_Attn_Backend.

    From 2.20.2 on Transformer Engine passes one object with all arguments, and expects (backend, reason if there is
    none).
    """

def get_grouped_gemm_setup_workspace_size(num_tensors: int) -> int:
    """0: our grouped gemms need no workspace.

    Args:
        num_tensors (at least 0)
    """

def get_num_cublas_streams() -> int:
    """4. Transformer Engine allocates this many workspaces for grouped gemms; our gemms do not need them."""

def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    """(lowest, highest) priority of a CUDA stream, where a lower number is a higher priority; (0, 0) without CUDA.

    Args:
        device_id (at least -1)
    """

def glu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = sigmoid(x).

    Args:
        input (float [*rows, 2*n])
    """

def group_dequantize(input: Any, otype: torch.dtype) -> Any:
    """Dequantize to a GroupedTensor of dtype otype. first_dims is read on the host.

    Args:
        input (a GroupedTensor)
        otype (one of float16, bfloat16, float32, float64)
    """

def group_quantize(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None = None, tensor_offsets: Tensor | None = None, noop_flag: Tensor | None = None, output: Any | None = None) -> Any:
    """Quantize each of the concatenated matrices [first_dims[i], last_dims[i]]; returns a GroupedTensor.

    The group has the shape of `tensor`. If only first_dims or only last_dims is None, members have the group's size in
    that dimension. `output`, if given, is written; its members must have the same shapes. The dimensions are read on
    the host.

    Args:
        tensor (float [rows, columns])
        quantizer (of the format current, block, mxfp8 or nvfp4)
        num_tensors (at least 1)
        first_dims (int64 [num_tensors], optional)
        last_dims (int64 [num_tensors], optional)
        tensor_offsets (int64 [num_tensors+1], optional)
        noop_flag (float32 [..], optional)
        output (a GroupedTensor)
    """

def group_requantize_inplace(grouped_x: Any, quantizer: Any, num_tensors: int, first_dims: Tensor | None, otype: torch.dtype, tensor_offsets: Tensor | None = None, return_dequantized: bool = False) -> Tensor | None:
    """Add columnwise data to a grouped MXFP8 tensor with rowwise data, if the quantizer has that usage.

    It is computed from the dequantized rowwise data, which is returned if return_dequantized. No-op if the tensor has
    columnwise data. first_dims is read on the host.

    Args:
        grouped_x (a GroupedTensor)
        quantizer (of the format mxfp8)
        num_tensors (at least 1)
        first_dims (int64 [num_tensors], optional)
        otype (one of float16, bfloat16, float32, float64)
        tensor_offsets (int64 [num_tensors+1], optional)
    """

def grouped_swizzle_for_gemm(tensor: Any, rowwise: bool, columnwise: bool) -> None:
    """No-op: our gemms read unswizzled scales, so `_with_gemm_swizzled_scales` stays False.

    Args:
        tensor (a GroupedTensor)
    """

def init_nvshmem_backend(process_group: Any) -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed._symmetric_memory."""

def layernorm_bwd(dz: Tensor, x: Tensor, mu: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor]:
    """[dx, dgamma, dbeta] of layer_norm_bwd; mu and rsigma have one number for each row of x.

    Args:
        dz (float [*rows, n])
        x (float [*rows, n])
        mu (float [..])
        rsigma (float [..])
        gamma (float [n])
    """

def layernorm_fwd(input: Tensor, weight: Tensor, bias: Tensor | None, eps: float, ln_out: Any, quantizer: Any, otype: torch.dtype | None, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor | None]:
    """[out, mu, rsigma]: layer_norm, with out in otype (written to ln_out, if given), the others float32 [rows].

    Args:
        input (float [*rows, n])
        weight (float [n])
        bias (float [n], optional)
    """

def moe_permute_bwd(input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int) -> Tensor:
    """The gradient of moe_permute_fwd's input: moe_unpermute_fwd of the gradient of the rows.

    Args:
        input (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [rows, n], of dtype, or uint8 for float8): the gradient of the rows.
        dtype: the dtype of input.
        row_id_map (int32 [topK*num_tokens]): the second result of the forward.
        prob (float32 [tokens, topK], or empty for none): multiplies each copy.
        num_tokens (at least 0): the number of tokens.
        topK (at least 1): the number of copies of a token.

    Returns:
        The gradient of the tokens, [num_tokens, n], like input.
    """

def moe_permute_fwd(input: Tensor, dtype: torch.dtype, indices: Tensor, num_out_tokens: int, workspace: list[Tensor], max_expanded_token_num: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Copy each token to the rows of its experts, in order of experts.

    Args:
        input (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [tokens, n], of dtype, or uint8 for float8): the tokens.
        dtype: the dtype of input.
        indices (index [tokens, topk], at least one element along the last dimension): the experts of each token.
        num_out_tokens (at least 0): keep only this many rows, the first ones; 0 keeps all.
        workspace: NVIDIA's scratch memory; not used, returned unchanged.
        max_expanded_token_num (at least 0): ignored.

    Returns:
        The rows, like input; row_id_map, int32 [topk * tokens], as from moe_row_map; and workspace.
    """

def moe_unpermute_bwd(input_bwd: Tensor, input_fwd: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of moe_unpermute_fwd.

    Args:
        input_bwd (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [_, n], of dtype, or uint8 for float8): the gradient of the tokens.
        input_fwd (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [rows, n], of dtype, or uint8 for float8): the rows of the forward.
        dtype: the dtype of both.
        row_id_map (int32 [topk*tokens]): the row_id_map of the forward.
        prob (float32 [tokens, topK], or empty for none): the prob of the forward. If it is empty, topK is 1.

    Returns:
        The gradient of the rows, like input_fwd, and that of prob, float32 [tokens, topK].
    """

def moe_unpermute_fwd(input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, num_tokens: int, topK: int) -> Tensor:
    """Sum the rows of each token, times its probabilities, rounded as in moe_collect.

    Args:
        input (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [rows, n], of dtype, or uint8 for float8): the rows, in order of experts.
        dtype: the dtype of input.
        row_id_map (int32 [topK*num_tokens]): the second result of moe_permute_fwd.
        prob (float32 [tokens, topK], or empty for none): multiplies each copy.
        num_tokens (at least 0): the number of tokens.
        topK (at least 1): the number of copies of a token.

    Returns:
        The tokens, [num_tokens, n], like input.
    """

def multi_tensor_adam(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: float, beta1: float, beta2: float, epsilon: float, step: int, mode: int | bool, bias_correction: int | bool, weight_decay: float) -> None:
    """One step of Adam or AdamW, in place.

    m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g^2; p -= lr * m / (sqrt(v) + epsilon), with m and v
    divided by 1 - beta^step if bias_correction is set.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): not read.
        tensor_lists ([gradients, parameters, first moments, second moments] or [gradients, parameters, first moments, second moments, master weights]): the tensors. Master weights, if given, are updated in float32, and parameters become rounded
            copies of them.
        lr: the learning rate.
        beta1: the decay of the first moments.
        beta2: the decay of the second moments.
        epsilon: added to the square root of the second moments.
        step: the number of the step, from 1.
        mode (one of 0, 1): 0 adds weight_decay * p to the gradients (Adam), 1 to the update (AdamW).
        bias_correction (one of 0, 1): whether to correct the moments for their initial value 0.
        weight_decay: the weight decay.
    """

def multi_tensor_adam_capturable(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: Tensor, beta1: float, beta2: float, epsilon: float, step: Tensor, mode: int | bool, bias_correction: int | bool, weight_decay: float, inv_scale: Tensor) -> None:
    """multi_tensor_adam with lr, step and inv_scale on the device, for CUDA graphs. Gradients are scaled in place.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is 1.
        tensor_lists ([gradients, parameters, first moments, second moments]): the tensors.
        lr (float32 [..], one element): the learning rate.
        beta1: as in multi_tensor_adam, like all arguments that are not listed here.
        step (int32 [..], one element): the number of the step, from 1.
        inv_scale (float32 [..], one element): multiplies the gradients.
    """

def multi_tensor_adam_capturable_master(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: Tensor, beta1: float, beta2: float, epsilon: float, step: Tensor, mode: int | bool, bias_correction: int | bool, weight_decay: float, inv_scale: Tensor) -> None:
    """multi_tensor_adam_capturable on master weights; parameters become rounded copies of them.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is 1.
        tensor_lists ([gradients, parameters, first moments, second moments, master weights]): the tensors.
        lr (float32 [..], one element): the learning rate.
        beta1: as in multi_tensor_adam, like all arguments that are not listed here.
        step (int32 [..], one element): the number of the step, from 1.
        inv_scale (float32 [..], one element): multiplies the gradients.
    """

def multi_tensor_adam_fp8(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: float, beta1: float, beta2: float, epsilon: float, step: int, mode: int | bool, bias_correction: int | bool, weight_decay: float, fp8_dtype: torch.dtype) -> None:
    """multi_tensor_adam on master weights; parameters become FP8 bytes of master weight * scale.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): not read.
        tensor_lists ([gradients, FP8 parameters, first moments, second moments, master weights, scales, amaxes, inverse scales]): the tensors. Amaxes become max(amax, max |master weight|), inverse scales become 1 / scale.
        lr: as in multi_tensor_adam, like all other arguments but fp8_dtype.
        fp8_dtype (one of float8_e4m3fn, float8_e5m2): the float8 dtype of the parameters.
    """

def multi_tensor_adam_param_remainder(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], lr: float, beta1: float, beta2: float, epsilon: float, step: int, mode: int | bool, bias_correction: int | bool, weight_decay: float) -> None:
    """multi_tensor_adam on float32 weights in two halves: bfloat16 parameters (rounded) and int16 remainders.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): not read.
        tensor_lists ([gradients, parameters, first moments, second moments, remainders]): the tensors.
        lr: as in multi_tensor_adam, like all other arguments.
    """

def multi_tensor_compute_scale_and_scale_inv(chunk_size: int, noop_flag: Tensor | None, tensor_lists: list[list[Tensor]], max_fp8: float, force_pow_2_scales: int | bool, epsilon: float) -> None:
    """The scales of current scaling: scale = max_fp8 / max(amax, epsilon), inverse scale = 1 / scale.

    If the quotient overflows, the scale is the largest float32; if amax is 0 or not finite, it is 1.

    Args:
        chunk_size: not used.
        noop_flag: not read.
        tensor_lists ([amaxes, scales, inverse scales]): the tensors; scales and inverse scales are written in place.
        max_fp8: the largest number of the FP8 format.
        force_pow_2_scales (one of 0, 1): whether scales are rounded down to powers of two.
        epsilon: the lower limit of amax.
    """

def multi_tensor_compute_scale_inv_e8m0(chunk_size: int, dummy: Any, tensor_lists: list[list[Tensor]]) -> None:
    """The scales of MXFP8: scale byte = the E8M0 exponent of amax / 448, rounded up.

    Args:
        chunk_size: not used.
        dummy: not used.
        tensor_lists ([amaxes, scale bytes]): the tensors; scale bytes are written in place.
    """

def multi_tensor_l2norm(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], per_tensor: bool | None) -> tuple[Tensor, Tensor]:
    """The L2 norm of all tensors together, and of each tensor.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): set to 1 if the norm is not finite.
        tensor_lists ([inputs]): the tensors.
        per_tensor: whether to return the norm of each tensor.

    Returns:
        norm, of all tensors, float32 [1]; norms, of each tensor, float32 [tensors], or empty without per_tensor.
    """

def multi_tensor_pad_last_dim(inputs: list[Tensor], alignment: int) -> Any:
    """Each tensor padded with zeros to a multiple of the alignment; without padding, the input tensor itself.

    Args:
        inputs (each 2 dimensions)
        alignment (at least 1)
    """

def multi_tensor_quantize(tensor_list: list[Tensor], quantizer_list: list[Any]) -> list[Any]:
    """Each tensor quantized by its quantizer.

    Args:
        tensor_list (each )
        quantizer_list (as many as tensor_list)
    """

def multi_tensor_scale(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], scale: float) -> None:
    """Scale tensors: outputs = inputs * scale.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): set to 1 if an input is not finite. The flag does not stop the computation.
        tensor_lists ([inputs, outputs]): the tensors; outputs are written in place.
        scale: the factor.
    """

def multi_tensor_scale_tensor(chunk_size: int, is_infinite: Tensor, tensor_lists: list[list[Tensor]], scale: Tensor) -> None:
    """multi_tensor_scale with the scale on the device.

    Args:
        chunk_size: not used.
        is_infinite (int32 [..], one element): set to 1 if an input is not finite. The flag does not stop the computation.
        tensor_lists ([inputs, outputs]): the tensors; outputs are written in place.
        scale (float32 [..], one element): the factor, on the device.
    """

def multi_tensor_sgd(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], wd: float, momentum: float, dampening: float, lr: float, nesterov: int | bool, first_run: int | bool, wd_after_momentum: int | bool, scale: float) -> None:
    """One step of SGD, in place; gradients are not written.

    g = scale * gradient + wd * w; m = momentum * m + (1 - dampening) * g; w -= lr * m, with nesterov lr * (g +
    momentum * m). lr times the update is rounded to the dtype of the weight before it is subtracted: a half-precision
    weight is rounded twice, as by NVIDIA's kernel.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): nothing is written if it is not 0.
        tensor_lists ([gradients, weights, momenta] or [gradients, weights, momenta, copies]): the tensors; copies become the rounded weights.
        wd: the weight decay.
        momentum: the decay of the momenta m; if it is 0, they are neither read nor written.
        dampening: gradients are multiplied by 1 - dampening when they are added to the momenta.
        lr: the learning rate.
        nesterov (one of 0, 1): whether to use Nesterov momentum.
        first_run (one of 0, 1): whether to set the momenta to g, without dampening.
        wd_after_momentum (one of 0, 1): whether to add wd * w to the update instead of the gradients.
        scale: multiplies the gradients.
    """

def multi_tensor_swizzle_scales_for_gemm_(tensors: list[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    """No-op for several tensors: see swizzle_scales_for_gemm_.

    Args:
        tensors (each a quantized tensor)
    """

def multi_tensor_swizzle_scales_for_gemm_unchecked_(tensors: list[Any], rowwise_usage: bool, columnwise_usage: bool) -> None:
    """No-op for several tensors: see swizzle_scales_for_gemm_.

    Args:
        tensors (each a quantized tensor)
    """

def multi_tensor_transpose_to_bhsd(inputs: Any, original_format: str, outputs: Any = ...) -> Any:
    """Each tensor of the list as a contiguous [b, h, s, d]; None stays None.

    Outputs, if given, are written and returned; a longer last dimension of an output is padded with zeros.

    Args:
        original_format (one of 'sbhd', 'bshd')
    """

def multi_tensor_unscale_l2norm(chunk_size: int, noop_flag: Tensor, tensor_lists: list[list[Tensor]], inv_scale: Tensor, per_tensor: bool | None) -> tuple[Tensor, Tensor]:
    """multi_tensor_l2norm of the tensors times inv_scale; the tensors are not written.

    Args:
        chunk_size: not used.
        noop_flag (int32 [..], one element): set to 1 if the norm is not finite.
        tensor_lists ([inputs]): the tensors.
        inv_scale (float32 [..], one element): the factor, on the device.
        per_tensor: whether to return the norm of each tensor.

    Returns:
        norm, of all tensors, float32 [1]; norms, of each tensor, float32 [tensors], or empty without per_tensor.
    """

def mxfp8_scaling_compute_partial_amax(input: Tensor, amax_rowwise: Tensor, amax_colwise: Tensor, rows: int, cols: int, start_offset: int) -> None:
    """max |x| over the shard's elements in each block of 1 x 32 and of 32 x 1 (0 if none), in the shard's dtype.

    Args:
        input (float32, bfloat16 or float16 [..], a piece of the rows x cols matrix)
        amax_rowwise (any, of the dtype of input, [rows, cols / 32] and padding)
        amax_colwise (any, of the dtype of input, [rows / 32, cols] and padding)
        rows (at least 0, a multiple of 32)
        cols (at least 0, a multiple of 32)
        start_offset (at least 0)
    """

def mxfp8_scaling_partial_cast(input: Tensor, output_rowwise: Tensor, output_colwise: Tensor, scale_inv_rowwise: Tensor, scale_inv_colwise: Tensor, rows: int, cols: int, start_offset: int) -> None:
    """The shard in E4M3, as bytes, twice: with the E8M0 scales of 1 x 32 blocks, and with those of 32 x 1 blocks.

    Args:
        input (float32, bfloat16 or float16 [..], a piece of the rows x cols matrix)
        output_rowwise (uint8 or float8_e4m3fn [..], as many as input's elements)
        output_colwise (uint8 or float8_e4m3fn [..], as many as input's elements)
        scale_inv_rowwise (uint8, [rows, cols / 32] and padding)
        scale_inv_colwise (uint8, [rows / 32, cols] and padding)
        rows (at least 0, a multiple of 32)
        cols (at least 0, a multiple of 32)
        start_offset (at least 0)
    """

def newton_schulz(ctx_ptr: int, m: int, n: int, x: Tensor, num_iterations: int, coefficients: list[float]) -> None:
    """Iterate x = a x + b (x x') x + c (x x')(x x') x in place, for each triple of coefficients.

    Converges to the nearest orthogonal matrix if all singular values of x are at most 1. Computed in float32 and
    rounded once.

    Args:
        m (at least 0)
        n (at least 0)
        x (float32 or bfloat16 [m, n])
        num_iterations (at least 0)
    """

def nvfp4_2d_compute_partial_amax(tensor: Tensor, amax: Tensor, h: int, w: int, start_offset: int, block_len: int = 16) -> None:
    """amax[i, j] = max |x| over the shard's elements in tile (i, j) of 16 x 16; 0 if there are none.

    Args:
        tensor (float32, bfloat16 or float16 [..], a piece of the h x w matrix)
        amax (float32, a number for each tile and padding)
        h (at least 0)
        w (at least 0)
        start_offset (at least 0)
        block_len (one of 16)
    """

def nvfp4_2d_multi_tensor_transpose(rowwise_data_list: list[Tensor], columnwise_data_list: list[Tensor], rowwise_scale_inv_list: list[Tensor], columnwise_scale_inv_list: list[Tensor], M_list: list[int], K_list: list[int]) -> None:
    """Transpose rowwise data and scales of many [M, K] matrices to columnwise ones, as the two functions above do.

    Args:
        columnwise_data_list (as many as rowwise_data_list)
        rowwise_scale_inv_list (as many as rowwise_data_list)
        columnwise_scale_inv_list (as many as rowwise_data_list)
        M_list (as many as rowwise_data_list)
        K_list (as many as rowwise_data_list)
    """

def nvfp4_2d_partial_cast(inp: Tensor, out: Tensor, scale: Tensor, global_scale: Tensor, h: int, w: int, start_offset: int, block_len: int = 16) -> None:
    """out = x * global_scale / e4m3(scale of its 16 x 16 tile) for the shard x, in packed FP4.

    `out` begins with the byte of element start_offset; half bytes that the shard does not own are kept.

    Args:
        inp (float32, bfloat16 or float16 [..], a piece of the h x w matrix)
        out (uint8 [..], at least half as many as inp's elements)
        scale (float32, a number for each tile and padding)
        global_scale (float32 [..], one element)
        h (at least 0)
        w (at least 0)
        start_offset (at least 0)
        block_len (one of 16)
    """

def nvfp4_2d_scale_transpose(input: Tensor, output: Tensor, M_tiles: int, K_tiles: int) -> None:
    """Rowwise scales [.., K_tiles] as columnwise scales [.., M_tiles], each repeated for the 16 rows of its tile.

    Args:
        input (uint8, the first row of each tile, [16 M_tiles - 15, K_tiles] and padding)
        output (uint8, [16 K_tiles, M_tiles] and padding)
        M_tiles (at least 0)
        K_tiles (at least 0)
    """

def nvfp4_compute_global_scale(global_amax: Tensor, global_scale: Tensor) -> None:
    """global_scale = 2688 / global_amax, 1 for an amax of 0, at most the largest float32.

    Args:
        global_amax (float32 [*shape])
        global_scale (float32 [*shape])
    """

def nvfp4_compute_per_block_scale(block_amax: Tensor, scale: Tensor, global_amax: Tensor) -> None:
    """scale = block_amax / 6 * S, S = 2688 / global_amax.

    Args:
        block_amax (float32 [*shape])
        scale (float32 [*shape])
        global_amax (float32 [..], one element)
    """

def nvfp4_data_transpose(input: Tensor, *, out: Tensor | None) -> Tensor:
    """Transpose packed [m, k / 2] to packed [k, m / 2], into `out` if given.

    Args:
        input (uint8 [2*m, k])
        out (uint8 [2*k, m], optional)
    """

def nvfp4_expand_scale_to_fp8(input: Tensor, output: Tensor, tile_rows: int, tile_cols: int, rows_padded: int, block_len: int) -> None:
    """Scales of tiles in E4M3, as bytes, each repeated for block_len (16) rows, padded with 0 to rows_padded.

    Args:
        input (float32 [tile_rows, tile_cols])
        output (uint8, [rows_padded, tile_cols] and padding)
        tile_rows (at least 0)
        tile_cols (at least 0)
        rows_padded (at least 0)
        block_len (one of 16)
    """

def nvfp4_fused_scale(block_amax: Tensor, global_amax: Tensor, per_block_scale: Tensor, target_scale: Tensor, target_amax: Tensor, tile_rows: int, tile_cols: int, rows_padded: int, block_len: int) -> None:
    """nvfp4_compute_per_block_scale, then nvfp4_expand_scale_to_fp8 of the result, and target_amax = global_amax.

    Args:
        block_amax (float32 [tile_rows, tile_cols])
        global_amax (float32 [..], one element)
        per_block_scale (float32 [tile_rows, tile_cols])
        target_scale (uint8, [rows_padded, tile_cols] and padding)
        target_amax (float32 [..], one element)
        tile_rows (at least 0)
        tile_cols (at least 0)
        rows_padded (at least 0)
        block_len (one of 16)
    """

def nvfp4_group_quantize_with_amax(tensor: Tensor, quantizer: Any, num_tensors: int, first_dims: Tensor | None, last_dims: Tensor | None = None, rowwise_amax: Tensor | None = None, columnwise_amax: Tensor | None = None, tensor_offsets: Tensor | None = None) -> Any:
    """group_quantize to NVFP4 with a given amax for each member; only for the usages that the quantizer has.

    Args:
        tensor (float [rows, columns])
        quantizer (of the format nvfp4)
        num_tensors (at least 1)
        first_dims (int64 [num_tensors], optional)
        last_dims (int64 [num_tensors], optional)
        rowwise_amax (float32 [num_tensors], optional)
        columnwise_amax (float32 [num_tensors], optional)
        tensor_offsets (int64 [num_tensors+1], optional)
    """

def nvfp4_multi_tensor_2d_partial_cast(inp_list: list[Tensor], out_list: list[Tensor], scale_list: list[Tensor], global_scale_list: list[Tensor], h_list: list[int], w_list: list[int], start_offset_list: list[int], block_len: int = 16) -> None:
    """nvfp4_2d_partial_cast of many shards.

    Args:
        block_len (one of 16)
    """

def nvfp4_multi_tensor_compute_partial_amax(master_weight_list: list[Tensor], partial_amax_list: list[Tensor], global_amax_list: list[Tensor], h_list: list[int], w_list: list[int], start_offset_list: list[int], block_len: int = 16) -> None:
    """nvfp4_2d_compute_partial_amax of many shards, and global_amax = max |x| over each shard.

    Args:
        global_amax_list (as many as master_weight_list, each , each one element)
        block_len (one of 16)
    """

def nvfp4_multi_tensor_fused_scale(block_amax_list: list[Tensor], global_amax_list: list[Tensor], per_block_scale_list: list[Tensor], target_scale_list: list[Tensor], target_amax_list: list[Tensor], tile_rows_list: list[int], tile_cols_list: list[int], rows_padded_list: list[int], block_len: int) -> None:
    """nvfp4_fused_scale of many tensors.

    Args:
        block_len (one of 16)
    """

def nvfp4_quantize_with_amax(tensor: Tensor, quantizer: Any, rowwise_amax: Tensor | None, columnwise_amax: Tensor | None) -> Any:
    """The tensor quantized to NVFP4 with given amaxes.

    Args:
        tensor (float [..])
        quantizer (of the format nvfp4)
        rowwise_amax (float32 [..], one element, optional)
        columnwise_amax (float32 [..], one element, optional)
    """

def nvshmem_finalize() -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed.destroy_process_group."""

def nvshmem_send_on_current_stream(src: Any, dst: Any, peer: Any, signal: Any) -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed.isend."""

def nvshmem_wait_on_current_stream(signal: Any, wait_kind: Any) -> Any:
    """Not supported: it needs NVSHMEM and several GPUs. Use torch.distributed.irecv."""

def nvte_built_with_cublasmp() -> bool:
    """False."""

def qgeglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = x * sigmoid(1.702 x).

    Args:
        input (float [*rows, 2*n])
    """

def qgelu(input: Tensor, quantizer: Any) -> Any:
    """f(input), f(x) = x * sigmoid(1.702 x).

    Args:
        input (float [..])
    """

def quantize(tensor: Any, quantizer: Any, output: Any = None, noop: Tensor | None = None) -> Any:
    """The quantized tensor; written to output, if given, unless noop is not zero.

    Args:
        tensor (float or quantized)
        quantizer (of the format delayed, current, block, mxfp8 or nvfp4)
        noop (float32 [..], one element, on the device of tensor, optional)
    """

def reglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = max(x, 0).

    Args:
        input (float [*rows, 2*n])
    """

def relu(input: Tensor, quantizer: Any) -> Any:
    """f(input), f(x) = max(x, 0).

    Args:
        input (float [..])
    """

def rmsnorm_bwd(dz: Tensor, x: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor]:
    """[dx, dgamma] of rms_norm_bwd; rsigma has one number for each row of x.

    Args:
        dz (float [*rows, n])
        x (float [*rows, n])
        rsigma (float [..])
        gamma (float [n])
    """

def rmsnorm_bwd_add(dz: Tensor, x: Tensor, add: Tensor, rsigma: Tensor, gamma: Tensor, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor]:
    """[dx + add, dgamma] of rms_norm_bwd, added before the rounding; rsigma has one number for each row of x.

    Args:
        dz (float [*rows, n])
        x (float [*rows, n])
        add (float [*rows, n])
        rsigma (float [..])
        gamma (float [n])
    """

def rmsnorm_fwd(input: Tensor, weight: Tensor, eps: float, ln_out: Any, quantizer: Any, otype: torch.dtype | None, sm_margin: int, zero_centered_gamma: bool) -> list[Tensor | None]:
    """[out, None, rsigma]: rms_norm, with out in otype (written to ln_out, if given) and rsigma float32 [rows].

    Args:
        input (float [*rows, n])
        weight (float [n])
    """

def scaled_aligned_causal_masked_softmax_backward(output_grads: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_aligned_causal_masked_softmax_forward's input, in a new tensor.

    Args:
        output_grads (float [*lead, queries, keys])
        softmax_results (float [*lead, queries, keys])
    """

def scaled_aligned_causal_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the keys j <= i + keys - queries of query i; zeros for others.

    Args:
        input (float [*lead, queries, keys])
    """

def scaled_clamped_dswiglu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0, glu_interleave_size: int = 0, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_clamped_swiglu's input and act_scales; the latter is None if it is not needed.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_clamped_swiglu(input: Tensor, act_scales: Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702, glu_linear_offset: float = 1.0, glu_interleave_size: int = 0) -> Any:
    """clamped_swiglu times the row's factor from act_scales.

    Args:
        input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_dsituglu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, beta1: float = 4.0, beta2: float = 25.0, glu_interleave_size: int = 0, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_situglu's input and act_scales; the latter is None if it is not needed.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_dsrelu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_srelu's input and act_scales; the latter is None if it is not needed.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, n])
        act_scales (float [..], one element for each row of x)
    """

def scaled_dswiglu(grad: Tensor, fwd_input: Tensor, act_scales: Tensor, quantizer: Any, glu_interleave_size: int = 0, compute_scale_grad: bool = True) -> tuple[Any, Tensor | None]:
    """The gradients of scaled_swiglu's input and act_scales; the latter is None if it is not needed.

    Args:
        grad (float [*rows, n])
        fwd_input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_masked_softmax_backward(output_grad: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_masked_softmax_forward's input, in a new tensor.

    Args:
        output_grad (float [*lead, queries, keys])
        softmax_results (float [*lead, queries, keys])
    """

def scaled_masked_softmax_forward(input: Tensor, mask: Tensor | None, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the keys that are not under the mask; zeros for others.

    Args:
        input (float [*lead, queries, keys])
        mask (bool or uint8 [..], broadcasts to x, optional)
    """

def scaled_situglu(input: Tensor, act_scales: Tensor, quantizer: Any, beta1: float = 4.0, beta2: float = 25.0, glu_interleave_size: int = 0) -> Any:
    """situglu times the row's factor from act_scales.

    Args:
        input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_softmax_backward(output_grad: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_softmax_forward's input, in a new tensor.

    Args:
        output_grad (float [*lead, queries, keys])
        softmax_results (float [*lead, queries, keys])
    """

def scaled_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the last dimension.

    Args:
        input (float [*lead, queries, keys])
    """

def scaled_srelu(input: Tensor, act_scales: Tensor, quantizer: Any) -> Any:
    """s * max(x, 0)^2, where s is the row's factor from act_scales.

    Args:
        input (float [*rows, n])
        act_scales (float [..], one element for each row of x)
    """

def scaled_swiglu(input: Tensor, act_scales: Tensor, quantizer: Any, glu_interleave_size: int = 0) -> Any:
    """s * silu(a) * b, where s is the row's factor from act_scales.

    Args:
        input (float [*rows, 2*n])
        act_scales (float [..], one element for each row of x)
        glu_interleave_size (0, or a divisor of half the last dimension of x)
    """

def scaled_upper_triang_masked_softmax_backward(output_grads: Tensor, softmax_results: Tensor, scale_factor: float) -> Tensor:
    """The gradient of scaled_upper_triang_masked_softmax_forward's input, in a new tensor.

    Args:
        output_grads (float [*lead, queries, keys])
        softmax_results (float [batches, n, n])
    """

def scaled_upper_triang_masked_softmax_forward(input: Tensor, scale_factor: float) -> Tensor:
    """softmax(scale_factor * input) over the keys j <= i of query i, of as many keys as queries; zeros for others.

    Args:
        input (float [batches, n, n])
    """

def silu(input: Tensor, quantizer: Any) -> Any:
    """f(input), f(x) = x * sigmoid(x).

    Args:
        input (float [..])
    """

def situglu(input: Tensor, quantizer: Any, beta1: float = 4.0, beta2: float = 25.0) -> Any:
    """f(a) * u(b), f(a) = beta1 * tanh(a / beta1) * sigmoid(a), u(b) = beta2 * tanh(b / beta2), for halves a and b.

    Args:
        input (float [*rows, 2*n])
    """

def split_quantize(tensor: Tensor, split_sections: list[int], quantizer_list: list[Any], disable_bulk_allocation: bool = False) -> list[Any]:
    """The pieces of a tensor along its first dimension, each quantized by its quantizer.

    Args:
        tensor (float [rows, ..])
        split_sections (each at least 0)
        quantizer_list (as many as split_sections)
    """

def splits_to_offsets(first_dims: Tensor, logical_last_dim: int) -> Tensor:
    """The offset of each member in elements, and the end of the last: int64 [n + 1].

    Args:
        first_dims (int64 [n])
        logical_last_dim (at least 1)
    """

def splits_to_offsets_multi(split_sizes: Any, device: Any, *, strides: list[int], include_leading_zero: list[bool], dtypes: list[Any], bulk_allocate: bool = False) -> tuple[Tensor, list[Tensor]]:
    """(the sizes as int64 on a device, their cumulative sums times each stride, with a leading 0 if requested).

    Args:
        device (a torch.device or its name)
        include_leading_zero (as many as strides)
        dtypes (as many as strides, each a DType or a torch.dtype)
    """

def sreglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = max(x, 0)^2.

    Args:
        input (float [*rows, 2*n])
    """

def srelu(input: Tensor, quantizer: Any) -> Any:
    """f(input), f(x) = max(x, 0)^2.

    Args:
        input (float [..])
    """

def swap_first_dims(tensor: Tensor, *, out: Tensor | None) -> Tensor:
    """A contiguous copy with the first two dimensions swapped, in out if given.

    Args:
        tensor (any [a, b, ..])
        out (any [..], of the dtype of tensor, as many as tensor's elements, optional)
    """

def swiglu(input: Tensor, quantizer: Any) -> Any:
    """f(a) * b, with a and b the halves of the last dimension of input, f(x) = x * sigmoid(x).

    Args:
        input (float [*rows, 2*n])
    """

def swizzle_scales_for_gemm_(tensor: Any) -> None:
    """No-op: our gemms read unswizzled scales, so `_with_gemm_swizzled_scales` stays False.

    Args:
        tensor (a quantized tensor)
    """

def te_general_grouped_gemm(A: list[Any], transa: bool, B: list[Any], transb: bool, D: list[Tensor], D_type: torch.dtype, m_splits: list[int] | None, bias: list[Tensor], bias_type: torch.dtype | None, single_output: bool, pre_gelu_out: list[Tensor], grad: bool, workspace: Any, workspaceSize: Any, accumulate: bool, use_split_accumulator: bool, math_sm_count: Any) -> list[Tensor]:
    """D[i] = op(B[i]) op(A[i]), each with its bias, and gelu if pre_gelu_out[i] is not empty; returns bias.

    single_output: D is one tensor, which holds the products one after another. With grad, bias[i] receives the sum over
    the rows of B[i], and pre_gelu_out[i] is gelu's input. An empty tensor means None.
    """

def te_general_grouped_gemm_for_discrete_in(A: list[Any], transa: bool, B: Any, transb: bool, D: Any, bias: Any | None, bias_scale: Tensor | None, alpha: Tensor, beta: Tensor, workspace_setup: Tensor | None, workspace_cublas: Tensor | None, use_split_accumulator: bool, math_sm_count: int) -> Any:
    """Like te_general_grouped_gemm_for_grouped_tensor, but A is a list of matrices (separate weights).

    Args:
        B (a GroupedTensor)
        D (a GroupedTensor)
        bias (a GroupedTensor)
        bias_scale (float [..], optional)
        alpha (float32 [..])
        beta (float32 [..])
    """

def te_general_grouped_gemm_for_discrete_out(A: Any, transa: bool, B: Any, transb: bool, D: list[Tensor], bias: Any | None, bias_scale: Tensor | None, alpha: Tensor, beta: Tensor, workspace_setup: Tensor | None, workspace_cublas: Tensor | None, use_split_accumulator: bool, math_sm_count: int) -> Any:
    """Like te_general_grouped_gemm_for_grouped_tensor, but D is a list of matrices (weight gradients); no bias.

    Args:
        A (a GroupedTensor)
        B (a GroupedTensor)
        D (each , each 2 dimensions)
        bias (None)
        bias_scale (float [..], optional)
        alpha (float32 [..])
        beta (float32 [..])
    """

def te_general_grouped_gemm_for_grouped_tensor(A: Any, transa: bool, B: Any, transb: bool, D: Any, bias: Any | None, bias_scale: Tensor | None, alpha: Tensor, beta: Tensor, workspace_setup: Tensor | None, workspace_cublas: Tensor | None, use_split_accumulator: bool, math_sm_count: int) -> Any:
    """D[i] = alpha[i] op(B[i]) op(A[i]) + beta[i] D[i] + bias[i] (times bias_scale of each row); returns D.

    alpha and beta have one number, or one for each member. The members' sizes are read on the host.

    Args:
        A (a GroupedTensor)
        B (a GroupedTensor)
        D (a GroupedTensor)
        bias (a GroupedTensor)
        bias_scale (float [..], optional)
        alpha (float32 [..])
        beta (float32 [..])
    """

def thd_copy_valid_tokens_from_per_split_to_rank_local(out: Tensor, inp: Tensor, cu_seqlens_padded: Tensor, cu_seqlens: Tensor) -> None:
    """out = inp, in place, except for padding tokens at the end of a sequence.

    Args:
        out (any [t, *rest])
        inp (any [t, *rest], of the dtype of out)
        cu_seqlens_padded (index [b+1], at least 2 elements)
        cu_seqlens (index [b+1])
    """

def thd_cp_rank_order_to_sequence_order(inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """Reorder tokens from rank order to sequence order.

    Args:
        inp (any [total_tokens, ..])
        cu_seqlens (index [b+1], at least 2 elements)
        cp_size (at least 1)
        total_tokens (at least 0, a multiple of cp_size)
    """

def thd_get_partitioned_indices(cu_seqlens: Tensor, total_tokens: int, world_size: int, rank: int) -> Tensor:
    """The tokens of a rank, int32: of the 2 * world_size parts of each sequence, part `rank` from the front and from
    the back.

    Args:
        cu_seqlens (index [b+1], at least 2 elements)
        total_tokens (at least 0, a multiple of world_size)
        world_size (at least 1)
        rank (at least 0, less than world_size)
    """

def thd_grad_correction(grad: Tensor, grad_per_step: Tensor, cu_seqlens: Tensor, first_half: str, second_half: str) -> None:
    """For each half of grad, in place: add grad_per_step, copy it, write zeros, or leave it unchanged.

    If one half is "zero" or "none", grad_per_step has only the other half.

    Args:
        grad (float16, bfloat16, float32, float64 or uint8 [.., t, h, d], 3 or 4 dimensions)
        grad_per_step (any, of the dtype of grad, that of grad, or of one half)
        cu_seqlens (index [b+1], at least 2 elements)
        first_half (one of 'add', 'copy', 'zero', 'none')
        second_half (one of 'add', 'copy', 'zero', 'none')
    """

def thd_out_correction(out: Tensor, out_per_step: Tensor, lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, only_second_half: bool, lse_packed: bool) -> None:
    """out += out_per_step * exp(lse_per_step - lse), in place, on all tokens or those of second halves.

    Args:
        out (float [t, h, d])
        out_per_step (float, of the dtype of out, [t, h, d], or [t / 2, h, d] if only_second_half)
        lse (float, [h, t] if lse_packed, else [b, h, s])
        lse_per_step (float, [h, t] if lse_packed, else [b, h, s])
        cu_seqlens (index [b+1], at least 2 elements)
    """

def thd_read_half_tensor(tensor: Tensor, cu_seqlens: Tensor, half_idx: int) -> Tensor:
    """The first or the second half of every sequence of [t, h, d] or [2, t, h, d], packed.

    Args:
        tensor (float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2 or uint8 [.., t, h, d], 3 or 4 dimensions)
        cu_seqlens (index [b+1], at least 2 elements)
        half_idx (one of 0, 1)
    """

def thd_read_second_half_lse(lse: Tensor, cu_seqlens: Tensor, lse_packed: bool, second_half_lse_seqlen: int) -> Tensor:
    """The second halves, padded with zeros: [h, n] from [h, t] if packed, else [b, h, n] from [b, h, s].

    Args:
        lse (float, [h, t] if lse_packed, else [b, h, s])
        cu_seqlens (index [b+1], at least 2 elements)
        second_half_lse_seqlen (at least 0)
    """

def thd_second_half_lse_correction(lse: Tensor, lse_per_step: Tensor, cu_seqlens: Tensor, lse_packed: bool) -> None:
    """lse = log(exp(lse) + exp(lse_per_step)) on second halves, in place; [h, t] if packed, else [b, h, s].

    Args:
        lse (float, [h, t] if lse_packed, else [b, h, s])
        lse_per_step (float, [h, t] if lse_packed, else [b, h, s])
        cu_seqlens (index [b+1], at least 2 elements)
    """

def thd_sequence_order_to_cp_rank_order(inp: Tensor, cu_seqlens: Tensor, cp_size: int, total_tokens: int) -> Tensor:
    """Reorder tokens from sequence order to rank order, in which the tokens of a rank are contiguous.

    Args:
        inp (any [total_tokens, ..])
        cu_seqlens (index [b+1], at least 2 elements)
        cp_size (at least 1)
        total_tokens (at least 0, a multiple of cp_size)
    """

def ubuf_built_with_mpi() -> bool:
    """False: torch.distributed is used instead of MPI."""

def get_backend(*args: Any, **kwargs: Any) -> Any: ...

def set_backend(*args: Any, **kwargs: Any) -> Any: ...

def list_backends(*args: Any, **kwargs: Any) -> Any: ...

def register_backend(*args: Any, **kwargs: Any) -> Any: ...
