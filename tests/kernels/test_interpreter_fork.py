"""If a process forks while another thread runs the interpreter, the child can use the interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fresh

SRC = Path(__file__).parents[2] / "src"

PROGRAM = """
import os, signal, threading, time, torch, triton, triton.language as tl
from opmux.kernels.lib import interpret

interpret.install()
original_load = tl.load


@triton.jit
def double(x_ptr, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(x_ptr + o, 2 * tl.load(x_ptr + o))


double[(1,)](torch.ones(4), N=4)  # so that no thread is in an import when the process forks
for _ in range(3):  # one of them is in a launch, the others wait for the lock
    threading.Thread(target=lambda: double[(10**9,)](torch.ones(4), N=4), daemon=True).start()
while tl.load is original_load:
    time.sleep(0.01)
child = os.fork()
if not child:
    signal.alarm(60)
    restored = tl.load is original_load
    x = torch.ones(4)
    double[(1,)](x, N=4)
    os._exit(0 if restored and tl.load is original_load and x.tolist() == [2.0] * 4 else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("child", status, flush=True)
os._exit(0)
"""


def test_a_child_forked_during_a_launch_can_launch(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(SRC), "TRITON_INTERPRET": "1"}
    result = fresh.run([sys.executable, str(program)], env=env, timeout=200)
    assert result.stdout == "child 0\n", result.stderr
