"""The planner's answers: what a call would launch on a chip that is not here, from the key that C++ sends."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SRC = Path(__file__).parents[2] / "src"
PROGRAM = f"import sys; sys.path.insert(0, {str(SRC)!r}); from opmux.tools.planning import main; main()"
OVERLOADS = "add.Tensor native_layer_norm _softmax add_.Tensor cat _to_copy select_backward clone".split()
KERNEL, ANSWER, REFUSAL = 1, 2, 3
ARGUMENT, RESULT, SPACE, NUMBER = range(4)
BF16, F32, INT, DOUBLE = 15, 6, 4, 7  # c10::ScalarType


def real(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def tensor(*shape, dtype=BF16, strides=None, same=0, beyond_16=0, index=0):
    lengths, step = [], 1
    for n in reversed(shape):
        lengths.insert(0, step)
        step *= n
    head = 3 | dtype << 8 | len(shape) << 16 | same << 24 | index << 32 | beyond_16 << 40
    return [head, *shape, *(strides or lengths)]


class Planner:
    def __init__(self):
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.settimeout(120)
        env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
        facts = {
            "chip": ["nvidia", "sm_90", "NVIDIA H200", "580"], "cores": 132, "shared": 232448, "workers": 1,
            "devices": [0], "overloads": dict(enumerate(OVERLOADS)), "socket": theirs.fileno(),
        }  # fmt: skip
        command = [sys.executable, "-c", PROGRAM, json.dumps(facts)]
        self.process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()])
        theirs.close()
        self.kernels = {}

    def ask(self, name, *words, settings=(0, F32)):
        """Results, spaces and launches, or None if it refuses."""
        words = (*settings, *words)
        head = OVERLOADS.index(name), 7, 99, len(words)
        self.ours.send(struct.pack(f"<{4 + len(words)}Q", *head, *words))
        while True:
            message = self.ours.recv(1 << 17)
            kind, *rest = struct.unpack(f"<{len(message) // 8}Q", message)
            if kind == REFUSAL:
                assert tuple(rest) == head[:3]
                return None
            if kind == ANSWER:
                assert tuple(rest[: 4 + len(words)]) == (*head, *words)
                return read(iter(rest[4 + len(words) :]))
            number, shared, *texts = rest
            name, path = unpack(iter(texts))
            image = Path(path).read_bytes()
            assert kind == KERNEL and image[:4] == b"\x7fELF"
            self.kernels[number] = name, shared


def unpack(words):
    found = []
    for size in words:
        data = b"".join(struct.pack("<Q", next(words)) for _ in range(-(-size // 8)))
        found.append(data[:size].decode())
    return found


def read(words):
    some = lambda n: [next(words) for _ in range(n)]
    results = []
    for _ in range(next(words)):
        dtype, dims = some(2)
        results.append((dtype, some(dims), some(dims)))
    spaces = some(next(words))
    launches = []
    for _ in range(next(words)):
        kernel, *grid, threads, count = some(6)
        launches.append((kernel, grid, threads, [tuple(some(3)) for _ in range(count)]))
    assert next(words, None) is None
    return results, spaces, launches


@pytest.fixture(scope="module")
def planner():
    made = Planner()
    yield made
    made.ours.close()
    assert made.process.wait(30) == 0  # it ends with the process that it is for


def test_a_pointwise_call(planner):
    results, spaces, launches = planner.ask("add.Tensor", *tensor(4, 1000, 768), *tensor(4, 1000, 768), INT, 1)
    assert results == [(BF16, [4, 1000, 768], [768000, 768, 1])] and not spaces
    ((kernel, grid, threads, params),) = launches
    assert params[:3] == [(ARGUMENT, 0, 0), (ARGUMENT, 1, 0), (RESULT, 0, 0)]
    assert (NUMBER, 0, 4 * 1000 * 768) in params and grid[0] > 1 and threads == 128 and kernel in planner.kernels


def test_one_kernel_serves_all_lengths(planner):
    planner.ask("add.Tensor", *tensor(4, 16, 768), *tensor(4, 16, 768), INT, 1)
    known = dict(planner.kernels)
    for n in range(17, 40):
        ((_, shape, _),), _, ((_, _, _, params),) = planner.ask(
            "add.Tensor", *tensor(4, n, 768), *tensor(4, n, 768), INT, 1
        )
        assert shape == [4, n, 768] and (NUMBER, 0, 4 * n * 768) in params
    assert len(planner.kernels) <= len(known) + 1  # lengths that are multiples of 16 have a kernel of their own


def test_a_number_in_place_of_a_tensor(planner):
    _, _, ((_, _, _, params),) = planner.ask("add.Tensor", *tensor(64, 64), 2 | DOUBLE << 8, real(2.5), INT, 1)
    assert (NUMBER, 0, real(2.5)) in params


def test_one_tensor_twice(planner):
    _, _, ((_, _, _, params),) = planner.ask("add.Tensor", *tensor(8, 8), *tensor(8, 8, same=1), INT, 1)
    assert params[:3] == [(ARGUMENT, 0, 0), (ARGUMENT, 0, 0), (RESULT, 0, 0)]


def test_in_place(planner):
    results, _, ((_, _, _, params),) = planner.ask("add_.Tensor", *tensor(64, 64), *tensor(64, 64), INT, 1)
    assert not results and params[:3] == [(ARGUMENT, 0, 0), (ARGUMENT, 1, 0), (ARGUMENT, 0, 0)]


def test_several_results_and_optional_tensors(planner):
    weights = [1, *tensor(768)]
    results, _, _ = planner.ask("native_layer_norm", *tensor(6, 768), 1, 768, *weights, *weights, real(1e-5))
    assert [(dtype, shape) for dtype, shape, _ in results] == [(BF16, [6, 768]), (F32, [6, 1]), (F32, [6, 1])]


def test_a_refused_call_leaves_others_of_its_shape_alone(planner):
    """Without weights the kernel reads ones that belong to no argument."""
    weights = [1, *tensor(256)]
    assert planner.ask("native_layer_norm", *tensor(6, 256), 1, 256, 0, 0, real(1e-5)) is None
    assert planner.ask("native_layer_norm", *tensor(6, 256), 1, 256, *weights, *weights, real(1e-5)) is not None


def test_lists_dtypes_and_negative_numbers(planner):
    (result,), _, _ = planner.ask("cat", 2, *tensor(4, 10, 64), *tensor(4, 20, 64), 1)
    assert result[1] == [4, 30, 64]
    (result,), _, _ = planner.ask("_softmax", *tensor(4, 100), (1 << 64) - 1, 0)
    assert result[:2] == (BF16, [4, 100])
    (result,), _, _ = planner.ask("_to_copy", *tensor(4, 64), 1, F32, 0, 0, 0, 0, 0)
    assert result[:2] == (F32, [4, 64])
    (result,), _, _ = planner.ask("select_backward", *tensor(4, 768), 3, 4, 10, 768, 1, 1, 5)
    assert result[1] == [4, 10, 768]


def test_a_transposed_operand(planner):
    (result,), _, _ = planner.ask("clone", *tensor(4, 12, 100, 64, strides=[76800, 64, 768, 1]), 1, 0)
    assert result[2] == [76800, 6400, 64, 1]


@pytest.mark.parametrize(
    "words",
    [
        (*tensor(8, 8, beyond_16=2), *tensor(8, 8), INT, 1),
        (*tensor(8, 8), *tensor(8, strides=[1], same=1), INT, 1),
        (*tensor(8, 8), *tensor(7, 8), INT, 1),
        (*tensor(8, 8), *tensor(8, 8), INT, 1, 5),
        (*tensor(8, 8), *tensor(8, 8)),
        (*tensor(8, 8, dtype=99), *tensor(8, 8), INT, 1),
        (),
    ],
    ids=["not aligned", "two views", "shapes", "too many words", "too few words", "dtype", "nothing"],
)
def test_what_cannot_be_launched_is_refused(planner, words):
    assert planner.ask("add.Tensor", *words) is None


@pytest.mark.parametrize("settings", [(1, F32), (0, DOUBLE)], ids=["deterministic", "default dtype"])
def test_other_settings_of_torch_are_refused(planner, settings):
    assert planner.ask("add.Tensor", *tensor(8, 8), *tensor(8, 8), INT, 1, settings=settings) is None


@pytest.mark.parametrize("device", [0, 0xFF, 1, 0xFFFF, "cpu"])
def test_a_result_is_on_the_device_of_the_first_tensor(planner, device):
    """`x.cpu()` and `x.to("cuda:1")` are copies too."""
    word = 0xFF if device == "cpu" else 1 << 8 | device & 0xFF
    found = planner.ask("_to_copy", *tensor(4, 64), 1, F32, 0, 1, word, 0, 0, 0)
    assert (found is not None) is (device in (0, 0xFF, 0xFFFF))


def test_a_device_with_another_chip_is_refused(planner):
    assert planner.ask("add.Tensor", *tensor(8, 8, index=1), *tensor(8, 8, index=1), INT, 1) is None


def test_a_refused_call_keeps_no_kernel_from_others(planner):
    """A kernel that was compiled for it is sent with the next call that launches it."""
    assert planner.ask("cat", 2, *tensor(4, 11), *tensor(4, 11, strides=[1, 4]), 1, 5) is None
    for _ in range(2):
        _, _, launches = planner.ask("cat", 2, *tensor(4, 11), *tensor(4, 11, strides=[1, 4]), 1)
        assert all(kernel in planner.kernels for kernel, *_ in launches)


def test_it_goes_on_after_a_refusal(planner):
    assert planner.ask("add.Tensor") is None
    assert planner.ask("add.Tensor", *tensor(8, 8), *tensor(8, 8), INT, 1) is not None
