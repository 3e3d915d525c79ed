"""A training loop with accelerate and PEFT. opmux needs no plugin: `patch_model` is called before `prepare`.

Run it from anywhere: python examples/finetune_accelerate.py
On two processes: accelerate launch --cpu --num_processes 2 examples/finetune_accelerate.py
"""

import accelerate
import peft
import torch
import transformers

import opmux

torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=100,
)
accelerator = accelerate.Accelerator()
model = peft.get_peft_model(transformers.LlamaForCausalLM(config), peft.LoraConfig(target_modules="all-linear"))
report = opmux.patch_model(model)  # after `prepare` works too
texts = [{"input_ids": ids, "labels": ids} for ids in torch.randint(100, (1, 16)).expand(16, -1)]
loader = torch.utils.data.DataLoader(texts, batch_size=4)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

losses = []
for _ in range(4):
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
accelerator.print(report)
accelerator.print(f"loss {losses[0]:.2f}, then {losses[-1]:.2f}")
accelerator.end_training()
