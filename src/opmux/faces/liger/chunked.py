"""`liger_kernel.chunked_loss`: preference, policy and distillation losses over hidden states.

`compiled` and `chunk_size` have no effect: nothing is compiled, and parts of the logits have a size of their own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..functional import distillation, grpo, preference
from .function import LigerFunction

Results = tuple[Tensor, tuple[Any, ...]]
PAIRS = 8  # the loss of pairs and seven more; ORPO has nine


# ---- functions -------------------------------------------------------------------------------------------------------


class LigerFusedLinearDPOFunction(LigerFunction):
    """The loss, and (log-probabilities, mean logits, NLL, rewards), chosen before rejected."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
        loss_type: str = "sigmoid",
        label_smoothing: float = 0.0,
        discopop_tau: float = 0.05,
        alpha: float = 1.0,
    ) -> Results:
        reference = (ref_input, ref_weight, ref_bias) if use_ref_model else ()
        loss, *rest = preference.fused_linear_dpo(
            _input, weight, target, bias, *reference, loss_type=loss_type, beta=beta, label_smoothing=label_smoothing,
            discopop_tau=discopop_tau, compute_nll_loss=compute_nll_loss, alpha=alpha,
            average_log_prob=average_log_prob, ignore_index=ignore_index,
        )[:PAIRS]  # fmt: skip
        return loss, tuple(rest)


class LigerFusedLinearCPOFunction(LigerFunction):
    """As LigerFusedLinearDPOFunction."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> Results:
        loss, *rest = preference.fused_linear_cpo(
            _input, weight, target, bias, beta=beta, label_smoothing=label_smoothing,
            compute_nll_loss=compute_nll_loss, alpha=alpha, average_log_prob=average_log_prob,
            ignore_index=ignore_index,
        )[:PAIRS]  # fmt: skip
        return loss, tuple(rest)


class LigerFusedLinearSimPOFunction(LigerFunction):
    """As LigerFusedLinearDPOFunction."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        gamma: float = 0.5,
        chunk_size: int = 1,
    ) -> Results:
        loss, *rest = preference.fused_linear_simpo(
            _input, weight, target, bias, beta=beta, gamma=gamma, label_smoothing=label_smoothing,
            compute_nll_loss=compute_nll_loss, alpha=alpha, ignore_index=ignore_index,
        )[:PAIRS]  # fmt: skip
        return loss, tuple(rest)


class LigerFusedLinearORPOFunction(LigerFunction):
    """As LigerFusedLinearDPOFunction, and the log odds ratio and the log odds of the chosen ones."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = True,
        nll_target: Tensor | None = None,
        compiled: bool = True,
        chunk_size: int = 1,
    ) -> Results:
        loss, *rest = preference.fused_linear_orpo(
            _input, weight, target, bias, nll_target, beta=beta, compute_nll_loss=compute_nll_loss,
            ignore_index=ignore_index,
        )  # fmt: skip
        return loss, tuple(rest)


class LigerFusedLinearKTOFunction(LigerFunction):
    """The loss, and sums of log-probabilities, logits and rewards, chosen before rejected."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        preference_labels: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        kl: Tensor | None = None,
        ignore_index: int = -100,
        beta: float = 0.1,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ) -> Results:
        reference = (ref_input, ref_weight, ref_bias) if use_ref_model else (None, None, None)
        loss, *rest = preference.fused_linear_kto(
            _input, weight, target, preference_labels, bias, *reference, kl, beta=beta,
            average_log_prob=average_log_prob, ignore_index=ignore_index,
        )  # fmt: skip
        return loss, tuple(rest)


