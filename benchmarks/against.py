"""Measures how a change affects the time of each case of a preset: compares two trees alternately in one run.

    python benchmarks/against.py TREE [--rounds N] [--json FILE] -- --preset memory-bound --device cuda

TREE is a folder with another `opmux` package in it (the `src` of a checkout of an older commit). Arguments after `--`
go to `opmux bench`. A ratio is this tree's best time divided by the other tree's best time, so this tree is faster if
the ratio is below 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1] / "src"


def measured(src: Path, options: list[str]) -> dict:
    """Run `opmux bench` once on our implementations in a tree."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        command = [sys.executable, "-m", "opmux", "bench", *options, "--providers", "ours", "--json", str(file)]
        path = os.pathsep.join([str(src), *filter(None, [os.environ.get("PYTHONPATH")])])
        result = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        if not file.is_file():
            sys.exit(
                f"opmux bench failed in {src} (exit {result.returncode}):\n"
                f"{result.stdout[-2000:]}{result.stderr[-2000:]}"
            )
        return json.loads(file.read_text(encoding="utf-8"))


def case(row: dict) -> str:
    return f"{row['op']} {row['variant']} {'x'.join(map(str, row['shape']))} {row['dtype']} {row['metric']}"


def best(runs: list[dict]) -> dict[str, float]:
    """The best time of each case in all runs, in ms."""
    times: dict[str, float] = {}
    for run in runs:
        for row in run["rows"]:
            time = row["ms"] if row["ms"] is not None else row["host_us"] and row["host_us"] / 1e3
            if row["provider"] == "ours" and row["status"] == "ok" and time:
                times[case(row)] = min(time, times.get(case(row), float("inf")))
    return times


def main(argv: list[str]) -> int:
    own, _, options = " ".join(argv).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, help="a folder with another opmux package")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each tree")
    parser.add_argument("--json", type=Path, help="keep all times and ratios here")
    arguments = parser.parse_args(own.split())
    if not (arguments.tree / "opmux").is_dir():
        parser.error(f"{arguments.tree} has no opmux package in it: name the src folder of a checkout")
    runs: dict[str, list[dict]] = {"before": [], "after": []}
    for number in range(arguments.rounds):
        for side, src in (("before", arguments.tree), ("after", HERE)):
            print(f"round {number + 1} of {arguments.rounds}: {side} ({src})", file=sys.stderr, flush=True)
            runs[side].append(measured(src.resolve(), options.split()))
    before, after = best(runs["before"]), best(runs["after"])
    ratios = {name: after[name] / before[name] for name in before if name in after}
    for name, ratio in sorted(ratios.items(), key=lambda item: -item[1]):
        print(f"{ratio:6.3f}  {before[name]:9.4f} -> {after[name]:9.4f} ms  {name}")
    slower = [name for name, ratio in ratios.items() if ratio > 1.02]
    lost = sorted(set(before) - set(after))
    print(f"{len(ratios)} cases, {len(slower)} slower by more than 2 %, {len(lost)} that are gone")
    if arguments.json is not None:
        record = {"facts": runs["after"][-1]["facts"], "limits": runs["after"][-1]["limits"], "lost": lost}
        record["cases"] = {n: {"before_ms": before[n], "after_ms": after[n], "ratio": r} for n, r in ratios.items()}
        arguments.json.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
