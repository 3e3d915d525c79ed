"""`liger_kernel.chunked_loss`: preference, policy and distillation losses from hidden states.

`compiled` and `chunk_size` have no effect: nothing is compiled, and opmux chooses how many logits to compute at a time.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...core.errors import BadArgument
from ...functional import distillation, grpo, preference
from ...nn import preference as modules
from .bases import RejectedByAssertion, importance_of_sequences
from .function import Alias, LigerFunction, LigerModule

# ---- Functions -------------------------------------------------------------------------------------------------------


class ChunkedFunction(LigerFunction):
    """Returns (loss, values for logging); omits the values that opmux's function returns as None."""

    in_ops = False

    @classmethod
    def call(cls, args: dict[str, Any]) -> Any:
        loss, *extras = cls.calls(**cls.passed(args))
        return loss, tuple(value for value in extras if value is not None)


class ReferencedFunction(ChunkedFunction):
    """Ignores the reference model if `use_ref_model` is False."""

    @classmethod
    def call(cls, args: dict[str, Any]) -> Any:
        if not args["use_ref_model"]:
            args |= {"ref_input": None, "ref_weight": None, "ref_bias": None}
        return super().call(args)


class LigerFusedLinearDPOFunction(
    ReferencedFunction,
    calls=preference.fused_linear_dpo,
    takes="_input, weight, target, bias=None, ref_input=None, ref_weight=None, ref_bias=None, ignore_index=-100, "
    "beta=0.1, compute_nll_loss=False, compiled=True, use_ref_model=True, average_log_prob=False, chunk_size=1, "
    "loss_type='sigmoid', label_smoothing=0.0, discopop_tau=0.05, alpha=1.0",
    reads="use_ref_model",
):
    """Returns the loss and (log-probabilities, mean logits, NLL, rewards); values of chosen sequences come first."""


class LigerFusedLinearCPOFunction(
    ChunkedFunction,
    calls=preference.fused_linear_cpo,
    takes="_input, weight, target, bias=None, ignore_index=-100, beta=0.1, alpha=1.0, label_smoothing=0.0, "
    "compute_nll_loss=True, compiled=True, average_log_prob=False, chunk_size=1",
):
    """Like LigerFusedLinearDPOFunction."""


class LigerFusedLinearSimPOFunction(
    ChunkedFunction,
    calls=preference.fused_linear_simpo,
    takes="_input, weight, target, bias=None, ignore_index=-100, beta=0.1, alpha=1.0, label_smoothing=0.0, "
    "compute_nll_loss=False, compiled=True, gamma=0.5, chunk_size=1",
):
    """Like LigerFusedLinearDPOFunction."""


class LigerFusedLinearORPOFunction(
    ChunkedFunction,
    calls=preference.fused_linear_orpo,
    takes="_input, weight, target, bias=None, ignore_index=-100, beta=0.1, compute_nll_loss=True, nll_target=None, "
    "compiled=True, chunk_size=1",
):
    """Like LigerFusedLinearDPOFunction; also returns the log odds ratio and the log odds of the chosen sequences."""


class LigerFusedLinearKTOFunction(
    ReferencedFunction,
    calls=preference.fused_linear_kto,
    takes="_input, weight, target, preference_labels, bias=None, ref_input=None, ref_weight=None, ref_bias=None, "
    "kl=None, ignore_index=-100, beta=0.1, compiled=True, use_ref_model=True, average_log_prob=False, chunk_size=1",
    reads="use_ref_model",
):
    """Returns the loss and the sums of log-probabilities, logits and rewards; sums over chosen sequences come first."""


