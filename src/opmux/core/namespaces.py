"""The namespaces of ops: `opmux::` for our own, `aten::` for torch's, others for other libraries' signatures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Namespace:
    """A namespace, and the properties that its ops have in common."""

    name: str
    ours: bool = False  # defined by us in torch.ops with schema and fake kernel, so that tracers see the op
    torchs: bool = False  # defined in torch.ops by torch, which checks arguments and computes gradients

    @property
    def primitive(self) -> bool:
        """Whether its ops are in torch.ops, always called with their own signature, and traced as one op."""
        return self.ours or self.torchs

    @classmethod
    def named(cls, name: str) -> Namespace:
        return _KNOWN.get(name) or cls(name)

    @classmethod
    def of_key(cls, key: str) -> Namespace:
        return cls.named(key.partition("::")[0])


OURS = Namespace("opmux", ours=True)
ATEN = Namespace("aten", torchs=True)
_KNOWN = {OURS.name: OURS, ATEN.name: ATEN}
