"""An implementation's annotations contain rules: it declines calls that break a rule, and says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import pytest
import torch
from torch import Tensor

from opmux.core.contract import Float, Int, at_least, same_dtype
from opmux.core.errors import NotSupported
from opmux.core.registry import BackendImplKind, OpImpl
from opmux.core.rules import distinct, nonempty
from opmux.core.support import Support, declining, declining_cached

if TYPE_CHECKING:
    from somewhere import Elsewhere  # type: ignore[import-not-found]


def count(
    x: Int[Tensor, "n", nonempty()], weight: Float[Tensor, "n"] | None = None, least: Annotated[int, at_least(0)] = 0
):
    return "counted"


def plain(x: Tensor, least: int = 0) -> tuple[Tensor, Tensor]:
    return x, x


INTS, FLOATS = torch.arange(4), torch.ones(4)


@pytest.mark.parametrize("wrap", [declining, declining_cached])
def test_an_implementation_declines_what_its_annotations_exclude(wrap):
    fn = wrap(count)
    assert fn(INTS, FLOATS) == fn(INTS, weight=FLOATS, least=3) == fn(INTS) == "counted"
    for args, kwargs, words in (
        ((FLOATS,), {}, r"x must be int8, .* or int64; got float32"),
        ((INTS.view(2, 2),), {}, r"x must have 1 dimension, \[n\]; got \(2, 2\)"),
        ((INTS[:0],), {}, r"x must have at least one element; got \(0,\)"),
        ((INTS, FLOATS[:3]), {}, r"weight must have shape \(4,\), .*; got \(3,\)"),
        ((INTS,), {"least": -1}, r"least must be at least 0; got -1"),
    ):
        with pytest.raises(NotSupported, match=f"^{words}$"):
            fn(*args, **kwargs)


def test_a_cached_check_distinguishes_dtypes_shapes_strides_and_values():
    calls = []

    def fill(y: Float[Tensor, "...", distinct()], value: Annotated[float, at_least(0)], sizes: list[int] | None = None):
        calls.append(value)

    fn = declining_cached(fill)
    fn(FLOATS, 1.0)
    fn(FLOATS, 1.0, [1, 2])  # a list cannot be part of the key: this call is checked every time
    fn(FLOATS, 1.0, sizes=[1, 2])
    for y, value in ((FLOATS[:1].expand(4), 1.0), (INTS, 1.0), (FLOATS, -1.0)):
        for _ in range(2):
            with pytest.raises(NotSupported):
                fn(y, value)
    assert calls == [1.0, 1.0, 1.0]


def test_a_tensor_without_strides_is_checked_too():
    @declining_cached
    def double(x: Float[Tensor, "n"]) -> Tensor:
        return x * 2

    assert double(FLOATS.to_sparse()).is_sparse
    with pytest.raises(NotSupported, match="x must be float16"):
        double(INTS.to_sparse())


NotEmpty = Int[Tensor, "...", nonempty()]


def test_rules_may_have_a_name():
    def largest(x: NotEmpty | None) -> None: ...

    assert declining(largest)(None) is None
    with pytest.raises(NotSupported, match="x must have at least one element"):
        declining(largest)(INTS[:0])


def test_a_function_without_rules_is_not_wrapped():
    assert declining(plain) is declining_cached(plain) is plain
    assert Support(plain).contract is None


def test_an_impl_of_a_plugin_declines_by_its_annotations():
    impl = OpImpl("opmux::silu_mul", "vendor.acme", BackendImplKind.VENDOR, "acme", count)
    with pytest.raises(NotSupported, match="x must have at least one element"):
        impl.call(INTS[:0])
    assert OpImpl("opmux::silu_mul", "vendor.acme", BackendImplKind.VENDOR, "acme", plain).fn is plain


def test_rules_that_cannot_be_evaluated_are_ignored_with_a_warning(caplog):
    def fn(x: Float[Tensor, "n"], other: Elsewhere | None = None) -> None: ...

    with caplog.at_level("WARNING", "opmux"):
        declining(fn)(INTS)
    assert "the rules in the annotations of" in caplog.text and "Elsewhere" in caplog.text


def test_a_rule_may_name_another_argument():
    def add(x: Float[Tensor, "*rows n"], y: Float[Tensor, "*rows n", same_dtype("x")]) -> None: ...

    with pytest.raises(NotSupported, match="y must be float32, the dtype of x; got float64"):
        declining(add)(FLOATS, FLOATS.double())
