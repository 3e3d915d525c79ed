"""The references of tex's optimizer functions and dropout against torch's own, and their documented behaviour."""

import inspect
import math

import pytest
import torch

from opmux.core.spec import specs
from opmux.faces.tex.ops import dropout as tex_dropout
from opmux.specs import dropout, optim

CPU = torch.device("cpu")
OPS = [specs.by_key[f"tex::{name}"] for name in optim.FORMS]
every_op = pytest.mark.parametrize("spec", OPS, ids=lambda s: s.name)

# NVIDIA's parameters, verbatim.
ADAM = "chunk_size noop_flag tensor_lists lr beta1 beta2 epsilon step mode bias_correction weight_decay"
SIGNATURES = {
    "multi_tensor_scale": "chunk_size noop_flag tensor_lists scale",
    "multi_tensor_scale_tensor": "chunk_size is_infinite tensor_lists scale",
    "multi_tensor_l2norm": "chunk_size noop_flag tensor_lists per_tensor",
    "multi_tensor_unscale_l2norm": "chunk_size noop_flag tensor_lists inv_scale per_tensor",
    "multi_tensor_adam": ADAM,
    "multi_tensor_adam_param_remainder": ADAM,
    "multi_tensor_adam_fp8": f"{ADAM} fp8_dtype",
    "multi_tensor_adam_capturable": f"{ADAM} inv_scale",
    "multi_tensor_adam_capturable_master": f"{ADAM} inv_scale",
    "multi_tensor_sgd": (
        "chunk_size noop_flag tensor_lists wd momentum dampening lr nesterov first_run wd_after_momentum scale"
    ),
    "multi_tensor_compute_scale_and_scale_inv": (
        "chunk_size noop_flag tensor_lists max_fp8 force_pow_2_scales epsilon"
    ),
    "multi_tensor_compute_scale_inv_e8m0": "chunk_size dummy tensor_lists",
    "dropout_fwd": "input dropout_probability out",
    "dropout_bwd": "grad_output mask dropout_probability grad_input",
}


def flag(value=0):
    return torch.full((1,), value, dtype=torch.int32)


def number(value, dtype=torch.float32):
    return torch.full((1,), value, dtype=dtype)


def weights(dtype=torch.float32, n=3):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(7, 5 + i, generator=generator).to(dtype) for i in range(n)]


def grads(step, like):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(t.shape, generator=generator).to(t.dtype) for t in like]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_equal_nvidias(name):
    params = inspect.signature(specs.by_key[f"tex::{name}"].reference).parameters.values()
    assert " ".join(p.name for p in params) == SIGNATURES[name]
    assert [p.name for p in params if p.default is None] == [
        n for n in SIGNATURES[name].split() if n in ("out", "grad_input")
    ]


@every_op
def test_wrong_arguments_raise_and_nothing_is_written(spec):
    for bad in spec.errors(CPU):
        tensors = [t for items in bad.args[2] if isinstance(items, list) for t in items if torch.is_tensor(t)]
        tensors = [t for t in tensors if not t.is_meta]
        before = [t.clone() for t in tensors]
        with pytest.raises(bad.error, match=bad.match) as raised:
            spec.reference(*bad.args)
        assert str(raised.value).startswith(f"{spec.name}: "), bad.id
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(tensors, before, strict=True)), bad.id


def test_an_error_says_which_tensor_and_why():
    """Tests lists of tensors, and numbers that depend on each other."""
    tensors = lambda dtype: [torch.zeros(3, dtype=dtype), torch.zeros(4, dtype=dtype)]
    lists = [tensors(torch.float32), tensors(torch.float32), tensors(torch.float32), tensors(torch.bfloat16)]
    numbers = [0.1, 0.9, 0.99, 1e-8, 1, 1, True, 0.0]
    messages = {
        "tensor_lists[3][0] (second moments) must be float32, the dtype of the first moment; got bfloat16": lists,
        "tensor_lists must be [gradients, parameters, first moments, second moments] or [gradients, parameters, "
        "first moments, second moments, master weights]; got 3 lists": lists[:3],
        "tensor_lists[1] (parameters) must have 2 tensors, as the first list has; got 1": [lists[0], lists[1][:1]] * 2,
        "tensor_lists[1][1] (parameters) must have 4 elements; got 3": [lists[0], lists[0][:1] * 2] * 2,
    }
    for words, args in messages.items():
        with pytest.raises((TypeError, ValueError)) as raised:
            optim.multi_tensor_adam(0, flag(), args, *numbers)
        assert str(raised.value) == f"multi_tensor_adam: {words}"
    lists[3] = tensors(torch.float32)
    with pytest.raises(ValueError, match="multi_tensor_adam: step must be at least 1 with bias_correction; got 0"):
        optim.multi_tensor_adam(0, flag(), lists, *numbers[:4], 0, *numbers[5:])
    optim.multi_tensor_adam(0, flag(), lists, *numbers[:4], 0, True, 0, 0.0)
    with pytest.raises(ValueError, match="multi_tensor_adam: mode must be one of 0, 1; got 2"):
        optim.multi_tensor_adam(0, flag(), lists, *numbers[:5], 2, 1, 0.0)


