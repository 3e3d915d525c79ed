"""Each of our kernels, interpreted on the CPU, against its reference, in four dtypes. New memory is filled with invalid
values. Two samples run in float32 and one in every other dtype; with --slow all samples run.
"""

from __future__ import annotations

import close
import pytest
import torch
from torch.utils._pytree import tree_map_only

from opmux.core import BackendImplKind, get_default_manager, specs
from opmux.core.spec import Tol

pytest.importorskip("triton")
from opmux.kernels import norm
from opmux.kernels.lib import column_sum, plans
from opmux.kernels.lib.config import Tiles
from opmux.kernels.softmax import rows as softmax

MODE = "interpret"
CPU = torch.device("cpu")
MOST = {torch.float32: 2, torch.float16: 1, torch.bfloat16: 1, torch.float64: 1}  # number of samples
DTYPES = tuple(MOST)


def kernels():
    manager = get_default_manager()
    for spec in specs:
        for impl in manager.registry.get_implementations(spec.key) or []:
            if impl.kind is BackendImplKind.DEFAULT and impl.vendor is None and spec.space == "opmux":
                yield spec, impl


def collect():
    for family in specs.families:
        specs.load_implementers(family)
    get_default_manager().prepare()
    return sorted(kernels(), key=lambda row: row[0].name)


KERNELS = collect()


def agree(spec, got, expected, what=""):
    as_list = lambda r: list(r) if isinstance(r, (tuple, list)) else [r]
    for a, b in zip(as_list(got), as_list(expected), strict=True):
        tol = spec.tol.get(b.dtype, Tol(0, 0))  # integers must be equal
        assert a.is_contiguous() == b.is_contiguous() and a.dtype == b.dtype
        torch.testing.assert_close(
            a, b, rtol=tol.rtol, atol=tol.atol, equal_nan=True, msg=lambda m: f"{spec.name} {what}: {m}"
        )


def copies(args):
    return tree_map_only(torch.Tensor, torch.clone, args)


def written(value):
    """The tensors of an argument to which an op writes: the argument itself, the items of a list, or none for None."""
    return [t for t in (value if isinstance(value, (list, tuple)) else [value]) if t is not None]


def test_every_norm_activation_and_softmax_has_a_kernel():
    names = {spec.name for spec, _ in KERNELS}
    assert {"rms_norm", "layer_norm_bwd", "add_rms_norm", "gelu", "silu_mul_bwd"} <= names
    families = ("norm", "activation", "softmax")
    assert {s.name for s in specs if s.space == "opmux" and s.family in families} <= names


@pytest.mark.parametrize("spec, impl", KERNELS, ids=[s.name for s, _ in KERNELS])
def test_every_kernel_agrees_with_the_reference(spec, impl, few):
    for dtype in DTYPES:
        for sample in few(spec.samples(dtype, CPU), MOST[dtype]):
            agrees_on(spec, impl, sample, f"{dtype} {sample.id}")


def agrees_on(spec, impl, sample, what):
    """Assert that results and written arguments agree, and that all other arguments are unchanged."""
    args, _ = spec.bound(sample.args, {})  # a sample may omit arguments with defaults, which the dispatcher fills in
    before, theirs = copies(args), copies(args)
    got, want = impl.fn(*args), spec.reference(*theirs)
    for name, a, b, c in zip(spec.names, args, theirs, before, strict=True):
        if name in spec.mutates:
            agree(spec, written(a), written(b), f"{what} {name}")
        elif torch.is_tensor(a):
            torch.testing.assert_close(
                a, c, rtol=0, atol=0, equal_nan=True, msg=lambda m, name=name: f"{what} {name}: {m}"
            )
    if want is not None:
        agree(spec, got, want, what)


@pytest.mark.parametrize("spec, impl", KERNELS, ids=[s.name for s, _ in KERNELS])
def test_kernels_reject_what_the_reference_rejects(spec, impl):
    for bad in (b for b in spec.errors(CPU) if b.typed):
        with pytest.raises(bad.error, match=bad.match):
            impl.fn(*spec.bound(bad.args, {})[0])


@pytest.mark.parametrize("n, dtype, casting", [
    (9000, torch.float64, "gemma"), (9000, torch.float32, "gemma"), (17000, torch.bfloat16, "none"),
    (17000, torch.float32, "gemma"), (33000, torch.bfloat16, "llama"),
])  # fmt: skip
def test_norm_rows_too_long_for_registers_agree_with_the_reference(n, dtype, casting, monkeypatch):
    """Tests each algorithm of a norm (whole rows, no partial sums, rows in pieces), and a mean far from zero."""
    # Use few programs for column sums: the interpreter takes 10 ms for each of 500.
    monkeypatch.setattr(column_sum.tiles_of, "default", lambda n, dtype: Tiles(128, BLOCK_M=64, BLOCK_N=4096))
    plans.forget()
    x, dy = torch.randn(3, n, dtype=dtype) * 2 + 3, torch.randn(3, n, dtype=dtype)
    w, b = torch.randn(n, dtype=dtype), torch.randn(n, dtype=dtype)
    args_by_op = {"rms_norm": (x, w, 1e-6, 0.0, casting), "layer_norm": (x, w, b, 1e-6, 1.0),
             "add_rms_norm": (x, dy, w, 1e-6, 0.0, casting)}  # fmt: skip
    for name, args in args_by_op.items():
        spec, back = specs.find(name), specs.find(f"{name}_bwd")
        expected = spec.reference(*args)
        agree(spec, getattr(norm, name)(*args), expected, n)
        saved = {
            "rms_norm": lambda e=expected: (dy, x, w, e[1], 0.0, casting),
            "layer_norm": lambda e=expected: (dy, x, w, e[1], e[2], 1.0),
            "add_rms_norm": lambda e=expected: (dy, dy, e[1], w, e[2], 0.0, casting),
        }[name]()
        agree(back, getattr(norm, f"{name}_bwd")(*saved), back.reference(*saved), n)


