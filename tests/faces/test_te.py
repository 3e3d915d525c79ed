"""Runs NVIDIA's own Python layer on our tex without CUDA, and compares the layer's modules with plain torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
import types
import warnings
from collections import OrderedDict
from importlib.machinery import PathFinder
from pathlib import Path

import fresh
import pytest
import te_layer
import torch
import torch.nn.functional as F
from te_twins import TWINS, Size, agrees, choose_attention, near, offloaded, run_module, settle

from opmux.cpp import build
from opmux.faces.te import boot
from opmux.imports import GrantFinder
from opmux.tools import simulator

SHARED = Path(__file__).parents[1] / "shared"
SRC = Path(__file__).parents[2] / "src"
te_layer.skip_without("with CUDA nothing is read for another chip: tests/gpu/test_gpu_te.py")
pytestmark = pytest.mark.filterwarnings("ignore")

CPU, SIZE = "cpu", Size()
BLOCKS = Size(hidden=128, ffn=128, heads=4, length=64, batch=2)  # sizes fit blocks of 128 elements
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@pytest.fixture(scope="module")
def te():
    te = te_layer.load()
    assert sys.modules["opmux.te"].Linear is te.Linear
    return te


@pytest.fixture(scope="module")
def recipes(te):
    from transformer_engine.common import recipe

    return {
        "delayed": recipe.DelayedScaling(amax_history_len=4),
        "current": recipe.Float8CurrentScaling(),
        "block": recipe.Float8BlockScaling(),
    }


# ---- modules --------------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("name", TWINS)
def test_modules_are_as_accurate_as_plain_torch(te, name, dtype):
    agrees(name, te, dtype, CPU, SIZE)


def test_modules_are_created_on_this_machines_device(te):
    """Tests modules without a device argument, with "cuda" by name or index, and with a device object."""
    for arguments in (
        {},
        {"device": "cuda"},
        {"device": torch.device("cuda")},
        {"device": "cuda:0"},
        {"device": "cpu"},
    ):
        assert te.Linear(16, 16, **arguments).weight.device == torch.device("cpu"), arguments


def test_cpu_autocast_applies_to_modules(te):
    layer, x = te.Linear(32, 32), torch.randn(4, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), F.linear(x, layer.weight, layer.bias), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
def test_rotary_embedding_matches_the_formula(te, fused, layout):
    from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb

    s, b, h, d = 8, 2, 3, 16
    freqs = te.RotaryPositionEmbedding(d)(max_seq_len=s)
    t = torch.randn(s, b, h, d, dtype=torch.float64)
    a, c = t.chunk(2, -1)
    exact = t * freqs.double().cos() + torch.cat((-c, a), -1) * freqs.double().sin()
    if layout == "bshd":
        t, exact = t.transpose(0, 1).contiguous(), exact.transpose(0, 1)
    x = t.float().requires_grad_()
    y = apply_rotary_pos_emb(x, freqs, tensor_format=layout, fused=fused)
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    y.square().sum().backward()  # rotations keep sum(x^2), so its gradient is 2x
    torch.testing.assert_close(x.grad, 2 * x.detach(), rtol=1e-5, atol=1e-5)


def test_checkpointing_gives_the_same_results(te):
    layer = te.TransformerLayer(64, 96, 4, hidden_dropout=0.3, attention_dropout=0.0)
    settle(layer)
    x, dy = torch.randn(16, 2, 64), torch.randn(16, 2, 64)
    runs = []
    for run in (lambda m, x: m(x), lambda m, x: te.checkpoint(m, x, use_reentrant=True)):
        torch.manual_seed(7)  # so that the recomputation draws the same dropout mask
        runs.append(run_module(layer, x, dy, run))
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, msg=lambda m, n=name: f"{n}: {m}")


def test_attention_with_a_cache_matches_attention_without(te):
    """Decoding step by step with a cache gives the same result as one call without a cache."""
    module = te.MultiheadAttention(
        64, 4, attn_mask_type="causal", qkv_format="bshd", layer_number=1, attention_dropout=0.0, bias=False
    ).eval()
    settle(module)
    x = torch.randn(2, 6, 64)
    cache = te.InferenceParams(
        max_batch_size=2, max_sequence_length=8, num_heads_kv=4, head_dim_k=16, dtype=torch.float32
    )
    with torch.no_grad():
        whole, parts = module(x), []
        for first, last in ((0, 4), (4, 5), (5, 6)):
            cache.pre_step(OrderedDict({0: last - first, 1: last - first}))
            mask = dict(attn_mask_type="padding_causal", max_seqlen_q=last - first)
            parts.append(module(x[:, first:last], inference_params=cache, **mask))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-5)


# New tokens per sequence in each step: sequences join and leave, and fill several pages out of order.
PAGED_STEPS = (
    {0: 5, 1: 9}, {0: 1, 1: 1, 2: 3}, {0: 1, 1: 1, 2: 1}, {0: 1, 2: 1, 3: 6}, {2: 1, 3: 1}, {2: 1, 3: 1},
)  # fmt: skip


@pytest.fixture
def backend(request, te, monkeypatch):
    choose_attention(request.param, monkeypatch.setenv)
    yield request.param
    monkeypatch.undo()
    choose_attention("FUSED", lambda name, value: None)  # clears the selection of this test


@pytest.mark.parametrize("backend", ["FUSED", "UNFUSED"], indirect=True)
@pytest.mark.parametrize("layout", ["bshd", "sbhd", "thd"])
def test_a_layer_with_a_paged_cache_matches_one_without(te, layout, backend):
    dtype = torch.bfloat16 if backend == "FUSED" else torch.float32  # fused attention only accepts 16-bit dtypes
    layer = te.TransformerLayer(
        64, 64, 4, num_gqa_groups=2, attention_dropout=0.0, hidden_dropout=0.0, params_dtype=dtype, layer_number=1,
        self_attn_mask_type="padding_causal", attn_input_format=layout,
    ).eval()  # fmt: skip
    totals = {s: sum(step.get(s, 0) for step in PAGED_STEPS) for s in range(4)}
    generator = torch.Generator().manual_seed(5)
    tokens = {s: torch.randn(n, 64, generator=generator).to(dtype) for s, n in totals.items()}
    cache = te.InferenceParams(
        max_batch_size=3, max_sequence_length=16, num_heads_kv=2, head_dim_k=16, dtype=dtype, is_paged=True,
        page_size=4, total_num_pages=12, max_ctx_len=16, qkv_format=layout,
    )  # fmt: skip
    results, done = {s: [] for s in tokens}, dict.fromkeys(tokens, 0)
    with torch.no_grad():
        for step in PAGED_STEPS:
            cache.pre_step(OrderedDict(step))
            parts = [tokens[s][done[s] : done[s] + n] for s, n in step.items()]
            rows = torch.nn.utils.rnn.pad_sequence(parts, batch_first=layout == "bshd")
            ends = {"cu_seqlens_q": cache.cu_seqlens_q, "cu_seqlens_kv": cache.cu_seqlens_kv}
            y = layer(
                torch.cat(parts) if layout == "thd" else rows, self_attn_mask_type="padding_causal",
                inference_params=cache, max_seqlen_q=max(step.values()), max_seqlen_kv=16,
                **(ends if layout == "thd" else {}),
            )  # fmt: skip
            pieces = y.split(list(step.values())) if layout == "thd" else y.unbind(0 if layout == "bshd" else 1)
            for (s, n), piece in zip(step.items(), pieces, strict=True):
                results[s].append(piece[:n])
                done[s] += n
        for s, x in tokens.items():
            if layout == "thd":
                ends = torch.tensor([0, len(x)], dtype=torch.int32)
                lengths = {"cu_seqlens_q": ends, "cu_seqlens_kv": ends, "max_seqlen_q": len(x), "max_seqlen_kv": len(x)}
                whole = layer(x, **lengths)
            else:
                dim = 0 if layout == "bshd" else 1
                whole = layer(x.unsqueeze(dim), self_attn_mask_type="causal").squeeze(dim)
            tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
            torch.testing.assert_close(torch.cat(results[s]), whole, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("backend", ["FUSED"], indirect=True)
@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
def test_activations_can_be_offloaded_to_the_host(te, layout, backend):
    """The layer copies tensors of at least 256 Ki elements that attention saves; these must be contiguous."""
    attention = lambda n: te.MultiheadAttention(
        128, 4, attention_dropout=0.0, params_dtype=torch.bfloat16, qkv_format=layout, layer_number=n
    )
    modules = [attention(n + 1) for n in range(2)]
    x, dy = (torch.randn(128, 16, 128).bfloat16() for _ in range(2))
    want, _ = offloaded(te, modules, x, dy, enabled=False)
    results, moved = offloaded(te, modules, x, dy, enabled=True)
    assert moved > 2  # at least q, k, v and o, 0.5 MB each
    assert all(torch.equal(a, b) for a, b in zip(results, want, strict=True))


# ---- training -------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "adamw": (
        lambda te, p: te.optimizers.FusedAdam(p, lr=0.05, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    ),
    "adam": (
        lambda te, p: te.optimizers.FusedAdam(p, lr=0.05, weight_decay=0.1, adam_w_mode=False),
        lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.1),
    ),
    "sgd": (
        lambda te, p: te.optimizers.FusedSGD(p, lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fused_optimizers_match_torchs(te, name):
    ours, theirs = OPTIMIZERS[name]
    fused, plain = te.Linear(32, 16), torch.nn.Linear(32, 16)
    settle(fused)
    plain.load_state_dict({n: v.clone() for n, v in fused.state_dict().items() if n in ("weight", "bias")})
    pairs = [(fused, ours(te, list(fused.parameters()))), (plain, theirs(list(plain.parameters())))]
    for step in range(4):
        x, want = torch.randn(8, 32), torch.randn(8, 16)
        losses = []
        for module, optimizer in pairs:
            optimizer.zero_grad()
            loss = F.mse_loss(module(x), want)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, msg=lambda m, s=step: f"step {s}: {m}")
    torch.testing.assert_close(fused.weight, plain.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fused.bias, plain.bias, rtol=1e-5, atol=1e-6)


# ---- fp8, emulated --------------------------------------------------------------------------------------------------


def test_reported_capabilities_are_those_of_hopper(te):
    assert te.is_fp8_available() and te.is_fp8_block_scaling_available()
    assert te.get_device_compute_capability() == (9, 0)
    assert not te.is_mxfp8_available() and not te.is_nvfp4_available()  # these need Blackwell


@pytest.mark.parametrize("recipe", ["delayed", "current", "block"])
@pytest.mark.parametrize("name", ["Linear", "LayerNormMLP gelu", "LayerNormMLP swiglu", "TransformerLayer"])
def test_fp8_modules_are_close_to_torch(te, recipes, name, recipe):
    allowed = 0.06 if name == "Linear" else 0.15
    near(name, te, torch.bfloat16, CPU, BLOCKS, allowed, recipes[recipe])


def test_fp8_autocast_is_still_accepted(te, recipes):
    layer, x = te.Linear(128, 128), torch.randn(128, 128)
    with te.fp8_autocast(enabled=True, fp8_recipe=recipes["current"]):
        y = layer(x)
    exact = F.linear(x, layer.weight, layer.bias)
    assert 5e-3 < (y - exact).norm() / exact.norm() < 0.06


@pytest.mark.parametrize("recipe", ["delayed", "current", "block"])
def test_fp8_weights_can_be_trained(te, recipes, recipe):
    with te.quantized_model_init(enabled=True, recipe=recipes[recipe]):
        layer = te.Linear(128, 128, params_dtype=torch.bfloat16)
    assert isinstance(layer.weight, te.QuantizedTensor) and isinstance(layer.weight, torch.nn.Parameter)
    x = torch.randn(128, 128, dtype=torch.bfloat16, requires_grad=True)
    optimizer = te.optimizers.FusedAdam(layer.parameters(), lr=2e-3, master_weights=True, use_decoupled_grad=False)
    losses = []
    for _ in range(3):
        with te.autocast(enabled=True, recipe=recipes[recipe]):
            y = layer(x)
        exact = F.linear(x.float(), layer.weight.dequantize().float(), layer.bias.float())
        assert (y.float() - exact).norm() / exact.norm() < 0.06
        loss = y.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    assert isinstance(layer.weight, te.QuantizedTensor)


@pytest.fixture(scope="module")
def quantizers(te):
    """Functions that create a quantizer: one for each kind, and for pairs of a rowwise and a columnwise kind."""
    from transformer_engine.pytorch.tensor import hybrid_tensor, identity_tensor

    fp8, nothing, hybrid = te.DType.kFloat8E4M3, identity_tensor.IdentityQuantizer, hybrid_tensor.HybridQuantizer
    current = lambda: te.Float8CurrentScalingQuantizer(fp8, device=CPU)
    mxfp8 = lambda: te.MXFP8Quantizer(fp8)
    return {
        "delayed": lambda: te.Float8Quantizer(torch.full((1,), 3.0), torch.zeros(1), fp8),
        "current": current,
        "block": lambda: te.Float8BlockQuantizer(fp8, rowwise=True, columnwise=True, block_scaling_dim=2),
        "mxfp8": mxfp8,
        "none": nothing,
        "current and none": lambda: hybrid(rowwise_quantizer=current(), columnwise_quantizer=nothing()),
        "none and current": lambda: hybrid(rowwise_quantizer=nothing(), columnwise_quantizer=current()),
        "current and mxfp8": lambda: hybrid(rowwise_quantizer=current(), columnwise_quantizer=mxfp8()),
    }


def test_master_weights_of_all_kinds_are_quantized_together(te, quantizers):
    """Each weight is quantized from a shard of its master weight; pairs of kinds need the whole master weight."""
    from transformer_engine.pytorch.tensor.utils import quantize_master_weights

    names = [name for name in quantizers if name != "current and mxfp8"]  # the layer lacks this kind
    part = {name: slice(1000, 9000) if " " not in name else slice(0, 128 * 128) for name in names}
    weights = [quantizers[name]()(torch.zeros(128, 128, dtype=torch.bfloat16)) for name in names]
    masters = [torch.randn(128 * 128) for _ in names]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        shards = [m[part[name]] for name, m in zip(names, masters, strict=True)]
        quantize_master_weights(weights, shards, [part[name].start for name in names], None)
    finally:
        torch.distributed.destroy_process_group()
    for name, weight, shard in zip(names, weights, shards, strict=True):
        values = weight.dequantize(dtype=torch.float32).reshape(-1)
        error = (values[part[name]] - shard).norm() / shard.norm()
        assert error < (0.01 if name.startswith("none") else 0.04), (name, error)
        assert name != "delayed" or not values[: part[name].start].any()


def test_quantized_tensors_without_inner_tensors_are_not_fake(quantizers, monkeypatch):
    """torch 2.11 raises if only some inner tensors are fake, and also if there are no inner tensors."""
    from torch._subclasses import fake_tensor

    from opmux.core.tensors import is_real

    def of_torch_2_11(tensor):
        raise AssertionError("got mixed fake and real tensors!")

    monkeypatch.setattr(fake_tensor, "is_fake", of_torch_2_11)
    for name in ("none", "current and none", "mxfp8"):
        assert is_real(quantizers[name]()(torch.zeros(32, 32))), name


@pytest.mark.parametrize(
    "rows, columns, errors",
    [("current and mxfp8", "mxfp8", (True, True)), ("none and current", "current", (False, True))],
)
def test_rows_and_columns_may_have_different_recipes(te, quantizers, rows, columns, errors):
    """The forward uses rowwise data, the backward columnwise data; a direction without quantization is exact."""
    from transformer_engine.common.recipe import CustomRecipe

    quantizer_of = lambda role: quantizers[columns if "grad" in str(getattr(role, "tensor_type", role)) else rows]()
    layer, results = te.Linear(128, 128, params_dtype=torch.bfloat16), []
    x = torch.randn(128, 128, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(128, 128, dtype=torch.bfloat16)
    for on in (False, True):
        with te.autocast(enabled=on, recipe=CustomRecipe(qfactory=quantizer_of)):
            y = layer(x)
        results.append((y.detach(), *torch.autograd.grad(y, (x, layer.weight), dy)))
    for exact, result, inexact in zip(*results, (errors[0], errors[1], errors[1]), strict=True):
        error = (result.float() - exact.float()).norm() / exact.float().norm()
        assert 0.02 < error < 0.06 if inexact else error == 0


# ---- another chip ---------------------------------------------------------------------------------------------------

SIMULATED = f"""
import importlib, json, sys
sys.path.insert(0, {str(SHARED)!r})
import torch
from te_twins import Size, agrees
importlib.import_module("opmux.te")
import transformer_engine.pytorch as te
done = dict(default=str(te.Linear(4, 4).weight.device), named=str(te.Linear(4, 4, device="cuda").weight.device))
for name in ("Linear", "LayerNormMLP swiglu", "TransformerLayer", "GroupedLinear"):
    agrees(name, te, torch.float32, "npu", Size())
    done[name] = "agrees"
