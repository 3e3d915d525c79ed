"""Keeps the compiled code of rewritten modules in the cache folder.

Rewriting takes a third of the time to import Transformer Engine's Python layer.

There is one file for each module and device type. It starts with a key, a hash of everything that the code depends on,
and a hash of the code, because `marshal` may crash on damaged data. `cache` reads only files that no other user could
have written.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import marshal
import sys
import types
from pathlib import Path

from ... import cache
from ...core.log import logger
from . import chip, rewrite, torch_names

SIZE = hashlib.sha256().digest_size


def code_of(source: bytes, path: str, device: str | None, imports: frozenset[tuple[str, str]]) -> types.CodeType:
    """The code of `rewrite.rewritten`, from the cache if it was compiled before."""
    key = _key(source, path, device, imports)
    file = _file(path, device)
    code = None if file is None else _read(file, key)
    if code is None:
        code = rewrite.rewritten(source, path, device, imports)
        if file is not None:
            _write(file, key, code)
    return code


def _file(path: str, device: str | None) -> Path | None:
    folder = cache.root()
    name = f"{Path(path).stem}-{hashlib.sha256(path.encode()).hexdigest()[:16]}"
    return folder and folder / "te" / f"{name}.{device or 'cuda'}.{sys.implementation.cache_tag}"


def _key(source: bytes, path: str, device: str | None, imports: frozenset[tuple[str, str]]) -> bytes:
    parts = (_rewriter(), importlib.util.MAGIC_NUMBER, path, device, sorted(imports), sys.flags.optimize)
    return hashlib.sha256(repr(parts).encode() + source).digest()


@functools.cache
def _rewriter() -> bytes:
    """A hash of the sources of our modules that do the rewriting."""
    sources = (Path(str(module.__file__)).read_bytes() for module in (rewrite, chip, torch_names))
    return hashlib.sha256(b"".join(sources)).digest()


def _read(file: Path, key: bytes) -> types.CodeType | None:
    try:
        cache.check(file.parent)
        data = cache.read(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.debug("rewritten code is not read from the cache: %s", error)
        return None
    content = data[2 * SIZE :]
    if data[:SIZE] != key or data[SIZE : 2 * SIZE] != hashlib.sha256(content).digest():
        return None
    return marshal.loads(content)


def _write(file: Path, key: bytes, code: types.CodeType) -> None:
    content = marshal.dumps(code)
    try:
        cache.make(file.parent)
        cache.replace(file, key + hashlib.sha256(content).digest() + content)
    except OSError as error:
        logger.debug("rewritten code is not stored in the cache: %s", error)
