"""opmux serves `liger_kernel`: names and signatures are Liger's, and each function matches torch's formula.

`liger_signatures.txt` has the public names of Liger-Kernel 0.8.2 (for mlp, of the next version), and their arguments
without annotations; `tools/liger_census.py` writes it.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import inspect
import pickle
import re
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from opmux.core import BackendImplKind, OpImpl, specs
from opmux.core.registry import Fit
from opmux.faces import compat
from opmux.faces.liger import left, names
from opmux.faces.models import logits, modules
from opmux.machine import liger_names

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import liger_census  # noqa: E402

NEED_PACKAGES = ("transformers.model.", "transformers.trainer", "transformers.monkey_patch")  # trl, new models
METHODS = ("__init__", "forward", "apply")
TABLE = [row for row in liger_census.rows() if row.what.startswith("(")]
# Names in opmux that the table of signatures lacks, from the document on vendors.
MORE = {"_FSDPForwardRedirection", "_replace_with_vendor_ops"}


@pytest.fixture(scope="module", autouse=True)
def liger():
    compat.install("liger_kernel")
    yield
    compat.uninstall("liger_kernel")


def served():
    """All names that opmux provides, as (module, name)."""
    modules = {n.removeprefix(names.LIBRARY).lstrip("."): m for n, m in names.MODULES.items()}
    return {(module, name) for module, at in modules.items() for name in at.homes}


def found(module, name):
    """What a module has under a name; None if the installed packages lack what it needs."""
    try:
        return getattr(importlib.import_module(f"liger_kernel.{module}".rstrip(".")), name)
    except (ImportError, AttributeError):
        if module.startswith(NEED_PACKAGES):
            return None
        raise


def plain(signature):
    """A signature without annotations, and without the first parameters `self`, `cls` and `ctx`."""
    params = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    while params and params[0].name in ("self", "cls", "ctx"):
        params = params[1:]
    return str(inspect.Signature(params))


@pytest.mark.parametrize("module", sorted({module for module, _ in served() if module}))
def test_signatures_match_ligers(module):
    of_transformers = lambda row: module.startswith("transformers.model.") and "_forward" in row.name
    rows = {row.name: row.what for row in TABLE if row.module == module and not of_transformers(row)}
    wrong = {}
    for name, text in rows.items():
        first, _, member = name.partition(".")
        if (module, first) not in served() or (member and member not in METHODS and left.different(module, first)):
            continue
        theirs = found(module, first)
        if theirs is None:
            continue
        if member == "apply" and issubclass(theirs, torch.autograd.Function):
            member = "forward"  # apply has the arguments after ctx
        theirs = getattr(theirs, member) if member else theirs
        if (signature := plain(inspect.signature(theirs))) != text.replace("=BLOCK_M_TOKEN", "=64"):
            wrong[name] = signature, text
    assert not wrong


def test_every_name_of_liger_is_served_or_refused_with_a_reason():
    """opmux has no names beyond Liger's and MORE, and can import every name that it serves."""
    states = liger_census.states()
    assert [f"{module}.{name}" for (module, name), state in states.items() if state.kind == "missing"] == []
    assert {name for _, name in served()} - {name for _, name in states} == MORE
    for module, name in sorted(served()):
        found(module, name)


def test_every_reason_applies_to_a_name():
    states = liger_census.states()
    for table, kind in ((left.REFUSED, "refused"), (left.DIFFERENT, "different")):
        used = {state.why for state in states.values() if state.kind == kind}
        assert set(table.values()) == used
    for pattern in [*left.REFUSED, *left.DIFFERENT]:
        of_module, of_name = pattern.split(" ")
        assert any(fnmatch.fnmatchcase(m, of_module) and fnmatch.fnmatchcase(n, of_name) for m, n in states), pattern


def test_the_page_has_the_generated_table():
    page = (ROOT / "docs" / "liger.md").read_text(encoding="utf-8")
    assert liger_census.page(page) == page


def test_a_refused_name_says_why():
    import liger_kernel.ops.experimental.embedding as at

    assert not hasattr(at, "no_such_name")
    for (module, name), state in liger_census.states().items():
        if state.kind == "refused" and name and f"liger_kernel.{module}" in names.MODULES:
            with pytest.raises(AttributeError, match=re.escape(state.why)):
                getattr(importlib.import_module(f"liger_kernel.{module}"), name)


def test_the_census_reads_an_original(tmp_path):
    """A name that a new version of Liger adds is found, with its arguments, and counts as missing."""
    package = tmp_path / "liger_kernel"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "ops" / "rope.py").write_text(
        "from liger_kernel.ops.utils import ensure_contiguous as contiguous\n"
        "import triton\nSIZE, _PRIVATE = 1, 2\nLIMIT: int = 3\n"
        "def new_function(a, *, b=1e-6, **more): pass\n"
        "@triton.jit\ndef new_kernel(x_ptr, n): pass\n"
        "class NewFunction(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): pass\n"
        "    @staticmethod\n    def backward(ctx, dy): pass\n",
        encoding="utf-8",
    )
    found = liger_census.original(tmp_path)
    assert found == [
        ("ops.rope", "contiguous", "from ops.utils"),
        ("ops.rope", "SIZE", "constant"),
        ("ops.rope", "LIMIT", "constant"),
        ("ops.rope", "new_function", "(a, *, b=1e-06, **more)"),
        ("ops.rope", "new_kernel", "kernel (x_ptr, n)"),
        ("ops.rope", "NewFunction.apply", "(x)"),
    ]
    assert {liger_census.state(row).kind for row in found} == {"missing"}


NOT_OF_NN = {  # opmux.nn has no counterpart
    "LigerBlockSparseTop2MLP", "LigerExpertParallelFusedMoe",
    "LigerFusedNeighborhoodAttentionLayer", "LigerKLDIVLoss", "LigerMegatronRMSNorm",
    "LigerMegatronSwiGLU",
}  # fmt: skip


def test_modules_are_subclasses_of_opmux_nn():
    import opmux

    ours = tuple(getattr(opmux.nn, name) for name in opmux.nn.__all__)
    members = [found(module, name) for module, name in served() if module]
    classes = [c for c in members if isinstance(c, type) and issubclass(c, torch.nn.Module)]
    assert {c.__name__ for c in classes if not issubclass(c, ours)} == NOT_OF_NN


def test_arguments_may_be_passed_by_name():
    from liger_kernel import ops
    from liger_kernel.transformers import functional

    p, q, marked = normal(4, 9).softmax(-1), normal(4, 9, seed=1).softmax(-1), labels(4, 9)
    want = ops.LigerTVDLossFunction.apply(p, q, marked, "mean", -100)
    assert functional.liger_tvd(p, target=q, shift_labels=marked) == want
    assert ops.LigerTVDLossFunction.apply(q=q, p=p, reduction="mean", shift_labels=marked) == want
    assert functional.liger_tvd.__name__ == "liger_tvd" and "sum of |p - q|" in functional.liger_tvd.__doc__
    for args, kwargs, message in (
        ((p,), {}, "missing a required argument: 'target'"),
        ((p, q), {"labels": marked}, "got an unexpected keyword argument 'labels'"),
        ((p, q), {"target": q}, "multiple values for argument 'target'"),
        ((p, q, marked, "mean", -100, 1), {}, "too many positional arguments"),
    ):
        with pytest.raises(TypeError, match=rf"liger_tvd\(\) {message}"):
            functional.liger_tvd(*args, **kwargs)


def test_modules_can_be_pickled_and_have_ligers_attributes():
    from liger_kernel import chunked_loss
    from liger_kernel.transformers import LigerCrossEntropyLoss, LigerFusedAddRMSNorm, LigerVocabParallelCrossEntropy

    for module in (
        LigerFusedAddRMSNorm(8),
        LigerCrossEntropyLoss(torch.ones(9)),
        chunked_loss.LigerFusedLinearDPOLoss(),
    ):
        again = pickle.loads(pickle.dumps(module))
        assert type(again) is type(module) and repr(again) == repr(module)
        assert again.state_dict().keys() == module.state_dict().keys()
    loss = LigerCrossEntropyLoss(torch.ones(9), lse_square_scale=0.5)
    assert not loss.state_dict() and loss.weight is not None and loss.lse_square_scale == 0.5
    logits, target = normal(4, 9), labels(4, 9)
    loss.lse_square_scale = loss.weight = None  # each call reads them
    loss.lse_square_scale = 0.0
    torch.testing.assert_close(loss(logits, target), F.cross_entropy(logits, target))
    norm = LigerFusedAddRMSNorm(8)
    norm.variance_epsilon = 3.0
    x = normal(2, 8)
    torch.testing.assert_close(norm(x, x), (rms_norm(2 * x, norm.weight, 3.0, 0.0, "llama"), 2 * x))
    assert LigerVocabParallelCrossEntropy(label_smoothing_mode="partition").label_smoothing_mode == "partition"


