"""Run the GPU's tests with several processes on one GPU; tests of speed run alone at the end.

Each file is one run of pytest. With --split 4 it is four runs, and each run has every fourth test of the file.

    python tests/gpu/in_parallel.py                                   # every file, 6 at once
    python tests/gpu/in_parallel.py -n 4 --seconds 540 test_gpu_gate.py test_gpu_norms.py
    python tests/gpu/in_parallel.py -n 15 --split 8 test_gpu.py test_gpu_spatial.py
    python tests/gpu/in_parallel.py --skip results/gpu_tests.json     # skip the runs that passed there

At the time limit (--seconds) unfinished files are stopped and listed; their logs show how far they got and what had
failed by then.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE = 10.0  # seconds that an interrupted pytest gets to write its failures
SPEED = "speed"  # a test with this word in its name measures time, so it must run alone

# A program that a shell has started in the background ignores SIGINT, and its children inherit that.
INTERRUPTIBLE = "import signal, sys, pytest; signal.signal(signal.SIGINT, signal.default_int_handler); "
PYTEST = [sys.executable, "-c", INTERRUPTIBLE + "sys.exit(pytest.main(sys.argv[1:]))", "-q", "-rfE"]


@dataclass
class Run:
    """One pytest process: either the speed tests of a file, or a part of its other tests."""

    file: str
    speed: bool
    log: Path
    part: str = ""  # "2/8": every eighth test from the second one on; "": all tests
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    stopped: bool = False
    output: IO[bytes] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"{self.file} -k {SPEED}" if self.speed else f"{self.file} {self.part}".strip()

    def start(self) -> None:
        chosen = SPEED if self.speed else f"not {SPEED}"
        command = [*PYTEST, "--triton", "device", "-m", "gpu", "-k", chosen]
        command += ["--part", self.part] if self.part else []
        self.started = time.monotonic()
        self.output = self.log.open("wb")
        # -p no:cacheprovider: the processes would all write the same cache file.
        self.process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", str(HERE / self.file)],
            cwd=ROOT,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def interrupt(self) -> None:
        """Make pytest end early. It still writes the failures that it has found."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.stopped = True

    def stop(self, patience: float = 0.0) -> None:
        if self.process is not None:
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.output is not None:
            self.output.close()

    def result(self) -> dict[str, object]:
        """The outcome as a dict; `ok` is None if the run was stopped before a test failed."""
        assert self.process is not None
        text = self.log.read_text(errors="replace")
        code = self.process.returncode
        counted = re.findall(r"^.*\b(?:passed|failed|error|skipped|deselected)\b.* in .*$", text, re.MULTILINE)
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        complete = code in (0, 5) and not failed  # 5: pytest selected no test of the file
        ok = True if complete else None if (self.stopped or code < 0) and not failed else False
        line = counted[-1] if counted else text.strip().rpartition("\n")[2]
        seconds = round(time.monotonic() - self.started, 1)
        return {"name": self.name, "ok": ok, "seconds": seconds, "line": line, "failed": failed}


def show(result: dict[str, object], number: int, total: int) -> None:
    word = {True: "ok", False: "FAILED", None: "stopped"}[result["ok"]]  # pyright: ignore[reportArgumentType]
    print(f"[{number}/{total}] {word:8}{result['seconds']:>7} s  {result['name']}: {result['line']}", flush=True)


def carry_out(runs: list[Run], at_once: int, deadline: float) -> list[dict[str, object]]:
    waiting, running, results = list(runs), [], []
    try:
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < at_once:
                running.append(waiting.pop(0))
                running[-1].start()
            for run in [r for r in running if r.process is not None and r.process.poll() is not None]:
                running.remove(run)
                run.stop()
                results.append(run.result())
                show(results[-1], len(results), len(runs))
            time.sleep(0.1)
    finally:
        for run in running:
            run.interrupt()
        ends = time.monotonic() + PATIENCE
        for run in running:
            run.stop(max(0.0, ends - time.monotonic()))
    for run in running:
        results.append(run.result())
        show(results[-1], len(results), len(runs))
    for run in waiting:
        results.append({"name": run.name, "ok": None, "seconds": 0.0, "line": "not started", "failed": []})
        show(results[-1], len(results), len(runs))
    return results


def has_speed_tests(file: Path) -> bool:
    return SPEED in file.name or re.search(rf"^def test_\w*{SPEED}", file.read_text(), re.MULTILINE) is not None


def runs_of(name: str, split: int, logs: Path) -> list[Run]:
    stem = name.removesuffix(".py")
    parts = [f"{i + 1}/{split}" for i in range(split)] if split > 1 else [""]
    runs = [Run(name, False, logs / f"{'-'.join([stem, *part.split('/')[:1]]).strip('-')}.log", part) for part in parts]
    return [*runs, Run(name, True, logs / f"{stem}_speed.log")] if has_speed_tests(HERE / name) else runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="names of files beside this one; none: all")
    parser.add_argument("-n", type=int, default=6, help="processes at once (default: 6)")
    parser.add_argument("--split", type=int, default=1, help="runs per file (default: 1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit of the whole")
    parser.add_argument("--skip", type=Path, help="a file that --json wrote: skip what passed in it")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--logs", type=Path, default=Path("build/gpu_tests"), help="folder of the logs, one per file")
    options = parser.parse_args()
    known = sorted(p.name for p in HERE.glob("test_*.py"))
    unknown = sorted(set(options.files) - set(known))
    if unknown:
        parser.error(f"no such file: {', '.join(unknown)}; the files are: {', '.join(known)}")
    options.logs.mkdir(parents=True, exist_ok=True)
    before = json.loads(options.skip.read_text()) if options.skip else []
    passed = {r["name"]: r for r in before if r["ok"]}
    runs = [run for name in options.files or known for run in runs_of(name, options.split, options.logs)]
    runs = [r for r in runs if r.name not in passed]
    # Start with the files that took longest in the earlier run, so that the last files are short.
    took = {r["name"]: r["seconds"] for r in before}
    runs.sort(key=lambda r: -took.get(r.name, (HERE / r.file).stat().st_size / 1000))
    deadline = time.monotonic() + options.seconds
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    results = list(passed.values())
    results += carry_out([r for r in runs if not r.speed], options.n, deadline)
    results += carry_out([r for r in runs if r.speed], 1, deadline)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    wrong = [r for r in results if not r["ok"]]
    for r in wrong:
        print(f"{'stopped' if r['ok'] is None else 'failed'}: {r['name']}", *map(str, r["failed"]), sep="\n    ")
    print(f"{len(results) - len(wrong)} of {len(results)} runs passed; logs in {options.logs}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
