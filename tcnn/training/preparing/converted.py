"""The conversion on the way of a run: its settings, its verification before anything is trained, and its file."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tcnn.checkpoints import checkpoint
from tcnn.config import ConversionConfig, FinetuneConfig, VerificationConfig, is_presets_conversion
from tcnn.conversion.surgery import without_stride
from tcnn.errors import RequestError, VerificationError
from tcnn.layers.functional import in_hard_limit
from tcnn.models.running import gpsa_layers, place_of
from tcnn.training.runs.callbacks import Progress, Report
from tcnn.verification.report import VerificationReport
from tcnn.verification.verify import verify_where_it_runs

FILE = "converted.safetensors"
"""In the run's directory: the model before its first step, with its verification."""


def conversion_at(config: FinetuneConfig, size: tuple[int, int]) -> ConversionConfig:
    """The conversion settings with the training size as input size, since the model's own may not fit."""
    own = config.conversion
    return own if own.input_size else own.model_copy(update={"input_size": size})


def is_kept(config: FinetuneConfig) -> bool:
    """Whether a run keeps the model that it converts, before its first step; ablations make another function of it."""
    return config.filters != "random" and config.gating


def refuse_conversion(name: str, config: FinetuneConfig) -> None:
    """Raise `RequestError` if a T-CNN is to be fine-tuned with settings of a conversion, which would have no effect.

    A preset's own are let pass: it is made for CNNs and T-CNNs alike.
    """
    if is_presets_conversion(config.conversion):
        return
    default = ConversionConfig()
    asked = [key for key, value in config.conversion if value != getattr(default, key)]
    raise RequestError(
        f"conversion: {name} is converted already, so {', '.join(asked)} would have no effect; leave conversion out, "
        "or convert its CNN anew to change that"
    )


def refuse_convolution(name: str, model: nn.Module, config: FinetuneConfig) -> None:
    """Raise `RequestError` if a preset of content heads is to train a T-CNN that has none and is its CNN still.

    Such a preset leaves the taps a convolution for content heads to learn beside, so no attention would ever learn.
    """
    layers = gpsa_layers(model).values()
    wanted = config.conversion.content_heads
    if config.anneal != "hold" or not wanted or any(layer.content_heads for layer in layers):
        return
    if all(in_hard_limit(layer.tensors, layer.geometry) for layer in layers):
        raise RequestError(
            f"anneal: hold, as the preset has it, would leave {name} a convolution, for it has no content heads to "
            f"learn beside its taps; convert its CNN with --content-heads {wanted}, or give --anneal warmup and, on "
            "few images, --set gate_temperature=0.25 --set position_temperature=0.25"
        )


class Check:
    """Verifies what `prepare` converts; `verdict` is None until then, and where nothing is converted.

    Args:
        config: of the run.
        device: where the models are compared, and left again.
        random: whether the weights are random: fresh networks hide many errors.
        report: called with every step.
    """

    def __init__(self, config: FinetuneConfig, device: torch.device, random: bool, report: Report) -> None:
        self.config, self.device, self.random, self.report = config, device, random, report
        self.verdict: VerificationReport | None = None

    def __call__(self, cnn: nn.Module, model: nn.Module, size: tuple[int, int]) -> None:
        """Compare a CNN with its conversion on noise of the run's size; raises `VerificationError`."""
        conversion = conversion_at(self.config, size)
        reference = cnn if conversion.stride == "keep" else without_stride(cnn, conversion)
        places = [place_of(each) for each in (reference, model)]
        for each in (reference, model):
            each.to(self.device)
        try:
            wide = self.device.type != "mps"  # which has no such numbers
            self.verdict = verify_where_it_runs(
                reference, model, VerificationConfig(input_size=size, float64=wide), randomise=self.random,
                progress=lambda step: self.report(_step(step)),
            )  # fmt: skip
        finally:
            for each, place in zip((reference, model), places, strict=True):
                each.to(place)
        failure = self.verdict.failure()
        if failure:
            raise VerificationError(f"the conversion before the training: {failure}; nothing was written")

    def keep(self, model: nn.Module, directory: Path, origin: str) -> None:
        """Write the model before its first step, where that `is_kept`."""
        if self.verdict is None or not is_kept(self.config):
            return
        sections: dict[str, Any] = {"weights": origin}
        checkpoint.write(checkpoint.contents(model, self.verdict, sections), directory / FILE, force=True)

    def line(self) -> str | None:
        """What was found, for the user."""
        if self.verdict is None:
            return None
        errors = ", ".join(f"{one.logits.worst:.1e} in {one.dtype}" for one in self.verdict.passes)
        blind = f"; {self.verdict.blind}" if self.verdict.blind else ""
        return f"converted, and equal to the CNN: relative error {errors}{blind}"


def _step(name: str) -> Progress:
    return Progress(phase=f"verifying {name}", epoch=0, epochs=0, step=0, steps=0, percent=0.0)
