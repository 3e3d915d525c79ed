"""`opmux bench`: what it measures, that it never times wrong results, and the files that it writes."""

import contextlib
import json
import math
import re
import sys
import types
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from opmux.core import BackendImplKind, NotSupported, OpImpl, specs
from opmux.core.spec import Sample, Spec, Tol
from opmux.tools.arguments import BadOption
from opmux.tools.bench import cases, command, engine, measure, native, page, providers, record
from opmux.tools.bench.engine import BenchRow
from opmux.tools.bench.measure import Limits, Truth, Wrong
from opmux.tools.runner import clock
from opmux.tools.runner import record as runner_record

CPU = torch.device("cpu")
CUDA = torch.device("cuda")  # nothing runs on this device; the tests only need its name
FIELDS = {
    "op", "key", "family", "variant", "shape", "dtype", "metric", "provider", "impl", "status", "reason", "error", "ms",
    "host_us", "bytes", "flops", "gbs", "tflops", "limit", "share", "peak_bytes", "ratio",
}  # fmt: skip
FACTS = {"chip", "device", "driver", "torch", "triton", "python", "opmux", "commit", "date", "preset", "tensor_mib"}


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch):
    """Measure only three calls, because the tests never depend on the times."""
    monkeypatch.setattr(clock, "REPEAT_MS", 0)
    monkeypatch.setattr(clock.host_us, "__defaults__", (2, 2, min))
    monkeypatch.setattr(command, "COPY_MIB", {"cpu": 1})


def bench(*names: str) -> engine.Bench:
    return engine.Bench(CPU, Limits(CPU, copy_gbs=10.0), providers.ProviderChoice(names, False))


def rows_of(op: str, *names: str, shape=(4, 16), dtype=torch.float32) -> dict[str, BenchRow]:
    case = cases.BenchCase(specs.find(op, ("opmux", "aten")), shape, dtype)
    (row,) = bench(*names).rows([case], lambda case, provider: None)
    return {r.provider: r for r in row}


class Page(HTMLParser):
    """The texts of the table's rows, the tooltips of the bars, and all URLs."""

    def __init__(self, text: str):
        super().__init__()
        self.rows, self.tips, self.addresses, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tips += [attributes["data-tip"]] if "data-tip" in attributes else []
        self.addresses += [v for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]
        self.rows += [[]] if tag == "tr" else []
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "td":
            self.rows[-1].append(data)


# ---- the command ----------------------------------------------------------------------------------------------------


def test_quick_writes_a_table_a_record_and_a_page(cli, tmp_path):
    result = cli("bench", "--preset", "quick", "--device", "cpu", "--json", "run.json", "--html", "run.html")
    assert result.exit_code == 0, result.output
    data = json.loads(Path("run.json").read_text())
    assert data["schema"] == record.BenchRecord.schema
    assert set(data["facts"]) >= FACTS
    assert data["facts"]["preset"] == "quick"
    assert data["limits"]["copy_gbs"] > 0
    assert {frozenset(r) for r in data["rows"]} == {frozenset(FIELDS)}
    rows = {(r["op"], r["provider"]): r for r in data["rows"]}
    assert {op for op, _ in rows} >= {"rms_norm", "softmax", "silu_mul", "rms_norm_bwd", "softmax_bwd"}
    for (_, provider), row in rows.items():
        assert (row["status"], provider in ("ours", "native")) == ("ok", True), row
        assert row["ms"] > 0
        assert row["share"] == pytest.approx(row["bytes"] / row["ms"] / 1e6 / data["limits"]["copy_gbs"])
        assert row["peak_bytes"] is None
    norm = rows["rms_norm", "ours"]
    assert (norm["impl"], norm["shape"], norm["dtype"]) == ("reference.torch", [256, 1024], "float32")
    assert norm["bytes"] == 4 * (2 * 256 * 1024 + 1024 + 256)
    assert norm["ratio"] == pytest.approx(rows["rms_norm", "native"]["ms"] / norm["ms"])
    lines = [line.split()[:3] for line in result.stdout.splitlines()]
    assert ["rms_norm_bwd", "256x1024", "fp32"] in lines
    assert re.search(r"^\d+ of \d+ cases at or above the best of torch", result.stdout, re.M)

    drawn = Page(Path("run.html").read_text())
    assert drawn.addresses == drawn.open == []
    assert not re.search(r"https?:|@import|url\(", Path("run.html").read_text())
    assert {tuple(r[:2]) for r in drawn.rows if r} >= {("rms_norm", "256x1024"), ("softmax_bwd", "256x1024")}
    assert len([r for r in drawn.rows if r]) == len(data["rows"])
    assert sum(t.startswith("rms_norm 256x1024 float32, ours (reference.torch); ") for t in drawn.tips) == 1


