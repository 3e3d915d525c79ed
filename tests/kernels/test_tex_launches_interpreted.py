"""tex functions that quantize, with our kernels: they make the launches that docs/tex.md lists, and give the bits of
two separate passes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from opmux.faces.tex import quantized as Q
from opmux.faces.tex.ops import activation, norm, quantize
from opmux.kernels import wrappers
from opmux.kernels.lib import launch

MODE = "interpret"
PAGE = Path(__file__).parents[2] / "docs" / "tex.md"
KERNELS = wrappers()
QUANTIZERS = {
    "delayed": lambda: Q.Float8Quantizer(torch.full((1,), 3.0), torch.zeros(1)),
    "current": Q.Float8CurrentScalingQuantizer,
    "1x128": lambda: Q.Float8BlockQuantizer(block_scaling_dim=1),
    "128x128": lambda: Q.Float8BlockQuantizer(block_scaling_dim=2),
    "MXFP8": Q.MXFP8Quantizer,
    "MXFP8 of 32x32": lambda: Q.MXFP8Quantizer(with_2d_quantization=True),
}


def with_defaults(spec):
    """The op's kernel, or its reference if there is no kernel. Like dispatch, it fills in the op's defaults."""
    fn, defaults = KERNELS.get(spec.key, spec.reference), [p.default for p in spec.signature.parameters.values()]
    return lambda *args: fn(*args, *defaults[len(args) :])


def over_kernels(fn):
    """A tex function that calls our kernels."""
    return fn.spec.adapter.bind({spec.key: with_defaults(spec) for spec in fn.spec.adapter.over})


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


X, DY, BOTH, W = draw(64, 160), draw(64, 160), draw(64, 320), draw(160)


def of_norm(fn, *args):
    return lambda q: over_kernels(fn)(*args, 1e-5, None, q, torch.bfloat16, 0, True)[0]


def of_activation(fn, *args):
    return lambda q: over_kernels(fn)(*args, q)


# The first cell of a table row -> (the calls that the row describes, the quantizer's usages).
BOTH_WAYS, ROWS_ONLY = (True, True), (True, False)
NORMS = (of_norm(norm.rmsnorm_fwd, X, W), of_norm(norm.layernorm_fwd, X, W, W))
CALLS = {
    "`quantize`": ([of_activation(quantize.quantize, X)], BOTH_WAYS),
    "`rmsnorm_fwd`, `layernorm_fwd`": (NORMS, BOTH_WAYS),
    "the same, `columnwise=False`": (NORMS, ROWS_ONLY),
    "activations, their gradients, gates": (
        [
            of_activation(activation.gelu, X),
            of_activation(activation.dsilu, DY, X),
            of_activation(activation.swiglu, BOTH),
        ],
        BOTH_WAYS,
    ),
    "gradients of gates": ([of_activation(activation.dswiglu, DY, BOTH)], BOTH_WAYS),
    "`dbias_d...`": ([of_activation(activation.dbias_dgelu, DY, X)], BOTH_WAYS),
    "`bgrad_quantize`": ([of_activation(quantize.bgrad_quantize, X)], BOTH_WAYS),
}


def table():
    """The number of launches by row and quantizer, from the page's table. A cell is "2: norm; cast", or "1 (128x128:
    2)" if one quantizer differs.
    """
    lines = PAGE.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| function | delayed"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return rows
        row, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        numbers = [re.match(r"(\d+)(?: \((\S+): (\d+)\))?", cell) for cell in cells]
        for kind in QUANTIZERS:
            column = {"delayed": 0, "current": 1, "1x128": 2, "128x128": 2}.get(kind, 3)
            first, exception, other = numbers[column].groups()
            rows[row, kind] = int(other if exception and exception in kind else first)


TABLE = table()


@pytest.fixture
def launched(monkeypatch):
    """The names of the launched kernels of ours, and "sum" for each sum by torch."""
    launches, call, add_up = [], launch.Launcher.__call__, torch.Tensor.sum

    def launcher(self, *args):
        launches.append(self.kernel.__name__)
        return call(self, *args)

    def torch_sum(self, *args, **kwargs):
        launches.append("sum")
        return add_up(self, *args, **kwargs)

    monkeypatch.setattr(launch.Launcher, "__call__", launcher)
    monkeypatch.setattr(torch.Tensor, "sum", torch_sum)
    return launches


def held(value):
    return {n: t for n, t in vars(value).items() if isinstance(t, torch.Tensor)}


@pytest.mark.parametrize("row, kind", TABLE)
def test_launches_and_bits_are_as_documented(row, kind, launched):
    calls, (rowwise, columnwise) = CALLS[row]
    for call in calls:
        quantizer = QUANTIZERS[kind]()
        quantizer.set_usage(rowwise=rowwise, columnwise=columnwise)
        launched.clear()
        quantized = call(quantizer)
        assert len(launched) == TABLE[row, kind], launched
        # nothing to compare: delayed scaling does not round to bfloat16 before the cast, and `quantize` is a single
        # pass
        if kind == "delayed" or row == "`quantize`":
            continue
        result = call(None)
        sums, quantized = quantized if isinstance(quantized, list) else (None, quantized)
        plain, result = result if isinstance(result, list) else (None, result)
        want = held(over_kernels(quantize.quantize)(result, quantizer))
        assert held(quantized).keys() == want.keys() and all(
            torch.equal(t, want[n]) for n, t in held(quantized).items()
        )
        assert sums is None or torch.allclose(sums.float(), plain.float(), rtol=1e-2, atol=1e-5)


def test_every_row_of_the_table_is_called():
    assert {row for row, _ in TABLE} == set(CALLS)
