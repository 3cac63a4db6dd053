"""A short round of chaos."""

from __future__ import annotations

from tests.prove import chaos


def test_real_processes_that_are_struck_break_no_law() -> None:
    outcome = chaos.run(4.0, 24, quick=True)

    assert outcome.failures == []
    assert int(outcome.figures["copies verified"]) > 1000
    assert int(outcome.figures["faults"]) >= 5
    for plane in ("ring", "manager"):
        assert int(outcome.figures[f"handed over on the {plane} plane"]) > 100
        assert int(outcome.figures[f"of these to consumers, on the {plane} plane"]) > 0
