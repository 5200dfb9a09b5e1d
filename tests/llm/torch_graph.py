"""A stand-in for CUDA graphs, which a CPU has not: what PyTorch did is recorded and done again."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
# Reading numbers on the host, and bringing the host's to the device: no graph can have them.
REFUSED = (
    aten._local_scalar_dense,
    aten.item,
    aten.nonzero,
    aten._unique2,
    aten.lift_fresh,
    aten.lift_fresh_copy,
)


class Recorded(TorchDispatchMode):
    """What is done while this is entered; `replay` does it again with the same tensors, whatever
    is in them by then.  What the host had computed stays as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in REFUSED:
            raise RuntimeError(f"{func} cannot be captured")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            if isinstance(out, torch.Tensor) and out.data_ptr() != again.data_ptr():
                out.copy_(again)
            elif isinstance(out, (tuple, list)):
                for old, new in zip(out, again, strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Capture:
    """As `torch_graphs.CudaCapture`; counts, for each graph in their order, how often it ran."""

    def __init__(self) -> None:
        self.runs: list[int] = []

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        recorded = Recorded()
        with recorded:
            work()
        index = len(self.runs)
        self.runs.append(0)

        def replay() -> None:
            self.runs[index] += 1
            recorded.replay()

        return replay


class Again:
    """As `Capture`, but the work itself is done again: for kernels of other libraries, which are
    not seen by PyTorch."""

    def __init__(self) -> None:
        self.num_runs = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            self.num_runs += 1
            work()

        return replay
