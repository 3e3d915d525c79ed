"""tex functions that query the machine, and functions that need several GPUs or libraries that opmux lacks.

Functions that make sense on one device are implemented. The table UNAVAILABLE lists all others: each raises
NotSupported, and the error says what the function needs and what to use instead.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from ....core.contract import AnyTensor, at_least, below, dtypes
from ....core.errors import BadArgument, NotSupported
from ....core.spec import Sample, op
from ....specs._checks import type_name


def samples(*args: Any, loose: bool = False) -> Callable[..., Iterable[Sample]]:
    """One sample for every dtype and device."""
    return lambda dtype, device: [Sample(args, id="one", loose=loose)]


# ---- versions -------------------------------------------------------------------------------------------------------


@op(space="tex", out="version", samples=samples())
def get_cublasLt_version() -> int:
    """120900, whatever is installed.

    From 130300 on Transformer Engine uses GroupedTensors for expert gemms. Their sizes are on the device, and our gemms
    would read them on the host. For older versions it uses lists of gemms. FP8 needs at least 120103.
    """
    return 120900


@op(space="tex", out="version", samples=samples())
def get_cudnn_version() -> int:
    """cuDNN's version, major * 10000 + minor * 100 + patch: that of torch's cuDNN, or 91200 without one.

    Transformer Engine uses it to choose an attention backend among those that get_fused_attn_backend reports.
    """
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return 91200 if version is None else version


@op(space="tex", out="number", samples=samples())
def get_num_cublas_streams() -> int:
    """4. Transformer Engine allocates this many workspaces for grouped gemms; our gemms do not need them."""
    return 4


# ---- the device -----------------------------------------------------------------------------------------------------


DeviceId = Annotated[int, at_least(-1)]


@op(space="tex", out="supported", samples=samples(-1))
def device_supports_multicast(device_id: DeviceId = -1) -> bool:
    """False: multicast is not supported."""
    return False


@op(space="tex", out="low high", samples=samples(-1))
def get_stream_priority_range(device_id: DeviceId = -1) -> tuple[int, int]:
    """(lowest, highest) priority of a CUDA stream, where a lower number is a higher priority; (0, 0) without CUDA."""
    if not torch.cuda.is_available():
        return 0, 0
    stream: Any = torch.cuda.Stream
    with torch.cuda.device(device_id):
        low, high = stream.priority_range()
    return low, high


@op(space="tex", out="built", samples=samples())
def ubuf_built_with_mpi() -> bool:
    """False: torch.distributed is used instead of MPI."""
    return False


@op(space="tex", out="built", samples=samples())
def nvte_built_with_cublasmp() -> bool:
    """False."""
    return False


# ---- overlap --------------------------------------------------------------------------------------------------------


class SingleRank:
    """The communicator of a sample; it does nothing, because a single rank has nothing to gather."""

    def gather_on(self, send_stream: Any, recv_stream: Any) -> None:
        """No-op."""


@op(space="tex", out="", mutates=("allgather_communicator",), samples=samples(SingleRank(), None, None))
def bulk_overlap_ag_with_external_gemm(allgather_communicator: Any, send_stream: Any, recv_stream: Any) -> None:
    """All-gather the buffer of a CommOverlap on the streams of another object, parallel to that object's gemm; then
    synchronize the current stream."""
    if not hasattr(allgather_communicator, "gather_on"):
        got = type_name(allgather_communicator)
        raise BadArgument.of(
            "bulk_overlap_ag_with_external_gemm", "allgather_communicator", "be a CommOverlap", str(got), TypeError
        )
    for name, stream in (("send_stream", send_stream), ("recv_stream", recv_stream)):
        if stream is not None and not hasattr(stream, "wait_stream"):
            raise BadArgument.of(
                "bulk_overlap_ag_with_external_gemm", name, "be a stream or None", type_name(stream), TypeError
            )
    with torch.no_grad():
        allgather_communicator.gather_on(send_stream, recv_stream)


# ---- Newton-Schulz --------------------------------------------------------------------------------------------------

# The numbers of open contexts. Numbers are never reused; 0 means no context.
CONTEXTS: set[int] = set()
_numbers = itertools.count(1)


@op(space="tex", out="ctx", samples=samples(0, 1, 0, loose=True))
def cusolvermp_ctx_create(
    nccl_comm_ptr: int, nranks: Annotated[int, at_least(1)], rank: Annotated[int, at_least(0), below("nranks")]
) -> int:
    """The number of a new context for newton_schulz with a single rank."""
    if nranks != 1:
        raise NotSupported(
            "cusolvermp_ctx_create: nranks must be 1, as a matrix spread over several ranks needs cuSOLVERMp, which is "
            f"not built in; got {nranks}. Gather the matrix and use a context of one rank, (0, 1, 0)"
        )
    ctx = next(_numbers)
    CONTEXTS.add(ctx)
    return ctx


def is_open(op: str, ctx_ptr: int) -> None:
    if ctx_ptr not in CONTEXTS:
        raise BadArgument.of(op, "ctx_ptr", "be of cusolvermp_ctx_create, and not destroyed", str(ctx_ptr))


def _context(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    yield Sample((cusolvermp_ctx_create(0, 1, 0),), id="one", loose=True)  # a context can be destroyed only once


@op(space="tex", out="", samples=_context, where=is_open)
def cusolvermp_ctx_destroy(ctx_ptr: int) -> None:
    """Destroy a context."""
    CONTEXTS.discard(ctx_ptr)


def _matrices(dtype: torch.dtype, device: Any) -> Iterator[Sample]:
    dtype = dtype if dtype in SCHULZ else torch.float32
    steps = [3.4445, -4.7750, 2.0315, 2.8366, -3.0525, 1.2012]
    for m, n in ((4, 6), (6, 4)):
        x = torch.randn(m, n, generator=torch.Generator().manual_seed(7))
        x = (x / torch.linalg.matrix_norm(x)).to(device, dtype)
        yield Sample((cusolvermp_ctx_create(0, 1, 0), m, n, x, 2, steps), id=f"{m} x {n}")


SCHULZ = (torch.float32, torch.bfloat16)


def three_for_each(op: str, num_iterations: int, coefficients: list[float]) -> None:
    if len(coefficients) != 3 * num_iterations:
        expected = f"have {3 * num_iterations} items, three for each of {{num_iterations}}"
        raise BadArgument.of(op, "coefficients", expected, str(len(coefficients)))


Count = Annotated[int, at_least(0)]


@op(space="tex", out="", mutates=("x",), samples=_matrices, where=(is_open, three_for_each))
def newton_schulz(
    ctx_ptr: int,
    m: Count,
    n: Count,
    x: AnyTensor[Tensor, "m n", dtypes(SCHULZ)],
    num_iterations: Count,
    coefficients: list[float],
) -> None:
    """Iterate x = a x + b (x x') x + c (x x')(x x') x in place, for each triple of coefficients.

    Converges to the nearest orthogonal matrix if all singular values of x are at most 1. Computed in float32 and
    rounded once.
    """
    with torch.no_grad():
        y = x.float()
        y = y.t() if m > n else y  # the smaller of the two products
        for i in range(num_iterations):
            a, b, c = coefficients[3 * i : 3 * i + 3]
            square = y @ y.t()
            y = a * y + torch.addmm(b * square, square, square, alpha=c) @ y
        x.copy_(y.t() if m > n else y)


# ---- expert parallel: queries, without a group ----------------------------------------------------------------------


@op(space="tex", out="", samples=samples())
def ep_finalize() -> None:
    """No-op: no expert-parallel group is open."""


@op(space="tex", out="on", samples=samples())
def ep_get_zero_copy() -> bool:
    """False: no expert-parallel group is open."""
    return False


@op(space="tex", out="supported", samples=samples())
def ep_zero_copy_supported() -> bool:
    """False."""
    return False


# ---- unavailable ----------------------------------------------------------------------------------------------------


class Unavailable(NamedTuple):
    """A function that is not supported: its parameters, what it needs, and what to use instead."""

    parameters: str  # `name=default`; `name=?`: required, after parameters with defaults
    needs: str
    instead: str


NVSHMEM = "NVSHMEM and several GPUs"
EP = "NCCL's expert parallel library (2.30.4) and several GPUs"
ALL_TO_ALL = "torch.distributed.all_to_all_single, with moe_permute_fwd and moe_unpermute_fwd on each rank"
SYMMETRIC = "torch.distributed._symmetric_memory"

UNAVAILABLE = {
    "init_nvshmem_backend": Unavailable("process_group", NVSHMEM, SYMMETRIC),
    "create_nvshmem_tensor": Unavailable("shape dtype", NVSHMEM, f"{SYMMETRIC}.empty"),
    "nvshmem_send_on_current_stream": Unavailable("src dst peer signal", NVSHMEM, "torch.distributed.isend"),
    "nvshmem_wait_on_current_stream": Unavailable("signal wait_kind", NVSHMEM, "torch.distributed.irecv"),
    "nvshmem_finalize": Unavailable("", NVSHMEM, "torch.distributed.destroy_process_group"),
    "ep_initialize": Unavailable(
        "comm_ptr group_name num_experts max_tokens_per_rank max_recv_tokens_per_rank hidden_dim max_num_sms=0 "
        "max_token_dtype=? zero_copy=False num_topk=0 drop_on_overflow=False",
        EP,
        ALL_TO_ALL,
    ),
    "ep_handle_mem_size": Unavailable("top_k dispatch_output_per_expert_alignment=0", EP, ALL_TO_ALL),
    "ep_prepare": Unavailable(
        "handle_mem topk_idx tokens_per_expert top_k dispatch_output_per_expert_alignment total_recv_tokens",
        EP,
        ALL_TO_ALL,
    ),
    "ep_dispatch": Unavailable(
        "handle_mem topk_idx tokens topk_weights recv_tokens recv_topk_weights tokens_scale_inv=None "
        "recv_scale_inv=None",
        EP,
        ALL_TO_ALL,
    ),
    "ep_combine": Unavailable("handle_mem expert_out result", EP, ALL_TO_ALL),
    "ep_dispatch_bwd": Unavailable("handle_mem grad g_recv_topk_weights grad_tokens grad_topk_weights", EP, ALL_TO_ALL),
    "ep_combine_bwd": Unavailable(
        "handle_mem grad grad_expert_out grad_scale_inv=None grad_expert_out_scale_inv=None", EP, ALL_TO_ALL
    ),
}

DEFAULTS: dict[str, Any] = {"0": 0, "False": False, "None": None, "?": None}


def signature(row: Unavailable) -> inspect.Signature:
    """The signature of an unsupported function. A required parameter after optional ones gets the default None."""
    parameters = []
    for text in row.parameters.split():
        name, equals, default = text.partition("=")
        value = DEFAULTS[default] if equals else inspect.Parameter.empty
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kind, default=value, annotation=Any))
    return inspect.Signature(parameters)


def declare(name: str, row: Unavailable) -> None:
    takes = signature(row)
    words = ", ".join(takes.parameters)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        takes.bind(*args, **kwargs)
        raise NotSupported(f"{name}({words}): needs {row.needs}, which opmux does not include; use {row.instead}")

    fn: Any = refuse
    fn.__name__ = name
    fn.__signature__ = takes
    fn.__annotations__ = dict.fromkeys(takes.parameters, Any)
    fn.__doc__ = f"Not supported: it needs {row.needs}. Use {row.instead}."
    arguments = tuple(None for p in takes.parameters.values() if p.default is p.empty)
    globals()[name] = op(fn, space="tex", out="", samples=samples(*arguments))


for _name, _row in UNAVAILABLE.items():
    declare(_name, _row)
