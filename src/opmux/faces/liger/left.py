"""Names of Liger that opmux refuses or serves differently, and why.

A row is a pattern of a module and a pattern of a name. `tools/liger_census.py` prints them for `docs/liger.md`.
"""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase

_COMPILERS = "kernels for another compiler; opmux chooses which implementation runs"
REFUSED: dict[str, str] = {
    "ops.cute* *": _COMPILERS,
    "ops.cutile* *": _COMPILERS,
    "ops.backends._ascend* *": "Liger's kernels for Ascend; opmux has its own folder for the vendor",
}

REFUSED["ops.experimental.mm_int8int2 get_autotune_config"] = "settings of a kernel that opmux does not have"
REFUSED["transformers.moe moe_fused"] = _COMPILERS

_LAUNCHED = "an object that runs opmux's function when it is launched; it cannot be called from another Triton kernel"
_NO_KERNEL = "can be imported; a launch raises an error that names the function to use"
_APPLY = "has `apply`, but is not an `autograd.Function`: it cannot be subclassed with a new `forward`"
_FORWARD = (
    "transformers' own forward, with our loss: takes the arguments of the installed transformers; logits are computed "
    "when they are read, and not None"
)
_NO_EFFECT = "Liger's value on CUDA, on every device; it has no effect"
DIFFERENT: dict[str, str] = {
    "transformers.model.* *_forward": _FORWARD,
    "transformers.model.* *_forward_*": _FORWARD,
    "transformers.monkey_patch *_lce_forward": _FORWARD,
    "transformers.moe LigerExpertParallelFusedMoe": "raises if the process group has more than one process",
    "triton* *": "has no effect: Triton's own cache manager writes files atomically",
    "ops* Liger*Function": _APPLY,
    "ops* GrpoLossFunction": _APPLY,
    "chunked_loss* Liger*Function": _APPLY,
    "megatron* Liger*Function": _APPLY,
    "transformers* Liger*Function": _APPLY,
    "transformers* GrpoLossFunction": _APPLY,
    "ops.vocab_parallel_cross_entropy *_kernel": _NO_KERNEL,
    "ops.swiglu silu": _NO_KERNEL,
    "ops.experimental.mm_int8int2 matmul_kernel": _NO_KERNEL,
    "ops.experimental.mm_int8int2 pack_weights": "does not modify its argument",
    "ops.mhc mhc_split_sinkhorn_fwd": "`return_hist=True` raises; `mhc_sinkhorn_bwd` needs no history",
    "ops* *_kernel": _LAUNCHED,
    "ops.backends* register_impl": "stores the implementation and warns; `register_vendor` makes opmux run functions",
    "ops* MAX_FUSED_SIZE": _NO_EFFECT,
    "ops* LOG2_E": _NO_EFFECT,
    "ops* BLOCK_M_TOKEN": _NO_EFFECT,
}


@functools.cache
def _first(table_name: str, module: str, name: str) -> str | None:
    for pattern, why in globals()[table_name].items():
        of_module, of_name = pattern.split(" ")
        if fnmatchcase(module, of_module) and fnmatchcase(name, of_name):
            return why
    return None


def refused(module: str, name: str) -> str | None:
    """Why opmux does not serve a name; None if it does."""
    return _first("REFUSED", module, name)


def different(module: str, name: str) -> str | None:
    """How a served name differs from Liger's; None if it does not."""
    return _first("DIFFERENT", module, name)
