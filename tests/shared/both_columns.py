"""Runs both columns of a table `| you write | with opmux |`, and raises if their results or gradients differ.

A cell is Python code. Its results are the value of the last expression; if the code ends with a statement, the values
of the names that it assigns. Each cell gets its own copies of the page's tensors and modules, and the same random seed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import opmux


def check(rows: list[tuple[str, str, str]], names: dict[str, Any]) -> None:
    """Raise one AssertionError for all rows (where, old code, new code) whose two sides differ."""
    wrong = []
    for where, old, new in rows:
        try:
            _agree(results(old, names), results(new, names))
        except Exception as error:
            wrong.append(f"{where}: {old!r} and {new!r}: {type(error).__name__}: {error}")
    if wrong:
        raise AssertionError("\n\n".join(wrong))


def results(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """The results of a cell and their gradients: name -> tensor, number or text."""
    scope = {n: copy.deepcopy(v) if _is_input(v) else v for n, v in names.items()}
    body = ast.parse(code).body
    torch.manual_seed(0)
    try:
        exec(compile(ast.Module([s for s in body if s is not _value(body)], []), "cell", "exec"), scope)
        last = _value(body)
        if last is not None:
            found = {"result": eval(compile(ast.Expression(last.value), "cell", "eval"), scope)}
        else:
            found = {n: scope[n] for n in sorted(_assigned(body))}
        values = {name: value for key, v in found.items() for name, value in _leaves(key, v)}
        return values | dict(_gradients(values, scope))
    finally:
        opmux.disable()


def _is_input(value: Any) -> bool:
    return isinstance(value, nn.Module) or (isinstance(value, Tensor) and value.is_leaf)


def _value(body: list[ast.stmt]) -> ast.Expr | None:
    return body[-1] if isinstance(body[-1], ast.Expr) else None


def _assigned(body: list[ast.stmt]) -> set[str]:
    found = [n for statement in body for n in ast.walk(statement)]
    return {n.id for n in found if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for i, v in enumerate(v for v in value if v is not None):
            yield from _leaves(f"{name}[{i}]", v)
    elif value is not None:
        yield name, value


def _gradients(values: dict[str, Any], scope: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The gradients of the page's tensors and parameters; each result gets another gradient than 1."""
    inputs = {n: v for n, v in scope.items() if isinstance(v, Tensor) and _is_input(v) and v.requires_grad}
    modules = {n: v for n, v in scope.items() if isinstance(v, nn.Module)}
    inputs |= {f"{n}.{p}": v for n, m in modules.items() for p, v in m.named_parameters()}
    outputs = [v for v in values.values() if isinstance(v, Tensor) and v.requires_grad]
    if outputs:
        grads = [torch.linspace(0.5, 1.5, v.numel(), dtype=v.dtype).view(v.shape) for v in outputs]
        found = torch.autograd.grad(outputs, list(inputs.values()), grads, allow_unused=True)
        yield from ((f"the gradient of {n}", g) for n, g in zip(inputs, found, strict=True) if g is not None)


def _agree(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert old, "the code gives no result"
    assert old.keys() == new.keys(), f"results {list(old)} and {list(new)}"
    for name, value in old.items():
        if isinstance(value, Tensor):
            assert value.isfinite().all() and value.any(), f"{name} is 0, or not finite: nothing is compared"
            most = 1e-4 * value.abs().max().item()  # the two sides may add in another order
            message = lambda text, name=name: f"{name}: {text}"
            torch.testing.assert_close(new[name], value, rtol=0, atol=most, msg=message)
        else:
            assert new[name] == value, f"{name} is {value!r} and {new[name]!r}"
