"""The planner gets the key of a call from C++, and answers what the call would launch on a chip that is not present."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")
from opmux.tools import planning

SRC = Path(__file__).parents[2] / "src"
PROGRAM = f"import sys; sys.path.insert(0, {str(SRC)!r}); from opmux.tools.planning import main; main()"
OVERLOADS = (
    "add.Tensor native_layer_norm _softmax add_.Tensor cat _to_copy select_backward clone gelu mul.Tensor "
    "native_layer_norm_backward mean.dim embedding where.self sum.dim_IntList"
).split()
KERNEL, RECORD, REFUSAL, FAILURE, CLASS, DONE = range(1, 7)
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
    def __init__(self, workers=1, folder=None):
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.settimeout(120)
        env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"CUDA_VISIBLE_DEVICES": ""}
        env |= {} if folder is None else {"TMPDIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
        facts = {
            "chip": ["nvidia", "sm_90", "NVIDIA H200", "580"], "cores": 132, "shared": 232448, "workers": workers,
            "devices": [0], "overloads": dict(enumerate(OVERLOADS)), "socket": theirs.fileno(),
        }  # fmt: skip
        command = [sys.executable, "-c", PROGRAM, json.dumps(facts)]
        self.process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()])
        theirs.close()
        self.kernels = {}

    def ask(self, name, *words, settings=(0, F32)):
        """Return the planned results, workspaces and launches; None if the planner refuses the call."""
        answer = self.answers(name, *settings, *words)[0]
        return None if answer is None else read(iter(answer))

    def workers(self):
        """The process ids of the running workers."""
        file = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {int(one) for one in file.read_text().split()}

    def answers(self, name, *words, sizes=()):
        """Return three things: the part of the answer after the key, or None; the classes; whether the pattern is
        refused.
        """
        return self.received(self.send(name, *words, sizes=sizes), words)

    def send(self, name, *words, sizes=()):
        """Send a request, and return its first words, by which `received` recognizes the answer."""
        pattern = hash((name, *(0 if i in sizes else word for i, word in enumerate(words)))) & (1 << 64) - 1
        masks = [sum(1 << i % 64 for i in sizes if i // 64 == half) for half in (0, 1)]
        head = OVERLOADS.index(name), 7, 99, pattern, *masks, len(words)
        self.ours.send(struct.pack(f"<{7 + len(words)}Q", *head, *words))
        return head

    def received(self, head, words):
        answer, classes, refused = None, [], False
        while True:
            message = self.ours.recv(1 << 17)
            kind, *rest = struct.unpack(f"<{len(message) // 8}Q", message)
            if kind == DONE:
                assert not rest
                return answer, classes, refused
            if kind == KERNEL:
                number, shared, *texts = rest
                name, path = unpack(iter(texts))
                assert Path(path).read_bytes()[:4] == b"\x7fELF"
                self.kernels[number] = name, shared
            elif kind == CLASS:
                assert tuple(rest[:2]) == head[:2]
                classes.append(rest[2:])
            elif kind == REFUSAL:
                assert tuple(rest) in (head[:3], (*head[:2], head[3]))
                refused = refused or rest[2] == head[3]
            else:
                assert kind == RECORD and tuple(rest[: 4 + len(words)]) == (*head[:3], len(words), *words)
                answer = rest[4 + len(words) :]


def unpack(words):
    values = []
    for size in words:
        data = b"".join(struct.pack("<Q", next(words)) for _ in range(-(-size // 8)))
        values.append(data[:size].decode())
    return values


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
    new_planner = Planner()
    yield new_planner
    new_planner.ours.close()
    assert new_planner.process.wait(30) == 0  # the planner ends when its program closes the connection


def test_a_pointwise_call_is_planned(planner):
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
    assert len(planner.kernels) <= len(known) + 1  # lengths that are multiples of 16 have their own kernel


def test_a_number_in_place_of_a_tensor_is_planned(planner):
    _, _, ((_, _, _, params),) = planner.ask("add.Tensor", *tensor(64, 64), 2 | DOUBLE << 8, real(2.5), INT, 1)
    assert (NUMBER, 0, real(2.5)) in params


def test_a_tensor_passed_twice_is_planned(planner):
    _, _, ((_, _, _, params),) = planner.ask("add.Tensor", *tensor(8, 8), *tensor(8, 8, same=1), INT, 1)
    assert params[:3] == [(ARGUMENT, 0, 0), (ARGUMENT, 0, 0), (RESULT, 0, 0)]


def test_an_in_place_call_is_planned(planner):
    results, _, ((_, _, _, params),) = planner.ask("add_.Tensor", *tensor(64, 64), *tensor(64, 64), INT, 1)
    assert not results and params[:3] == [(ARGUMENT, 0, 0), (ARGUMENT, 1, 0), (ARGUMENT, 0, 0)]


def test_several_results_and_optional_tensors_are_planned(planner):
    weights = [1, *tensor(768)]
    results, _, _ = planner.ask("native_layer_norm", *tensor(6, 768), 1, 768, *weights, *weights, real(1e-5))
    assert [(dtype, shape) for dtype, shape, _ in results] == [(BF16, [6, 768]), (F32, [6, 1]), (F32, [6, 1])]


def test_a_refused_call_does_not_affect_other_calls_of_its_shape(planner):
    """The refused call has no weights: its kernel reads a tensor of ones, which is no argument of the call."""
    weights = [1, *tensor(256)]
    assert planner.ask("native_layer_norm", *tensor(6, 256), 1, 256, 0, 0, real(1e-5)) is None
    assert planner.ask("native_layer_norm", *tensor(6, 256), 1, 256, *weights, *weights, real(1e-5)) is not None


def test_lists_dtypes_and_negative_numbers_are_planned(planner):
    (result,), _, _ = planner.ask("cat", 2, *tensor(4, 10, 64), *tensor(4, 20, 64), 1)
    assert result[1] == [4, 30, 64]
    (result,), _, _ = planner.ask("_softmax", *tensor(4, 100), (1 << 64) - 1, 0)
    assert result[:2] == (BF16, [4, 100])
    (result,), _, _ = planner.ask("_to_copy", *tensor(4, 64), 1, F32, 0, 0, 0, 0, 0)
    assert result[:2] == (F32, [4, 64])
    (result,), _, _ = planner.ask("select_backward", *tensor(4, 768), 3, 4, 10, 768, 1, 1, 5)
    assert result[1] == [4, 10, 768]


def test_a_transposed_operand_is_planned(planner):
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
def test_calls_that_cannot_be_launched_are_refused(planner, words):
    assert planner.ask("add.Tensor", *words) is None


@pytest.mark.parametrize("settings", [(1, F32), (0, DOUBLE)], ids=["deterministic", "default dtype"])
def test_calls_with_other_settings_of_torch_are_refused(planner, settings):
    assert planner.ask("add.Tensor", *tensor(8, 8), *tensor(8, 8), INT, 1, settings=settings) is None


@pytest.mark.parametrize("device", [0, 0xFF, 1, 0xFFFF, "cpu"])
def test_copies_to_another_device_are_refused(planner, device):
    """Results must be on the first tensor's device; `x.cpu()` and `x.to("cuda:1")` also call `_to_copy`."""
    word = 0xFF if device == "cpu" else 1 << 8 | device & 0xFF
    answer = planner.ask("_to_copy", *tensor(4, 64), 1, F32, 0, 1, word, 0, 0, 0)
    assert (answer is not None) is (device in (0, 0xFF, 0xFFFF))


