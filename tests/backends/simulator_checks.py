"""Checks of a simulated device; runs in a process that has devices npu:0 and npu:1 of arch 910b."""

import copy
import io
import json
import tempfile
import threading
import traceback

import torch
from torch import nn

from opmux.tools import simulator

CPU, NPU = torch.device("cpu"), torch.device("npu")
CHECKS = {}


def check(fn):
    CHECKS[fn.__name__] = fn
    return fn


def raises(kind, words, fn):
    try:
        fn()
    except kind as error:
        assert words in str(error), f"{words!r} is not in: {error}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def same(got, wanted):
    assert got.device.type == "npu", got.device
    torch.testing.assert_close(got.cpu(), wanted)


# ---- tensors --------------------------------------------------------------------------------------------------------


@check
def creation():
    same(torch.arange(6, device="npu"), torch.arange(6))
    same(torch.tensor([[1.0, 2.0]], device="npu:0"), torch.tensor([[1.0, 2.0]]))
    same(torch.full((2, 3), 7, dtype=torch.int16, device="npu"), torch.full((2, 3), 7, dtype=torch.int16))
    same(torch.eye(3, device="npu"), torch.eye(3))
    same(torch.tril_indices(3, 3, device="npu"), torch.tril_indices(3, 3))
    same(torch.zeros(0, 4, device="npu"), torch.zeros(0, 4))
    x = torch.rand(4, 5).npu()
    assert x.is_npu and x.device == torch.device("npu:0") and x.new_ones(2).is_npu and torch.zeros_like(x).is_npu
    assert torch.empty(2, 3, 4, 5, device="npu", memory_format=torch.channels_last).stride() == (60, 1, 15, 3)
    assert torch.empty_strided((2, 3), (1, 2), device="npu").stride() == (1, 2)
    with torch.device("npu:1"):
        assert torch.ones(2).device == torch.device("npu:1")


@check
def fresh_memory_is_nan():
    assert torch.empty(100, device="npu").isnan().all()
    assert torch.empty(100, dtype=torch.bfloat16, device="npu").isnan().all()
    assert (torch.empty(100, dtype=torch.int32, device="npu") == -1).all()


@check
def views_share_memory():
    x = torch.arange(24.0, device="npu").view(4, 6)
    row, column, other = x[1], x.t()[2], x.unfold(1, 3, 3)
    assert x.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    x[1, 2] = 100
    assert row[2].item() == column[1].item() == other[1, 0, 2].item() == 100
    other.mul_(2)
    assert x[1, 2].item() == 200
    assert x.t().stride() == (1, 6) and x[:, 1:].storage_offset() == 1 and x.t().data_ptr() == x.data_ptr()
    z = torch.zeros(3, dtype=torch.complex64, device="npu")
    torch.view_as_real(z)[:, 1] = 1
    same(z.conj().imag, torch.full((3,), -1.0))
    same(x.view(torch.int32), x.cpu().view(torch.int32))
    assert x.expand(2, 4, 6).stride() == (0, 6, 1)


@check
def strides_of_results_are_those_of_the_cpu():
    x = torch.randn(4, 6).t()
    for fn in (torch.exp, lambda t: t + 1, torch.clone, lambda t: t.contiguous(), lambda t: t.sort(0).values):
        assert fn(x.npu()).stride() == fn(x).stride()


@check
def copies():
    x = torch.randn(3, 4)
    far = x.to("npu:1", non_blocking=True)
    assert far.device.index == 1 and torch.equal(far.to("npu:0").cpu(), x)
    assert torch.equal(far.half().cpu(), x.half())
    y = torch.empty(3, 4)
    y.copy_(far)
    assert torch.equal(x, y)
    far.t().copy_(x.t())
    same(far, x)
    assert far.tolist() == x.tolist() and far[0, 0].item() == x[0, 0].item()
    raises(TypeError, "npu", lambda: far.numpy())
    same(torch.tensor([1 + 2j]).conj().npu(), torch.tensor([1 - 2j]))


