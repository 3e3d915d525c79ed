"""Tables of Liger's modules: the names in each module, and the file of this package that defines them.

The modules are created without code, and import a name on first access. So `import liger_kernel` is fast, and a
vendor's package may import `liger_kernel.ops` while opmux loads vendors.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import types
from typing import Any

from ...core import machine
from ...core.default import get_default_manager
from ...core.errors import nearest
from ...machine import liger_names, vendors
from . import left, model_names
from .imported import IMPORTED
from .patched_models import MODELS

LIBRARY = "liger_kernel"
VERSION = "0.8.2"  # the version of Liger-Kernel whose interface we provide

# File of this package -> the modules of liger_kernel.ops and liger_kernel.transformers whose names it defines.
FILES = {
    "norms": "rms_norm fused_add_rms_norm modulated_rms_norm layer_norm group_norm poly_norm dyt",
    "rope": "rope qwen2vl_mrope llama4_rope",
    "rows": "relu_squared softmax sparsemax experimental.embedding",
    "glu": "geglu swiglu mlp tiled_mlp fused_moe",
    "losses": "cross_entropy fused_linear_cross_entropy",
    "divergences": "kl_div jsd tvd fused_linear_jsd fused_linear_scaled_cross_entropy vocab_parallel_cross_entropy",
    "policy": "grpo_loss",
    "attention": "attn_res mhc multi_token_attention fused_neighborhood_attention",
}

# Submodule of liger_kernel.ops -> names that only the submodule has, not liger_kernel.ops.
OPS_BELOW = {
    "dyt": "liger_dyt_fwd liger_dyt_bwd",
    "grpo_loss": "fused_selective_log_softmax",
    "llama4_rope": "llama4_rope_forward",
    "qwen2vl_mrope": "qwen2vl_mrope_forward qwen2vl_mrope_backward",
    "swiglu": "swiglu_fused_gate_up_forward swiglu_fused_gate_up_backward",
    "vocab_parallel_cross_entropy": "validate_formula_and_mode",
}

# Submodule of liger_kernel.transformers -> its names; liger_kernel.transformers also has the names before the |.
TRANSFORMERS = {
    "cross_entropy": "LigerCrossEntropyLoss",
    "dyt": "LigerDyT",
    "experimental.embedding": "| LigerEmbedding",
    "fused_add_rms_norm": "LigerFusedAddRMSNorm",
    "fused_linear_cross_entropy": "LigerFusedLinearCrossEntropyLoss",
    "fused_linear_jsd": "LigerFusedLinearJSD",
    "fused_neighborhood_attention": (
        "| LigerFusedNeighborhoodAttention LigerFusedNeighborhoodAttentionLayer LigerFusedNeighborhoodAttentionConfig"
    ),
    "geglu": "LigerGEGLUMLP | LigerGEGLUMLPForGemma4",
    "group_norm": "| LigerGroupNorm",
    "grpo_loss": "| triton_grpo_loss",
    "jsd": "LigerJSD",
    "kl_div": "LigerKLDIVLoss",
    "layer_norm": "LigerLayerNorm",
    "llama4_rope": (
        "liger_llama4_text_rotary_pos_emb liger_llama4_vision_rotary_pos_emb | apply_liger_llama4_rope_full"
    ),
    "mhc": "LigerMHC",
    "mlp": "LigerMLP LigerFalconH1MLP",
    "modulated_rms_norm": "LigerModulatedRMSNorm",
    "multi_token_attention": "LigerMultiTokenAttention",
    "poly_norm": "LigerPolyNorm",
    "qwen2vl_mrope": "| liger_multimodal_rotary_pos_emb",
    "relu_squared": "LigerReLUSquared",
    "rms_norm": (
        "LigerRMSNorm | LigerRMSNormForGemma LigerRMSNormForGemma2 LigerRMSNormForGemma3 LigerRMSNormForGemma4 "
        "LigerRMSNormForGlm4 LigerRMSNormForOlmo2 LigerRMSNormForQwen3Next"
    ),
    "rope": "liger_rotary_pos_emb | liger_rotary_pos_emb_vision",
    "softmax": "LigerSoftmax",
    "sparsemax": "LigerSparsemax",
    "swiglu": (
        "LigerSwiGLUMLP LigerBlockSparseTop2MLP LigerPhi3SwiGLUMLP LigerQwen3MoeSwiGLUMLP LigerFalconH1SwiGLUMLP "
        "LigerExperts | LigerHunyuanV1SwiGLUMLP"
    ),
    "tiled_mlp": "LigerTiledSwiGLUMLP LigerTiledGEGLUMLP",
    "tvd": "LigerTVDLoss",
    "vocab_parallel_cross_entropy": "LigerVocabParallelCrossEntropy",
}

# File of this package -> the names that it defines in liger_kernel.transformers.functional.
FUNCTIONAL = {
    "norms": (
        "liger_rms_norm liger_fused_add_rms_norm liger_modulated_rms_norm liger_layer_norm liger_group_norm "
        "liger_poly_norm liger_dyt"
    ),
    "rope": "liger_rope liger_qwen2vl_mrope",
    "rows": "liger_relu_squared liger_softmax liger_sparsemax",
    "glu": "liger_geglu liger_swiglu",
    "attention": (
        "liger_attn_res liger_mhc_coeffs liger_mhc_pre liger_mhc_post_res liger_mhc_apply liger_mhc_forward "
        "liger_multi_token_attention liger_fused_neighborhood_attention"
    ),
    "divergences": "liger_kl_div liger_jsd liger_tvd liger_fused_linear_jsd",
    "losses": "CrossEntropyOutput liger_cross_entropy liger_fused_linear_cross_entropy",
}

# Function of liger_kernel.chunked_loss.functional -> the module of its loss and the name in LigerFusedLinear<name>Loss.
CHUNKED = {
    "liger_fused_linear_cosine": ("cosine_similarity_loss", "CosineSimilarity"),
    "liger_fused_linear_cpo": ("cpo_loss", "CPO"),
    "liger_fused_linear_dpo": ("dpo_loss", "DPO"),
    "liger_fused_linear_grpo": ("grpo_loss", "GRPO"),
    "liger_fused_linear_jsd": ("jsd_loss", "JSD"),
    "liger_fused_linear_kto": ("kto_loss", "KTO"),
    "liger_fused_linear_orpo": ("orpo_loss", "ORPO"),
    "liger_fused_linear_simpo": ("simpo_loss", "SimPO"),
}

# Submodule of liger_kernel.megatron -> the class or function that it exports.
MEGATRON = {
    "cross_entropy": "LigerMegatronCrossEntropy",
    "monkey_patch": "apply_liger_kernel_to_megatron",
    "rms_norm": "LigerMegatronRMSNorm",
    "swiglu": "LigerMegatronSwiGLU",
}

PATCHING = (
    "_apply_liger_kernel _apply_liger_kernel_to_instance "
    f"{' '.join(f'apply_liger_kernel_to_{model}' for models in MODELS.values() for model in models.split())}"
)

DEVICES = (
    "get_total_gpu_memory infer_comm_backend infer_device infer_device_arch is_npu_available is_peft_available "
    "transformers_version_dispatch"
)
LAUNCHING = (
    "amp_custom_bwd amp_custom_fwd calculate_settings compare_version device_context ensure_contiguous "
    "get_amp_custom_fwd_bwd get_npu_core_count is_hip set_large_grf_mode torch_to_triton_dtype"
)

# Module of Liger -> further names, by the file of this package that defines them; "file:attribute" under another name.
MORE: dict[str, dict[str, str]] = {
    "chunked_loss.fused_linear_distillation": {"bases": "LigerFusedLinearDistillationBase"},
    "chunked_loss.fused_linear_ppo": {"bases": "LigerFusedLinearPPOBase"},
    "chunked_loss.fused_linear_preference": {"bases": "LigerFusedLinearPreferenceBase"},
    "chunked_loss.fused_linear_unpaired_preference": {"bases": "LigerFusedLinearUnpairedPreferenceBase"},
    "chunked_loss.grpo_loss": {"policy": "clip_coef_fn get_gamma_weights k3_loss_fn sapo_loss_fn"},
    "env_report": {"report": "print_env_report"},
    "megatron.monkey_patch": {"launching": "logger"},
    "megatron.swiglu": {"launching": "logger"},
    "ops.cross_entropy": {"kernels": "liger_cross_entropy_kernel", "constants": "LOG2_E MAX_FUSED_SIZE"},
    "ops.experimental.embedding": {"kernels": "embedding_forward_kernel embedding_backward_kernel"},
    "ops.fused_linear_cross_entropy": {"constants": "MAX_FUSED_SIZE"},
    "ops.fused_linear_jsd": {"constants": "MAX_FUSED_SIZE"},
    "ops.experimental.mm_int8int2": {"kernels": "matmul_kernel", "int2": "matmul pack_weights unpack_weights"},
    "ops.fused_moe": {"constants": "BLOCK_M_TOKEN", "glu": "compute_routing_metadata"},
    "ops.fused_moe_kernels": {},
    "ops.fused_neighborhood_attention": {"attention": "fused_neighborhood_attention_forward"},
    "ops.group_norm": {"constants:MAX_FUSED_SIZE_OF_NORMS": "MAX_FUSED_SIZE"},
    "ops.jsd": {"constants:MAX_FUSED_SIZE_OF_NORMS": "MAX_FUSED_SIZE"},
    "ops.kl_div": {
        "constants:MAX_FUSED_SIZE_OF_DISTANCES": "MAX_FUSED_SIZE",
        "constants": "REDUCTION_LITERAL",
        "launching": "get_num_warps",
        "divergences": "kldiv_forward_triton kldiv_backward_triton",
    },
    "ops.mhc": {
        "hyper_connections": (
            "mhc_mm_norm_fwd mhc_mm_norm_bwd mhc_split_sinkhorn_fwd mhc_sinkhorn_bwd mhc_pre_fwd mhc_pre_bwd "
            "mhc_post_res_fwd mhc_post_res_bwd"
        )
    },
    "ops.swiglu": {"kernels": "silu"},
    "ops.tvd": {
        "constants:MAX_FUSED_SIZE_OF_DISTANCES": "MAX_FUSED_SIZE",
        "constants": "REDUCTION_LITERAL",
        "launching": "get_num_warps",
        "divergences": "tv_distance_forward_triton tvd_backward_triton",
    },
    "ops.utils": {"kernels": "element_mul_kernel"},
    "ops.vocab_parallel_cross_entropy": {
        "kernels": "liger_vocab_parallel_ce_forward_kernel liger_vocab_parallel_ce_backward_kernel",
        "constants": "MAX_FUSED_SIZE",
    },
    "transformers.auto_model": {"launching": "logger"},
    "transformers.fsdp": {"sharding": "_FSDPForwardRedirection"},
    "transformers.moe": {"expert_parallel": "LigerExpertParallelFusedMoe"},
    "transformers.monkey_patch": {
        "launching": "logger",
        "patching": (
            "PEFT_AVAILABLE transformer_version MIN_SUPPORTED_TRANSFORMERS_VERSION IS_TRANSFORMERS_V5_OR_LATER"
        ),
    },
    "transformers.trainer": {"trainers": "LigerORPOTrainer"},
    "transformers.trainer.orpo_trainer": {"trainers": "LigerORPOTrainer LigerFusedLinearORPOLoss"},
    "triton": {"triton_cache": "apply_liger_triton_cache_manager"},
    "triton.monkey_patch": {"triton_cache": "apply_liger_triton_cache_manager LigerTritonFileCacheManager"},
    "utils": {"patching": "PEFT_AVAILABLE"},
}

# Name -> the file of this package that defines it, "file:attribute", or the module of Liger that it is imported from.
Homes = dict[str, str]


def _homes(names: str, file: str) -> Homes:
    return dict.fromkeys(names.replace("|", " ").split(), file)


def _file_of(module: str) -> str:
    return next(file for file, modules in FILES.items() if module in modules.split())


def _tables() -> dict[str, Homes]:
    """Module of Liger -> its names and the files that define them."""
    tables: dict[str, Homes] = {
        "": {},
        "ops": {"_replace_with_vendor_ops": "names"},
        "transformers": _homes(f"is_transformers_available {PATCHING}", "patching"),
        "transformers.auto_model": _homes("AutoLigerKernelForCausalLM", "auto_model"),
        "transformers.monkey_patch": _homes(f"MODEL_TYPE_TO_APPLY_LIGER_FN {PATCHING}", "patching"),
        "transformers.trainer_integration": _homes("_apply_liger_kernel", "patching"),
    }
    tables["transformers"] |= tables["transformers.auto_model"]
    for module, names in liger_names.OPS.items():
        homes = _homes(names, _file_of(module))
        tables["ops"] |= homes
        tables[f"ops.{module}"] = homes | _homes(OPS_BELOW.get(module, ""), _file_of(module))
    for module, names in TRANSFORMERS.items():
        exported, _, rest = names.partition("|")
        tables["transformers"] |= _homes(exported, _file_of(module))
        tables[f"transformers.{module}"] = _homes(exported + rest, _file_of(module))
    tables["transformers.functional"] = {n: f for f, names in FUNCTIONAL.items() for n in names.split()}
    tables |= {"chunked_loss": {}, "chunked_loss.functional": {}}
    for name, (module, suffix) in CHUNKED.items():
        loss, function = f"LigerFusedLinear{suffix}Loss", f"LigerFusedLinear{suffix}Function"
        tables["chunked_loss"][loss] = tables["chunked_loss.functional"][name] = "chunked"
        tables[f"chunked_loss.{module}"] = _homes(f"{loss} {function}", "chunked")
    tables["megatron"] = _homes(" ".join(MEGATRON.values()), "megatron")
    tables |= {f"megatron.{module}": _homes(name, "megatron") for module, name in MEGATRON.items()}
    tables |= {"ops.experimental": {}, "transformers.experimental": dict(tables["transformers.experimental.embedding"])}
    tables["utils"] = _homes(DEVICES, "devices")
    tables["ops.utils"] = _homes(LAUNCHING, "launching")
    for module, by_file in MORE.items():
        table = tables.setdefault(module, {})
        for file, names in by_file.items():
            table |= _homes(names, file)
    tables |= model_names.tables()
    tables["transformers.monkey_patch"] |= model_names.forwards_of_patches()
    for source, importers in IMPORTED.items():
        for module, names in importers.items():
            tables[module] |= _homes(names, f"{LIBRARY}.{source}")
    return tables


class Served(types.ModuleType):
    """A module of Liger. `homes`: name -> the file of this package that defines it."""

    def __init__(self, name: str, homes: Homes):
        super().__init__(name, f"Liger-Kernel's {name}, provided by opmux.")
        self.__path__ = []
        self.__file__ = __file__  # this file makes all these modules
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__all__ = sorted(
            n for n in homes if not n.startswith("_") and homes[n] != "auto_model" and LIBRARY not in homes[n]
        )  # without names from auto_model: `import *` would import transformers
        self.__dict__["homes"], self.__dict__["resolved"] = homes, set()

    def __getattr__(self, name: str) -> Any:
        if name not in self.homes:
            close = None if name.startswith("__") else nearest(name, dir(self))
            hint = f"; did you mean '{close}'?" if close else ""
            why = left.refused(self.__name__.partition(".")[2], name)
            hint = f": {why}" if why else hint
            raise AttributeError(f"module '{self.__name__}' of opmux has no attribute '{name}'{hint}")
        home = self.homes[name]
        if home.startswith(LIBRARY):  # not kept, because a vendor may replace it there
            return getattr(MODULES[home], name)
        file, _, attribute = home.partition(":")
        return self.keep(name, getattr(importlib.import_module(f"{__package__}.{file}"), attribute or name))

    def keep(self, name: str, value: Any) -> Any:
        self.resolved.add(name)
        self.__dict__[name] = value
        return value

    def forget(self) -> None:
        """Look names up again on next access."""
        for name in self.resolved:
            self.__dict__.pop(name, None)
        self.resolved.clear()

    def __dir__(self) -> list[str]:
        below = f"{self.__name__}."
        children = (m.removeprefix(below) for m in MODULES if m.startswith(below))
        return sorted({*self.homes, *(c for c in children if "." not in c)})


class ServedOps(Served):
    """`liger_kernel.ops`: our functions; this machine's vendor may replace them and add others."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_replace_with_vendor_ops":
            return super().__getattr__(name)
        complete = get_default_manager().prepare()
        theirs = machine.current().extras()
        value = self.keep(name, theirs[name]) if name in theirs else super().__getattr__(name)
        if not complete:  # vendors are being loaded: look the name up again at the next access
            self.forget()
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *machine.current().extras()})


def _replace_with_vendor_ops() -> None:
    """Look the names of `liger_kernel.ops` up again, so that functions of this machine's vendor replace ours.

    Programs need not call this: a name is looked up on first access, and again after a vendor is registered.
    """
    ops.forget()


def _modules() -> dict[str, Served]:
    """Every module of Liger that opmux provides, by its full name."""
    names = {f"{LIBRARY}.{module}" if module else LIBRARY: homes for module, homes in _tables().items()}
    modules = {name: (ServedOps if name == f"{LIBRARY}.ops" else Served)(name, homes) for name, homes in names.items()}
    modules[LIBRARY].__dict__["__version__"] = VERSION
    return modules


MODULES = _modules()
ops: Any = MODULES[f"{LIBRARY}.ops"]
vendors.on_change(ops.forget)

# Imported name -> our module. `liger_kernel.ops.backends` is opmux's own package of vendors.
SERVED = MODULES | {f"{LIBRARY}.ops.backends": "opmux.backends"}