class LigerFusedLinearGRPOFunction(LigerFunction):
    """The loss, and (divergence, share of clipped tokens); without beta, only the second."""

    @staticmethod
    def apply(
        _input: Tensor,
        weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        beta: float = 0.04,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0,
        compiled: bool = True,
        use_ref_model: bool = True,
        chunk_size: int = 1,
        vllm_is_ratio: Tensor | None = None,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        vespo_k_pos: float = 2.0,
        vespo_lambda_pos: float = 3.0,
        vespo_k_neg: float = 3.0,
        vespo_lambda_neg: float = 2.0,
        num_items_in_batch: Tensor | float | None = None,
    ) -> Results:
        made = grpo.fused_linear_grpo(
            _input, weight, selected_token_ids, advantages, attention_mask, bias, old_per_token_logps,
            ref_per_token_logps, ref_input, ref_weight, ref_bias, vllm_is_ratio, loss_type=loss_type, beta=beta,
            eps_low=epsilon_low, eps_high=epsilon_high, delta=delta, temperature=temperature,
            importance_sampling_level=importance_sampling_level, use_bias_correction_kl=use_bias_correction_kl,
            sapo_temperature_pos=sapo_temperature_pos, sapo_temperature_neg=sapo_temperature_neg,
            vespo_k_pos=vespo_k_pos, vespo_lambda_pos=vespo_lambda_pos, vespo_k_neg=vespo_k_neg,
            vespo_lambda_neg=vespo_lambda_neg, max_completion_length=max_completion_length,
            num_items_in_batch=num_items_in_batch,
        )  # fmt: skip
        return made.loss, (made.clipped,) if made.kl is None else (made.kl, made.clipped)


liger_fused_linear_dpo = LigerFusedLinearDPOFunction.apply
liger_fused_linear_cpo = LigerFusedLinearCPOFunction.apply
liger_fused_linear_simpo = LigerFusedLinearSimPOFunction.apply
liger_fused_linear_orpo = LigerFusedLinearORPOFunction.apply
liger_fused_linear_kto = LigerFusedLinearKTOFunction.apply
liger_fused_linear_grpo = LigerFusedLinearGRPOFunction.apply


# ---- modules ---------------------------------------------------------------------------------------------------------


class ChunkedLoss(nn.Module):
    """A Function with its options as attributes."""

    function: type[LigerFunction]

    def __init__(self, **options: Any):
        super().__init__()
        self.names = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def applied(self, *tensors: Any, **more: Any) -> Any:
        return self.function.apply(*tensors, **{name: getattr(self, name) for name in self.names}, **more)


class LigerFusedLinearDPOLoss(ChunkedLoss):
    function = LigerFusedLinearDPOFunction

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        compute_nll_loss: bool = False,
        compiled: bool = True,
        use_ref_model: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
        loss_type: str = "sigmoid",
        label_smoothing: float = 0.0,
        discopop_tau: float = 0.05,
    ):
        super().__init__(
            ignore_index=ignore_index, beta=beta, alpha=alpha, compute_nll_loss=compute_nll_loss,
            use_ref_model=use_ref_model, average_log_prob=average_log_prob, loss_type=loss_type,
            label_smoothing=label_smoothing, discopop_tau=discopop_tau,
        )  # fmt: skip

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
    ) -> Results:
        return self.applied(_input, lin_weight, target, bias, ref_input, ref_weight, ref_bias)


class LigerFusedLinearCPOLoss(ChunkedLoss):
    function = LigerFusedLinearCPOFunction

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ):
        super().__init__(
            ignore_index=ignore_index, beta=beta, alpha=alpha, label_smoothing=label_smoothing,
            compute_nll_loss=compute_nll_loss, average_log_prob=average_log_prob,
        )  # fmt: skip

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Results:
        return self.applied(_input, lin_weight, target, bias)


class LigerFusedLinearSimPOLoss(ChunkedLoss):
    function = LigerFusedLinearSimPOFunction

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        alpha: float = 1.0,
        label_smoothing: float = 0.0,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        gamma: float = 0.5,
        chunk_size: int = 1,
    ):
        super().__init__(
            ignore_index=ignore_index, beta=beta, alpha=alpha, label_smoothing=label_smoothing,
            compute_nll_loss=compute_nll_loss, gamma=gamma,
        )  # fmt: skip

    def forward(self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None) -> Results:
        return self.applied(_input, lin_weight, target, bias)


class LigerFusedLinearORPOLoss(ChunkedLoss):
    function = LigerFusedLinearORPOFunction

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        compute_nll_loss: bool = True,
        compiled: bool = True,
        chunk_size: int = 1,
    ):
        super().__init__(ignore_index=ignore_index, beta=beta, compute_nll_loss=compute_nll_loss)

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        nll_target: Tensor | None = None,
    ) -> Results:
        return self.applied(_input, lin_weight, target, bias, nll_target=nll_target)


