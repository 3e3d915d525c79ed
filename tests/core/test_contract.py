"""Arguments are checked against the shapes, dtypes and rules of an op's signature; a wrong one raises a clear error."""

import traceback
from enum import IntEnum
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor

import opmux
from opmux.core.contract import (
    AnyTensor,
    Argument,
    Contract,
    Dims,
    Float,
    Float32,
    Grad,
    Index,
    Mask,
    at_least,
    below,
    between,
    broadcasts_to,
    contiguous,
    dim_of,
    dtypes,
    each,
    each_row,
    one_of,
    or_cpu,
    real,
    same_dtype,
    shape,
    single,
)  # fmt: skip
from opmux.core.errors import BadArgument, BadSpec, OpmuxError
from opmux.core.rules import multiple_of, ndim, nonempty, numel, same_len, up_to_size


def contract(where=(), **hints: Any) -> Contract:
    return Contract.of("f", hints, where)


def says(checks: Contract, **arguments: Any) -> str | None:
    try:
        checks.check(arguments)
    except BadArgument as error:
        return str(error)
    return None


ROWS = contract(x=Float[Tensor, "*rows n"], weight=Float[Tensor, "n"], stat=Float[Tensor, "*rows"] | None)


def test_equal_names_mean_equal_sizes():
    for lead in ((), (5,), (2, 3), (0,)):
        assert says(ROWS, x=torch.zeros(*lead, 4), weight=torch.zeros(4), stat=torch.zeros(lead)) is None
    assert says(ROWS, x=torch.zeros(5, 4), weight=torch.zeros(3)) == (
        "f: weight must have shape (4,), [n] where x (5, 4) is [*rows, n]; got (3,)"
    )
    assert says(ROWS, x=torch.zeros(2, 3, 4), weight=torch.zeros(4), stat=torch.zeros(6)) == (
        "f: stat must have shape (2, 3), [*rows] where x (2, 3, 4) is [*rows, n]; got (6,)"
    )
    assert says(ROWS, x=torch.tensor(1.0)) == "f: x must have at least 1 dimension, [*rows, n]; got a 0-dim tensor"


def test_shape_specifications_are_parsed():
    checks = contract(x=Float[Tensor, "b 2*n 3"], half=Float[Tensor, "b n"], mask=Mask[Tensor, "#b #n"])
    x, half = torch.zeros(5, 8, 3), torch.zeros(5, 4)
    for sizes in ((5, 4), (1, 4), (5, 1), (1, 1)):
        assert says(checks, x=x, half=half, mask=torch.zeros(sizes, dtype=torch.bool)) is None
    assert "mask must have shape (5, 4)" in str(says(checks, x=x, half=half, mask=torch.zeros(2, 4, dtype=torch.bool)))
    assert "half must have shape (5, 4)" in str(says(checks, x=x, half=torch.zeros(5, 8)))
    assert "x must have" in str(says(checks, x=torch.zeros(5, 7, 3)))
    assert "x must have" in str(says(checks, x=torch.zeros(5, 8, 4)))
    anything = contract(x=Float[Tensor, "..."], y=Float[Tensor, "_ _"])
    assert says(anything, x=torch.tensor(1.0), y=torch.zeros(3, 4)) is None
    assert "y must have 2 dimensions" in str(says(anything, x=torch.zeros(2), y=torch.zeros(3)))
    lead = contract(x=Float[Tensor, "*lead q k"], mask=Mask[Tensor, "*#lead #q #k"])
    for sizes in ((2, 3, 4, 5), (2, 1, 4, 5), (3, 1, 5), (1, 5)):
        assert says(lead, x=torch.zeros(2, 3, 4, 5), mask=torch.zeros(sizes, dtype=torch.uint8)) is None, sizes
    for sizes in ((2, 2, 4, 5), (1, 2, 3, 4, 5), (5,)):
        assert "mask" in str(says(lead, x=torch.zeros(2, 3, 4, 5), mask=torch.zeros(sizes, dtype=torch.bool))), sizes
    for text in ("*a *b", "a-b", "2*"):
        with pytest.raises(BadSpec):
            Dims.of(text)


def test_a_shape_error_names_the_gradient_and_not_the_input():
    checks = contract(dy=Grad[Tensor, "*s"], x=Float[Tensor, "*s"])
    assert says(checks, dy=torch.zeros(4), x=torch.zeros(5)) == "f: dy must have shape (5,), that of x; got (4,)"


