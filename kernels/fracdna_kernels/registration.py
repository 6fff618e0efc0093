"""Operators of PyTorch whose eager calls cost the host little.

torch.library makes an operator known to compilers, fake tensors, modes and transforms, and sends
every call through layers of Python for their sake. Where none of them is there, an operator of this
module calls its implementation itself, inside an autograd function that is made of the same parts.
"""

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor
from torch._C._profiler import _RecordFunctionFast
from torch.overrides import has_torch_function

NAMESPACE = "fracdna"


def _bits(*names: str) -> int:
    """A set of dispatch keys as a number; the sets themselves cannot be looked up."""
    keys = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return reduce(or_, keys).raw_repr()


def _plain_keys() -> tuple[frozenset[int], frozenset[int]]:
    """Dispatch keys of threads and of tensors that need nothing of the dispatcher but autograd.

    They are no public part of PyTorch: where they cannot be read, nothing counts as plain.
    """
    try:
        for read in ("_dispatch_tls_local_include_set", "_dispatch_keys"):
            getattr(torch._C, read)
        # with inference mode, and without; modes, transforms, tracing, ... add keys of their own
        threads = {_bits("BackendSelect"), _bits("BackendSelect", "ADInplaceOrView")}
        # dense, made in inference mode, or not; fake, functional, wrapped, sparse, ... have others
        tensors = {
            bits
            for device in ("CPU", "CUDA")
            for bits in (
                _bits(device, f"Autocast{device}"),
                _bits(device, f"Autocast{device}", f"Autograd{device}", "ADInplaceOrView"),
            )
        }
    except AttributeError:
        return frozenset(), frozenset()
    return frozenset(threads), frozenset(tensors)


_PLAIN_THREAD, _PLAIN_TENSOR = _plain_keys()


def _plain(arguments: tuple[Any, ...]) -> bool:
    """Whether PyTorch's dispatcher would do nothing but record for autograd and call."""
    if not _PLAIN_THREAD:
        return False
    if torch._C._dispatch_tls_local_include_set().raw_repr() not in _PLAIN_THREAD:
        return False
    if has_torch_function(arguments):  # also of a mode
        return False
    for x in arguments:
        if isinstance(x, Tensor) and torch._C._dispatch_keys(x).raw_repr() not in _PLAIN_TENSOR:
            return False
    return True


def _differentiable(arguments: tuple[Any, ...]) -> bool:
    """Whether autograd has to record a call."""
    if torch.is_grad_enabled():
        for x in arguments:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


class Operator:
    """An operator of PyTorch, called with positional arguments.

    The registered operator is called in compiled code, for tensors that are not plain ones and
    under modes and transforms; otherwise the implementation, without an autograd node where no
    gradient is needed. Both give the same. What has no backward, such as the backward of another
    operator, raises where autograd differentiates it.
    """

    def __init__(
        self, name: str, implementation: Callable[..., Any], mutates: Iterable[str]
    ) -> None:
        self.name = f"{NAMESPACE}::{name}"
        self._implementation = implementation
        self._definition = torch.library.custom_op(
            self.name, implementation, mutates_args=tuple(mutates)
        )
        self.registered = getattr(getattr(torch.ops, NAMESPACE), name).default
        arguments = self.registered._schema.arguments
        self._mutated = tuple(
            place
            for place, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        self._function: type[torch.autograd.Function] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """See the implementation."""
        if torch.compiler.is_compiling() or not _plain(arguments):
            return self.registered(*arguments)
        if not _differentiable(arguments):
            return self._run(*arguments)
        if self._function is None:
            return self.registered(*arguments)
        return self._function.apply(*arguments)

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """Register what makes outputs without data, see torch.library.register_fake."""
        self._definition.register_fake(fake)
        return fake

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None]
    ) -> None:
        """Register gradients, see torch.library.register_autograd.

        Args:
            backward: (ctx, *gradients of outputs) to a gradient or None for every argument.
            setup_context: (ctx, inputs, output), keeps what backward needs.
        """
        self._definition.register_autograd(backward, setup_context=setup_context)

        def forward(ctx: Any, *inputs: Any) -> Any:
            output = self._run(*inputs)
            setup_context(ctx, inputs, output)
            return output

        parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        name = self.name.replace("::", "_")
        self._function = type(name, (torch.autograd.Function,), parts)

    def _run(self, *arguments: Any) -> Any:
        """Call the implementation, in profiles under the name of the operator."""
        if self._mutated:
            torch.autograd.graph.increment_version([arguments[place] for place in self._mutated])
        if not torch.autograd._profiler_enabled():
            return self._implementation(*arguments)
        # an operator in the profile, to which kernels are attributed, as they are to no annotation
        with _RecordFunctionFast(self.name):
            return self._implementation(*arguments)


def operator(name: str, *, mutates: Iterable[str] = ()) -> Callable[[Callable[..., Any]], Operator]:
    """Make an implementation an operator.

    Args:
        name: without the namespace.
        mutates: names of the arguments that it writes to.
    """
    return lambda implementation: Operator(name, implementation, mutates)
