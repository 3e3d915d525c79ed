"""From settings to a policy: precedence, filters, and messages about unknown names."""

import io
import itertools
import logging
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import fresh
import pytest
import torch

import opmux
from opmux.core import (
    BackendImplKind,
    BackendNotFound,
    OpImpl,
    SelectionPolicy,
    UnknownName,
    get_default_manager,
    get_policy,
    log,
    manager,
    policy_context,
    reset_global_policy,
    set_global_policy,
    with_allowed_vendors,
    with_denied_vendors,
    with_preference,
    with_strict_mode,
)
from opmux.core.choosing import choose
from opmux.core.policy import from_knobs

SRC = Path(__file__).parents[2] / "src"
DEFAULT, VENDOR, REFERENCE = BackendImplKind.DEFAULT, BackendImplKind.VENDOR, BackendImplKind.REFERENCE
TEX, OURS = "tex::rmsnorm_fwd", "opmux::rms_norm"


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(manager, "_warned", set())


def toml(text):
    Path("opmux.toml").write_text(text)


def first(key=TEX, policy=None):
    return (policy or from_knobs()).order_for(key)[0]


def call_tex():
    x = torch.ones(2, 4)
    return opmux.ops.rmsnorm_fwd(x, torch.ones(4), 1e-5, None, None, torch.float32, 0, False)


def fake_norm(x, weight, eps=1e-6, offset=0.0):
    return torch.full_like(x, 7), x.sum(-1)


def fake_fwd(input, weight, **kwargs):
    return torch.full_like(input, 7), input.sum(-1)


# ---- precedence -----------------------------------------------------------------------------------------------------

# Strongest first: the variable, its value, and the token that a tex op then tries first.
ENV = [
    ("TE_FL_PER_OP", "rmsnorm_fwd=impl:one", "impl:one"),
    ("TE_BACKEND", "two", "vendor:two"),
    ("TE_PLUGIN", "three", "vendor:three"),
    ("TE_FL_PREFER", "vendor:four", "vendor:four"),
    ("TE_FL_PREFER_VENDOR", "1", "vendor"),
]
FILE = [
    ("per_op", '{ rmsnorm_fwd = "impl:six" }', "impl:six"),
    ("backend", '"seven"', "vendor:seven"),
    ("plugin", '"eight"', "vendor:eight"),
    ("prefer", '"vendor:nine"', "vendor:nine"),
    ("prefer_vendor", "true", "vendor"),
]


def names(rows):
    return [row[0] for row in rows]


def test_without_settings_the_default_order_applies():
    assert from_knobs() == SelectionPolicy()
    assert from_knobs().order_for(TEX) == from_knobs().order_for(OURS) == ("flagos", "vendor", "reference")


