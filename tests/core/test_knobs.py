"""Settings: where each is read from, which source wins, and the error for a value that cannot be parsed."""

import os
import sys
import tomllib
from pathlib import Path

import fresh
import pytest

from opmux.core import knobs
from opmux.core.errors import BadKnob
from opmux.core.knobs import unknown_settings

KNOBS = {k.name: k for k in knobs.all_knobs()}

SRC = Path(__file__).parents[2] / "src"

# Setting names of other libraries -> our names.
ALIASES = {
    "TE_FL_PREFER": "OPMUX_PREFER",
    "TE_FL_PREFER_VENDOR": "OPMUX_PREFER_VENDOR",
    "TE_FL_STRICT": "OPMUX_STRICT",
    "TE_FL_ALLOW_VENDORS": "OPMUX_ALLOW_VENDORS",
    "TE_FL_DENY_VENDORS": "OPMUX_DENY_VENDORS",
    "TE_FL_PER_OP": "OPMUX_PER_OP",
    "TE_FL_PLUGIN_MODULES": "OPMUX_PLUGIN_MODULES",
    "TE_FL_SKIP_CUDA": "OPMUX_SKIP_CUDA",
    "TE_FL_DEBUG": "OPMUX_DEBUG",
    "TEFL_LOG_LEVEL": "OPMUX_LOG_LEVEL",
    "TE_BACKEND": "OPMUX_BACKEND",
    "TE_PLUGIN": "OPMUX_PLUGIN",
    "TE_FALLBACK_BACKEND": "OPMUX_FALLBACK_BACKEND",
}

# Two values of each type, as text and parsed.
VALUES = {
    knobs.flag: [("1", True), ("0", False)],
    knobs.names: [("nvidia, amd,", ("nvidia", "amd")), ("acme", ("acme",))],
    knobs.modules: [("acme_opmux, other", ("acme_opmux", "other")), ("acme", ("acme",))],
    knobs.word: [("torch", "torch"), (" acme ", "acme")],
    knobs.path: [("/opt/a", "/opt/a"), ("/opt/b", "/opt/b")],
    knobs.toml: [("a.toml", "a.toml"), ("b.toml", "b.toml")],
    knobs.level: [("debug", "DEBUG"), ("WARN", "WARNING")],
    knobs.prefer: [("Vendor", "vendor"), ("vendor:Acme", "vendor:acme")],
    knobs.orders: [
        ("gelu=vendor:acme|flagos;rope_fwd=flagos", {"gelu": ("vendor:acme", "flagos"), "rope_fwd": ("flagos",)}),
        ("gelu = reference | * ;", {"gelu": ("reference", "*")}),
    ],
}

# Invalid text, by type; names and paths accept any text.
MALFORMED = {
    knobs.flag: ["maybe", "2", "-1", "1,0"],
    knobs.level: ["LOUD", "INFO,DEBUG"],
    knobs.prefer: ["best", "vendor:", "!vendor", "*", "vendor|flagos", "cuda:0"],
    knobs.orders: [
        "rmsnorm_fwd",
        "rmsnorm_fwd=",
        "=vendor",
        "rmsnorm_fwd=|",
        "rmsnorm_fwd=quick",
        "rmsnorm_fwd=vendor:",
        "rmsnorm_fwd=device:acme",
        "rmsnorm_fwd=vendor:acme,rope_fwd=flagos",
        "rmsnorm_fwd=vendor:acme rope_fwd=flagos",
        "rmsnorm_fwd=flagos;rope_fwd",
    ],
}

# Invalid values in TOML.
MALFORMED_TOML = {
    knobs.flag: ['"maybe"', "2", "[true]"],
    knobs.names: ["3", "[1, 2]", "true"],
    knobs.modules: ["3", "[1, 2]", "true"],
    knobs.word: ["3", "[]"],
    knobs.level: ['"LOUD"', "10"],
    knobs.prefer: ['"best"', "1", '["vendor"]'],
    knobs.orders: ['"gelu"', "3", '["gelu=vendor"]', "{ gelu = 3 }", "{ gelu = [] }", '{ gelu = "quick" }'],
}


def all_knobs(*kinds):
    return [pytest.param(k, id=k.name) for k in KNOBS.values() if not kinds or k.kind in kinds]


