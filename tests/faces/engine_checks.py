"""Checks of `enable`, `disable`, `use` and `native`, which run on a simulated device and on a GPU.

Each check is a function; `run(device)` calls all checks, and returns those that fail with their tracebacks.
"""

from __future__ import annotations

import gc
import itertools
import json
import operator
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from opinfo import KernelCallCounter
from torch import Tensor, nn

import opmux
from opmux.core.default import get_default_manager
from opmux.core.errors import UnknownName
from opmux.cpp import launching
from opmux.faces.aten import engine, gate, switch
from opmux.faces.aten.overloads import table

CHECKS: dict[str, Callable[[], None]] = {}
DEVICE = "npu"
THOROUGH = True


def check(fn: Callable[[], None]) -> Callable[[], None]:
    CHECKS[fn.__name__] = fn
    return fn


def run(device: str, names: list[str] | None = None, thorough: bool = True) -> dict[str, str]:
    """Run checks, with nothing enabled when a check starts; return the traceback of each check that fails."""
    global DEVICE, THOROUGH
    DEVICE, THOROUGH = device, thorough
    failed = {}
    for name in names or CHECKS:
        torch.manual_seed(0)
        try:
            CHECKS[name]()
        except Exception:
            failed[name] = traceback.format_exc()
        finally:
            opmux.disable()
    return failed


def rand(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape).to(DEVICE).requires_grad_(grad)


@contextmanager
def ours(*overloads: str, times: int | None = None) -> Iterator[KernelCallCounter]:
    """Enable our kernels, and assert that they served each of these overloads. Without names, they must serve none."""
    with KernelCallCounter() as count, opmux.use(mode="all"):
        yield count
    missing = [n for n in overloads if n not in count.served]
    assert not missing, f"{missing} were not served; served: {dict(count.served)}"
    assert overloads or not count.served, f"served: {dict(count.served)}"
    assert times is None or count.served.total() == times, f"served: {dict(count.served)}"


def raises(kind: type[Exception], words: str, fn: Callable[[], Any]) -> None:
    try:
        fn()
    except kind as error:
        assert words in str(error), f"{words!r} is not in: {error}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def same(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, equal_nan=True, check_stride=True)


def both(fn: Callable[[], Any], *overloads: str) -> None:
    """Assert that `fn` has the same result natively and with our kernels, which must serve these overloads."""
    expected = fn()
    with ours(*overloads):
        got = fn()
    same(got, expected)


# ---- enable, disable and use ----------------------------------------------------------------------------------------


@check
def enable_and_disable() -> None:
    assert opmux.enabled_ops() == []
    names = opmux.enable(mode="all")
    assert names == opmux.enabled_ops() == sorted(names) and {"add.Tensor", "relu", "relu_", "add.out"} <= set(names)
    assert len(names) > 500
    # a second call replaces the selection
    assert opmux.enable(include=["relu"], mode="all") == ["relu", "relu.out", "relu_"]
    opmux.disable()
    assert opmux.enabled_ops() == []
    x = rand(5)
    same(torch.relu(x).cpu(), torch.relu(x.cpu()))


@check
def selections() -> None:
    chosen = lambda **options: set(opmux.enable(mode="all", **options))
    assert chosen(include="softmax") == {"_softmax", "_softmax.out"}  # an opmux op name selects its ATen overloads
    assert chosen(include=["aten::add.Tensor", "exp.default"]) == {"add.Tensor", "exp"}
    assert chosen(include=["*softmax*"]) > chosen(include=["softmax"])
    assert chosen(include="family:softmax") >= {"_softmax", "_log_softmax", "_softmax_backward_data"}
    assert {"add.Tensor", "add_.Tensor", "add.out"} <= chosen(include=["add"])
    everything = chosen()
    assert everything - chosen(exclude=["family:pointwise"]) >= {"add.Tensor", "exp", "exp_"}
    assert chosen(include=["add"], exclude=["add.out"]) == chosen(include=["add"]) - {"add.out"}
    assert chosen(include=["linalg_eigvals"]) == set()  # an ATen op that we do not override
    assert chosen(include=[]) == set()


@check
def unknown_names() -> None:
    raises(UnknownName, "did you mean '_softmax'", lambda: opmux.enable(include=["_softmx"], mode="all"))
    raises(UnknownName, "family:", lambda: opmux.enable(include=["family:sofmax"], mode="all"))
    raises(UnknownName, "add.Tensr", lambda: opmux.enable(exclude=["add.Tensr"], mode="all"))
    raises(UnknownName, "*nothing*", lambda: opmux.use(include=["*nothing*"], mode="all").__enter__())
    raises(TypeError, "takes names such as", lambda: opmux.enable(include=[torch.add], mode="all"))
    raises(ValueError, "mode = 'fastest'", lambda: opmux.enable(mode="fastest"))
    assert opmux.enabled_ops() == []


