"""NVIDIA implementations whose results must be bitwise equal: attention in every layout, and FP8 block-scaled GEMM."""

from __future__ import annotations

import itertools

import pytest
import torch

import opmux

pytest.importorskip("triton")
from opmux.backends._nvidia.hopper.heuristics_config_utils import block_tiles
from opmux.backends._nvidia.hopper.ops import cudnn as hopper
from opmux.backends._nvidia.hopper.ops import gluon_attention_general as gluon
from opmux.backends._nvidia.ops import cublas, flash
from opmux.core import get_default_manager
from opmux.kernels.lib import launch
from opmux.machine import devices, vendor_ops, vendors
from opmux.machine.here import HERE
from opmux.tuning import provider_speed
from opmux.tuning.provider_speed import FILES, ForSomeCalls, LibrariesFirst

META, BF16, F32 = torch.device("meta"), torch.bfloat16, torch.float32
DENSE, PACKED = "dense", "packed"


def call(layout, d=64, dv=None, kv=2, left=-1, right=0, dtype=BF16, **options):
    """The arguments of `attention_general` for two sequences of 16 tokens."""
    shape = lambda heads, d: (2, heads, 16, d) if layout == DENSE else (1, heads, 32, d)
    q, k, v = (torch.empty(shape(h, n), dtype=dtype, device=META) for h, n in ((4, d), (kv, d), (kv, dv or d)))
    cu = None if layout == DENSE else torch.empty(3, dtype=torch.int32, device=META)
    names = ("bias", "slopes", "sink", "seed", "cu_q", "cu_k", "q_sizes", "k_sizes", "max_q", "max_k", "left", "right",
             "at_end", "softcap", "dropout_p", "scale", "bias_grad", "seq_first")  # fmt: skip
    longest = 0 if layout == DENSE else 16
    arguments = dict.fromkeys(names) | {"cu_q": cu, "cu_k": cu, "max_q": longest, "max_k": longest, "left": left}
    arguments |= {
        "right": right,
        "at_end": True,
        "softcap": 0.0,
        "dropout_p": 0.0,
        "bias_grad": False,
        "seq_first": False,
    }
    return q, k, v, *{**arguments, **options}.values()


def backward(args):
    q, k, v, *options = args
    o = q.new_empty(*q.shape[:3], v.shape[3])
    return o, q, k, v, o, torch.empty(q.shape[:3], device=META), *options


@pytest.fixture
def on(monkeypatch):
    """`on(arch, times)` simulates an NVIDIA chip of this arch with these shipped `times`. Gluon kernels do not run
    here.
    """
    monkeypatch.setattr(launch, "runs_on_chip", lambda: True)
    entered = []

    def enter(arch, times):
        monkeypatch.setattr(type(FILES), "measured", lambda self, chip: dict(times))
        entered.append(devices.assume("nvidia", arch))
        entered[-1].__enter__()
        HERE.changed()
        provider_speed.forget()

    yield enter
    for scope in reversed(entered):
        scope.__exit__(None, None, None)
    HERE.changed()
    provider_speed.forget()


# ---- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch", "offered"), [("sm_80", ["flash"]), ("sm_90", ["cudnn", "hopper", "flash"])])
def test_attention_general_is_offered_library_kernels(arch, offered):
    get_default_manager().prepare()
    for op in ("opmux::attention_general", "opmux::attention_general_bwd"):
        candidates = [i for i in vendor_ops.read(vendors.get("nvidia"), arch).impls if i.op_name == op]
        assert sorted(i.impl_id.rpartition(".")[2] for i in candidates) == sorted(offered)


