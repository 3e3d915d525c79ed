"""The command `opmux`. Heavy imports are made by the commands: `opmux --help` does not import torch."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__


class Commands(TyperGroup):
    """Commands that report opmux errors and I/O errors as one line on stderr, with exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # here, because at exit a full disk would not be reported
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of the pipe has exited; typer exits silently
                raise
            if error.filename is None:
                _drop_output()
            raise _exit(f"{error.filename or 'stdout'}: {error.strerror or error}") from None
        except Exception as error:
            # Look in sys.modules: importing the module would import torch. If it is not loaded, the error is not ours.
            errors = sys.modules.get("opmux.core.errors")
            if errors is None or not isinstance(error, errors.OpmuxError):
                raise
            raise _exit(str(error)) from None


def _exit(message: str) -> typer.Exit:
    """Print the reason, and return the exception that exits with code 2. Words over 300 characters are truncated."""
    typer.echo("opmux: " + re.sub(r"\S{300,}", lambda long: f"{long[0][:100]}... (cut)", message), err=True)
    return typer.Exit(2)


def _drop_output() -> None:
    """Redirect stdout to /dev/null, so that Python does not try the failed write again at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Operators for PyTorch: list them, see which implementation runs and why, benchmark and tune.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
RunJson = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the run to this file; - is stdout.")]
RunHtml = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a report with charts: one page that loads nothing.")
]
# Option names are explicit: if a metavar is the parameter's name in upper case, some versions of typer name the option
# after the metavar.
Dtype = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Dtype of the tensors: float32, bfloat16, ...")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE", help="Device to use: cpu, cuda, cuda:1, ...", show_default="this machine's"
    ),
]


def _op_names(incomplete: str) -> list[str]:
    """For shell completion: ops whose names begin with `incomplete`. Reads type stubs, as importing torch is slow."""
    from . import completion

    return completion.ops(incomplete)


def _op_and_family_names(incomplete: str) -> list[str]:
    from . import completion

    return [*completion.families(incomplete), *completion.ops(incomplete)]


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"opmux {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if ctx.invoked_subcommand == "run":
        return  # leave stdout and stderr to the program
    if sys.stdout is None:
        raise _exit("stdout is closed, and this command only prints")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # under LC_ALL=C, print `?` for non-ASCII characters


@app.command("list")
def list_ops(
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Families, ops, globs such as '*norm*', or a vendor.",
            autocompletion=_op_and_family_names,
        ),
    ] = None,
    family: Annotated[str | None, typer.Option(metavar="NAME", help="List only this family.")] = None,
    op: Annotated[
        str | None, typer.Option(metavar="GLOB", help="List only the ops whose name matches: '*norm*'.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the families of ops; with a NAME, its ops and their implementations in the order of choice.

    The NAME of a vendor lists this vendor's implementations.

    Examples: opmux list norm, opmux list '*_bwd', opmux list nvidia
    """
    from . import listing, screen

    screen.show_log()
    listing.run(named or [], family, op, json)


