"""tex's classes for communication that overlaps with a gemm, over torch.distributed, and for FP8 metadata.

A `CommOverlap` owns a buffer on this rank. Each rank of a tensor-parallel group owns `1 / tp_size` of the buffer's
rows, in the order of ranks. `generic_gemm` passes a gemm to `around`, which runs a collective before, after or parallel
to it:

- AG: gather the buffer, then run the gemm, which reads it. Used by the forward of a column-parallel layer for x, and by
  the dgrad of a row-parallel layer for dy. extra_output, if given, receives this rank's part of the buffer.
- RS: run the gemm, then sum its results over the ranks; this rank's rows go to extra_output. Used by the forward of a
  row-parallel layer and the dgrad of a column-parallel layer.
- bulk AG: gather the buffer parallel to an unrelated gemm. Used by dgrad, which gathers x for wgrad.
- bulk RS: sum the buffer over the ranks parallel to an unrelated gemm; this rank's rows go to extra_output, or stay in
  place if there is none. Used by wgrad, which scatters dx.

Callers fill the buffer with `copy_into_buffer(x, local_chunk=True)` and read it with `get_buffer`, which returns a
view. The collective may fill that view later, so the gemm must not read its operands before it is called. The gemm is
the ordinary gemm. It is called once, after all its arguments are checked, because a bulk sum in place cannot be
repeated.

A collective parallel to a gemm runs on the process group's own stream (NCCL) or thread (gloo). A collective before or
after a gemm is not pipelined with pieces of the gemm, so `atomic_gemm`, `num_splits`, `num_comm_sm` and the like are
accepted, but have no effect. cuBLASMp and MPI are not supported.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.errors import NotSupported
from ...specs._checks import check_int, type_name
from .enums import CommOverlapType, torch_dtype
from .quantized import OPS, plain
from .rules import this_device

RS, AG = CommOverlapType.RS, CommOverlapType.AG

# torch 2.13 has renamed these two functions, and warns if the old names are used.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class FP8TensorMeta:
    """Metadata of a set of FP8 tensors: scales and amax history, as three attributes that callers set."""

    def __init__(self) -> None:
        self.scale: Tensor = torch.empty(0)
        self.scale_inv: Tensor = torch.empty(0)
        self.amax_history: Tensor = torch.empty(0)


class CommOverlapHelper:
    """The process groups of overlap objects: all ranks, and those of this tensor-parallel domain."""

    def __init__(self, world_group: Any = None, intra_node_group: Any = None) -> None:
        if world_group is None:
            raise NotSupported(
                "CommOverlapHelper: world_group must be a process group, as MPI is not built in; got None"
            )
        self.world = world_group
        self.intra = world_group if intra_node_group is None else intra_node_group
        self.myrank, self.numranks = dist.get_rank(self.world), dist.get_world_size(self.world)
        self.mylocal, self.numlocal = dist.get_rank(self.intra), dist.get_world_size(self.intra)
        self._groups: dict[tuple[int, str], Any] = {}

    def group(self, tp_size: int, device: torch.device) -> Any:
        """The tensor-parallel group of this rank for tensors of a device. All ranks of the group must call this.

        The groups that callers pass are for bootstrap and use gloo by default, which copies an accelerator's tensors
        through the host. In that case, this creates a group of the same ranks with the device's own backend.
        """
        key = tp_size, device.type
        if key not in self._groups:
            self._groups[key] = self._new_group(tp_size, device)
        return self._groups[key]

    def _new_group(self, tp_size: int, device: torch.device) -> Any:
        device_backend = dist.get_default_backend_for_device(device) if device.type != "cpu" else None
        if self.numlocal == tp_size and (device_backend is None or device_backend in dist.get_backend(self.intra)):
            return self.intra
        if self.numranks % tp_size:
            raise ValueError(f"CommOverlap: tp_size must divide the {self.numranks} ranks of the world; got {tp_size}")
        ranks = dist.get_process_group_ranks(self.intra if self.numlocal == tp_size else self.world)
        if self.numlocal != tp_size:
            first = self.myrank // tp_size * tp_size
            ranks = ranks[first : first + tp_size]
        backend = device_backend or dist.get_backend(self.world)
        return dist.new_group(ranks, backend=backend, use_local_synchronization=True)


class CommOverlapCore:
    """A buffer and its collectives; each rank of a group owns a part of the buffer."""

    p2p = False
    _buffer: Tensor
    _group: Any

    def __init__(self) -> None:
        self._tp_size, self._tp_rank = 1, 0
        self._atomic = False
        self._streams: tuple[Any, Any] | None = None

    def _setup(
        self,
        buffer_shape: Sequence[int],
        buffer_dtype: Any,
        helper: CommOverlapHelper,
        tp_size: int,
        comm_type: Any,
        use_cublasmp: bool,
        atomic_gemm: bool,
        comm_priority: int,
    ) -> None:
        name = type(self).__name__
        if use_cublasmp:
            raise NotSupported(f"{name}: use_cublasmp must be False, as cuBLASMp is not built in; got True")
        if not isinstance(helper, CommOverlapHelper):
            raise TypeError(f"{name}: helper must be a CommOverlapHelper; got {type_name(helper)}")
        check_int(name, "tp_size", tp_size, least=1)
        kind(name, comm_type)
        shape = tuple(int(n) for n in buffer_shape)
        if not shape or shape[0] % tp_size:
            raise ValueError(
                f"{name}: buffer_shape must have a first size that tp_size, {tp_size}, divides; got {shape}"
            )
        device = this_device()
        self._buffer = torch.empty(shape, dtype=torch_dtype(buffer_dtype, name, "buffer_dtype"), device=device)
        self._group = helper.group(tp_size, device)
        self._tp_size, self._tp_rank = tp_size, dist.get_rank(self._group)
        self._atomic, self._priority = bool(atomic_gemm), comm_priority

    def __repr__(self) -> str:
        has = f", {tuple(self._buffer.shape)} {self._buffer.dtype}" if hasattr(self, "_buffer") else ""
        return f"{type(self).__name__}(rank {self._tp_rank} of {self._tp_size}{has})"

    # -- queries

    def get_tp_size(self) -> int:
        return self._tp_size

    def is_atomic_gemm(self) -> bool:
        return self._atomic

    def is_p2p_overlap(self) -> bool:
        return self.p2p

    def is_fp8_ubuf(self) -> bool:
        """Whether the buffer holds bytes: FP8 values are sent as bytes."""
        return self._buffer.element_size() == 1

    def with_cublasmp(self) -> bool:
        return False

    # -- the buffer

    def copy_into_buffer(self, input: Tensor, local_chunk: bool = False) -> None:
        """Copy a tensor with equal numel and element size to the buffer, or to this rank's part of it."""
        name = f"{type(self).__name__}.copy_into_buffer"
        target = self._part() if local_chunk else self._buffer
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: input must be a Tensor; got {type_name(input)}")
        if input.element_size() != target.element_size():
            raise TypeError(f"{name}: input must be as wide as the buffer's {target.dtype}; got {input.dtype}")
        if input.numel() != target.numel():
            part = f"a part of the buffer {tuple(self._buffer.shape)}" if local_chunk else "the buffer"
            raise ValueError(f"{name}: input must have {target.numel()} elements, as {part}; got {tuple(input.shape)}")
        with torch.no_grad():
            target.view(-1).copy_(input.detach().contiguous().view(target.dtype).view(-1))

    def get_buffer(self, local_chunk: bool = False, shape: Sequence[int] | None = None) -> Tensor:
        """A view of the buffer, or of this rank's part of it; `shape` must have the same number of elements."""
        data = self._part() if local_chunk else self._buffer
        if shape is None:
            return data
        if math.prod(shape) != data.numel():
            name = f"{type(self).__name__}.get_buffer"
            raise ValueError(f"{name}: shape must have {data.numel()} elements; got {tuple(shape)}")
        return data.view(tuple(shape))

    def _part(self) -> Tensor:
        rows = self._buffer.shape[0] // self._tp_size
        return self._buffer[self._tp_rank * rows : (self._tp_rank + 1) * rows]

    # -- streams

    def get_communication_stream(self) -> tuple[Any, Any]:
        """The (send, receive) streams for communication parallel to this object's gemms; (None, None) on a CPU.

        The streams wait for all work that was enqueued before the last gemm of `around`.
        """
        if self._buffer.device.type != "cuda":
            return None, None
        if self._streams is None:
            send = torch.cuda.Stream(self._buffer.device, priority=self._priority)
            self._streams = send, torch.cuda.Stream(self._buffer.device, priority=self._priority) if self.p2p else send
            self._sync_streams()
        return self._streams

    def _sync_streams(self) -> None:
        """Make the communication streams wait for all work on the current stream so far."""
        for stream in set(self._streams or ()):
            stream.wait_stream(torch.cuda.current_stream(self._buffer.device))

    # -- collectives

    def around(
        self,
        gemm: Callable[[], list[Any]],
        comm_type: Any,
        bulk_overlap: bool = False,
        extra_output: Tensor | None = None,
    ) -> list[Any]:
        """Run a gemm, and a collective before, after or parallel to it; returns its results, with extra_output last."""
        comm = kind("generic_gemm", comm_type)
        if comm == RS and extra_output is None and not bulk_overlap:
            raise ValueError("generic_gemm: extra_output must be a Tensor for comm_type RS; got None")
        if comm == RS and self.is_fp8_ubuf() and bulk_overlap:
            raise NotSupported("generic_gemm: comm_overlap must not have a buffer of bytes for a bulk RS; got one")
        if self._streams is not None:
            self._sync_streams()
        if bulk_overlap:
            results = self._run_parallel(gemm, comm, extra_output)
        elif comm == AG:
            self.gather()
            results = gemm()
            if extra_output is not None:
                with torch.no_grad():
                    extra_output.view(-1).copy_(self._part().view(extra_output.dtype).view(-1))
        else:
            results = gemm()
            self._scatter_sum(plain(OPS, results[0]), extra_output)
        return [*results[:-1], extra_output]

    def _run_parallel(self, gemm: Callable[[], list[Any]], comm: int, extra_output: Tensor | None) -> list[Any]:
        finish = self.gather(later=True) if comm == AG else self._scatter_sum(self._buffer, extra_output, later=True)
        try:
            return gemm()
        finally:  # complete the collective even if the gemm fails, because other ranks wait in it
            finish()

    def gather(self, later: bool = False) -> Callable[[], None]:
        """All-gather the buffer. With `later`, does not wait: the returned function waits for the result."""
        part = self._part()
        source = part if self._native else part.clone()  # gloo cannot gather in place
        work = _all_gather(self._buffer.view(-1), source.view(-1), group=self._group, async_op=True)
        return self._waited(work, no_op, later)

    def gather_on(self, send_stream: Any, recv_stream: Any) -> None:
        """All-gather on streams of another object, parallel to that object's gemm; then the current stream waits."""
        del recv_stream  # the process group has its own stream
        with torch.cuda.stream(send_stream) if send_stream is not None else nullcontext():
            self.gather()
        if send_stream is not None:
            torch.cuda.current_stream(self._buffer.device).wait_stream(send_stream)

    def _scatter_sum(self, values: Tensor, out: Tensor | None, later: bool = False) -> Callable[[], None]:
        """Reduce-scatter `values`, and write this rank's rows of the sum to `out`, or to `values` if `out` is None."""
        values = values.contiguous()
        rows = values.shape[0] // self._tp_size
        own_rows = slice(self._tp_rank * rows, (self._tp_rank + 1) * rows)
        if values.shape[0] % self._tp_size or (out is not None and out.numel() * self._tp_size != values.numel()):
            actual = "None" if out is None else tuple(out.shape)
            part = f"1 / {self._tp_size} of the rows of {tuple(values.shape)}"
            raise ValueError(f"generic_gemm: extra_output must have {part}; got {actual}")
        if self._native:
            result = torch.empty_like(values[own_rows])
            work = _reduce_scatter(result, values, group=self._group, async_op=True)
        else:  # gloo has no reduce-scatter for every dtype: all-reduce in float32, and take our rows
            total = values.to(torch.float64 if values.dtype == torch.float64 else torch.float32, copy=True)
            result = total[own_rows]
            work = dist.all_reduce(total, group=self._group, async_op=True)
        target = values[own_rows] if out is None else out
        return self._waited(work, lambda: target.copy_(result.view(target.shape)), later)

    @property
    def _native(self) -> bool:
        """Whether the process group is an accelerator's; gloo supports fewer collectives."""
        return self._buffer.device.type != "cpu"

    def _waited(self, work: Any, on_done: Callable[[], Any], later: bool) -> Callable[[], None]:
        def finish() -> None:
            work.wait()
            with torch.no_grad():
                on_done()

        if later:
            return finish
        finish()
        return no_op