CASES = [
    ({}, True, True),
    ({"right": -1}, True, True),
    ({"d": 128, "kv": 1}, True, True),
    ({"left": 5}, "they are 5 and 0", True),
    ({"d": 80}, "64 or 128 numbers; there are 80 and 80", True),
    ({"d": 64, "dv": 128}, "there are 64 and 128", "dims must be equal"),
    ({"dtype": F32}, "float16 and bfloat16", "float16 and bfloat16"),
    ({"softcap": 30.0}, "takes no softcap", "takes no softcap"),
    ({"at_end": False}, "aligned to the end", "aligned to the end"),
    ({"sink": torch.empty(4, device=META)}, "takes no sink", "takes no sink"),
]


@pytest.mark.parametrize("layout", [DENSE, PACKED])
@pytest.mark.parametrize(("kwargs", "by_gluon", "by_flash"), CASES)
def test_a_kernel_accepts_the_same_calls_in_dense_and_packed_layout(layout, kwargs, by_gluon, by_flash):
    args = call(layout, **kwargs)
    forward = ((gluon.general_when, by_gluon), (flash.general_when, by_flash))
    grads = ((gluon.general_bwd_when, by_gluon), (flash.general_bwd_when, by_flash))
    for call_args, whens in ((args, forward), (backward(args), grads)):
        for when, want in whens:
            got = when(*call_args)
            assert got is True if want is True else want in got


def test_cudnn_accepts_only_dense_batches():
    args = call(DENSE)
    assert hopper.cudnn_general_when(*args) is True and hopper.cudnn_general_bwd_when(*backward(args)) is True
    assert "are packed" in hopper.cudnn_general_when(*call(PACKED))
    assert "are packed" in hopper.cudnn_general_bwd_when(*backward(call(PACKED)))
    assert "they are 3 and 0" in hopper.cudnn_general_when(*call(DENSE, left=3))


@pytest.mark.parametrize(("arch", "chosen"), [("sm_80", "vendor.nvidia.flash"), ("sm_90", "default.flagos")])
def test_dense_and_packed_sequences_go_to_one_implementation(on, arch, chosen):
    """On Hopper the implementation is our kernel, because flash attention, which was written for Ampere, is slower
    there.
    """
    on(arch, {})
    for layout in (DENSE, PACKED):
        args = call(layout)
        assert opmux.explain("attention_general", *args).chosen.impl_id == chosen
        assert opmux.explain("attention_general_bwd", *backward(args)).chosen.impl_id == chosen


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_calls_that_no_library_accepts_go_to_our_kernel(on, arch):
    on(arch, {})
    for kwargs in ({"softcap": 30.0}, {"dtype": F32}):
        assert opmux.explain("attention_general", *call(DENSE, **kwargs)).chosen.impl_id == "default.flagos"


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 2, 3)])
def test_dense_batches_are_packed_for_flash_without_a_copy(order):
    """Tests tensors in [batch, seq, heads, dim], [seq, batch, heads, dim] and [batch, heads, seq, dim] order."""
    b, h, s, d = 2, 3, 5, 8
    back = [order.index(i) for i in range(4)]
    t = torch.randn([(b, h, s, d)[i] for i in order]).permute(back)
    rows = flash.SequencePacking.of(t, None)
    tokens = rows.tokens(t)
    assert tokens.data_ptr() == t.data_ptr() and torch.equal(rows.unpack(tokens), t)
    ends = rows.offsets(t).tolist()
    assert ends[-1] == tokens.shape[0] and (len(ends) - 1) * tokens.shape[1] == b * h
    # each head of each sequence is one slice of the packed tokens
    for i, j in ((i, j) for i in range(b) for j in range(h)):
        sequences = [tokens[m:n, head] for m, n in itertools.pairwise(ends) for head in range(tokens.shape[1])]
        assert any(torch.equal(t[i, j], f) for f in sequences)


def test_packed_sequences_are_passed_to_flash_unchanged():
    t, cu = torch.randn(7, 3, 8).transpose(0, 1)[None], torch.tensor([0, 3, 7])
    rows = flash.SequencePacking.of(t, cu)
    assert torch.equal(rows.tokens(t), t[0].transpose(0, 1)) and torch.equal(rows.unpack(rows.tokens(t)), t)


