"""The vendors in the tree: their descriptions are well formed, and their tiles fit the kernels and the chips."""

from __future__ import annotations

import itertools
import re
import shlex
import types
from pathlib import Path

import pytest
import torch

from opmux.backends import buffers, chips
from opmux.core import NotSupported, get_default_manager, specs
from opmux.core.machine import split_arch
from opmux.machine import vendors
from opmux.machine.devices import Chip
from opmux.tuning import tile_files

pytest.importorskip("triton")
import triton

from opmux.kernels.lib import config, launch, rows
from opmux.tools.tile_checks import typical_facts

ROOT = Path(__file__).parents[2]
BF16 = torch.bfloat16

# vendor -> device type, torch's dispatch key for it, and the package that adds the device to torch
VENDORS = {
    "nvidia": ("cuda", "CUDA", ""),
    "amd": ("cuda", "CUDA", ""),
    "intel": ("xpu", "XPU", ""),
    "ascend": ("npu", "PrivateUse1", "torch_npu"),
    "hygon": ("cuda", "CUDA", ""),
    "cambricon": ("mlu", "PrivateUse1", "torch_mlu"),
    "mthreads": ("musa", "PrivateUse1", "torch_musa"),
    "metax": ("cuda", "CUDA", ""),
    "iluvatar": ("cuda", "CUDA", ""),
    "kunlunxin": ("cuda", "CUDA", ""),
    "enflame": ("gcu", "PrivateUse1", "torch_gcu"),
    "tsingmicro": ("txda", "PrivateUse1", "torch_txda"),
}


def package(name):
    vendor = vendors.get(name)
    assert vendor is not None, vendors.broken()
    return vendor


# ---- vendor descriptions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VENDORS)
def test_a_vendors_description_is_complete(name):
    info = package(name).info
    assert (info.device_name, info.key, info.torch_package) == VENDORS[name]
    assert shlex.split(info.device_query_cmd) and info.statement
    assert all(Path(file).is_absolute() for file in info.driver_files)
    for arch in filter(None, info.targets):
        assert split_arch(arch)[1] > 0  # min_arch compares numbers after the same prefix


def test_every_vendor_folder_in_the_tree_loads():
    assert {f"_{name}" for name in VENDORS} <= set(vendors.in_tree())
    assert not [module for module in vendors.broken() if module.startswith("opmux.")]


def test_vendors_of_one_device_can_be_told_apart():
    """Driver files and query commands are unique. Intel's and Kunlunxin's tools have the same name, but the arguments
    differ.
    """
    every = [package(name).info for name in VENDORS]
    queries = [info.device_query_cmd for info in every]
    files = [file for info in every for file in info.driver_files]
    assert len(set(queries)) == len(queries) and len(set(files)) == len(files)
    assert all(info.driver_files for info in every if info.device_name == "cuda")


@pytest.mark.parametrize("name", VENDORS)
def test_an_arch_map_names_exactly_the_existing_arch_folders(name):
    vendor = package(name)
    for arch, folder in vendor.arch_map.items():
        assert (vendor.folder / folder / "__init__.py").is_file(), arch
    named = set(vendor.arch_map.values())
    assert named == {p.name for p in vendor.folder.iterdir() if (p / "__init__.py").is_file()} - {"ops"}


@pytest.mark.parametrize(
    "vendor, arch, folder",
    [
        ("nvidia", "sm_80", "ampere"),
        ("nvidia", "sm_89", "ampere"),
        ("nvidia", "sm_90", "hopper"),
        ("nvidia", "sm_100", "blackwell"),
        ("nvidia", "sm_103", "blackwell"),
        ("nvidia", "sm_120", "blackwell"),
        ("nvidia", "sm_75", None),
        ("amd", "gfx942", None),
        ("amd", "gfx90a", None),
        ("amd", "gfx950", "cdna4"),
        ("amd", "gfx1030", "rdna"),
        ("amd", "gfx1100", "rdna"),
        ("amd", "gfx1201", "rdna"),
    ],
)
def test_an_arch_is_mapped_to_its_folder(vendor, arch, folder):
    folders = tile_files.folders(Chip(vendor, arch))
    home = f"opmux.backends._{vendor}"
    assert folders == ((home,) if folder is None else (f"{home}.{folder}", home))


