"""The references against independent results: torch's own functions and autograd, in double precision."""

import inspect
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from opmux.core.library import fake_call
from opmux.core.spec import Gradient, Tol, specs
from opmux.faces.tex.ops import norm as tex_norm
from opmux.specs import activation, norm

CPU = torch.device("cpu")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

FAMILIES = ("norm", "activation", "tex_norm")
OPS = [s for s in specs.by_key.values() if s.family in FAMILIES and not s.name.endswith(("_fp8", "_stats", "_into"))]
OPS = [s for s in OPS if "scales" not in s.names]  # test_activation_forms.py tests those with scales
PRIMITIVES = [s for s in OPS if s.space == "opmux"]
FORWARDS = [s for s in PRIMITIVES if s.grad]
BACKWARDS = [s for s in PRIMITIVES if not s.grad]
TEX = [s for s in OPS if s.space == "tex"]


def over(table, name="spec"):
    return pytest.mark.parametrize(name, table, ids=lambda s: s.name)


every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def each_sample(spec, few):
    """All float32 samples, and four samples of each other dtype (with --slow all). test_norm_casting.py tests double
    rounding.
    """
    for dtype in DTYPES:
        samples = [s for s in spec.samples(dtype, CPU) if dtype.itemsize > 2 or "casting" not in s.id]
        yield from samples if dtype is torch.float32 else few(samples, 4)


# ---- true results ---------------------------------------------------------------------------------------------------


def row_mean(x):
    return x.sum(-1) / max(x.shape[-1], 1)


def true_rms_norm(x, weight, eps=1e-6, offset=0.0, casting="gemma"):
    y = F.rms_norm(x, x.shape[-1:], weight + offset, eps) if x.numel() else x * weight
    return y, (row_mean(x**2) + eps) ** -0.5


def true_layer_norm(x, weight, bias=None, eps=1e-5, offset=0.0):
    mean = row_mean(x)
    y = F.layer_norm(x, x.shape[-1:], weight + offset, bias, eps) if x.numel() else x * weight
    return y, mean, (row_mean((x - mean[..., None]) ** 2) + eps) ** -0.5


