"""Every name of FlagGems is served, or refused with a reason; functions take FlagGems' arguments.

`tools/gems_census.py` lists the names, in `src/opmux/faces/flag_gems/original.txt`.
"""

from __future__ import annotations

import fnmatch
import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from opmux.faces import compat
from opmux.faces.flag_gems import arguments, left, more_ops, names, original

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import gems_census  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def gems():
    compat.install("flag_gems")
    import flag_gems

    yield flag_gems
    compat.uninstall("flag_gems")


@pytest.fixture(scope="module")
def states():
    return gems_census.states()


# ---- the list -------------------------------------------------------------------------------------------------------


def test_every_name_of_flag_gems_is_served_or_refused_with_a_reason(states):
    assert [f"{row.module}.{row.name}" for row, state in states.items() if state.kind == "missing"] == []


def test_every_rule_of_the_table_applies_to_a_name():
    rows = [(row.module, row.name) for row in gems_census.rows()]
    for pattern in [*left.REFUSED, *left.DIFFERENT]:
        of_module, of_name = pattern.split(" ")
        assert any(fnmatch.fnmatchcase(m, of_module) and fnmatch.fnmatchcase(n, of_name) for m, n in rows), pattern


def test_a_refused_name_says_why(states):
    for row, state in states.items():
        ours = names.MODULES.get(f"flag_gems.{row.module}" if row.module != "." else "flag_gems")
        if state.kind == "refused" and ours is not None and row.name != "." and ours != "opmux.backends":
            module = importlib.import_module(ours) if isinstance(ours, str) else ours
            if row.module in ("runtime.backend.backend_utils", "utils.pointwise_dynamic"):
                continue  # these modules do not give the table's reasons: vendors' folders use them too
            with pytest.raises(AttributeError, match=re.escape(state.why)):
                getattr(module, row.name)


def test_the_page_has_the_generated_table():
    page = (ROOT / "docs" / "flag_gems.md").read_text(encoding="utf-8")
    assert gems_census.page(page) == page


def test_the_census_adds_the_names_of_a_new_version(tmp_path, monkeypatch):
    """A name that a new version adds is found, with its arguments, and counts as missing."""
    package = tmp_path / "flag_gems"
    (package / "ops").mkdir(parents=True)
    (package / "runtime" / "backend" / "_acme").mkdir(parents=True)
    (package / "__init__.py").write_text("from flag_gems.ops import *\ndevice = 1\n")
    (package / "ops" / "__init__.py").write_text("from flag_gems.ops.new import new_function, _private\n")
    (package / "runtime" / "backend" / "_acme" / "ops.py").write_text("A = B = 1\n")
    (package / "ops" / "new.py").write_text(
        "import triton\nfrom flag_gems.utils import libentry\nSIZE, _HIDDEN = 1, 2\n"
        'def new_function(self, *, b=1e-6, **more):\n    logger.debug("GEMS NEW, %s", b)\n'
        "@triton.jit\ndef new_kernel(x_ptr, n): pass\nclass NewFunction: pass\ndef _private(a): pass\n"
    )
    found = gems_census.original_rows(tmp_path)
    assert found == [
        (".", "device", "constant"),
        ("ops", "new_function", "from ops.new"),
        ("ops", "_private", "from ops.new"),
        ("ops.new", "SIZE", "constant"),
        ("ops.new", "new_function", "(self, *, b=1e-06, **more)"),
        ("ops.new", "new_kernel", "kernel"),
        ("ops.new", "NewFunction", "class"),
        ("runtime.backend._acme", ".", "module 2"),
        (".", "new_function", "from ops"),
        (".", "_private", "from ops"),
    ]
    assert gems_census.state(found[1]).kind == gems_census.state(found[-2]).kind == "missing"
    assert gems_census.logged(tmp_path) == {"new_function": "NEW"}
    facts = tmp_path / "original.txt"
    monkeypatch.setattr(gems_census, "FACTS", facts)
    monkeypatch.setattr(gems_census, "LABELS", tmp_path / "logged.txt")
    gems_census.update(tmp_path)
    assert "ops * from ops.new: new_function _private" in facts.read_text()
    assert (tmp_path / "logged.txt").read_text() == "new_function NEW\n"


