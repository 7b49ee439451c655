"""Base classes of configurations and of reports, all immutable; how a configuration is built, errors in one line."""

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from tcnn.characters import named
from tcnn.errors import ConfigError, RequestError, shorten

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

LONGEST_KEY = 50
"""Characters of a key that the nearest setting is looked for: a misspelt one is hardly longer than the longest."""


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class _OneLine(ModelMetaclass):
    """Has the constructor say in one line what pydantic says in several.

    Only `Kind(…)` comes here: what pydantic itself reads (JSON, parts of others, HTTP bodies) fails with its own error,
    which has a list of all that is wrong.
    """

    if not TYPE_CHECKING:  # which knows the constructor's arguments by the fields

        def __call__(self, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise ConfigError(_refusal(self, error)) from error


class Frozen(BaseModel, metaclass=_OneLine):
    """Base class of configurations: immutable; an unknown key or a wrong value is a `ConfigError`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: object, info: ValidationInfo) -> object:
        """Refuse True and False where a number is meant: Pydantic takes them for 1 and 0. A list that is too long is
        refused as a whole, for Pydantic would first look at all that is in it, and complain of each.
        """
        field = cls.model_fields[str(info.field_name)]
        if isinstance(value, list | tuple):
            most = _most_items(field.annotation, field.metadata)
            if most is not None and len(value) > most:
                found = {"field_type": "Tuple", "max_length": most, "actual_length": len(value)}
                raise PydanticKnownError("too_long", found)
        kinds = _kinds_in(field.annotation)
        if {int, float} & kinds and not {bool, Any} & kinds and _has_truth_value(value):
            raise PydanticCustomError("number_type", "Input should be a number")
        return value


def _kinds_in(annotation: Any) -> set[Any]:
    """The types that an annotation is made of: of `tuple[int, str] | None` they are int, str and None."""
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _kinds_in(inner[0])
    if get_origin(annotation) is Literal:
        return {type(value) for value in inner}
    return set().union(*map(_kinds_in, inner)) if inner else {annotation}


def _most_items(annotation: Any, metadata: Sequence[Any] = ()) -> int | None:
    """The largest length that a type allows a list; None if that is any, or the type is no list's."""
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _most_items(inner[0], [part for one in inner[1:] for part in (one, *getattr(one, "metadata", ()))])
    if kind in (tuple, list):
        fixed = kind is tuple and Ellipsis not in inner
        return len(inner) if fixed else next((one.max_length for one in metadata if hasattr(one, "max_length")), None)
    bounds = [most for one in inner if (most := _most_items(one)) is not None]
    return max(bounds, default=None)


def _has_truth_value(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_truth_value, value))
    return isinstance(value, bool)


ConfigT = TypeVar("ConfigT", bound=Frozen)

_WORDS = {
    "tuple_type": "Input should be a valid list",
    "model_type": "Input should be an object with fields",
    "model_attributes_type": "Input should be an object with fields",
    "dict_type": "Input should be an object with fields",
}
"""Pydantic's words of Python for what is written in JSON or YAML, in theirs."""


