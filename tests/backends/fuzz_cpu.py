"""Random arguments for the C++ kernels: shapes, strides, dtypes, values, and values of wrong types.

A kernel must compute what the reference computes, or decline the call. It must never write to an argument, read outside
one, or accept a call that the reference rejects. `python tests/backends/fuzz_cpu.py --seconds 300 --sanitize` runs a
library built with AddressSanitizer and UBSan; `--seed N --count 1` repeats one input.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opmux.backends._cpu import ops
from opmux.backends._cpu.ops import native
from opmux.core import specs
from opmux.core.errors import NotSupported

CPU = torch.device("cpu")
NAMES = sorted(ops.OPS)
KERNEL = {name: native.function(name, *ops.OPS[name], ops.ALL) for name in NAMES}
# -O0: compiling with the sanitizers takes three minutes at -O1, and less than one minute at -O0.
SANITIZE = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1")
FLAGS = native.flags

# Sizes near the vector width, near its multiples, and near the lengths of the blocks that kernels sum or convert.
SIZES = (0, 1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 130, 255, 1000, 1025, 2049, 4099)
MOST = 20_000  # maximum number of elements; MANY, used rarely, starts several threads
MANY = 150_000
SPECIAL = (0.0, -0.0, 1e-45, 1e-38, 1.0, -1.0, 88.0, -88.0, 89.0, 104.0, -104.0, 710.0, 1e4, -1e4, 6e4, 1e12,
           torch.inf, -torch.inf, torch.nan)  # fmt: skip
# only for kernels without sums: whether a sum overflows depends on its order
HUGE = (*SPECIAL, 1e18, -1e18, 3e38, -3e38)
TAME = (0.0, -0.0, 1.0, -1.0, 8.0, torch.nan)
COLUMNS, STATISTICS = ("weight", "bias"), ("rstd", "mean")
# Arguments that may hold any value. The others get no huge values: the kernels flush subnormal results to 0, and 0
# times infinity is NaN where the reference gives a finite value.
WILD = ("x", "a", "s", "residual")


class Draw:
    """The random arguments of one call."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.name = self.random.choice(NAMES)
        self.spec = specs.find(f"opmux::{self.name}")
        self.dtype = self.random.choice(ops.ALL)
        self.special = self.random.random() < 0.25
        self.shape = self.some_shape()

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def some_shape(self) -> tuple[int, ...]:
        most = MANY if self.chance(0.03) else MOST
        shape: list[int] = []
        for _ in range(self.random.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5))):
            size = self.random.choice(SIZES)
            count = max(size, 1)
            for n in shape:
                count *= max(n, 1)
            shape.append(size if count <= most else self.random.choice((1, 2, 3)))
        self.random.shuffle(shape)
        return tuple(shape)

    # ---- one tensor ----

    def numbers(self, shape: tuple[int, ...], dtype: torch.dtype, special: tuple[float, ...] = TAME) -> torch.Tensor:
        spread = self.random.choice((0.01, 1.0, 1.0, 5.0, 30.0))
        t = torch.randn(shape, generator=self.generator, dtype=torch.float64) * spread
        if self.special and t.numel():
            positions = torch.randint(t.numel(), (self.random.choice((1, 3, t.numel())),), generator=self.generator)
            which = torch.randint(len(special), (len(positions),), generator=self.generator)
            t.view(-1)[positions] = torch.tensor(special, dtype=torch.float64)[which]
        return t.to(dtype)

    def in_another_layout(self, t: torch.Tensor) -> torch.Tensor:
        """A tensor with the same values in another memory layout: offset, sliced, strided, transposed, or at the end of
        its storage.
        """
        layouts = ("plain", "plain", "offset", "sliced", "step", "turned", "outer", "middle")
        layout = self.random.choice(layouts)
        fill = torch.nan if t.is_floating_point() else 1
        if layout == "offset":
            shift = self.random.choice((1, 2, 3, 5, 8))
            storage = torch.full((t.numel() + shift,), fill, dtype=t.dtype)
            return storage[shift:].view(t.shape).copy_(t)
        if t.dim() == 0 or layout == "plain":
            return t
        if layout in ("sliced", "step"):
            last = t.shape[-1]
            wide = last + 3 if layout == "sliced" else 2 * last
            storage = torch.full((*t.shape[:-1], wide), fill, dtype=t.dtype)
            return (storage[..., 2 : 2 + last] if layout == "sliced" else storage[..., ::2]).copy_(t)
        if layout == "turned" and t.dim() > 1:
            return t.transpose(-1, -2).contiguous().transpose(-1, -2)
        if layout == "outer" and t.dim() > 1:
            return t.transpose(0, -2).contiguous().transpose(0, -2)
        if layout == "middle" and t.dim() > 1:
            storage = torch.full((t.shape[0] + 2, *t.shape[1:]), fill, dtype=t.dtype)
            return storage[1:-1].copy_(t)
        return t

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, special: tuple[float, ...] = TAME) -> torch.Tensor:
        if shape and self.chance(0.06):  # expand one row, or one element, to the whole shape
            low = tuple(1 if self.chance(0.5) else n for n in shape[:-1])
            mask_shape = (*low, shape[-1] if self.chance(0.8) else 1)
            return self.numbers(mask_shape, dtype, special).expand(shape)
        return self.in_another_layout(self.numbers(shape, dtype, special))

    # ---- arguments ----

    def args(self) -> list[Any]:
        args = [self.argument(name) for name in self.spec.names]
        if self.chance(0.2):
            index = self.random.randrange(len(args))
            args[index] = self.invalidated(args[index])
        return args

    def argument(self, name: str) -> Any:
        shape, wide = self.shape, torch.float64 if self.dtype == torch.float64 else torch.float32
        if name in COLUMNS:
            if name == "bias" and self.spec.signature.parameters[name].default is None and self.chance(0.3):
                return None
            kind = self.dtype if self.chance(0.7) else self.random.choice(ops.ALL)
            return self.tensor(shape[-1:], kind)
        if name in STATISTICS:
            return self.numbers(shape[:-1], wide).abs()
        if name == "mask":
            return self.mask()
        if name == "x" and "_glu" in self.name:
            return self.tensor((*shape[:-1], 2 * shape[-1]) if shape else shape, self.dtype, TAME)
        if name == "y":  # y must be the result of a softmax forward
            rows = torch.softmax(self.numbers(shape, torch.float64), -1) if shape else self.numbers(shape, self.dtype)
            return self.in_another_layout((rows.log() if "log" in self.name else rows).to(self.dtype))
        wild = HUGE if "norm" not in self.name else SPECIAL
        return {
            "eps": lambda: self.random.choice((1e-6, 1e-5, 0.0, 1.0)),
            "offset": lambda: self.random.choice((0.0, 0.0, 1.0, -0.5)),
            "dim": lambda: self.random.choice((-1, -1, -1, len(shape) - 1, 0, -2)),
            "scale": lambda: self.random.choice((1.0, 1.0, 0.125, 128**-0.5, -2.0, 3.0, 0.0)),
            "causal": lambda: self.chance(0.4),
        }.get(name, lambda: self.tensor(shape, self.dtype, wild if name in WILD else TAME))()

    def mask(self) -> torch.Tensor | None:
        if self.chance(0.4) or not self.shape:
            return None
        shape = tuple(1 if self.chance(0.4) else n for n in self.shape[:-1]) + self.shape[-1:]
        shape = shape[self.random.randrange(len(shape)) :]
        bits = torch.rand(shape, generator=self.generator) < self.random.choice((0.0, 0.3, 0.9, 1.0))
        kind = self.random.choice((torch.bool, torch.uint8))
        return self.in_another_layout(bits.to(kind) * (self.random.choice((1, 2, 255)) if kind == torch.uint8 else 1))

    def invalidated(self, value: Any) -> Any:
        """An invalid value for this argument."""
        if not isinstance(value, torch.Tensor):
            return self.random.choice((None, "x", 7, -3, torch.inf, torch.nan, [1.0], torch.ones(2)))
        changes: list[Callable[[], Any]] = [
            lambda: None,
            lambda: 1.5,
            lambda: [1.0],
            lambda: value.to("meta"),
            lambda: value.to_sparse() if value.dim() else None,
            lambda: value[None],
            lambda: value.flatten(),
            lambda: value.flatten()[:1].sum(),
            lambda: value[:0] if value.dim() else value[None][:0],
            lambda: value[..., :-1] if value.dim() else value,
            lambda: torch.cat((value, value), -1) if value.dim() else value,
            lambda: torch.zeros(self.some_shape(), dtype=value.dtype),
        ]
        kinds = (*ops.ALL, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn)
        changes += [lambda kind=kind: value.to(kind) for kind in kinds]
        return self.random.choice(changes)()


