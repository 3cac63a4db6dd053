"""``python -m mpbroker``: the command line."""

import sys

from mpbroker.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