@check
def results_that_grow():
    x = torch.randn(5, device="npu")
    out = torch.empty(0, device="npu")
    assert torch.add(x, 1, out=out) is out
    same(out, x.cpu() + 1)
    out.resize_(7)
    assert out.shape == (7,) and torch.equal(out[:5].cpu(), x.cpu() + 1)
    out.untyped_storage().resize_(80)
    assert out.untyped_storage().nbytes() == 80 and torch.equal(out[:5].cpu(), x.cpu() + 1)
    view = torch.empty(0, device="npu").set_(x)
    view[0] = 9
    assert x[0].item() == 9
    same(torch.nonzero(x > 8), torch.tensor([[0]]))
    values, places = torch.empty(0, device="npu"), torch.empty(0, dtype=torch.int64, device="npu")
    torch.topk(x, 2, out=(values, places))
    assert values[0].item() == 9 and places[0].item() == 0


@check
def devices_do_not_mix():
    a, b = torch.ones(2, device="npu"), torch.ones(2, device="npu:1")
    raises(RuntimeError, "npu:0 and cpu", lambda: a + torch.ones(2))
    raises(RuntimeError, "npu:0 and npu:1", lambda: a + b)
    raises(RuntimeError, "npu:0 and npu:1", lambda: torch.cat([a, b]))
    same(a + torch.tensor(1.0), torch.full((2,), 2.0))
    same(a[torch.tensor([1])], torch.ones(1))
    raises(RuntimeError, "there is no device npu:2", lambda: torch.ones(2, device="npu:2"))
    raises(RuntimeError, "Only dense CPU tensors", lambda: torch.empty(2, device="npu", pin_memory=True))
    raises(NotImplementedError, "strided", lambda: torch.eye(2, device="npu").to_sparse())


@check
def tensors_travel():
    x = torch.randn(4, 5, device="npu:1")
    twin = copy.deepcopy({"x": x, "view": x[1]})
    twin["x"][1] = 0
    assert twin["x"].device.index == 1 and twin["view"].abs().sum().item() == 0 and x[1].abs().sum().item() > 0
    file = io.BytesIO()
    torch.save(x, file)
    for place, wanted in ((None, x.device), ("cpu", CPU), ("npu:0", torch.device("npu:0")), (torch.device("npu"), NPU)):
        file.seek(0)
        back = torch.load(file, map_location=place)
        assert back.device.type == wanted.type and back.device.index in (wanted.index, 0)
        assert torch.equal(back.cpu(), x.cpu())
    module = nn.Linear(3, 2).to("npu")
    with tempfile.NamedTemporaryFile() as named:
        torch.save(module.state_dict(), named.name)
        other = nn.Linear(3, 2, device="npu:1")
        other.load_state_dict(torch.load(named.name, map_location="npu:1"))
    assert torch.equal(other.weight.cpu(), module.weight.cpu())


# ---- gradients and models -------------------------------------------------------------------------------------------


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(10, 16), nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))


@check
def gradients():
    x = torch.randn(4, 5, requires_grad=True)
    y = x.detach().npu().requires_grad_()
    for t in (x, y):
        (t.softmax(-1)[:, 1:].exp().sum() + t.t().contiguous().view(-1)[3]).backward()
    same(y.grad, x.grad)
    z = torch.randn(3, device="npu:1", requires_grad=True)
    (z.to("npu:0") * 2).sum().to("cpu").backward()
    assert z.grad.device.index == 1 and z.grad.tolist() == [2, 2, 2]


@check
def training_is_that_of_the_cpu():
    words = torch.randint(10, (8, 6))
    for make in (torch.optim.AdamW, lambda p: torch.optim.AdamW(p, fused=True), lambda p: torch.optim.SGD(p, 0.1, 0.9)):
        losses = {}
        for place in ("cpu", "npu"):
            model, given = net().to(place), words.to(place)
            optimizer, losses[place] = make(model.parameters()), []
            for _ in range(3):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(given).flatten(0, 1), given.flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses[place].append(loss.item())
        torch.testing.assert_close(torch.tensor(losses["npu"]), torch.tensor(losses["cpu"]))
    assert model.npu("npu:1")[1].weight.device.index == 1


@check
def attention():
    q, k, v = torch.randn(3, 2, 4, 8, 16, requires_grad=True).unbind()
    f, g = nn.functional.scaled_dot_product_attention, [t.detach().npu().requires_grad_() for t in (q, k, v)]
    same(f(*g, is_causal=True), f(q, k, v, is_causal=True).detach())
    f(*g).sum().backward()
    assert all(t.grad is not None for t in g)


