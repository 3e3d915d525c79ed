"""Rewrites sources that use "cuda" for another device. Only the compiled code changes; files and line numbers do not.

| source | rewritten as |
|---|---|
| `"cuda"`, `"cuda:0"` | the chip's device type |
| `torch.cuda`, `from torch.cuda import f` | `chip.Cuda` |
| `torch.version.cuda` | a version that the layer accepts |
| `torch.device(x)`, `f(device=x)` | the same call; at run time x is replaced if it is "cuda" or a number |
| `t.is_cuda` | whether t is on the chip |
| `t.cuda()` | `t.to(chip)` |
| `f(pin_memory=x)` | `f(pin_memory=False)`, on a CPU: torch pins memory only for an accelerator |
| `torch.is_autocast_enabled()` | the same for the chip's device type (the default is CUDA's) |
| `triton.autotune(configs=x)` | only the first config, on a CPU: the interpreter cannot be timed |

Also with CUDA:

| source | rewritten as |
|---|---|
| `from torch.x import name` | ours, if this torch lacks the name or has a bug in it (`torch_names`) |
| `{"with_gemm_swizzled_scales": q.optimize_for_gemm}` | `False`, for `torch.compile`: our tex does not swizzle |
"""

from __future__ import annotations

import ast
import re
import types
from itertools import accumulate
from typing import Any

from . import torch_names
from .chip import CUDA_VERSION

SWIZZLED, FOR_GEMM = "with_gemm_swizzled_scales", "optimize_for_gemm"
CHIP = "__opmux_chip__"  # the SubstituteDevice, a global of each rewritten module


def may_need_rewrite(source: bytes, device: str | None, imports: frozenset[tuple[str, str]] = frozenset()) -> bool:
    """Whether a source may need a rewrite, for a device type (None: CUDA) and the imports to replace."""
    if device is not None and (b"cuda" in source or b"triton.autotune" in source):
        return True
    if f'"{SWIZZLED}": self.{FOR_GEMM}'.encode() in source:
        return True
    return any(module.encode() in source and name.encode() in source for module, name in imports)


def rewritten(
    source: bytes, path: str, device: str | None, imports: frozenset[tuple[str, str]] = frozenset()
) -> types.CodeType:
    """Rewrite a source for a device type (None: CUDA), replace imports, and compile it."""
    tree = ast.parse(source, path)
    if device is not None:
        tree = _Rewriter(device, source).visit(tree)
    if may_need_rewrite(source, None, imports):
        tree = _Everywhere(imports).visit(tree)
    return compile(tree, path, "exec", dont_inherit=True)


def _is(node: ast.AST, package: str, *names: str) -> bool:
    """Whether an expression is `package.<names>`."""
    for name in reversed(names):
        if not isinstance(node, ast.Attribute) or node.attr != name:
            return False
        node = node.value
    return isinstance(node, ast.Name) and node.id == package


def _of_torch(node: ast.AST, *names: str) -> bool:
    return _is(node, "torch", *names)


_WORDS = re.compile(rb"cuda|device|autocast|configs=|pin_memory=")


