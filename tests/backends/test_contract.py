"""The contract of a vendor folder: which files it may have, what each does, and how mistakes are reported.

The vendors here are written from strings to a temporary folder, as vendors in the tree or as plugins. Where their ops
must run, their device type is `cpu`, so no chip is needed. Each case runs in a fork of one process that has imported
opmux and called nothing, which gives a fresh process in a few milliseconds.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fresh
import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
SHARED = ROOT / "tests" / "shared"

# A program that makes all slow imports, reports what they did, then forks once for each line on stdin.
ORIGIN = r"""
import gc, json, logging, os, signal, sys, traceback

gc.disable()
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in ("subprocess.Popen", "os.system") else None)
import torch, opmux, opmux.core
boot = {"early": [m for m in sys.modules if m.startswith(("opmux.machine", "opmux.backends"))]}
import opmux.backends, opmux.ops
from opmux.backends import VENDOR_REGISTRY, VendorInfo, VendorInfoBase, infer_device, register_vendor
from opmux.core import BackendImplKind, get_default_manager, specs
from opmux.machine import devices, vendor_ops, vendors
from opmux.tuning import tile_files
from opmux.machine.here import HERE
boot |= {"looked": vendors._tree.done, "imported": [m for m in sys.modules if m.startswith("opmux.backends._")]}
import everything
from opmux.faces.aten import engine, overloads
from opmux.kernels.lib import config, interpret
overloads.table()
interpret.install()
gc.enable()
gc.freeze()  # what there is now is not looked at again in every child
print(json.dumps({**boot, "started": started}), flush=True)


def tree(folder):
    opmux.backends.__path__.append(folder)


def fake(device, **members):
    # torch.<device>, as a vendor's package for torch would bring it
    module = type(sys)(device)
    module.__dict__.update({"is_available": lambda: True, **members})
    setattr(torch, device, module)


