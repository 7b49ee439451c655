"""Base class of reports for the terminal, the API and files, and error statistics; loads no torch."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base class of reports: immutable; fields of newer versions are ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")


class ErrorStats(Record):
    """Error statistics: largest absolute error, relative errors in L2 and to the largest value, cosine similarity."""

    max_abs: float
    relative: float
    max_relative: float
    cosine: float

    @property
    def worst(self) -> float:
        return max(self.relative, self.max_relative)
