"""A filter module that cannot be imported."""

raise SystemExit("not today")
