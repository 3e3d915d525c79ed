"""Names of FlagGems' kernels in tile files, and our tunables for the same ops.

A file that was written for FlagGems has no effect on our kernels, whose sizes have other names.
"""

from __future__ import annotations

from collections.abc import Iterable

# Our tunables -> FlagGems' names. A name also stands for longer ones: `softmax` for `softmax_inner`.
OURS = {
    "activation.gated, activation.gated_rows": "gated_activation",
    "attention.fwd": "attention",
    "attention.bwd_q, attention.bwd_kv": "attention_bwd",
    "channel_norm.rows, channel_norm.whole": "batch_norm group_norm instance_norm instancenorm",
    "convolution": "conv2d conv3d",
    "gemm.tiles, gemm.few": "addmm baddbmm bmm gemv mm mv",
    "index.elements, index.rows": "gather index index_put index_select scatter",
    "layout.triangle": "tril triu",
    "loss.forward, loss.backward": "cross_entropy_loss",
    "norm.rows, norm.pieces": "layer_norm rms_norm skip_layernorm",
    "norm_bwd.rows, norm_bwd.columns": "layer_norm_backward weight_bias_backward",
    "pointwise.flat, pointwise.tiles": "conj_physical elementwise_generic masked_fill",
    "random.dropout": "dropout",
    "random.fill": "exponential rand randn uniform",
    "reduce.rows, reduce.columns": "argmax argmin count_nonzero mean naive_reduction var_mean vector_norm",
    "scan.whole, scan.walk": "cumsum",
    "softmax.rows, softmax.pieces": "log_softmax softmax",
}
_BY_START = {start: ours for ours, starts in OURS.items() for start in starts.split()}


def ours_for(name: str) -> str | None:
    """Our tunables for a name of FlagGems'; None for our tunables and for other names."""
    starts = [start for start in _BY_START if name == start or name.startswith(f"{start}_")]
    return _BY_START[max(starts, key=len)] if starts else None


def hint(names: Iterable[str]) -> str | None:
    """A sentence that lists FlagGems' names and our tunables; None if no name is FlagGems'."""
    by_ours: dict[str, list[str]] = {}
    for name in sorted(names):
        if (ours := ours_for(name)) is not None:
            by_ours.setdefault(ours, []).append(name)
    if not by_ours:
        return None
    listed = "; ".join(f"{', '.join(theirs)}: {ours}" for ours, theirs in by_ours.items())
    return f"tiles of FlagGems' kernels are ignored. Set the tunables of opmux for the same ops instead: {listed}"
