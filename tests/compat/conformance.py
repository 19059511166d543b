"""Keeps the conformance table of README.md true: what its last column names exists."""
import fnmatch
import pathlib
import re


def stale_rows(readme, scenarios):
    """Names in the table that are no scenario, no Catch2 test and no file."""
    tests = readme.parents[1]
    cases = {name for path in tests.rglob("*_test.cpp") for name in re.findall(r'TEST_CASE\("((?:[^"\\]|\\.)*)"', path.read_text())}
    rows = [line.split("|") for line in readme.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    problems = [] if len(rows) == 28 else [f"README.md has {len(rows)} rows, expected 28"]
    for row in rows:
        for name in re.findall(r'"[^"]+"|[^\s,"]+', row[-2]):
            found = (name.strip('"') in cases if name.startswith('"') else pathlib.Path(tests.parent, name).exists() if "/" in name
                     else any(fnmatch.fnmatchcase(known, name) for known in scenarios))
            if not found:
                problems.append(f"README.md, row {row[1].strip()}: there is no {name}")
    return problems
