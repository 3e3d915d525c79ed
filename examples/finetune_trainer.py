"""Fine-tunes a language model with transformers' Trainer. One argument, a callback, turns opmux on.

Run it from anywhere: python examples/finetune_trainer.py
The model is a tiny Llama with random weights. For a real one, use `AutoModelForCausalLM.from_pretrained(name)`.
"""

# The only import of opmux that fine-tuning needs is the callback for transformers' Trainer.
import tempfile

import torch
import transformers

from opmux.integrations import OpmuxCallback

# A small model with random weights, and 32 random texts. The labels are the texts themselves: the model shifts them.
torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=100,
)
model = transformers.LlamaForCausalLM(config)
texts = [{"input_ids": ids, "labels": ids} for ids in torch.randint(100, (32, 16))]

# Train as usual. The callback patches the model when training starts: norms, rotary embeddings, MLPs and the loss are
# then fused ops. `warm=True` compiles their kernels on all cores before the first step; without a GPU it does nothing.
with tempfile.TemporaryDirectory() as folder:
    arguments = transformers.TrainingArguments(
        folder, max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2,
        logging_steps=4, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    with OpmuxCallback(warm=True) as opmux_callback:  # the block undoes the patch, also if training raises
        trainer = transformers.Trainer(model, arguments, train_dataset=texts, callbacks=[opmux_callback])
        trainer.train()

# The report says which modules were replaced, and which implementation runs each op here.
print(opmux_callback.report)
first, last = (row["loss"] for row in trainer.state.log_history if "loss" in row)
print(f"loss {first:.2f}, then {last:.2f}")
