"""A crew whose members are threads, so that a whole stress runs in one process, over any broker."""

from __future__ import annotations

import queue
import threading
import traceback
from typing import Any

from mpbroker.cli.link import LAST_WORDS, CrewGone, Role
from tests.cli.support import LIMIT_S


class ThreadLink:
    """What a role reports and is told, without pipes."""

    def __init__(self, member: ThreadMember, reports: queue.Queue[tuple[ThreadMember, bytes | None]]) -> None:
        self._member = member
        self._reports = reports

    def report(self, body: bytes) -> None:
        self._reports.put((self._member, body))

    def order(self) -> bytes:
        order = self._member.orders.get(timeout=LIMIT_S)
        if order is None:
            raise CrewGone
        return order

    def has_order(self) -> bool:
        return not self._member.orders.empty()


class ThreadMember:
    def __init__(self, name: str) -> None:
        self.name = name
        self.note = "starting"
        self.exit_code: int | None = None
        self.orders: queue.Queue[bytes | None] = queue.Queue()

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def tell(self, order: bytes) -> None:
        self.orders.put(order)


class ThreadCrew:
    """The part of Crew that a conductor uses; nobody can be killed."""

    start_method = "threads"

    def __init__(self) -> None:
        self.members: list[ThreadMember] = []
        self._threads: list[threading.Thread] = []
        self._reports: queue.Queue[tuple[ThreadMember, bytes | None]] = queue.Queue()

    def start(self, name: str, role: Role, *args: Any) -> ThreadMember:
        member = ThreadMember(name)

        def play() -> None:
            code = 0
            try:
                role(ThreadLink(member, self._reports), *args)
            except CrewGone:
                code = 3
            except BaseException:
                code = 1
                self._reports.put((member, LAST_WORDS + traceback.format_exc().encode()))
            member.ending = code  # type: ignore[attr-defined]
            self._reports.put((member, None))

        self.members.append(member)
        thread = threading.Thread(target=play, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return member

    @property
    def running(self) -> list[ThreadMember]:
        return [member for member in self.members if member.running]

    def events(self, timeout: float) -> list[tuple[ThreadMember, bytes | None]]:
        try:
            found = [self._reports.get(timeout=timeout)]
        except queue.Empty:
            return []
        while not self._reports.empty():
            found.append(self._reports.get())
        for member, report in found:
            if report is None:
                member.exit_code = member.ending  # type: ignore[attr-defined]
        return found

    def close(self) -> None:
        for member in self.members:
            member.orders.put(None)
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), thread.name
