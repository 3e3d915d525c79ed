"""Host code generated from plans: which tensors are copied, allocated and returned, and which launches run."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
import triton.language as tl

from opmux.core import specs
from opmux.core.errors import BadArgument
from opmux.core.spec import op
from opmux.kernels.lib import harness
from opmux.kernels.lib.config import Tiles
from opmux.kernels.lib.harness import Launch, Plan, RowSizes, Zeros, host_code, strided
from opmux.kernels.lib.launch import Launcher
from opmux.kernels.lib.rows import OutputSpec

pytestmark = pytest.mark.usefixtures("interpreted")


def _affine(x_ptr, w_ptr, y_ptr, count_ptr, x_stride, n_rows, n, eps, BLOCK_N: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK_N)
    m = o < n
    b_y = tl.load(x_ptr + row * x_stride + o, mask=m) * eps
    if w_ptr is not None:
        b_y += tl.load(w_ptr + o, mask=m)
    tl.store(y_ptr + row * n + o, b_y, mask=m)
    if count_ptr is not None:
        tl.atomic_add(count_ptr, 1)


affine = Launcher(_affine, sizes="x_stride n")


def scaled_rows(x: Tensor, weight: Tensor | None, eps: float = 2.0) -> tuple[Tensor, Tensor]:
    return x * eps + (0 if weight is None else weight), torch.tensor([x[..., 0].numel()], dtype=torch.int32)


@pytest.fixture
def scaled():
    new_op = op(scaled_rows, name="harness_rows", out="y count")
    plans = []

    @host_code(new_op)
    def rows(x: Tensor, weight: Tensor | None) -> Plan:
        plans.append(x.shape)
        rows = RowSizes.of(x=x)
        count = Zeros(OutputSpec.of((1,), torch.int32))
        makes = {"y": OutputSpec.of(x.shape, x.dtype), "count": count}
        if not x.numel():
            return Plan(makes)
        launch = rows.launch(affine, Tiles(BLOCK_N=16), rows.count).named(w="weight")
        return Plan(makes, [launch], [*rows.strided, *strided(weight=weight)])

    rows.asked = plans
    yield rows
    specs.remove(new_op.spec)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 16), (0, 4), (7,)])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "gaps", "turned"])
def test_a_planned_op_equals_its_reference(scaled, shape, weighted, layout):
    x = torch.randn(shape)
    if layout == "gaps":
        x = torch.cat([x, x], -1)[..., : shape[-1]]
    elif layout == "turned":
        x = x.mT.contiguous().mT if x.dim() > 1 else torch.stack([x, x], -1)[..., 0]
    weight = torch.randn(2 * shape[-1])[::2] if weighted else None
    y, count = scaled(x, weight, 3)  # an int in place of a float must not compile another kernel
    expected, rows = scaled_rows(x, weight, 3.0)
    torch.testing.assert_close(y, expected)
    assert y.is_contiguous() and torch.equal(count, rows)


def test_tensors_with_equal_metadata_share_a_plan(scaled):
    for eps in (1.0, 2.0, 3.0):
        x = torch.randn(3, 5)
        torch.testing.assert_close(scaled(x, None, eps)[0], x * eps)
    scaled(torch.randn(4, 5), None, 1.0)
    assert scaled.asked == [(3, 5), (4, 5)]


def test_arguments_are_checked_before_a_plan_is_made():
    from opmux.kernels import norm

    with pytest.raises(BadArgument, match="weight"):
        norm.rms_norm(torch.randn(3, 5), torch.randn(4), 1e-6, 0.0, "gemma")


def test_a_plan_with_one_launch_calls_it_directly():
    """The harness adds no function between lookup and launch."""
    from opmux.kernels import norm
    from opmux.specs import norm as spec

    x, weight = torch.randn(3, 5), torch.randn(5)
    plan = norm._forward(x, weight)
    assert plan.single is not None
    fn = harness.compiled(spec.rms_norm.spec, plan, {"x": x, "weight": weight})
    assert fn.__name__ == "launch" and list(inspect.signature(fn).parameters) == list(spec.rms_norm.spec.names)
    assert norm._forward(x.t().contiguous().t(), weight).single is None  # the input must be copied first
    assert norm._forward(x[:0], weight).single is None


def test_numbers_and_steps_of_a_plan_may_be_functions():
    new_op = op(scaled_rows, name="harness_steps", out="y count")
    try:

        @host_code(new_op)
        def rows(x: Tensor, weight: Tensor | None) -> Plan:
            def count_rows(count: Tensor, x: Tensor) -> None:
                count.fill_(x.shape[0])

            sizes = RowSizes.of(x=x)
            numbers = {**sizes.numbers, "eps": lambda eps: eps + 1}
            launch = Launch(affine, (sizes.count,), Tiles(BLOCK_N=16).config(), numbers, {"count": None})
            makes = {"y": OutputSpec.of(x.shape, x.dtype), "count": OutputSpec.of((1,), torch.int32)}
            return Plan(makes, [launch, count_rows], after={"y": torch.neg})

        x = torch.randn(3, 5)
        y, count = rows(x, None, 1.0)
        torch.testing.assert_close(y, -2 * x)
        assert count.tolist() == [3]
    finally:
        specs.remove(new_op.spec)


def test_a_result_may_share_the_name_of_an_argument():
    def doubled(x: Tensor, eps: float = 2.0) -> Tensor:
        return x * eps

    new_op = op(doubled, name="harness_returns", out="x")
    try:

        @host_code(new_op)
        def rows(x: Tensor) -> Plan:
            sizes = RowSizes.of(x=x)
            launch = sizes.launch(affine, Tiles(BLOCK_N=16), sizes.count).named(y="new_x")
            return Plan({"new_x": OutputSpec.of(x.shape, x.dtype)}, [launch], sizes.strided, returns=["new_x"])

        # the contiguous input calls the launch directly, the strided one calls a function around it
        for x in (torch.randn(3, 5), torch.randn(5, 3).t()):
            before = x.clone()
            torch.testing.assert_close(rows(x, 3.0), 3 * before)
            assert torch.equal(x, before)
    finally:
        specs.remove(new_op.spec)


def _filled(y_ptr, n, value, BLOCK_N: tl.constexpr):
    o = tl.arange(0, BLOCK_N)
    tl.store(y_ptr + o, value + o, mask=o < n)


filled = Launcher(_filled, sizes="n")


def test_a_launch_may_have_only_scalar_arguments():
    """The result is on the device of the op's first tensor, which the kernel does not read."""

    def counted(like: Tensor, start: Tensor) -> Tensor:
        return torch.arange(like.numel(), dtype=like.dtype) + start

    new_op = op(counted, name="harness_counted")
    try:

        @host_code(new_op)
        def count(like: Tensor, start: Tensor) -> Plan:
            numbers = {"n": like.numel(), "value": lambda start: start[0]}
            launch = Launch(filled, (1,), Tiles(BLOCK_N=16).config(), numbers)
            makes = {"y": OutputSpec.of((like.numel(),), like.dtype)}
            return Plan(makes, [launch], before={"start": Tensor.tolist})

        assert count(torch.zeros(5), torch.tensor([3])).tolist() == [3, 4, 5, 6, 7]
        assert count(torch.zeros(5), torch.tensor([4])).tolist() == [4, 5, 6, 7, 8]  # `start` is read at every call
    finally:
        specs.remove(new_op.spec)


