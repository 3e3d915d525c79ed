"""Select the tests for a change: `pytest --touched BASE`, `make test-touched`.

Every changed file is looked up in TABLE, and the first matching pattern applies. A file of an op family
(`specs/norm.py`, `kernels/norm.py`, `faces/aten/norm.py`) selects the test files with the family in their name, and the
cases of that family in tests over all ops. Other files select whole test folders. Files that everything depends on, and
files that match no pattern, select all tests.
"""

from __future__ import annotations

import functools
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ALL, FAMILY, ITSELF = "all", "family", "itself"

# path pattern -> all tests, the tests of the file's op family, the test file itself, or folders and files of tests
TABLE: tuple[tuple[str, str | tuple[str, ...]], ...] = (
    (r"tests/(conftest\.py|shared/)", ALL),
    (r"tests/.*/test_\w+\.py", ITSELF),
    (r"tests/(\w+)/.*", (r"tests/\1/",)),
    (r"src/opmux/(core|machine|tuning|cpp|native|kernels/lib)/", ALL),
    (r"src/opmux/(specs|kernels)/(?!_|samples)", FAMILY),
    (r"src/opmux/backends/_cpu/", ("tests/backends/", "tests/ops/", "tests/faces/")),
    (r"src/opmux/backends/_\w+/(?:\w+/)?ops/", FAMILY),
    (r"src/opmux/backends/", ("tests/backends/", "tests/seeds/", "tests/kernels/test_tiles.py")),
    (r"src/opmux/(faces/aten|functional|nn|faces/tex/ops)/(?!_)", FAMILY),
    (r"src/opmux/(faces/|functional|nn|te|tex|compat)", ("tests/faces/", "tests/seeds/", "tests/distributed/")),
    (r"src/transformer_engine_fl_torch/|src/opmux_startup", ("tests/faces/", "tests/seeds/")),
    (r"src/opmux/integrations/", ("tests/integrations/", "tests/distributed/", "tests/examples/")),
    (r"src/opmux/tools/", ("tests/tools/", "tests/backends/")),
    (r"tools/", ("tests/tools/", "tests/faces/test_left.py")),
    (r"docs/|[A-Z]+\.md|mkdocs\.yml|benchmarks/", ("tests/tools/", "tests/arch/")),
    (r"CITATION\.cff|LICENSE|MANIFEST\.in|NOTICE", ("tests/tools/test_packaging.py",)),
    (r"examples/", ("tests/examples/",)),
    (r"\.editorconfig|\.gitignore|\.pre-commit-config\.yaml", ()),
)
# Op families whose test files have another name.
NAMED = {
    **dict.fromkeys("convolution pooling padding upsample grid_sampler neighborhood".split(), "spatial"),
    "attention_general": "attention", "creation": "layout", "distance": "reduce", "dropout": "random", "norms": "norm",
    "rnn": "elementwise", "sorting": "index", "sparsemax": "softmax", "rotary": "rope", "linear_layer": "linear",
    "attention_variants": "attention",
}  # fmt: skip
AROUND = re.compile(r"^test_(gpu_|adapters_|functional_|tex_)?|_(interpreted|compiled)$")


@dataclass
class Change:
    """The tests that the changed files select."""

    base: str
    files: tuple[str, ...]
    everything: str = ""  # the changed file that selects all tests, or ""
    families: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    def header(self) -> str:
        if self.everything:
            return f"touched since {self.base}: {self.everything}, so every test runs"
        parts = (*sorted(self.families), *sorted(self.folders))
        return f"touched since {self.base}, {len(self.files)} files: {' '.join(parts) or 'no test'}"

    def concerns(self, item: Any) -> bool:
        if self.everything:
            return True
        path = item.path.relative_to(ROOT).as_posix()
        return any(path.startswith(f) for f in self.folders) or self._is_of_a_family(path, item)

    def _is_of_a_family(self, path: str, item: Any) -> bool:
        if tests_of(path) & self.families:
            return True
        params = getattr(item, "callspec", None)
        return params is not None and any(_family_of(v) in self.families for v in params.params.values())


def changed(base: str, files: tuple[str, ...]) -> Change:
    change = Change(base, files)
    for file in files:
        concerned = look_up(file)
        if concerned == ALL:
            change.everything = change.everything or file
        elif concerned == FAMILY:
            change.families |= families_of(file)
            change.folders |= {"tests/faces/"} if file.startswith("src/opmux/faces/") else set()
        elif concerned == ITSELF:
            change.folders.add(file)
        else:
            change.folders.update(concerned)
    return change


def look_up(file: str) -> str | tuple[str, ...]:
    for pattern, concerned in TABLE:
        if match := re.match(pattern, file):
            return concerned if isinstance(concerned, str) else tuple(match.expand(c) for c in concerned)
    return ALL


def families_of(file: str) -> set[str]:
    """The family names of a source file: its own name and those of its folders."""
    path = Path(file)
    names = {path.stem, *path.parts} - {"__init__"}
    return {NAMED.get(n, n) for n in names} | names


@functools.cache
def tests_of(path: str) -> frozenset[str]:
    """The op families that a test file covers according to its name: `test_adapters_norm.py` covers `norm`."""
    stem = Path(path).stem
    while (shorter := AROUND.sub("", stem)) != stem:
        stem = shorter
    words = stem.split("_")
    return frozenset("_".join(words[a:b]) for a in range(len(words)) for b in range(a + 1, len(words) + 1))


def _family_of(value: Any) -> str | None:
    """The op family of a parameter of a test case: the parameter is an op, or the name of an op."""
    spec = getattr(value, "spec", value)
    if isinstance(spec, str):
        return _by_name().get(spec)
    return getattr(spec, "family", None)


@functools.cache
def _by_name() -> dict[str, str]:
    from opmux.core import specs

    specs.load_all()
    return {name: s.family for s in specs.by_key.values() for name in (s.name, s.key)}


@functools.cache
def since(base: str) -> Change:
    """The change between a commit and the working tree. An unknown commit selects all tests."""
    git = ["git", "-C", str(ROOT)]
    known = base and subprocess.run([*git, "rev-parse", "-q", "--verify", f"{base}^{{commit}}"], capture_output=True)
    if not known or known.returncode:
        return Change(base or "the beginning", (), everything=f"no commit {base!r} is known")
    lines = subprocess.run([*git, "diff", "--name-only", "--no-renames", base], capture_output=True, check=True)
    new = subprocess.run([*git, "ls-files", "--others", "--exclude-standard"], capture_output=True, check=True)
    files = {*lines.stdout.decode().splitlines(), *new.stdout.decode().splitlines()}
    return changed(base, tuple(sorted(files)))
