"""Tiles: in which order the sources of their values apply, and which values are rejected."""

from __future__ import annotations

import importlib
import inspect
import itertools
import logging

import pytest
import torch

pytest.importorskip("triton")
from opmux.core import Origin, specs
from opmux.kernels.lib import config
from opmux.kernels.lib.config import Tiles, Tunable
from opmux.machine import vendors
from opmux.machine.devices import Chip
from opmux.machine.vendors import VendorInfoBase
from opmux.tuning import tile_files
from opmux.tuning import tiles as tuning
from opmux.tuning.tile_files import BadTiles

MODE = "interpret"
BF16 = torch.bfloat16
ACME = Chip("acme", "sm_90", "Acme One", "1.0")


def rows(n: int, dtype: torch.dtype) -> Tiles:
    """A default whose tiles hold a whole row."""
    return Tiles(256, BLOCK_M=2, BLOCK_N=max(1 << (n - 1).bit_length(), 16), FAST=True)


@pytest.fixture
def tiles():
    return Tunable("made_up.rows", rows)


numbers = itertools.count()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write files for a vendor acme with sm_90 chips and an arch folder `nine`."""
    root = f"made_up_backends_{next(numbers)}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / root / "_acme" / "nine").mkdir(parents=True)
    (tmp_path / root / "_acme" / "__init__.py").write_text('ARCH_MAP = {9: "nine"}\n')
    importlib.import_module(f"{root}._acme")
    vendors.known()
    vendors._add(VendorInfoBase("acme", "acme"), f"{root}._acme", Origin())
    tuning.forget()

    def write(rules: str = "{}", trials: str = "", arch: bool = False):
        to = tmp_path / root / "_acme" / ("nine" if arch else "")
        (to / "heuristics_config_utils.py").write_text(f"HEURISTICS_CONFIGS = {rules}\n")
        (to / "tune_configs.yaml").write_text(trials)
        return to

    yield write
    vendors.forget("acme")
    tuning.forget()


# ---- the order ------------------------------------------------------------------------------------------------------


def test_the_default_is_used_without_any_other_source(tiles, folder):
    assert tiles(n=4096, dtype=BF16) == rows(4096, BF16)
    with config.as_on(ACME):
        assert tiles.look(n=4096, dtype=BF16) == (rows(4096, BF16), "default")


def test_each_source_beats_the_next(tiles, folder):
    facts = dict(n=4096, dtype=BF16)
    source = lambda: (tiles.look(**facts).source, tiles.look(**facts).tiles.threads)
    with config.as_on(ACME):
        folder('{"made_up.rows": {"num_warps": 16}}')
        assert source() == ("heuristics", 512)
        key = tuning.key("made_up.rows", facts)
        tuning.store(ACME, {key: tuning.Entry({"threads": 128}, 1.0, 2.0, "op", "")})
        assert source() == ("cache", 128)
        with config.trying({key: Tiles(64, BLOCK_M=1, BLOCK_N=4096, FAST=False)}):
            assert source() == ("trying", 64)
        assert source() == ("cache", 128)
    with config.as_on(Chip("acme", "sm_90", "Acme Two", "1.0")):  # tuned on another chip
        assert source() == ("heuristics", 512)
    assert source() == ("default", 256)  # the interpreter has no chip


def test_the_arch_folder_comes_before_the_vendors(tiles, folder):
    folder('{"made_up.rows": {"num_warps": 16, "BLOCK_M": 8}, "other": {}}')
    folder('{"made_up.rows": {"num_warps": 4}}', arch=True)
    with config.as_on(ACME):
        assert tiles(n=100, dtype=BF16) == Tiles(128, BLOCK_M=2, BLOCK_N=128, FAST=True)
    with config.as_on(Chip("acme", "sm_80", "Acme Zero")):
        assert tiles(n=100, dtype=BF16) == Tiles(512, BLOCK_M=8, BLOCK_N=128, FAST=True)
    with config.as_on(Chip("bolt", "sm_90", "Bolt")):
        assert tiles.look(n=100, dtype=BF16).source == "default"


def test_heuristics_get_facts_defaults_and_earlier_values(tiles, folder):
    folder(
        """{"made_up.rows": {
            "BLOCK_M": lambda args: 4 if args["n"] < 1000 else None,
            "num_warps": lambda args: args["BLOCK_M"] * args["dtype"].itemsize,
            "num_stages": lambda args: 3 if args["arch"] == "sm_90" and args["FAST"] else 1,
        }}"""
    )
    with config.as_on(ACME):
        assert tiles(n=100, dtype=BF16) == Tiles(8 * 32, 3, BLOCK_M=4, BLOCK_N=128, FAST=True)
        assert tiles(n=2000, dtype=BF16) == Tiles(4 * 32, 3, BLOCK_M=2, BLOCK_N=2048, FAST=True)


def test_calls_of_tunables_are_recorded(tiles):
    with config.asked() as calls:
        tiles(n=100, dtype=BF16)
        tiles(n=128, dtype=BF16)
    tiles(n=5, dtype=BF16)
    assert [(a.tunable, a.key, a.facts["n"]) for a in calls] == [
        (tiles, "made_up.rows[dtype=bfloat16 n<=128]", 100),
        (tiles, "made_up.rows[dtype=bfloat16 n<=128]", 128),
    ]


def test_ending_an_inner_recording_does_not_end_the_outer(tiles):
    with config.asked() as outer:
        with config.asked() as inner:
            pass
        tiles(n=100, dtype=BF16)
    assert (len(outer), inner) == (1, [])


# ---- rejected values ------------------------------------------------------------------------------------------------

WRONG = [
    ("BLOCK_K", "16", "BLOCK_K is not one of its sizes. Allowed: num_warps, num_stages, BLOCK_M, BLOCK_N, FAST"),
    ("num_warps", "3", "num_warps = 3. Allowed: a power of two"),
    ("num_warps", "64", "2048 threads (warps of 32). Allowed: up to 1024"),
    ("num_warps", "0", "num_warps = 0. Allowed: a power of two"),
    ("num_warps", "4.0", "num_warps = 4.0. Allowed: int, as in the default (256)"),
    ("num_stages", "0", "num_stages = 0. Allowed: 1 or more"),
    ("BLOCK_M", "12", "BLOCK_M = 12. Allowed: a power of two"),
    ("BLOCK_M", "True", "BLOCK_M = True. Allowed: int, as in the default (2)"),
    ("FAST", "1", "FAST = 1. Allowed: bool, as in the default (True)"),
    ("BLOCK_N", "2048", "BLOCK_N = 2048 with n = 4096. Allowed: at least 4096; the default is 4096"),
    ("BLOCK_M", "8192", "BLOCK_M = 8192 with n = 4096. Allowed: at most 4096; the default is 2"),
    ("BLOCK_M", 'lambda args: args["M"]', "BLOCK_M: KeyError: 'M'. It was given arch, num_warps, num_stages, BLOCK_M"),
]


@pytest.mark.parametrize("name, value, message", WRONG, ids=[f"{n}={v}" for n, v, _ in WRONG])
def test_wrong_heuristics_name_the_file_the_tunable_and_what_is_allowed(tiles, folder, name, value, message):
    to = folder(f'{{"made_up.rows": {{"{name}": {value}}}}}', arch=True)
    with config.as_on(ACME), pytest.raises(BadTiles) as raised:
        tiles(n=4096, dtype=BF16)
    assert str(raised.value).startswith(f"{to / 'heuristics_config_utils.py'}: made_up.rows: {message}")


@pytest.mark.parametrize("rules", ["[]", '{"made_up.rows": 4}', "{", "what_is_this"])
def test_an_invalid_heuristics_file_is_rejected(tiles, folder, rules):
    to = folder(rules)
    with config.as_on(ACME), pytest.raises(BadTiles) as raised:
        tiles(n=4096, dtype=BF16)
    assert str(raised.value).startswith(str(to / "heuristics_config_utils.py"))


@pytest.mark.parametrize("bad", [{"BLOCK_K": 16}, {"BLOCK_N": 2048}, {"threads": 100}, {"BLOCK_M": "2"}])
def test_an_invalid_cache_entry_is_ignored_with_a_warning(tiles, folder, caplog, bad):
    facts = dict(n=4096, dtype=BF16)
    with config.as_on(ACME), caplog.at_level(logging.WARNING, "opmux"):
        tuning.store(ACME, {tuning.key("made_up.rows", facts): tuning.Entry(bad, 1.0, 2.0, "op", "")})
        assert [tiles(**facts), tiles(**facts)] == [rows(**facts)] * 2
    (line,) = caplog.messages
    assert str(tuning.path(ACME)) in line and "made_up.rows[dtype=bfloat16 n<=4096]" in line


def fixed(n: int, dtype: torch.dtype) -> Tiles:
    """A default with a fixed block size, which may hold part of a row or several rows."""
    return Tiles(256, BLOCK_M=max(1, 4096 // n), BLOCK_N=4096)


def clamped(n: int, dtype: torch.dtype) -> Tiles:
    """A default whose tiles hold a whole row of up to 4096 columns."""
    return Tiles(256, BLOCK_N=min(max(1 << (n - 1).bit_length(), 16), 4096))


@pytest.mark.parametrize(
    "default, n, sizes, fits",
    [
        *((rows, n, {"BLOCK_N": n // 2}, False) for n in (4, 16, 64, 4096, 131072)),
        *((clamped, n, {"BLOCK_N": n // 2}, False) for n in (4, 16, 64, 2048, 4096)),
        *((fixed, n, {"BLOCK_N": 1024}, True) for n in (2048, 4096, 100_000)),
        (fixed, 64, {"BLOCK_M": 1}, True),
        (fixed, 5000, {"BLOCK_N": 8192}, False),
        (rows, 5000, {"BLOCK_N": 8192}, True),
    ],
)
def test_a_block_size_that_covers_the_row_cannot_be_reduced(default, n, sizes, fits):
    tunable = Tunable("made_up.rows", default)
    usual = default(n, BF16)
    assert (tunable._unfit(usual.changed(sizes, ""), usual, dict(n=n, dtype=BF16)) == "") is fits


def test_a_size_declared_free_may_be_reduced():
    usual = rows(4096, BF16)
    half = usual.changed({"BLOCK_N": 2048}, "")
    assert Tunable("made_up.rows", rows)._unfit(half, usual, dict(n=4096, dtype=BF16)) != ""
    assert Tunable("made_up.rows", rows, free="BLOCK_N")._unfit(half, usual, dict(n=4096, dtype=BF16)) == ""


def test_declaring_a_name_twice_raises():
    with pytest.raises(ValueError, match=r"'softmax.rows' is declared twice"):
        specs.load_implementers("softmax")
        config.tunable("softmax.rows")(rows)


# ---- tune_configs.yaml ----------------------------------------------------------------------------------------------

TRIALS = """
made_up.rows:
  - {META: {BLOCK_M: 1}, num_warps: 4, num_stages: 2}
  - META: {BLOCK_M: 4, BLOCK_N: 1024}
  - gen: true
    param_map: {META: {BLOCK_M: rows, FAST: fast}, num_warps: warps, num_stages: 3}
    rows: [1, 2]
    fast: [true, false]
    warps: [4, 8]
  - gen: true
    param_map: {META: metas, num_warps: [2]}
    metas: [{BLOCK_M: 8, BLOCK_N: 4096}, {BLOCK_M: 16}]
