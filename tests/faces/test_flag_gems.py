"""opmux serves `flag_gems`: the library's functions that enable ops, its op names, fused ops and helpers."""

import logging
import sys

import pytest
import torch
import torch.nn.functional as F

import opmux
from opmux.faces.aten import overloads, switch
from opmux.faces.flag_gems import names
from opmux.tools import run


@pytest.fixture
def gems():
    opmux.compat.install("flag_gems")
    import flag_gems

    yield flag_gems
    opmux.disable()
    opmux.compat.uninstall("flag_gems")


def on_a_chip(overloads):
    """Pretend that an absent device can compute these overloads."""
    return {"chip": frozenset(overloads)}


@pytest.fixture
def enable_calls(monkeypatch):
    """Records the arguments of opmux.enable and opmux.use, because on a CPU few of the ops can be enabled."""
    options = []
    monkeypatch.setattr(switch, "resolved", lambda include, exclude: options.append((include, exclude)) or {})
    return options


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overload", "function"),
    [
        ("add.Tensor", "add"), ("add_.Tensor", "add_"), ("mm.out", "mm_out"), ("ge.Scalar", "ge_scalar"),
        ("clamp_.Tensor", "clamp_tensor_"), ("bitwise_or.Tensor", "bitwise_or_tensor"),
        ("__ior__.Scalar", "bitwise_or_scalar_"),
        ("div.Tensor", "true_divide"), ("div_.Scalar_mode", "div_mode_"), ("div.out", "true_divide_out"),
        ("true_divide_.Scalar", "true_divide_"), ("_softmax", "softmax"), ("_softmax.out", "softmax_out"),
        ("native_layer_norm", "layer_norm"), ("sum.dim_IntList", "sum_dim"), ("sum.IntList_out", "sum_dim_out"),
        ("max.dim", "max_dim"), ("pow.Tensor_Scalar", "pow_tensor_scalar"), ("pow_.Scalar", "pow_tensor_scalar_"),
        ("masked_fill_.Scalar", "masked_fill_"), ("scatter.src", "scatter"), ("where.self", "where_self"),
        ("sort.stable", "sort_stable"), ("median.dim_values", "median_dim_values"), ("index_put_", "index_put_"),
    ],
)  # fmt: skip
def test_overloads_have_flag_gems_function_names(overload, function):
    assert names.function_of(overload) == function


def test_flag_gems_names_select_overloads():
    assert names.selected(["add"]) == (["add.Tensor"], [])
    assert set(names.selected(["true_divide"])[0]) >= {"div.Tensor", "div.Scalar", "divide.Tensor"}
    assert names.selected(["add_.Tensor", "aten::mm.out"])[0] == ["add_.Tensor", "mm.out"]
    assert names.selected(["sofmax"]) == ([], ["'sofmax' (did you mean 'softmax'?)"])


# ---- switches -------------------------------------------------------------------------------------------------------


def test_enable_excludes_the_unused_ops(gems, enable_calls):
    gems.enable(unused=["add", "mul_"])
    assert enable_calls[-1] == (None, ("add.Tensor", "mul_.Tensor"))
    gems.enable()
    assert enable_calls[-1] == (None, None)
    with pytest.warns(UserWarning, match="'no_such_op'"):
        gems.enable(unused=["no_such_op"])
    with pytest.warns(UserWarning, match="lib is not used"):
        gems.enable(torch.library.Library("aten", "IMPL"))


def test_only_enable_selects_by_name_default_or_file(gems, enable_calls, tmp_path):
    gems.only_enable(include=["softmax", "ge_scalar"])
    assert set(enable_calls[-1][0]) == {"_softmax", "ge.Scalar"}
    gems.only_enable()
    assert set(enable_calls[-1][0]) == {"_softmax", "cumsum"}
    listed = tmp_path / "ops.yaml"
    listed.write_text("include: [tanh]\nexclude: [exp]\n")
    gems.only_enable(include=str(listed))
    assert enable_calls[-1] == (("tanh",), None)
    gems.enable(unused=str(listed))
    assert enable_calls[-1] == (None, ("exp",))
    before = len(enable_calls)
    with pytest.warns(UserWarning, match="nothing is enabled"), pytest.warns(match="do not exist"):
        gems.only_enable(include=["lstsq_of_nothing"])
    assert len(enable_calls) == before


def test_use_gems_blocks_nest(gems, monkeypatch):
    monkeypatch.setattr(switch, "resolved", lambda include, exclude: on_a_chip(include or {"exp", "tanh"}))
    block = gems.use_gems()
    with block as block_object:
        assert block_object is None
        requested = lambda: set(switch.engine.STATE.requested)
        assert requested() == {"exp", "tanh"}
        with gems.use_gems(include=["tanh"]), block:
            assert requested() == {"exp", "tanh"}
        with pytest.raises(KeyError), gems.use_gems(include=["tanh"], exclude=["tanh"]):
            assert requested() == {"tanh"}
            raise KeyError
        assert requested() == {"exp", "tanh"}
    assert requested() == set()


