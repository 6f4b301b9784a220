"""What users of pytorch_block_sparse type, on top of bsparse: change the import, keep the rest.

    import bsparse_torch.compat.pytorch_block_sparse as pytorch_block_sparse

The modules are named as there: `block_sparse`, `block_sparse_linear`, `sparse_optimizer`. The model patcher needs
transformers and is in `bsparse_hf.compat.pytorch_block_sparse`, which has all names. Where bsparse differs on purpose
it says so once, with a `CompatibilityWarning`. `convert_checkpoint` reads old state dicts.
"""

from bsparse_torch.compat import CompatibilityWarning
from bsparse_torch.compat.pytorch_block_sparse.block_sparse import BlockSparseMatrix, BlockSparseMatrixEmulator
from bsparse_torch.compat.pytorch_block_sparse.block_sparse_linear import (
    BlockSparseLinear,
    BlockSparseLinearFunction,
    PseudoBlockSparseLinear,
)
from bsparse_torch.compat.pytorch_block_sparse.checkpoint import convert_checkpoint, convert_file
from bsparse_torch.compat.pytorch_block_sparse.sparse_optimizer import (
    MagnitudeSparseOptimizerStrategy,
    SparseOptimizer,
    SparseOptimizerStrategy,
)

__all__ = [
    "BlockSparseLinear",
    "BlockSparseLinearFunction",
    "BlockSparseMatrix",
    "BlockSparseMatrixEmulator",
    "CompatibilityWarning",
    "MagnitudeSparseOptimizerStrategy",
    "PseudoBlockSparseLinear",
    "SparseOptimizer",
    "SparseOptimizerStrategy",
    "convert_checkpoint",
    "convert_file",
]
