"""A process in which Triton's kernels run in its interpreter, on the CPU.

Triton reads `TRITON_INTERPRET` when it is imported and when a kernel is defined, so kernels of other tests, and those
of PyTorch's compiler, would be interpreted in this process, too. Hence one of its own, forked from one that has torch
loaded, in which Triton is imported anew.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

import torch
from forked import processes

P = ParamSpec("P")
T = TypeVar("T")


class Interpreter:
    """Calls functions of a test's module in that process; what they raise is raised here.

    A process that was ended from outside fails the call that it was at, and no later one: these get another.
    """

    def __init__(self) -> None:
        self.process = _start()

    def __call__(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return self.process.submit(function, *args, **kwargs).result(timeout=300)
        except BrokenProcessPool:
            self.process.shutdown(wait=False)
            self.process = _start()
            raise

    def end(self) -> None:
        self.process.shutdown()


def _start() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, processes, _begin)


def _begin() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    for name in list(sys.modules):
        if name.partition(".")[0] == "triton" and not name.startswith("triton._C"):  # an extension loads once
            del sys.modules[name]
    torch.set_num_threads(1)
