"""A hook of mkdocs for links from docs/ to files of the repository that are not on the site.

Reports of benchmarks are copied to the site; other files are named instead of linked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
REPORTS = "benchmarks/results"
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)[^)]*\)")


def on_files(files: Any, config: Any) -> Any:
    for report in sorted((ROOT / REPORTS).glob("*.html")):
        files.append(File.generated(config, f"results/{report.name}", abs_src_path=str(report)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTSIDE.sub(_on_the_site, markdown)


def _on_the_site(link: re.Match[str]) -> str:
    text, path = link[1], link[2]
    if not (ROOT / path).exists():  # strict builds fail on a broken link
        return link[0]
    if path.startswith(f"{REPORTS}/") and path.endswith(".html"):
        return f"[{text}](results/{Path(path).name})"
    return text if text.strip("`").endswith(Path(path).name) else f"{text} (`{path}`)"
