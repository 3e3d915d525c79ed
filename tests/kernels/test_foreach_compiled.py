"""Ops over lists, compiled for chips that this machine does not have: full chunks use 16-byte accesses."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from impls import triton_impl

from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.specs import foreach as spec

MODE = "compile"
NAMES = ["_foreach_sqrt", "_foreach_add", "_foreach_addcdiv", "_foreach_lerp", "_foreach_copy", "_foreach_norm",
         *spec.STEPS, *spec.SCALING]  # fmt: skip


def on_meta(value):
    if torch.is_tensor(value):
        return value.to("meta")
    return [on_meta(v) for v in value] if isinstance(value, (list, tuple)) else value


def built_for(chip, name, dtype, number=0):
    sample = list(spec.SAMPLES[name](dtype, "cpu"))[number]
    params = spec.ops[name].spec.signature.parameters.values()
    args = [on_meta(a) for a in sample.args]
    keywords = {p.name: a for p, a in zip(params, args, strict=True) if p.kind is p.KEYWORD_ONLY}
    with compiling_for(chip) as built:
        triton_impl(spec.ops[name]).fn(*args[: len(args) - len(keywords)], **keywords)
    assert built and all(kernel.shared <= CHIPS[chip][1] and not kernel.spills() for kernel in built)
    return built


@pytest.mark.parametrize("number, name", list(enumerate(NAMES)), ids=NAMES)
def test_every_kind_of_op_compiles(number, name):
    built_for(list(CHIPS)[number % 4], name, (torch.float32, torch.bfloat16)[number // 4 % 2])


@pytest.mark.slow
@pytest.mark.parametrize("number, name", list(enumerate(spec.ops)), ids=list(spec.ops))
def test_every_op_compiles_for_every_sample(number, name):
    for turn, dtype in enumerate((torch.float32, torch.bfloat16)):
        for sample in range(len(list(spec.SAMPLES[name](dtype, "cpu")))):
            built_for(list(CHIPS)[(number + 2 * turn + sample) % 4], name, dtype, sample)