def test_vendor_targets_agree_with_compile_only_targets():
    from opmux.kernels.lib.compile_only import CHIPS

    for arch, (target, shared) in CHIPS.items():
        vendor_target = package(Chip.of_arch(arch).vendor).info.target(arch)
        assert (vendor_target.shared_memory, vendor_target.warp_size) == (shared, target.warp_size)


def test_docs_vendors_page_agrees_with_the_vendor_folders():
    page = (ROOT / "docs" / "vendors.md").read_text(encoding="utf-8")
    table = page.partition("\n## ")[0]
    rows_of = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    for name in VENDORS:
        info, line = package(name).info, rows_of[name]
        for word in (info.device_name, info.key, f"`{info.device_query_cmd}`", *filter(None, info.targets)):
            assert word in line, f"{name}: {word}"
        lacks = {"float64": info.fp64_enabled, "bfloat16": info.bf16_enabled, "int64": info.int64_enabled}
        assert {dtype for dtype in lacks if dtype in line} == {dtype for dtype, has in lacks.items() if not has}
        assert re.search(rf"^- \*\*{name}\*\*: {re.escape(info.statement)}", page, re.M), f"{name}: verified"


# ---- the arch of a device -------------------------------------------------------------------------------------------

NAMED = [
    ("ascend", "npu", "Ascend910B3", "ascend910b"),
    ("ascend", "npu", "Ascend910_9382", "ascend910c"),
    ("ascend", "npu", "Ascend950PR_957c", "ascend950"),
    ("ascend", "npu", "Ascend310P3", None),
    ("cambricon", "mlu", "MLU590-H8", "mtp_592"),
    ("metax", "cuda", "MetaX C500", "xcore1000"),
    ("iluvatar", "cuda", "Iluvatar BI-V150", "ivcore11"),
    ("kunlunxin", "cuda", "P800 OAM", "xpu3"),
    ("kunlunxin", "cuda", "something new", None),
]


@pytest.mark.parametrize("vendor, device, name, arch", NAMED)
def test_the_device_name_gives_the_arch(monkeypatch, vendor, device, name, arch):
    monkeypatch.setattr(torch, device, types.SimpleNamespace(get_device_name=lambda i: name), raising=False)
    assert package(vendor).arch_of(0) == arch


@pytest.mark.parametrize(
    "vendor, device, reported, arch",
    [("mthreads", "musa", (3, 1), "mp_31"), ("enflame", "gcu", (3, 0), "gcu300"), ("enflame", "gcu", (4, 0), "gcu400")],
)
def test_the_device_capability_gives_the_arch(monkeypatch, vendor, device, reported, arch):
    module = types.SimpleNamespace(get_device_capability=lambda i: reported)
    monkeypatch.setattr(torch, device, module, raising=False)
    assert package(vendor).arch_of(0) == arch
    monkeypatch.setattr(torch, device, types.SimpleNamespace(get_device_capability=lambda i: None), raising=False)
    assert package(vendor).arch_of(0) is None


@pytest.mark.parametrize("code, arch", [(0x030F0007, "xe_1260"), (0x05004004, "xe_2001"), (0, None), (None, None)])
def test_the_architecture_code_of_an_intel_gpu_gives_its_arch(monkeypatch, code, arch):
    properties = types.SimpleNamespace(**({} if code is None else {"architecture": code}))
    monkeypatch.setattr(torch, "xpu", types.SimpleNamespace(get_device_properties=lambda i: properties))
    assert package("intel").arch_of(0) == arch


def test_a_device_type_unknown_to_torch_has_no_arch():
    assert chips.by_name("no_such_device", 0, {"x": "arch"}) is None
    assert chips.by_capability("no_such_device", 0, "mp_") is None


# ---- tiles ----------------------------------------------------------------------------------------------------------

CHIPS = [
    *(Chip("nvidia", arch) for arch in ("sm_86", "sm_120")),
    *(Chip("amd", arch) for arch in ("gfx942", "gfx950", "gfx1100")),
    *(Chip("intel", arch) for arch in ("xe_1255", "xe_1260", None)),
    *(Chip("ascend", arch) for arch in ("ascend910b", "ascend950", None)),
    *(Chip("cambricon", arch) for arch in ("mtp_372", "mtp_592")),
    Chip("tsingmicro", "tx81"),
]
BUFFERED = [chip for chip in CHIPS if chip.vendor in ("ascend", "cambricon", "tsingmicro")]
by_chip = {"ids": lambda chip: f"{chip.vendor}-{chip.arch}"}


