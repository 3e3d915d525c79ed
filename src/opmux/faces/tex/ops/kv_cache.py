"""tex's functions that copy attention tensors: to a KV cache, between formats, to and from interleaved buffers.

Indices are computed on the device, without synchronization.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.contract import FLOATS, FP8, AnyTensor, Float, Index, at_least, dtypes, each, one_of, same_dtype, shape
from ....core.errors import BadArgument
from ....core.rules import ndim, numel
from ....core.spec import Sample, Samples, op
from ....specs._checks import check_list, check_tensor
from ....specs._sequences import Lengths, packed, token_places, unpacked
from ..enums import NVTE_QKV_Format
from ..layouts import FORMATS
from ..rules import member

Count = Annotated[int, at_least(0)]
Ends = Index[Tensor, "_", numel(lambda b: b + 1, "b + 1", least=True)]  # cu_seqlens of at least b sequences


def _counted(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Tensor:
    n = 1
    for size in shape:
        n *= size
    return torch.arange(n, device=device).reshape(shape).to(dtype)


def _lengths(device: Any, *ends: int) -> Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32, device=device)


def _one_sample_each(*builds: Any) -> Samples:
    """Make one sample from each function; the functions return named arguments."""

    def samples(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for i, build in enumerate(builds):
            yield Sample(tuple(build(dtype, device).values()), id=str(i))

    return samples


def as_bytes(t: Tensor) -> Tensor:
    """View FP8 as bytes: torch can copy FP8, but not fill padding with it."""
    return t.view(torch.uint8) if t.dtype in FP8 else t


# ---- formats --------------------------------------------------------------------------------------------------------


@op(
    space="tex",
    out="bshd",
    samples=_one_sample_each(
        lambda dtype, device: {
            "tensor": _counted((7, 2, 4), dtype, device),
            "cu_seqlens": _lengths(device, 3, 5),
            "b": 2,
            "max_seq_len": 4,
        }
    ),
)
def convert_thd_to_bshd(tensor: AnyTensor[Tensor, "t h d"], cu_seqlens: Ends, b: Count, max_seq_len: Count) -> Tensor:
    """Split concatenated sequences to [b, max_seq_len, h, d], padded with zeros."""
    with torch.no_grad():
        return unpacked(as_bytes(tensor), Lengths.of(cu_seqlens[: b + 1]), max_seq_len).view(tensor.dtype)


@op(
    space="tex",
    out="thd",
    samples=_one_sample_each(
        lambda dtype, device: {
            "tensor": _counted((2, 4, 2, 4), dtype, device),
            "cu_seqlens": _lengths(device, 3, 5),
            "t": 7,
        }
    ),
)
def convert_bshd_to_thd(
    tensor: AnyTensor[Tensor, "b s h d"],
    cu_seqlens: Index[Tensor, "_", numel(lambda tensor: tensor.shape[0] + 1, "b + 1", least=True)],
    t: Count,
) -> Tensor:
    """Concatenate the sequences to [t, h, d]; zeros after the last."""
    with torch.no_grad():
        return packed(as_bytes(tensor), Lengths.of(cu_seqlens[: tensor.shape[0] + 1]), t).view(tensor.dtype)


# ---- a cache of keys and values -------------------------------------------------------------------------------------


def _cache_args(dtype: torch.dtype, device: Any) -> dict[str, Any]:
    new, cache = _counted((2, 3, 2, 4), dtype, device) + 1, torch.zeros((5, 4, 2, 4), dtype=dtype, device=device)
    return {
        "new_k": new,
        "new_v": -new,
        "k_cache": cache,
        "v_cache": cache.clone(),
        "page_table": torch.tensor([[3, 1], [4, 0]], dtype=torch.int32, device=device),
        "cu_new_lens": _lengths(device, 3, 4),
        "cu_cached_lens": _lengths(device, 6, 7),
        "kv_format": NVTE_QKV_Format.NVTE_BSHD,
        "b": 2,
        "max_ctx_len": 3,
        "max_seq_len": 8,
        "max_pages_per_seq": 2,
        "is_non_paged": False,
    }


def _cache_slots(
    new: Tensor, fmt: str, lengths: Lengths, cached: Tensor, table: Tensor, page: int
) -> tuple[Tensor, Tensor, Tensor]:
    """For each token of `new` ([tokens, ...] or [b, s, ...], flattened): its page, index in the page, and validity."""
    if fmt == "thd":
        sequence, position, valid = token_places(lengths, new.shape[0])
    else:
        b, s = new.shape[:2]
        sequence = torch.arange(b, device=new.device).repeat_interleave(s)
        position = torch.arange(s, device=new.device).repeat(b)
        valid = position < lengths.sizes[sequence]
    index = cached[sequence] - lengths.sizes[sequence] + position
    valid = valid & (index >= 0) & (index < table.shape[1] * page)
    index = index.clamp(0, table.shape[1] * page - 1)
    return table[sequence, index // page], index % page, valid


FORMAT = member(NVTE_QKV_Format, "NVTE_SBHD", "NVTE_BSHD", "NVTE_THD")


def new_shape(kv_format: Any, b: int) -> tuple[int | None, ...]:
    return tuple({"b": b}.get(c) for c in FORMATS[int(kv_format)] or "")


def cache_shape(new: Tensor, max_seq_len: int, max_pages_per_seq: int) -> tuple[int | None, ...]:
    return None, max_seq_len // max_pages_per_seq, *new.shape[-2:]


def table_shape(page_table: Tensor, b: int, max_pages_per_seq: int, is_non_paged: bool) -> tuple[int, ...]:
    return (b,) if page_table.dim() == 1 else (b, 1 if is_non_paged else max_pages_per_seq)


def values_fit_keys(op: str, new_k: Tensor, new_v: Tensor) -> None:
    if new_v.shape[:-1] != new_k.shape[:-1]:
        expected = f"have shape ({', '.join(map(str, new_k.shape[:-1]))}, any), as {{new_k}} is {tuple(new_k.shape)}"
        raise BadArgument.of(op, "new_v", expected, str(tuple(new_v.shape)))


CACHE = "[pages, max_seq_len / max_pages_per_seq, h, d]"
New = AnyTensor[
    Tensor,
    "...",
    dtypes((*FLOATS, *FP8, torch.uint8)),
    shape(new_shape, "[s, b, h, d], [b, s, h, d] or [t, h, d], as kv_format says"),
]


@op(
    space="tex",
    out="none",
    mutates=("k_cache", "v_cache"),
    samples=_one_sample_each(_cache_args),
    where=values_fit_keys,
)
def copy_to_kv_cache(
    new_k: New,
    new_v: New,
    k_cache: AnyTensor[
        Tensor,
        "...",
        same_dtype("new_k"),
        shape(lambda new_k, max_seq_len, max_pages_per_seq: cache_shape(new_k, max_seq_len, max_pages_per_seq), CACHE),
    ],
    v_cache: AnyTensor[
        Tensor,
        "...",
        same_dtype("new_v"),
        shape(lambda new_v, max_seq_len, max_pages_per_seq: cache_shape(new_v, max_seq_len, max_pages_per_seq), CACHE),
    ],
    page_table: Index[Tensor, "...", ndim(1, 2), shape(table_shape, "[b, pages] or [b]", least=True)],
    cu_new_lens: Ends,
    cu_cached_lens: Ends,
    kv_format: Annotated[Any, FORMAT],
    b: Count,
    max_ctx_len: int,
    max_seq_len: Annotated[int, at_least(1)],
    max_pages_per_seq: Annotated[int, at_least(1)],
    is_non_paged: bool,
) -> None:
    """Append the new tokens of each sequence to the caches, [pages, page, h, d], in place.

    cu_cached_lens includes the new tokens. A non-paged cache has one page per sequence, and page_table has the previous
    index of each current sequence. The pages of the current sequences are first moved to the front.
    """
    if not b or not new_k.numel() or not k_cache.numel():
        return
    fmt = FORMATS[int(kv_format)] or ""
    with torch.no_grad():
        new_k, new_v, k_cache, v_cache = (as_bytes(t) for t in (new_k, new_v, k_cache, v_cache))
        table = page_table.long().reshape(page_table.shape[0], -1)[:b]
        if is_non_paged:
            for cache in (k_cache, v_cache):
                cache[:b].copy_(cache[table[:, 0]])
            table = torch.arange(b, device=new_k.device)[:, None]
        lengths, cached = Lengths.of(cu_new_lens[: b + 1]), cu_cached_lens[: b + 1].long().diff()
        news = [t.transpose(0, 1) if fmt == "sbhd" else t for t in (new_k, new_v)]
        page, index, valid = _cache_slots(news[0], fmt, lengths, cached, table, max_seq_len // max_pages_per_seq)
        # Invalid tokens repeat the write of the first valid token, so that no element is written with two values. If no
        # token is valid, they write an element's current value.
        token = torch.where(valid, torch.arange(valid.shape[0], device=valid.device), valid.long().argmax())
        page, index = page[token], index[token]
        for cache, new in zip((k_cache, v_cache), news, strict=True):
            flat = new.reshape(-1, *cache.shape[2:])[token].to(cache.dtype)
            cache[page, index] = torch.where(valid.any(), flat, cache[page, index])


# ---- interleaved buffers --------------------------------------------------------------------------------------------


def is_slice_of_q(op: str, qkvi: Tensor) -> None:
    (s, b, n, h), strides = qkvi.shape, qkvi.stride()
    available = qkvi.untyped_storage().nbytes() // qkvi.element_size() - qkvi.storage_offset()
    last = sum((size - 1) * stride for size, stride in zip((s, b, n, 3), (*strides[:3], h), strict=True)) + h
    if qkvi.numel() and (strides[3] != 1 or strides[2] != 3 * h or last > available):
        raise BadArgument.of(op, "qkvi", f"be q's slice of [s, b, n, 3 * {h}]", f"strides {strides}")


@op(
    space="tex",
    out="qkv",
    where=is_slice_of_q,
    samples=_one_sample_each(
        lambda dtype, device: {
            "qkvi": _counted((3, 2, 2, 12), dtype, device)[..., :4],
        }
    ),
)
def fa_prepare_fwd(qkvi: Float[Tensor, "s b n h"]) -> Tensor:
    """[3, b, s, n, h] from the interleaved [s, b, n, 3, h]; `qkvi` is its slice for q."""
    with torch.no_grad():
        (s, b, n, h), strides = qkvi.shape, qkvi.stride()
        interleaved = (
            qkvi.as_strided((s, b, n, 3, h), (*strides[:3], h, 1)) if qkvi.numel() else qkvi.new_empty(s, b, n, 3, h)
        )
        return interleaved.permute(3, 1, 0, 2, 4).contiguous()


@op(
    space="tex",
    out="dqkvi",
    samples=_one_sample_each(
        lambda dtype, device: {n: _counted((2, 3, 2, 4), dtype, device) + i for i, n in enumerate("qkv")}
    ),
)
def fa_prepare_bwd(
    q: Float[Tensor, "b s n h"],
    k: Float[Tensor, "b s n h", same_dtype("q")],
    v: Float[Tensor, "b s n h", same_dtype("q")],
) -> Tensor:
    """[s, b, n, 3 * h] from three [b, s, n, h]: q, k and v of each head are adjacent."""
    with torch.no_grad():
        return torch.stack((q, k, v), 3).transpose(0, 1).reshape(q.shape[1], q.shape[0], q.shape[2], 3 * q.shape[3])


# ---- lists of tensors -----------------------------------------------------------------------------------------------

ORDERS = {"sbhd": (1, 2, 0, 3), "bshd": (0, 2, 1, 3)}


def can_be_transposed(op: str, inputs: Any, original_format: str, outputs: Any) -> None:
    """Inputs may be None; then their outputs are not read. An output's last dimension may exceed the input's."""
    dtypes = (torch.float16, torch.bfloat16, torch.uint8)
    check_list(op, "inputs", inputs, lambda at, t: check_tensor(op, at, t, dtypes=dtypes, dims=4, optional=True))
    check_list(op, "outputs", outputs, lambda at, t: None, len(inputs) if outputs else None)
    for i, (t, output) in enumerate(zip(inputs, outputs, strict=False)):
        if t is not None:
            *rows, columns = (t.shape[at] for at in ORDERS[original_format])
            shape = (*rows, None)
            check_tensor(op, f"outputs[{i}]", output, dtypes=(t.dtype,), shape=shape, on=t, of="that of its input")
            if output.shape[3] < columns:
                raise BadArgument.of(op, f"outputs[{i}]", f"have {columns} columns", str(output.shape[3]))


@op(
    space="tex",
    out="bhsd",
    mutates=("outputs",),
    where=can_be_transposed,
    samples=_one_sample_each(
        lambda dtype, device: {
            "inputs": [
                _counted((3, 2, 2, 4), torch.bfloat16, device),
                None,
                _counted((5, 2, 1, 8), torch.uint8, device),
            ],
            "original_format": "sbhd",
            "outputs": [],
        }
    ),
)
def multi_tensor_transpose_to_bhsd(
    inputs: Any,
    original_format: Annotated[str, one_of(*ORDERS)],
    outputs: Any = [],  # noqa: B006
) -> Any:
    """Each tensor of the list as a contiguous [b, h, s, d]; None stays None.

    Outputs, if given, are written and returned; a longer last dimension of an output is padded with zeros.
    """
    with torch.no_grad():
        transposed = [None if t is None else t.permute(ORDERS[original_format]) for t in inputs]
        if not outputs:
            return [None if t is None else t.contiguous() for t in transposed]
        for t, output in zip(transposed, outputs, strict=True):
            if t is not None:
                output[..., : t.shape[3]].copy_(t)
                output[..., t.shape[3] :].zero_()
        return list(outputs)


@op(
    space="tex",
    out="padded",
    samples=_one_sample_each(
        lambda dtype, device: {
            "inputs": [_counted((3, 5), dtype, device), _counted((2, 8), dtype, device)],
            "alignment": 4,
        }
    ),
)
def multi_tensor_pad_last_dim(
    inputs: Annotated[list[Tensor], each(ndim(2))], alignment: Annotated[int, at_least(1)]
) -> Any:
    """Each tensor padded with zeros to a multiple of the alignment; without padding, the input tensor itself."""
    with torch.no_grad():
        return [
            torch.nn.functional.pad(t, (0, -t.shape[1] % alignment)) if t.shape[1] % alignment else t for t in inputs
        ]
