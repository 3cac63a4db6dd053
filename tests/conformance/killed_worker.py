"""A worker process of the tests: polls as it is told on stdin, and then only holds.

Told: a pickled (subscription, member, max_messages). Says "holding N" and waits for its end; when
its stdin closes it ends cleanly.
"""

from __future__ import annotations

import pickle
import sys


def main() -> None:
    subscription, member, max_messages = pickle.load(sys.stdin.buffer)
    held = subscription.poll(member, max_messages=max_messages, timeout=20.0)
    print(f"holding {len(held)}", flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
