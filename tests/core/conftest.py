"""Core tests restore the process's policy, whatever variables the developer has set."""

import pytest

from opmux.core import reset_global_policy


@pytest.fixture(autouse=True)
def clean_policy():
    reset_global_policy()
    yield
    reset_global_policy()


@pytest.fixture(autouse=True)
def clean_plugins():
    """Plugins that a test loads into its own registry must not count as loaded in the process."""
    from opmux.core import discovery

    before = dict(discovery._handled)
    yield
    discovery._handled.clear()
    discovery._handled.update(before)


@pytest.fixture
def add_impl():
    """`add_impl(...)`: register impls in the default registry for one test."""
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
