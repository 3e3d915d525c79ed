"""OpmuxLightningCallback: Lightning's Trainer fits with our functions, and leaves the model as it was."""

import importlib

import pytest
import torch
from tiny_llama import batch, llama

import opmux
from opmux.faces.models.modules import is_patched

pl = pytest.importorskip("lightning.pytorch", reason="needs lightning")


def module(fail=False):
    class Finetuned(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.losses, self.patched = llama(), [], []

        def training_step(self, rows, index):
            loss = self.model(**rows).loss
            self.losses.append(loss.item())
            self.patched.append(is_patched(self.model))
            if fail:
                raise ValueError("no")
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    return Finetuned()


def fit(model, *callbacks):
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[*callbacks], **options)
    trainer.fit(model, torch.utils.data.DataLoader([batch(seed=i) for i in range(3)], batch_size=None))


def test_a_fit_is_patched_and_has_the_losses_of_an_unpatched_one():
    ours, theirs = module(), module()
    fit(ours, opmux.integrations.OpmuxLightningCallback(enable="all"))
    fit(theirs)
    assert ours.patched == [True] * 3 and theirs.patched == [False] * 3
    torch.testing.assert_close(ours.losses, theirs.losses, rtol=1e-4, atol=1e-4)
    assert not is_patched(ours) and opmux.enabled_ops() == []


def test_a_fit_that_raises_is_undone():
    model = module(fail=True)
    with pytest.raises(ValueError, match="no"):
        fit(model, opmux.integrations.OpmuxLightningCallback())
    assert model.patched == [True] and not is_patched(model)


def test_undo_false_leaves_the_model_patched():
    model = module()
    fit(model, opmux.integrations.OpmuxLightningCallback(undo=False))
    assert is_patched(model)
    assert importlib.import_module("opmux.integrations.lightning").Callback is pl.Callback
