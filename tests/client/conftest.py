"""How the client's tests run: coroutines on a loop of their own, hypothesis without haste."""

import asyncio
import inspect

import pytest
from hypothesis import settings

settings.register_profile("client", deadline=None, print_blob=True)
settings.load_profile("client")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine, and fail if it leaves tasks behind."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