@pytest.mark.parametrize(("variable", "value", "token"), ENV, ids=names(ENV))
def test_each_variable_alone_sets_the_first_token(variable, value, token, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert first() == token


@pytest.mark.parametrize(("key", "value", "token"), FILE, ids=names(FILE))
def test_each_line_alone_sets_the_first_token(key, value, token):
    toml(f"{key} = {value}")
    assert first() == token


@pytest.mark.parametrize("pair", list(itertools.combinations(ENV, 2)), ids=lambda p: " over ".join(names(p)))
def test_the_stronger_variable_wins(pair, monkeypatch):
    for variable, value, _ in pair:
        monkeypatch.setenv(variable, value)
    assert first() == pair[0][2]


@pytest.mark.parametrize("pair", list(itertools.combinations(FILE, 2)), ids=lambda p: " over ".join(names(p)))
def test_the_stronger_line_wins(pair):
    toml("\n".join(f"{key} = {value}" for key, value, _ in pair))
    assert first() == pair[0][2]


@pytest.mark.parametrize("line", FILE, ids=names(FILE))
@pytest.mark.parametrize("variable", ENV, ids=names(ENV))
def test_any_variable_overrides_any_line(variable, line, monkeypatch):
    monkeypatch.setenv(*variable[:2])
    toml(f"{line[0]} = {line[1]}")
    assert first() == variable[2]


def test_our_name_overrides_its_alias(monkeypatch):
    monkeypatch.setenv("TE_FL_PREFER", "vendor")
    monkeypatch.setenv("OPMUX_PREFER", "reference")
    assert first() == "reference"


@pytest.mark.parametrize(("value", "token"), [("1", "vendor"), ("0", "flagos"), ("", "reference")])
def test_prefer_vendor_prefers_vendors(value, token, monkeypatch):
    toml('prefer = "reference"')
    monkeypatch.setenv("TE_FL_PREFER_VENDOR", value)
    assert first() == token


def test_a_per_op_order_applies_only_to_its_op(monkeypatch):
    monkeypatch.setenv("TE_FL_PER_OP", "RMSNORM_fwd=Vendor:Acme|flagos;tex::layernorm_fwd=reference|*")
    policy = from_knobs()
    assert policy.order_for(TEX) == ("vendor:acme", "flagos")
    assert policy.order_for("tex::layernorm_fwd") == ("reference", "*")
    assert policy.order_for(OURS) == ("flagos", "vendor", "reference")


def test_per_op_orders_in_the_environment_override_the_files(monkeypatch):
    toml('[per_op]\nrmsnorm_fwd = "reference"\ngelu = "vendor"')
    monkeypatch.setenv("TE_FL_PER_OP", "rmsnorm_fwd=flagos")
    policy = from_knobs()
    assert policy.order_for(TEX) == ("flagos",)
    assert first("opmux::gelu_tanh_mul", policy) == "flagos"


# ---- code overrides settings ----------------------------------------------------------------------------------------

EVERYTHING = {variable: value for variable, value, _ in ENV}


def test_a_scope_overrides_everything(setenv):
    setenv(**EVERYTHING)
    assert first(policy=get_policy()) == "impl:one"
    with with_preference("reference") as policy:
        assert get_policy() == policy
        assert policy.order_for(TEX) == ("reference", "flagos", "vendor")
    assert first(policy=get_policy()) == "impl:one"


def test_the_process_policy_overrides_the_settings(setenv):
    setenv(**EVERYTHING)
    opmux.set_policy("reference")
    assert first(policy=get_policy()) == "reference"
    reset_global_policy()
    assert first(policy=get_policy()) == "impl:one"


def test_a_scope_overrides_the_process_policy():
    opmux.set_policy("reference")
    with opmux.policy("vendor"):
        assert first(policy=get_policy()) == "vendor"
        with opmux.policy(per_op={"rmsnorm_fwd": "flagos"}):
            assert get_policy().order_for(TEX) == ("flagos",)
            assert first(OURS, get_policy()) == "vendor"
    assert first(policy=get_policy()) == "reference"


def test_an_order_in_code_overrides_an_order_in_the_settings(setenv):
    setenv(TE_FL_PER_OP="rmsnorm_fwd=flagos;gelu_tanh=reference")
    with opmux.policy(per_op={"rmsnorm_fwd": ["reference", "*"]}):
        assert get_policy().order_for(TEX) == ("reference", "*")
        assert get_policy().order_for("opmux::gelu_tanh") == ("reference",)


def test_a_scope_keeps_the_filters_of_the_settings(setenv):
    setenv(TE_FL_DENY_VENDORS="a", TE_FL_ALLOW_VENDORS="a,b,c", TE_FL_SKIP_CUDA="1", TE_FL_STRICT="1")
    with opmux.policy("vendor", deny=["b"]) as policy:
        assert allowed_vendors(policy) == ["c", "", "", ""]
        assert policy.strict and "nvidia" in dict(policy.left_out)


def test_a_complete_policy_replaces_the_settings(setenv):
    setenv(TE_FL_DENY_VENDORS="a", TE_FL_STRICT="1", TE_FL_PREFER="vendor")
    with policy_context(SelectionPolicy()):
        assert get_policy() == SelectionPolicy()
    set_global_policy(SelectionPolicy(prefer="reference"))
    assert not get_policy().strict


@pytest.mark.parametrize(("text", "strict"), [("1", True), ("0", False), ("true", True), ("", False)])
def test_strict_is_parsed(text, strict, setenv):
    setenv(TE_FL_STRICT=text)
    assert get_policy().strict is strict
    with with_strict_mode():
        assert get_policy().strict
    with opmux.policy(strict=False):
        assert not get_policy().strict


# ---- filters --------------------------------------------------------------------------------------------------------


def impl(impl_id, kind, vendor=None):
    return OpImpl("an_op", impl_id, kind, vendor, fake_norm)


POOL = [
    impl("vendor.a", VENDOR, "a"),
    impl("vendor.b", VENDOR, "B"),
    impl("vendor.c", VENDOR, "c"),
    impl("vendor.nvidia", VENDOR, "NVIDIA"),
    impl("default.flagos.nvidia", DEFAULT, "nvidia"),
    impl("default.flagos", DEFAULT),
    impl("native", REFERENCE),
    impl("reference.torch", REFERENCE),
]


def allowed_vendors(policy):
    """The vendors of the impls that pass the filters ("" if an impl has no vendor), in the order of POOL."""
    chosen = [c.impl for c in choose(policy, "an_op", POOL)[0]]
    return [(i.vendor or "").casefold() for i in POOL if i in chosen]


PLAIN = ["", "", ""]


@pytest.mark.parametrize(
    ("env", "left"),
    [
        ({}, ["a", "b", "c", "nvidia", "nvidia", *PLAIN]),
        ({"TE_FL_ALLOW_VENDORS": "a, B"}, ["a", "b", *PLAIN]),
        ({"TE_FL_ALLOW_VENDORS": "nvidia"}, ["nvidia", "nvidia", *PLAIN]),
        ({"TE_FL_ALLOW_VENDORS": "nobody"}, PLAIN),
        ({"TE_FL_ALLOW_VENDORS": " "}, ["a", "b", "c", "nvidia", "nvidia", *PLAIN]),
        ({"TE_FL_DENY_VENDORS": "A,nvidia"}, ["b", "c", *PLAIN]),
        ({"TE_FL_DENY_VENDORS": "a", "TE_FL_ALLOW_VENDORS": "a,b"}, ["b", *PLAIN]),
        ({"TE_FL_SKIP_CUDA": "1"}, ["a", "b", "c", "nvidia", *PLAIN]),
        ({"TE_FL_SKIP_CUDA": "0"}, ["a", "b", "c", "nvidia", "nvidia", *PLAIN]),
    ],
)
def test_filters_leave_only_allowed_impls(env, left, setenv):
    setenv(**env)
    assert allowed_vendors(get_policy()) == left


def test_skip_cuda_excludes_the_vendor_library_but_not_our_kernels(setenv):
    setenv(TE_FL_SKIP_CUDA="1")
    chosen, refused = choose(get_policy(), "an_op", POOL)
    assert [r.impl.impl_id for r in refused] == ["vendor.nvidia"]
    assert "OPMUX_SKIP_CUDA" in refused[0].reason
    assert "default.flagos.nvidia" in [c.impl.impl_id for c in chosen]


@pytest.mark.parametrize("order", ["vendor:a|*", "impl:vendor.a|*", "vendor|*"])
def test_filters_apply_before_orders(order, setenv):
    setenv(TE_FL_DENY_VENDORS="a", TE_FL_PER_OP=f"an_op={order}")
    chosen, refused = choose(get_policy(), "an_op", POOL)
    assert "vendor.a" not in [c.impl.impl_id for c in chosen]
    assert ("vendor.a", "vendor 'a' is denied") in [(r.impl.impl_id, r.reason) for r in refused]


def test_an_empty_allow_list_in_code_allows_none():
    assert allowed_vendors(SelectionPolicy(allow_vendors=frozenset())) == PLAIN
    with opmux.policy(allow=[]) as policy:
        assert allowed_vendors(policy) == PLAIN


def test_allow_and_deny_lists_work_in_code():
    with with_allowed_vendors("a", "b"):
        assert allowed_vendors(get_policy()) == ["a", "b", *PLAIN]
        with with_denied_vendors("b"):
            assert allowed_vendors(get_policy()) == ["a", *PLAIN]


# ---- the backends of tex --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["TE_BACKEND", "TE_PLUGIN", "OPMUX_BACKEND"])
@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("flaggems", "flagos"),
        ("FlagGems", "flagos"),
        ("torch", "reference"),
        ("Hygon", "vendor:hygon"),
        ("flagos", "flagos"),
        ("reference", "reference"),
    ],
)
def test_a_backend_setting_applies_only_to_tex_ops(variable, name, token, monkeypatch):
    monkeypatch.setenv("TE_FL_PREFER", "vendor")
    monkeypatch.setenv(variable, name)
    policy = from_knobs()
    usual = ("vendor", "flagos", "reference")
    assert policy.order_for(TEX) == (token, *(t for t in usual if t != token))
    assert policy.order_for(OURS) == usual
    assert policy.order_for("aten::add.Tensor") == usual


