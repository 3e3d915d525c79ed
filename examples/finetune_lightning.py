"""Fine-tunes a language model with Lightning. One argument, a callback, turns opmux on.

Run it from anywhere: python examples/finetune_lightning.py
"""

import lightning.pytorch as pl
import torch
import transformers

from opmux.integrations import OpmuxLightningCallback


class Finetuned(pl.LightningModule):
    def __init__(self):
        super().__init__()
        config = transformers.LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=100,
        )
        self.model = transformers.LlamaForCausalLM(config)
        self.losses = []

    def training_step(self, batch, index):
        loss = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


torch.manual_seed(0)
texts = [{"input_ids": ids, "labels": ids} for ids in torch.randint(100, (1, 16)).expand(16, -1)]
model, callback = Finetuned(), OpmuxLightningCallback()
trainer = pl.Trainer(
    max_epochs=3, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(model, torch.utils.data.DataLoader(texts, batch_size=4))
print(callback.report)
print(f"loss {model.losses[0]:.2f}, then {model.losses[-1]:.2f}")
