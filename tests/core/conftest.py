"""Core tests restore the process's policy, whatever the environment says."""

import pytest

from opmux.core import reset_global_policy


@pytest.fixture(autouse=True)
def clean_policy():
    reset_global_policy()
    yield
    reset_global_policy()


@pytest.fixture(autouse=True)
def clean_plugins():
    """Plugins that a test loads into its own registries must not be remembered as the process's plugins."""
    from opmux.core import discovery

    before = dict(discovery._seen)
    yield
    discovery._seen.clear()
    discovery._seen.update(before)


@pytest.fixture
def plug():
    """Register impls in the default registry for one test."""
    from opmux.core import OpImpl, get_default_manager

    registry = get_default_manager().registry
    added = []

    def register(op, impl_id, kind, fn, **fields):
        registry.register_impl(OpImpl(op, impl_id, kind, fn=fn, **fields))
        added.append((op, impl_id))

    yield register
    for op, impl_id in added:
        registry.unregister(op, impl_id)
    get_default_manager().clear_quarantine()
