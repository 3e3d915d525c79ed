"""NVIDIA's own Python layer on our tex, on a GPU: its bf16 and fp8 modules, compared with float64, also in CUDA graphs.

`transformer_engine` may be installed or on PYTHONPATH; its own compiled extension is not needed.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
import torch
from te_twins import TWINS, Size, agrees, choose_attention, near, offloaded, settle

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

CUDA = "cuda"
SIZE = Size(hidden=1024, ffn=2048, heads=16, length=256, batch=4)


@pytest.fixture(scope="module")
def te():
    for needed in ("transformer_engine", "triton", "einops", "packaging"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} cannot be imported: install opmux[te], or put it on PYTHONPATH")
    if importlib.util.find_spec("pydantic") is None:
        _plain_dataclasses()
    importlib.import_module("opmux.te")
    import transformer_engine.pytorch as te

    return te


def _plain_dataclasses() -> None:
    """Replace pydantic, which needs a compiled module that may be missing here; the layer uses only its dataclass."""
    new_module = types.ModuleType("pydantic")
    new_module.__spec__ = ModuleSpec("pydantic", None, is_package=True)
    new_module.__path__ = []
    new_module.dataclasses = dataclasses
    sys.modules["pydantic"], sys.modules["pydantic.dataclasses"] = new_module, dataclasses


@pytest.fixture(scope="module")
def recipes(te):
    from transformer_engine.common import recipe

    recipes_by_name = {"delayed": recipe.DelayedScaling(amax_history_len=4), "current": recipe.Float8CurrentScaling()}
    if te.is_fp8_block_scaling_available():
        recipes_by_name["block"] = recipe.Float8BlockScaling()
    return recipes_by_name


def test_no_chip_rewriting_happens_on_cuda(te):
    from opmux.faces.te import boot, rewrite

    assert boot.chip_here() is None
    assert not hasattr(sys.modules["transformer_engine.pytorch.utils"], rewrite.CHIP)
    assert sys.modules["transformer_engine_torch"] is importlib.import_module("opmux.tex")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", TWINS)
def test_a_module_is_about_as_exact_as_plain_torch(te, name, dtype):
    agrees(name, te, dtype, CUDA, SIZE)


@pytest.mark.parametrize("recipe", ["delayed", "current", "block"])
@pytest.mark.parametrize(
    "name", ["Linear", "LayerNormLinear", "LayerNormMLP gelu", "LayerNormMLP swiglu", "TransformerLayer"]
)
def test_fp8_modules_are_close_to_float64(te, recipes, name, recipe):
    if not te.is_fp8_available() or recipe not in recipes:
        pytest.skip("the layer says that this GPU has no such fp8")
    near(name, te, torch.bfloat16, CUDA, SIZE, 0.06 if name == "Linear" else 0.15, recipes[recipe])


@pytest.mark.parametrize("backend", ["FUSED", "UNFUSED"])
def test_offloading_activations_gives_the_same_gradients(te, monkeypatch, backend):
    choose_attention(backend, monkeypatch.setenv)
    modules = [layer(te) for _ in range(3)]
    (x, dy), *_ = batches(1)
    want, _ = offloaded(te, modules, x, dy, enabled=False)
    results, moved = offloaded(te, modules, x, dy, enabled=True)
    assert moved > 10
    for a, b in zip(results, want, strict=True):  # a library may sum gradients of attention in any order
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


def test_master_weights_of_different_quantizers_are_quantized(te):
    """One weight has current scaling, one is not quantized, one has different row-wise and column-wise quantizers."""
    from transformer_engine.pytorch.tensor.hybrid_tensor import HybridQuantizer
    from transformer_engine.pytorch.tensor.identity_tensor import IdentityQuantizer
    from transformer_engine.pytorch.tensor.utils import quantize_master_weights

    current = lambda: te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, device=torch.device(CUDA))
    mixed = HybridQuantizer(rowwise_quantizer=current(), columnwise_quantizer=IdentityQuantizer())
    weights = [q(torch.zeros(128, 256, device=CUDA).bfloat16()) for q in (current(), IdentityQuantizer(), mixed)]
    masters = [torch.randn(128 * 256, device=CUDA) for _ in weights]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        quantize_master_weights(weights, masters, [0] * len(weights), None)
    finally:
        torch.distributed.destroy_process_group()
    for weight, master in zip(weights, masters, strict=True):
        assert (weight.dequantize(dtype=torch.float32).view(-1) - master).norm() / master.norm() < 0.04


def kinds_of_quantizers(te):
    from transformer_engine.pytorch.tensor.hybrid_tensor import HybridQuantizer
    from transformer_engine.pytorch.tensor.identity_tensor import IdentityQuantizer

    current = lambda: te.Float8CurrentScalingQuantizer(te.DType.kFloat8E4M3, device=torch.device(CUDA))
    mixed = lambda: HybridQuantizer(rowwise_quantizer=IdentityQuantizer(), columnwise_quantizer=current())
    both = lambda: HybridQuantizer(rowwise_quantizer=current(), columnwise_quantizer=current())
    return {"identity": IdentityQuantizer, "identity and current": mixed, "current twice": both}


@pytest.mark.parametrize("kind", ["identity", "identity and current", "current twice"])
def test_weights_without_inner_tensors_for_torch_are_supported(te, kind):
    """The layer calls is_fake for every weight on a GPU; torch 2.11's is_fake raises for weights without inner
    tensors.
    """
    from transformer_engine.common.recipe import CustomRecipe

    recipe = CustomRecipe(qfactory=lambda role: kinds_of_quantizers(te)[kind]())
    with te.quantized_model_init(enabled=True, recipe=recipe):
        module = te.Linear(256, 256, params_dtype=torch.bfloat16)
    x = torch.randn(128, 256, device=CUDA).bfloat16().requires_grad_()
    with te.autocast(enabled=True, recipe=recipe):
        y = module.to(CUDA)(x)
    y.sum().backward()
    exact = x.detach().float() @ module.weight.dequantize(dtype=torch.float32).T + module.bias.float()
    assert (y.float() - exact).norm() / exact.norm() < 0.06
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("recipe", ["delayed", "current", "block", "hybrid"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_activations_are_recomputed_bit_for_bit(te, recipes, recipe, use_reentrant):
    from transformer_engine.common.recipe import CustomRecipe

    if recipe not in (*recipes, "hybrid"):
        pytest.skip("the layer says that this GPU has no such fp8")
    mixed = CustomRecipe(qfactory=lambda role: kinds_of_quantizers(te)["current twice"]())
    chosen = mixed if recipe == "hybrid" else recipes[recipe]
    results = []
    for recomputed in (False, True):
        te.quantization.FP8GlobalStateManager.reset()
        torch.manual_seed(5)
        module = te.LayerNormMLP(SIZE.hidden, SIZE.ffn, params_dtype=torch.bfloat16)
        x = torch.randn(SIZE.length, SIZE.hidden, device=CUDA).bfloat16().requires_grad_()
        with te.autocast(enabled=True, recipe=chosen):
            y = te.checkpoint(module, x, use_reentrant=use_reentrant) if recomputed else module(x)
        y.sum().backward()
        results.append((y.detach(), x.grad, *(p.grad for p in module.parameters())))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_triton_kernels_of_the_layers_are_not_replaced_on_cuda(te):
    from transformer_engine.pytorch.triton import permutation

    assert permutation.make_row_id_map.__closure__ is None
    logits, target = torch.randn(2, 4, 32, device=CUDA, requires_grad=True), torch.randint(0, 32, (2, 4), device=CUDA)
    exact = torch.nn.functional.cross_entropy(logits.detach().flatten(0, 1), target.flatten(), reduction="none")
    torch.testing.assert_close(te.parallel_cross_entropy(logits, target).flatten(), exact)


@pytest.mark.parametrize("recipe", [None, "current", "block"])
def test_te_linear_can_be_compiled(te, recipes, recipe):
    """From torch 2.13 on, te.Linear compiles into one graph. Earlier versions break the graph, because opaque constants
    need torch's metaclass.
    """
    if recipe is not None and recipe not in recipes:
        pytest.skip("the layer says that this GPU has no such fp8")
    torch._dynamo.reset()
    module, x = te.Linear(256, 256, params_dtype=torch.bfloat16), torch.randn(128, 256, device=CUDA).bfloat16()
    x.requires_grad_()

    def forward(x):
        if recipe is None:
            return module(x)
        with te.autocast(enabled=True, recipe=recipes[recipe]):
            return module(x)

    whole = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
    results = []
    for call in (torch.compile(forward, fullgraph=whole), forward):
        y = call(x)
        results.append((y.detach(), *torch.autograd.grad(y, (x, module.weight), torch.ones_like(y))))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


# ---- CUDA graphs ----------------------------------------------------------------------------------------------------


def layer(te):
    new_layer = te.TransformerLayer(
        SIZE.hidden, SIZE.ffn, SIZE.heads, hidden_dropout=0.0, attention_dropout=0.0, params_dtype=torch.bfloat16,
        activation="swiglu", normalization="RMSNorm", bias=False,
    )  # fmt: skip
    settle(new_layer)
    return new_layer


def batches(n):
    shape = (SIZE.length, SIZE.batch, SIZE.hidden)
    return [(torch.randn(shape, device=CUDA).bfloat16(), torch.randn(shape, device=CUDA).bfloat16()) for _ in range(n)]


def step(te, module, x, dy, recipe):
    """Run a training step, which updates the parameters; return the result and the input's gradient."""
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(x)
    params = list(module.parameters())
    dx, *grads = torch.autograd.grad(y, (x, *params), dy)
    with torch.no_grad():
        torch._foreach_add_(params, grads, alpha=-1e-3)
    return y, dx


