"""tex's permutation and row padding for mixtures of experts, implemented by the ops of `specs.moe`.

Rows of float8 are passed as bytes, with their dtype as another argument. An empty tensor of probabilities means None.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from ....core.adapter import adapt
from ....core.contract import FP8, AnyTensor, Index, Int32, Rule, at_least
from ....core.errors import BadArgument
from ....core.rules import nonempty
from ....core.spec import BadSample, BadSamples
from ....core.tensors import dtype_name
from ....specs import moe
from ....specs.moe import MOVED, SUMS, TOKENS, collect_args, drawn_indices
from ....specs.samples import Case, Draw, Maker

# ---- arguments ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class of_dtype(Rule):
    """A tensor whose dtype is the value of another argument; float8 may be passed as bytes."""

    of: str
    error = TypeError

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        dtype = given.get(self.of)
        if dtype is None or value.dtype is dtype or (value.dtype is torch.uint8 and dtype in FP8):
            return None
        return f"be {dtype_name(dtype)}, as {{{self.of}}} says"

    def got(self, value: Any) -> str:
        return dtype_name(value.dtype)

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "another dtype", value.to(torch.float16 if value.dtype is not torch.float16 else torch.float32)

    def doc(self) -> str:
        return f"of {self.of}, or uint8 for float8"


@dataclass(frozen=True)
class matrix_or_empty(Rule):
    """A float32 tensor of two dimensions. An empty tensor of any shape, dtype and device means None."""

    def problem(self, value: Any, given: Mapping[str, Any]) -> str | None:
        right = not value.numel() or (value.dtype is torch.float32 and value.dim() == 2)
        return None if right else "be float32 [tokens, topK], or empty for none"

    def got(self, value: Any) -> str:
        return f"{dtype_name(value.dtype)} {tuple(value.shape)}"

    def wrong(self, value: Tensor) -> Iterator[tuple[str, Any]]:
        yield "another dtype", torch.zeros(5, 2, dtype=torch.float64)
        yield "one dimension", torch.zeros(5)

    def doc(self) -> str:
        return "float32 [tokens, topK], or empty for none"


Rows = AnyTensor[Tensor, "rows n", MOVED, of_dtype("dtype")]
Tokens = AnyTensor[Tensor, "tokens n", MOVED, of_dtype("dtype")]
Prob = Annotated[Tensor, matrix_or_empty()]
Count = Annotated[int, at_least(0)]


def typed(fn: Any, name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """View a tensor as its real dtype, because float8 is passed as bytes."""
    if x.dtype is dtype:
        return x
    fn.check(**{name: x, "dtype": dtype})
    return x.view(dtype)


def probs_or_none(fn: Any, prob: Tensor) -> Tensor | None:
    """The probabilities, or None for an empty tensor."""
    if not prob.numel():
        return None
    if prob.dtype is not torch.float32 or prob.dim() != 2:
        fn.check(prob=prob)
    return prob


# ---- samples --------------------------------------------------------------------------------------------------------


def _drawn(d: Draw, x: Tensor | None = None) -> Tensor:
    x = d.full() if x is None else x
    return x.to(d.option("fp8")).view(torch.uint8) if d.option("fp8") else x


def _permute_args(d: Draw) -> dict[str, Any]:
    return {
        "input": _drawn(d),
        "dtype": d.option("fp8", d.dtype),
        "indices": drawn_indices(d, d.case.shape[0], d.option("topk", 1)),
        "num_out_tokens": d.option("rows", 0),
        "workspace": [],
        "max_expanded_token_num": d.case.shape[0] * d.option("topk", 1),
    }


def _unpermute_args(d: Draw) -> dict[str, Any]:
    args = collect_args(d)
    return {
        "input": _drawn(d, args["x"]),
        "dtype": d.option("fp8", d.dtype),
        "row_id_map": args["row_map"],
        "prob": torch.empty(0) if args["probs"] is None else args["probs"],
        "num_tokens": d.case.shape[0],
        "topK": args["topk"],
    }


def _unpermute_bwd_args(d: Draw) -> dict[str, Any]:
    args = _unpermute_args(d)
    return {"input_bwd": _drawn(d), "input_fwd": args["input"], **{k: args[k] for k in ("dtype", "row_id_map", "prob")}}


CASES = (
    *TOKENS,
    Case((5, 32), options={"topk": 2, "probs": True, "fp8": torch.float8_e4m3fn}),
    Case((5, 32), options={"topk": 3, "rows": 11, "fp8": torch.float8_e5m2}),
)
PERMUTES, UNPERMUTES = Maker(_permute_args, CASES), Maker(_unpermute_args, CASES)
UNPERMUTES_BWD = Maker(_unpermute_bwd_args, tuple(c for c in CASES if c.options.get("probs") or c.shape == (5, 64)))


def _wrong(maker: Maker, **ways: tuple[Any, str]) -> BadSamples:
    """Bad samples for checks outside the signature. `ways`: argument -> (function that spoils it, error pattern)."""

    def bad(device: torch.device) -> Iterator[BadSample]:
        for name, (spoil, pattern) in ways.items():
            args = maker.named(Case((5, 64), options={"topk": 2, "probs": True}), torch.float32, device)
            args[name] = spoil(args[name])
            yield BadSample(tuple(args.values()), BadArgument, pattern, id=name)

    return bad


# ---- permutation ----------------------------------------------------------------------------------------------------


@adapt(
    "tex::moe_permute_fwd",
    over=(moe.moe_row_map, moe.moe_spread),
    names={"x": "input", "rows": "num_out_tokens"},
    out="permuted row_id_map workspace",
    samples=PERMUTES,
)
def moe_permute_fwd(
    call: Any,
    input: Tokens,
    dtype: torch.dtype,
    indices: Index[Tensor, "tokens topk", nonempty(-1)],
    num_out_tokens: int,
    workspace: list[Tensor],
    max_expanded_token_num: Count,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Copy each token to the rows of its experts, in order of experts.

    Args:
        input: the tokens.
        dtype: the dtype of input.
        indices: the experts of each token.
        num_out_tokens: keep only this many rows, the first ones; 0 keeps all.
        workspace: NVIDIA's scratch memory; not used, returned unchanged.
        max_expanded_token_num: ignored.

    Returns:
        The rows, like input; row_id_map, int32 [topk * tokens], as from moe_row_map; and workspace.
    """
    with torch.no_grad():
        listed = isinstance(workspace, (list, tuple)) and max_expanded_token_num >= 0
        matrices = indices.dim() == input.dim() == 2 and indices.device == input.device
        fits = matrices and indices.shape[0] == input.shape[0] and indices.shape[1]
        if not (listed and fits and input.dtype is dtype):
            moe_permute_fwd.check(
                input=input,
                dtype=dtype,
                indices=indices,
                workspace=workspace,
                max_expanded_token_num=max_expanded_token_num,
            )
        row_map = call.moe_row_map(indices, num_out_tokens)
        return call.moe_spread(input, row_map, indices.shape[1], num_out_tokens), row_map, workspace


