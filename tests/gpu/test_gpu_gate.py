"""ATen overrides launched from C++ on a GPU give the same bits as from Python, in every way that calls can differ."""

import threading

import pytest
import torch
from torch.nn import functional as F

import opmux
from opmux.core.default import get_default_manager
from opmux.cpp import launching
from opmux.cpp import library as native_library

pytestmark = pytest.mark.gpu
TIMES = 9  # after this many calls, the next one is launched from C++


@pytest.fixture(autouse=True)
def enabled():
    opmux.enable(mode="all")
    if not native_library.available() or launching._LaunchingState.driver is None:
        opmux.disable()
        pytest.skip("nothing is launched from C++ here")
    yield
    opmux.disable()


def rand(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def by_python(call, *args):
    launching.pause("tested", True)
    try:
        return call(*args)
    finally:
        launching.pause("tested", False)


def flat(results):
    return list(results) if isinstance(results, (tuple, list)) else [results]


def check(call, make, launched=True):
    """Compare calls on new tensors with Python's results, once C++ may launch them.

    `launched`: whether C++ must launch each call; None if that depends on the kernel's configuration.
    """
    for _ in range(TIMES):
        call(*make())
    for _ in range(3):
        args = make()
        copies = [a.clone(memory_format=torch.preserve_format) for a in args]
        expected = by_python(call, *copies)
        before = launching.launched()
        got = call(*args)
        assert launched is None or (launching.launched() > before) == launched
        for a, b in zip(flat(got), flat(expected), strict=True):
            assert a.dtype == b.dtype and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
            assert torch.equal(a, b) or torch.equal(a.isnan(), b.isnan())


W = {"w": torch.empty(0)}


def weight(x):
    if W["w"].shape != x.shape[-1:] or W["w"].dtype != x.dtype or W["w"].device != x.device:
        W["w"] = torch.linspace(0.5, 1.5, x.shape[-1], device=x.device).to(x.dtype)
    return W["w"]


ONE = {
    "add": lambda x: torch.add(x, x),
    "mul scalar": lambda x: x * 2.5,
    "rsub": lambda x: 1 - x,
    "sum": lambda x: x.sum(-1),
    "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1, keepdim=True),
    "amax": lambda x: x.amax(-1),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "exp": torch.exp,
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:], weight(x), weight(x)),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:], weight(x), 1e-6),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp min": lambda x: x.clamp(min=0.25),
    "var": lambda x: x.var(-1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "argmax": lambda x: x.argmax(-1),
    "max": lambda x: x.max(-1),
    "vector norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "group_norm": lambda x: F.group_norm(x[:, :, None], 4, weight(x), weight(x)),
    "floor division": lambda x: torch.div(x, 0.5, rounding_mode="floor"),
    "power of": lambda x: 2.0**x,
    "select_backward": lambda x: torch.ops.aten.select_backward(x, [64, 5, 256], 1, 3),
    "slice_backward": lambda x: torch.ops.aten.slice_backward(x, [64, 512], 1, 128, 384, 1),
    "slice_backward, steps": lambda x: torch.ops.aten.slice_backward(x, [64, 512], 1, 0, 512, 2),
    "pad": lambda x: F.pad(x, (1, 2), value=1.5),
    "repeat": lambda x: x.repeat(2, 3),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.t().contiguous(),
    "to float32": lambda x: x.to(torch.float32 if x.dtype != torch.float32 else torch.bfloat16),
    "copy_": lambda x: torch.ops.aten.copy_(x, x.flip(0)),
    "copy_ of another dtype": lambda x: x.copy_(weight(x).double()),
    "cat": lambda x: torch.cat([x, x[:, :64], x], 1),
    "add in place": lambda x: x.add_(1.5),
    "add to itself": lambda x: x.add_(x),
}
ASKED = ("add", "mul scalar", "sum", "softmax", "gelu", "silu", "exp", "layer_norm", "rms_norm", "add in place",
         "clamp", "select_backward", "slice_backward", "pad", "repeat", "clone", "contiguous", "to float32",
         "cat")  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ONE)
def test_launches_from_cpp_give_the_bits_of_python(name, dtype):
    with torch.no_grad():
        check(ONE[name], lambda: [rand(64, 256, dtype=dtype)], launched=True if name in ASKED else None)


@pytest.mark.parametrize("shape", [(1, 4096), (8, 128, 512), (3, 5, 7), (32000,)], ids=str)
def test_any_shape_gives_the_bits_of_python(shape):
    with torch.no_grad():
        for name in ("add", "mul scalar", "softmax", "sum"):
            check(ONE[name], lambda: [rand(*shape)], launched=True if name in ("add", "mul scalar") else None)


