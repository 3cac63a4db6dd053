"""The command line: one verb a file; ``mpbroker.cli.main:run`` is its entry.

Nothing is imported here, so that a worker process that runs a role of stress or demo loads no command line.
"""