def test_a_device_with_another_chip_is_refused(planner):
    assert planner.ask("add.Tensor", *tensor(8, 8, index=1), *tensor(8, 8, index=1), INT, 1) is None


def test_a_kernel_compiled_for_a_refused_call_can_be_used_by_others(planner):
    """The planner sends the kernel with the answer to the next call that launches it."""
    assert planner.ask("cat", 2, *tensor(4, 11), *tensor(4, 11, strides=[1, 4]), 1, 5) is None
    for _ in range(2):
        _, _, launches = planner.ask("cat", 2, *tensor(4, 11), *tensor(4, 11, strides=[1, 4]), 1)
        assert all(kernel in planner.kernels for kernel, *_ in launches)


def test_the_planner_continues_after_a_refusal(planner):
    assert planner.ask("add.Tensor") is None
    assert planner.ask("add.Tensor", *tensor(8, 8), *tensor(8, 8), INT, 1) is not None


# ---- killed workers -------------------------------------------------------------------------------------------------


def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def unread(ours):
    """The number of bytes that the other end has not read."""
    return struct.unpack("i", fcntl.ioctl(ours, termios.TIOCOUTQ, bytes(4)))[0]


@pytest.fixture
def killed(tmp_path):
    """A planner with two workers and its own folder; a test kills the planner."""
    new_planner = Planner(2, tmp_path)
    new_planner.ask("add_.Tensor", *tensor(8, 8), *tensor(8, 8), INT, 1)  # returns once the planner has started
    yield new_planner
    new_planner.ours.close()
    new_planner.process.kill()
    new_planner.process.wait(30)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_request_to_a_killed_worker_counts_as_answered(killed):
    """Otherwise the program would wait forever. A new worker replaces the killed one."""
    before = killed.workers()
    assert len(before) == 2
    words = [0, F32, *CALLS["native_layer_norm_backward"](304)]
    head = killed.send("native_layer_norm_backward", *words)
    until(lambda: not unread(killed.ours))
    time.sleep(0.05)  # by now a worker has the request, and compiles for a second
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    assert killed.received(head, words) == (None, [], False)
    until(lambda: len(killed.workers() - before) == 2)
    assert killed.answers("native_layer_norm_backward", *words)[0] is not None
    killed.ours.close()
    assert killed.process.wait(30) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_with_a_killed_planner_and_the_next_one_removes_its_files(killed, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (left,) = tmp_path.glob("opmux-planner-*")
    workers = killed.workers()
    killed.process.kill()
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in workers))
    assert killed.ours.recv(1) == b""  # the C++ side also sees the closed connection
    for path in (left, new := tmp_path / "opmux-planner-of-another-program"):
        path.mkdir(exist_ok=True)
        os.utime(path, (0, 0))
    with planning._locked(new), planning._folder() as folder:
        assert new.exists() and not left.exists() and folder.exists()
    assert not folder.exists()


