"""Kernels of index, sorting and distance ops, called through their wrappers on meta tensors, compile for four chips."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from opmux.kernels import distance, elementwise
from opmux.kernels.index import bags, fold, reads, writes
from opmux.kernels.lib import compaction
from opmux.kernels.lib.cells import of_rows
from opmux.kernels.lib.compile_only import CHIPS, compiling_for
from opmux.kernels.lib.sorting import radix, rows
from opmux.kernels.sorting import histogram, ops, search, segments

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


def sums(reduce, *shape):
    x, lengths = meta(*shape), meta(64, dtype=i64)
    return segments._forward(x, reduce, lengths, False, 0, False)(x, lengths, lengths, 0.0)


def gradients(reduce, *shape):
    x, lengths, y = meta(*shape), meta(64, dtype=i64), meta(64, *shape[1:])
    segments._backward(y, y, x, reduce, lengths, False, 0)(y, y, x, lengths, lengths, meta(*shape), 1.0)


def counts(bins, dtype):
    x = meta(1000, 1000, dtype=dtype)
    histogram._counter(x, bins)(x, meta(bins, dtype=i64), 0.0, 1.0)


def distances(p, dtype):
    x = meta(512, 64, dtype=dtype)
    y = distance._pdist_forward(x, p)
    distance._pdist_backward(y, x, p, y)


def quantized():
    x, zero = meta(64, 256, 14, 14), meta(256, dtype=torch.int32)
    elementwise._per_channel(x, meta(256, dtype=f32), zero, 1)(x, meta(256, dtype=f32), zero, -128, 127)


CALLS = {
    "segments": lambda: sums("sum", 4096, 512),
    "segments of numbers": lambda: sums("prod", 4096),
    "gradients of segments": lambda: gradients("max", 4096, 512),
    "gradients of products": lambda: gradients("prod", 4096),
    "histogram": lambda: counts(100, f32),
    "histogram of many bins": lambda: counts(5000, i64),
    "mode": lambda: ops._mode(meta(64, 1000), 1, False)(meta(64, 1000)),
    "weights of samples": lambda: bags._samples(
        meta(64, 128), meta(5000, 128), meta(4096, dtype=i64), meta(4096, dtype=i64)
    )(meta(64, 128), meta(5000, 128), meta(4096, dtype=i64), meta(4096, dtype=i64), -1),
    "distances": lambda: distances(1.5, f32),
    "distances of float64": lambda: distances(float("inf"), torch.float64),
    "cross products": lambda: elementwise.linalg_cross(meta(4096, 3, dtype=f32), meta(4096, 3, dtype=f32)),
    "gradient of prelu": lambda: elementwise._prelu_kernel_backward(
        meta(64, 256, 196), meta(64, 256, 196), meta(1, 256, 1)
    ),
    "fake quantization": quantized,
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


@pytest.mark.few(9)
@pytest.mark.parametrize("number, name", list(enumerate(CALLS)), ids=CALLS)
def test_index_kernels_compile(number, name):
    """Each op is compiled for one chip, in rotation."""
    chip = list(CHIPS)[number % len(CHIPS)]
    with compiling_for(chip) as built:
        CALLS[name]()
    assert built and all(kernel.shared <= CHIPS[chip][1] for kernel in built)
    assert all(kernel.spills() <= 16 for kernel in built)


def test_embedding_rows_are_loaded_16_bytes_at_a_time():
    with compiling_for("sm_90") as built:
        CALLS["embedding"]()
    assert "ld.global.v4.b32" in built[0].asm["ptx"] and "st.global.v4.b32" in built[0].asm["ptx"]
