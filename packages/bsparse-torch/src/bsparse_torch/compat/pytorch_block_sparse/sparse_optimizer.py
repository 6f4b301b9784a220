"""`SparseOptimizer`: between steps of an ordinary optimizer, drop the smallest blocks and grow others at random."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsparse_torch import BlockSparseLinear
from bsparse_torch.compat import CompatibilityWarning
from bsparse_torch.compat.pytorch_block_sparse.block_sparse import BlockSparseMatrix

__all__ = ["MagnitudeSparseOptimizerStrategy", "SparseOptimizer", "SparseOptimizerStrategy"]


class SparseOptimizerStrategy:
    """Moves some blocks of a matrix."""

    def run(self, block_sparse_matrix: BlockSparseMatrix, optimizer: Optimizer | None = None) -> Tensor:
        """Returns, in the shape of the matrix's `data`, 1 where a value was kept and 0 where it is new."""
        raise NotImplementedError


class MagnitudeSparseOptimizerStrategy(SparseOptimizerStrategy):
    """Drops the blocks of smallest L2 norm and fills as many free places, chosen at random by torch's generator.

    cleanup_ratio: the fraction of blocks to move, rounded down, at most as many as there are free places.
    new_coefficients_distribution: of the new values, where mean and std are those of all the matrix's values before:
        "uniform" in +-std * new_coefficients_scale, or "gaussian" with mean and std times new_coefficients_scale.
    """

    def __init__(
        self,
        cleanup_ratio: float,
        new_coefficients_distribution: str = "uniform",
        new_coefficients_scale: float = 0.1,
    ) -> None:
        if not 0 < cleanup_ratio <= 1:
            raise ValueError(f"cleanup_ratio is {cleanup_ratio}; it must be in (0, 1]: 0.1 moves a tenth of the blocks")
        _check_choice(
            "new_coefficients_distribution", new_coefficients_distribution, SparseOptimizer.COEFFICIENTS_DISTRIBUTION
        )
        self.cleanup_ratio = cleanup_ratio
        self.new_coefficients_distribution = new_coefficients_distribution
        self.new_coefficients_scale = new_coefficients_scale

    def initialize_new_blocks(self, old_data: Tensor, new_data: Tensor) -> None:
        """Fills `new_data` by the statistics of `old_data`."""
        mean, std = old_data.mean().item(), old_data.std(correction=0).item()
        scale = self.new_coefficients_scale
        if self.new_coefficients_distribution == "gaussian":
            nn.init.normal_(new_data, mean * scale, std * scale)
        else:
            nn.init.uniform_(new_data, -std * scale, std * scale)

    def run(self, block_sparse_matrix: BlockSparseMatrix, optimizer: Optimizer | None = None) -> Tensor:
        matrix = block_sparse_matrix
        data = matrix.data.detach()  # [blocks * block_rows, block_cols]
        new_blocks = torch.empty_like(matrix.get_differentiable_data())
        self.initialize_new_blocks(data, new_blocks)
        free = (~matrix.block_mask_build()).nonzero()  # [free places, 2]
        count = min(int(self.cleanup_ratio * matrix.nnz_block_count()), len(free))
        worst = matrix.block_norm().detach().argsort()[:count]
        places = free[torch.randperm(len(free), device="cpu")[:count].to(free.device)]
        numbers = matrix.block_replace(torch.cat([places, worst.unsqueeze(1)], 1), optimizer)
        kept = torch.ones_like(new_blocks)  # [blocks, block_rows, block_cols]
        kept[numbers[worst]] = 0
        matrix.data = torch.where(kept == 1, matrix.get_differentiable_data().detach(), new_blocks)
        return kept.flatten(0, 1)