def test_types_and_dtypes_are_checked():
    checks = contract(
        x=Float[Tensor, "..."], like=Float[Tensor, "...", same_dtype("x")], at=Index[Tensor, "n"], eps=float, n=int,
        flag=bool, dtype=torch.dtype | None, sizes=list[int],
    )  # fmt: skip
    good = dict(x=torch.zeros(2), like=torch.zeros(3), at=torch.zeros(2, dtype=torch.int64), eps=1, n=2, flag=True,
                sizes=(2, 3))  # fmt: skip
    assert says(checks, **good, dtype=None) is None
    for name, value, text in (
        ("x", [1.0], "x must be a Tensor; got list"),
        ("x", None, "x must be a Tensor; got None"),
        ("x", torch.zeros(2, dtype=torch.int32), "x must be float16, bfloat16, float32 or float64; got int32"),
        ("like", torch.zeros(2).double(), "like must be float32, the dtype of x; got float64"),
        ("at", torch.zeros(2), "at must be int32 or int64; got float32"),
        ("eps", "1e-6", "eps must be a number; got '1e-6'"),
        ("eps", True, "eps must be a number; got True"),
        ("n", 2.0, "n must be an int; got 2.0"),
        ("flag", "yes", "flag must be a bool; got 'yes'"),
        ("dtype", 3, "dtype must be a torch.dtype or None; got 3"),
        ("sizes", [2, 3.0], "sizes must be a list of ints; got 3.0 at index 1"),
        ("sizes", 2, "sizes must be a list of ints; got 2"),
    ):
        assert says(checks, **{**good, name: value}) == f"f: {text}", name
        with pytest.raises(TypeError if "the dtype of" not in text else ValueError) as raised:
            checks.check({**good, name: value})
        assert isinstance(raised.value, OpmuxError) and raised.value.argument == name


class Side(IntEnum):
    LEFT, RIGHT = 1, 2


