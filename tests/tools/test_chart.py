"""The charts of README and of the site are what `benchmarks/chart.py` draws from the stored results."""

import importlib
import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
NS = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def chart(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("chart")


@pytest.fixture
def performance(chart):
    return importlib.import_module("performance")


def changed(performance, tmp_path, monkeypatch, name: str, change) -> None:
    """Let the charts read a copy of the results in which `change` has edited one file."""
    results = tmp_path / "results"
    shutil.copytree(performance.RESULTS, results)
    data = performance.load(name)
    change(data)
    (results / name).write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setattr(performance, "RESULTS", results)


def charts(chart, performance) -> list:
    return [chart.llama(), *(make() for make in performance.CHARTS)]


def test_the_committed_charts_are_what_the_script_draws(chart, performance, capsys):
    assert chart.main(["--check"]) == 0, capsys.readouterr().out
    for drawn in charts(chart, performance):
        file = IMAGES / f"{drawn.name}.svg"
        assert file.read_text(encoding="utf-8") == drawn.svg(), "run python benchmarks/chart.py"
        assert file.stat().st_size < 12 * 1024


def test_new_results_make_the_chart_and_its_pages_stale(chart, performance, tmp_path, monkeypatch, capsys):
    def faster(data):
        data["results"]["patched"]["tokens_per_s"] *= 1.1

    changed(performance, tmp_path, monkeypatch, chart.LATEST, faster)
    assert chart.main(["--check"]) == 1
    out = capsys.readouterr().out
    assert out.count("is out of date") == 4, out
    for stale in ("docs/images/llama.svg", "README.md", "docs/index.md", "docs/performance.md"):
        assert f"{stale} is out of date" in out


def test_the_script_writes_charts_and_alternative_texts(chart, tmp_path, monkeypatch):
    """In a tree without charts, and with pages that have no alternative texts."""
    for page in chart.PAGES:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        text = (ROOT / page).read_text(encoding="utf-8")
        (tmp_path / page).write_text(re.sub(r"!\[[^\]]*\]", "![]", text), encoding="utf-8")
    (tmp_path / "docs" / "images").mkdir()
    monkeypatch.setattr(chart, "ROOT", tmp_path)
    monkeypatch.setattr(chart, "IMAGES", tmp_path / "docs" / "images")
    assert chart.main(["--check"]) == 1
    assert list((tmp_path / "docs" / "images").iterdir()) == []
    assert chart.main([]) == 0
    assert chart.main(["--check"]) == 0
    for svg in (tmp_path / "docs" / "images").iterdir():
        assert svg.read_bytes() == (IMAGES / svg.name).read_bytes()
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.svg")), ids=lambda file: file.stem)
def test_an_image_is_xml_with_a_title_and_loads_nothing(file):
    text = file.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == f"{NS}svg" and root.get("role") == "img"
    found = {e.get("id"): e.text for e in root if e.tag in (f"{NS}title", f"{NS}desc")}
    assert list(found) == root.get("aria-labelledby").split() and all(found.values())
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]  # the namespace, which is no request
    assert "url(" not in text and "href" not in text


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.svg")), ids=lambda file: file.stem)
def test_every_class_of_a_chart_has_a_colour_in_both_modes(file):
    text = file.read_text(encoding="utf-8")
    used = {name for names in re.findall(r'class="([^"]*)"', text) for name in names.split()}
    light, _, dark = text.partition("@media(prefers-color-scheme:dark)")
    sizes = {"title", "head", "strong", "start", "code", "error"}  # not a colour of their own
    for name in used - sizes:
        assert f".{name}" in light and f".{name}" in dark, name


def test_text_of_charts_stays_inside(chart, performance):
    """No text begins left of the card, or ends right of it: by the width of an average character."""
    for drawn in charts(chart, performance):
        root = ElementTree.fromstring(drawn.svg())
        width = float(root.get("width"))
        assert width <= 440  # a phone shows it at four fifths of its size
        for element in root.iter(f"{NS}text"):
            size = {"title": 9, "note": 6.2, "head": 7.4, "strong": 7.4}.get(element.get("class"), 7)
            long, x = size * len(element.text), float(element.get("x"))
            left = {"end": x - long, "middle": x - long / 2}.get(element.get("text-anchor"), x)
            assert left >= 4 and left + long <= width, (drawn.name, element.text)