@check
def blocks_nest() -> None:
    inner = opmux.use(include=["relu"], mode="all")
    on = lambda *names: [n in engine.STATE.on for n in names]
    with opmux.use(include=["exp"], mode="all"):
        assert on("exp", "relu") == [True, False]
        with inner, inner:  # the innermost block counts; a block may be entered twice
            assert on("exp", "relu") == [False, True]
        assert on("exp", "relu") == [True, False]
    assert on("exp", "relu") == [False, False]
    opmux.enable(include=["sin"], mode="all")
    with inner:
        assert on("sin", "relu") == [False, True]
    assert on("sin", "relu") == [True, False]


@check
def blocks_end_by_exceptions_and_by_disable() -> None:
    try:
        with opmux.use(mode="all"):
            raise KeyError
    except KeyError:
        assert not switch._stack and opmux.enabled_ops() == []
    with opmux.use(mode="all"):
        opmux.disable()
        assert opmux.enabled_ops() == []
        same(torch.exp(torch.ones(2, device=DEVICE)).cpu(), torch.ones(2).exp())
    with opmux.use(include=["exp"], mode="all"):  # registers again what disable() removed
        assert "exp" in opmux.enabled_ops()


@check
def decorators() -> None:
    @opmux.use(include=["exp"], mode="all")
    def inside(x: Tensor) -> Tensor:
        assert opmux.enabled_ops() == ["exp", "exp.out", "exp_"]
        return inside(x - 1) if x > 0 else torch.exp(x)

    assert inside.__name__ == "inside"
    assert inside(torch.tensor(2.0, device=DEVICE)).item() == 1
    assert opmux.enabled_ops() == []


@check
def threads_share_the_switch() -> None:
    states = []
    with opmux.use(mode="all"):
        thread = threading.Thread(target=lambda: states.append("exp" in engine.STATE.on))
        thread.start()
        thread.join()
    assert states == [True]


@check
def many_threads_may_switch_and_compute() -> None:
    errors: list[BaseException] = []
    x = torch.ones(4, device=DEVICE)
    expected = (x.exp() + x).cpu()

    def work() -> None:
        try:
            for _ in range(15):
                with opmux.use(include=["exp", "add"], mode="all"):
                    same((x.exp() + x).cpu(), expected)
                same((x.exp() + x).cpu(), expected)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not errors, errors
    assert not get_default_manager().failures()
    assert not switch._stack and not engine.STATE.on and not engine.STATE.inside


@check
def entering_a_block_takes_microseconds() -> None:
    block = opmux.use(mode="all")
    with block:
        pass
    best = min(timed(lambda: block.__enter__().__exit__()) for _ in range(200))
    assert best < 50e-6, f"{best * 1e6:.0f} us"


