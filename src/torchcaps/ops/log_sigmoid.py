"""The logarithm of the logistic function, as exported programs can have it, too."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from torchcaps.ops.backends.dispatch import is_read_elsewhere

#: Beyond it ln(1 + eˣ) is x to all digits of float64.
_LINEAR_FROM = 40.0


def log_sigmoid(x: Tensor) -> Tensor:
    """Compute ln σ(x) = −ln(1 + e⁻ˣ), as :func:`torch.nn.functional.logsigmoid` does.

    ONNX would have that as the logarithm of σ(x), which is −∞ from some −90 on. The shares of capsules that are all so
    unlikely would be no numbers. So programs that are read elsewhere get ONNX's softplus.
    """
    return -F.softplus(-x, threshold=_LINEAR_FROM) if is_read_elsewhere() else F.logsigmoid(x)