@check
def convolutions():
    for make in (nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False)):
        x = torch.randn(2, 4, 8, 8, requires_grad=True)
        far, y = copy.deepcopy(make).npu(), x.detach().npu().requires_grad_()
        make(x).sin().sum().backward()
        far(y).sin().sum().backward()
        same(y.grad, x.grad)
        for mine, other in zip(far.parameters(), make.parameters()):
            same(mine.grad, other.grad)


@check
def tensors_without_memory_or_read_in_another_way():
    zeros = torch._efficientzerotensor((3,), device="npu")
    same(zeros + 1, torch.ones(3))
    x = torch.ones(3, device="npu", requires_grad=True)
    torch.sgn(x).sum().backward()
    same(x.grad, torch.zeros(3))
    a, b = torch.randn(2, 3, 3, 3, dtype=torch.complex64).unbind()
    solved = torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, adjoint=True)
    same(torch.linalg.lu_solve(*torch.linalg.lu_factor(a.npu()), b.npu(), adjoint=True), solved)


@check
def lists_of_tensors():
    a, b = [torch.randn(3, device="npu") for _ in range(4)], [torch.randn(3, device="npu") for _ in range(4)]
    before = [t.clone() for t in a]
    torch._foreach_add_(a, b, alpha=2)
    torch._foreach_addcdiv_(a, b, b, [1.0, 2.0, 3.0, 4.0])
    for i in range(4):
        same(a[i], before[i].cpu() + 2 * b[i].cpu() + i + 1)
    assert len(torch._foreach_norm(a)) == 4 and torch.stack(a).shape == (4, 3)
    assert [t.device.type for t in torch.arange(6, device="npu").split(2)] == ["npu"] * 3