def timed(fn: Callable[[], Any]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


@check
def disabling_restores_torchs_registrations() -> None:
    """After many rounds, each overridden op has exactly the kernels that it had before."""
    names = list(opmux.enable(mode="all"))
    opmux.disable()
    dump = lambda: {n: torch._C._dispatch_dump(f"aten::{n}") for n in names}
    before = dump()
    for _ in range(100 if THOROUGH else 20):
        opmux.enable(mode="all")
        opmux.disable()
    assert dump() == before
    assert len(get_default_manager()._known) < 5 * len(names)  # no cache grows with each round


@check
def a_hundred_training_steps_leave_no_state() -> None:
    """Enable before each step and disable after it: losses and gradients equal torch's, and overrides and memory do not
    accumulate.
    """
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(DEVICE)
    x, names = rand(3, 4), ["relu", "threshold_backward", "sum"]

    def step() -> list[Tensor]:
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    def rounds(count: int) -> None:
        for _ in range(count):
            opmux.enable(include=names, mode="all")
            torch.testing.assert_close(step(), native, atol=1e-5, rtol=1e-4)
            opmux.disable()
        gc.collect()

    native = step()
    rounds(2)
    with ours("relu", "threshold_backward", "sum"):
        step()
    opmux.disable()
    registrations = lambda: (
        {n: torch._C._dispatch_dump(f"aten::{n}") for n in table()},
        [len(d._libraries) + len(d._gates) + len(d.entries) for d in engine._devices.values()],
        [len(one) for one in (gate._slots, gate._made, gate._selections, launching._LaunchingState.paused)],
    )
    rounds(10)
    before, objects = registrations(), len(gc.get_objects())
    rounds(90)
    grown = len(gc.get_objects()) - objects
    after = registrations()
    assert after == before, f"{before[1:]}, then {after[1:]}"
    assert grown < 90, f"{grown} objects are kept of 90 rounds"


@check
def an_out_with_other_strides_is_written_by_index() -> None:
    """Compare with the call without `out`, because some of torch's CUDA kernels write it as if it were contiguous."""
    x = rand(2, 3, 8, 8)
    calls: dict[str, Callable[..., Any]] = {
        "avg_pool2d.out": lambda **out: torch._C._nn.avg_pool2d(x, 3, **out),
        "split_with_sizes_copy.out": lambda **out: torch.split_with_sizes_copy(x, [3, 5], 2, **out),
    }
    for name, call in calls.items():
        expected = call()
        several = [*expected] if isinstance(expected, (list, tuple)) else [expected]
        for transposed in (False, True):
            shape = lambda t: tuple(reversed(t.shape)) if transposed else (*t.shape, 2)  # noqa: B023
            memory = [torch.full(shape(t), 7.0, device=DEVICE) for t in several]
            outs = [m.permute(3, 2, 1, 0) if transposed else m[..., 0] for m in memory]
            with ours(name):
                call(out=outs if len(outs) > 1 else outs[0])
            for m, out, y in zip(memory, outs, several, strict=True):
                same(out.contiguous(), y)
                assert transposed or bool((m[..., 1] == 7).all()), f"{name} writes between the elements of out"


# ---- which implementation runs --------------------------------------------------------------------------------------


@check
def our_kernels_serve_calls() -> None:
    x, y = rand(4, 8), rand(4, 8)
    both(lambda: [x + y, x * 2, torch.softmax(x, -1), x.sum(1), F.layer_norm(x, (8,)), x.cumsum(0)],
         "add.Tensor", "mul.Tensor", "_softmax", "sum.dim_IntList", "native_layer_norm", "cumsum")  # fmt: skip


@check
def native_is_torchs_own() -> None:
    x, y = rand(3, 4), rand(3, 4)
    adds = ("add.Tensor", "aten::add.Tensor", torch.ops.aten.add.Tensor, "add", torch.ops.aten.add)
    out = torch.empty_like(x)
    with ours():
        sums = [opmux.native(op)(x, y, alpha=2) for op in adds]
        results = [opmux.native(op)(x) for op in ("relu", torch.ops.aten.relu.default)]
        results += [opmux.native("mm")(x, y.t()), opmux.native("add.Tensor")(x, 2)]
        assert opmux.native("exp.out")(x, out=out) is out
    same(sums, [torch.add(x, y, alpha=2)] * len(adds))
    same([*results, out], [torch.relu(x), torch.relu(x), x @ y.t(), x + 2, x.exp()])
    same(opmux.native("add")(x, y), x + y)
    raises(UnknownName, "did you mean", lambda: opmux.native("add.Tensr"))
    raises(UnknownName, "did you mean 'softmax'", lambda: opmux.native("softmx"))
    raises(TypeError, "native takes", lambda: opmux.native(torch.add))


@check
def references_do_not_reenter_overrides() -> None:
    x = rand(4, 6)
    with KernelCallCounter() as count, opmux.use(mode="all"), opmux.policy("reference"):
        y = opmux.ops.softmax(x)
        z = torch.softmax(x, -1)
        w = opmux.ops.aten_gelu(x) if hasattr(opmux.ops, "aten_gelu") else F.gelu(x)
    assert not count.served, count.served
    same(y, torch.softmax(x, -1))
    same(z, y)
    same(w, F.gelu(x))
    assert not engine.STATE.inside


@check
def policies_apply_to_atens_ops() -> None:
    x = rand(4)
    with ours("exp"), opmux.policy(per_op={"sin": "reference"}):
        x.sin(), x.exp()
    with ours(), opmux.policy("impl:native"):
        x.exp()
    raised = []
    with opmux.use(mode="all"), opmux.policy(strict=True):
        try:
            torch.exp(torch.ones(2, dtype=torch.complex64, device=DEVICE))
        except Exception as error:
            raised.append(error)
    assert "strict" in str(raised[0]) or "complex" in str(raised[0]), raised


@check
def explanations_name_what_runs() -> None:
    x = rand(4)
    opmux.enable(mode="all")
    for op in ("add.Tensor", "relu.default", "aten::relu.default"):
        text = str(opmux.explain(op, x, x) if op.startswith("add") else opmux.explain(op, x))
        assert "chosen" in text and "native" in text and "default.flagos" in text, text


@check
def a_failing_kernel_falls_back() -> None:
    manager = get_default_manager()
    overload = table()["exp"]
    lifted = type(overload).lifted

    def broken(*args: Any) -> Any:
        raise RuntimeError("my own")

    def failing(self: Any, impls_of: Any) -> Iterator[Any]:
        import dataclasses

        for impl in lifted(self, impls_of):
            yield dataclasses.replace(impl, fn=broken) if self is overload and impl.impl_id != "native" else impl

    type(overload).lifted = failing
    try:
        manager.invalidate("a test")
        x = rand(5)
        with opmux.use(mode="all"):
            same(x.exp().cpu(), x.cpu().exp())
        assert [f.op for f in manager.failures()] == ["exp.default"]
    finally:
        type(overload).lifted = lifted
        manager.clear_quarantine()


# ---- numbers, and tensors of every kind -----------------------------------------------------------------------------

NUMBERS = (2, 2.5, True, 1 + 2j)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.bool, torch.complex64)
PAIRS = (torch.add, operator.truediv, torch.eq, operator.pow, torch.fmod)


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        result = fn(*args)
        return result.dtype, tuple(result.shape), result.cpu()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return type(error)


