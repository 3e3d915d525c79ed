"""The planner process of auto mode: plans and compiles calls for the program that starts it (faces/aten/planner.py).

A request is the key of a call, as 64-bit words (`CallKey` in native/launches.h): the dtype, sizes and strides of each
tensor and the value of every other argument. The planner runs the implementation for the chip on meta tensors, with
Triton's compiler and without a device. The answer lists the launches and the tensor of each pointer. If C++ cannot
launch the call, the answer says so. If an earlier key differs from this one in only one size, a size class follows,
from which C++ computes the launches of other sizes without a request (size_classes.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import mmap
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import launches
from ..core.default import get_default_manager
from ..core.errors import OpmuxError
from ..core.log import logger
from ..core.spec import specs
from ..cpp import launching, prepare_triton
from ..faces.aten import engine, overloads
from ..faces.aten.schema import python_name
from ..machine import devices
from ..machine.devices import Chip
from . import size_classes
from .size_classes import Formula, SizeClass

DEVICE = "cuda"
CUDA = 1  # c10::DeviceType
KERNEL, RECORD, REFUSAL, FAILURE, CLASS, DONE = range(1, 7)  # Message in planner.h
ARGUMENT, RESULT, SPACE, NUMBER = range(4)  # LaunchRecord::Kind in launches.h
MOST = 1 << 17  # maximum length of a message in bytes
PREFIX = "opmux-planner-"  # prefix of the folders of compiled kernels
NEW = 60.0  # seconds; leave a younger folder alone, because it may not be locked yet
RESTARTS = 16  # at most this many killed workers are replaced; then the planner ends
PR_SET_PDEATHSIG = 1  # a prctl option: kill a worker when its parent process ends
# c10::ScalarType, whose numbers are part of torch's file format
DTYPES: dict[int, torch.dtype] = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    8: torch.complex32,
    9: torch.complex64,
    10: torch.complex128,
    11: torch.bool,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
KEPT = 8  # a new key is compared with this many latest keys of its pattern
REFUSALS = 3  # after this many refusals of a pattern in a row, C++ sends a new key only at its second call
ATTEMPTS = 4  # attempts to record a call; the first ones may make its plan, which calls torch's ops
FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)


class NotLaunchable(Exception):
    """C++ cannot launch this call."""


def main() -> None:
    """Run the planner until the process that started it closes the socket or ends."""
    facts = json.loads(sys.argv[1])
    os.nice(5)
    with _folder() as folder:
        status = serve(socket.socket(fileno=facts["socket"]), facts, folder)
    sys.exit(status)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A new folder for compiled kernels, locked during the block. Folders of killed planners are removed first."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # removed meanwhile, in use, or another user's
            if time.time() - path.lstat().st_mtime > NEW and not path.is_symlink():
                with _locked(path):
                    shutil.rmtree(path, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder until this process and its workers end. Raises OSError if another process holds the lock."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def serve(ours: socket.socket, facts: dict[str, Any], folder: Path) -> int:
    """Answer the requests that arrive on a socket; returns an exit status.

    `facts` come from `_facts` in faces/aten/planner.py.
    """
    from ..kernels.lib import compile_only, config

    prepare_triton.hash_files()  # before the workers are forked
    chip = Chip(*facts["chip"])
    assert chip.vendor is not None and chip.arch is not None
    with (
        devices.assume(chip.vendor, chip.arch),
        config.as_on(chip),
        compile_only.compiling_for(chip.arch, facts["shared"], facts["cores"]) as built,
    ):
        get_default_manager().prepare()
        worker = Worker(facts["overloads"], frozenset(facts["devices"]), folder)

        def work(number: int, busy: mmap.mmap) -> None:
            worker.number = number
            with contextlib.suppress(ConnectionError):  # the program has ended
                while message := ours.recv(MOST):
                    busy[number] = 1
                    for answer in worker.answer(message):
                        ours.send(answer)
                    busy[number] = 0
                    ours.send(_packed(DONE))
                    built.clear()

        return _supervise(facts["workers"], ours, work)


def _supervise(count: int, ours: socket.socket, work: Callable[[int, mmap.mmap], None]) -> int:
    """Fork workers that read the same socket, and wait for their end; returns an exit status.

    A worker that is killed (when memory is short) is replaced, and its current request counts as answered. Forking is
    safe, because this process has no threads.
    """
    busy = mmap.mmap(-1, count + RESTARTS)  # worker number -> whether the worker is answering
    numbers = iter(range(count + RESTARTS))  # never reused, as file names contain it
    workers: dict[int, int] = {}  # process id -> number

    def start(number: int) -> None:
        parent, child = os.getpid(), os.fork()
        if child:
            workers[child] = number
            return
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                work(number, busy)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    for number in itertools.islice(numbers, count):
        start(number)
    status = 0
    while workers:
        ended, status = os.wait()
        number = workers.pop(ended)
        if status == 0:  # the program has ended
            continue
        if busy[number]:
            with contextlib.suppress(OSError):
                ours.send(_packed(DONE))
        if (following := next(numbers, None)) is not None:
            start(following)
    return int(status != 0)


class Param(NamedTuple):
    """A parameter of a kernel."""

    kind: int
    index: int
    value: int  # the byte offset in the tensor, or the bytes of the number


@dataclass
class _PlannedCall:
    """The launches of a call."""

    words: list[int]  # the words of the answer after the key
    free: set[int]  # positions of those words that may depend on the call's sizes
    kernels: list[bytes]  # messages of kernels that C++ does not know yet

    def add_sizes(self, *words: int) -> None:
        self.free.update(range(len(self.words), len(self.words) + len(words)))
        self.words.extend(words)


class _Pattern:
    """Calls of one overload whose keys differ only in sizes and strides."""

    def __init__(self) -> None:
        self.keys: list[list[int]] = []  # the latest KEPT keys
        self.classes: list[tuple[int, SizeClass, list[int]]] = []
        self.refused = 0  # refusals in a row

    def related(self, words: list[int], sizes: list[int]) -> tuple[int, dict[int, Formula]] | None:
        """The position of the only size in which this key differs from a stored key, and formulas of that size.

        There is a formula for each word that differs. Of several stored keys, the one with the simplest formulas is
        used. None if there is no such key.
        """
        related = []
        for other in self.keys:
            with contextlib.suppress(ValueError):
                position, formulas = size_classes.key_formulas(words, other, sizes)
                related.append((sum(f.plus != 0 for f in formulas.values()), len(formulas), position, formulas))
        return min(related, key=lambda candidate: candidate[:2])[2:] if related else None


def _covers(entry: tuple[int, SizeClass, list[int]], words: list[int]) -> bool:
    position, size_class, stream = entry
    v = words[position]
    if v not in size_class.sizes():
        return False
    expected = stream[1 : 1 + len(words)]
    for at, formula in size_class.formulas.items():
        if at <= len(words):
            expected[at - 1] = formula.at(v)
    expected[position] = v
    return expected == words


class Worker:
    """Answers requests for calls of these overloads on these devices, all of one chip."""

    def __init__(self, names: dict[str, str], devices: frozenset[int], folder: Path):
        self.number = 0  # the worker's index
        self._devices, self._folder = devices, folder
        self._kernels: dict[str, int] = {}  # hash of a kernel that was sent to C++ -> its number
        self._new: dict[str, int] = {}  # hash of a kernel that was not sent yet -> its number
        self._names = {int(slot): name for slot, name in names.items()}
        self._calls: dict[int, Callable[..., Any]] = {}
        engine.STATE.on = frozenset(self._names.values())
        self._requests = 0
        self._patterns: dict[tuple[int, int, int], _Pattern] = {}  # key: overload, pattern hash, number of words
        for family in {overloads.table()[name].family for name in self._names.values()} - {"vendor"}:
            specs.load_implementers(family)

    def answer(self, message: bytes) -> Iterator[bytes]:
        """The messages that answer a request, except DONE, which follows them."""
        slot, epoch, hashed, pattern, *masks, count = struct.unpack_from("<7Q", message)
        words = list(struct.unpack_from(f"<{count}Q", message, 7 * 8))
        known = self._patterns.setdefault((slot, pattern, count), _Pattern())
        planned = self._planned(slot, words)
        if isinstance(planned, int):
            yield _packed(planned, slot, epoch, hashed)
            known.refused += planned == REFUSAL
        else:
            yield from planned.kernels
            self._kernels |= self._new
            yield _packed(RECORD, slot, epoch, hashed, count, *words, *planned.words)
            sizes = [i for i in range(count) if masks[i // 64] >> i % 64 & 1]
            for position, size_class, stream in self._classes(known, slot, words, sizes, planned):
                lists = [(at, *formula) for at, formula in size_class.formulas.items()]
                numbers = (word for formula in lists for word in formula)
                head = 1 + position, size_class.low, size_class.high, size_class.sizes().step, len(lists)
                yield _packed(CLASS, slot, epoch, *head, *numbers, *stream)
        if known.refused >= REFUSALS:
            yield _packed(REFUSAL, slot, epoch, pattern)

    def _planned(self, slot: int, words: list[int]) -> _PlannedCall | int:
        """The launches of a call, or REFUSAL or FAILURE."""
        self._new = {}
        self._requests += 1
        if self._requests % 4096 == 0:  # plans are stored per shape, so they would accumulate
            from ..kernels.lib import plans

            plans.forget()
            self._patterns = {}  # a scalar that changes in every step makes a new pattern in every step
        try:
            return self._plan(slot, words)
        except Exception as error:
            if not isinstance(error, (NotLaunchable, OpmuxError)):
                logger.debug("%s cannot be planned: %s: %s", self._names.get(slot), type(error).__name__, error)
            manager = get_default_manager()
            if manager.failures():  # a failure on meta tensors says nothing about other calls
                manager.clear_quarantine()
            return FAILURE if isinstance(error, (OSError, MemoryError)) else REFUSAL

    def _classes(
        self, known: _Pattern, slot: int, words: list[int], sizes: list[int], planned: _PlannedCall
    ) -> list[tuple[int, SizeClass, list[int]]]:
        if known.refused >= REFUSALS:
            return []
        try:
            return list(self._class_of(known, slot, words, sizes, planned))
        except Exception as error:  # must not end the worker; the key itself was answered
            logger.debug("no size class of %s: %s: %s", self._names.get(slot), type(error).__name__, error)
            known.refused += 1
            return []

    def _class_of(
        self, known: _Pattern, slot: int, words: list[int], sizes: list[int], planned: _PlannedCall
    ) -> Iterator[tuple[int, SizeClass, list[int]]]:
        """Yield the size class of a call, if one is known or can be derived: (position of the size, class, answer).

        The position is an index into the key. The class's formulas use indices into the answer, whose word 0 is the
        length of the key.
        """
        for entry in known.classes:
            if _covers(entry, words):
                yield entry
                return
        related = known.related(words, sizes)
        known.keys = [*(k for k in known.keys if k != words), words][-KEPT:]
        within = None if related is None else size_classes.class_of(words[related[0]])
        if related is None or within is None:
            return
        position, key = related

        def plan(v: int) -> list[int] | None:
            other = list(words)
            for at, formula in key.items():
                other[at] = formula.at(v)
            call = self._planned(slot, other)
            return None if isinstance(call, int) else call.words

        size_class = size_classes.fit(within, words[position], planned.words, planned.free, plan)
        if size_class is None:
            known.refused += 1
            return
        known.refused = 0
        formulas = {1 + at: formula for at, formula in key.items() if at != position}
        formulas |= {1 + len(words) + at: formula for at, formula in size_class.formulas.items()}
        entry = position, size_class._replace(formulas=formulas), [len(words), *words, *planned.words]
        known.classes = [*known.classes, entry][-KEPT * KEPT :]
        yield entry

    def _plan(self, slot: int, words: list[int]) -> _PlannedCall:
        overload = overloads.table()[self._names[slot]]
        call = self._calls.get(slot)
        if call is None:
            call = self._calls[slot] = _entry(overload)
        args, kwargs, tensors = arguments(overload, words, self._devices)
        for _ in range(ATTEMPTS):
            recorder = launching.LaunchRecorder()
            with recorder:
                returned = call(*args, **kwargs)
            if recorder.pure:
                break
        record = recorder.record
        if not recorder.pure or not record.launches:
            raise NotLaunchable("it does more than launch kernels")
        results = returned if isinstance(returned, tuple) else (returned,)
        return self._described(tensors, results, record, overload.shape.kind == "inplace")

    def _described(
        self, tensors: list[Tensor], results: tuple[Tensor, ...], record: launches.Record, in_place: bool
    ) -> _PlannedCall:
        owners: dict[int, tuple[int, int]] = {}  # storage -> kind, index
        for i, t in enumerate(tensors):
            owners.setdefault(_storage(t), (ARGUMENT, i))
        if in_place:
            if results[0] is not tensors[0]:
                raise NotLaunchable("it returns another tensor than its first")
            results = ()
        for i, y in enumerate(results):
            if _storage(y) in owners or y.storage_offset() or not y.numel() or not _fills_its_storage(y):
                raise NotLaunchable("a result is a view")
            owners[_storage(y)] = (RESULT, i)
        spaces = [t for t in record.made if t.numel() and _storage(t) not in owners]
        for i, t in enumerate(spaces):
            owners.setdefault(_storage(t), (SPACE, i))
        if max(len(results), len(spaces), len(tensors)) > launching.MOST_TENSORS:
            raise NotLaunchable("it has too many tensors")
        call = _PlannedCall([len(results)], set(), [])
        for y in results:
            call.words += [NUMBERS[y.dtype], y.dim()]
            call.add_sizes(*y.shape, *y.stride())
        call.words.append(len(spaces))
        call.add_sizes(*(t.untyped_storage().nbytes() for t in spaces))
        call.words.append(len(record.launches))
        written = set()
        for launch in record.launches:
            number, message = self._kernel(launch.compiled)
            call.kernels += message
            params = [(kind, _param(kind, value, owners)) for kind, value in launching.parameters(launch)]
            written |= {p.index for _, p in params if p.kind == RESULT}
            call.words.append(number)
            call.add_sizes(*(*launch.grid, 1, 1)[:3])
            call.words += [32 * launch.compiled.metadata.num_warps, len(params)]
            for kind, param in params:
                call.words += param[:2]
                call.add_sizes(param.value) if kind[0] in "*iu" else call.words.append(param.value)
        if len(written) < len(results):
            raise NotLaunchable("no kernel writes a result")
        return call

    def _kernel(self, compiled: Any) -> tuple[int, list[bytes]]:
        metadata = compiled.metadata
        if metadata.num_ctas != 1 or any(getattr(metadata, name, 0) for name in launching.EXTRAS):
            raise NotLaunchable("a kernel needs a cluster, a cooperative launch, PDL or scratch memory")
        number = self._kernels.get(compiled.hash, self._new.get(compiled.hash))
        if number is not None:
            return number, []
        number = self.number << 32 | len(self._kernels) + len(self._new)
        file = self._folder / f"{number}.cubin"
        file.write_bytes(compiled.asm["cubin"])
        self._new[compiled.hash] = number
        name, path = _text(metadata.name), _text(str(file))
        return number, [_packed(KERNEL, number, metadata.shared, *name, *path)]


def _entry(overload: overloads.Overload) -> Callable[..., Any]:
    """The override that the C++ gate calls for an overload. It raises NotLaunchable if torch's kernel would run."""

    def native(*args: Any, **kwargs: Any) -> Any:
        raise NotLaunchable("torch's own kernel runs it")

    overload.natives[DEVICE] = native
    entry = engine.entry_point(overload, DEVICE)
    entry.globals["_native"] = native
    return entry.fn