class LigerFusedLinearKTOLoss(ChunkedLoss):
    function = LigerFusedLinearKTOFunction

    def __init__(
        self,
        ignore_index: int = -100,
        beta: float = 0.1,
        compiled: bool = True,
        use_ref_model: bool = False,
        average_log_prob: bool = False,
        chunk_size: int = 1,
    ):
        super().__init__(
            ignore_index=ignore_index, beta=beta, use_ref_model=use_ref_model, average_log_prob=average_log_prob
        )

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        preference_labels: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        kl: Tensor | None = None,
    ) -> Results:
        return self.applied(_input, lin_weight, target, preference_labels, bias, ref_input, ref_weight, ref_bias, kl)


class LigerFusedLinearGRPOLoss(ChunkedLoss):
    function = LigerFusedLinearGRPOFunction

    def __init__(
        self,
        beta: float = 0.04,
        compiled: bool = True,
        use_ref_model: bool = True,
        chunk_size: int = 1,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        temperature: float = 1.0,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        vespo_k_pos: float = 2.0,
        vespo_lambda_pos: float = 3.0,
        vespo_k_neg: float = 3.0,
        vespo_lambda_neg: float = 2.0,
    ):
        super().__init__(
            beta=beta, use_ref_model=use_ref_model, epsilon_low=epsilon_low, epsilon_high=epsilon_high,
            loss_type=loss_type, max_completion_length=max_completion_length,
            importance_sampling_level=importance_sampling_level, sapo_temperature_pos=sapo_temperature_pos,
            sapo_temperature_neg=sapo_temperature_neg, temperature=temperature, delta=delta,
            use_bias_correction_kl=use_bias_correction_kl, vespo_k_pos=vespo_k_pos,
            vespo_lambda_pos=vespo_lambda_pos, vespo_k_neg=vespo_k_neg, vespo_lambda_neg=vespo_lambda_neg,
        )  # fmt: skip

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        vllm_is_ratio: Tensor | None = None,
        num_items_in_batch: Tensor | float | None = None,
    ) -> Results:
        reference = ref_per_token_logps, old_per_token_logps, ref_input, ref_weight, ref_bias
        more = {"vllm_is_ratio": vllm_is_ratio, "num_items_in_batch": num_items_in_batch}
        return self.applied(
            _input, lin_weight, selected_token_ids, attention_mask, advantages, bias, *reference, **more
        )


# ---- distillation ----------------------------------------------------------------------------------------------------


class Distillation(LigerFunction):
    """The loss of a student; with `return_soft_hard_loss`, (loss, soft loss, hard loss)."""

    kind = ""

    @classmethod
    def apply(
        cls,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Tensor | None,
        teacher_bias: Tensor | None,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        compiled: bool = True,
        chunk_size: int = 1024,
        return_soft_hard_loss: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        made = distillation.fused_linear_distillation(
            student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias, teacher_bias,
            kind=cls.kind, weight_hard_loss=weight_hard_loss, weight_soft_loss=weight_soft_loss, beta=beta,
            temperature=temperature, ignore_index=ignore_index,
        )  # fmt: skip
        return (made.loss, made.soft_loss, made.hard_loss) if return_soft_hard_loss else made.loss


class LigerFusedLinearJSDFunction(Distillation):
    kind = "jsd"


class LigerFusedLinearCosineSimilarityFunction(Distillation):
    kind = "cosine"


liger_fused_linear_jsd = LigerFusedLinearJSDFunction.apply
liger_fused_linear_cosine = LigerFusedLinearCosineSimilarityFunction.apply


class LigerFusedLinearJSDLoss(ChunkedLoss):
    function = LigerFusedLinearJSDFunction

    def __init__(
        self,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        compiled: bool = True,
        chunk_size: int = 1024,
        return_soft_hard_loss: bool = False,
    ):
        super().__init__(
            weight_hard_loss=weight_hard_loss, weight_soft_loss=weight_soft_loss, beta=beta, ignore_index=ignore_index,
            temperature=temperature, return_soft_hard_loss=return_soft_hard_loss,
        )  # fmt: skip

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        biases = student_bias, teacher_bias
        return self.applied(student_input, student_weight, teacher_input, teacher_weight, true_labels, *biases)


class LigerFusedLinearCosineSimilarityLoss(LigerFusedLinearJSDLoss):
    function = LigerFusedLinearCosineSimilarityFunction
