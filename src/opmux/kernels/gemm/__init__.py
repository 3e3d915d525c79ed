"""Matrix products: a program accumulates a tile of the result over K, then applies the epilogue.

Matrices are read in place, by rows or by columns: a transposition is a constexpr, not a copy. FP8 is multiplied
directly if the chip supports it, else converted to bfloat16. int8 is accumulated in int32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...core.errors import NotSupported
from ...core.registry import impl
from ...specs import gemm as spec
from ..lib.activation_math import MATHS
from ..lib.config import Tiles, tunable
from ..lib.harness import Launch, Plan, planned, strided
from ..lib.launch import Config
from ..lib.plans import checks
from ..lib.products import BLOCK_K, Kinds, aligned_copy, precision, read_as
from ..lib.rows import DEVICES, OutputSpec, programs, wide_of
from .device import add_up, blocks, few, product

# ---- tiles ----------------------------------------------------------------------------------------------------------


@tunable("gemm.tiles", free="BLOCK_M BLOCK_N BLOCK_K GROUP SPLITS")
def gemm_tiles(m: int, n: int, k: int, dtype: torch.dtype) -> Tiles:
    """Tiles small enough for two stages in 64 KiB of shared memory.

    IN_TURN: persistent, i.e. one program per core loops over tiles. SPLITS: the number of parts of K, for results of
    few tiles; a second kernel sums the parts.
    """
    most = 64 if dtype.itemsize > 4 else 128
    side = lambda length: min(most, max(16, triton.next_power_of_2(length)))
    block_m, block_n = side(m), side(n)
    threads = 128 if block_m * block_n <= 64 * 128 else 256
    return Tiles(
        threads, 2, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=BLOCK_K[dtype.itemsize], GROUP=8, IN_TURN=False, SPLITS=1
    )


FEW = 4  # products of up to this many rows (1 if the matrix has contiguous columns) do not use the matrix unit


@tunable("gemm.few", free="BLOCK_N BLOCK_K SPLITS")
def few_tiles(rows: int, n: int, k: int, turned: bool, dtype: torch.dtype) -> Tiles:
    """Tiles for few rows times a matrix of n rows: each thread has 64 sums, and loads 16 bytes at a time.

    `turned`: the matrix has contiguous columns, so a tile spans many rows of K, and K is split until there are enough
    programs.
    """
    threads, wide = 128, max(16 // dtype.itemsize, 2)
    each = max(1, 64 // wide // triton.next_power_of_2(rows))  # loads per thread
    up = triton.next_power_of_2
    if not turned:
        across = max(16, min(threads * wide, up(k)))
        down = min(each * threads * wide // across, up(n))
        while down > 1 and n < 1024 * down:
            down //= 2
        return Tiles(threads, 2, BLOCK_N=down, BLOCK_K=across, SPLITS=1)
    across = max(16, min(8 * wide, up(n)))
    down = max(16, min(each * threads * wide // across, up(k)))
    splits = 1
    while -(-n // across) * splits < 1024 and k % (2 * splits) == 0 and k >= 4 * splits * down:
        splits *= 2
    return Tiles(threads, 2, BLOCK_N=across, BLOCK_K=down, SPLITS=splits)


@tunable("gemm.blocks", free="BLOCK_M BLOCK_N")
def block_tiles(m: int, n: int, k: int) -> Tiles:
    side = lambda length: min(64, max(16, triton.next_power_of_2(length)))
    return Tiles(128, 2, BLOCK_M=side(m), BLOCK_N=side(n), GROUP=8, IN_TURN=False)


# ---- plans ----------------------------------------------------------------------------------------------------------


SUMS = {tl.float64: torch.float64, tl.float32: torch.float32, tl.int32: torch.int32}  # dtype of the sums over K


class Factor(NamedTuple):
    """How the kernel reads a factor [rows, K], or a batch of them."""

    step: int  # the stride of rows, or of columns if `transposed`
    transposed: bool
    batch: int = 0  # the stride between matrices
    copied: bool = False  # whether the factor must be made contiguous first

    @classmethod
    def of(cls, x: Tensor, transposed: bool) -> Factor:
        """How to read x, or x^T if `transposed`. x must be copied unless one dimension is contiguous."""
        rows, cols = x.shape[-2:]
        down, right = x.stride()[-2:]
        batch = x.stride(0) if x.dim() == 3 else 0
        if (right == 1 or cols == 1) and (down >= cols or rows == 1):
            return cls(max(down, cols), transposed, batch)
        if (down == 1 or rows == 1) and (right >= rows or cols == 1):
            return cls(max(right, rows), not transposed, batch)
        return cls(cols, transposed, rows * cols if x.dim() == 3 else 0, True)


class Epilogue(NamedTuple):
    """What the kernel computes after the product, in this order."""

    c: Tensor | None = None  # adds beta * c; c has the shape of the result or of one row
    act: str = ""  # the name of an activation in MATHS
    slope: str = ""  # the name of an activation; the product is multiplied by the activation's derivative at `pre`
    # the activation of the product with the first half of b's rows is multiplied by the product with the second half
    glu: bool = False
    residual: Tensor | None = None  # added last


def _product(
    makes: Mapping[str, OutputSpec],
    a: Tensor,
    b: Tensor,
    trans_a: bool,
    trans_b: bool,
    precision: str,
    epilogue: Epilogue,
    *,
    pre: Tensor | None = None,
    exact: bool = False,
    y: tuple[int, int] | None = None,
    kinds: Kinds | None = None,
    each: tuple[bool, bool] = (False, False),
    numbers: Mapping[str, float] = {},
    names: Mapping[str, str | None] = {},
) -> Plan:
    """The plan of a product of matrices, or of batches of them.

    y: the strides (of matrices, of rows) of the result, if the result is an argument. `each`: whether a, and whether b,
    has one scale per row. `numbers`: alpha and beta, if they are not arguments of the op. `names`: kernel's name of a
    tensor -> the op's name.
    """
    m, n, k = spec.sizes_of(a, b, trans_a, trans_b)
    n //= 2 if epilogue.glu else 1
    batch = a.shape[0] if a.dim() == 3 else 1
    if not (m and n and batch):
        return Plan(makes)
    if batch >= 2**16:
        raise NotSupported(f"{batch} matrices are more than a launch can have")
    factors = {"a": Factor.of(a, trans_a), "b": Factor.of(b, not trans_b)}
    views, read = read_as(kinds)
    c = epilogue.c
    steps = (0, 0, 0) if c is None else (0,) * (3 - c.dim()) + c.stride()
    wide = tl.int32 if a.dtype is torch.int8 else wide_of(a.dtype)
    constants = dict(
        C_UNIT=steps[2] == 1,
        ACT=MATHS[epilogue.act][0] if epilogue.act else None,
        SLOPE=MATHS[epilogue.slope][1] if epilogue.slope else None,
        A_EACH=each[0],
        B_EACH=each[1],
        WIDE=wide,
    )
    sizes = dict(
        m=m,
        n=n,
        k=k,
        lda=factors["a"].step,
        ldb=factors["b"].step,
        ldy=n if y is None else y[1],
        a_batch=factors["a"].batch,
        b_batch=factors["b"].batch,
        y_batch=m * n if y is None else y[0],
        c_batch=steps[0],
        c_down=steps[1],
        c_right=steps[2],
        **numbers,
    )
    named = {"c": None, **names} if c is None else dict(names)
    op_name = lambda name: named.get(name, name) or name
    copied = [
        *(op_name(name) for name, f in factors.items() if f.copied),
        *strided(pre=pre, residual=epilogue.residual),
    ]
    before = {op_name(name): view for name, view in views.items()}
    whole = not (epilogue.act or epilogue.slope or epilogue.residual is not None or kinds or batch > 1)
    across = factors["a" if m > n else "b"].transposed
    if min(m, n) <= (1 if across else FEW) and k and not epilogue.glu:
        launch, splits = _few_rows(factors, sizes, constants, read, a.dtype, batch, named, whole)
    else:
        itemsize = next(iter(makes.values())).dtype.itemsize if makes and y is None else 0
        launch, splits = _many_rows(
            factors, sizes, constants, read, a, batch, itemsize, named, precision, exact, epilogue
        )
        if launch.config.constants["IN_TURN"]:
            before |= {op_name(name): aligned_copy(views.get(name)) for name, f in factors.items() if not f.copied}
    if splits == 1:
        return Plan(makes, [launch], copied, before)
    # The parts of K are launched as a batch.
    along = {name: k // splits * (f.step if f.transposed else 1) for name, f in factors.items()}
    parts = {"k": k // splits, "a_batch": along["a"], "b_batch": along["b"], "y_batch": m * n, "ldy": n, "alpha": 1.0}
    parts |= {"x_batch": along["b" if m > n else "a"], "w_batch": along["a" if m > n else "b"], "beta": 0.0}
    first = launch._replace(grid=(launch.grid[0], splits)).with_numbers(**parts).named(y="parts", c=None)
    sums = Config(dict(C_UNIT=steps[2] == 1, SPLITS=splits, WIDE=wide, BLOCK=256))
    last = Launch(add_up, (-(-m * n // 256),), sums, {**sizes, "size": m * n}, named)
    workspace = {"parts": OutputSpec.of((splits, m, n), SUMS[wide])}
    return Plan({**makes, **workspace}, [first, last], copied, before)


def _many_rows(
    factors: Mapping[str, Factor],
    sizes: Mapping[str, Any],
    constants: Mapping[str, Any],
    read: Mapping[str, Any],
    a: Tensor,
    batch: int,
    itemsize: int,
    named: Mapping[str, str | None],
    precision: str,
    exact: bool,
    epilogue: Epilogue,
) -> tuple[Launch, int]:
    """The launch on the matrix unit, and the number of parts of K.

    `itemsize`: the bytes per element of a newly allocated result; 0 if the result is an argument.
    """
    m, n, k = (sizes[name] for name in "mnk")
    tiles = gemm_tiles(m=m, n=2 * n if epilogue.glu else n, k=k, dtype=a.dtype)
    # Tensor descriptors need addresses and strides that are multiples of 16 bytes, and cannot convert FP8.
    spaced = all((f.step | f.batch) * a.element_size() % 16 == 0 for f in factors.values())
    if epilogue.glu and factors["b"].transposed:  # the second half of b begins within a row in memory
        spaced = spaced and n * a.element_size() % 16 == 0
    in_turn = tiles["IN_TURN"] and spaced and read["A_NUMBERS"] is None and k > 0
    splits = tiles["SPLITS"]
    plain = not (epilogue.act or epilogue.slope or epilogue.glu or epilogue.residual is not None)
    one_byte = a.element_size() == 1  # FP8 is not split: every part would need the scales
    if in_turn or not plain or one_byte or batch > 1 or k % (splits * tiles["BLOCK_K"]) or not k:
        splits = 1
    changes = {"IN_TURN": in_turn, "SPLITS": splits}
    if epilogue.glu:  # there are two accumulators, so they have half the width
        changes["BLOCK_N"] = max(tiles["BLOCK_N"] // 2, 16)
    elif exact and in_turn:  # registers hold both the product and the running sum
        changes["BLOCK_N"] = min(tiles["BLOCK_N"], 128)
    tiles = tiles.changed(changes, "gemm.tiles")
    count = -(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"])
    running = programs(a.device, count, 1) if in_turn else count
    aligned = lambda length: length * itemsize % 16 == 0
    fresh = bool(itemsize) and aligned(n) and (batch == 1 or aligned(m * n))
    # m counts only if a's columns are contiguous: otherwise no load depends on m, and an odd number of tokens must not
    # make loads narrower.
    even = not factors["a"].transposed and all(sizes[name] % 16 == 0 for name in product.sizes if name != "m")
    config = tiles.config(
        even=even,
        A_TRANSPOSED=factors["a"].transposed,
        B_TRANSPOSED=factors["b"].transposed,
        GLU=epilogue.glu,
        PRECISION=precision if a.dtype is torch.float32 else "ieee",
        EXACT=exact and read["A_NUMBERS"] is None,
        FULL=k % tiles["BLOCK_K"] == 0,
        PROGRAMS=running if in_turn else 0,
        FRESH=fresh,
        PARTS=2 if plain and epilogue.c is None and itemsize == 2 else 4,
        **constants,
        **read,
    )
    names = {**named, "r": "residual"}
    return Launch(product, (running, batch), config, sizes, names), splits


def _few_rows(
    factors: Mapping[str, Factor],
    sizes: Mapping[str, Any],
    constants: Mapping[str, Any],
    read: Mapping[str, Any],
    dtype: torch.dtype,
    batch: int,
    named: Mapping[str, str | None],
    whole: bool,
) -> tuple[Launch, int]:
    """The launch for a few rows, and the number of parts of K. `whole`: there is no epilogue, so K may be split."""
    m, n, k = (sizes[name] for name in "mnk")
    swapped = m > n
    x, w = ("b", "a") if swapped else ("a", "b")
    many = max(m, n)
    tiles = few_tiles(rows=min(m, n), n=many, k=k, turned=factors[w].transposed, dtype=dtype)
    splits = tiles["SPLITS"] if whole and k % tiles["SPLITS"] == 0 else 1
    tiles = tiles.changed({"SPLITS": splits}, "gemm.few")
    moved = {
        "ldx": factors[x].step,
        "ldw": factors[w].step,
        "x_batch": factors[x].batch,
        "w_batch": factors[w].batch,
    }
    along = many if factors[w].transposed else k // splits
    numbers = {f"{part}_NUMBERS": read[f"{name.upper()}_NUMBERS"] for part, name in (("X", x), ("W", w))}
    config = tiles.config(
        even=(along | moved["ldw"] | moved["w_batch"]) % 16 == 0,
        ROWS=min(m, n),
        SWAPPED=swapped,
        X_TRANSPOSED=factors[x].transposed,
        W_TRANSPOSED=factors[w].transposed,
        FULL=k // splits % tiles["BLOCK_K"] == 0,
        **constants,
        **numbers,
    )
    op_name = lambda name: named.get(name, name)
    names = {**named, "x": op_name(x), "w": op_name(w), "r": "residual"}
    grid = (-(-many // tiles["BLOCK_N"]), batch)
    return Launch(few, grid, config, {**sizes, **moved}, names), splits


def _result(a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, dtype: torch.dtype | None) -> OutputSpec:
    m, n, _ = spec.sizes_of(a, b, trans_a, trans_b)
    return OutputSpec.of((m, n), dtype or a.dtype)


# ---- the ops --------------------------------------------------------------------------------------------------------

ADDED = {"beta": 1.0}  # c is added unscaled


@planned(spec.gemm, state={"precision": precision})
def gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    precision: str,
) -> Plan:
    makes = {"y": _result(a, b, trans_a, trans_b, out_dtype)}
    return _product(makes, a, b, trans_a, trans_b, precision, Epilogue(bias), numbers=ADDED, names={"c": "bias"})


@planned(spec.matmul, state={"precision": precision})
def matmul(a: Tensor, b: Tensor, c: Tensor | None, beta: float, out_dtype: torch.dtype | None, precision: str) -> Plan:
    makes = {"y": OutputSpec.of((*a.shape[:-1], b.shape[-1]), out_dtype or a.dtype)}
    return _product(makes, a, b, False, False, precision, Epilogue(c if beta != 0.0 else None))


@planned(spec.int_mm)
def int_mm(a: Tensor, b: Tensor) -> Plan:
    makes = {"y": OutputSpec.of((a.shape[0], b.shape[1]), torch.int32)}
    return _product(makes, a, b, False, False, "ieee", Epilogue(), numbers={"alpha": 1.0, **ADDED})


@planned(spec.gemm_gelu, state={"precision": precision})
def gemm_gelu(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    precision: str,
) -> Plan:
    makes = dict.fromkeys(("y", "pre"), _result(a, b, trans_a, trans_b, out_dtype))
    # the result `pre` is the kernel's `aux`; the kernel reads no `pre`
    names = {"c": "bias", "pre": None, "aux": "pre"}
    epilogue = Epilogue(bias, act="gelu_tanh")
    return _product(makes, a, b, trans_a, trans_b, precision, epilogue, numbers=ADDED, names=names)


@planned(spec.gemm_dgelu, state={"precision": precision})
def gemm_dgelu(
    a: Tensor,
    b: Tensor,
    pre: Tensor,
    trans_a: bool,
    trans_b: bool,
    out_dtype: torch.dtype | None,
    precision: str,
) -> Plan:
    makes = {"y": _result(a, b, trans_a, trans_b, out_dtype)}
    return _product(makes, a, b, trans_a, trans_b, precision, Epilogue(slope="gelu_tanh"), pre=pre, numbers=ADDED)


@planned(spec.gemm_add_, state={"precision": precision})
def gemm_add_(c: Tensor, a: Tensor, b: Tensor, trans_a: bool, trans_b: bool, beta: float, precision: str) -> Plan:
    if c.stride(1) != 1 and c.shape[1] > 1:
        raise NotSupported("gemm_add_: c must have its rows in one piece")
    step = c.stride(0) if c.shape[0] > 1 else c.shape[1]
    added = c if beta != 0.0 else None
    return _product({}, a, b, trans_a, trans_b, precision, Epilogue(added), y=(0, step), names={"y": "c"})


@planned(spec.scaled_gemm)
def scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    fast: bool,
) -> Plan:
    makes = {"y": _result(a, b, False, True, out_dtype)}
    each = (a_scale.numel() > 1, b_scale.numel() > 1)
    plan = _product(
        makes,
        a,
        b,
        False,
        True,
        "ieee",
        Epilogue(bias),
        exact=not fast,
        kinds=(a_dtype, b_dtype),
        each=each,
        numbers={"alpha": 1.0, **ADDED},
        names={"c": "bias"},
    )
    plan.strided = [*plan.strided, *strided(a_scale=a_scale, b_scale=b_scale)]
    return plan


@planned(spec.block_scaled_gemm)
def block_scaled_gemm(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_dtype: torch.dtype,
    b_dtype: torch.dtype,
    bias: Tensor | None,
    a_rows: int,
    b_rows: int,
    out_dtype: torch.dtype,
) -> Plan:
    m, n, k = spec.sizes_of(a, b, False, True)
    makes = {"y": OutputSpec.of((m, n), out_dtype)}
    if not (m and n):
        return Plan(makes)
    tiles = block_tiles(m=m, n=n, k=k)
    views, read = read_as((a_dtype, b_dtype))
    in_turn = tiles["IN_TURN"] and read["A_NUMBERS"] is None and k > 0 and k % 16 == 0
    tiles = tiles.changed({"IN_TURN": in_turn}, "gemm.blocks")
    steps = zip(("a_down", "a_right", "b_down", "b_right"), (*a_scale.stride(), *b_scale.stride()))
    count = -(-m // tiles["BLOCK_M"]) * -(-n // tiles["BLOCK_N"])
    running = programs(a.device, count, 1) if in_turn else count
    even = k % 16 == 0 and n % 16 == 0  # does not depend on m, the number of rows
    config = tiles.config(
        even=even,
        A_ROWS=a_rows,
        B_ROWS=b_rows,
        WIDE=wide_of(out_dtype),
        BLOCK_K=spec.BLOCK,
        PROGRAMS=running if in_turn else 0,
        **read,
    )
    launch = Launch(blocks, (running,), config, dict(m=m, n=n, k=k, lda=k, ldb=k, **dict(steps)))
    before = {name: aligned_copy(view) for name, view in views.items()} if in_turn else views
    return Plan(makes, [launch], strided(a=a, b=b, bias=bias), before)


@planned(spec.linear_act, state={"precision": precision})
def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    act: str | None,
    glu: bool,
    save: bool,
    precision: str,
) -> Plan:
    rows, saves = x.shape[:-1], save and (glu or act is not None)
    makes = {
        "y": OutputSpec.of((*rows, spec.width(weight, glu)), x.dtype if residual is None else residual.dtype),
        "pre": OutputSpec.of((*rows, weight.shape[0]) if saves else (0,), x.dtype),
    }
    epilogue = Epilogue(bias, act or "", glu=glu, residual=residual)
    names = {"a": "x", "b": "weight", "c": "bias" if bias is not None else None, "pre": None}
    names["aux"] = "pre" if saves else None
    flat = lambda x: x.reshape(math.prod(rows), x.shape[-1])
    numbers = {"alpha": 1.0, **ADDED}
    plan = _product(makes, flat(x), weight, False, True, precision, epilogue, numbers=numbers, names=names)
    if x.dim() != 2:
        then = plan.before.get("x", lambda x: x)
        plan.before = {**plan.before, "x": lambda x: then(flat(x))}
    return plan


# linear and linear_bwd check their own arguments, because gemm would report its own names and flattened shapes.
check_linear, check_linear_bwd = checks(spec.linear), checks(spec.linear_bwd)


@impl(spec.linear, devices=DEVICES)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    check_linear(x, weight, bias)
    if x.dim() == 2:
        return gemm(x, weight, bias, False, True, 1.0, None)
    y = gemm(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), weight, bias, False, True, 1.0, None)
    return torch.ops.aten._unsafe_view(y, (*x.shape[:-1], weight.shape[0]))


@impl(spec.linear_bwd, devices=DEVICES)
def linear_bwd(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    check_linear_bwd(dy, x, weight)
    m, (n, k) = math.prod(x.shape[:-1]), weight.shape
    g = dy.to(x.dtype).reshape(m, n)
    dx = gemm(g, weight, None, False, False, 1.0, None)
    dweight = gemm(g, x.reshape(m, k), None, True, False, 1.0, None)
    if x.dim() != 2:
        dx = torch.ops.aten._unsafe_view(dx, x.shape)
    return dx, dweight, g.sum(0)