def test_a_saved_run_is_shown_again(cli):
    first = cli("bench", "softmax", "--shape", "4x16", "--device", "cpu", "--json", "a.json", "--html", "a.html")
    again = cli("bench", "--from", "a.json", "--html", "b.html", "--json", "b.json")
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert Path("a.html").read_text() == Path("b.html").read_text()
    assert Path("a.json").read_text() == Path("b.json").read_text()
    assert again.stdout == first.stdout


def test_json_on_stdout_contains_nothing_else(cli):
    result = cli("bench", "softmax", "--shape", "4x16", "--device", "cpu", "--json", "-")
    assert [r["op"] for r in json.loads(result.stdout)["rows"]] == ["softmax", "softmax"]
    assert "softmax" in result.stderr


def test_list_measures_nothing(cli, monkeypatch):
    monkeypatch.setattr(engine.Bench, "rows", None)
    result = cli(
        "bench", "*soft*", "family:norm", "--list", "--device", "cpu", "--dtype", "bf16 fp32", "--shape", "8x32"
    )
    assert result.exit_code == 0, result.output
    (line,) = [line.split("  ") for line in result.stdout.splitlines() if line.startswith(" log_softmax ")]
    assert [w.strip() for w in line if w.strip()][1:] == ["softmax", "8x32", "bfloat16, float32", "ours, native"]
    assert "layer_norm_bwd" in result.stdout and "memory-bound" in result.stdout
    assert "layernorm_fwd" not in result.stdout  # a composite op


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rms_nrom",), "unknown op 'rms_nrom': did you mean 'rms_norm'?"),
        (("family:norms",), "unknown family 'norms': did you mean 'norm'?"),
        (("*nothing*",), "unknown op '*nothing*'"),
        (("softmax", "--preset", "memory"), "unknown preset 'memory': did you mean 'memory-bound'?"),
        (("relu", "--preset", "quick"), "--preset quick has none of relu"),
        (("softmax", "--shape", "4k"), "--shape '4k' cannot be read. Allowed: sizes with x between them"),
        (("softmax", "--dtype", "bf61"), "--dtype 'bf61' is not allowed here"),
        (("softmax", "--providers", "ours,natve"), "unknown provider 'natve': did you mean 'native'?"),
        (("softmax", "--device", "tpu"), "--device 'tpu' is not on this machine"),
        (("--from", "nothing.json"), "nothing.json cannot be read: No such file"),
    ],
)
def test_an_invalid_option_gives_one_line(cli, words, message):
    result = cli("bench", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("opmux: ") and message in line


@pytest.mark.parametrize("text", ["no json", "[1]", '{"rows": []}', '{"schema": 1, "facts": {}}'])
def test_a_file_that_is_not_a_record_gives_one_line(cli, text):
    Path("bad.json").write_text(text)
    result = cli("bench", "--from", "bad.json")
    assert result.exit_code == 2
    assert re.match(r"opmux: bad\.json (is not JSON|is not a (complete )?run)", result.stderr)


# ---- the correctness check ------------------------------------------------------------------------------------------


def test_a_wrong_result_of_ours_fails_the_run_and_is_not_timed(cli, register):
    off = lambda x, dim: torch.softmax(x, dim) + 1e-3
    register(OpImpl("softmax", "vendor.wrong", BackendImplKind.VENDOR, "wrong", off))
    result = cli("bench", "softmax", "--shape", "4x16", "--device", "cpu", "--json", "run.json")
    assert result.exit_code == 1
    rows = {r["provider"]: r for r in json.loads(Path("run.json").read_text())["rows"]}
    assert {p: r["status"] for p, r in rows.items()} == {"ours": "wrong", "native": "ok", "vendor.wrong": "wrong"}
    assert rows["ours"]["ms"] is None and rows["ours"]["share"] is None
    assert rows["ours"]["error"] == pytest.approx(1e-3, rel=0.01)
    assert "y is off by up to 0.001" in rows["ours"]["reason"]
    assert "WRONG" in result.stdout


def test_a_wrong_result_of_another_provider_does_not_fail_the_run(cli, monkeypatch):
    monkeypatch.setitem(native.NATIVE, "softmax", native.Native(lambda x, dim: torch.softmax(x, dim) * 2))
    result = cli("bench", "softmax", "--shape", "4x16", "--device", "cpu")
    assert result.exit_code == 0 and "WRONG" in result.stdout

    def fails(x, dim):
        raise RuntimeError("out of order\nwith a long story")

    monkeypatch.setitem(native.NATIVE, "softmax", native.Native(fails))
    row = rows_of("softmax", "ours", "native")["native"]
    assert (row.status, row.reason, row.ms) == ("failed", "RuntimeError: out of order", None)


def test_an_error_in_ours_fails_the_run(cli, register, monkeypatch):
    def fails(x, dim):
        raise ValueError("not today")

    register(OpImpl("softmax", "vendor.acme", BackendImplKind.VENDOR, "acme", fails))
    result = cli("bench", "softmax", "--shape", "4x16", "--device", "cpu", "--providers", "ours")
    assert result.exit_code == 1
    assert "not today" in result.stdout


def test_the_result_of_a_second_call_is_checked_too(register):
    calls = []

    def later(x, dim):
        calls.append(x)
        return torch.softmax(x, dim) * (1 if len(calls) == 1 else 2)

    register(OpImpl("softmax", "vendor.later", BackendImplKind.VENDOR, "later", later))
    assert rows_of("softmax", "ours")["ours"].status == "wrong"


def test_ours_reports_the_implementation_that_ran(register):
    def declines(x, dim):
        raise NotSupported("only on Sundays")

    register(OpImpl("softmax", "vendor.lazy", BackendImplKind.VENDOR, "lazy", declines))
    rows = rows_of("softmax", "ours", "vendor.lazy")
    assert (rows["ours"].status, rows["ours"].impl) == ("ok", "reference.torch")
    assert "only on Sundays" in rows["ours"].reason
    assert rows["vendor.lazy"].status == "declined"
    register(OpImpl("softmax", "vendor.eager", BackendImplKind.VENDOR, "eager", torch.softmax, priority=9))
    assert rows_of("softmax", "ours")["ours"].impl == "vendor.eager"


def spec(reference, **fields) -> Spec:
    return Spec("made_up", "opmux", reference, fields.pop("out", ("y",)), **fields)


@pytest.mark.parametrize(
    ("got", "want", "exact", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0], True, None),
        ([1.0, math.nan], [1.0, math.nan], True, None),
        ([1.0, math.inf], [1.0, math.inf], True, None),
        ([1.0, 2.0], [1.0, math.nan], True, "off by up to inf"),
        ([1.0, math.inf], [1.0, -math.inf], True, "off by up to inf"),
        ([1.0, 2.1], [1.0, 2.0], True, r"off by up to 0\.1 \(50\.00% of"),
        ([1.0, 2.00001], [1.0, 2.0], True, None),
        ([1.0, 2.00006], [1.0, 2.0], True, "off by up to"),
        ([1.0, 2.00006], [1.0, 2.0], False, None),
        ([1.0, 2.1], [1.0, 2.0], False, r"off by up to 0\.1"),
        ([1.0], [1.0, 2.0], False, r"shape \(1,\), expected \(2,\)"),
        ([1, 2**60], [1, 2**60 + 1], True, "off by up to 0"),
        ([1, 3], [1, 3], True, None),
        ([True, False], [True, True], False, "off by up to 1"),
    ],
)
def test_compare_finds_differences_beyond_the_tolerance(got, want, exact, message):
    new_op = spec(lambda x: x, tol={torch.float32: Tol(1e-5, 1e-6)})
    expectation = contextlib.nullcontext() if message is None else pytest.raises(Wrong, match=message)
    with expectation:
        assert measure.compare("y", torch.tensor(got), torch.tensor(want), new_op, exact=exact) < 1e-3


