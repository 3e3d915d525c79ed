"""tex's attention on a GPU: equal sequences give equal bits in every layout, forward and backward."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import opmux
from opmux.core import get_default_manager
from opmux.core.spec import specs
from opmux.faces.tex import enums

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
CUDA = "cuda"
BWD = specs.find("tex::fused_attn_bwd")
NAMES = ("O", "S", "dQ", "dK", "dV")
DENSE, PACKED = ("BSHD", "SBHD", "BHSD", "SB3HD", "BSH3D"), ("THD", "BSHD", "SBHD")
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def to_format(t: Tensor, fmt: str) -> Tensor:
    """A contiguous copy in `fmt` of a tensor in [b, s, h, d]."""
    return t.flatten(0, 1) if fmt == "THD" else t.permute(["BSHD".index(c) for c in fmt]).contiguous()


def from_format(t: Tensor, fmt: str, like: Tensor) -> Tensor:
    return t.view(like.shape) if fmt == "THD" else t.permute([fmt.index(c) for c in "BSHD"])


def inputs(b, s, h, kv, d, dtype) -> list[Tensor]:
    g = torch.Generator(CUDA).manual_seed(0)
    return [torch.randn(b, s, n, d, generator=g, device=CUDA).to(dtype) for n in (h, kv, kv, h)]


def run_attention(
    layout: str, mask: str, window: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, do: Tensor
) -> list[Tensor]:
    """Return O, S, dQ, dK and dV, each as [b, s, h, ...]."""
    (b, s, _, d), fmt = q.shape, layout.replace("3", "")
    x, y, z = (to_format(t, fmt) for t in (q, k, v))
    if "3" in layout:
        x, y, z = torch.stack((x, y, z), layout.index("3")).unbind(layout.index("3"))
    cu = torch.arange(b + 1, dtype=torch.int32, device=CUDA) * s
    arguments = {
        "max_seqlen_q": s, "max_seqlen_kv": s, "is_training": True, "attn_scale": d**-0.5, "p_dropout": 0.0,
        "set_zero": True, "o_format": enums.NVTE_QKV_Format[f"NVTE_{fmt}"],
        "qkv_layout": enums.NVTE_QKV_Layout[f"NVTE_{layout if '3' in layout else '_'.join([fmt] * 3)}"],
        "qkv_scale_inv_format": 8, "bias_type": 0, "attn_mask_type": enums.NVTE_Mask_Type[f"NVTE_{mask}"],
        "softmax_type": 0, "window_size": window, "bottom_right_diagonal": False, "cu_seqlens_q": cu,
        "cu_seqlens_kv": cu, "Q": x, "K": y, "V": z, "fake_dtype": q.dtype, "cu_seqlens_q_padded": None,
        "cu_seqlens_kv_padded": None, "page_table_k": None, "page_table_v": None, "s_quantizer": None,
        "o_quantizer": None, "Bias": None, "SoftmaxOffset": None, "rng_gen": None, "rng_elts_per_thread": 16,
        "return_max_logit": False, "cuda_graph": False,
    }  # fmt: skip
    o, *aux = opmux.tex.fused_attn_fwd(**arguments)
    more = {
        "do_format": arguments["o_format"], "dqkv_layout": arguments["qkv_layout"], "O": o, "dO": to_format(do, fmt),
        "Aux_CTX_Tensors": aux, "do_scale_inv_format": 8, "deterministic": False, "dp_quantizer": None,
        "dqkv_quantizer": None,
    }  # fmt: skip
    grads = opmux.tex.fused_attn_bwd(**{n: {**arguments, **more}[n] for n in BWD.names})
    stats = aux[0].view(b, s, -1) if fmt == "THD" else aux[0].squeeze(3).transpose(1, 2)
    given_by = zip((o, *grads[:3]), (do, q, k, v), strict=True)
    o, *grads = (from_format(t, fmt, like) for t, like in given_by)
    return [o, stats, *grads]


def in_every_layout(causal: bool, window: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> dict:
    """The results of each layout and mask."""
    alone, padded = ("CAUSAL_MASK", "PADDING_CAUSAL_MASK") if causal else ("NO_MASK", "PADDING_MASK")
    dense = [n for n in DENSE if "3" not in n or q.shape == k.shape]
    return {
        f"{layout} {mask}": run_attention(layout, mask, window, q, k, v, do)
        for layout, mask in [*((n, alone) for n in dense), *((n, padded) for n in PACKED)]
    }


def same_bits(results: dict) -> None:
    (first, want), *others = results.items()
    for which, got in others:
        for name, a, b in zip(NAMES, got, want, strict=False):
            differ = (a != b).float().mean().item()
            assert not differ, f"{name} of {which} and {first} differ in {100 * differ:.2f} % of their elements"


@pytest.mark.parametrize(("causal", "dtype"), list(itertools.product((True, False), (torch.bfloat16, torch.float16))))
@pytest.mark.parametrize(
    ("b", "s", "h", "kv", "d"),
    [(2, 2048, 12, 12, 64), (3, 333, 8, 2, 128), (2, 512, 4, 4, 96), (2, 200, 4, 1, 256), (4, 129, 2, 2, 32)],
)
def test_equal_sequences_give_equal_bits_in_every_layout(b, s, h, kv, d, causal, dtype):
    same_bits(in_every_layout(causal, (-1, -1), *inputs(b, s, h, kv, d, dtype)))


def test_windowed_attention_gives_equal_bits_in_every_layout():
    same_bits(in_every_layout(True, (100, 0), *inputs(2, 700, 4, 2, 64, torch.bfloat16)))


def test_float32_gives_equal_bits_in_every_layout():
    same_bits(in_every_layout(True, (-1, -1), *inputs(2, 300, 4, 2, 64, torch.float32)))


@pytest.mark.skipif(not ON_HOPPER, reason="not a Hopper chip")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_hopper_one_kernel_runs_dense_and_packed_sequences(dtype):
    q = torch.randn(2, 12, 2048, 64, device=CUDA).to(dtype)
    packed = q.transpose(1, 2).reshape(1, 4096, 12, 64).transpose(1, 2)
    cu = torch.arange(3, dtype=torch.int32, device=CUDA) * 2048
    rest = (None, None, -1, 0, True, 0.0, 0.0, None, False, False)
    for t, more in ((q, (None, None, *rest[:2], 0, 0)), (packed, (cu, cu, *rest[:2], 2048, 2048))):
        args = (t, t, t, None, None, None, None, *more, *rest[2:])
        report = get_default_manager().explain("attention_general", *args)
        assert report.chosen.impl_id == "default.flagos.nvidia.hopper", report


@pytest.mark.parametrize(("d", "kv", "causal"), [(64, 4, True), (128, 2, False)])
def test_flash_attention_gives_equal_bits_in_every_layout(d, kv, causal):
    """Gradients of flash attention are not compared, because it adds their terms with atomics, in any order."""
    flash = "impl:vendor.nvidia.flash"
    with opmux.policy(per_op={"attention_general": flash, "attention_general_bwd": flash}):
        results = in_every_layout(causal, (-1, -1), *inputs(2, 333, 4, kv, d, torch.bfloat16))
    same_bits({which: results[:2] for which, results in results.items()})
    (_, want), *others = results.items()
    for which, got in others:
        for name, a, b in zip(NAMES[2:], got[2:], want[2:], strict=True):
            torch.testing.assert_close(a, b, rtol=1.6e-2, atol=1e-2, msg=lambda m, w=which, n=name: f"{n} of {w}: {m}")
    ours = run_attention(
        "BSHD", "CAUSAL_MASK" if causal else "NO_MASK", (-1, -1), *inputs(2, 333, 4, kv, d, torch.bfloat16)
    )
    for a, b in zip(want, ours, strict=True):
        torch.testing.assert_close(a, b, rtol=1.6e-2, atol=3e-2)
