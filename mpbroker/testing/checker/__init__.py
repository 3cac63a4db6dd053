"""The checker: whether the recorded histories of a run keep the laws of the broker, and what breaks them.

    laws        the laws, violations, the verdict
    clients     who asked, and what was done to whom
    publishing  every publish and its ids
    polls       who polled when, as far as that is known
    consumers   the polls that nobody saw, by what came out of them
    copies      the copies of one subscription: flat arrays, and the lives of the eventful ones
    lives       whether a life can have happened
    order       first deliveries, empty polls, priorities
    ending      where everything is in the end, and the broker's figures
    story       the life of a message, for people
    judge       hears the histories, and gives the verdict

Pure: it reads no clock and asks no broker. Some bytes a message, whatever their number.
"""

from mpbroker.testing.checker.judge import check
from mpbroker.testing.checker.laws import Law, Verdict, Violation

__all__ = ["Law", "Verdict", "Violation", "check"]
