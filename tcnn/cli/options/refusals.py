"""What all commands refuse by one rule: an option without effect or given twice, an empty word for a name or a path.

Of options only those count that were typed, a default given by hand too; what is said names what the option would need,
or what is in its way. `--dry-run` and `--print-config` are added to a command as it stands, so nothing is refused
beside them.

An empty word is what a shell makes of a variable that is not set, as in ``--out "$OUT"``; as a path it would be the
working directory.

Of an option that takes one value and is given twice, the last would be taken; one of the two was a mistake.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tcnn.cli.options.shared import is_built
from tcnn.errors import RequestError

Parameters = Mapping[str, Any]
"""What a command was called with, by the names of its function's parameters."""


class Rule(NamedTuple):
    """When an option has an effect, and why it has none otherwise."""

    parameter: str
    met: Callable[[Parameters], bool]
    why: str


def _needs(parameter: str, *others: str, why: str) -> Rule:
    return Rule(parameter, lambda given: any(given.get(other) for other in others), why)


def _not_beside(parameter: str, other: str, why: str) -> Rule:
    return Rule(parameter, lambda given: not given.get(other), why)


def _corrupted(given: Parameters) -> bool:
    if given.get("all_corruptions") or given.get("corruption"):
        return True
    if given.get("data") is None or not Path(given["data"]).is_dir():
        return False
    from tcnn.evaluation.imagenet_variants import corruption_folders  # ImageNet-C is corrupted as it is

    return bool(corruption_folders(given["data"]))


def _converts(given: Parameters) -> bool:
    return given.get("convert") is not False


def _loads(given: Parameters) -> bool:
    """Whether a file or run is named whose network could be one's own."""
    from tcnn.checkpoints.files import is_stored

    named = (given.get(place) for place in ("models", "named", "model", "checkpoint", "compare", "against", "run"))
    return any(is_stored(each) for one in named if one for each in (one if isinstance(one, list) else [one]))


def _measures(given: Parameters) -> bool:
    """Whether a file or run is named, or the network of `--module` itself: by its name, or by no other model's."""
    named = [*(given.get("models") or ()), *(given.get("named") or ()), given.get("model"), given.get("compare")]
    return _loads(given) or given.get("module") in named or not any(named)


OWN = Rule("module", _loads, "applies to files and runs, and none is given; timm builds other models")
MEASURED = Rule(
    "module", _measures, "applies to files and runs, and to the network itself by this name; timm builds other models"
)
OWN_WEIGHTS = Rule(
    "pretrained", lambda given: not is_built(given),
    "the network of --module has the weights that it is built with, random ones or not; leave it out",
)  # fmt: skip
BUILT = Rule(
    "model_kwargs", lambda given: False,
    "training builds its model, and the CNN beside it, again from the name; convert first, which records them: "
    "tcnn convert MODEL OUT --model-kwargs KEY=VALUE",
)  # fmt: skip
TRAINING = (
    BUILT,
    Rule("convert_at", _converts, "nothing is converted with --no-convert"),
    Rule("anneal", _converts, "there is no τ without attention, as with --no-convert"),
    Rule("pretrained", lambda given: not given.get("weights"), "--weights names the weights; give one of the two"),
)
RULES: dict[str, tuple[Rule, ...]] = {
    "convert": (
        OWN_WEIGHTS,
        *(Rule(name, lambda given: not is_built(given), "--module builds the network, without arguments; name what "
               "builds it so") for name in ("num_classes", "model_kwargs")),
        Rule("size", is_built, "applies to a network of --module only; other models know the size that they are for"),
        _not_beside("stage", "target", "--target names the convolutions; give one of the two"),
        _not_beside("pretrained", "weights", "--weights names the weights; give one of the two"),
    ),
    "evaluate": (
        MEASURED,
        _not_beside("as_json", "result", "--result prints timm's JSON; give one of the two"),
        _needs("force", "csv_file", "results_csv", "figure", why="no file is written; name one, as with --csv"),
        _needs("figure", "shape", why="applies to --shape-bias DIR only"),
        *(_not_beside(other, "shape", "--shape-bias names images of its own, and measures nothing else")
          for other in ("data", "split", "layout", "limit", "all_corruptions", "corruption", "severities", "baseline",
                        "per_class", "examples", "csv_file", "results_csv", "result", "crop_pct", "seed", "workers",
                        "channels_last")),
        _not_beside("corruption", "all_corruptions", "--corruptions takes all fifteen; give one of the two"),
        Rule("severities", _corrupted, "nothing is corrupted; give --corruptions, or --corruption NAMES"),
        Rule("baseline", _corrupted, "nothing is corrupted; give --corruptions, or --corruption NAMES"),
        _needs("examples", "as_json", why="they are listed in JSON only; give --json as well"),
        _not_beside("per_class", "result", "--result prints timm's JSON, which has no classes; give one of the two"),
        _needs("seed", "all_corruptions", "corruption", why="nothing is drawn at random without corruptions"),
    ),
    "export": (
        OWN,
        *(_not_beside(other, "explorer", "applies to files; the page of --explorer takes one image of one size")
          for other in ("format", "opset", "batch", "dynamic", "fixed")),
        Rule("opset", lambda given: _format(given) != "torch", "applies to ONNX, but OUT is a torch.export program"),
    ),
    "finetune": (OWN_WEIGHTS, *TRAINING),
    "fold": (
        OWN,
        _not_beside("max_error", "prune", "--prune goes by where heads look, not by an error; measure it with --data"),
        _needs("far", "prune", why="only --prune uses it"),
        _needs("data", "prune", why="only --prune measures the accuracy; use tcnn evaluate"),
        _needs("size", "data", why="no image is read without --data"),
    ),
    "inspect": (
        OWN,
        _needs("force", "out", why="nothing is written; name a directory with --out"),
        _needs("formats", "out", why="no picture is written; name a directory with --out"),
        _needs("evaluation", "out", why="it adds pictures, and none is written; name a directory with --out"),
        _needs("query", "images", why="there are no attention maps without --images"),
        _needs("query", "shown", why="no map is taken with --shown 0"),
        _needs("limit", "images", why="there is nothing to limit without --images"),
        _needs("shown", "images", why="there are no attention maps without --images"),
    ),
    "plan": (OWN_WEIGHTS, BUILT),
    "predict": (MEASURED,),
    "verify": (OWN,),
    "report": (_needs("module", "images", why="nothing is loaded without --images"),),
    "serve": (_needs("slots", "worker", why="there is no worker with --no-worker"),),
}  # fmt: skip


