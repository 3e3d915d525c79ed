"""Random ops on a GPU: generators and their offsets, CUDA graphs, compiled code, more than 2^31 elements."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import opmux
from opmux.specs import random as spec

pytestmark = pytest.mark.gpu
ops = opmux.ops
N = 1 << 20


def x_of(dtype=torch.float32, n=N):
    return torch.rand(n, device="cuda").to(dtype)


CALLS = {
    "dropout": lambda x, g=None: ops.dropout(x, 0.5, True),
    "native_dropout": lambda x, g=None: ops.native_dropout(x, 0.5, True)[0],
    "uniform": lambda x, g=None: ops.uniform(x, -1.0, 1.0, generator=g),
    "normal": lambda x, g=None: ops.normal_functional(x, generator=g),
    "exponential": lambda x, g=None: ops.exponential(x, generator=g),
    "bernoulli": lambda x, g=None: ops.bernoulli(x, generator=g),
    "bernoulli of p": lambda x, g=None: ops.bernoulli(x, 0.5, generator=g),
    "randint_like": lambda x, g=None: ops.randint_like(x, 0, 100, generator=g),
    "rand": lambda x, g=None: ops.rand(x.shape, generator=g, dtype=x.dtype, device="cuda"),
    "randn": lambda x, g=None: ops.randn(x.shape, generator=g, dtype=x.dtype, device="cuda"),
    "randint": lambda x, g=None: ops.randint(0, 100, x.shape, generator=g, device="cuda"),
}
every_call = pytest.mark.parametrize("name", CALLS)


@every_call
def test_each_call_advances_the_generator_by_one_step(name):
    x = x_of()
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    torch.manual_seed(1)
    before = generator.get_offset()
    a, b = CALLS[name](x), CALLS[name](x)
    assert generator.get_offset() == before + 8 and not torch.equal(a, b)
    torch.manual_seed(1)
    assert torch.equal(CALLS[name](x), a) and torch.equal(CALLS[name](x), b)


@pytest.mark.parametrize("name", [n for n in CALLS if "dropout" not in n])
def test_a_passed_generator_is_used_instead_of_the_default_one(name):
    x = x_of()
    untouched = torch.cuda.get_rng_state()
    own, twin = (torch.Generator("cuda").manual_seed(9) for _ in range(2))
    a, b = CALLS[name](x, own), CALLS[name](x, own)
    assert torch.equal(a, CALLS[name](x, twin)) and torch.equal(b, CALLS[name](x, twin)) and not torch.equal(a, b)
    assert torch.equal(torch.cuda.get_rng_state(), untouched) and own.get_offset() == 8


def test_a_generator_of_another_device_raises():
    with pytest.raises(ValueError, match="generator must be on cuda.*got cpu"):
        ops.uniform(x_of(), generator=torch.Generator())


@every_call
def test_each_replay_of_a_graph_draws_new_numbers(name):
    x, call = x_of(), CALLS[name]
    call(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = call(x)
        b = call(x)

    def replay():
        graph.replay()
        return a.clone(), b.clone()

    torch.manual_seed(2)
    first, second = replay(), replay()
    drawn = [*first, *second]
    assert not any(torch.equal(p, q) for i, p in enumerate(drawn) for q in drawn[:i])
    torch.manual_seed(2)
    again = replay()
    assert torch.equal(again[0], first[0]) and torch.equal(again[1], first[1])
    assert torch.equal(call(x), second[0])  # eager code continues after the replay's offset


def test_a_captured_backward_uses_the_mask_of_its_replays_forward():
    """The backward must use the mask that the forward of the same replay has drawn."""
    x = torch.ones(N, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(ops.dropout(x, 0.5).sum(), x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.dropout(x, 0.5)
        (dx,) = torch.autograd.grad(y.sum(), x)
    masks = []
    for _ in range(3):
        graph.replay()
        assert torch.equal(dx, y)
        masks.append(y.detach().clone())
    assert not torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])


@pytest.mark.parametrize("name", ["dropout", "uniform", "randn"])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_code_draws_new_numbers_at_each_call(name, mode):
    torch._dynamo.reset()
    call, x = torch.compile(CALLS[name], fullgraph=True, mode=mode), x_of()
    drawn = [call(x).clone() for _ in range(4)]
    assert not any(torch.equal(p, q) for i, p in enumerate(drawn) for q in drawn[:i])


def test_a_compiled_primitive_accepts_a_seed_on_either_device():
    torch._dynamo.reset()
    call, x = torch.compile(lambda x, s: ops.philox_dropout(x, s, 0.5) * 2, fullgraph=True), x_of()
    seed = torch.tensor([5, 6])
    expected = ops.philox_dropout(x, seed, 0.5) * 2
    assert torch.equal(call(x, seed), expected) and torch.equal(call(x, seed.cuda()), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_gradient_uses_the_mask_of_the_forward(dtype):
    x = x_of(dtype).add_(1).requires_grad_()
    for fn in (ops.dropout, lambda x, p: ops.native_dropout(x, p, True)[0]):
        y = fn(x, 0.25)
        assert abs((y == 0).double().mean() - 0.25) < 5 * math.sqrt(0.1875 / N)
        (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert torch.equal(dx != 0, y != 0)


def test_checkpointing_drops_the_same_elements_again():
    x = torch.ones(N, device="cuda", requires_grad=True)
    y = checkpoint(lambda x: ops.dropout(x, 0.5) * x, x, use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * y.detach())


def test_layouts_are_preserved():
    x = torch.rand(8, 16, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    for name in ("dropout", "native_dropout", "uniform"):
        assert CALLS[name](x).stride() == x.stride()


def test_random_bits_equal_the_reference():
    """Tests even and odd sizes with several tiles per program, and seeds on the CPU and on the GPU."""
    for n in (1 << 21, (1 << 21) + 13):
        for seed in (torch.tensor([-7, 2**40 + 1]), torch.tensor([-7, 2**40 + 1], device="cuda")):
            like = torch.empty(n, device="cuda", dtype=torch.bfloat16)
            got = ops.philox_bernoulli(like, seed, 0.3)
            assert torch.equal(got, spec.philox_bernoulli.reference(like, seed, 0.3))
            x = torch.randn_like(like)
            y, mask = ops.philox_dropout_mask(x, seed, 0.3)
            assert torch.equal(mask, got == 0) and torch.equal(y, ops.philox_dropout(x, seed, 0.3))


def test_more_than_2_31_elements_are_drawn_correctly():
    n = (1 << 31) + 5000
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB")
    seed = torch.tensor([3, 4])
    y = ops.philox_randint(torch.empty((), device="cuda", dtype=torch.uint8).expand(n), seed, 0, 256)
    first = (n - 4096) // 4
    halves = lambda v: (v & spec.LOW, (v >> 32) & spec.LOW)
    group = torch.arange(first, first + 1024)
    counter = (*(w.expand(1024) for w in halves(seed[1])), *halves(group))
    words = torch.stack(spec.philox(counter, halves(seed[0])), 1).flatten()
    assert torch.equal(y[4 * first : 4 * first + 4096].cpu(), (words * 256 >> 32).to(torch.uint8))
    x = torch.ones((), device="cuda", dtype=torch.uint8).expand(n)
    assert ops.philox_bernoulli(x, seed, 1.0)[-1] == 1
