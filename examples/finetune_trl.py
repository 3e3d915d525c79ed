"""Fine-tunes a model with TRL. One argument, a callback, turns opmux on; DPOTrainer and GRPOTrainer accept it too.

Run it from anywhere: python examples/finetune_trl.py
"""

import tempfile

import datasets
import tokenizers
import torch
import transformers
import trl

from opmux.integrations import OpmuxCallback

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwxyz"]
made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "<unk>"))
made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
torch.manual_seed(0)
config = transformers.LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=len(WORDS),
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=1,
)
callback = OpmuxCallback()
with tempfile.TemporaryDirectory() as folder:
    arguments = trl.SFTConfig(
        folder, max_steps=8, per_device_train_batch_size=4, learning_rate=1e-2, logging_steps=4, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available(), bf16=torch.cuda.is_available(),
    )  # fmt: skip
    trainer = trl.SFTTrainer(
        model=transformers.LlamaForCausalLM(config),
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"text": ["a b c d e f g", "h i j k l m n"] * 16}),
        processing_class=tokenizer,
        callbacks=[callback],
    )
    trainer.train()
print(callback.report)
first, last = (row["loss"] for row in trainer.state.log_history if "loss" in row)
print(f"loss {first:.2f}, then {last:.2f}")
