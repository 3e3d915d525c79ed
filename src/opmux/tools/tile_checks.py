"""Checks a vendor's tile files without its chip: evaluates every rule and every config for typical facts."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ..core.errors import suggestion
from ..core.spec import specs
from ..kernels.lib import config
from ..kernels.lib.config import Tunable
from ..machine import vendors
from ..machine.devices import Chip
from ..machine.vendors import Package
from ..tuning import tile_files
from ..tuning.tile_files import BadTiles

# Typical facts for tunables, by the annotation of a parameter.
FACTS: dict[str, tuple[Any, ...]] = {
    "torch.dtype": (torch.bfloat16, torch.float32),
    "bool": (True, False),
    "int": (1, 40, 1000, 4096, 65536),
}


def load() -> None:
    """Import every kernel, so that all tunables are declared."""
    for family in specs.families:
        specs.load_implementers(family)


def typical_facts(tunable: Tunable) -> Iterator[dict[str, Any]]:
    """Typical facts for a tunable; none if one of its parameters has a type that FACTS lacks."""
    kinds = [_type_text(p.annotation) for p in inspect.signature(tunable.default).parameters.values()]
    if all(kind in FACTS for kind in kinds):
        for values in itertools.product(*(FACTS[kind] for kind in kinds)):
            yield dict(zip(tunable.facts, values, strict=True))


def _type_text(annotation: Any) -> str:
    """The text of an annotation, whether or not the module postpones evaluation."""
    if isinstance(annotation, str):
        return annotation
    return "torch.dtype" if annotation is torch.dtype else getattr(annotation, "__name__", str(annotation))


def untried(package: Package) -> list[str]:
    """The tunables in a vendor's files for which there are no typical facts."""
    named = {name for chip in chips(package) for name in tile_files.names_in_files(chip, [])}
    return sorted(n for n in named if n in config.tunables and not any(True for _ in typical_facts(config.tunables[n])))


def chips(package: Package) -> list[Chip]:
    """The vendor's chips that its files distinguish."""
    all_chips = [Chip(package.name, arch or None) for arch in ("", *filter(None, package.info.targets))]
    known = {tile_files.folders(chip) for chip in all_chips}
    more = [Chip(package.name, str(arch)) for arch in package.arch_map]
    return all_chips + [chip for chip in more if tile_files.folders(chip) not in known]


def faults(package: Package) -> list[str]:
    """All errors in a vendor's tile files: the file, the tunable, the size, and what is allowed; each once."""
    problems: dict[str, None] = {}
    for chip in chips(package):
        unreadable: list[BadTiles] = []
        named = tile_files.names_in_files(chip, unreadable)
        problems |= {str(error): None for error in unreadable}
        for name, files in named.items():
            if name not in config.tunables:
                hint = suggestion(name, config.tunables)
                problems[f"{', '.join(map(str, sorted(files)))}: {name} is no tunable{hint}"] = None
            elif (problem := fault(chip, config.tunables[name])) is not None:
                problems[problem] = None
    return list(problems)


def fault(chip: Chip, tunable: Tunable) -> str | None:
    """The first rule or config of a tunable that its kernel does not accept."""
    for facts in typical_facts(tunable):
        if not _accepts(tunable, facts):
            continue
        try:
            tunable.candidates(chip, **facts)
            with config.as_on(chip):
                tunable.look(**facts)
        except BadTiles as error:
            return str(error)
    return None


def _accepts(tunable: Tunable, facts: dict[str, Any]) -> bool:
    """Whether the default accepts these facts: a kernel never passes facts for which the default raises."""
    try:
        tunable.default(**facts)
    except (RuntimeError, ValueError):  # no device to read the number of cores from, or facts that its kernel refuses
        return False
    return True


def of_vendor(name: str) -> Chip | None:
    """Parse a vendor's name, with an arch after a colon, into a chip: `acme`, `acme:a200`; None for other names."""
    chip = Chip.of_arch(name if ":" in name else f"{name}:")
    return chip if chip.vendor is not None and vendors.get(chip.vendor) is not None else None