print(json.dumps(done))
"""


def test_the_layer_runs_on_another_chip():
    """On a simulated device with a vendor's name, "cuda" means this device, and all tensors are on it."""
    try:
        build.compiler()
    except build.CannotBuild as error:
        pytest.skip(str(error))
    result = simulator.run("npu", SIMULATED, limit=240, env={"OMP_NUM_THREADS": "1"}, start=fresh.warm)
    assert result.pop("default").startswith("npu") and result.pop("named").startswith("npu")
    assert set(result.values()) == {"agrees"}


# ---- no side effects ------------------------------------------------------------------------------------------------


def python(code: str, *paths: Path, **extra: str) -> dict:
    """Run a program in a new process; returns the last line of its output, parsed as JSON."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NVTE", "TRITON_INTERPRET"))}
    env["PYTHONPATH"] = os.pathsep.join(map(str, [*paths, SRC]))
    result = fresh.run([sys.executable, "-W", "ignore", "-c", code], env=env | extra, timeout=240)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


UNTOUCHED = """
import json, os, sys
import torch
import torch._dynamo  # changes torch.manual_seed itself
before = {m: {k: id(v) for k, v in vars(o).items()} for m, o in (
    ("torch", torch), ("cuda", torch.cuda), ("version", torch.version), ("Tensor", torch.Tensor),
    ("Module", torch.nn.Module), ("library", torch.library))}
