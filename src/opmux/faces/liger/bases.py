"""The base classes of Liger's chunked losses: a subclass writes a loss, and gets its gradients for a linear layer.

A subclass is an autograd.Function. Its `forward` calls the base's with `cls` and `ctx`, its `backward` cuts or extends
the gradients that the base returns. `compiled` has no effect. Only `LigerFusedLinearDistillationBase` reads
`chunk_size`: the others compute log-probabilities with a part of the logits at a time, and call the loss once.
"""

# pyright: reportIncompatibleMethodOverride=false
# pyright: reportSelfClsParameterName=false
# The arguments of forward and backward have Liger's names, and the subclass passes `cls`.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.errors import BadArgument
from ...functional import grpo, losses
from ...functional.preference import LogProbs, SequenceBatch

Results = tuple[Any, ...]


def _computed(ctx: Any, fn: Callable[..., Results], *inputs: Tensor | None) -> Results:
    """Call fn(*inputs), which returns (loss, ...); save the loss's gradients of the inputs; detach the results."""
    with torch.enable_grad():
        leaves = [None if t is None else t.detach().requires_grad_() for t in inputs]
        loss, *more = fn(*leaves)
        gradients = iter(torch.autograd.grad(loss, [t for t in leaves if t is not None]))
    ctx.save_for_backward(*(None if t is None else next(gradients) for t in leaves))
    return loss.detach(), *(value.detach() if isinstance(value, Tensor) else value for value in more)


def _gradients(ctx: Any, grad_output: Any) -> list[Tensor | None]:
    """The saved gradients times the gradient of the loss, which is the first element of a nested tuple."""
    while isinstance(grad_output, Sequence):
        grad_output = grad_output[0]
    return [None if t is None else t * grad_output for t in ctx.saved_tensors]


def _split(outputs: Any) -> tuple[Tensor, tuple[Any, ...]]:
    """The loss, and the further results of a user's loss function."""
    return (outputs[0], tuple(outputs[1:])) if isinstance(outputs, tuple) else (outputs, ())


