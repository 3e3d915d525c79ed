"""`compat.install` and `opmux run` serve libraries under their own names, and restore what was there before."""

import importlib
import importlib.metadata
import importlib.util
import json
import sys
import textwrap
import types
from importlib import machinery
from pathlib import Path

import fresh
import pytest

import opmux_startup
from opmux.faces import compat
from opmux.faces.te import boot
from opmux.imports import finder

SRC = Path(__file__).parents[2] / "src"


def run(*words, **variables):
    import os

    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL", "TRITON"))}
    env = clean | {"PYTHONPATH": str(SRC)} | variables
    return fresh.run([sys.executable, "-m", "opmux", *map(str, words)], env=env, timeout=240, warm=True)


def test_installed_names_are_served_until_uninstalled():
    before = set(sys.modules)
    compat.install("transformer_engine")
    try:
        import transformer_engine_torch
        from transformer_engine.plugin.core import OpImpl
        from transformer_engine.plugins import tex
        from transformer_engine.plugins.tex_interface.base import TEXBackendBase
        from transformer_engine.plugins.tex_interface.registry import register_backend

        import opmux

        assert tex is transformer_engine_torch is opmux.tex
        assert OpImpl is opmux.core.OpImpl
        assert TEXBackendBase is tex.TEXBackendBase and register_backend is tex.register_backend
        compat.install("transformer_engine")
        compat.uninstall("transformer_engine")  # undoes only one of two installs
        assert compat.installed() == ("transformer_engine",)
        assert sys.modules["transformer_engine_torch"] is tex
    finally:
        compat.uninstall()
    left = {n for n in set(sys.modules) - before if n.startswith("transformer_engine") and "fl_torch" not in n}
    left = {n for n in left if n.startswith(("transformer_engine_torch", "transformer_engine.plugin"))}
    # If NVIDIA's layer was imported, the names that it depends on stay.
    left -= {n for n in left if any(n.startswith(grant.names) for grant in finder.grants)}
    assert not left and compat.installed() == ()


def test_the_metadata_of_a_served_library_is_found_until_uninstalled():
    if importlib.util.find_spec("flag_gems") is not None:
        pytest.skip("flag_gems is installed")
    compat.install("flag_gems")
    try:
        import flag_gems

        assert importlib.metadata.version("flag_gems") == flag_gems.__version__
        assert importlib.metadata.version("torch")  # other libraries' metadata is found as before
    finally:
        compat.uninstall("flag_gems")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flag_gems")


def test_the_import_of_a_missing_library_says_how_to_run_on_opmux(monkeypatch):
    """`find_spec`, with which transformers and accelerate check what is installed, still returns None."""
    monkeypatch.setattr(sys, "meta_path", [opmux_startup.Hint])
    for library, names in opmux_startup.LIBRARIES.items():
        for name in names:
            for loaded in [n for n in sys.modules if n == name or n.startswith(f"{name}.")]:
                monkeypatch.delitem(sys.modules, loaded)
            assert importlib.util.find_spec(name) is None
            with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'") as error:
                importlib.import_module(name)
            assert error.value.name == name
            assert error.value.__notes__ == [
                f'opmux serves this name: opmux run --as {library} ..., or opmux.compat.install("{library}")'
            ]


def test_a_finder_that_was_added_later_finds_the_library(monkeypatch, tmp_path):
    (tmp_path / "liger_kernel.py").write_text("ours = False\n")
    later = types.SimpleNamespace(
        find_spec=lambda name, path=None, target=None: machinery.PathFinder.find_spec(name, [str(tmp_path)])
    )
    monkeypatch.setattr(sys, "meta_path", [opmux_startup.Hint, later])
    monkeypatch.delitem(sys.modules, "liger_kernel", raising=False)
    try:
        assert importlib.import_module("liger_kernel").ours is False
    finally:
        sys.modules.pop("liger_kernel", None)


def test_a_package_exports_the_function_that_has_its_modules_name(monkeypatch):
    library, part = types.ModuleType("a_library"), types.ModuleType("ours")
    part.twice = lambda x: 2 * x
    monkeypatch.setitem(sys.modules, "a_library", library)
    for name in ("twice", "other"):
        monkeypatch.setitem(sys.modules, f"a_library.{name}", part)
        finder.give(f"a_library.{name}", part)
        del finder.given[f"a_library.{name}"], finder._parents[f"a_library.{name}"]
    assert library.twice(3) == 6 and library.other is part


def test_shadowed_modules_are_restored(monkeypatch):
    theirs = types.ModuleType("transformer_engine_torch")
    monkeypatch.setitem(sys.modules, "transformer_engine_torch", theirs)
    with pytest.raises(compat.CannotServe, match="keeps its name"):
        compat.install("transformer_engine")
    compat.install("transformer_engine", shadow=True)
    assert sys.modules["transformer_engine_torch"] is not theirs
    compat.uninstall()
    assert sys.modules["transformer_engine_torch"] is theirs


