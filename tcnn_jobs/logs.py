"""Structured logs: one JSON object a line on stderr, or columns for a person. Bound ids (job, request) are in each."""

import logging
import sys
from typing import TextIO

import structlog


def form_on(stream: TextIO, form: str = "auto") -> str:
    """`json` or `console` as is; for `auto` what suits a stream: a person reads a terminal, a machine all else."""
    if form != "auto":
        return form
    return "console" if stream.isatty() else "json"


def configure(form: str = "auto", level: str = "info") -> None:
    """Send our logs and the libraries' to stderr, in one form: `json`, `console`, or `auto` (`form_on`)."""
    form = form_on(sys.stderr, form)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for talkative in ("alembic", "httpx", "botocore", "aiobotocore"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
