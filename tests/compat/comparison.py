"""Recorded against observed, and which differences are meant: expected_differences.toml, each tied to a row of README.md's table."""
import dataclasses
import fnmatch
import tomllib

ABSENT = "<absent>"


def differences(recorded, observed, path=""):
    """{path: (recorded, observed)} with paths such as "starts/n0 i0 l1/env/RANK"; what one side lacks is "<absent>" there."""
    if isinstance(recorded, dict) and observed == ABSENT:
        observed = {}
    if isinstance(observed, dict) and recorded == ABSENT:
        recorded = {}
    if not (isinstance(recorded, dict) and isinstance(observed, dict)):
        return {} if recorded == observed else {path: (recorded, observed)}
    found = {}
    for name in {**recorded, **observed}:
        found |= differences(recorded.get(name, ABSENT), observed.get(name, ABSENT), f"{path}/{name}" if path else name)
    return found


@dataclasses.dataclass
class Expected:
    row: str  # the first cell of its row in the README's table
    scenarios: list[str]
    dtrun: dict  # pattern of paths -> what dtrun does instead

    def covers(self, scenario, path, observed):
        return scenario in self.scenarios and any(fnmatch.fnmatchcase(path, pattern) and observed == value for pattern, value in self.dtrun.items())

    def not_seen(self, scenario, found):
        """Patterns of which this scenario shows no difference (any more)."""
        if scenario not in self.scenarios:
            return []
        return [pattern for pattern, value in self.dtrun.items()
                if not any(fnmatch.fnmatchcase(path, pattern) and observed == value for path, (_, observed) in found.items())]


def read_expected(path):
    with open(path, "rb") as file:
        return [Expected(**entry) for entry in tomllib.load(file)["difference"]]


def readme_rows(path):
    """First cells of the table under "Differences from torchrun"."""
    section = path.read_text().split("\n## Differences from torchrun\n", 1)[1].split("\n## ", 1)[0]
    return [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ") and line.split("|")[1].strip()]


def stale_entries(expected, scenarios, rows):
    """Entries that name a scenario or a row of the README that does not exist."""
    problems = [f"no scenario is called {name}" for entry in expected for name in entry.scenarios if name not in scenarios]
    return problems + [f'README.md has no row "{entry.row}"' for entry in expected if entry.row not in rows]


def judge(scenario, recorded, observed, expected):
    """Lines that say what is wrong; none when everything is as recorded or as expected."""
    found = differences(recorded, observed)
    problems = [f"{path}: torchrun {shortened(was)}, dtrun {shortened(now)}" for path, (was, now) in found.items()
                if not any(entry.covers(scenario, path, now) for entry in expected)]
    for entry in expected:
        problems += [f'{pattern} is as torchrun\'s or has another value, but expected_differences.toml says {entry.dtrun[pattern]!r} (row "{entry.row}")'
                     for pattern in entry.not_seen(scenario, found)]
    return problems


def shortened(value, most=160):
    text = repr(value)
    return text if len(text) <= most else text[:most - 3] + "..."