def test_every_chart_names_its_file_chip_date_and_versions(performance):
    for make in performance.CHARTS:
        notes = " ".join(make().notes)
        files = re.findall(r"\w+-\d\d-\d\d_h200(?:_\d)?\.json", notes)
        assert files, notes
        for name in files:
            run = performance.load(name)
            about = run.get("about") or run.get("facts") or run
            assert about["date"] in notes and about["chip"] in notes
            assert f"torch {about['torch'].partition('+')[0]}" in notes and f"triton {about['triton']}" in notes


def test_figures_are_those_of_the_files(performance, tmp_path, monkeypatch):
    """A figure of each chart, computed here from its file."""

    def of(make, row: str, panel: int = 0) -> list:
        rows = {r.label: r.values for r in make().panels[panel].rows}
        return [value.number for value in rows[row]]

    shares = {
        (r["op"], r["shape"][1], r["provider"]): r["share"] for r in performance.load(performance.MEMORY_BOUND)["rows"]
    }
    assert of(performance.memory_bound, "softmax") == [
        shares["softmax", 4096, name] for name in ("ours", "native", "compile")
    ]
    assert of(performance.memory_bound, "cumsum")[1] is None  # torch's result is wrong
    fused = performance.load(performance.LOSSES)["fused_linear_cross_entropy"]
    assert of(performance.losses, "opmux") == [fused["ours"]["GiB"]]
    calls = {r["call"]: r for r in performance.load(performance.CHOICE)["results"]}
    call = calls["attention 4x32x32x4096x128 bfloat16 causal=True"]
    cudnn, alone = call["alone"]["vendor.nvidia.cudnn"], call["alone"]["default.flagos.nvidia.hopper"]
    assert of(performance.attention, "causal") == pytest.approx([cudnn / alone, cudnn / call["us"]])
    host = performance.load(performance.ENABLE)["results"]["sum"]
    assert of(performance.host, "sum") == [host["ours_us"], host["python_us"], host["native_us"]]
    small = performance.load(performance.MODELS)["models"]
    assert of(performance.models, "resnet") == [small[f"resnet {t}"]["auto"] for t in ("float32", "bfloat16")]
    steps = [r for r in performance.load(performance.FIRST_HOUR)["rows"] if r["row"] == "steps"]
    (patched,) = (r for r in steps if (r["model"], r["way"], r["caches"]) == ("llama-1.2b", "patched", "warm"))
    assert of(performance.first_hour, "patched, later") == [patched["first"]]

    def slower(data):
        data["cross_entropy"]["ours"]["ms"] = 99.0

    changed(performance, tmp_path, monkeypatch, performance.LOSSES, slower)
    assert of(performance.losses, "opmux", panel=2) == [99.0]


def test_the_chart_of_the_llama_names_the_chip_and_both_runs(chart, performance):
    svg = chart.llama().svg()
    for run in (chart.LATEST, chart.WITH_LIGER):
        about = performance.load(run)["about"]
        assert about["chip"] in svg and about["date"] in svg
    benchmark = (ROOT / "benchmarks" / "llama.py").read_text(encoding="utf-8")
    batch, length = re.search(r"^BATCH, LENGTH = (\d+), (\d+)$", benchmark, re.MULTILINE).groups()
    assert f"{batch} x {length} tokens" in svg


def test_bars_are_ratios_to_native_of_their_own_run(chart, performance, tmp_path, monkeypatch):
    """A slower machine in one of the runs changes no bar."""
    before = chart.bars()

    def slower(data):
        for result in data["results"].values():
            result["tokens_per_s"] /= 2

    changed(performance, tmp_path, monkeypatch, chart.WITH_LIGER, slower)
    assert [b.label for b in before] == [label for label, *_ in chart.BARS]
    for old, new in zip(before, chart.bars(), strict=True):
        assert (new.speed, new.memory) == pytest.approx((old.speed, old.memory))


def test_runs_on_different_chips_are_refused(chart, performance, tmp_path, monkeypatch):
    changed(performance, tmp_path, monkeypatch, chart.WITH_LIGER, lambda data: data["about"].update(chip="another"))
    with pytest.raises(ValueError, match="differ in one of chip, torch, triton, transformers"):
        chart.llama()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/performance.md"])
def test_pages_show_the_chart_with_its_figures_in_words(chart, page):
    image = (IMAGES / "llama.svg").relative_to((ROOT / page).parent).as_posix()
    words = chart.llama().alternative()
    assert f"![{words}]({image})" in (ROOT / page).read_text(encoding="utf-8")
    for bar in chart.bars():
        assert f"{bar.label}: {bar.speed:.2f}" in words and f"{bar.label}: {bar.memory:.2f}" in words


