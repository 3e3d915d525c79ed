"""Invalid input of every kind to every command: exit code 2 and one line that says what is wrong, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LONG = "x" * 100_000
NAMES = ("", " ", "nope", LONG, "☃", "[", "::", "a::b::c", "../../etc/passwd", "-", "\udc80", "a\nb", "%s", "[/]")
FEW = ("", LONG, "a\nb", "[/]")
SIZES = ("", "0x", "-1", "9" * 50, "x", "4x-4", "1e3", "٣x٤")
DTYPES = ("nope", LONG, "complex64", "float32,float16", "[/]")
DEVICES = ("", "nope", "cuda:99", "cpu:5", ":", "cuda:-1", LONG, "meta", "cpu:x")
CHIPS = ("", "nvidia:sm_abc", "nvidia:sm_", ":sm_90", "nope:sm_90", "sm_abc", "nvidia:sm_90:x", LONG, "gfxzz", "[/]",
         "nvidia:sm_" + "9" * 5000, "nvidia:sm_٣", "ascend:x")  # fmt: skip
NO_CHIPS = ("nvidia:sm_999", "sm_91", "gfx999", "amd:sm_90", "nvidia:gfx942", "ascend:ascend910x", "nvidia:sm_90bc")
RUNS = ("notjson", "bytes", "list.json", "object.json", "nested.json", "folder", "missing", LONG)

# command in which ... stands for one argument -> invalid values of that argument
TABLE = {
    ("list", ...): ("", "extra", "--nope", "--family", *NAMES[3:6]),
    ("list", "--family", ...): FEW,
    ("list", "--op", ...): FEW,
    ("explain", ...): NAMES,
    ("explain", "softmax", "--shape", ...): SIZES,
    ("explain", "softmax", "--dtype", ...): ("", *DTYPES),
    ("explain", "softmax", "--device", ...): DEVICES,
    ("explain", "softmax", "--assume", ...): (*CHIPS, *NO_CHIPS),
    ("tune", ...): NAMES,
    ("tune", "softmax", "--dry-run", "--chip", ...): NAMES,
    ("tune", "--list", "--chip", ...): CHIPS,
    ("tune", "softmax", "--dry-run", "--chip", "sm_90", "--shape", ...): SIZES,
    ("tune", "softmax", "--dry-run", "--chip", "sm_90", "--dtype", ...): ("", *DTYPES),
    ("tune", "softmax", "--dry-run", "--device", ...): DEVICES,
    ("tune", "--providers", ...): (*NAMES[1:], "softmax"),
    ("tune", "--providers", "linear", "--device", "cpu", "--shape", ...): (*SIZES, "4x4", "4x0x4", "9000000x9000000x9"),
    ("tune", "--providers", "linear", "--device", "cpu", "--dtype", ...): ("", "int8", *DTYPES),
    ("tune", "--providers", "--shape", ...): ("4x16x32",),
    ("compare", ...): (*NAMES, *RUNS, "train.py"),
    ("compare", "llama", "--layers", "1", "--device", ...): DEVICES,
    ("compare", "llama", "--layers", "1", "--dtype", ...): ("", "int64", *DTYPES),
    ("compare", "llama", "--layers", "1", "--mode", ...): ("", "some", "AUTO"),
    ("compare", "llama", "--layers", "1", "--seconds", ...): ("0", "-1", "x", "nan"),
    ("compare", "llama", "--layers", ...): ("0", "-1", "x"),
    ("compare", "llama", "--layers", "1", "--batch", ...): ("0", "-1", "x", "9" * 30),
    ("compare", "llama", "--layers", "1", "--length", ...): ("0", "x"),
    ("demo", "--dtype", ...): ("", *DTYPES),
    ("demo", "--device", ...): DEVICES,
    ("demo", "--seed", ...): ("x", "9" * 30, "1.5"),
    ("demo", "--steps", ...): ("0", "-1", "x", ""),
    ("bench", ..., "--list"): NAMES[2:],
    ("bench", "softmax", "--shape", ..., "--list"): SIZES[1:],
    ("bench", "softmax", "--dtype", ..., "--list"): DTYPES,
    ("bench", "softmax", "--device", ..., "--list"): DEVICES,
    ("bench", "softmax", "--providers", ..., "--list"): NAMES[2:],
    ("bench", "--preset", ..., "--list"): NAMES[1:],
    ("bench", "--mib", ...): ("0", "x"),
    ("bench", "--from", ...): RUNS,
    ("bench", "softmax", "--json", ...): ("folder", "", LONG),
    ("bench", "softmax", "--html", ...): ("folder", "", LONG),
    ("conform", "--vendor", ..., "--list"): FEW,
    ("conform", "--op", ..., "--list"): FEW,
    ("conform", "--check", ..., "--list"): FEW,
    ("new-backend", ..., "--device", "npu"): ("", *NAMES[3:]),
    ("new-backend", "ok", "--device", ...): ("", *NAMES[4:]),
    ("new-backend", "ok", "--device", "npu", "--out", ...): ("notjson", "notjson/below", LONG),
    ("new-backend", "ok", "--device", "npu", "--in-tree", "--out", ...): ("folder", "missing", "notjson", LONG),
    ("warm", ..., "--chip", "sm_90"): (*NAMES, *RUNS, "missing.py", "folder/missing.py", LONG + ".py"),
    ("warm", "llama", "--chip", ...): CHIPS,
    ("warm", "llama", "--chip", "sm_90", "--dtype", ...): ("", "int64", *DTYPES),
    ("warm", "llama", "--chip", "sm_90", "--batch", ...): ("0", "-1", "x", "9" * 30),
    ("warm", "llama", "--chip", "sm_90", "--length", ...): ("0", "x"),
    ("warm", "llama", "--chip", "sm_90", "--jobs", ...): ("0", "-1", "x"),
    ("warm", "llama", "--chip", "sm_90", ...): ("extra", "--nope"),
    ("warm", "program.py", "--chip", "sm_90", "--seconds", ...): ("0", "-1", "x", "nan"),
    ("run", ...): ("", " ", "nope", LONG, "a\nb"),
    ("run", "--as", ..., "program.py"): FEW,
    ("run", "--device", ..., "program.py"): DEVICES,
    (...,): ("nope", "--nope", "lst"),
    ("doctor", ...): ("extra", "--nope"),
    ("build", ...): ("extra", "--nope"),
    ("report", ...): ("", "folder", "bytes", "object.json", "notjson/below.html", LONG, "--nope"),
    ("report", "--model", ...): (*NAMES, *RUNS, "train.py"),
    ("report", "--assume", ...): (*CHIPS, *NO_CHIPS, "cpu"),
    ("tune", "softmax", ...): ("--list", "--clear", "extra"),
    ("explain", "softmax", "--device", "cpu", "--assume", ...): ("nvidia",),
}
CASES = [[value if word is ... else word for word in words] for words, values in TABLE.items() for value in values]


@pytest.fixture
def files(tmp_path):
    for name, text in {"notjson": "{", "list.json": "[1]", "object.json": "{}", "nested.json": "[" * 100_000}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "folder").mkdir()


def named(words):
    """The test's id: the repr of each word, shortened if it is long."""
    return ascii(" ".join(w if len(w) < 40 else w[:8] + "..." for w in words))


