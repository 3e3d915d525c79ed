"""Plugins: how they are found and reported, and that they load completely or not at all."""

import importlib
import importlib.metadata
import os
import sys
from pathlib import Path

import fresh
import pytest
import torch

from opmux import imports
from opmux.core import BackendImplKind, OpImpl, OpRegistry, PluginError, discovery, op, reset_global_policy, specs
from opmux.core import registry as registry_module
from opmux.core.spec import NAME_LOOKUP

SRC = Path(__file__).parents[2] / "src"

# The first lines of every test plugin.
HEAD = """
import torch
from opmux.core import BackendImplKind, OpImpl

def rms(x, weight, eps=1e-6, offset=0.0):
    return x * weight, x.sum(-1)

def made(op_name="rms_norm", impl_id="vendor.acme", fn=rms, **more):
    return OpImpl(op_name, impl_id, BackendImplKind.VENDOR, "acme", fn, **more)
"""
REGISTER = HEAD + "\ndef register(registry):\n    registry.register_impl(made())\n"


class Site:
    """A folder on sys.path, for modules and for the metadata of installed distributions."""

    def __init__(self, path: Path):
        self.path = path

    def module(self, name: str, source: str) -> str:
        path = self.path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        return name

    def distribution(self, name: str, version: str, **groups: dict[str, str]) -> None:
        """Install a distribution; `backends` and `te_fl` are its entry points in the two groups."""
        info = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        titles = {"backends": "opmux.backends", "te_fl": "te_fl.plugin"}
        text = "".join(
            f"[{titles[group]}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items())
            for group, entries in groups.items()
        )
        (info / "entry_points.txt").write_text(text)
        importlib.invalidate_caches()


@pytest.fixture(scope="module", autouse=True)
def without_transformer_engine():
    """Hide NVIDIA's layer, because an earlier test may have imported it."""
    names = [n for n in sys.modules if n.partition(".")[0] in ("transformer_engine", "transformer_engine_torch")]
    removed = {n: sys.modules.pop(n) for n in names}
    finders = [f for f in sys.meta_path if getattr(f, "__module__", "") == "opmux_startup"]  # provides our tex
    sys.meta_path[:] = [f for f in sys.meta_path if f not in finders]
    grants, given_before = imports.finder.grants, dict(imports.finder.given)
    imports.finder.keep(lambda grant: False)
    yield
    for grant in grants:
        imports.finder.add(grant)
    imports.finder.given.update(given_before)
    sys.meta_path[:0] = finders
    sys.modules.update(removed)


@pytest.fixture(autouse=True)
def site(tmp_path, monkeypatch):
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.chdir(tmp_path)
    real = importlib.metadata.entry_points

    def entry_points(**params):  # hide the developer's installed plugins
        return [e for e in real(**params) if Path(e.dist.locate_file("")).resolve() == path.resolve()]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    reset_global_policy()
    monkeypatch.setattr(discovery, "_warned", set())
    had, declared, tagged = set(sys.modules), set(specs), list(registry_module.tagged)
    yield Site(path)
    for name in set(sys.modules) - had:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    for spec in set(specs) - declared:
        specs.remove(spec)
    registry_module.tagged[:] = tagged
    monkeypatch.undo()
    reset_global_policy()


@pytest.fixture(autouse=True)
def log(caplog):
    caplog.set_level("DEBUG", "opmux")
    return caplog


@pytest.fixture
def name_modules(monkeypatch):
    return lambda *names: monkeypatch.setenv("TE_FL_PLUGIN_MODULES", ",".join(names))


def reference(x, weight, eps=1e-6, offset=0.0):
    return x, x


def load(*impls: OpImpl) -> OpRegistry:
    registry = OpRegistry(checked=True)
    registry.register_many(impls)
    discovery.load(registry)
    return registry


def ids(registry: OpRegistry, op_name: str = "rms_norm") -> list[str]:
    return [i.impl_id for i in registry.get_implementations(op_name)]


