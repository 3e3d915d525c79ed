"""patch_model: in training, logits are computed only when they are read, whichever way they are read."""

import contextlib
import copy
import dataclasses
import pickle

import pytest
import torch
from tiny_llama import batch, close, llama
from torch.utils import _pytree as pytree

import opmux
from opmux.faces.models import logits as late
from opmux.faces.models.logits import are_late

READS = {
    "attribute": lambda out: out.logits,
    "name": lambda out: out["logits"],
    "get": lambda out: out.get("logits"),
    "place": lambda out: out[1],
    "slice": lambda out: out[1:][0],
    "tuple": lambda out: out.to_tuple()[1],
    "a copy": lambda out: copy.copy(out).logits,
    "a deep copy": lambda out: copy.deepcopy({"loss": 1, "logits": dict(out.items())["logits"]})["logits"],
    "items used as tensors": lambda out: dict(out.items())["logits"][..., :].detach(),
    "a function of torch": lambda out: torch.cat([dict(out.items())["logits"]]),
    "a pytree": lambda out: pytree.tree_map(lambda leaf: leaf, out).logits,
    "a replaced dataclass": lambda out: dataclasses.replace(out).logits,
}


@pytest.fixture
def computed(monkeypatch):
    """A list that grows by one entry each time late logits are computed."""
    calls = []
    read = late.LateLogits.read_now
    monkeypatch.setattr(late.LateLogits, "read_now", lambda self: calls.append(1) or read(self))
    return calls


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_every_way_to_read_logits_computes_them(read, computed):
    model = llama()
    expected = model(**batch())
    opmux.patch_model(model)
    out = model(**batch())
    assert are_late(out) and not computed
    close(read(out), expected.logits)
    assert computed == [1]


def test_outputs_are_ordinary_after_the_first_read(computed):
    model = llama()
    expected = model(**batch())
    opmux.patch_model(model)
    out = model(**batch())
    assert isinstance(out, type(expected)) and list(out.keys()) == list(expected.keys())
    assert out.logits is out["logits"] is out[1] and type(out) is type(expected)
    close(pickle.loads(pickle.dumps(out.logits)), expected.logits)
    assert computed == [1]


@pytest.mark.parametrize("cached", [False, True])
def test_outputs_have_the_same_items_as_the_original(cached):
    model = llama()
    expected = model(**batch(), use_cache=cached, output_hidden_states=True)
    opmux.patch_model(model)
    out = model(**batch(), use_cache=cached, output_hidden_states=True)
    assert [type(value) for value in out.to_tuple()] == [type(value) for value in expected.to_tuple()]
    close(out[0], expected[0])
    close(out.hidden_states, expected.hidden_states)


def test_a_tuple_output_has_the_models_logits():
    model = llama()
    expected = model(**batch(), return_dict=False)
    opmux.patch_model(model)
    output = model(**batch(), return_dict=False)
    assert type(output) is tuple and len(output) == len(expected)
    close(output[:2], expected[:2])


def test_reading_the_loss_computes_no_logits(computed):
    model = llama()
    opmux.patch_model(model)
    out = model(**batch())
    assert out.loss is out["loss"] is out[0] is out.get("loss") and "logits" in out and len(out) == 3
    for _, value in out.items():
        assert value is not None
    assert not computed and "computed when" in repr(out)


@pytest.mark.parametrize("before", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_gradients_flow_through_logits_that_are_read(before):
    """A second loss on the logits (distillation) needs gradients, even if a metric has read the logits before."""

    def gradient(model):
        model.zero_grad()
        out = model(**batch())
        with before():
            out.logits.argmax(-1)
        (out.loss + out.logits.logsumexp(-1).square().mean()).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    model = llama()
    expected = gradient(model)
    opmux.patch_model(model)
    close(gradient(model), expected, 1e-4)


def test_reading_logits_of_an_earlier_step_raises():
    """Without the error, the logits would be computed with the updated weight."""
    model = llama()
    opmux.patch_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = model(**batch())
    out.loss.backward()
    read = model(**batch())
    assert read.logits is not None
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"read them before optimizer.step\(\), or use opmux.patch_model"):
        out.logits  # noqa: B018
    assert read.logits is not None and out.loss is not None


def test_logits_have_the_precision_of_the_forward():
    model = llama()
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(**batch()).logits
        opmux.patch_model(model)
        out = model(**batch())
    assert dict(out.items())["logits"].dtype is torch.bfloat16
    assert out.logits.dtype is expected.dtype is torch.bfloat16
    close(out.logits, expected, 0.1)  # logits of up to 6 are rounded several times


def test_logits_can_be_assigned():
    model = llama()
    opmux.patch_model(model)
    out, mine = model(**batch()), torch.ones(3)
    out.logits = mine
    assert out.logits is out["logits"] is out[1] is mine
    out = model(**batch())
    out.logits = None
    assert out.logits is None and "logits" not in out and len(out.to_tuple()) == 2


def capped():
    import transformers

    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=50, final_logit_softcapping=0.5,
    )  # fmt: skip
    return transformers.Gemma2ForCausalLM(config).train()


def test_softcapped_logits_are_capped_when_read():
    model = capped()
    expected = model(**batch())
    opmux.patch_model(model)
    out = model(**batch())
    assert are_late(out)
    close([out.loss, out.logits], [expected.loss, expected.logits])


def test_compiled_outputs_have_no_logits():
    model = capped()
    expected = model(**batch()).loss
    opmux.patch_model(model)
    out = torch.compile(model, backend="eager", fullgraph=True)(**batch(), use_cache=False)
    close(out.loss, expected)
    assert out.logits is None and "logits" not in out and out.to_tuple() == (out.loss,)
