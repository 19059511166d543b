#!/usr/bin/env python3
"""several_nodes_test.py BIN GROUP...: dtrun on several nodes, each a network namespace; BIN is the folder of dtrun and its test programs.

  several_nodes_test.py build/dev/bin                           all groups (the files in cases/); ctest runs each by itself
  several_nodes_test.py build/dev/bin losses -v                 one group, with what its tests measured
  several_nodes_test.py build/dev/bin --only '*partition*' -v   some tests
  several_nodes_test.py                                         list them

Exit 77 (skipped) where namespaces cannot be made. Linux, Python 3.11, standard library, iproute2, util-linux."""
import argparse
import concurrent.futures
import fnmatch
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import lab as laboratory  # noqa: E402

GROUPS = sorted(path.stem for path in (HERE / "cases").glob("*.py"))
LIMIT = 200 if "DTRUN_FULL_SIZE" in os.environ else 60  # seconds for one test
SKIPPED = 77


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", nargs="?")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    parser.add_argument("--jobs", type=int, default=1, help="tests at once (default 1)")
    parser.add_argument("--inside", metavar="TEST", help=argparse.SUPPRESS)
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args()


def all_cases(groups):
    """name -> function, those of a group's file in their order."""
    os.environ.setdefault("DTRUN_PROGRAM", "")
    os.environ.setdefault("DTRUN_PROBE_WORKER", "")
    found = {}
    for group in groups:
        module = importlib.import_module(f"cases.{group}")
        found |= {f"{group}.{name}": case for name, case in vars(module).items() if getattr(case, "is_case", False)}
    return found


def run_inside(name):
    """One test, as the first process of its namespaces."""
    laboratory.end_with_our_parent()
    case = all_cases([name.split(".")[0]])[name]
    lab = laboratory.Lab(case.nodes)
    try:
        case(lab)
        return 0
    except laboratory.Skipped as reason:
        laboratory.note(f"skipped: {reason}")
        return SKIPPED
    except BaseException:
        traceback.print_exc()
        for job in lab.jobs:
            print("\n".join(job.describe()), file=sys.stderr)
        return 1


def play(name, folder, unshare):
    """(exit code, what it said, seconds). That the pipe on its stdin is open tells it that we live."""
    start = time.monotonic()
    command = [*unshare, sys.executable, __file__, folder, "--inside", name]
    stays_open, ours = os.pipe()
    directory = tempfile.TemporaryDirectory(prefix="dtrun-nodes-")  # ours: whatever becomes of the test
    try:
        process = subprocess.Popen(command, stdin=stays_open, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   env=os.environ | {"TMPDIR": directory.name})
        try:
            said, _ = process.communicate(timeout=LIMIT)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code, said = 1, f"    not ended after {LIMIT} s\n"
    finally:
        os.close(ours)
        os.close(stays_open)
        directory.cleanup()
    return code, said, time.monotonic() - start


def main():
    chosen = options()
    if chosen.bin:
        os.environ["DTRUN_PROGRAM"] = os.path.abspath(f"{chosen.bin}/dtrun")
        os.environ["DTRUN_PROBE_WORKER"] = os.path.abspath(f"{chosen.bin}/probe_worker")
    if chosen.inside:
        return run_inside(chosen.inside)
    cases = all_cases(chosen.groups or GROUPS)
    names = [name for name in sorted(cases, key=lambda name: cases[name].alone) if not chosen.only or any(fnmatch.fnmatchcase(name, glob) for glob in chosen.only)]
    if not chosen.bin:
        print("\n".join(names))
        return 0
    unshare = laboratory.outer_command()
    if not unshare:
        print("skipped: network namespaces cannot be made here (neither root nor user namespaces, or no iproute2)")
        return SKIPPED
    failed = skipped = 0
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        together = pool.map(lambda name: play(name, chosen.bin, unshare), [name for name in names if not cases[name].alone])
        for name in names:
            code, said, seconds = play(name, chosen.bin, unshare) if cases[name].alone else next(together)
            failed += code not in (0, SKIPPED)
            skipped += code == SKIPPED
            word = {0: "passed", SKIPPED: "skipped"}.get(code, "FAILED")
            if chosen.verbose or code != 0:
                print(f"{word} {name} ({seconds:.1f} s)\n{said}", end="", flush=True)
    print(f"{len(names)} tests, {failed} failed, {skipped} skipped")
    return 1 if failed else SKIPPED if skipped == len(names) else 0


if __name__ == "__main__":
    sys.exit(main())