def test_only_our_impls_must_return_the_references_dtype():
    new_op = spec(lambda x: x)
    half, full = torch.ones(3, dtype=torch.bfloat16), torch.ones(3)
    assert measure.compare("y", half, full, new_op, exact=False) == 0
    with pytest.raises(Wrong, match="y is bfloat16, expected float32"):
        measure.compare("y", half, full, new_op, exact=True)


def test_the_check_compares_written_arguments_too():
    def fill(x, value):
        return x.fill_(value).sum()

    new_op = spec(fill, mutates=("x",), out=("total",))
    sample = Sample((torch.zeros(3), 2.0))
    truth = Truth.of(new_op, sample)
    assert sample.args[0].tolist() == [0, 0, 0]
    build = lambda fn: lambda spec, sample: native.call_of(fn, sample)
    assert truth.check(build(fill), ["total"], exact=True) == 0
    with pytest.raises(Wrong, match=r"x \(written\) is off"):
        truth.check(build(lambda x, value: torch.full_like(x, value).sum()), ["total"], exact=True)
    with pytest.raises(Wrong, match="2 results instead of 1"):
        truth.check(build(lambda x, value: (x, x)), ["total"], exact=True)


def test_the_check_uses_few_rows_if_memory_is_short(monkeypatch):
    monkeypatch.setattr(measure, "free_bytes", lambda device: 12 * 4 * 16 * 100)
    shapes = []
    monkeypatch.setattr(Truth, "of", classmethod(lambda cls, spec, sample: shapes.append(sample.args[0].shape)))
    softmax = specs.find("softmax")
    for rows in (99, 100):
        case = cases.BenchCase(softmax, (rows, 16), torch.float32)
        bench("ours")._truth(case, case.sample(CPU))
    assert shapes == [(99, 16), (engine.FEW, 16)]


