"""The C++ kernels of the CPU agree with the references, accept rows with gaps, and decline other layouts. Where they
cannot be built, the references run.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import sys
from pathlib import Path

import fresh
import pytest
import torch

import opmux
from opmux.backends._cpu import ops, vendor_info
from opmux.backends._cpu.ops import native
from opmux.core import specs
from opmux.core.errors import NotSupported

pytestmark = pytest.mark.usefixtures("cpu_kernels")
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
NAMES = sorted(ops.OPS)
OURS = [n for n in NAMES if n in ops.__all__]
FORWARDS = [n for n in OURS if specs.find(f"opmux::{n}").grad]
# A sample with one of these words in its id does not consist of contiguous rows along the last dimension.
NO_ROWS = (" t", "swapped", "step", "expanded", "dim=0", "dim=1", "dim=-2", "5, 1)", "layout=t", "casting")
# Every kernel, whether it is exported or not: a kernel that is slower than torch today may be faster later.
KERNEL = {name: native.function(name, *ops.OPS[name], ops.ALL) for name in NAMES}


def spec_of(name):
    return specs.find(f"opmux::{name}")


def results(value):
    return value if isinstance(value, tuple) else (value,)


def agree(name, got, want, **tolerance):
    for a, b in zip(results(got), results(want), strict=True):
        assert (a.dtype, a.shape, a.is_contiguous()) == (b.dtype, b.shape, True)
        tol = spec_of(name).tol[b.dtype]
        torch.testing.assert_close(a, b, equal_nan=True, **{"rtol": tol.rtol, "atol": tol.atol, **tolerance})


# ---- registration ---------------------------------------------------------------------------------------------------


def test_the_vendor_is_the_cpu():
    assert (vendor_info.vendor_name, vendor_info.device_name, vendor_info.key) == ("cpu", "cpu", "CPU")


@pytest.mark.parametrize("name", NAMES)
def test_each_kernel_has_the_parameters_of_its_op(name):
    facts = lambda fn: [(p.name, p.default, p.kind) for p in inspect.signature(fn).parameters.values()]
    assert facts(KERNEL[name]) == facts(spec_of(name).reference)
    assert ops.OPS[name][1] == len(spec_of(name).out)


def test_only_kernels_for_dtypes_where_they_are_faster_are_exported():
    assert set(ops.__all__) <= {*NAMES, *ops.TORCH}
    for name in OURS:
        assert getattr(ops, name).dtypes == set(ops.DTYPES[name]) != set()
    assert "'reference.torch'" in str(opmux.explain("opmux::relu", torch.randn(3)))
    assert "'cpp.cpu'" in str(opmux.explain("opmux::relu", torch.randn(3).bfloat16()))


def test_policies_select_and_deny_the_cpp_kernels():
    x = torch.randn(3, 8), torch.randn(8)
    runs = lambda **policy: _chosen(policy, *x)
    assert (
        runs() == runs(prefer="flagos") == runs(prefer="cpp") == runs(prefer="vendor:cpu") == ("cpp.cpu", "cpp", "cpu")
    )
    assert runs(per_op={"rms_norm": "flagos"}) == runs(per_op={"rms_norm": "cpp"}) == ("cpp.cpu", "cpp", "cpu")
    reference = ("reference.torch", "reference", None)
    assert runs(prefer="reference") == runs(deny=["cpu"]) == reference
    assert runs(per_op={"rms_norm": "!flagos|*"}) == runs(per_op={"rms_norm": "!cpp|*"}) == reference


def _chosen(policy, *args):
    with opmux.policy(**policy):
        chosen = opmux.explain("rms_norm", *args).chosen
    return chosen.impl_id, str(chosen.kind), chosen.vendor


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_samples_agree_with_the_reference(name):
    count = 0
    for dtype in ops.ALL:
        for sample in spec_of(name).samples(dtype, CPU):
            try:
                got = KERNEL[name](*sample.args, **sample.kwargs)
            except NotSupported:
                assert any(word in sample.id for word in NO_ROWS), sample.id
                continue
            agree(name, got, spec_of(name).reference(*sample.args, **sample.kwargs))
            count += 1
    assert count > 20


@pytest.mark.parametrize("n", [*range(1, 34), 2047, 2049, 4099])
def test_rows_of_any_length_agree_with_the_reference(n):
    """Tests lengths near the vector width, and lengths above the size of the blocks that kernels sum."""
    for dtype in (torch.float32, torch.bfloat16):
        for name in (
            "layer_norm",
            "rms_norm_bwd",
            "log_softmax",
            "scaled_softmax",
            "silu_mul_bwd",
            "gelu_tanh_bias_bwd",
        ):
            args = spec_of(name).bound(spec_of(name).samples.at((3, n), dtype, CPU).args, {})[0]
            agree(name, KERNEL[name](*args), spec_of(name).reference(*args))


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n.partition("_")[0] in ("gelu", "silu", "qgelu", "relu", "srelu")]
)
def test_activations_of_infinities_nan_and_huge_and_tiny_values_agree_with_the_reference(name):
    """Includes values on which exp overflows or underflows."""
    odd = torch.tensor([0.0, -0.0, 1e-40, 1e4, -1e4, 3e38, -3e38, 89.0, -89.0, 200.0, -200.0])
    odd = torch.cat((odd, torch.tensor([torch.inf, -torch.inf, torch.nan]), torch.linspace(-30, 30, 50)))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        row = odd.to(dtype)
        fill = {"bias": torch.zeros_like(row), "dy": torch.ones_like(row), "b": torch.ones_like(row)}
        args = [fill.get(p, row) for p in inspect.signature(KERNEL[name]).parameters]
        if name.endswith("_glu"):
            args = [torch.cat((row, torch.ones_like(row)))]
        elif name.endswith("_glu_bwd"):
            args = [torch.ones_like(row), torch.cat((row, torch.ones_like(row)))]
        agree(name, KERNEL[name](*args), spec_of(name).reference(*args))


def test_softmax_of_fully_masked_rows_and_rows_with_nan_agrees_with_the_reference():
    x = torch.randn(6, 37)
    x[0], x[1, 3], x[2, 5], x[3, 36] = -torch.inf, torch.nan, torch.inf, -torch.inf
    for name in ("softmax", "log_softmax"):
        agree(name, KERNEL[name](x), spec_of(name).reference(x))
    mask = torch.rand(6, 37) > 0.5
    mask[4], mask[1, 3], mask[2, 5] = True, True, True
    for causal in (False, True):
        agree("scaled_softmax", KERNEL["scaled_softmax"](x, mask, -2.0, causal),
              spec_of("scaled_softmax").reference(x, mask, -2.0, causal))  # fmt: skip


@pytest.mark.parametrize("dtype", ops.ALL, ids=str)
@pytest.mark.parametrize("size", [1e4, 1.1e10, 1e25, 1e300, "max"])
def test_softmax_of_huge_values_is_finite_and_agrees_with_the_reference(size, dtype):
    """Callers may mask with the least finite number: scaling it must not overflow to NaN."""
    most = torch.finfo(dtype).max
    size = most if size == "max" else size
    if size > most:
        pytest.skip("not a number of this dtype")
    rows = torch.stack([torch.full((37,), v).double() for v in (-1, 1, -0.3, 0.7)])
    rows = torch.cat((rows, torch.where(torch.arange(37) % 3 == 0, 0.3, -1.0)[None].double()))
    x = (rows * size).to(dtype)
    for name in ("softmax", "log_softmax"):
        agree(name, KERNEL[name](x), spec_of(name).reference(x))
    for scale in (1.0, 128**-0.5, -(64**-0.5), 1 / 3):
        for mask in (None, torch.arange(37) % 2 == 0):
            for causal in (False, True):
                args = x, mask, scale, causal
                y = KERNEL["scaled_softmax"](*args)
                assert y.isfinite().all()
                agree("scaled_softmax", y, spec_of("scaled_softmax").reference(*args))
                grads = torch.randn(5, 37).to(dtype), y, scale, causal
                agree("scaled_softmax_bwd", KERNEL["scaled_softmax_bwd"](*grads),
                      spec_of("scaled_softmax_bwd").reference(*grads))  # fmt: skip


def test_sums_over_long_rows_and_many_rows_stay_accurate():
    x = torch.rand(2, 300_001) + 1
    _, mean, rstd = KERNEL["layer_norm"](x, torch.ones(300_001), None, 0.0)
    torch.testing.assert_close(mean, x.double().mean(-1).float(), rtol=3e-7, atol=0)
    torch.testing.assert_close(rstd, x.double().var(-1, correction=0).rsqrt().float(), rtol=1e-6, atol=1e-6)
    x, dy = torch.rand(200_000, 8), torch.rand(200_000, 8)
    dweight = KERNEL["rms_norm_bwd"](dy, x, torch.ones(8), torch.ones(200_000))[1]
    torch.testing.assert_close(dweight, (dy.double() * x.double()).sum(0).float(), rtol=3e-6, atol=0)


def test_rows_with_gaps_are_read_without_a_copy(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    wide = torch.randn(4, 3, 100)
    a, b, dy = wide[..., 5:42], wide[..., 42:79], torch.randn(4, 3, 37)
    weight = torch.randn(37)
    for name, args in {
        "silu_mul": (a, b),
        "silu_mul_bwd": (dy, a, b),
        "silu_glu": (wide[..., 5:79],),
        "silu_glu_bwd": (dy, wide[..., 5:79]),
        "gelu_tanh_bias": (a, weight),
        "rms_norm": (a, weight, 1e-6, 1.0),
        "add_rms_norm": (a, b, weight, 1e-6, 0.0),
        "softmax": (a, -1),
    }.items():
        agree(name, KERNEL[name](*args), spec_of(name).reference(*args))


@pytest.mark.parametrize(
    "name", ["rms_norm", "rms_norm_bwd", "layer_norm_bwd", "softmax", "silu_mul", "gelu_tanh_bias_bwd"]
)
def test_sums_over_rows_are_deterministic_for_a_number_of_threads(name):
    """With another number of threads, results differ only by rounding."""
    args = spec_of(name).bound(spec_of(name).samples.at((300, 700), torch.float32, CPU).args, {})[0]
    before = torch.get_num_threads()
    try:
        runs = []
        for threads in (1, 3, 3):
            torch.set_num_threads(threads)
            runs.append(results(KERNEL[name](*args)))
    finally:
        torch.set_num_threads(before)
    agree(name, runs[1], runs[0])
    assert all(torch.equal(a, b) for a, b in zip(runs[1], runs[2], strict=True))


# ---- through opmux.ops ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORWARDS)
def test_gradients_agree_with_the_reference(name):
    spec, fn = spec_of(name), getattr(opmux.ops, name)
    dtype = next(d for d in (torch.float32, torch.bfloat16, torch.float16) if d in ops.DTYPES[name])
    sample = next(iter(spec.samples(dtype, CPU)))
    assert "'cpp.cpu'" in str(opmux.explain(spec.key, *sample.args))
    runs = []
    for policy in ("flagos", "reference"):
        fresh = lambda v: v.detach().clone().requires_grad_() if torch.is_tensor(v) and v.is_floating_point() else v
        args = [fresh(a) for a in sample.args]
        with opmux.policy(policy):
            outs = results(fn(*args, **sample.kwargs))
            torch.manual_seed(1)
            sum((o.float() * torch.randn(o.shape)).sum() for o in outs if o.requires_grad).backward()
        runs.append(tuple(a.grad for a in args if torch.is_tensor(a) and a.requires_grad))
    assert runs[0] and all(g is not None for g in runs[0])
    agree(spec.grad, runs[0], runs[1])


@pytest.mark.parametrize("name", NAMES)
def test_invalid_arguments_raise_the_errors_of_the_reference(name):
    spec = spec_of(name)
    for bad in spec.errors(CPU):
        with pytest.raises(NotSupported):
            KERNEL[name](*bad.args, **bad.kwargs)
        with pytest.raises(bad.error, match=bad.match):
            getattr(opmux.ops, name)(*bad.args, **bad.kwargs)
    _, *rest = next(iter(spec.samples(torch.float32, CPU))).args
    with pytest.raises(NotSupported):
        KERNEL[name]([1.0], *rest)
    with pytest.raises(TypeError, match=f"{spec.names[0]} must be a Tensor; got list"):
        getattr(opmux.ops, name)([1.0], *rest)


# ---- when they are built --------------------------------------------------------------------------------------------

# A program that runs each case in a fork of a process which has imported everything and called nothing.
ORIGIN = """
import json, logging, os, sys, time, torch, opmux, opmux.ops

