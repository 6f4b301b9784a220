"""BlockSparseModelPatcher: rules in, a block-sparse model and a report out."""

import difflib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from bsparse_hf import _transformers as hf
from bsparse_hf.fusion import fuse_activations
from bsparse_hf.quantizer import attach
from bsparse_hf.report import ModuleReport, PatchReport, size
from bsparse_hf.rules import PatchRule, make_rule
from bsparse_hf.survey import Site, fused_experts, other_modules, put, survey
from bsparse_torch import BlockSparseLinear, choose_blocks

INDEX_BYTES = 4  # row offsets and column indices are int32


@dataclass(frozen=True)
class _Step:
    """A site, its row of the report, and the blocks to keep where it will be patched."""

    site: Site
    row: ModuleReport
    mask: torch.Tensor | None = None  # bool [block rows, block columns]


class BlockSparseModelPatcher:
    """Replaces Linear layers, and GPT-2's Conv1D, by block-sparse ones.

    patcher = BlockSparseModelPatcher()
    patcher.add_pattern(r"encoder\\.layer\\.\\d+\\.output\\.dense", density=0.25, block=64)
    print(patcher.plan(model))            # a dry run: changes nothing
    report = patcher.patch_model(model)   # in place
    model.save_pretrained("folder"); model = bsparse_hf.load("folder")

    fuse_activations: whether patching, and loading what is saved of the model, fuses (`bsparse_hf.fuse_activations`).
    """

    def __init__(self, fuse_activations: bool = True) -> None:
        self.rules: list[PatchRule] = []
        self.fuse_activations = fuse_activations

    def add_pattern(self, pattern: str, options: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Adds a rule; of all rules that match a module's whole name, the one added first wins.

        Options, as keywords or as one mapping: density, block, format, choose, force; see `PatchRule`.
        Raises ValueError or TypeError that names the option.
        """
        twice = sorted((options or {}).keys() & more.keys())
        if twice:
            raise ValueError(f"option {twice[0]!r} is given twice, in the mapping and as a keyword: give it once")
        self.rules.append(make_rule(pattern, {**(options or {}), **more}))

    def plan(self, model: nn.Module) -> PatchReport:
        """What `patch_model` would do, without doing it: every Linear and Conv1D with its rule or why it is skipped."""
        return self._report(model, self._steps(model))

    def patch_model(self, model: nn.Module) -> PatchReport:
        """Replaces, in place, what `plan` says; returns that plan as the report, with a note of what was fused.

        Weights that are kept, biases, dtypes, devices, `requires_grad`, `training` and shared modules stay as they are.
        An optimizer made before holds the old parameters: make it after patching.
        Raises ValueError, with the model untouched, when no module would be patched or a rule asks for the impossible.
        """
        steps = self._steps(model)
        report = self._report(model, steps)
        _check(model, report)
        for warning in report.warnings:  # first, for a filter may make errors of them
            warnings.warn(warning, stacklevel=2)
        chosen = [step for step in steps if step.mask is not None]
        # All layers are made before any is put in place, so that an error halfway leaves the model as it was.
        layers = [_layer(step) for step in hf.progress(chosen, "block-sparse layers")]
        for step, layer in zip(chosen, layers, strict=True):
            put(model, step.site.names, layer)
        fused = fuse_activations(model, only_transformers=True) if self.fuse_activations else {}
        if isinstance(model, PreTrainedModel):
            if any(step.site.tied for step in chosen):
                hf.untie(model)
            attach(model, conv1d={step.site.names[0] for step in chosen if step.site.kind == "Conv1D"})
        return replace(report, notes=(*report.notes, _fusion_note(fused))) if fused else report

    def _steps(self, model: nn.Module) -> list[_Step]:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
        if not self.rules:
            raise ValueError("the patcher has no rules: call add_pattern(regex, density=...) first")
        if hasattr(model, "_orig_mod"):
            raise ValueError("the model is compiled; patch it first and call torch.compile after")
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(f"the model is wrapped in {type(model).__name__}; patch model.module before wrapping it")
        return [self._step(model, site) for site in hf.progress(survey(model), "choosing blocks")]

    def _step(self, model: nn.Module, site: Site) -> _Step:
        number, rule = self._first_match(site.names)
        if rule is None:
            return _skip(site, None, "no rule matches")
        if site.refusal is not None:
            return _skip(site, number, site.refusal, refused=True)
        if site.obstruction is not None:
            return _skip(site, number, site.obstruction)
        if site.obstacle is not None and not rule.force:
            return _skip(site, number, f"{site.obstacle}; force=True patches it")
        if site.tied and isinstance(model, PreTrainedModel) and not hf.can_untie(model, site.names[0]):
            return _skip(site, number, f"{site.obstacle} by more than tie_word_embeddings: untie it", refused=True)
        return _sized(site, number, rule)

    def _first_match(self, names: Sequence[str]) -> tuple[int, PatchRule | None]:
        for number, rule in enumerate(self.rules, start=1):
            if any(rule.matches(name) for name in names):
                return number, rule
        return 0, None

    def _report(self, model: nn.Module, steps: list[_Step]) -> PatchReport:
        rows = [step.row for step in steps]
        experts = [_experts_row(name, parameter) for name, parameter in fused_experts(model)]
        remarks = [_remark(model, number, rule, rows) for number, rule in enumerate(self.rules, start=1)]
        warned = [text for text, is_warning in remarks if is_warning]
        if experts:
            total = size(sum(row.bytes_before for row in experts))
            warned.append(f"{len(experts)} stacks of fused experts, {total}, stay dense: no rule reaches them")
        parameters = {id(parameter): parameter.nbytes for parameter in model.parameters()}
        return PatchReport(
            modules=(*rows, *experts),
            rules=tuple(str(rule) for rule in self.rules),
            notes=tuple(text for text, is_warning in remarks if text and not is_warning),
            warnings=tuple(warned),
            parameter_bytes=sum(parameters.values()),
        )


def _layer(step: _Step) -> BlockSparseLinear:
    module = step.site.module
    linear = module if isinstance(module, nn.Linear) else linear_from_conv1d(module)
    layer = BlockSparseLinear.from_linear(linear, mask=step.mask, block=step.row.block)
    return layer.train(module.training)


def linear_from_conv1d(module: nn.Module) -> nn.Linear:
    """A Linear that computes what a Conv1D does, on a transposed view of its weight."""
    assert isinstance(module.weight, nn.Parameter) and isinstance(module.bias, nn.Parameter)
    in_features, out_features = module.weight.shape
    linear = nn.Linear(in_features, out_features, device="meta")
    linear.weight = nn.Parameter(module.weight.detach().t(), requires_grad=module.weight.requires_grad)
    linear.bias = module.bias
    return linear


def _sized(site: Site, number: int, rule: PatchRule) -> _Step:
    """The step of a site that a rule may patch, unless it would not gain by it."""
    height, width = rule.block
    if (site.out_features < height or site.in_features < width) and not rule.force:
        return _skip(site, number, f"smaller than one {height}x{width} block: pass a smaller block, or force=True")
    mask = choose_blocks(site.weight, block=rule.block, density=rule.density, choose=rule.choose)
    rows, columns = mask.shape
    blocks = int(mask.sum())
    if blocks == 0:
        return _skip(site, number, "all of its weights are zero: there is no block to keep")
    dense = _module_bytes(site)
    itemsize = site.weight.element_size()
    sparse = dense - site.weight.nbytes + blocks * height * width * itemsize + INDEX_BYTES * (rows + 1 + blocks)
    if sparse >= dense and not rule.force:
        kept = f"{blocks} of {rows * columns} {height}x{width} blocks take {size(sparse)}"
        return _skip(site, number, f"no gain: {kept}, dense takes {size(dense)}; force=True patches it")
    row = ModuleReport(
        name=site.names[0],
        kind=site.kind,
        shape=(site.out_features, site.in_features),
        rule=number,
        block=rule.block,
        blocks=blocks,
        grid_blocks=rows * columns,
        bytes_before=dense,
        bytes_after=sparse,
        padding_bytes=itemsize * _padding(mask, rule.block, (site.out_features, site.in_features)),
    )
    return _Step(site, row, mask)


def _padding(mask: torch.Tensor, block: tuple[int, int], shape: tuple[int, int]) -> int:
    """Elements that the kept blocks store beyond the edges of a matrix of this shape."""
    rows, columns = mask.shape
    pad_rows, pad_columns = rows * block[0] - shape[0], columns * block[1] - shape[1]
    in_last_row, in_last_column, in_corner = int(mask[-1].sum()), int(mask[:, -1].sum()), int(mask[-1, -1])
    overlap = in_corner * pad_rows * pad_columns
    return in_last_row * pad_rows * block[1] + in_last_column * pad_columns * block[0] - overlap


def _skip(site: Site, number: int | None, reason: str, refused: bool = False) -> _Step:
    shape = (site.out_features, site.in_features)
    taken = _module_bytes(site)
    return _Step(site, _dense_row(site.names[0], site.kind, shape, number, taken, reason, refused))


def _experts_row(name: str, parameter: nn.Parameter) -> ModuleReport:
    reason = "fused 3-D experts, which bsparse does not serve yet"
    return _dense_row(name, "experts", tuple(parameter.shape), None, parameter.nbytes, reason)


def _dense_row(
    name: str, kind: str, shape: tuple[int, ...], rule: int | None, taken: int, reason: str, refused: bool = False
) -> ModuleReport:
    return ModuleReport(name, kind, shape, rule, None, None, None, taken, taken, reason=reason, refused=refused)


def _module_bytes(site: Site) -> int:
    return sum(parameter.nbytes for parameter in site.module.parameters(recurse=False))


def _remark(model: nn.Module, number: int, rule: PatchRule, rows: list[ModuleReport]) -> tuple[str, bool]:
    """What is odd about what a rule matches, "" if nothing, and whether it deserves a warning."""
    others = other_modules(model, re.compile(rule.pattern))
    listed = ", ".join(f"{count} {name}" for name, count in others.most_common(4))
    if any(row.rule == number for row in rows):
        also = f"rule {number} also matches modules that are not Linear, left as they are: {listed}"
        return also if others else "", False
    if others:
        return f"rule {number} {rule.pattern!r} matches only modules that are not Linear: {listed}", True
    if any(rule.matches(row.name) for row in rows):
        return f"rule {number} {rule.pattern!r} matches only modules that earlier rules took", True
    near = _near_misses(rule, [row.name for row in rows])
    return f"rule {number} {rule.pattern!r} matches no module; the whole name must match{near}", True


def _fusion_note(fused: Mapping[str, str]) -> str:
    what = f"{len(fused)} activations are computed inside the layer before them"
    if len(fused) == 1:
        what = "1 activation is computed inside the layer before it"
    return f"{what}: {', '.join(sorted(set(fused.values())))}"


def _near_misses(rule: PatchRule, names: list[str]) -> str:
    part = [name for name in names if re.search(rule.pattern, name)]
    literal = re.sub(r"\\([^\w])", r"\1", rule.pattern)
    close = part[:3] or difflib.get_close_matches(literal, names, n=3, cutoff=0.5)
    if not close:
        return ""
    return f"; it matches part of: {', '.join(close)}" if part else f"; near misses: {', '.join(close)}"


def _check(model: nn.Module, report: PatchReport) -> None:
    quantizer = getattr(model, "hf_quantizer", None)
    method = getattr(model, "quantization_method", None)
    if quantizer is not None and method != "bsparse":
        raise ValueError(f"the model is quantized by {method}, which cannot be combined: patch the unquantized model")
    refused = [f"{row.name}: {row.reason}" for row in report.modules if row.refused]
    if refused:
        raise ValueError("nothing was patched, for these cannot be:\n  " + "\n  ".join(refused))
    if not report.patched:
        matched = [f"{row.name}: {row.reason}" for row in report.modules if row.rule]
        story = [*report.warnings, *matched] or ["the model has no Linear or Conv1D"]
        raise ValueError("no module would be patched:\n  " + "\n  ".join(story[:12]))