# ---- functions against torch's formulas -----------------------------------------------------------------------------


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def labels(n, classes, ignored=1):
    target = torch.randint(classes, (n,), generator=torch.Generator().manual_seed(n))
    target[:ignored] = -100
    return target


def capped(x, cap):
    return cap * torch.tanh(x / cap)


def cross_entropy(x, target, weight, ignore, z, smoothing, reduction, cap):
    logits, weight = x if cap is None else capped(x, cap), None if weight is None else weight.detach()
    losses = F.cross_entropy(logits, target, weight, ignore_index=ignore, reduction="none", label_smoothing=smoothing)
    losses = losses + z * torch.logsumexp(logits, -1) ** 2 * (target != ignore)
    counts = (target != ignore).sum() if weight is None else weight[target[target != ignore]].sum()
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / counts}[reduction]


def rms_norm(x, w, eps, offset, mode, dtype=torch.float32):
    """Liger's casting modes: llama rounds the normalised value and then the product, gemma rounds only once."""
    y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    if mode == "llama":
        y = y.to(x.dtype)
    return y if w is None else (y * (offset + w)).to(x.dtype)


def rotated(x, cos, sin):
    half = torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)
    return x * cos[:, None] + half * sin[:, None]


def rope(q, k, cos, sin, *_):
    return rotated(q, cos, sin), rotated(k, cos, sin)


def mrope(q, k, cos, sin, sections):
    pick = lambda t: torch.cat([p[i % 3] for i, p in enumerate(t.split(sections * 2, -1))], -1)
    return rope(q, k, pick(cos), pick(sin))


def llama4_rope(q, k, freqs, block):
    turn = lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * freqs[:, None]).flatten(3)
    return turn(q), turn(k)


def angles(*shape):
    half = normal(*shape)
    return torch.cat([half, half], -1).cos().detach(), torch.cat([half, half], -1).sin().detach()


def constant(*tensors):
    """Marks tensors that need no gradient."""
    return tuple(Constant(t) for t in tensors)


class Constant:
    def __init__(self, value):
        self.value = value


def grpo(logits, old, ref, ids, advantages, mask, temperature, beta, low, high, inplace):
    x = (logits[:, :-1] / temperature).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    ratio, a = (x - old).exp(), advantages[:, None]
    loss = -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
    loss = loss + beta * ((ref - x).exp() - (ref - x) - 1)
    return ((loss * mask).sum(-1) / mask.sum(-1)).mean()


def experts(x, gate_up, down, index, weights):
    halves = torch.einsum("th,tkih->tki", x, gate_up[index]).chunk(2, -1)
    y = torch.einsum("tki,tkhi->tkh", F.silu(halves[0]) * halves[1], down[index])
    return (y * weights[..., None]).sum(1)


def attn_res(v, query, weight, eps):
    normed = v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + eps) * weight
    return ((normed @ query).softmax(0)[..., None] * v).sum(0)


def multi_token(scores, weight, bias, stride, padding):
    future = torch.ones(scores.shape[-2:]).triu(1).bool()
    scores_out = F.conv2d(scores.masked_fill(future, -1e9).softmax(-1), weight, bias, stride, padding)
    return scores_out.tril()


