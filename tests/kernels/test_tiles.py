"""Default tiles can be compiled: threads and blocks are powers of two, whatever the sizes."""

from __future__ import annotations

import inspect
import itertools

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import moe, rope, router
from opmux.kernels.lib import config

MODE = "interpret"
FAMILIES = (moe, rope, router)
SIZES = (*range(1, 200), 255, 256, 257, 300, 384, 576, 640, 1000, 1023, 1025, 1500, 4096, 7168, 65537)
FEW = (1, 2, 3, 5, 6, 8, 12, 17, 24, 31, 64, 96, 100, 127, 128, 129, 160, 192, 320, 576, 1000, 4096, 65536, 100_003)
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)
OURS = sorted(n for n, t in config.tunables.items() if t.default.__module__ in {m.__name__ for m in FAMILIES})


def test_every_family_has_tunables():
    families = {name.partition(".")[0].removesuffix("_qk") for name in OURS}
    assert families == {m.__name__.rpartition(".")[2] for m in FAMILIES}


@pytest.mark.parametrize("name", OURS)
def test_threads_and_blocks_are_powers_of_two(name):
    default = config.tunables[name].default
    kinds = [p.annotation for p in inspect.signature(default, eval_str=True).parameters.values()]
    ints = SIZES if kinds.count(int) == 1 else FEW
    for facts in itertools.product(*({int: ints, torch.dtype: DTYPES}[kind] for kind in kinds)):
        tiles = default(*facts)
        assert tiles.changed(tiles.flat(), name) == tiles, facts  # rejects other values, and too many threads