@pytest.mark.parametrize("recipe", [None, "current"])
def test_a_captured_training_step_replays_as_the_eager_step(te, recipes, recipe):
    recipe = recipes[recipe] if recipe else None
    eager = layer(te)
    captured = copy.deepcopy(eager)
    start = [p.detach().clone() for p in captured.parameters()]
    work = batches(3)
    x, dy = (t.clone() for t in work[0])
    x.requires_grad_()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(te, captured, x, dy, recipe)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, dx = step(te, captured, x, dy, recipe)
    with torch.no_grad():
        torch._foreach_copy_(list(captured.parameters()), start)

    for number, (batch, grad) in enumerate(work):
        with torch.no_grad():
            x.copy_(batch)
            dy.copy_(grad)
        graph.replay()
        plain_y, plain_dx = step(te, eager, batch.clone().requires_grad_(), grad, recipe)
        for name, a, b in (("y", y, plain_y), ("dx", dx, plain_dx)):
            torch.testing.assert_close(a, b, msg=lambda m, n=name, k=number: f"step {k}, {n}: {m}")
    for (name, a), b in zip(captured.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, n=name: f"{n}: {m}")


def test_the_layers_make_graphed_callables_agrees_with_eager(te):
    eager = layer(te)
    graphed = te.make_graphed_callables(copy.deepcopy(eager), (batches(1)[0][0].requires_grad_(),))
    for batch, grad in batches(2):
        results = []
        for module in (eager, graphed):
            x = batch.clone().requires_grad_()
            y = module(x)
            y.backward(grad)
            results.append([y.detach().clone(), x.grad, *(p.grad.clone() for p in module.parameters())])
            module.zero_grad()
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)