@pytest.fixture(scope="module")
def tunables(interpreted):
    for family in specs.families:
        specs.load_implementers(family)
    return config.tunables


@pytest.mark.parametrize("chip", CHIPS, **by_chip)
def test_vendor_tiles_are_valid_for_every_tunable_they_name(tunables, chip):
    """For all argument facts of the tunable, every heuristic and every candidate is accepted, and at least one changes
    something.
    """
    named = tile_files.names_in_files(chip)
    assert set(named) <= set(tunables)
    changed = count = 0
    for name in named:
        for facts in typical_facts(tunables[name]):
            with config.as_on(chip):
                changed += tunables[name].look(**facts).source == "heuristics"
            if facts.get("n", 1000) == 1000:
                count += sum(not why for _, why in tunables[name].candidates(chip, **facts))
    assert changed or count


@pytest.mark.parametrize("chip", BUFFERED, **by_chip)
def test_tiles_fit_the_on_chip_buffer(tunables, chip):
    """Exception: a block that must hold a whole row may be larger than the buffer; the chip's compiler rejects that
    kernel.
    """
    buffer_size = package(chip.vendor).info.target(chip.arch).shared_memory
    fitting = 0
    for name, every in buffers.HELD.items():
        for facts in typical_facts(tunables[name]):
            with config.as_on(chip):
                tiles = tunables[name](**facts)
            for held in every:
                others = [k for k in tiles.sizes if k.startswith("BLOCK") and k != held.size and held.size != "HOLD"]
                elements = tiles[held.size]
                for k in others:
                    elements *= tiles[k]
                per_element = buffers.COPIES * held.tensors * facts["dtype"].itemsize + 4 * held.wide
                whole = tiles[held.size] == 1 and "n" in facts and any(tiles[k] >= facts["n"] for k in others)
                assert whole or elements * per_element <= buffer_size, f"{name} {facts}: {tiles}"
                fitting += not whole
    assert fitting > 100


def test_ascend_blocks_are_as_large_as_the_buffer_allows(tunables):
    """Float32 blocks have four times the default size, so a launch needs a quarter of the programs."""
    with config.as_on(Chip("ascend", "ascend910b")):
        assert tunables["activation.flat"](dtype=torch.float32)["BLOCK"] == 4096
        # the default of 8192 does not fit the buffer
        assert tunables["softmax.pieces"](n=65536, dtype=BF16)["BLOCK_N"] == 4096
    assert tunables["activation.flat"].default(dtype=torch.float32)["BLOCK"] == 1024


def test_a_chip_whose_buffer_is_not_known_keeps_the_defaults(tunables):
    unknown = types.SimpleNamespace(target=lambda arch: types.SimpleNamespace(shared_memory=None))
    rule = buffers.rules(unknown)["activation.flat"]["BLOCK"]
    assert rule({"arch": None, "dtype": BF16, "BLOCK": 2048}) is None


@pytest.mark.parametrize("arch, stages", [("sm_80", 3), ("sm_86", 2), ("sm_90", 3), ("sm_100", 3), ("sm_120", 2)])
def test_pipeline_stages_of_cooperative_softmax_fit_in_shared_memory(tunables, arch, stages):
    with config.as_on(Chip("nvidia", arch)):
        assert tunables["softmax.cooperative"](n=32768, dtype=BF16, backward=False)["STAGES"] == stages


def test_softmax_uses_more_threads_per_row_on_intel(tunables):
    for n, threads in ((32768, 1024), (8192, 512), (100, 256)):
        with config.as_on(Chip("intel", "xe_1260")):
            assert tunables["softmax.rows"](n=n, dtype=BF16).threads == threads