@app.command()
def explain(
    op: Annotated[
        str,
        typer.Argument(
            metavar="OP",
            help="An op of ours or of torch: rms_norm, tex::rmsnorm_fwd, add.Tensor, ...",
            autocompletion=_op_names,
        ),
    ],
    dtype: Dtype = "float32",
    shape: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES", help="Shape of the first tensor: 4096x4096.", show_default="that of a small sample"
        ),
    ] = None,
    device: Device = None,
    assume: Annotated[
        str | None,
        typer.Option(metavar="CHIP", help="Explain for a chip that is not present: nvidia:sm_90, ascend, ..."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show which implementation of an op would run, with which tiles, and why the others do not.

    The exit code is 1 if no implementation can run.

    Example: opmux explain rms_norm --dtype bfloat16 --shape 4096x4096
    """
    from . import explain, screen

    screen.show_log()
    raise typer.Exit(explain.run(op, dtype, shape, device, json, assume))


@app.command()
def tune(
    op: Annotated[
        str | None,
        typer.Argument(metavar="OP", help="The op to tune: rms_norm, softmax, ...", autocompletion=_op_names),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZES", help="Shape of the first tensor; may be repeated.", show_default="4096x8192"),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype", metavar="DTYPE", help="Dtype of the tensors; may be repeated.", show_default="bfloat16"
        ),
    ] = None,
    device: Device = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be tried, without running it.")] = False,
    chip: Annotated[
        str | None,
        typer.Option(metavar="CHIP", help="With --dry-run or --list: assume sm_80, sm_90, ..., or a vendor's chip."),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List every tunable, and the source of its values.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all stored tuning results, of every chip.")] = False,
    aten: Annotated[
        bool,
        typer.Option(
            "--aten",
            help="Time torch's own kernels and ours; opmux.enable() then uses the faster ones. OP: only this op.",
        ),
    ] = False,
    providers: Annotated[
        bool,
        typer.Option(
            "--providers",
            help="Time all implementations of matrix products and attention; the fastest then run. OP: only this op.",
        ),
    ] = False,
    minutes: Annotated[
        float, typer.Option(metavar="N", help="With --aten or --providers: stop after N minutes.")
    ] = 5.0,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --aten or --providers: write to this file, not to the cache."),
    ] = None,
) -> None:
    """Time a kernel with different tiles on this chip, and store the fastest for later runs.

    It takes one of: an OP, --list, --clear, --aten, --providers.

    Example: opmux tune rms_norm --shape 4096x4096
    """
    if importlib.util.find_spec("triton") is None:
        typer.echo("opmux: there is nothing to tune without Triton: pip install triton", err=True)
        raise typer.Exit(2)
    from . import arguments, screen, tune

    screen.show_log()
    if aten:
        from .speed import command

        raise typer.Exit(command.run(device, minutes, json, op.split(",") if op else ()))
    if providers:
        from .speed import providers as speed

        names = op.split(",") if op else ()
        raise typer.Exit(speed.run(names, shape or (), dtype or (), device, minutes, json))
    if op is None and dry_run and chip is not None and not listing and not clear:
        raise typer.Exit(tune.show_trials(chip))
    if (op is not None) + listing + clear != 1:
        raise arguments.BadOption(
            "tune takes one of: an OP, --list, --clear, --aten, --providers, or --dry-run with --chip"
        )
    if listing:
        raise typer.Exit(tune.show_list(chip))
    raise typer.Exit(tune.clear() if op is None else tune.run(op, shape or (), dtype or (), device, dry_run, chip))


@app.command()
def doctor(json: AsJson = False) -> None:
    """Show versions, devices, vendors, plugins and every setting with its source.

    The exit code is 1 if something is broken.
    """
    from . import doctor

    raise typer.Exit(doctor.run(json))


@app.command()
def report(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE.html", help="The page to write.", show_default="opmux-report.html")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Include a model: a model type of transformers (llama), a config.json or its folder.",
        ),
    ] = None,
    assume: Annotated[
        str | None,
        typer.Option("--assume", metavar="CHIP", help="Report what runs on a chip that is not present: nvidia:sm_90."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE even if it is no report.")] = False,
) -> None:
    """Write an HTML page about this machine: what runs and why, how fast, and what to do.

    The exit code is 1 if something is broken.

    Example: opmux report --model llama
    """
    from .report.command import ReportOptions, run

    raise typer.Exit(run(ReportOptions(file, model, assume, force)))


@app.command("build")
def build_cpp() -> None:
    """Compile opmux's C++ now, for the installed torch; otherwise the first use compiles it.

    The exit code is 2 if it cannot be compiled.
    """
    from . import cpp, screen

    screen.show_log()
    raise typer.Exit(cpp.run())


@app.command()
def demo(
    steps: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Train each model for this many steps, or until --seconds have passed."),
    ] = 200,
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="DTYPE", help="Dtype of the models.", show_default="bfloat16; on a CPU float32"
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=-(2**63), max=2**64 - 1, help="Seed of the initial weights and the batches.")
    ] = 0,
    seconds: Annotated[float, typer.Option("--seconds", metavar="N", help="Stop after this many seconds.")] = 60.0,
    html: RunHtml = None,
) -> None:
    """Train a small Llama in plain torch and through opmux, side by side, and compare.

    The exit code is 1 if their losses disagree.

    Example: opmux demo --seconds 20 --html demo.html
    """
    from . import demo_command, screen

    screen.show_log()
    raise typer.Exit(demo_command.run(steps, device, dtype, seed, seconds, html))


@app.command()
def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OP",
            help="Ops to measure: names, family:NAME, or globs: '*norm*'.",
            autocompletion=_op_names,
        ),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="SIZES", help="Shape of the first tensor; may be repeated.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="Dtype of the tensors: bfloat16, ...; may be repeated.",
            show_default="bfloat16; on a CPU float32",
        ),
    ] = None,
    providers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Providers to measure: ours,native,compile,reference,liger,flaggems, ids of impls.",
            show_default="on a CPU ours,native; else also compile,liger,flaggems",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="A set of cases: memory-bound, quick or host.")
    ] = None,
    device: Device = None,
    json: RunJson = None,
    html: RunHtml = None,
    mib: Annotated[
        int, typer.Option(metavar="N", min=1, help="Size of one tensor in MiB, if no shape is given.")
    ] = 256,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="torch.compile compiles once for any shape, not for each shape.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="Print what would be measured, and stop.")] = False,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show a run that --json wrote, without measuring.")
    ] = None,
) -> None:
    """Check, then time, every way to compute an op: ours, torch, torch.compile.

    The exit code is 1 if a result of ours is wrong.

    Example: opmux bench rms_norm softmax --dtype bfloat16
    """
    from .bench.command import BenchOptions, run

    options = BenchOptions(
        ops or [], shape or [], dtype or [], providers, preset, device, json, html, mib, dynamic, listing, source
    )
    raise typer.Exit(run(options))


@app.command("new-backend")
def new_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the vendor: small letters, digits and _.")],
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="Device type of the chip: npu, mlu, ...")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder to write opmux-NAME to.", show_default="here")
    ] = None,
    in_tree: Annotated[
        bool, typer.Option("--in-tree", help="Write the folder into a checkout of opmux, which --out names.")
    ] = False,
) -> None:
    """Generate a package for a vendor's chip. It can be installed, and passes `opmux conform` as it is.

    Example: opmux new-backend acme --device npu
    """
    from . import scaffold

    raise typer.Exit(scaffold.run(name, device, out, in_tree))


@app.command()
def conform(
    vendor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Vendor to check: nvidia, ascend, ...", show_default="this machine's"),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Check only this op, family:NAME, or glob; may be repeated.", show_default="all"
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="Check only this dtype: bfloat16, ...; may be repeated.",
            show_default="all",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Where to check: the vendor's device, or cpu, on which Triton's interpreter runs its kernels.",
            show_default="the vendor's device, simulated if it is not present",
        ),
    ] = None,
    json: RunJson = None,
    html: RunHtml = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="Check all samples of all ops, or a few.")] = False,
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Run this check: values, gradient, ...; may be repeated.", show_default="all"
        ),
    ] = None,
    sample: Annotated[
        str | None, typer.Option(metavar="ID", help="Check only the samples with this id, or glob.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Print what would be checked, and stop.")] = False,
    real: Annotated[
        bool,
        typer.Option("--real", help="Check our kernels at the shapes of real models, against float64, on --device."),
    ] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="With --real: take the shapes of this model, or glob; may be repeated.",
            show_default="all",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="N", min=1, help="With --real: stop after this time.", show_default="420, on a CPU 60"),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="With --real: number of processes.", show_default="up to 8, on a CPU 1"),
    ] = None,
) -> None:
    """Check a vendor's impls against the references, on its device or a simulated one.

    The exit code is 1 if a check fails.

    Example: opmux conform --vendor ascend --op 'family:norm'
    """
    from .conform.command import ConformOptions, run

    options = ConformOptions(
        vendor,
        op or [],
        dtype or [],
        device,
        json,
        html,
        full,
        listing,
        check or [],
        sample,
        real,
        model or [],
        seconds,
        jobs,
    )
    raise typer.Exit(run(options))


@app.command()
def warm(
    what: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|SCRIPT.py",
            help="A model type of transformers (llama), a config.json or its folder; or a Python script.",
        ),
    ],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script, after --.")] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Sequences in a batch of the model.")] = 4,
    length: Annotated[int, typer.Option("--length", metavar="N", help="Tokens of each sequence.")] = 512,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="DTYPE", help="Dtype of the weights.", show_default="that of the config, else bfloat16"
        ),
    ] = None,
    chip: Annotated[
        str | None,
        typer.Option(
            "--chip", metavar="CHIP", help="Chip to compile for: sm_90, gfx942, ...", show_default="this machine's"
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", help="Number of processes.", show_default="one for each core")
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train/--no-train", help="Compile for training, or for the logits of a batch and of one more token."
        ),
    ] = True,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="N", help="Stop a script after this time, and compile what it launched."),
    ] = 60.0,
) -> None:
    """Compile the kernels that a model or a script will launch, on all cores. No GPU is needed.

    The exit code is 1 if a kernel cannot be compiled, or if the model's step stopped early.

    Examples: opmux warm llama --length 2048, opmux warm train.py -- --epochs 1
    """
    from . import screen
    from .warm.command import WarmOptions, run

    screen.show_log()
    raise typer.Exit(run(WarmOptions(what, args or [], batch, length, dtype, chip, jobs, train, seconds)))


@app.command()
def compare(
    what: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A model type of transformers (llama), a config.json or its folder."),
    ],
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="Sequences in a batch.")] = 4,
    length: Annotated[int, typer.Option("--length", metavar="N", help="Tokens of each sequence.")] = 128,
    layers: Annotated[
        int | None, typer.Option("--layers", metavar="N", help="Number of layers.", show_default="that of the config")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            metavar="DTYPE",
            help="Dtype of the weights.",
            show_default="the config's; on a CPU float32",
        ),
    ] = None,
    device: Device = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Forward and backward, or the forward without gradients.")
    ] = True,
    mode: Annotated[str, typer.Option("--mode", metavar="MODE", help="Mode of opmux.enable(): auto or all.")] = "auto",
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="N", help="Time steps for this many seconds; checking takes more.")
    ] = 20.0,
    json: AsJson = False,
) -> None:
    """Compare a model's step in plain torch with opmux.enable(), opmux.patch_model() and both: time, memory, results.

    The exit code is 1 if results are wrong.

    Example: opmux compare gpt2 --layers 1 --batch 1
    """
    from . import screen
    from .compare.command import CompareOptions, run

    screen.show_log()
    raise typer.Exit(run(CompareOptions(what, batch, length, layers, dtype, device, train, mode, seconds, json)))


@app.command(
    "run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True}, no_args_is_help=True
)
def run_program(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]", help="The program, as python takes it.")
    ] = None,
    serve: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Replace this library by opmux: transformer_engine, liger_kernel, flag_gems; may be repeated.",
        ),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m.")] = False,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="With --as: replace the library even if it is installed.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="Where the program says cuda, use this device: cpu, npu, ...",
            show_default="cuda",
        ),
    ] = None,
) -> None:
    """Run an unchanged program, with opmux in place of other libraries' modules.

    The exit code is the program's.

    Example: opmux run --as liger_kernel train.py
    """
    from . import device_translation, run, screen

    screen.show_log()
    with device_translation.translating(device):
        raise typer.Exit(run.run(program or [], serve or [], shadow, module))


def main() -> None:
    app(prog_name="opmux")
