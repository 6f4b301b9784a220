"""`python -m bsparse_torch.compat.pytorch_block_sparse OLD.pt NEW.pt` converts an old state dict on disk."""

import argparse

from bsparse_torch.compat.pytorch_block_sparse.checkpoint import convert_file

parser = argparse.ArgumentParser(
    prog="python -m bsparse_torch.compat.pytorch_block_sparse",
    description="Convert a state dict saved with pytorch_block_sparse into one for bsparse_torch.",
)
parser.add_argument("old", help="file with the old state dict; pickled modules are refused")
parser.add_argument("new", help="file to write")
arguments = parser.parse_args()
try:
    layers = convert_file(arguments.old, arguments.new)
except (OSError, ValueError, RuntimeError) as error:
    parser.exit(1, f"{error}\n")
print(f"converted {layers} layers: {arguments.new}")
