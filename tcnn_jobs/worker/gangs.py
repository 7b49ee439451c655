"""Gang scheduling: the slots of a job that needs several at once, all or none, no GPU twice. Pure."""

from collections.abc import Sequence


def gang(free: Sequence[str | None], size: int) -> list[str | None] | None:
    """The first `size` free slots of different GPUs, or None if there are fewer; a slot that is None is on the CPU."""
    chosen: list[str | None] = []
    for slot in free:
        if len(chosen) < size and (slot is None or slot not in chosen):
            chosen.append(slot)
    return chosen if len(chosen) == size else None


def left_over(free: Sequence[str | None], gangs: Sequence[int]) -> list[str | None]:
    """What is free once each of these gangs has its slots; nothing while one of them cannot have them."""
    left = list(free)
    for size in gangs:
        slots = gang(left, size)
        if slots is None:
            return []
        for slot in slots:
            left.remove(slot)
    return left


def widest(slots: Sequence[str | None]) -> int:
    """The largest gang of a worker with these slots."""
    return len({slot for slot in slots if slot is not None}) + sum(slot is None for slot in slots)
