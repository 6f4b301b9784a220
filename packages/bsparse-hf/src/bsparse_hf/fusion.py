"""Fusion: the activation that follows a block-sparse layer, computed in the same pass as the layer's product.

Whether an activation follows a layer is read from the forward of the module that holds both; no architecture is named
here. That forward is taken to be the only caller of the two.
"""

from collections import Counter
from collections.abc import Iterator

from torch import Tensor, nn

from bsparse_hf import _transformers as hf
from bsparse_hf.survey import has_hooks
from bsparse_hf.tracing import pairs
from bsparse_torch import BlockSparseLinear


class Fused(nn.Module):
    """In the place of an activation that its neighbour, the layer named `by`, has computed: returns its input."""

    def __init__(self, original: nn.Module, by: str) -> None:
        super().__init__()
        self.original, self.by = original, by
        self.training = original.training

    def forward(self, x: Tensor) -> Tensor:
        """x, of any shape."""
        return x

    def extra_repr(self) -> str:
        return f"by={self.by!r}"


def fuse_activations(model: nn.Module, only_transformers: bool = False) -> dict[str, str]:
    """Moves activations into the block-sparse layers before them, in place, where the forward around them allows it.

    only_transformers: leave modules alone whose class is not transformers' own, as patching and loading do: what
    another forward decides by, say random numbers or what is no tensor, cannot all be seen from outside.

    Returns the name of each layer that got an activation, and which: {"encoder.layer.0.intermediate.dense": "gelu"}.

    A layer and an activation (ReLU, GELU by erf or tanh, SiLU) are fused when the module that holds both calls each of
    them once, and the layer's output goes into the activation and nowhere else. Left as they are: layers held in
    several places, modules with hooks, all in an `nn.Sequential`, whose parts may be called one by one, and all in a
    module whose forward takes more than one argument or cannot be traced. Results differ by rounding alone: where it is
    computed in the same pass, the activation sees the sum before that is rounded to the dtype.
    """
    fused: dict[str, str] = {}
    for parent_name, parent, by, name, activation in list(_fusible(model, only_transformers)):
        parent.get_submodule(by).activation = activation  # type: ignore[assignment]
        setattr(parent, name, Fused(parent.get_submodule(name), by))
        fused[f"{parent_name}.{by}".lstrip(".")] = activation
    return fused


def is_fused(model: nn.Module) -> bool | None:
    """Whether a model has fused activations; None where it has neither those nor any that loading would fuse.

    Also None where hooks, of layers that are offloaded, say, keep everything from being fused now.
    """
    if any(isinstance(module, Fused) for module in model.modules()):
        return True
    return False if any(_fusible(model, only_transformers=True)) else None


def _fusible(model: nn.Module, only_transformers: bool) -> Iterator[tuple[str, nn.Module, str, str, str]]:
    """What `fuse_activations` would fuse: name of the parent, parent, names of layer and activation in it, function."""
    places = Counter(id(child) for module in model.modules() for child in module._modules.values())
    for parent_name, parent in model.named_modules():
        if type(parent) is nn.Sequential or (only_transformers and not hf.is_own(parent)):
            continue
        layers = {
            name
            for name, child in parent.named_children()
            if isinstance(child, BlockSparseLinear) and places[id(child)] == 1 and _takes_activation(child)
        }
        activations = {name: known for name, child in parent.named_children() if (known := _known(child))}
        if not layers or not activations:
            continue
        for by, name in sorted(pairs(parent)):
            if by in layers and name in activations:
                yield parent_name, parent, by, name, activations[name]


def unfuse_activations(model: nn.Module) -> None:
    """Undoes `fuse_activations`, in place: the very modules it replaced stand where they stood.

    Raises ValueError, with nothing changed, where a layer was replaced while it had its activation.
    """
    found = [
        (parent, name, child, _layer_of(parent, child))
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, Fused)
    ]
    for parent, name, child, layer in found:
        layer.activation = None
        setattr(parent, name, child.original)


def _layer_of(parent: nn.Module, fused: Fused) -> BlockSparseLinear:
    """The layer that computes a fused activation."""
    layer = getattr(parent, fused.by, None)
    layer = getattr(layer, "_orig_mod", layer)  # compiled
    if not isinstance(layer, BlockSparseLinear) or layer.activation is None:
        raise ValueError(
            f"{fused.by} of a {type(parent).__name__} is a {type(layer).__name__} that does not compute the activation "
            "fused into the layer it replaced: put that layer back, call unfuse_activations, then replace it"
        )
    return layer


def check_activations(model: nn.Module) -> None:
    """Raises ValueError for a layer whose activation was set by hand: neither files nor dense layers could hold it."""
    held = {id(_layer_of(p, child)) for p in model.modules() for child in p.children() if isinstance(child, Fused)}
    for name, layer in model.named_modules():
        if isinstance(layer, BlockSparseLinear) and layer.activation is not None and id(layer) not in held:
            raise ValueError(
                f"{name}.activation is {layer.activation!r}, which no module of the model stands for, so that it would "
                "be lost: set it to None, and let the model apply it"
            )


def _takes_activation(layer: BlockSparseLinear) -> bool:
    """Whether a layer has no activation yet and would compute one that it is given."""
    return layer.activation is None and type(layer).forward is BlockSparseLinear.forward and _is_plain(layer)


def _known(module: nn.Module) -> str | None:
    """The activation that a module computes; None for one that layers do not, and for other modules."""
    return hf.activation_name(module) if _is_plain(module) else None


def _is_plain(module: nn.Module) -> bool:
    """Whether a call runs the forward of the module's class and nothing else."""
    return "forward" not in vars(module) and not has_hooks(module)
