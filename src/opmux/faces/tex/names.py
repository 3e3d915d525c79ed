"""Names of tex's backends, and the policy tokens for them."""

from __future__ import annotations

from ...core.tokens import KINDS

BACKENDS = {"flaggems": "flagos", "torch": "reference"}


def backend_token(name: str) -> str:
    """The token of a backend's name: `flaggems` is our kernels, `torch` the reference, any other a vendor."""
    folded = name.strip().casefold()
    return BACKENDS.get(folded, folded if folded in KINDS else f"vendor:{folded}")


def backend_name(token: str) -> str:
    """The backend's name for a token."""
    names = {known: name for name, known in BACKENDS.items()}
    return names.get(token, token.removeprefix("vendor:"))
