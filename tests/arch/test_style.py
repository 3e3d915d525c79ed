"""Style rules that a test can check."""

import ast
from pathlib import Path

import parsed
import pytest

SRC = Path(__file__).parents[2] / "src"
LINES = 800
VAGUE = {"util", "utils", "common", "helper", "helpers", "misc"}
# Vendor packages written for other libraries already use these names.
GIVEN = {"heuristics_config_utils.py", "backend_utils.py"}
BROAD = {"Exception", "BaseException"}


def sources() -> list[Path]:
    files = sorted(SRC.rglob("*.py"))
    assert files, f"nothing to check under {SRC}"
    return files


def shown(path: Path) -> str:
    return str(path.relative_to(SRC.parent))


def vague(path: Path) -> bool:
    """Whether the name of a file or folder does not say what it is for."""
    return path.name not in GIVEN and not VAGUE.isdisjoint(path.stem.lower().split("_"))


def is_broad(node: ast.expr | None) -> bool:
    match node:
        case None:
            return True
        case ast.Tuple(elts=elts):
            return any(is_broad(e) for e in elts)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in BROAD
    return False


def is_idle(body: list[ast.stmt]) -> bool:
    return all(isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)) for s in body)


def swallows(tree: ast.AST) -> list[int]:
    """The lines that discard every error: `except Exception: pass` and its variants."""
    lines = []
    for node in parsed.walk(tree):
        match node:
            case ast.ExceptHandler(type=kind, body=body) if is_broad(kind) and is_idle(body):
                lines.append(node.lineno)
            case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=args):
                if any(is_broad(a) for a in args):
                    lines.append(node.lineno)
    return lines


def locale_decides(tree: ast.AST) -> list[int]:
    """The lines that read or write text in the locale's encoding, which is ASCII under LC_ALL=C."""
    lines = []
    for node in parsed.walk(tree):
        if not isinstance(node, ast.Call) or any(k.arg == "encoding" for k in node.keywords):
            continue
        match node.func:
            case ast.Attribute(attr="read_text" | "write_text"):
                lines.append(node.lineno)
            case ast.Attribute(attr="run" | "Popen" | "check_output", value=ast.Name(id="subprocess")):
                if any(k.arg in ("text", "universal_newlines") for k in node.keywords):
                    lines.append(node.lineno)
            case ast.Name(id="open") | ast.Attribute(attr="open" | "fdopen" | "NamedTemporaryFile" | "TemporaryFile"):
                if opens_text(node):
                    lines.append(node.lineno)
    return lines


def opens_text(call: ast.Call) -> bool:
    """Whether a call of `open`, or of a method with that name, opens a text file. `os.open` never does."""
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "os.open":
        return False
    literals = [a.value for a in (*call.args, *(k.value for k in call.keywords if k.arg == "mode"))
             if isinstance(a, ast.Constant) and isinstance(a.value, str)]  # fmt: skip
    modes = [text for text in literals if text and set(text) <= set("rwaxbt+")]
    if isinstance(call.func, ast.Name):
        return not any("b" in mode for mode in modes)
    # a method may belong to any object, so only a call with an explicit text mode counts
    return any("b" not in mode for mode in modes)


def test_files_are_short():
    long = {shown(p): n for p in sources() if (n := len(p.read_text(encoding="utf-8").splitlines())) >= LINES}
    assert not long, f"files stay under {LINES} lines"


def test_file_names_say_what_the_file_is_for():
    bad = [shown(p) for p in sorted(SRC.rglob("*")) if vague(p) and (p.is_dir() or p.suffix == ".py")]
    assert not bad, "name it after what it does"


def test_errors_are_not_swallowed():
    bad = [f"{shown(p)}:{line}" for p in sources() for line in swallows(parsed.tree(p))]
    assert not bad, "catch what is expected, and let the rest be seen"