def neighborhood(q, k, v, size, dilation, scale):
    positions = torch.arange(q.shape[2])
    distance = positions[:, None] - positions
    in_window = (distance % dilation == 0) & (distance.abs() <= size // 2 * dilation)
    return ((q @ k.mT) * scale).masked_fill(~in_window, -torch.inf).softmax(-1) @ v


def mhc_coeffs(x, phi, b, pre, post, res, allow, tmax, rms_eps, pre_eps, sinkhorn_eps, post_mult):
    s, flat = x.shape[-2], x.flatten(-2)
    m = (flat @ phi) * torch.rsqrt(flat.pow(2).mean(-1, keepdim=True) + rms_eps)
    first, second, third = m.split([s, s, s * s], -1)
    b0, b1, b2 = b.split([s, s, s * s])
    h = (third * res + b2).unflatten(-1, (s, s)).softmax(-1) + sinkhorn_eps
    h = h / (h.sum(-2, keepdim=True) + sinkhorn_eps)
    for _ in range(tmax - 1):
        h = h / (h.sum(-1, keepdim=True) + sinkhorn_eps)
        h = h / (h.sum(-2, keepdim=True) + sinkhorn_eps)
    return torch.sigmoid(first * pre + b0) + pre_eps, post_mult * torch.sigmoid(second * post + b1), h


def jsd(log_q, log_p, marked, beta):
    m = torch.logaddexp(log_p + torch.tensor(beta).log(), log_q + torch.tensor(1 - beta).log())
    kl = lambda a: (a.exp() * (a - m)).sum(-1)
    counts = marked != -100
    return ((beta * kl(log_p) + (1 - beta) * kl(log_q)) * counts).sum() / counts.sum()


def scaled_loss(x, w, target, temperature, ignore, tiles, entropy):
    log_p, counts = F.linear(x, w).div(temperature).log_softmax(-1), target != ignore
    nll = -log_p.gather(-1, target.clamp(min=0)[:, None])[:, 0]
    return nll * counts, -(log_p.exp() * log_p).sum(-1) * counts


def modulated(x, w, scale, shift, eps, offset, mode):
    rows = scale.repeat_interleave(x.numel() // scale.numel(), 0).view_as(x)
    shifts = 0.0 if shift is None else shift.repeat_interleave(x.numel() // shift.numel(), 0).view_as(x)
    return rms_norm(x, w, eps, offset, mode) * (1 + rows) + shifts


def poly_norm(x, w, b, eps):
    n = lambda p: p * torch.rsqrt(p.pow(2).mean(-1, keepdim=True) + eps)
    return w[0] * n(x**3) + w[1] * n(x**2) + w[2] * n(x) + b


def sparsemax(x, dim):
    x = x.movedim(dim, -1)
    ordered = x.sort(-1, descending=True).values
    sums, count = ordered.cumsum(-1) - 1, torch.arange(1, x.shape[-1] + 1)
    most = (ordered * count > sums).sum(-1, keepdim=True)
    return (x - sums.gather(-1, most - 1) / most).relu().movedim(-1, dim)


CASES = {
    "LigerGELUMulFunction": [
        ((normal(2, 3, 5), normal(2, 3, 5, seed=1)), lambda a, b: F.gelu(a, approximate="tanh") * b)
    ],
    "LigerSiLUMulFunction": [
        ((normal(2, 3, 5), normal(2, 3, 5, seed=1)), lambda a, b: F.silu(a) * b),
        ((normal(4, 5), normal(4, 5, seed=1), 0.5, 3.0), lambda a, b, g, d: F.silu(a * g) * b * d),
    ],
    "LigerFusedGateUpSiLUMulFunction": [
        ((normal(2, 3, 10), in_place), lambda y, _: F.silu(y[..., :5]) * y[..., 5:]) for in_place in (False, True)
    ],
    "LigerMLPFunction": [
        (
            (normal(2, 3, 4), normal(6, 4), normal(6, 4, seed=1), normal(4, 6, seed=2), 0.5, 3.0),
            lambda x, g, u, d, by, over: F.linear(F.silu(F.linear(x, g) * by) * F.linear(x, u), d) * over,
        )
    ],
    "LigerFusedMoEFunction": [
        (
            (
                normal(5, 4), normal(3, 12, 4), normal(3, 4, 6), torch.tensor([[0, 2], [2, 1], [0, 1], [2, 0], [1, 2]]),
                normal(5, 2).softmax(-1),
            ),
            experts,
        )
    ],
    "LigerReLUSquaredFunction": [((normal(3, 7),), lambda x: F.relu(x) ** 2)],
    "LigerSoftmaxFunction": [((normal(*shape),), lambda x: x.softmax(-1)) for shape in ((2, 3, 7), (1, 70000))],
    "LigerLayerNormFunction": [
        ((normal(2, 3, 8), normal(8), normal(8, seed=1), 1e-5), lambda x, w, b, eps: F.layer_norm(x, (8,), w, b, eps))
    ],
    "LigerGroupNormFunction": [
        (
            (normal(2, 6, 5), normal(6), normal(6, seed=1), 6, 3, 1e-5),
            lambda x, w, b, c, groups, eps: F.group_norm(x, groups, w, b, eps),
        )
    ],
    "LigerRMSNormFunction": [
        ((normal(2, 3, 8), normal(8), 1e-5, 1.0, mode), rms_norm) for mode in ("llama", "gemma", "none")
    ] + [((normal(3, 8), None, 1e-5, 1.0, "llama"), rms_norm)],
    "LigerFusedAddRMSNormFunction": [
        (
            (normal(2, 3, 8), normal(2, 3, 8, seed=1), normal(8), 1e-5, 0.0, "llama"),
            lambda x, r, w, eps, offset, mode: (rms_norm(x + r, w, eps, offset, mode), x + r),
        )
    ],
    "LigerModulatedRMSNormFunction": [
        ((normal(2, 3, 8), normal(8), normal(2, 8), normal(2, 8, seed=1), 1e-5, 0.0, "llama"), modulated),
        ((normal(6, 8), None, normal(3, 8), None, 1e-5, 1.0, "gemma"), modulated),
    ],
    "LigerPolyNormFunction": [((normal(2, 3, 8), normal(3), torch.tensor(0.3), 1e-5), poly_norm)],
    "LigerDyTFunction": [
        (
            (normal(2, 3, 8), torch.tensor([0.7]), normal(8), beta),
            lambda x, a, g, b: torch.tanh(a * x) * g + (0.0 if b is None else b),
        )
        for beta in (normal(8, seed=1), None)
    ],
    "LigerSparsemaxFunction": [((normal(3, 5), 0), sparsemax), ((normal(1, 70000), -1), sparsemax)],
    "LigerEmbeddingFunction": [((normal(9, 4), labels(6, 9, 0).view(2, 3)), lambda w, i: F.embedding(i, w))],
    "LigerRopeFunction": [((normal(2, 3, 5, 8), normal(2, 1, 5, 8), *constant(*angles(1, 5, 4))), rope)],
    "LigerQwen2VLMRopeFunction": [
        ((normal(2, 3, 5, 8), normal(2, 1, 5, 8), *constant(*angles(3, 2, 5, 4)), [2, 1, 1]), mrope)
    ],
    "LigerLlama4RopeFunction": [
        ((normal(2, 5, 3, 8), normal(2, 5, 1, 8), torch.polar(torch.ones(5, 4), normal(5, 4)), 64), llama4_rope)
    ],
    "LigerAttnResFunction": [((normal(3, 2, 4, 8), normal(8), normal(8, seed=1), 1e-6), attn_res)],
    "LigerMultiTokenAttentionFunction": [((normal(2, 4, 6, 6), normal(4, 4, 3, 3), normal(4), 1, 1), multi_token)],
    "LigerFusedNeighborhoodAttentionFunction": [
        ((normal(2, 2, 9, 4), normal(2, 2, 9, 4, seed=1), normal(2, 2, 9, 4, seed=2), 3, 2, 0.5), neighborhood)
    ],
    "LigerMHCCoeffsFunction": [
        (
            (
                normal(3, 2, 8), 0.1 * normal(16, 8), normal(8), *torch.tensor([1.1, 0.9, 0.8]), True, 5, 1e-6, 0.1,
                1e-6, 2.0,
            ),
            mhc_coeffs,
        )
    ],
    "LigerMHCPreFunction": [((normal(3, 2, 8), normal(3, 2)), lambda x, h: (h[..., None] * x).sum(-2))],
    "LigerMHCPostResFunction": [
        (
            (normal(3, 2, 8), normal(3, 8), normal(3, 2), normal(3, 2, 2)),
            lambda x, f, post, res: res @ x + post[..., None] * f[:, None],
        )
    ],
    "LigerKLDivLossFunction": [
        (
            (normal(4, 9).log_softmax(-1), *constant(normal(4, 9, seed=1).softmax(-1)), reduction),
            lambda q, p, reduction: F.kl_div(q, p, reduction=reduction),
        )
        for reduction in ("batchmean", "sum", "none")
    ],
    "LigerTVDLossFunction": [
        (
            (normal(4, 9).softmax(-1), *constant(normal(4, 9, seed=1).softmax(-1)), labels(4, 9), "batchmean"),
            lambda p, q, marked, _: 0.5 * (p - q)[marked != -100].abs().sum() / (marked != -100).sum(),
        )
    ],
    "LigerJSDFunction": [
        (
            (normal(4, 9).log_softmax(-1), *constant(normal(4, 9, seed=1).log_softmax(-1)), labels(4, 9), beta),
            jsd,
        )
        for beta in (0.5, 0.1)
    ],
    "LigerFusedLinearJSDFunction": [
        (
            (normal(4, 8), normal(9, 8), *constant(normal(4, 6), normal(9, 6)), labels(4, 9), 0.3, -100, 2.0),
            lambda x, w, y, v, marked, beta, _, t: jsd(
                (x @ w.T / t).log_softmax(-1), (y @ v.T / t).log_softmax(-1), marked, beta
            ),
        )
    ],
    "LigerFusedLinearScaledCrossEntropyFunction": [
        ((normal(5, 8), normal(9, 8), labels(5, 9), 0.7, -100, 1, True), scaled_loss)
    ],
    "LigerVocabParallelCEFunction": [
        (
            (normal(3, 2, 9), labels(6, 9).view(3, 2), None, -100, 0.1, "pytorch", "global"),
            lambda x, t, *_: F.cross_entropy(x.movedim(-1, 1), t, reduction="none", label_smoothing=0.1),
        )
    ],
    "GrpoLossFunction": [
        (
            (
                normal(2, 4, 9), *constant(-normal(2, 3).abs(), -normal(2, 3, seed=1).abs()),
                labels(6, 9, 0).view(2, 3), *constant(normal(2), torch.tensor([[1, 1, 1], [1, 1, 0]])),
                0.9, 0.04, 0.2, 0.4, False,
            ),
            grpo,
        )
    ],
    "LigerCrossEntropyFunction": [
        ((normal(6, 17), labels(6, 17), None, -100, 0.0, 0.0, "mean", None), cross_entropy),
        ((normal(6, 17), labels(6, 17), normal(17).abs(), -100, 0.1, 0.2, "sum", 5.0), cross_entropy),
        ((normal(6, 17), labels(6, 17), None, -100, 1e-2, 0.0, "none", None), cross_entropy),
    ],
    "LigerFusedLinearCrossEntropyFunction": [
        (
            (normal(6, 8), normal(17, 8), labels(6, 17), normal(17), None, -100, 0.1, 0.2, reduction, 5.0),
            lambda x, w, t, b, ce, *rest: cross_entropy(F.linear(x, w, b), t, ce, *rest),
        )
        for reduction in ("mean", "none")
    ],
}  # fmt: skip


def gradients(call, args, twice=False):
    """The results, and the gradients of all floating-point tensors; asserts that the call writes no argument."""
    own = [a.clone().requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a for a in args]
    own = [a.value.clone() if isinstance(a, Constant) else a for a in own]
    args = [a.value if isinstance(a, Constant) else a for a in args]
    outs = call(*own)
    outs = [t for t in (outs if isinstance(outs, tuple) else (outs,)) if t is not None and t.requires_grad]
    incoming = [normal(*t.shape, seed=7).to(t.dtype) for t in outs]
    inputs = [a for a in own if torch.is_tensor(a) and a.requires_grad]
    grads = ()
    for last in range(1 + twice):
        grads = torch.autograd.grad(outs, inputs, incoming, retain_graph=last < twice, allow_unused=True)
    assert all(torch.equal(a, b) for a, b in zip(own, args, strict=True) if torch.is_tensor(a))
    assert all(torch.equal(t, normal(*t.shape, seed=7).to(t.dtype)) for t in incoming)
    return [t.detach() for t in outs], grads


@pytest.mark.parametrize("name", CASES)
def test_functions_match_their_formula(name):
    from liger_kernel import ops

    for args, formula in CASES[name]:
        ours, theirs = gradients(getattr(ops, name).apply, args), gradients(formula, args)
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
        for got, want in zip(ours[1], theirs[1], strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_every_function_has_a_case():
    from liger_kernel import ops

    functions = {n for n in ops.homes if n.endswith("Function")}
    assert functions - {"LigerTiledMLPFunction"} == set(CASES)  # which has its own test


def test_forward_and_backward_functions_match_autograd():
    """For each function x, `x_forward` and `x_backward` are its forward and backward."""
    from liger_kernel import ops

    for name, function in (("geglu", "LigerGELUMulFunction"), ("swiglu", "LigerSiLUMulFunction")):
        a, b, dc = normal(2, 3, 4), normal(2, 3, 4, seed=1), normal(2, 3, 4, seed=2)
        own = [t.clone().requires_grad_() for t in (a, b)]
        want = getattr(ops, function).apply(*own)
        _, _, got = getattr(ops, f"{name}_forward")(a, b)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(getattr(ops, f"{name}_backward")(a, b, dc), torch.autograd.grad(want, own, dc))
    from liger_kernel.ops.swiglu import swiglu_fused_gate_up_backward, swiglu_fused_gate_up_forward

    y, dc = normal(2, 3, 8).requires_grad_(), normal(2, 3, 4)
    want = F.silu(y[..., :4]) * y[..., 4:]
    torch.testing.assert_close(swiglu_fused_gate_up_forward(y.detach())[1], want.detach())
    torch.testing.assert_close(swiglu_fused_gate_up_backward(y.detach(), dc), torch.autograd.grad(want, y, dc)[0])
    x, dy = normal(3, 5), normal(3, 5, seed=1)
    torch.testing.assert_close(ops.relu_squared_backward(x, dy), 2 * F.relu(x) * dy)
    x, w, b, dy = normal(4, 6), normal(6), normal(6, seed=1), normal(4, 6, seed=2)
    _, _, mean, rstd, *_ = ops.layer_norm_forward(x, w, b, 1e-5)
    own = [t.clone().requires_grad_() for t in (x, w, b)]
    want = torch.autograd.grad(F.layer_norm(own[0], (6,), *own[1:], 1e-5), own, dy)
    torch.testing.assert_close(ops.layer_norm_backward(dy, x, w, b, mean, rstd), want)
    x, dy = normal(2, 6, 4), normal(2, 6, 4, seed=2)
    _, _, mean, rstd, _ = ops.group_norm_forward(x, 6, 3, w, b, 1e-5)
    own = [t.clone().requires_grad_() for t in (x, w, b)]
    want = torch.autograd.grad(F.group_norm(own[0], 3, *own[1:], 1e-5), own, dy)
    torch.testing.assert_close(ops.group_norm_backward(dy, x, w, b, mean, rstd, 6, 3), want)
    x, r, w, dy, ds = (normal(3, 8), normal(3, 8, seed=1), normal(8), normal(3, 8, seed=2), normal(3, 8, seed=3))
    own = [t.clone().requires_grad_() for t in (x, w)]
    want = torch.autograd.grad(rms_norm(*own, 1e-5, 1.0, "gemma"), own, dy)
    _, _, rstd, *block, mode = ops.rms_norm_forward(x, w, 1e-5, 1.0, 1, None)
    torch.testing.assert_close(ops.rms_norm_backward(dy, x, w, rstd, 1.0, mode, *block, True, None), want)
    own = [t.clone().requires_grad_() for t in (x, r, w)]
    total = own[0] + own[1]
    want = torch.autograd.grad([rms_norm(total, own[2], 1e-5, 0.0, "llama"), total], own, [dy, ds])
    _, total, rstd, *block, mode = ops.fused_add_rms_norm_forward(x, r, w, 1e-5, 0.0, "llama")
    torch.testing.assert_close(ops.fused_add_rms_norm_backward(dy, ds, total, w, rstd, 0.0, mode, *block, True), want)
    scale, shift, own = normal(3, 8, seed=4), normal(3, 8, seed=5), []
    own = [t.clone().requires_grad_() for t in (x, w, scale, shift)]
    want = torch.autograd.grad(modulated(*own, 1e-5, 0.0, "llama"), own, dy)
    _, rstd, *block, mode, rows = ops.modulated_rms_norm_forward(x, w, scale, shift, 1e-5, 0.0, "llama")
    got = ops.modulated_rms_norm_backward(dy, x, w, scale, shift, rstd, 0.0, mode, *block, rows, True)
    torch.testing.assert_close(got, want)
    own = [t.clone().requires_grad_() for t in (x, w[:3], w[3])]
    want = torch.autograd.grad(poly_norm(*own, 1e-6), own, dy)
    _, _, rstd, *block = ops.poly_norm_forward(x, w[:3], w[3])
    torch.testing.assert_close(ops.poly_norm_backward(dy, x, w[:3], rstd, *block, True), want)
    from liger_kernel.ops.dyt import liger_dyt_bwd, liger_dyt_fwd

    own = [t.clone().requires_grad_() for t in (x, w[:1], w, shift[0])]
    want = torch.tanh(own[1] * own[0]) * own[2] + own[3]
    torch.testing.assert_close(liger_dyt_fwd(x, w[:1], w, shift[0]), want.detach())
    torch.testing.assert_close(liger_dyt_bwd(dy, x, w[:1], w, shift[0]), torch.autograd.grad(want, own, dy))
    q, k, (cos, sin) = normal(2, 3, 5, 8), normal(2, 1, 5, 8), angles(1, 5, 4)
    rotated = ops.rope_forward(q, k, cos, sin)
    torch.testing.assert_close(rotated[:2], rope(q, k, cos, sin))
    torch.testing.assert_close(ops.rope_backward(*rotated), (q, k))  # the backward undoes a rotation
    from liger_kernel.ops.llama4_rope import llama4_rope_forward
    from liger_kernel.ops.qwen2vl_mrope import qwen2vl_mrope_backward, qwen2vl_mrope_forward

    cos, sin = angles(3, 2, 5, 4)
    rotated = qwen2vl_mrope_forward(q, k, cos, sin, [2, 1, 1])
    torch.testing.assert_close(qwen2vl_mrope_backward(*rotated, [2, 1, 1]), (q, k))
    q, k, freqs = normal(2, 5, 3, 8), normal(2, 5, 1, 8), torch.polar(torch.ones(9, 4), normal(9, 4))
    rotated = llama4_rope_forward(q, k, freqs)  # reads only the first 5 rows of freqs
    torch.testing.assert_close(rotated, llama4_rope(q, k, freqs[:5], None))
    torch.testing.assert_close(llama4_rope_forward(*rotated, torch.view_as_real(freqs), imag_sign=-1.0), (q, k))


def test_loss_forwards_return_the_gradient():
    """The gradient is a new tensor, so no input is overwritten."""
    from liger_kernel import ops

    x, target = normal(5, 9), labels(5, 9)
    own = x.clone().requires_grad_()
    want = F.cross_entropy(own, target)
    loss, z, accuracy, tokens, grad = ops.cross_entropy_forward(x, target, None, -100, 0.0, 0.0, "mean", None, False)
    torch.testing.assert_close(loss, want.detach())
    assert z is accuracy is tokens is None
    torch.testing.assert_close(
        ops.cross_entropy_backward(grad, torch.tensor(3.0)), torch.autograd.grad(want, own, torch.tensor(3.0))[0]
    )
    hidden, head = normal(5, 4), normal(9, 4)
    own = [hidden.clone(), head.clone().requires_grad_()]
    want = F.cross_entropy(F.linear(*own), target)
    loss, *_, dx, dw, db = ops.fused_linear_cross_entropy_forward(own[0], own[1], target)
    torch.testing.assert_close(loss, want.detach())
    assert dx is db is None  # neither requires a gradient
    grads = ops.fused_linear_cross_entropy_backward(torch.tensor(2.0), dx, dw, db)
    torch.testing.assert_close(grads[1], torch.autograd.grad(want, own[1])[0] * 2)
    each = normal(5, seed=3)
    loss, *_, dw, _ = ops.fused_linear_cross_entropy_forward(*own, target, reduction="none", token_grad_output=each)
    want = F.cross_entropy(F.linear(*own), target, reduction="none")
    torch.testing.assert_close(loss, want.detach())
    torch.testing.assert_close(dw, torch.autograd.grad(want, own[1], each)[0])


def test_losses_return_the_requested_extra_values():
    from liger_kernel.transformers import LigerCrossEntropyLoss, LigerFusedLinearCrossEntropyLoss
    from liger_kernel.transformers.functional import CrossEntropyOutput

    hidden, head, target = normal(6, 4), normal(9, 4), labels(6, 9)
    logits = F.linear(hidden, head)
    options = {"return_z_loss": True, "return_token_accuracy": True, "return_predicted_tokens": True}
    for loss in (
        LigerCrossEntropyLoss(lse_square_scale=0.1, **options)(logits, target),
        LigerFusedLinearCrossEntropyLoss(lse_square_scale=0.1, **options)(head, hidden, target),
    ):
        assert isinstance(loss, CrossEntropyOutput)
        counts = target != -100
        z = 0.1 * (torch.logsumexp(logits, -1) ** 2)[counts].mean()
        torch.testing.assert_close(loss.z_loss, z)
        torch.testing.assert_close(loss.loss, F.cross_entropy(logits, target) + z)
        best = logits.argmax(-1)
        torch.testing.assert_close(loss.token_accuracy, (best == target)[counts].float().mean())
        assert loss.predicted_tokens.tolist() == torch.where(counts, best, -1).tolist()
    each = LigerCrossEntropyLoss(reduction="none", return_token_accuracy=True)(logits, target)
    assert each.token_accuracy.tolist() == (best == target).float().tolist() and each.predicted_tokens is None
    assert LigerCrossEntropyLoss()(logits.bfloat16(), target).dtype is torch.bfloat16  # as torch does


def log_probs(x, w, target):
    counts = target != -100
    each = F.linear(x, w).log_softmax(-1).gather(-1, target.clamp(min=0)[..., None])[..., 0] * counts
    return each.sum(-1)


def test_chunked_losses_match_their_formula():
    """Tests Liger's order of arguments, Liger's options, and the number of values that are returned with the loss."""
    from liger_kernel import chunked_loss
    from liger_kernel.chunked_loss import functional

    x, ref = normal(4, 5, 8).requires_grad_(), normal(4, 5, 8, seed=1)
    w, ref_w, target = normal(9, 8).requires_grad_(), normal(9, 8, seed=1), labels(20, 9, 3).view(4, 5)
    ratio = log_probs(x, w, target) - log_probs(ref, ref_w, target)
    dpo = -F.logsigmoid(0.2 * (ratio[:2] - ratio[2:])).mean()
    loss, more = chunked_loss.LigerFusedLinearDPOLoss(beta=0.2)(w, x, target, None, ref, ref_w)
    torch.testing.assert_close(loss, dpo)
    torch.testing.assert_close(more[0], log_probs(x, w, target)[:2].detach())
    torch.testing.assert_close(more[-1], 0.2 * ratio[2:].detach())
    torch.testing.assert_close(torch.autograd.grad(loss, (x, w)), torch.autograd.grad(dpo, (x, w)))
    alone, _ = chunked_loss.LigerFusedLinearDPOLoss(beta=0.2, use_ref_model=False)(w, x, target, None, ref, ref_w)
    torch.testing.assert_close(alone, functional.liger_fused_linear_dpo(x, w, target, beta=0.2)[0])
    for name, count in (("CPO", 7), ("SimPO", 7), ("ORPO", 9)):
        loss, values = getattr(chunked_loss, f"LigerFusedLinear{name}Loss")()(w, x, target)
        assert loss.requires_grad and len(values) == count and more[4] == 0 != values[4]  # value 4 is the NLL loss
    chosen = torch.tensor([True, False, True, False])
    kto = torch.where(chosen, 1 - torch.sigmoid(0.1 * ratio), 1 - torch.sigmoid(-0.1 * ratio)).mean()
    loss, more = chunked_loss.LigerFusedLinearKTOLoss(use_ref_model=True)(x, w, target, None, chosen, ref, ref_w)
    torch.testing.assert_close(loss, kto)
    assert len(more) == 6
    ids, mask = target.clamp(min=0), torch.ones(4, 5)
    for beta, count in ((0.1, 2), (0.0, 1)):
        module = chunked_loss.LigerFusedLinearGRPOLoss(beta=beta, loss_type="bnpo")
        loss, more = module(x, w, ids, mask, torch.ones(4), ref_input=ref, ref_weight=ref_w)
        assert loss.requires_grad and len(more) == count


def test_distillation_losses_match_their_formula():
    from liger_kernel import chunked_loss

    x, w, teacher, teacher_w = normal(5, 4), normal(9, 4).requires_grad_(), normal(5, 6), normal(9, 6)
    target = labels(5, 9)
    counts = target != -100
    s, t = (F.linear(*pair)[counts] for pair in ((x, w), (teacher, teacher_w)))
    hard = F.cross_entropy(F.linear(x, w), target)
    q, p = (F.log_softmax(each / 2, -1) for each in (s, t))
    m = torch.logaddexp(q, p) - torch.tensor(2.0).log()
    jsd = (F.kl_div(m, p, log_target=True, reduction="sum") + F.kl_div(m, q, log_target=True, reduction="sum")) / 2
    soft = {"JSD": jsd / counts.sum(), "CosineSimilarity": 0.5 * (1 - F.cosine_similarity(s, t)).mean()}
    for name, each in soft.items():
        loss_class = getattr(chunked_loss, f"LigerFusedLinear{name}Loss")
        options = {"weight_hard_loss": 0.3, "weight_soft_loss": 0.7, "temperature": 2.0}
        got = loss_class(**options, return_soft_hard_loss=True)(x, w, teacher, teacher_w, target)
        torch.testing.assert_close(got, (0.3 * hard + 0.7 * each, each.detach(), hard.detach()))
        loss = loss_class(**options)(x, w, teacher, teacher_w, target)
        torch.testing.assert_close(
            torch.autograd.grad(loss, w), torch.autograd.grad(0.3 * hard + 0.7 * each, w, retain_graph=True)
        )


def test_divergence_forwards_return_the_gradient():
    from liger_kernel import ops
    from liger_kernel.transformers import LigerFusedLinearJSD, LigerJSD, LigerKLDIVLoss, LigerTVDLoss

    q, p, marked = normal(4, 9).log_softmax(-1), normal(4, 9, seed=1).log_softmax(-1), labels(4, 9)
    own = q.clone().requires_grad_()
    want, by = jsd(own, p, marked, 0.5), torch.tensor(3.0)
    loss, dx = ops.jsd_forward(q, p, marked, 0.5, -100, True)
    torch.testing.assert_close((loss, LigerJSD()(q, p, marked)), (want.detach(), want.detach()))
    torch.testing.assert_close(ops.jsd_backward(dx, by), torch.autograd.grad(want, own, by)[0])
    x, w, y, v = normal(4, 8), normal(9, 8).requires_grad_(), normal(4, 6), normal(9, 6)
    want = jsd((x @ w.T).log_softmax(-1), (y @ v.T).log_softmax(-1), marked, 0.5)
    loss, dx, dw = ops.fused_linear_jsd_forward(x, w, y, v, marked, 0.5, -100, True, 1.0)
    torch.testing.assert_close(LigerFusedLinearJSD()(x, w, y, v, marked), want)
    assert dx is None  # the input is frozen
    torch.testing.assert_close(ops.fused_linear_jsd_backward(by, dx, dw)[1], torch.autograd.grad(want, w, by)[0])
    torch.testing.assert_close(
        LigerKLDIVLoss(1e-10, reduction="sum")(q, p.exp()), F.kl_div(q, p.exp(), reduction="sum")
    )
    torch.testing.assert_close(LigerTVDLoss("sum")(q.exp(), p.exp()), (q.exp() - p.exp()).abs().sum() / 2)


# ---- Megatron -------------------------------------------------------------------------------------------------------


@pytest.fixture
def megatron(monkeypatch):
    """A stub of the parts of megatron-core that opmux replaces."""

    def module(name, **names):
        new_module = types.ModuleType(f"megatron.core.{name}")
        vars(new_module).update(names)
        monkeypatch.setitem(sys.modules, f"megatron.core.{name}", new_module)
        return new_module

    class WrappedTorchNorm:
        def __init__(self, config, hidden_size, eps=1e-5):
            pass

    class LocalSpecProvider:
        def layer_norm(self, rms_norm=False, for_qk=False, has_residual=False):
            return "theirs"

    class SwiGLUFunction:
        @staticmethod
        def apply(y, fp8_input_store, cpu_offload_input):
            return "theirs"

    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module("transformer.torch_norm", WrappedTorchNorm=WrappedTorchNorm)
    return SimpleNamespace(
        backends=module("models.backends", LocalSpecProvider=LocalSpecProvider),
        block=module("transformer.transformer_block", LayerNormImpl=WrappedTorchNorm),
        fused=module("fusions.fused_cross_entropy", fused_vocab_parallel_cross_entropy=None),
        loss=module("tensor_parallel.cross_entropy", vocab_parallel_cross_entropy=None),
        swiglu=module("fusions.fused_bias_swiglu", SwiGLUFunction=SwiGLUFunction),
    )


RMS = SimpleNamespace(normalization="RMSNorm", layernorm_zero_centered_gamma=True, sequence_parallel=True)


def test_megatron_is_patched(megatron):
    from liger_kernel.megatron import LigerMegatronRMSNorm, apply_liger_kernel_to_megatron

    for _ in range(2):  # patching twice changes nothing more
        apply_liger_kernel_to_megatron(rms_norm=True, cross_entropy=True, swiglu=True)
    local = megatron.backends.LocalSpecProvider()
    assert local.layer_norm(rms_norm=True) is LigerMegatronRMSNorm and local.layer_norm(has_residual=True) == "theirs"
    assert type(megatron.block.LayerNormImpl(RMS, 8)) is LigerMegatronRMSNorm
    assert (
        type(megatron.block.LayerNormImpl(SimpleNamespace(normalization="LayerNorm"), 8)).__name__ == "WrappedTorchNorm"
    )
    x, target = normal(3, 2, 9), labels(6, 9, 0).view(3, 2)
    want = F.cross_entropy(x.flatten(0, 1), target.flatten(), reduction="none").view(3, 2)
    torch.testing.assert_close(megatron.fused.fused_vocab_parallel_cross_entropy(x, target, None), want)
    torch.testing.assert_close(megatron.loss.vocab_parallel_cross_entropy(x, target), want)
    torch.testing.assert_close(
        megatron.swiglu.SwiGLUFunction.apply(x[..., :8], False, False), F.silu(x[..., :4]) * x[..., 4:8]
    )
    assert megatron.swiglu.SwiGLUFunction.apply(x, True, False) == "theirs"  # fp8: left to Megatron


def test_megatron_modules_compute_their_formula():
    from liger_kernel.megatron import LigerMegatronRMSNorm, LigerMegatronSwiGLU, apply_liger_kernel_to_megatron

    x, m = normal(3, 8), LigerMegatronRMSNorm(RMS, 8)
    assert m.weight.sequence_parallel and not m.weight.any() and repr(m)
    torch.testing.assert_close(m(x), rms_norm(x, m.weight, 1e-5, 1.0, "llama"))
    with pytest.raises(ValueError, match="config.normalization must be 'RMSNorm'; got 'LayerNorm'"):
        LigerMegatronRMSNorm(SimpleNamespace(normalization="LayerNorm"), 8)
    torch.testing.assert_close(LigerMegatronSwiGLU()(x), F.silu(x[:, :4]) * x[:, 4:])
    assert LigerMegatronSwiGLU(lambda *args: len(args))(x, normal(8)) == 4
    with pytest.raises(RuntimeError, match="a bias, which it does not support; pass fallback_impl"):
        LigerMegatronSwiGLU()(x, normal(8))
    if importlib.util.find_spec("megatron") is None:
        with pytest.raises(ImportError, match="Is megatron-core installed"):
            apply_liger_kernel_to_megatron()


def test_grpo_loss_of_logits_matches_the_formula():
    from liger_kernel.ops.grpo_loss import fused_selective_log_softmax
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

    logits, ids = normal(2, 4, 9).requires_grad_(), labels(10, 9, 0).view(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    got = fused_selective_log_softmax(logits, ids, 0.5, mask)
    want = (logits[:, :-1] / 0.5).log_softmax(-1).gather(-1, ids[:, 2:, None])[..., 0] * mask[:, 2:]
    torch.testing.assert_close(got, want.detach())
    each = triton_grpo_loss(logits, None, got, ids[:, 2:], torch.ones(2), mask[:, 2:], temperature=0.5)
    assert [t.shape for t in each] == [(2, 3)] * 3 and each[0].requires_grad
    before = logits.detach().clone()
    loss, more = triton_grpo_loss(
        logits, None, None, ids[:, 2:], torch.ones(2), mask[:, 2:], beta=0.0, reduce=True, loss_type="vespo"
    )
    loss.backward()
    assert len(more) == 1 and torch.equal(logits, before)  # not in place, unlike Liger's default


# ---- modules --------------------------------------------------------------------------------------------------------

CONFIG = SimpleNamespace(
    hidden_size=8, intermediate_size=12, hidden_act="silu", mlp_multipliers=(0.5, 2.0), num_hidden_layers=4,
    num_kv_shared_layers=2, use_double_wide_mlp=True,
)  # fmt: skip
GELU = SimpleNamespace(**{**vars(CONFIG), "hidden_act": "gelu_pytorch_tanh"})


def test_norm_modules_have_ligers_defaults():
    from liger_kernel.transformers import LigerFusedAddRMSNorm
    from liger_kernel.transformers import rms_norm as at

    x = normal(2, 3, 8).bfloat16()
    for name in ("", "ForGemma", "ForGemma2", "ForGemma3", "ForGemma4", "ForGlm4", "ForOlmo2", "ForQwen3Next"):
        m = getattr(at, f"LigerRMSNorm{name}")(8).bfloat16()
        zero_centred = name in ("ForGemma", "ForGemma2", "ForGemma3", "ForQwen3Next")
        assert list(m.state_dict()) == ["weight"] and m.weight.eq(0 if zero_centred else 1).all() and repr(m)
        torch.testing.assert_close(m(x), rms_norm(x, m.weight, 1e-6, float(zero_centred), m.casting_mode))
    for m in (at.LigerRMSNormForGemma4(8, with_scale=False), at.LigerRMSNorm(8, elementwise_affine=False)):
        assert m.weight is None and repr(m)
        torch.testing.assert_close(m(x.float()), rms_norm(x.float(), None, 1e-6, 0.0, "llama"))
    m = LigerFusedAddRMSNorm(8)
    torch.testing.assert_close(
        m(x.float(), x.float()), (rms_norm(2 * x.float(), m.weight, 1e-6, 0.0, "llama"), 2 * x.float())
    )
    with pytest.raises(ValueError, match="casting_mode must be one of 'llama', 'gemma', 'none', 0, 1, -1; got 'bert'"):
        at.LigerRMSNorm(8, casting_mode="bert")


def test_other_norms_and_row_modules_match_their_formula():
    from liger_kernel.transformers import LigerDyT, LigerModulatedRMSNorm, LigerPolyNorm, LigerSoftmax, LigerSparsemax
    from liger_kernel.transformers.experimental import LigerEmbedding

    x, scale = normal(2, 3, 8), normal(2, 8)
    m = LigerModulatedRMSNorm(8)
    torch.testing.assert_close(m(x, scale), modulated(x, m.weight, scale, None, 1e-6, 0.0, "llama"))
    m = LigerPolyNorm()
    torch.testing.assert_close(m(x), poly_norm(x, m.weight, m.bias, 1e-6))
    assert m.weight.eq(1 / 3).all() and m.bias == 1
    torch.testing.assert_close(LigerDyT(8)(x), torch.tanh(0.5 * x))
    assert LigerDyT(8, beta=False).beta is None and repr(LigerDyT(8))
    torch.testing.assert_close(LigerSparsemax(dim=1)(x), sparsemax(x, 1))
    torch.testing.assert_close(LigerSoftmax()(x), x.softmax(-1))
    m, ids = LigerEmbedding(5, 3, padding_idx=1), torch.tensor([[1, 2], [4, 1]])
    y = m(ids)
    assert not y[0, 0].any() and torch.equal(y[0, 1], m.weight[2])
    y.sum().backward()
    assert m.weight.grad.sum(-1).tolist() == [0, 0, 3, 0, 3]


def test_mlps_match_their_formula():
    from liger_kernel.transformers import LigerFalconH1MLP, LigerMLP, LigerTiledGEGLUMLP, LigerTiledSwiGLUMLP, swiglu
    from liger_kernel.transformers.geglu import LigerGEGLUMLP, LigerGEGLUMLPForGemma4

    x = normal(2, 3, 8)
    for name in ("LigerSwiGLUMLP", "LigerQwen3MoeSwiGLUMLP", "LigerHunyuanV1SwiGLUMLP"):
        m = getattr(swiglu, name)(CONFIG)
        torch.testing.assert_close(m(x), m.down_proj(F.silu(m.gate_proj(x)) * m.up_proj(x)))
    assert swiglu.LigerQwen3MoeSwiGLUMLP(CONFIG, 6).down_proj.in_features == 6
    m = swiglu.LigerFalconH1SwiGLUMLP(CONFIG)
    torch.testing.assert_close(m(x), m.down_proj(F.silu(m.gate_proj(x) * 0.5) * m.up_proj(x) * 2))
    m = swiglu.LigerBlockSparseTop2MLP(CONFIG)
    torch.testing.assert_close(m(x), m.w2(F.silu(m.w1(x)) * m.w3(x)))
    m = swiglu.LigerPhi3SwiGLUMLP(CONFIG)
    gate, up = m.gate_up_proj(x).chunk(2, -1)
    torch.testing.assert_close(m(x), m.down_proj(F.silu(gate) * up))
    m = LigerFalconH1MLP(CONFIG)
    torch.testing.assert_close(m(x), m.down_proj(F.silu(m.gate_proj(x) * 0.5) * m.up_proj(x)) * 2)
    for m in (LigerMLP(CONFIG), LigerTiledSwiGLUMLP(CONFIG, 2)):
        own = x.clone().requires_grad_()
        want = m.down_proj(F.silu(m.gate_proj(own)) * m.up_proj(own))
        leaves = [own, *m.parameters()]
        torch.testing.assert_close(m(own), want)
        grads = torch.autograd.grad(m(own).sum(), leaves), torch.autograd.grad(want.sum(), leaves)
        torch.testing.assert_close(*grads)
    for m in (LigerGEGLUMLP(GELU), LigerGEGLUMLPForGemma4(GELU, 3), LigerTiledGEGLUMLP(GELU)):
        torch.testing.assert_close(m(x), m.down_proj(F.gelu(m.gate_proj(x), approximate="tanh") * m.up_proj(x)))
    assert [LigerGEGLUMLPForGemma4(GELU, i).intermediate_size for i in (None, 1, 2)] == [12, 12, 24]
    with pytest.raises(ValueError, match="config.hidden_act must be 'silu' or 'swish'; got 'gelu_pytorch_tanh'"):
        swiglu.LigerSwiGLUMLP(GELU)


def test_experts_have_the_parameters_of_transformers():
    from liger_kernel.transformers import LigerExperts

    m = LigerExperts(SimpleNamespace(**vars(CONFIG), num_local_experts=3))
    for p in m.parameters():
        torch.nn.init.normal_(p)
    assert {n: tuple(p.shape) for n, p in m.named_parameters()} == {
        "gate_up_proj": (3, 24, 8), "down_proj": (3, 8, 12)
    }  # fmt: skip
    x, index, weights = normal(2, 2, 8), torch.tensor([[0, 2], [2, 1], [0, 1], [2, 0]]), normal(4, 2).softmax(-1)
    want = experts(x.view(4, 8), m.gate_up_proj, m.down_proj, index, weights).view(2, 2, 8)
    torch.testing.assert_close(m(x, index.view(2, 2, 2), weights.view(2, 2, 2)), want)


def test_attention_modules_match_their_formula():
    from liger_kernel.transformers import LigerMHC, LigerMultiTokenAttention, functional
    from liger_kernel.transformers import fused_neighborhood_attention as at

    x = normal(2, 9, 8)
    layer = at.LigerFusedNeighborhoodAttentionLayer(8, 2, kernel_size=3)
    heads = [p(layer.layer_norm(x)).unflatten(-1, (2, 4)).transpose(1, 2)
             for p in (layer.attention.q_proj, layer.attention.k_proj, layer.attention.v_proj)]  # fmt: skip
    want = x + layer.attention.out_proj(neighborhood(*heads, 3, 1, 0.5).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x), want)
    with pytest.raises(ValueError, match="attention_mask must be None"):
        layer(x, torch.ones(9))
    assert at.LigerFusedNeighborhoodAttentionConfig(dropout=0.1).to_dict()["dropout"] == 0.1
    m, scores = LigerMultiTokenAttention(4, 4, 3, padding=1), normal(2, 4, 6, 6)
    torch.testing.assert_close(m(scores), multi_token(scores, m.weight, m.bias, 1, 1))
    m = LigerMHC(torch.nn.Linear(8, 8), hc=2, c=8, phi_dtype=torch.float32)
    x, own = normal(3, 2, 8), (m.phi, m.b, m.alpha_pre, m.alpha_post, m.alpha_res)
    pre, post, res = functional.liger_mhc_coeffs(x, *own)
    inside = functional.liger_mhc_pre(x, pre)
    want = functional.liger_mhc_apply(x, m.layer(inside), pre, post, res, return_x_in=True)
    torch.testing.assert_close((m(x), inside), want)
    torch.testing.assert_close(functional.liger_mhc_forward(x, m.layer, *own), m(x))


def test_modules_compile_to_one_graph():
    """Even the first use, which resolves names, compiles to one graph."""
    from liger_kernel.ops import _replace_with_vendor_ops
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, LigerRMSNorm, LigerSwiGLUMLP

    norm, mlp, loss = LigerRMSNorm(8), LigerSwiGLUMLP(CONFIG), LigerFusedLinearCrossEntropyLoss()
    head, target = normal(9, 8), labels(4, 9)
    run = lambda x: loss(head, mlp(norm(x)), target)
    _replace_with_vendor_ops()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(normal(4, 8)), run(normal(4, 8)))


# ---- defects of Liger-Kernel that opmux must not have ---------------------------------------------------------------


def test_softcap_ignores_padding():
    from liger_kernel.transformers.functional import liger_cross_entropy

    x, target = normal(4, 17), labels(4, 17, 0)
    torch.testing.assert_close(liger_cross_entropy(x, target, softcap=5.0), F.cross_entropy(capped(x, 5.0), target))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weight_gradient_is_right_with_a_frozen_input(reduction):
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    x, w, target = normal(5, 4), normal(9, 4).requires_grad_(), labels(5, 9)
    liger_fused_linear_cross_entropy(x, w, target, reduction=reduction).sum().backward()
    want = torch.autograd.grad(F.cross_entropy(F.linear(x, w), target, reduction=reduction).sum(), w)[0]
    torch.testing.assert_close(w.grad, want)


def test_a_second_backward_gives_equal_gradients():
    from liger_kernel import ops

    for name in ("LigerGELUMulFunction", "LigerSiLUMulFunction"):
        args = CASES[name][0][0]
        once, again = (gradients(getattr(ops, name).apply, args, twice)[1] for twice in (False, True))
        torch.testing.assert_close(once, again, rtol=0, atol=0)


def test_cross_entropy_does_not_write_logits_and_accepts_empty_batches():
    from liger_kernel.transformers.functional import liger_cross_entropy

    x, target = normal(4, 9), labels(4, 9, 2)
    before = x.clone()
    for own in (x, x.requires_grad_()):
        liger_cross_entropy(own, target)
        assert torch.equal(own, before)
    assert liger_cross_entropy(x, torch.full((4,), -100)).isnan()  # as torch does
    assert liger_cross_entropy(x[:0], target[:0], reduction="sum") == 0
    assert liger_cross_entropy(x[:0], target[:0], reduction="none").shape == (0,)


def test_norms_have_a_repr_and_start_with_a_zero_bias():
    from liger_kernel.transformers import LigerLayerNorm
    from liger_kernel.transformers.group_norm import LigerGroupNorm

    for m in (LigerLayerNorm(8, bias=True), LigerGroupNorm(8, 2, bias=True)):
        assert repr(m) and not m.bias.any() and m.weight.eq(1).all()
    torch.testing.assert_close(LigerGroupNorm(6, 3)(normal(2, 6, 4)), F.group_norm(normal(2, 6, 4), 3, eps=1e-6))


def test_attn_res_accepts_a_list_of_blocks():
    from liger_kernel.ops import attn_res_backward, attn_res_forward
    from liger_kernel.transformers.functional import liger_attn_res

    v, query, weight = normal(3, 2, 4, 8).requires_grad_(), normal(8), normal(8, seed=1)
    want = attn_res(v, query, weight, 1e-6)
    torch.testing.assert_close(liger_attn_res(list(v), query, weight), want)
    h, *saved = attn_res_forward(list(v.detach()), query, weight)
    torch.testing.assert_close(h, want.detach())
    dh = normal(2, 4, 8)
    dv, *_ = attn_res_backward(dh, saved[0], query, weight, *saved[1:])
    torch.testing.assert_close(dv.view(3, 2, 4, 8), torch.autograd.grad(want, v, dh)[0])


def test_rms_norm_in_float64_has_the_right_gradient():
    from liger_kernel.transformers.functional import liger_rms_norm

    x, w = normal(3, 8).double().requires_grad_(), normal(8).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: liger_rms_norm(x, w, 1e-6), (x, w))


# ---- vendor functions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", liger_names.FUNCTION_OPS)
def test_a_vendors_function_with_ligers_arguments_fits_the_op(name):
    """For each op, an autograd.Function with Liger's arguments can be registered as an impl."""
    from liger_kernel import ops

    def forward(*args):
        raise NotImplementedError

    ctx = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    params = inspect.signature(getattr(ops, name).apply).parameters.values()
    forward.__signature__ = inspect.Signature([ctx, *params])
    function_class = type(name, (torch.autograd.Function,), {"forward": staticmethod(forward)})
    spec = specs.lookup(liger_names.FUNCTION_OPS[name], ("opmux",))
    assert (
        Fit.of(spec, OpImpl(spec.key, "vendor.acme", BackendImplKind.VENDOR, vendor="acme", fn=function_class)).refusal
        is None
    )


# ---- models ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def llama():
    """A tiny Llama and a batch with labels."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=53, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip
    ids = torch.randint(53, (2, 6), generator=torch.Generator().manual_seed(1))
    return SimpleNamespace(config=config, make=transformers.LlamaForCausalLM, batch={"input_ids": ids, "labels": ids})


def loss_and_gradients(model, batch):
    model.zero_grad()
    out = model.train()(**batch)
    out.loss.backward()
    return out, out.loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}


def patched(model):
    """The class names of all patched modules."""
    return {type(m).__name__.removeprefix("Llama") for m in model.modules() if modules.KEY in vars(m)}


def test_a_model_instance_is_patched(llama):
    """Patches only this instance, and only the parts named by the flags; loss and gradients stay the same."""
    from liger_kernel.transformers import _apply_liger_kernel_to_instance, apply_liger_kernel_to_llama

    import opmux

    model = llama.make(llama.config)
    plain, *want = loss_and_gradients(model, llama.batch)
    assert patched(model) == set() and not logits.are_late(plain)
    apply_liger_kernel_to_llama(model=model)
    assert {"RMSNorm", "MLP", "ForCausalLM"} <= patched(model) and patched(llama.make(llama.config)) == set()
    out, *got = loss_and_gradients(model, llama.batch)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert logits.are_late(out)
    apply_liger_kernel_to_llama(rope=False, fused_linear_cross_entropy=False, rms_norm=False, model=model)
    assert patched(model) == {"MLP"}
    _apply_liger_kernel_to_instance(model, swiglu=False, rope=False, fused_linear_cross_entropy=False, no_such_flag=1)
    assert "RMSNorm" in patched(model) and "MLP" not in patched(model)
    opmux.unpatch_model(model)
    assert patched(model) == set()
    with pytest.raises(ValueError, match="cross_entropy must be False if fused_linear_cross_entropy is True"):
        apply_liger_kernel_to_llama(cross_entropy=True)
    with pytest.raises(TypeError, match=r"apply_liger_kernel_to_llama\(\) got an unexpected keyword argument 'geglu'"):
        apply_liger_kernel_to_llama(geglu=True)


def test_a_model_type_is_patched(llama):
    from liger_kernel.transformers import AutoLigerKernelForCausalLM, _apply_liger_kernel, apply_liger_kernel_to_llama

    import opmux

    model = AutoLigerKernelForCausalLM.from_config(llama.config, rope=False, swiglu=False)
    assert "RMSNorm" in patched(model) and "MLP" not in patched(model)
    before = llama.make.forward
    try:
        apply_liger_kernel_to_llama()
        # also models created afterwards
        assert logits.are_late(loss_and_gradients(llama.make(llama.config), llama.batch)[0])
    finally:
        opmux.unpatch_model("llama")
    assert llama.make.forward is before
    _apply_liger_kernel("bert")  # there is no patch for this type
    _apply_liger_kernel("llama", rope=False, rms_norm=False, swiglu=False, fused_linear_cross_entropy=False)
    assert llama.make.forward is before


def test_a_model_without_a_patch_is_unchanged():
    """Liger-Kernel itself raises a KeyError in this case."""
    transformers = pytest.importorskip("transformers")
    from liger_kernel.transformers import AutoLigerKernelForCausalLM

    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = AutoLigerKernelForCausalLM.from_config(config)
    assert type(model) is transformers.GPT2LMHeadModel and patched(model) == set()


def test_an_unknown_name_suggests_the_nearest():
    import liger_kernel.ops

    with pytest.raises(
        AttributeError,
        match="'liger_kernel.ops' of opmux has no attribute 'LigerGELUMulFunctio'; did you mean 'LigerGELUMulFunction'",
    ):
        liger_kernel.ops.LigerGELUMulFunctio  # noqa: B018
    with pytest.raises(TypeError, match="have `apply` alone"):

        class Mine(liger_kernel.ops.LigerGELUMulFunction):
            @staticmethod
            def forward(ctx, a, b):
                return a


def test_utils_describe_the_machine():
    from liger_kernel import utils
    from liger_kernel.ops.utils import calculate_settings, device_context, ensure_contiguous

    import opmux.backends

    assert utils.infer_device() == opmux.backends.infer_device() and utils.is_npu_available() is False
    if utils.infer_device() == "cpu":
        assert (utils.infer_device_arch(), utils.infer_comm_backend()) == ("cpu", "gloo")
        with pytest.raises(RuntimeError, match="no accelerator"):
            utils.get_total_gpu_memory()
    assert utils.transformers_version_dispatch("1.0", None, lambda x: x, after_args=(3,)) == 3
    assert [calculate_settings(n) for n in (1, 100, 3000, 40000)] == [(1, 4), (128, 4), (4096, 8), (65536, 32)]
    with pytest.raises(ValueError, match="n must be at most 65536"):
        calculate_settings(65537)
    with device_context(torch.device("cpu")):
        assert ensure_contiguous(lambda ctx, x: x.is_contiguous())(None, normal(3, 4).t())


def test_transformers_finds_liger_kernel():
    """`Trainer(use_liger_kernel=True)` works only if transformers finds an installed package with a version."""
    pytest.importorskip("transformers")
    from transformers.utils import import_utils

    import_utils.is_liger_kernel_available.cache_clear()
    try:
        assert import_utils.is_liger_kernel_available()
    finally:
        import_utils.is_liger_kernel_available.cache_clear()


def test_importlib_finds_the_version_and_the_file_of_liger_kernel():
    import importlib.metadata

    import liger_kernel
    import liger_kernel.ops

    for name in ("liger_kernel", "liger-kernel"):
        assert importlib.metadata.version(name) == liger_kernel.__version__ == names.VERSION
    assert importlib.metadata.metadata("liger_kernel")["Summary"] == "provided by opmux"
    for module in (liger_kernel, liger_kernel.ops):
        assert Path(module.__file__).is_file() and "opmux" in Path(module.__file__).parts
