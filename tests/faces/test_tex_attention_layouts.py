"""tex's attention calls the same op for equal work, whatever the memory layout of its tensors."""

from __future__ import annotations

import itertools
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from opmux.core.spec import specs
from opmux.faces.tex import enums
from opmux.tuning.speed_classes import CLASSES

pytestmark = pytest.mark.usefixtures("no_kernels_of_the_cpu")

FWD, BWD = specs.find("tex::fused_attn_fwd"), specs.find("tex::fused_attn_bwd")
B, S, H, KV, D = 2, 6, 4, 2, 8
LAYOUTS = ("BSHD_BSHD_BSHD", "SBHD_SBHD_SBHD", "BHSD_BHSD_BHSD", "THD_THD_THD")


def recorded(spec: Any) -> tuple[Any, list[tuple[str, tuple]]]:
    """The adapter of a tex op, bound to references that record their calls."""
    calls: list[tuple[str, tuple]] = []

    def recording(part: Any) -> Any:
        def run(*args: Any) -> Any:
            calls.append((part.key, args))
            return part.reference(*args)

        return run

    call = types.SimpleNamespace(**{part.name: recording(part) for part in spec.adapter.over})
    return (lambda **named: spec.adapter.fn(call, **named)), calls


def in_format(t: Tensor, fmt: str) -> Tensor:
    """A [b, s, h, d] tensor converted to a format, contiguous."""
    if fmt == "THD":
        return t.flatten(0, 1)
    return t.permute(["BSHD".index(c) for c in fmt]).contiguous()


def from_format(t: Tensor, fmt: str) -> Tensor:
    return t.unflatten(0, (B, S)) if fmt == "THD" else t.permute([fmt.index(c) for c in "BSHD"])


def run_attention(
    layout: str, mask: str, window: tuple[int, int] = (-1, -1)
) -> tuple[list[Tensor], list[tuple[str, tuple]]]:
    """Return O, S, dQ, dK and dV of one call as [b, s, h, ...], and the ops that the call used."""
    fmt = layout.partition("_")[0]
    g = torch.Generator().manual_seed(0)
    q, k, v, do = (torch.randn(B, S, h, D, generator=g) for h in (H, KV, KV, H))
    cu = torch.arange(B + 1, dtype=torch.int32) * S
    arguments = {
        "max_seqlen_q": S, "max_seqlen_kv": S, "is_training": True, "attn_scale": D**-0.5, "p_dropout": 0.0,
        "set_zero": True, "qkv_layout": enums.NVTE_QKV_Layout[f"NVTE_{layout}"],
        "o_format": enums.NVTE_QKV_Format[f"NVTE_{fmt}"],
        "qkv_scale_inv_format": enums.NVTE_QKV_Format.NVTE_QKV_Format_NOT_SET, "bias_type": 0,
        "attn_mask_type": enums.NVTE_Mask_Type[f"NVTE_{mask}"], "softmax_type": 0, "window_size": window,
        "bottom_right_diagonal": False, "cu_seqlens_q": cu, "cu_seqlens_kv": cu,
        "Q": in_format(q, fmt), "K": in_format(k, fmt), "V": in_format(v, fmt), "fake_dtype": torch.float32,
        "cu_seqlens_q_padded": None, "cu_seqlens_kv_padded": None, "page_table_k": None, "page_table_v": None,
        "s_quantizer": None, "o_quantizer": None, "Bias": None, "SoftmaxOffset": None, "rng_gen": None,
        "rng_elts_per_thread": 16, "return_max_logit": False, "cuda_graph": False,
    }  # fmt: skip
    forward, calls = recorded(FWD)
    o, *aux = forward(**arguments)
    more = {
        "do_format": arguments["o_format"], "dqkv_layout": arguments["qkv_layout"], "deterministic": False, "O": o,
        "do_scale_inv_format": arguments["qkv_scale_inv_format"], "dO": in_format(do, fmt), "Aux_CTX_Tensors": aux,
        "dp_quantizer": None, "dqkv_quantizer": None,
    }  # fmt: skip
    backward, more_calls = recorded(BWD)
    grads = backward(**{n: {**arguments, **more}[n] for n in BWD.names})
    stats = from_format(aux[0], fmt) if fmt == "THD" else aux[0].transpose(1, 2)
    return [from_format(o, fmt), stats, *(from_format(t, fmt) for t in grads[:3])], [*calls, *more_calls]


CASES = [
    *itertools.product(LAYOUTS, ("PADDING_MASK", "PADDING_CAUSAL_MASK"), ((-1, -1),)),
    *itertools.product(LAYOUTS[:3], ("NO_MASK", "CAUSAL_MASK"), ((-1, -1), (2, 0))),
]


@pytest.mark.parametrize(("layout", "mask", "window"), CASES)
def test_every_layout_calls_only_attention_general(layout, mask, window):
    _, calls = run_attention(layout, mask, window)
    assert [key for key, _ in calls] == ["opmux::attention_general", "opmux::attention_general_bwd"]


def of_equal_work(causal: bool) -> list[tuple[str, str]]:
    """Pairs of a layout and a mask that are equivalent if all sequences have the same length."""
    alone, padded = ("CAUSAL_MASK", "PADDING_CAUSAL_MASK") if causal else ("NO_MASK", "PADDING_MASK")
    return [*itertools.product(LAYOUTS[:3], (alone,)), *itertools.product(LAYOUTS, (padded,))]


@pytest.mark.parametrize("causal", [True, False])
def test_equal_sequences_have_one_speed_class_in_every_layout(causal):
    """With one speed class, auto mode chooses the same implementation for all layouts."""
    classes = {key: set() for key in ("opmux::attention_general", "opmux::attention_general_bwd")}
    for layout, mask in of_equal_work(causal):
        for key, args in run_attention(layout, mask)[1]:
            classes[key].add(CLASSES[key].of(*args))
    assert all(len(classes) == 1 for classes in classes.values()), classes


@pytest.mark.parametrize("causal", [True, False])
def test_every_layout_gives_the_same_results(causal):
    (layout, mask), *others = of_equal_work(causal)
    want, _ = run_attention(layout, mask)
    for layout, mask in others:
        for name, a, b in zip(("O", "S", "dQ", "dK", "dV"), run_attention(layout, mask)[0], want, strict=True):
            what = f"{layout} {mask} {name}"
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=lambda m, what=what: f"{what}: {m}")