def results_match(a: Any, b: Any) -> bool:
    if not isinstance(a, tuple) or not isinstance(b, tuple):
        return a == b
    return a[:2] == b[:2] and torch.allclose(a[2].to(torch.complex128), b[2].to(torch.complex128), 1e-2, equal_nan=True)


@check
def numbers_promote_as_in_torch() -> None:
    tensors = [torch.ones(shape, dtype=d).to(DEVICE) for d in DTYPES for shape in ((3,), ())]
    values = [*NUMBERS, torch.tensor(3.0), torch.tensor(3, dtype=torch.int16), *tensors[:6:2]]
    # Unless THOROUGH, test every fourth combination; this still tests each dtype and each function with some values.
    for fn, x, value in itertools.islice(itertools.product(PAIRS, tensors, values), 0, None, 1 if THOROUGH else 4):
        for args in ((x, value), (value, x)):
            expected = outcome(fn, *args)
            with opmux.use(mode="all"):
                got = outcome(fn, *args)
            assert results_match(got, expected), f"{fn.__name__}{args}: {got}, native {expected}"
            if isinstance(expected, tuple) and fn.__name__ in ("add", "eq"):
                native = outcome(opmux.native(fn.__name__), *args)
                assert results_match(native, expected), f"native {fn.__name__}{args}: {native}, torch {expected}"


@check
def a_number_may_replace_the_first_tensor() -> None:
    """torch's C++ code calls ops with a number as the first tensor, for example for `2 * x` in a backward."""
    x = rand(3)
    opmux.enable(mode="all")
    for name in ("mul.Tensor", "add.Tensor", "sub.Tensor", "atan2", "where.self"):
        op = table()[name].shape.op
        args = (x > 0, 2, x) if name.startswith("where") else (2, x)
        try:
            expected = op(*[torch.tensor(2.0) if a is not x and isinstance(a, int) else a for a in args])
            got = op(*args)
        except (RuntimeError, TypeError):
            continue
        same(got, expected)
    y = rand(8, grad=True)
    spectrum = torch.fft.irfft(torch.fft.rfft(y))
    spectrum.sum().backward()
    assert y.grad is not None


@check
def zero_dim_cpu_tensors() -> None:
    x = rand(3, 4)
    make = lambda: [x + torch.tensor(2.0), x * torch.tensor(3), torch.where(x > 0, x, torch.tensor(0.5))]
    both(make, "add.Tensor", "mul.Tensor", "where.self")
    raises(RuntimeError, "", lambda: x + torch.ones(3, 4))
    with opmux.use(mode="all"):
        raises(RuntimeError, "", lambda: x + torch.ones(3, 4))


@check
def complex_tensors_are_left_to_torch() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64).to(DEVICE)
    both(lambda: [z + z, z * 2, z.exp(), z.sum(), z.abs(), torch.angle(z), z.cumsum(0), z.conj() + 1])
    both(lambda: [z.real + 1, z.conj().imag + 1, z.imag.exp()], "add.Tensor", "exp")
    x = rand(3, 4)
    both(lambda: [x + 1j, x * z, torch.view_as_real(z * x)])


@check
def overlapping_memory_behaves_as_in_torch() -> None:
    partly = lambda x: x[1:].add_(x[:-1])
    in_itself = lambda x: x[:1].expand(4).mul_(2)
    for make in (partly, in_itself, lambda x: torch.exp(x[:-1], out=x[1:])):
        x = rand(5)
        expected = outcome(make, x.clone())
        with opmux.use(mode="all"):
            assert results_match(outcome(make, x.clone()), expected)
    x = rand(5)
    y, z, a = x.clone(), x.clone(), x.clone()
    torch.exp(y, out=y)
    with ours("exp.out", "add_.Tensor"):
        torch.exp(z, out=z)
        a.add_(a)
    same([z, a], [y, x + x])


@check
def views_and_leaves() -> None:
    raises(RuntimeError, "leaf", lambda: rand(3, grad=True).add_(1))
    with opmux.use(mode="all"):
        raises(RuntimeError, "leaf", lambda: rand(3, grad=True).add_(1))

    def through_views() -> list[Tensor]:
        torch.manual_seed(3)
        x = rand(4, 6, grad=True)
        y = x * 2
        y[1:3].mul_(3)
        y.t()[2].exp_()
        y.sum().backward()
        return [y.detach(), x.grad]

    both(through_views, "mul_.Tensor", "exp_")


@check
def versions_and_results_of_in_place_ops() -> None:
    x = rand(4)
    with ours("add_.Tensor"):
        version = x._version
        assert x.add_(1) is x and x._version == version + 1
        out = torch.empty_like(x)
        version = out._version
        assert torch.add(x, 1, out=out) is out and out._version == version + 1


@check
def a_declined_call_writes_nothing() -> None:
    x = torch.ones(3, dtype=torch.int32, device=DEVICE)
    with opmux.use(mode="all"):
        raises(RuntimeError, "can't be cast", lambda: x.add_(1.5))
        raises(RuntimeError, "", lambda: torch.add(x, x, out=torch.zeros(4, device=DEVICE)[::2].expand(3, 2).t()[0]))
    assert x.tolist() == [1, 1, 1]


