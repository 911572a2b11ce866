"""How hypothesis runs here: a busy machine is no failure, and a failure can be repeated."""

from hypothesis import settings

settings.register_profile("journal", deadline=None, print_blob=True)
settings.load_profile("journal")
