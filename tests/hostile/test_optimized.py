"""No check depends on an assert: what is refused is refused under ``python -O`` too, by broker and client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.essentials import ATTACKS
from tests.process.puppets import Program


@pytest.mark.parametrize(("flags", "says"), [([], "as usual"), (["-O"], "optimized")], ids=["as usual", "optimized"])
def test_every_attack_is_refused(flags: list[str], says: str, broker_folder: Path) -> None:
    with Program(*flags, "-m", "tests.hostile.essentials", str(broker_folder)) as program:
        code, said, errors = program.end()
    assert (said.splitlines(), errors, code) == ([*ATTACKS, says], "", 0)
    (broker_folder / "run").rmdir()


def test_the_broker_runs_with_the_flags_of_its_creator(tmp_path: Path) -> None:
    module = tmp_path / "flagged.py"
    module.write_text(
        "import sys\nfrom pathlib import Path\nPath(__file__).with_suffix('.txt').write_text(str(sys.flags.optimize))\n"
    )
    text = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import mpbroker\n"
        "with mpbroker.BrokerManager(filter_modules=['flagged']): pass\n"
    )
    with Program("-O", "-c", text) as program:
        assert program.end() == (0, "", "")
    assert module.with_suffix(".txt").read_text() == "1"