def test_a_dtype_that_the_reference_rejects_is_skipped(cli):
    result = cli("bench", "softmax", "--shape", "4x16", "--device", "cpu", "--dtype", "int32", "--json", "run.json")
    assert result.exit_code == 0
    assert {r["status"] for r in json.loads(Path("run.json").read_text())["rows"]} == {"skipped"}
    assert "must be float16, bfloat16, float32 or float64" in result.stdout


# ---- providers ------------------------------------------------------------------------------------------------------

BACKWARDS = (
    "rms_norm_bwd add_rms_norm_bwd layer_norm_bwd softmax_bwd log_softmax_bwd silu_mul_bwd gelu_tanh_bwd".split()
)


@pytest.mark.parametrize("op", BACKWARDS)
def test_the_native_backward_computes_the_op(op):
    """Compares in float64, where an additional rounding is negligible."""
    row = rows_of(op, "native", dtype=torch.float64)["native"]
    assert (row.status, row.reason) == ("ok", None)
    assert row.error < 1e-12


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", "layer_norm", "softmax", "gelu", "silu_mul", "srelu"])
def test_the_native_forward_computes_the_op(op):
    assert rows_of(op, "native", dtype=torch.float64)["native"].error < 1e-12


def test_an_op_without_a_native_call_is_compared_with_its_reference(monkeypatch):
    monkeypatch.delitem(native.NATIVE, "softmax_bwd")
    monkeypatch.delitem(native.NATIVE, "softmax")
    assert set(rows_of("softmax_bwd", "ours", "native")) == {"ours", "reference"}


def test_compile_uses_the_native_call(monkeypatch):
    compiled = []

    def fake(fn, dynamic):
        compiled.append(dynamic)
        return fn

    monkeypatch.setattr(torch, "compile", fake)
    for op in ("softmax", "rms_norm_bwd"):
        assert rows_of(op, "compile")["compile"].status == "ok"
    assert compiled == [False, False]  # one compilation per op, without dynamic shapes


@pytest.mark.slow
def test_compiled_backwards_can_run_repeatedly():
    for op in ("rms_norm", "rms_norm_bwd", "softmax_bwd"):
        assert rows_of(op, "compile")["compile"].status == "ok"


@pytest.fixture
def packages(monkeypatch):
    """Stubs of Liger and FlagGems."""
    calls = []

    @contextlib.contextmanager
    def use_gems():
        calls.append("gems")
        yield

    def liger_swiglu(a, b):
        calls.append("liger")
        return torch.nn.functional.silu(a) * b

    functional = types.SimpleNamespace(liger_swiglu=liger_swiglu)
    fakes = {
        "liger_kernel": types,
        "liger_kernel.transformers": types,
        "liger_kernel.transformers.functional": functional,
    }
    for name, module in {**fakes, "flag_gems": types.SimpleNamespace(use_gems=use_gems)}.items():
        monkeypatch.setitem(sys.modules, name, module)
    providers.load.cache_clear()
    yield calls
    providers.load.cache_clear()