@every_op
def test_parameters_and_inference_tensors_can_be_written(spec):
    for inference in (False, True):
        with torch.inference_mode(inference):
            (sample, *_) = spec.samples(torch.float32, CPU)
            lists = [
                [t if inference or not t.is_floating_point() else t.requires_grad_() for t in items]
                for items in sample.args[2]
            ]
        assert spec.reference(*sample.args[:2], lists, *sample.args[3:]) is None or "norm" in spec.out


# ---- Adam and SGD against torch's own -------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True], ids=["", "capturable"])
@pytest.mark.parametrize("mode", [0, 1], ids=["l2", "decoupled"])
def test_adam_equals_torchs(mode, held):
    p = weights()
    theirs = [t.clone().requires_grad_() for t in p]
    make = torch.optim.AdamW if mode else torch.optim.Adam
    optimizer = make(theirs, lr=0.05, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.3)
    m, v = [torch.zeros_like(t) for t in p], [torch.zeros_like(t) for t in p]
    for step in range(1, 5):
        g = grads(step, p)
        for t, d in zip(theirs, g, strict=True):
            t.grad = d.clone()
        optimizer.step()
        rest = (0.8, 0.95, 1e-6)
        if held:
            lists = [[d * 4 for d in g], p, m, v]
            optim.multi_tensor_adam_capturable(
                0, flag(), lists, number(0.05), *rest, number(step, torch.int32), mode, 1, 0.3, number(0.25)
            )
            torch.testing.assert_close(lists[0], g)  # gradients are unscaled in place
        else:
            optim.multi_tensor_adam(0, flag(1), [g, p, m, v], 0.05, *rest, step, mode, 1, 0.3)
    torch.testing.assert_close(p, [t.detach() for t in theirs], rtol=2e-6, atol=1e-6)


def test_master_weights_keep_steps_too_small_for_bfloat16():
    """Small steps add up in the float32 master weights; the parameters are rounded copies of the master weights."""
    master = weights()
    p, m, v = (
        [t.bfloat16() for t in master],
        [torch.zeros_like(t) for t in master],
        [torch.zeros_like(t) for t in master],
    )
    start = [t.clone() for t in master]
    for step in range(1, 11):
        g = [torch.ones_like(t) for t in p]
        optim.multi_tensor_adam(0, flag(), [g, p, m, v, master], 1e-4, 0.9, 0.99, 1e-8, step, 1, 1, 0.0)
    for a, b, c in zip(master, start, p, strict=True):
        assert a.dtype is torch.float32
        torch.testing.assert_close(b - a, torch.full_like(a, 1e-3), rtol=2e-3, atol=0)
        assert torch.equal(c, a.bfloat16())


def test_parameter_remainders_equal_master_weights():
    """A bfloat16 parameter with 16 more bits takes the same steps as float32, bit for bit."""
    master = weights()
    halves = [optim.split(t) for t in master]
    p, rest = [h.clone() for h, _ in halves], [low.clone() for _, low in halves]
    assert all(torch.equal(optim.joined(a, b), t) for a, b, t in zip(p, rest, master, strict=True))
    assert all(
        torch.equal(a, t.bfloat16())
        for a, t in zip(p, master, strict=True)
        if not (t.view(torch.int32) & 0xFFFF == 0x8000).any()
    )
    states = [[torch.zeros_like(t) for t in master] for _ in range(4)]
    copies = [t.bfloat16() for t in master]
    for step in range(1, 4):
        g = grads(step, p)
        numbers = (1e-3, 0.9, 0.99, 1e-8, step, 1, 1, 0.1)
        optim.multi_tensor_adam(0, flag(), [g, copies, *states[:2], master], *numbers)
        optim.multi_tensor_adam_param_remainder(0, flag(), [g, p, *states[2:], rest], *numbers)
        assert all(torch.equal(optim.joined(a, b), t) for a, b, t in zip(p, rest, master, strict=True))


