"""Sources that say "cuda", read for another chip: what is compiled differs, the files and their line numbers do not.

| in the source | is read as |
|---|---|
| `"cuda"`, `"cuda:0"` | the chip's device type |
| `torch.cuda`, `from torch.cuda import f` | the chip's view of it |
| `torch.version.cuda` | a version that has what the layer asks for |
| `torch.device(x)`, `f(device=x)` | the same, where x may be "cuda" or a number at run time |
| `t.is_cuda` | whether t is on the chip |
| `t.cuda()` | `t.to(chip)` |
| `torch.is_autocast_enabled()` | asked of the chip's type, as it is of CUDA's by default |
| `triton.autotune(configs=x)` | the first of them, on a CPU: its interpreter has nothing to measure |
"""

from __future__ import annotations

import ast
import re
from itertools import accumulate
from typing import Any

from .chip import CUDA_VERSION

CHIP = "__opmux_chip__"  # the Chip, in each module that was read so


def concerns(source: bytes) -> bool:
    """Whether there is anything in a source to be read for a chip."""
    return b"cuda" in source or b"triton.autotune" in source


def read_for(source: bytes, path: str, device: str) -> Any:
    """The code of a source, read for a chip of this device type."""
    return compile(_Reader(device, source).visit(ast.parse(source, path)), path, "exec", dont_inherit=True)


def _is(node: ast.AST, package: str, *names: str) -> bool:
    """Whether an expression is `package.<names>`."""
    for name in reversed(names):
        if not isinstance(node, ast.Attribute) or node.attr != name:
            return False
        node = node.value
    return isinstance(node, ast.Name) and node.id == package


def _of_torch(node: ast.AST, *names: str) -> bool:
    return _is(node, "torch", *names)


_WORDS = re.compile(rb"cuda|device|autocast|configs=")


class _Reader(ast.NodeTransformer):
    def __init__(self, device: str, source: bytes):
        self.device = device
        # How many lines up to each have anything for us: most functions have nothing, and walking over all is slow.
        self.lines = list(accumulate((bool(_WORDS.search(line)) for line in source.split(b"\n")), initial=0))

    def visit(self, node: ast.AST) -> Any:
        first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if first and last:
            first = min([first, *(d.lineno for d in getattr(node, "decorator_list", ()))])  # those stand above it
            if self.lines[last] == self.lines[first - 1]:
                return node
        return super().visit(node)

    def _placed(self, node: ast.AST, text: str, part: ast.expr | None = None) -> Any:
        """An expression of this text, on the lines of the node that it replaces; PART in it stands for the part."""
        made = ast.parse(text, mode="eval").body
        for new in ast.walk(made):
            if hasattr(new, "lineno"):
                ast.copy_location(new, node)
        return made if part is None else _Put(part).visit(made)

    def visit_Constant(self, node: ast.Constant) -> Any:
        value = node.value
        if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")) and " " not in value:
            here = self.device if self.device == "cpu" else self.device + value[len("cuda") :]
            return ast.copy_location(ast.Constant(here), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        # Only what is put in: a device's name made at run time meets `here`, and the rest are messages.
        node.values = [v if isinstance(v, ast.Constant) else self.visit(v) for v in node.values]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if _of_torch(node, "version", "cuda"):
            return ast.copy_location(ast.Constant(CUDA_VERSION), node)
        if _of_torch(node, "cuda"):
            return self._placed(node, f"{CHIP}.cuda")
        self.generic_visit(node)
        if node.attr == "is_cuda" and isinstance(node.ctx, ast.Load):
            return self._placed(node, f"(PART.device.type == {self.device!r})", node.value)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        if _of_torch(node.func, "device"):
            node.func = self._placed(node.func, f"{CHIP}.device")
        elif _of_torch(node.func, "is_autocast_enabled") and not node.args:
            node.args = [ast.copy_location(ast.Constant(self.device), node)]
        elif _of_torch(node.func, "get_autocast_gpu_dtype"):
            return self._placed(node, f"torch.get_autocast_dtype({self.device!r})")
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and not _of_torch(node.func, "cuda"):
            node.func.attr = "to"
            where = node.args[0] if node.args else ast.Constant(self.device)
            node.args = [self._placed(node, f"{CHIP}.here(PART)", ast.copy_location(where, node))]
        self.generic_visit(node)
        tuned = self.device == "cpu" and _is(node.func, "triton", "autotune")
        for keyword in node.keywords:
            if keyword.arg == "configs" and tuned:
                keyword.value = self._placed(keyword.value, "PART[:1]", keyword.value)
            if keyword.arg == "device" and not isinstance(keyword.value, ast.Constant):
                keyword.value = self._placed(keyword.value, f"{CHIP}.here(PART)", keyword.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if node.name == "is_cuda":  # what the layer's own tensors say of themselves stays true
            return node
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.module != "torch.cuda" or node.level:
            return node
        got = [(a.asname or a.name, self._placed(node, f"{CHIP}.cuda.{a.name}")) for a in node.names]
        return [
            ast.copy_location(ast.Assign([ast.copy_location(ast.Name(name, ast.Store()), node)], value), node)
            for name, value in got
        ]


class _Put(ast.NodeTransformer):
    """Puts an expression where PART stands for it; it keeps its own lines."""

    def __init__(self, part: ast.expr):
        self.part = part

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.part if node.id == "PART" else node