class CommOverlapBase(CommOverlapCore):
    """Collectives on the whole buffer."""


class CommOverlapP2PBase(CommOverlapCore):
    """NVIDIA's class uses a ring of sends; this class uses the same collectives as CommOverlapBase."""

    p2p = True


class CommOverlap(CommOverlapBase):
    """Overlap by collectives: all-gather and reduce-scatter of a buffer with a gemm."""

    def __init__(
        self,
        buffer_shape: Sequence[int],
        buffer_dtype: Any,
        helper: CommOverlapHelper,
        tp_size: int,
        use_cublasmp: bool = False,
        comm_type: Any = RS,
        num_splits: int = 4,
        num_max_streams: int = 3,
        comm_cga_size: int = 2,
        gemm_priority: int = 0,
        comm_priority: int = 0,
        num_comm_sm: int = 16,
        set_sm_margin: bool = True,
        atomic_gemm: bool = False,
        rs_overlap_first_gemm: bool = False,
    ) -> None:
        super().__init__()
        del num_splits, num_max_streams, comm_cga_size, gemm_priority, num_comm_sm, set_sm_margin
        del rs_overlap_first_gemm
        self._setup(buffer_shape, buffer_dtype, helper, tp_size, comm_type, use_cublasmp, atomic_gemm, comm_priority)


