"""Whether an operator call would go straight to its kernel, so that the dispatcher can be left out.

Two passes through the dispatcher into Python cost 10 us, as much as everything else of an eager forward on the host.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import has_torch_function

# What ordinary tensors are; others are lazy (negated, conjugated, zero), of a subclass, batched, fake.
_ORDINARY = ("CPU", "CUDA", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA")
# What is in force in a thread as it starts; else there is a mode, a tracer, a functional transform.
_FROM_THE_START = ("BackendSelect", "ADInplaceOrView")

Test = Callable[..., bool]  # is_direct(x, values, bias, metadata=None)


def make_test() -> Test:
    """is_direct of this torch: never true where torch lacks one of the private names that it asks."""
    private: Any = torch._C
    try:
        keys, in_force = private._dispatch_keys, private._dispatch_tls_local_include_set
        profiled, is_compiling = private._autograd._profiler_enabled, torch.compiler.is_compiling
        unusual, unusually_in_force = ~_bits(_ORDINARY), ~_bits(_FROM_THE_START)
        _ = forward_ad._current_level  # that of dual numbers, below 0 where there are none: read at each call
    except AttributeError:
        return lambda x, values, bias, metadata=None: False

    def is_direct(x: Tensor, values: Tensor, bias: Tensor | None, metadata: Tensor | None = None) -> bool:
        """Whether an operator on these, none of which needs a gradient here, would call its kernel and nothing else.

        False under torch.compile, and while torch's profiler watches, which shall see the operator.
        """
        tensors = (x, values, bias, metadata)
        if is_compiling() or has_torch_function(tensors) or profiled() or forward_ad._current_level >= 0:
            return False
        found = keys(x).raw_repr() | keys(values).raw_repr() | (0 if bias is None else keys(bias).raw_repr())
        if metadata is not None:
            found |= keys(metadata).raw_repr()
        return not (found & unusual or in_force().raw_repr() & unusually_in_force)

    return is_direct


def _bits(names: tuple[str, ...]) -> int:
    private: Any = torch._C
    bits = 0
    for name in names:
        bits |= private.DispatchKeySet(getattr(private.DispatchKey, name)).raw_repr()
    return bits


is_direct = make_test()