@pytest.mark.parametrize("n, dtype", [(9000, torch.float64), (17000, torch.float32), (33000, torch.bfloat16)])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_long_rows_of_softmax_agree_with_the_reference(name, n, dtype):
    """Rows are read in pieces. The maximum may be in a late piece, and all elements of a piece may be -inf."""
    x = torch.randn(3, n, dtype=dtype)
    x[0, -1] = 40.0
    x[1, : n // 2] = -float("inf")
    spec, back = specs.find(name), specs.find(f"{name}_bwd")
    close.assert_close_to_exact(spec, getattr(softmax, name)(x, -1), (x, -1), n)
    # avoid -inf, for which kernel and reference give a NaN gradient of log-softmax
    saved = torch.randn_like(x), spec.reference(x).clamp(min=-1e4), -1
    close.assert_close_to_exact(back, getattr(softmax, f"{name}_bwd")(*saved), saved, n)


@pytest.mark.parametrize("n", [3, 33000])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_infinities_in_softmax_agree_with_the_reference(name, n):
    inf = float("inf")
    x = torch.zeros(4, n, dtype=torch.bfloat16)
    x[0, :2], x[1], x[2, 1], x[3, 2] = -inf, -inf, inf, float("nan")
    agree(specs.find(name), getattr(softmax, name)(x, -1), specs.find(name).reference(x), n)


def test_launching_on_meta_is_declined():
    from opmux.core import NotSupported

    with pytest.raises(NotSupported, match="meta tensor has no memory"):
        norm.rms_norm(torch.empty(3, 64, device="meta"), torch.empty(64, device="meta"), 1e-6, 0.0, "gemma")


@pytest.fixture
def alone(monkeypatch):
    """Every row is processed by a cooperative group of one program. The interpreter runs programs one after the other,
    so a program cannot wait for another.

    tests/gpu covers groups of several programs.
    """
    from opmux.kernels.lib.config import Tiles
    from opmux.kernels.lib.plans import forget

    extra = {
        softmax.cooperative_tiles: dict(STAGES=3),
        norm.forward_cooperative_tiles: {},
        norm.backward_cooperative_tiles: dict(PAIRS=False),
    }
    for tiles, more in extra.items():
        if tiles is softmax.cooperative_tiles:
            choose = lambda n, dtype, backward, m=more: Tiles(128, BLOCK_N=1024, PER_CORE=1, **({} if backward else m))
        else:
            choose = lambda n, dtype, centred, m=more: Tiles(128, BLOCK_N=1024, PER_CORE=1, **m)
        monkeypatch.setattr(tiles, "default", choose)
    for module, names in (
        (softmax, "COOPERATIVE_FROM COOPERATIVE_FROM_BWD"),
        (norm, "COOPERATIVE_FROM COOPERATIVE_FROM_BWD"),
    ):
        monkeypatch.setattr(module, "can_cooperate", lambda wide: True)
        for name in names.split():
            monkeypatch.setattr(module, name, 0)
    forget()
    yield
    forget()


@pytest.mark.parametrize(
    "spec, impl", [k for k in KERNELS if k[0].family in ("norm", "softmax")], ids=lambda v: getattr(v, "name", "")
)
def test_a_group_of_one_agrees_with_the_reference(spec, impl, alone, few):
    for dtype in DTYPES[:3]:
        short = [s for s in spec.samples(dtype, CPU) if not s.args[0].dim() or s.args[0].shape[0] <= 100]
        for sample in few(short, 4 if dtype is torch.float32 else 1):
            agree(spec, impl.fn(*sample.args), spec.reference(*sample.args), f"{dtype} {sample.id}")


def test_tensors_without_plain_memory_are_declined():
    """Tests a negated view, and a subclass that wraps another tensor. Kernels read raw memory, which has other values
    or none.
    """
    from opmux.core import NotSupported
    from opmux.kernels import wrappers

    kernels = wrappers()
    z = torch.randn(5, 64, dtype=torch.complex64)
    negated = torch._neg_view(torch.randn(5, 64))
    for key, x in (("aten::exp", z.conj().imag), ("opmux::softmax", negated), ("opmux::silu", negated)):
        with pytest.raises(NotSupported, match="a negated view"):
            kernels[key](*((x, -1) if key.endswith("softmax") else (x,)))

    class Wrapper(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(f"{func} reached a tensor that only stands for others")

    hollow = torch.Tensor._make_wrapper_subclass(Wrapper, (5, 64))
    with pytest.raises(NotSupported, match="without memory of its own"):
        kernels["opmux::silu"](hollow)
