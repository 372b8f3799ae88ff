"""Tests of this folder that need a GPU say so by the marker `gpu`; the others go the same ways on the CPU."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "live")]


def _why_not() -> str:
    try:
        import torch
    except ImportError:
        return "needs a CUDA device and PyTorch; PyTorch is not installed"
    if torch.cuda.is_available():
        return ""
    return (
        f"needs a CUDA device; torch {torch.__version__} sees none (docs/explanation/gpu.md says what this test shows)"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what there is no GPU for."""
    if any(item.get_closest_marker("gpu") for item in items) and (why := _why_not()):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=why))