def states() -> dict[str, str]:
    return {p.name: p.status for p in discovery.plugins()}


def problems(log) -> list[str]:
    return [r.getMessage() for r in log.records if r.levelname in ("WARNING", "ERROR")]


# ---- forms of plugins -----------------------------------------------------------------------------------------------

SHAPES = {
    "a module": ("shape", REGISTER),
    "a module for TE-FL": ("shape", REGISTER.replace("def register(", "def te_fl_register(")),
    "a function": ("shape:hook", REGISTER.replace("def register(", "def hook(")),
    "an object": (
        "shape:plugin",
        HEAD + "class P:\n    def register(self, registry):\n        registry.register_impl(made())\nplugin = P()\n",
    ),
    "a class": (
        "shape:P",
        HEAD + "class P:\n    @staticmethod\n    def register(registry):\n        registry.register_impl(made())\n",
    ),
    "a callable object": (
        "shape:plugin",
        HEAD + "class P:\n    def __call__(self, registry):\n        registry.register_impl(made())\nplugin = P()\n",
    ),
}


@pytest.mark.parametrize("group", ["backends", "te_fl"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_plugin_may_have_any_supported_form(shape, group, site):
    target, source = SHAPES[shape]
    site.module("shape", source)
    site.distribution("shape-dist", "1.0", **{group: {"shape": target}})
    registry = load()
    assert ids(registry) == ["vendor.acme"]
    (plugin,) = discovery.plugins()
    assert (plugin.status, plugin.target, plugin.impls) == ("loaded", target, ("rms_norm=vendor.acme",))


def test_a_module_may_be_named_in_a_variable(site, name_modules):
    name_modules(site.module("pack.inner", REGISTER))
    assert ids(load()) == ["vendor.acme"]
    assert states() == {"pack.inner": "loaded"}


@pytest.mark.parametrize(
    ("target", "source", "kind"),
    [("shape", "x = 1", "module"), ("shape:x", "x = 1", "int"), ("shape:P", "class P: pass", "type")],
)
def test_an_invalid_plugin_is_reported(target, source, kind, site, log):
    site.module("shape", source)
    site.distribution("shape-dist", "1.0", backends={"shape": target})
    assert len(load()) == 0
    (message,) = problems(log)
    assert f"plugin 'shape' ({target}) is {kind}: expected a module or an object with register(registry)" in message


def test_plugins_load_in_the_order_of_their_names(site, name_modules):
    site.module("order_kept", "seen = []")
    source = "import order_kept\n\ndef register(registry):\n    order_kept.seen.append(__name__)\n"
    for name in "b_plug", "c_plug", "a_plug", "d_plug":
        site.module(name, source)
    site.distribution("zz", "1.0", te_fl={"d": "d_plug", "b": "b_plug"}, backends={"c": "c_plug"})
    name_modules("a_plug")
    load()
    assert sys.modules["order_kept"].seen == ["a_plug", "b_plug", "c_plug", "d_plug"]
    assert [p.name for p in discovery.plugins()] == ["a_plug", "b", "c", "d"]


# ---- allow and block lists ------------------------------------------------------------------------------------------

MARKS = "from pathlib import Path\nPath('imported').touch()\n" + REGISTER


@pytest.fixture
def import_marker(site):
    """Install a plugin that is a module of a package. Both record when they are imported."""
    site.module("pack_top.__init__", "from pathlib import Path\nPath('imported').touch()\n")
    site.module("pack_top.plug", MARKS)
    site.distribution("Acme-Ops", "1.0", backends={"acme-plug": "pack_top.plug"})
    return Path("imported")


NAMES = ["Acme-Ops", "acme-ops", "acme_ops", "acme.ops", "ACME__OPS", "other, acme-ops"]
# Names of the entry point and of its modules. The lists ignore these names, because any distribution may use them.
INSIDE = ["acme-plug", "acme_plug", "pack_top.plug", "pack_top", "ACME-PLUG"]


def test_a_plugin_loads_without_lists(import_marker):
    assert ids(load()) == ["vendor.acme"]
    assert import_marker.exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_blocked_plugin_is_not_imported(name, import_marker, monkeypatch, log):
    monkeypatch.setenv("OPMUX_BLOCK_PLUGINS", name)
    assert len(load()) == 0
    assert not import_marker.exists() and "pack_top" not in sys.modules
    (plugin,) = discovery.plugins()
    assert (plugin.status, plugin.reason) == ("blocked", "named in OPMUX_BLOCK_PLUGINS")
    assert not [p for p in problems(log) if "other" not in p]


@pytest.mark.parametrize("name", NAMES)
def test_an_allowed_plugin_loads(name, import_marker, monkeypatch):
    monkeypatch.setenv("OPMUX_ALLOW_PLUGINS", name)
    assert ids(load()) == ["vendor.acme"]


@pytest.mark.parametrize("name", INSIDE)
def test_lists_match_distribution_names_only(name, import_marker, monkeypatch, log):
    monkeypatch.setenv("OPMUX_ALLOW_PLUGINS", name)
    assert len(load()) == 0 and not import_marker.exists()
    (messages,) = [
        p for p in problems(log) if p.startswith(f"OPMUX_ALLOW_PLUGINS names '{name}', which is neither a dist")
    ]
    assert messages.endswith(": use the name of its distribution, Acme-Ops")
    monkeypatch.delenv("OPMUX_ALLOW_PLUGINS")
    monkeypatch.setenv("OPMUX_BLOCK_PLUGINS", name)
    assert ids(load()) == ["vendor.acme"]


def test_an_unknown_entry_is_reported_once(import_marker, monkeypatch, log):
    monkeypatch.setenv("OPMUX_BLOCK_PLUGINS", "acme-opps,elsewhere")
    load()
    load()
    words = "which is neither a distribution with a plugin nor a module of OPMUX_PLUGIN_MODULES"
    assert problems(log) == [
        f"OPMUX_BLOCK_PLUGINS names 'acme-opps', {words}: did you mean 'Acme-Ops'?",
        f"OPMUX_BLOCK_PLUGINS names 'elsewhere', {words}",
    ]


@pytest.mark.parametrize("blank", ["", " ", ","])
def test_a_blank_allow_list_allows_none(blank, import_marker, monkeypatch):
    monkeypatch.setenv("OPMUX_ALLOW_PLUGINS", blank)
    load()
    assert not import_marker.exists() and states() == {"acme-plug": "blocked"}


def test_an_allowed_module_loads_even_if_its_distribution_is_not_allowed(import_marker, name_modules, monkeypatch):
    name_modules("pack_top.plug")
    monkeypatch.setenv("OPMUX_ALLOW_PLUGINS", "pack_top.plug")
    assert ids(load()) == ["vendor.acme"]
    assert states() == {"acme-plug": "blocked", "pack_top.plug": "loaded"}


def test_a_plugin_that_is_not_allowed_is_not_imported(import_marker, monkeypatch):
    monkeypatch.setenv("OPMUX_ALLOW_PLUGINS", "other")
    assert len(load()) == 0
    assert not import_marker.exists()
    (plugin,) = discovery.plugins()
    assert (plugin.status, plugin.reason) == ("blocked", "not in OPMUX_ALLOW_PLUGINS (other)")


def test_block_beats_allow(import_marker, monkeypatch):
    monkeypatch.setenv("OPMUX_ALLOW_PLUGINS", "acme-ops")
    monkeypatch.setenv("OPMUX_BLOCK_PLUGINS", "acme.ops")
    load()
    assert not import_marker.exists()


def test_an_empty_allow_list_in_the_file_allows_none(import_marker):
    Path("opmux.toml").write_text("allow_plugins = []")
    load()
    assert not import_marker.exists()
    assert states() == {"acme-plug": "blocked"}


def test_lists_apply_to_modules_named_in_variables(site, name_modules, monkeypatch):
    name_modules(site.module("by_name", MARKS))
    monkeypatch.setenv("OPMUX_BLOCK_PLUGINS", "by_name")
    load()
    assert not Path("imported").exists()


# ---- broken plugins -------------------------------------------------------------------------------------------------

TWO = HEAD + "\ndef register(registry):\n    registry.register_impl(made())\n"
BROKEN = {
    "import error": ("import no_such_module_at_all\n" + REGISTER, "ModuleNotFoundError"),
    "syntax error": ("def register(:\n", "SyntaxError"),
    "sys.exit": ("raise SystemExit('no chip')\n", "SystemExit: no chip"),
    "half-way": (TWO + "    raise RuntimeError('only half')\n", "RuntimeError: only half"),
    "wrong call": (HEAD + "\ndef register():\n    pass\n", "TypeError"),
    "too few arguments": (
        HEAD + "\ndef register(r):\n    r.register_impl(made())\n"
        "    r.register_impl(made('silu_mul', fn=lambda a: a))\n",
        "BadImpl: impl 'vendor.acme' does not fit op 'silu_mul': it cannot take ['b']",
    ),
    "too many arguments": (
        HEAD + "\ndef register(r):\n    r.register_impl(made('silu_mul', fn=lambda a, b, c: a))\n",
        "BadImpl: impl 'vendor.acme' does not fit op 'silu_mul': it needs ['c']",
    ),
    "no vendor": (
        HEAD + "\ndef register(r):\n    r.register_impl(OpImpl('gelu', 'v', BackendImplKind.VENDOR, fn=rms))\n",
        "BadImpl",
    ),
    "not an impl": (HEAD + "\ndef register(r):\n    r.register_impl(rms)\n", "BadImpl: expected an OpImpl"),
    "twice": (TWO + "    registry.register_impl(made())\n", "DuplicateImpl"),
    "another's id": (HEAD + "\ndef register(r):\n    r.register_impl(made(impl_id='First'))\n", "DuplicateImpl"),
    "another API": ("OPMUX_API = 99\n" + REGISTER, "PluginError: plugin 'm_broken' is written for plugin interface 99"),
    "takes out": (TWO + "    registry.unregister('rms_norm', 'first')\n", "PluginError: plugin 'm_broken' removed"),
    "takes all": (TWO + "    registry.unregister('rms_norm')\n", "PluginError: plugin 'm_broken' removed"),
    "replaces": (
        TWO + "    registry.unregister('rms_norm', 'first')\n    registry.register_impl(made(impl_id='first'))\n",
        "PluginError: plugin 'm_broken' removed or replaced",
    ),
}


@pytest.fixture
def first():
    return OpImpl("rms_norm", "first", BackendImplKind.REFERENCE, fn=reference)


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_broken_plugin_changes_nothing_and_the_others_load(mistake, first, site, name_modules, log):
    source, words = BROKEN[mistake]
    site.module("m_broken", source)
    site.module("a_good", REGISTER.replace("vendor.acme", "vendor.a"))
    site.module("z_good", REGISTER.replace("vendor.acme", "vendor.z"))
    name_modules("z_good", "m_broken", "a_good")
    registry = load(first)
    assert registry.list_operators() == ["rms_norm"]
    assert ids(registry) == ["first", "vendor.a", "vendor.z"]
    assert registry.get_implementations("rms_norm")[0] is first
    assert states() == {"a_good": "loaded", "m_broken": "broken", "z_good": "loaded"}
    assert words in discovery.plugins()[1].reason
    (message,) = problems(log)
    assert message.startswith("plugin 'm_broken' (env TE_FL_PLUGIN_MODULES) could not be loaded: ")
    assert words in message and "Traceback (most recent call last)" in message
    assert "transformer_engine" not in sys.modules


@pytest.mark.parametrize("mistake", BROKEN)
def test_strict_stops_at_a_broken_plugin(mistake, first, site, name_modules, monkeypatch):
    source, words = BROKEN[mistake]
    name_modules(site.module("m_broken", source))
    monkeypatch.setenv("TE_FL_STRICT", "1")
    reset_global_policy()
    registry = OpRegistry(checked=True)
    registry.register_impl(first)
    with pytest.raises(PluginError, match="plugin 'm_broken'") as caught:
        discovery.load(registry)
    assert words in str(caught.value)
    assert caught.value.__cause__ is not None
    assert registry.get_implementations("rms_norm") == [first]


def test_the_traceback_shows_the_plugins_line(site, name_modules, log):
    name_modules(site.module("m_broken", BROKEN["half-way"][0]))
    load()
    (message,) = problems(log)
    assert "m_broken.py" in message and "raise RuntimeError('only half')" in message


def test_an_id_shared_by_two_plugins_belongs_to_the_first(site, name_modules, log):
    site.module("a_plug", REGISTER)
    site.module("b_plug", REGISTER.replace("x * weight", "x"))
    name_modules("b_plug", "a_plug")
    registry = load()
    assert ids(registry) == ["vendor.acme"]
    assert registry.origin("opmux::rms_norm", "vendor.acme").plugin == "a_plug"
    assert states() == {"a_plug": "loaded", "b_plug": "broken"}
    assert "op 'rms_norm' has an impl 'vendor.acme' already" in problems(log)[0]


@pytest.mark.parametrize("target", ["shape", "shape:register", "shape:P", "shape:plugin"])
def test_a_wrong_interface_version_is_rejected(target, site, log):
    methods = "class P:\n    @staticmethod\n    def register(registry): pass\nplugin = P()\n"
    site.module("shape", f"OPMUX_API = 2\n{REGISTER}\n{methods}")
    site.distribution("shape-dist", "1.0", backends={"shape": target})
    assert len(load()) == 0
    assert "is written for plugin interface 2, this opmux has 1" in problems(log)[0]


def test_the_right_interface_version_is_accepted(site, name_modules, log):
    name_modules(site.module("shape", "OPMUX_API = 1\n" + REGISTER))
    assert ids(load()) == ["vendor.acme"]
    assert problems(log) == []


# ---- ops that a plugin declares -------------------------------------------------------------------------------------


def test_a_plugin_may_declare_an_op(site, name_modules, log):
    name_modules(site.module("own", REGISTER.replace("made()", "made('acme_zigzag_quux', fn=lambda *a: a)")))
    registry = load()
    assert registry.list_operators() == ["acme_zigzag_quux"]
    assert problems(log) == []
    assert "plugin 'own' adds an op of its own, 'acme_zigzag_quux'" in log.text


def test_an_op_name_close_to_a_known_one_is_warned_about(site, name_modules, log):
    name_modules(site.module("own", REGISTER.replace("made()", "made('rmsnorm_fwdd')")))
    registry = load()
    assert registry.list_operators() == ["rmsnorm_fwdd"]
    assert problems(log) == ["plugin 'own' adds an op of its own, 'rmsnorm_fwdd'; did it mean 'rmsnorm_fwd'?"]


DECLARES = (
    """
from torch import Tensor
from opmux.core import op

@op
def acme_twice(x: Tensor) -> Tensor:
    return x + x
"""
    + REGISTER
)


def acme_twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_a_declared_op_stays_if_its_plugin_loads(site, name_modules):
    name_modules(site.module("declares", DECLARES))
    load()
    assert specs.find("acme_twice").key == "opmux::acme_twice"


@pytest.mark.parametrize("where", ["import", "register"])
def test_a_declared_op_is_removed_if_its_plugin_fails(where, site, name_modules, log):
    raises = "raise RuntimeError('late')\n"
    name_modules(site.module("declares", DECLARES + (raises if where == "import" else "    " + raises)))
    load()
    assert states() == {"declares": "broken"}
    assert specs.lookup("acme_twice", NAME_LOOKUP["impl"]) is None
    assert not hasattr(torch.ops.opmux, "acme_twice")
    again = op(acme_twice)  # the name is free again
    assert specs.find("acme_twice") is again.spec


TAGS = HEAD + "from opmux.core import impl\n@impl('rms_norm', id='vendor.tagged', kind='vendor', vendor='acme')\n"
TAGS += "def tagged(x, weight, eps, offset):\n    return x, x\n\ndef register(registry):\n    pass\n"


def test_an_impl_tagged_in_a_plugin_belongs_to_it(site, name_modules):
    name_modules(site.module("tags", TAGS))
    registry = load()
    assert ids(registry) == ["vendor.tagged"]
    assert registry.origin("opmux::rms_norm", "vendor.tagged").plugin == "tags"
    assert not [row for row in registry_module.tagged if row.impl.impl_id == "vendor.tagged"]


def test_an_impl_tagged_in_a_failing_plugin_is_removed(site, name_modules):
    name_modules(site.module("tags", TAGS + "    raise RuntimeError('late')\n"))
    assert len(load()) == 0
    assert not [row for row in registry_module.tagged if row.impl.impl_id == "vendor.tagged"]


# ---- where an impl comes from ---------------------------------------------------------------------------------------


def test_impls_of_an_installed_plugin_name_its_distribution(site):
    site.module("prov", REGISTER)
    site.distribution("acme-ops", "3.1", backends={"acme": "prov:register"})
    registry = load()
    origin = registry.origin("opmux::rms_norm", "vendor.acme")
    assert (origin.plugin, origin.distribution, origin.version) == ("acme", "acme-ops", "3.1")
    assert Path(origin.file) == site.path / "prov.py"
    assert str(origin) == f"acme-ops 3.1 ({site.path / 'prov.py'})"
    (plugin,) = discovery.plugins()
    assert (plugin.source, plugin.distribution, plugin.version) == ("entry point opmux.backends", "acme-ops", "3.1")


def test_impls_of_a_named_module_name_the_module(site, name_modules):
    name_modules(site.module("prov", REGISTER))
    registry = load()
    origin = registry.origin("opmux::rms_norm", "vendor.acme")
    assert (origin.plugin, origin.distribution, origin.version) == ("prov", None, None)
    assert Path(origin.file) == site.path / "prov.py"
    assert discovery.plugins()[0].source == "env TE_FL_PLUGIN_MODULES"


def test_existing_impls_keep_their_origin(first, site, name_modules):
    name_modules(site.module("prov", REGISTER))
    assert load(first).origin("opmux::rms_norm", "first").plugin == "code"


def test_a_missing_module_is_reported_by_name(site, name_modules, log):
    site.module("good", REGISTER)
    name_modules("good", "no_such_plugin")
    assert ids(load()) == ["vendor.acme"]
    (message,) = problems(log)
    assert "plugin 'no_such_plugin' (env TE_FL_PLUGIN_MODULES)" in message
    assert "ModuleNotFoundError: No module named 'no_such_plugin'" in message


@pytest.mark.parametrize("target", ["both", "both:register"])
def test_an_entry_point_and_a_module_name_may_mean_one_plugin(target, site, name_modules, log):
    site.module("both", REGISTER)
    site.distribution("acme-ops", "3.1", backends={"acme": target}, te_fl={"acme": target, "other_name": target})
    name_modules("both", "both")
    registry = load()
    assert ids(registry) == ["vendor.acme"]
    assert states() == {"acme": "loaded"}
    assert problems(log) == []


def test_a_second_load_starts_from_scratch(site, name_modules):
    name_modules(site.module("prov", REGISTER))
    assert ids(load()) == ids(load()) == ["vendor.acme"]
    assert len(discovery.plugins()) == 1


def test_a_module_without_register_may_register_at_import(site, name_modules, log):
    """The module uses @impl; tests/seeds covers @register_backend. A module that registers nothing raises."""
    tagged = "from opmux.core import impl\n\n@impl('rms_norm', id='vendor.tag', kind='vendor', vendor='tag')\n"
    site.module("tags", tagged + "def rms_norm(x, weight, eps, offset):\n    return x, x\n")
    site.module("empty", "")
    name_modules("tags", "empty")
    assert ids(load()) == ["vendor.tag"]
    assert states() == {"tags": "loaded", "empty": "broken"}
    assert "or a module whose import registers impls or backends" in problems(log)[0]


# ---- the module name of TransformerEngine-FL ------------------------------------------------------------------------

FOREIGN = REGISTER.replace("opmux.core", "transformer_engine.plugin.core")


def not_installed(site, monkeypatch):
    find = importlib.machinery.PathFinder.find_spec
    hidden = lambda name, *rest: None if name == "transformer_engine" else find(name, *rest)
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", hidden)
    return ModuleNotFoundError


def does_not_load(site, monkeypatch):
    """A package whose import fails half-way, as NVIDIA's does without its extension."""
    site.module("transformer_engine.__init__", "from . import some\n\nraise RuntimeError('found an empty package')\n")
    site.module("transformer_engine.some", "")
    return RuntimeError


@pytest.fixture(params=[not_installed, does_not_load])
def engine(request, site, monkeypatch):
    """A Transformer Engine without plugin.core, and the error that importing it raises."""
    return request.param(site, monkeypatch)


@pytest.mark.parametrize(
    "line",
    [
        "from transformer_engine.plugin.core import OpImpl, BackendImplKind",
        "from transformer_engine.plugin import core\nOpImpl = core.OpImpl",
        "import transformer_engine.plugin.core\nOpImpl = transformer_engine.plugin.core.OpImpl",
        "import transformer_engine.plugin.core as core\nOpImpl = core.OpImpl",
        "from transformer_engine.plugin.core.registry import OpImpl",
    ],
)
def test_plugins_can_import_the_foreign_name(line, engine, site, name_modules, log):
    site.module("foreign", REGISTER.replace("from opmux.core import BackendImplKind, OpImpl", line).replace(
        "BackendImplKind.VENDOR", "'vendor'"
    ))  # fmt: skip
    name_modules("foreign")
    assert ids(load()) == ["vendor.acme"], problems(log)
    assert sys.modules["foreign"].OpImpl is OpImpl
    assert not [name for name in sys.modules if name.partition(".")[0] == "transformer_engine"]
    with pytest.raises(engine):
        importlib.import_module("transformer_engine.plugin.core")


def test_an_unloadable_package_raises_where_it_is_used(site, name_modules, log):
    does_not_load(site, None)
    name_modules(site.module("foreign", "import transformer_engine as te\nte.pytorch\n" + FOREIGN))
    assert ids(load()) == []
    assert (
        "transformer_engine is installed but cannot be imported: RuntimeError: found an empty package"
        in problems(log)[0]
    )


def test_a_loaded_package_gets_the_missing_submodule_while_plugins_load(site, name_modules, log):
    site.module("transformer_engine.__init__", "")
    real = importlib.import_module("transformer_engine")
    name_modules(site.module("foreign", "import transformer_engine as te\nte.plugin.core\n" + FOREIGN))
    assert ids(load()) == ["vendor.acme"], problems(log)
    assert sys.modules["transformer_engine"] is real and not hasattr(real, "plugin")


def test_the_foreign_name_works_during_register(site, name_modules, log):
    inside = "def register(registry):\n    from transformer_engine.plugin.core import OpImpl as Late\n"
    name_modules(site.module("foreign", FOREIGN.replace("def register(registry):\n", inside)))
    assert ids(load()) == ["vendor.acme"], problems(log)


def test_a_plugin_may_search_for_the_package(site, name_modules, log):
    """Libraries search for Transformer Engine with find_spec: the stand-in must return a result instead of raising."""
    code = "import importlib.util\nimportlib.util.find_spec('transformer_engine')\n"
    name_modules(site.module("foreign", code + FOREIGN))
    assert ids(load()) == ["vendor.acme"], problems(log)


def test_an_installed_package_of_that_name_is_used(site, name_modules):
    site.module("transformer_engine.__init__", "real = True\n")
    site.module("transformer_engine.plugin.__init__", "")
    site.module("transformer_engine.plugin.core", "OpImpl = BackendImplKind = 'theirs'\n")
    source = "from transformer_engine.plugin.core import OpImpl\n\ndef register(registry):\n    pass\n"
    name_modules(site.module("foreign", source))
    load()
    assert states() == {"foreign": "loaded"}
    assert sys.modules["foreign"].OpImpl == "theirs"
    assert sys.modules["transformer_engine"].real
    assert sys.modules["transformer_engine.plugin.core"].OpImpl == "theirs"


def test_an_installed_package_gets_the_missing_submodule(site, name_modules, log):
    site.module("transformer_engine.__init__", "real = True\n")
    name_modules(site.module("foreign", "import transformer_engine as te\nassert te.real\n" + FOREIGN))
    assert ids(load()) == ["vendor.acme"], problems(log)
    assert sys.modules["transformer_engine"].real
    assert "transformer_engine.plugin.core" not in sys.modules


def test_an_installed_package_is_not_imported_unless_needed(site, name_modules, log):
    site.module("transformer_engine.__init__", "raise RuntimeError('needs a GPU')\n")
    name_modules(site.module("foreign", FOREIGN))
    assert ids(load()) == ["vendor.acme"], problems(log)
    assert "transformer_engine" not in sys.modules


# ---- whole programs -------------------------------------------------------------------------------------------------

CALLS = """
import torch, opmux
x, w = torch.ones(2, 4), torch.full((4,), 3.0)
for _ in range(3):
    try:
        y, _ = opmux.ops.rms_norm(x, w)
        print(y[0, 0].item())
    except opmux.core.PluginError as error:
        print("PluginError", error)
print(opmux.core.get_default_manager().get_selected_impl_id("rms_norm"))
opmux.ops.gelu(x)
"""


def run(code, cwd, path, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL"))}
    env = clean | {"PYTHONPATH": f"{SRC}{os.pathsep}{path}"} | env
    return fresh.run([sys.executable, "-c", code], env=env, cwd=cwd, timeout=120, warm=True)


def test_a_program_continues_without_its_broken_plugin(site, tmp_path):
    site.module("m_broken", BROKEN["half-way"][0])
    site.module("good", REGISTER.replace("x * weight", "x * 7").replace("vendor.acme", "vendor.good"))
    site.distribution("acme-ops", "3.1", backends={"good": "good"})
    result = run(
        CALLS, tmp_path, site.path, TE_FL_PREFER="vendor", TE_FL_PLUGIN_MODULES="m_broken", TEFL_LOG_LEVEL="INFO"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["7.0", "7.0", "7.0", "vendor.good"]
    assert result.stderr.count("could not be loaded: RuntimeError: only half; none of its impls is registered") == 1
    assert result.stderr.count("Traceback (most recent call last)") == 1


def test_a_strict_program_raises_at_every_use(site, tmp_path):
    site.module("m_broken", BROKEN["half-way"][0])
    result = run(CALLS, tmp_path, site.path, TE_FL_STRICT="1", TE_FL_PLUGIN_MODULES="m_broken")
    assert result.stdout.count("PluginError plugin 'm_broken'") == 3, result.stdout + result.stderr


def test_a_blocked_plugin_is_never_imported(site, tmp_path):
    site.module("marks", MARKS)
    site.distribution("acme-ops", "3.1", backends={"acme": "marks"})
    result = run(
        CALLS, tmp_path, site.path, OPMUX_BLOCK_PLUGINS="acme.ops", OPMUX_DENY_VENDORS="cpu", TE_FL_PREFER="vendor"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == "reference.torch"
    assert not (tmp_path / "imported").exists()
