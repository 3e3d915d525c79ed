"""`opmux warm`: compiles the kernels that a model or a script needs before it runs, on all cores, without a device.

The workload runs on meta tensors, by the implementations that the chip would run. Each launch of a kernel that is not
in Triton's cache is listed and skipped (kernels/lib/compile_ahead.py); the list is compiled in several processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.text import Text

from ..core.default import get_default_manager
from ..core.errors import OpmuxError, nearest, quoted
from ..core.log import logger
from ..runtime import devices
from ..runtime.devices import Chip
from . import arguments, screen
from .arguments import BadArgument

PASSES = 8  # a kernel that is refused once it is compiled has another one in its place; seen: 2 passes
LARGEST = 2**40  # elements of the ids; nothing is allocated


class At(NamedTuple):
    """What kernels are compiled for."""

    chip: Chip
    shared: int  # bytes of shared memory that a program may have
    cores: int
    here: bool  # whether this machine has it

    @property
    def arch(self) -> str:
        assert self.chip.arch is not None
        return self.chip.arch


@dataclass
class Result:
    """What was done."""

    cached: int = 0  # kernels that were in Triton's cache before
    compiled: int = 0  # by this process
    shared: int = 0  # by another process meanwhile
    failed: dict[str, str] = field(default_factory=dict)  # kernel -> reason
    stopped: str = ""  # why the workload did not run to its end, and where

    def record(self, name: str, outcome: str) -> None:
        """Count a kernel that was missing."""
        if outcome == "compiled":
            self.compiled += 1
        elif outcome == "there":
            self.shared += 1
        else:
            self.failed[name] = outcome

    @property
    def kernels(self) -> int:
        return self.cached + self.compiled + self.shared + len(self.failed)


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    what: str
    args: list[str]
    batch: int
    length: int
    dtype: str | None
    chip: str | None
    jobs: int | None
    train: bool
    seconds: float


def run(asked: Asked) -> int:
    """Compile, show a progress bar and a summary; the exit code."""
    start = time.perf_counter()
    at = target(asked.chip)
    workload = _workload(asked)
    check_triton()
    jobs = asked.jobs or cores()
    with _assumed(at), screen.progress("now") as bar:
        task = bar.add_task(f"{workload.name} on {at.arch}", total=None, now="finding its kernels")

        def show(done: int, total: int, now: str) -> None:
            bar.update(task, completed=done, total=total, now=now)

        result = compile_for(workload.step, at, jobs, show, passes=workload.passes)
    return _report(workload, at, result, time.perf_counter() - start, jobs)


def _report(workload: Workload, at: At, result: Result, seconds: float, jobs: int) -> int:
    out = screen.out()
    where = "" if at.here else f", which is not here: {at.cores} multiprocessors are assumed"
    out.print(Text(f"{workload.name} on {at.chip}{where}"))
    parts = [
        f"{result.compiled} compiled",
        f"{result.cached} in Triton's cache before",
        *([f"{result.shared} compiled by other processes"] if result.shared else []),
        *([f"{len(result.failed)} failed"] if result.failed else []),
    ]
    took = f"{seconds:.1f} s, {screen.count(jobs, 'job')}"
    out.print(Text(f"{screen.count(result.kernels, 'kernel')}: {', '.join(parts)}; {took}"))
    for name, reason in result.failed.items():
        out.print(Text(f"failed: {name}: {reason}"))
    if result.stopped:
        out.print(Text(f"{workload.name} was not run to its end: {result.stopped}"))
        out.print(Text("Kernels that it launches first after that are compiled when it runs."))
    if not result.kernels:
        out.print(Text("It launches no Triton kernel before that." if result.stopped else "It launches no kernel."))
    return int(bool(result.failed) or (bool(result.stopped) and not (workload.may_stop and result.kernels)))


def compile_for(
    step: Callable[[], None],
    at: At,
    jobs: int,
    show: Callable[[int, int, str], None] = lambda done, total, now: None,
    *,
    passes: int = PASSES,
    wanted: Callable[[], bool] = lambda: True,
) -> Result:
    """Compile what a step launches on a chip; inside `_assumed`.

    Args:
        step: called once in each pass, on meta tensors.
        at: the chip.
        jobs: the number of processes.
        show: called with the number of kernels that are done, that of all that are known, and what was compiled last.
        passes: how often the step may be called.
        wanted: asked every second while kernels are compiled; False stops that.
    """
    from ..kernels.lib import compile_ahead

    result = Result()
    failed: dict[str, str] = {}  # by key
    for number in range(passes):
        with compile_ahead.listing(failed) as found:
            result.stopped = _stopped(step)
        todo = list(found.missing.values())
        if number == 0:
            result.cached = len(found.cached)
            # A cache may have been filled without the chip, where what launches a kernel cannot be compiled.
            todo += list(found.cached.values()) if at.here else []
        known = result.kernels + len(found.missing)
        show(result.kernels, known, "")
        if not todo:
            break
        with contextlib.closing(compile_ahead.compile_all(todo, jobs, launchers=at.here, wanted=wanted)) as outcomes:
            for kernel, outcome in outcomes:
                if kernel.key in found.missing:
                    result.record(kernel.name, outcome)
                    show(result.kernels, known, kernel.name)
                if outcome not in (compile_ahead.COMPILED, compile_ahead.THERE):
                    failed[kernel.key] = outcome
        if not found.missing or not wanted():
            break
    return result


def _stopped(step: Callable[[], None]) -> str:
    """Run a step: "" if it came to its end, else why not and where."""
    try:
        step()
    except Exception as error:
        logger.debug("the workload stops", exc_info=True)
        return f"{_where(error)}: {type(error).__name__}: {_first_line(error)}"
    return ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def _where(error: BaseException) -> str:
    """The last line of the program, or of the model, that led to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    of_torch, of_ours = Path(torch.__file__).parent, Path(__file__).parents[1]
    below = ("<", *(f"{folder}{os.sep}" for folder in (of_torch, of_torch.with_name("triton"), of_ours)))
    found = [f for f in frames if not f.filename.startswith(below)] or frames
    return f"{found[-1].filename}:{found[-1].lineno}"


