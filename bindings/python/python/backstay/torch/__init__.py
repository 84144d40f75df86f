# SPDX-License-Identifier: Apache-2.0 OR MIT
"""PyTorch: training that is saved and resumed.

The guide is docs/guide/pytorch.md. This package is imported by itself (``import backstay.torch``) and needs torch.
"""

from ._checkpointer import Checkpointer

__all__ = ["Checkpointer"]
