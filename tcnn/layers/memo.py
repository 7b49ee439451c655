"""What depends on parameters alone, computed once and kept while they stay as they are."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


class Memo:
    """Results by name, each with the state of the tensors that it was computed from.

    A tensor's state is its storage and the number of changes that PyTorch has counted: optimizers, `copy_`,
    `load_state_dict`, moving and casting are all seen. Writing through `tensor.data` is not counted, nor seen by
    PyTorch's own caches. A memo is neither copied nor pickled with its layer.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[object, list[tuple[Tensor, int]], Any]] = {}

    def get(self, name: str, tensors: Sequence[Tensor], compute: Callable[[], T], of: object = None) -> T:
        """The result of `compute`, which depends on these tensors and on `of` (a size, say) alone."""
        if any(tensor.is_inference() for tensor in tensors):  # their changes are not counted
            return compute()
        kept = self._kept.get(name)
        if kept is None or kept[0] != of or not _unchanged(kept[1], tensors):
            # The views keep the storages alive, so that no other tensor can come to lie at the same address.
            kept = self._kept[name] = (of, [(tensor.detach(), tensor._version) for tensor in tensors], compute())
        result: T = kept[2]
        return result

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Memo":
        return Memo()

    def __reduce__(self) -> tuple[type["Memo"], tuple[()]]:
        return Memo, ()


def _unchanged(before: list[tuple[Tensor, int]], now: Sequence[Tensor]) -> bool:
    return len(before) == len(now) and all(
        (seen.data_ptr(), version, seen.shape, seen.dtype)
        == (tensor.data_ptr(), tensor._version, tensor.shape, tensor.dtype)
        for (seen, version), tensor in zip(before, now, strict=True)
    )
