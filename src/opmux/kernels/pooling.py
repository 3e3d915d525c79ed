"""Average and maximum pooling over one to three dimensions: strided, adaptive and fractional windows; unpooling.

Every kernel gathers: a result element reads its window, and a gradient reads the windows that contain its element. So
gradients need no atomics and are deterministic. Overlapping windows hit the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..specs import pooling as spec
from .lib.harness import Launch, Plan, Zeros, planned, planned_by
from .lib.indexing import index_dtype
from .lib.launch import Launcher
from .lib.maths import div
from .lib.meta import output_specs
from .lib.planes import (
    Planes,
    check_floats,
    lanes,
    per_axis,
    per_element,
    plane,
    plane_tiles,
    unravel,
    zyx,
)
from .lib.rows import OutputSpec, wide_of

# ---- windows --------------------------------------------------------------------------------------------------------


@triton.jit
def fractional_start(at, sample, n_in, n_out, K: tl.constexpr):
    """The first index of a fractional window, given a random sample; the last window ends where the input ends."""
    alpha = div((n_in - K).to(sample.dtype), tl.maximum(n_out - 1, 1).to(sample.dtype))
    begin = ((at.to(sample.dtype) + sample) * alpha).to(tl.int32) - (sample * alpha).to(tl.int32)
    return tl.where(at == n_out - 1, n_in - K, begin.to(at.dtype))


@triton.jit
def window(at, sample, n_in, n_out, WINDOW: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr):
    """The first index of a window (it may be in the padding), and the index after the last one."""
    if WINDOW == "adaptive":
        first = at.to(tl.int64) * n_in // n_out
        end = ((at.to(tl.int64) + 1) * n_in + n_out - 1) // n_out
        return first.to(at.dtype), end.to(at.dtype)
    elif WINDOW == "fractional":
        first = fractional_start(at, sample, n_in, n_out, K)
        return first, first + K
    else:
        first = at * S - P
        return first, tl.minimum(first + K, n_in + P)


@triton.jit
def extent(first, end, n_in, COUNT_PAD: tl.constexpr):
    """The number of elements of a window that an average counts along one dimension."""
    if COUNT_PAD:
        return end - first
    else:
        return tl.minimum(end, n_in) - tl.maximum(first, 0)


@triton.jit
def windows(at, n_in, n_out, WINDOW: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, D: tl.constexpr):
    """The first and the last window that may contain an index."""
    if WINDOW == "adaptive":
        first = at.to(tl.int64) * n_out // n_in
        last = ((at.to(tl.int64) + 1) * n_out + n_in - 1) // n_in - 1
        return first.to(at.dtype), last.to(at.dtype)
    # these bounds hold for any sample: windows are (n_in - K) / (n_out - 1) apart, rounded
    elif WINDOW == "fractional":
        apart = tl.maximum(n_in - K, 1)
        first = tl.maximum(at - K, 0) * (n_out - 1) // apart - 2
        last = (at + 1) * (n_out - 1) // apart + 2
        return tl.maximum(first, 0), tl.minimum(last, n_out - 1)
    else:
        first = tl.maximum(at + P - (K - 1) * D + S - 1, 0) // S
        return first, tl.minimum((at + P) // S, n_out - 1)


# ---- kernels --------------------------------------------------------------------------------------------------------


def _pool(x_ptr, y_ptr, index_ptr, sample_ptr, n, n_c, n_z, n_y, n_x, i_z, i_y, i_x, x_sn, x_sc, x_sz, x_sy, x_sx,
          divisor,
          MAX: tl.constexpr, WINDOW: tl.constexpr, COUNT_PAD: tl.constexpr,
          KZ: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr, SZ: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
          PZ: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr, DZ: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
          RANK: tl.constexpr, LAST: tl.constexpr, TIGHT: tl.constexpr, INDEX: tl.constexpr, FULL: tl.constexpr,
          WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The average or the maximum of each window; K: the longest window along a dimension."""
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    b, c, z, y, x = unravel(o, n_c, n_z, n_y, n_x, RANK, LAST)
    u_y = tl.full([BLOCK], 0, WIDE)
    u_x = tl.full([BLOCK], 0, WIDE)
    if WINDOW == "fractional":  # samples are [n, c, (x, y)]
        at = (b * n_c + c) * 2
        u_x = tl.load(sample_ptr + at, mask=inside, other=0.0).to(WIDE)
        u_y = tl.load(sample_ptr + at + 1, mask=inside, other=0.0).to(WIDE)
    b_z, e_z = window(z, u_y, i_z, n_z, WINDOW, KZ, SZ, PZ)
    b_y, e_y = window(y, u_y, i_y, n_y, WINDOW, KY, SY, PY)
    b_x, e_x = window(x, u_x, i_x, n_x, WINDOW, KX, SX, PX)
    base = plane(b, c, x_sn, x_sc, TIGHT)
    acc = tl.full([BLOCK], 0, WIDE)
    best = tl.full([BLOCK], float("-inf"), WIDE)
    index = tl.full([BLOCK], -1, INDEX)
    for k_z in range(KZ):
        p_z = b_z + k_z * DZ
        in_z = inside & (p_z >= 0) & (p_z < i_z)
        if WINDOW == "adaptive":
            in_z = in_z & (p_z < e_z)
        for k_y in range(KY):
            p_y = b_y + k_y * DY
            in_y = in_z & (p_y >= 0) & (p_y < i_y)
            if WINDOW == "adaptive":
                in_y = in_y & (p_y < e_y)
            row = base + p_z * x_sz + p_y * x_sy
            for k_0 in range(0, KX, 8):
                for k_1 in tl.static_range(8 if KX > 8 else KX):  # issue all loads of a row at once
                    p_x = b_x + (k_0 + k_1) * DX
                    m = in_y & (p_x >= 0) & (p_x < i_x)
                    if WINDOW == "adaptive":
                        m = m & (p_x < e_x)
                    elif KX > 8:
                        m = m & (k_0 + k_1 < KX)
                    v = tl.load(x_ptr + row + p_x * x_sx, mask=m, other=0.0).to(WIDE)
                    if MAX:
                        take = m & ((v > best) | (v != v) | (index < 0))
                        best = tl.where(take, v, best)
                        index = tl.where(take, (p_z * i_y + p_y) * i_x + p_x, index)
                    else:
                        acc += v
    if MAX:
        tl.store(y_ptr + o, best, mask=inside)
        tl.store(index_ptr + o, index.to(tl.int64), mask=inside)
    else:
        if divisor == 0:
            count = extent(b_z, e_z, i_z, COUNT_PAD) * extent(b_y, e_y, i_y, COUNT_PAD)
            acc = acc / (count * extent(b_x, e_x, i_x, COUNT_PAD)).to(WIDE)
        else:
            acc = acc / divisor.to(WIDE)
        tl.store(y_ptr + o, acc, mask=inside)


