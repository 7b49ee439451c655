"""tcnn: convert a pretrained CNN into an equivalent Transformed CNN (d'Ascoli et al. 2021).

    >>> import timm, tcnn
    >>> source = timm.create_model("resnet50d", pretrained=True)
    >>> model, report = tcnn.convert(source)
    >>> tcnn.verify(source, model).passed True

Names are imported lazily, so importing tcnn never loads torch. Where timm is loaded, before or after, the converted
models are registered in it: ``timm.create_model("t_resnet50d")``.
"""

from tcnn.starting import end_while_starting

end_while_starting()  # before anything that takes time to load

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

import wrapt  # noqa: E402

from tcnn.version import __version__  # noqa: E402

if TYPE_CHECKING:
    from tcnn.analysis.inspect import inspect as inspect
    from tcnn.analysis.pages.report import report as report
    from tcnn.analysis.plots import plots as plots
    from tcnn.checkpoints.checkpoint import load as load
    from tcnn.checkpoints.checkpoint import save as save
    from tcnn.checkpoints.hub import save_directory as save_directory
    from tcnn.config import ConversionConfig as ConversionConfig
    from tcnn.config import FinetuneConfig as FinetuneConfig
    from tcnn.config import VerificationConfig as VerificationConfig
    from tcnn.config import finetune_config as finetune_config
    from tcnn.conversion.annealing import anneal as anneal
    from tcnn.conversion.surgery import Conversion as Conversion
    from tcnn.conversion.surgery import convert as convert
    from tcnn.conversion.surgery import without_stride as without_stride
    from tcnn.errors import TcnnError as TcnnError
    from tcnn.evaluation.comparing.comparison import compare as compare
    from tcnn.evaluation.evaluate import evaluate as evaluate
    from tcnn.evaluation.predict import predict as predict
    from tcnn.explorer.export import export_explorer as export_explorer
    from tcnn.exporting.export import export as export
    from tcnn.exporting.interface import ExplorerReport as ExplorerReport
    from tcnn.exporting.interface import ExportReport as ExportReport
    from tcnn.folding.fold import Folding as Folding
    from tcnn.folding.fold import fold as fold
    from tcnn.folding.fold import fuse as fuse
    from tcnn.folding.prune import prune as prune
    from tcnn.layers.gpsa import GPSA2d as GPSA2d
    from tcnn.planning.plan import plan as plan
    from tcnn.publishing.push import push_to_hub as push_to_hub
    from tcnn.training.finetune import finetune as finetune
    from tcnn.training.recipe.optim import parameter_groups as parameter_groups
    from tcnn.verification.explain import explain as explain
    from tcnn.verification.verify import verify as verify
    from tcnn.vit.initialise import initialise as initialise

_HOMES = {
    "Conversion": "tcnn.conversion.surgery",
    "ConversionConfig": "tcnn.config",
    "ExplorerReport": "tcnn.exporting.interface",
    "ExportReport": "tcnn.exporting.interface",
    "FinetuneConfig": "tcnn.config",
    "Folding": "tcnn.folding.fold",
    "GPSA2d": "tcnn.layers.gpsa",
    "TcnnError": "tcnn.errors",
    "VerificationConfig": "tcnn.config",
    "anneal": "tcnn.conversion.annealing",
    "compare": "tcnn.evaluation.comparing.comparison",
    "convert": "tcnn.conversion.surgery",
    "evaluate": "tcnn.evaluation.evaluate",
    "explain": "tcnn.verification.explain",
    "export": "tcnn.exporting.export",
    "export_explorer": "tcnn.explorer.export",
    "finetune": "tcnn.training.finetune",
    "finetune_config": "tcnn.config",
    "fold": "tcnn.folding.fold",
    "fuse": "tcnn.folding.fold",
    "prune": "tcnn.folding.prune",
    "initialise": "tcnn.vit.initialise",
    "inspect": "tcnn.analysis.inspect",
    "load": "tcnn.checkpoints.checkpoint",
    "parameter_groups": "tcnn.training.recipe.optim",
    "plan": "tcnn.planning.plan",
    "plots": "tcnn.analysis.plots",
    "predict": "tcnn.evaluation.predict",
    "push_to_hub": "tcnn.publishing.push",
    "report": "tcnn.analysis.pages.report",
    "save": "tcnn.checkpoints.checkpoint",
    "save_directory": "tcnn.checkpoints.hub",
    "verify": "tcnn.verification.verify",
    "without_stride": "tcnn.conversion.surgery",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


@wrapt.when_imported("timm")
def _teach_timm(timm: object) -> None:
    import_module("tcnn.conversion.register")


def __getattr__(name: str) -> object:
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
        if not isinstance(found, type):
            found = import_module("tcnn.wording").asked_in_python(found)
            found.__module__, found.__qualname__ = __name__, name  # by which it is pickled
        globals()[name] = found
        return found
    raise AttributeError(f"module 'tcnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
