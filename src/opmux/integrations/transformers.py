"""A callback for `transformers.Trainer` and the trainers of TRL, which are subclasses of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback

from ..core.errors import BadArgument
from ..faces.aten.switch import Mode
from .session import OpmuxSession


class OpmuxCallback(OpmuxSession, TrainerCallback):
    """Turns opmux on when a `Trainer` begins to train, and off when the training ends.

    `Trainer(..., callbacks=[opmux.integrations.OpmuxCallback()])`. It works with gradient accumulation, evaluation
    during training, `torch_compile`, resumed training and `auto_find_batch_size`. If training raises, a `Trainer` calls
    no callback, and opmux stays on: use `with OpmuxCallback() as callback:`, or call `callback.undo()`. The next
    training with the same callback does that first.

    Args:
        patch: replace parts of the model with fused ones: `opmux.patch_model`.
        enable: run our kernels under torch's own ops: `opmux.enable()`. True is "auto", which enables nothing on a CPU
            and logs a warning once; "all" uses every kernel.
        policy: the policy of the process during training, as for `opmux.set_policy`.
        include: the parts that `patch_model` replaces.
        exclude: the parts that `patch_model` leaves unchanged.
        warm: compile the kernels of a step in the background before the first step. True takes the first samples of
            the dataset, which must support `len` and indexing. Or pass a batch: a dict of the model's arguments.
            Without a GPU this only checks the batch, and logs so at INFO.
        undo: False leaves opmux on after training.
    """

    def __init__(
        self,
        patch: bool = True,
        enable: bool | Mode = False,
        policy: str | None = None,
        include: Iterable[str] | None = None,
        exclude: Iterable[str] | None = None,
        warm: bool | Mapping[str, Any] = False,
        undo: bool = True,
    ):
        super().__init__(patch, enable, policy, include, exclude, undo)
        if warm and not patch:
            raise BadArgument.of("OpmuxCallback", "warm", "be False without patch", "patch=False")
        self.warm = warm

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model = given["model"]
        example = None
        if self.warm:
            model.train()  # as each training step does; kernels of the backward are compiled too
            batch = _first_batch(given["train_dataloader"], args.train_batch_size) if self.warm is True else self.warm
            example = _on_device_of(model, batch)
        self.start(model, example)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.undo_at_end:
            self.undo()


def _first_batch(loader: DataLoader[Any], size: int) -> Any:
    """A batch of the first samples. The sampler is not used, because that would change the order of later batches."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise _cannot_warm(f"a {type(dataset).__name__}")
    with torch.random.fork_rng():
        batch = loader.collate_fn([dataset[i] for i in range(min(size, len(dataset)))])
    if not isinstance(batch, Mapping):
        raise _cannot_warm(f"batches of type {type(batch).__name__}")
    return batch


def _cannot_warm(got: str) -> BadArgument:
    return BadArgument.of(
        "OpmuxCallback", "warm", "be a batch, or True for a dataset with len, indexing and dicts as batches", got
    )


def _on_device_of(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    device = next(model.parameters()).device
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