# ---- outcomes -------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    seed: int
    inputs: int = 0
    outcomes: collections.Counter = field(default_factory=collections.Counter)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {what}" for what, n in self.outcomes.most_common())
        head = f"{self.inputs} inputs from seed {self.seed}: {counts}"
        return "\n".join([*self.findings, f"{head}; {len(self.findings)} findings"])


def tensors(values: Any) -> list[torch.Tensor]:
    return [v for v in (values if isinstance(values, (tuple, list)) else (values,)) if isinstance(v, torch.Tensor)]


def memory(t: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor's whole storage."""
    whole = t.layout is torch.strided and t.device == CPU
    return torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).clone() if whole else torch.empty(0)


def attempt(call: Callable[..., Any], args: list[Any]) -> tuple[Any, Exception | None]:
    try:
        return call(*args), None
    except Exception as error:
        return None, error


def one(seed: int) -> tuple[str, str | None]:
    """Run the input of one seed; return the outcome, and the error as text or None."""
    draw = Draw(seed)
    args = draw.args()
    before = [memory(t) for t in tensors(args)]
    got, error = attempt(KERNEL[draw.name], args)
    if not all(torch.equal(memory(t), b) for t, b in zip(tensors(args), before)):
        return "wrong", "an argument was written"
    if isinstance(error, NotSupported):
        return "declined", None
    if error is not None:
        return "wrong", f"raised {type(error).__name__}: {error}"
    want, error = attempt(draw.spec.reference, args)
    if error is not None:
        return "wrong", f"computed what the reference refuses: {type(error).__name__}: {error}"
    return "computed", difference(draw, args, got, want)


