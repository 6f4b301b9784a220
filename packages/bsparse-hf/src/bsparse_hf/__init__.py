"""Block-sparse layers in Hugging Face models: patch, train, save and load.

Importing this package teaches transformers to load block-sparse checkpoints.
"""

from importlib.metadata import version as _version

from bsparse_hf.checkpoint import load
from bsparse_hf.config import BlockSparseConfig, CheckpointError
from bsparse_hf.fusion import fuse_activations, unfuse_activations
from bsparse_hf.patcher import BlockSparseModelPatcher
from bsparse_hf.quantizer import BlockSparseQuantizer
from bsparse_hf.report import ModuleReport, PatchReport
from bsparse_hf.rules import PatchRule

__all__ = [
    "BlockSparseConfig",
    "BlockSparseModelPatcher",
    "BlockSparseQuantizer",
    "CheckpointError",
    "ModuleReport",
    "PatchReport",
    "PatchRule",
    "__version__",
    "fuse_activations",
    "load",
    "unfuse_activations",
]

__version__ = _version("bsparse-hf")
