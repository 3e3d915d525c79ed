"""The namespaces of ops: `opmux::` for our own, `aten::` for torch's, any other for the functions of a face."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Namespace:
    """The properties in which the ops of one namespace differ from those of another."""

    name: str
    ours: bool = False  # in torch.ops, defined by us with a schema and a fake kernel: tracers and compilers see the op
    torchs: bool = False  # in torch.ops, defined by torch, which checks arguments and computes gradients

    @property
    def primitive(self) -> bool:
        """Whether its ops are in torch.ops: always called with their own signature, and traced as one op."""
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
