"""Writes `docs/aten_coverage.md`: whether opmux computes each overload that FlagGems registers, and if not, why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opmux.core.spec import specs
from opmux.faces.aten import decisions, left, overloads
from opmux.faces.aten.schema import OverloadSchema
from opmux.machine.devices import Chip
from opmux.tools.speed.command import SLOW, mean, ratios

MEASURED = {"Hopper": Chip("nvidia", "sm_90")}  # the chips whose measurements are shipped

OURS, COMPOSED, VIEW, LEFT, NOT_YET = "ours", "composed", "view", "left to torch", "not yet"


def ours() -> dict[str, overloads.Overload]:
    """Every overload that our kernels compute, without those that only a vendor on this machine computes."""
    return {name: o for name, o in overloads.table().items() if o.bases}


def status(name: str) -> str:
    """The status of an overload: computed by opmux, or why it is not."""
    if name in ours():
        return OURS
    shape = OverloadSchema(name)
    if name in left.LEFT or shape.packet in left.LEFT:
        return LEFT
    return COMPOSED if shape.composite else VIEW if shape.view else NOT_YET


def page() -> str:
    by_kind: dict[str, list[str]] = {kind: [] for kind in (OURS, COMPOSED, VIEW, LEFT, NOT_YET)}
    for name in left.flaggems_names():
        by_kind[status(name)].append(name)
    implemented = ours()
    lines = [
        "# Coverage of ATen",
        "",
        "The 953 overloads that FlagGems registers and torch 2.13 has, and what `opmux.enable(mode=\"all\")` does with",
        "each. Made by `make docs` from the schemas and `faces/aten/left.py`; do not edit.",
        "",
        "| | overloads |",
        "|---|---|",
        f"| computed by kernels of ours | {len(by_kind[OURS])} |",
        f"| composed by ATen of other ops, which are overridden | {len(by_kind[COMPOSED])} |",
        f"| views: no kernel runs | {len(by_kind[VIEW])} |",
        f"| left to torch, for the reason given | {len(by_kind[LEFT])} |",
        f"| not yet | {len(by_kind[NOT_YET])} |",
        f"| all | {len(left.flaggems_names())} |",
        "",
        f"With overloads that are not in FlagGems' list, opmux overrides {len(implemented)}.",
        "An override of a composed op would lose its gradient, so opmux overrides the ops it calls.",
        "",
        f"## Ours: {len(by_kind[OURS])}",
        "",
        *_table("computed by", by_kind[OURS], lambda n: _primitive(implemented[n])),
        "",
        f"## Composed by ATen: {len(by_kind[COMPOSED])}",
        "",
        *_table("of", by_kind[COMPOSED], left.parts),
        "",
        f"## Views: {len(by_kind[VIEW])}",
        "",
        " ".join(f"`{name}`" for name in by_kind[VIEW]),
        "",
        f"## Left to torch: {len(by_kind[LEFT])}",
        "",
        *_table("because", by_kind[LEFT], lambda n: str(left.reason(n))),
        "",
    ]  # fmt: skip
    if by_kind[NOT_YET]:
        rows = _table("family", by_kind[NOT_YET], lambda n: left.not_yet().get(n, ""))
        lines += [f"## Not yet: {len(by_kind[NOT_YET])}", "", *rows, ""]
    for chip, of in MEASURED.items():
        lines += _speeds(chip, decisions.FILES.shipped(of))
    return "\n".join(lines)


def _speeds(chip: str, known: Mapping[str, decisions.Speed]) -> list[str]:
    means = {name: mean(ratios(speed)) for name, speed in known.items() if ratios(speed)}
    slow = sorted((r, name) for name, r in means.items() if r < SLOW)
    return [
        f"## Speed on {chip}",
        "",
        f"For {len(means)} overloads a speed is shipped: torch's time on the device over ours at the largest size, the",
        f"geometric mean over dtypes. Over all of them it is {mean(means.values()):.2f}. {len(slow)} are below {SLOW},",
        'and `mode="auto"` leaves them to torch wherever they are slower:',
        "",
        ", ".join(f"`{name}` {r:.2f}" for r, name in slow) + ".",
        "",
    ]


def _primitive(overload: overloads.Overload) -> str:
    spec = specs.by_key[overload.bases[0]]
    return f"`{spec.name}` ({spec.family})"


def _table(about: str, names: Iterable[str], text_of: Callable[[str], str]) -> list[str]:
    """A table in which all overloads with the same description share a row."""
    rows: dict[str, list[str]] = {}
    for name in names:
        rows.setdefault(text_of(name), []).append(f"`{name}`")
    return [
        f"| overloads | {about} |",
        "|---|---|",
        *(f"| {' '.join(listed)} | {description} |" for description, listed in rows.items()),
    ]
