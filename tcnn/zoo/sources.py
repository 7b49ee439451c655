"""Create the source CNN from a timm name, a local directory or a hub repository, with the requested weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import parse_model_name
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tcnn.errors import RequestError, UnknownModelError, WeightsError, one_line
from tcnn.formatting import some
from tcnn.hugging_face import BUILD_ERRORS, download_error, download_errors, offline_if_unreachable, quiet_hub
from tcnn.layers.convit import use_fast_attention
from tcnn.state import State, parts
from tcnn.zoo import catalogue
from tcnn.zoo import weights as weights_files
from tcnn.zoo.catalogue import canonical, is_converted, no_model
from tcnn.zoo.own_network import FORM, import_module, network, network_name

_DRAWS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.clamp_})
"""What weights are drawn by, in place."""

Say = Callable[[str], None]
"""Called with a note for the user."""


class _NothingDrawn(TorchFunctionMode):
    """Draws no numbers into tensors that have no data.

    On the meta device that is done by decompositions written in Python, and took five sixths of the time of building a
    model.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _DRAWS and args and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_data() -> Iterator[None]:
    """Context in which models are built on the meta device: shapes only, and no data."""
    with torch.device("meta"), _NothingDrawn():
        yield


def create_source(
    name: str,
    pretrained: bool = True,
    weights: Path | None = None,
    say: Say = lambda note: None,
    found: weights_files.WeightsFile | None = None,
    **model_args: object,
) -> nn.Module:
    """Create a timm model in evaluation mode, with its weights; a ConViT computes faster than timm's (`layers.convit`).

    Args:
        name: a timm name (`resnet50d`, `resnet50d.ra2_in1k`), `local-dir:PATH` or `hf-hub:ORG/NAME`; or that of the
            network of one's own that was named (`own_network`), which has the weights that it is built with.
        pretrained: load the pretrained weights; never replaced by random ones in silence.
        weights: a safetensors or PyTorch file to load instead; read without unpickling (`tcnn.zoo.weights`).
        say: called with what was inferred from the file: another class count than the model's default.
        found: what is in the file, if it has been read already.
        model_args: arguments for `timm.create_model` (`num_classes`, `in_chans`, `drop_path_rate`, …); the weights' own
            by default.

    Raises: `UnknownModelError`, `WeightsError`, `DownloadError`, each with one line that says what to do.
    """
    if name == network_name():
        return _own(weights, model_args)
    name = canonical(name)
    architecture = check_name(name)
    if weights is not None:
        return _with_file(name, Path(weights), model_args, say, found or weights_files.read(Path(weights)))
    if pretrained and architecture is not None and not timm.is_model_pretrained(name):
        raise WeightsError(
            f"{name}: timm has no pretrained weights for it; give --weights FILE, or --no-pretrained for random ones"
        )
    with download_errors(name), offline_if_unreachable(), quiet_hub():
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **model_args)
    use_fast_attention(model)
    return model.eval()


def create_structure(name: str, num_classes: int | None = None, **model_args: object) -> nn.Module:
    """Create a model without its weights: on the meta device, in evaluation mode; arguments as for `create_source`."""
    if name == network_name():
        return _own(None, model_args | ({} if num_classes is None else {"num_classes": num_classes}))
    name = canonical(name)
    check_name(name)
    return _on_meta(name, model_args | ({} if num_classes is None else {"num_classes": num_classes}))