def test_text_has_an_encoding():
    bad = [f"{shown(p)}:{line}" for p in sources() for line in locale_decides(parsed.tree(p))]
    assert not bad, 'say encoding="utf-8": the locale may be ASCII'


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("p.read_text()", True),
        ("p.read_text(encoding='utf-8')", False),
        ("p.write_text(t)", True),
        ("open(p)", True),
        ("open(p, 'rb')", False),
        ("open(p, mode='w')", True),
        ("p.open('a')", True),
        ("p.open('wb')", False),
        ("os.open(p, os.O_RDONLY)", False),
        ("os.fdopen(f, 'w')", True),
        ("tempfile.NamedTemporaryFile('w')", True),
        ("tempfile.NamedTemporaryFile()", False),
        ("subprocess.run(c, text=True)", True),
        ("subprocess.run(c, encoding='utf-8')", False),
        ("subprocess.run(c)", False),
    ],
)
def test_text_without_an_encoding_is_found(code, bad):
    assert bool(locale_decides(ast.parse(code))) == bad


def test_every_module_has_a_docstring():
    bad = [shown(p) for p in sources() if p.is_relative_to(SRC / "opmux") and not ast.get_docstring(parsed.tree(p))]
    assert not bad, "a module starts with a docstring"


@pytest.mark.parametrize("name", ["utils.py", "utils", "common.py", "shape_helpers.py", "helper", "Misc.py"])
def test_a_vague_name_is_found(name):
    assert vague(Path("src", name))


@pytest.mark.parametrize("name", ["heuristics_config_utils.py", "backend_utils.py", "commons.py", "norm.py"])
def test_a_good_name_passes(name):
    assert not vague(Path("src", name))


@pytest.mark.parametrize(
    "handler",
    ["except:", "except Exception:", "except BaseException as e:", "except (ValueError, Exception):"],
)
@pytest.mark.parametrize("body", ["pass", "...", '"why not"'])
def test_a_swallowed_error_is_found(handler, body):
    assert swallows(ast.parse(f"try:\n    f()\n{handler}\n    {body}")) == [3]


def test_suppressing_every_error_is_found():
    assert swallows(ast.parse("with contextlib.suppress(Exception):\n    f()")) == [1]


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    f()\nexcept KeyError:\n    pass",
        "try:\n    f()\nexcept Exception as e:\n    log(e)",
        "with suppress(KeyError):\n    f()",
    ],
)
def test_a_handled_error_passes(code):
    assert swallows(ast.parse(code)) == []


# ---- locks ----------------------------------------------------------------------------------------------------------


def plain_locks(tree: ast.AST) -> list[int]:
    """The lines that create a `threading` lock, or a cached property, which contains such a lock in Python 3.11. If the
    process forks while another thread holds the lock, the child waits for ever.
    """
    names = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"}
    lines = []
    for node in parsed.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="functools"), attr="cached_property"):
                lines.append(node.lineno)
            case ast.ImportFrom(module="functools", names=found) if any(n.name == "cached_property" for n in found):
                lines.append(node.lineno)
            case ast.Attribute(value=ast.Name(id="threading"), attr=name) if name in names:
                lines.append(node.lineno)
            case ast.ImportFrom(module="threading", names=found) if any(n.name in names for n in found):
                lines.append(node.lineno)
    return lines


def test_only_core_lock_creates_threading_locks():
    home = SRC / "opmux" / "core" / "lock.py"
    bad = [f"{shown(p)}:{line}" for p in sources() if p != home for line in plain_locks(parsed.tree(p))]
    assert not bad, "use ForkSafeLock and cached_property of opmux.core.lock"
    assert plain_locks(parsed.tree(home))


@pytest.mark.parametrize(
    "code",
    [
        "import threading\nx = threading.Lock()",
        "\nfrom threading import RLock",
        "\n@functools.cached_property\ndef x(self): ...",
        "\nfrom functools import cached_property",
    ],
)
def test_a_plain_lock_is_found(code):
    assert plain_locks(ast.parse(code)) == [2]