def _required(name: str, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(f"{name}: write it in your subclass")


def _logits(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(input, weight, bias)


class LigerFusedLinearPreferenceBase(torch.autograd.Function):
    """A loss of a preferred and a rejected answer to the same prompt.

    A subclass defines `preference_loss_fn(chosen_logps, rejected_logps, full_target, beta=..., ...)`, which returns the
    loss, or a tuple of the loss and values for logging. With a reference model, ref_chosen_logps and ref_rejected_logps
    are passed to it too.
    """

    @staticmethod
    def preference_loss_fn(*args: Any, **kwargs: Any) -> Any:
        return _required("preference_loss_fn")

    @staticmethod
    def forward(
        cls: Any,
        ctx: Any,
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        chunk_size: int = 1,
        ignore_index: int = -100,
        alpha: float = 1.0,
        beta: float = 0.1,
        compute_nll_loss: bool = True,
        nll_target: Tensor | None = None,
        compiled: bool = True,
        use_ref_model: bool = False,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        average_log_prob: bool = True,
        **loss_kwargs: Any,
    ) -> Any:
        """Returns the loss, and (log-probabilities, mean logits, NLL, the loss function's values)."""
        model, pairs = LogProbs(cls.__name__, 1.0, ignore_index), target.shape[0] // 2
        if use_ref_model:
            with torch.no_grad():
                reference = _batch(model, average_log_prob, ref_input, ref_weight, target, ref_bias).log_probs
            loss_kwargs |= {"ref_chosen_logps": reference[:pairs], "ref_rejected_logps": reference[pairs:]}

        def compute(x: Tensor, w: Tensor, b: Tensor | None) -> Results:
            batch = SequenceBatch(model, average_log_prob, x, w, target, b)
            nll = x.new_zeros((), dtype=batch.tokens.dtype)
            if compute_nll_loss:
                labels, tokens = target[:pairs], batch.tokens[:pairs]
                if nll_target is not None:
                    labels = nll_target[:pairs]
                    tokens = model.tokens(x[:pairs], w, labels, b)
                nll = -tokens.sum() / (labels != ignore_index).sum()
            chosen, rejected = batch.log_probs[:pairs], batch.log_probs[pairs:]
            loss, more = _split(cls.preference_loss_fn(chosen, rejected, target, beta=beta, **loss_kwargs))
            means = batch.logits_sum / (target.shape[1] * w.shape[0])
            return loss + alpha * nll, chosen, rejected, means[:pairs].mean(), means[pairs:].mean(), nll, *more

        loss, *more = _computed(ctx, compute, _input, weight, bias)
        return loss, tuple(more)

    @staticmethod
    def backward(ctx: Any, *grad_output: Any) -> Any:
        """The gradients of _input, weight, target (None) and bias, and four times None."""
        dx, dw, db = _gradients(ctx, grad_output)
        return dx, dw, None, db, None, None, None, None

    @staticmethod
    def chunk_forward(
        input_chunk: Tensor,
        weight: Tensor,
        target_chunk: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        compute_nll_loss: bool = True,
        chosen_nll_target_chunk: Tensor | None = None,
        average_log_prob: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | float]:
        """Returns log-probabilities and logits, chosen before rejected, and the sum of the chosen tokens' NLL."""
        pairs, model = target_chunk.shape[0] // 2, LogProbs("chunk_forward", 1.0, ignore_index)
        batch, nll = SequenceBatch(model, average_log_prob, input_chunk, weight, target_chunk, bias), 0.0
        if compute_nll_loss:
            tokens = batch.tokens[:pairs]
            if chosen_nll_target_chunk is not None:
                tokens = model.tokens(input_chunk[:pairs], weight, chosen_nll_target_chunk, bias)
            nll = -tokens.sum()
        logits = _logits(input_chunk, weight, bias)
        return batch.log_probs[:pairs], batch.log_probs[pairs:], logits[:pairs], logits[pairs:], nll


def _batch(
    model: LogProbs, average: bool, input: Tensor | None, weight: Tensor | None, target: Tensor, bias: Tensor | None
) -> SequenceBatch:
    """The log-probabilities under a reference model."""
    if input is None or weight is None:
        missing = "ref_input" if input is None else "ref_weight"
        raise BadArgument.of(model.name, missing, "be given for use_ref_model=True", "None")
    return SequenceBatch(model, average, input, weight, target, bias)


class LigerFusedLinearUnpairedPreferenceBase(torch.autograd.Function):
    """A loss of single answers, each labelled as good or bad.

    A subclass defines `preference_loss_fn(log_probs, preference_labels, full_target, ...)`, which returns the loss,
    or a tuple of the loss and values for logging. With a reference model, ref_log_prob_chunk is passed to it too.
    """

    @staticmethod
    def preference_loss_fn(*args: Any, **kwargs: Any) -> Any:
        return _required("preference_loss_fn")

    @staticmethod
    def forward(
        cls: Any,
        ctx: Any,
        _input: Tensor,
        weight: Tensor,
        target: Tensor,
        preference_labels: Tensor,
        bias: Tensor | None = None,
        chunk_size: int = 1,
        ignore_index: int = -100,
        compiled: bool = True,
        use_ref_model: bool = False,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        average_log_prob: bool = False,
        **loss_kwargs: Any,
    ) -> Any:
        """Returns the loss, and (sums of log-probabilities, sums of logits, the loss function's values)."""
        model = LogProbs(cls.__name__, 1.0, ignore_index)
        if use_ref_model:
            with torch.no_grad():
                batch = _batch(model, average_log_prob, ref_input, ref_weight, target, ref_bias)
            loss_kwargs["ref_log_prob_chunk"] = batch.log_probs

        def compute(x: Tensor, w: Tensor, b: Tensor | None) -> Results:
            batch = SequenceBatch(model, average_log_prob, x, w, target, b)
            loss, more = _split(cls.preference_loss_fn(batch.log_probs, preference_labels, target, **loss_kwargs))
            return loss, *_sums(preference_labels, batch.log_probs, batch.logits_sum), *more

        loss, *more = _computed(ctx, compute, _input, weight, bias)
        return loss, tuple(more)

    @staticmethod
    def backward(ctx: Any, *grad_output: Any) -> Any:
        """The gradients of _input, weight, target (None), preference_labels (None) and bias."""
        dx, dw, db = _gradients(ctx, grad_output)
        return dx, dw, None, None, db

    @staticmethod
    def chunk_forward(
        input_chunk: Tensor,
        weight: Tensor,
        target_chunk: Tensor,
        preference_labels_chunk: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        average_log_prob: bool = False,
    ) -> tuple[Tensor, ...]:
        """Returns log-probabilities, their sums and the sums of logits; sums over chosen sequences come first."""
        model = LogProbs("chunk_forward", 1.0, ignore_index)
        batch = SequenceBatch(model, average_log_prob, input_chunk, weight, target_chunk, bias)
        return batch.log_probs, *_sums(preference_labels_chunk, batch.log_probs, batch.logits_sum)


def _sums(labels: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """The sum of each value over chosen and over rejected sequences."""
    chosen = labels.bool()
    return tuple(torch.where(kind, value, 0.0).sum() for value in values for kind in (chosen, ~chosen))


class LigerFusedLinearDistillationBase(torch.autograd.Function):
    """A loss of a student's and a teacher's logits, summed over rows: `distillation_loss_fn(student_logits, ...)`.

    It gets the logits of chunk_size rows at a time, divided by the temperature, and target, ignore_index, beta and
    further keywords of the forward.
    """

    @staticmethod
    def distillation_loss_fn(
        student_logits: Tensor, teacher_logits: Tensor, target: Any = None, ignore_index: Any = None
    ) -> Tensor:
        return _required("distillation_loss_fn")

    @staticmethod
    def chunk_forward(
        student_input_chunk: Tensor,
        student_weight: Tensor,
        teacher_input_chunk: Tensor,
        teacher_weight: Tensor,
        target_chunk: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        ignore_index: int = -100,
        compute_ce_loss: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor | float]:
        """Returns the logits of student and teacher, and the sum of the student's cross entropies."""
        student = _logits(student_input_chunk, student_weight, student_bias)
        with torch.no_grad():
            teacher = _logits(teacher_input_chunk, teacher_weight, teacher_bias)
        hard: Any = 0.0
        if compute_ce_loss:
            rows, labels = student.reshape(-1, student.shape[-1]), target_chunk.reshape(-1)
            hard = losses.cross_entropy(rows, labels, ignore_index=ignore_index, reduction="sum")
        return student, teacher, hard

    @staticmethod
    def forward(
        cls: Any,
        ctx: Any,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        target: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        chunk_size: int = 1024,
        ignore_index: int = -100,
        weight_hard_loss: float = 0.5,
        weight_soft_loss: float = 0.5,
        beta: float = 0.5,
        compute_ce_loss: bool = True,
        temperature: float = 1.0,
        compiled: bool = True,
        return_soft_hard_loss: bool = False,
        **loss_kwargs: Any,
    ) -> Any:
        """Returns the loss, or (loss, soft loss, hard loss), all divided by the number of rows that count."""
        count = (target != ignore_index).sum().clamp(min=1)
        options = {"ignore_index": ignore_index, "beta": beta, **loss_kwargs}
        more = teacher_weight.shape[0] - student_weight.shape[0]  # the teacher may have classes for padding
        forward = LigerFusedLinearDistillationBase.chunk_forward
        parts: list[Tensor] = []
        inputs = []
        sums: list[Tensor | None] = [None, None]
        w = student_weight.detach().requires_grad_()
        b = None if student_bias is None else student_bias.detach().requires_grad_()
        weights = [w, b]
        for x, y, labels in zip(*(t.split(chunk_size) for t in (student_input, teacher_input, target)), strict=True):
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                student, teacher, hard = forward(
                    leaf, w, y, teacher_weight, labels, b, teacher_bias, ignore_index, compute_ce_loss
                )
                student = torch.nn.functional.pad(student / temperature, (0, more))
                soft = cls.distillation_loss_fn(student, teacher / temperature, target=labels, **options) / count
                hard = hard / count
                loss = weight_hard_loss * hard + weight_soft_loss * soft
                dx, *given = torch.autograd.grad(loss, [leaf, *(t for t in weights if t is not None)])
            inputs.append(dx)
            found = iter(given)
            new = [None if t is None else next(found) for t in weights]
            sums = [n if s is None or n is None else s.add_(n) for s, n in zip(sums, new, strict=True)]
            parts.append(torch.stack([t.detach().float() for t in (loss, soft, torch.as_tensor(hard))]))
        ctx.save_for_backward(torch.cat(inputs), *sums)
        results = torch.stack(parts).sum(0).unbind()
        return results if return_soft_hard_loss else results[0]

    @staticmethod
    def backward(ctx: Any, grad_output: Any, *args: Any) -> Any:
        """The gradients of student_input and student_weight, three times None, the gradient of student_bias."""
        dx, dw, db = _gradients(ctx, grad_output)
        return dx, dw, None, None, None, db


class LigerFusedLinearPPOBase(torch.autograd.Function):
    """A loss of tokens' log-probabilities: `ppo_loss_fn(per_token_logps=..., ...)` returns (loss, metrics).

    It gets by name attention_mask, advantages, full_attention_mask (the same mask), the options of the forward, and
    ref_per_token_logps and old_per_token_logps, which may be None.
    """

    @staticmethod
    def ppo_loss_fn(*args: Any, **kwargs: Any) -> Any:
        return _required("ppo_loss_fn")

    @staticmethod
    def forward(
        cls: Any,
        ctx: Any,
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
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        beta: float = 0.04,
        loss_type: str = "dapo",
        max_completion_length: int | None = None,
        importance_sampling_level: str = "token",
        temperature: float = 1.0,
        compiled: bool = True,
        use_ref_model: bool = False,
        chunk_size: int = 1,
        sapo_temperature_pos: float = 1.0,
        sapo_temperature_neg: float = 1.05,
        vllm_is_ratio: Tensor | None = None,
        delta: float | None = None,
        use_bias_correction_kl: bool = False,
        vespo_k_pos: float = 2.0,
        vespo_lambda_pos: float = 3.0,
        vespo_k_neg: float = 3.0,
        vespo_lambda_neg: float = 2.0,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Returns the loss and the metrics."""
        name, log_probs = cls.__name__, LigerFusedLinearPPOBase.chunk_forward
        if loss_type == "dr_grpo" and max_completion_length is None:
            expected = "be given for loss_type='dr_grpo'"
            raise RejectedByAssertion(name, "max_completion_length", expected, "None")
        reference = None
        if use_ref_model:
            reference = ref_per_token_logps
            if reference is None and (ref_input is None or ref_weight is None):
                raise RejectedByAssertion(name, "ref_per_token_logps", "be given for use_ref_model=True", "None")
            if reference is None:
                with torch.no_grad():
                    reference = log_probs(ref_input, ref_weight, selected_token_ids, ref_bias, temperature)
        options = {
            "attention_mask": attention_mask,
            "advantages": advantages,
            "full_attention_mask": attention_mask,
            "ref_per_token_logps": None if reference is None else reference.float(),
            "old_per_token_logps": None if old_per_token_logps is None else old_per_token_logps.float(),
            "epsilon_low": epsilon_low,
            "epsilon_high": epsilon_high,
            "beta": beta,
            "loss_type": loss_type,
            "max_completion_length": max_completion_length,
            "importance_sampling_level": importance_sampling_level,
            "sapo_temperature_pos": sapo_temperature_pos,
            "sapo_temperature_neg": sapo_temperature_neg,
            "vllm_is_ratio": importance_of_sequences(name, vllm_is_ratio, attention_mask.shape),
            "delta": delta,
            "use_bias_correction_kl": use_bias_correction_kl,
            "vespo_k_pos": vespo_k_pos,
            "vespo_lambda_pos": vespo_lambda_pos,
            "vespo_k_neg": vespo_k_neg,
            "vespo_lambda_neg": vespo_lambda_neg,
            "num_items_in_batch": num_items_in_batch,
        }

        def compute(x: Tensor, w: Tensor, b: Tensor | None) -> Results:
            tokens = log_probs(x, w, selected_token_ids, b, temperature)
            loss, metrics = cls.ppo_loss_fn(per_token_logps=tokens, **options)
            return loss, *metrics

        loss, *metrics = _computed(ctx, compute, _input, weight, bias)
        return loss, tuple(metrics)

    @staticmethod
    def backward(ctx: Any, grad_output: Any, *grad_metrics: Any) -> Any:
        """The gradients of the first 27 arguments: None, except for _input, weight and bias."""
        dx, dw, db = _gradients(ctx, grad_output)
        return dx, dw, None, None, None, db, *[None] * 21

    @staticmethod
    def chunk_forward(
        input_chunk: Any, weight: Any, selected_token_ids: Tensor, bias: Tensor | None = None, temperature: float = 1.0
    ) -> Tensor:
        """The log-probability of each token, [batch, length]."""
        return LogProbs("chunk_forward", temperature).tokens(input_chunk, weight, selected_token_ids, bias)

    @staticmethod
    def _compute_dapo_normalizer(attention_mask: Tensor, num_items_in_batch: Any = None) -> Any:
        """The number of tokens of the batch, averaged over processes, at least 1; TRL and its users call it."""
        return grpo.tokens_of_a_process(attention_mask.float().sum(), num_items_in_batch)


# ---- invalid arguments of the policy losses --------------------------------------------------------------------------


class RejectedByAssertion(BadArgument, AssertionError, ValueError):
    """An invalid argument for which Liger raises an AssertionError."""


def importance_of_sequences(name: str, ratio: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Check vllm_is_ratio, and make it [batch, 1] if it is [batch]."""
    if ratio is None or len(shape) != 2:
        return ratio
    batch, length = shape
    if tuple(ratio.shape) in ((batch, length), (batch, 1)):
        return ratio
    if tuple(ratio.shape) != (batch,):
        allowed = f"have shape ({batch},), ({batch}, 1) or ({batch}, {length})"
        raise RejectedByAssertion(name, "vllm_is_ratio", allowed, str(tuple(ratio.shape)))
    return ratio[:, None]