def in_file():
    return [pytest.param(k, id=k.name) for k in KNOBS.values() if k.in_file and not k.trusted]


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    """A directory without opmux.toml, and no CUDA variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no config"))
    monkeypatch.setattr(knobs, "_refused", set())
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


def toml(text, path="opmux.toml"):
    Path(path).write_text(text, encoding="utf-8")


def quoted(text):
    return '"' + text + '"'


# ---- where a setting comes from -------------------------------------------------------------------------------------


def test_foreign_names_are_aliases():
    assert {a: k.name for k in KNOBS.values() for a in k.aliases} == ALIASES


@pytest.mark.parametrize("knob", all_knobs())
def test_an_unset_setting_has_its_default(knob):
    reading = knob.look()
    assert (reading.value, reading.source, reading.is_set) == (knob.default, "default", False)
    assert knob.doc


@pytest.mark.parametrize("knob", all_knobs())
def test_every_setting_is_read_from_the_environment(knob, monkeypatch):
    for name in (knob.name, *knob.aliases):
        for text, value in VALUES[knob.kind]:
            if knob.name == "OPMUX_CONFIG":
                toml("", text := "settings.toml")
                value = text
            with monkeypatch.context() as m:
                m.setenv(name, text)
                reading = knob.look()
                assert (reading.value, reading.source) == (value, f"env {name}")
                assert reading.is_set and not reading.from_file
                assert knob.get() == value


@pytest.mark.parametrize("alias", ALIASES)
def test_our_name_beats_its_alias(alias, monkeypatch):
    knob = KNOBS[ALIASES[alias]]
    (ours, value), (theirs, _) = VALUES[knob.kind]
    monkeypatch.setenv(alias, theirs)
    monkeypatch.setenv(knob.name, ours)
    assert knob.look() == knobs.Setting(value, f"env {knob.name}")


@pytest.mark.parametrize("blank", ["", " ", "\t "])
@pytest.mark.parametrize("knob", all_knobs())
def test_a_blank_variable_counts_as_unset(knob, blank, monkeypatch):
    for name in (knob.name, *knob.aliases):
        monkeypatch.setenv(name, blank)
    if knob.blank:  # a blank allow list differs from an unset one
        assert knob.look() == knobs.Setting((), f"env {knob.name}")
        return
    assert knob.look() == knobs.Setting(knob.default, "default")
    if knob.aliases:
        text, value = VALUES[knob.kind][0]
        monkeypatch.setenv(knob.aliases[0], text)
        assert knob.look() == knobs.Setting(value, f"env {knob.aliases[0]}")


# ---- the file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knob", in_file())
def test_the_file_is_read_and_the_environment_overrides_it(knob, monkeypatch):
    (text, value), (other, other_value) = VALUES[knob.kind]
    toml(f"{knob.key} = {quoted(text)}")
    reading = knob.look()
    assert (reading.value, reading.source, reading.from_file) == (value, "file opmux.toml", True)
    for name in reversed((knob.name, *knob.aliases)):
        monkeypatch.setenv(name, other)
        assert knob.look() == knobs.Setting(other_value, f"env {name}")


def test_keys_in_the_file_are_the_names_in_lower_case():
    assert (knobs.PREFER.key, knobs.PLUGIN_MODULES.key) == ("prefer", "plugin_modules")


def test_a_named_file_replaces_the_default_one(monkeypatch, tmp_path):
    toml('prefer = "reference"')
    toml('strict = "1"', tmp_path / "mine.toml")
    monkeypatch.setenv("OPMUX_CONFIG", "mine.toml")
    assert knobs.STRICT.look() == knobs.Setting(True, "file mine.toml")
    assert not knobs.PREFER.look().is_set


def test_a_blank_config_variable_means_the_default_file(monkeypatch):
    toml('prefer = "reference"')
    monkeypatch.setenv("OPMUX_CONFIG", "  ")
    assert knobs.PREFER.get() == "reference"


@pytest.mark.parametrize("what", ["missing.toml", "."])
def test_a_named_file_must_exist(what, monkeypatch):
    monkeypatch.setenv("OPMUX_CONFIG", what)
    for knob in (knobs.PREFER, knobs.STRICT):
        with pytest.raises(BadKnob, match=r"OPMUX_CONFIG='.*' is not a file") as caught:
            knob.get()
        assert repr(what) in str(caught.value) and "TOML file" in str(caught.value)


@pytest.mark.parametrize("text", ["prefer = ", "prefer = vendor", "[per_op\n", "prefer = 'a'\nprefer = 'b'"])
def test_the_error_for_broken_toml_names_the_file(text):
    toml(text)
    with pytest.raises(BadKnob, match=r"opmux\.toml is not valid TOML: .*\(at "):
        knobs.PREFER.get()


def test_the_error_for_a_file_that_is_not_utf8_names_it():
    Path("opmux.toml").write_bytes(b'prefer = "vend\xff"')
    with pytest.raises(BadKnob, match="not valid TOML"):
        knobs.PREFER.get()


def test_the_file_is_read_as_utf8_in_any_locale():
    toml('allow_vendors = "华为"')
    code = "from opmux.core import knobs; print(ascii(knobs.ALLOW_VENDORS.get()))"
    result = python(code, LC_ALL="en_US.ISO-8859-1", LANG="en_US.ISO-8859-1", PYTHONUTF8="0")
    assert result.stdout.strip() == ascii(("华为",)), result.stderr


def test_a_changed_file_is_read_again(tmp_path):
    toml('prefer = "vendor"')
    assert knobs.PREFER.get() == "vendor"
    toml('prefer = "reference"')
    assert knobs.PREFER.get() == "reference"
    (tmp_path / "opmux.toml").unlink()
    assert knobs.PREFER.get() is None


def test_natural_toml_types_are_accepted():
    toml(
        """
        strict = true
        prefer_vendor = 0
        allow_vendors = ["nvidia", " amd "]
        [per_op]
        rmsnorm_fwd = "vendor:acme|flagos"
        "aten::add.Tensor" = ["Reference", "*"]
        """
    )
    assert knobs.STRICT.get() is True
    assert knobs.PREFER_VENDOR.get() is False
    assert knobs.ALLOW_VENDORS.get() == ("nvidia", "amd")
    assert knobs.PER_OP.get() == {"rmsnorm_fwd": ("vendor:acme", "flagos"), "aten::add.Tensor": ("reference", "*")}


# ---- files that anybody may have written ----------------------------------------------------------------------------


def test_a_file_in_the_current_directory_cannot_name_modules(caplog):
    """The setting is ignored, with one warning that says where modules may be named."""
    toml('plugin_modules = ["evil"]\nprefer = "reference"')
    for _ in range(2):
        assert knobs.PLUGIN_MODULES.look() == knobs.Setting((), "default")
    assert knobs.PREFER.get() == "reference"
    (messages,) = [r.getMessage() for r in caplog.records]
    assert messages.startswith(
        "opmux.toml: plugin_modules is ignored: a file found in the current directory may not name"
    )
    assert "Set OPMUX_PLUGIN_MODULES, name the file by OPMUX_CONFIG, or put the line into " in messages


def test_a_file_named_by_the_user_can_name_modules(monkeypatch):
    toml('plugin_modules = ["mine"]')
    monkeypatch.setenv("OPMUX_CONFIG", "opmux.toml")
    assert knobs.PLUGIN_MODULES.look() == knobs.Setting(("mine",), "file opmux.toml")


def test_the_users_own_file_can_name_modules_and_comes_after_the_directorys(monkeypatch, tmp_path, caplog):
    users = tmp_path / "config" / "opmux"
    users.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    toml('plugin_modules = ["mine"]\nprefer = "vendor"\nstrict = true', users / "opmux.toml")
    toml('prefer = "reference"')
    assert knobs.PLUGIN_MODULES.look() == knobs.Setting(("mine",), f"file {users / 'opmux.toml'}")
    assert (knobs.PREFER.get(), knobs.STRICT.get()) == ("reference", True)
    monkeypatch.chdir(users)  # the current directory is the user's configuration folder
    assert knobs.PLUGIN_MODULES.get() == ("mine",) and caplog.records == []


# ---- invalid values -------------------------------------------------------------------------------------------------


def test_every_type_of_setting_is_tested_here():
    assert set(VALUES) == {k.kind for k in KNOBS.values()}
    assert set(MALFORMED_TOML) == {k.kind for k in KNOBS.values() if k.in_file}


@pytest.mark.parametrize("knob", all_knobs(*MALFORMED))
def test_an_invalid_variable_is_quoted_with_a_valid_value(knob, monkeypatch):
    for name in (knob.name, *knob.aliases):
        for text in MALFORMED[knob.kind]:
            with monkeypatch.context() as m:
                m.setenv(name, text)
                with pytest.raises(BadKnob) as caught:
                    knob.get()
                message, _, example = str(caught.value).partition("A valid value: ")
                assert message.startswith(f"{name}={text!r} cannot be read as ")
                variable, _, value = example.partition("=")
                assert variable == name
                m.setenv(variable, value)
                assert knob.look().is_set


@pytest.mark.parametrize("knob", in_file())
def test_an_invalid_line_is_quoted_with_a_valid_value(knob):
    for text in MALFORMED_TOML[knob.kind]:
        toml(f"{knob.key} = {text}")
        with pytest.raises(BadKnob) as caught:
            knob.get()
        message, _, example = str(caught.value).partition("A valid value: ")
        value = tomllib.loads(f"it = {text}")["it"]
        assert message.startswith(f"opmux.toml: {knob.key}={value!r} cannot be read as ")
        toml(example)
        assert knob.look().from_file


def test_the_error_for_a_misspelt_token_suggests_the_nearest(monkeypatch):
    monkeypatch.setenv("TE_FL_PREFER", "refrence")
    with pytest.raises(BadKnob, match="Did you mean 'reference'"):
        knobs.PREFER.get()
    monkeypatch.setenv("TE_FL_PER_OP", "gelu=vendr:acme|flagos")
    with pytest.raises(BadKnob, match=r"vendr:acme.*vendor:NAME"):
        knobs.PER_OP.get()


def test_an_invalid_alias_is_ignored_if_our_name_is_set(monkeypatch):
    monkeypatch.setenv("OPMUX_STRICT", "1")
    monkeypatch.setenv("TE_FL_STRICT", "maybe")
    assert knobs.STRICT.get() is True


# ---- unknown settings -----------------------------------------------------------------------------------------------


def test_unknown_settings_are_warned_about(monkeypatch):
    assert unknown_settings() == []
    for name in ("OPMUX_PREFFER", "TE_FL_STRICKT", "TEFL_LOGLEVEL", "OPMUX_QQQQQQ", "TE_OTHER"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OPMUX_STRICT", "1")
    toml('prefered = "vendor"\nstrict = true\nconfig = "other.toml"')
    assert unknown_settings() == [
        "environment variable OPMUX_PREFFER is not a setting of opmux: did you mean OPMUX_PREFER?",
        "environment variable OPMUX_QQQQQQ is not a setting of opmux",
        "environment variable TEFL_LOGLEVEL is not a setting of opmux: did you mean TEFL_LOG_LEVEL?",
        "environment variable TE_FL_STRICKT is not a setting of opmux: did you mean TE_FL_STRICT?",
        "opmux.toml: prefered is not a setting of opmux: did you mean prefer?",
        "opmux.toml: config is not a setting of opmux",
    ]


# ---- when settings are read -----------------------------------------------------------------------------------------


def python(code, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL"))}
    return fresh.run(
        [sys.executable, "-c", code],
        env=clean | {"PYTHONPATH": str(SRC)} | env,
        timeout=120,
    )


def test_import_reads_no_settings(tmp_path):
    """Imports are silent, whatever is set; the first use reports errors."""
    toml("this is no TOML")
    bad = {k.name: MALFORMED[k.kind][0] for k in KNOBS.values() if k.kind in MALFORMED}
    code = """
import opmux, opmux.ops, opmux.core, opmux.core.knobs
opmux.core.OpRegistry(); opmux.core.OpManager(); opmux.core.get_default_manager()
print("imported", flush=True)
opmux.ops.rms_norm
try:
    opmux.core.get_policy()
except opmux.core.BadKnob as error:
    print(error)
"""
    result = python(code, OPMUX_CONFIG="missing.toml", **bad)
    assert (result.returncode, result.stderr) == (0, "")
    first, second = result.stdout.splitlines()
    assert first == "imported"
    assert second.startswith(f"OPMUX_STRICT={bad['OPMUX_STRICT']!r} cannot be read")
