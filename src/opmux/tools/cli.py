"""The command `opmux`. Nothing heavy is imported before a command asks for it: `opmux --help` does without torch."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__


class Commands(TyperGroup):
    """Commands whose own errors are one line on stderr and exit code 2, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Asking sys.modules: the class cannot have been raised before its module was there, and that needs torch.
            errors = sys.modules.get("opmux.core.errors")
            if errors is None or not isinstance(error, errors.OpmuxError):
                raise
            typer.echo(f"opmux: {error}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Operators for PyTorch: what there is, which implementation runs, and why.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Dtype = Annotated[str, typer.Option(metavar="DTYPE", help="float32, bfloat16, ...")]
Device = Annotated[str | None, typer.Option(metavar="DEVICE", help="cpu, cuda, cuda:1, ... [default: what is there]")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"opmux {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None: ...


@app.command("list")
def list_ops(
    family: Annotated[str | None, typer.Option(metavar="NAME", help="Only this family.")] = None,
    op: Annotated[str | None, typer.Option(metavar="GLOB", help="Only ops with such a name, e.g. '*norm*'.")] = None,
    json: AsJson = False,
) -> None:
    """Every op and its implementations, in the order of choice under the policy that holds."""
    from . import listing, screen

    screen.show_log()
    listing.run(family, op, json)


@app.command()
def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="rms_norm, tex::rmsnorm_fwd, ...")],
    dtype: Dtype = "float32",
    shape: Annotated[str | None, typer.Option(metavar="SIZES", help="Of the first tensor, e.g. 4096x4096.")] = None,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Which implementation of an op would run, and why not the others. Exit code 1 if none can."""
    from . import explain, screen

    screen.show_log()
    raise typer.Exit(explain.run(op, dtype, shape, device, json))


@app.command()
def doctor(json: AsJson = False) -> None:
    """Versions, devices, vendors, plugins and every setting with its source. Exit code 1 if something is broken."""
    from . import doctor

    raise typer.Exit(doctor.run(json))


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=1, help="Training steps, of each of the two models.")] = 100,
    device: Device = None,
    dtype: Dtype = "float32",
    seed: Annotated[int, typer.Option(help="Of the initial weights and the batches.")] = 0,
) -> None:
    """Train a small Llama twice, in plain torch and through opmux, and compare. Exit code 1 if they disagree."""
    from . import demo, screen

    screen.show_log()
    raise typer.Exit(demo.run(steps, device, dtype, seed))


def main() -> None:
    app(prog_name="opmux")