UNPERMUTE: Mapping[str, Any] = dict(
    over=moe.moe_collect,
    names={"x": "input", "row_map": "row_id_map", "probs": "prob", "topk": "topK"},
    samples=UNPERMUTES,
    tol=SUMS,
)


def unpermuted(
    call: Any, fn: Any, input: Tensor, dtype: torch.dtype, row_id_map: Tensor, prob: Tensor, tokens: int, topk: int
) -> Tensor:
    with torch.no_grad():
        x = typed(fn, "input", input, dtype)
        if row_id_map.shape != (tokens * topk,):
            fn.check(row_id_map=row_id_map, num_tokens=tokens, topK=topk)
        y = call(x, row_id_map, probs_or_none(fn, prob), topk, False)
        return y if y.dtype is input.dtype else y.view(input.dtype)


@adapt("tex::moe_permute_bwd", **UNPERMUTE)
def moe_permute_bwd(
    call: Any,
    input: Rows,
    dtype: torch.dtype,
    row_id_map: Int32[Tensor, "topK*num_tokens"],
    prob: Prob,
    num_tokens: Count,
    topK: int,
) -> Tensor:
    """The gradient of moe_permute_fwd's input: moe_unpermute_fwd of the gradient of the rows.

    Args:
        input: the gradient of the rows.
        dtype: the dtype of input.
        row_id_map: the second result of the forward.
        prob: multiplies each copy.
        num_tokens: the number of tokens.
        topK: the number of copies of a token.

    Returns:
        The gradient of the tokens, [num_tokens, n], like input.
    """
    return unpermuted(call, moe_permute_bwd, input, dtype, row_id_map, prob, num_tokens, topK)


