"""The paper's formula, written out pair by pair (d'Ascoli et al. 2021, Eq. 4–7; DESIGN §1): a witness for the layer.

It shares no code with tcnn: it pads by index, builds the full table of query–key distances, takes one softmax over all
N keys and loops over the heads.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One layer and one map: the arguments of `nn.Conv2d`, and the size of the input."""

    size: tuple[int, int] = (6, 6)
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: int | tuple[int, int] | str = 1
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    mode: str = "zeros"
    channels: tuple[int, int] = (4, 6)
    bias: bool = True
    content_heads: int = 0

    def __str__(self) -> str:
        fields = (self.size, self.kernel, self.stride, self.dilation)
        shapes = "-".join(f"{letter}{a}x{b}" for letter, (a, b) in zip("mksd", fields, strict=True))
        padding = self.padding if isinstance(self.padding, str | int) else "x".join(map(str, self.padding))
        content = f"-c{self.content_heads}" if self.content_heads else ""
        return f"{shapes}-p{padding}-g{self.groups}-{self.mode}{content}"


def padding_along(case: Case, axis: int) -> tuple[int, int]:
    span = case.dilation[axis] * (case.kernel[axis] - 1)
    if case.padding == "valid":
        return 0, 0
    if case.padding == "same":
        return span // 2, span - span // 2
    if case.padding == "dynamic":
        outputs = math.ceil(case.size[axis] / case.stride[axis])
        missing = max(0, (outputs - 1) * case.stride[axis] + span + 1 - case.size[axis])
        return missing // 2, missing - missing // 2
    amount = case.padding if isinstance(case.padding, int) else case.padding[axis]
    return amount, amount


def shown_pixel(position: int, size: int, mode: str) -> int | None:
    """Which input pixel stands at a position of the padded axis (0 is the input's first); None is a zero."""
    if 0 <= position < size:
        return position
    if mode == "replicate":
        return 0 if position < 0 else size - 1
    if mode == "circular":
        return position % size
    if mode == "reflect":
        return -position if position < 0 else 2 * (size - 1) - position
    return None


def formula(p: dict[str, Tensor], temperatures: tuple[float, float], x: Tensor, case: Case) -> Tensor:
    """Y = b + Σ_h A_h X W_val W_out^h on (B, C_in, H, W), one head and one pair of pixels at a time.

    `temperatures` are those of gates and positions; the last heads of a case with content heads have neither.
    """
    axes = []
    for axis in (0, 1):
        before, after = padding_along(case, axis)
        positions = range(-before, case.size[axis] + after)
        axes.append([shown_pixel(i, case.size[axis], case.mode) for i in positions])
    keys = [(row, column) for row in range(len(axes[0])) for column in range(len(axes[1]))]
    tokens = torch.stack([pixel(x, axes[0][row], axes[1][column]) for row, column in keys], dim=1)  # (B, N, C_in)

    spans = [d * (k - 1) for k, d in zip(case.kernel, case.dilation, strict=True)]
    starts = [range(0, len(axes[a]) - spans[a], case.stride[a]) for a in (0, 1)]
    queries = [(top + spans[0] // 2, left + spans[1] // 2) for top in starts[0] for left in starts[1]]
    asking = tokens[:, [keys.index(query) for query in queries]]  # (B, M, C_in)
    delta = torch.tensor([[(k[0] - q[0], k[1] - q[1]) for k in keys] for q in queries], dtype=x.dtype)  # (M, N, 2)

    outputs, taps = case.channels[1], case.kernel[0] * case.kernel[1]
    heads = taps + case.content_heads
    width = p["query"].shape[0] // heads
    y = torch.zeros(x.shape[0], len(queries), outputs, dtype=x.dtype)
    for h in range(heads):
        q = asking @ p["query"][h * width : (h + 1) * width].T
        k = tokens @ p["key"][h * width : (h + 1) * width].T
        attention = softmax(q @ k.transpose(1, 2) / math.sqrt(width))
        if h < taps:
            strength = torch.log(1 + torch.exp(5 * p["locality_raw"][h])) / 5
            squared_distance = ((delta - p["attention_centers"][h]) ** 2).sum(-1)
            gate = 1 / (1 + torch.exp(-p["gating_param"][h] / temperatures[0]))
            positional = softmax(-strength / temperatures[1] * squared_distance)
            attention = (1 - gate) * attention + gate * positional
        y = y + attention @ tokens @ p["value"].T @ head_output(p["proj"], h, case).T
    if "bias" in p:
        y = y + p["bias"]
    return y.transpose(1, 2).reshape(x.shape[0], outputs, len(starts[0]), len(starts[1]))


def pixel(x: Tensor, row: int | None, column: int | None) -> Tensor:
    return x.new_zeros(x.shape[:2]) if row is None or column is None else x[:, :, row, column]


def softmax(logits: Tensor) -> Tensor:
    e = torch.exp(logits - logits.detach().amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def head_output(proj: Tensor, head: int, case: Case) -> Tensor:
    """W_out^h as a full (C_out, C_in) matrix, zero between the groups."""
    inputs, outputs = case.channels
    reads, writes = inputs // case.groups, outputs // case.groups
    rows = []
    for o in range(outputs):
        first = o // writes * reads
        own = proj[o, head * reads : (head + 1) * reads]
        rows.append(torch.cat([own.new_zeros(first), own, own.new_zeros(inputs - first - reads)]))
    return torch.stack(rows)