@check
def autocast():
    a, b = torch.randn(4, 4, device="npu"), torch.randn(4, 4, device="npu", requires_grad=True)
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert (a @ b).dtype is torch.bfloat16 and nn.functional.linear(a, b).dtype is torch.bfloat16
        assert (a @ b).softmax(-1).dtype is torch.float32 and (a @ b).sum().dtype is torch.float32
        assert (a @ b).exp().dtype is torch.float32 and (a @ b + 1).dtype is torch.bfloat16
        assert torch.addcmul(a, a @ b, a @ b).dtype is torch.float32
        assert (a.double() @ b.double()).dtype is torch.float64
        with torch.autocast("npu", enabled=False):
            assert (a @ b).dtype is torch.float32
        (a @ b).float().sum().backward()
    assert b.grad.dtype is torch.float32
    with torch.autocast("npu", dtype=torch.float16):
        assert (a @ b).dtype is torch.float16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ b).dtype is torch.float32
    scaler = torch.amp.GradScaler("npu")
    optimizer = torch.optim.SGD([b], 0.1)
    scaler.scale((a @ b).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


@check
def compiled_eagerly():
    f = torch.compile(lambda t: (t * 2).sin().sum(-1), backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 4)
    same(f(x.npu()), f(x))


# ---- random numbers -------------------------------------------------------------------------------------------------


@check
def seeds():
    draw = lambda place: (torch.randn(5, device=place), torch.rand(3, device=place), torch.randperm(6, device=place))
    torch.manual_seed(3)
    wanted = draw("cpu")
    for seed in (torch.manual_seed, torch.npu.manual_seed_all, torch.npu.manual_seed):
        seed(3)
        for got, want in zip(draw("npu"), wanted):
            same(got, want)
    torch.npu.manual_seed(3)
    before = torch.get_rng_state()
    mask = torch.native_dropout(torch.ones(1000, device="npu"), 0.5, True)[1]
    assert torch.equal(torch.get_rng_state(), before), "the CPU's generator was used"
    torch.npu.manual_seed(3)
    assert torch.equal(torch.native_dropout(torch.ones(1000, device="npu"), 0.5, True)[1], mask)
    assert not torch.equal(torch.native_dropout(torch.ones(1000, device="npu"), 0.5, True)[1], mask)


@check
def generators():
    one, two = torch.Generator("npu").manual_seed(5), torch.Generator("npu:1")
    assert one.device == torch.device("npu:0") and two.device.index == 1 and one.initial_seed() == 5
    x = torch.randn(4, device="npu", generator=one)
    state = one.get_state()
    y = torch.randn(4, device="npu", generator=one)
    assert not torch.equal(x, y)
    one.set_state(state)
    assert torch.equal(torch.randn(4, device="npu", generator=one), y)
    assert torch.equal(torch.randn(4, device="npu", generator=one.clone_state().manual_seed(5)), x)
    one.set_offset(8)
    assert one.get_offset() == 8 and one.manual_seed(5).get_offset() == 0
    raises(
        RuntimeError, "Expected a 'npu' device type", lambda: torch.randn(2, device="npu", generator=torch.Generator())
    )
    raises(RuntimeError, "cpu", lambda: torch.randn(2, generator=one))
    with torch.random.fork_rng([0, 1], device_type="npu"):
        torch.npu.manual_seed_all(1)
        kept = torch.rand(3, device="npu:1")
    torch.npu.set_device(1)
    torch.npu.manual_seed(1)
    assert torch.equal(torch.rand(3, device="npu:1"), kept) and torch.npu.initial_seed() == 1
    torch.npu.set_device(0)
    torch.npu.set_rng_state(torch.npu.get_rng_state(1), 0)
    assert torch.equal(torch.rand(3, device="npu").cpu(), torch.rand(3, device="npu:1").cpu())
    assert [g.device.index for g in torch.npu.default_generators] == [0, 1]
    x = torch.ones(64, device="npu", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda t: nn.functional.dropout(t, 0.5), x, use_reentrant=False)
    torch.rand(7, device="npu")
    y.sum().backward()
    assert torch.equal(x.grad, y.detach()), "the mask was drawn anew"


# ---- the device -----------------------------------------------------------------------------------------------------


@check
def facts():
    assert torch.npu.is_available() and torch.npu.device_count() == 2
    seen = torch.npu.get_device_properties(1)
    assert (seen.name, seen.arch) == ("Simulated npu", "910b") and torch.npu.get_device_name() == "Simulated npu"
    assert seen.multi_processor_count > 0 and seen.total_memory > 0
    raises(ValueError, "there is no device npu:2", lambda: torch.npu.get_device_properties(2))
    raises(ValueError, "of type npu", lambda: torch.npu.set_device("cpu"))
    assert not hasattr(torch.npu, "no_such_thing")


@check
def accelerator():
    assert torch.accelerator.current_accelerator() == NPU and torch.accelerator.device_count() == 2
    assert torch.get_device_module("npu") is torch.npu
    torch.accelerator.set_device_index(1)
    assert torch.ones(1, device="npu").device.index == torch.npu.current_device() == 1
    with torch.npu.device(0):
        assert torch.ones(1, device="npu").device.index == 0
        found = []
        other = threading.Thread(target=lambda: found.append(torch.npu.current_device()))
        other.start()
        other.join()
    assert found == [0] and torch.npu.current_device() == 1
    with torch.npu.device_of(torch.ones(1, device="npu:0")), torch.npu.device_of(torch.ones(1)):
        assert torch.npu.current_device() == 0
    torch.npu.set_device("npu:0")
    raises(RuntimeError, "there is no device npu:5", lambda: torch.npu.set_device(5))
    torch.accelerator.synchronize()
    torch.npu.synchronize(1)


@check
def streams_and_events():
    first = torch.npu.current_stream()
    assert first.npu_stream == 0 and first == torch.npu.default_stream() == torch.accelerator.current_stream()
    mine, start, end = torch.npu.Stream(), torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    assert isinstance(mine.npu_stream, int) and mine.npu_stream != 0
    with torch.npu.stream(mine):
        assert torch.npu.current_stream().npu_stream == mine.npu_stream
        start.record()
        x = torch.ones(100, device="npu")
        x.record_stream(mine)
        end.record()
    assert torch.npu.current_stream() == first and torch.npu.Stream("npu:1").device.index == 1
    mine.wait_event(end)
    first.wait_stream(mine)
    end.synchronize()
    mine.synchronize()
    assert end.query() and mine.query() and start.elapsed_time(end) > 0
    torch.npu.set_stream(mine)
    y = torch.ones(2, device="npu", requires_grad=True)
    torch.npu.set_stream(first)
    y.sum().backward()


@check
def memory():
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    x = torch.ones(1 << 20, device="npu")
    y = x + 1
    assert torch.npu.memory_allocated() - before == 8 << 20 and torch.npu.memory_allocated(1) < 8 << 20
    del x, y
    assert torch.npu.memory_allocated() == before and torch.npu.max_memory_allocated() - before >= 8 << 20
    free, total = torch.npu.mem_get_info()
    assert free == total - before
    assert torch.npu.memory_stats()["allocated_bytes.all.current"] == before
    torch.npu.empty_cache()


@check
def pinned_memory():
    x = torch.ones(5).pin_memory()
    assert x.is_pinned() and not torch.ones(5).is_pinned() and torch.empty(3, pin_memory=True).is_pinned()
    assert torch.equal(x.to("npu", non_blocking=True).cpu(), x)
    loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2, pin_memory=True)
    assert all(batch.is_pinned() for batch in loader)


