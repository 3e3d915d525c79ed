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
        found, overloads = {}, {}
        for word in words:
            names = {n: o for n, o in table().items() if refers_to(word.strip().removeprefix("aten::"), n, o)}
            try:
                mine = select([word])
            except UnknownName as error:
                if word.startswith("family:"):
                    raise
                if not names:
                    raise UnknownName("op", word, {*specs.short_names(), *table()}) from error
                mine = []
            found |= {s.key: s for s in mine}
            overloads |= names | {o.name: o for o in opinfo.of_specs(table().values(), mine)}
        return cls(words, list(found.values()), overloads)

    def includes(self, row: str) -> bool:
        """Whether the selection includes a vendor's row, given by the key of its overload (`aten::mm`)."""
        return not self.words or row.removeprefix("aten::") in self.overloads