def test_other_libraries_are_measured(packages):
    for op in ("silu_mul", "silu_mul_bwd"):
        rows = rows_of(op, "native", "liger", "flaggems")
        assert {p: r.status for p, r in rows.items()} == {"native": "ok", "liger": "ok", "flaggems": "ok"}
    assert set(packages) == {"gems", "liger"}
    assert set(rows_of("softmax", "liger", "flaggems")) == {"flaggems"}  # Liger has no softmax, so it is not listed


def test_a_missing_library_gives_one_line(cli):
    result = cli("bench", "softmax", "--shape", "4x16", "--device", "cpu", "--providers", "ours,liger")
    assert result.exit_code == 0
    (line,) = [line for line in result.stdout.splitlines() if "liger" in line]
    assert line.startswith("note: liger is skipped: ModuleNotFoundError")


def test_arguments_equal_to_defaults_are_left_out():
    norm = specs.find("rms_norm")
    x, w = torch.ones(2, 3), torch.ones(3)
    assert native.shortened(norm, Sample((x, w, 1e-6, 0.0))).args == (x, w)
    assert native.shortened(norm, Sample((x, w, 1e-6, 1.0))).args == (x, w, 1e-6, 1.0)
    assert native.shortened(norm, Sample((x, w, 1e-5, 0.0))).args == (x, w, 1e-5)


# ---- cases, clocks and limits ---------------------------------------------------------------------------------------


def test_the_memory_bound_preset_uses_large_tensors(monkeypatch):
    line = cases.Line("rms_norm no_such_op silu_mul", (2048, 131072))
    preset = cases.Preset("p", "", (line,), ("bfloat16",))
    monkeypatch.setitem(cases.PRESETS, "p", preset)
    planned = cases.plan([], "p", [], [], 256, "cuda")
    assert [(c.spec.name, c.shape) for c in planned.cases] == [
        ("rms_norm", (65536, 2048)),
        ("rms_norm", (1024, 131072)),
        ("silu_mul", (65536, 2048)),
        ("silu_mul", (1024, 131072)),
    ]
    assert all(math.prod(c.shape) * 2 == 256 << 20 for c in planned.cases)
    assert planned.notes == ["not available yet: no_such_op"]
    assert [c.shape for c in cases.plan(["silu_mul"], "p", [(3, 4)], [], 256, "cuda").cases] == [(3, 4)]


@pytest.mark.parametrize("name", cases.PRESETS)
def test_every_preset_has_cases(name):
    planned = cases.plan([], name, [], [], 1, "cuda")
    assert len(planned.cases) > 4
    assert all(c.host == (name == "host") for c in planned.cases)


def test_ops_without_samples_of_a_given_shape_are_skipped_with_a_note():
    """Tests ops without samples, and ops whose samples have fixed shapes or need more than a shape. An unsupported
    dtype is not skipped here.
    """
    words = ["tex::multi_tensor_scale", "tex::fused_multi_row_padding", "aten::rand", "opmux::rms_norm"]
    planned = cases.plan(words, None, [(4, 64)], [torch.float32, torch.int8], 1, "cpu")
    assert [(c.spec.key, c.dtype) for c in planned.cases] == [
        ("opmux::rms_norm", torch.float32),
        ("opmux::rms_norm", torch.int8),
    ]
    assert planned.notes == [
        "no samples to measure with: rand",
        "only samples of fixed shapes: multi_tensor_scale, fused_multi_row_padding",
    ]
    alone = cases.BenchCase(specs.find("tex::multi_tensor_scale"), (4, 64), torch.float32)
    with pytest.raises(BadOption, match="4x64 float32: no such arguments: its samples have fixed shapes"):
        alone.sample(CPU)


def test_the_host_preset_measures_host_time(cli):
    result = cli(
        "bench", "softmax", "gelu", "--preset", "host", "--device", "cpu", "--json", "a.json", "--html", "a.html"
    )
    assert result.exit_code == 0, result.output
    for row in json.loads(Path("a.json").read_text())["rows"]:
        assert (row["metric"], row["ms"], row["shape"]) == ("host", None, [16, 256])
        assert row["host_us"] > 0 and row["ratio"] > 0
    assert "host time of a call" in Path("a.html").read_text()


def test_a_variant_changes_the_arguments():
    case = cases.BenchCase(specs.find("add_rms_norm"), (2, 8), torch.float32, "scalar")
    assert case.sample(CPU).args[1] == 2.0
    assert str(case) == "add_rms_norm (scalar) 2x8 float32"


