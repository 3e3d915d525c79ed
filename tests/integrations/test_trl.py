"""TRL's trainers: OpmuxCallback fuses the layers, TRL keeps its own fused head, and the losses stay the same."""

import pytest
import torch
from tiny_llama import VOCABULARY, llama

import opmux
from opmux.faces.models.modules import is_patched

trl = pytest.importorskip("trl", reason="needs trl")
tokenizers = pytest.importorskip("tokenizers")
datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")

LETTERS = "abcdefghijkl"
DATA = {
    "SFT": {"text": ["a b c d e", "f g h i", "a c e g i k"] * 4},
    "DPO": {"prompt": ["a b", "c d", "e f"] * 4, "chosen": [" g h", " i j", " k l"] * 4, "rejected": [" a a"] * 12},
    "GRPO": {"prompt": ["a b", "c d", "e f"] * 4},
}
MORE = {"SFT": {}, "DPO": {}, "GRPO": {"num_generations": 4, "max_completion_length": 6}}


def tokenizer():
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *LETTERS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def trained(name, folder, *callbacks, **more):
    """The losses of three steps, and the trainer."""
    options = {"max_steps": 3, "per_device_train_batch_size": 4, "logging_steps": 1, "save_strategy": "no", "seed": 7}
    options |= {"report_to": [], "use_cpu": True, "bf16": False, "disable_tqdm": True, "learning_rate": 1e-2}
    arguments = getattr(trl, f"{name}Config")(str(folder), **options, **MORE[name], **more)
    model = llama(pad_token_id=0, eos_token_id=1, bos_token_id=1)
    assert len(tokenizer()) <= VOCABULARY
    extra = {"DPO": lambda: {"ref_model": llama(pad_token_id=0)}, "GRPO": lambda: {"reward_funcs": rewards}}
    trainer = getattr(trl, f"{name}Trainer")(
        model=model,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(DATA[name]),
        processing_class=tokenizer(),
        callbacks=[*callbacks],
        **extra.get(name, dict)(),
    )
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row], trainer


def rewards(completions, **given):
    return [float(len(text) % 3) for text in completions]


@pytest.mark.parametrize("name", DATA)
def test_the_callback_fuses_the_layers_and_keeps_the_losses(name, tmp_path):
    callback = opmux.integrations.OpmuxCallback()
    losses, trainer = trained(name, tmp_path, callback)
    torch.testing.assert_close(losses, trained(name, tmp_path)[0], rtol=1e-3, atol=1e-4)
    assert {row.name for row in callback.report.replaced} >= {"rms_norm", "add_rms_norm", "glu", "rope"}
    assert not is_patched(trainer.model)


def test_use_liger_kernel_takes_our_layers(tmp_path):
    import opmux.compat

    opmux.compat.install("liger_kernel")
    try:
        losses, trainer = trained("SFT", tmp_path, use_liger_kernel=True)
    finally:
        opmux.compat.uninstall("liger_kernel")
    torch.testing.assert_close(losses, trained("SFT", tmp_path)[0], rtol=1e-3, atol=1e-4)
    assert is_patched(trainer.model)
