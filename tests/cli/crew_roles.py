"""Roles for the tests of crews; in a module, so that every start method finds them."""

from __future__ import annotations

import os
import threading

from mpbroker.cli.link import HEADER, Link


def counts(link: Link, count: int) -> None:
    for number in range(count):
        link.report(b"%d" % number)


def counts_and_waits(link: Link, count: int) -> None:
    counts(link, count)
    link.order()


def reports_half_and_waits(link: Link) -> None:
    link.report(b"whole")
    os.write(link._reports.fileno(), HEADER.pack(100) + b"half")
    link.report(b"")  # its bytes become part of what is still missing
    link.order()


def echoes(link: Link, times: int) -> None:
    link.report(b"ready")
    for _ in range(times):
        link.report(link.order())


def tells_whether_orders_wait(link: Link) -> None:
    link.report(b"%d" % link.has_order())
    first = link.order()
    link.report(first)


def fails(_: Link) -> None:
    raise RuntimeError("as it was told to")


def never_leaves(link: Link) -> None:
    link.report(b"ready")
    threading.Event().wait()


def reports_a_lot(link: Link) -> None:
    for _ in range(200):
        link.report(bytes(10_000))
