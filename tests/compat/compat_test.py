#!/usr/bin/env python3
"""compat_test.py LAUNCHER [GROUP ...]: runs the scenarios of cases/ and compares what happened with what torchrun 2.15 did.

  compat_test.py build/dev/bin/dtrun                        everything on one node
  compat_test.py build/dev/bin/dtrun logs signals           two groups (a group is a file in cases/); ctest runs each by itself
  compat_test.py build/dev/bin/dtrun --only 'sig_*' -v      some scenarios, each named
  compat_test.py torchrun --jobs 1 --record FILE            record a torchrun anew (half an hour)
  compat_test.py                                            list the scenarios

README.md in this folder tells what is what. Exit 0: as recorded, apart from expected_differences.toml. Linux, Python 3.11, standard library only."""
import argparse
import concurrent.futures
import fnmatch
import importlib
import json
import os
import pathlib
import random
import shutil
import signal
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import comparison  # noqa: E402
import conformance  # noqa: E402
import observation  # noqa: E402
import runner  # noqa: E402
import scenario  # noqa: E402

RECORDED = HERE.parent / "data/launcher/torchrun_2.15.json"
EXPECTED = HERE / "expected_differences.toml"
README = HERE.parents[1] / "README.md"
GROUPS = sorted(path.stem for path in (HERE / "cases").glob("*.py"))
TRIES = 3  # a launcher that ran into the limit may have been the machine's fault


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launcher", nargs="?")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    parser.add_argument("--jobs", type=int, default=4, help="scenarios at once (most of them wait; default 4)")
    parser.add_argument("--record", metavar="FILE", help="write what happened instead of comparing it")
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args()


def selected(chosen):
    for group in GROUPS:
        before = len(scenario.ALL)
        importlib.import_module(f"cases.{group}")
        added = list(scenario.ALL)[before:]
        if not chosen.groups or group in chosen.groups:
            yield from (name for name in added if not chosen.only or any(fnmatch.fnmatchcase(name, glob) for glob in chosen.only))


def two_cores():
    """OMP_NUM_THREADS of dtrun's workers grows with the cores; on two of them it is torchrun's 1 for every scenario here."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, random.sample(allowed, min(2, len(allowed))))


def default_signals():
    """nohup and '&' leave some ignored, and launchers would inherit that."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def play(name, launcher):
    """(observation, problems that no comparison shows)"""
    for _ in range(TRIES):
        with runner.Runner(scenario.ALL[name], launcher) as run:
            run.run()
            observed = observation.observe(run)
            limited, left = run.stopped_at_limit, run.left
        if not limited:
            break
    problems = ["a launcher had to be killed at the time limit"] if limited else []
    if left:
        problems.append(f"{left} processes of the job were left behind")
    return observed, problems


def write_recorded(path, results):
    """One scenario a line: small, and differences are readable."""
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}" for name, value in results.items()]
    pathlib.Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    chosen = options()
    names = list(selected(chosen))
    if not chosen.launcher:
        for name in names:
            print(f"{name:36} {' || '.join(launch.arguments for launch in scenario.ALL[name].launches)}")
        return 0
    launcher = shutil.which(chosen.launcher)
    if not launcher or not names:
        sys.exit(f"compat_test.py: no such launcher: {chosen.launcher}" if not launcher else "compat_test.py: no scenario has such a name")
    two_cores()
    default_signals()
    recorded = json.loads(RECORDED.read_text())
    expected = comparison.read_expected(EXPECTED)
    failed = [f"{EXPECTED.name}: {problem}" for problem in comparison.stale_entries(expected, scenario.ALL, comparison.readme_rows(README))]
    failed += conformance.stale_rows(HERE / "README.md", scenario.ALL)
    for problem in failed:
        print("FAILED", problem)
    results = {}
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        outcomes = pool.map(lambda name: (name, *play(name, [os.path.abspath(launcher)])), names)
        for name, observed, problems in outcomes:
            results[name] = observed
            if not chosen.record:
                problems += comparison.judge(name, recorded.get(name, {}), observed, expected)
                failed += problems
            if problems or chosen.verbose:
                print("\n".join([f"{'FAILED' if problems else 'passed'} {name}", *(f"    {problem}" for problem in problems)]), flush=True)
    if chosen.record:
        write_recorded(chosen.record, results)
    print(f"{len(names)} scenarios, {len(failed)} problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