def test_samples_on_a_cpu_equal_those_of_the_tests():
    case = cases.BenchCase(specs.find("rms_norm"), (256, 512), torch.float32)
    expected = case.spec.samples.at((256, 512), torch.float32, "cpu", **cases.ALONG)
    torch.testing.assert_close(case.sample(CPU).args[0], expected.args[0], rtol=0, atol=0)


def test_a_gpu_is_timed_by_tritons_do_bench(monkeypatch):
    testing = pytest.importorskip("triton.testing")
    arguments = {}
    monkeypatch.setattr(testing, "do_bench", lambda fn, **kwargs: arguments.update(kwargs) or 0.25)
    assert clock.call_ms(lambda: None, CUDA) == 0.25
    assert (arguments["warmup"], arguments["return_mode"]) == (10, "median")


def test_peak_memory_excludes_memory_allocated_before(monkeypatch):
    monkeypatch.setattr(measure, "wait", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 350)
    assert measure.peak_bytes(lambda: None, CUDA) == 250


def test_the_bound_is_the_slower_of_copy_and_matmul():
    limits = Limits(CPU, 1000.0, {"bfloat16": 100.0})
    assert limits.least_ms(10**9, None, torch.bfloat16) == (1.0, "copy")
    assert limits.least_ms(10**9, 10**10, torch.bfloat16) == (1.0, "copy")
    assert limits.least_ms(10**9, 10**12, torch.bfloat16) == (10.0, "matmul")


# ---- the record and the page ----------------------------------------------------------------------------------------


def row(provider: str, ms: float | None, **fields) -> BenchRow:
    shape = fields.pop("shape", [8, 1024])
    new_row = BenchRow(
        "softmax", "opmux::softmax", "softmax", "", shape, "bfloat16", "device", provider, ms=ms, **fields
    )
    new_row.share = None if ms is None else 0.1 / ms
    return new_row


def run_of(*tables: list[BenchRow]) -> record.BenchRecord:
    for rows in tables:
        engine.rank(rows)
    flat = [r for rows in tables for r in rows]
    return record.BenchRecord(
        {"chip": "a <chip>", "date": "today"}, {"copy_gbs": 1.0, "matmul_tflops": {}}, flat, ["a note"]
    )


def test_headline_and_ratios_compare_ours_with_the_best_other():
    run = run_of(
        [row("ours", 1.0), row("native", 2.0), row("compile", 1.01)],
        [row("ours", 1.0, shape=[4, 2048]), row("native", 0.99, shape=[4, 2048])],
        [row("ours", 1.0, shape=[2, 4096]), row("native", 3.0, shape=[2, 4096]), row("liger", 0.5, shape=[2, 4096])],
        [row("ours", 1.0, shape=[1, 8192]), row("native", 0.8, shape=[1, 8192])],
        [row("ours", None, shape=[7, 7], status="wrong", reason="bad"), row("native", 1.0, shape=[7, 7])],
    )
    assert run.headline() == "3 of 4 cases at or above the best of torch"
    assert [r.ratio for r in run.rows[:3]] == pytest.approx([1.01, 0.5, 1 / 1.01])
    assert [(r.shape, r.ratio) for r in run.behind()] == [([2, 4096], 0.5), ([1, 8192], 0.8)]
    assert run.ours_is_broken()


def test_the_page_draws_every_row_and_escapes_text():
    bad = row("ours", None, status="wrong", reason='off by "<b>"')
    run = run_of([bad, row("native", 2.0)], [row("ours", 0.1, shape=[4, 2048]), row("native", 0.2, shape=[4, 2048])])
    text = page.page(run)
    drawn = Page(text)
    assert drawn.open == []
    assert len(drawn.tips) == 4
    assert any(t.endswith('wrong, off by "<b>"') for t in drawn.tips)
    assert "✕" in text and "a &lt;chip&gt;" in text and '<b>"' not in text
    assert "prefers-color-scheme:dark" in text and "a note" in text
    (chart,) = page.charts(run)
    assert [label for label, _ in chart.groups] == ["1K", "2K"]


def test_the_commit_is_found_without_git(monkeypatch):
    monkeypatch.setattr(runner_record, "_git", lambda *words: None)
    assert runner_record.commit() is None
    monkeypatch.setenv("OPMUX_COMMIT", "abc123")
    assert runner_record.commit() == "abc123"