def true_glu(f, x):
    a, b = x.split([x.shape[-1] // 2] * 2, -1)
    return f(a) * b


ACTS = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "relu": F.relu,
    "srelu": lambda x: F.relu(x) ** 2,
    "qgelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
}

# For each forward, a function that computes all its results from arguments in double precision.
TRUTH = {
    "rms_norm": true_rms_norm,
    "layer_norm": true_layer_norm,
    **{name: lambda x, f=f: (f(x),) for name, f in ACTS.items() if name != "sigmoid"},
    **{f"{name}_mul": lambda a, b, f=f: (f(a) * b,) for name, f in ACTS.items()},
    **{f"{name}_bias": lambda x, bias, f=f: (f(x + bias),) for name, f in ACTS.items() if name != "sigmoid"},
    **{f"{name}_glu": lambda x, f=f: (true_glu(f, x),) for name, f in ACTS.items()},
}

# Ops that normalize x + residual and also return this sum.
TRUTH_OF_SUM = {
    "add_rms_norm": true_rms_norm,
}


def truth(spec, args):
    """The true results for these arguments, and the float64 leaves from which autograd differentiates them."""
    leaves = [a.detach().double().requires_grad_() if isinstance(a, Tensor) else a for a in args]
    if spec.name in TRUTH:
        return TRUTH[spec.name](*leaves), leaves
    x, residual, *rest = leaves
    exact = x + residual
    # y is computed from the stored sum, which is rounded. For the gradient, this rounding counts as the identity.
    s = exact + ((args[0].double() + args[1].double()).to(args[0].dtype) - exact).detach()
    y, *statistics = TRUTH_OF_SUM[spec.name](s, *rest)
    return (y, s, *statistics), leaves


def close(got, want, spec, what):
    """Assert equality up to one rounding of the result and the errors of the wider arithmetic before it."""
    halves = {d: Tol(0.51 * torch.finfo(d).eps, 3e-5) for d in (torch.float16, torch.bfloat16)}
    tol = {**spec.tol, **halves, torch.float64: Tol(1e-11, 1e-11)}[got.dtype]
    torch.testing.assert_close(
        got.double(), want.double(), rtol=tol.rtol, atol=tol.atol, msg=lambda m: f"{spec.name}({what}): {m}"
    )


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def backward_args(plan, args, outs, grads):
    where = {"grad": grads, "in": args, "out": outs}
    return [where[kind][i] for kind, i in plan.sources]


@over(FORWARDS)
def test_forward_equals_the_truth(spec, few):
    for sample in each_sample(spec, few):
        want, _ = truth(spec, sample.args)
        got = as_tuple(spec.reference(*sample.args))
        assert len(got) == len(spec.out)
        for name, g, w in zip(spec.out, got, want, strict=True):
            close(g, w.detach(), spec, f"{sample.id}).{name}(")


@over(FORWARDS)
def test_backward_is_the_gradient_of_the_forward(spec, few):
    plan = spec.gradient
    for sample in each_sample(spec, few):
        outs = as_tuple(spec.reference(*sample.args))
        grads = [torch.randn_like(o) for o in outs]
        true_outs, leaves = truth(spec, sample.args)
        inputs = [leaves[i] for i in plan.targets if isinstance(leaves[i], Tensor)]
        ends = [(o, g.double()) for o, g, d in zip(true_outs, grads, plan.differentiable, strict=True) if d]
        loss = sum((o * g).sum() for o, g in ends)
        want = iter(torch.autograd.grad(loss, inputs, materialize_grads=True))
        got = as_tuple(plan.backward.reference(*backward_args(plan, sample.args, outs, grads)))
        for name, g, index in zip(plan.backward.out, got, plan.targets, strict=True):
            if isinstance(leaves[index], Tensor):
                close(g, next(want), plan.backward, f"{sample.id}).{name}(")


@over(FORWARDS)
def test_backward_agrees_with_finite_differences(spec):
    """Finite differences of the reference itself are independent of all formulas."""
    plan, h = spec.gradient, 1e-6
    args = spec.samples.at((4, 6), torch.float64, CPU).args
    outs = as_tuple(spec.reference(*args))
    grads = [torch.randn_like(o) for o in outs]
    slopes = as_tuple(plan.backward.reference(*backward_args(plan, args, outs, grads)))

    def loss(moved):
        ends = as_tuple(spec.reference(*moved))
        return sum((e * g).sum() for e, g, d in zip(ends, grads, plan.differentiable, strict=True) if d)

    for name, slope, index in zip(plan.backward.out, slopes, plan.targets, strict=True):
        direction = torch.randn_like(args[index])
        ahead, behind = (loss([*args[:index], args[index] + step * direction, *args[index + 1 :]]) for step in (h, -h))
        torch.testing.assert_close(
            (slope * direction).sum(), (ahead - behind) / (2 * h), rtol=1e-6, atol=1e-7, msg=name
        )


@over(BACKWARDS)
def test_backward_accepts_any_layout_and_dtype(spec, few):
    """Compares with the results for contiguous doubles, which the tests above verify."""
    for sample in each_sample(spec, few):
        packed = [a.double().contiguous() if isinstance(a, Tensor) else a for a in sample.args]
        want = as_tuple(spec.reference(*packed))
        for name, g, w in zip(spec.out, as_tuple(spec.reference(*sample.args)), want, strict=True):
            close(g, w, spec, f"{sample.id}).{name}(")


@over(BACKWARDS)
def test_an_incoming_gradient_may_have_another_dtype(spec):
    args = dict(zip(spec.names, spec.samples.at((5, 64), torch.bfloat16, CPU).args))
    mixed = {**args, **{n: args[n].double() for n in ("dy", "ds") if n in args}}
    for g, w in zip(as_tuple(spec.reference(**mixed)), as_tuple(spec.reference(**args)), strict=True):
        assert torch.equal(g, w) and g.dtype == w.dtype


# ---- properties of every result -------------------------------------------------------------------------------------


def expected_dtype(name, inputs):
    first = next(inputs[n] for n in ("x", "a", "s", "input") if n in inputs)
    if name in ("rstd", "mean"):
        return torch.float64 if first.dtype is torch.float64 else torch.float32
    if name in ("mu", "rsigma"):
        return torch.float32
    if name == "out":
        return inputs.get("otype") or first.dtype
    source = {"dbeta": "gamma"}.get(name, name.removeprefix("d"))
    source = "weight" if name == "dbias" and "weight" in inputs else source
    return first.dtype if inputs.get(source) is None else inputs[source].dtype


def packed_strides(shape):
    return torch.empty(shape).stride()


def storage(t):
    return t.untyped_storage().data_ptr()


@over(OPS)
def test_results_are_contiguous_new_and_typed_and_inputs_unchanged(spec, few):
    for sample in each_sample(spec, few):
        arguments = dict(zip(spec.names, sample.args, strict=True))
        inputs = {n: a for n, a in arguments.items() if isinstance(a, Tensor) and n not in spec.mutates}
        before = {n: (a.clone(), a._version) for n, a in inputs.items()}
        results = spec.reference(*sample.args)
        results = results if isinstance(results, (tuple, list)) else (results,)
        storages = {storage(a) for a in inputs.values() if a.numel()}
        for name, r in zip(spec.out, results, strict=True):
            if r is None:
                continue
            what = f"{spec.name}({sample.id}).{name}"
            assert r.dtype is expected_dtype(name, arguments), what
            assert r.stride() == packed_strides(r.shape), what
            assert not r.requires_grad, what
            if r.numel():
                assert storage(r) not in storages, f"{what} shares memory"
                storages.add(storage(r))
        for n, (value, version) in before.items():
            assert torch.equal(inputs[n], value) and inputs[n]._version == version, f"{spec.name} wrote to {n}"


@over(PRIMITIVES)
def test_fake_results_have_the_real_metadata(spec, few):
    """Covers the dtypes that tests/ops/test_primitives.py does not."""
    for dtype in DTYPES:
        for sample in few(spec.samples(dtype, CPU), 0 if dtype is torch.float32 else 1):
            fakes, reals = as_tuple(fake_call(spec, sample.args, {})), as_tuple(spec.reference(*sample.args))
            facts = [[(t.shape, t.stride(), t.dtype, t.device) for t in ts] for ts in (fakes, reals)]
            assert facts[0] == facts[1], f"{dtype} {sample.id}"


@over(PRIMITIVES)
@pytest.mark.few(20)
def test_compiled_graphs_have_no_fixed_sizes(spec):
    traced = make_fx(spec.reference, tracing_mode="symbolic")(*spec.samples.at((5, 64), torch.bfloat16, CPU).args)
    args = spec.samples.at((6, 38), torch.bfloat16, CPU).args
    for g, w in zip(as_tuple(traced(*args)), as_tuple(spec.reference(*args)), strict=True):
        assert torch.equal(g, w)


@over(PRIMITIVES)
def test_the_schema_equals_the_signature(spec):
    schema = torch.library.infer_schema(spec.reference, mutates_args=())
    assert schema.count("Tensor") == len(spec.out) + sum("Tensor" in str(p.annotation) for p in params(spec))
    assert all(f" {name}" in schema for name in spec.names)


def params(spec):
    return inspect.signature(spec.reference).parameters.values()


@over(FORWARDS)
def test_forward_and_backward_are_linked_by_name(spec):
    backward = specs.find(spec.grad)
    plan = Gradient.of(spec, backward)
    assert backward.name == f"{spec.name}_bwd"
    assert plan.differentiable == tuple(o not in ("rstd", "mean") for o in spec.out)
    tensors = [n for n, p in spec.signature.parameters.items() if "Tensor" in str(p.annotation)]
    assert [spec.names[i] for i in plan.targets] == tensors


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_fused_norms_return_the_norms_statistics(name, few):
    """The passed amax rises to the amax of the norm's result; it never falls."""
    spec = specs.by_key[f"opmux::{name}_stats"]
    for sample in each_sample(spec, few):
        arguments = dict(zip(spec.names, sample.args, strict=True))
        amax = arguments.pop("amax")
        y, *stats = as_tuple(specs.by_key[f"opmux::{name}"].reference(**arguments))
        for before in (0.0, 1e6):
            raised = None if amax is None else torch.full((1,), before)
            got = as_tuple(spec.reference(**arguments, amax=raised))
            assert all(torch.equal(a, b) for a, b in zip(got, stats, strict=True))
            if raised is not None:
                assert raised == max(before, y.float().abs().max().item() if y.numel() else 0.0)


def test_every_backward_has_a_forward_and_every_forward_a_true_result():
    assert {*(s.grad for s in FORWARDS), "rms_norm_bwd_add"} == {s.name for s in BACKWARDS}
    assert {s.name for s in FORWARDS} == {*TRUTH, *TRUTH_OF_SUM}
    assert {s.name for s in TEX} == set(TEX_TRUTH)


@over(OPS)
def test_ops_are_attributes_of_their_module(spec):
    module = {"norm": norm, "activation": activation, "tex_norm": tex_norm}[spec.family]
    fn = getattr(module, spec.name)
    assert fn.spec is spec
    assert spec.reference.__module__ == module.__name__ and spec.reference.__name__ == spec.name
    assert spec.doc and len(spec.doc.partition("\n\n")[0].splitlines()) <= 2  # the description before the arguments
    assert pickle.loads(pickle.dumps(fn)) is fn


# ---- samples --------------------------------------------------------------------------------------------------------


@over(OPS)
def test_samples_are_deterministic(spec):
    state = torch.get_rng_state()
    once, again = (list(spec.samples(torch.float32, CPU)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert len({s.id for s in once}) == len(once)
    for a, b in zip(once, again, strict=True):
        assert a.id == b.id
        for one, other in zip(a.args, b.args, strict=True):
            assert torch.equal(one.nan_to_num(), other.nan_to_num()) if isinstance(one, Tensor) else one == other


@over(OPS)
def test_samples_cover_the_shapes_that_find_bugs(spec):
    firsts = [s.args[0] for s in spec.samples(torch.float32, CPU)]
    assert any(not t.is_contiguous() for t in firsts)
    assert any(t.numel() == 0 for t in firsts)
    assert any(0 in t.stride() for t in firsts if t.numel())
    assert {1, 2, 3, 4} <= {t.dim() for t in firsts}
    assert {1, 37, 1000} <= {n for t in firsts for n in t.shape}


@over(OPS)
def test_a_sample_may_be_drawn_for_a_given_shape(spec):
    sample = spec.samples.at((3, 4, 6), torch.bfloat16, CPU)
    assert sample.args[0].shape == (3, 4, 6) and sample.args[0].dtype is torch.bfloat16
    spec.reference(*sample.args)


# ---- mistakes -------------------------------------------------------------------------------------------------------


@over(OPS)
def test_wrong_arguments_raise_with_the_ops_name(spec):
    count = 0
    for bad in spec.errors(CPU):
        count += 1
        with pytest.raises(bad.error, match=bad.match) as raised:
            spec.reference(*bad.args, **bad.kwargs)
        assert str(raised.value).startswith(f"{spec.name}: "), bad.id
        written = dict(zip(spec.names, bad.args, strict=True)).get("ln_out")
        assert not isinstance(written, Tensor) or written.is_meta or written.isnan().all(), bad.id
    assert count


def test_an_error_says_what_is_allowed():
    with pytest.raises(ValueError) as raised:
        norm.rms_norm.reference(torch.zeros(5, 64), torch.zeros(32))
    assert str(raised.value) == ("rms_norm: weight must have shape (64,), [n] where x (5, 64) is [*rows, n]; got (32,)")


# ---- extremes -------------------------------------------------------------------------------------------------------


@every_dtype
@over([s for s in FORWARDS if s.family == "activation"])
def test_activations_of_large_values_are_finite(spec, dtype):
    values = [0.0, 1e-4, 5.0, 12.0, 100.0, 1e4, min(torch.finfo(dtype).max, 1e100)]
    x = torch.tensor([*values, *(-f for f in values)], dtype=dtype)
    ones = [torch.ones_like(x)] * (len(spec.names) - 1)
    true_outs, (leaf, *_) = truth(spec, (x, *ones))
    (want,) = torch.autograd.grad(true_outs[0].sum(), leaf)
    got = spec.reference(x, *ones)
    slope = as_tuple(spec.gradient.backward.reference(torch.ones_like(got), x, *ones))[0]
    for g, w in ((got, true_outs[0].detach()), (slope, want)):
        torch.testing.assert_close(g, w.to(dtype), rtol=max(1e-6, torch.finfo(dtype).eps), atol=1e-6)


def test_the_slope_of_relu_at_zero_is_zero():
    zero = torch.zeros(3)
    for op in (activation.relu_bwd, activation.srelu_bwd):
        assert torch.equal(op.reference(torch.ones(3), zero), zero)


@every_dtype
def test_norms_of_a_constant_row_are_finite(dtype):
    x, w = torch.full((3, 64), 7.0, dtype=dtype), torch.ones(64, dtype=dtype)
    for got in (norm.layer_norm.reference(x, w), norm.rms_norm.reference(0 * x, w)):
        assert all(t.isfinite().all() for t in got)
        assert (got[0].abs() < 1e-2).all()


# ---- tex ------------------------------------------------------------------------------------------------------------


def true_tex_fwd(forward):
    def results(*args):
        *tensors, eps, _ln_out, _quantizer, _otype, _sm_margin, zero_centered_gamma = args
        y, *stats = forward(*tensors, eps, float(zero_centered_gamma))
        return [y, *([None] * (2 - len(stats))), *(s.reshape(-1) for s in stats)]

    return results


def column(stat, x):
    return stat.reshape(x.shape[:-1])[..., None]


def sum_rows(x):
    return x.reshape(x.shape[:-1].numel(), x.shape[-1]).sum(0)


def true_rmsnorm_bwd(dz, x, rsigma, gamma, sm_margin, zero_centered_gamma, add=0.0):
    rsigma = column(rsigma, x)
    xhat, g = x * rsigma, dz * (gamma + zero_centered_gamma)
    return [rsigma * (g - xhat * row_mean(g * xhat)[..., None]) + add, sum_rows(dz * xhat)]


def true_layernorm_bwd(dz, x, mu, rsigma, gamma, sm_margin, zero_centered_gamma):
    centred, rsigma = x - column(mu, x), column(rsigma, x)
    xhat, g = centred * rsigma, dz * (gamma + zero_centered_gamma)
    dx = rsigma * (g - (row_mean(g)[..., None] + xhat * row_mean(g * xhat)[..., None]))
    return [dx, sum_rows(dz * xhat), sum_rows(dz)]


TEX_TRUTH = {
    "rmsnorm_fwd": true_tex_fwd(true_rms_norm),
    "rmsnorm_bwd": true_rmsnorm_bwd,
    "rmsnorm_bwd_add": lambda dz, x, add, *rest: true_rmsnorm_bwd(dz, x, *rest, add=add),
    "layernorm_fwd": true_tex_fwd(true_layer_norm),
    "layernorm_bwd": true_layernorm_bwd,
}


@over(TEX)
def test_every_tex_norm_uses_our_primitives(spec):
    part = spec.name.replace("norm_fwd", "_norm").replace("norm_bwd", "_norm_bwd")
    forward = spec.name.endswith("_fwd")
    assert {f"opmux::{part}", *([f"opmux::{part}_fp8"] if forward else [])} <= set(spec.parts)
    assert forward or len(spec.parts) == 1


@over(TEX)
def test_tex_norms_equal_the_truth(spec, few):
    for sample in each_sample(spec, few):
        doubles = [a.double() if isinstance(a, Tensor) else a for a in sample.args]
        want = TEX_TRUTH[spec.name](*doubles)
        got = spec.reference(*sample.args)
        assert isinstance(got, list)
        for name, g, w in zip(spec.out, got, want, strict=True):
            if w is None:
                assert g is None
            else:
                close(g, w, spec, f"{sample.id}).{name}(")
        ln_out = dict(zip(spec.names, sample.args)).get("ln_out")
        assert ln_out is None or got[0] is ln_out


@over(TEX)
def test_tex_functions_record_no_gradient(spec):
    """tex's functions accept parameters that require gradients, and may write to such a parameter."""
    options = {"ln_out": True} if spec.mutates else {}
    args = spec.samples.at((5, 64), torch.float32, CPU, **options).args
    args = [a.requires_grad_() if isinstance(a, Tensor) else a for a in args]
    results = spec.reference(*args)
    assert all(r is None or r.grad_fn is None for r in results)


@over([s for s in TEX if s.mutates])
def test_ln_out_may_be_the_input_and_may_be_a_view(spec):
    args = dict(zip(spec.names, spec.samples.at((5, 64), torch.float32, CPU).args))
    want = spec.reference(**args)[0]
    buffer = torch.full((64, 5), float("nan"))
    assert spec.reference(**{**args, "ln_out": buffer.t()})[0].data_ptr() == buffer.data_ptr()
    torch.testing.assert_close(buffer.t(), want, rtol=0, atol=0)
    own = args["input"].clone()
    spec.reference(**{**args, "input": own, "ln_out": own})
    torch.testing.assert_close(own, want, rtol=0, atol=0)


def test_a_sum_of_gradients_is_rounded_once():
    """Rounding dx before the addition would change more than 1 % of these elements."""
    spec = tex_norm.rmsnorm_bwd_add.spec
    args = dict(zip(spec.names, spec.samples.at((37, 64), torch.bfloat16, CPU).args))
    got = spec.reference(**args)[0]
    doubles = [a.double() if isinstance(a, Tensor) else a for a in args.values()]
    assert (got != TEX_TRUTH[spec.name](*doubles)[0].to(torch.bfloat16)).double().mean() < 1e-3
    add = args.pop("add")
    assert (got != tex_norm.rmsnorm_bwd.spec.reference(**args)[0] + add).double().mean() > 0.01


OUT, MU, RSIGMA = torch.ones(2, 3, 4), torch.ones(6), torch.ones(6) / 2


@pytest.mark.parametrize(
    "spec, value, want",
    [
        ("rmsnorm_fwd", (OUT, RSIGMA), [OUT, None, RSIGMA]),
        ("rmsnorm_fwd", [OUT, RSIGMA.view(2, 3, 1)], [OUT, None, RSIGMA]),
        ("rmsnorm_fwd", (OUT, None, RSIGMA.double()), [OUT, None, RSIGMA]),
        ("rmsnorm_fwd", (OUT, MU, RSIGMA.view(2, 3)), [OUT, None, RSIGMA]),
        ("rmsnorm_fwd", (OUT, torch.tensor(0.5)), [OUT, None, RSIGMA[:1]]),
        ("layernorm_fwd", (OUT, MU.view(2, 3, 1), RSIGMA.bfloat16()), [OUT, MU, RSIGMA]),
        ("layernorm_fwd", [OUT, MU, RSIGMA.view(6, 1)], [OUT, MU, RSIGMA]),
        ("rmsnorm_bwd", (OUT, MU), [OUT, MU]),
        ("rmsnorm_bwd_add", (OUT, MU), [OUT, MU]),
        ("layernorm_bwd", (OUT, MU, MU), [OUT, MU, MU]),
    ],
)
def test_results_of_vendors_are_reshaped(spec, value, want):
    result = specs.by_key[f"tex::{spec}"].result
    got = result(value)
    assert isinstance(got, list) and len(got) == len(want) and got[0] is OUT
    for g, w in zip(got, want, strict=True):
        assert g is w is None or (g.shape == w.shape and g.dtype == w.dtype and torch.equal(g, w))
    assert result(got) is got