def _pool_bwd(dy_ptr, index_ptr, dx_ptr, n, n_c, n_z, n_y, n_x, o_z, o_y, o_x,
              dy_sn, dy_sc, dy_sz, dy_sy, dy_sx, index_sn, index_sc, index_sz, index_sy, index_sx, divisor,
              MAX: tl.constexpr, WINDOW: tl.constexpr, COUNT_PAD: tl.constexpr,
              WZ: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr,
              KZ: tl.constexpr, KY: tl.constexpr, KX: tl.constexpr,
              SZ: tl.constexpr, SY: tl.constexpr, SX: tl.constexpr,
              PZ: tl.constexpr, PY: tl.constexpr, PX: tl.constexpr,
              DZ: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr,
              RANK: tl.constexpr, LAST: tl.constexpr, TIGHT: tl.constexpr, INDEX: tl.constexpr, FULL: tl.constexpr,
              WIDE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The gradient of each input element: the sum over the windows that contain it.

    Along each dimension, at most W windows contain it.
    """
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    b, c, z, y, x = unravel(o, n_c, n_z, n_y, n_x, RANK, LAST)
    own = (z * n_y + y) * n_x + x
    f_z, l_z = windows(z, n_z, o_z, WINDOW, KZ, SZ, PZ, DZ)
    f_y, l_y = windows(y, n_y, o_y, WINDOW, KY, SY, PY, DY)
    f_x, l_x = windows(x, n_x, o_x, WINDOW, KX, SX, PX, DX)
    base = plane(b, c, dy_sn, dy_sc, TIGHT)
    base_i = plane(b, c, index_sn, index_sc, TIGHT)
    acc = tl.full([BLOCK], 0, WIDE)
    unused = tl.full([BLOCK], 0, WIDE)
    for k_z in range(WZ):
        q_z = f_z + k_z
        in_z = inside & (q_z <= l_z)
        b_z, e_z = window(q_z, unused, n_z, o_z, WINDOW, KZ, SZ, PZ)
        for k_y in range(WY):
            q_y = f_y + k_y
            in_y = in_z & (q_y <= l_y)
            b_y, e_y = window(q_y, unused, n_y, o_y, WINDOW, KY, SY, PY)
            for k_x in range(WX):
                q_x = f_x + k_x
                m = in_y & (q_x <= l_x)
                if MAX:
                    at = base_i + q_z * index_sz + q_y * index_sy + q_x * index_sx
                    m = m & (tl.load(index_ptr + at, mask=m, other=-1) == own)
                g = tl.load(dy_ptr + base + q_z * dy_sz + q_y * dy_sy + q_x * dy_sx, mask=m, other=0.0).to(WIDE)
                if not MAX:
                    if divisor == 0:
                        b_x, e_x = window(q_x, unused, n_x, o_x, WINDOW, KX, SX, PX)
                        count = extent(b_z, e_z, n_z, COUNT_PAD) * extent(b_y, e_y, n_y, COUNT_PAD)
                        count = count * extent(b_x, e_x, n_x, COUNT_PAD)
                        g = tl.where(m, g / tl.where(m, count, 1).to(WIDE), 0.0)
                    else:
                        g = g / divisor.to(WIDE)
                acc += g
    tl.store(dx_ptr + o, acc, mask=inside)


def _unpool(x_ptr, index_ptr, y_ptr, n, per_in, per_out, INDEX: tl.constexpr, BLOCK: tl.constexpr):
    """Write each element at its index to a plane that is zero elsewhere."""
    o, inside = lanes(n, INDEX, False, BLOCK)
    at = tl.load(index_ptr + o, mask=inside, other=-1)
    v = tl.load(x_ptr + o, mask=inside)
    tl.store(y_ptr + (o // per_in) * per_out + at, v, mask=inside & (at >= 0) & (at < per_out))


IN = "n n_c x_sn x_sz x_sy x_sx"
pool = Launcher(_pool, sizes=IN)
pool_bwd = Launcher(_pool_bwd, sizes=IN.replace("x_s", "dy_s"))
unpool = Launcher(_unpool, sizes="n")


# ---- plans ----------------------------------------------------------------------------------------------------------


def _kind(name: str) -> tuple[str, int]:
    """The kind of windows and the number of spatial dimensions, from the op's name."""
    kind = next((k for k in ("adaptive", "fractional") if k in name), "strided")
    return kind, next(rank for rank in (2, 3) if f"{rank}d" in name)


def _windows(
    name: str, n_in: Sequence[int], n_out: Sequence[int], options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constants: kernel size K, stride S, padding P, dilation D; and W, the limit of windows that share an element."""
    kind, rank = _kind(name)
    if kind == "strided":
        kernel, padding = zyx(options["kernel_size"], rank, 1), zyx(options["padding"], rank, 0)
        stride = zyx(options["stride"], rank, 1) if options["stride"] else kernel
        dilation = zyx(options.get("dilation", 1), rank, 1)
        held = [(k - 1) * d // s + 1 for k, s, d in zip(kernel, stride, dilation)]
    else:
        stride, padding, dilation = (1, 1, 1), (0, 0, 0), (1, 1, 1)
        most = lambda n, m: max(-(-(o + 1) * n // m) - o * n // m for o in range(m)) if m else 1
        kernel, held = [*map(most, n_in, n_out)], [*map(most, n_out, n_in)]
    if kind == "fractional":
        kernel = zyx(options["kernel_size"], 2, 1)
        # rounding may add windows, hence + 6
        held = [min(o, (k + 2) * (o - 1) // max(n - k, 1) + 6) for k, n, o in zip(kernel, n_in, n_out)]
    sizes = {**per_axis("K", kernel), **per_axis("S", stride), **per_axis("P", padding), **per_axis("D", dilation)}
    return sizes, per_axis("W", held)


def _counted(options: dict[str, Any]) -> tuple[bool, int]:
    """Whether an average counts the padding, and its divisor: 0 means the number of elements of each window."""
    return options.get("count_include_pad", False), options.get("divisor_override") or 0


def _forward(name: str, self: Tensor, random_samples: Tensor | None = None, **options: Any) -> Plan:
    kind, rank = _kind(name)
    check_floats(self, random_samples)
    samples = () if random_samples is None else (random_samples,)
    made = output_specs(getattr(torch.ops.aten, name), self, *options.values(), *samples)
    if random_samples is not None and random_samples.numel() != 2 * self.shape[:-2].numel():
        raise NotSupported("more random samples than planes")
    outputs = dict(zip(("y", "indices"), made))
    x, out = Planes.of(self, rank), Planes.of(made[0], rank)
    windows, _ = _windows(name, x.space, out.space, options)
    if not out.count:
        return Plan(outputs)
    if any(o.stride != made[0].stride for o in made) or not x.count:
        raise NotSupported("an empty input, or results in different layouts")
    count_pad, divisor = _counted(options)
    numbers = {**per_axis("i_", x.space), "divisor": divisor}
    names = {
        "x": "self",
        "index": "indices" if "indices" in outputs else None,
        "sample": None if random_samples is None else "random_samples",
    }
    launch = per_element(
        pool,
        rank,
        self.dtype,
        out,
        {"x": x},
        numbers,
        names,
        MAX="indices" in outputs,
        WINDOW=kind,
        COUNT_PAD=count_pad,
        WIDE=wide_of(self.dtype),
        **windows,
    )
    return Plan(outputs, [launch], [] if random_samples is None else ["random_samples"])


def _backward(name: str, grad_output: Tensor, self: Tensor, indices: Tensor | None = None, **options: Any) -> Plan:
    kind, rank = _kind(name)
    check_floats(grad_output, self)
    if indices is not None:
        _check_indices(indices, grad_output)
    more = () if indices is None else (indices,)
    (output,) = output_specs(getattr(torch.ops.aten, name), grad_output, self, *options.values(), *more)
    dy, out = Planes.of(grad_output, rank), Planes.of(output, rank)
    windows, held = _windows(name, Planes.of(self, rank).space, dy.space, options)
    if not out.count:
        return Plan({"dx": output})
    if not dy.count:
        raise NotSupported("an empty gradient")
    count_pad, divisor = _counted(options)
    inputs = {"dy": dy, "index": dy if indices is None else Planes.of(indices, rank)}
    numbers = {**per_axis("o_", dy.space), "divisor": divisor}
    names = {"dy": "grad_output", "index": None if indices is None else "indices"}
    launch = per_element(
        pool_bwd,
        rank,
        grad_output.dtype,
        out,
        inputs,
        numbers,
        names,
        MAX=indices is not None,
        WINDOW=kind,
        COUNT_PAD=count_pad,
        WIDE=wide_of(self.dtype),
        **windows,
        **held,
    )
    return Plan({"dx": output}, [launch])


def _check_indices(indices: Tensor, like: Tensor) -> None:
    if indices.dtype is not torch.int64 or indices.shape != like.shape:
        raise NotSupported(f"indices {indices.dtype} {tuple(indices.shape)}")


def _unpooled(rank: int, x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Plan:
    """Elements whose index is outside of the plane are dropped; on CUDA, torch's result is undefined then."""
    check_floats(x)
    _check_indices(indices, x)
    if len(output_size) != rank or not x.numel() or not (x.is_contiguous() and indices.is_contiguous()):
        raise NotSupported(f"output_size {output_size}, or an input that is empty or not contiguous")
    if min(output_size) < 1 or x.dim() not in (rank + 1, rank + 2):
        raise NotSupported(f"output_size {output_size} of {x.dim()} dimensions")
    output = OutputSpec.of((*x.shape[:-rank], *output_size), x.dtype)
    planes = x.shape[:-rank].numel()
    per_in, per_out = x.shape[-rank:].numel(), torch.Size(output_size).numel()
    tiles = plane_tiles(last=False, dtype=x.dtype)
    config = tiles.config(INDEX=index_dtype(max(x.numel(), planes * per_out) + tiles["BLOCK"]))
    numbers = {"n": x.numel(), "per_in": per_in, "per_out": per_out}
    launch = Launch(unpool, (-(-x.numel() // tiles["BLOCK"]),), config, numbers, {"x": "self", "index": "indices"})
    return Plan({"y": Zeros(output)}, [launch])


@planned(spec.ops["max_unpool2d"])
def max_unpool2d(self: Tensor, indices: Tensor, output_size: list[int]) -> Plan:
    return _unpooled(2, self, indices, output_size)


@planned(spec.ops["max_unpool3d"])
def max_unpool3d(self: Tensor, indices: Tensor, output_size: list[int], stride: list[int], padding: list[int]) -> Plan:
    """stride and padding are only passed to torch, which checks them."""
    output_specs(torch.ops.aten.max_unpool3d, self, indices, output_size, stride, padding)
    return _unpooled(3, self, indices, output_size)


for _name, _op in spec.ops.items():
    if "unpool" not in _name:
        planned_by(_backward if "backward" in _name else _forward, _op)
