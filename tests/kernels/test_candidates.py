"""Tiles in vendors' files, compiled through the real wrappers for chips that this machine does not have."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from triton.runtime.errors import OutOfResources

from opmux.core import get_default_manager, specs
from opmux.core.registry import BackendImplKind
from opmux.kernels.lib import config
from opmux.kernels.lib.compile_only import compiling_for
from opmux.kernels.lib.plans import forget
from opmux.machine.devices import Chip

MODE = "compile"


def kernel(name):
    (impl,) = [
        i
        for i in get_default_manager().registry.get_implementations(f"opmux::{name}")
        if i.kind is BackendImplKind.DEFAULT and i.vendor is None
    ]
    return impl.fn


def meta_args(name, shape, dtype):
    """Return a sample of the op on meta, created with a small shape and then enlarged, because only its final shape
    matters.
    """
    small = specs.find(f"opmux::{name}").samples.at((2, 64), dtype, "cpu").args
    grow = lambda t: torch.empty([{64: shape[1], 2: shape[0]}.get(n, n) for n in t.shape], dtype=t.dtype, device="meta")
    return tuple(grow(a) if torch.is_tensor(a) else a for a in small)


SMALL = 99 << 10  # shared memory of a program on sm_86 and sm_89


@pytest.mark.parametrize("arch, source", [("sm_80", "default"), ("sm_86", "heuristics"), ("sm_89", "heuristics")])
def test_tiles_follow_the_arch(arch, source):
    """For a long softmax row, the shared memory of an A100 holds three pipeline stages, that of an A10 one."""
    args = meta_args("softmax", (512, 16384), torch.float32)
    with compiling_for("sm_80") as built, config.as_on(Chip.of_arch(arch)), config.asked() as calls:
        kernel("softmax")(*args)
    assert [a.choice.source for a in calls] == [source]
    assert (max(b.shared for b in built) <= SMALL) is (source == "heuristics")


@pytest.mark.parametrize("chip", ["sm_90", "gfx942"])
def test_compile_only_chips_use_their_vendors_tiles(chip):
    with compiling_for(chip):
        this_chip = config.this_chip()
    assert (this_chip.vendor, this_chip.arch, this_chip.name) == ("nvidia" if chip == "sm_90" else "amd", chip, "")
    assert config.this_chip() is None or config.this_chip().name


TRIED = ("softmax", "rms_norm", "rms_norm_bwd", "gelu", "silu_mul")


def _try_all(name, chip, shape):
    """Compile every candidate. Returns how many were tried, and how many need more shared memory than the chip has."""
    args, count, refused = meta_args(name, shape, torch.bfloat16), 0, 0
    with compiling_for(chip):
        with config.asked() as calls:
            kernel(name)(*args)
        for one in {a.key: a for a in calls}.values():
            for tiles, why in one.tunable.candidates(config.this_chip(), **one.facts):
                if why:
                    continue
                count += 1
                forget()
                try:
                    with config.trying({one.key: tiles}):
                        kernel(name)(*args)
                except OutOfResources:
                    refused += 1
    return count, refused


@pytest.mark.parametrize("name, chip", [("softmax", "sm_80"), ("gelu", "sm_90")])
def test_candidates_compile(name, chip):
    count, refused = _try_all(name, chip, (512, 256))
    assert count >= 8 and refused == 0


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", TRIED)
def test_all_candidates_compile(name, chip):
    count, refused = _try_all(name, chip, (512, 4096))
    assert count >= 8 and refused < count / 2
