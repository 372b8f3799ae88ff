"""The GPU of this process, by torch."""

from __future__ import annotations

import sys
from typing import Any


def torch_cuda() -> Any:
    """torch.cuda if this process uses a GPU, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized() else None
