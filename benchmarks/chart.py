"""Draws the charts in docs/images from benchmarks/results, and writes their figures into alternative texts.

    python benchmarks/chart.py [--check]

`llama.svg` shows speed and memory of the 1.2B Llama; the charts of docs/performance.md are in `performance.py`. Each
bar of the Llama is the ratio to native torch in the same run, so that bars of different runs can be compared.
`--check` writes nothing, and fails if a chart or a page differs from what the results say.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drawing import Bars, Chart, Row, Value
from performance import CHARTS, load

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PAGES = ("README.md", "docs/index.md", "docs/performance.md")  # with charts

LATEST = "llama_2026-11-17_h200.json"
WITH_LIGER = "llama_liger_2026-11-16_h200.json"  # the only run that has Liger-Kernel
BARS = (  # label, run, name in the run's results
    ("native torch", LATEST, "native"),
    ("torch.compile", LATEST, "compiled"),
    ("Liger-Kernel", WITH_LIGER, "liger"),
    ("opmux", LATEST, "patched"),
    ("opmux + compile", LATEST, "patched, compiled"),
)


@dataclass(frozen=True)
class Provider:
    label: str
    speed: float  # tokens/s, relative to native in the same run
    memory: float  # peak memory, relative to native in the same run


def bars() -> list[Provider]:
    found = []
    for label, run, name in BARS:
        results = load(run)["results"]
        native, other = results["native"], results[name]
        speed = other["tokens_per_s"] / native["tokens_per_s"]
        found.append(Provider(label, speed, other["peak_gib"] / native["peak_gib"]))
    return found


def notes() -> tuple[str, ...]:
    """What was measured, where and when."""
    latest, liger = load(LATEST), load(WITH_LIGER)
    about, native, then = latest["about"], latest["results"]["native"], liger["about"]["date"]
    same = ("chip", "torch", "triton", "transformers")
    if any(about[fact] != liger["about"][fact] for fact in same):
        raise ValueError(f"{LATEST} and {WITH_LIGER} differ in one of {', '.join(same)}: measure both on one machine")
    return (
        f"{about['chip']}, {about['date']}, torch {about['torch'].partition('+')[0]}.",
        "bfloat16, 4 x 2048 tokens per step.",
        f"Native torch: {native['tokens_per_s']:,} tokens/s, {native['peak_gib']} GiB.",
        f"Each bar is relative to native torch in the same run; Liger-Kernel is from a run of {then}.",
    )


def llama() -> Chart:
    def panel(head: str, better: str, what: str) -> Bars:
        rows = []
        for provider in bars():
            ours = provider.label.startswith("opmux")
            value = Value("ours" if ours else "torch", getattr(provider, what))
            rows.append(Row(provider.label, (value,), strong=ours))
        return Bars(head, tuple(rows), f"relative to native torch; {better} is better")

    panels = (panel("Tokens per second", "more", "speed"), panel("Peak memory", "less", "memory"))
    return Chart("llama", "Training a Llama of 1.2 billion parameters", panels, notes())


def outputs() -> Iterator[tuple[Path, str]]:
    """Every file that is written, with its contents: the charts, and the pages with their alternative texts."""
    charts = [llama(), *(chart() for chart in CHARTS)]
    for chart in charts:
        yield IMAGES / f"{chart.name}.svg", chart.svg()
    texts = {f"{chart.name}.svg": chart.alternative() for chart in charts}

    def image(link: re.Match[str]) -> str:
        return f"![{texts.get(Path(link[2]).name, link[1])}]({link[2]})"

    for page in PAGES:
        path = ROOT / page
        yield path, re.sub(r"!\[([^\]]*)\]\(([^)]*images/[^)]*)\)", image, path.read_text(encoding="utf-8"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    check, stale = parser.parse_args(argv).check, 0
    for path, contents in outputs():
        if path.is_file() and path.read_text(encoding="utf-8") == contents:
            continue
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run python benchmarks/chart.py")
            stale = 1
        else:
            path.write_text(contents, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
