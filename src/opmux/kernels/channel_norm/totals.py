"""Kernels of group norm, batch norm and weight norm that add up the parts of a unit, computed by several programs."""

from __future__ import annotations

import triton
import triton.language as tl

from ..lib.launch import Launcher
from .device import _inverse, _store_statistics


@triton.jit
def _slots(i_u, at, n_c, n_w, n_parts, n_units, BLOCK_I: tl.constexpr):
    """Offsets [BLOCK_I, BLOCK_U] of partial results [outer, n_parts, n_c]; a unit is n_w adjacent columns."""
    n_j = n_c // n_w
    i = at + tl.arange(0, BLOCK_I)[:, None]
    i_c = (i_u % n_j)[None, :] * n_w + i % n_w
    o = ((i_u // n_j)[None, :].to(tl.int64) * n_parts + i // n_w) * n_c + i_c
    return o, (i < n_parts * n_w) & (i_u < n_units)[None, :], i_c


def _merge(
    counts_ptr,
    means_ptr,
    squares_ptr,
    mean_ptr,
    rstd_ptr,
    running_mean_ptr,
    running_var_ptr,
    new_mean_ptr,
    new_var_ptr,
    n_c,
    n_w,
    n_parts,
    n_units,
    count,
    eps,
    momentum,
    CENTRED: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_U: tl.constexpr,
):
    """Merge partial statistics: first the means, then the squared differences from the merged mean."""
    i_u = tl.program_id(0) * BLOCK_U + tl.arange(0, BLOCK_U)
    mean = tl.zeros([BLOCK_U], WIDE)
    if CENTRED:
        b_1 = tl.zeros([BLOCK_I, BLOCK_U], WIDE)
        for at in range(0, n_parts * n_w, BLOCK_I):
            o, m, _ = _slots(i_u, at, n_c, n_w, n_parts, n_units, BLOCK_I)
            b_1 += tl.load(counts_ptr + o, mask=m, other=0.0) * tl.load(means_ptr + o, mask=m, other=0.0)
        mean = tl.sum(b_1, 0) / count
    b_2 = tl.zeros([BLOCK_I, BLOCK_U], WIDE)
    for at in range(0, n_parts * n_w, BLOCK_I):
        o, m, _ = _slots(i_u, at, n_c, n_w, n_parts, n_units, BLOCK_I)
        b_2 += tl.load(squares_ptr + o, mask=m, other=0.0)
        if CENTRED:
            b_d = tl.load(means_ptr + o, mask=m, other=0.0) - mean[None, :]
            b_2 += tl.load(counts_ptr + o, mask=m, other=0.0) * b_d * b_d
    _store_statistics(
        mean,
        tl.sum(b_2, 0),
        i_u,
        i_u < n_units,
        mean_ptr,
        rstd_ptr,
        running_mean_ptr,
        running_var_ptr,
        new_mean_ptr,
        new_var_ptr,
        count,
        eps,
        momentum,
        CENTRED,
    )


def _total_units(
    ds_ptr,
    db_ptr,
    weight_ptr,
    c1_ptr,
    c2_ptr,
    n_c,
    n_w,
    n_parts,
    n_units,
    count,
    WIDE: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_U: tl.constexpr,
):
    """c1 and c2, from which group norm's dx is computed: the means of dy * weight and of dy * weight * x'."""
    i_u = tl.program_id(0) * BLOCK_U + tl.arange(0, BLOCK_U)
    b_1 = tl.zeros([BLOCK_I, BLOCK_U], WIDE)
    b_2 = tl.zeros([BLOCK_I, BLOCK_U], WIDE)
    for at in range(0, n_parts * n_w, BLOCK_I):
        o, m, i_c = _slots(i_u, at, n_c, n_w, n_parts, n_units, BLOCK_I)
        b_w = tl.full([BLOCK_I, BLOCK_U], 1.0, WIDE)
        if weight_ptr is not None:
            b_w = tl.load(weight_ptr + i_c, mask=m, other=0.0).to(WIDE)
        b_1 += tl.load(db_ptr + o, mask=m, other=0.0) * b_w
        b_2 += tl.load(ds_ptr + o, mask=m, other=0.0) * b_w
    tl.store(c1_ptr + i_u, tl.sum(b_1, 0) / count, mask=i_u < n_units)
    tl.store(c2_ptr + i_u, tl.sum(b_2, 0) / count, mask=i_u < n_units)


def _total_channels(
    ds_ptr,
    db_ptr,
    weight_ptr,
    stat_ptr,
    dweight_ptr,
    dbias_ptr,
    c1_ptr,
    c2_ptr,
    dmean_ptr,
    dvar_ptr,
    n_c,
    n_parts,
    count,
    eps,
    WIDE: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_U: tl.constexpr,
):
    """Add partial sums [n_parts, n_c]: dweight and dbias.

    If a channel is a unit, also writes c1 and c2, from which its dx is computed, or the gradients with respect to given
    statistics.
    """
    i_c = tl.program_id(0) * BLOCK_U + tl.arange(0, BLOCK_U)
    m_c = i_c < n_c
    b_1 = tl.zeros([BLOCK_I, BLOCK_U], WIDE)
    b_2 = tl.zeros([BLOCK_I, BLOCK_U], WIDE)
    for at in range(0, n_parts, BLOCK_I):
        i = at + tl.arange(0, BLOCK_I)[:, None]
        o = i.to(tl.int64) * n_c + i_c[None, :]
        m = (i < n_parts) & m_c[None, :]
        b_2 += tl.load(ds_ptr + o, mask=m, other=0.0)
        if db_ptr is not None:
            b_1 += tl.load(db_ptr + o, mask=m, other=0.0)
    s_1, s_2 = tl.sum(b_1, 0), tl.sum(b_2, 0)
    tl.store(dweight_ptr + i_c, s_2.to(dweight_ptr.dtype.element_ty), mask=m_c)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + i_c, s_1.to(dbias_ptr.dtype.element_ty), mask=m_c)
    if weight_ptr is not None:
        b_w = tl.load(weight_ptr + i_c, mask=m_c, other=0.0).to(WIDE)
        s_1 *= b_w
        s_2 *= b_w
    if c1_ptr is not None:
        tl.store(c1_ptr + i_c, s_1 / count, mask=m_c)
    if c2_ptr is not None:
        tl.store(c2_ptr + i_c, s_2 / count, mask=m_c)
    if dmean_ptr is not None:
        rstd = _inverse(stat_ptr, i_c, m_c, eps, "var", WIDE)
        tl.store(dmean_ptr + i_c, (-rstd * s_1).to(dmean_ptr.dtype.element_ty), mask=m_c)
        tl.store(dvar_ptr + i_c, (-0.5 * rstd * rstd * s_2).to(dvar_ptr.dtype.element_ty), mask=m_c)


merge = Launcher(_merge, sizes="n_c")
total_units = Launcher(_total_units, sizes="n_c")
total_channels = Launcher(_total_channels, sizes="n_c")
