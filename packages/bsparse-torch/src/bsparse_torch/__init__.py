"""Block-sparse linear layers for PyTorch.

layer = BlockSparseLinear(1024, 4096, density=0.25, block=64)
layer = BlockSparseLinear.from_linear(linear, density=0.25, block=64)
y = functional.block_sparse_linear(x, values, pattern, bias, activation="gelu")
"""

from importlib.metadata import version as _version

from bsparse_core import BackendError, BsparseError, InvalidArgument, Unsupported
from bsparse_torch import functional, masks
from bsparse_torch.linear import BlockSparseLinear
from bsparse_torch.masks import choose_blocks
from bsparse_torch.pattern import BlockPattern

__version__ = _version("bsparse-torch")

__all__ = [
    "BackendError",
    "BlockPattern",
    "BlockSparseLinear",
    "BsparseError",
    "InvalidArgument",
    "Unsupported",
    "choose_blocks",
    "functional",
    "masks",
]
