"""Forward and backward pass of a micro-batch as a CUDA graph: captured once, then replayed by one call of the host.

A small network leaves a GPU waiting for the host, which launches several hundred kernels a pass. A graph launches them
all at once. It computes what the passes that it was captured from compute, on other images: by the same kernels, with
parameters read where they lie, and random numbers drawn from PyTorch's generator.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from timm.task import TrainingTask
from torch import Tensor, nn

from tcnn.errors import EnvironmentFailure, RequestError, one_line
from tcnn.training.distributed import Processes
from tcnn.training.updates.step import MixedPrecision, Passes

WARM_UP = 3
"""Passes before the capture, in which libraries set themselves up and layers measure which way is faster."""

NO_GRAPH = (
    torch.OutOfMemoryError,  # the trainer halves the micro-batch
    ValueError,  # batch normalisation refuses a map of one pixel with one image
)


def check_graph(device: torch.device, world: int) -> None:
    """Raise `RequestError` where no graph can be captured: without a GPU, or in one of several processes."""
    if device.type != "cuda":
        raise RequestError(f"cuda_graph: expected a GPU, found device {device}; leave it out")
    if world > 1:
        raise RequestError(f"cuda_graph: expected one process, found {world}; leave it out")


class GraphedPasses(Passes):
    """Passes of micro-batches of one shape by a graph; those of other shapes operation by operation.

    Args:
        task: the model in training and its loss, on a GPU, in one process.
        state: what the task does beyond its tensors' values; where it has changed, the graph is captured again.
    """

    def __init__(self, task: TrainingTask, precision: MixedPrecision, state: Callable[[], Hashable]) -> None:
        super().__init__(task, precision, Processes())
        self._state = state
        self._captured: Hashable = None
        self._gradients: list[tuple[nn.Parameter, Tensor]] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    def begin(self) -> None:
        """Begin a step: the gradients become those of the graph, 0. Any others are lost."""
        if self._graph is not None and self._captured != self._state():
            self._graph, self._gradients = None, []
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        if self._gradients:
            torch._foreach_zero_([gradient for _, gradient in self._gradients])

    def accumulate(self, x: Tensor, y: Tensor, share: float) -> Tensor:
        """As `Passes.accumulate`; raises `EnvironmentFailure` for a model that cannot be captured."""
        if self._graph is None:
            self._capture(x, y)
        if _signature(x, y) != _signature(self._x, self._y):
            return super().accumulate(x, y, share)
        assert self._graph is not None  # noqa: S101 - it was captured
        self._x.copy_(x, non_blocking=True)
        self._y.copy_(y, non_blocking=True)
        self._share.fill_(share)
        self._graph.replay()
        return self._loss

    def _capture(self, x: Tensor, y: Tensor) -> None:
        """Capture the passes. Neither the gradients nor buffers nor random numbers are other than before."""
        self._captured = self._state()
        self._x, self._y, self._share = x.clone(), y.clone(), torch.ones((), device=x.device)
        parameters = [parameter for parameter in self.task.parameters() if parameter.requires_grad]
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        graph = torch.cuda.CUDAGraph()
        try:
            with _preserved(self.task, x.device):
                stream = torch.cuda.Stream(x.device)
                stream.wait_stream(torch.cuda.current_stream(x.device))
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UP):
                        self._run()
                torch.cuda.current_stream(x.device).wait_stream(stream)
                # What has no gradient after a pass must have none in a step, or the optimizer would decay it.
                self._gradients = [(p, torch.zeros_like(p.grad)) for p in parameters if p.grad is not None]
                for parameter, gradient in self._gradients:
                    parameter.grad = gradient
                # Another thread pins the memory of the next images meanwhile, which a global capture would not bear.
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._loss = self._run()
        except NO_GRAPH:
            raise
        except RuntimeError as error:
            raise EnvironmentFailure(
                f"cuda_graph: this model cannot be captured ({one_line(error)}); go on with --resume --set "
                "cuda_graph=false"
            ) from error
        for parameter, earlier in zip(parameters, before, strict=True):
            if earlier is not None and parameter.grad is not None:
                parameter.grad.copy_(earlier)
        self._graph = graph

    def _run(self) -> Tensor:
        # Weights that autocast has converted must not outlive the capture.
        with self.precision.autocast(cache=False):
            loss: Tensor = self.task(self._x, self._y)["loss"]
        (loss * self._share).backward()
        return loss.detach()


def _signature(x: Tensor, y: Tensor) -> Hashable:
    return x.shape, x.dtype, x.stride(), y.shape, y.dtype


@contextmanager
def _preserved(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Context after which buffers (statistics of batch normalisation) and random generators are as they were."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    with torch.random.fork_rng(devices=[device.index or 0]):
        yield
    with torch.no_grad():
        for buffer, earlier in before:
            buffer.copy_(earlier)
