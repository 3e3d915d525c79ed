"""Builds wheels with setuptools, and adds one file: `opmux_startup.pth`, which Python runs at each start.

The file makes an unmodified `import transformer_engine` work (see src/opmux_startup.py). setuptools cannot put a .pth
file into a wheel, nor into an editable install.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the other hooks of a build backend are setuptools' own

PTH = "opmux_startup.pth"
# Ignores a missing module, because Python would otherwise print an error at each start.
LINE = 'import sys; exec("try:\\n    import opmux_startup\\nexcept ImportError:\\n    pass")\n'


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _with_pth(wheel_directory, build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _with_pth(wheel_directory, build_meta.build_editable(wheel_directory, config_settings, metadata_directory))


def _with_pth(folder: str, name: str) -> str:
    """Add the file to a wheel, and to the wheel's list of files: on uninstall, pip removes the listed files."""
    path = Path(folder) / name
    with zipfile.ZipFile(path) as wheel:
        entries = [(info, wheel.read(info)) for info in wheel.infolist()]
    data = LINE.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(PTH, data)
        for info, content in entries:
            listed = f"{PTH},sha256={digest},{len(data)}\n".encode() if info.filename.endswith("/RECORD") else b""
            wheel.writestr(info, listed + content)
    return name
