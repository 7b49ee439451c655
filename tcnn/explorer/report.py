"""Explorer report: what `tcnn export --explorer --json` prints."""

from tcnn.records import Record


class ExplorerReport(Record):
    """Result of an explorer's export. Errors are those of the network in onnxruntime against PyTorch."""

    output: str
    base_model: str
    size: tuple[int, int]
    """(height, width) of the images, in pixels."""
    layers: tuple[str, ...]
    files: dict[str, int]
    """Bytes of every file."""
    seconds: float
    error: float | None
    """Largest relative error of the logits; None for a model without any."""
    attention_error: float
    """Largest difference of a weight of content attention."""
    tolerance: float
