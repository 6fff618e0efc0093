"""The forward and the backward pass of a batch as two CUDA graphs.

A pass of a small network is a thousand short kernels, and Python takes several times longer to
launch them than the device to run them. A graph is launched as one.

A graph repeats what it recorded on the addresses that it recorded. So batches are copied into
buffers, and gradients are added, inside the graph, to buffers that become the `grad` of the
parameters. Anything that reads or scales `grad` between two passes works as it does without graphs:
clipping, optimizers, gradient accumulation, zeroing it in place or setting it to None. What a graph
cannot do: call hooks of parameters, give gradients to torch.autograd.grad or for some inputs alone,
and leave alone a gradient that somebody keeps beyond the next pass.

Parts that draw random numbers on the device, such as dropout, draw new ones in every replay.
"""

import gc
import warnings
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

import torch
from pytorch_lightning.strategies import SingleDeviceStrategy, Strategy
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fracdna.data.dataset import Batch
from fracdna_prep.errors import InputError

T = TypeVar("T")
Replay = Callable[[], None]
# a batch to its loss, which has a gradient, and to what is only looked at
Pass = Callable[[Batch], tuple[Tensor, ...]]


class Recorder(Protocol):
    """Turns work into something that repeats it on the same tensors."""

    def warm_up(self, work: Callable[[], T]) -> T:
        """Do the work once, so that nothing is left to be set up while it is recorded."""

    def record(self, work: Callable[[], T]) -> tuple[T, Replay]:
        """What the work returned, and a call that computes these tensors anew."""


class CudaRecorder:
    """Records into CUDA graphs that share one pool of memory.

    Args:
        device: where the work runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, work: Callable[[], T]) -> T:
        """On the stream of the recording: libraries set themselves up for each stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = work()
        current.wait_stream(self._stream)
        return result

    def record(self, work: Callable[[], T]) -> tuple[T, Replay]:
        """See Recorder; the work is recorded, not done.

        Other threads may use CUDA meanwhile: the one that pins the next batches does.
        """
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            # around the graph, which after a failure leaves its stream the current one
            torch.cuda.stream(self._stream),
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
        ):
            result = work()
        return result, graph.replay


