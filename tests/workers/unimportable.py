"""A module that cannot be imported."""

raise KeyError("at import")
