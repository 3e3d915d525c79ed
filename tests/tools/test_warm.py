"""`opmux warm` as a user runs it: a later process finds the compiled kernels, and no process is left running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SRC = Path(__file__).parents[2] / "src"
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
}  # fmt: skip
SAID = re.compile(
    r"(\d+) kernels?: (\d+) compiled, (\d+) in Triton's cache before(?:, (\d+) compiled by other processes)?;"
)

# A training step without `listing`, so Triton compiles at each launch, as on the real chip. It prints cache hits and
# misses.
STEP = """
import json, sys, torch, transformers, opmux, triton
from opmux.kernels.lib.compile_only import compiling_for
from opmux.machine import devices
vendor, chip, file = sys.argv[1:]
config = transformers.AutoConfig.for_model(**json.load(open(file)))
with torch.device("meta"):
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    ids = torch.zeros(2, 32, dtype=torch.int64)
hits = []
triton.knobs.compilation.listener = lambda metadata, cache_hit, **_: hits.append(cache_hit)
with devices.assume(vendor, chip), compiling_for(chip):
    opmux.patch_model(model)
    model(input_ids=ids, labels=ids).loss.backward()
print(hits.count(True), hits.count(False))
"""
SCRIPT = """
import sys, torch, transformers, opmux
device = "cuda" if torch.cuda.is_available() else "cpu"
config = transformers.AutoConfig.for_model(**__import__("json").load(open(sys.argv[1])))
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to(device)
opmux.patch_model(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    ids = torch.randint(0, 512, (2, 32)).cuda()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    print("a step is done")
    print(loss.item())
"""


class Shell:
    """Runs commands with separate caches."""

    def __init__(self, folder):
        self.folder = folder
        variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET" and not k.startswith("OPMUX")}
        mine = {"OPMUX_CACHE_DIR": str(folder / "opmux"), "TRITON_CACHE_DIR": str(folder / "triton")}
        self.env = {**variables, **mine, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}

    def start(self, *words):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        # If the tests run as a background job, the shell ignores SIGINT, and this program would inherit that setting.
        pipes["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        return subprocess.Popen([sys.executable, *words], env=self.env, cwd=self.folder, **pipes)

    def run(self, *words):
        process = self.start(*words)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        return out + err

    def warm(self, *words):
        return numbers(self.run("-m", "opmux", "warm", *words))

    def compiled(self):
        return len(list((self.folder / "triton").glob("*/__grp__*.json")))


def numbers(text):
    """How many kernels the output counts: in all, compiled now, found in the cache, compiled by other processes."""
    return tuple(int(n or 0) for n in SAID.search(text).groups())


@pytest.fixture
def shell(tmp_path):
    return Shell(tmp_path)


@pytest.fixture
def model(tmp_path):
    def write(kind):
        more = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512} if kind == "gpt2" else SIZES
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": kind, **more}))
        return "model"

    return write


@pytest.mark.parametrize(("kind", "vendor", "chip"), [("llama", "nvidia", "sm_90"), ("qwen3", "amd", "gfx942")])
def test_after_warm_a_later_process_compiles_nothing(shell, model, kind, vendor, chip):
    folder = model(kind)
    words = [folder, "--chip", chip, "--batch", "2", "--length", "32", "--dtype", "bfloat16"]
    count, compiled, before, _ = shell.warm(*words)
    assert count == compiled >= 9 and before == 0 and shell.compiled() == count
    hits, misses = map(int, shell.run("-c", STEP, vendor, chip, f"{folder}/config.json").split()[-2:])
    assert misses == 0 and hits >= count
    assert shell.warm(*words) == (count, 0, count, 0) and shell.compiled() == count


def test_no_train_compiles_fewer_kernels(shell, model):
    count, compiled, _, _ = shell.warm(model("llama"), "--chip", "sm_90", "--no-train", "--length", "32", "--jobs", "1")
    assert 0 < count == compiled < 9


def test_two_at_once_compile_each_kernel_once(shell, model):
    command = ["-m", "opmux", "warm", model("llama"), "--chip", "sm_90", "--length", "32", "--jobs", "2"]
    both = [shell.start(*command) for _ in range(2)]
    first, second = (numbers(p.communicate(timeout=240)[0]) for p in both)
    assert first[0] == second[0] == first[1] + second[1]


def test_a_script_runs_until_it_reads_a_tensors_value(shell, model):
    file = f"{model('llama')}/config.json"
    (shell.folder / "train.py").write_text(SCRIPT)
    output = shell.run("-m", "opmux", "warm", "train.py", "--chip", "sm_90", "--", file)
    count, compiled, _, _ = numbers(output)
    assert count == compiled == 9 and output.count("a step is done") == 1
    assert re.search(r"train\.py was not run to its end: \S*train\.py:14: RuntimeError: Tensor\.item\(\)", output)


def test_a_script_is_stopped_after_its_time_limit(shell):
    (shell.folder / "endless.py").write_text("while True: pass")
    process = shell.start("-m", "opmux", "warm", "endless.py", "--chip", "sm_90", "--seconds", "0.5")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1 and "the time limit of 0.5 s was reached" in out


def test_ctrl_c_leaves_no_process_running(shell, model):
    process = shell.start("-m", "opmux", "warm", model("llama"), "--chip", "sm_90", "--jobs", "2")
    while not list((shell.folder / "triton").glob("*/*.ttir")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode not in (0, 2) and "Traceback" not in err
    assert not running_in_session(process.pid)


def running_in_session(leader):
    """The entries in /proc of processes that still run in this leader's session."""
    pids = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = file.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state != "Z":
            pids.append(file)
    return pids


def test_the_interpreter_is_rejected_in_one_line(shell, model):
    shell.env["TRITON_INTERPRET"] = "1"
    process = shell.start("-m", "opmux", "warm", model("llama"), "--chip", "sm_90")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.count("\n") == 1 and "Unset it" in err