@pytest.mark.parametrize("single", [True, False])
def test_a_result_may_be_an_argument_or_a_partly_zeroed_tensor(single):
    def into(x: Tensor, weight: Tensor | None, eps: float, out: Tensor) -> tuple[Tensor, Tensor]:
        return out, x

    new_op = op(into, name=f"harness_into_{single}", out="y count", mutates=("out",))
    try:

        @host_code(new_op)
        def rows(x: Tensor, weight: Tensor | None, out: Tensor) -> Plan:
            launch = RowSizes.of(x=x).launch(affine, Tiles(BLOCK_N=16), len(x)).named(w="weight", y="out", count=None)
            if single:
                return Plan({}, [launch], returns=["out", "x"])
            part = Zeros(OutputSpec.of((4, 2), torch.int32), 3)
            return Plan({"count": part}, [launch], returns=["out", "count"])

        x, out = torch.randn(3, 5), torch.empty(3, 5)
        y, count = rows(x, None, 2.0, out)
        assert y is out
        torch.testing.assert_close(out, 2 * x)
        assert count is x if single else count[3].tolist() == [0, 0]
    finally:
        specs.remove(new_op.spec)


def test_a_plan_may_declare_sizes_even():
    def even(x_stride, n, **told):
        numbers = dict(x_stride=x_stride, n_rows=1, n=n, eps=1.0)
        launch = affine.bind(["x"], (1, 1, 1), Tiles(BLOCK_N=16).config(**told), numbers, {}, {}, [])
        return launch.__globals__["_slow"].__self__.config.even

    assert even(16, 32) and not even(16, 5) and not even(1, 32)
    assert even(1, 32, even=True)  # Triton turns a size of 1 into a constant


