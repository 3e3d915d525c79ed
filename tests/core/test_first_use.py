"""The first use in a process: by any entry point, on many threads at once, with plugins that run their own code."""

import json
import os
import sys
import textwrap
from pathlib import Path

import fresh
import pytest

SRC = Path(__file__).parents[2] / "src"
CACHE = {k: v for k, v in os.environ.items() if k == "OPMUX_CACHE_DIR"}  # the folder of compiled C++

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

# The first lines of every program below: import torch once, then fork a child for each case.
HEAD = """
import faulthandler, gc, importlib, json, os, signal, sys, threading, time, traceback
import torch
torch.set_num_threads(1)

def child(work, limit=60):
    gc.freeze()  # children need not traverse the existing objects
    end, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(limit)
        try:
            out = work()
        except BaseException:
            out = "failed: " + traceback.format_exc()
        sys.stderr.flush()
        os.write(start, json.dumps(out).encode())
        os._exit(0)
    os.close(start)
    with os.fdopen(end, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else "hangs"

def together(*works):
    gate, problems, results = threading.Barrier(len(works)), [], [None] * len(works)
    def run(i):
        gate.wait()
        try:
            results[i] = works[i]()
        except BaseException:
            problems.append(traceback.format_exc())
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
    for t in threads: t.start()
    for t in threads: t.join()
    return problems or results
"""

# Slow imports that do not count as a use of opmux. test_any_two_entry_points_may_be_used_at_once runs without them.
MODULES = """
import opmux
for name in ("ops", "faces.aten.switch", "faces.tex.interface", "tools.listing", "tools.doctor", "tools.explain"):
    importlib.import_module("opmux." + name)
opmux.core.specs.load_all()
for family in opmux.core.specs.families:
    opmux.core.specs.load_implementers(family)
assert opmux.core.default._default is None or not opmux.core.get_default_manager().started
"""


def run(code: str, tmp_path: Path, limit: float = 250, **env: str) -> dict:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OPMUX", "TE_", "TEFL"))}
    clean |= CACHE | {"PYTHONPATH": f"{SRC}{os.pathsep}{tmp_path / 'site'}", "XDG_CONFIG_HOME": str(tmp_path / "none")}
    program = HEAD + textwrap.dedent(code)
    warm = MODULES in code
    result = fresh.run([sys.executable, "-c", program], env=clean | env, cwd=tmp_path, timeout=limit, warm=warm)
    assert result.returncode == 0, result.stderr[-4000:]
    return {**json.loads(result.stdout.splitlines()[-1]), "stderr": result.stderr}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")


