"""Names of tex's backends, and the tokens by which policies name them."""

from __future__ import annotations

from ...core.tokens import KINDS

BACKENDS = {"flaggems": "flagos", "torch": "reference"}


def backend_token(name: str) -> str:
    """The policy token of a backend: `flaggems` means our kernels, `torch` the references, any other name a vendor."""
    folded = name.strip().casefold()
    return BACKENDS.get(folded, folded if folded in KINDS else f"vendor:{folded}")


def backend_name(token: str) -> str:
    """The backend name of a policy token."""
    names = {known: name for name, known in BACKENDS.items()}
    return names.get(token, token.removeprefix("vendor:"))
