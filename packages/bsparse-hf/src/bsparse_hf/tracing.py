"""Which children of a module work on each other's output: read from the module's forward, without a number computed.

The forward runs on a stand-in of the module, with proxies of torch.fx for tensors. fx's own Tracer would do the same,
but redirects the calls of all modules in the process while it traces, those of other threads as well.
"""

import inspect
from collections import Counter
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.proxy import GraphAppendingTracer

from bsparse_hf.survey import HOOKS

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def pairs(parent: nn.Module) -> set[tuple[str, str]]:
    """(first, second): children that forward calls once each, where first's output goes to second and nowhere else.

    Only what holds in training and in evaluation. A forward with more than one argument has none, for a trace does not
    show what happens where an optional one is absent; nor has one that cannot be traced.
    """
    try:
        kinds = [parameter.kind for parameter in inspect.signature(type(parent).forward).parameters.values()]
        if "forward" in vars(parent) or len(kinds) != 2 or any(kind in VARIADIC for kind in kinds):
            return set()
        return _traced_pairs(parent, training=True) & _traced_pairs(parent, training=False)
    except Exception:  # a forward may do anything when it meets a proxy
        return set()


def _traced_pairs(parent: nn.Module, training: bool) -> set[tuple[str, str]]:
    tracer = _Tracer(fx.Graph())
    twin = _stand_in(parent, "", tracer)
    twin.training = training
    output = twin.forward(tracer.create_proxy("placeholder", "x", (), {}))
    tracer.create_proxy("output", "output", (output,), {})
    if any(isinstance(value, fx.Proxy) for value in vars(twin).values()):
        return set()  # what forward keeps for later may be the output of first
    calls = [node for node in tracer.graph.nodes if node.op == "call_module"]
    count = Counter(node.target for node in calls)
    found = set()
    for first in calls:
        for second in first.users:
            alone = len(first.users) == 1 and second.args == (first,) and not second.kwargs
            if alone and second.op == "call_module" and count[first.target] == count[second.target] == 1:
                found.add((str(first.target), str(second.target)))
    return found


class _Tracer(GraphAppendingTracer):
    def create_arg(self, a: Any) -> Any:
        """Which parameter or buffer an operation reads does not matter here."""
        return None if isinstance(a, Tensor) else super().create_arg(a)


def _stand_in(module: nn.Module, name: str, tracer: _Tracer) -> nn.Module:
    """A module of the same class and attributes, whose forward may set what it likes; its children note their calls."""
    twin: nn.Module = object.__new__(type(module))
    own = vars(twin)
    own.update(vars(module))
    own.update(dict.fromkeys(HOOKS, {}), _compiled_call_impl=None, _parameters=dict(module._parameters))
    own["_buffers"] = {key: buffer if buffer is None else buffer.clone() for key, buffer in module._buffers.items()}
    own["_modules"] = {
        key: child if child is None else _stand_in(child, f"{name}.{key}".lstrip("."), tracer)
        for key, child in module._modules.items()
    }
    if name:
        own["forward"] = lambda *args, **kwargs: tracer.create_proxy("call_module", name, args, kwargs)
    return twin
