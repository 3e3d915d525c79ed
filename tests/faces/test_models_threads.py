"""patch_model: a forward passes values only to the head of its own call, and module copies use their own weights."""

import asyncio
import copy
import threading

import pytest
import torch
import torch.utils.checkpoint
from tiny_llama import batch, close, llama, step

import opmux
from opmux.faces.models.logits import are_late


def losses_of_threads(model, batches, steps):
    """The losses of each thread; every thread calls the model with its own batch."""
    losses, errors, start = [[] for _ in batches], [], threading.Barrier(len(batches))

    def run(index):
        start.wait()
        try:
            for _ in range(steps):
                losses[index].append(model(**batches[index]).loss.detach())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return losses


@pytest.mark.parametrize("shapes", [[(2, 9), (2, 9)], [(2, 9), (1, 17), (3, 6), (2, 8)]])
def test_threads_get_the_losses_of_their_own_labels(shapes):
    model = llama()
    batches = [batch(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    expected = [model(**batch).loss.detach() for batch in batches]
    assert len({round(float(loss), 3) for loss in expected}) == len(batches)
    opmux.patch_model(model)
    for losses, want in zip(losses_of_threads(model, batches, 40), expected, strict=True):
        close(torch.stack(losses), want.expand(40))


def test_nested_forwards_both_keep_their_losses():
    model = llama()
    outer, inner = batch(seed=3), batch(seed=4)
    expected = [model(**batch).loss.detach() for batch in (outer, inner)]
    opmux.patch_model(model)
    losses = []

    def nested(module, args, output):
        if not losses:
            losses.append(None)
            losses[0] = model(**inner).loss.detach()

    model.model.register_forward_hook(nested)  # runs before the outer call's head
    loss = model(**outer).loss.detach()
    close(torch.stack([loss, losses[0]]), torch.stack(expected))


def test_interleaved_coroutines_keep_their_losses():
    """Two forwards: each waits before its head until the other one also reaches its head."""
    model = llama()
    batches = [batch(seed=3), batch(seed=4)]
    expected = torch.stack([model(**batch).loss.detach() for batch in batches])
    opmux.patch_model(model)
    meeting = threading.Barrier(2)

    def meet(module, args, output):
        meeting.wait(30)

    model.model.register_forward_hook(meet)

    async def both():
        return await asyncio.gather(*(asyncio.to_thread(lambda b=batch: model(**b).loss.detach()) for batch in batches))

    close(torch.stack(asyncio.run(both())), expected)


def test_a_forward_that_raises_does_not_affect_the_next_call():
    model = llama()
    expected = model(**batch()).loss.detach()
    logits = model(**batch()).logits.detach()
    opmux.patch_model(model)
    handle = model.model.register_forward_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**batch(seed=7))
    handle.remove()
    with pytest.raises((ValueError, RuntimeError)):
        model(input_ids=batch()["input_ids"], labels=batch(3, 4)["labels"])
    close(model(**batch()).loss, expected)
    close(model(input_ids=batch()["input_ids"]).logits, logits)  # without labels: logits, no loss
    close(model.lm_head(torch.ones(1, 32)), torch.nn.functional.linear(torch.ones(1, 32), model.lm_head.weight))


# ---- copies ---------------------------------------------------------------------------------------------------------


def replicated(model):
    """A replica as DataParallel creates it for another device: its parameters are not the model's tensors."""
    modules = list(model.modules())
    copies = {module: module._replicate_for_data_parallel() for module in modules}
    for module, replica in copies.items():
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else copies[child]
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else parameter.detach() * 1.01)
    return copies[model]


def test_a_data_parallel_replica_runs_its_own_parameters():
    expected = replicated(llama())(**batch()).loss
    model = llama()
    plain = model(**batch()).loss
    opmux.patch_model(model)
    out = replicated(model)(**batch())
    assert are_late(out) and not torch.allclose(plain, expected)
    close(out.loss, expected)


def test_data_parallel_gathers_logits():
    """DataParallel's `gather` reads all outputs of all replicas."""
    model = llama()
    expected = model(**batch())
    opmux.patch_model(model)
    out = model(**batch())
    close({key: out[key] for key in ("loss", "logits")}, {key: expected[key] for key in ("loss", "logits")})


@pytest.mark.parametrize("name", ["", "model", "model.norm", "model.layers.0", "model.layers.0.mlp", "lm_head"])
def test_a_shallow_copy_of_a_module_runs_its_own_weights(name):
    def run(model):
        module = copy.copy(model.get_submodule(name))
        module._parameters, module._modules = dict(module._parameters), dict(module._modules)
        for part in (module, *(module.children() if name else ())):
            part._parameters = {key: None if p is None else p * 1.5 for key, p in part._parameters.items()}
        if name == "":
            module.lm_head = torch.nn.Linear(32, 50, bias=False, dtype=torch.float32)
            torch.nn.init.ones_(module.lm_head.weight)
        return module

    def answer(module):
        if name in ("", "model"):
            return module(input_ids=batch()["input_ids"])[0]
        x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
        if name == "model.layers.0":
            angles = torch.ones(2, 5, 8)
            return module(x, position_embeddings=(angles, angles))
        return module(x)

    expected = answer(run(llama().eval()))
    model = llama().eval()
    opmux.patch_model(model)
    close(answer(run(model)), expected)


def test_functional_call_in_vmap_uses_the_given_parameters():
    model = llama(layers=1).eval()
    parameters = {name: torch.stack([p, p * 1.1]) for name, p in model.named_parameters()}
    ids = batch()["input_ids"]

    def logits(parameters):
        return torch.func.functional_call(model, parameters, (ids,), {"use_cache": False}).logits

    expected = torch.stack([logits({k: v[i] for k, v in parameters.items()}) for i in range(2)])
    opmux.patch_model(model)
    close(torch.func.vmap(logits)(parameters), expected, 1e-4)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_reruns_the_forward_in_backward(reentrant):
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    expected = step(model)
    opmux.patch_model(model)
    result = step(model)
    close(result, expected)


def test_a_whole_model_can_be_checkpointed():
    """Checkpointing reruns the forward with the fused loss in one of autograd's threads."""
    model = llama()
    embeds = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def gradient(reentrant):
        model.zero_grad()
        call = lambda x: model(inputs_embeds=x, labels=batch()["labels"]).loss
        loss = torch.utils.checkpoint.checkpoint(call, embeds, use_reentrant=reentrant)
        return (
            torch.autograd.grad(loss, embeds)[0] if not reentrant else (loss.backward(), model.lm_head.weight.grad)[1]
        )

    expected = [gradient(reentrant) for reentrant in (True, False)]
    opmux.patch_model(model)
    close([gradient(reentrant) for reentrant in (True, False)], expected)
