"""`tcnn models`: list the models that can be converted."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tcnn.cli.options.shared import AsJson
from tcnn.cli.output import console
from tcnn.errors import RequestError

if TYPE_CHECKING:
    from tcnn.zoo.catalogue import Entry


def command(
    query: Annotated[
        list[str] | None, typer.Argument(help="Words in the name, or * and ? patterns.", metavar="QUERY")
    ] = None,
    all_models: Annotated[
        bool, typer.Option("--all", help="Also list models that cannot be converted, and why.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List timm's models that can be converted, with layers, parameters and FLOPs before and after."""
    from tcnn.zoo import catalogue
    from tcnn.zoo.catalogue import architecture

    query = [architecture(word) for word in query or ()]
    found = catalogue.search(" ".join(query))
    shown = [entry for entry in found if entry.convertible or all_models]
    if not shown:
        words = " ".join(query)
        if len(found) == 1:
            raise RequestError(_why(found[0]))
        if found:
            raise RequestError(f"{words}: {len(found)} models match, none can be converted; --all says why")
        raise RequestError(catalogue.unknown(words, list(catalogue.entries())))
    if as_json:
        rows = [entry.model_dump() | {"registered_as": entry.registered_as} for entry in shown]
        found_json = {"timm": catalogue.timm_version(), "models": rows}
        console.print_json_text(json.dumps(found_json, ensure_ascii=False, indent=2))
    else:
        _print_table(shown)


def _print_table(shown: "list[Entry]") -> None:
    from rich.table import Table

    out = console.stdout()
    table = Table(box=None, pad_edge=False)
    for name, justify in (
        ("model", "left"), ("weights", "right"), ("layers", "right"), ("kernels", "left"), ("parameters", "left"),
        ("FLOPs", "left"), ("size", "right"), ("stage", "left"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for entry in shown:
        table.add_row(
            entry.name,
            str(len(entry.weights)) if entry.weights else "–",
            str(entry.layers) if entry.convertible else "–",
            ", ".join(entry.kernels),
            _change(entry.parameters, entry.converted_parameters),
            _change(entry.flops, entry.converted_flops),
            str(entry.input_size[-1]),
            entry.stage if entry.convertible else _why(entry),
        )
    out.print(table)
    out.print(f"{console.some(len(shown), 'model')}; FLOPs are 2 × multiply-adds of one image of the given size")


def _why(entry: "Entry") -> str:
    """Why it cannot be converted, and what can be done with it."""
    from tcnn.zoo.catalogue import TAKEN_BY

    begins = "; untrained, it can begin as convolutions: tcnn init" if entry.family in TAKEN_BY else ""
    return f"{entry.reason or f'{entry.name} cannot be converted'}{begins}"


def _change(before: int | None, after: int | None) -> str:
    if before is None:
        return "–"
    return console.scale(before) + (f" → {console.scale(after)}" if after is not None else "")