class LigerFusedLinearGRPOFunction(
    ChunkedFunction,
    calls=grpo.fused_linear_grpo,
    takes="_input, weight, selected_token_ids, attention_mask, advantages, bias=None, ref_per_token_logps=None, "
    "old_per_token_logps=None, ref_input=None, ref_weight=None, ref_bias=None, beta=0.04, epsilon_low=0.2, "
    "epsilon_high=0.2, loss_type='dapo', max_completion_length=None, importance_sampling_level='token', "
    "sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, temperature=1.0, compiled=True, use_ref_model=True, "
    "chunk_size=1, vllm_is_ratio=None, delta=None, use_bias_correction_kl=False, vespo_k_pos=2.0, "
    "vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0, num_items_in_batch=None",
    selected_token_ids="completion_ids",
    attention_mask="completion_mask",
    ref_per_token_logps="ref_logp",
    old_per_token_logps="old_logp",
    epsilon_low="eps_low",
    epsilon_high="eps_high",
    reads="use_ref_model",
):
    """Returns the loss and (divergence, share of clipped tokens); if beta is 0, there is no divergence.

    `use_ref_model` has no effect: if beta is not 0, a given reference model is used.
    """

    @classmethod
    def call(cls, args: dict[str, Any]) -> Any:
        name = cls.__name__
        if args["use_ref_model"] and args["ref_per_token_logps"] is None and args["ref_input"] is None:
            expected = "be given, or ref_input, for use_ref_model=True"
            raise RejectedByAssertion(name, "ref_per_token_logps", expected, "None")
        if args["loss_type"] == "dr_grpo" and args["max_completion_length"] is None:
            raise RejectedByAssertion(name, "max_completion_length", "be given for loss_type='dr_grpo'", "None")
        shape = args["selected_token_ids"].shape
        args["vllm_is_ratio"] = importance_of_sequences(name, args["vllm_is_ratio"], shape)
        return super().call(args)


class DistillationFunction(LigerFunction):
    """Returns the loss of a student, or (loss, soft loss, hard loss) if `return_soft_hard_loss` is set."""

    in_ops = False
    kind: ClassVar[str]

    @classmethod
    def call(cls, args: dict[str, Any]) -> Any:
        output = cls.calls(kind=cls.kind, **cls.passed(args))
        return tuple(output) if args["return_soft_hard_loss"] else output.loss


STUDENT_AND_TEACHER = (
    "student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias, teacher_bias, "
    "weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, ignore_index=-100, temperature=1.0, compiled=True, "
    "chunk_size=1024, return_soft_hard_loss=False"
)


class LigerFusedLinearJSDFunction(
    DistillationFunction,
    calls=distillation.fused_linear_distillation,
    takes=STUDENT_AND_TEACHER,
    reads="return_soft_hard_loss",
):
    """A student's loss; the soft loss is the Jensen-Shannon divergence from the teacher."""

    kind = "jsd"


class LigerFusedLinearCosineSimilarityFunction(
    DistillationFunction,
    calls=distillation.fused_linear_distillation,
    takes=STUDENT_AND_TEACHER,
    reads="return_soft_hard_loss",
):
    """A student's loss; the soft loss is the cosine distance from the teacher."""

    kind = "cosine"


liger_fused_linear_dpo = LigerFusedLinearDPOFunction.apply
liger_fused_linear_cpo = LigerFusedLinearCPOFunction.apply
liger_fused_linear_simpo = LigerFusedLinearSimPOFunction.apply
liger_fused_linear_orpo = LigerFusedLinearORPOFunction.apply
liger_fused_linear_kto = LigerFusedLinearKTOFunction.apply
liger_fused_linear_grpo = LigerFusedLinearGRPOFunction.apply
liger_fused_linear_jsd = LigerFusedLinearJSDFunction.apply
liger_fused_linear_cosine = LigerFusedLinearCosineSimilarityFunction.apply


# ---- modules ---------------------------------------------------------------------------------------------------------


class LigerFusedLinearDPOLoss(
    LigerModule,
    modules.FusedLinearDPOLoss,
    function=LigerFusedLinearDPOFunction,
    options="ignore_index, beta, alpha, compute_nll_loss, compiled, use_ref_model, average_log_prob, chunk_size, "
    "loss_type, label_smoothing, discopop_tau",
    inputs="lin_weight, _input, target, bias, ref_input, ref_weight, ref_bias",
    lin_weight="weight",
):
    """`LigerFusedLinearDPOFunction` with its options as attributes."""