environment = dict(os.environ)
absent = ("onnx", "onnxscript")
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name)
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in absent else find(name, package)
sys.meta_path.insert(0, Hide())
import opmux.te
import transformer_engine.pytorch as te
layer = te.Linear(16, 16)
layer(torch.randn(2, 16)).sum().backward()
objects = dict(torch=torch, cuda=torch.cuda, version=torch.version, Tensor=torch.Tensor, Module=torch.nn.Module,
    library=torch.library)
# The layer itself does that to Module, wherever it is imported.
theirs = ("Module.float", "Module.half", "Module.bfloat16")
changed = [f"{m}.{k}" for m, had in before.items() for k, v in had.items() if id(vars(objects[m]).get(k)) != v]
changed = sorted(set(changed) - set(theirs))
from transformer_engine.pytorch import onnx_extensions
try:
    onnx_extensions.onnx_gemm_inf_symbolic(1, 2, 3)
    onnx = ""
except ImportError as error:
    onnx = str(error)
try:
    torch.zeros(1).cuda()
    moved = "moved"
except (AssertionError, RuntimeError) as error:
    moved = "refused"
try:
    te.make_graphed_callables(layer, (torch.randn(2, 16),))
    graphed = ""
except NotImplementedError as error:
    graphed = str(error)
first = layer.__class__
state = dict(
    changed=changed, environment=dict(os.environ) == environment, available=torch.cuda.is_available(),
    is_cuda=torch.zeros(1).is_cuda, cuda=moved, onnx=onnx, graphed=graphed,
    seeded=[n for n in absent if n in sys.modules], version=torch.version.cuda)
