"""Kill points: what their table promises, that the judge judges, and a part of the scenes.

All of them are played by `scripts/prove`; here, the same few each time.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

from mpbroker import BrokerManager
from mpbroker.process.naming import Transport
from tests.prove import (
    points,
    points_arena,
    points_broker_arena,
    points_broker_rings,
    points_broker_scene,
    points_brokers,
    points_client_rings,
    points_clients,
    points_creators,
    points_pipes,
    points_planted,
    points_scene,
)
from tests.prove.planes import BOTH, RING, SOCKET
from tests.prove.points import Job
from tests.prove.points_brokers import BrokerPoint
from tests.prove.points_clients import ClientPoint
from tests.prove.points_creators import CreatorPoint, CreatorScene
from tests.prove.points_lane import POINTS
from tests.prove.points_scene import Stage
from tests.prove.points_trap import Action, Signs, Trap, is_wrapped, place

# The victims of the judge's tests are forked from a process that may have threads of the test runner's.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

REPRESENTATIVE = [
    ("client challenged, before its proof", Action.KILL),
    ("client present, without a call connection", Action.FORK),
    ("client before it reads that its publish was accepted", Action.KILL),
    ("client half through the body of a large frame", Action.RAISE),
    ("client after its goodbye", Action.FORK),
    ("worker waits in a poll", Action.KILL),
    ("worker waits in a poll", Action.STOP),
    ("worker waits in a poll", Action.RAISE),
    ("worker waits in a poll", Action.FORK),
    ("worker before it replaces an interrupted poll", Action.RAISE),
    ("worker before it reads what it was handed", Action.RAISE),
    ("worker half through its acks of a batch", Action.KILL),
    ("worker acked, and the reply waits", Action.KILL),
    ("worker acked, and the reply waits", Action.RAISE),
    ("worker extended, and the reply waits", Action.STOP),
    ("worker on a last attempt", Action.KILL),
    ("worker between two calls of its subscriber", Action.KILL),
    ("worker before its goodbye", Action.RAISE),
    ("worker became the dispatcher and does not know its name", Action.RAISE),
    ("creator heard that its broker is ready", Action.KILL),
    ("creator before it ends its broker", Action.RAISE),
    ("broker can be found, and is not ready", Action.KILL),
    ("broker put a publish in one subscription and not in the other", Action.KILL),
    ("broker put a publish in one subscription and not in the other", Action.RAISE),
    ("broker took back one of two leases that ended", Action.STOP),
    ("broker half through the writing of a reply", Action.FORK),
    ("broker half through the removal of its folder", Action.KILL),
    ("client sent its segment", Action.RAISE),
    ("client put half a publish in its ring", Action.KILL),
    ("client put a publish in its ring and has not looked whether the broker sleeps", Action.STOP),
    ("worker said that it sleeps and does not yet", Action.STOP),
    ("worker was woken and has not looked", Action.KILL),
    ("worker made room in its ring and has not rung", Action.FORK),
    ("broker made a segment and has not sent it", Action.RAISE),
    ("broker put a reply in a ring and has not rung", Action.KILL),
    ("broker said that it sleeps for a ring and has not looked a last time", Action.STOP),
    ("client before an unconfirmed batch is sent again", Action.RAISE),
    ("client sent half a batch", Action.KILL),
    ("client before the thread of its publisher sends a batch", Action.RAISE),
    ("worker fetched and has not taken over what its consumer was handed", Action.RAISE),
    ("worker before its consumer takes back what it asked for ahead", Action.STOP),
    ("worker sent half of its acks", Action.KILL),
    ("client wrote a block and has not sent its frame", Action.KILL),
    ("client offered a segment and does not know its number", Action.RAISE),
    ("worker has a view and nothing made of it", Action.STOP),
    ("worker looks at a block that it has acked", Action.FORK),
    ("broker took a block that is in no queue", Action.RAISE),
    ("broker pinned what it has not handed over", Action.KILL),
    ("broker learns that a worker with pins has died", Action.STOP),
]
"""Each on one of its planes, in turn."""

TARGETS = sorted({target for each in POINTS.values() for target in (each.spot.target, each.spot.within) if target})


# -- the table --------------------------------------------------------------------------------------------------------


def test_there_are_points_in_clients_workers_and_brokers_alike() -> None:
    sides = Counter(each.side for each in POINTS.values())
    assert sum(sides.values()) >= 100
    assert min(sides[side] for side in ("client", "worker", "broker")) >= sum(sides.values()) / 5
    clients = (points_clients, points_client_rings, points_pipes, points_arena)
    brokers = (points_brokers, points_broker_rings, points_broker_arena)
    rows = sum(len(table.POINTS) for table in (*clients, *brokers, points_creators))
    assert len(POINTS) == rows, "two points have one name"


def test_every_point_is_on_a_plane_and_most_are_on_both() -> None:
    planes = Counter(each.planes for each in POINTS.values())
    assert planes.keys() == {BOTH, RING, SOCKET}
    assert planes[RING] >= 20
    assert planes[BOTH] >= 100


def test_a_point_in_the_code_of_rings_is_on_their_plane_alone() -> None:
    for point in POINTS.values():
        if "mpbroker.shm." in point.spot.target + point.spot.within:
            assert point.planes == RING, point.name


def test_every_row_says_the_fate_of_every_message_for_every_action() -> None:
    for point in [*points_clients.POINTS, *points_client_rings.POINTS, *points_pipes.POINTS, *points_arena.POINTS]:
        assert len({len(point.fates(action)) for action in Action}) == 1, point.name


PAIRS = {(name, action, plane) for name, each in POINTS.items() for action in Action for plane in each.planes}


@pytest.mark.parametrize("first", [0, 5])
def test_the_quick_form_plays_every_point_once_and_eight_seeds_play_every_pair_on_each_plane(first: int) -> None:
    rotations = [points.rotation(seed) for seed in range(first, first + 8)]
    assert all(Counter(job.point for job in jobs) == Counter([*POINTS]) for jobs in rotations)
    assert {job[:3] for jobs in rotations for job in jobs} == PAIRS


def test_four_seeds_play_every_pair_and_each_seed_both_planes() -> None:
    rotations = [points.rotation(seed) for seed in range(4)]
    assert len({job[:2] for jobs in rotations for job in jobs}) == len(POINTS) * len(Action)
    for jobs in rotations:
        planes = Counter(job.plane for job in jobs if POINTS[job.point].planes == BOTH)
        assert min(planes[plane] for plane in BOTH) >= 0.4 * planes.total()


def test_the_long_form_plays_every_pair_on_each_plane_ten_times() -> None:
    played = Counter(job[:3] for job in points.all_pairs(1))
    assert {*played.values()} == {10}
    assert played.keys() == PAIRS


# -- off is free ------------------------------------------------------------------------------------------------------


def test_a_process_without_a_point_has_nothing_wrapped() -> None:
    text = (
        "import tests.prove.points, tests.prove.points_armed\n"
        "from tests.prove.points_trap import is_wrapped\n"
        "from tests.prove.test_points import TARGETS\n"
        "assert len(TARGETS) > 40\n"
        "assert [target for target in TARGETS if is_wrapped(target)] == []\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60, cwd=points.ROOT)


def test_a_trap_that_is_taken_away_leaves_the_very_functions_that_were_there(tmp_path: Path) -> None:
    for point in POINTS.values():
        targets = [target for target in (point.spot.target, point.spot.within) if target]
        before = [getattr(*place(target)) for target in targets]
        trap = Trap(point.spot, Action.KILL, Signs(tmp_path), KeyboardInterrupt)
        trap.arm()
        assert all(map(is_wrapped, targets)), point.name
        trap.disarm()
        assert [getattr(*place(target)) for target in targets] == before, point.name
        assert not any(map(is_wrapped, targets)), point.name


def test_the_points_of_the_product_are_functions_of_the_product() -> None:
    """Those that are not are class methods, and the system calls that one makes."""
    others = [target for target in TARGETS if not isinstance(getattr(*place(target)), FunctionType)]
    assert others == [
        "mpbroker.process.channel:_Socket.recv_into",
        "mpbroker.process.channel:_Socket.sendall",
        "mpbroker.process.claims:BrokerFolder.claim",
        "mpbroker.shm.segment:Segment.attach",
        "mpbroker.shm.segment:Segment.create",
        "os:rename",
        "os:unlink",
    ]


# -- the judge --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=BOTH)
def plane(request: pytest.FixtureRequest) -> Transport:
    return Transport(request.param)


@pytest.fixture
def stage(broker_folder: Path, plane: Transport) -> Iterator[Stage]:
    stage = Stage(broker_folder, plane)
    yield stage
    stage.close()


def _named(name: str) -> ClientPoint:
    point = POINTS[name]
    assert isinstance(point, ClientPoint)
    return point


def test_a_point_that_is_not_reached_fails_its_scene(stage: Stage, tmp_path: Path) -> None:
    point = _named("worker before an ack is sent")
    never = dataclasses.replace(point, spot=dataclasses.replace(point.spot, nth=99))
    assert "the point was not reached" in stage.play(never, Action.KILL, tmp_path)


def test_another_fate_than_the_right_one_fails_the_scene(stage: Stage, tmp_path: Path) -> None:
    for fates, wrong in (
        ("acked again fresh", "m0 is again, not acked"),
        ("again again acked", "m2 is fresh, not acked"),
        ("back again fresh", "m0 is again, not back"),
        ("again none fresh", "m1 is again, not none"),
    ):
        folder = tmp_path / fates
        folder.mkdir()
        point = dataclasses.replace(_named("worker before an ack is sent"), kill=fates)
        assert wrong in stage.play(point, Action.KILL, folder), fates


def test_a_victim_on_another_plane_than_was_asked_for_fails_the_scene(
    stage: Stage, plane: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other,) = {*BOTH} - {plane}
    monkeypatch.setattr(stage, "_plane", other)
    found = stage.play(_named("client sent a publish"), Action.FORK, tmp_path)
    assert any(each.startswith("the victim's calls went by ") for each in found), found


def test_a_broker_without_rings_fails_every_scene_on_rings(
    broker_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here all who ask for rings get the other plane."""
    for module in (points_scene, points_broker_scene, points_creators):
        monkeypatch.setattr(module, "BrokerManager", lambda *a, **k: BrokerManager(*a, **{**k, "transport": "manager"}))
    with pytest.raises(AssertionError):
        Stage(broker_folder, Transport.RING)
    point = POINTS["broker decided on a publish"]
    assert isinstance(point, BrokerPoint)
    (tmp_path / "broker").mkdir()
    scene = points_broker_scene.Scene(
        point, Action.FORK, Transport.RING, broker_folder, tmp_path / "broker", whole=False
    )
    scene.play()
    assert "the broker has 0 rings for 3 connections" in scene.wrong
    creator = POINTS["creator has a manager that has just started"]
    assert isinstance(creator, CreatorPoint)
    (tmp_path / "creator").mkdir()
    creators = CreatorScene(creator, Action.FORK, Transport.RING, broker_folder, tmp_path / "creator")
    creators.play()
    assert any("AssertionError" in each for each in creators.wrong), creators.wrong