def own_network(classes: int | None = None) -> nn.Module | None:
    """The network of one's own that was named, built anew with the caller's seed; None where none was.

    What is drawn at random by the import of its module is the same in every process.

    Args:
        classes: which a file's classifier tells apart; where it was replaced by training, it is here, too.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        import_module()
    model = network()
    reset = getattr(model, "reset_classifier", None)
    if classes and callable(reset) and getattr(model, "num_classes", classes) != classes:
        reset(classes)
    return model


def _own(file: Path | None, model_args: Mapping[str, object]) -> nn.Module:
    """The network that was named, with the weights that it is built with, or those of a file."""
    if model_args:
        raise RequestError(
            f"{network_name()}: is built without arguments, so {', '.join(model_args)} would have no effect; name what "
            "builds it with them"
        )
    model = own_network()
    assert model is not None  # noqa: S101 - it has a name
    if file is not None:
        state = weights_files.without_prefix(file, weights_files.read(file).state, model.state_dict())
        weights_files.refuse_not_finite(file, state.tensors)
        expected = model.state_dict()
        try:
            model.load_state_dict(state.to_load(expected))
        except Exception as error:  # a module reads its state as it likes
            reason = weights_files.mismatch(state.tensors, parts(expected).tensors, ()) or one_line(error)
            raise WeightsError(f"{file} does not fit {network_name()}: {reason}") from error
    return model.eval()


def check_name(name: str) -> str | None:
    """The architecture of a name, or None for a directory or hub repository; raises for anything unknown."""
    try:
        source, identifier = parse_model_name(name)
    except ValueError as error:
        if "/" in name and ":" not in name:
            raise RequestError(no_model(name)) from error
        if FORM.fullmatch(name):
            raise RequestError(
                f"{name}: no model's name; expected one of timm's, hf-hub:ORG/NAME or local-dir:PATH; what builds a "
                f"network of your own is given with --module {name}"
            ) from error
        raise RequestError(one_line(error)) from error
    if source == "local-dir" and not (Path(identifier) / "config.json").is_file():
        raise RequestError(f"{name}: expected a directory with config.json and weights, found none at {identifier}")
    if source is not None:
        return None
    architecture, _, tag = identifier.partition(".")
    if not timm.is_model(architecture):
        if Path(name).is_dir():
            raise RequestError(
                f"{name}: a directory without a checkpoint; expected one of a run or a model, or a timm name"
            )
        if Path(name).is_file() and Path(name).suffix.lower() not in catalogue.WEIGHTS_FILES:
            raise RequestError(
                f"{name}: a file whose name does not say what it is; a checkpoint's ends in .safetensors"
            )
        raise UnknownModelError(catalogue.unknown(name, timm.list_models()))
    tags = [model.partition(".")[2] for model in timm.models.get_arch_pretrained_cfgs(architecture)]
    if tag and tag not in tags:
        raise UnknownModelError(catalogue.unknown_tag(name, tags))
    return str(architecture)


def _with_file(
    name: str, file: Path, options: dict[str, object], say: Say, found: weights_files.WeightsFile
) -> nn.Module:
    """The model with the weights of a file; its class count is the file's, where none is asked for."""
    structure = _on_meta(name, options)
    own = weights_files.without_prefix(file, found.state, structure.state_dict())
    state = own.tensors
    weights_files.refuse_not_finite(file, state)
    classes = _classes(structure, state)
    if classes is not None and "num_classes" not in options and classes != getattr(structure, "num_classes", None):
        say(f"{file}: weights for {some(classes, 'class')}, so that is what the model tells apart ({name} itself: "
            f"{getattr(structure, 'num_classes', 'unknown')})")  # fmt: skip
        options = {**options, "num_classes": classes}
        structure = _on_meta(name, options)
    try:
        if is_converted(name) and state.keys() & _own_keys(structure):
            model: nn.Module = timm.create_model(name, pretrained=False, **options)
            model.load_state_dict(own.to_load(model.state_dict()))
        else:
            model = timm.create_model(
                name, pretrained=True, pretrained_cfg_overlay=_overlay(state, options), **options
            )  # fmt: skip
            _make_sure(file, name, model, own)
    except BUILD_ERRORS as error:
        reason = weights_files.mismatch(state, structure.state_dict(), _classifiers(structure))
        raise WeightsError(f"{file} does not fit {name}: {reason or one_line(error)}") from error
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg:  # the tensors that were just copied are not to be kept with it
        plain = {key: value for key, value in cfg.items() if key != "state_dict"}
        model.pretrained_cfg = model.default_cfg = plain  # type: ignore[assignment]
    use_fast_attention(model)
    return model.eval()


def _make_sure(file: Path, name: str, model: nn.Module, state: State) -> None:
    """Load a file's weights into a model whose architecture does not ask timm for them, or say that it cannot be done.

    Such a function ignores `pretrained`: timm neither loads anything nor says so, and the weights would be random ones.
    """
    expected = model.state_dict()
    if not weights_files.none_in(state.tensors, expected):
        return
    if weights_files.mismatch(state.tensors, expected, ()) is not None:
        raise WeightsError(
            f"{file}: {name} was built without any of its weights: the architecture ignores timm's `pretrained`, and "
            f"the names of the file are not its own; save {name}'s own state_dict"
        )
    model.load_state_dict(state.to_load(expected))


def _overlay(state: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
    """What timm is told of a file's weights."""
    overlay: dict[str, object] = {"state_dict": dict(state), "source": ""}  # no source, wherever the name came from
    if "num_classes" in options:
        overlay["num_classes"] = options["num_classes"]  # the file's classifier is of this width: it is to be loaded
    if "in_chans" in options:
        overlay["first_conv"] = None  # likewise its first convolution, which timm would make from one of 3 channels
    return overlay


def _on_meta(name: str, options: Mapping[str, object]) -> nn.Module:
    try:
        with without_data(), offline_if_unreachable(), quiet_hub():
            model: nn.Module = timm.create_model(name, pretrained=False, **options)
            return model.eval()
    except OSError as error:
        raise download_error(name, error) from error
    except BUILD_ERRORS as error:
        raise RequestError(f"{name}: cannot be built: {one_line(error)}") from error


def _own_keys(model: nn.Module) -> set[str]:
    """Keys that the attention layers have and no convolution does."""
    return {key for key in model.state_dict() if key.endswith(".proj")}


def _classifiers(model: nn.Module) -> tuple[str, ...]:
    named = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ()
    return (named,) if isinstance(named, str) else tuple(named)


def _classes(model: nn.Module, state: Mapping[str, torch.Tensor]) -> int | None:
    """How many classes the classifier in a state dict tells apart, if that can be seen."""
    widths = {len(state[f"{name}.weight"]) for name in _classifiers(model) if f"{name}.weight" in state}
    return widths.pop() if len(widths) == 1 else None
