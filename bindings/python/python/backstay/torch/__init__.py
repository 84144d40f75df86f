# SPDX-License-Identifier: Apache-2.0 OR MIT
"""PyTorch: training that is saved and resumed, `torch.distributed.checkpoint`, and what builds on them.

The guide is docs/guide/pytorch.md. This package is imported by itself (``import backstay.torch``) and needs torch.
What belongs to other packages is in modules of their own: `backstay.torch.lightning`, `backstay.torch.lightning_sharded`,
`backstay.torch.hugging_face`, and `backstay.torch.storage` for torch_checkpointing.
"""

from ._checkpointer import Checkpointer
from ._dcp import Stager, Writer
from ._dcp_reader import Reader
from ._export import export
from ._install import install, uninstall
from ._shelf import Shelf

__all__ = ["Checkpointer", "Reader", "Shelf", "Stager", "Writer", "export", "install", "uninstall"]
