"""Tools for tests of programs that use mpbroker: a clock that is moved by hand, and a leak check; `history`, `recorded`
and `checker` record what the clients of a broker see, and judge it.

Needs no test framework. May import any module of the package except the command line; of the package only the command
line may import it.
"""

from mpbroker.testing.clock import FakeClock
from mpbroker.testing.leaks import Leak, LeakCheck

__all__ = ["FakeClock", "Leak", "LeakCheck"]
