"""`liger_kernel.env_report`: the versions that a bug report needs. `opmux doctor` prints more."""

from __future__ import annotations

import importlib.metadata
import platform

import torch

from .names import VERSION

PACKAGES = ("opmux", "triton", "transformers")


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def print_env_report() -> None:
    """Print the versions of the system, of torch and its devices, and of the packages that opmux and Liger use."""
    accelerators = {name: getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")}
    rows = {
        "operating system": platform.platform(),
        "python": platform.python_version(),
        "liger_kernel": f"{VERSION}, provided by opmux",
        "torch": torch.__version__,
        **{name: version or "not in this torch" for name, version in accelerators.items()},
        **{name: _version_of(name) for name in PACKAGES},
    }
    print("\n".join(f"{name}: {value}" for name, value in rows.items()))