class CapturedPass:
    """The passes of batches of one shape, recorded once.

    Autocast is recorded as it is around the call, without its cache: a weight that was cast outside
    would never be cast again. The generators of random numbers are left as they were.

    Args:
        compute: a batch to its loss and further outputs; nothing in it waits for the device.
        parameters: all that the loss is differentiated by; those that it does not depend on keep
            their `grad`.
        batch: one of the shape.
        recorder: see Recorder.
    """

    def __init__(
        self, compute: Pass, parameters: Iterable[nn.Parameter], batch: Batch, recorder: Recorder
    ) -> None:
        self._batch = {name: values.clone() for name, values in batch.items()}
        parameters = list(parameters)
        self._trained = [p for p in parameters if p.requires_grad]
        self._given = parameters
        self._identity = _identity(self._given)
        self._passes = 0
        device = self._trained[0].device
        devices = [device] if device.type == "cuda" else []
        self._autocast = _autocast(device.type)
        low = {"device_type": device.type, "cache_enabled": False} | self._autocast
        # Lightning takes the backward pass outside autocast, and so must the recording
        with torch.random.fork_rng(devices), torch.autocast(device.type, enabled=False):
            self._record(compute, low, recorder)

    def fits(self, batch: Batch) -> bool:
        """Whether a batch's names, shapes, dtypes and device, and autocast, are as recorded."""
        autocast = _autocast(self._trained[0].device.type)
        return _shape(batch) == _shape(self._batch) and autocast == self._autocast

    def moved(self) -> bool:
        """Whether parameters have left their addresses, or were frozen or thawed, since."""
        return _identity(self._given) != self._identity

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        """The loss, with a gradient, and the further outputs, which last until the next call."""
        for name, buffer in self._batch.items():
            buffer.copy_(batch[name], non_blocking=True)
        # any parameter serves: it ties the loss to the network, its gradient is added by the graph
        return _Replayed.apply(self._trained[0], self), *self._outputs[1:]

    def forward(self) -> tuple[Tensor, int]:
        """Replay the forward pass: a loss that may be kept, and the number of this pass."""
        self._replay_forward()
        self._passes += 1
        return self._outputs[0].clone(), self._passes

    def backward(self, number: int, gradient: Tensor) -> None:
        """Replay the backward pass, which adds to the parameters' gradients.

        Args:
            number: of the forward pass.
            gradient: () of the loss.

        Raises:
            RuntimeError: that pass is over, or another one has overwritten it.
        """
        if number != self._passes:
            raise RuntimeError(
                "this pass was replayed from a CUDA graph: it has one backward pass, and that "
                "before the next forward pass"
            )
        self._passes += 1
        self._loss_gradient.copy_(gradient)
        self._bind_gradients()
        self._replay_backward()

    def _record(self, compute: Pass, low: dict[str, Any], recorder: Recorder) -> None:
        """Both passes, after a warm-up that shows which parameters have a gradient."""
        losses: list[Tensor] = []

        def forward() -> tuple[Tensor, ...]:
            with torch.autocast(**low):
                outputs = compute(self._batch)
            losses[:] = outputs[:1]
            # detached: what autograd keeps of a recording must end with it
            return tuple(output.detach() for output in outputs)

        def gradients(of_loss: Tensor | None) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(losses.pop(), self._trained, of_loss, allow_unused=True)

        def backward() -> None:
            found = gradients(self._loss_gradient)
            torch._foreach_add_(self._sums, [g for g in found if g is not None])

        (loss, *_), found = recorder.warm_up(lambda: (forward(), gradients(None)))
        self._loss_gradient = torch.ones_like(loss)
        pairs = zip(self._trained, found, strict=True)
        self._reached = [p for p, gradient in pairs if gradient is not None]
        self._sums = [torch.zeros_like(p, requires_grad=False) for p in self._reached]
        del loss, found, pairs
        recorder.warm_up(lambda: (forward(), backward()))
        self._outputs, self._replay_forward = recorder.record(forward)
        _, self._replay_backward = recorder.record(backward)

    def _bind_gradients(self) -> None:
        """Make the buffers the parameters' gradients, with what these have gathered so far."""
        fresh = []
        for parameter, total in zip(self._reached, self._sums, strict=True):
            if parameter.grad is total:
                continue
            if parameter.grad is None:
                fresh.append(total)
            else:  # of a batch that was not replayed
                total.copy_(parameter.grad)
            parameter.grad = total
        if fresh:
            torch._foreach_zero_(fresh)


