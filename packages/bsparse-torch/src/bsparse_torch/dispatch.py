"""Whether an operator call would go straight to its kernel, so that the dispatcher can be left out.

Two passes through the dispatcher into Python cost 10 us, as much as everything else of an eager forward on the host.
"""

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd import forward_ad
from torch.overrides import has_torch_function


def _bits(*names: str) -> int:
    bits = 0
    for name in names:
        bits |= DispatchKeySet(getattr(DispatchKey, name)).raw_repr()
    return bits


_KEYS = ("CPU", "CUDA", "ADInplaceOrView", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA")
# What ordinary tensors are not: lazy (negated, conjugated, zero), of a subclass, batched, fake.
_UNUSUAL = ~_bits(*_KEYS)
# What is not in force in a thread as it starts: a mode, a tracer, a functional transform.
_IN_FORCE = ~_bits("BackendSelect", "ADInplaceOrView")


def is_direct(x: Tensor, values: Tensor, bias: Tensor | None) -> bool:
    """Whether an operator on these, none of which needs a gradient here, would call its kernel and nothing else.

    False under torch.compile, and while torch's profiler watches, which shall see the operator.
    """
    if torch.compiler.is_compiling() or has_torch_function((x, values, bias)) or torch._C._autograd._profiler_enabled():
        return False
    keys = torch._C._dispatch_keys
    found = keys(x).raw_repr() | keys(values).raw_repr() | (0 if bias is None else keys(bias).raw_repr())
    here = torch._C._dispatch_tls_local_include_set().raw_repr()
    return not (found & _UNUSUAL or here & _IN_FORCE or forward_ad._current_level >= 0)