def _format(given: Parameters) -> str:
    return str(given.get("format") or ("torch" if str(given.get("output")).lower().endswith(".pt2") else "onnx"))


def check_effects(command: str, context: Any) -> None:
    """Raise `RequestError` for an option that was typed and has no effect; `context` is click's, of the command."""
    if context.params.get("dry_run") or context.params.get("print_config"):
        return
    for rule in RULES.get(command, ()):
        source = context.get_parameter_source(rule.parameter)
        if source is not None and source.name == "COMMANDLINE" and not rule.met(context.params):
            raise RequestError(f"{_typed(context, rule.parameter)}: {rule.why}")


def _typed(context: Any, parameter: str) -> str:
    """The option as it is typed: of a pair, the one that stands for what was given."""
    option = next(one for one in context.command.params if one.name == parameter)
    names = option.secondary_opts if context.params[parameter] is False and option.secondary_opts else option.opts
    return str(next((name for name in names if name.startswith("--")), names[0]))


def refuse_empty(command: Any) -> None:
    """Have a command refuse empty words, by the option or argument whose value each is.

    Not those of a command with sub-commands: there one may say that something is to be taken away.
    """
    if hasattr(command, "commands"):
        return
    parse = command.parse_args

    def parse_args(context: Any, words: list[str]) -> Any:
        given = list(words)  # parsing takes words away
        for name in _options(given, _switches(command)):
            raise RequestError(f"{name}: expected a value, found an empty string")
        rest = parse(context, words)
        if "" in given:
            raise RequestError(f"{_argument(context)}: expected a name, found an empty string")
        return rest

    command.parse_args = parse_args


def refuse_twice(command: Any) -> None:
    """Have a command, and those in it, refuse an option that takes one value and is given more than once."""
    for inner in getattr(command, "commands", {}).values():
        refuse_twice(inner)
    parse = command.parse_args

    def parse_args(context: Any, words: list[str]) -> Any:
        given = list(words)  # parsing takes words away
        rest = parse(context, words)
        _, _, order = command.make_parser(context).parse_args(given)
        for option in order:
            if _takes_one(option) and order.count(option) > 1:
                name = next((name for name in option.opts if name.startswith("--")), option.opts[0])
                raise RequestError(f"{name}: expected one value, found {order.count(option)}; give it once")
        return rest

    command.parse_args = parse_args


def _takes_one(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and not (parameter.multiple or parameter.is_flag or parameter.count)


def _switches(command: Any) -> set[str]:
    """The options that take no value: an empty word after one of them is not its own."""
    switches = [one for one in command.params if getattr(one, "is_flag", False)]
    return {"--"} | {name for one in switches for name in (*one.opts, *one.secondary_opts)}


def _options(words: Sequence[str], switches: Collection[str]) -> list[str]:
    """The options that have an empty value, as ``--out ""`` or ``--out=``."""
    pairs = itertools.pairwise(words)
    apart = [before for before, word in pairs if not word and before.startswith("-") and before not in switches]
    joined = [word[:-1] for word in words if word.startswith("--") and word.find("=") == len(word) - 1]
    return apart + joined


def _argument(context: Any) -> str:
    """The argument that is an empty word."""
    for one in context.command.params:
        value = context.params.get(one.name)
        values = value if isinstance(value, list | tuple) else [value]
        if one.param_type_name == "argument" and any(word in ("", Path()) for word in values):
            return str(one.metavar or one.name)
    return str(context.info_name)
