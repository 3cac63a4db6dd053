"""What the processes of a pool log, where its owner wants it: lines of text, or of JSON, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]  # generic for type checkers only
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name
        """Nobody reads it any more: no reason for a traceback in the next place that is read."""


def set_up(log_format: str | None) -> None:
    """Log to standard error in this format; None: leave logging alone. Once a process; forked ones have it."""
    root = logging.getLogger()
    if log_format is None or any(isinstance(each, _Lines) for each in root.handlers):
        return
    handler = _Lines(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else logging.Formatter(_FORMAT))
    root.addHandler(handler)
    logging.getLogger("mpbroker").setLevel(logging.INFO)
