"""tcnn: turn a pretrained CNN into an equivalent Transformed CNN (d'Ascoli et al. 2021).

    >>> import timm, tcnn
    >>> source = timm.create_model("resnet50d", pretrained=True)
    >>> model, report = tcnn.convert(source)
    >>> tcnn.verify(source, model).passed
    True

Names are loaded when they are first used, so importing tcnn never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tcnn.version import __version__

if TYPE_CHECKING:
    from tcnn.config import ConversionConfig, VerificationConfig
    from tcnn.conversion.surgery import Conversion, convert, without_stride
    from tcnn.conversion.verify import verify
    from tcnn.errors import TcnnError
    from tcnn.layers.gpsa import GPSA2d

_HOMES = {
    "Conversion": "tcnn.conversion.surgery",
    "ConversionConfig": "tcnn.config",
    "GPSA2d": "tcnn.layers.gpsa",
    "TcnnError": "tcnn.errors",
    "VerificationConfig": "tcnn.config",
    "convert": "tcnn.conversion.surgery",
    "verify": "tcnn.conversion.verify",
    "without_stride": "tcnn.conversion.surgery",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tcnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
