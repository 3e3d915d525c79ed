"""Average and maximum pooling over one to three dimensions: strided, adaptive and fractional windows; unpooling.

Every kernel gathers: a result element reads its window, and a gradient reads the windows that hold its element. So
gradients need no atomics and do not depend on the order of programs. Windows of neighbours overlap in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..core.errors import NotSupported
from ..specs import pooling as spec
from .lib.harness import Launch, Plan, Zeros, planned
from .lib.launch import Launcher
from .lib.maths import div
from .lib.planes import (
    Planes,
    check_floats,
    constants,
    described,
    lanes,
    per_axis,
    place,
    plane,
    plane_tiles,
    sizes_of,
    spread,
)
from .lib.rows import OutputSpec, wide_of

# ---- windows --------------------------------------------------------------------------------------------------------


@triton.jit
def fractional_start(at, sample, n_in, n_out, K: tl.constexpr):
    """Where a window of a pseudo-random sequence begins; the last one ends where the input ends."""
    alpha = div((n_in - K).to(sample.dtype), tl.maximum(n_out - 1, 1).to(sample.dtype))
    begin = ((at.to(sample.dtype) + sample) * alpha).to(tl.int32) - (sample * alpha).to(tl.int32)
    return tl.where(at == n_out - 1, n_in - K, begin.to(at.dtype))


@triton.jit
def window(at, sample, n_in, n_out, WINDOW: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr):
    """The first index of a window, which may be padding, and the index after its last one."""
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
    """The elements of a window along one dimension that an average counts."""
    if COUNT_PAD:
        return end - first
    else:
        return tl.minimum(end, n_in) - tl.maximum(first, 0)


@triton.jit
def windows(at, n_in, n_out, WINDOW: tl.constexpr, K: tl.constexpr, S: tl.constexpr, P: tl.constexpr, D: tl.constexpr):
    """The first and the last window that may hold an index."""
    if WINDOW == "adaptive":
        first = at.to(tl.int64) * n_out // n_in
        last = ((at.to(tl.int64) + 1) * n_out + n_in - 1) // n_in - 1
        return first.to(at.dtype), last.to(at.dtype)
    elif WINDOW == "fractional":  # wherever the sequence begins: windows are (n_in - K) / (n_out - 1) apart, rounded
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
    b, c, z, y, x = place(o, n_c, n_z, n_y, n_x, RANK, LAST)
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
                for k_1 in tl.static_range(8 if KX > 8 else KX):  # all loads of a row at once
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
    """The gradient of each input element: the sum over the windows that hold it, at most W along a dimension."""
    o, inside = lanes(n, INDEX, FULL, BLOCK)
    b, c, z, y, x = place(o, n_c, n_z, n_y, n_x, RANK, LAST)
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
    """Write each element to its index in a plane of zeros."""
    o = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    inside = o < n
    at = tl.load(index_ptr + o, mask=inside, other=-1)
    v = tl.load(x_ptr + o, mask=inside)
    tl.store(y_ptr + (o // per_in) * per_out + at, v, mask=inside & (at >= 0) & (at < per_out))


IN = "n n_c x_sn x_sz x_sy x_sx"
pool = Launcher(_pool, sizes=IN)
pool_bwd = Launcher(_pool_bwd, sizes=IN.replace("x_s", "dy_s"))
unpool = Launcher(_unpool, sizes="n")


# ---- plans ----------------------------------------------------------------------------------------------------------


def _forward(
    kind: str,
    rank: int,
    x: Tensor,
    made: Sequence[OutputSpec],
    shape: dict[str, Any],
    *,
    maximum: bool,
    count_pad: bool = False,
    divisor: int = 0,
) -> Plan:
    outputs = dict(zip(("y", "indices"), made))
    source, out = Planes.of(x, rank), Planes.of(made[0], rank)
    if not out.count:
        return Plan(outputs)
    if any(o.stride != made[0].stride for o in made) or not source.count:
        raise NotSupported("an empty input, or results in different layouts")
    tiles = plane_tiles(last=out.last, dtype=x.dtype)
    config = tiles.config(
        MAX=maximum, WINDOW=kind, COUNT_PAD=count_pad, WIDE=wide_of(x.dtype), **shape,
        **constants(out, tiles, rank, source),
    )  # fmt: skip
    numbers = {**sizes_of(out), **per_axis("i_", source.space), **source.numbers("x"), "divisor": divisor}
    names = {
        "x": "self",
        "index": "indices" if maximum else None,
        "sample": "random_samples" if kind == "fractional" else None,
    }
    launch = Launch(pool, (-(-out.count // tiles["BLOCK"]),), config, numbers, names)
    return Plan(outputs, [launch], ["random_samples"] if kind == "fractional" else [])


def _backward(
    kind: str,
    rank: int,
    dy: Tensor,
    indices: Tensor | None,
    made: OutputSpec,
    shape: dict[str, Any],
    *,
    count_pad: bool = False,
    divisor: int = 0,
) -> Plan:
    source, out = Planes.of(dy, rank), Planes.of(made, rank)
    if not out.count:
        return Plan({"dx": made})
    if not source.count:
        raise NotSupported("an empty gradient")
    at = source if indices is None else Planes.of(indices, rank)
    tiles = plane_tiles(last=out.last, dtype=dy.dtype)
    config = tiles.config(
        MAX=indices is not None, WINDOW=kind, COUNT_PAD=count_pad, WIDE=wide_of(dy.dtype), **shape,
        **constants(out, tiles, rank, source, at),
    )  # fmt: skip
    numbers = {
        **sizes_of(out), **per_axis("o_", source.space), **source.numbers("dy"), **at.numbers("index"),
        "divisor": divisor,
    }  # fmt: skip
    names = {"dy": "grad_output", "index": None if indices is None else "indices"}
    return Plan({"dx": made}, [Launch(pool_bwd, (-(-out.count // tiles["BLOCK"]),), config, numbers, names)])


def _strided(
    rank: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int] = (1,)
) -> dict[str, Any]:
    """The constants of windows at even distances."""
    k, p, d = spread(kernel, rank, 1), spread(padding, rank, 0), spread(dilation, rank, 1)
    s = spread(stride, rank, 1) if stride else k
    return {**per_axis("K", k), **per_axis("S", s), **per_axis("P", p), **per_axis("D", d)}


def _holding(shape: dict[str, Any]) -> dict[str, Any]:
    """... and how many windows hold an element, at most."""
    return shape | {f"W{a}": (shape[f"K{a}"] - 1) * shape[f"D{a}"] // shape[f"S{a}"] + 1 for a in "ZYX"}


def _adaptive(sizes: Sequence[int], outputs: Sequence[int]) -> dict[str, Any]:
    """The constants of windows that divide each dimension evenly; K: the longest, W: the most that hold an index."""
    most = lambda n, m: max(-(-(o + 1) * n // m) - o * n // m for o in range(m)) if m else 1
    none = {**per_axis("S", (1, 1, 1)), **per_axis("P", (0, 0, 0)), **per_axis("D", (1, 1, 1))}
    return per_axis("K", map(most, sizes, outputs)) | none | per_axis("W", map(most, outputs, sizes))


# ---- ops ------------------------------------------------------------------------------------------------------------


def _rank(name: str) -> int:
    """The number of spatial dimensions, from the op's name."""
    return next(i for i in (1, 2, 3) if f"{i}d" in name)


