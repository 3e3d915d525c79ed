"""Names of FlagGems that opmux refuses or serves differently, and why.

The key of a row is a pattern for modules and a pattern for names; `.` is the package `flag_gems` itself. The first row
that matches applies; an empty reason means that the name is served. `tools/gems_census.py` prints the rows for
`docs/flag_gems.md`.
"""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase

_VENDORS = "FlagGems' kernels for a vendor; opmux has its own folder for each vendor"
_SPARSE = "opmux has no kernel for sparse attention (DeepSeek Sparse Attention)"
_DELTA = "opmux has no kernel for gated delta rules; use the package flash-linear-attention"
_MHC = "its tensors differ from those of opmux's functions; use opmux.functional.mhc_pre, mhc_coeffs and mhc_post_res"
_LAUNCH = "launches one of FlagGems' kernels with given tiles; call fused_experts_impl"
_MXQ = "opmux has no kernel for experts with weights of 2 to 4 bits"
_SCHEDULE = "describes how FlagGems' own kernels share work; pass None where a function takes it"
_TUNING = "a part of FlagGems' tuning; opmux stores tiles in its own files: see `opmux tune`"
_GENERATOR = "a part of FlagGems' generator of kernels; pointwise_dynamic itself is served"
_REGISTRY = "opmux registers overrides itself: use enable() and use_gems()"
_VLLM = "replaces code of vLLM; the functions of flag_gems.fused can replace vLLM's custom ops"
_BACKEND = "state of FlagGems while it loads a vendor's folder; opmux.backends loads vendors"
_JIT = "a function for Triton kernels; use triton.language or tl_extra_shim"

REFUSED: dict[str, str] = {
    "runtime.backend._* *": _VENDORS,
    "fused.DSA* *": _SPARSE,
    "fused.sparse_attention *": _SPARSE,
    "fused.flashmla_sparse *": _SPARSE,
    "[.f]* bucket_sort_topk": _SPARSE,
    "[.f]* flash_mla_sparse_fwd": _SPARSE,
    "[.f]* sparse_attn_triton": _SPARSE,
    "fused.FLA* *": _DELTA,
    "[.f]* chunk_gated_delta_rule_fwd": _DELTA,
    "[.f]* fused_recurrent_gated_delta_rule_fwd": _DELTA,
    "fused.mhc* *": _MHC,
    "[.f]* mhc_*": _MHC,
    "[.f]* sinkhorn_forward": _MHC,
    "[.f]* dispatch_fused_moe_kernel": _LAUNCH,
    "[.f]* invoke_fused_moe_*": _LAUNCH,
    "[.f]* flash_mla_with_kvcache": "reads a cache in a byte format of DeepSeek-V4; use flash_mla",
    "fused_moe_mxq *": _MXQ,
    "* get_scheduler_metadata": _SCHEDULE,
    "* get_paged_mqa_logits_metadata": _SCHEDULE,
    "patches* *": _VLLM,
    ". apply_gems_patches_to_vllm": _VLLM,
    ". aten_lib": _REGISTRY,
    ". registrar": _REGISTRY,
    ". current_work_registrar": _REGISTRY,
    ". FULL_CONFIG_BY_FUNC": _REGISTRY,
    ". Register": _REGISTRY,
    "runtime.register *": _REGISTRY,
    "runtime replace_customized_ops": _REGISTRY,
    "runtime *config*": _TUNING,
    "runtime.configloader *": _TUNING,
    "runtime.backend get_*config": _TUNING,
    "runtime.backend.backend_utils get_*config": _TUNING,
    "runtime.backend *": _BACKEND,
    "runtime.backend.device *UNSUPPORT*": _BACKEND,
    "runtime.common vendors": "a list of FlagGems' vendors; use opmux.backends.VENDOR_REGISTRY",
    "utils.libentry libentry": "",
    "utils.libentry libtuner": "",
    "utils.libentry logger": "",
    "utils.libentry *": _TUNING,
    "utils.models* *": _TUNING,
    "utils.codegen_config_utils CodeGenConfig": "",
    "utils.codegen_config_utils get_codegen_config": "",
    "utils.codegen_config_utils *": _GENERATOR,
    "utils.code_utils write_atomic": "",
    "utils.code_utils *": _GENERATOR,
    "utils.pointwise_dynamic pointwise_dynamic": "",
    "utils.pointwise_dynamic PointwiseDynamicFunction": "",
    "utils.pointwise_dynamic* *": _GENERATOR,
    "utils KernelInfo": _GENERATOR,
    "utils ComplexMode": "opmux's pointwise_dynamic refuses complex tensors",
    "utils.shape_utils cfggen": _TUNING,
    "utils.shape_utils add_on_kernel": _JIT,
    "utils.limits *": _JIT,
    "utils.random_utils uniform": _JIT,
    "utils.random_utils uint_to_uniform_float": _JIT,
    "utils.triton_lang_helper use_*": _JIT,
    "utils.triton_lang_extension program_id": "",
    "utils.triton_lang_extension num_programs": "",
    "utils.triton_lang_extension *": _JIT,
}

