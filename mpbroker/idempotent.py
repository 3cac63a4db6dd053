"""Work that is done once, though its message may come twice: its result is recorded with the message's uid.

Owns a table in a SQLite file, or in a database that the user brings. At-least-once delivery means that a worker may die
between its work and its ack; what comes again then finds the result recorded, and is not worked on again. What is done
with the same connection (an UPDATE of one's own) is committed in the same transaction as the record, so that both are
there or neither; what is done elsewhere (a call over a network) is not undone by anybody.
"""

from __future__ import annotations

import functools
import os
import pickle
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mpbroker import checks
from mpbroker.deliveries import Delivery

BUSY_S: Final = 30.0
"""How long a transaction waits for another process's, by default: as long as a lease."""

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS mpbroker_done (scope TEXT NOT NULL, uid TEXT NOT NULL, result BLOB NOT NULL, "
    "done_at REAL NOT NULL, PRIMARY KEY (scope, uid)) WITHOUT ROWID"
)


@dataclass(frozen=True, slots=True)
class Done:
    """What a duplicate finds. Attributes: result, as it was recorded; is_duplicate: nothing was done this time."""

    result: Any
    is_duplicate: bool


class Once:
    """Remembers what was done, by scope and uid.

    Args:
        database: a file, made if need be; or an open sqlite3 connection, which is then used in the thread and process
            that it belongs to, has no transaction open, and commits when the work is done. With a file, each thread and
            process has a connection of its own, and a forked child opens another.
        scope: whose work it is: two groups that get the same message each do theirs. Name it where one file
            serves several handlers.
        busy_timeout: seconds to wait for another process's transaction; then sqlite3.OperationalError.

    Duplicates of one message that come at the same time wait for each other: the second finds what the first recorded.
    So does all other work with the same file, for SQLite has one writer: keep what runs inside short.
    """

    def __init__(
        self,
        database: str | os.PathLike[str] | sqlite3.Connection,
        *,
        scope: str = "",
        busy_timeout: float = BUSY_S,
    ) -> None:
        self._scope = checks.text(scope, "scope")
        self._busy_s = checks.seconds(busy_timeout, "busy_timeout")
        self._given: sqlite3.Connection | None = None
        self._path = ""
        if isinstance(database, sqlite3.Connection):
            self._given = database
        else:
            self._path = os.fspath(database)
        self._own = threading.local()

    def run(self, uid: str, work: Callable[[sqlite3.Connection], Any]) -> Done:
        """Do ``work`` and record what it returns, or return what was recorded for the uid before.

        The work is called inside the transaction, with its connection. What it raises undoes both, and propagates. When
        the process dies in between, neither has happened.

        Raises:
            sqlite3.Error: of the database. pickle.PicklingError, TypeError, AttributeError: the result cannot be
            recorded; nothing was.
        """
        uid = checks.text(uid, "uid")
        with self._transaction() as connection:
            found = connection.execute(
                "SELECT result FROM mpbroker_done WHERE scope = ? AND uid = ?",
                (self._scope, uid),
            ).fetchone()
            if found is not None:
                return Done(pickle.loads(found[0]), is_duplicate=True)
            result = work(connection)
            connection.execute(
                "INSERT INTO mpbroker_done VALUES (?, ?, ?, ?)",
                (self._scope, uid, pickle.dumps(result), time.time()),
            )
            return Done(result, is_duplicate=False)

    def forget(self, older_than: float) -> int:
        """Drop what was recorded more than so many seconds ago; returns how many. Their duplicates are new, then."""
        before = time.time() - checks.seconds(older_than, "older_than")
        with self._transaction() as connection:
            return connection.execute(
                "DELETE FROM mpbroker_done WHERE scope = ? AND done_at < ?",
                (self._scope, before),
            ).rowcount

    def close(self) -> None:
        """Close this thread's connection to the file; one that was given stays open."""
        own: sqlite3.Connection | None = self._own.__dict__.pop("connection", None)
        if own is not None and self._own.__dict__.pop("pid", None) == os.getpid():
            own.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection()
        if connection.in_transaction:
            raise sqlite3.ProgrammingError("the connection has a transaction open; commit it first")
        # Before anything is read: a second one that read first would both find nothing, and both work.
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(_TABLE)
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def _connection(self) -> sqlite3.Connection:
        if self._given is not None:
            return self._given
        own = self._own.__dict__
        # SQLite's connections do not survive a fork.
        if own.get("pid") != os.getpid():
            connection = sqlite3.connect(self._path, timeout=self._busy_s, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            own["connection"], own["pid"] = connection, os.getpid()
        found: sqlite3.Connection = own["connection"]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        if self._given is not None:
            raise TypeError("a connection stays in its process; give the path of the file instead")
        return _rebuilt, (self._path, self._scope, self._busy_s)


def _rebuilt(path: str, scope: str, busy_s: float) -> Once:
    return Once(path, scope=scope, busy_timeout=busy_s)


def idempotent(
    database: str | os.PathLike[str], *, scope: str | None = None, busy_timeout: float = BUSY_S
) -> Callable[[Callable[[Delivery, sqlite3.Connection], Any]], Callable[[Delivery], Any]]:
    """Decorate a handler so that each message is worked on once.

    The handler is called with the delivery and the connection of the transaction in which its result is recorded; a
    duplicate is not worked on, and gives the recorded result. scope: default: the handler's module and name.
    """

    def decorate(handler: Callable[[Delivery, sqlite3.Connection], Any]) -> Callable[[Delivery], Any]:
        name = f"{handler.__module__}:{handler.__qualname__}" if scope is None else scope
        once = Once(database, scope=name, busy_timeout=busy_timeout)

        @functools.wraps(handler)
        def handle(delivery: Delivery) -> Any:
            return once.run(delivery.message.uid, lambda connection: handler(delivery, connection)).result

        handle.once = once  # type: ignore[attr-defined]  # to close, and to forget
        return handle

    return decorate