def _packed(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}Q", *(word & (1 << 64) - 1 for word in words))


def _text(text: str) -> list[int]:
    data = text.encode()
    padded = data + b"\0" * (-len(data) % 8)
    return [len(data), *struct.unpack(f"<{len(padded) // 8}Q", padded)]


def _storage(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _fills_its_storage(y: Tensor) -> bool:
    last = sum((n - 1) * stride for n, stride in zip(y.shape, y.stride(), strict=True))
    return y.untyped_storage().nbytes() == (last + 1) * y.itemsize


def _param(kind: str, value: Any, owners: dict[int, tuple[int, int]]) -> Param:
    if not kind.startswith("*"):
        return Param(NUMBER, 0, value)
    if value is None:
        return Param(NUMBER, 0, 0)
    owner = owners.get(_storage(value))
    if owner is None:
        raise NotLaunchable("a kernel gets a pointer to memory that is not an argument, a result or a workspace")
    return Param(*owner, value.storage_offset() * value.itemsize)


# ---- the arguments of a request -------------------------------------------------------------------------------------


def arguments(
    overload: overloads.Overload, words: list[int], devices: frozenset[int]
) -> tuple[list[Any], dict[str, Any], list[Tensor]]:
    """The positional and keyword arguments that a key describes, and the tensors among them in order."""
    reader = _KeyReader(words, devices)
    if reader.word() or DTYPES.get(reader.word()) is not torch.float32:
        raise NotLaunchable("deterministic algorithms, or another default dtype")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in overload.shape.arguments:
        value = reader.value(_type(argument.real_type), argument.N)
        if argument.kwarg_only:
            kwargs[python_name(argument.name)] = value
        else:
            args.append(value)
    if reader.left():
        raise NotLaunchable("the key has more words than the schema has arguments")
    return args, kwargs, reader.tensors


def _type(of: Any) -> str:
    """The name of a schema type. str() would print a SymInt as "int"."""
    if of.kind() == "OptionalType":
        return f"Optional[{_type(of.getElementType())}]"
    return "SymInt" if of.kind() == "SymIntType" else str(of)


class _KeyReader:
    """Reads values as `CallKey` in launches.h writes them."""

    def __init__(self, words: list[int], devices: frozenset[int]):
        self._words, self._devices = iter(words), devices
        self._home = -1  # the device of the first tensor
        self.tensors: list[Tensor] = []

    def word(self) -> int:
        word = next(self._words, None)
        if word is None:
            raise NotLaunchable("the key ends early")
        return word

    def left(self) -> bool:
        return next(self._words, None) is not None

    def signed(self) -> int:
        word = self.word()
        return word - (1 << 64) if word >> 63 else word

    def real(self) -> float:
        return struct.unpack("<d", struct.pack("<Q", self.word()))[0]

    def value(self, kind: str, count: int | None = None) -> Any:
        """Read a value. `kind` is its type as in a schema."""
        if kind in ("Optional[List[int]]", "Optional[List[SymInt]]"):
            n = self.word()
            return None if n == (1 << 64) - 1 else [self.signed() for _ in range(n)]
        if kind.startswith("Optional["):
            return self.value(kind[len("Optional[") : -1], count) if self.word() else None
        if kind == "List[bool]":
            return [bool(self.word()) for _ in range(count or 0)]
        if kind.startswith("List["):
            return [self.value("int" if "Int" in kind else kind[5:-1]) for _ in range(self.word())]
        read = self._KINDS.get(kind)
        if read is None:
            raise NotLaunchable(f"an argument of type {kind}")
        return read(self)

    def tensor(self) -> Any:
        head = self.word()
        tag, dtype = head & 0xFF, DTYPES.get(head >> 8 & 0xFF)
        if tag == 1:
            return None
        if dtype is None:
            raise NotLaunchable("a dtype that kernels do not take")
        if tag == 2:  # a Python number
            return self._number(dtype)
        dims, same, unaligned = head >> 16 & 0xFF, head >> 24 & 0xFF, head >> 40 & 0xF
        sizes, strides = [self.word() for _ in range(dims)], [self.word() for _ in range(dims)]
        if unaligned:
            raise NotLaunchable("a pointer that is no multiple of 16")
        index = head >> 32 & 0xFF
        if index not in self._devices:
            raise NotLaunchable("a device with another chip")
        self._home = index if self._home < 0 else self._home
        if not same:
            tensor = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        else:
            other = self.tensors[same - 1]
            alike = other.dtype is dtype and list(other.shape) == sizes and list(other.stride()) == strides
            if not alike:
                raise NotLaunchable("two tensors start at one address and differ in dtype, sizes or strides")
            tensor = other
        self.tensors.append(tensor)
        return tensor

    def number(self) -> Any:
        return self._number(DTYPES.get(self.word()))

    def _number(self, dtype: torch.dtype | None) -> Any:
        if dtype is torch.float64:
            return self.real()
        return bool(self.word()) if dtype is torch.bool else self.signed()

    def text(self) -> str:
        size = self.word()
        return struct.pack("<Q", self.word())[:size].decode()

    def device(self) -> torch.device:
        """Read a device. It must be the current device, which is the first tensor's: C++ allocates results there."""
        word = self.word()
        kind, index = word >> 8, word & 0xFF
        if kind != CUDA or index not in (self._home, 0xFF):
            raise NotLaunchable("a result on another device")
        return torch.device("meta")

    def layout(self) -> torch.layout:
        if self.word():
            raise NotLaunchable("a layout that is not strided")
        return torch.strided

    def symbol(self) -> int:
        self.word()  # skip the length, which is 1
        return self.signed()

    _KINDS = {
        "Tensor": tensor,
        "number": number,
        "Scalar": number,
        "int": signed,
        "SymInt": symbol,
        "float": real,
        "bool": lambda self: bool(self.word()),
        "str": text,
        "ScalarType": lambda self: DTYPES[self.word()],
        "MemoryFormat": lambda self: FORMATS[self.word()],
        "Layout": layout,
        "Device": device,
    }