def difference(draw: Draw, args: list[Any], got: Any, want: Any) -> str | None:
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    truth, _ = attempt(draw.spec.reference, wide)
    actual, expected = tensors(got), tensors(want)
    if len(actual) != len(expected):
        return f"{len(actual)} results, expected {len(expected)}"
    for i, (a, b) in enumerate(zip(actual, expected)):
        if (a.dtype, a.shape) != (b.dtype, b.shape) or not a.is_contiguous():
            return f"result {i} is {a.dtype} {tuple(a.shape)} {a.stride()}, expected {b.dtype} {tuple(b.shape)}"
        problem = too_far(draw, a, b, b.double() if truth is None else tensors(truth)[i], error_scale(draw, args))
        if problem:
            return f"result {i}: {problem}"
    return None


def error_scale(draw: Draw, args: list[Any]) -> float:
    """The factor of the erf approximation's absolute error: the product of the arguments' largest magnitudes."""
    if not draw.name.startswith("gelu") or draw.name.startswith("gelu_tanh"):
        return 0.0
    magnitude = 1.0
    for t in tensors(args):
        magnitude *= max(1.0, t.double().nan_to_num(0.0, 0.0, 0.0).abs().max().item() if t.numel() else 0.0)
    return magnitude


def too_far(draw: Draw, got: torch.Tensor, want: torch.Tensor, truth: torch.Tensor, error_scale: float) -> str | None:
    """Describe where `got` differs from `want`, or return None. The error against `truth` (the reference in float64)
    may be a few times the reference's own error plus the tolerance. Infinities and NaN must be where the reference has
    them.
    """
    inside = torch.float64 if draw.dtype == torch.float64 else torch.float32
    tol = draw.spec.tol[inside if want.dtype == torch.float64 else want.dtype]
    a, b = got.double(), want.double()
    truth = torch.where(b.isfinite() & truth.isfinite(), truth, b)
    slip = (b - truth).nan_to_num().abs().max().item() if b.numel() else 0.0
    allowed = 8 * slip + tol.atol + tol.rtol * truth.abs() + 3e-7 * error_scale
    same = (a == b) | (a.isnan() & b.isnan())
    bad = ~same & ~((a - truth).abs() <= allowed)
    if not bool(bad.any()):
        return None
    index = tuple(bad.nonzero()[0].tolist())
    return f"{int(bad.sum())} of {bad.numel()} differ, first at {index}: {a[index]:.9g}, expected {b[index]:.9g}"


def describe(seed: int) -> str:
    draw = Draw(seed)
    looks = ", ".join(native._look(a) for a in draw.args())
    return f"seed {seed}: {draw.name}({looks}){' special values' * draw.special}"


def seeds(first: int, count: int | None, seconds: float | None) -> Iterator[int]:
    until = time.monotonic() + (seconds if seconds is not None else float("inf"))
    seed = first
    while (count is None or seed < first + count) and time.monotonic() < until:
        yield seed
        seed += 1


def fuzz(first: int, count: int | None = None, seconds: float | None = None) -> Report:
    report = Report(first)
    for seed in seeds(first, count, seconds):
        torch.set_num_threads(1 + seed % 3)
        outcome, wrong = one(seed)
        report.inputs += 1
        report.outcomes[outcome] += 1
        if wrong is not None:
            report.findings.append(f"{describe(seed)}: {wrong}")
    return report


# ---- under the sanitizers -------------------------------------------------------------------------------------------


def runtime(name: str) -> str:
    """The path of a sanitizer's runtime library: it must be preloaded, before Python itself starts."""
    compiler = native.build.compiler().command
    return subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()


def watched_flags() -> tuple[str, ...]:
    return (*FLAGS(), *SANITIZE)


def sanitized(*words: str, timeout: float | None = None) -> subprocess.CompletedProcess:
    """Run this file in a subprocess with a library built with the sanitizers."""
    # build in this process, because in the subprocess the sanitizers would also instrument the compiler
    native.build.library("cpu_kernels", native.SOURCES, flags=watched_flags())
    env = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtime(n) for n in ("libasan.so", "libubsan.so")),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--watched", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--sanitize", action="store_true", help="build with AddressSanitizer and UBSan")
    # set in the subprocess that runs with the sanitizers
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sanitize:
        result = sanitized(*(word for word in sys.argv[1:] if word != "--sanitize"))
        print(result.stdout + result.stderr)
        sys.exit(result.returncode)
    if options.watched:
        native.flags = watched_flags
    report = fuzz(
        options.seed, 1000 if options.count is None and options.seconds is None else options.count, options.seconds
    )
    print(report)
    sys.exit(bool(report.findings))


if __name__ == "__main__":
    main()
