"""`import transformer_engine` works unmodified, in programs and in packages that import the layer if they find it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("transformer_engine")
ROOT = Path(__file__).parents[2]

BEFORE = """
import json, sys
import opmux_startup  # what the .pth file does
state = dict(start=sorted({"opmux", "torch", "importlib.util", "importlib.metadata"} & set(sys.modules) - EARLIER))
import importlib.util
state["found"] = importlib.util.find_spec("transformer_engine") is not None
state["found_only"] = "opmux" in sys.modules
"""


def python(text, **env):
    text = "import sys; EARLIER = set(sys.modules)\n" + text
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **env}
    result = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False)
    return result


@pytest.mark.slow
def test_the_layer_and_packages_that_look_for_it_work_without_an_import_of_opmux():
    """accelerate, peft and Trainer look for the layer and import it. Looking for it imports no module of opmux."""
    result = python(
        BEFORE
        + """
import torch
from transformer_engine.plugins import tex as plugin
from transformer_engine.plugins.tex_interface.registry import register_backend
import transformer_engine.pytorch as te
state["shape"] = list(te.Linear(8, 4)(torch.randn(2, 8)).shape)
import transformer_engine_torch, opmux.tex
state["tex"] = transformer_engine_torch is opmux.tex or "opmux" in transformer_engine_torch.__name__
state["plugins"] = plugin is opmux.tex and register_backend is opmux.tex.register_backend
import accelerate, peft
from transformers import Trainer
state["trainer"] = Trainer.__name__
print(json.dumps(state))
"""
    )
    assert result.returncode == 0, result.stderr[-2000:]
    state = json.loads(result.stdout.splitlines()[-1])
    assert state == {
        "start": [],
        "found": True,
        "found_only": False,
        "shape": [2, 4],
        "tex": True,
        "plugins": True,
        "trainer": "Trainer",
    }


def test_the_startup_finder_can_be_disabled():
    result = python(BEFORE + "import transformer_engine", OPMUX_TE_STARTUP="0")
    assert "Found empty `transformer-engine` meta package" in result.stderr


def test_nvidias_own_extension_has_precedence(tmp_path, monkeypatch):
    import opmux_startup
    from opmux.imports import finder

    monkeypatch.setattr(finder, "grants", ())  # another test may have imported the layer
    layer = tmp_path / "transformer_engine" / "__init__.py"
    layer.parent.mkdir()
    known = sys.modules.pop("transformer_engine_torch", None)
    try:
        assert not opmux_startup.has_extension(str(layer))
        built = layer.parent / "transformer_engine_torch.cpython-311-x86_64-linux-gnu.so"
        built.touch()
        assert opmux_startup.has_extension(str(layer))
        built.unlink()
        sys.modules["transformer_engine_torch"] = sys
        assert opmux_startup.has_extension(str(layer))
    finally:
        sys.modules.pop("transformer_engine_torch", None)
        if known is not None:
            sys.modules["transformer_engine_torch"] = known


@pytest.mark.parametrize("has_plugins", [False, True])
def test_plugins_are_served_with_nvidias_own_build(tmp_path, has_plugins):
    """opmux does not serve `plugins` if the installed layer has its own package of this name."""
    import opmux_startup
    from opmux.imports import finder

    if has_plugins:
        (tmp_path / "plugins").mkdir()
        (tmp_path / "plugins" / "__init__.py").touch()
    before, grants = sys.meta_path, finder.grants
    finder.keep(lambda grant: False)
    try:
        for _ in range(2):
            module_spec = opmux_startup.Finder.find_spec("transformer_engine.plugins", [str(tmp_path)])
            assert (module_spec is None) == has_plugins
            assert len(finder.grants) == sys.meta_path.count(finder) == (not has_plugins)
    finally:
        sys.meta_path, finder.grants = before, grants


def test_another_package_with_the_layers_name_is_not_changed(tmp_path):
    package = tmp_path / "transformer_engine" / "__init__.py"
    package.parent.mkdir()
    package.write_text("mine = True")
    text = BEFORE + "import transformer_engine; print(transformer_engine.mine, 'opmux' in sys.modules)"
    result = python(text, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT / "src")]))
    assert result.stdout == "True False\n", result.stderr


def test_a_wheel_contains_the_startup_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "build_backend"))
    import opmux_build

    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("a.py", "")
        wheel.writestr("a.dist-info/RECORD", "a.py,,\na.dist-info/RECORD,,\n")
    opmux_build._with_pth(str(tmp_path), "a.whl")
    with zipfile.ZipFile(tmp_path / "a.whl") as wheel:
        line = wheel.read("opmux_startup.pth")
        record = wheel.read("a.dist-info/RECORD").decode().splitlines()
    assert line.startswith(b"import ") and line.count(b"\n") == 1  # site runs lines starting with `import`
    digest = base64.urlsafe_b64encode(hashlib.sha256(line).digest()).decode().rstrip("=")
    assert record == [f"opmux_startup.pth,sha256={digest},{len(line)}", "a.py,,", "a.dist-info/RECORD,,"]
    assert opmux_build.prepare_metadata_for_build_wheel and opmux_build.get_requires_for_build_editable
    exec(compile(line, "opmux_startup.pth", "exec"), {})
    exec(compile(line.replace(b"opmux_startup", b"opmux_that_is_gone"), "opmux_startup.pth", "exec"), {})
