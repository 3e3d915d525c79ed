"""Compiling ahead of time: which kernels are listed, compiled by several processes, and found by a first launch."""

import os
import time

import pytest
import torch

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from opmux import cache as cache_dir  # noqa: E402
from opmux.kernels.lib import compile_ahead, compile_only  # noqa: E402
from opmux.kernels.lib.compile_ahead import COMPILED, THERE, compile_all, listing  # noqa: E402
from opmux.kernels.lib.compile_only import compiling_for  # noqa: E402
from opmux.machine.devices import Chip  # noqa: E402
from opmux.tools.warm.compiling import At, compile_for  # noqa: E402

MODE = "compile"


@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 2 * tl.load(x_ptr + i, i < n), i < n)


@triton.jit
def wrong(x_ptr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 0, "a size that is never right")


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "opmux"))
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path / "triton")
        yield tmp_path
    forget()


def forget():
    """Discard the kernels that this process has compiled. Like another process, it then finds only the cache on
    disk.
    """
    with compiling_for("sm_90"):  # unloads the kernels
        for kernel in (double, wrong):
            kernel.device_caches.clear()
        compile_only._compiled.clear()


def launch(*blocks):
    for block in blocks:
        double[(1,)](torch.empty(block, device="meta"), 7, BLOCK=block)


def found_by(*blocks):
    forget()
    with compiling_for("sm_90"), listing() as listed:
        launch(*blocks)
    return listed


def outcomes(kernels, jobs=2, **options):
    return [outcome for _, outcome in compile_all(kernels, jobs, **options)]


def test_missing_kernels_are_listed_compiled_and_then_found():
    listed = found_by(16, 32, 32)
    assert [k.name for k in listed.missing.values()] == ["double", "double"] and not listed.cached
    assert outcomes(listed.missing.values()) == [COMPILED, COMPILED]
    assert len(found_by(16, 32).cached) == 2 and not found_by(16, 32).missing
    hits = []
    forget()
    with compiling_for("sm_90") as built, triton.knobs.compilation.scope():
        triton.knobs.compilation.listener = lambda cache_hit, **_: hits.append(cache_hit)
        launch(16, 32)  # launch in the same way as a program
    assert hits == [True, True] and len(built) == 2 and built[0].asm["cubin"]
    assert outcomes(listed.missing.values()) == [THERE, THERE]


@pytest.mark.parametrize("passes, too_large", [(1, 1), (2, 0)])
def test_kernels_that_do_not_fit_on_the_chip_are_counted_if_no_other_pass_follows(passes, too_large):
    """If a kernel does not fit, the caller launches another kernel, which only a second pass finds. If a second pass
    follows, the first kernel does not count as too large.
    """
    forget()
    target_chip = At(Chip.of_arch("sm_90"), -1, 132, False)  # a chip on which nothing fits
    with compiling_for("sm_90"):
        result = compile_for(lambda: launch(16), target_chip, 1, passes=passes)
    assert (result.compiled, result.too_large) == (1, too_large)


def test_compiling_for_a_chip_does_not_change_cache_keys():
    before = dict(os.environ)
    found_by(16)
    assert dict(os.environ) == before


def test_a_kernel_that_cannot_be_compiled_is_reported_and_fails_again_as_on_the_chip():
    with compiling_for("sm_90"), listing() as listed:
        wrong[(1,)](torch.empty(4, device="meta"), BLOCK=16)
    ((kernel, reason),) = compile_all(listed.missing.values(), 1)
    assert kernel.name == "wrong" and "a size that is never right" in reason
    with compiling_for("sm_90"), listing({kernel.key: reason}), pytest.raises(triton.CompilationError):
        wrong[(1,)](torch.empty(4, device="meta"), BLOCK=16)


def test_a_kernel_that_another_process_compiles_is_waited_for(caches):
    (kernel,) = found_by(16).missing.values()
    compile_ahead._folder()
    path = caches / "opmux" / "warm" / kernel.key
    child = os.fork()
    if child == 0:  # the child is killed while it holds the lock
        release = cache_dir.try_lock(path)
        assert release is not None
        path.with_name("held").touch()
        time.sleep(1)
        os.kill(os.getpid(), 9)
    while not path.with_name("held").exists():
        time.sleep(0.01)
    start = time.monotonic()
    assert outcomes([kernel]) == [COMPILED] and time.monotonic() - start > 0.5
    os.waitpid(child, 0)
    assert not path.exists()


def test_lock_files_of_killed_processes_are_removed_and_live_ones_stay(caches):
    folder = compile_ahead._folder()
    for name in ("killed", "live"):
        (folder / name).touch()
    release = cache_dir.try_lock(folder / "live")
    assert outcomes(found_by(16).missing.values()) == [COMPILED]
    assert [path.name for path in folder.iterdir()] == ["live"]
    release()


def test_kernels_compile_without_a_lock_folder(caches, monkeypatch):
    (caches / "file").touch()
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(caches / "file" / "below"))
    assert outcomes(found_by(16).missing.values()) == [COMPILED]


def test_no_process_survives_when_the_caller_stops(monkeypatch):
    children, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])
    listed = found_by(16, 32, 64, 128)
    compiling = compile_all(listed.missing.values(), 2)
    next(compiling)
    compiling.close()
    assert len(children) == 2
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_kernels_that_are_no_longer_needed_are_not_compiled():
    listed = found_by(16, 32, 64, 128)
    assert len(outcomes(listed.missing.values(), 1, needed=lambda: False)) <= 1


def test_a_killed_worker_raises_instead_of_hanging(monkeypatch):
    def end(*_):
        os.kill(os.getpid(), 9)

    monkeypatch.setattr(compile_ahead, "_compile", end)
    with pytest.raises(compile_ahead.WorkersEnded, match="fewer than 2 processes"):
        outcomes(found_by(16, 32).missing.values())
