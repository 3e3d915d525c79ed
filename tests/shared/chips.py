"""The chips that tests compile for: sm_90 and gfx942 in `make test`, all four with --slow."""

from __future__ import annotations

from typing import Any

import pytest

from opmux.kernels.lib.compile_only import CHIPS

IN_MAKE_TEST = ("sm_90", "gfx942")


def _param(chip: str, *values: Any) -> Any:
    return pytest.param(*values, id=chip, marks=() if chip in IN_MAKE_TEST else pytest.mark.slow)


over_chips = pytest.mark.parametrize("chip", [_param(chip, chip) for chip in CHIPS])
over_numbered_chips = pytest.mark.parametrize("number, chip", [_param(c, n, c) for n, c in enumerate(CHIPS)])
