"""The version of plait; the same as in `pyproject.toml`."""

__version__ = "0.3.0"