@pytest.mark.parametrize(
    ("defect", "point", "action", "wrong"),
    [
        ("a death is forgiven", "worker before an ack is sent", Action.KILL, "m0 is back, not again"),
        ("a goodbye is blamed", "worker before an ack is sent", Action.RAISE, "m0 is again, not back"),
        ("a copy is lost", "client before a publish is sent", Action.KILL, "the other subscription has {}, not {'p0'"),
        ("a copy is doubled", "client sent a publish", Action.FORK, "p0 is fresh and fresh, not fresh"),
    ],
)
def test_a_planted_defect_fails_the_scene(
    broker_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plane: Transport,
    defect: str,
    point: str,
    action: Action,
    wrong: str,
) -> None:
    monkeypatch.setenv(points_planted.VARIABLE, defect)
    stage = Stage(broker_folder, plane, [points_planted.MODULE])
    try:
        found = stage.play(_named(point), action, tmp_path)
    finally:
        stage.close()
    assert any(each.startswith(wrong) for each in found), found


def test_a_broker_that_goes_on_after_its_end_fails_the_scene(
    broker_folder: Path, tmp_path: Path, plane: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork is not the end of a broker; here the judge is told that it is."""
    monkeypatch.setattr(points_broker_scene, "LIMIT_S", 1.0)
    monkeypatch.setattr(points_broker_scene, "_ENDS", (Action.FORK,))
    (point,) = [each for each in points_brokers.POINTS if each.name == "broker acked half a batch"]
    scene = points_broker_scene.Scene(point, Action.FORK, plane, broker_folder, tmp_path, whole=False)
    scene.play()
    assert "waiting: hangs: " in scene.wrong
    assert "a call after the end was answered" in scene.wrong


# -- scenes -----------------------------------------------------------------------------------------------------------


def test_what_must_hold_holds_at_kill_points() -> None:
    jobs = []
    for number, (name, action) in enumerate(REPRESENTATIVE):
        planes = POINTS[name].planes
        jobs.append(Job(name, action, planes[number % len(planes)]))
    outcome = points.play(jobs, lanes=2)
    assert outcome.failures == []
    assert outcome.figures["faults at kill points"] == len(REPRESENTATIVE)
