"""Draws docs/images/llama.svg: speed and memory of the 1.2B Llama, from the files in benchmarks/results.

    python benchmarks/chart.py [--check]

Each bar is the ratio to native torch in the same run, so that bars of different runs can be compared. `--check` writes
nothing, and fails if the file differs from what the results say.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CHART = ROOT / "docs" / "images" / "llama.svg"

LATEST = "llama_2026-11-17_h200.json"
WITH_LIGER = "llama_liger_2026-11-16_h200.json"  # the only run that has Liger-Kernel
BARS = (  # label, run, name in the run's results
    ("native torch", LATEST, "native"),
    ("torch.compile", LATEST, "compiled"),
    ("Liger-Kernel", WITH_LIGER, "liger"),
    ("opmux", LATEST, "patched"),
    ("opmux + compile", LATEST, "patched, compiled"),
)

TITLE = "Training a Llama of 1.2 billion parameters"
WIDTH, TOP, ROW, BAR = 860, 116, 36, 22
PANELS = ((204, 210), (560, 210))  # left edge of a panel, and length of a bar of ratio 1
HEIGHT = TOP + ROW * len(BARS) + 58

STYLE = """
text{font:14px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#24292f}
.title{font-size:18px;font-weight:600}.head,.ours{font-weight:600}.note{font-size:12px;fill:#57606a}
.card{fill:#fff;stroke:#d0d7de}.bar{fill:#afb8c1}.bar.ours{fill:#00897b}.one{stroke:#57606a;stroke-dasharray:3 3}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9198a1}.card{fill:#161b22;stroke:#3d444d}
.bar{fill:#59636e}.bar.ours{fill:#26a69a}.one{stroke:#9198a1}}
"""


@dataclass(frozen=True)
class Bar:
    label: str
    speed: float  # tokens/s, relative to native in the same run
    memory: float  # peak memory, relative to native in the same run

    @property
    def ours(self) -> bool:
        return self.label.startswith("opmux")


def load(name: str) -> dict:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def bars() -> list[Bar]:
    found = []
    for label, run, name in BARS:
        results = load(run)["results"]
        native, other = results["native"], results[name]
        speed = other["tokens_per_s"] / native["tokens_per_s"]
        found.append(Bar(label, speed, other["peak_gib"] / native["peak_gib"]))
    return found


def notes() -> list[str]:
    """What was measured, where and when."""
    latest, liger = load(LATEST), load(WITH_LIGER)
    about, native, then = latest["about"], latest["results"]["native"], liger["about"]["date"]
    same = ("chip", "torch", "triton", "transformers")
    if any(about[fact] != liger["about"][fact] for fact in same):
        raise ValueError(f"{LATEST} and {WITH_LIGER} differ in one of {', '.join(same)}: measure both on one machine")
    place = f"{about['chip']}, {about['date']}, torch {about['torch'].partition('+')[0]}, bfloat16"
    absolute = f"{native['tokens_per_s']:,} tokens/s, {native['peak_gib']:.1f} GiB"
    return [
        f"{place}, 4 x 2048 tokens per step. Native: {absolute}.",
        f"Each bar is relative to native torch in the same run; Liger-Kernel is from a run of {then}.",
    ]


def description(found: list[Bar]) -> str:
    """The chart in words, for screen readers."""
    words = [f"{b.label}: {b.speed:.2f} of native's speed, {b.memory:.2f} of its memory" for b in found]
    return f"{'; '.join(words)}. {' '.join(notes())}"


def alternative() -> str:
    """The alternative text of the image, for the pages that show it."""
    found = bars()
    speed = ", ".join(f"{b.label} {b.speed:.2f}" for b in found[1:])
    memory = ", ".join(f"{b.memory:.2f}" for b in found[1:])
    return f"{TITLE}. Speed relative to {found[0].label}: {speed}. Peak memory: {memory}."


def text(x: float, y: float, words: str, kind: str = "", end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{kind}{anchor}>{escape(words)}</text>'


def row(i: int, bar: Bar) -> list[str]:
    """The label of a bar, its speed in the left panel, and its memory in the right one."""
    y, ours = TOP + ROW * i, "ours" if bar.ours else ""
    lines = [text(PANELS[0][0] - 12, y + 16, bar.label, ours, end=True)]
    for (left, one), ratio in zip(PANELS, (bar.speed, bar.memory), strict=True):
        kind = f"bar {ours}".strip()
        length = round(ratio * one, 1)
        end = length if length < one - 50 else max(length, one)  # right of the bar, and never on the dashed line
        lines.append(f'<rect x="{left}" y="{y}" width="{length:g}" height="{BAR}" rx="2" class="{kind}"/>')
        lines.append(text(left + end + 8, y + 16, f"{ratio:.2f}", ours))
    return lines


def svg() -> str:
    found = bars()
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{TITLE}: speed and memory, relative to native torch</title>',
        f'<desc id="desc">{escape(description(found))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" class="card"/>',
        text(24, 38, TITLE, "title"),
    ]
    bottom = TOP + ROW * (len(found) - 1) + BAR + 6
    for (left, one), head, better in zip(
        PANELS, ("Tokens per second", "Peak memory"), ("more is better", "less is better"), strict=True
    ):
        lines += [text(left, 76, head, "head"), text(left, 95, f"relative to native torch; {better}", "note")]
        lines.append(f'<path d="M{left + one}.5 {TOP - 6}V{bottom}" class="one"/>')
    for i, bar in enumerate(found):
        lines += row(i, bar)
    for i, note in enumerate(notes()):
        lines.append(text(24, HEIGHT - 38 + 18 * i, note, "note"))
    return "\n".join([*lines, "</svg>", ""])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is out of date")
    drawn = svg()
    if not parser.parse_args(argv).check:
        CHART.write_text(drawn, encoding="utf-8")
    elif not CHART.is_file() or CHART.read_text(encoding="utf-8") != drawn:
        print(f"{CHART.relative_to(ROOT)} is out of date: run python benchmarks/chart.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
