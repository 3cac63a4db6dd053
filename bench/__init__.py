"""How fast mpbroker is, against what else one could use on the same machine.

Figures that count are ratios inside one run: contestants take turns on the same work, and medians are compared.
``python -m bench`` runs everything, ``--quick`` in under a minute, ``--only`` and ``--peers`` choose. Nothing here is
imported by mpbroker, and nothing is written outside the temporary folder but the files that a run is asked for.
"""
