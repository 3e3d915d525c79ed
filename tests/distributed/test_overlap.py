"""Two processes over gloo: a gemm overlapped with a collective gives the result of one process."""

from __future__ import annotations

import importlib.util
import os
import warnings

import pytest
import ranks
import torch
import torch.distributed as dist

from opmux import tex
from opmux.faces.tex import overlap

ROWS, IN, OUT, RANKS = 8, 6, 4, 2
HAS_TE = importlib.util.find_spec("transformer_engine") is not None
KINDS = {"CommOverlap": (), "CommOverlapP2P": (tex.CommOverlapType.AG,)}


def drawn(seed: int, *shape: int) -> torch.Tensor:
    """Small integers: their sums and products are exact in every dtype."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


X, W, DY = drawn(1, ROWS, IN), drawn(2, OUT, IN), drawn(3, ROWS, OUT)


def part(t: torch.Tensor, rank: int, dim: int = 0) -> torch.Tensor:
    return t.chunk(RANKS, dim)[rank].contiguous()


def gemm(a, b, layout, ub=None, **rest):
    """Call generic_gemm as Transformer Engine does."""
    workspace = torch.empty(0, dtype=torch.uint8)
    fixed = None, None, tex.DType.kFloat32, None, tex.DType.kFloat32, False, None, False, workspace, 0, False, False
    d, *others = fixed
    d = rest.pop("out", d)
    return tex.generic_gemm(a, layout[0] == "T", b, layout[1] == "T", d, *others, comm_overlap=ub, **rest)


def gather_then_gemm(ub, rank):
    """The forward of a column-parallel layer: y = (all rows of x) times this rank's part of the weight."""
    ub.copy_into_buffer(part(X, rank), local_chunk=True)
    y, *_, extra = gemm(part(W, rank), ub.get_buffer(shape=[ROWS, IN]), "TN", ub, comm_type=tex.CommOverlapType.AG)
    assert extra is None
    return y, part(X @ W.t(), rank, dim=1)