@pytest.mark.parametrize(
    ("prefer", "order"),
    [
        ("flagos", ("flagos", "vendor:acme", "vendor", "reference")),
        ("vendor", ("vendor", "flagos", "vendor:acme", "reference")),
        ("reference", ("reference", "flagos", "vendor:acme", "vendor")),
        ("vendor:b", ("vendor:b", "flagos", "vendor:acme", "vendor", "reference")),
    ],
)
def test_the_fallback_backend_follows_flaggems(prefer, order, monkeypatch):
    monkeypatch.setenv("TE_FL_PREFER", prefer)
    monkeypatch.setenv("TE_FALLBACK_BACKEND", "acme")
    assert from_knobs().order_for(TEX) == order
    assert "vendor:acme" not in from_knobs().order_for(OURS)


def test_backend_and_fallback_combine(monkeypatch):
    monkeypatch.setenv("TE_BACKEND", "acme")
    monkeypatch.setenv("TE_FALLBACK_BACKEND", "torch")
    assert from_knobs().order_for(TEX) == ("vendor:acme", "flagos", "reference", "vendor")


@pytest.mark.parametrize("variable", ["TE_BACKEND", "TE_PLUGIN", "TE_FALLBACK_BACKEND"])
@pytest.mark.parametrize("strict", ["0", "1"])
def test_an_unknown_backend_stops_only_tex_ops(variable, strict, setenv):
    setenv(**{variable: "hygon", "TE_FL_STRICT": strict})
    assert opmux.ops.rms_norm(torch.ones(2, 4), torch.ones(4))[0].shape == (2, 4)
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            call_tex()
        assert isinstance(caught.value, BackendNotFound)
        assert str(caught.value).startswith("Backend 'hygon' not found. Available backends: [")
        assert "'torch'" in str(caught.value)


