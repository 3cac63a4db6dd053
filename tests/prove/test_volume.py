"""A short run of the volume: rings and sockets at one broker."""

from __future__ import annotations

from tests.prove import volume


def test_processes_of_both_planes_share_a_broker_and_lose_nothing() -> None:
    outcome = volume.run(0.0, 7, quick=True)

    assert outcome.failures == []
    assert outcome.figures["runs"] == 1
    for plane in ("ring", "manager"):
        assert outcome.figures[f"published on the {plane} plane"] == 10_000
        assert int(outcome.figures[f"acked on the {plane} plane"]) > 0