@check
def sparse_and_nested() -> None:
    if DEVICE != "cuda":
        return  # the simulated device has only strided tensors
    x = rand(4, 5).relu()
    sparse, csr = x.to_sparse(), x.to_sparse_csr()
    nested = torch.nested.nested_tensor([rand(2, 3), rand(4, 3)])
    for make in (
        lambda: [t.to_dense() for t in (sparse + sparse, sparse * 2, sparse.relu(), csr.sin())],
        lambda: torch.sparse.softmax(sparse, 1).to_dense(),
        lambda: [*(nested * 2).unbind(), *torch.softmax(nested, -1).unbind()],
    ):
        expected = make()
        with opmux.use(mode="all"):
            same(make(), expected)


@check
def cpu_tensors_are_left_to_torch() -> None:
    x = torch.randn(3, 4)
    quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    sparse = x.relu().to_sparse()
    nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    make = lambda: [x + x, x.exp(), quantized.relu().dequantize(), (sparse * 2).to_dense(), *(nested * 2).unbind()]
    expected = make()
    with KernelCallCounter() as count, opmux.use(mode="all"):
        same(make(), expected)
    assert not count.served


@check
def meta_tensors() -> None:
    x = torch.empty(3, 4, device="meta")
    with KernelCallCounter() as count, opmux.use(mode="all"):
        y = torch.softmax(x + 1, -1).sum(0)
    assert y.is_meta and y.shape == (4,) and not count.served


@check
def other_devices_in_one_call() -> None:
    if torch.accelerator.device_count() < 2:
        return
    a, b = rand(3).to(f"{DEVICE}:0"), rand(3).to(f"{DEVICE}:1")
    raises(RuntimeError, "", lambda: a + b)
    with opmux.use(mode="all"):
        raises(RuntimeError, "", lambda: a + b)
        assert (b + b).device == b.device and b.sum().device == b.device


# ---- torch's modes --------------------------------------------------------------------------------------------------


@check
def gradients_of_composites() -> None:
    """A composite op must get its gradient from the ops that it calls."""
    ops: list[Callable[[Tensor], Tensor]] = [
        torch.square, F.silu, F.selu, F.relu6, lambda x: torch.softmax(x, -1), lambda x: F.log_softmax(x, 0),
        lambda x: F.layer_norm(x, (4,)), lambda x: F.rms_norm(x, (4,)), lambda x: x.var(0), lambda x: x.std(),
        lambda x: F.batch_norm(x, None, None, training=True), lambda x: F.group_norm(x, 2), lambda x: x.norm(),
        lambda x: F.cross_entropy(x, torch.zeros(3, dtype=torch.int64, device=DEVICE)), F.gelu, F.mish, F.softplus,
        lambda x: F.prelu(x, x.new_ones(1)), lambda x: torch.clamp(x, -1, 1), lambda x: torch.logsumexp(x, 1),
        lambda x: torch.where(x > 0, x, -x), lambda x: x.cumsum(0), lambda x: F.glu(x), lambda x: x.prod(),
        lambda x: torch.addcmul(x, x, x, value=2), lambda x: x.max(1)[0], lambda x: x.amax(0), torch.special.expit,
    ]  # fmt: skip
    for i, fn in enumerate(ops):

        def once(fn: Callable[[Tensor], Tensor] = fn) -> list[Any]:
            torch.manual_seed(5)
            x = rand(3, 4, grad=True)
            y = fn(x)
            y.sum().backward()
            return [y.detach(), x.grad]

        try:
            expected = once()
        except NotImplementedError:  # the device has no kernel for this gradient
            continue
        with opmux.use(mode="all"):
            got = once()
        torch.testing.assert_close(got, expected, msg=lambda m, index=i: f"op {index}: {m}")


@check
def dropout_keeps_its_gradient() -> None:
    x = rand(64, 64, grad=True)
    with opmux.use(mode="all"):
        y = F.dropout(x, 0.5)
        y.sum().backward()
    original = y.detach() != 0
    assert 0.4 < original.float().mean().item() < 0.6
    same(x.grad, original * 2.0)


@check
def training_losses_match_torchs() -> None:
    def losses() -> Tensor:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(DEVICE)
        step = torch.optim.Adam(model.parameters(), lr=0.05)
        x, y = rand(12, 8), torch.arange(12).to(DEVICE) % 4
        losses = []
        for _ in range(4):
            step.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    expected = losses()
    with ours("gelu", "gelu_backward", "native_layer_norm", "_log_softmax", "_log_softmax_backward_data"):
        got = losses()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert got[-1] < got[0]