def test_a_registered_backend_runs(setenv, add_impl):
    add_impl("rmsnorm_fwd", "vendor.acme", VENDOR, fake_fwd, vendor="acme")
    setenv(TE_BACKEND="Acme")
    assert call_tex()[0].eq(7).all()
    setenv(TE_BACKEND="torch")
    assert not call_tex()[0].eq(7).any()


def test_a_backend_with_only_a_primitive_runs(setenv, add_impl):
    """acme implements only a primitive. A setting that names acme selects it even for the tex op over it."""
    add_impl("rms_norm", "vendor.acme", VENDOR, fake_norm, vendor="acme")
    setenv(TE_FL_PREFER="reference")
    assert not call_tex()[0].eq(7).any()
    setenv(TE_BACKEND="acme")
    assert call_tex()[0].eq(7).all()


def python(code, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL"))}
    env = clean | {"PYTHONPATH": str(SRC)} | env
    return fresh.run([sys.executable, "-c", code], env=env, timeout=120, warm=True)


TEX_CALL = """
import torch, opmux
opmux.ops.rmsnorm_fwd(torch.ones(2, 4), torch.ones(4), 1e-5, None, None, torch.float32, 0, False)
print("it ran")
"""
CALL_BY_NAME = """
import torch, opmux
opmux.core.get_default_manager().call("rms_norm", torch.ones(2, 4), torch.ones(4))
print("it ran")
"""


@pytest.mark.parametrize("code", [TEX_CALL, CALL_BY_NAME], ids=["as a function", "by name"])
def test_the_first_call_of_a_program_may_be_any(code):
    result = python(code, TE_BACKEND="torch")
    assert (result.returncode, result.stdout, result.stderr) == (0, "it ran\n", "")


def test_a_program_with_an_unknown_backend_ends_with_the_reason():
    result = python(TEX_CALL, TE_BACKEND="hygon")
    assert (result.returncode, result.stdout) == (1, "")
    last = result.stderr.strip().splitlines()[-1]
    assert re.search(r"BackendNotFound: Backend 'hygon' not found\. Available backends: \[.*'torch'.*\]\. .+", last)


def test_an_invalid_setting_raises_at_every_use():
    code = """
import torch, opmux
for _ in range(2):
    try:
        opmux.ops.gelu(torch.ones(4))
    except opmux.core.BadKnob as error:
        print(error)
"""
    result = python(code, TEFL_LOG_LEVEL="LOUD")
    assert result.stdout.count("TEFL_LOG_LEVEL='LOUD' cannot be read as a log level") == 2, result.stderr


# ---- unknown names --------------------------------------------------------------------------------------------------


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "opmux" and r.levelname == "WARNING"]


