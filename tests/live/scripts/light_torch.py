"""torch without its compiler, which optimizers and DDP load although nothing is compiled: half of the three seconds in
which a training starts, and tests start hundreds. To be imported before torch.
"""

import sys
from unittest.mock import MagicMock

compiler = MagicMock()
compiler.disable = lambda function, *_, **__: function
sys.modules["torch._dynamo"] = compiler
import torch  # noqa: E402

torch._dynamo = compiler