def test_registered_ops_are_listed_under_flag_gems_names(gems, monkeypatch):
    monkeypatch.setattr(switch, "enabled_ops", lambda: ["add.Tensor", "ge.Scalar", "sum.dim_IntList"])
    assert gems.all_registered_keys() == ["add.Tensor", "ge.Scalar", "sum.dim_IntList"]
    assert gems.all_registered_ops() == ["add", "ge_scalar", "sum_dim"]


@pytest.mark.parametrize(("once", "lines"), [(False, 3), (True, 2)])
def test_record_writes_each_call_to_a_log_file(gems, tmp_path, monkeypatch, once, lines):
    monkeypatch.setattr(switch, "resolved", lambda include, exclude: on_a_chip({"add.Tensor", "exp_"}))
    log = tmp_path / "new" / "ops.log"
    with gems.use_gems(record=True, once=once, path=log):
        on = switch.engine.STATE.on
        assert "add.Tensor" in on and "exp_" in on and "add.Tensor" in on and "tanh" not in on
    logged = log.read_text().splitlines()
    assert len(logged) == lines
    assert logged[:2] == ["[DEBUG] flag_gems.ops.add.add: GEMS ADD", "[DEBUG] flag_gems.ops.exp.exp_: GEMS EXP_"]
    assert not logging.getLogger("flag_gems").handlers


def test_nothing_is_enabled_if_the_log_cannot_be_written(gems, tmp_path, enable_calls):
    (tmp_path / "file").write_text("")
    for call in (gems.enable, gems.only_enable):
        with pytest.raises(OSError, match="file"):
            call(record=True, path=tmp_path / "file" / "ops.log")
    assert enable_calls == []


# ---- ops ------------------------------------------------------------------------------------------------------------


def test_each_op_is_available_as_a_function(gems):
    for name in ("add", "mm_out", "softmax", "conv2d", "true_divide", "layer_norm", "sum_dim"):
        assert callable(getattr(gems, name)) and getattr(gems.ops, name) is getattr(gems, name)
    assert {names.function_of(key) for key in overloads.table()} <= set(dir(gems))
    with pytest.raises(AttributeError, match="did you mean 'softmax'"):
        gems.sofmax  # noqa: B018


def test_functions_compute_and_have_gradients(gems):
    x = torch.randn(3, 4, requires_grad=True)
    y = gems.mul(gems.add(x, x), 3.0)
    y.sum().backward()
    torch.testing.assert_close(y, x * 6)
    torch.testing.assert_close(x.grad, torch.full((3, 4), 6.0))
    torch.testing.assert_close(gems.softmax(x, -1, False), x.softmax(-1))
    torch.testing.assert_close(gems.true_divide(x, 2), x / 2)
    assert gems.all_registered_ops() == []


def test_functions_choose_overloads_once_for_all_calls(gems, monkeypatch):
    calls = (
        lambda: gems.outer(torch.ones(2), torch.ones(3)),
        lambda: gems.normed_cumsum(torch.ones(4)),
        lambda: gems.moe_sum(torch.ones(2, 3, 4), torch.empty(2, 4)),
        lambda: gems.exp(torch.ones(2)),
    )
    for call in calls:
        call()
    monkeypatch.setattr(switch, "resolved", lambda include, exclude: pytest.fail("overloads are chosen again"))
    for call in calls:
        call()


