"""Triton is prepared in threads while a model is patched, and a launch waits for them."""

import os
import threading
import types

import pytest
import torch

import opmux
from opmux.cpp import prepare_triton
from opmux.faces.models import patch

cache = pytest.importorskip("triton.runtime.cache")


@pytest.fixture
def computing(monkeypatch):
    """Replaces Triton's function by one that waits for `end`, and notes the thread that calls it in `threads`."""
    state = types.SimpleNamespace(threads=[], end=threading.Event())

    def triton_key():
        state.threads.append(threading.current_thread().name)
        assert state.end.wait(10)

    monkeypatch.setattr(cache, "triton_key", triton_key)
    monkeypatch.setattr(prepare_triton._State, "started", False)
    monkeypatch.setattr(prepare_triton._State, "running", {})
    yield state
    state.end.set()


def test_a_launch_waits_for_the_thread_instead_of_computing_the_hash_again(computing):
    prepare_triton.wait("hash", "driver")  # returns at once, as nothing was started
    prepare_triton.start()
    prepare_triton.start()
    waiting = threading.Thread(target=prepare_triton.wait, args=("hash", "driver"))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    computing.end.set()
    waiting.join(10)
    assert not waiting.is_alive() and computing.threads == ["opmux background"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_does_not_wait_for_a_thread_that_it_lacks(computing):
    prepare_triton.start()
    child = os.fork()
    if child == 0:
        prepare_triton.wait("hash", "driver")
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize(("accelerators", "count"), [(("cpu",), 1), ((), 0)])
def test_patch_model_starts_it_for_a_model_on_an_accelerator(computing, monkeypatch, accelerators, count):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = model.to_empty(device="cpu")
    monkeypatch.setattr(patch.devices, "accelerators", lambda: accelerators)
    started = []
    monkeypatch.setattr(prepare_triton.background, "later", lambda seconds, call: started.append(call))
    opmux.patch_model(model)
    opmux.unpatch_model(model)
    assert len(started) == count * len(prepare_triton.PARTS)


def test_hash_files_without_triton_is_no_error(monkeypatch):
    monkeypatch.delattr(cache, "triton_key")
    assert prepare_triton.hash_files() is None