# ---- kernels --------------------------------------------------------------------------------------------------------


@check
def fallbacks_are_counted():
    x = torch.ones(3, device="npu")
    simulator.forget_fallbacks()
    x + x, x + x, x.exp(), x.view(3, 1).t(), x[1:], x.cpu(), x[0].item()
    assert simulator.fallbacks() == {"aten::add.out": 2, "aten::exp.out": 1}, simulator.fallbacks()
    simulator.forget_fallbacks()
    assert simulator.fallbacks() == {}


@check
def a_kernel_of_the_device_comes_first():
    x = torch.ones(3, device="npu")
    native = torch.library.get_kernel("aten::add.Tensor", "PrivateUse1")
    library = torch.library.Library("aten", "IMPL")

    def add(keys, a, b, *, alpha=1):
        return native.call_boxed(keys, a, b, alpha=alpha).mul_(10)

    simulator.forget_fallbacks()
    library.impl("add.Tensor", add, "PrivateUse1", with_keyset=True)
    same(x + x, torch.full((3,), 20.0))
    assert simulator.fallbacks() == {"aten::add.out": 1, "aten::mul.out": 1}, simulator.fallbacks()
    library._destroy()
    same(x + x, torch.full((3,), 2.0))

    mine = torch.library.Library("checks", "DEF")
    mine.define("twice(Tensor x) -> Tensor")
    raises(NotImplementedError, "the CPU has none either", lambda: torch.ops.checks.twice(x))
    mine.impl("twice", lambda t: t * 2, "CPU")
    same(torch.ops.checks.twice(x), torch.full((3,), 2.0))
    mine.impl("twice", lambda t: t * 3, "PrivateUse1")
    same(torch.ops.checks.twice(x), torch.full((3,), 3.0))


@check
def triton_kernels():
    import triton
    import triton.language as tl

    def body(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + o, mask=o < n)
        tl.store(y_ptr + o, x + 1, mask=o < n)

    kernel = triton.jit(body)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(100, device="npu:1").to(dtype)
        whole = torch.zeros(200, device="npu:1", dtype=dtype)
        y = whole[50:150]
        simulator.forget_fallbacks()
        kernel[(4,)](x, y, 100, BLOCK=32)
        assert simulator.fallbacks() == {}, "arguments were copied"
        same(y, x.cpu() + 1)
        assert not whole[:50].any() and not whole[150:].any()
    raises(ValueError, "cannot be accessed from Triton (cpu tensor?)", lambda: kernel[(4,)](x, y.cpu(), 100, BLOCK=32))
    on_cpu = torch.zeros(4)
    kernel[(1,)](on_cpu, on_cpu, 4, BLOCK=4)
    assert on_cpu.tolist() == [1, 1, 1, 1]


@check
def one_name_per_process():
    simulator.simulate("npu", arch="910b")
    raises(simulator.CannotSimulate, "one name per process", lambda: simulator.simulate("mlu"))
    raises(simulator.CannotSimulate, "one name per process", lambda: simulator.simulate("npu", arch="310p"))


found = {}
for name, fn in CHECKS.items():
    try:
        fn()
        found[name] = ""
    except Exception:
        found[name] = traceback.format_exc()
print(json.dumps(found))