def avg_pool(name: str) -> Callable[..., Plan]:
    torchs, rank = getattr(torch.ops.aten, name), _rank(name)

    def plan(
        self: Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Plan:
        check_floats(self)
        made = described(torchs, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        shape, divisor = _strided(rank, kernel_size, stride, padding), divisor_override or 0
        return _forward("strided", rank, self, made, shape, maximum=False, count_pad=count_include_pad, divisor=divisor)

    return plan


def avg_pool_backward(name: str) -> Callable[..., Plan]:
    torchs, rank = getattr(torch.ops.aten, name), _rank(name)

    def plan(
        grad_output: Tensor,
        self: Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Plan:
        check_floats(grad_output, self)
        sizes = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
        (made,) = described(torchs, grad_output, self, *sizes)
        shape, divisor = _holding(_strided(rank, kernel_size, stride, padding)), divisor_override or 0
        return _backward("strided", rank, grad_output, None, made, shape, count_pad=count_include_pad, divisor=divisor)

    return plan


def max_pool(name: str) -> Callable[..., Plan]:
    torchs, rank = getattr(torch.ops.aten, name), _rank(name)

    def plan(
        self: Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
    ) -> Plan:
        check_floats(self)
        made = described(torchs, self, kernel_size, stride, padding, dilation, ceil_mode)
        shape = _strided(rank, kernel_size, stride, padding, dilation)
        return _forward("strided", rank, self, made, shape, maximum=True)

    return plan


def max_pool_backward(name: str) -> Callable[..., Plan]:
    torchs, rank = getattr(torch.ops.aten, name), _rank(name)

    def plan(
        grad_output: Tensor,
        self: Tensor,
        kernel_size: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Plan:
        check_floats(grad_output, self)
        _check_indices(indices, grad_output)
        sizes = (kernel_size, stride, padding, dilation, ceil_mode)
        (made,) = described(torchs, grad_output, self, *sizes, indices)
        shape = _holding(_strided(rank, kernel_size, stride, padding, dilation))
        return _backward("strided", rank, grad_output, indices, made, shape)

    return plan


def _check_indices(indices: Tensor, like: Tensor) -> None:
    if indices.dtype is not torch.int64 or indices.shape != like.shape:
        raise NotSupported(f"indices {indices.dtype} {tuple(indices.shape)}")


def adaptive_pool(name: str) -> Callable[..., Plan]:
    torchs, rank = getattr(torch.ops.aten, name), _rank(name)

    def plan(self: Tensor, output_size: list[int]) -> Plan:
        check_floats(self)
        made = described(torchs, self, output_size)
        shape = _adaptive(Planes.of(self, rank).space, Planes.of(made[0], rank).space)
        return _forward("adaptive", rank, self, made, _without_holding(shape), maximum="max" in name)

    return plan


def _without_holding(shape: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shape.items() if name[0] != "W"}


def adaptive_avg_pool_backward(name: str) -> Callable[..., Plan]:
    torchs, rank = getattr(torch.ops.aten, name), _rank(name)

    def plan(grad_output: Tensor, self: Tensor) -> Plan:
        check_floats(grad_output, self)
        (made,) = described(torchs, grad_output, self)
        shape = _adaptive(Planes.of(self, rank).space, Planes.of(grad_output, rank).space)
        return _backward("adaptive", rank, grad_output, None, made, shape)

    return plan


def adaptive_max_pool_backward(name: str) -> Callable[..., Plan]:
    torchs, rank = getattr(torch.ops.aten, name), _rank(name)

    def plan(grad_output: Tensor, self: Tensor, indices: Tensor) -> Plan:
        check_floats(grad_output, self)
        _check_indices(indices, grad_output)
        (made,) = described(torchs, grad_output, self, indices)
        shape = _adaptive(Planes.of(self, rank).space, Planes.of(grad_output, rank).space)
        return _backward("adaptive", rank, grad_output, indices, made, shape)

    return plan


def _fractional(kernel: Sequence[int], sizes: Sequence[int], outputs: Sequence[int]) -> dict[str, Any]:
    k = spread(kernel, 2, 1)
    # windows that may hold an index, with those that rounding may add
    held = [min(o, (n_k + 2) * (o - 1) // max(n - n_k, 1) + 6) for n_k, n, o in zip(k, sizes, outputs)]
    return _adaptive(sizes, outputs) | per_axis("K", k) | per_axis("W", held)


@planned(spec.ops["fractional_max_pool2d"])
def fractional_max_pool2d(self: Tensor, kernel_size: list[int], output_size: list[int], random_samples: Tensor) -> Plan:
    check_floats(self, random_samples)
    made = described(torch.ops.aten.fractional_max_pool2d, self, kernel_size, output_size, random_samples)
    if random_samples.numel() != 2 * self.shape[:-2].numel():
        raise NotSupported("more random samples than planes")
    shape = _fractional(kernel_size, Planes.of(self, 2).space, Planes.of(made[0], 2).space)
    return _forward("fractional", 2, self, made, _without_holding(shape), maximum=True)


@planned(spec.ops["fractional_max_pool2d_backward"])
def fractional_max_pool2d_backward(
    grad_output: Tensor, self: Tensor, kernel_size: list[int], output_size: list[int], indices: Tensor
) -> Plan:
    check_floats(grad_output, self)
    _check_indices(indices, grad_output)
    torchs = torch.ops.aten.fractional_max_pool2d_backward
    (made,) = described(torchs, grad_output, self, kernel_size, output_size, indices)
    shape = _fractional(kernel_size, Planes.of(self, 2).space, Planes.of(grad_output, 2).space)
    return _backward("fractional", 2, grad_output, indices, made, shape)


def _unpooled(rank: int, x: Tensor, indices: Tensor, output_size: Sequence[int]) -> Plan:
    """An index outside of a plane is undefined, as on CUDA; here nothing is written for it."""
    check_floats(x)
    _check_indices(indices, x)
    if len(output_size) != rank or not x.numel() or not (x.is_contiguous() and indices.is_contiguous()):
        raise NotSupported(f"output_size {output_size}, or an input that is empty or not contiguous")
    if min(output_size) < 1 or x.dim() not in (rank + 1, rank + 2):
        raise NotSupported(f"output_size {output_size} of {x.dim()} dimensions")
    made = OutputSpec.of((*x.shape[:-rank], *output_size), x.dtype)
    planes = x.shape[:-rank].numel()
    per_in, per_out = x.shape[-rank:].numel(), torch.Size(output_size).numel()
    tiles = plane_tiles(last=False, dtype=x.dtype)
    large = max(x.numel(), planes * per_out) + tiles["BLOCK"] >= 1 << 31
    config = tiles.config(INDEX=tl.int64 if large else tl.int32)
    numbers = {"n": x.numel(), "per_in": per_in, "per_out": per_out}
    launch = Launch(unpool, (-(-x.numel() // tiles["BLOCK"]),), config, numbers, {"x": "self", "index": "indices"})
    return Plan({"y": Zeros(made)}, [launch])


@planned(spec.ops["max_unpool2d"])
def max_unpool2d(self: Tensor, indices: Tensor, output_size: list[int]) -> Plan:
    return _unpooled(2, self, indices, output_size)


@planned(spec.ops["max_unpool3d"])
def max_unpool3d(self: Tensor, indices: Tensor, output_size: list[int], stride: list[int], padding: list[int]) -> Plan:
    """Stride and padding are checked by torch and matter to nothing else."""
    described(torch.ops.aten.max_unpool3d, self, indices, output_size, stride, padding)
    return _unpooled(3, self, indices, output_size)


for _make, _names in (
    (avg_pool, "avg_pool2d avg_pool3d"),
    (avg_pool_backward, "avg_pool2d_backward avg_pool3d_backward"),
    (max_pool, "max_pool2d_with_indices max_pool3d_with_indices"),
    (max_pool_backward, "max_pool2d_with_indices_backward max_pool3d_with_indices_backward"),
    (adaptive_pool, "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d"),
    (adaptive_avg_pool_backward, "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward"),
    (adaptive_max_pool_backward, "adaptive_max_pool2d_backward adaptive_max_pool3d_backward"),
):
    for _name in _names.split():
        planned(spec.ops[_name])(_make(_name))