def test_a_value_may_be_computed_before_an_argument_is_modified():
    new_op = op(scaled_rows, name="harness_values", out="y count")
    try:

        @host_code(new_op)
        def rows(x: Tensor, weight: Tensor | None) -> Plan:
            sizes = RowSizes.of(x=x)
            launch = sizes.launch(affine, Tiles(BLOCK_N=16), sizes.count).named(w="sums", count=None)
            makes = {"y": OutputSpec.of(x.shape, x.dtype)}
            before = {"sums": lambda x, weight: x.sum(0) + weight, "x": torch.neg}
            return Plan(makes, [launch], before=before, returns=["y", "sums"])

        x, weight = torch.randn(3, 5), torch.randn(5)
        y, sums = rows(x, weight, 2.0)
        torch.testing.assert_close(sums, x.sum(0) + weight)
        torch.testing.assert_close(y, -2 * x + sums)
    finally:
        specs.remove(new_op.spec)


def test_a_list_argument_has_the_same_key_as_a_tuple():
    def summed(x: Tensor, dim: int | list[int] | None) -> Tensor:
        return x

    new_op, plans = op(summed, name="harness_lists", schema="(Tensor x, int[]? dim) -> Tensor"), []
    try:

        @host_code(new_op)
        def summing(x: Tensor, dim: int | list[int] | None) -> Plan:
            plans.append(dim)
            return Plan({"y": OutputSpec.of(x.shape, x.dtype)}, after={"y": torch.zero_})

        for dim in ([0, 1], (0, 1), [0, 1], None, 1, [1]):
            summing(torch.ones(2, 2), dim)
        assert plans == [[0, 1], None, 1, [1]]
    finally:
        specs.remove(new_op.spec)


def test_a_plan_may_depend_on_a_setting():
    new_op, setting = op(scaled_rows, name="harness_setting", out="y count"), [2.0]
    try:

        @host_code(new_op, state={"factor": lambda: setting[0]})
        def rows(x: Tensor, weight: Tensor | None, factor: float) -> Plan:
            launch = RowSizes.of(x=x).launch(affine, Tiles(BLOCK_N=16), len(x)).named(count=None)
            return Plan({"y": OutputSpec.of(x.shape, x.dtype)}, [launch.with_numbers(eps=factor)], returns=["y", "x"])

        x = torch.randn(3, 5)
        torch.testing.assert_close(rows(x, None, 1.0)[0], 2 * x)
        setting[0] = 3.0  # read at every call
        torch.testing.assert_close(rows(x, None, 1.0)[0], 3 * x)
    finally:
        specs.remove(new_op.spec)


def test_errors_name_wrong_kernel_arguments():
    bind = lambda **numbers: affine.bind(["x"], (1, 1, 1), Tiles(BLOCK_N=16).config(), numbers, {}, {}, [])
    with pytest.raises(TypeError, match="eps"):
        bind(x_stride=16, n_rows=1, n=16)
    with pytest.raises(TypeError, match="constants must be"):
        affine.bind(["x"], (1, 1, 1), Tiles().config(), dict(x_stride=16, n_rows=1, n=16, eps=1.0), {}, {}, [])
    with pytest.raises(TypeError, match="expected tensors"):
        Launcher(lambda n, x_ptr: None, sizes="n")


def test_a_launch_without_grid_and_block_m_says_what_to_add():
    rows = RowSizes.of(x=torch.randn(3, 5))
    with pytest.raises(
        TypeError, match=r"_affine: without a grid.* no BLOCK_M \(.*BLOCK_N=16\)\. Add BLOCK_M .* pass a grid"
    ):
        rows.launch(affine, Tiles(BLOCK_N=16))
    assert rows.launch(affine, Tiles(BLOCK_N=16), rows.count).grid == (3,)
