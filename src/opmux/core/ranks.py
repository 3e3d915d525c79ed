"""Checks that all ranks run the same impls: a digest of all bindings, compared over torch.distributed."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from .default import get_default_manager, set_policy
from .errors import RanksDiffer
from .log import logger

MODES = ("error", "warn", "adopt")


def digest() -> str:
    """A short hash of the impls that would run for every op; equal on ranks that would run the same impls."""
    return get_default_manager().digest()


def sync(group: Any = None, mode: str = "error") -> bool:
    """Compare this rank's bindings with the group's; returns True if all agree.

    If they differ: "error" raises on every rank; "warn" logs the difference; "adopt" makes every rank use rank 0's
    order of impls for each op, and raises if a rank lacks an impl of rank 0.
    """
    if mode not in MODES:
        raise ValueError(f"sync: mode must be one of {MODES}, got {mode!r}")
    manager = get_default_manager()
    world = dist.get_world_size(group)
    digests: list[Any] = [None] * world
    dist.all_gather_object(digests, manager.digest(), group=group)
    if len(set(digests)) == 1:
        return True
    tables: list[Any] = [None] * world
    dist.all_gather_object(tables, manager.bindings(), group=group)
    difference = _difference(tables)
    if mode == "error":
        raise RanksDiffer(f"ranks would run different impls: {difference}")
    logger.warning("ranks would run different impls: %s", difference)
    if mode == "adopt":
        _adopt(tables, dist.get_rank(group), group)
    return False


def _difference(tables: list[dict[str, tuple[str, ...]]]) -> str:
    """The first few ops on which some rank differs from rank 0."""
    lines = []
    for rank, table in enumerate(tables):
        for op in sorted({*table, *tables[0]}):
            if table.get(op) != tables[0].get(op):
                lines.append(f"{op}: rank 0 {tables[0].get(op, ())}, rank {rank} {table.get(op, ())}")
    more = f"; and {len(lines) - 8} more" if len(lines) > 8 else ""
    return "; ".join(lines[:8]) + more


def _adopt(tables: list[dict[str, tuple[str, ...]]], rank: int, group: Any) -> None:
    own, rank_0 = tables[rank], tables[0]
    orders = {op: [f"impl:{i}" for i in ids] for op, ids in rank_0.items() if ids and own.get(op) != ids}
    missing = {
        op: sorted(set(ids) - set(own.get(op, ()))) for op, ids in rank_0.items() if set(ids) - set(own.get(op, ()))
    }
    # Every rank must know whether all can adopt the order. Otherwise some would wait forever in the next collective.
    missing_by_rank: list[Any] = [None] * len(tables)
    dist.all_gather_object(missing_by_rank, missing, group=group)
    short = {r: m for r, m in enumerate(missing_by_rank) if m}
    if short:
        raise RanksDiffer(f"rank 0's impls cannot be adopted; missing by rank: {short}")
    if orders:
        set_policy(per_op=orders)