def test_a_module_of_an_op_does_not_hide_the_op(gems):
    import flag_gems.ops.mm
    from flag_gems.fused.fused_moe import fused_experts_impl
    from flag_gems.ops.mm import mm

    assert flag_gems.ops.mm is mm is gems.mm
    assert gems.fused.fused_experts_impl is fused_experts_impl is gems.fused_experts_impl
    assert sys.modules["flag_gems.ops.rms_norm"].rms_norm is gems.rms_norm is gems.fused.rms_norm
    assert sys.modules["flag_gems.ops.mm"].logger.name == "flag_gems.ops.mm"
    import flag_gems.utils.pointwise_dynamic
    from flag_gems.utils.pointwise_dynamic import pointwise_dynamic

    assert flag_gems.utils.pointwise_dynamic is pointwise_dynamic
    assert flag_gems.utils.shape_utils.volume((2, 3)) == 6
    with pytest.raises(AttributeError, match="a Triton kernel of FlagGems"):
        sys.modules["flag_gems.ops.mm"].mm_kernel_general  # noqa: B018


# ---- arguments ------------------------------------------------------------------------------------------------------

X, Y = torch.randn(4, 5), torch.randn(4, 5)
A, B = torch.randn(4, 3), torch.randn(3, 5)
I2 = torch.tensor([0, 2])
ZEROS = torch.zeros(2, 5, dtype=torch.long)
IMAGE = torch.randn(1, 2, 4, 4)

