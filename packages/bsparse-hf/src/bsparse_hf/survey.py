"""What a model is made of, as far as patching is concerned: its Linears and Conv1Ds, and what stands in their way."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from bsparse_hf import _transformers as hf

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a module
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Site:
    """A Linear or Conv1D, once, under all of its names.

    names: the first is the one that reports and checkpoints use.
    obstacle: why it is skipped unless a rule has force=True.
    obstruction: why it is skipped in any case.
    refusal: why a rule that names it is an error.
    """

    names: tuple[str, ...]
    module: nn.Module
    kind: str
    in_features: int
    out_features: int
    obstacle: str | None = None
    obstruction: str | None = None
    refusal: str | None = None
    tied: bool = False

    @property
    def weight(self) -> torch.Tensor:
        """The dense weight as [out_features, in_features], whatever the module's own order."""
        weight = self.module.weight
        assert isinstance(weight, torch.Tensor)
        return weight.detach().t() if self.kind == "Conv1D" else weight.detach()


def kind_of(module: nn.Module) -> str | None:
    """Linear, Conv1D, or None for everything else."""
    if isinstance(module, nn.Linear):
        return "Linear"
    return "Conv1D" if isinstance(module, hf.Conv1D) else None


def features(module: nn.Module) -> tuple[int, int]:
    """(in_features, out_features) of a Linear or Conv1D."""
    assert isinstance(module.weight, torch.Tensor)
    rows, columns = module.weight.shape
    return (rows, columns) if isinstance(module, hf.Conv1D) else (columns, rows)


def has_hooks(module: nn.Module) -> bool:
    """Whether a forward or backward pass runs hooks of this module."""
    return any(getattr(module, name) for name in HOOKS)


def names_of_modules(model: nn.Module) -> dict[int, list[str]]:
    """id of each module -> every name under which the model holds it."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[id(module)].append(name)
    return names


def put(model: nn.Module, names: Iterable[str], module: nn.Module) -> None:
    """Puts a module into a model under each of these names."""
    for name in names:
        model.set_submodule(name, module)


def survey(model: nn.Module) -> list[Site]:
    """Every Linear and Conv1D of the model, in the order of `named_modules`."""
    names = names_of_modules(model)
    owners = _owners_of_parameters(model)
    heads = _heads(model)
    sites = []
    for name, module in model.named_modules():
        kind = kind_of(module)
        if kind is None:
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        in_features, out_features = features(module)
        tied = _tied_to(module, owners)
        sites.append(
            Site(
                names=tuple(names[id(module)]),
                module=module,
                kind=kind,
                in_features=in_features,
                out_features=out_features,
                obstacle=tied or heads.get(id(module)) or _router(name, parent),
                obstruction=_own_class(module, kind),
                refusal=_refusal(module),
                tied=tied is not None,
            )
        )
    return sites


def fused_experts(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The expert weights that transformers keeps as bare [experts, ., .] Parameters, which no Linear rule reaches."""
    for name, module in model.named_modules():
        if "expert" not in type(module).__name__.lower() and "expert" not in name.lower():
            continue
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 3:
                yield f"{name}.{parameter_name}".lstrip("."), parameter


def other_modules(model: nn.Module, matches: re.Pattern[str]) -> Counter[str]:
    """Class names, counted, of the modules that match and are neither Linear nor Conv1D."""
    return Counter(
        type(module).__name__
        for name, module in model.named_modules()
        if kind_of(module) is None and matches.fullmatch(name)
    )


def _owners_of_parameters(model: nn.Module) -> dict[int, dict[int, str]]:
    owners: dict[int, dict[int, str]] = defaultdict(dict)
    for name, module in model.named_modules():
        for parameter_name, parameter in module.named_parameters(recurse=False):
            owners[id(parameter)][id(module)] = f"{name}.{parameter_name}".lstrip(".")
    return owners


def _tied_to(module: nn.Module, owners: dict[int, dict[int, str]]) -> str | None:
    for parameter in module.parameters(recurse=False):
        others = [name for owner, name in owners[id(parameter)].items() if owner != id(module)]
        if others:
            return f"tied to {others[0]}"
    return None


def _heads(model: nn.Module) -> dict[int, str]:
    """id of each module -> why it counts as an output head."""
    heads: dict[int, str] = {}
    if isinstance(model, PreTrainedModel) and model.base_model is not model:
        body = {id(module) for module in model.base_model.modules()}
        outside = f"output head, outside {model.base_model_prefix}"
        heads = {id(module): outside for module in model.modules() if id(module) not in body}
    head = hf.output_head(model)
    if head is not None:
        heads |= {id(module): "output head" for module in head.modules()}
    return heads


def _router(name: str, parent: nn.Module) -> str | None:
    if re.search(r"(^|_)(gate|router)$", name.rpartition(".")[2]) or "router" in type(parent).__name__.lower():
        return "router"
    return None


def _own_class(module: nn.Module, kind: str) -> str | None:
    if type(module) in (nn.Linear, hf.Conv1D):
        return None
    return f"{type(module).__name__}, a subclass of {kind} with a meaning of its own"


def _refusal(module: nn.Module) -> str | None:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    if weight.is_meta:
        return "its weight is on the meta device or offloaded: load it into memory before patching"
    if weight.dtype not in DTYPES:
        return f"its dtype is {weight.dtype}; block-sparse layers hold float32, float16, bfloat16 or float64"
    if has_hooks(module):
        return "it has hooks, which would be lost: remove them before patching and add them again after"
    if hasattr(module, "_hf_hook"):
        return "accelerate dispatched it: patch the model first and dispatch it after"
    return None