opmux.te.uninstall()
state |= dict(
    left=[n for n in sys.modules if n.startswith("transformer_engine")],
    finders=[type(f).__module__ for f in sys.meta_path if "opmux" in type(f).__module__])
opmux.te.uninstall()
try:
    opmux.te.Linear
except AttributeError as error:
    state["after"] = str(error)
opmux.te.install()
import transformer_engine.pytorch as again
state["again"] = again.Linear is not first and again.Linear(4, 4)(torch.randn(2, 4)).shape == (2, 4)
print(json.dumps(state))
"""


@pytest.fixture(scope="module")
def untouched():
    return python(UNTOUCHED)


def test_importing_the_layer_does_not_change_torch(untouched):
    assert untouched["changed"] == []
    assert untouched["available"] is False and untouched["is_cuda"] is False and untouched["version"] is None
    assert untouched["cuda"] == "refused"
    assert untouched["environment"], "variables are set for the import alone"


def test_errors_name_the_missing_package(untouched):
    assert "pip install onnxscript" in untouched["onnx"]
    assert untouched["seeded"] == []
    assert "CUDA graphs need a CUDA device" in untouched["graphed"]


def test_uninstall_removes_all_modules_and_finders(untouched):
    assert untouched["left"] == [] and untouched["finders"] == []
    assert "opmux.te.install()" in untouched["after"]
    assert untouched["again"] is True


# ---- installs that fail ---------------------------------------------------------------------------------------------


@pytest.fixture
def installer(monkeypatch):
    """The installer in the state of a process that has not called it yet."""
    from opmux.faces.te import boot as installer

    monkeypatch.setattr(installer, "_grant", None)
    return installer


def refused(installer, *words: str) -> None:
    finders = list(sys.meta_path)
    with pytest.raises(ImportError) as caught:
        installer.install()
    assert all(word in str(caught.value) for word in words), caught.value
    assert sys.meta_path == finders


@pytest.mark.parametrize(
    ("absent", "words"),
    [(("transformer_engine",), "transformer_engine is not"), (("einops", "pydantic"), "imports einops, pydantic")],
    ids=["the layer", "what it needs"],
)
def test_errors_name_the_packages_that_are_not_installed(installer, monkeypatch, absent, words):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in absent else find(name, *more))
    refused(installer, words, boot.INSTALL_HINT)


def test_install_raises_after_nvidias_own_was_imported(installer, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", types.ModuleType("theirs"))
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", types.ModuleType("theirs"))
    refused(installer, "already imported", "Put `import opmux.te` before")


@pytest.mark.parametrize(("version", "warned"), [("2.20.2", False), ("2.9.1", False), ("2.12.0", True)])
def test_an_untested_version_warns(installer, monkeypatch, version, warned):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        installer.check_layer(installer.interface.module())
    assert [
        w for w in caught if "2.12.0 is installed; opmux.te was tested with 2.20.x and 2.9.x" in str(w.message)
    ] or not warned
    assert len(caught) == warned


def test_the_version_of_an_uninstalled_source_tree_is_found(installer, monkeypatch, tmp_path):
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "build_tools").mkdir()
    (tmp_path / "build_tools" / "VERSION.txt").write_text("2.20.0.dev0\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("transformer_engine", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: spec)
    finder = GrantFinder()
    monkeypatch.setattr(installer, "finder", finder)
    monkeypatch.setattr(sys, "meta_path", [PathFinder])  # patched before `add` changes it
    finder.add(installer.grant(None))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert importlib.metadata.version("transformer_engine") == installer.layer_version() == "2.20.0.dev0"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("another")


# ---- source rewriting -----------------------------------------------------------------------------------------------

SOURCE = '''"""Nothing here is "cuda" but words."""
import torch
from torch.cuda import current_device, is_available as there


def place(device="cuda"):
    return torch.empty(2, device=device), torch.zeros(1, device=torch.cuda.current_device())


def questions(t):
    return t.is_cuda, t.device.type == "cuda", torch.version.cuda, torch.cuda.is_available(), there(), f"cuda:{1}"


def moves(t):
    return t.cuda(), t.cuda(0), t.to("cuda"), t.to(device=torch.device("cuda", 0)), torch.device("meta")


class Own:
    def is_cuda(self):
        return self.inner.is_cuda


def registered(kind):
    return lambda function: (kind, function())


@registered("cuda")
def decorated():
    return 1


def fails(t):
    return t.cuda() / t.nothing
'''


@pytest.fixture
def read(tmp_path):
    from opmux.faces.te import rewrite
    from opmux.faces.te.chip import SubstituteDevice

    def read(kind: str) -> dict:
        names: dict = {rewrite.CHIP: SubstituteDevice(kind)}
        exec(rewrite.rewritten(SOURCE.encode(), str(tmp_path / "source.py"), kind), names)
        return names

    return read


def test_rewritten_source_refers_to_the_chip(read):
    names = read("cpu")
    t, cpu = torch.ones(2), torch.device("cpu")
    assert [x.device for x in (*names["place"](), *names["place"]("cuda:3"), *names["place"](0))] == [cpu] * 6
    assert names["questions"](t) == (True, True, "12.9", True, True, "cuda:1")
    assert names["questions"](t.to("meta"))[:2] == (False, False)
    *moved, meta = names["moves"](t)
    assert all(x.device == cpu for x in moved) and meta == torch.device("meta")
    own = names["Own"]()
    own.inner = t
    assert own.is_cuda() is False, "what a tensor says of itself stays true"
    assert names["decorated"] == ("cpu", 1)
    assert names["__doc__"] == 'Nothing here is "cuda" but words.'


def test_rewritten_source_keeps_its_line_numbers(read):
    with pytest.raises(AttributeError, match="nothing") as caught:
        read("cpu")["fails"](torch.ones(1))
    assert caught.traceback[-1].lineno + 1 == 1 + SOURCE[: SOURCE.index("t.cuda() / t.nothing")].count("\n")
    assert str(caught.traceback[-1].path).endswith("source.py")


def test_device_indices_are_kept():
    from opmux.faces.te.chip import SubstituteDevice

    chip = SubstituteDevice("meta")  # every build of torch has this type
    assert chip.here("cuda:1") == chip.here(1) == chip.device("cuda", 1) == torch.device("meta:1")
    assert chip.here("cpu") == "cpu" and chip.here(None) is None
    assert chip.here(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(AttributeError, match="torch.cuda.nonsense has no equivalent"):
        _ = chip.cuda.nonsense
