"""The GPU of this process, by torch."""

from __future__ import annotations

import sys
from typing import Any


def torch_cuda() -> Any:
    """torch.cuda if this process uses a GPU, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized() else None


def capturing() -> bool:
    """Whether a CUDA graph is being captured: then nobody may wait for the GPU, copy to the host or pin memory."""
    cuda = torch_cuda()
    return bool(cuda is not None and cuda.is_current_stream_capturing())