# Function of FlagGems, its arguments, and torch's result.
FORMS = {
    "a bool for a tensor": ("eq", (torch.tensor([1, 0]), True), {}, lambda: torch.tensor([True, False])),
    "softmax with only a dim": ("softmax", (X, 1), {}, lambda: X.softmax(1)),
    "log_softmax by name": ("log_softmax", (X,), {"dim": 0}, lambda: X.log_softmax(0)),
    "clamp by FlagGems' names": ("clamp", (X,), {"mini": -0.5, "maxi": 0.5}, lambda: X.clamp(-0.5, 0.5)),
    "clamp by ATen's names": ("clamp", (X,), {"min": -0.5}, lambda: X.clamp(-0.5)),
    "addmm by FlagGems' names": (
        "addmm", (), {"bias": X, "mat1": A, "mat2": B, "alpha": 2}, lambda: torch.addmm(X, A, B, alpha=2)
    ),
    "addcdiv with a positional value": ("addcdiv", (X, X, Y, 2.0), {}, lambda: torch.addcdiv(X, X, Y, value=2.0)),
    "cumsum with the default dim": ("cumsum", (X,), {}, lambda: X.cumsum(1)),
    "sum_dim of all": ("sum_dim", (X,), {}, lambda: X.sum()),
    "prod_dim of all": ("prod_dim", (X,), {}, lambda: X.prod()),
    "all_dim of all": ("all_dim", (X > 0,), {}, lambda: (X > 0).all()),
    "argmax with a dtype of None": ("argmax", (X, 1), {"dtype": None}, lambda: X.argmax(1)),
    "round to decimals": ("round", (X, 2), {}, lambda: X.round(decimals=2)),
    "gather without out": ("gather", (X, 0, ZEROS), {"out": None}, lambda: X.gather(0, ZEROS)),
    "index_add with a positional alpha": (
        "index_add", (X, 0, I2, Y[:2], 3), {}, lambda: X.index_add(0, I2, Y[:2], alpha=3)
    ),
    "scatter with a reduction": (
        "scatter", (X, 0, ZEROS, Y[:2]), {"reduce": "add"}, lambda: X.scatter_add(0, ZEROS, Y[:2])
    ),
    "div_mode with a positional mode": ("div_mode", (X, Y, "floor"), {}, lambda: X.div(Y, rounding_mode="floor")),
    "quantile of a number": (
        "quantile", (X, 0.5, 1, False, "lower"), {}, lambda: X.quantile(0.5, 1, interpolation="lower")
    ),
    "var with a correction": ("var", (X, 1), {"correction": 0}, lambda: X.var(1, correction=0)),
    "where with a number first": ("where_scalar_self", (X > 0, 1.0, Y), {}, lambda: torch.where(X > 0, 1.0, Y)),
    "where with a number last": ("where_scalar_other", (X > 0, X, 0.0), {}, lambda: torch.where(X > 0, X, 0.0)),
    "out by position": ("bmm_out", (A[None], B[None], torch.empty(1, 4, 5)), {}, lambda: torch.bmm(A[None], B[None])),
    "greater_out": ("greater_out", (X, Y), {"out": torch.empty(4, 5, dtype=torch.bool)}, lambda: X > Y),
    "greater_out without out": ("greater_out", (X, Y), {}, lambda: X > Y),
    "a mode of pad": ("pad", (IMAGE, (1, 1, 1, 1), "reflect"), {}, lambda: F.pad(IMAGE, (1, 1, 1, 1), "reflect")),
    "repeat_interleave of counts": ("repeat_interleave_tensor", (I2,), {}, lambda: torch.repeat_interleave(I2)),
    "pooling to an int": ("adaptive_avg_pool2d", (IMAGE, 2), {}, lambda: F.adaptive_avg_pool2d(IMAGE, 2)),
    "an int stride": (
        "conv_transpose1d", (X[None], torch.randn(4, 3, 3).fill_(0.5)), {"stride": 2},
        lambda: F.conv_transpose1d(X[None], torch.full((4, 3, 3), 0.5), stride=2),
    ),
    "an int padding": (
        "conv2d", (IMAGE, torch.ones(3, 2, 3, 3)), {"padding": 1},
        lambda: F.conv2d(IMAGE, torch.ones(3, 2, 3, 3), padding=1),
    ),
    "an int for six sides": (
        "replication_pad3d", (IMAGE[None],), {"padding": 1}, lambda: F.pad(IMAGE[None], (1,) * 6, "replicate")
    ),
    "an underscore in ATen's name": (
        "weight_int8pack_mm", (A, torch.ones(5, 3, dtype=torch.int8), torch.ones(5)), {}, lambda: A @ torch.ones(3, 5)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("function", "args", "named", "want"), FORMS.values(), ids=FORMS)
def test_functions_take_flag_gems_arguments(gems, function, args, named, want):
    torch.testing.assert_close(getattr(gems, function)(*args, **named), want())


def test_every_function_passes_all_its_arguments_to_atens_op(gems):
    """Each required argument of FlagGems' function reaches ATen's op, and none of ATen's required ones is missing."""
    wrong = []
    for name in original.exports("ops"):
        theirs = original.signature(name)
        if theirs is None or name in more_ops.__all__ or name == "rms_norm" or left.refused("ops", name):
            continue
        packet_overload_schema = arguments.target(name)
        assert packet_overload_schema is not None, name
        schema = packet_overload_schema[2]
        required = [p for p in theirs.parameters.values() if p.default is p.empty]
        given = {p.name: object() for p in required}
        by_name = {p.name: given[p.name] for p in required if p.kind is p.KEYWORD_ONLY}
        positional = tuple(given[p.name] for p in required if p.name not in by_name)
        lead, named, through_packet = arguments._conversion(name, theirs, schema)(positional, by_name)
        has = [a.name for a in schema.arguments if not a.kwarg_only][: len(lead)] + list(named)
        missing = [a.name for a in schema.arguments if not a.has_default_value() and a.name not in has]
        passed = [*lead, *named.values()]
        lost = [n for n, value in given.items() if not any(value is other for other in passed)]
        if lost or (missing and not through_packet) or set(named) - {a.name for a in schema.arguments}:
            wrong.append((name, missing, lost, named))
    assert not wrong
    torch.testing.assert_close(gems.selu(X), F.selu(X))  # FlagGems' own arguments are *args


def test_functions_fill_in_flag_gems_defaults(gems):
    y, mean, rstd = gems.layer_norm(X, [5])
    torch.testing.assert_close(y, F.layer_norm(X, [5]))
    torch.testing.assert_close((mean, rstd), (X.mean(1, True), (X.var(1, keepdim=True, correction=0) + 1e-5).rsqrt()))
    y, *_ = gems.batch_norm(IMAGE, training=True)
    torch.testing.assert_close(y, F.batch_norm(IMAGE, None, None, training=True))
    assert gems.uniform_(X.clone()).max() <= 1 and gems.bernoulli_(X.clone()).unique().tolist() in ([0, 1], [0], [1])


def test_a_generator_determines_the_draws(gems):
    draw = lambda: gems.multinomial(X.abs(), 3, True, gen=torch.Generator().manual_seed(5))
    assert torch.equal(draw(), draw())
    assert gems.use_gems().experimental_ops.rmsnorm(X, torch.ones(5)).shape == X.shape


def test_max_pool2d_backward_takes_indices_third(gems):
    x = IMAGE.clone().requires_grad_()
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    y.sum().backward()
    got = gems.max_pool2d_backward(torch.ones_like(y), x.detach(), indices, 2, 2, 0, 1, False)
    torch.testing.assert_close(got, x.grad)


def test_an_argument_that_no_overload_takes_is_refused(gems):
    with pytest.raises((RuntimeError, TypeError)):
        gems.argmax(X, 1, dtype=torch.int32)
    with pytest.raises((RuntimeError, TypeError)):
        gems.mm(A)


# ---- functions that are no op of ATen -------------------------------------------------------------------------------


def test_forwards_and_backwards_of_norms_and_softmax_match_autograd(gems):
    x, w, dy = X.clone().requires_grad_(), torch.rand(5, requires_grad=True), torch.randn(4, 5)
    want = F.rms_norm(x, [5], w, 1e-5)
    dx, dw = torch.autograd.grad(want, (x, w), dy)
    y, rstd = gems.rms_norm_forward(X, [5], w.detach())
    torch.testing.assert_close(y, want.detach())
    torch.testing.assert_close(gems.rms_norm_backward(dy, X, rstd, [5], w.detach()), (dx, dw))
    scores = torch.randn(2, 3, 4, 8, requires_grad=True)
    want = (scores * 0.5).softmax(-1)
    got = gems.scaled_softmax_forward(scores.detach(), 0.5)
    torch.testing.assert_close(got, want.detach())
    (d,) = torch.autograd.grad(want, scores, torch.ones_like(want) * scores.detach())
    torch.testing.assert_close(gems.scaled_softmax_backward(scores.detach(), got, 0.5), d)
    torch.testing.assert_close(gems.normed_cumsum(X.abs()), X.abs().cumsum(-1) / X.abs().sum(-1, True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 4, 5, 8])
def test_hadamard_transform_multiplies_by_the_matrix(gems, n, dtype):
    h = torch.ones(1, 1, dtype=dtype)
    while h.shape[0] < n:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    x = torch.randn(3, n, dtype=dtype)
    torch.testing.assert_close(gems.hadamard_transform(x, 0.5), 0.5 * x @ h[:n, :n])
    assert gems.hadamard_transform(x[:0]).shape == (0, n)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("shape", [(4, 5), (2, 5, 3), (2, 5, 3, 2), (2, 5, 2, 2, 2)])
def test_nll_loss_of_any_shape_has_a_gradient(gems, shape, reduction):
    scores = torch.randn(shape).log_softmax(1).requires_grad_()
    target = torch.randint(5, (shape[0], *shape[2:]))
    target.view(-1)[0] = -100
    weight = torch.rand(5)
    want = F.nll_loss(scores, target, weight, reduction=("none", "mean", "sum")[reduction])
    loss, total = gems.nll_loss_nd_forward(scores.detach(), target, weight, reduction)
    torch.testing.assert_close(loss, want.detach())
    dy = torch.rand_like(want)
    (d,) = torch.autograd.grad(want, scores, dy)
    got = gems.nll_loss_nd_backward(dy, scores.detach(), target, weight, reduction, -100, total)
    torch.testing.assert_close(got, d)


def test_nll_loss_of_an_empty_batch_is_torchs(gems):
    loss, total = gems.nll_loss_nd_forward(torch.empty(0, 5, 3), torch.empty(0, 3, dtype=torch.int64), reduction=2)
    assert loss.item() == 0 and total.item() == 0


def test_small_functions_that_aten_lacks_return_documented_values(gems):
    base = torch.rand(4).bfloat16()
    torch.testing.assert_close(gems.float_power_(base.clone(), 2), base.double().pow(2).bfloat16())
    gems._assert_async(torch.tensor(True), "not raised")
    with pytest.raises(RuntimeError, match="the message"):
        gems._assert_async(torch.tensor(0), "the message")
    assert gems._list_to_tensor([3, 1]).tolist() == [3, 1] and gems.SUPPORTED_FP8_DTYPE is torch.float8_e4m3fn
    torch.testing.assert_close(gems._compute_linear_combination(B, A), A @ B)
    assert gems.contiguous(X.t()).is_contiguous() and gems.contiguous(X).data_ptr() == X.data_ptr()
    assert gems.torch_ge("2.11.0") and not gems.torch_ge("99.0")


def test_the_forward_and_backward_of_attention_match_torch(gems):
    q, k, v, do = (torch.randn(2, 3, 4, 8) for _ in range(4))
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    want = F.scaled_dot_product_attention(*inputs, is_causal=True)
    o, m = gems.scaled_dot_product_attention_forward(q, k, v, is_causal=True)
    torch.testing.assert_close(o, want.detach())
    scores = (q @ k.mT / 8**0.5).masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(m, scores.logsumexp(-1))
    got = gems.scaled_dot_product_attention_backward(do, q, k, v, o, m, is_causal=True)
    torch.testing.assert_close(got, torch.autograd.grad(want, inputs, do))
    torch.testing.assert_close(gems.ScaleDotProductAttention.apply(q, k, v), F.scaled_dot_product_attention(q, k, v))
    with pytest.raises(ValueError, match="enable_gqa must be True"):
        gems.scaled_dot_product_attention_forward(q, k[:, :1], v[:, :1])


def test_packed_attention_reads_paged_keys(gems):
    q = torch.randn(5, 4, 16)
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    used = torch.tensor([3, 6], dtype=torch.int32)
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
    k, v = torch.randn(4, 4, 2, 16), torch.randn(4, 4, 2, 16)
    out = torch.empty_like(q)
    got, lse = gems.flash_attn_varlen_func(
        q, k, v, 3, cu, 6, seqused_k=used, causal=True, block_table=table, return_softmax_lse=True, out=out
    )
    assert got is out and lse.shape == (4, 5)
    for i, (first, last) in enumerate(((0, 2), (2, 5))):
        n, length = last - first, int(used[i])
        keys, values = (t[table[i].long()].flatten(0, 1)[:length].repeat_interleave(2, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first:last], keys) / 4
        scores = scores.masked_fill(torch.ones(n, length).triu(length - n + 1).bool(), -torch.inf)
        torch.testing.assert_close(got[first:last], torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        torch.testing.assert_close(lse[:, first:last], scores.logsumexp(-1))
    ends = F.pad(used.cumsum(0), (1, 0)).int()  # flash-attn also takes the lengths from cu_seqlens_k
    by_ends = gems.flash_attn_varlen_func(q, k, v, 3, cu, 6, ends, causal=True, block_table=table)
    torch.testing.assert_close(by_ends, got)
    with pytest.raises(NotImplementedError, match="k_descale"):
        gems.flash_attn_varlen_func(q, k, v, 3, cu, 6, seqused_k=used, block_table=table, k_descale=torch.ones(1))


def test_packed_attention_needs_the_lengths_of_keys(gems):
    q, cu = torch.randn(5, 2, 16), torch.tensor([0, 2, 5], dtype=torch.int32)
    with pytest.raises(ValueError, match="give cu_seqlens_k, or block_table and seqused_k"):
        gems.flash_attn_varlen_func(q, torch.randn(9, 2, 16), torch.randn(9, 2, 16), 3, cu, 6)
    pages = torch.randn(4, 4, 2, 16)
    with pytest.raises(ValueError, match="give cu_seqlens_k, or block_table and seqused_k"):
        gems.flash_attn_varlen_func(q, pages, pages, 3, cu, 6, block_table=torch.tensor([[2, 0], [1, 3]]))
