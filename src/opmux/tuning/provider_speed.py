"""The measured times of the implementations of compute-bound ops on this chip, by which `core.choosing` ranks them.

`opmux tune --providers` measures them. A vendor's arch folder contains measured times (`provider_speed.json`); times in
the user's cache override these. A file has the time of each implementation for each class of calls (`speed_classes`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core import machine
from ..core import policy as policies
from ..core.choosing import MARGIN, OURS, Measured, Preference, Speeds
from ..core.default import get_default_manager
from ..core.manager import default_device
from ..core.policy import SelectionPolicy
from ..machine.devices import Chip
from .speed_classes import CLASSES
from .speed_files import SpeedFiles, chip_of

Times = dict[str, float]  # impl_id -> microseconds


def _times(data: Any) -> Times:
    if not isinstance(data, dict) or not all(isinstance(us, (int, float)) and us > 0 for us in data.values()):
        raise ValueError(f"expected the microseconds of each implementation, got {data!r}")
    return data


FILES = SpeedFiles("providers-", _times, dict, "provider_speed.json")


@functools.cache
def measured(chip: Chip) -> Mapping[str, Mapping[str, Times]]:
    """Measured op -> label of a class -> the times of the implementations on a chip."""
    by_op: dict[str, dict[str, Times]] = {}
    for label, times in FILES.measured(chip).items():
        by_op.setdefault(label.partition("[")[0], {})[label] = times
    return by_op


def store(chip: Chip, measurements: Mapping[str, Times], more: Mapping[str, Any]) -> Path | None:
    """Add measurements to the user's file. Returns the file, or None if they could not be stored."""
    file = FILES.store(chip, measurements, more)
    forget()
    return file


def forget() -> None:
    """Drop the times in memory, so that the files are read again on next use."""
    measured.cache_clear()
    get_default_manager().invalidate("the measured times have changed")


# ---- for dispatch ---------------------------------------------------------------------------------------------------


def speeds(key: str, device: str) -> Speeds | None:
    """An op's measured times on a device type; None if nothing was measured and no vendor's libraries are preferred."""
    if key not in CLASSES or device != default_device():
        return None
    chip, known, name = chip_of(device), CLASSES[key], key.rpartition("::")[2]
    rows, first = measured(chip).get(name, {}), _preference(key, device)
    if not rows and first is None:
        return None

    def of_class(values: tuple | None) -> Measured:
        label = "" if values is None else known.label(name, values)
        return Measured(rows.get(label, {}), first, str(chip), label.partition("[")[2].removesuffix("]"))

    return Speeds(of_class, known.of if rows else None)


def _preference(key: str, device: str) -> Preference | None:
    """Why a device's vendor prefers its libraries to our kernel, regardless of measured times; None if it does not."""
    local = machine.current()
    first = local.preferred(device).get(key)
    if not isinstance(first, LibrariesFirst):
        return None
    vendor = local.vendor_of(device) or device
    try:
        why = first.always()
    except Exception as error:  # a vendor's code may raise anything
        why = f"get_preferred_ops of {vendor} raised {type(error).__name__}: {error}"
    return None if why is None else Preference(vendor, why, reference_too=not first.for_some_calls)


@dataclass(frozen=True)
class ForSomeCalls:
    """A reason in `get_preferred_ops` for an op of which the vendor's libraries accept only some calls.

    Our kernel runs the other calls.
    """

    why: Callable[[], str | None]

    def __call__(self) -> str | None:
        return self.why()


class LibrariesFirst:
    """Why a vendor's libraries come before our kernel of an op, according to `get_preferred_ops`.

    Calling it returns the reason, or None if our kernel was measured to be faster for some calls, or if the libraries
    accept only some calls. In these cases our kernel stays a candidate, and is ranked for each class of calls.
    """

    def __init__(self, key: str, why: machine.Preferred):
        self.key, self._why = key, why
        self.for_some_calls = key in CLASSES and isinstance(why, ForSomeCalls)

    def __call__(self) -> str | None:
        return self.under(policies.get_policy())

    def under(self, policy: SelectionPolicy) -> str | None:
        """The reason under a policy. A strict policy ignores measured times."""
        reason = self.always()
        if self.for_some_calls:
            return None
        if reason is None or self.key not in CLASSES or policy.strict:
            return reason
        rows = measured(chip_of(default_device())).get(self.key.rpartition("::")[2], {})
        return None if any(OURS in times and _wins(times) for times in rows.values()) else reason

    def always(self) -> str | None:
        """The reason, regardless of measured times."""
        return self._why() if callable(self._why) else self._why


def _wins(times: Times) -> bool:
    return all(us > MARGIN * times[OURS] for impl_id, us in times.items() if impl_id != OURS)