HOLDERS = """
    import importlib, json, sys, types
    import opmux.compat, opmux.te
    from opmux.imports import finder

    def state():
        return [opmux.te.installed(), sys.modules.get("transformer_engine_torch") is opmux.tex,
                any("transformer_engine.plugin" in grant.names for grant in finder.grants), finder in sys.meta_path]

    stub, seen = types.ModuleType("transformer_engine"), []
    stub.__path__ = []
    do = {"C": lambda: opmux.compat.install("transformer_engine", shadow=True), "c": opmux.compat.uninstall,
          "T": opmux.te.install, "t": opmux.te.uninstall}
    opmux.te.uninstall()
    for order in json.loads(sys.argv[1]):
        for at, step in enumerate(order):
            do[step]()
            if opmux.te.installed():  # a stub of the layer: its import takes seconds
                sys.modules.setdefault("transformer_engine", stub)
                importlib.import_module("transformer_engine.plugins.core.registry")
            seen.append([order[: at + 1], *state()])
        assert not opmux.te.installed() and finder.given == {}, (order, seen)
        assert not [name for name in sys.modules if name.startswith("transformer_engine")], (order, seen)
    print(json.dumps(seen))
"""


def test_each_installer_only_undoes_its_own_install(script):
    """T is `import opmux.te`, and C is `compat.install`; lower case letters undo them. Tests several orders."""
    if importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("needs opmux[te]")
    orders = ["TCct", "TCtc", "CTct", "CTtc", "CTTtc"]
    result = run("run", script(HOLDERS), json.dumps(orders))
    assert result.returncode == 0, result.stderr
    for so_far, te, tex, plugins, installed in json.loads(result.stdout):
        te_wants, compat_wants = ("T" in so_far and "t" not in so_far), ("C" in so_far and "c" not in so_far)
        assert te == tex == (te_wants or compat_wants), so_far  # installed as long as one of the two needs it
        assert plugins == installed == te, so_far


WITHOUT_LAYER = """
    import importlib.machinery, sys
    sys.meta_path[:] = [f for f in sys.meta_path if getattr(f, "__module__", "") != "opmux_startup"]
    find = importlib.machinery.PathFinder.find_spec
    importlib.machinery.PathFinder.find_spec = lambda n, *rest: None if n == "transformer_engine" else find(n, *rest)
    import opmux.compat
    opmux.compat.install("transformer_engine")
    from transformer_engine.plugins.tex_interface import TEXBackendBase
    for name in ("transformer_engine.pytorch", "transformer_engine.plugins.no_such", "opmux.te"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(error)
        opmux.compat.uninstall() if "no_such" in name else None
    print("transformer_engine" in sys.modules)
"""


def test_without_transformer_engine_errors_say_what_to_install(script):
    result = run("run", script(WITHOUT_LAYER))
    layer, plugin, te, left = result.stdout.splitlines()
    assert layer.startswith("No module named 'transformer_engine.pytorch'") and layer.endswith(boot.INSTALL_HINT)
    assert plugin == "No module named 'transformer_engine.plugins.no_such'"
    assert te == f"transformer_engine is not installed: {boot.INSTALL_HINT}" and left == "False"


def test_an_unknown_library_raises_and_suggests_the_nearest():
    with pytest.raises(LookupError, match="did you mean 'transformer_engine'"):
        compat.install("transformer_engin")


PLUGINS = """
    from transformer_engine.plugins import tex
    from transformer_engine.plugins.transformer_engine_fl_torch import *
    import sys, transformer_engine_torch
    print(tex.gelu is transformer_engine_torch.gelu, sys.argv[1:])
    sys.exit(3)
"""


@pytest.fixture
def script(tmp_path):
    def write(code):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(code))
        return path

    return write


LIGER = """
    import sys, torch
    from liger_kernel.transformers import LigerRMSNorm
    print(tuple(LigerRMSNorm(4)(torch.ones(2, 4)).shape), LigerRMSNorm.__module__, "transformers" in sys.modules)
"""


def test_liger_kernel_is_served_without_importing_transformers(script):
    result = run("run", "--as", "liger_kernel", script(LIGER))
    assert result.stdout.splitlines() == ["(2, 4) opmux.faces.liger.norms False"], result.stderr


def test_run_passes_arguments_and_the_exit_code(script):
    result = run("run", "--as", "transformer_engine", script(PLUGINS), "--one", "two")
    assert (result.returncode, result.stdout, result.stderr) == (3, "True ['--one', 'two']\n", "")


def test_run_rejects_missing_files_and_unknown_libraries(tmp_path):
    result = run("run", tmp_path / "nothing.py")
    assert result.returncode == 2 and "there is no file" in result.stderr
    result = run("run", "--as", "liger", tmp_path)
    assert result.returncode == 2
