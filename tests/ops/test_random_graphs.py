"""Seeds of random ops: eager code and CUDA graph capture take them from the same sequence of the generator. The tests
need no GPU: a simulated generator follows the rules of torch's CUDA generator. They also replace the torch op that
reads the generator during a capture.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from opmux.specs import _seeds
from opmux.specs import random as spec

LIKE = SimpleNamespace(is_cuda=True, get_device=lambda: 0, device=torch.device("cpu"))


class State:
    """Seed and offset of a generator. Several generators may share a state."""

    def __init__(self, seed):
        self.seed, self.offset = seed, 0


class Generator:
    """A CUDA generator: the host cannot read its numbers during graph capture."""

    device = torch.device("cpu")

    def __init__(self, seed, machine):
        self.state, self.machine = State(seed), machine

    def reserve(self, numbers):
        """at::CUDAGeneratorImpl::philox_cuda_state, with dereferenced pointers."""
        reserved = self.state.seed, self.state.offset
        self.state.offset += -(-numbers // 4) * 4
        return reserved

    def initial_seed(self):
        assert not self.machine.capturing, "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture"
        return self.state.seed

    def get_offset(self):
        assert not self.machine.capturing, "Cannot call CUDAGeneratorImpl::get_offset during CUDA graph capture"
        return self.state.offset

    def set_offset(self, offset):
        assert not self.machine.capturing and offset % 4 == 0
        self.state.offset = offset

    def graphsafe_get_state(self):
        alias = Generator(0, self.machine)
        alias.state = self.state
        return alias

    def graphsafe_set_state(self, other):
        self.state = other.state


class Machine:
    """A simulated CUDA device."""

    def __init__(self):
        self.capturing = False
        self.default = Generator(2**64 - 3, self)

    def attention(self, q, k, v, bias, cu_q, cu_k, max_q, max_k, dropout_p, mask):
        """Reserve a number of the default generator for each score, and return the generator's captured state as
        tensors.
        """
        assert self.capturing and 0 < dropout_p < 1
        batch, queries, heads, _ = q.shape
        seed, offset = self.default.reserve(batch * heads * queries * k.shape[1])
        seed = torch.tensor(seed - 2**64 if seed >= 2**63 else seed)
        return None, None, seed, torch.tensor(offset), queries, k.shape[1]


@pytest.fixture
def machine(monkeypatch):
    new_machine = Machine()
    monkeypatch.setattr(torch.cuda, "default_generators", (new_machine.default,))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: new_machine.capturing)
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", new_machine.attention)
    _seeds.warn_of_other_numbers.cache_clear()
    return new_machine


def sequence(machine, generator=None):
    """Return the seeds of four ops, with torch's own random ops between them."""
    seeds = [spec.next_seed(LIKE, generator)]
    (generator or machine.default).reserve(17)
    seeds += [spec.next_seed(LIKE, generator), spec.next_seed(LIKE, generator)]
    (generator or machine.default).reserve(4)
    return [s.tolist() for s in (*seeds, spec.next_seed(LIKE, generator))]


def test_capture_and_eager_code_take_the_same_seeds(machine):
    eager, after = sequence(machine), machine.default.get_offset()
    machine.default.set_offset(0)
    machine.capturing = True
    captured = sequence(machine)
    machine.capturing = False
    assert captured == eager == [[-3, 0], [-3, 6], [-3, 7], [-3, 9]]
    assert machine.default.get_offset() == after == 40


def test_a_capture_with_a_generator_does_not_change_the_default_one(machine):
    own, twin = Generator(5, machine), Generator(5, machine)
    eager, default = sequence(machine, own), machine.default.state
    machine.capturing = True
    captured = sequence(machine, twin)
    machine.capturing = False
    assert captured == eager == [[5, 0], [5, 6], [5, 7], [5, 9]]
    assert machine.default.state is default and default.offset == 0 and twin.state.offset == own.state.offset == 40


def test_a_captured_seed_is_int64_on_the_device(machine):
    machine.capturing = True
    seed = spec.next_seed(LIKE)
    assert seed.dtype is torch.int64 and seed.shape == (2,) and seed.is_contiguous() and seed.device == LIKE.device


def test_without_torchs_op_a_capture_draws_a_seed_and_warns_once(machine, monkeypatch, caplog):
    def missing(*args):
        raise NotImplementedError("no kernel for this device")

    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", missing)
    machine.capturing = True
    with caplog.at_level(logging.WARNING, "opmux"):
        first, second = spec.next_seed(LIKE), spec.next_seed(LIKE)
    assert not torch.equal(first, second) and first.dtype is torch.int64 and first.shape == (2,)
    (record,) = caplog.records
    assert "other random numbers than eager code" in record.message and "no kernel for this device" in record.message


def test_a_failing_capture_restores_the_default_generator(machine, monkeypatch):
    def failing(*args, **kwargs):
        raise RuntimeError("Attempt to increase offset for a CUDA generator not in capture mode.")

    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", failing)
    monkeypatch.setattr(torch, "randint", failing)
    state, machine.capturing = machine.default.state, True
    with pytest.raises(RuntimeError, match="not in capture mode") as caught:
        spec.next_seed(LIKE, Generator(5, machine))
    assert machine.default.state is state and caught.value.__context__ is None


def test_other_devices_do_not_use_the_cuda_generator(machine):
    assert spec.next_seed(torch.empty(3)).shape == (2,) and machine.default.state.offset == 0