@pytest.mark.parametrize("words", CASES, ids=named)
@pytest.mark.few(70)
def test_invalid_words_give_one_line_and_exit_code_2(cli, files, words):
    result = cli(*words)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2 and result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    # typer prints its own box for an unknown option or a value of the wrong type
    if lines[0].startswith(("Usage:", "\u256d")):
        assert "Error" in result.stderr
    else:
        assert len(lines) == 1 and lines[0].startswith("opmux: ") and len(lines[0]) < 1500, lines


def test_the_table_covers_every_command():
    from opmux.tools.cli import app

    have = {c.name or c.callback.__name__ for c in app.registered_commands}
    assert have == {words[0] for words in TABLE if isinstance(words[0], str)}


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("list",), ("explain", "silu"), ("bench", "softmax", "--list")])
@pytest.mark.parametrize(("config", "text"), [(LONG, None), ("deep.toml", "a=" + "[" * 100_000), ("folder", None),
                                              ("bytes", None), ("bad.toml", "prefer = ")])  # fmt: skip
def test_unreadable_settings_give_one_line_and_exit_code_2(cli, files, monkeypatch, command, config, text):
    if text is not None:
        Path(config).write_text(text, encoding="utf-8")
    monkeypatch.setenv("OPMUX_CONFIG", config)
    result = cli(*command)
    assert isinstance(result.exception, SystemExit) and result.exit_code == 2, result.exception
    (line,) = result.stderr.splitlines()
    assert line.startswith("opmux: ") and len(line) < 600
    assert cli("doctor").exit_code == 1  # doctor reports the broken setting and checks the rest


# ---- streams and encodings ------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="by a shell's redirections")
@pytest.mark.parametrize(("to", "message"), [(">&-", "stdout is closed"), (">/dev/full", "No space left on device")])
def test_a_stdout_that_cannot_be_written_gives_one_line(tmp_path, to, message):
    if to != ">&-" and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    src = Path(__file__).parents[2] / "src"
    command = f'exec "{sys.executable}" -m opmux list --op silu {to}'
    result = subprocess.run(
        command, shell=True, env=os.environ | {"PYTHONPATH": str(src)}, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("opmux: ") and message in line


ASCII = """
import io, json, sys
import torch, opmux
from opmux.tools.cli import app

assert sys.stdout.encoding.casefold() in ("ascii", "ansi_x3.4-1968", "us-ascii"), sys.stdout.encoding
assert opmux.ops.silu(torch.ones(2)).shape == (2,)
left = {}
for words in COMMANDS:
    try:
        app(words, prog_name="opmux")
    except SystemExit as done:
        left[" ".join(words)] = done.code
print(json.dumps(left))
"""


@pytest.mark.slow
def test_every_command_works_in_a_locale_without_unicode(shell):
    commands = [["list", "--op", "*norm*"], ["list", "--json"], ["explain", "rms_norm"], ["tune", "--list"], ["doctor"],
                ["bench", "--list"], ["conform", "--list", "--op", "relu"], ["explain", "☃"]]  # fmt: skip
    script = ASCII.replace("COMMANDS", ascii(commands))
    locale = dict(PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", LC_ALL="C", LANG="C", PYTHONIOENCODING="")
    result = shell(script=script, **locale)
    assert result.returncode == 0, result.stderr
    left = json.loads(result.stdout.splitlines()[-1])
    assert left == {" ".join(words): 2 if "☃" in words else 0 for words in commands}, result.stderr


def test_without_its_packages_the_command_says_what_to_install():
    """`pip install --no-deps` keeps the installed PyTorch, but installs none of the other packages."""
    code = "import sys; sys.modules['typer'] = None; from opmux.tools.start import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ("opmux: the command needs typer, which is not installed: pip install typer rich PyYAML\n")