TRAVELLING = [
    ("TE_FL_PER_OP", "rmsnorm_fwdd=flagos", "unknown op 'rmsnorm_fwdd': did you mean 'rmsnorm_fwd'?"),
    ("TE_FL_PER_OP", "gelu=vendor:nobody|reference", "unknown vendor 'nobody'"),
    ("TE_FL_PER_OP", "gelu=impl:vendor.nobody|reference", "unknown impl 'vendor.nobody'"),
    ("TE_FL_PREFER", "vendor:nobody", "unknown vendor 'nobody'"),
    ("TE_FL_ALLOW_VENDORS", "nobody", "unknown vendor 'nobody'"),
    ("TE_FL_DENY_VENDORS", "nobody", "unknown vendor 'nobody'"),
]


@pytest.mark.parametrize("strict", ["0", "1"])
@pytest.mark.parametrize(("variable", "value", "words"), TRAVELLING)
def test_an_unknown_name_in_the_environment_gives_one_warning(variable, value, words, strict, setenv, caplog):
    setenv(**{variable: value, "TE_FL_STRICT": strict})
    for _ in range(2):
        call_tex()
        opmux.ops.rms_norm(torch.ones(2, 4), torch.ones(4))
        opmux.ops.gelu(torch.ones(4))
    (message,) = warnings(caplog)
    assert message.startswith(words) and "another machine" in message


def test_an_unknown_name_in_the_file_gives_one_warning(caplog):
    toml('deny_vendors = ["nobody"]\n[per_op]\nrmsnorm_fwdd = "flagos"')
    call_tex()
    call_tex()
    assert len(warnings(caplog)) == 2


@pytest.mark.parametrize(("variable", "value", "words"), TRAVELLING)
def test_a_scope_does_not_turn_the_warning_into_an_error(variable, value, words, setenv, caplog):
    setenv(**{variable: value})
    with opmux.policy(strict=True):
        call_tex()
        opmux.ops.gelu(torch.ones(4))
    with with_denied_vendors("nvidia"):
        call_tex()
    opmux.set_policy(strict=False)
    call_tex()
    assert [w for w in warnings(caplog) if w.startswith(words)]


def test_a_vendor_that_is_not_here_is_known(setenv, caplog):
    """The same program runs on a machine with the vendor's chip and on one without."""
    setenv(OPMUX_PREFER="vendor:nvidia", OPMUX_ALLOW_VENDORS="ascend")
    call_tex()
    with opmux.policy("vendor:nvidia", per_op={"gelu": "vendor:amd|*"}, deny={"mthreads"}):
        call_tex()
    assert warnings(caplog) == []


UNKNOWN = [
    (dict(per_op={"rmsnorm_fwdd": "flagos"}), "unknown op 'rmsnorm_fwdd': did you mean 'rmsnorm_fwd'"),
    (dict(per_op={"gelu": "vendor:acmee"}), "unknown vendor 'acmee': did you mean 'acme'"),
    (dict(per_op={"gelu": "impl:reference.torhc"}), "unknown impl 'reference.torhc': did you mean 'reference.torch'"),
    (dict(prefer="vendor:acmee"), "unknown vendor 'acmee': did you mean 'acme'"),
]


