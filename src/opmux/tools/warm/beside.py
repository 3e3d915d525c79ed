"""Compiles for `patch_model(model, example=batch)`, in a separate process (faces/models/ahead.py)."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import torch

from ...core.errors import OpmuxError
from ...faces.models.patch import patch_model
from ...faces.models.register import register_attention
from .compiling import assumed, check_installed, check_triton, compile_for, target
from .model import step_of


def serve(file: str) -> None:
    """Compile for a request, which faces/models/ahead.py has written to a file, while the requesting program runs."""
    path = Path(file)
    data = path.read_bytes()
    path.unlink()
    request = pickle.loads(data)
    check_installed()
    check_triton()
    program = request["program"]
    torch.set_num_threads(1)
    if request["attention"]:
        register_attention()
    model, example, train = pickle.loads(request["model"])
    with assumed(target(None, request["index"])) as at:
        patch_model(model, **request["options"])
        done = compile_for(
            lambda: step_of(model, example, train), at, request["jobs"], needed=lambda: os.getppid() == program
        )
    if done.stopped or done.failed:
        raise OpmuxError(done.stopped or str(done.failed))
