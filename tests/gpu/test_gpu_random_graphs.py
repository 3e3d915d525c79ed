"""Random ops in CUDA graphs: each replay draws the numbers that eager code would draw, also between torch's own random
ops.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import opmux
from opmux import tex
from opmux.core.spec import specs
from opmux.faces.tex import enums

pytestmark = pytest.mark.gpu
ops = opmux.ops
CUDA = "cuda"
N = 100_000
REPLAYS = 3


def flat(results):
    return [t for t in (results if isinstance(results, (tuple, list)) else [results]) if isinstance(t, torch.Tensor)]


def warm(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)


def replayed(step, *generators):
    """Capture a graph, replay it several times with the seeds of `eager`, and return the results."""
    warm(step)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        captured = flat(step())
    seed(generators)
    results = []
    for _ in range(REPLAYS):
        graph.replay()
        results.append([t.clone() for t in captured])
    return results


def eager(step, *generators):
    seed(generators)
    return [[t.clone() for t in flat(step())] for _ in range(REPLAYS)]


def seed(generators):
    torch.manual_seed(2026)
    for generator in generators:
        generator.manual_seed(77)


def agree(step, *generators, compare=torch.equal):
    """Assert that replay i equals eager step i, that steps differ, and that all generators end with the same offset."""
    ends = lambda: [g.get_offset() for g in (torch.cuda.default_generators[0], *generators)]
    expected, after = eager(step, *generators), ends()
    replays = replayed(step, *generators)
    assert ends() == after
    for number, (a, b) in enumerate(zip(replays, expected, strict=True)):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert compare(x, y), f"replay {number}, result {i}"
    assert not torch.equal(expected[0][0], expected[1][0]) and not torch.equal(expected[1][0], expected[2][0])


X = {"x": None}


def x_of():
    if X["x"] is None:
        X["x"] = torch.rand(N, device=CUDA)
    return X["x"]


CALLS = {
    "dropout": lambda x, g=None: ops.dropout(x, 0.5, True),
    "native_dropout": lambda x, g=None: ops.native_dropout(x, 0.5, True),
    "tex dropout": lambda x, g=None: tex.dropout_fwd(x, 0.25),
    "uniform": lambda x, g=None: ops.uniform(x, -1.0, 1.0, generator=g),
    "normal": lambda x, g=None: ops.normal_functional(x, generator=g),
    "exponential": lambda x, g=None: ops.exponential(x, generator=g),
    "bernoulli": lambda x, g=None: ops.bernoulli(x, generator=g),
    "bernoulli of p": lambda x, g=None: ops.bernoulli(x, 0.5, generator=g),
    "randint_like": lambda x, g=None: ops.randint_like(x, 0, 100, generator=g),
    "rand": lambda x, g=None: ops.rand(x.shape, generator=g, dtype=x.dtype, device=CUDA),
    "randn": lambda x, g=None: ops.randn(x.shape, generator=g, dtype=x.dtype, device=CUDA),
    "randint": lambda x, g=None: ops.randint(0, 100, x.shape, generator=g, device=CUDA),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_replay_draws_the_numbers_of_an_eager_step(name):
    x, call = x_of(), CALLS[name]
    agree(lambda: [*flat(call(x)), torch.rand(N, device=CUDA), *flat(call(x)), F.dropout(x, 0.5), *flat(call(x))])


@pytest.mark.parametrize("name", [n for n in CALLS if "dropout" not in n])
def test_a_replay_uses_the_passed_generator(name):
    x, call, own = x_of(), CALLS[name], torch.Generator(CUDA)
    agree(lambda: [*flat(call(x, own)), *flat(call(x)), torch.rand(N, device=CUDA, generator=own), call(x, own)], own)


def test_capture_with_an_unregistered_generator_behaves_as_in_torch():
    """Newer versions of torch register the generator automatically; older versions raise an error."""
    own = torch.Generator(CUDA).manual_seed(1)
    default = torch.cuda.default_generators[0].graphsafe_get_state()

    def outcome(draw):
        draw()
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                draw()
        except RuntimeError as error:
            return str(error).split("\n")[0]
        return "captured"

    x = x_of()
    theirs = outcome(lambda: torch.rand(N, device=CUDA, generator=own))
    assert outcome(lambda: ops.uniform(x, generator=own)) == theirs
    torch.manual_seed(5)
    assert default.get_offset() == 0 and default.initial_seed() == 5  # the default generator has not changed


def test_a_gradient_uses_the_mask_of_its_replay():
    x = torch.ones(N, device=CUDA, requires_grad=True)

    def step():
        y = ops.dropout(F.dropout(x, 0.5), 0.5)
        return y.detach(), *torch.autograd.grad(y.sum(), x)

    agree(step)
    for y, dx in replayed(step):
        assert torch.equal(y, dx)


def attention_args(p):
    b, s, h, d = 2, 128, 4, 64
    q, k, v = (torch.randn(b, s, h, d, device=CUDA, dtype=torch.bfloat16) for _ in range(3))
    return {
        "max_seqlen_q": s, "max_seqlen_kv": s, "is_training": True, "attn_scale": d**-0.5, "p_dropout": p,
        "set_zero": True, "qkv_layout": enums.NVTE_QKV_Layout.NVTE_BSHD_BSHD_BSHD,
        "o_format": enums.NVTE_QKV_Format.NVTE_BSHD, "qkv_scale_inv_format": 8, "bias_type": 0,
        "attn_mask_type": enums.NVTE_Mask_Type.NVTE_CAUSAL_MASK, "softmax_type": 0, "window_size": (-1, -1),
        "bottom_right_diagonal": False, "cu_seqlens_q": None, "cu_seqlens_kv": None, "Q": q, "K": k, "V": v,
        "fake_dtype": q.dtype, "cu_seqlens_q_padded": None, "cu_seqlens_kv_padded": None, "page_table_k": None,
        "page_table_v": None, "s_quantizer": None, "o_quantizer": None, "Bias": None, "SoftmaxOffset": None,
        "rng_gen": None, "rng_elts_per_thread": 16, "return_max_logit": False, "cuda_graph": False,
    }  # fmt: skip


def close(a, b):
    torch.testing.assert_close(a, b)
    return True


@pytest.mark.parametrize("own", [False, True], ids=["default generator", "its own"])
def test_tex_attention_drops_the_same_in_a_replay_and_in_eager_code(own):
    generator = torch.Generator(CUDA) if own else None
    arguments = {**attention_args(0.25), "rng_gen": generator}
    do = torch.randn_like(arguments["Q"])
    names = specs.find("tex::fused_attn_bwd").names

    def step():
        o, *aux = tex.fused_attn_fwd(**arguments)
        more = {
            "do_format": arguments["o_format"], "dqkv_layout": arguments["qkv_layout"], "O": o, "dO": do,
            "Aux_CTX_Tensors": aux, "do_scale_inv_format": 8, "deterministic": True, "dp_quantizer": None,
            "dqkv_quantizer": None,
        }  # fmt: skip
        grads = tex.fused_attn_bwd(**{n: {**arguments, **more}[n] for n in names})
        return [o, aux[-1], F.dropout(o, 0.5), *grads[:3]]

    agree(step, *([generator] if own else []), compare=close)


def test_functional_attention_drops_the_same_in_a_replay_and_in_eager_code():
    q, k, v = (torch.randn(2, 4, 128, 64, device=CUDA, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    def step():
        o = opmux.functional.attention(q, k, v, causal=True, dropout_p=0.25)
        return [o.detach(), torch.rand(N, device=CUDA), *torch.autograd.grad(o.sum(), (q, k, v))]

    agree(step, compare=close)


def test_aten_overrides_draw_the_same_in_a_replay_and_in_eager_code():
    x = x_of()

    def step():
        return [
            F.dropout(x, 0.5), torch.rand(N, device=CUDA), torch.randn_like(x), x.clone().exponential_(),
            torch.bernoulli(x), torch.randint(0, 9, (N,), device=CUDA), torch.native_dropout(x, 0.25, True)[0],
        ]  # fmt: skip

    plain = eager(step)
    with opmux.use(mode="all"):
        ours = eager(step)
        agree(step)
    assert not torch.equal(plain[0][0], ours[0][0])  # the overrides are active


def test_a_replay_follows_set_rng_state():
    x = x_of()
    step = lambda: ops.dropout(x, 0.5)
    warm(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    torch.manual_seed(3)
    step()
    state = torch.cuda.get_rng_state()
    graph.replay()
    first = y.clone()
    torch.cuda.set_rng_state(state)
    assert torch.equal(step(), first)
    torch.cuda.set_rng_state(state)
    graph.replay()
    assert torch.equal(y, first)


def test_make_graphed_callables_drops_as_the_eager_module_does():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(256, 256)

        def forward(self, x):
            return ops.dropout(F.dropout(self.linear(x), 0.1), 0.25)

    module = Module().to(CUDA)
    x = torch.randn(64, 256, device=CUDA, requires_grad=True)

    def steps():
        torch.manual_seed(11)
        results = []
        for _ in range(REPLAYS):
            y = module(x)
            results += [y.detach().clone(), *(g.clone() for g in torch.autograd.grad(y.sum(), module.parameters()))]
        return results

    expected = steps()
    torch.cuda.make_graphed_callables(module, (x.detach().clone().requires_grad_(),))
    for a, b in zip(steps(), expected, strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(expected[0], expected[3])


@pytest.mark.parametrize("name", ["dropout", "uniform"])
def test_compiled_code_draws_the_same_numbers_with_and_without_a_graph(name):
    """Compiled code draws with torch's own random ops, so its numbers differ from eager ones."""
    x, drawn = x_of(), {}
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        call = torch.compile(CALLS[name], fullgraph=True, mode=mode)
        call(x)
        torch.manual_seed(4)
        drawn[mode] = [call(x).clone() for _ in range(4)]
    for a, b in zip(*drawn.values(), strict=True):
        assert torch.equal(a, b)