from opmux.backends._cpu.ops import native
from opmux.core import specs
from opmux.cpp import build

specs.load_all()


def check():
    said, tries, load = [], [], build.load
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("opmux").addHandler(handler)
    build.load = lambda *a, **k: tries.append(a) or load(*a, **k)
    x, w = torch.randn(3, 64, requires_grad=True), torch.ones(64)
    opmux.explain("rms_norm", x, w)
    facts = {"early": [len(tries), native._NativeState.loaded], "runtimes": [native.runtimes()]}
    opmux.ops.rms_norm(x, w)
    while native._NativeState.compiling:
        time.sleep(0.1)
    for _ in range(3):
        y, rstd = opmux.ops.rms_norm(x, w)
        y.sum().backward()
        z = opmux.ops.silu_mul(x, x)
    right = torch.allclose(y, specs.find("opmux::rms_norm").reference(x, w)[0])
    right = right and torch.allclose(z, torch.nn.functional.silu(x) * x)
    facts["runtimes"].append(native.runtimes())
    facts |= {"tries": len(tries), "said": said, "right": right, "loaded": native._NativeState.loaded}
    return facts | {"why": str(opmux.explain("rms_norm", x, w))}


for name, env in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        os.environ.update(env)
        print(json.dumps([name, check()]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""
FAILS = "sys.exit('error: out of ink')"
WRITES = "open(sys.argv[sys.argv.index('-o') + 1], 'w').write('no library')"
SAYS = {
    "no compiler": r"there is no C\+\+ compiler",
    "a compiler that fails": "failed .exit status 1.: error: out of ink",
    "a library that does not load": "cpu_kernels-",
}


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """The report of each case: one for this machine as it is, the others for machines that cannot build or load the
    kernels.
    """
    folder = tmp_path_factory.mktemp("cpu")
    cases = {"here": {}, "no compiler": {"PATH": str(folder), "CXX": ""}}
    for name, line in {"a compiler that fails": FAILS, "a library that does not load": WRITES}.items():
        path = folder / name.replace(" ", "_")
        path.write_text(
            f"#!{sys.executable}\nimport sys\nif '--version' in sys.argv:\n    sys.exit(print('1.0'))\n{line}\n"
        )
        path.chmod(0o755)
        cases[name] = {"CXX": str(path)}
    for name in SAYS:
        cases[name]["OPMUX_CACHE_DIR"] = str(folder / f"cache of {name}")
    cases["turned off"] = {"OPMUX_CPP": "0"}
    result = fresh.run(
        [sys.executable, "-c", ORIGIN, json.dumps(cases)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(line) for line in result.stdout.splitlines())


def test_the_kernels_are_loaded_by_the_first_call_and_not_before(facts):
    state = facts["here"]
    assert state["early"] == [0, False]
    assert state["right"] and state["loaded"] and state["tries"] == 1 and state["said"] == []
    # the kernels use torch's OpenMP runtime; no second one is loaded
    assert state["runtimes"][0] == state["runtimes"][1]


@pytest.mark.parametrize("case", SAYS)
def test_without_the_kernels_the_references_run_and_one_warning_says_why(case, facts):
    state = facts[case]
    assert state["right"] and not state["loaded"] and state["tries"] == (case == "a library that does not load")
    (warning,) = state["said"]
    assert re.search(f"^the cpu kernels cannot be built: .*{SAYS[case]}", warning), warning
    assert "-> 'reference.torch'" in state["why"] and "cannot be built" in state["why"]


def test_opmux_cpp_0_turns_the_kernels_off(facts):
    state = facts["turned off"]
    assert state["right"] and not state["loaded"] and state["tries"] == 0 and state["said"] == []
    assert "-> 'reference.torch'" in state["why"] and "C++ is off (OPMUX_CPP=0)" in state["why"]


def test_compiler_flags_follow_torchs_cpu_capability(monkeypatch):
    for capability, flag in {"AVX2": "-mavx2", "AVX512": "-mavx512f"}.items():
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        assert flag in native.flags() and f"-DCPU_CAPABILITY={capability}" in native.flags()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert not any("CPU_CAPABILITY" in f for f in native.flags())
    assert {s.suffix for s in native.SOURCES} == {".cpp", ".h"} and all(s.exists() for s in native.SOURCES)


# ---- random arguments -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fuzz_cpu():
    module_spec = importlib.util.spec_from_file_location("fuzz_cpu", Path(__file__).with_name("fuzz_cpu.py"))
    sys.modules["fuzz_cpu"] = module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def test_random_arguments_agree_with_the_reference_or_are_declined(fuzz_cpu):
    threads = torch.get_num_threads()
    try:
        report = fuzz_cpu.fuzz(0, 500)
    finally:
        torch.set_num_threads(threads)
    assert not report.findings, str(report)
    assert report.outcomes["computed"] > 150 and report.outcomes["declined"] > 150


def test_the_fuzzer_finds_a_wrong_kernel(fuzz_cpu, monkeypatch):
    """The wrong kernels return a wrong value, write to an argument, raise, or return a result where the reference
    raises.
    """
    stock = fuzz_cpu.KERNEL["silu"]

    def says(kernel):
        monkeypatch.setitem(fuzz_cpu.KERNEL, "silu", kernel)
        monkeypatch.setattr(fuzz_cpu, "NAMES", ["silu"])
        return str(fuzz_cpu.fuzz(0, 25))

    assert "0 findings" in says(stock)
    assert "differ, first at" in says(lambda x: stock(x) * 1.1)
    assert "an argument was written" in says(lambda x: stock(x.add_(1)))
    assert "raised RuntimeError: no" in says(lambda x: (_ for _ in ()).throw(RuntimeError("no")))
    assert "computed what the reference refuses" in says(lambda x: torch.ones(3))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_arguments_pass_under_the_sanitizers(fuzz_cpu):
    """AddressSanitizer and UBSan find no access outside a tensor and no undefined behaviour."""
    if not Path(fuzz_cpu.runtime("libasan.so")).is_absolute():
        pytest.skip("the compiler has no AddressSanitizer")
    result = fuzz_cpu.sanitized("--seed", "1000000", "--count", "3000", timeout=1700)
    assert result.returncode == 0 and "3000 inputs" in result.stdout, result.stdout[-3000:] + result.stderr[-3000:]