# ---- size classes --------------------------------------------------------------------------------------------------

NONE, TANH = (1 << 64) - 1, int.from_bytes(b"tanh", "little")
W = [1, *tensor(768)]
# Calls of a model on 4 sequences of length n. The first size in the key is the one that varies within a class.
CALLS = {
    "add.Tensor": lambda n: [*tensor(4, n, 768), *tensor(4, n, 768), INT, 1],
    "add_.Tensor": lambda n: [*tensor(4, n, 768), *tensor(768), INT, 1],
    "mul.Tensor": lambda n: [*tensor(4, n, 768), *tensor(4, n, 1), ],
    "gelu": lambda n: [*tensor(4, n, 3072), 4, TANH],
    "native_layer_norm": lambda n: [*tensor(4, n, 768), 1, 768, *W, *W, real(1e-5)],
    "native_layer_norm_backward": lambda n: [
        *tensor(4, n, 768), *tensor(4, n, 768), 1, 768, *tensor(4, n, 1, dtype=F32), *tensor(4, n, 1, dtype=F32),
        *W, *W, 1, 1, 1,
    ],
    "_softmax": lambda n: [*tensor(4, 12, n, n), NONE, 0],
    "where.self": lambda n: [*tensor(1, 1, n, n, dtype=11), *tensor(4, 12, n, n), *tensor()],
    "clone": lambda n: [*tensor(4, 12, n, 64, strides=[768 * n, 64, 768, 1]), 1, 0],
    "cat": lambda n: [2, *tensor(4, 12, n, 32), *tensor(4, 12, n, 32), NONE],
    "mean.dim": lambda n: [*tensor(4, n, 768, dtype=F32), 1, NONE, 1, 0],
    "embedding": lambda n: [*tensor(1000, 768), *tensor(4, n, dtype=4), 1, NONE, 0, 0],
    "_to_copy": lambda n: [*tensor(4 * n, 768), 1, F32, 0, 0, 0, 0, 0],
}  # fmt: skip


def sizes_of(call):
    """The positions of the key's words that depend on the length."""
    pairs = zip(call(96), call(160), strict=True)
    return [2 + i for i, (a, b) in enumerate(pairs) if a != b]


