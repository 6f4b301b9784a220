"""Which operator is whose gradient.

y = act(x W^T + bias) keeps aux, the value before the activation; with da = dy * act'(aux):
dx = da W (grad_input), dW = da^T x at what is stored (grad_values), dbias = the sum of da over tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bsparse_torch import ops, positions

_aten = torch.ops.aten
_INPUTS = len(ops.linear._schema.arguments)

ACTIVATION_GRADS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda dy, aux: _aten.threshold_backward(dy, aux, 0),
    "gelu": lambda dy, aux: _aten.gelu_backward(dy, aux, approximate="none"),
    "gelu_tanh": lambda dy, aux: _aten.gelu_backward(dy, aux, approximate="tanh"),
    "silu": lambda dy, aux: _aten.silu_backward(dy, aux),
}


class _Linear(torch.autograd.Function):
    """The operator linear with its gradients.

    torch.library.register_autograd would do the same, but reads the operator's schema at every call (25 us).
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        x, values, bias, row_offsets, col_indices, *pattern, activation, keep_aux, metadata = inputs
        if activation != "none" and not keep_aux:
            raise RuntimeError(
                f"keep_aux is False with activation {activation!r}; its gradient needs aux: "
                "call bsparse_torch.functional.block_sparse_linear, or pass keep_aux=True"
            )
        y, aux = _below_autograd(ops.linear, *inputs)
        needs_x, needs_values = ctx.needs_input_grad[:2]
        kept = x if needs_values else None, values if needs_x else None, aux if keep_aux else None
        ctx.save_for_backward(*kept, row_offsets, col_indices, metadata)
        if not keep_aux:
            ctx.mark_non_differentiable(aux)
        ctx.set_materialize_grads(False)
        ctx.pattern = pattern  # its key, out_features, in_features
        _, ctx.block = positions.layout(values, metadata)
        ctx.activation = activation
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y, aux

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, daux: Tensor | None) -> tuple[Tensor | None, ...]:
        dx = dvalues = dbias = None
        x, values, aux, row_offsets, col_indices, metadata = ctx.saved_tensors
        da = dy  # [..., out_features]
        if dy is not None and ctx.activation != "none":
            da = ACTIVATION_GRADS[ctx.activation](dy, aux)
        if daux is not None:  # where the gradient above is differentiated again
            da = daux if da is None else da + daux
        if da is not None:
            needs_x, needs_values, needs_bias = ctx.needs_input_grad[:3]
            # Where gradients are to be differentiated again, the operators are asked with autograd, and refuse.
            call = _differentiably if torch.is_grad_enabled() else _below_autograd
            if needs_x:
                dx = call(ops.grad_input, da, values, row_offsets, col_indices, *ctx.pattern, metadata)
            if needs_values:
                dvalues = call(ops.grad_values, da, x, row_offsets, col_indices, *ctx.pattern, *ctx.block, metadata)
            if needs_bias:
                dbias = da.reshape(-1, da.shape[-1]).sum(0, dtype=ctx.bias_dtype)
        return dx, dvalues, dbias, None, None, None, None, None, None, None, None


def _below_autograd(operator: Callable[..., Any], *inputs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*inputs)


def _differentiably(operator: Callable[..., Any], *inputs: Any) -> Any:
    return operator(*inputs)


def _linear(*given: Any) -> tuple[Tensor, Tensor]:
    inputs = given if len(given) == _INPUTS else (*given, None)  # torch leaves out metadata that is None
    if forward_ad._current_level >= 0 and any(_has_tangent(entry) for entry in inputs[:3]):
        raise NotImplementedError(
            "bsparse has no forward-mode derivative (torch.func.jvp, jacfwd, dual numbers): use backward(), or convert "
            "the layer with to_linear()"
        )
    if not (torch.is_grad_enabled() and any(isinstance(e, Tensor) and e.requires_grad for e in inputs[:3])):
        return _below_autograd(ops.linear, *inputs)  # type: ignore[no-any-return]
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError(
            "bsparse has no gradients inside torch.func (grad, vjp, jacrev): use backward() or torch.autograd.grad, or "
            "convert the layer with to_linear()"
        )
    return _Linear.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]


def _has_tangent(entry: Any) -> bool:
    if not isinstance(entry, Tensor):
        return False
    return forward_ad.unpack_dual(entry).tangent is not None  # type: ignore[no-untyped-call]


def _no_double_backward(ctx: Any, *grads: Tensor | None) -> None:
    raise NotImplementedError(
        "bsparse has no double backward: gradients of gradients through a block-sparse linear layer are not served; "
        "convert the layer with to_linear() where you need them"
    )


_library = torch.library.Library("bsparse", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.impl("linear", _linear, "Autograd")  # type: ignore[no-untyped-call]
torch.library.register_autograd("bsparse::grad_input", _no_double_backward)
torch.library.register_autograd("bsparse::grad_values", _no_double_backward)
