"""What every callback does: turn opmux on for a model, and later undo exactly that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Self

from torch import Tensor, nn

from ..core import policy as policies
from ..core.default import set_policy
from ..core.errors import BadArgument
from ..core.log import logger
from ..faces.aten.switch import Mode, use
from ..faces.models.modules import is_patched
from ..faces.models.patch import Report, patch_model, unpatch_model


class OpmuxSession:
    """Turns opmux on with `start(model)`, and undoes that with `undo()`.

    `undo` restores the state before `start`: the process's policy, torch's own ops, and the model. A model that was
    patched before keeps that patch. A second `start` first undoes the first one.
    """

    def __init__(
        self,
        patch: bool = True,
        enable: bool | Mode = False,
        policy: str | None = None,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        undo: bool = True,
    ):
        if not (patch or enable or policy):
            raise BadArgument.of(
                type(self).__name__, "patch", "be True if neither enable nor policy is given", "nothing to turn on"
            )
        self.patch, self.policy, self.undo_at_end = patch, policy, undo
        self.parts = {"include": include, "exclude": exclude}
        self.overrides = use(mode="auto" if enable is True else enable) if enable else None
        self.report: Report | None = None  # what `patch_model` did
        self._undo = contextlib.ExitStack()

    def start(self, model: nn.Module, example: Mapping[str, Any] | Tensor | None = None) -> None:
        self.undo()
        with contextlib.ExitStack() as done:  # undone here if a later line raises
            if self.policy is not None:
                done.callback(policies.set_global_policy, policies.get_global_policy())
                set_policy(self.policy)
            if self.overrides is not None:
                done.enter_context(self.overrides)
            if self.patch and is_patched(model):
                logger.info("the model is patched already, and keeps its patch")
            elif self.patch:
                self.report = patch_model(model, **self.parts, example=example)
                done.callback(unpatch_model, model)
                logger.info("%s", self.report)
            self._undo = done.pop_all()

    def undo(self) -> None:
        """Restore the state before `start`; a second call has no effect."""
        done, self._undo = self._undo, contextlib.ExitStack()
        done.close()

    def __enter__(self) -> Self:
        """`with callback:` undoes at the end of the block, also if training raises."""
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()