def evaluated(size_class, words, n):
    """The answer that a size class gives for the words of a key, or None if it does not cover the key."""
    position, low, high, step, count, *rest = size_class
    formulas, answer = rest[: 6 * count], rest[6 * count :]
    v = words[position - 1]
    if not low <= v <= high or (v - low) % step:
        return None
    answer[position] = v
    for i in range(0, len(formulas), 6):
        where, power, factor, divisor, times, plus = formulas[i : i + 6]
        answer[where] = times * -(-factor * v**power // divisor) + plus
    assert answer[: len(words) + 1] == [len(words), *words]
    return answer[len(words) + 1 :]


@pytest.mark.parametrize(
    "n", [301, pytest.param(92, marks=pytest.mark.slow), pytest.param(848, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CALLS)
def test_a_class_gives_the_planners_answers(planner, name, n):
    key = lambda n: [0, F32, *CALLS[name](n)]
    step = 2 * (n & -n)
    planner.answers(name, *key(n - step), sizes=sizes_of(CALLS[name]))
    _, (size_class,), refused = planner.answers(name, *key(n), sizes=sizes_of(CALLS[name]))
    assert not refused
    chosen = random.Random(n)
    low = 1 << n.bit_length() - 1
    for v in chosen.sample(range(low + step // 2, 2 * low, step), 6):
        exact, *_ = planner.answers(name, *key(v))
        assert evaluated(size_class, key(v), v) == exact, v
    assert evaluated(size_class, key(n + step // 2), n + step // 2) is None
    assert evaluated(size_class, key(2 * n), 2 * n) is None


@pytest.mark.parametrize("width, v", [(8192, 2801), (6144, 573), (1024, 3721), (768, 1201)])
def test_sums_that_are_split_into_parts_get_the_planners_answers(planner, width, v):
    """The rows per part follow no simple formula, so a class must exclude the sizes for which its formulas are
    wrong.
    """
    key = lambda v: [0, F32, *tensor(v, width), 1, 0, 0, 0]
    planner.answers("sum.dim_IntList", *key(v - 2), sizes=[3, 5])
    _, classes, _ = planner.answers("sum.dim_IntList", *key(v), sizes=[3, 5])
    for size_class in classes:
        low, high, step = size_class[1:4]
        for size in {*range(low, high + 1, step * 7), high}:
            exact, *_ = planner.answers("sum.dim_IntList", *key(size))
            assert evaluated(size_class, key(size), size) == exact, size


def test_a_size_for_which_there_is_no_class_is_answered(planner):
    """An index counts as a size too. Two negative indices would give a class without an end."""
    words = lambda index: [0, F32, *tensor(4, 768), 3, 4, 1200, 768, 1, 1, index & (1 << 64) - 1]
    for index in (-3, -1, -5):
        answer, classes, _ = planner.answers("select_backward", *words(index), sizes=[len(words(0)) - 1])
        assert answer is not None and not classes


def test_a_class_is_sent_again_for_another_request_within_it(planner):
    """C++ keeps a limited number of classes per overload, and may have evicted this class."""
    key = lambda n: [0, F32, *tensor(3, n, 768), *tensor(3, n, 768), INT, 1]
    sizes = [3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15]
    answers = [planner.answers("add.Tensor", *key(n), sizes=sizes)[1] for n in (301, 303, 305)]
    assert [len(a) for a in answers] == [0, 1, 1] and answers[1][0][:5] == answers[2][0][:5]


def test_a_class_varies_the_size_that_differs_from_the_most_similar_call(planner):
    """The second call differs from the first only in the width, the third differs from the first only in the length."""
    key = lambda n, m: [0, F32, *tensor(n, m, dtype=F32), *tensor(n, m, dtype=F32)]
    request = lambda n, m: planner.answers("mul.Tensor", *key(n, m), sizes=[3, 4, 5, 6, 8, 9, 10, 11])[1]
    assert not request(301, 768)
    request(301, 3072)
    (size_class,) = request(303, 768)
    exact, *_ = planner.answers("mul.Tensor", *key(401, 768))
    assert evaluated(size_class, key(401, 768), 401) == exact


def test_a_pattern_whose_calls_are_all_refused_is_refused(planner):
    """The pattern is a layer norm without weights, which is left to torch."""
    request = lambda n: planner.answers(
        "native_layer_norm", 0, F32, *tensor(n, 256), 1, 256, 0, 0, real(1e-5), sizes=[3, 5, 8]
    )
    assert [request(n)[2] for n in (301, 303, 305)] == [False, False, True]
