"""tex's moves of attention tensors: into a cache, between formats, in and out of interleaved buffers.

Which token goes where is computed on the device; nothing is read back.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ....core.errors import BadArgument
from ....core.spec import Sample, Samples, op
from ....specs._checks import check_choice, check_int, check_list, check_tensor
from ....specs._sequences import Lengths, packed, token_places, unpacked
from ..enums import NVTE_QKV_Format
from ..layouts import FORMATS

INTS = (torch.int32, torch.int64)
MOVED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8)


def _check_lengths(op: str, name: str, value: Any, b: int | None, on: Tensor) -> None:
    check_tensor(op, name, value, dtypes=INTS, dims=1, on=on)
    if value.shape[0] < (1 if b is None else b + 1):
        raise BadArgument.of(op, name, f"have {'sequences' if b is None else b} + 1 elements", str(value.shape[0]))


def _counted(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Tensor:
    n = 1
    for size in shape:
        n *= size
    return torch.arange(n, device=device).reshape(shape).to(dtype)


def _lengths(device: Any, *ends: int) -> Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32, device=device)


def _once(*builds: Any) -> Samples:
    """A sample of each, of arguments by name."""

    def made(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
        for i, build in enumerate(builds):
            yield Sample(tuple(build(dtype, device).values()), id=str(i))

    return made


# ---- formats --------------------------------------------------------------------------------------------------------


@op(space="tex", out="bshd", samples=_once(lambda dtype, device: {
    "tensor": _counted((7, 2, 4), dtype, device), "cu_seqlens": _lengths(device, 3, 5), "b": 2, "max_seq_len": 4,
}))  # fmt: skip
def convert_thd_to_bshd(tensor: Tensor, cu_seqlens: Tensor, b: int, max_seq_len: int) -> Tensor:
    """[b, max_seq_len, h, d] of sequences one after another; zeros after the end of each."""
    name = "convert_thd_to_bshd"
    check_tensor(name, "tensor", tensor, dtypes=None, dims=(3,))
    check_int(name, "b", b, least=0)
    check_int(name, "max_seq_len", max_seq_len, least=0)
    _check_lengths(name, "cu_seqlens", cu_seqlens, b, tensor)
    with torch.no_grad():
        return unpacked(tensor, Lengths.of(cu_seqlens[: b + 1]), max_seq_len)


@op(space="tex", out="thd", samples=_once(lambda dtype, device: {
    "tensor": _counted((2, 4, 2, 4), dtype, device), "cu_seqlens": _lengths(device, 3, 5), "t": 7,
}))  # fmt: skip
def convert_bshd_to_thd(tensor: Tensor, cu_seqlens: Tensor, t: int) -> Tensor:
    """[t, h, d]: the sequences one after another; zeros after the last."""
    name = "convert_bshd_to_thd"
    check_tensor(name, "tensor", tensor, dtypes=None, dims=(4,))
    check_int(name, "t", t, least=0)
    check_tensor(name, "cu_seqlens", cu_seqlens, dtypes=INTS, shape=(tensor.shape[0] + 1,), on=tensor)
    with torch.no_grad():
        return packed(tensor, Lengths.of(cu_seqlens), t)


# ---- a cache of keys and values -------------------------------------------------------------------------------------


def _cache_args(dtype: torch.dtype, device: Any) -> dict[str, Any]:
    new, cache = _counted((2, 3, 2, 4), dtype, device) + 1, torch.zeros((5, 4, 2, 4), dtype=dtype, device=device)
    return {
        "new_k": new, "new_v": -new, "k_cache": cache, "v_cache": cache.clone(),
        "page_table": torch.tensor([[3, 1], [4, 0]], dtype=torch.int32, device=device),
        "cu_new_lens": _lengths(device, 3, 4), "cu_cached_lens": _lengths(device, 6, 7),
        "kv_format": NVTE_QKV_Format.NVTE_BSHD, "b": 2, "max_ctx_len": 3, "max_seq_len": 8, "max_pages_per_seq": 2,
        "is_non_paged": False,
    }  # fmt: skip


def _places(
    new: Tensor, fmt: str, of: Lengths, cached: Tensor, table: Tensor, page: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each token of `new` ([tokens, ...] or [b, s, ...], flattened): its page, its place there, and if it is one."""
    if fmt == "thd":
        sequence, place, there = token_places(of, new.shape[0])
    else:
        b, s = new.shape[:2]
        sequence = torch.arange(b, device=new.device).repeat_interleave(s)
        place = torch.arange(s, device=new.device).repeat(b)
        there = place < of.sizes[sequence]
    at = cached[sequence] - of.sizes[sequence] + place
    there = there & (at >= 0) & (at < table.shape[1] * page)
    at = at.clamp(0, table.shape[1] * page - 1)
    return table[sequence, at // page], at % page, there


@op(space="tex", out="none", mutates=("k_cache", "v_cache"), samples=_once(_cache_args))
def copy_to_kv_cache(
    new_k: Tensor, new_v: Tensor, k_cache: Tensor, v_cache: Tensor, page_table: Tensor, cu_new_lens: Tensor,
    cu_cached_lens: Tensor, kv_format: Any, b: int, max_ctx_len: int, max_seq_len: int, max_pages_per_seq: int,
    is_non_paged: bool,
) -> None:  # fmt: skip
    """Put the new tokens of each sequence at its end in the caches, [pages, page, h, d], in place.

    cu_cached_lens counts the new tokens too. A cache without pages has one for each sequence, and page_table says where
    those of now were before: they are moved to the front first.
    """
    name = "copy_to_kv_cache"
    fmt = _checked_cache(name, new_k, new_v, k_cache, v_cache, kv_format, b, max_seq_len, max_pages_per_seq)
    check_tensor(name, "page_table", page_table, dtypes=INTS, dims=(1, 2), on=new_k)
    _check_lengths(name, "cu_new_lens", cu_new_lens, b, new_k)
    _check_lengths(name, "cu_cached_lens", cu_cached_lens, b, new_k)
    pages = 1 if is_non_paged else max_pages_per_seq
    if page_table.shape[0] < b or (page_table.dim() == 2 and page_table.shape[1] < pages):
        raise BadArgument.of(name, "page_table", f"have shape ({b}, {pages})", str(tuple(page_table.shape)))
    if not b or not new_k.numel() or not k_cache.numel():
        return
    with torch.no_grad():
        table = page_table.long().reshape(page_table.shape[0], -1)[:b]
        if is_non_paged:
            for cache in (k_cache, v_cache):
                cache[:b].copy_(cache[table[:, 0]])
            table = torch.arange(b, device=new_k.device)[:, None]
        of, cached = Lengths.of(cu_new_lens[: b + 1]), cu_cached_lens[: b + 1].long().diff()
        news = [t.transpose(0, 1) if fmt == "sbhd" else t for t in (new_k, new_v)]
        page, at, there = _places(news[0], fmt, of, cached, table, max_seq_len // max_pages_per_seq)
        # What is no token does what the first one does, so that no place is written twice with different values; if
        # there is none at all, a place gets what it has.
        token = torch.where(there, torch.arange(there.shape[0], device=there.device), there.long().argmax())
        page, at = page[token], at[token]
        for cache, new in zip((k_cache, v_cache), news, strict=True):
            flat = new.reshape(-1, *cache.shape[2:])[token].to(cache.dtype)
            cache[page, at] = torch.where(there.any(), flat, cache[page, at])


def _checked_cache(
    op: str, new_k: Any, new_v: Any, k_cache: Any, v_cache: Any, kv_format: Any, b: Any, most: Any, pages: Any
) -> str:
    for name, value, least in (("b", b, 0), ("max_seq_len", most, 1), ("max_pages_per_seq", pages, 1)):
        check_int(op, name, value, least=least)
    known = [int(NVTE_QKV_Format[f"NVTE_{n}"]) for n in ("SBHD", "BSHD", "THD")]
    try:
        fmt = FORMATS[int(kv_format)] if int(kv_format) in known else None
    except (TypeError, ValueError):
        fmt = None
    if fmt is None:
        raise BadArgument.of(op, "kv_format", "be NVTE_SBHD, NVTE_BSHD or NVTE_THD", repr(kv_format))
    for name, t in (("new_k", new_k), ("new_v", new_v)):
        check_tensor(op, name, t, dtypes=MOVED, dims=len(fmt), on=new_k if name == "new_v" else None)
        rows = {"sbhd": 1, "bshd": 0}.get(fmt)
        if rows is not None and t.shape[rows] != b:
            raise BadArgument.of(op, name, f"have {b} sequences, as b says", str(tuple(t.shape)))
    page = most // pages
    for name, cache, new in (("k_cache", k_cache, new_k), ("v_cache", v_cache, new_v)):
        check_tensor(op, name, cache, dtypes=(new.dtype,), shape=(None, page, *new.shape[-2:]), on=new_k)
    if new_v.shape[:-1] != new_k.shape[:-1]:
        raise BadArgument.of(op, "new_v", "have the shape of new_k, but for the last", str(tuple(new_v.shape)))
    return fmt


# ---- interleaved buffers --------------------------------------------------------------------------------------------


@op(space="tex", out="qkv", samples=_once(lambda dtype, device: {
    "qkvi": _counted((3, 2, 2, 12), dtype, device)[..., :4],
}))  # fmt: skip
def fa_prepare_fwd(qkvi: Tensor) -> Tensor:
    """[3, b, s, n, h] of an interleaved [s, b, n, 3, h], of which q's slice is given."""
    name = "fa_prepare_fwd"
    check_tensor(name, "qkvi", qkvi, dims=4)
    (s, b, n, h), strides = qkvi.shape, qkvi.stride()
    room = qkvi.untyped_storage().nbytes() // qkvi.element_size() - qkvi.storage_offset()
    last = sum((size - 1) * stride for size, stride in zip((s, b, n, 3), (*strides[:3], h), strict=True)) + h
    if qkvi.numel() and (strides[3] != 1 or strides[2] != 3 * h or last > room):
        raise BadArgument.of(name, "qkvi", f"be q's slice of [s, b, n, 3 * {h}]", f"strides {strides}")
    with torch.no_grad():
        whole = (
            qkvi.as_strided((s, b, n, 3, h), (*strides[:3], h, 1)) if qkvi.numel() else qkvi.new_empty(s, b, n, 3, h)
        )
        return whole.permute(3, 1, 0, 2, 4).contiguous()


@op(space="tex", out="dqkvi", samples=_once(lambda dtype, device: {
    n: _counted((2, 3, 2, 4), dtype, device) + i for i, n in enumerate("qkv")
}))  # fmt: skip
def fa_prepare_bwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[s, b, n, 3 * h] of three [b, s, n, h]: for each head its q, k and v."""
    name = "fa_prepare_bwd"
    check_tensor(name, "q", q, dims=4)
    for what, t in (("k", k), ("v", v)):
        check_tensor(name, what, t, dtypes=(q.dtype,), shape=tuple(q.shape), on=q, of="that of q")
    with torch.no_grad():
        return torch.stack((q, k, v), 3).transpose(0, 1).reshape(q.shape[1], q.shape[0], q.shape[2], 3 * q.shape[3])


# ---- lists of tensors -----------------------------------------------------------------------------------------------

ORDERS = {"sbhd": (1, 2, 0, 3), "bshd": (0, 2, 1, 3)}


@op(space="tex", out="bhsd", mutates=("outputs",), samples=_once(lambda dtype, device: {
    "inputs": [_counted((3, 2, 2, 4), torch.bfloat16, device), None, _counted((5, 2, 1, 8), torch.uint8, device)],
    "original_format": "sbhd", "outputs": [],
}))  # fmt: skip
def multi_tensor_transpose_to_bhsd(inputs: Any, original_format: str, outputs: Any = []) -> Any:  # noqa: B006
    """Each of the list as a contiguous [b, h, s, d], None where it is None.

    Where outputs are given they are written to and returned; one with a longer last dimension has zeros there.
    """
    name = "multi_tensor_transpose_to_bhsd"
    check_choice(name, "original_format", original_format, ORDERS)
    dtypes = (torch.float16, torch.bfloat16, torch.uint8)
    check_list(
        name, "inputs", inputs, lambda what, t: check_tensor(name, what, t, dtypes=dtypes, dims=4, optional=True)
    )
    check_list(name, "outputs", outputs, lambda what, t: None, len(inputs) if outputs else None)
    with torch.no_grad():
        turned = [None if t is None else t.permute(ORDERS[original_format]) for t in inputs]
        for i, (t, to) in enumerate(zip(turned, outputs, strict=False)):
            if t is not None:
                of = (*t.shape[:3], None)
                check_tensor(name, f"outputs[{i}]", to, dtypes=(t.dtype,), shape=of, on=t, of="that of its input")
                if to.shape[3] < t.shape[3]:
                    raise BadArgument.of(name, f"outputs[{i}]", f"have {t.shape[3]} columns", str(to.shape[3]))
        if not outputs:
            return [None if t is None else t.contiguous() for t in turned]
        for t, to in zip(turned, outputs, strict=True):
            if t is not None:
                to[..., : t.shape[3]].copy_(t)
                to[..., t.shape[3] :].zero_()
        return list(outputs)


@op(space="tex", out="padded", samples=_once(lambda dtype, device: {
    "inputs": [_counted((3, 5), dtype, device), _counted((2, 8), dtype, device)], "alignment": 4,
}))  # fmt: skip
def multi_tensor_pad_last_dim(inputs: Any, alignment: int) -> Any:
    """Each of the list with zeros up to a multiple of the alignment; those that need none are given back."""
    name = "multi_tensor_pad_last_dim"
    check_int(name, "alignment", alignment, least=1)
    check_list(name, "inputs", inputs, lambda what, t: check_tensor(name, what, t, dtypes=None, dims=2))
    with torch.no_grad():
        return [
            torch.nn.functional.pad(t, (0, -t.shape[1] % alignment)) if t.shape[1] % alignment else t for t in inputs
        ]