# ---- dropout in CUDA graphs: the same masks as in eager steps with the same seed -------------------------------------


def dropping(te, dtype, **more):
    new_layer = te.TransformerLayer(
        SIZE.hidden, SIZE.ffn, SIZE.heads, hidden_dropout=0.1, attention_dropout=0.1, params_dtype=dtype, **more
    )
    settle(new_layer)
    return new_layer


def gradients(module, x, dy):
    y = module(x)
    return [y, *torch.autograd.grad(y, (x, *module.parameters()), dy)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_a_captured_layer_drops_the_same_as_an_eager_one(te, dtype):
    module = dropping(te, dtype)
    x, dy = (t.to(dtype) for t in batches(1)[0])
    x.requires_grad_()
    torch.manual_seed(31)
    expected = [[t.detach().clone() for t in gradients(module, x, dy)] for _ in range(3)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradients(module, x, dy)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grads = gradients(module, x, dy)
    torch.manual_seed(31)
    for number, step_of in enumerate(expected):
        graph.replay()
        for a, b in zip(grads, step_of, strict=True):
            torch.testing.assert_close(a, b, msg=lambda m, n=number: f"replay {n}: {m}")
    assert not torch.equal(expected[0][0], expected[1][0])


@pytest.mark.parametrize("tracked", [False, True], ids=["default generator", "rng tracker"])
def test_graphed_layers_drop_the_same_as_eager_ones(te, tracked):
    from transformer_engine.pytorch import distributed

    more, tracker = {}, None
    if tracked:
        tracker = te.CudaRNGStatesTracker()
        tracker.add("model-parallel-rng", 1234)
        more = {"get_rng_state_tracker": lambda: tracker}
    eager = dropping(te, torch.bfloat16, **more)
    work = batches(3)

    def steps(module):
        torch.manual_seed(32)
        if tracker is not None:
            tracker.get_states()["model-parallel-rng"].manual_seed(1234)
        results = []
        for batch, grad in work:
            x = batch.clone().requires_grad_()
            y = module(x)
            y.backward(grad)
            # Copy the gradients: they are in the graph's own memory, which the next replay overwrites.
            results += [t.detach().clone() for t in (y, x.grad, *(p.grad for p in module.parameters()))]
            module.zero_grad()
        return results

    try:
        expected = steps(eager)
        graphed = te.make_graphed_callables(eager, (work[0][0].clone().requires_grad_(),))
        for a, b in zip(steps(graphed), expected, strict=True):
            torch.testing.assert_close(a, b)
    finally:
        distributed.set_all_rng_states({})


def test_a_checkpointed_layer_drops_the_same_in_its_recomputation(te):
    module = dropping(te, torch.bfloat16)
    (x, dy), *_ = batches(1)
    results = []
    for run in (module, lambda x: te.checkpoint(module, x, use_reentrant=False)):
        torch.manual_seed(33)
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        results.append([y.detach(), *torch.autograd.grad(y, (leaf, *module.parameters()), dy)])
    for a, b in zip(*results, strict=True):  # another mask would change a gradient by more than 10 %
        assert (a.float() - b.float()).norm() < 0.01 * b.float().norm()
