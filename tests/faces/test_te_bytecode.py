"""The code of rewritten modules of Transformer Engine is kept in the cache folder."""

from __future__ import annotations

import pytest

from opmux.faces.te import bytecode, rewrite

SOURCE = b"DEVICE = 'cuda'\n"


@pytest.fixture
def rewrites(tmp_path, monkeypatch):
    """The calls of the rewriter; the cache folder is empty at first."""
    monkeypatch.setenv("OPMUX_CACHE_DIR", str(tmp_path / "cache"))
    calls, own = [], rewrite.rewritten
    monkeypatch.setattr(rewrite, "rewritten", lambda *args: calls.append(args) or own(*args))
    return calls


def value(source=SOURCE, device="cpu", path="/layer/module.py", imports=frozenset()):
    names = {}
    exec(bytecode.code_of(source, path, device, imports), names)
    return names["DEVICE"]


def test_code_is_rewritten_once(rewrites):
    assert [value(), value(), len(rewrites)] == ["cpu", "cpu", 1]


def test_another_source_device_path_or_set_of_imports_is_rewritten(rewrites):
    assert value() == "cpu" and value(b"DEVICE = 'cuda' + '!'\n") == "cpu!" and value(device="npu") == "npu"
    assert value(path="/other/module.py") == "cpu" and value(imports=frozenset({("torch.x", "y")})) == "cpu"
    assert len(rewrites) == 5
    assert value(device="npu") == "npu" and len(rewrites) == 5


def test_damaged_code_is_rewritten(rewrites, tmp_path):
    value()
    (file,) = (tmp_path / "cache" / "te").iterdir()
    data = file.read_bytes()
    for damaged in (b"", data[:40], data[:-1], data[:-1] + b"?"):
        file.write_bytes(damaged)
        assert value() == "cpu"
    assert len(rewrites) == 5 and file.read_bytes() == data


def test_a_folder_that_others_can_write_is_not_used(rewrites, tmp_path):
    value()
    (tmp_path / "cache" / "te").chmod(0o777)
    assert value() == "cpu" and len(rewrites) == 2


def test_a_changed_rewriter_rewrites_again(rewrites, monkeypatch):
    value()
    monkeypatch.setattr(bytecode, "_rewriter", lambda: b"another version")
    assert value() == "cpu" and len(rewrites) == 2
