"""tex's overlap objects on a GPU: one rank over NCCL, bootstrapped with gloo as Transformer Engine does."""

import pytest
import torch
import torch.distributed as dist

from opmux import tex

pytestmark = pytest.mark.gpu

ROWS, IN, OUT = 256, 128, 64


@pytest.fixture(scope="module")
def helper():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield tex.CommOverlapHelper(dist.group.WORLD, dist.group.WORLD)
    finally:
        dist.destroy_process_group()


def gemm(a, b, ub, comm_type, **rest):
    workspace = torch.empty(0, dtype=torch.uint8, device="cuda")
    fixed = None, None, tex.DType.kBFloat16, None, tex.DType.kBFloat16, False, None, False, workspace, 0, False, False
    return tex.generic_gemm(a, True, b, False, *fixed, comm_overlap=ub, comm_type=comm_type, **rest)


@pytest.mark.parametrize("name, more", [("CommOverlap", ()), ("CommOverlapP2P", (1,))])
def test_gemm_with_overlap_of_one_rank_equals_plain_gemm(helper, name, more):
    ub = getattr(tex, name)([ROWS, IN], torch.bfloat16, helper, 1, *more)
    assert ub.get_buffer().is_cuda and dist.get_backend(ub._group) == "nccl"
    x = torch.randn(ROWS, IN, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(OUT, IN, device="cuda", dtype=torch.bfloat16)
    plain = gemm(w, x, None, None)[0]
    ub.copy_into_buffer(x, local_chunk=True)
    assert torch.equal(gemm(w, ub.get_buffer(), ub, 1)[0], plain)
    mine = torch.zeros(ROWS, OUT, device="cuda", dtype=torch.bfloat16)
    assert gemm(w, x, ub, 0, extra_output=mine)[3] is mine
    assert torch.equal(mine, plain)
    for comm_type in (0, 1):
        assert torch.equal(gemm(w, x, ub, comm_type, bulk_overlap=True)[0], plain)
        assert torch.equal(ub.get_buffer(), x)


def test_an_overlap_object_can_gather_on_another_objects_streams(helper):
    ub = tex.CommOverlapP2P([ROWS, IN], torch.bfloat16, helper, 1, 1)
    other = tex.CommOverlap([ROWS, IN], torch.bfloat16, helper, 1, comm_type=1)
    send, recv = ub.get_communication_stream()
    assert send != recv and other.get_communication_stream()[0] == other.get_communication_stream()[1]
    x = torch.randn(ROWS, IN, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(OUT, IN, device="cuda", dtype=torch.bfloat16)
    ub.copy_into_buffer(x)
    gemm(w, ub.get_buffer(), ub, 1)
    with torch.cuda.stream(send):
        other.copy_into_buffer(x, local_chunk=True)
    tex.bulk_overlap_ag_with_external_gemm(other, send, recv)
    assert torch.equal(other.get_buffer(), x)


def test_stream_priority_range_comes_from_the_driver():
    low, high = tex.get_stream_priority_range()
    assert low == 0 and high < 0
    torch.cuda.Stream(priority=high).synchronize()
