"""DenseWeight: what `layer.weight` answers, so that code which peeks at a weight's dtype, device or shape works."""

from typing import Any

from torch import Tensor

from bsparse_core import Unsupported


class DenseWeight(Tensor):
    """A tensor with dtype, device and shape of the dense weight and no storage. Computing with it raises Unsupported.

    A densifying property would be read and written in good faith by others, and what they write would be lost.
    """

    @staticmethod
    def __new__(cls, like: Tensor, shape: tuple[int, int]) -> "DenseWeight":
        return Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Tensor's own, which torch.overrides.has_torch_function must see: nn.TransformerEncoderLayer then leaves its
        fused path, which takes weights without asking their modules, for the ordinary one."""
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise Unsupported(
            f"{func} on the weight of a BlockSparseLinear: no dense weight is stored, only its dtype, device and shape "
            "can be read; use layer.values and layer.pattern, or layer.to_dense() for a dense copy"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"DenseWeight(shape={list(self.shape)}, dtype={self.dtype}, device={str(self.device)!r}, not stored)"