# ---- the chip -------------------------------------------------------------------------------------------------------


def target(chip: str | None, index: int = 0) -> At:
    """The chip of that name, or this machine's.

    If this machine has it, with its true shared memory and multiprocessors.
    """
    from ..kernels.lib.compile_only import CHIPS, CORES, target_of

    here = _in_another_process(index)
    if chip is None and here is None:
        raise BadArgument(f"this machine has no GPU: name a chip with --chip. Allowed: {_allowed()}")
    if here is not None and chip in (None, here.arch):
        return here
    assert chip is not None
    try:
        target_of(chip)
    except ValueError:
        close = nearest(chip, CHIPS)
        hint = f": did you mean {close}?" if close else "."
        raise BadArgument(f"--chip {chip!r} is not known{hint} Allowed: {_allowed()}") from None
    like = chip if chip in CHIPS else "sm_80"
    return At(Chip.of_arch(chip), CHIPS[like][1], CORES[like], False)


def _allowed() -> str:
    from ..kernels.lib.compile_only import CHIPS

    return f"{', '.join(CHIPS)}, or sm_ and the number of another chip of NVIDIA's"


def _in_another_process(index: int) -> At | None:
    """This machine's GPU. Looked at by a child, as a process that has used CUDA should not fork."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            with contextlib.suppress(Exception), os.fdopen(send, "w") as out:
                json.dump(_here(index), out)
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive) as told:
        text = told.read()
    os.waitpid(child, 0)
    found = json.loads(text or "null")
    return None if found is None else At(Chip(*found["chip"]), found["shared"], found["cores"], True)


def _here(index: int) -> dict[str, Any] | None:
    if devices.infer_device() != "cuda":
        return None
    torch.cuda.set_device(index)
    chip, properties = devices.chip_of("cuda"), torch.cuda.get_device_properties(index)
    shared = getattr(properties, "shared_memory_per_block_optin", 0)
    return {"chip": list(vars(chip).values()), "shared": shared, "cores": properties.multi_processor_count}


@contextlib.contextmanager
def _assumed(at: At) -> Iterator[At]:
    """Plan and compile for a chip."""
    from ..kernels.lib import compile_only, config

    try:
        compile_only.target_of(at.arch)
    except ValueError:
        raise BadArgument(f"kernels cannot be compiled ahead for {at.chip}. Allowed: {_allowed()}") from None
    assert at.chip.vendor is not None
    with (
        devices.assume(at.chip.vendor, at.arch),
        config.as_on(at.chip),
        compile_only.compiling_for(at.arch, at.shared, at.cores),
    ):
        get_default_manager().prepare()
        yield at


def check_triton() -> None:
    """Raise where kernels cannot be compiled, or not for later processes."""
    import importlib.util

    if importlib.util.find_spec("triton") is None:
        raise BadArgument("there is nothing to compile without Triton: pip install triton")
    from triton import knobs

    if knobs.runtime.interpret:
        raise BadArgument("TRITON_INTERPRET is set: kernels are interpreted, not compiled. Unset it")
    if knobs.compilation.always_compile:
        raise BadArgument("TRITON_ALWAYS_COMPILE is set: Triton never uses its cache. Unset it")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- what is run ----------------------------------------------------------------------------------------------------


class Workload(NamedTuple):
    """What is run to find its kernels."""

    name: str
    step: Callable[[], None]
    passes: int = PASSES
    may_stop: bool = False  # whether it is expected not to run to its end


def _workload(asked: Asked) -> Workload:
    for name in ("batch", "length", "jobs"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise BadArgument(f"--{name} {value} is not allowed. Allowed: 1 and more")
    if asked.batch * asked.length > LARGEST:
        raise BadArgument(f"--batch times --length is too large. Allowed: up to {LARGEST} tokens")
    if asked.what.endswith(".py"):
        from . import warm_script

        return warm_script.workload(asked.what, asked.args, asked.seconds)
    if asked.args:
        raise BadArgument(f"{quoted(asked.args[0])} after a model is not expected: only a script takes arguments")
    dtype = None if asked.dtype is None else arguments.dtype(asked.dtype, ("bfloat16", "float16", "float32"))
    config = config_of(asked.what)
    name = asked.what if re.fullmatch(r"[\w.-]+", asked.what) else Path(asked.what).name
    return Workload(name, model_step(config, asked.batch, asked.length, dtype, asked.train))


def config_of(what: str) -> Any:
    """The config of a model type, with its default sizes, or of a config.json or its folder."""
    transformers = _transformers()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path = Path(what)
    try:
        there = path.exists()
    except (OSError, ValueError):  # a name that no file can have
        there = False
    if what in CONFIG_MAPPING and not there:
        return CONFIG_MAPPING[what]()
    if not there:
        close = nearest(what, list(CONFIG_MAPPING.keys()))
        hint = f": did you mean '{close}'?" if close else "."
        raise BadArgument(
            f"{quoted(what)} is not a model type of transformers {transformers.__version__}, and there is no such file"
            f"{hint} Allowed: a model type (llama, qwen3), a config.json or its folder, or a script (train.py)"
        )
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        raise BadArgument(
            f"{quoted(what)} has no config.json. Allowed: the folder of a model, as transformers saves it"
        )
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
        kind = given.pop("model_type")
    except (ValueError, KeyError, AttributeError, RecursionError, TypeError):
        raise BadArgument(
            f"{quoted(str(file))} is not the config of a model: it must be JSON with a model_type, as transformers "
            "writes it"
        ) from None
    if kind not in CONFIG_MAPPING:
        raise BadArgument(
            f"{quoted(str(file))}: transformers {transformers.__version__} has no model_type {quoted(str(kind))}"
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(given)
    except Exception as error:  # transformers' checks of values
        raise BadArgument(f"{quoted(str(file))}: {_first_line(error)}") from None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise BadArgument(
            "a model needs transformers: pip install transformers. A script (train.py) does not"
        ) from None
    return transformers


def model_step(config: Any, batch: int, length: int, dtype: torch.dtype | None, train: bool) -> Callable[[], None]:
    """A step of a patched model without weights: loss and gradients, or without `train` the logits and one token."""
    from ..faces.models.patch import CannotPatch, patch_model

    model = _model(config, dtype)
    try:
        patch_model(model.train(train))
    except CannotPatch as error:
        raise BadArgument(str(error)) from None
    ids = torch.zeros(batch, length, dtype=torch.int64, device="meta")
    return lambda: step_of(model, {"input_ids": ids, **({"labels": ids} if train else {})}, train)


def _model(config: Any, dtype: torch.dtype | None) -> Any:
    transformers = _transformers()
    named = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
    if dtype is None:
        name = "dtype" if hasattr(config, "dtype") else "torch_dtype"  # the older one
        dtype = getattr(config, name, None) or torch.bfloat16
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    kind = transformers.AutoModelForCausalLM if named is None else named
    try:
        with torch.device("meta"):
            return kind._from_config(config, dtype=dtype) if kind is named else kind.from_config(config, dtype=dtype)
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise BadArgument(f"the model cannot be made: {_first_line(error)}") from None
        raise BadArgument(
            f"transformers has no causal language model of type '{config.model_type}'. Allowed: those, a config.json "
            "that names its class in `architectures`, or a script"
        ) from None


def step_of(model: Any, batch: dict[str, Any], train: bool) -> None:
    """What a program does with a batch: forward and backward; without `train` the forward, and one more token."""
    if train:
        first = model(**batch)[0]  # the loss; without labels what the program computes one from
        first.backward(torch.zeros_like(first))
        model.zero_grad(set_to_none=True)
        return
    with torch.no_grad():
        outputs = model(**batch)
        cache = getattr(outputs, "past_key_values", None)
        if cache is not None and set(batch) == {"input_ids"}:
            model(input_ids=batch["input_ids"][:, :1], past_key_values=cache)


# ---- beside a program: patch_model(example=) ------------------------------------------------------------------------


def serve(file: str) -> None:
    """Compile for the request that faces/models/ahead.py has written to a file, while the program that did so runs."""
    path = Path(file)
    data = path.read_bytes()
    path.unlink()
    request = pickle.loads(data)
    check_triton()
    program = request["program"]
    os.nice(5)
    torch.set_num_threads(1)
    if request["attention"]:
        from ..faces.models.register import register_attention

        register_attention()
    model, example, train = pickle.loads(request["model"])
    from ..faces.models.patch import patch_model

    with _assumed(target(None, request["index"])) as at:
        patch_model(model, **request["options"])
        done = compile_for(
            lambda: step_of(model, example, train), at, request["jobs"], wanted=lambda: os.getppid() == program
        )
    if done.stopped or done.failed:
        raise OpmuxError(done.stopped or str(done.failed))