def test_a_library_that_accepts_some_calls_leaves_the_rest_to_our_kernel():
    """Without ForSomeCalls, our kernel would run only if a policy names it, so no kernel would run for calls that no
    library accepts.
    """
    why = lambda: "flash attention is faster"
    assert LibrariesFirst("opmux::attention_general", why)() == "flash attention is faster"
    first = LibrariesFirst("opmux::attention_general", ForSomeCalls(why))
    assert first() is None and first.always() == "flash attention is faster"


# ---- FP8 block-scaled GEMM ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [1, 3, 4, 9])
def test_scales_of_128x128_blocks_are_padded_for_cublas(blocks):
    scale = torch.rand(5, blocks)
    scale_layout, kind = cublas._cublas_layout(scale, 128)
    assert scale_layout.shape == (-(-blocks // 4) * 4, 5) and scale_layout.stride() == (1, scale_layout.shape[0])
    assert torch.equal(scale_layout[:blocks].t(), scale) and kind is torch.nn.functional.ScalingType.BlockWise128x128


def test_row_scales_are_adjacent_for_cublas():
    scale = torch.rand(6, 3)
    for layout in (scale, scale.t().contiguous().t()):
        scale_layout, kind = cublas._cublas_layout(layout, 1)
        assert scale_layout.stride() == (1, 6) and torch.equal(scale_layout, scale)
        assert kind is torch.nn.functional.ScalingType.BlockWise1x128


def products(m, k=256, n=64, rows=(1, 128)):
    a, b = torch.zeros(m, k, dtype=torch.uint8), torch.zeros(n, k, dtype=torch.uint8)
    scale = lambda length, high: torch.ones(-(-length // high), -(-k // 128))
    e4m3 = torch.float8_e4m3fn
    return a, b, scale(m, rows[0]), scale(n, rows[1]), e4m3, e4m3, None, *rows, BF16


def test_the_impl_that_dequantizes_declines_where_our_kernel_has_the_bits_of_cublas(monkeypatch):
    assert cublas.plain_block_when(*products(16)) is True
    monkeypatch.setattr(cublas, "adds_as_cublas", lambda device: True)
    assert "our kernel adds up FP8 products as cuBLAS does" in cublas.plain_block_when(*products(16))


def test_blocks_that_cublas_does_not_take_go_to_our_kernel(on, monkeypatch):
    """The reference and the impl that dequantizes must not run: they sum with more bits."""
    monkeypatch.setattr(cublas, "adds_as_cublas", lambda device: True)
    label = "block_scaled_gemm[dtype=float8_e4m3fn b_dtype=float8_e4m3fn out=bfloat16 a_square=False b_square=True {}]"
    on("sm_90", {label.format("m<=1 n<=4096 k<=4096"): {"default.flagos": 15.0, "vendor.nvidia.cublas_plain": 200.0}})
    args = [t.to(META) if torch.is_tensor(t) else t for t in products(37)]
    assert opmux.explain("block_scaled_gemm", *args).chosen.impl_id == "default.flagos"


def test_cublas_accepts_rows_in_multiples_of_four(monkeypatch):
    monkeypatch.setattr(cublas, "blockwise", lambda *facts: True)
    assert all(cublas.block_when(*products(m)) is True for m in (4, 8, 20, 64))
    assert cublas.block_when(*products(37)) == "takes rows in multiples of 4; there are 37"


@pytest.mark.parametrize(("m", "n"), [(16, 4096), (12, 4096), (17, 64), (37, 256), (48, 16), (64, 64), (4096, 4096)])
def test_tiles_of_the_block_gemm_are_large_enough_for_wgmma(m, n):
    """wgmma needs four warps and 64 rows; smaller tiles use an instruction that sums with more bits than cuBLAS."""
    tiles = block_tiles(m, n, 512)
    assert tiles["BLOCK_M"] >= 64 and tiles["num_warps"] >= 4
