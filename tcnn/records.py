"""Records that go to the terminal, the API and files, and the one that many of them hold; none of it loads torch."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Is not changed once it is made, and may come from a newer version, with fields that are not known here."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ErrorStats(Record):
    """How far b is from a: absolute error, error relative to a in L2 and to a's largest value, cosine."""

    max_abs: float
    relative: float
    max_relative: float
    cosine: float

    @property
    def worst(self) -> float:
        return max(self.relative, self.max_relative)