class _Rewriter(ast.NodeTransformer):
    def __init__(self, device: str, source: bytes):
        self.device = device
        # For each line, the number of lines before it that contain one of _WORDS. `visit` skips functions without such
        # lines, because visiting each node is slow.
        self.lines = list(accumulate((bool(_WORDS.search(line)) for line in source.split(b"\n")), initial=0))

    def visit(self, node: ast.AST) -> Any:
        first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if first and last:
            first = min([first, *(d.lineno for d in getattr(node, "decorator_list", ()))])  # with decorators
            if self.lines[last] == self.lines[first - 1]:
                return node
        return super().visit(node)

    def _expression(self, node: ast.AST, text: str, part: ast.expr | None = None) -> Any:
        """Parse `text` to an expression that replaces `node`, at the same location; `part` replaces PART in it."""
        expression = ast.parse(text, mode="eval").body
        for new in ast.walk(expression):
            if hasattr(new, "lineno"):
                ast.copy_location(new, node)
        return expression if part is None else _ReplacePart(part).visit(expression)

    def visit_Constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")) and " " not in value:
            device = self.device if self.device == "cpu" else self.device + value[len("cuda") :]
            return ast.copy_location(ast.Constant(device), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        # Rewrite only the expressions of an f-string, because its literal text is part of a message. If the string is
        # used as a device, `here` converts it at run time.
        node.values = [v if isinstance(v, ast.Constant) else self.visit(v) for v in node.values]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if _of_torch(node, "version", "cuda"):
            return ast.copy_location(ast.Constant(CUDA_VERSION), node)
        if _of_torch(node, "cuda"):
            return self._expression(node, f"{CHIP}.cuda")
        self.generic_visit(node)
        if node.attr == "is_cuda" and isinstance(node.ctx, ast.Load):
            return self._expression(node, f"(PART.device.type == {self.device!r})", node.value)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        if _of_torch(node.func, "device"):
            node.func = self._expression(node.func, f"{CHIP}.device")
        elif _of_torch(node.func, "is_autocast_enabled") and not node.args:
            node.args = [ast.copy_location(ast.Constant(self.device), node)]
        elif _of_torch(node.func, "get_autocast_gpu_dtype"):
            return self._expression(node, f"torch.get_autocast_dtype({self.device!r})")
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and not _of_torch(node.func, "cuda"):
            node.func.attr = "to"
            device = node.args[0] if node.args else ast.Constant(self.device)
            node.args = [self._expression(node, f"{CHIP}.here(PART)", ast.copy_location(device, node))]
        self.generic_visit(node)
        tuned = self.device == "cpu" and _is(node.func, "triton", "autotune")
        for keyword in node.keywords:
            if keyword.arg == "configs" and tuned:
                keyword.value = self._expression(keyword.value, "PART[:1]", keyword.value)
            if keyword.arg == "pin_memory" and self.device == "cpu":
                keyword.value = ast.copy_location(ast.Constant(False), keyword.value)
            if keyword.arg == "device" and not isinstance(keyword.value, ast.Constant):
                keyword.value = self._expression(keyword.value, f"{CHIP}.here(PART)", keyword.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if node.name == "is_cuda":  # a property of the layer's own tensor classes
            return node
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.module != "torch.cuda" or node.level:
            return node
        bindings = [(a.asname or a.name, self._expression(node, f"{CHIP}.cuda.{a.name}")) for a in node.names]
        return [
            ast.copy_location(ast.Assign([ast.copy_location(ast.Name(name, ast.Store()), node)], value), node)
            for name, value in bindings
        ]


class _Everywhere(ast.NodeTransformer):
    """Rewrites that apply on every device, including CUDA."""

    def __init__(self, replaced: frozenset[tuple[str, str]]):
        self.replaced = replaced

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        ours = [a for a in node.names if (node.module, a.name) in self.replaced]
        if node.level or not ours:
            return node
        imports = [ast.copy_location(ast.ImportFrom(torch_names.__name__, ours, 0), node)]
        others = [a for a in node.names if a not in ours]
        if others:
            imports.append(ast.copy_location(ast.ImportFrom(node.module, others, 0), node))
        return imports

    def visit_Dict(self, node: ast.Dict) -> Any:
        self.generic_visit(node)
        for i, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            quantizers = isinstance(value, ast.Attribute) and value.attr == FOR_GEMM
            if quantizers and isinstance(key, ast.Constant) and key.value == SWIZZLED:
                node.values[i] = ast.copy_location(ast.Constant(False), value)
        return node


class _ReplacePart(ast.NodeTransformer):
    """Replaces PART by an expression; the expression keeps its own location."""

    def __init__(self, part: ast.expr):
        self.part = part

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.part if node.id == "PART" else node