class SparseOptimizer(Optimizer):
    """Moves a fraction `lr` of the blocks of each matrix at every `step()`.

    sparse_objects: a `BlockSparseMatrix`, some of them, as `SparseOptimizer.sparse_objects(model)` finds them.
    lr: the fraction; method: "magnitude"; the others as in `MagnitudeSparseOptimizerStrategy`. torch's learning-rate
    schedulers may schedule the fraction.

    Attach the optimizer that trains the values, of whatever kind: what it remembers of a moved block is zeroed.
    """

    METHODS = ("magnitude",)
    COEFFICIENTS_DISTRIBUTION = ("uniform", "gaussian")

    def __init__(
        self,
        sparse_objects: BlockSparseMatrix | Iterable[BlockSparseMatrix],
        lr: float = 1e-1,
        method: str = "magnitude",
        new_coefficients_scale: float = 0.1,
        new_coefficients_distribution: str = "uniform",
    ) -> None:
        if not 0 < lr <= 1:
            raise ValueError(f"lr is {lr}; it must be in (0, 1], the fraction of blocks to move: 0.1 moves a tenth")
        defaults = {
            "lr": lr,
            "method": method,
            "new_coefficients_scale": new_coefficients_scale,
            "new_coefficients_distribution": new_coefficients_distribution,
        }
        self.attached_optimizers: list[Optimizer] = []
        super().__init__([{"sparse_objects": sparse_objects}], defaults)

    @staticmethod
    def sparse_objects(model: nn.Module) -> list[BlockSparseMatrix]:
        """Every matrix of the model, those of `bsparse_torch.BlockSparseLinear` layers included."""
        matrices = [module for module in model.modules() if isinstance(module, BlockSparseMatrix)]
        shown = {id(matrix.layer) for matrix in matrices}
        layers = [module for module in model.modules() if isinstance(module, BlockSparseLinear)]
        return matrices + [BlockSparseMatrix.of_layer(layer) for layer in layers if id(layer) not in shown]

    def attach_optimizer(self, optimizer: Optimizer) -> None:
        if optimizer not in self.attached_optimizers:
            self.attached_optimizers.append(optimizer)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds {"sparse_objects": one or several matrices} with settings of its own where given."""
        unknown = sorted(set(param_group) - set(self.defaults) - {"sparse_objects"})
        if unknown:
            raise ValueError(f"{unknown[0]} is no setting of SparseOptimizer; choose among {', '.join(self.defaults)}")
        group = {**self.defaults, **param_group}
        _check_choice("method", group["method"], self.METHODS)
        _check_choice(
            "new_coefficients_distribution", group["new_coefficients_distribution"], self.COEFFICIENTS_DISTRIBUTION
        )
        objects = group["sparse_objects"]
        matrices = [objects] if isinstance(objects, BlockSparseMatrix) else list(objects)
        for matrix in matrices:
            if not isinstance(matrix, BlockSparseMatrix):
                raise TypeError(
                    f"sparse_objects holds a {type(matrix).__name__}; it must hold BlockSparseMatrix objects: "
                    "pass SparseOptimizer.sparse_objects(model)"
                )
        group["sparse_objects"] = matrices
        group["params"] = [matrix.get_differentiable_data() for matrix in matrices]  # for torch's own bookkeeping
        have = [id(matrix) for other in [*self.param_groups, group] for matrix in other["sparse_objects"]]
        if len(set(have)) < len(have):
            raise ValueError("sparse_objects holds a matrix twice, or one of another group; name each matrix once")
        self.param_groups.append(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Moves blocks; the loss of `closure`, where given, is returned as torch's optimizers do."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group["lr"] == 0:
                continue
            strategy = MagnitudeSparseOptimizerStrategy(
                group["lr"], group["new_coefficients_distribution"], group["new_coefficients_scale"]
            )
            for matrix in group["sparse_objects"]:
                strategy.run(matrix, self._optimizer_of(matrix))
        return loss

    def _optimizer_of(self, matrix: BlockSparseMatrix) -> Optimizer | None:
        if not self.attached_optimizers:
            warnings.warn(
                "SparseOptimizer has no attached optimizer: an optimizer with momentum applies what it remembers of a "
                "moved block to the new one; call attach_optimizer().",
                CompatibilityWarning,
                stacklevel=5,  # past step and the two wrappers that torch puts around it
            )
            return None
        parameter = matrix.get_differentiable_data()
        for optimizer in self.attached_optimizers:
            if any(parameter is other for group in optimizer.param_groups for other in group["params"]):
                return optimizer
        raise ValueError(
            f"{matrix} is trained by none of the {len(self.attached_optimizers)} attached optimizers; "
            "attach the one whose param_groups hold its parameter"
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f'{name} is "{value}"; it must be one of {", ".join(choices)}')
