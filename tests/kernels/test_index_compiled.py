"""Kernels of index and sorting compiled for four chips, through their real wrappers on tensors without memory."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels.index import fold, reads, writes
from opmux.kernels.lib import compaction
from opmux.kernels.lib.cells import of_rows
from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.kernels.lib.sorting import radix, rows
from opmux.kernels.sorting import search

MODE = "compile"
f32, bf16, i64 = torch.float32, torch.bfloat16, torch.int64


def meta(*shape, dtype=bf16):
    return torch.empty(shape, dtype=dtype, device="meta")


def fold_rows():
    like = meta(1000, 512)
    index = meta(4, 100, dtype=i64)
    fold.folder(of_rows(like, index), like, "sum", False, skips=True)(like, (index,), meta(400, 512), 1.0, 3)


def fold_elements():
    x, index, source = meta(64, 64), meta(64, 32, dtype=i64), meta(64, 32)
    writes._along("scatter_reduce.amax", x, 1, index, source, False, True, True)(x, index, source)


def long_fold():
    keys = meta(1, 10_000, dtype=torch.int32)
    radix.order(keys, 17)(keys)


CALLS = {
    "embedding": lambda: reads.embedding(meta(32000, 4096), meta(4, 512, dtype=i64)),
    "gather": lambda: reads.gather(meta(64, 1000), 1, meta(64, 7, dtype=i64)),
    "index, two": lambda: reads.index(meta(64, 100, 48), [meta(5, 1, dtype=i64), meta(6, dtype=i64)]),
    "scatter_add": lambda: writes.scatter_add(
        meta(64, 100, dtype=f32), 1, meta(64, 7, dtype=i64), meta(64, 7, dtype=f32)
    ),
    "index_add": lambda: writes.index_add(
        meta(64, 256, dtype=f32), 0, meta(7, dtype=i64), meta(7, 256, dtype=f32), alpha=2.0
    ),
    "scatter, a number": lambda: writes.scatter(meta(64, 100), 1, meta(64, 7, dtype=i64), value=2.0),
    "counts of a mask": lambda: compaction.ends(meta(100, 1000, dtype=torch.bool))(meta(100, 1000, dtype=torch.bool)),
    "fold of rows": fold_rows,
    "fold of elements": fold_elements,
    "short rows": lambda: rows.sorter(meta(64, 1000), False)(meta(64, 1000)),
    "short rows of 64 bits": lambda: rows.sorter(meta(4, 100, dtype=i64), True)(meta(4, 100, dtype=i64)),
    "the first of long rows": lambda: rows.chooser(meta(4, 32000, dtype=f32), 50, True)(meta(4, 32000, dtype=f32)),
    "radix": long_fold,
    "search": lambda: search.searchsorted(meta(100, dtype=f32), meta(4, 1000, dtype=f32)),
}


@pytest.mark.parametrize("number, name", list(enumerate(CALLS)), ids=CALLS)
def test_compiles(number, name):
    """Each on one chip, in turn."""
    chip = list(CHIPS)[number % len(CHIPS)]
    with compiling_for(chip) as built:
        CALLS[name]()
    assert built and all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    assert all(kernel.spills() <= 16 for kernel in built)


def test_rows_of_an_embedding_are_read_16_bytes_at_a_time():
    with compiling_for("sm_90") as built:
        CALLS["embedding"]()
    assert "ld.global.v4.b32" in built[0].asm["ptx"] and "st.global.v4.b32" in built[0].asm["ptx"]