@pytest.mark.parametrize(("message", "words"), UNKNOWN)
def test_an_unknown_name_in_code_raises_and_suggests_the_nearest(message, words, add_impl):
    add_impl("gelu", "vendor.acme", VENDOR, torch.nn.functional.gelu, vendor="acme")
    prefer = [message["prefer"]] if "prefer" in message else []
    rest = {k: v for k, v in message.items() if k != "prefer"}
    call_tex()
    before = get_policy()
    with pytest.raises(UnknownName, match=re.escape(words)):
        opmux.set_policy(*prefer, **rest)
    with pytest.raises(UnknownName, match=re.escape(words)), opmux.policy(*prefer, **rest):
        pass
    assert get_policy() is before
    full = SelectionPolicy(prefer=message.get("prefer", "flagos"), per_op_order=message.get("per_op", {}))
    with pytest.raises(UnknownName, match=re.escape(words)), policy_context(full):
        call_tex()
    assert get_policy() is before


def test_unknown_vendors_in_code_give_a_warning(caplog):
    with opmux.policy(deny=["nobody"], allow=["nobody", "noone"]):
        call_tex()
    assert sorted(re.findall(r"'(\w+)'", " ".join(warnings(caplog)))) == ["nobody", "noone"]


def test_known_names_give_no_warning(setenv, add_impl, caplog):
    add_impl("gelu", "vendor.acme", VENDOR, torch.nn.functional.gelu, vendor="Acme")
    setenv(
        TE_FL_PER_OP="GELU=vendor:ACME|impl:Vendor.Acme|*;opmux::rms_norm=reference",
        TE_FL_ALLOW_VENDORS="aCME",
        TE_FL_PREFER="vendor:acme",
    )
    opmux.ops.gelu(torch.ones(4))
    call_tex()
    assert warnings(caplog) == []
    assert get_default_manager().get_selected_impl_id("gelu") == "vendor.acme"


# ---- the log --------------------------------------------------------------------------------------------------------


@contextmanager
def quiet():
    """The logger as in a program that has not configured logging. It is no fixture, because pytest adds its handlers
    after the fixtures.
    """
    with pytest.MonkeyPatch.context() as m:
        m.setattr(logging.root, "handlers", [])
        m.setattr(log.logger, "handlers", [])
        level = log.logger.level
        log.logger.setLevel(logging.NOTSET)
        yield log.logger
        log.logger.setLevel(level)


@pytest.mark.parametrize(
    ("env", "level"),
    [
        ({}, "NOTSET"),
        ({"TE_FL_DEBUG": "0"}, "NOTSET"),
        ({"TE_FL_DEBUG": "1"}, "DEBUG"),
        ({"TEFL_LOG_LEVEL": "info"}, "INFO"),
        ({"TEFL_LOG_LEVEL": "ERROR", "TE_FL_DEBUG": "1"}, "ERROR"),
        ({"OPMUX_LOG_LEVEL": "WARNING", "TEFL_LOG_LEVEL": "DEBUG"}, "WARNING"),
        ({"TEFL_LOG_LEVEL": "", "TE_FL_DEBUG": "1"}, "DEBUG"),
    ],
)
def test_the_log_level_comes_from_the_settings(env, level, setenv):
    setenv(**env)
    with quiet() as logger:
        log.from_knobs()
        state = logging.getLevelName(logger.level), len(logger.handlers)
    assert state == (level, 0 if level == "NOTSET" else 1)


def test_log_lines_have_our_format(setenv, monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    setenv(TEFL_LOG_LEVEL="INFO")
    with quiet() as logger:
        log.from_knobs()
        log.from_knobs()
        logger.debug("too quiet")
        logger.info("Op '%s'", "gelu")
    assert re.fullmatch(r"\[opmux test_settings_policy\.py:\d+ INFO\] Op 'gelu'\n", stderr.getvalue())


def test_a_program_with_its_own_logging_keeps_it(setenv):
    stream = io.StringIO()
    setenv(TEFL_LOG_LEVEL="INFO")
    with quiet() as logger:
        logging.root.addHandler(logging.StreamHandler(stream))
        log.from_knobs()
        logger.info("once")
        assert logger.handlers == []
    assert stream.getvalue() == "once\n"
