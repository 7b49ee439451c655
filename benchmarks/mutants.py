"""Mutants: a file of ours with one small fault put in, by mutmut's operators; which of them to try, what a score means.

What stands in functions is mutated. Left out are annotations, decorators, the types given to `cast`, docstrings, the
wording of errors, and what `len` and `isinstance` are called with, which only ever makes a program stop.
"""

import ast
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

UNCHANGED_CALLS = {"len", "isinstance"}
Z = 1.959964
"""The normal distribution's 97.5 % quantile, for intervals of 95 %."""


@dataclass(frozen=True)
class Mutant:
    """One fault, and where it is."""

    file: str
    """Relative to the repository's root."""
    function: str
    """With its class, `GPSA2d.forward`."""
    lines: tuple[int, int]
    """First and last line of the statement that holds it; of a compound statement its head."""
    operator: str
    _module: cst.Module
    _node: cst.CSTNode
    _replacement: cst.CSTNode

    @property
    def before(self) -> str:
        """The expression or statement in one line."""
        return " ".join(self._module.code_for_node(self._node).split())

    @property
    def after(self) -> str:
        """What became of it."""
        return " ".join(self._module.code_for_node(self._replacement).split())

    def source(self) -> str:
        """The whole file with the fault in it."""
        return cst.ensure_type(self._module.deep_replace(self._node, self._replacement), cst.Module).code

    def is_a_program(self) -> bool:
        """Python reads it, and as something else than the original."""
        try:
            return ast.dump(ast.parse(self.source())) != ast.dump(ast.parse(self._module.code))
        except SyntaxError:
            return False


def mutants(root: Path, file: str) -> list[Mutant]:
    """All mutants of one file, in the order of the source; a few of them may be no programs."""
    wrapper = MetadataWrapper(cst.parse_module((root / file).read_text(encoding="utf-8")))
    finder = _Finder(file, wrapper.module)
    wrapper.visit(finder)
    return finder.found


def sample(mutants: list[Mutant], size: int | None, seed: int) -> list[Mutant]:
    """So many programs among them, drawn without replacement, in their order; all if there are no more than that."""
    order = random.Random(seed).sample(range(len(mutants)), len(mutants))
    programs = (index for index in order if mutants[index].is_a_program())
    return [mutants[index] for index in sorted(itertools.islice(programs, size))]


def wilson(successes: int, trials: int, population: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927); a point where the whole population was tried."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    if trials == population:
        return share, share
    middle = share + Z**2 / (2 * trials)
    spread = Z * math.sqrt(share * (1 - share) / trials + Z**2 / (4 * trials**2))
    return (middle - spread) / (1 + Z**2 / trials), (middle + spread) / (1 + Z**2 / trials)


class _Finder(cst.CSTVisitor):
    """Notes every node inside a function that one of the operators changes."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file: str, module: cst.Module) -> None:
        super().__init__()
        self.found: list[Mutant] = []
        self._file, self._module = file, module
        self._names: list[str] = []
        self._functions = 0
        self._raises = 0
        self._lines: list[tuple[int, int]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator) or _called(node) in UNCHANGED_CALLS:
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.append(node.name.value)
        self._functions += isinstance(node, cst.FunctionDef)
        self._raises += isinstance(node, cst.Raise)
        if (lines := self._statement(node)) is not None:
            self._lines.append(lines)
        if self._functions:
            self.found += self._mutants(node)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Annotation | cst.Decorator) or _called(node) in UNCHANGED_CALLS:
            return
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._names.pop()
        self._functions -= isinstance(node, cst.FunctionDef)
        self._raises -= isinstance(node, cst.Raise)
        if self._statement(node) is not None:
            self._lines.pop()

    def _mutants(self, node: cst.CSTNode) -> Iterator[Mutant]:
        for kind, operator in mutation_operators:
            if not isinstance(node, kind) or (self._raises and operator is operator_string):
                continue
            # Of the three changes to a string the first, which puts letters around it: SQL does not mind the case.
            for replacement in itertools.islice(operator(node), 1 if operator is operator_string else None):
                if _called(node) == "cast" and _type_of_cast(node) != _type_of_cast(replacement):
                    continue
                name = operator.__name__.removeprefix("operator_")
                where = ".".join(self._names), self._lines[-1]
                yield Mutant(self._file, *where, name, self._module, node, replacement)

    def _statement(self, node: cst.CSTNode) -> tuple[int, int] | None:
        """The lines that a statement's own code stands on; None if the node is no statement."""
        if not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return None
        place = self.get_metadata(PositionProvider, node)
        first, last = place.start.line, place.end.line
        body = getattr(node, "body", None)
        if isinstance(body, cst.IndentedBlock):
            last = max(first, self.get_metadata(PositionProvider, body.body[0]).start.line - 1)
        return first, last


def _called(node: cst.CSTNode) -> str | None:
    """The plain name that a call calls."""
    return node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) else None


def _type_of_cast(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(cst.ensure_type(node, cst.Call).args[0].value)
