"""The tex module: names, signatures, enum values, entry points, versions, and arguments with more than one form."""

import inspect
import re
import sys
import textwrap
from pathlib import Path

import fresh
import pytest
import torch

from opmux.core.spec import specs
from opmux.faces.tex import interface, versions

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
tex = interface.module()

ROWS = [line.split(maxsplit=1) for line in (HERE / "tex_signatures.txt").read_text().splitlines()[1:]]
SIGNATURES = {call.partition("(")[0]: call.partition("(")[2].removesuffix(")") for _, call in ROWS}
IN_OLDER = {call.partition("(")[0]: mark for mark, call in ROWS}


def python(code, **env):
    """Run a program in a new process; returns its output."""
    import os

    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL", "TRITON"))}
    clean |= {"PYTHONPATH": str(SRC), **env}
    result = fresh.run([sys.executable, "-c", textwrap.dedent(code)], env=clean, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def function_named(name):
    inside = interface.INSIDE.get(name)
    return getattr(tex if inside is None else getattr(tex, inside), name, None)


# ---- names ----------------------------------------------------------------------------------------------------------


def test_every_function_of_nvidia_exists():
    assert len(SIGNATURES) >= 176
    missing = [name for name in SIGNATURES if not callable(function_named(name))]
    assert not missing
    assert sorted(s.name for s in interface.tex_specs()) == sorted(SIGNATURES)


def written(signature):
    """Write a signature as in the table of NVIDIA's signatures: names, and the repr of defaults."""
    words, star = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not star:
            star = True
            words.append("*")
        default = int(p.default) if hasattr(p.default, "__index__") and type(p.default) is not bool else p.default
        words.append(p.name if p.default is p.empty else f"{p.name}={default!r}")
    return ", ".join(words)


# Arguments that NVIDIA's functions declare as optional or as any object; in addition, every `quantizer` of an
# activation or a norm may be None. The list omits D of te_general_grouped_gemm: if D were None, the caller would not
# get the result.
MAY_BE_NONE = """
    bgrad_group_quantize: first_dims last_dims tensor_offsets
    bgrad_quantize: quantizer
    bulk_allocate: device alignments
    dropout_bwd: grad_input
    dropout_fwd: out
    fp8_transpose: out
    fused_attn_bwd: cu_seqlens_q_padded cu_seqlens_kv_padded s_quantizer dp_quantizer dqkv_quantizer
    fused_attn_fwd: cu_seqlens_q_padded cu_seqlens_kv_padded page_table_k page_table_v s_quantizer o_quantizer Bias
    fused_attn_fwd: SoftmaxOffset rng_gen
    fused_qkv_rope_forward: start_positions
    fused_rope_backward: start_positions cu_seqlens
    fused_rope_forward: start_positions cu_seqlens
    fused_topk_with_score_function_bwd: scaling_factor
    fused_topk_with_score_function_fwd: num_groups group_topk scaling_factor expert_bias topk_indices
    fused_topk_with_score_function_qb_fwd: scaling_factor topk_indices
    generic_gemm: D quantizer output_dtype bias gelu_in comm_overlap comm_type extra_output beta
    group_quantize: first_dims last_dims tensor_offsets noop_flag output
    group_requantize_inplace: first_dims tensor_offsets
    layernorm_fwd: bias ln_out
    multi_tensor_compute_scale_inv_e8m0: dummy
    multi_tensor_l2norm: per_tensor
    multi_tensor_unscale_l2norm: per_tensor
    nvfp4_data_transpose: out
    nvfp4_group_quantize_with_amax: first_dims last_dims tensor_offsets
    quantize: output noop
    rmsnorm_fwd: ln_out
    swap_first_dims: out
    te_general_grouped_gemm_for_discrete_in: bias bias_scale
    te_general_grouped_gemm_for_discrete_out: bias bias_scale
    te_general_grouped_gemm_for_grouped_tensor: bias bias_scale
"""


def test_none_is_accepted_where_nvidia_accepts_it():
    rows = [line.split(": ") for line in MAY_BE_NONE.strip().splitlines()]
    named = [(name.strip(), argument) for name, arguments in rows for argument in arguments.split()]
    families = ("tex_activation", "tex_scaled_activation", "tex_norm")
    named += [(s.name, "quantizer") for s in interface.tex_specs() if s.family in families and "quantizer" in s.names]
    assert len(named) > 100
    for name, argument in named:
        specs.functions[f"tex::{name}"].check(**{argument: None})  # raises BadArgument if None is not accepted


# In these signatures of NVIDIA's, a parameter without a default follows one with a default; Python forbids that.
TAIL_WITHOUT_DEFAULT = {"nvfp4_group_quantize_with_amax", "ep_initialize"}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_signatures_match_nvidias(name):
    mine = written(inspect.signature(function_named(name)))
    if name in TAIL_WITHOUT_DEFAULT:
        bare = lambda text: [word.partition("=")[0] for word in text.split(", ")]
        assert bare(mine) == bare(SIGNATURES[name])
    else:
        assert mine == SIGNATURES[name]


def test_all_lists_existing_public_names():
    namespace = {}
    exec("from transformer_engine_fl_torch import *", namespace)
    assert set(tex.__all__) <= set(namespace)
    assert all(name in vars(tex) for name in tex.__all__)
    assert namespace["tex"] is tex
    for name in ("DType", "FP8TensorMeta", "CommOverlap", "generic_gemm", "set_backend", "TEXBackendBase"):
        assert name in tex.__all__


def test_opmux_tex_and_transformer_engine_fl_torch_are_the_same_objects():
    import opmux
    import transformer_engine_fl_torch

    assert opmux.tex is tex
    assert sys.modules["opmux.tex"] is tex
    assert transformer_engine_fl_torch.rmsnorm_fwd is tex.rmsnorm_fwd
    assert transformer_engine_fl_torch.DType is tex.DType


def test_classes_and_enums_are_complete():
    assert len(versions.enums(versions.NEWEST)) == 15  # 14 before NVTEScalingMode of 2.20.2
    assert len(interface.CLASSES) == 7
    assert all(isinstance(getattr(tex, name), type) for name in interface.CLASSES)
    assert issubclass(tex.CommOverlap, tex.CommOverlapBase) and issubclass(tex.CommOverlapBase, tex.CommOverlapCore)
    assert issubclass(tex.CommOverlapP2P, tex.CommOverlapP2PBase)


# NVIDIA's enum values; the first enums are those for which other reimplementations have wrong values.
NUMBERS = {
    "DType": dict(kByte=0, kInt32=2, kFloat32=4, kFloat16=5, kBFloat16=6, kFloat8E4M3=7, kFloat8E5M2=8, kFloat4E2M1=10),
    "NVTE_QKV_Format": dict(NVTE_SBHD=0, NVTE_BSHD=1, NVTE_THD=2, NVTE_BSHD_2SBHD=3, NVTE_SBHD_2BSHD=4,
                            NVTE_THD_2BSHD=5, NVTE_THD_2SBHD=6, NVTE_BHSD=7, NVTE_QKV_Format_NOT_SET=8),
    "Float8BlockScaleTensorFormat": dict(GEMM_READY=0, COMPACT=1, INVALID=2),
    "NVTE_Fused_Attn_Backend": dict(NVTE_No_Backend=-1, NVTE_F16_arbitrary_seqlen=1, NVTE_FP8=2),
    "NVTE_Mask_Type": dict(NVTE_NO_MASK=0, NVTE_PADDING_MASK=1, NVTE_CAUSAL_MASK=2, NVTE_PADDING_CAUSAL_MASK=3,
                           NVTE_CAUSAL_BOTTOM_RIGHT_MASK=4, NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK=5),
    "NVTE_Bias_Type": dict(NVTE_NO_BIAS=0, NVTE_PRE_SCALE_BIAS=1, NVTE_POST_SCALE_BIAS=2, NVTE_ALIBI=3),
    "NVTE_Softmax_Type": dict(NVTE_VANILLA_SOFTMAX=0, NVTE_OFF_BY_ONE_SOFTMAX=1, NVTE_LEARNABLE_SOFTMAX=2),
    "CommOverlapType": dict(RS=0, AG=1),
    "CommOverlapAlgo": dict(BULK_OVERLAP_AG=0, BULK_OVERLAP_RS=1, SPLIT_PIPELINED_AG_P2P=2, SPLIT_PIPELINED_RS=3,
                            SPLIT_PIPELINED_RS_P2P=4, ATOMIC_GEMM_RS=5, ATOMIC_GEMM_AG_P2P=6, ATOMIC_GEMM_RS_P2P=7,
                            EXTERNAL_BULK_OVERLAP_AG=8),
    "NVTERoutingMapFormat": dict(BYTEMAP=0, BITMAP_U8=1),
    "NVTEQBHistogramMode": dict(TWO_KERNEL=0, FUSED_ATOMIC=1),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_enum_values_match_nvidias(name):
    assert {n: int(m) for n, m in getattr(tex, name).__members__.items()} == NUMBERS[name]


def test_layouts_have_nvidias_order():
    layouts = tex.NVTE_QKV_Layout
    assert layouts.NVTE_SB3HD == 0 and layouts.NVTE_BS3HD == 5 and layouts.NVTE_T3HD == 10
    assert layouts.NVTE_Paged_KV_BSHD_BSHD_BSHD == 19 and layouts.NVTE_BHSD_BHSD_BHSD == 25 and len(layouts) == 27
    assert tex.FP8FwdTensors.GEMM2_WEIGHT == 4 and tex.FP8BwdTensors.GRAD_INPUT3 == 5


def test_enums_can_be_pickled():
    import pickle

    assert pickle.loads(pickle.dumps(tex.DType.kBFloat16)) is tex.DType.kBFloat16


# ---- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.float32, 4, "DType"])
def test_dtypes_may_be_torchs_numbers_or_texs(value):
    x, w = torch.randn(3, 8).bfloat16(), torch.ones(8).bfloat16()
    otype = tex.DType.kFloat32 if value == "DType" else value
    assert tex.rmsnorm_fwd(x, w, 1e-5, None, None, otype, 0, False)[0].dtype is torch.float32


@pytest.mark.parametrize("value", ["float32", 77, object(), [4]])
def test_an_invalid_dtype_raises(value):
    x, w = torch.randn(3, 8), torch.ones(8)
    with pytest.raises(TypeError, match="rmsnorm_fwd: otype must be a DType or a torch.dtype"):
        tex.rmsnorm_fwd(x, w, 1e-5, None, None, value, 0, False)


def gemm(A, transA, B, transB, D):
    return tex.generic_gemm(
        A, transA, B, transB, D, None, D.dtype, None, None, False, None, False, None, 0, False, False
    )


def test_gemm_accepts_row_major_shapes_if_unambiguous():
    A, B, D = torch.randn(10, 5), torch.randn(5, 20), torch.full((10, 20), torch.nan)
    assert gemm(A, False, B, False, D)[0] is D
    torch.testing.assert_close(D, A @ B)
    D = torch.full((10, 20), torch.nan)
    gemm(A.T.contiguous(), True, B, False, D)
    torch.testing.assert_close(D, A @ B)


def test_gemm_is_column_major_as_nvidias_if_shapes_allow_it():
    A, B = torch.randn(6, 6), torch.randn(6, 6)
    D = torch.empty(6, 6)
    gemm(A, False, B, False, D)
    torch.testing.assert_close(D, B @ A)
    x, w = torch.randn(4, 6), torch.randn(9, 6)
    D = torch.empty(4, 9)
    gemm(w, True, x, False, D)
    torch.testing.assert_close(D, x @ w.T)


def test_gemm_shapes_that_fit_neither_order_raise():
    A, B, D = torch.randn(10, 5), torch.randn(5, 20), torch.zeros(20, 10)
    with pytest.raises((ValueError, TypeError), match="generic_gemm"):
        gemm(A, False, B, False, D)
    assert D.eq(0).all()


@pytest.mark.parametrize("name", ["rmsnorm_bwd", "layernorm_bwd"])
def test_dy_is_an_alias_of_dz(name):
    x, w, dz = torch.randn(3, 8), torch.ones(8), torch.randn(3, 8)
    stats = dict(rsigma=torch.rand(3)) | (dict(mu=torch.rand(3)) if name == "layernorm_bwd" else {})
    more = dict(x=x, gamma=w, sm_margin=0, zero_centered_gamma=False, **stats)
    for mine, theirs in zip(getattr(tex, name)(dy=dz, **more), getattr(tex, name)(dz=dz, **more), strict=True):
        assert mine.equal(theirs)


def test_thd_out_correction_also_accepts_the_old_lse():
    out, step = torch.randn(8, 2, 4), torch.randn(8, 2, 4)
    old, lse, each = torch.randn(2, 8), torch.randn(2, 8), torch.randn(2, 8)
    cu = torch.tensor([0, 4, 8], dtype=torch.int32)
    want = out * (old - lse).exp().T[..., None] + step * (each - lse).exp().T[..., None]
    tex.thd_out_correction(out, step, old, lse, each, cu, False, True)
    torch.testing.assert_close(out, want)


def test_the_bias_gradient_is_summed_before_it_is_rounded():
    x, dy = torch.randn(3000, 4), torch.full((3000, 5), 1.0)
    dy[::2] = 1.0 / 128
    args = (None, None, torch.zeros(5), None, False, None, True, None, 0, False, False)
    out = tex.generic_gemm(x, False, dy, True, None, args[0], torch.bfloat16, *args[2:])
    assert out[1].dtype is torch.bfloat16 and out[1].equal(dy.sum(0).to(torch.bfloat16))


def test_a_scale_update_under_a_fake_mode_does_not_affect_the_next():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def update():
        history, scale = torch.rand(4, 3), torch.ones(3)
        tex.fused_amax_and_scale_update_after_reduction(
            torch.rand(3), [history], [scale], "max", torch.float8_e4m3fn, 0
        )
        return scale

    for _ in range(2):
        with FakeTensorMode():
            update()
        assert update().isfinite().all()


class Bare:
    """A quantized tensor like the storage classes of 2.9: it has buffers but no shape, dtype or device."""

    def __init__(self, tensor):
        for name in ("_data", "_transpose", "_scale_inv", "_fp8_dtype", "_transpose_invalid"):
            setattr(self, name, getattr(tensor, name, None))


Bare.__name__ = "Float8TensorStorage"


def test_gemm_accepts_tensors_with_buffers_only():
    from opmux.faces.tex.tensors import Float8Quantizer

    def held(t, rowwise, columnwise):
        return Bare(
            tex.quantize(t, Float8Quantizer(torch.ones(1), torch.zeros(1), rowwise=rowwise, columnwise=columnwise))
        )

    x, dy = torch.randn(2, 16, 32).round(), torch.randn(2, 16, 48).round()
    dw = tex.generic_gemm(
        held(x, False, True), False, held(dy, False, True), True, None, None, torch.float32, None, None, False, None,
        True, None, 0, False, False,
    )[0]  # fmt: skip
    torch.testing.assert_close(dw, dy.reshape(32, 48).T @ x.reshape(32, 32))


def test_quantize_accepts_an_output_of_another_rank_and_resets_the_swizzled_flag():
    from opmux.faces.tex.tensors import Float8Quantizer, MXFP8Quantizer

    x, q = torch.randn(2, 32, 64), Float8Quantizer(torch.ones(1), torch.zeros(1))
    out = tex.quantize(x.reshape(64, 64), q)
    want = out._data.clone()
    out._data.zero_()
    tex.quantize(x, q, out)
    assert out._data.view(64, 64).equal(want)
    other = tex.quantize(x, MXFP8Quantizer())
    other._with_gemm_swizzled_scales = True
    tex.quantize(x, MXFP8Quantizer(), other)
    assert not other._with_gemm_swizzled_scales


# ---- versions -------------------------------------------------------------------------------------------------------

OLDER_PROGRAM = """
    import inspect, transformer_engine_fl_torch as tex
    print(tex.__version__)
    print(" ".join(n for n in tex.__all__ if callable(getattr(tex, n)) and not isinstance(getattr(tex, n), type)))
    print(inspect.signature(tex.fused_rope_backward), inspect.signature(tex.split_quantize))
    print(len(inspect.signature(tex.fused_attn_fwd).parameters), len(inspect.signature(tex.fused_attn_bwd).parameters))
    print(len(inspect.signature(tex.get_fused_attn_backend).parameters))
    print(dict(tex.NVTE_Fused_Attn_Backend.__members__), len(tex.NVTE_QKV_Layout), len(tex.NVTE_QKV_Format))
    print(hasattr(tex, "NVTERoutingMapFormat"), hasattr(tex, "glu"))
    import torch
    x = torch.randn(4, 16)
    assert tex.clamped_swiglu(x, None).shape == (4, 8)
"""


def test_version_2_9_of_the_interface_is_provided():
    version, functions, signatures, attention, backend, enums, has = python(
        OLDER_PROGRAM, OPMUX_TEX_VERSION="2.9"
    ).splitlines()
    assert version == "2.9"
    older = {n for n, mark in IN_OLDER.items() if mark != "no"}
    assert len(older) == 107 and older <= set(functions.split())
    assert not {n for n, mark in IN_OLDER.items() if mark == "no"} & set(functions.split())
    assert "start_positions" not in signatures and "disable_bulk_allocation" not in signatures
    assert attention == "28 26" and backend == "17"
    assert "NVTE_F16_max512_seqlen" in enums and enums.endswith(" 25 7")
    assert has == "False False"


def test_an_unknown_version_raises(monkeypatch):
    monkeypatch.setenv("OPMUX_TEX_VERSION", "newest")
    with pytest.raises(ValueError, match=re.escape("'newest': expected a version of tex's interface, 2.9 or 2.20")):
        versions.served()


def test_specs_know_which_arguments_are_dtypes():
    dtypes = {s.name: interface.dtype_arguments(s) for s in interface.tex_specs()}
    assert dtypes["rmsnorm_fwd"] == {"otype": True}
    assert {"output_dtype", "bias_type"} <= set(dtypes["generic_gemm"])
    assert set(dtypes["fp8_transpose"]) == {"dtype"}
    assert specs.functions["tex::gelu"] is tex.gelu