"""


def test_candidates_come_from_the_vendors_yaml(tiles, folder):
    folder(trials=TRIALS)
    candidates = tiles.candidates(ACME, n=4096, dtype=BF16)
    assert len(candidates) == 2 + 8 + 2
    usual = dict(BLOCK_M=2, BLOCK_N=4096, FAST=True)
    assert candidates[0] == (Tiles(128, 2, **usual | {"BLOCK_M": 1}), "")
    # the second candidate does not fit such long rows; it is skipped without an error
    assert candidates[1][1].startswith("BLOCK_N = 1024 with n = 4096")
    assert candidates[2][0] == Tiles(128, 3, **usual | {"BLOCK_M": 1})
    assert [t.threads for t, _ in candidates[2:10]] == [128, 256] * 4
    assert [t["FAST"] for t, _ in candidates[2:10]] == [True, True, False, False] * 2
    assert candidates[10:] == [(Tiles(64, 2, **usual | {"BLOCK_M": m}), "") for m in (8, 16)]
    assert tiles.candidates(Chip("bolt", None), n=4096, dtype=BF16) == []


@pytest.mark.parametrize(
    "text, message",
    [
        ("made_up.rows: 4", "expected a list of configs"),
        ("made_up.rows: [{META: 4}]", "META = 4. Allowed: sizes by name"),
        ("made_up.rows: [{BLOCK_M: 4}]", "unknown field BLOCK_M. Allowed: gen, META, num_warps, num_stages"),
        ("made_up.rows: [{gen: true}]", "gen needs a param_map"),
        ("made_up.rows: [{gen: true, param_map: {META: {BLOCK_M: m}}}]", "names a list 'm', and there is none"),
        ("made_up.rows: [{gen: true, param_map: {META: [4]}}]", "META = [4]. Allowed"),
        ("made_up.rows: [{gen: true, param_map: {maxnreg: [4]}}]", "unknown field maxnreg"),
        ("made_up.rows: [{META: {BLOCK_K: 4}}]", "BLOCK_K is not one of its sizes"),
        ("made_up.rows: [", "is not valid YAML"),
        ("- 4", "expected tunables"),
    ],
)
def test_wrong_candidates_name_the_file(tiles, folder, text, message):
    to = folder(trials=text)
    with pytest.raises(BadTiles) as raised:
        tiles.candidates(ACME, n=4096, dtype=BF16)
    assert str(raised.value).startswith(str(to / "tune_configs.yaml")) and message in str(raised.value)


def test_files_are_read_once(tiles, folder, monkeypatch):
    import yaml

    folder('{"made_up.rows": {"num_warps": 4}}', TRIALS)
    reads = []
    yaml_load = yaml.load
    monkeypatch.setattr(yaml, "load", lambda *args: reads.append(args) or yaml_load(*args))
    with config.as_on(ACME):
        for n in (100, 1000, 1001):
            tiles(n=n, dtype=BF16)
        assert reads == []  # only the tuner reads candidates
        for n in (100, 1000):
            tiles.candidates(ACME, n=n, dtype=BF16)
    assert len(reads) == 1


# ---- ours -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours():
    for family in specs.families:
        specs.load_implementers(family)
    return config.tunables


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100"])
def test_nvidias_files_name_only_existing_tunables(ours, arch):
    assert set(tile_files.names_in_files(Chip.of_arch(arch))) <= set(ours)


@pytest.mark.parametrize("arch, folders", [("sm_80", 2), ("sm_86", 2), ("sm_90", 2), ("gfx942", 1), ("sm_75", 1)])
def test_arch_folders_follow_the_chip(arch, folders):
    names = tile_files.folders(Chip.of_arch(arch))
    assert len(names) == folders
    assert names[:1] == (
        (f"opmux.backends._nvidia.{'hopper' if arch == 'sm_90' else 'ampere'}",) if folders == 2 else names[:1]
    )


KINDS = {torch.dtype: (BF16, torch.float32), bool: (True, False), int: (37, 4096, 65536)}


@pytest.mark.parametrize("arch", ["sm_86", "sm_90", "sm_100"])
def test_nvidias_candidates_and_heuristics_are_well_formed(ours, arch):
    """Checks all facts that a tunable may get: no candidate is rejected, except tiles that are too small for a row."""
    chip = Chip.of_arch(arch)
    count = 0
    for one in ours.values():
        kinds = [p.annotation for p in inspect.signature(one.default, eval_str=True).parameters.values()]
        for values in itertools.product(*(KINDS[kind] for kind in kinds)):
            facts = dict(zip(one.facts, values, strict=True))
            with config.as_on(chip):
                one(**facts)
            count += sum(not why for _, why in one.candidates(chip, **facts))
    assert count > 100
