"""Starts the command `opmux`. If packages are missing (after `pip install --no-deps`), it says what to install."""

from __future__ import annotations

import sys

NEEDED = {"typer": "typer", "rich": "rich", "yaml": "PyYAML"}  # module -> package


def main() -> None:
    try:
        from .cli import main as run

        run()
    except ModuleNotFoundError as error:
        package = NEEDED.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        sys.exit(f"opmux: the command needs {package}, which is not installed: pip install {' '.join(NEEDED.values())}")