def test_the_performance_page_shows_every_chart(chart, performance):
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    for drawn in charts(chart, performance):
        assert f"![{drawn.alternative()}](images/{drawn.name}.svg)" in page


def test_the_first_paragraph_has_the_figures_of_the_chart(chart):
    (ours,) = (b for b in chart.bars() if b.label == "opmux")
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{ours.speed:.2f} times the speed of torch, in {ours.memory:.2f} of the memory" in text


@pytest.mark.parametrize("page", ["docs/models.md", "docs/measurements.md"])
def test_tables_quote_the_runs_of_the_chart(chart, performance, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for _, run, name in chart.BARS:
        result = performance.load(run)["results"][name]
        memory = f"| {result['peak_gib'] + 1e-9:.1f} |"  # 22.95 is 23.0
        assert f"{result['tokens_per_s']:,}" in text and memory in text, (page, name)
        assert run in text


def test_pages_quote_steps_with_changing_lengths(performance):
    rows = performance.load(performance.FIRST_HOUR)["rows"]
    auto, patched = (
        next(r for r in rows if (r["row"], r["model"], r["way"]) == ("lengths", "llama", way))
        for way in ("auto", "patched")
    )
    new, again = ([run[name] / run["native median"] for run, name in names] for names in (
        ((auto, "pass 1 median"), (patched, "pass 1 median")),
        ((auto, "planned median"), (patched, "pass 3 median")),
    ))  # fmt: skip
    means = [run["pass 1 mean"] / run["native mean"] for run in (auto, patched)]
    table = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    assert f"| 1 | {new[0]:.2f}; {again[0]:.2f} | {new[1]:.2f}; {again[1]:.2f} |" in table
    assert f"compile kernels | 1 | {means[0]:.2f} | {means[1]:.1f} |" in table
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"first time, median | {new[1]:.2f} | {new[0]:.2f} |" in readme
    assert f"compile kernels | {means[1]:.1f} | {means[0]:.2f} |" in readme
    assert f"again, median | {again[1]:.2f} | {again[0]:.2f} |" in readme


def test_the_performance_page_quotes_its_files(performance):
    """The figures in the sentences about what is slower."""
    page = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())
    run = performance.load(performance.MODELS)
    cases = [*run["models"].items(), *((what, run["llama 1.2B"][what]) for what in ("train", "decode"))]
    assert "in no model of this run" in page and min(row["auto"] for _, row in cases) >= 1
    unclear = {name for name, row in cases if row["auto"] - row["auto, error"] < 1}
    assert "ResNet and BERT in bfloat16 gain less" in page and unclear == {"resnet bfloat16", "bert bfloat16"}
    rows: dict = {}
    for row in performance.load(performance.MEMORY_BOUND)["rows"]:
        rows.setdefault((row["key"], row["variant"], tuple(row["shape"])), {})[row["provider"]] = row["share"]
    slower = [r for r in rows.values() if r["ours"] < 0.98 * max(r.get(p) or 0 for p in ("native", "compile"))]
    assert f"in {len(slower)} of {len(rows)} cases" in page
    fused = performance.load(performance.LOSSES)["fused_linear_cross_entropy"]
    longer = [100 * fused[name]["ms"] / fused["torch.compile"]["ms"] - 100 for name in ("ours", "ours, float32 sums")]
    assert f"{longer[0]:.0f} % longer than torch.compile, and {longer[1]:.0f} % longer with sums in float32" in page
    python = [r["python_us"] / r["native_us"] for r in performance.load(performance.ENABLE)["results"].values()]
    assert f"takes {min(python):.1f} to {max(python):.1f} times torch's host time" in page
    calls = [c for c in performance.load(performance.CHOICE)["results"] if re.match(r"attention(_bwd)? ", c["call"])]
    ours = [performance.relative(call)[0].number for call in calls]
    assert f"reaches {min(ours):.2f} to {max(ours):.2f} of cuDNN's speed" in page
    assert {call["runs"] for call in calls} == {"vendor.nvidia.cudnn"}
    rows = performance.load(performance.FIRST_HOUR)["rows"]
    (new,) = (r for r in rows if (r["row"], r["model"], r["way"]) == ("lengths", "llama", "patched"))
    assert "three times torch's time on average" in page and round(new["pass 1 mean"] / new["native mean"]) == 3
    assert "the median step is faster than torch's" in page and new["pass 1 median"] < new["native median"]
    (auto,) = (r for r in rows if (r["row"], r["model"], r["way"]) == ("lengths", "llama", "auto"))
    again = auto["planned median"] / auto["native median"]
    assert f"steps whose lengths repeat took {again:.2f} times torch's time" in page