@adapt("tex::moe_unpermute_fwd", **UNPERMUTE)
def moe_unpermute_fwd(
    call: Any,
    input: Rows,
    dtype: torch.dtype,
    row_id_map: Int32[Tensor, "topK*num_tokens"],
    prob: Prob,
    num_tokens: Count,
    topK: int,
) -> Tensor:
    """Sum the rows of each token, times its probabilities, rounded as in moe_collect.

    Args:
        input: the rows, in order of experts.
        dtype: the dtype of input.
        row_id_map: the second result of moe_permute_fwd.
        prob: multiplies each copy.
        num_tokens: the number of tokens.
        topK: the number of copies of a token.

    Returns:
        The tokens, [num_tokens, n], like input.
    """
    return unpermuted(call, moe_unpermute_fwd, input, dtype, row_id_map, prob, num_tokens, topK)


@adapt(
    "tex::moe_unpermute_bwd",
    over=moe.moe_collect_bwd,
    names={"dy": "input_bwd", "x": "input_fwd", "row_map": "row_id_map", "probs": "prob"},
    out="act_grad prob_grad",
    samples=UNPERMUTES_BWD,
    tol=SUMS,
    errors=_wrong(
        UNPERMUTES_BWD,
        input_bwd=(lambda t: t[1:], r"input_bwd must have shape \(5, 64\)"),
        row_id_map=(lambda t: t[:-1], "row_id_map must have shape"),
    ),
)
def moe_unpermute_bwd(
    call: Any,
    input_bwd: AnyTensor[Tensor, "_ n", MOVED, of_dtype("dtype")],
    input_fwd: Rows,
    dtype: torch.dtype,
    row_id_map: Tensor,
    prob: Prob,
) -> tuple[Tensor, Tensor]:
    """The gradients of moe_unpermute_fwd.

    Args:
        input_bwd: the gradient of the tokens.
        input_fwd: the rows of the forward.
        dtype: the dtype of both.
        row_id_map: the row_id_map of the forward.
        prob: the prob of the forward. If it is empty, topK is 1.

    Returns:
        The gradient of the rows, like input_fwd, and that of prob, float32 [tokens, topK].
    """
    with torch.no_grad():
        x = typed(moe_unpermute_bwd, "input_fwd", input_fwd, dtype)
        dy = typed(moe_unpermute_bwd, "input_bwd", input_bwd, dtype)
        probs = probs_or_none(moe_unpermute_bwd, prob)
        dx, dprobs = call(dy, x, row_id_map, probs, 1 if probs is None else probs.shape[1], False)
        return dx if dx.dtype is input_bwd.dtype else dx.view(input_bwd.dtype), dprobs


# ---- blocks of rows -------------------------------------------------------------------------------------------------


@adapt(
    "tex::fused_multi_row_padding",
    over=moe.moe_pad_into,
    names={"x": "input", "y": "output", "rows": "input_row_list", "padded": "padded_input_row_list"},
    out="",
    mutates=("output",),
    samples=moe.PADS,
)
def fused_multi_row_padding(
    call: Any, input: Tensor, output: Tensor, input_row_list: list[int], padded_input_row_list: list[int]
) -> None:
    """Copy blocks of rows to output, each followed by zeros up to its padded size. An empty block is skipped.

    Args:
        input: the concatenated blocks.
        output: written; rows after the last block are not changed.
        input_row_list: the rows of each block.
        padded_input_row_list: the rows of each block in output.
    """
    with torch.no_grad():
        call(input, output, input_row_list, padded_input_row_list)


@adapt(
    "tex::fused_multi_row_unpadding",
    over=moe.moe_unpad_into,
    names={"x": "input", "y": "output", "rows": "input_row_list", "kept": "unpadded_input_row_list"},
    out="",
    mutates=("output",),
    samples=moe.UNPADS,
)
def fused_multi_row_unpadding(
    call: Any, input: Tensor, output: Tensor, input_row_list: list[int], unpadded_input_row_list: list[int]
) -> None:
    """Copy the first rows of each block of input to output, where blocks are concatenated without padding.

    Args:
        input: the concatenated blocks.
        output: written; rows after the last block are not changed.
        input_row_list: the rows of each block in input.
        unpadded_input_row_list: the number of rows to copy from each block.
    """
    with torch.no_grad():
        call(input, output, input_row_list, unpadded_input_row_list)