def distribution(site: Path, name: str, **entries: str) -> None:
    lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
    write(site / f"{name}-1.0.dist-info" / "entry_points.txt", f"[opmux.backends]\n{lines}")
    write(site / f"{name}-1.0.dist-info" / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


# ---- many threads ---------------------------------------------------------------------------------------------------

DOORS = """
name = lambda module: lambda: importlib.import_module(module).__name__
USES = {
    "ops": lambda: __import__("opmux").ops.silu(torch.ones(2)).tolist(),
    "tex": lambda: callable(__import__("opmux").tex.gelu),
    "policy": lambda: str(__import__("opmux").policy("reference").__enter__().prefer),
    "explain": lambda: str(__import__("opmux").explain("silu").op),
    "enable": lambda: len(__import__("opmux").enable(include=["softmax"], mode="all")) > 0,
    "backends": lambda: len(__import__("opmux").backends.VENDOR_REGISTRY) > 0,
    "infer_device": lambda: importlib.import_module("opmux.machine.devices").infer_device(),
}
IMPORTS = {
    "core": lambda: importlib.import_module("opmux.core").OpImpl.__name__,
    "core.spec": lambda: importlib.import_module("opmux.core.spec").NAME_LOOKUP is not None,
    "attribute core": lambda: __import__("opmux").core.get_default_manager.__name__,
    "attribute ops": lambda: __import__("opmux").ops.__name__,
    "attribute policy": lambda: __import__("opmux").policy.__name__,
    **{n: name("opmux." + n) for n in ("core.library", "core.default", "ops", "machine.here", "machine.devices",
                                       "backends.registry", "backends", "core.discovery", "compat", "core.machine")},
}
"""


def test_any_two_entry_points_may_be_used_at_once(tmp_path, slow):
    """Tests ten pairs of entry points (thirty with --slow), and many at once, in processes that have not imported
    opmux.
    """
    code = """
    assert "opmux" not in sys.modules
    ways = list(IMPORTS)
    pairs = [(a, ways[(i + step) % len(ways)]) for step in (1, 4) for i, a in enumerate(ways)][:23]
    pairs += [("tex", "ops"), ("ops", "tex"), ("enable", "core"), ("tex", "core.spec"), ("explain", "backends")]
    pairs += [("policy", "infer_device"), ("infer_device", "ops")]
    doors, bad, pairs = USES | IMPORTS, {}, pairs[::STEP]
    for pair in [*pairs, tuple(IMPORTS), tuple(USES)]:
        found = child(lambda: together(*(doors[n] for n in pair)))
        if not isinstance(found, list) or any(isinstance(f, str) and "Traceback" in f for f in found):
            bad[" + ".join(pair)] = found
    print(json.dumps({"bad": bad, "pairs": len(pairs)}))
    """
    result = run(f"STEP = {1 if slow else 3}\n" + DOORS + textwrap.dedent(code), tmp_path)
    assert result["bad"] == {} and result["pairs"] == (30 if slow else 10)


# ---- what runs while the lock is held -------------------------------------------------------------------------------

PLUGIN = """
import torch
from torch import Tensor
import watch
watch.seen("import of a plugin")
from opmux.core import BackendImplKind, OpImpl, impl, op

@op
def watched_half(x: Tensor) -> Tensor:
    watch.seen("reference")
    return x / 2

def half(x):
    watch.seen("impl")
    return x * 0.5

def available():
    watch.seen("_is_available")
    return True

half._is_available = available

def when(x):
    watch.seen("when")
    return True

def register(registry):
    watch.seen("register")
    registry.register_impl(OpImpl("watched_half", "vendor.w", BackendImplKind.VENDOR, "w", half, when=when))
"""
CHIP = """
import watch
watch.seen("import of a vendor")
from opmux.backends import VendorInfoBase
vendor_info = VendorInfoBase("chippy", "chip")

def arch_of(index):
    watch.seen("arch_of")
    return "chip_1"
"""
WATCH = """
import sys
counts = {}
def seen(what):
    lock = sys.modules["opmux.core.lock"].lock
    counts[what] = counts.get(what, 0) + 1
    if lock.held._is_owned():
        counts["LOCKED: " + what] = 1
"""


def test_no_import_and_no_plugin_code_runs_under_the_lock(tmp_path):
    site = tmp_path / "site"
    write(site / "watch.py", WATCH)
    write(site / "plug.py", PLUGIN)
    write(site / "chippy" / "__init__.py", CHIP)
    write(site / "chippy" / "ops" / "__init__.py", 'import watch\nwatch.seen("import of ops")\n__all__ = []\n')
    distribution(site, "plug", plug="plug", chippy="chippy")
    code = """
    import opmux, watch
    imported = []
    def audit(event, args):
        if event == "import" and "opmux.core.lock" in sys.modules:
            imported.append(args[0])
            if sys.modules["opmux.core.lock"].lock.held._is_owned():
                watch.counts["LOCKED: import of " + args[0]] = 1
    sys.addaudithook(audit)
    x = torch.ones(2)
    opmux.ops.watched_half(x)
    with opmux.policy("vendor"):
        opmux.ops.watched_half(x)
    opmux.core.get_default_manager().call("watched_half", x)
    opmux.explain("watched_half", x)
    opmux.enable(include=["softmax", "add"], mode="all")
    opmux.tex.get_backend()
    from opmux.machine import devices
    with devices.assume("chippy"):
        from opmux.machine.here import HERE
        HERE.changed()
        opmux.explain("watched_half")
        devices.vendor_of("chip"), HERE.arch_of("chip")
    print(json.dumps({"counts": watch.counts, "imported": len(imported)}))
    """
    result = run(code, tmp_path)
    assert [what for what in result["counts"] if what.startswith("LOCKED")] == []
    assert set(result["counts"]) >= {
        "import of a plugin",
        "register",
        "_is_available",
        "when",
        "impl",
        "import of a vendor",
    }
    assert "import of ops" in result["counts"] and result["imported"] > 50


# ---- plugins and threads --------------------------------------------------------------------------------------------

STARTS_A_THREAD = """
import threading, torch

def register(registry):
    import opmux
    out = []
    thread = threading.Thread(target=lambda: out.append(opmux.ops.silu(torch.ones(1)).item()))
    thread.start()
    thread.join()
    assert round(out[0], 4) == 0.7311
"""
SLEEPS_AND_ENTERS = """
import time
time.sleep(0.4)
import opmux
with opmux.policy("vendor:sleepy"):
    pass
import torch
from opmux.core import BackendImplKind, OpImpl

def register(registry):
    registry.register_impl(OpImpl("opmux::silu", "vendor.sleepy", BackendImplKind.VENDOR, "sleepy", lambda x: x * 7))
"""


def test_plugins_and_threads_may_wait_for_each_other(tmp_path):
    site = tmp_path / "site"
    write(site / "starter.py", STARTS_A_THREAD)
    write(site / "sleepy.py", SLEEPS_AND_ENTERS)
    code = """
    value = lambda: round(opmux.ops.silu(torch.ones(1)).item(), 4)

    def named(name, work):
        def inside():
            os.environ["TE_FL_PLUGIN_MODULES"] = name
            opmux.core.reset_global_policy()
            return work(), [f"{p.name} {p.status}" for p in opmux.core.discovery.plugins()]
        return child(inside, limit=40)

    def waits():
        with opmux.policy("vendor"):
            return value()

    def import_first():  # a thread imports the plugin, which uses opmux, while the main thread makes its first call
        thread = threading.Thread(target=importlib.import_module, args=("sleepy",))
        thread.start()
        time.sleep(0.1)
        found = waits()
        thread.join()
        return found

    def import_alone():  # the plugin's own import makes the first call of the process
        importlib.import_module("sleepy")
        return waits()

    started = time.monotonic()
    print(json.dumps({
        "starts a thread": named("starter", value),
        "imported by a thread": named("sleepy", import_first),
        "imported before": named("sleepy", import_alone),
        "four threads wait": named("sleepy", lambda: together(waits, waits, waits, waits)),
        "seconds": time.monotonic() - started,
    }))
    """
    result = run(MODULES + textwrap.dedent(code), tmp_path)
    assert result["starts a thread"] == [0.7311, ["starter loaded"]]
    for case in ("imported by a thread", "imported before"):
        assert result[case] == [7.0, ["sleepy loaded"]], result["stderr"]
    assert result["four threads wait"] == [[7.0] * 4, ["sleepy loaded"]]
    assert result["seconds"] < 60


# ---- what a broken plugin leaves ------------------------------------------------------------------------------------

BREAKS = {
    "policy": """
        import opmux
        opmux.set_policy("reference", strict=True)
    """,
    "global policy": """
        from opmux.core import SelectionPolicy, set_global_policy
        set_global_policy(SelectionPolicy("vendor"))
    """,
    "scope": """
        import opmux
        opmux.policy("reference").__enter__()
    """,
    "vendor": """
        from opmux.backends import VendorInfoBase, register_vendor
        register_vendor(VendorInfoBase("left", "left"))
    """,
    "op": """
        import opmux.core
        from torch import Tensor

        @opmux.core.op
        def left_op(x: Tensor) -> Tensor:
            return x
    """,
    "tag": """
        import opmux.core

        @opmux.core.impl("opmux::silu", id="left")
        def left(x):
            return x
    """,
    "impl": """
        from opmux.core import OpImpl, get_default_manager
        get_default_manager().registry.register_impl(OpImpl("opmux::silu", "left", "vendor", "left", lambda x: x))
    """,
    "removal": """
        from opmux.core import get_default_manager
        get_default_manager().registry.unregister("opmux::silu", "reference.torch")
    """,
    "tex backend": """
        import opmux

        @opmux.tex.register_backend
        class Left(opmux.tex.TEXBackendBase):
            NAME = "left"

            def gelu(self, input, quantizer):
                return input
    """,
    "enabled": """
        import opmux
        opmux.enable(include=["softmax"], mode="all")
    """,
    "setting": """
        import os
        os.environ["OPMUX_STRICT"] = "1"
    """,
    "modules": "import left_over.inner",
    "stand-in": "from transformer_engine.plugin.core import OpImpl",
}


def test_a_broken_plugin_leaves_nothing_behind(tmp_path):
    site = tmp_path / "site"
    for name, text in BREAKS.items():
        module = "left_over" if name == "modules" else "left_" + name.replace(" ", "_").replace("-", "_")
        raises = "\n\ndef register(registry):\n    raise RuntimeError('broken')\n"
        write(site / module / "__init__.py", textwrap.dedent(text) + raises)
        write(site / module / "inner.py", "")
    code = """
    NAMES = {}
    import opmux
    from opmux.core import discovery, get_default_manager, registry, specs
    from opmux.core import policy as policies
    from opmux.faces.aten import engine, switch
    from opmux.faces.tex import registry as backends
    from opmux.machine import vendors
    opmux.ops.silu  # its family
    specs.load_all()
    opmux.tex

    def portrait():
        table = get_default_manager().registry
        return {
            "value": round(opmux.ops.silu(torch.ones(1)).item(), 4),
            "impls": sorted(f"{k} {i.impl_id}" for k in table for i in table.impls(k)),
            "policy": str(policies.get_policy()), "strict": policies.from_knobs().strict,
            "scope": opmux.core.entry.scope.get() is None,
            "vendors": sorted(vendors.known()), "tagged": len(registry.tagged), "specs": sorted(specs.by_key),
            "torch": hasattr(torch.ops.opmux, "left_op"), "backends": sorted(backends._backends),
            "enabled": opmux.enabled_ops(),
            "modules": [m for m in sys.modules if m.startswith(("left", "transformer_engine"))],
        }

    def broken(name):
        os.environ["TE_FL_PLUGIN_MODULES"] = name
        return portrait(), [p.status for p in discovery.plugins()]

    want = child(portrait)
    bad = {}
    for name in sorted(os.listdir("site")):
        found = child(lambda: broken(name))
        if not isinstance(found, list) or found[1] != ["broken"]:
            bad[name] = found
        elif found[0] != want:
            bad[name] = {k: [x for x in v if x not in want[k]] if isinstance(v, list) else v
                         for k, v in found[0].items() if v != want[k]}
    print(json.dumps({"bad": bad, "tried": len(os.listdir("site"))}))
    """
    result = run(code, tmp_path)
    assert result["bad"] == {} and result["tried"] == len(BREAKS), result["stderr"][-3000:]


# ---- any entry point first, with a vendor outside the tree -----------------------------------------------------------

ACME = """
from opmux.backends import VendorInfoBase
vendor_info = VendorInfoBase("acme", "npu")

def arch_of(index):
    return "acme_7"
"""
ACME_OPS = """
import torch
__all__ = ["silu_mul", "twice"]

def silu_mul(a, b):
    return torch.nn.functional.silu(a) * b

def twice(x):
    return x * 2

def get_specific_ops():
    from opmux.backends import Autograd
    return (("log1p", log1p, Autograd.disable),)

def log1p(x):
    return torch.log(1 + x)
"""
FIRST = """
def cli(*words):
    import contextlib, io
    from opmux.tools.cli import app
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            app(list(words), standalone_mode=False)
        except SystemExit as stopped:
            assert not stopped.code, (stopped.code, out.getvalue())
    return out.getvalue()

def forced(name):
    os.environ["OPMUX_VENDOR"] = name
    from opmux.backends import VENDOR_REGISTRY
    return VENDOR_REGISTRY[HERE].vendor_name

def opmux_():
    import opmux
    return opmux

def asks_for_a_group(sync):
    try:
        sync()
    except (ValueError, RuntimeError) as error:
        return "process group" in str(error)

def refuses(patch, model):
    try:
        patch(model)
    except ValueError as error:
        return "nothing of Linear can be replaced" in str(error) or "must be one of 'auto', 'all'" in str(error)

ones = lambda: torch.ones(2, device=HERE)
FIRST = {
    "backends": lambda: opmux_().backends.infer_device() == HERE,
    "compare": lambda: refuses(lambda m: opmux_().compare(m, torch.ones(2), mode="some"), torch.nn.Linear(2, 2)),
    "compat": lambda: opmux_().compat.install("transformer_engine") is None,
    "core": lambda: opmux_().core.get_default_manager().call("silu_mul", ones(), ones()).device.type == HERE,
    "digest": lambda: len(opmux_().digest()) == 32,
    "disable": lambda: opmux_().disable() is None,
    "empty_cache": lambda: opmux_().empty_cache() is None,
    "enable": lambda: len(opmux_().enable(include=["softmax"], mode="all")) > 0,
    "enabled_ops": lambda: opmux_().enabled_ops() == [],
    "explain": lambda: str(opmux_().explain("silu_mul", ones(), ones()).chosen.vendor) == VENDOR,
    "functional": lambda: opmux_().functional.cross_entropy(torch.ones(2, 4), torch.tensor([0, 3])).item() > 0,
    "integrations": lambda: callable(opmux_().integrations.OpmuxCallback),
    "nn": lambda: opmux_().nn.RMSNorm(2)(torch.ones(2)).shape == (2,),
    "patch_model": lambda: refuses(opmux_().patch_model, torch.nn.Linear(2, 2)),
    "unpatch_model": lambda: opmux_().unpatch_model(torch.nn.Linear(2, 2)).modules == (),
    "native": lambda: opmux_().native("silu")(ones()).shape == (2,),
    "ops": lambda: opmux_().ops.silu_mul(ones(), ones()).shape == (2,),
    "policy": lambda: opmux_().policy("vendor", deny=["acme"]).__enter__().prefer == "vendor",
    "set_policy": lambda: opmux_().set_policy("vendor:" + VENDOR) is None,
    "sync": lambda: asks_for_a_group(opmux_().sync),
    "register_attention": lambda: opmux_().register_attention() is None,
    "tex": lambda: callable(opmux_().tex.get_backend().gelu),
    "use": lambda: opmux_().use(include=["silu"], mode="all").__enter__() is not None,
    "__version__": lambda: bool(opmux_().__version__),
    "VENDOR_REGISTRY": lambda: opmux_().backends.VENDOR_REGISTRY[HERE].vendor_name == VENDOR,
    "infer_device": lambda: importlib.import_module("opmux.machine.devices").infer_device() == HERE,
    "dir(ops)": lambda: ("twice" in dir(opmux_().ops)) == (VENDOR == "acme"),
    "OPMUX_VENDOR": lambda: forced(VENDOR) == VENDOR,
    "opmux list": lambda: "silu_mul" in cli("list", "--op", "silu_mul"),
    "opmux doctor": lambda: VENDOR in cli("doctor"),
    "opmux explain": lambda: "silu_mul" in cli("explain", "silu_mul"),
    "opmux explain --assume": lambda: "silu_mul" in cli("explain", "silu_mul", "--assume", ASSUMED),
}
"""
SIMULATED = """
from opmux.tools.simulator import simulate
simulate("npu", "acme_7")
HERE, VENDOR, ASSUMED = "npu", "acme", "acme"
"""
PLAIN = 'HERE, VENDOR, ASSUMED = "cpu", "cpu", "nvidia:sm_90"\n'
LOOP = """
missing = sorted(set(opmux.__all__) - set(FIRST))
FIRST = {name: work for i, (name, work) in enumerate(FIRST.items()) if i % STEP == 0}
bad = {name: found for name, work in FIRST.items() if (found := child(lambda: bool(work()))) is not True}
print(json.dumps({"bad": bad, "missing": missing, "tried": len(FIRST)}))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("vendor", [False, True], ids=["plain", "a vendor of its own package"])
def test_any_entry_point_may_be_the_first(vendor, tmp_path, slow):
    """Each name in `opmux.__all__` and each command is the first call of a process. Without a vendor only every third
    of them is tested, unless --slow is given.
    """
    if vendor:
        write(tmp_path / "site" / "acme_chip" / "__init__.py", ACME)
        write(tmp_path / "site" / "acme_chip" / "ops" / "__init__.py", ACME_OPS)
        distribution(tmp_path / "site", "acme_chip", acme="acme_chip")
    env = {"TRITON_INTERPRET": "1"} if vendor else {}
    # acme and ascend have the same device type. The vendor that registers later, the package acme, must win.
    step = f"STEP = {1 if vendor or slow else 3}\n"
    result = run(step + (SIMULATED if vendor else PLAIN) + FIRST + MODULES + LOOP, tmp_path, **env)
    assert result["bad"] == {}, result["stderr"][-3000:]
    assert result["missing"] == [] and result["tried"] >= (24 if vendor or slow else 8)


def test_ctrl_c_during_the_first_use_of_an_op_is_harmless(tmp_path):
    """The signal arrives at a random time during the import of the op's family."""
    code = """
    import opmux, opmux.ops

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored

    def interrupted(seconds):
        threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            opmux.ops.dropout(torch.ones(2), 0.5, 1)
            time.sleep(1)
            came = False
        except KeyboardInterrupt:
            came = True
        return came, opmux.ops.dropout(torch.ones(2), 0.5, 1).shape == (2,)

    print(json.dumps({"found": [child(lambda: interrupted(s)) for s in (0.05, 0.1, 0.2, 0.4)]}))
    """
    result = run(code, tmp_path)
    assert all(isinstance(f, list) and f[1] for f in result["found"]), result
    assert any(came for came, _ in result["found"])
