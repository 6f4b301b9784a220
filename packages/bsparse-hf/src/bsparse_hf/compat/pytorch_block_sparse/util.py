"""The old model patchers: prefix matching, hooks to override, layers of `bsparse_torch.compat`."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from bsparse_hf.quantizer import attach
from bsparse_hf.report import ModuleReport, PatchReport
from bsparse_hf.survey import Site, names_of_modules, survey
from bsparse_torch import BlockSparseLinear as AnyBlockSparseLinear
from bsparse_torch.compat.pytorch_block_sparse import BlockSparseLinear, CompatibilityWarning, PseudoBlockSparseLinear

__all__ = ["BlockSparseModelPatcher", "ModelPatcher"]

OPTIONS = ("density", "pseudo_linear", "block_shape", "init")


class ModelPatcher:
    """Replaces the modules of a model whose names match; subclasses say which and by what.

    A pattern is a regular expression matched against the beginning of a module's name, as `re.match` does: "layer.1"
    also takes layer.10 and layer.11. End it with "$" to name one module, or use `bsparse_hf.BlockSparseModelPatcher`,
    which matches whole names. Of the patterns that match, the one added first wins.
    """

    def __init__(self) -> None:
        self.patterns: list[dict[str, Any]] = []

    def is_patchable(self, module_name: str, module: nn.Module, raiseError: bool) -> bool:
        """Whether the module can be replaced; with raiseError, raises where it cannot."""
        return True

    def get_patchable_layers(self, model: nn.Module) -> list[dict[str, Any]]:
        """[{"regexp": the module's name, escaped, "layer": the module}] for every module that is patchable."""
        return [
            {"regexp": re.escape(name), "layer": module}
            for name, module in model.named_modules()
            if self.is_patchable(name, module, raiseError=False)
        ]

    def add_pattern(
        self,
        pattern: str,
        patch_info: Mapping[str, Any] | None = None,
        pattern_info: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a pattern with what `new_child_module` shall know; releases 0.1.1 and 0.1.2 named it pattern_info."""
        given = [info for info in (patch_info, pattern_info) if info is not None]
        if len(given) != 1:
            raise TypeError(
                f'{len(given)} of patch_info and pattern_info are given; pass one: patch_info={{"density": 0.5}}'
            )
        self.patterns.append({"pattern": pattern, "patch_info": given[0]})

    def pattern_match(self, module_name: str) -> tuple[bool, Any]:
        """(True, its patch_info) of the first pattern that matches the beginning of the name, else (False, -1)."""
        for entry in self.patterns:
            if re.match(entry["pattern"], module_name):
                return True, entry["patch_info"]
        return False, -1

    def new_child_module(self, child_module_name: str, child_module: nn.Module, patch_info: Any) -> nn.Module | None:
        """The replacement of a module; None leaves it."""
        raise NotImplementedError(f"{type(self).__name__} must implement new_child_module")

    def replace_module(
        self, father: nn.Module, child_module_name: str, child_name: str, child_module: nn.Module, patch_info: Any
    ) -> None:
        """Sets `father.child_name` to what `new_child_module` makes of `child_module`."""
        new = self.new_child_module(child_module_name, child_module, patch_info)
        if new is not None:
            setattr(father, child_name, new)

    def patch_model(self, model: nn.Module) -> PatchReport:
        """Replaces modules in place and reports on every Linear and Conv1D; the old library returned None.

        A module that the model holds under several names is replaced under all of them. Left as they are, with the
        reason in the report and in a CompatibilityWarning: weights tied to others, and modules whose parent reads their
        weight itself. An error leaves the model as it was.
        """
        sites = {id(site.module): site for site in survey(model)}
        dense_bytes = _bytes(model)
        chosen: list[tuple[str, nn.Module, Any]] = []  # name, module, patch_info
        reasons: dict[str, str] = {}
        for name, module in model.named_modules():
            matched, info = self.pattern_match(name)
            if not matched or not self.is_patchable(name, module, raiseError=True):
                continue
            reason = _obstacle(name, sites.get(id(module)))
            if reason is None:
                chosen.append((name, module, info))
            else:
                reasons[name] = reason
        self._replace(model, chosen)
        if isinstance(model, PreTrainedModel) and any(isinstance(m, AnyBlockSparseLinear) for m in model.modules()):
            attach(model, conv1d=())
        warned = [f"{name} was left as it is: {reason}" for name, reason in reasons.items()]
        if not chosen:
            warned.append("no module was patched; get_patchable_layers(model) lists the names that patterns can match")
        for warning in warned:
            warnings.warn(warning, CompatibilityWarning, stacklevel=2)
        return PatchReport(
            modules=tuple(self._row(model, site, reasons) for site in sites.values()),
            rules=tuple(f"{entry['pattern']}   {entry['patch_info']}" for entry in self.patterns),
            notes=(),
            warnings=tuple(warned),
            parameter_bytes=dense_bytes,
        )

    def _replace(self, model: nn.Module, chosen: list[tuple[str, nn.Module, Any]]) -> None:
        """Replaces all of them, under every name, or none."""
        names = names_of_modules(model)
        try:
            for name, module, info in chosen:
                parent, _, child = name.rpartition(".")
                self.replace_module(model.get_submodule(parent), name, child, module, info)
                for alias in names[id(module)]:
                    model.set_submodule(alias, model.get_submodule(name))
        except Exception:
            for _, module, _ in chosen:
                for alias in names[id(module)]:
                    model.set_submodule(alias, module)
            raise

    def _row(self, model: nn.Module, site: Site, reasons: Mapping[str, str]) -> ModuleReport:
        """What became of a Linear or Conv1D."""
        name, before = site.names[0], _bytes(site.module)
        rule = next((i for i, entry in enumerate(self.patterns, 1) if re.match(entry["pattern"], name)), None)
        head = (name, site.kind, (site.out_features, site.in_features), rule)
        module = model.get_submodule(name)
        if isinstance(module, AnyBlockSparseLinear):
            after = _bytes(module) + module.row_offsets.nbytes + module.col_indices.nbytes
            rows, cols = module.pattern.grid
            return ModuleReport(*head, module.block, module.pattern.blocks, rows * cols, before, after)
        kept = "no pattern matches" if module is site.module else f"replaced by a {type(module).__name__}"
        return ModuleReport(*head, None, None, None, before, before, reason=reasons.get(name, kept))


class BlockSparseModelPatcher(ModelPatcher):
    """Replaces `nn.Linear` by compat's BlockSparseLinear, or by PseudoBlockSparseLinear.

    patch_info: "density" is needed; "pseudo_linear" (False), and as in BlockSparseLinear "block_shape" and "init".
    """

    def is_patchable(self, module_name: str, module: nn.Module, raiseError: bool) -> bool:
        if isinstance(module, nn.Linear):
            return True
        if raiseError:
            raise ValueError(
                f"Cannot patch {module_name or 'the model itself'}: it is a {type(module).__name__}, not a Linear. "
                'A pattern matches the beginning of a name: end it with "$", or use '
                "bsparse_hf.BlockSparseModelPatcher, which matches whole names and takes Conv1D, too"
            )
        return False

    def new_child_module(self, child_module_name: str, child_module: nn.Module, patch_info: Any) -> nn.Module | None:
        assert isinstance(child_module, nn.Linear)
        unknown = sorted(set(patch_info) - set(OPTIONS))
        if unknown:
            raise ValueError(f"patch_info of {child_module_name} has {unknown[0]!r}; it may have {', '.join(OPTIONS)}")
        if "density" not in patch_info:
            raise ValueError(
                f'patch_info of {child_module_name} has no density; it must be in (0, 1]: pass {{"density": 0.5}}'
            )
        options = {name: patch_info[name] for name in ("density", "block_shape", "init") if name in patch_info}
        layer = BlockSparseLinear(0, 0, False, torch_nn_linear=child_module, **options)
        return PseudoBlockSparseLinear(layer) if patch_info.get("pseudo_linear") else layer


def _obstacle(name: str, site: Site | None) -> str | None:
    """Why a module that matches stays as it is. Raises ValueError where replacing it would lose something."""
    if not name:
        raise ValueError("Cannot patch the model itself in place: patch the module that holds it")
    if site is None:
        return None
    if site.refusal is not None:
        raise ValueError(f"Cannot patch {name}: {site.refusal}")
    return site.obstruction or (site.obstacle if site.tied else None)


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())
