import pytest

from semfocus import patterns, studies, tasks


@pytest.fixture(autouse=True)
def _forget_plugins():
    """What a test registers is gone after it."""
    registries = (patterns.registry, tasks.registry, studies.registry)
    before = [dict(registry._added) for registry in registries]
    yield
    for registry, known in zip(registries, before, strict=True):
        registry._added.clear()
        registry._added.update(known)