def shown(op, *args):
    found = opmux.explain(op, *args)
    return {v.impl.impl_id: [v.status, v.stage, v.reason] for v in found.verdicts}


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class Said(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            said.append(record.getMessage())


for line in sys.stdin:
    job = json.loads(line)
    out, into = os.pipe()
    child = os.fork()
    if child:
        os.close(into)
        with os.fdopen(out) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        print(text or json.dumps({"error": "the process died"}), flush=True)
        continue
    signal.alarm(60)
    os.environ.update(job["env"])
    sys.path[:0] = job["paths"]
    found, said = {}, []
    logging.getLogger("opmux").addHandler(Said())
    answer = {"found": found, "said": said}
    try:
        for place in job["trees"]:
            tree(place)
        exec(compile(job["code"], "<case>", "exec"), globals())
    except BaseException:
        answer["error"] = traceback.format_exc()
    with os.fdopen(into, "w") as pipe:
        pipe.write(json.dumps(answer, default=str))
    os._exit(0)
"""


class Origin:
    """The process that forks for each case, and the pipes to it."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(SRC), str(SHARED)])
        env = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", ORIGIN]
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.boot = self._read()

    def _read(self):
        line = self.process.stdout.readline()
        assert line, "the process of origin has died"
        return json.loads(line)

    def ask(self, **job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return self._read()


@pytest.fixture(scope="module")
def origin():
    new_origin = Origin()
    yield new_origin
    new_origin.process.kill()  # it has nothing to clean up
    new_origin.process.wait(20)


@pytest.fixture
def case(origin, tmp_path):
    """Run code with vendors: `case(code, acme={file: text}, plugins={module: {file: text}}, VARIABLE=value)`."""

    def run(code: str, plugins: dict | None = None, **options):
        files = {k: v for k, v in options.items() if k.islower()}
        env = {k: v for k, v in options.items() if not k.islower()}
        for name, texts in files.items():
            write(tmp_path / "tree" / f"_{name}", texts)
        for name, texts in (plugins or {}).items():
            write(tmp_path / "site" / name, texts)
        env.setdefault("OPMUX_PLUGIN_MODULES", ",".join(plugins or ()))
        answer = origin.ask(
            code=code, env=env, trees=[str(tmp_path / "tree")] if files else [], paths=[str(tmp_path / "site")]
        )
        assert "error" not in answer, answer["error"]
        return SimpleNamespace(**answer["found"], said=answer["said"])

    return run


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# ---- vendors ---------------------------------------------------------------------------------------------------------


def info(vendor: str = "acme", device: str = "cpu", **more: object) -> str:
    properties = "".join(f", {k}={v!r}" for k, v in more.items())
    return (
        "from opmux.backends import VendorInfoBase\n"
        f"vendor_info = VendorInfoBase(vendor_name={vendor!r}, device_name={device!r}{properties})\n"
    )


# An rms_norm whose result is easy to recognise: -1 everywhere.
MARK = "def rms_norm(x, weight, eps, offset):\n    return x.new_full(x.shape, {0}), x.new_full(x.shape[:-1], 1.0)\n"
OPS = {"ops/__init__.py": "from .norm import rms_norm\n__all__ = ['rms_norm']\n", "ops/norm.py": MARK.format(-1.0)}
ACME = {"__init__.py": info(), **OPS}
CALL = "y = opmux.ops.rms_norm(torch.ones(2, 16), torch.ones(16))[0]\nfound['y'] = y.unique().tolist()\n"
EXPLAIN = "found['ids'] = shown('rms_norm', torch.ones(2, 16), torch.ones(16))\n"
ORDINARY = [pytest.approx(1.0, abs=1e-5)]
PLAIN = {"__init__.py": info("plain")}  # a CPU vendor without kernels of its own


def nvidia_init(vendor: str, device: str) -> str:
    """NVIDIA's `__init__.py` as a vendor would copy it: only the arguments of VendorInfoBase are changed."""
    text = (SRC / "opmux/backends/_nvidia/__init__.py").read_text(encoding="utf-8")
    head, start, arguments = text.partition("VendorInfoBase(\n")
    for name, value in (("vendor_name", vendor), ("device_name", device), ("device_query_cmd", f"{vendor}-smi")):
        arguments, count = re.subn(rf'{name}="[^"]*"', f'{name}="{value}"', arguments)
        assert count == 1, name
    return head + start + arguments


def test_a_copy_of_nvidias_folder_works_as_a_vendor(case):
    got = case(CALL + EXPLAIN, acme={"__init__.py": nvidia_init("acme", "cpu"), **OPS}, OPMUX_VENDOR="acme")
    assert got.y == [-1.0] and got.ids["default.flagos.acme"][0] == "chosen"
    assert got.said == []


def test_a_copy_of_nvidias_folder_works_as_a_plugin(case):
    code = CALL + "v = opmux.explain('rms_norm').verdicts[0]\nfound['origin'] = [v.origin.plugin, v.origin.file]\n"
    plugin = {"__init__.py": nvidia_init("acme", "cpu"), **OPS}
    got = case(code, plugins={"opmux_acme": plugin}, OPMUX_VENDOR="acme")
    assert got.y == [-1.0] and got.said == []
    assert got.origin[0] == "opmux_acme" and got.origin[1].endswith("opmux_acme/ops/norm.py")


# ---- the three shapes of an ops folder -------------------------------------------------------------------------------

ROWS = {
    "__init__.py": info(),
    "ops/__init__.py": (
        "from backend_utils import Autograd\n\nfrom . import add, gelu\n\n\n"
        "def get_specific_ops():\n"
        "    return (\n"
        "        ('add.Tensor', add.add, Autograd.disable),\n"
        "        ('gelu', gelu.gelu, Autograd.enable),\n"
        "    )\n\n\n"
        "def get_unused_ops():\n"
        "    return ('cumsum', 'cos')\n"
    ),
    "ops/add.py": "import torch\ndef add(A, B, *, alpha=1):\n    return torch.full_like(A, 42.0)\n",
    "ops/gelu.py": (
        "import torch\n"
        "class Seven(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return torch.full_like(x, 7.0)\n"
        "    @staticmethod\n"
        "    def backward(ctx, dy):\n"
        "        return 3 * dy\n"
        "def gelu(self, *, approximate='none'):\n"
        "    return Seven.apply(self)\n"
    ),
}


def test_get_specific_ops_overrides_aten_ops_and_get_unused_ops_turns_them_off(case):
    code = """
rows = HERE.ops("cpu").rows
found["rows"] = {name: [r.fn.__name__, r.autograd.name, r.impl_id, r.priority] for name, r in rows.items()}
a, x = torch.ones(3), torch.ones(3, requires_grad=True)
with opmux.use(mode="all"):
    found["add"] = (a + a).tolist()
    y = torch.nn.functional.gelu(x)
    y.sum().backward()
found["gelu"], found["grad"], found["after"] = y.tolist(), x.grad.tolist(), (a + a).tolist()
found["enabled"] = ["cos" in engine.choosable()["cpu"], "cumsum" in engine.choosable()["cpu"]]
"""
    got = case(code, acme=ROWS, OPMUX_VENDOR="acme")
    acme = ["default.flagos.acme", 100]
    assert got.rows["add.Tensor"] == ["add", "disable", *acme] and "add.Scalar" not in got.rows
    assert got.rows["gelu"] == ["gelu", "enable", *acme]
    assert "gelu.out" not in got.rows  # a bare name means every overload whose arguments the function accepts
    assert (got.add, got.gelu, got.grad) == ([42.0] * 3, [7.0] * 3, [3.0] * 3)
    assert got.after == [2.0] * 3
    assert got.enabled == [False, False]
    assert got.said == []


def test_explain_says_which_vendor_declared_an_op_unused(case):
    """The device is one on which our kernels would run otherwise."""
    ops = "def get_specific_ops():\n    return ()\ndef get_unused_ops():\n    return ('cumsum', 'softmax')\n"
    code = """
fake("npu")
found["unused"] = {op: shown(op)["default.flagos"] for op in ("cumsum", "softmax", "rms_norm")}
found["reference"] = shown("softmax")["reference.torch"][0]
"""
    got = case(code, acme={"__init__.py": info(device="npu"), "ops/__init__.py": ops}, OPMUX_VENDOR="acme")
    for op in ("cumsum", "softmax"):
        status, _, reason = got.unused[op]
        assert status == "refused" and "acme declares it unused" in reason and "_acme/ops/__init__.py" in reason
    assert got.unused["rms_norm"][0] == "chosen" and got.reference == "chosen"


def test_preferred_ops_run_instead_of_our_kernels(case):
    """A policy can still name our kernel. A mistake in one entry of get_preferred_ops drops only that entry."""
    ops = """
from opmux.core import BackendImplKind

def silu(x):
    return x.new_full(x.shape, 7.0)

silu.kind, silu.impl_id = BackendImplKind.VENDOR, "vendor.acme"

def get_preferred_ops():
    return {
        "silu": "ours is faster", "relu": lambda: None, "softmax": lambda: 1 / 0, "sillu": "typo", "tanh": 3,
    }

__all__ = ["silu"]
"""
    code = """
fake("npu")
ours = lambda op: shown(op)["default.flagos"]
found["ours"] = {op: ours(op) for op in ("opmux::silu", "opmux::relu", "softmax", "rms_norm")}
found["theirs"] = shown("opmux::silu")["vendor.acme"][0]
with opmux.policy(per_op={"opmux::silu": "flagos|*"}):
    found["named"] = ours("opmux::silu")[0]
with opmux.policy(deny=["acme"]):
    found["denied"] = ours("opmux::silu")[0]
"""
    got = case(code, acme={"__init__.py": info(device="npu"), "ops/__init__.py": ops}, OPMUX_VENDOR="acme")
    words = "ours is faster: it runs only if a policy names it, by impl:default.flagos or an order for silu"
    assert got.ours["opmux::silu"] == ["refused", "library", words] and got.theirs == "chosen"
    assert got.ours["opmux::relu"][0] == got.ours["rms_norm"][0] == got.named == got.denied == "chosen"
    assert "get_preferred_ops of acme raised ZeroDivisionError" in got.ours["softmax"][2]
    assert [w for w in got.said if "preferred op 'sillu'" in w and "no such op" in w]
    assert [w for w in got.said if "preferred op 'tanh'" in w and "expected the reason" in w]


NAMES = {
    "__init__.py": info(),
    "ops/__init__.py": "from .add import add\nfrom .gelu import gelu\n\n__all__ = ['add', 'gelu']\n",
    "ops/add.py": "def add(self, other, *, alpha=1):\n    return self.new_full(self.shape, 42.0)\n",
    "ops/gelu.py": "def gelu(x):\n    return x.new_full(x.shape, 7.0)\n",
}


def test_a_bare_exported_name_registers_the_op_of_that_name(case):
    code = """
a = torch.ones(3)
found["add"], found["gelu"] = opmux.ops.add(a, a).tolist(), opmux.ops.gelu(a).tolist()
found["keys"] = sorted(i.op_name for i in HERE.ops("cpu").impls)
"""
    got = case(code, acme=NAMES, OPMUX_VENDOR="acme")
    assert (got.add, got.gelu) == ([42.0] * 3, [7.0] * 3)
    assert got.keys == ["aten::add", "opmux::gelu"]
    assert got.said == []


def test_a_name_that_opmux_and_aten_share_goes_to_the_op_with_matching_parameters(case):
    code = """
a = torch.ones(3)
opmux.enable(mode="all")
found["gelu"] = [torch.nn.functional.gelu(a, approximate=form).tolist() for form in ("none", "tanh")]
found["keys"] = sorted(i.op_name for i in HERE.ops("cpu").impls)
"""
    gelu = "def gelu(A, *, approximate='none'):\n    return A.new_full(A.shape, 7.0 + len(approximate))\n"
    got = case(code, acme=NAMES | {"ops/gelu.py": gelu}, OPMUX_VENDOR="acme")
    assert got.gelu == [[11.0] * 3] * 2
    assert got.keys == ["aten::add", "aten::gelu"] and got.said == []


LIGER = {
    "__init__.py": (
        "from liger_kernel.ops.backends.registry import VendorInfo, register_vendor\n\n"
        'register_vendor(VendorInfo(vendor="acme", device="cpu"))\n'
    ),
    "ops/__init__.py": (
        "from .geglu import (\n"
        "    LigerGELUMulFunction,\n"
        "    geglu_backward_acme as geglu_backward,\n"
        "    geglu_forward_acme as geglu_forward,\n"
        ")\n\n"
        '__all__ = ["LigerGELUMulFunction", "geglu_forward", "geglu_backward", "gelu_tanh_mul"]\n\n'
        "gelu_tanh_mul = LigerGELUMulFunction\n"
    ),
    "ops/geglu.py": (
        "import torch\n\n"
        "def geglu_forward_acme(a, b):\n"
        "    return a, b, 5 * a * b\n\n"
        "def geglu_backward_acme(a, b, dc):\n"
        "    return 5 * dc * b, 5 * dc * a\n\n"
        "class LigerGELUMulFunction(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, a, b):\n"
        "        a, b, c = geglu_forward_acme(a, b)\n"
        "        ctx.save_for_backward(a, b)\n"
        "        return c\n\n"
        "    @staticmethod\n"
        "    def backward(ctx, dc):\n"
        "        return geglu_backward_acme(*ctx.saved_tensors, dc)\n"
    ),
}
# Exported under its own name, the class is a new function. Exported under an op's name, it implements the op.
USE_LIGER = """
a = torch.full((2,), 2.0, requires_grad=True)
b = torch.full((2,), 3.0, requires_grad=True)
found["forward"] = opmux.ops.geglu_forward(a, b)[2].tolist()
found["named"] = "LigerGELUMulFunction" in dir(opmux.ops)
for fn in (opmux.ops.LigerGELUMulFunction.apply, opmux.ops.gelu_tanh_mul):
    a.grad = b.grad = None
    y = fn(a, b)
    y.sum().backward()
    found.setdefault("runs", []).append([y.tolist(), a.grad.tolist(), b.grad.tolist()])
found["registry"] = VENDOR_REGISTRY["cpu"].vendor_name
"""


@pytest.mark.parametrize("where", ["in the tree", "plugin"])
def test_a_vendor_folder_written_for_liger_works(case, where):
    options = {"acme": LIGER} if where == "in the tree" else {"plugins": {"liger_acme": LIGER}}
    got = case(USE_LIGER, **options, OPMUX_VENDOR="acme")
    assert got.runs == [[[30.0] * 2, [15.0] * 2, [10.0] * 2]] * 2
    assert got.forward == [30.0] * 2 and got.named and got.registry == "acme"
    assert got.said == []


def test_liger_and_flaggems_module_names_are_removed_after_import(case):
    code = USE_LIGER + "found['left'] = [m for m in sys.modules if m.startswith(('liger_kernel', 'backend_utils'))]\n"
    assert case(code, acme=LIGER, OPMUX_VENDOR="acme").left == []


def test_an_ops_folder_without_a_list_exports_its_public_names(case):
    ops = {"ops/__init__.py": "import math\nfrom .norm import rms_norm, _hidden\nLIMIT = math.pi\n"}
    ops["ops/norm.py"] = MARK.format(-1.0) + "def _hidden():\n    pass\ndef magic(x):\n    return x\n"
    ops["ops/__init__.py"] += "from .norm import magic\n"
    code = CALL + "found['extras'] = sorted(HERE.ops('cpu').extras)\n"
    got = case(code, acme={**ACME, **ops}, OPMUX_VENDOR="acme")
    assert got.y == [-1.0] and got.extras == ["magic"]


def _by_attributes(op, **fields):
    return "".join(f"{op}.{name} = {value}\n" for name, value in fields.items())


def _by_decorator(op, **fields):
    arguments = ", ".join(f"{name.replace('_is_', '')}={value}" for name, value in fields.items())
    return f"from opmux.backends import implements\n{op} = implements({op!r}, {arguments})({op})\n"


@pytest.mark.parametrize("marked", [_by_attributes, _by_decorator])
def test_an_exported_function_states_dtypes_kind_id_priority_and_when(case, marked):
    library = {"kind": "BackendImplKind.VENDOR", "impl_id": "'vendor.acme.fast'", "priority": 7}
    norm = (
        MARK.format(-1.0)
        + "import torch\nfrom opmux.core import BackendImplKind\n"
        + marked("rms_norm", dtypes="{torch.bfloat16}")
        + "def softmax(x, dim):\n    return x\n"
        + marked("softmax", **library, _is_available="lambda: False")
        + "def silu(x):\n    return x\n"
        + marked("silu", when="lambda x: x.dim() == 1 or 'one dimension'")
    )
    ops = {"ops/__init__.py": "from .norm import *\n__all__ = ['rms_norm', 'softmax', 'silu']\n", "ops/norm.py": norm}
    code = (
        CALL + EXPLAIN + "found['softmax'], found['silu'] = shown('softmax'), shown(opmux.ops.silu, torch.ones(2, 2))\n"
    )
    got = case(code, acme={**ACME, **ops}, OPMUX_VENDOR="acme")
    assert got.y == ORDINARY
    assert got.ids["default.flagos.acme"] == ["refused", "dtype", "takes bfloat16; the first tensor is float32"]
    assert got.softmax["vendor.acme.fast"][:2] == ["refused", "library"]
    assert "one dimension" in got.silu["default.flagos.acme"][2]


# ---- steps of the guide: additions, tiles, ops, archs ----------------------------------------------------------------


def test_a_function_with_a_new_name_becomes_opmux_ops_name(case):
    ops = {"ops/__init__.py": "def warp_shuffle(x):\n    return x + 1\n__all__ = ['warp_shuffle']\n"}
    code = """
found["y"] = opmux.ops.warp_shuffle(torch.ones(1)).tolist()
found["named"] = "warp_shuffle" in dir(opmux.ops)
del os.environ["OPMUX_VENDOR"]
vendors.forget("acme")
found["gone"] = error_of(lambda: opmux.ops.warp_shuffle)
"""
    got = case(code, acme={**ACME, **ops}, OPMUX_VENDOR="acme")
    assert got.y == [2.0] and got.named
    assert got.gone.startswith("AttributeError: opmux.ops: unknown op 'warp_shuffle'")


TILES = {
    "__init__.py": info(device="npu") + 'ARCH_MAP = {"a2": "large"}\n',
    "heuristics_config_utils.py": (
        "HEURISTICS_CONFIGS = {\n"
        '    "activation.flat": {"BLOCK": lambda args: 512, "num_warps": 2},\n'
        '    "softmax.rows": {"num_warps": 16},\n'
        "}\n"
    ),
    "tune_configs.yaml": "activation.flat:\n  - META: {BLOCK: 256}\n    num_warps: 8\n",
    "large/__init__.py": "",
    "large/heuristics_config_utils.py": 'HEURISTICS_CONFIGS = {"activation.flat": {"BLOCK": 8192}}\n',
}
LOOK = """
flat, rows = config.tunables["activation.flat"], config.tunables["softmax.rows"]
def tiles(arch):
    with config.as_on(devices.Chip("acme", arch)):
        a, b = flat.look(dtype=torch.float32), rows.look(n=64, dtype=torch.float32)
        return [a.tiles["BLOCK"], a.tiles.threads, a.source, b.tiles.threads, b.source]
"""


def test_a_vendor_folder_may_have_only_tile_files(case):
    """The folder has heuristics and tuning candidates; its arch folder overrides one tunable."""
    code = (
        LOOK
        + """
found["near"], found["far"] = tiles("a2"), tiles("a1")
found["trials"] = tile_files.candidates(devices.Chip("acme", "a2"), "activation.flat").given
found["ids"] = shown("silu")
"""
    )
    got = case(code, acme=TILES)
    assert got.far == [512, 64, "heuristics", 512, "heuristics"]
    assert got.near == [8192, 128, "heuristics", 512, "heuristics"]
    assert got.trials == [{"BLOCK": 256, "num_warps": 8}]
    assert set(got.ids) == {"default.flagos", "reference.torch"}


def test_a_scalar_function_is_enough_for_a_pointwise_op(case):
    """The pointwise generator adds dtypes, broadcasting and the ATen override."""
    ops = {
        "ops/__init__.py": "from .tanh import tanh\n__all__ = ['tanh']\n",
        "ops/tanh.py": (
            "import triton\n"
            "import triton.language as tl\n"
            "from opmux.kernels.lib.pointwise import Row\n"
            "from opmux.specs import pointwise as spec\n\n"
            "@triton.jit\n"
            "def value(x):\n"
            "    return tl.abs(x) + 10\n\n"
            "tanh = Row('tanh', spec.ops['tanh'].reference, value, spec.ROWS['tanh'].dtypes).call\n"
        ),
    }
    code = """
found["y"] = opmux.ops.tanh(torch.ones(2, 3).t()).tolist()
found["int"] = opmux.ops.tanh(torch.ones(1, dtype=torch.int32)).dtype
with opmux.use(include="tanh", mode="all"):
    found["aten"] = torch.ones(1, dtype=torch.bfloat16).tanh().tolist()
"""
    got = case(code, acme={"__init__.py": info(), **ops}, OPMUX_VENDOR="acme")
    assert got.y == [[11.0] * 2] * 3 and got.int == "torch.float32" and got.aten == [11.0]
    assert got.said == []


def guide() -> dict[str, str]:
    """The vendor files that the guide shows, and the op that `opmux new-backend` writes."""
    text = (SRC / "opmux/backends/README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    marks = {
        "__init__.py": "vendor_info = VendorInfoBase(",
        "heuristics_config_utils.py": "HEURISTICS_CONFIGS = ",
        "ops/__init__.py": "def get_specific_ops",
        "ops/tanh.py": "# ops/tanh.py",
        "ops/mm.py": "# ops/mm.py",
        "ops/rms_norm.py": "# ops/rms_norm.py",
    }
    files = {name: next(b for b in blocks if mark in b) for name, mark in marks.items()}
    example = (SRC / "opmux/tools/template/backend/ops/silu_mul.py").read_text(encoding="utf-8")
    return {
        **files,
        "tune_configs.yaml": re.search(r"^```yaml\n(.*?)^```", text, re.M | re.S)[1],
        "ops/silu_mul.py": example.replace("VENDOR_NAME", "acme"),
    }


def test_the_guides_code_blocks_are_a_working_vendor(case):
    """The code blocks are used unchanged as files of a vendor."""
    code = (
        LOOK
        + """
fake("npu")
found["ops"] = {op: opmux.explain(op).chosen.impl_id for op in ("silu_mul", "tanh")}
found["rows"], found["unused"] = list(HERE.ops("npu").rows), list(HERE.ops("npu").unused)
found["tiles"] = tiles(None)
found["trials"] = len(tile_files.candidates(devices.Chip("acme", None), "softmax.rows").given)
found["cores"] = vendors.get("acme").info.target(None).cores
"""
    )
    got = case(code, acme=guide(), OPMUX_VENDOR="acme")
    assert set(got.ops.values()) == {"default.flagos.acme"} and got.said == []
    assert (got.rows, got.unused, got.trials, got.cores) == (["mm"], ["cumsum"], 7, 40)
    assert got.tiles[2:] == ["default", 256, "heuristics"]


def test_the_guides_vendor_passes_conform(tmp_path):
    """Runs the page's own command on a simulated device. The page also lists what `opmux new-backend` writes."""
    from opmux.tools import scaffold

    write(tmp_path / "opmux_acme", guide())
    env = {**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{tmp_path}", "OPMUX_PLUGIN_MODULES": "opmux_acme"}
    words = "--vendor acme --op silu_mul --op tanh --op mm --check load --check values".split()
    result = fresh.run(
        [sys.executable, "-m", "opmux", "conform", *words], env=env, cwd=tmp_path, timeout=300, warm=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "acme: 6 checks of 4 ops, nothing failed" in result.stdout
    text = (SRC / "opmux/backends/README.md").read_text(encoding="utf-8")
    tree = re.search(r"^opmux_acme/.*?^```", text, re.M | re.S)[0]
    listed = set(re.findall(r"[├└]── (\S+)", tree)) - {"ops/"}
    assert listed == {Path(part.target).name for part in scaffold.FOLDER}


def test_a_vendor_folder_may_have_only_a_heuristics_file(case):
    files = {k: v for k, v in TILES.items() if k in ("__init__.py", "heuristics_config_utils.py")}
    got = case(LOOK + "found['tiles'] = tiles('a2')\n", acme=files)  # the folder that its ARCH_MAP names does not exist
    assert got.tiles[:3] == [512, 64, "heuristics"] and got.said == []


def test_an_arch_folder_overrides_its_vendor_op_by_op(case):
    """For each op that the arch folder lacks, the vendor's implementation is used."""
    arch = {
        "__init__.py": info() + 'ARCH_MAP = {"a2": "large"}\ndef arch_of(index):\n    return "a2"\n',
        "ops/__init__.py": MARK.format(-1.0) + "def silu(x):\n    return x.new_full(x.shape, 9.0)\n",
        "large/__init__.py": "",
        "large/ops/__init__.py": MARK.format(-2.0) + "def only_here(x):\n    return x\n",
    }
    code = CALL + EXPLAIN + "found['silu'] = opmux.ops.silu(torch.ones(1)).tolist()\n"
    code += "found['order'] = [v.impl.priority for v in opmux.explain('rms_norm').verdicts][:2]\n"
    code += "found['extra'] = 'only_here' in dir(opmux.ops)\n"
    got = case(code, acme=arch, OPMUX_VENDOR="acme")
    assert got.y == [-2.0] and got.silu == [9.0] and got.extra
    assert list(got.ids)[:2] == ["default.flagos.acme.large", "default.flagos.acme"] and got.order == [200, 100]


def test_a_vendor_without_ops_uses_the_kernels_for_any_chip(case):
    code = CALL + EXPLAIN + "found['extras'] = list(HERE.ops('cpu').extras)\n"
    got = case(code, acme={"__init__.py": info()}, OPMUX_VENDOR="acme")
    assert got.y == ORDINARY and got.extras == [] and got.said == []
    assert set(got.ids) == {"default.flagos", "reference.torch"}


# ---- mistakes --------------------------------------------------------------------------------------------------------

GOOD = {"__init__.py": info("good"), "ops/__init__.py": MARK.format(-1.0)}
STANDS = "found['known'] = [n in vendors.known() for n in ('good', 'nvidia', 'ascend')]\n"
TWICE = CALL + CALL.replace("'y'", "'again'") + "infer_device()\n" + STANDS


@pytest.mark.parametrize(
    "files, place, message",
    [
        ({"__init__.py": "x = 1\nvendor_info = (\n"}, "_acme/__init__.py:2", "SyntaxError"),
        ({"__init__.py": "import os\n\nimport no_such_library\n"}, "_acme/__init__.py:3", "No module named"),
        ({"__init__.py": "from . import lost\n"}, "_acme/__init__.py:1", "lost"),
        ({"__init__.py": "x = 1\n"}, "_acme/__init__.py", "it has no vendor_info = VendorInfoBase(...)"),
        ({"__init__.py": "vendor_info = 7\n"}, "_acme/__init__.py", "must be a VendorInfoBase; got 7"),
        ({"__init__.py": info(vendor="a b")}, "_acme/__init__.py:2", "vendor_name = 'a b'"),
        ({"__init__.py": info(device_query_cmd="x 'y")}, "_acme/__init__.py:2", "device_query_cmd"),
        ({"__init__.py": info() + "ARCH_MAP = ['9']\n"}, "_acme/__init__.py", "ARCH_MAP is {arch: folder}"),
        ({"__init__.py": "import sys\nsys.exit(3)\n"}, "_acme/__init__.py:2", "SystemExit: 3"),
        (
            {"__init__.py": LIGER["__init__.py"] + "1 / 0\n"},
            "_acme/__init__.py:4",
            "ZeroDivisionError",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "_acme" not in value else "",
)
def test_a_broken_vendor_is_skipped_with_one_warning(case, files, place, message):
    """The warning names file and line; the other vendors still work."""
    got = case(TWICE + "found['acme'] = 'acme' in vendors.known()\n", acme=files, good=GOOD, OPMUX_VENDOR="good")
    (words,) = got.said
    assert f"{place}" in words and message in words and "is left out" in words
    assert got.y == got.again == [-1.0] and got.known == [True] * 3 and not got.acme


@pytest.mark.parametrize(
    "files, place, message",
    [
        ({"ops/norm.py": "def rms_norm(x)\n    return x\n"}, "_acme/ops/norm.py:1", "SyntaxError"),
        ({"ops/norm.py": "\nimport lost_library\n"}, "_acme/ops/norm.py:2", "lost_library"),
        ({"ops/__init__.py": "from .nrom import rms_norm\n"}, "_acme/ops/__init__.py:1", "nrom"),
        (
            {"ops/norm.py": "\ndef rms_norm(x, weight):\n    return x\n"},
            "_acme/ops/norm.py:2",
            "cannot take ['eps', 'offset']",
        ),
        ({"ops/norm.py": "def rms_norm(a, b, c, d, e):\n    return a\n"}, "_acme/ops/norm.py:1", "it needs ['e']"),
        (
            {"ops/__init__.py": "__all__ = ['rms_nrom']\n"},
            "_acme/ops/__init__.py",
            "'rms_nrom', which the module does not",
        ),
        ({"ops/norm.py": MARK + "rms_norm.dtypes = {'float33'}\n"}, "_acme/ops/", "float33"),
    ],
    ids=lambda value: value if isinstance(value, str) and "_acme" not in value else "",
)
def test_a_mistake_in_one_op_drops_only_that_op(case, files, place, message):
    files = {name: text.replace("{0}", "-1.0") for name, text in files.items()}
    got = case(TWICE, acme={**ACME, **files}, good=GOOD, OPMUX_VENDOR="acme")
    (words,) = got.said
    assert place in words and message in words
    assert got.y == got.again == ORDINARY and got.known == [True] * 3


ROW = "def add(a, b, *, alpha=1):\n    return a.new_full(a.shape, 42.0)\n\ndef get_specific_ops():\n    return ({},)\n"


@pytest.mark.parametrize(
    "row, message",
    [
        ("('add.Tensro', add)", "aten::add has no overload 'Tensro'. It has: "),
        ("('addd.Tensor', add)", "ATen has no op 'addd'; did you mean 'add'?"),
        ("('add.Tensor',)", 'expected ("add.Tensor", function, Autograd.disable)'),
        ("'add.Tensor'", 'expected ("add.Tensor", function, Autograd.disable)'),
        ("('add.Tensor', add, True)", "Autograd.enable or Autograd.disable"),
        ("('add.Tensor', lambda a: a)", "cannot be called as aten::add.Tensor: too many positional arguments"),
    ],
)
def test_a_bad_row_of_get_specific_ops_drops_only_that_row(case, row, message):
    code = "found['rows'] = sorted(HERE.ops('cpu').rows)\n" + CALL
    files = {"__init__.py": info(), "ops/__init__.py": ROW.format(f"('mul.Tensor', add), {row}")}
    got = case(code, acme=files, OPMUX_VENDOR="acme")
    (words,) = got.said
    assert "_acme/ops/__init__.py:4" in words and message in words
    assert got.rows == ["mul.Tensor"] and got.y == ORDINARY


ADD = "def add(a, b, alpha=1):\n    return a\ndef other(a, b, alpha=1):\n    return b\n"
LIKELY = {
    "two rows": (
        ADD + "def get_specific_ops():\n    return (('add.Tensor', add), ('add.Tensor', other))\n",
        r"ops/__init__.py:5: two rows for aten::add.Tensor: \S+:1 is used, \S+:3 is not",
    ),
    "a misspelt export": (
        "def silu(x):\n    return x\n__all__ = ['sillu']\n",
        r"ops/__init__.py: __all__ has 'sillu', which the module does not define; did you mean 'silu'\?",
    ),
    "a misspelt op": (
        "def cumsumm(x, dim):\n    return x\n__all__ = ['cumsumm']\n",
        r"ops/__init__.py:1: 'cumsumm' is no op, and becomes a new function opmux.ops.cumsumm; did you mean 'cumsum'\?",
    ),
    "a string of unused ops": (
        "def get_unused_ops():\n    return ('cumsum')\n",
        r"ops/__init__.py:1: get_unused_ops\(\) returns 'cumsum', and is read as a tuple with one entry: add",
    ),
    "a string of exports": (
        "def silu(x):\n    return x\n__all__ = ('silu')\n",
        r"ops/__init__.py: __all__ is the string 'silu', and is read as \['silu'\]: write a list",
    ),
    "a row where a tuple of rows is meant": (
        "def add(a, b, alpha=1):\n    return a\ndef get_specific_ops():\n    return ('add.Tensor', add)\n",
        r"ops/__init__.py:3: get_specific_ops\(\) returns the row of 'add.Tensor', and is read as a tuple with one",
    ),
}


@pytest.mark.parametrize("text, message", LIKELY.values(), ids=list(LIKELY))
def test_a_likely_mistake_warns_once(case, text, message):
    """One warning is given even if the ops are read twice. Where the intent is clear, opmux does what was meant."""
    code = """
for _ in range(2):
    opmux.ops.silu(torch.ones(1))
    ops = HERE.ops("cpu")
found["ops"] = [list(ops.rows), list(ops.unused), [i.op_name for i in ops.impls], list(ops.extras)]
"""
    got = case(code, acme={"__init__.py": info(), "ops/__init__.py": text}, OPMUX_VENDOR="acme")
    assert len(got.said) == 1 and re.search(message, got.said[0]), got.said
    meant = [["add.Tensor"], [], ["aten::add"], []], [[], ["cumsum"], [], []], [[], [], ["opmux::silu"], []]
    assert got.ops in (*meant, [[], [], [], []], [[], [], [], ["cumsumm"]])


def test_a_row_for_one_overload_wins_over_a_row_for_all_overloads(case):
    text = (
        "def every(self, mat2):\n    return self\ndef out(self, mat2, *, out):\n    return out\n"
        "def get_specific_ops():\n    return (('mm', every), ('mm.out', out))\n"
    )
    code = "found['rows'] = {n: r.fn.__name__ for n, r in HERE.ops('cpu').rows.items()}\n"
    got = case(code, acme={"__init__.py": info(), "ops/__init__.py": text}, OPMUX_VENDOR="acme")
    assert got.rows == {"mm.out": "out", "mm": "every"} and got.said == []


def test_a_scalar_operand_goes_to_aten_if_the_vendors_function_takes_only_tensors(case):
    """The function is declared for add.Tensor, which torch also calls with a number."""
    text = (
        "import torch\n"
        "def add(A, B, *, alpha=1):\n"
        "    assert isinstance(A, torch.Tensor) and isinstance(B, torch.Tensor)\n"
        "    return torch.full_like(A, 7.0)\n"
        "def get_specific_ops():\n    return (('add.Tensor', add),)\n"
    )
    code = """
opmux.enable(mode="all")
x = torch.ones(3)
found["y"] = [t.tolist() for t in (x + x, x + 1, torch.add(x, 1), 1 + x, x.clone().add_(1))]
"""
    got = case(code, acme={"__init__.py": info(), "ops/__init__.py": text}, OPMUX_VENDOR="acme")
    assert got.y == [[7.0] * 3, *([[2.0] * 3] * 4)] and got.said == []


def test_an_impl_of_kind_vendor_ranks_behind_triton_kernels_unless_preferred(case):
    """The vendor (get_preferred_ops) or the user (OPMUX_PREFER) can put it first."""
    text = (
        "from opmux.core import BackendImplKind\n"
        "def silu(x):\n    return x.new_full(x.shape, 7.0)\n"
        "silu.kind = BackendImplKind.VENDOR\n__all__ = ['silu']\n"
    )
    preferred = text + "def get_preferred_ops():\n    return {'silu': 'the library is faster'}\n"
    code = """
fake("npu")
key = "opmux::silu"
found["first"] = opmux.explain(key).chosen.impl_id
found["ids"] = [v.impl.impl_id for v in opmux.explain(key).verdicts]
found["kind"] = str(next(i.kind for i in HERE.ops("npu").impls))
"""
    files = lambda ops: {"__init__.py": info(device="npu"), "ops/__init__.py": ops}
    for ops, env, first in ((text, {}, "default.flagos"), (preferred, {}, "vendor.acme"),
                            (text, {"OPMUX_PREFER": "vendor"}, "vendor.acme")):  # fmt: skip
        got = case(code, acme=files(ops), OPMUX_VENDOR="acme", **env)
        assert got.first == first and {"default.flagos", "vendor.acme"} <= set(got.ids) and got.kind == "vendor"
        assert got.said == []


def test_an_unknown_dispatch_key_is_reported_with_the_nearest_one(case):
    files = {"__init__.py": info(dispatch_key="PrivatUse1")}
    got = case("found['known'] = 'acme' in vendors.known()\n", acme=files)
    assert not got.known and len(got.said) == 1
    assert re.search(r"__init__.py:2: BadVendor: .*dispatch_key = 'PrivatUse1'. Allowed: .*CUDA, ", got.said[0])
    assert got.said[0].endswith("did you mean 'PrivateUse1'?")


def test_a_copied_folder_does_not_inherit_the_verification_statement(case):
    code = "found['says'] = {n: vendors.get(n).info.statement for n in ('acme', 'nvidia')}\n"
    got = case(code, acme={"__init__.py": nvidia_init("acme", "npu")})
    assert got.says["acme"] == "nothing was run on this hardware"
    assert got.says["nvidia"].startswith("H200: kernels tested and measured")


def test_registering_an_impl_id_twice_raises_and_names_its_owner(case):
    code = """
from opmux.core import OpImpl
mine = lambda: OpImpl("opmux::silu", "vendor.bolt", BackendImplKind.VENDOR, "bolt", lambda x: x)
get_default_manager().registry.register_impl(mine())
found["error"] = error_of(lambda: get_default_manager().registry.register_impl(mine()))
taken = OpImpl("opmux::silu", "default.flagos.acme", BackendImplKind.DEFAULT, "acme", lambda x: x)
opmux.explain("opmux::silu")
found["vendors"] = error_of(lambda: get_default_manager().registry.register_impl(taken))
"""
    files = {"__init__.py": info(), "ops/__init__.py": "def silu(x):\n    return x\n"}
    got = case(code, acme=files, OPMUX_VENDOR="acme")
    assert "has an impl 'vendor.bolt' already, from code (<case>): pick another impl_id" in got.error
    assert re.search(r"'default.flagos.acme' already, from opmux \(\S+_acme/ops/__init__.py\): pick", got.vendors)


def test_a_plugin_vendor_is_known_at_the_first_call(case):
    """`opmux.enable()` is the first call, and OPMUX_VENDOR may name the package's vendor."""
    text = "def silu(x):\n    return x\n__all__ = ['silu']\n"
    code = """
fake("npu")
found["first"] = len(opmux.enable(mode="all"))
found["vendor"] = HERE.vendor_of("npu")
found["ids"] = [i.impl_id for i in HERE.ops("npu").impls]
"""
    package = {"acme": {"__init__.py": info(device="npu"), "ops/__init__.py": text}}
    for env in ({}, {"OPMUX_VENDOR": "acme"}):
        got = case(code, package, **env)
        assert got.first > 100 and (got.vendor, got.ids) == ("acme", ["default.flagos.acme"]) and got.said == []


def test_a_misspelt_environment_variable_warns_once(case):
    code = "for _ in range(2):\n    opmux.ops.silu(torch.ones(1))\n"
    got = case(code, acme=PLAIN, OPMUX_VENDOR="plain", OPMUX_STRIKT="1", TE_FL_PREFR="vendor")
    assert got.said == [
        "environment variable OPMUX_STRIKT is not a setting of opmux: did you mean OPMUX_STRICT?",
        "environment variable TE_FL_PREFR is not a setting of opmux: did you mean TE_FL_PREFER?",
    ]


def test_a_package_written_for_flaggems_can_be_imported_directly(case, tmp_path):
    """The package's own tests import it this way. The start-up finder provides `backend_utils` unless another module of
    that name is found.
    """
    ops = "from backend_utils import Autograd\ndef get_specific_ops():\n    return ()\n"
    init = "from backend_utils import VendorInfoBase\nvendor_info = VendorInfoBase('acme', 'npu', 'acme-smi')\n"
    code = """
import opmux_startup
sys.meta_path[:] = [opmux_startup.Finder] + [f for f in sys.meta_path if f is not opmux_startup.Finder]
import acme.ops
from opmux.backends import Autograd
found["same"] = acme.ops.Autograd is Autograd
found["known"] = "acme" in vendors.known()
"""
    got = case(code, {"acme": {"__init__.py": init, "ops/__init__.py": ops}})
    assert got.same and got.known and got.said == []
    theirs = {"acme": {"__init__.py": "", "ops/__init__.py": "from backend_utils import Autograd\n"},
              "backend_utils": {"__init__.py": "Autograd = 'theirs'\n"}}  # fmt: skip
    code = code.partition("from opmux.backends")[0] + "found['theirs'] = acme.ops.Autograd\n"
    assert case(code, theirs, OPMUX_PLUGIN_MODULES="").theirs == "theirs"


def test_conform_lists_functions_that_implement_no_op(case):
    """`opmux conform` has no reference with which to compare such functions."""
    code = """
from opmux.tools.conform.target import DIRECT, ConformTarget
from opmux.tools.conform.subject import extras_of, rows_of
target = ConformTarget(vendors.get("acme"), torch.device("cpu"), DIRECT)
found["extras"], found["rows"] = list(extras_of(target)), list(rows_of(target))
"""
    text = "def mine(x):\n    return x\ndef get_specific_ops():\n    return (('mm', lambda self, mat2: self),)\n"
    got = case(code, acme={"__init__.py": info(), "ops/__init__.py": text + "__all__ = ['mine']\n"})
    assert (got.extras, got.rows) == (["mine"], ["mm"])


@pytest.mark.parametrize(
    "text, place",
    [
        ("def get_specific_ops():\n    return 1 / 0\n", "ops/__init__.py:2"),
        ("def get_unused_ops():\n    pass\n", "ops/__init__.py"),
    ],
)
def test_an_error_in_get_specific_ops_or_get_unused_ops_warns_with_its_file(case, text, place):
    got = case(CALL, acme={**ACME, "ops/__init__.py": text + OPS["ops/__init__.py"]}, OPMUX_VENDOR="acme")
    (words,) = got.said
    assert place in words and got.y == [-1.0]


def test_an_unknown_name_in_get_unused_ops_warns_with_the_nearest_one(case):
    text = OPS["ops/__init__.py"] + "def get_unused_ops():\n    return ('cumsun', 'cos')\n"
    got = case(
        CALL + "found['unused'] = list(HERE.ops('cpu').unused)\n",
        acme={**ACME, "ops/__init__.py": text},
        OPMUX_VENDOR="acme",
    )
    (words,) = got.said
    assert "'cumsun'" in words and "did you mean 'cumsum'?" in words and "ops/__init__.py:3" in words
    assert got.unused == ["cos"] and got.y == [-1.0]


@pytest.mark.parametrize(
    "text, message",
    [
        ("activation.flat:\n  - META: {BLOCK: 256\n", "is not valid YAML"),
        ("- activation.flat\n", "expected tunables, each with a list of configs"),
        ("activation.flat:\n  - META: {BLOKC: 256}\n", "BLOKC is not one of its sizes. Allowed: num_warps"),
        ("activation.flat:\n  - META: {BLOCK: 300}\n", "BLOCK = 300. Allowed: a power of two"),
        ("activation.flat:\n  - {META: {BLOCK: 256}, num_wraps: 4}\n", "unknown field num_wraps"),
    ],
)
def test_a_mistake_in_tune_configs_raises_and_names_the_file(case, text, message):
    code = "f = config.tunables['activation.flat']\nchip = devices.Chip('acme', None)\n"
    code += "found['error'] = error_of(lambda: f.candidates(chip, dtype=torch.float32))\n" + CALL
    got = case(code, acme={**ACME, "tune_configs.yaml": text}, OPMUX_VENDOR="acme")
    assert got.error.startswith("BadTiles: ") and "_acme/tune_configs.yaml" in got.error and message in got.error
    assert got.y == [-1.0]
    if "YAML" in message:
        assert "line 3" in got.error or "line 2" in got.error


@pytest.mark.parametrize(
    "text, message",
    [
        ("HEURISTICS_CONFIGS = {\n", "heuristics_config_utils.py:1: SyntaxError"),
        ("x = 1\nimport lost_library\n", "heuristics_config_utils.py:2: ModuleNotFoundError"),
        (
            "HEURISTICS_CONFIGS = ['activation.flat']\n",
            "HEURISTICS_CONFIGS is {tunable: {size: value or function(args)}}",
        ),
        ("HEURISTICS_CONFIGS = {'activation.flat': {'BLOCK': 300}}\n", "BLOCK = 300. Allowed: a power of two"),
        (
            "HEURISTICS_CONFIGS = {'activation.flat': {'BLOCK': lambda a: a['m']}}\n",
            "BLOCK: KeyError: 'm'. It was given arch",
        ),
    ],
)
def test_a_mistake_in_heuristics_raises_and_names_the_file(case, text, message):
    code = LOOK + "found['error'] = error_of(lambda: tiles(None))\n" + CALL
    got = case(code, acme={**ACME, "heuristics_config_utils.py": text}, OPMUX_VENDOR="acme")
    assert (
        got.error.startswith("BadTiles: ") and "_acme/heuristics_config_utils.py" in got.error and message in got.error
    )
    assert got.y == [-1.0]


def test_a_plugin_that_fails_after_registering_its_vendor_is_dropped(case):
    """Discovery logs a warning with its traceback."""
    code = CALL + "found['known'], found['registry'] = 'acme' in vendors.known(), 'npu' in VENDOR_REGISTRY\n"
    code += "found['vendor'] = VENDOR_REGISTRY['npu'].vendor_name\n"
    bad = LIGER["__init__.py"].replace('device="cpu"', 'device="npu"') + "1 / 0\n"
    got = case(code, plain=PLAIN, plugins={"bad_acme": {**LIGER, "__init__.py": bad}})
    (words,) = got.said
    assert "plugin 'bad_acme'" in words and "ZeroDivisionError" in words and "bad_acme/__init__.py" in words
    assert not got.known and got.vendor == "ascend" and got.y == ORDINARY


# ---- choosing between vendors of one device type ---------------------------------------------------------------------


def shared(device: str = "gpu", **queries: str) -> dict:
    return {name: {"__init__.py": info(name, device, device_query_cmd=query)} for name, query in queries.items()}


WHOSE = "fake('gpu')\nf = devices.vendor_of('gpu')\nfound['whose'] = None if f is None else f.name\n"


@pytest.mark.parametrize(
    "one, two, whose",
    [
        ("false", "true", "two"),
        ("true", "false", "one"),
        ("no-such-program --list", "true", "two"),
        ("", "true", "two"),
        ("false", "false", "two"),  # neither query succeeds: the last registered vendor wins
        ("sh -c 'exit 0'", "false", "one"),  # split into words as in a shell, but run without a shell
        ("true; false", "true", "two"),
    ],
)
def test_query_commands_choose_between_vendors_of_one_device_type(case, one, two, whose):
    got = case(WHOSE, **shared(one=one, two=two))
    assert got.whose == whose and got.said == []


def test_a_query_command_that_hangs_is_stopped(case):
    code = "import time\ndevices.QUERY_TIMEOUT = 0.2\nstart = time.monotonic()\n" + WHOSE
    code += "devices.vendor_of('gpu')\nfound['took'] = time.monotonic() - start\n"
    got = case(code, **shared(one="sleep 60", two="true"))
    (words,) = got.said
    assert words.startswith("one's query `sleep 60` was stopped after 0.2 s") and "OPMUX_VENDOR" in words
    assert got.whose == "two" and got.took < 5


def test_driver_files_are_checked_before_query_commands(case, tmp_path):
    driver = tmp_path / "driver"
    driver.touch()
    files = shared(one="true", two="touch " + str(tmp_path / "asked"))
    files["two"]["__init__.py"] = info("two", "gpu", device_query_cmd="false", driver_files=(str(driver),))
    assert case(WHOSE, **files).whose == "two"


def test_no_query_runs_if_only_one_vendor_has_the_device_type(case, tmp_path):
    marker = tmp_path / "asked"
    assert case(WHOSE, **shared(one=f"touch {marker}")).whose == "one"
    assert not marker.exists()


def test_opmux_vendor_forces_a_vendor(case):
    got = case(WHOSE, **shared(one="true", two="false"), OPMUX_VENDOR="Two")
    assert got.whose == "two"


def test_an_unknown_opmux_vendor_raises_with_the_nearest_name(case):
    code = "found['error'] = error_of(lambda: opmux.ops.silu(torch.ones(1)))\n"
    got = case(code, acme=ACME, OPMUX_VENDOR="acne")
    assert got.error == "UnknownName: unknown vendor 'acne': did you mean 'acme'?"


def test_several_vendors_in_one_process(case):
    """There is one vendor per device type, each with its ops, its extras and its unused ops."""
    other = {
        "__init__.py": info("other", "npu"),
        "ops/__init__.py": MARK.format(-2.0) + "def theirs(x):\n    return x\n"
        "def get_unused_ops():\n    return ('silu',)\n__all__ = ['rms_norm', 'theirs']\n",
    }
    mine = {
        **ACME,
        "ops/__init__.py": "from .norm import rms_norm\ndef mine(x):\n    return x\n__all__ = ['rms_norm', 'mine']\n",
    }
    code = (
        CALL
        + EXPLAIN
        + """
found["extras"] = [n in dir(opmux.ops) for n in ("mine", "theirs")]
found["npu"] = [v.impl.impl_id for v in opmux.explain("rms_norm").verdicts if v.status == "chosen"]
found["unused"] = [sorted(HERE.unused(d)) for d in ("cpu", "npu")]
found["registry"] = {d: VENDOR_REGISTRY[d].vendor_name for d in ("cpu", "npu")}
found["repr"] = repr(VENDOR_REGISTRY)
"""
    )
    torch_npu = {
        "__init__.py": "import sys, torch\ntorch.npu = sys.modules[__name__]\ndef is_available():\n    return True\n"
    }
    other["__init__.py"] = info("other", "npu", torch_package="torch_other", driver_files=("/",))
    got = case(
        code, acme=mine, other=other, plugins={"torch_other": torch_npu}, OPMUX_VENDOR="acme", OPMUX_PLUGIN_MODULES=""
    )
    assert got.y == [-1.0] and got.ids["default.flagos.acme"][0] == "chosen"
    assert got.ids["default.flagos.other"][:2] == ["refused", "device"]
    assert got.npu == ["default.flagos.other"] and got.extras == [True, True]
    assert got.unused[0] == [] and "opmux::silu" in got.unused[1]
    assert got.registry == {"cpu": "acme", "npu": "other"} and "'npu': 'other'" in got.repr


# ---- when files, commands and devices are read -----------------------------------------------------------------------


def test_importing_opmux_runs_no_command_and_imports_no_vendor(origin):
    """Neither `import opmux` nor its submodules run a command or import a vendor."""
    assert origin.boot == {"early": [], "looked": False, "imported": [], "started": []}


def test_no_query_runs_on_a_machine_without_accelerators(case, tmp_path):
    """Selection runs no query command."""
    code = EXPLAIN + "found['device'], found['started'] = infer_device(), started\n"
    got = case(code, acme={"__init__.py": info(device="npu", device_query_cmd=f"touch {tmp_path}/asked")})
    assert got.started == [] and not (tmp_path / "asked").exists()
    assert got.device == "cpu" and got.ids["reference.torch"][0] in ("chosen", "next")


@pytest.mark.parametrize(
    "here, device",
    [
        ((), "cpu"),
        (("gpu",), "gpu"),
        (("xpu", "gpu"), "xpu"),
        (("xpu", "npu", "gpu"), "npu"),
        (("cuda", "xpu", "npu"), "cuda"),
    ],
)
def test_infer_device_prefers_cuda_npu_xpu_then_vendor_devices(case, here, device):
    """The order is cuda, npu, xpu, then devices of vendors. A device whose is_available() is false does not count."""
    code = "for device in ('cuda', 'xpu', 'npu', 'gpu'):\n    fake(device, is_available=lambda d=device: d in here)\n"
    code = f"here = {here!r}\n{code}found['device'] = infer_device()\n"
    assert case(code, **shared(one="false")).device == device


def test_infer_device_skips_a_device_whose_is_available_raises(case):
    code = "fake('gpu', is_available=lambda: 1 / 0)\nfound['device'] = infer_device()\n"
    got = case(code, **shared(one="false"))
    (words,) = got.said
    assert got.device == "cpu" and words.startswith("torch.gpu.is_available() raised ZeroDivisionError")


# ---- registering vendors at run time ---------------------------------------------------------------------------------


def test_registering_a_vendor_again_replaces_the_first(case):
    """The implementations of the first vendor are removed even after ops have run."""
    code = (
        CALL
        + """
import importlib
importlib.import_module("second_acme")
again = opmux.ops.rms_norm(torch.ones(2, 16), torch.ones(16))[0]
found["again"] = again.unique().tolist()
found["ids"] = list(shown("rms_norm"))
found["modules"] = [p.module for n, p in vendors.known().items() if n == "acme"]
register_vendor(VendorInfo(vendor="ACME", device="cpu"))
found["bare"] = opmux.ops.rms_norm(torch.ones(2, 16), torch.ones(16))[0].unique().tolist()
found["error"] = error_of(lambda: register_vendor("acme"))
"""
    )
    second = {
        "__init__.py": LIGER["__init__.py"].replace("liger_kernel.ops", "opmux"),
        "ops/__init__.py": MARK.format(-2.0),
    }
    got = case(code, acme=ACME, plugins={"second_acme": second}, OPMUX_PLUGIN_MODULES="", OPMUX_VENDOR="acme")
    assert (got.y, got.again) == ([-1.0], [-2.0])
    assert got.ids.count("default.flagos.acme") == 1 and got.modules == ["second_acme"]
    assert got.bare == ORDINARY  # the registering code is not in a package, so the vendor has no ops
    assert got.error == "BadVendor: register_vendor takes a VendorInfo or a VendorInfoBase; got 'acme'"


def test_a_vendor_can_register_after_the_first_call(case):
    code = CALL + "import importlib\nimportlib.import_module('late_acme')\n" + CALL.replace("'y'", "'late'")
    late = {"__init__.py": LIGER["__init__.py"].replace("liger_kernel.ops", "opmux"), **OPS}
    got = case(code, plain=PLAIN, plugins={"late_acme": late}, OPMUX_PLUGIN_MODULES="")
    assert got.y == ORDINARY and got.late == [-1.0] and got.said == []


def test_threads_that_read_the_vendors_at_once_all_find_every_vendor(case):
    code = """
import threading
counts, gate = [], threading.Barrier(8)
def ask():
    gate.wait()
    counts.append(len(vendors.known()))
threads = [threading.Thread(target=ask) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
found["counts"] = sorted(set(counts))
"""
    slow = {"__init__.py": "import time\ntime.sleep(0.3)\n" + info()}
    (count,) = case(code, acme=slow).counts
    assert count >= 13
