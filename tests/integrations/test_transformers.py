"""OpmuxCallback: a Trainer trains with our functions as without them, and leaves model and process as they were."""

import pytest
import torch
from tiny_llama import VOCABULARY, llama
from torch.utils.data import Dataset, IterableDataset

import opmux
from opmux.core.errors import BadArgument
from opmux.core.policy import get_global_policy
from opmux.faces.aten import switch
from opmux.faces.models import ahead
from opmux.faces.models.modules import is_patched

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")  # a Trainer needs it


class Texts(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        ids = torch.randint(VOCABULARY, (9,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids.clone()}


class Stream(IterableDataset):
    def __iter__(self):
        return (Texts()[i] for i in range(16))


class Watcher(transformers.TrainerCallback):
    """After each step, records whether the model is patched; raises an error at step `fail_at`."""

    def __init__(self, fail_at=None):
        self.fail_at, self.patched, self.enabled = fail_at, [], []

    def on_step_end(self, args, state, control, model=None, **given):
        self.patched.append(is_patched(model))
        self.enabled.append(len(opmux.enabled_ops()))
        if state.global_step == self.fail_at:
            raise KeyboardInterrupt

    def on_evaluate(self, args, state, control, model=None, **given):
        self.patched.append(is_patched(model))


def trainer(tmp_path, *callbacks, model=None, data=None, **more):
    options = {"max_steps": 3, "per_device_train_batch_size": 2, "logging_steps": 1, "save_strategy": "no"}
    options |= {"report_to": [], "use_cpu": True, "disable_tqdm": True, **more}
    arguments = transformers.TrainingArguments(str(tmp_path), **options)
    model = llama() if model is None else model
    data = Texts() if data is None else data
    return transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=Texts(), callbacks=[*callbacks])


def losses(trainer, **options):
    trainer.train(**options)
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def callback(**options):
    return opmux.integrations.OpmuxCallback(**options)


CASES = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True},
    "bfloat16": {"bf16": True},
    "checkpointed": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_patched_trainer_has_the_losses_of_an_unpatched_one(tmp_path, options):
    watcher = Watcher()
    ours = trainer(tmp_path, callback(), watcher, **options)
    expected = losses(trainer(tmp_path, **options))
    tol = 2e-2 if options.get("bf16") else 1e-4
    torch.testing.assert_close(losses(ours), expected, rtol=tol, atol=tol)
    assert set(watcher.patched) == {True} and len(watcher.patched) >= 3
    assert not is_patched(ours.model)


def test_torch_compile_runs_the_patched_model(tmp_path):
    called = set()

    def recording(graph, inputs):
        called.update(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    torch._dynamo.register_backend(recording, name="ofi")  # a name that accelerate accepts; torch has no such backend
    ours = trainer(tmp_path, callback(), torch_compile=True, torch_compile_backend="ofi")
    ours.evaluate()  # compiles the unpatched model
    assert called and not any("opmux" in name for name in called)
    torch.testing.assert_close(losses(ours), losses(trainer(tmp_path)), rtol=1e-4, atol=1e-4)
    assert any("opmux.add_rms_norm" in name for name in called)


def test_resumed_training_is_patched_again(tmp_path):
    saved = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    expected = losses(trainer(tmp_path / "a", **saved))
    cb, watcher = callback(), Watcher()
    losses(trainer(tmp_path / "b", cb, **saved))
    resumed = trainer(tmp_path / "b", cb, watcher, **saved)
    got = losses(resumed, resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-2"))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert watcher.patched == [True, True]


def test_a_model_that_train_makes_is_patched(tmp_path):
    watcher = Watcher()
    ours = trainer(tmp_path, callback(), watcher)
    ours.model_init = lambda: llama()
    ours.train()
    assert set(watcher.patched) == {True} and not is_patched(ours.model)


def test_an_exception_leaves_nothing_turned_on_after_the_block(tmp_path):
    model, before = llama(), get_global_policy()
    with pytest.raises(KeyboardInterrupt), callback(enable="all", policy="reference") as cb:
        trainer(tmp_path, cb, Watcher(fail_at=2), model=model).train()
    assert not is_patched(model) and opmux.enabled_ops() == [] and get_global_policy() == before


def test_the_next_training_undoes_one_that_raised(tmp_path):
    first, second, cb = llama(), llama(), callback()
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path, cb, Watcher(fail_at=1), model=first).train()
    assert is_patched(first)
    trainer(tmp_path, cb, model=second).train()
    assert not is_patched(first) and not is_patched(second)


def test_enable_and_policy_apply_during_training_only(tmp_path):
    before, watcher = get_global_policy(), Watcher()
    with opmux.use(include=["relu"], mode="all"):
        outside = opmux.enabled_ops()
        trainer(tmp_path, callback(patch=False, enable="all", policy="reference"), watcher).train()
        assert opmux.enabled_ops() == outside
    assert min(watcher.enabled) > len(outside) and set(watcher.patched) == {False}
    assert get_global_policy() == before


def test_a_patch_of_the_user_stays(tmp_path):
    model = llama()
    opmux.patch_model(model, include=["glu"])
    trainer(tmp_path, callback(), model=model).train()
    assert is_patched(model)


def test_undo_false_leaves_the_model_patched(tmp_path):
    model = llama()
    trainer(tmp_path, callback(undo=False, exclude=["loss"]), model=model).train()
    assert is_patched(model)


def test_warm_takes_the_first_samples_and_keeps_their_order(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(ahead, "described", lambda model, example: seen.append((model.training, example)))
    got = losses(trainer(tmp_path, callback(warm=True), model=llama().eval()))
    torch.testing.assert_close(got, losses(trainer(tmp_path)), rtol=1e-4, atol=1e-4)
    ((training, example),) = seen
    assert training
    torch.testing.assert_close(example["input_ids"], torch.stack([Texts()[0]["input_ids"], Texts()[1]["input_ids"]]))


def test_warm_rejects_a_stream_and_accepts_a_batch(tmp_path, monkeypatch):
    model = llama()
    with pytest.raises(BadArgument, match=r"OpmuxCallback: warm must be a batch, or True for .* got a Stream"):
        trainer(tmp_path, callback(warm=True), model=model, data=Stream()).train()
    assert not is_patched(model)
    seen = []
    monkeypatch.setattr(ahead, "described", lambda model, example: seen.append(example))
    trainer(tmp_path, callback(warm={"input_ids": torch.ones(2, 9, dtype=torch.int64)}), data=Stream()).train()
    assert len(seen) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU both options have an effect")
def test_on_a_cpu_options_without_effect_are_logged_once(tmp_path, caplog):
    switch._warn_once.cache_clear()
    cb = callback(enable=True, warm=True)
    with caplog.at_level("INFO", "opmux"):
        trainer(tmp_path, cb).train()
    (enabled,) = [r for r in caplog.records if "enables nothing on a CPU" in r.getMessage()]
    (warmed,) = [r for r in caplog.records if "nothing is compiled ahead without a GPU" in r.getMessage()]
    assert (enabled.levelname, warmed.levelname) == ("WARNING", "INFO") and "warm=" in warmed.getMessage()
    with caplog.at_level("INFO", "opmux"):
        trainer(tmp_path, cb).train()
    assert len([r for r in caplog.records if "enables nothing" in r.getMessage()]) == 1


def test_nothing_to_turn_on_is_an_error():
    with pytest.raises(BadArgument, match="patch must be True if neither enable nor policy is given"):
        callback(patch=False)
    with pytest.raises(BadArgument, match="warm must be False without patch"):
        callback(patch=False, enable=True, warm=True)