def test_strided_and_broadcast_operands_give_the_bits_of_python():
    with torch.no_grad():
        check(lambda x, y: x + y, lambda: [rand(64, 128).t(), rand(128, 64)])
        check(lambda x, y: x * y, lambda: [rand(64, 128), rand(128)])
        check(lambda x, y: torch.where(x > 0, x, y), lambda: [rand(64, 128)[:, ::2], rand(64, 64)])
        check(lambda x, y: x.add_(y, alpha=2), lambda: [rand(64, 128), rand(64, 1)])


def test_empty_tensors_and_policies_are_left_to_python():
    x = rand(64 * 256 + 1)
    with torch.no_grad():
        check(torch.exp, lambda: [rand(64 * 256 + 1)[1:]])  # not aligned to 16 bytes: needs its own kernel
        check(torch.exp, lambda: [rand(0, 256)], launched=False)
        for _ in range(TIMES):
            torch.exp(x)
        before = launching.launched()
        with opmux.policy(per_op={"exp": "impl:native"}):
            torch.exp(x)
        assert launching.launched() == before
        torch.exp(x)
        assert launching.launched() == before + 1


def test_changing_scalars_give_the_results_of_python():
    x = rand(64, 256)
    with torch.no_grad():
        for i in range(40):
            assert torch.equal(x * (i / 7), by_python(torch.mul, x, i / 7))
        for _ in range(TIMES):
            x * 3
        assert torch.equal(x * 3.0, by_python(lambda: x * 3.0))
        assert torch.equal(x * 3, by_python(lambda: x * 3))


def test_launches_use_the_current_stream():
    side = torch.cuda.Stream()
    with torch.no_grad():
        x = rand(4096, 4096)
        for _ in range(TIMES):
            x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)  # on the wrong stream, y would be read before it is written
            y = x * 2
            z = y.clone()
        side.synchronize()
        assert torch.equal(z, x + x)


def test_launches_from_cpp_can_be_captured_in_a_graph():
    x = rand(64, 256)
    chain = lambda: torch.softmax(x * 2.5 + x, -1).sum(-1)
    with torch.no_grad():
        for _ in range(TIMES):
            chain()
        graph = torch.cuda.CUDAGraph()
        before = launching.launched()
        with torch.cuda.graph(graph):
            y = chain()
        assert launching.launched() > before
        for _ in range(3):
            x.copy_(rand(64, 256))
            graph.replay()
            assert torch.equal(y, by_python(chain))


def test_threads_get_the_same_gradients_in_every_step():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).to("cuda")
    wrong = []

    def step(x):
        return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))

    def work():
        x = rand(32, 64, dtype=torch.float32)
        first = step(x)
        for _ in range(2 * TIMES):
            if not all(torch.equal(a, b) for a, b in zip(step(x), first, strict=True)):
                wrong.append(x)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
    x = rand(32, 64, dtype=torch.float32)
    ours = step(x)
    opmux.disable()
    for a, b in zip(ours, step(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_inference_mode_autograd_vmap_and_dispatch_modes_are_respected():
    x = rand(64, 256)
    for _ in range(TIMES):
        torch.exp(x)
    with torch.inference_mode():
        assert torch.exp(x).is_inference()
    y = torch.exp(x.clone().requires_grad_())
    assert y.grad_fn is not None
    batched = torch.vmap(torch.exp)(x)
    assert torch.equal(batched, torch.exp(x))
    ops = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ops.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        torch.exp(x)
    assert ops == [torch.ops.aten.exp.default]


def test_a_new_selection_stops_launches_recorded_before():
    x = rand(64, 256)
    for _ in range(TIMES):
        torch.exp(x)
    before = launching.launched()
    torch.exp(x)
    assert launching.launched() == before + 1
    get_default_manager().invalidate("a test")
    torch.exp(x)
    assert launching.launched() == before + 1
    opmux.disable()
    torch.exp(x)
    assert launching.launched() == before + 1
    opmux.enable(mode="all")
    for _ in range(TIMES):
        torch.exp(x)
    assert launching.launched() > before + 1
    with opmux.use(include=["sin"], mode="all"):
        before = launching.launched()
        torch.exp(x)
        assert launching.launched() == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_calls_may_alternate_between_two_devices():
    with torch.no_grad():
        for device in ("cuda:0", "cuda:1", "cuda:0"):
            x = torch.randn(64, 256, device=device)
            for _ in range(TIMES):
                assert torch.equal((x + x).cpu(), x.cpu() * 2)
