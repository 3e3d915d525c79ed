"""A callback for Lightning's `Trainer`, of `lightning` or `pytorch_lightning`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .session import OpmuxSession

# A Trainer only accepts callbacks of its own package. If both are installed, use the one that is already imported.
if not TYPE_CHECKING and "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class OpmuxLightningCallback(OpmuxSession, Callback):
    """Turns opmux on when a `Trainer` begins to fit, and off when fitting ends or raises.

    `Trainer(..., callbacks=[opmux.integrations.OpmuxLightningCallback()])`. `patch` needs a model of transformers in
    the LightningModule; for a model of your own use `patch=False, enable=True`.

    Args:
        patch: replace parts of the model with fused ones: `opmux.patch_model`.
        enable: run our kernels under torch's own ops: `opmux.enable()`. True is "auto", which enables nothing on a CPU
            and logs a warning once; "all" uses every kernel.
        policy: the policy of the process during training, as for `opmux.set_policy`.
        include: the parts that `patch_model` replaces.
        exclude: the parts that `patch_model` leaves unchanged.
        undo: False leaves opmux on after training.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.start(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if self.undo_at_end:
            self.undo()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.undo_at_end:
            self.undo()