class LigerFusedLinearCPOLoss(
    LigerModule,
    modules.FusedLinearCPOLoss,
    function=LigerFusedLinearCPOFunction,
    options="ignore_index, beta, alpha, label_smoothing, compute_nll_loss, compiled, average_log_prob, chunk_size",
    inputs="lin_weight, _input, target, bias",
    lin_weight="weight",
):
    """`LigerFusedLinearCPOFunction` with its options as attributes."""


class LigerFusedLinearSimPOLoss(
    LigerModule,
    modules.FusedLinearSimPOLoss,
    function=LigerFusedLinearSimPOFunction,
    options="ignore_index, beta, alpha, label_smoothing, compute_nll_loss=True, compiled, gamma, chunk_size",
    inputs="lin_weight, _input, target, bias",
    lin_weight="weight",
):
    """`LigerFusedLinearSimPOFunction` with its options as attributes."""


class LigerFusedLinearORPOLoss(
    LigerModule,
    modules.FusedLinearORPOLoss,
    function=LigerFusedLinearORPOFunction,
    options="ignore_index, beta, compute_nll_loss, compiled, chunk_size",
    inputs="lin_weight, _input, target, bias, nll_target",
    lin_weight="weight",
):
    """`LigerFusedLinearORPOFunction` with its options as attributes."""


class LigerFusedLinearKTOLoss(
    LigerModule,
    modules.FusedLinearKTOLoss,
    function=LigerFusedLinearKTOFunction,
    options="ignore_index, beta, compiled, use_ref_model=False, average_log_prob, chunk_size",
    inputs="_input, lin_weight, target, bias, preference_labels=None, ref_input, ref_weight, ref_bias, kl",
    lin_weight="weight",
):
    """`LigerFusedLinearKTOFunction` with its options as attributes."""


class LigerFusedLinearGRPOLoss(
    LigerModule,
    modules.FusedLinearGRPOLoss,
    function=LigerFusedLinearGRPOFunction,
    options="beta, compiled, use_ref_model, chunk_size, epsilon_low, epsilon_high, loss_type, max_completion_length, "
    "importance_sampling_level, sapo_temperature_pos, sapo_temperature_neg, temperature, delta, "
    "use_bias_correction_kl, vespo_k_pos, vespo_lambda_pos, vespo_k_neg, vespo_lambda_neg",
    inputs="_input, lin_weight, selected_token_ids, attention_mask, advantages, bias, ref_per_token_logps, "
    "old_per_token_logps, ref_input, ref_weight, ref_bias, vllm_is_ratio, num_items_in_batch",
    lin_weight="weight",
):
    """`LigerFusedLinearGRPOFunction` with its options as attributes."""

    epsilon_low, epsilon_high = Alias("eps_low"), Alias("eps_high")

    def check(self) -> None:
        for name in ("sapo_temperature_pos", "sapo_temperature_neg", "delta"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadArgument.of(type(self).__name__, name, "be greater than 0", str(value))


SOFT_AND_HARD = (
    "weight_hard_loss, weight_soft_loss, beta, ignore_index, temperature, compiled, chunk_size, return_soft_hard_loss"
)
LAYERS = (
    "student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias=None, teacher_bias=None"
)


class LigerFusedLinearJSDLoss(
    LigerModule,
    modules.JSDDistillationLoss,
    function=LigerFusedLinearJSDFunction,
    options=SOFT_AND_HARD,
    inputs=LAYERS,
):
    """`LigerFusedLinearJSDFunction` with its options as attributes."""


class LigerFusedLinearCosineSimilarityLoss(
    LigerModule,
    modules.CosineDistillationLoss,
    function=LigerFusedLinearCosineSimilarityFunction,
    options=SOFT_AND_HARD,
    inputs=LAYERS,
):
    """`LigerFusedLinearCosineSimilarityFunction` with its options as attributes."""
