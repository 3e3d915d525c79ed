"""Updates the line numbers in the diffs of docs/extending.md after a change to the files that they patch."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=^```diff\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^--- (\S+)\n\+\+\+ b/(\S+)\n", re.MULTILINE)
HUNK = re.compile(r"^@@ .*\n", re.MULTILINE)


def page() -> str:
    """docs/extending.md with new line numbers; the rest of the page is written by hand."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    return BLOCK.sub(lambda block: renumbered(block[0]), text)


def renumbered(diff: str, root: Path = ROOT) -> str:
    """A diff whose hunk headers have the line numbers of the files in `root`.

    A hunk whose old lines are not in its file exactly once keeps its header.
    """
    parts = FILE.split(diff)
    done = parts[0]
    for old_name, name, hunks in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        path = root / name
        lines = path.read_text(encoding="utf-8").splitlines() if old_name != "/dev/null" and path.is_file() else []
        done += f"--- {old_name}\n+++ b/{name}\n" + _numbered(hunks, lines)
    return done


def _numbered(hunks: str, lines: list[str]) -> str:
    """The hunks of one file, with new headers."""
    headers, (first, *bodies) = HUNK.findall(hunks), HUNK.split(hunks)
    done, shift = first, 0
    for header, body in zip(headers, bodies, strict=True):
        changed = body.splitlines()
        old = [line[1:] for line in changed if not line.startswith("+")]
        new = len([line for line in changed if not line.startswith("-")])
        found = [i for i in range(len(lines) - len(old) + 1) if lines[i : i + len(old)] == old] if old else []
        if len(found) == 1:
            at = found[0] + 1
            header = f"@@ -{at},{len(old)} +{at + shift},{new} @@\n"
            shift += new - len(old)
        done += header + body
    return done