@check
def second_gradients() -> None:
    def twice() -> Tensor:
        torch.manual_seed(2)
        x = rand(5, grad=True)
        (g,) = torch.autograd.grad((F.gelu(x) * torch.tanh(x)).sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    expected = twice()
    with opmux.use(mode="all"):
        torch.testing.assert_close(twice(), expected, rtol=1e-4, atol=1e-4)


@check
def functional_transforms() -> None:
    x, t = rand(4, 5), rand(4, 5)
    fn = lambda x: torch.softmax(F.gelu(x * 2), -1).sum(-1)
    for make in (
        lambda: torch.func.vmap(fn)(x),
        lambda: torch.func.vmap(lambda a, b: torch.add(a, b, alpha=2))(x, t),
        lambda: torch.func.jvp(fn, (x,), (t,)),
        lambda: torch.func.grad(lambda x: fn(x).sum())(x),
        lambda: torch.func.vmap(torch.func.grad(lambda x: torch.exp(x).sum()))(x),
        lambda: torch.func.jacrev(lambda x: torch.tanh(x).sum(-1))(x),
    ):
        expected = make()
        with opmux.use(mode="all"):
            torch.testing.assert_close(make(), expected)


@check
def inference_and_no_grad() -> None:
    x = rand(3, 4, grad=True)
    for mode in (torch.no_grad, torch.inference_mode):
        with ours("exp", "add.Tensor"), mode():
            y = torch.exp(x) + 1
            assert not y.requires_grad and y.is_inference() == (mode is torch.inference_mode)
            y.add_(1)


@check
def autocast() -> None:
    x, w = rand(4, 8), rand(8, 8)

    def make() -> list[Tensor]:
        with torch.autocast(DEVICE, torch.bfloat16):
            y = x @ w
            return [y, torch.softmax(y, -1), F.layer_norm(y, (8,)), y + 1, y.exp(), y.sum()]

    expected = make()
    with ours("_softmax"):
        got = make()
    assert [t.dtype for t in got] == [t.dtype for t in expected]
    torch.testing.assert_close(got, expected)


@check
def deterministic_mode() -> None:
    x = rand(4, 8)
    torch.use_deterministic_algorithms(True)
    try:
        both(lambda: [x.sum(0), x.cumsum(1), torch.softmax(x, 0)], "sum.dim_IntList", "cumsum", "_softmax")
    finally:
        torch.use_deterministic_algorithms(False)


@check
def fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with KernelCallCounter() as count, opmux.use(mode="all"):
        with FakeTensorMode() as mode:
            x = mode.from_tensor(rand(3, 4))
            y = torch.softmax(F.gelu(x) + 1, -1).sum(0)
            x.add_(1)
        assert y.shape == (4,) and y.device.type == DEVICE
    assert not count.served


@check
def compiled_code() -> None:
    """Compiled code runs our kernels while they are enabled, even if it was first traced while they were disabled."""
    fn = lambda x: torch.softmax(F.gelu(x) + x.sum(0), -1)
    x = rand(3, 4, grad=True)
    expected = fn(x)
    for on in (True, False):
        torch._dynamo.reset()
        compiled = torch.compile(fn, backend="aot_eager", fullgraph=True)
        if not on:
            torch.testing.assert_close(compiled(x), expected)
        with ours("_softmax", "add.Tensor"):
            got = compiled(x)
            got.sum().backward()
        torch.testing.assert_close(got, expected)
        x.grad = None


@check
def subclasses() -> None:
    class Named(Tensor):
        pass

    x = rand(3, 4).as_subclass(Named)
    with ours("exp", "add.Tensor"):
        y = torch.exp(x) + 1
    assert type(y) is Named
    same(y.as_subclass(Tensor), x.as_subclass(Tensor).exp() + 1)
    p = nn.Parameter(rand(3))
    with ours("mul.Tensor"):
        (p * 2).sum().backward()
    same(p.grad, torch.full_like(p, 2.0).detach())


@check
def wrappers_of_tensors() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(rand(3, 4), rand(3, 4))
    with ours("exp"):
        y = torch.exp(x)
    assert type(y) is TwoTensor
    same(y.b, x.b.exp())


@check
def dispatch_modes_see_the_same_ops() -> None:
    from opinfo import OpRecorder

    x = rand(3, 4, grad=True)

    def names() -> set[str]:
        with OpRecorder() as recorded:
            torch.autograd.grad(torch.softmax(F.gelu(x) * 2, -1).sum(), x)
        return recorded.names

    expected = names()
    with opmux.use(mode="all"):
        got = names()
    assert got == expected, got ^ expected


@check
def nothing_recurses() -> None:
    """Wrappers and replay plans call ATen for copies, padding, zeros and casts: these calls must not run our override
    again.
    """
    x = rand(6, 10)
    odd = [x.t(), x[::2, 1:], x[:, :1].expand(6, 4), x[:0], x[0, 0], x.double(), x.bfloat16(), x.to(torch.int32)]
    fns = [torch.sum, torch.exp, lambda t: t + t, lambda t: torch.softmax(t.float(), -1), lambda t: t.float().cumsum(0),
           lambda t: t.float().std(0), torch.zeros_like, lambda t: t.clone().fill_(1), lambda t: t.clone().copy_(t),
           lambda t: F.layer_norm(t.float(), t.shape[-1:]), lambda t: torch.rand_like(t.float())]  # fmt: skip
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        for fn, t in itertools.product(fns, odd):
            expected = outcome(fn, t)
            with opmux.use(mode="all"):
                got = outcome(fn, t)
            assert got is expected or got[:2] == expected[:2], (got, expected)  # outcome() catches RecursionError too
    finally:
        sys.setrecursionlimit(limit)
    assert not engine.STATE.inside


# ---- vendors --------------------------------------------------------------------------------------------------------


class Negated(torch.autograd.Function):
    """A vendor's function with its own gradient, which differs from torch's."""

    @staticmethod
    def forward(ctx: Any, self: Tensor) -> Tensor:
        return -self

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 7


def _rows_of(rows: list[tuple], unused: tuple[str, ...], body: Callable[[], None]) -> None:
    """Run `body` while `rows` are the vendor's ops on the device."""
    from opmux.machine import vendor_ops, vendors
    from opmux.machine.here import HERE

    original = HERE.ops(DEVICE)
    module = types.ModuleType("acme.ops")
    module.__file__ = __file__
    module.get_specific_ops, module.get_unused_ops = lambda: rows, lambda: unused  # type: ignore[attr-defined]
    from opmux.machine import devices

    package = devices.vendor_of(DEVICE)
    assert package is not None
    ops = vendor_ops.VendorOps()
    vendor_ops._OpsReader(package, package.module, module, ops).read()
    key = (vendors.generation(), package.name, HERE.arch_of(DEVICE))
    HERE._ops[key] = ops
    HERE._unused.clear()
    engine.forget()
    get_default_manager().clear_quarantine()  # an earlier check may have quarantined this id
    try:
        body()
    finally:
        opmux.disable()
        HERE._ops[key] = original
        HERE._unused.clear()
        for overload in table().values():
            overload.rows.pop(DEVICE, None)
        registry = get_default_manager().registry
        for impl in ops.impls:
            if impl in registry.impls(impl.op_name):
                registry.unregister(impl.op_name, impl.impl_id)
        engine.forget()
        get_default_manager().invalidate("a test")


@check
def rows_of_a_vendor() -> None:
    from opmux.backends import Autograd

    calls: list[str] = []

    def doubled(self: Tensor) -> Tensor:
        calls.append("sin")
        return self * 2

    def sevens(self: Tensor) -> Tensor:
        calls.append("sevens")
        return self.new_full(self.shape, 7.0)

    def body() -> None:
        x = rand(3, grad=True)
        opmux.enable(mode="all")
        same(torch.sin(x).detach(), (x * 2).detach())  # the vendor's result, with torch's gradient
        torch.sin(x).sum().backward()
        same(x.grad, x.detach().cos())
        x.grad = None
        same(torch.cos(x).detach(), -x.detach())  # the vendor's own gradient
        torch.cos(x).sum().backward()
        same(x.grad, torch.full_like(x, 7.0).detach())
        x.grad = None
        y = torch.square(x)  # composite: with a gradient, torch's decomposition runs
        y.sum().backward()
        same(x.grad, 2 * x.detach())
        calls.clear()
        assert torch.square(x.detach()).tolist() == [7.0] * 3 and calls == ["sevens"]
        assert "exp" not in opmux.enabled_ops()
        same(torch.exp(x.detach()), opmux.native("exp")(x.detach()))

    rows = [("sin", doubled, Autograd.disable), ("cos", Negated, Autograd.enable), ("square", sevens, Autograd.disable)]
    _rows_of(rows, ("exp",), body)
    x = rand(3)
    with ours("exp", "sin"):
        same(torch.exp(x), opmux.native("exp")(x))
        same(torch.sin(x), opmux.native("sin")(x))


@check
def pow_scalar_works_with_only_the_tensor_overload_overridden() -> None:
    """torch's pow.Scalar puts its number into a tensor on the device and calls pow.Tensor_Tensor."""
    x = rand(4)
    for include in ("pow.Tensor_Tensor", "pow.Tensor_Tensor_out", "pow"):
        for number in (2.0, 3, 1, 2j):
            plain = number ** x.cpu()
            with opmux.use(include=[include], mode="all"):
                same((number**x).cpu(), plain)
                same((number ** x[0]).cpu(), plain[0])
                same(torch.pow(number, x, out=torch.empty(4, dtype=plain.dtype, device=x.device)).cpu(), plain)
            same((number**x).cpu(), plain)  # registered, but not enabled
        opmux.disable()


@check
def searchsorted_scalar_works_with_only_the_tensor_overload_overridden() -> None:
    """torch's searchsorted.Scalar puts its number into a tensor on the device and calls searchsorted.Tensor."""
    rows = torch.arange(8.0, device=rand(1).device)
    order = torch.arange(8, device=rows.device)
    for include in ("searchsorted.Tensor", "searchsorted.Tensor_out", "searchsorted"):
        for number in (2.5, 3):
            with opmux.use(include=[include], mode="all"):
                for values in (rows, rows.long()):
                    assert int(torch.searchsorted(values, number)) == 3
                    assert int(torch.searchsorted(values, number, sorter=order)) == 3
                out = torch.searchsorted(rows, number, out=torch.empty(0, dtype=torch.int64, device=rows.device))
                assert out.shape == () and int(out) == 3
        opmux.disable()


@check
def rows_that_take_tensors_only() -> None:
    """A call with a number in place of a tensor goes to the next candidate; the vendor's op gets all other calls."""
    from opmux.backends import Autograd

    calls: list[str] = []

    def add(self: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
        calls.append("add")
        return self.contiguous().view(-1).sub(other.neg().view(-1), alpha=alpha).view(self.shape)

    def add_(self: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
        calls.append("add_")
        return self.copy_(add(self, other, alpha=alpha))

    def body() -> None:
        x, y = rand(4), rand(4)
        plain = [(x.cpu() + 1), (2 - x.cpu()) * -1 + 3, x.cpu() + y.cpu()]
        opmux.enable(mode="all")
        for _ in range(5):  # more calls than it takes to quarantine or to trust an op
            for result in (x + 1, torch.add(x, 1), 1 + x, x.clone().add_(1)):
                same(result.cpu(), plain[0])
            same(torch.add(x, 1, alpha=2).cpu(), x.cpu() + 2)
        calls.clear()
        same((x + y).cpu(), plain[2])
        same(x.clone().add_(y).cpu(), plain[2])
        failed = [str(f) for f in get_default_manager().failures() if "add" in f.op]
        assert (calls, failed) == (["add", "add_", "add"], [])

    _rows_of([("add.Tensor", add, Autograd.disable), ("add_.Tensor", add_, Autograd.disable)], (), body)


@check
def rows_above_autograd_that_fail() -> None:
    from opmux.backends import Autograd

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, self: Tensor) -> Tensor:
            raise RuntimeError("my own")

    def body() -> None:
        x = rand(3, grad=True)
        opmux.enable(mode="all")
        same(torch.cos(x).detach().cpu(), x.detach().cpu().cos())  # torch's result, with torch's gradient
        torch.cos(x).sum().backward()
        same(x.grad.cpu(), -x.detach().cpu().sin())
        with opmux.policy(strict=True):
            raises(RuntimeError, "my own", lambda: torch.cos(x))

    _rows_of([("cos", Broken, Autograd.enable)], (), body)


@check
def compositions_keep_their_gradient() -> None:
    """Only our kernel of `F.rms_norm` exists on the device: torch decomposes the op, whose backward has no kernel."""
    if DEVICE == "cuda":
        return
    views = (lambda x: x, lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[:, :1].expand(4, 8))

    def gradient(view: Callable[[Tensor], Tensor], turn: Callable[[], Any] = lambda: None) -> list[Any]:
        torch.manual_seed(4)
        x = rand(4, 8, grad=True)
        y = F.rms_norm(view(x), view(x).shape[-1:])
        turn()
        (grad,) = torch.autograd.grad(y, x, y.detach().new_ones(()).expand(y.shape))
        return [y.detach(), grad]

    for view in views:
        expected = gradient(view)
        with opmux.use(mode="all"):
            same(gradient(view), expected)
        with opmux.use(mode="all"), opmux.policy("reference"):
            same(gradient(view), expected)
        same(gradient(view), expected)  # registered, but disabled
        opmux.enable(mode="all")
        same(gradient(view, opmux.disable), expected)
        same(gradient(view, opmux.enable), expected)
        opmux.disable()

    def twice() -> Tensor:
        torch.manual_seed(4)
        x = rand(4, 8, grad=True)
        (g,) = torch.autograd.grad(F.rms_norm(x, (8,)).square().sum() + x.pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    expected = twice()
    with opmux.use(mode="all"):
        torch.testing.assert_close(twice(), expected, rtol=1e-4, atol=1e-4)


def main() -> None:
    from opmux.tools.simulator import simulate

    simulate(DEVICE)
    names = [n for n in sys.argv[1:] if n in CHECKS] or None
    print(json.dumps(run(DEVICE, names)))


if __name__ == "__main__":
    main()


@check
def a_call_is_counted_once() -> None:
    x = rand(3)
    with opmux.use(include=["softplus"], mode="all"):
        get_default_manager().invalidate("the next call binds again")
        with engine.counted() as calls:
            F.softplus(x), F.softplus(x)
    assert calls["softplus"] == 2, calls


@check
def an_undefined_tensor_reaches_the_native_kernel() -> None:
    """torch passes undefined tensors as None even for arguments without `?` in the schema, as for attn_bias in this
    backward.
    """
    from opmux.faces.aten.native import taking_numbers
    from opmux.faces.aten.schema import OverloadSchema

    calls = []
    shape = OverloadSchema("_scaled_dot_product_efficient_attention_backward")
    tensors = [rand(2, 2, 2, 2) for _ in range(4)]
    taking_numbers(shape, lambda keys, *args: calls.append(args))(None, *tensors, None, *tensors, 0.0, [True] * 3)
    assert calls[0][4] is None
