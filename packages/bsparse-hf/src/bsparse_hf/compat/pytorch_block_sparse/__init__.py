"""What users of pytorch_block_sparse type, the model patcher included: change the import, keep the rest.

    import bsparse_hf.compat.pytorch_block_sparse as pytorch_block_sparse

The patcher is in `util`, as there; all other names are those of `bsparse_torch.compat.pytorch_block_sparse`.
"""

from bsparse_hf.compat.pytorch_block_sparse.util import BlockSparseModelPatcher, ModelPatcher
from bsparse_torch.compat.pytorch_block_sparse import (
    BlockSparseLinear,
    BlockSparseLinearFunction,
    BlockSparseMatrix,
    BlockSparseMatrixEmulator,
    CompatibilityWarning,
    MagnitudeSparseOptimizerStrategy,
    PseudoBlockSparseLinear,
    SparseOptimizer,
    SparseOptimizerStrategy,
    convert_checkpoint,
    convert_file,
)

__all__ = [
    "BlockSparseLinear",
    "BlockSparseLinearFunction",
    "BlockSparseMatrix",
    "BlockSparseMatrixEmulator",
    "BlockSparseModelPatcher",
    "CompatibilityWarning",
    "MagnitudeSparseOptimizerStrategy",
    "ModelPatcher",
    "PseudoBlockSparseLinear",
    "SparseOptimizer",
    "SparseOptimizerStrategy",
    "convert_checkpoint",
    "convert_file",
]
