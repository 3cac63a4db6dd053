"""The entry of the command line.

Imports next to nothing: a worker process that a start method other than fork makes loads the program's main module
again, and should not load a command line with it.
"""

from __future__ import annotations

import sys


def run() -> int:
    """Run the command that ``sys.argv`` says; returns the exit code. Prints no traceback, whatever happens."""
    try:
        from mpbroker.cli import exits, output
        from mpbroker.cli.app import app

        output.make_tolerant()
        try:
            app(prog_name="mpbroker")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - reported, in one line
            code = exits.report(error)
        return output.close(code, exits.ExitCode.OUTPUT_CLOSED)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return 130
