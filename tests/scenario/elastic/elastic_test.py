#!/usr/bin/env python3
"""elastic_test.py DTRUN KIND [CASE ...] [--repeats N]: agents of one job on this machine that come, go and are killed; all must agree on every round.

KIND: worker (the bundled one), quick (ranks that fail at once when one is missing) or torch (a gloo program; exit 77, skipped, when there is no PyTorch). Cases are described in cases.py."""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from agents import Failed, Job
from cases import CASES
from programs import KINDS


def torch_python() -> str:
    python = os.environ.get("DTRUN_TORCH_PYTHON") or os.path.expanduser("~/.cache/dtrun-torch/bin/python")
    probe = [python, "-c", "import torch.distributed as d; assert d.is_available()"]
    if not os.access(python, os.X_OK) or subprocess.run(probe, capture_output=True, timeout=100).returncode != 0:
        print(f"skipped: no PyTorch at {python} (scripts/setup_torch.sh makes it)")
        sys.exit(77)
    return python


def run_once(case, kind, dtrun: str, python: str, repeat: int) -> dict[str, float]:
    jobs = []
    with tempfile.TemporaryDirectory(prefix="elastic") as directory:

        def start(nodes, *options):
            jobs.append(Job(dtrun, kind(pathlib.Path(directory), python), pathlib.Path(directory), nodes, *options))
            return jobs[-1]

        try:
            return case(start, repeat)
        except Failed as failure:
            raise Failed(f"{failure}\n" + "\n".join(job.story() for job in jobs)) from None
        finally:
            for job in jobs:
                job.clean_up()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtrun")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("case", nargs="*", default=list(CASES))
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    python = torch_python() if args.kind == "torch" else ""
    bad = 0
    for name in args.case:
        good, times, begin = 0, {}, time.monotonic()
        for repeat in range(args.repeats):
            try:
                for what, seconds in run_once(CASES[name], KINDS[args.kind], os.path.abspath(args.dtrun), python, repeat).items():
                    times.setdefault(what, []).append(seconds)
                good += 1
            except Failed as failure:
                print(f"{name} with {args.kind}, run {repeat + 1}: {failure}", flush=True)
        medians = ", ".join(f"{what} {statistics.median(values) * 1e3:.0f} ms" for what, values in times.items())
        print(f"{name:15} {args.kind:7} {good} of {args.repeats}  {medians}  ({(time.monotonic() - begin) / args.repeats:.1f} s a run)", flush=True)
        bad += good < args.repeats
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