def words(error: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says, in the words of whoever writes JSON, YAML or an option."""
    return str(_WORDS.get(error["type"], error["msg"])).removeprefix("Value error, ")


def length(error: Mapping[str, Any]) -> str | None:
    """What was expected and found where a text or a list is too long or too short; None for other errors."""
    if not error["type"].endswith(("too_long", "too_short")):
        return None
    (kind, bound), *_ = ((name, most) for name, most in error["ctx"].items() if name in ("max_length", "min_length"))
    of = "character" if error["type"].startswith("string") else "item"
    side = "at most" if kind == "max_length" else "at least"
    return f"expected {side} {bound} {of}{'' if bound == 1 else 's'}, found {len(error['input'])}"


def build(kind: type[ConfigT], values: Mapping[str, object], over: ConfigT | None = None) -> ConfigT:
    """Validate `values` into a configuration; with `over`, on top of the fields that were set in that one.

    Raises `RequestError` with one line that names the field, also where `over` is no configuration of this kind.
    """
    if over is not None and not isinstance(over, kind):
        raise RequestError(f"config: expected a {kind.__name__}, got a {type(over).__name__}")
    given = {name: getattr(over, name) for name in over.model_fields_set} if over is not None else {}
    try:
        return kind.model_validate({**given, **values})
    except ValidationError as error:
        raise RequestError(_refusal(kind, error)) from error


def _refusal(kind: type[BaseModel], error: ValidationError) -> str:
    """One line that names the first field with an error."""
    errors = error.errors()
    # Where a field may be one of several kinds of value, the kind that fitted farthest is the one that was meant.
    first = max((e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]), key=lambda e: len(e["loc"]))
    if first["type"] == "extra_forbidden":
        return unknown_key(kind, first["loc"])
    field, message = ".".join(str(part) for part in _named(kind, first["loc"])), words(first)
    if not field:  # several disagree, and the message names them
        return message
    told = length(first) or f"{message.lower()}, got {shorten(repr(first.get('input')), 80)}"
    return f"{field}: {told}"


def _named(kind: type[BaseModel], path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The part of a path that the user wrote; pydantic adds the attempted type for a field with several."""
    for depth, part in enumerate(path):
        field = kind.model_fields.get(str(part))
        if field is None:
            return path
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return path[: depth + 1]
        kind = field.annotation
    return path


_THEIR_NAMES = {
    "learning_rate": "lr", "num_train_epochs": "epochs", "num_epochs": "epochs", "max_epochs": "epochs",
    "per_device_train_batch_size": "batch_size", "train_batch_size": "batch_size", "optim": "opt", "optimizer": "opt",
    "dataloader_num_workers": "workers", "num_workers": "workers", "image_size": "size", "img_size": "size",
    "max_grad_norm": "clip_grad", "gradient_clip_val": "clip_grad", "label_smoothing": "smoothing",
    "label_smoothing_factor": "smoothing", "aa": "auto_augment", "logging_steps": "log_steps",
    "save_steps": "checkpoint_steps", "save_total_limit": "keep", "drop_path_rate": "drop_path",
    "model_ema_decay": "ema", "torch_compile": "compile", "corruption": "corruptions",
}  # fmt: skip
"""What timm, Lightning and the Hugging Face Trainer call settings that have another name here."""


def unknown_key(kind: type[BaseModel], path: tuple[int | str, ...]) -> str:
    """Error message for a key that a configuration does not have: its path, and what is wrong with it."""
    return f"{named('.'.join(map(str, path)))}: {no_such_key(kind, path)}"


def no_such_key(kind: type[BaseModel], path: tuple[int | str, ...]) -> str:
    """What to do about a key that a configuration does not have; it names the nearest one.

    The path may lead through lists (`against.0.modle`) and settings that may be null.
    """
    found: type[BaseModel] | None = kind
    for part in path[:-1]:
        if found is not None and not isinstance(part, int):  # the place in a list; what is in it is known already
            found = _model_in(found.model_fields[part].annotation)
    if found is None:
        return "no such setting; leave it out"
    theirs = _THEIR_NAMES.get(str(path[-1]))
    near = [theirs] if theirs in found.model_fields else []
    inner = [name for name, field in found.model_fields.items() if str(path[-1]) in _fields(field.annotation)]
    near = near or [f"{name}.{path[-1]}" for name in inner]
    if not near and len(str(path[-1])) <= LONGEST_KEY:
        near = difflib.get_close_matches(str(path[-1]), found.model_fields, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(found.model_fields)}"
    return f"no such setting; {hint}"


def _fields(annotation: object) -> Mapping[str, object]:
    """The fields of the model that a type is, or holds; none of any other."""
    model = _model_in(annotation)
    return {} if model is None else model.model_fields


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that a type is, or that it holds: of `tuple[Other, ...]` and `Other | None` that is `Other`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)


class Record(BaseModel):
    """Base class of reports: immutable; fields of newer versions are ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")


Error = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]
"""An error, which may be infinite: JSON has no such number, and null in its place."""


class ErrorStats(Record):
    """Error statistics: largest absolute error, relative errors in L2 and to the largest value, cosine similarity.

    Of several outputs they are those of the `output` with the largest error.
    """

    max_abs: Error
    relative: Error
    max_relative: Error
    cosine: float
    output: str | None = None

    @property
    def worst(self) -> float:
        return max(self.relative, self.max_relative)

    @property
    def where(self) -> str:
        """ " in the output logits", where there are several; else nothing."""
        return "" if self.output is None else f" in the output {self.output}"