@pytest.mark.parametrize("fp8", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_parameters_are_scaled_master_weights(fp8):
    master = weights()
    other, scale = [t.clone() for t in master], [number(1000.0 * 10**i) for i in range(3)]
    amax, inverse = [number(0.0), number(99.0), number(0.0)], [number(0.0) for _ in range(3)]
    states = [[torch.zeros_like(t) for t in master] for _ in range(4)]
    p = [torch.zeros_like(t, dtype=torch.uint8) for t in master]
    g, numbers = grads(1, master), (1e-2, 0.9, 0.99, 1e-8, 1, 0, 1, 0.1)
    optim.multi_tensor_adam(0, flag(), [g, other, *states[:2]], *numbers)
    optim.multi_tensor_adam_fp8(0, flag(), [g, p, *states[2:], master, scale, amax, inverse], *numbers, fp8)
    for i in range(3):
        assert torch.equal(master[i], other[i])
        most = torch.finfo(fp8).max
        assert torch.equal(p[i].view(fp8).float(), (master[i] * scale[i]).clamp(-most, most).to(fp8).float())
        assert amax[i].item() == max(99.0 if i == 1 else 0.0, master[i].abs().max().item())
        assert torch.equal(inverse[i], scale[i].reciprocal())


@pytest.mark.parametrize(
    "momentum, dampening, nesterov", [(0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.3, False), (0.9, 0.0, True)]
)
def test_sgd_equals_torchs(momentum, dampening, nesterov):
    p = weights()
    theirs = [t.clone().requires_grad_() for t in p]
    options = dict(momentum=momentum, dampening=dampening, weight_decay=0.2, nesterov=nesterov)
    optimizer = torch.optim.SGD(theirs, lr=0.1, **options)
    momenta, halves = [torch.full_like(t, 7.0) for t in p], [t.half() for t in p]
    for step in range(4):
        g = grads(step, p)
        for t, d in zip(theirs, g, strict=True):
            t.grad = d.clone()
        optimizer.step()
        lists = [[d * 8 for d in g], p, momenta, halves]
        optim.multi_tensor_sgd(0, flag(), lists, 0.2, momentum, dampening, 0.1, nesterov, step == 0, False, 1 / 8)
    torch.testing.assert_close(p, [t.detach() for t in theirs], rtol=2e-6, atol=1e-6)
    assert all(torch.equal(a, b.half()) for a, b in zip(halves, p, strict=True))
    assert momentum or all((t == 7).all() for t in momenta)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sgd_rounds_the_step_to_half_precision_before_it_is_subtracted(dtype):
    generator = torch.Generator().manual_seed(3)
    g, w = (torch.randn(4096, generator=generator).to(dtype) for _ in range(2))
    before, lr, scale = w.clone(), 0.3, 0.5
    optim.multi_tensor_sgd(0, flag(), [[g], [w], [torch.zeros_like(w)]], 0.0, 0.0, 0.0, lr, False, True, False, scale)
    step = (g.float() * scale * lr).to(dtype)
    assert torch.equal(w, before - step)
    assert not torch.equal(w, (before.float() - g.float() * scale * lr).to(dtype))  # rounding once would differ


def test_numpy_numbers_are_accepted():
    numpy = pytest.importorskip("numpy")
    of_numpy = {float: numpy.float32, int: numpy.int64, bool: numpy.bool_}
    for name, numbers in (("multi_tensor_adam", optim.ADAM), ("multi_tensor_sgd", optim.SGD)):
        as_numpy = [of_numpy[type(v)](v) for v in numbers.values()]
        results = []
        for values in (as_numpy, [v.item() for v in as_numpy]):
            lists = [grads(i, weights()) for i in range(4 if name.endswith("adam") else 3)]
            lists[-1] = [t.abs() for t in lists[-1]]
            getattr(optim, name)(0, flag(), lists, *values)
            results.append(lists)
        torch.testing.assert_close(*results, rtol=0, atol=0)


def test_decay_after_momentum_is_supported():
    g, w, momentum = [torch.tensor([1.0])], [torch.tensor([10.0])], [torch.tensor([4.0])]
    optim.multi_tensor_sgd(0, flag(), [g, w, momentum], 0.5, 0.5, 0.0, 0.1, False, False, True, 2.0)
    assert momentum[0].item() == 4 * 0.5 + 2 and math.isclose(w[0].item(), 10 - 0.1 * (4 + 0.5 * 10), rel_tol=1e-6)


# ---- scale and norm -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_norms_equal_torchs(dtype):
    x = weights(dtype)
    each = torch.stack([t.double().norm() for t in x]).float()
    for scale in (None, number(0.5)):
        factor = 1.0 if scale is None else 0.5
        norm_fn = optim.multi_tensor_l2norm if scale is None else optim.multi_tensor_unscale_l2norm
        rest = () if scale is None else (scale,)
        norm, norms = norm_fn(0, flag(), [x], *rest, True)
        torch.testing.assert_close(norm, each.norm().reshape(1) * factor)
        torch.testing.assert_close(norms, each * factor)
        norm, norms = norm_fn(0, flag(), [x], *rest, None)
        assert norm.shape == (1,) and norms.shape == (0,) and norms.dtype is torch.float32


def test_a_flag_is_set_and_never_cleared():
    out = [torch.zeros(3)]
    for value, before, after in ((1.0, 0, 0), (1.0, 1, 1), (math.inf, 0, 1), (math.nan, 0, 1)):
        noop = flag(before)
        optim.multi_tensor_scale(0, noop, [[torch.tensor([1.0, value, 2.0])], out], 3.0)
        assert noop.item() == after and out[0][2] == 6
        noop = flag(before)
        optim.multi_tensor_l2norm(0, noop, [[torch.tensor([1.0, value, 2.0])]], False)
        assert noop.item() == after


def test_empty_lists_are_no_ops():
    norm, norms = optim.multi_tensor_l2norm(0, flag(), [[]], True)
    assert norm.item() == 0 and norms.numel() == 0
    optim.multi_tensor_adam(0, flag(), [[], [], [], []], 0.1, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)


# ---- dropout --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.99])
def test_dropout_compares_bytes_with_the_probability(p):
    """An element is dropped if its byte is below floor(256 p), else divided by 1 - p. The mask starts at the lowest
    bit.
    """
    x = torch.ones(64, 1024, dtype=torch.bfloat16)
    y, mask = tex_dropout.dropout_fwd(x, p)
    kept_bits = (mask[:, None] >> torch.arange(8)) & 1
    assert mask.shape == (x.numel() // 8,) and torch.equal(y.flatten() != 0, kept_bits.flatten().bool())
    assert (y[y != 0] == torch.tensor(1 / (1 - p)).bfloat16()).all()
    share, want = (y == 0).double().mean().item(), math.floor(256 * p) / 256
    assert abs(share - want) < 5 * math.sqrt(want * (1 - want) / x.numel()) + 1e-12
    assert torch.equal(tex_dropout.dropout_bwd(x, mask, p), y)


def test_dropout_follows_torchs_seed_and_writes_to_given_tensors():
    x = torch.randn(16, 32)
    torch.manual_seed(7)
    first, second = tex_dropout.dropout_fwd(x, 0.5), tex_dropout.dropout_fwd(x, 0.5)
    torch.manual_seed(7)
    out = torch.empty_like(x)
    again = tex_dropout.dropout_fwd(x, 0.5, out)
    assert again[0] is out and torch.equal(out, first[0]) and torch.equal(again[1], first[1])
    assert not torch.equal(first[1], second[1])
    grad = torch.empty_like(x)
    assert tex_dropout.dropout_bwd(x, again[1], 0.5, grad) is grad and torch.equal(grad, out)


def test_every_random_byte_is_equally_likely():
    bits = dropout.random_bytes(1 << 20, torch.tensor([3, 4]), CPU)
    counts = torch.bincount(bits, minlength=256).double()
    assert ((counts - 4096) ** 2 / 4096).sum() < 350  # chi-squared, 255 degrees of freedom: p < 1e-4
    halves = bits.reshape(2, -1)
    assert not torch.equal(halves[0], halves[1])


@pytest.mark.parametrize(
    "args, error, message",
    [
        ((torch.ones(15), 0.5), ValueError, "input must have a multiple of 16"),
        ((torch.ones(16), 1.5), ValueError, "dropout_probability must be between 0 and 1; got 1.5"),
        ((torch.ones(16), None), TypeError, "dropout_probability must be a number"),
        ((None, 0.5), TypeError, "input must be a Tensor; got None"),
        ((torch.ones(16), 0.5, torch.ones(8)), ValueError, r"out must have shape \(16\)"),
    ],
)
def test_dropout_rejects_wrong_arguments(args, error, message):
    with pytest.raises(error, match=f"dropout_fwd: {message}"):
        tex_dropout.dropout_fwd.reference(*args)


def test_dropout_accepts_a_quantized_tensor():
    from opmux.faces.tex.quantized import OPS, Float8CurrentScalingQuantizer, quantized

    x = torch.randn(32, 32, dtype=torch.bfloat16)
    eight = quantized(OPS, x, Float8CurrentScalingQuantizer(torch.float8_e4m3fn, device=CPU))
    y, mask = tex_dropout.dropout_fwd(eight, 0.0)
    assert mask.eq(255).all()
    torch.testing.assert_close(y, x, rtol=0.07, atol=1e-2)
