"""The answer to "which impl, and why not mine?", as data and as one screen of text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .extension import NATIVE
from .registry import OpImpl, Origin
from .tokens import shown


@dataclass(frozen=True)
class Verdict:
    """One impl in an explanation."""

    impl: OpImpl
    origin: Origin
    status: str  # chosen, next, refused
    stage: str = ""
    reason: str = ""

    def left_to_torch(self) -> Verdict:
        """The verdict if torch's own kernel runs in place of the chosen impl."""
        if self.status == "chosen":
            return replace(self, status="next", stage="enable", reason="not enabled for this call")
        return replace(self, status="chosen") if self.impl.impl_id == NATIVE and self.status == "next" else self

    def words(self) -> str:
        why = f"{self.stage}: {self.reason}" if self.reason else ""
        return why if self.status == "refused" else ", ".join(filter(None, (self.status, why)))


@dataclass(frozen=True)
class Explanation:
    """Why an op runs the impl that it runs. `str()` of it is one screen of text.

    `chosen` is dispatch's choice. For one of torch's own ops, `torch_runs` says that torch's own kernel runs instead,
    because `opmux.enable()` has not enabled the op; `remark` gives the reason.
    """

    op: str
    key: str
    policy: str
    device: str
    chosen: OpImpl | None
    verdicts: tuple[Verdict, ...]
    remark: str = ""
    torch_runs: bool = False

    def __str__(self) -> str:
        head = f"{self.op} ({self.key}) on {self.device}, policy {self.policy}\n"
        if self.torch_runs:
            head += f"-> {self.remark}"
        else:
            chosen = self.chosen
            about = chosen and f"'{chosen.impl_id}' (kind={shown(chosen.kind)}, vendor={chosen.vendor})"
            head += f"-> {about or 'nothing can run'}"
            head += f"\n   {self.remark}" if self.remark else ""
        marks = {"chosen": "*", "next": " ", "refused": "x"}
        width = max((len(v.impl.impl_id) for v in self.verdicts), default=0)
        lines = [
            f"  {marks[v.status]} {v.impl.impl_id:<{width}}  {shown(v.impl.kind):<9}  priority {v.impl.priority:<4} "
            + v.words()
            for v in self.verdicts
        ]
        return "\n".join([head, *lines])