class _Replayed(torch.autograd.Function):
    """The loss of a replayed forward pass, whose backward pass is another replay."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, captured: CapturedPass) -> Tensor:
        ctx.captured = captured
        loss, ctx.number = captured.forward()
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        ctx.captured.backward(ctx.number, gradient)
        return None, None


class GraphedPass:
    """A pass that is replayed for batches like the recorded one.

    Recorded at the first batch, and again if the parameters have moved, or were frozen or thawed
    since, or if a batch is of another shape: a stage of longer windows has begun. There is one
    recording at a time, for it holds the memory of a pass, and beside it there may be no room for a
    pass of another shape, recorded or not. Of what else a pass depends on, such as the mode of
    dropout, the recorded batch decides. Copies and pickles are without the recording, and make
    their own.

    Args:
        compute: see CapturedPass.
        parameters: see CapturedPass.
        required: raise where the recording fails; otherwise warn once and go on without.
        recorder: makes a Recorder for a device.
    """

    def __init__(
        self,
        compute: Pass,
        parameters: Iterable[nn.Parameter],
        *,
        required: bool = False,
        recorder: Callable[[torch.device], Recorder] = CudaRecorder,
    ) -> None:
        self._compute, self._parameters = compute, list(parameters)
        self._required, self._recorder = required, recorder
        self._captured: CapturedPass | None = None
        self._failed = False

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        """See CapturedPass.

        Raises:
            InputError: graphs are required and cannot be recorded.
        """
        if torch.is_grad_enabled() and not self._failed:
            held = self._captured
            if held is None or held.moved() or not held.fits(batch):
                del held  # with the recording goes its memory
                self._capture(batch)
            if self._captured is not None:
                return self._captured(batch)
        return self._compute(batch)

    def __getstate__(self) -> dict[str, Any]:
        """For copies: graphs belong to the memory of this object."""
        return self.__dict__ | {"_captured": None}

    def _capture(self, batch: Batch) -> None:
        """Record, if it can be done."""
        if self._captured is not None:
            self._captured = None
            _free_memory()  # of the recording, as large as a pass
        try:
            recorder = self._recorder(self._parameters[0].device)
            self._captured = CapturedPass(self._compute, self._parameters, batch, recorder)
            return
        except Exception as error:  # of any kernel or library; a run can go on without graphs
            _raise_interruption(error)
            reason = _reason(error)
            if self._required:
                raise InputError(
                    f"cuda_graphs=true: the passes cannot be recorded ({reason}); leave it out to "
                    "train without graphs where they cannot be used"
                ) from error
        self._failed = True
        _free_memory()  # that the attempt has left behind
        warnings.warn(
            f"training goes on without CUDA graphs, which could not be recorded: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )


def choose_graphs(
    setting: Any, strategy: Strategy, model: nn.Module, compiled: bool = False
) -> tuple[bool, str]:
    """Whether a run replays its passes from CUDA graphs, and a line that says so.

    Args:
        setting: "auto" where they can be used, true always, false never.
        strategy: of the run.
        model: the network.
        compiled: torch.compile takes the place of its Python.

    Raises:
        InputError: another setting, or true where they cannot be used.
    """
    if setting != "auto" and not isinstance(setting, bool):
        raise InputError(f"cuda_graphs={setting}: choose auto, true or false")
    if setting is False:
        return False, "none: cuda_graphs=false"
    obstacle = graph_obstacle(strategy, model)
    if obstacle is None and compiled:
        obstacle = "compile=true fuses and launches the passes in its own way; choose one of both"
    if obstacle is None:
        return True, "the forward and the backward pass of a batch"
    if setting is True:
        raise InputError(f"cuda_graphs=true cannot be met: {obstacle}")
    return False, f"none: {obstacle}"


def graph_obstacle(strategy: Strategy, model: nn.Module) -> str | None:
    """Why a run cannot use CUDA graphs; None where it can.

    Several devices cannot: they exchange gradients from hooks of autograd, one parameter at a time
    (DDP), or hold parameters in parts that come and go (FSDP); a replay calls no hook, and its
    addresses must stay. Nor can activation checkpointing: it reads the states of the generators in
    every pass, which a recording refuses.
    """
    device = strategy.root_device
    if device.type != "cuda":
        return f"the device is {device.type}"
    if not isinstance(strategy, SingleDeviceStrategy):
        return f"{type(strategy).__name__} exchanges gradients, which a graph cannot"
    if any(getattr(part, "activation_checkpointing", False) for part in model.modules()):
        return "model.activation_checkpointing=true recomputes layers, which a graph cannot"
    return None


def _free_memory() -> None:
    """Give back to the device what nobody can reach any more."""
    gc.collect()
    torch.cuda.empty_cache()


def _reason(error: BaseException) -> str:
    """What went wrong, in one line: the end of a capture says only that something did before."""
    while error.__context__ is not None and "captur" in str(error).lower():
        error = error.__context__
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"


def _raise_interruption(error: BaseException | None) -> None:
    """Ctrl-C may end a capture, which then ends in an error of its own."""
    while error is not None:
        if not isinstance(error, Exception):
            raise error
        error = error.__context__


def _shape(batch: Batch) -> dict[str, tuple[Any, ...]]:
    """What must be equal for a batch to take another's place."""
    return {name: (x.shape, x.dtype, x.device) for name, x in batch.items()}


def _autocast(device: str) -> dict[str, Any]:
    """What autocast is set to."""
    return {
        "enabled": torch.is_autocast_enabled(device),
        "dtype": torch.get_autocast_dtype(device),
    }


def _identity(parameters: Iterable[Tensor]) -> list[tuple[int, bool]]:
    """Where parameters are, and whether they are trained."""
    return [(parameter.data_ptr(), parameter.requires_grad) for parameter in parameters]
