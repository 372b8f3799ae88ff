"""An install without extras: everything is listed, and says what it needs."""

import json
import os
import subprocess
import sys

from plait.policies.catalog import CATALOG

#: What only extras bring, and what these bring along.
EXTRAS = (
    "numba",
    "llvmlite",
    "scipy",
    "highspy",
    "httpx",
    "msgspec",
    "starlette",
    "sqlalchemy",
    "psutil",
    "yaml",
    "pyarrow",
    "torch",
    "ray",
)

WITHOUT = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from plait.cli import main
main(sys.argv[1:])
"""


def without_extras(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-c", WITHOUT, *args], capture_output=True, text=True, env=environment)


def test_policies_are_all_listed_and_say_what_they_need() -> None:
    done = without_extras("policies", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(CATALOG) <= set(rows)
    assert rows["sia"]["needs"] == {"": "sim"}
    assert rows["pollux"]["needs"] == {"exact=on": "sim"}
    assert rows["muri-l"]["needs"] == {"method=exact": "sim"}
    assert {row["preempts"] for row in rows.values()} == {"yes", "no", "with preempt=on"}
    table = without_extras("policies")
    assert table.returncode == 0, table.stderr
    assert "plait[sim]" in table.stdout
    refused = without_extras("simulate", "no.csv", "-p", "sia")
    assert refused.returncode == 2


SAYS = """
from plait.core.errors import MissingExtra
from plait.policies.catalog import CATALOG, make_policy
GOES_WITH = {"memory_law": "placement=netpack,", "plait:placement=trial": "group=off,"}
for name, row in CATALOG.items():
    values = ((o, w) for o, option in row.options.items() for w in option.words)
    for what in ("", *row.needs, *(f"{GOES_WITH.get(o, '')}{o}={w}" for o, w in values)):
        text = f"{name}:{GOES_WITH.get(f'{name}:{what}', '')}{what}" if what else name
        try:
            make_policy(text)
        except MissingExtra as error:
            assert what in row.needs or "" in row.needs, text
            assert f"plait[{row.needs.get(what, row.needs.get(''))}]" in str(error), error
        else:
            assert what not in row.needs, text
"""


def test_what_rows_say_they_need_is_what_they_need() -> None:
    code = WITHOUT.replace("from plait.cli import main\nmain(sys.argv[1:])\n", SAYS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