def gather_and_keep(ub, rank):
    """Checks that extra_output gets this rank's part of the buffer."""
    ub.copy_into_buffer(part(X, rank), local_chunk=True)
    own = torch.zeros(ROWS // RANKS, IN)
    *_, extra = gemm(W, ub.get_buffer(), "TN", ub, comm_type=1, extra_output=own)
    assert extra is own
    return own, part(X, rank)


def gemm_then_scatter(ub, rank):
    """The forward of a row-parallel layer: the ranks' products, each over a part of x's columns, are summed."""
    mine = torch.zeros(ROWS // RANKS, OUT)
    x, w = part(X, rank, dim=1), part(W, rank, dim=1)
    *_, extra = gemm(w, x, "TN", ub, comm_type=tex.CommOverlapType.RS, extra_output=mine)
    assert extra is mine
    return mine, part(X @ W.t(), rank)


def gather_beside(ub, rank):
    """Compute dx, which does not need x, while a bulk all-gather of x runs."""
    ub.copy_into_buffer(part(X, rank), local_chunk=True)
    dx, *_ = gemm(W, DY, "NN", ub, comm_type=tex.CommOverlapType.AG, bulk_overlap=True)
    return torch.cat((dx, ub.get_buffer())), torch.cat((DY @ W, X))


def scatter_beside(ub, rank):
    """Compute dw while a bulk reduce-scatter of dx runs in the communication buffer."""
    dx = gemm(part(W, rank), part(DY, rank, dim=1), "NN", out=ub.get_buffer())[0]
    assert dx.data_ptr() == ub.get_buffer().data_ptr()
    dw, *_ = gemm(X, DY, "NT", ub, comm_type=tex.CommOverlapType.RS, bulk_overlap=True)
    return torch.cat((dw, ub.get_buffer(local_chunk=True))), torch.cat((DY.t() @ X, part(DY @ W, rank)))


def scatter_beside_into(ub, rank):
    """Compute dw while a bulk reduce-scatter of dx writes to `extra_output`."""
    ub.copy_into_buffer(X * (rank + 1))
    mine = torch.zeros(ROWS // RANKS, IN)
    gemm(X, DY, "NT", ub, comm_type=0, bulk_overlap=True, extra_output=mine)
    return mine, part(X * 3, rank)


def gather_for_another(ub, rank):
    """bulk_overlap_ag_with_external_gemm: the all-gather runs on the streams of another overlap object."""
    assert ub.get_communication_stream() == (None, None)
    ub.copy_into_buffer(part(X, rank), local_chunk=True)
    assert tex.bulk_overlap_ag_with_external_gemm(ub, None, None) is None
    return ub.get_buffer(shape=[ROWS * IN]), X.view(-1)


CASES = [
    gather_then_gemm, gather_and_keep, gemm_then_scatter, gather_beside, scatter_beside, scatter_beside_into,
    gather_for_another,
]  # fmt: skip


# Cases of te.Linear: parallel mode, name, and what overlaps with what.
LAYERS = {
    "bulk": ("column", "qkv", {"ub_overlap_ag": True, "ub_bulk_dgrad": True, "ub_bulk_wgrad": True}),
    "gather": ("column", "fc1", {"ub_overlap_ag": True}),
    "scatter": ("row", "proj", {"ub_overlap_rs": True, "ub_overlap_ag": True}),
}


def layers(rank):
    """Whether NVIDIA's own te.Linear has the same results and gradients with and without overlap."""
    os.environ["UB_SKIPMC"] = "1"  # turns multicast off
    importlib.import_module("opmux.te")
    import transformer_engine.pytorch as te
    from transformer_engine.pytorch.module.base import UserBufferQuantizationMode, initialize_ub

    modes = [UserBufferQuantizationMode.NONE]
    initialize_ub([64, 32], RANKS, quantization_modes=modes, dtype=torch.float32, bootstrap_backend="gloo")

    def run(mode, **overlapping):
        torch.manual_seed(rank)
        sizes = (32, 48) if mode == "column" else (48, 32)
        group = {"tp_group": dist.group.WORLD, "tp_size": RANKS, "sequence_parallel": True, "parallel_mode": mode}
        layer = te.Linear(*sizes, params_dtype=torch.float32, device="cpu", **group, **overlapping)
        x = torch.randn((64 // RANKS, 32) if mode == "column" else (64, 48 // RANKS), requires_grad=True)
        y = layer(x)
        y.backward(torch.randn_like(y))
        return y, x.grad, *(p.grad for p in layer.parameters())

    for name, (mode, ub_name, options) in LAYERS.items():
        yield name, all(map(torch.equal, run(mode, ub_name=ub_name, **options), run(mode)))


def _rank(rank: int, port: int, answers) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    try:
        helper = tex.CommOverlapHelper(dist.group.WORLD, dist.group.WORLD)
        for name, more in KINDS.items():
            for dtype in (torch.float32, tex.DType.kBFloat16):
                ub = getattr(tex, name)([ROWS, IN], dtype, helper, RANKS, *more)
                assert (ub.get_tp_size(), ub.is_p2p_overlap(), ub.is_fp8_ubuf()) == (RANKS, name.endswith("P"), False)
                for case in CASES if dtype is torch.float32 else ():
                    got, want = case(ub, rank)
                    answers[rank, name, case.__name__] = torch.equal(got, want)
                # copy_into_buffer writes each rank's part at the rank's position, in the buffer's dtype
                ub.copy_into_buffer(part(X, rank).to(ub.get_buffer().dtype), local_chunk=True)
                ub.gather()
                answers[rank, name, str(ub.get_buffer().dtype)] = torch.equal(ub.get_buffer().float(), X)
        fp8 = tex.CommOverlap([ROWS, IN], torch.uint8, helper, RANKS)
        fp8.copy_into_buffer(part(X, rank).to(torch.float8_e4m3fn), local_chunk=True)
        fp8.gather()
        same = torch.equal(fp8.get_buffer().view(torch.float8_e4m3fn).float(), X)
        answers[rank, "CommOverlap", "bytes"] = fp8.is_fp8_ubuf() and same
        alone = tex.CommOverlap([ROWS, IN], torch.float32, helper, 1)  # each rank is a group of its own
        alone.copy_into_buffer(X + rank)
        mine = torch.zeros(ROWS, OUT)
        gemm(W, alone.get_buffer(), "TN", alone, comm_type=0, extra_output=mine)
        answers[rank, "CommOverlap", "alone"] = torch.equal(mine, (X + rank) @ W.t())
        for name, right in layers(rank) if HAS_TE else ():
            answers[rank, "te.Linear", name] = right
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_overlap_on_two_ranks_gives_the_results_of_one():
    results = ranks.run(_rank, RANKS)
    assert len(results) == RANKS * (len(KINDS) * (len(CASES) + 2) + 2 + len(LAYERS) * HAS_TE)
    assert not [key for key, right in results.items() if not right]


@pytest.fixture(scope="module")
def ub():
    """An overlap object in a group of one process."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    store = dist.TCPStore("127.0.0.1", ranks.port(), 1, is_master=True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        helper = tex.CommOverlapHelper(dist.group.WORLD)
        yield tex.CommOverlap([ROWS, IN], torch.float32, helper, 1, comm_type=tex.CommOverlapType.AG)
    finally:
        dist.destroy_process_group()


def test_invalid_overlap_arguments_raise(ub):
    helper = overlap.CommOverlapHelper(dist.group.WORLD)
    with pytest.raises(NotImplementedError, match="MPI is not built in"):
        tex.CommOverlapHelper()
    with pytest.raises(NotImplementedError, match="CommOverlapP2P: use_cublasmp must be False"):
        tex.CommOverlapP2P([ROWS, IN], torch.float32, helper, 1, 0, use_cublasmp=True)
    with pytest.raises(ValueError, match="buffer_shape must have a first size that tp_size, 3, divides"):
        tex.CommOverlap([ROWS, IN], torch.float32, helper, 3)
    with pytest.raises(ValueError, match="comm_type must be RS or AG"):
        tex.CommOverlapP2P([ROWS, IN], torch.float32, helper, 1, 7)
    with pytest.raises(TypeError, match="helper must be a CommOverlapHelper; got None"):
        tex.CommOverlap([ROWS, IN], torch.float32, None, 1)
    with pytest.raises(TypeError, match="buffer_dtype must be a DType"):
        tex.CommOverlap([ROWS, IN], "float", helper, 1)
    with pytest.raises(ValueError, match=r"input must have 48 elements.*got \(7, 6\)"):
        ub.copy_into_buffer(X[1:], local_chunk=True)
    with pytest.raises(TypeError, match="as wide as the buffer's torch.float32; got torch.bfloat16"):
        ub.copy_into_buffer(X.bfloat16())
    with pytest.raises(ValueError, match="shape must have 48 elements"):
        ub.get_buffer(shape=[3])
    with pytest.raises(ValueError, match="extra_output must be a Tensor for comm_type RS; got None"):
        gemm(W, X, "TN", ub, comm_type=0)
    with pytest.raises(ValueError, match="comm_type must be RS or AG"):
        gemm(W, X, "TN", ub)
    with pytest.raises(ValueError, match="extra_output must have 1 / 1 of the rows"):
        gemm(W, X, "TN", ub, comm_type=0, extra_output=torch.zeros(3, OUT))


def test_a_failing_gemm_still_waits_for_its_collective(ub):
    """Without this wait the other ranks would hang."""
    ub.copy_into_buffer(X)

    def fails():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        ub.around(fails, 1, True)
    assert torch.equal(ub.get_buffer(), X)


def test_fp8_tensor_meta_has_scale_scale_inv_and_amax_history():
    meta = tex.FP8TensorMeta()
    assert [getattr(meta, n).numel() for n in ("scale", "scale_inv", "amax_history")] == [0, 0, 0]
    meta.scale = X
    assert meta.scale is X
