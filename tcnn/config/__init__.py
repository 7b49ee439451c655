"""Configurations as immutable pydantic models: one object for Python, command line, file and HTTP body."""

from tcnn.config.base import Frozen, build
from tcnn.config.conversion import CONTENT, HARD_TEMPERATURE, ConversionConfig, PositionKind
from tcnn.config.evaluation import VerificationConfig
from tcnn.config.finetune import FinetuneConfig
from tcnn.config.presets import (
    PRESETS,
    assigned,
    finetune_config,
    finetune_settings,
    is_presets_conversion,
    settings_given,
)
from tcnn.config.values import Size

__all__ = [
    "CONTENT",
    "HARD_TEMPERATURE",
    "PRESETS",
    "ConversionConfig",
    "FinetuneConfig",
    "Frozen",
    "PositionKind",
    "Size",
    "VerificationConfig",
    "assigned",
    "build",
    "finetune_config",
    "finetune_settings",
    "is_presets_conversion",
    "settings_given",
]