def test_rules_are_checked():
    checks = contract(
        p=Annotated[float, between(0, 1)], k=Annotated[int, at_least(1)], act=Annotated[str, one_of("gelu", "silu")],
        scale=Float32[Tensor, "...", single()], out=Float[Tensor, "...", contiguous()],
        halves=Float[Tensor, "...", shape(lambda out, k: (out.numel() // k,))], i=Annotated[int, below("k")],
        side=Annotated[Any, one_of(*Side)],
    )  # fmt: skip
    good = dict(p=0.5, k=2, act="silu", scale=torch.ones(1), out=torch.zeros(2, 4), halves=torch.zeros(4), i=1, side=2)
    assert says(checks, **good) is None
    for name, value, text in (
        ("p", 1.5, "p must be between 0 and 1; got 1.5"),
        ("p", float("nan"), "p must be between 0 and 1; got nan"),
        ("k", 0, "k must be at least 1; got 0"),
        ("act", "tanh", "act must be one of 'gelu', 'silu'; got 'tanh'"),
        ("i", 2, "i must be less than 2, the k; got 2"),
        ("side", 3, "side must be one of LEFT, RIGHT; got 3"),
        ("scale", torch.ones(2), "scale must have shape (1,); got (2,)"),
        ("out", torch.zeros(4, 2).t(), "out must be contiguous; got strides (1, 2)"),
        ("halves", torch.zeros(3), "halves must have shape (4,), as out is (2, 4); got (3,)"),
    ):
        assert says(checks, **{**good, name: value}) == f"f: {text}", name
    for name in good:
        (argument,) = (a for a in checks.arguments if a.name == name)
        wrong = list(checks.bad(argument, good))
        assert wrong, name
        for word, _, args in wrong:
            assert says(checks, **args) is not None, (name, word)


def test_errors_distinguish_members_of_two_enums():
    first, second = (IntEnum(name, {f"{name}_A": 0, f"{name}_B": 1}) for name in ("X", "Y"))
    checks = contract(x=Annotated[Any, one_of(*first)], y=Annotated[Any, one_of(*second)])
    assert says(checks, x=0, y=second.Y_B) is None
    assert says(checks, x=0, y=2) == "f: y must be one of Y_A, Y_B; got 2"


def test_rules_may_refer_to_another_argument():
    checks = contract(
        x=Float[Tensor, "*lead q k"], dim=Annotated[int, dim_of("x")], at=Annotated[int, dim_of("x", new=True)],
        mask=Mask[Tensor, "...", broadcasts_to("x")] | None, scales=Float[Tensor, "...", each_row("x")],
        like=AnyTensor[Tensor, "...", real()],
    )  # fmt: skip
    good = dict(x=torch.zeros(2, 3, 4), dim=-3, at=3, mask=torch.zeros(4, dtype=torch.bool), scales=torch.zeros(2, 3),
                like=torch.zeros(1, dtype=torch.bool))  # fmt: skip
    assert says(checks, **good) is None
    for shape_of in ((), (1,), (3, 1), (2, 1, 4)):
        assert says(checks, **{**good, "mask": torch.zeros(shape_of, dtype=torch.uint8)}) is None
    for name, value, text in (
        ("dim", 3, "dim must be between -3 and 2, as x is (2, 3, 4); got 3"),
        ("at", -1, "at must be between 0 and 3, as x is (2, 3, 4); got -1"),
        ("mask", good["mask"][:3], "mask must broadcast to (2, 3, 4), the shape of x; got (3,)"),
        ("scales", torch.zeros(5), "scales must have 6 elements, one for each row of x (2, 3, 4); got (5,)"),
        ("like", torch.zeros(1).cfloat(), "like must be bool, an integer or a float; got complex64"),
    ):
        assert says(checks, **{**good, name: value}) == f"f: {text}", name
        (argument,) = (a for a in checks.arguments if a.name == name)
        for word, _, args in checks.bad(argument, good):
            assert says(checks, **args) is not None, (name, word)
    assert says(contract(x=Float[Tensor, "..."], dim=Annotated[int, dim_of("x")]), x=torch.tensor(1.0), dim=-1) is None


def test_an_int_argument_may_be_a_size():
    checks = contract(
        x=Float[Tensor, "rows n"], row_map=Index[Tensor, "topk*tokens"], probs=Float[Tensor, "tokens topk"] | None,
        topk=Annotated[int, at_least(1)], rows=int,
    )  # fmt: skip
    good = dict(x=torch.zeros(6, 4), row_map=torch.arange(10), probs=torch.zeros(5, 2), topk=2, rows=6)
    assert says(checks, **good) is None
    assert says(checks, **{n: v for n, v in good.items() if n != "topk"}) is None  # the value of topk is unknown
    for name, value, text in (
        ("x", torch.zeros(5, 4), "x must have shape (6, n), [rows, n] where rows is 6; got (5, 4)"),
        ("row_map", torch.arange(9), "row_map must have shape (2*tokens), [topk*tokens] where topk is 2; got (9,)"),
        ("topk", 5, "probs must have shape (2, 5), [tokens, topk] where topk is 5 and row_map (10,) is [topk*tokens]"),
        ("topk", 0, "topk must be at least 1; got 0"),
    ):
        assert str(says(checks, **{**good, name: value})).startswith(f"f: {text}"), name
    for name in ("x", "row_map", "probs"):
        (argument,) = (a for a in checks.arguments if a.name == name)
        shorter = [(word, args) for word, _, args in checks.bad(argument, good) if word.startswith("short")]
        assert shorter
        for word, args in shorter:
            assert says(checks, **args) is not None, (name, word)
    assert "row_map (index [topk*tokens])" in checks.documented("y = f(x).")


def test_rules_about_sizes_and_lists_are_checked():
    checks = contract(
        x=AnyTensor[Tensor, "n experts", dtypes((torch.float32, torch.int32)), nonempty(-1)],
        k=Annotated[int, up_to_size("x", less=1)], const=Float32[Tensor, "...", nonempty()],
        sizes=Annotated[list[int], each(at_least(0))],
    )  # fmt: skip
    good = dict(x=torch.zeros(5, 4), k=3, const=torch.zeros(2), sizes=[2, 0])
    assert says(checks, **good) is None
    assert says(checks, **{**good, "sizes": ()}) is None
    for name, value, text in (
        ("x", torch.zeros(5, 4).double(), "x must be float32 or int32; got float64"),
        ("k", 4, "k must be between 1 and 3, as x is (5, 4); got 4"),
        ("const", torch.zeros(0), "const must have at least one element; got (0,)"),
        ("sizes", 3, "sizes must be a list of ints; got 3"),
        ("sizes", [2, "3"], "sizes must be a list of ints; got '3' at index 1"),
        ("sizes", [2, -1], "sizes must be at least 0 in every item; got -1 at index 1"),
    ):
        assert says(checks, **{**good, name: value}) == f"f: {text}", name
    wide = contract(x=Float[Tensor, "n experts", nonempty(-1)])
    assert says(wide, x=torch.zeros(5, 0)) == (
        "f: x must have at least one element along the last dimension; got (5, 0)"
    )
    for name in good:
        (argument,) = (a for a in checks.arguments if a.name == name)
        for word, _, args in checks.bad(argument, good):
            assert says(checks, **args) is not None, (name, word)
    documented = checks.documented("y = f(x).")
    assert "x (float32 or int32 [n, experts], at least one element along the last dimension)" in documented
    assert "k (from 1 to 1 less than the size of the last dimension of x)" in documented
    assert "sizes (each at least 0)" in documented


def test_a_size_may_occur_twice_in_one_shape():
    checks = contract(x=Float[Tensor, "b n n"])
    assert says(checks, x=torch.zeros(2, 3, 3)) is None
    assert says(checks, x=torch.zeros(2, 3, 4)) == "f: x must have shape [b, n, n]; got (2, 3, 4)"


def test_all_tensors_must_be_on_one_device():
    checks = contract(x=Float[Tensor, "n"], y=Float[Tensor, "n"])
    away = torch.zeros(3, device="meta")
    assert says(checks, x=torch.zeros(3), y=away) == "f: y must be on cpu, the device of x; got meta"


def test_a_seed_may_be_on_the_cpu():
    checks = contract(x=Float[Tensor, "n"], seed=AnyTensor[Tensor, "2", or_cpu()])
    away, seed = torch.zeros(3, device="meta"), torch.zeros(2)
    assert says(checks, x=away, seed=seed) is says(checks, x=away, seed=seed.to("meta")) is None
    assert says(checks, x=torch.zeros(3), seed=seed.to("meta")) == (
        "f: seed must be on cpu, the device of x, or on the CPU; got meta"
    )


def test_where_checks_run_last_and_get_arguments_by_name():
    def even(op, n, x):
        if x.shape[0] % n:
            raise BadArgument.of(op, "x", f"have rows in multiples of {{n}} = {n}", str(tuple(x.shape)))

    checks = contract((even,), x=Float[Tensor, "m"], n=Annotated[int, at_least(1)])
    assert says(checks, x=torch.zeros(4), n=2) is None
    assert says(checks, x=torch.zeros(3), n=2) == "f: x must have rows in multiples of n = 2; got (3,)"
    assert "n must be at least 1" in str(says(checks, x=torch.zeros(3), n=0))
    assert says(checks, x=torch.zeros(3)) is None  # the call lacks the argument that the check needs


def test_errors_use_the_callers_argument_names():
    with pytest.raises(ValueError) as raised:
        ROWS.check({"x": torch.zeros(5, 4), "weight": torch.zeros(3)})
    assert isinstance(raised.value, BadArgument)
    renamed = raised.value.renamed("norm", {"x": "input", "weight": "gamma"})
    assert str(renamed) == "norm: gamma must have shape (4,), [n] where input (5, 4) is [*rows, n]; got (3,)"
    again = renamed.renamed("layer", {"input": "hidden"})
    assert str(again) == "layer: gamma must have shape (4,), [n] where hidden (5, 4) is [*rows, n]; got (3,)"
    assert isinstance(again, ValueError)


def test_contracts_appear_in_the_documentation():
    assert ROWS.documented("y = f(x).\n\nArgs:\n    x: the rows.\n    weight: scales.\n\nReturns:\n    y") == (
        "y = f(x).\n\nArgs:\n    x (float [*rows, n]): the rows.\n    weight (float [n]): scales.\n\nReturns:\n    y"
    )
    assert "    stat (float [*rows], optional)" in ROWS.documented("y = f(x).")


def test_an_argument_of_several_types_is_not_checked():
    assert Argument.of("x", Tensor | float).type is None
    assert says(contract(x=Tensor | float), x="anything") is None


def test_shapes_and_sizes_may_come_from_other_arguments():
    checks = contract(
        x=Float[Tensor, "... h d", ndim(2, 3)], ends=Index[Tensor, "b+1", numel(2, least=True)],
        again=Index[Tensor, "b+1"], n=Annotated[int, multiple_of(4)], part=Annotated[int, multiple_of("n")],
        lse=Float[Tensor, "...", shape(lambda x, ends: (ends.shape[0] - 1, x.shape[-2], None))],
        scales=Float32[Tensor, "...", shape(lambda n: (n, 2), least=True)],
        bits=Float[Tensor, "...", numel(lambda x: x.numel() // 2)],
    )  # fmt: skip
    ends = torch.tensor([0, 3, 5])
    good = dict(x=torch.zeros(5, 2, 4), ends=ends, again=ends, n=4, part=8, lse=torch.zeros(2, 2, 7),
                scales=torch.zeros(5, 2), bits=torch.zeros(4, 5))  # fmt: skip
    assert says(checks, **good) is None
    for name, value, text in (
        ("x", torch.zeros(1, 5, 2, 4), "x must have 2 or 3 dimensions; got (1, 5, 2, 4)"),
        ("ends", ends[:1], "ends must have at least 2 elements; got (1,)"),
        ("again", ends[:2], "again must have shape (3,), that of ends; got (2,)"),
        ("n", 6, "n must be a multiple of 4; got 6"),
        ("part", 6, "part must be a multiple of 4, the n; got 6"),
        ("lse", torch.zeros(2, 3), "lse must have shape (2, 2, any), as x is (5, 2, 4) and ends is (3,); got (2, 3)"),
        ("scales", torch.zeros(3, 2), "scales must have shape (4, 2) or larger, as n is 4; got (3, 2)"),
        ("bits", torch.zeros(4, 4), "bits must have 20 elements, as x is (5, 2, 4); got (4, 4)"),
    ):  # fmt: skip
        assert says(checks, **{**good, name: value}) == f"f: {text}", name
    assert "again must have shape [b+1]" in str(says(contract(again=Index[Tensor, "b+1"]), again=ends[:0]))
    for name in good:
        (argument,) = (a for a in checks.arguments if a.name == name)
        wrong = list(checks.bad(argument, good))
        assert wrong, name
        for word, _, args in wrong:
            assert says(checks, **args) is not None, (name, word)
    assert "ends (index [b+1], at least 2 elements)" in checks.documented("y = f(x).")


def test_lists_must_have_equal_lengths():
    checks = contract(
        xs=list[Any], ys=Annotated[list[int], same_len("xs")], ts=Annotated[list[Tensor], each(ndim(2))],
        rank=Annotated[int, below("world")], world=int,
    )  # fmt: skip
    good = dict(xs=[1, "2"], ys=(1, 2), ts=[torch.zeros(2, 3)], rank=1, world=2)
    assert says(checks, **good) is None
    assert says(checks, **{**good, "xs": 3}) == "f: xs must be a list; got 3"
    assert says(checks, **{**good, "ys": [1]}) == "f: ys must have 2 items, as xs has; got 1"
    assert says(checks, **{**good, "ts": [None]}) == "f: ts must be a list of Tensors; got None at index 0"
    assert says(checks, **{**good, "ts": [torch.zeros(2, 3), torch.zeros(2)]}) == (
        "f: ts must have 2 dimensions in every item; got (2,) at index 1"
    )
    assert says(checks, **{**good, "rank": 2}) == "f: rank must be less than 2, the world; got 2"
    for name in good:
        (argument,) = (a for a in checks.arguments if a.name == name)
        for word, _, args in checks.bad(argument, good):
            assert says(checks, **args) is not None, (name, word)


@pytest.mark.parametrize("call", [opmux.ops.rms_norm, opmux.ops.rms_norm.reference], ids=["op", "reference"])
@pytest.mark.parametrize(
    "weight", [torch.ones(3), [1.0], torch.ones(4, dtype=torch.int32)], ids=["short", "list", "int"]
)
@pytest.mark.parametrize("times", [1, 2])
def test_one_mistake_gives_one_traceback(call, weight, times):
    call(torch.ones(2, 4), torch.ones(4), 1e-6, 0.0)
    for _ in range(times):
        with pytest.raises(BadArgument, match="^rms_norm: weight must") as caught:
            call(torch.ones(2, 4), weight, 1e-6, 0.0)
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback (most recent call last)") == 1, text


def test_lists_of_tensors_are_not_used_as_keys():
    assert contract(x=Float[Tensor, "n"], n=int, sizes=list[int]).plain
    assert not contract(x=Float[Tensor, "n"], xs=list[Tensor]).plain
    assert not contract(x=Float[Tensor, "n"], out=Any).plain