@pytest.mark.parametrize("reported, size", [(0, launch.NO_WARPS), (1, launch.NO_WARPS), (32, 32), (64, 64), (128, 128)])
def test_a_warp_size_of_0_or_1_means_one_warp_per_program(monkeypatch, reported, size):
    """Triton's drivers for chips without warps report 0 or 1, which must not be used as a divisor."""
    target = types.SimpleNamespace(warp_size=reported)
    monkeypatch.setattr(triton.runtime.driver, "_active", types.SimpleNamespace(get_current_target=lambda: target))
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    assert launch.warp_size() == size
    assert launch.Config({}, threads=256).options["num_warps"] == max(1, 256 // size)


def test_no_vendor_file_is_a_copy_of_another_vendors_file():
    """Code that several vendors need belongs into a shared module. Comments, imports and short lines do not count."""
    text = lambda path: [
        line.strip()
        for line in path.read_text(encoding="utf-8").splitlines()
        if len(line.strip()) > 12 and not line.strip().startswith(("#", "from ", "import ", '"""'))
    ]
    files = {p: text(p) for p in (ROOT / "src/opmux/backends").rglob("_*/**/*.*") if p.suffix in (".py", ".yaml")}
    for a, b in itertools.combinations([p for p, lines in files.items() if len(lines) > 12], 2):
        shared = len(set(files[a]) & set(files[b]))
        assert shared < 0.5 * min(len(set(files[a])), len(set(files[b]))), f"{a} and {b}"


# ---- Ascend's GEGLU: the worked example of a vendor's op ------------------------------------------------------------


@pytest.fixture
def geglu(interpreted, poisoned):
    from opmux.backends._ascend.ops import geglu as module

    return module


def agree(spec, got, args):
    want = spec.reference(*args)
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        tol = spec.tol[b.dtype]
        assert a.is_contiguous() and a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tol.rtol, atol=tol.atol, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16], ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("name", ["gelu_tanh_mul", "gelu_tanh_mul_bwd"])
def test_geglu_agrees_with_the_reference(geglu, name, dtype):
    spec = specs.find(name)
    for sample in spec.samples(dtype, torch.device("cpu")):
        agree(spec, getattr(geglu, name)(*sample.args), sample.args)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
def test_geglu_of_strided_halves_and_extreme_values_agrees_with_the_reference(geglu):
    x, dy = torch.randn(70, 600), torch.randn(70, 300)
    far = torch.tensor([0.0, -0.0, 1e3, -1e3, 3e38, -3e38, float("inf"), -float("inf"), float("nan"), 88.0, -88.0])
    for d, a, b in ((dy, x[:, :300], x[:, 300:]), (torch.ones(11), far, torch.full((11,), 2.0))):
        agree(specs.find("gelu_tanh_mul"), geglu.gelu_tanh_mul(a, b), (a, b))
        agree(specs.find("gelu_tanh_mul_bwd"), geglu.gelu_tanh_mul_bwd(d, a, b), (d, a, b))


def test_geglu_launches_one_program_per_core(geglu, monkeypatch):
    """Each program loops over several blocks."""
    grids = []
    stock = launch.Launcher.bind
    monkeypatch.setattr(launch.Launcher, "bind", lambda *args: grids.append(args[2]) or stock(*args))
    args = [torch.randn(3, 37_001) for _ in range(3)]
    agree(specs.find("gelu_tanh_mul_bwd"), geglu.gelu_tanh_mul_bwd(*args), args)
    assert grids == [(rows.cores(args[0].device), 1, 1)]
    block = geglu.tiles_of(n=3 * 37_001, dtype=torch.float32, backward=True)["BLOCK_N"]
    assert grids[0][0] * block * 3 < 3 * 37_001


def test_geglu_rejects_what_the_reference_rejects(geglu):
    for name in ("gelu_tanh_mul", "gelu_tanh_mul_bwd"):
        for bad in (b for b in specs.find(name).errors("cpu") if b.typed):
            with pytest.raises(bad.error, match=bad.match):
                getattr(geglu, name)(*bad.args)


def test_geglu_declines_row_strides_over_32_bits(geglu):
    a = torch.empty(1, device="meta").as_strided((64, 8), (2**27, 1))
    with pytest.raises(NotSupported, match="too far apart"):
        geglu._plan(a=a, b=a)


def test_ascend_registers_geglu_forward_and_backward(geglu):
    from opmux.core import BackendImplKind
    from opmux.machine import vendor_ops

    get_default_manager().prepare()
    impls = {impl.op_name: impl for impl in vendor_ops.read(package("ascend"), "ascend910b").impls}
    assert sorted(impls) == ["opmux::gelu_tanh_mul", "opmux::gelu_tanh_mul_bwd"]
    made = impls["opmux::gelu_tanh_mul"]
    assert (made.impl_id, made.kind, made.vendor) == ("default.flagos.ascend", BackendImplKind.DEFAULT, "ascend")
    assert made.fn is geglu.gelu_tanh_mul and made.devices == {"npu"} and torch.float64 not in made.supported_dtypes