class CommOverlapP2P(CommOverlapP2PBase):
    """The interface of point-to-point overlap, with the collectives of CommOverlap."""

    def __init__(
        self,
        buffer_shape: Sequence[int],
        buffer_dtype: Any,
        helper: CommOverlapHelper,
        tp_size: int,
        comm_type: Any,
        num_max_streams: int = 3,
        comm_cga_size: int = 1,
        gemm_priority: int = 0,
        comm_priority: int = 0,
        num_comm_sm: int = 1,
        set_sm_margin: bool = False,
        atomic_gemm: bool = False,
        use_ce: bool = True,
        aggregate: bool = False,
        use_cublasmp: bool = False,
    ) -> None:
        super().__init__()
        del num_max_streams, comm_cga_size, gemm_priority, num_comm_sm, set_sm_margin, use_ce, aggregate
        self._setup(buffer_shape, buffer_dtype, helper, tp_size, comm_type, use_cublasmp, atomic_gemm, comm_priority)


CLASSES = (
    FP8TensorMeta,
    CommOverlapCore,
    CommOverlapBase,
    CommOverlapP2PBase,
    CommOverlapHelper,
    CommOverlap,
    CommOverlapP2P,
)


def kind(op: str, comm_type: Any) -> int:
    """RS or AG, from NVIDIA's enum or ours."""
    try:
        return CommOverlapType(int(comm_type))
    except (TypeError, ValueError):
        raise ValueError(f"{op}: comm_type must be RS or AG, with a comm_overlap; got {comm_type!r}") from None


def no_op() -> None:
    """A no-op, for a collective that is already complete."""
