"""Breaks and measures Headrace: simulator, fault harnesses, chaos and benches."""

from headrace import __version__  # which also refuses to load under -O

__all__ = ["__version__"]
