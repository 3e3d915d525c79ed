"""Selects the ops and the overloads of ATen that the command line names."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import UnknownName
from ...core.spec import specs
from ...faces.aten.overloads import Overload, table
from ...faces.aten.switch import refers_to
from ..bench.cases import select
from . import opinfo


@dataclass(frozen=True)
class OpScope:
    """The ops and the overloads of ATen that the command line names."""

    words: list[str]
    specs: list
    overloads: dict[str, Overload]

    @classmethod
    def of(cls, words: list[str]) -> OpScope:
        if not words:
            return cls([], list(specs), dict(table()))
        chosen, overloads = {}, {}
        for name in words:
            names = {n: o for n, o in table().items() if refers_to(name.strip().removeprefix("aten::"), n, o)}
            try:
                selected = select([name])
            except UnknownName as error:
                if name.startswith("family:"):
                    raise
                if not names:
                    raise UnknownName("op", name, {*specs.short_names(), *table()}) from error
                selected = []
            chosen |= {s.key: s for s in selected}
            overloads |= names | {o.name: o for o in opinfo.of_specs(table().values(), selected)}
        return cls(words, list(chosen.values()), overloads)

    def includes(self, row: str) -> bool:
        """Whether the selection includes a vendor's row, given by the key of its overload (`aten::mm`)."""
        return not self.words or row.removeprefix("aten::") in self.overloads
