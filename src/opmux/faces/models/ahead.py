"""`patch_model(model, example=batch)`: a background process compiles the kernels that a step on the batch needs.

The process (tools/warm/beside.py) gets the model without its weights, runs the step on meta tensors, and compiles the
launched kernels into Triton's cache, on all cores. The program does not wait. If it needs a kernel that is not compiled
yet, both processes compile the kernel and write the same files.
"""

from __future__ import annotations

import inspect
import io
import os
import pickle
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import BadArgument, nearest
from ...core.log import logger
from ...cpp import background
from ...machine import devices

PROGRAM = "from opmux.tools.warm.beside import serve; serve({file!r})"
INTEGERS = (torch.int64, torch.int32)


def checked(model: Any, example: Any) -> dict[str, Any]:
    """Turn the example into arguments of the model's forward; raises BadArgument if it does not fit."""
    if not isinstance(model, nn.Module):
        raise _bad("be given with a model, not with a model type", f"model={model!r}", TypeError)
    if isinstance(example, Tensor):
        if example.dim() != 2 or example.dtype not in INTEGERS:
            raise _bad(
                "be a dict of the model's arguments, or ids of shape [batch, length] and dtype int64",
                f"a tensor of shape {list(example.shape)} and dtype {example.dtype}",
            )
        example = {"input_ids": example, **({"labels": example} if model.training else {})}
    if not isinstance(example, Mapping) or not any(isinstance(v, Tensor) for v in example.values()):
        raise _bad(
            "be a dict of the model's arguments, tensors among them, or a tensor of ids", f"{_kind(example)}", TypeError
        )
    allowed = _arguments(model)
    for name in example:
        if name not in allowed:
            close = nearest(str(name), allowed)
            hint = f" (did you mean '{close}'?)" if close else ""
            raise _bad(f"have arguments of {type(model).__name__}.forward as keys{hint}", f"the key {name!r}")
    have = sorted({str(p.device) for p in model.parameters()})
    for name, value in example.items():
        if isinstance(value, Tensor) and have and str(value.device) not in have:
            raise _bad(f"have all tensors on the model's device, {' or '.join(have)}", f"{name} on {value.device}")
    return dict(example)


def _bad(expected: str, got: str, kind: type[Exception] = ValueError) -> BadArgument:
    return BadArgument.of("patch_model", "example", expected, got, kind)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, Mapping) else type(value).__name__


def _arguments(model: nn.Module) -> list[str]:
    """The parameter names of a model's forward, including the names that transformers' models pass on as kwargs."""
    inner: Any = model
    while hasattr(inner, "base_model") and hasattr(inner, "peft_config"):  # PEFT's forward has only *args and **kwargs
        inner = inner.base_model.model
    parameters = inspect.signature(inner.forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        from transformers import utils

        names += list(getattr(getattr(utils, "TransformersKwargs", None), "__annotations__", {}))
        names += ["labels", "attention_mask", "position_ids"]
    return names


# ---- the request ----------------------------------------------------------------------------------------------------


def described(model: nn.Module, example: dict[str, Any]) -> bytes | None:
    """Pickle the model without its weights, and the example. None if that fails or is useless; the log says why."""
    kinds = () if devices.assumed() else devices.accelerators()
    if "cuda" not in kinds:
        where = f"on {kinds[0]}" if kinds else "without a GPU"
        logger.info("patch_model: example (warm= of a callback) is not used: nothing is compiled ahead %s", where)
        return None
    written = io.BytesIO()
    try:
        _WithoutWeights(written).dump((model, example, model.training))
    except Exception as error:  # pickle may raise any type of error
        logger.warning(
            "patch_model: nothing is compiled ahead, as the model cannot be sent to another process: %s: %s",
            type(error).__name__,
            error,
        )
        return None
    return written.getvalue()


class _WithoutWeights(pickle.Pickler):
    """Pickles each tensor as a tensor on the meta device."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor):
            if type(obj) not in (Tensor, nn.Parameter):
                raise TypeError(f"it has tensors of the class {type(obj).__name__}")
            plain = obj.detach()
            return _meta, (plain.shape, plain.stride(), obj.dtype, obj.requires_grad, isinstance(obj, nn.Parameter))
        if isinstance(obj, torch.device):
            return torch.device, ("meta",)
        return NotImplemented


def _meta(shape: Any, stride: Any, dtype: torch.dtype, needs_grad: bool, is_parameter: bool) -> Tensor:
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return nn.Parameter(tensor, needs_grad) if is_parameter else tensor.requires_grad_(needs_grad)


def start(model: bytes, options: dict[str, Any]) -> None:
    """Start the process, and return without waiting for it."""
    from transformers.modeling_utils import AttentionInterface

    request = {
        "model": model,
        "options": options,
        "program": os.getpid(),
        "index": torch.cuda.current_device() if torch.cuda.is_initialized() else 0,
        "attention": "opmux" in AttentionInterface().valid_keys(),
        "jobs": background.cores_of_rank(),
    }
    began = time.perf_counter()

    def done(failure: str) -> None:
        path.unlink(missing_ok=True)
        took = time.perf_counter() - began
        if failure:
            logger.warning("patch_model: not all kernels of a step on example are compiled ahead: %s", failure)
        else:
            logger.info("patch_model: the kernels of a step on example are in Triton's cache (%.1f s)", took)

    number, name = tempfile.mkstemp(prefix="opmux-warm-")
    path = Path(name)
    try:
        with os.fdopen(number, "wb") as out:
            pickle.dump(request, out)
        background.run(PROGRAM.format(file=name), done, {"OMP_NUM_THREADS": "1"})
    except OSError as error:
        path.unlink(missing_ok=True)
        logger.warning("patch_model: nothing is compiled ahead, as no process can be started: %s", error)
