"""Where compiled Python is kept during tests: they start hundreds of programs, and each would compile it again."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def keep() -> None:
    """Write bytecode of this process and its children outside of the tree, whatever the environment says."""
    where = Path(tempfile.gettempdir()) / f"opmux-tests-bytecode-{os.getuid()}"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(where)
    sys.dont_write_bytecode = False