KERNEL = "a Triton kernel of FlagGems; opmux has its own kernels: call the op"
PART = "a part of FlagGems' implementation of an op; call the op"
EXPERIMENTAL = "an experimental op of FlagGems, which `enable()` does not use and ATen does not have"

_QUANTIZED = "converts quantized weights to the dtype of the tokens first, and does not quantize activations"
DIFFERENT: dict[str, str] = {
    ". enable": "`lib` and `registrar` are not used; opmux.disable() undoes it",
    ". only_enable": "`lib` and `registrar` are not used; opmux.disable() undoes it",
    "[.f]* fused_experts_impl": _QUANTIZED,
    "[.f]* inplace_fused_experts": _QUANTIZED,
    "[.f]* outplace_fused_experts": _QUANTIZED,
    "fused.fused_moe *fused_experts*": _QUANTIZED,
    "fused* *_and_mul": "has a gradient",
    "* flash_attn_varlen_*func": "with a block_table, copies the pages; opmux.functional.attention_decode does not",
    "* scaled_dot_product_attention_forward": "M is the natural logarithm of the softmax's denominator",
    "* scaled_dot_product_attention_backward": "computes the forward again instead of reading o and M",
    "* ScaleDotProductAttention": "has `apply`, but is not an `autograd.Function`",
    "utils libtuner": "`triton.autotune`; FlagGems' own options are ignored",
    "utils.libentry libtuner": "`triton.autotune`; FlagGems' own options are ignored",
    "utils libentry": "returns the kernel unchanged",
    "utils.libentry libentry": "returns the kernel unchanged",
    "utils*pointwise_dynamic *ointwise*ynamic*": "no complex tensors; `config` and `dtypes` are ignored",
    "utils pointwise_dynamic": "no complex tensors; `config` and `dtypes` are ignored",
    "utils PointwiseDynamicFunction": "no complex tensors; `config` and `dtypes` are ignored",
    "utils.codegen_config_utils *": "has no effect",
    "config *c_*": "opmux has no C++ extension for FlagGems: the value is False, None or an empty list",
}


@functools.cache
def _first(table_name: str, module: str, name: str) -> str | None:
    for pattern, why in globals()[table_name].items():
        of_module, of_name = pattern.split(" ")
        if fnmatchcase(module, of_module) and fnmatchcase(name, of_name):
            return why or None
    return None


def refused(module: str, name: str) -> str | None:
    """Why opmux does not serve a name; None if it does, or if the name is a part of FlagGems' implementation."""
    return _first("REFUSED", module, name)


def is_refused(module: str) -> bool:
    """Whether opmux refuses all names of a module."""
    serves_some = any(not why and pattern.partition(" ")[0] == module for pattern, why in REFUSED.items())
    return refused(module, ".") is not None and not serves_some


def part(module: str, what: str) -> str | None:
    """Why users do not need a name that opmux lacks, if it belongs to FlagGems' implementation; otherwise None."""
    package = module.partition(".")[0]
    if what == "kernel":
        return KERNEL
    if package == "experimental_ops":
        return EXPERIMENTAL
    return PART if package in ("ops", "fused") and module != package else None


def different(module: str, name: str) -> str | None:
    """How a served name differs from FlagGems'; None if it does not."""
    return _first("DIFFERENT", module, name)
