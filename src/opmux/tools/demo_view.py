"""The live view and the report of `opmux demo`."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core import machine
from ..core.default import get_default_manager
from ..core.tensors import dtype_name
from . import screen
from .demo import Gaps, Run, Session, chosen

SECONDS = 0.25  # between two refreshes of the live view
LINES = 10  # lines of progress without a terminal
BESIDE, TABLE = 116, 76  # least width for chart and table of runs side by side; width of the table; in columns
REST = 22  # lines of the live view besides the chart
STYLES = ("magenta", "green", "bold cyan")  # of plain torch, of opmux, of points that both have
COMMANDS = (
    ("opmux explain add_rms_norm", "which implementation runs here, and why"),
    ("opmux compare gpt2 --layers 1 --batch 1", "is a model faster, and is it right?"),
    ("opmux run train.py", "run your program with opmux"),
)


# ---- while it runs --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def showing(session: Session) -> Iterator[Callable[[], None]]:
    """A function to call after each step. It refreshes a live view on stderr, or prints a line now and then."""
    console = screen.err()
    if not console.is_terminal:
        yield lambda: _line(console, session)
        return
    last = 0.0
    view = LiveView(session)
    with screen.live(console) as update:

        def show() -> None:
            nonlocal last
            if time.monotonic() - last > SECONDS or session.done in (1, session.steps):
                update(view.render(console))
                last = time.monotonic()

        yield show


def _line(console: Console, session: Session) -> None:
    every = max(session.steps // LINES, 1)
    if session.done % every and session.done not in (1, session.steps):
        return
    losses = ", ".join(f"{r.name} {r.losses[-1]:.4f}" for r in session.runs)
    times = ", ".join(f"{r.step_ms:.1f}" for r in session.runs)
    console.print(Text(f"step {session.done}/{session.steps}: loss: {losses}; median ms of a step: {times}"))


class LiveView:
    """The live view; each refresh looks up what runs for one more op, because the lookup takes time."""

    def __init__(self, session: Session):
        self.session = session
        self.shown = 0  # ops in the table

    def render(self, console: Console) -> RenderableType:
        session, width = self.session, console.width
        self.shown = min(self.shown + 1, len(session.counted))
        height = min(max(console.height - REST, 4), 12)
        wide = width >= BESIDE
        picture = chart(session, width - TABLE if wide else width, height)
        state = Text(f"{session.done}/{session.steps} loss {session.ours.losses[-1]:.4f}", "bold")
        first = _beside(picture, runs(session)) if wide else Group(picture, runs(session))
        return Group(heading(session), state, first, implementations(session, self.shown))


def _beside(left: RenderableType, right: RenderableType) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(left, right)
    return grid


# ---- parts of the view and the report -------------------------------------------------------------------------------


def heading(session: Session) -> Text:
    size, arch = session.size, machine.arch_of(session.device.type)
    where = f"{session.device.type} ({arch})" if arch else session.device.type
    title = f"A small Llama in plain torch and in opmux, on {where}, {dtype_name(session.dtype)}, seed {session.seed}\n"
    sizes = f"{size.layers} layers, width {size.dim}, {size.heads} heads over {size.kv_heads}, SwiGLU {size.hidden}; "
    return Text.assemble((title, "bold"), (f"{sizes}{size.batch} x {size.context} characters a step; AdamW", "dim"))


def chart(session: Session, width: int, height: int) -> Text:
    """The losses of both runs as curves of braille points, `width` x `height` characters with the axes."""
    curves = [run.losses for run in session.runs]
    finite = [loss for curve in curves for loss in curve if math.isfinite(loss)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    columns = max(width - 8, 8)
    cells = [_points(curve, low, high, columns, height) for curve in curves]
    text = Text()
    for y in range(height):
        label = f"{high:6.3f}" if y == 0 else f"{low:6.3f}" if y == height - 1 else ""
        text.append(f"{label:>6} │", "dim")
        for x in range(columns):
            plain, ours = (of.get((x, y), 0) for of in cells)
            style = STYLES[2] if plain & ours else STYLES[1] if ours else STYLES[0]
            text.append(chr(0x2800 + (plain | ours)) if plain | ours else " ", style)
        text.append("\n")
    text.append(f"{'loss':>6} └", "dim")
    text.append(f"{'─ step ' + str(session.done) + ' ':─>{columns}}\n", "dim")
    names = zip(("plain torch", "opmux", "both"), STYLES, strict=True)
    return text.append_text(Text.assemble("        ", *((f"⣀ {name}  ", style) for name, style in names)))


# The bit of each point of a braille character, by column and row.
BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def _points(curve: Sequence[float], low: float, high: float, columns: int, rows: int) -> dict[tuple[int, int], int]:
    """The points of a curve: column and row of a character -> its bits. Neighbouring points are joined."""
    points: dict[tuple[int, int], int] = {}
    across, down = 2 * columns - 1, 4 * rows - 1
    before: int | None = None
    for x in range(across + 1) if curve else ():
        at, part = divmod(x / across * (len(curve) - 1), 1)
        here, following = curve[int(at)], curve[min(int(at) + 1, len(curve) - 1)]
        loss = here + part * (following - here)
        if not math.isfinite(loss):
            before = None
            continue
        y = round((high - loss) / max(high - low, 1e-12) * down)
        start = y if before is None else before
        for level in range(min(start, y), max(start, y) + 1):
            cell = (x // 2, level // 4)
            points[cell] = points.get(cell, 0) | BITS[x % 2][level % 4]
        before = y
    return points


def runs(session: Session) -> Table:
    """The table of the two runs."""
    right = {"justify": "right", "no_wrap": True}
    names = ["first loss", "loss", "median ms", "steps/s", "tokens/s"]
    measured = all(run.peak is not None for run in session.runs)
    names += ["MiB"] if measured else []
    table = screen.table(("run", {"no_wrap": True}), *((name, right) for name in names))
    for run, style in zip(session.runs, STYLES, strict=False):
        table.add_row(Text(run.name, style), *_cells(session, run, measured))
    return table


def _cells(session: Session, run: Run, measured: bool) -> list[str]:
    if not run.losses:
        return []
    rate = 1e3 / run.step_ms
    cells = [f"{run.losses[0]:.4f}", f"{run.losses[-1]:.4f}", f"{run.step_ms:.1f}", f"{rate:.1f}"]
    cells.append(f"{rate * session.size.tokens:,.0f}")
    return [*cells, f"{(run.peak or 0) / 2**20:.1f}"] if measured else cells


def implementations(session: Session, most: int | None = None) -> Table:
    """The table of what runs. If `most` is given, only that many ops are looked up; the other rows are empty."""
    right = {"justify": "right"}
    table = screen.table("op", "implementation", "kind", "vendor", ("calls", right), ("a step", right))
    for number, op in enumerate(session.counted):
        for spec, calls in ((op.spec, op.forward), (op.spec.gradient.backward, op.backward)):
            impl = chosen(spec, op.shape, session.dtype, session.device) if most is None or number < most else None
            if impl is None:
                cells = ("nothing" if most is None else "", "", "")
            else:
                cells = (Text(impl.impl_id, screen.KIND_STYLES[impl.kind.value]), str(impl.kind), impl.vendor or "")
            table.add_row(spec.name, *cells, str(calls), f"{calls / max(session.done, 1):g}")
    return table


# ---- the report -----------------------------------------------------------------------------------------------------


def report(console: Console, session: Session, gaps: Gaps) -> None:
    console.print(heading(session))
    if screen.takes_unicode():
        console.print(chart(session, min(console.width, 100), 10))
    console.print(runs(session))
    console.print(implementations(session))
    for failure in get_default_manager().failures():
        console.print(Text(f"skipped: {failure}", "yellow"))
    table = screen.table("largest relative difference", ("found", {"justify": "right"}), "allowed", "verdict")
    for what, gap in differences(session, gaps):
        verdict = Text("agree", "green") if gap <= gaps.limit else Text("DISAGREE", "bold red")
        table.add_row(what, f"{gap:.1e}", f"{gaps.limit:.0e}", verdict)
    console.print(table)
    console.print(Text("What happened", "bold"))
    for sentence in sentences(session, gaps):
        console.print(Text(f"- {sentence}"))
    console.print(Text("\nTry next", "bold"))
    wide = max(len(command) for command, _ in COMMANDS)
    for command, what in COMMANDS:
        console.print(Text.assemble("  ", (f"{command:<{wide}}", "cyan"), (f"  {what}", "dim")))
    console.print(Text.assemble("\n", (verdict_of(session, gaps), "bold green" if gaps.agree else "bold red")))


def differences(session: Session, gaps: Gaps) -> list[tuple[str, float]]:
    done = session.done
    over = (
        screen.count(done, "step")
        if done <= session.horizon
        else f"the first {session.horizon} steps, before chaos makes rounding errors large"
    )
    return [(f"losses, over {over}", gaps.losses), ("gradients of the first step, per weight", gaps.grads)]


def sentences(session: Session, gaps: Gaps) -> list[str]:
    """What just happened."""
    names = ", ".join(op.spec.name for op in session.counted)
    ran = sorted(
        {
            impl.impl_id
            for op in session.counted
            for spec in (op.spec, op.spec.gradient.backward)
            if (impl := chosen(spec, op.shape, session.dtype, session.device)) is not None
        }
    )
    steps = screen.count(session.done, "step")
    first = (
        f"Two copies of a model trained {steps} on the same batches: one in plain torch, one with {names} of opmux.ops."
    )
    second = f"For each op opmux ran the best implementation that this machine has: {', '.join(ran) or 'none'}."
    same = "losses and gradients are the same within" if gaps.agree else "losses or gradients DIFFER by more than"
    third = f"Their {same} {gaps.limit:.0e}; {speed_of(session)}"
    if session.device.type == "cpu":
        third += (
            ", but on a CPU torch's own matrix products take most of the time in both: the point here is equal losses"
        )
    return [first, second, f"{third}."]


def speed_of(session: Session) -> str:
    speed, error = session.speed()
    if not math.isfinite(error):
        return "there were too few steps to compare the speed"
    return f"opmux ran at {speed:.2f} ± {error:.2f} times the speed of plain torch"


def verdict_of(session: Session, gaps: Gaps) -> str:
    word = "agree" if gaps.agree else "DISAGREE"
    where = f"{screen.count(session.done, 'step')} on {session.device.type} in {dtype_name(session.dtype)}"
    apart = f"{max(gaps.losses, gaps.grads):.1e} apart at most, {gaps.limit:.0e} allowed"
    return f"opmux demo: {where}, opmux and plain torch {word}: {apart}; {speed_of(session)}"