def test_fused_ops_match_torchs_composition(gems):
    x, y, w, b = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.randn(8), torch.randn(8)
    close = torch.testing.assert_close
    close(gems.silu_and_mul(x, y[:1]), F.silu(x) * y[:1])
    close(gems.silu_and_mul_out(x, y, torch.empty_like(x)), F.silu(x) * y)
    close(gems.gelu_and_mul(x, y), F.gelu(x) * y)
    close(gems.gelu_and_mul(x, y, "tanh"), F.gelu(x, approximate="tanh") * y)
    close(gems.rms_norm(x, [8], w), F.rms_norm(x, [8], w, 1e-5))
    close(gems.rms_norm(x, [3, 8], y[0]), F.rms_norm(x, [3, 8], y[0], 1e-5))
    close(gems.skip_layer_norm(x, y, [8], w, b), F.layer_norm(x + y, [8], w, b))
    close(gems.cross_entropy_loss(x[0], torch.tensor([1, 2, 3])), F.cross_entropy(x[0], torch.tensor([1, 2, 3])))
    close(gems.weight_norm(x[0], w[:3, None]), torch._weight_norm(x[0], w[:3, None]))
    close(gems.fused.outer(w, b), torch.outer(w, b))
    s, t = x.clone(), y.clone()
    got = gems.fused_add_rms_norm(s, t, [8], w)
    assert got[0] is s and got[1] is t
    close(t, x + y)
    close(s, F.rms_norm(x + y, [8], w, 1e-5))
    for glu, act in (
        (gems.swiglu, F.silu),
        (gems.reglu, F.relu),
        (gems.geglu, lambda v: F.gelu(v, approximate="tanh")),
    ):
        z = x.clone().requires_grad_()
        expected = act(z[..., :4]) * z[..., 4:]
        close(glu(x), expected)
        close(
            getattr(gems, f"d{glu.__name__}")(torch.ones_like(expected), x), torch.autograd.grad(expected.sum(), z)[0]
        )


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_matches_the_formula(gems, interleaved):
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 1, 8)
    module = gems.GemsRope(8, 16, 10000.0, interleaved, torch.float32, "cpu")
    cos, sin = module.cos_cached, module.sin_cached

    def turned(t, rows):
        u, v = (t[..., 0::2], t[..., 1::2]) if interleaved else t.chunk(2, -1)
        c, s = (table[rows][..., None, :] for table in (cos, sin))
        a, b = u * c - v * s, v * c + u * s
        return torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)

    positions = torch.arange(3).expand(2, 3)
    for got, t in zip(module(q, k), (q, k), strict=True):
        torch.testing.assert_close(got, turned(t, positions))
    rows = torch.randint(16, (2, 3))
    expected = turned(q, rows), turned(k, rows)
    got = gems.apply_rotary_pos_emb(q, k, cos, sin, rows, interleaved, inplace=True)
    assert got[0] is q and got[1] is k
    torch.testing.assert_close((q, k), expected)


def test_modules_match_torch(gems):
    norm, x = gems.GemsRMSNorm(8), torch.randn(2, 8)
    torch.testing.assert_close(norm(x), F.rms_norm(x, [8], eps=1e-6))
    y, total = norm(x.clone(), x.clone())
    torch.testing.assert_close((y, total), (F.rms_norm(2 * x, [8], eps=1e-6), 2 * x))
    torch.testing.assert_close(gems.GemsSiluAndMul()(x, x), F.silu(x) * x)


# ---- helpers --------------------------------------------------------------------------------------------------------


def test_device_attributes_describe_the_machine(gems):
    from flag_gems import runtime

    assert gems.device == runtime.device.name == "cpu" and isinstance(gems.vendor_name, str)
    assert runtime.torch_device_fn is torch.cpu and runtime.device.dispatch_key == "CPU"
    assert runtime.device.support_fp64 and gems.backend_info is runtime.device


def test_testing_helpers_compare_with_tolerances(gems):
    x = torch.ones(3, dtype=torch.bfloat16)
    gems.testing.assert_close(x, torch.full((3,), 1.01), torch.bfloat16)
    gems.testing.assert_equal(x, x.clone())
    for bad in (lambda: gems.testing.assert_close(x, x, torch.float32), lambda: gems.testing.assert_equal(x, x + 1)):
        with pytest.raises(AssertionError):
            bad()
    with pytest.raises(AssertionError):
        gems.testing.assert_close(x, torch.full((3,), 1.1), torch.bfloat16)


def test_utils_match_flag_gems(gems):
    from flag_gems.utils import broadcastable, broadcastable_to, dim_compress, libentry, restride_dim
    from flag_gems.utils.shape_utils import volume

    x = torch.arange(24).view(2, 3, 4)
    torch.testing.assert_close(dim_compress(x, [0]), x.permute(1, 2, 0))
    assert dim_compress(x, [0]).is_contiguous() and volume((2, 3)) == 6
    assert broadcastable((2, 1), (3,)) and not broadcastable((2, 2), (3,))
    assert broadcastable_to((1,), (2, 3)) and not broadcastable_to((2, 3), (3,))
    assert restride_dim(x, 0, (2, 3, 4)).stride() == (0, 4, 1)
    assert libentry()(len) is len


def test_the_vendors_of_flag_gems_are_those_of_opmux(gems):
    import flag_gems.runtime.backend._nvidia.ops.flash

    import opmux.backends._nvidia.ops

    assert flag_gems.runtime.backend._nvidia.ops is opmux.backends._nvidia.ops
    assert flag_gems.runtime.backend._nvidia.ops.flash is sys.modules["opmux.backends._nvidia.ops.flash"]
    assert flag_gems.runtime.backend is opmux.backends


def test_run_serves_flag_gems_to_a_program(tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text(
        "import torch, flag_gems\n"
        "with flag_gems.use_gems():\n"
        "    y = torch.softmax(torch.zeros(2, 4, device=flag_gems.device), -1)\n"
        "print(y.sum().item(), flag_gems.__name__, callable(flag_gems.add))\n"
    )
    assert run.run([str(script)], ["flag_gems"], shadow=False, module=False) == 0
    assert capsys.readouterr().out == "2.0 opmux.faces.flag_gems.package True\n"
    assert "flag_gems" not in sys.modules
