"""`patch_model(model, example=batch)` rejects unsuitable examples, and compiles kernels in another process."""

import json
import logging
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import opmux
from opmux.core.errors import BadArgument
from opmux.faces.models import ahead
from opmux.faces.models.modules import KEY
from opmux.machine import devices

transformers = pytest.importorskip("transformers")
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def model():
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=512,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).bfloat16()


@pytest.fixture
def gpu(monkeypatch):
    """Pretends that the machine has a CUDA device; returns the list of programs that would be started."""
    started = []
    monkeypatch.setattr(devices, "accelerators", lambda: ("cuda",))
    monkeypatch.setattr(ahead.background, "run", lambda program, then, env=None: started.append(program))
    return started


IDS = torch.zeros(2, 8, dtype=torch.int64)


def is_patched(model):
    return any(KEY in vars(module) for module in model.modules())


@pytest.mark.parametrize(
    ("example", "kind", "message"),
    [
        (
            torch.zeros(2, 8),
            ValueError,
            r"or ids of shape \[batch, length\].*; got a tensor of shape \[2, 8\] and dtype",
        ),
        (IDS[0], ValueError, r"got a tensor of shape \[8\]"),
        ({}, TypeError, "got dict of 0"),
        ({"input_ids": 3}, TypeError, "tensors among them"),
        (7, TypeError, "got int"),
        ({"input_id": IDS}, ValueError, "did you mean 'input_ids'.*; got the key 'input_id'"),
        ({"input_ids": IDS, 3: IDS}, ValueError, "got the key 3"),
        ({"input_ids": IDS.to("meta")}, ValueError, "on the model's device, cpu; got input_ids on meta"),
    ],
)
def test_an_invalid_example_raises_and_the_model_is_unchanged(model, example, kind, message):
    with pytest.raises(BadArgument, match=f"patch_model: example must.*{message}") as refused:
        opmux.patch_model(model, example=example)
    assert isinstance(refused.value, kind) and not is_patched(model)


def test_a_model_type_accepts_no_example():
    with pytest.raises(BadArgument, match="with a model, not with a model type"):
        opmux.patch_model("llama", example=IDS)


def test_without_a_gpu_the_example_is_checked_but_not_used(model, caplog):
    with caplog.at_level(logging.INFO, logger="opmux"):
        report = opmux.patch_model(model, example={"input_ids": IDS, "labels": IDS, "use_cache": False})
    assert report.replaced and is_patched(model)
    if devices.infer_device() == "cpu":
        assert "example (warm= of a callback) is not used: nothing is compiled ahead without a GPU" in caplog.text


def test_nothing_is_started_without_an_example_or_for_a_model_that_cannot_be_patched(model, gpu):
    opmux.patch_model(model)
    with pytest.raises(opmux.faces.models.patch.CannotPatch):
        opmux.patch_model(nn.Linear(2, 2), example={"input": torch.zeros(2, 2)})
    assert not gpu


def test_the_other_process_gets_the_model_without_its_weights(model, gpu):
    opmux.patch_model(model, include=["rms_norm", "glu"], example=IDS)
    (program,) = gpu
    file = Path(program.split("'")[1])
    assert file.stat().st_mode & 0o777 == 0o600
    request = pickle.loads(file.read_bytes())
    file.unlink()
    assert request["options"] == {"include": ["glu", "rms_norm"]} and request["program"] == os.getpid()
    assert len(request["model"]) < 100_000
    sent, example, train = pickle.loads(request["model"])
    assert train and set(example) == {"input_ids", "labels"} and example["input_ids"] is example["labels"]
    assert all(t.is_meta for t in (*sent.parameters(), *sent.buffers(), *example.values()))
    assert [(n, p.shape, p.dtype) for n, p in sent.named_parameters()] == [
        (n, p.shape, p.dtype) for n, p in model.named_parameters()
    ]
    assert not is_patched(sent)


def test_a_model_that_cannot_be_sent_is_still_patched(model, gpu, caplog):
    model.model.norm.register_forward_hook(lambda *_: None)
    assert opmux.patch_model(model, example=IDS).replaced and not gpu
    assert "nothing is compiled ahead, as the model cannot be sent to another process" in caplog.text


def test_each_rank_uses_its_share_of_the_cores(model, gpu, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    opmux.patch_model(model, example=IDS)
    file = Path(gpu[0].split("'")[1])
    assert pickle.loads(file.read_bytes())["jobs"] == 1
    file.unlink()


# Pretends that the machine has an H200, for which another process compiles while the program continues.
PROGRAM = """
import json, logging, sys, time, torch, transformers, opmux
from opmux.faces.models import ahead
from opmux.machine import devices
devices._available = lambda generation: ("cuda",)
here = {"chip": ["nvidia", "sm_90", "NVIDIA H200", "580"], "shared": 232448, "cores": 132}
faked = f"from opmux.tools.warm import compiling; compiling._here = lambda index: {here}; "
ahead.PROGRAM = faked.replace("{", "{{").replace("}", "}}") + ahead.PROGRAM
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
config = transformers.LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=512,
)
model = transformers.LlamaForCausalLM(config).bfloat16()
start = time.perf_counter()
opmux.patch_model(model, example=torch.zeros(2, 32, dtype=torch.int64))
print("returned after", time.perf_counter() - start, flush=True)
time.sleep(float(sys.argv[1]))
"""


def start(folder, seconds):
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET" and not k.startswith("OPMUX")}
    mine = {"OPMUX_CACHE_DIR": str(folder / "opmux"), "TRITON_CACHE_DIR": str(folder / "triton"), "TMPDIR": str(folder)}
    env = {**variables, **mine, "PYTHONPATH": str(SRC), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(seconds)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_step_on_the_example_is_compiled_in_another_process(tmp_path):
    pytest.importorskip("triton")
    process = start(tmp_path, 200)
    for line in process.stdout:
        if "returned after" in line:
            assert float(line.split()[-1]) < 5
        if "patch_model: " in line:
            assert "the kernels of a step on example are in Triton's cache" in line
            break
    process.kill()
    process.communicate()
    kernels = list((tmp_path / "triton").glob("*/__grp__*.json"))
    assert len(kernels) >= 9 and json.loads(kernels[0].read_text())
    assert not list(tmp_path.glob("opmux-warm-*"))


@pytest.mark.slow
def test_the_other_process_ends_with_the_program(tmp_path):
    pytest.importorskip("triton")
    process = start(tmp_path, 200)
    while not list((tmp_path / "triton").glob("*/*.ttir")):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while (left := [p for p in Path("/proc").glob("[0-9]*") if mentions(p, tmp_path)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def mentions(process, folder):
    """Whether an environment variable of a process contains the path of this folder."""
    try:
        return str(folder).encode() in (process / "environ").read_bytes()
    except OSError:
        return False
