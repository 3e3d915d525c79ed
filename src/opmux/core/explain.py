"""The answer to "which impl, and why not mine?", as data and as one screen of text."""

from __future__ import annotations

from dataclasses import dataclass

from .registry import OpImpl, Origin


@dataclass(frozen=True)
class Verdict:
    """One impl in an explanation."""

    impl: OpImpl
    origin: Origin
    status: str  # chosen, next, refused
    stage: str = ""
    reason: str = ""

    def words(self) -> str:
        why = f"{self.stage}: {self.reason}" if self.reason else ""
        return why if self.status == "refused" else ", ".join(filter(None, (self.status, why)))


@dataclass(frozen=True)
class Explanation:
    """Why an op runs the impl that it runs. `str()` of it is one screen of text."""

    op: str
    key: str
    policy: str
    device: str
    chosen: OpImpl | None
    verdicts: tuple[Verdict, ...]
    remark: str = ""

    def __str__(self) -> str:
        head = f"{self.op} ({self.key}) on {self.device}, policy {self.policy}\n"
        head += f"-> {self.chosen}" if self.chosen else "-> nothing can run"
        head += f"\n   {self.remark}" if self.remark else ""
        marks = {"chosen": "*", "next": " ", "refused": "x"}
        width = max((len(v.impl.impl_id) for v in self.verdicts), default=0)
        lines = [
            f"  {marks[v.status]} {v.impl.impl_id:<{width}}  {v.impl.kind!s:<9}  priority {v.impl.priority:<4} "
            + v.words()
            for v in self.verdicts
        ]
        return "\n".join([head, *lines])
