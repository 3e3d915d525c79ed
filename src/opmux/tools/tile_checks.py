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

# Annotation of a tunable's parameter -> typical values.
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
    """Typical facts for a tunable. Yields nothing if the type of a parameter is not in FACTS."""
    kinds = [_type_text(p.annotation) for p in inspect.signature(tunable.default).parameters.values()]
    if all(kind in FACTS for kind in kinds):
        for values in itertools.product(*(FACTS[kind] for kind in kinds)):
            yield dict(zip(tunable.facts, values, strict=True))


def _type_text(annotation: Any) -> str:
    """An annotation as text. It already is text if the module postpones evaluation."""
    if isinstance(annotation, str):
        return annotation
    return "torch.dtype" if annotation is torch.dtype else getattr(annotation, "__name__", str(annotation))


def untried(package: Package) -> list[str]:
    """The tunables in a vendor's files that cannot be checked, because there are no typical facts for them."""
    named = {name for chip in chips(package) for name in tile_files.names_in_files(chip, [])}
    return sorted(n for n in named if n in config.tunables and not any(True for _ in typical_facts(config.tunables[n])))


def chips(package: Package) -> list[Chip]:
    """The vendor's chips that its files distinguish."""
    all_chips = [Chip(package.name, arch or None) for arch in ("", *filter(None, package.info.targets))]
    known = {tile_files.folders(chip) for chip in all_chips}
    more = [Chip(package.name, str(arch)) for arch in package.arch_map]
    return all_chips + [chip for chip in more if tile_files.folders(chip) not in known]


def faults(package: Package) -> list[str]:
    """The distinct errors in a vendor's tile files. Each names file, tunable and size, and says what is allowed."""
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
    """The error for the first rule or config of a tunable that its kernel does not accept; None if all are accepted."""
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
    """Whether the default tiles accept these facts. If the default raises, a kernel never passes such facts."""
    try:
        tunable.default(**facts)
    except (RuntimeError, ValueError):  # no device to count cores of, or the kernel refuses these facts
        return False
    return True


def of_vendor(name: str) -> Chip | None:
    """The chip for a vendor's name, or for a name and an arch: `acme`, `acme:a200`. None if there is no such vendor."""
    chip = Chip.of_arch(name if ":" in name else f"{name}:")
    return chip if chip.vendor is not None and vendors.get(chip.vendor) is not None else None
