#!/usr/bin/env python3
"""start.py [--build build/release] [--rounds 40]: what `--device auto` costs at the start of a worker on a machine without a GPU.

A model of one tiny layer trains one step, in turns with --device cpu and --device auto: the second one loads libdtrun_cuda.so and asks
it for devices first. Prints one JSON line: medians of the CPU time (user and system) and of the time from start to end of the whole
program, in milliseconds, and the median of the differences of the pairs.
"""
import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time

MODEL = ["--layers", "1", "--hidden", "16", "--heads", "1", "--seq-len", "16", "--batch-size", "1", "--vocab-size", "256", "--steps", "1"]


def run(command, scratch):
    """CPU and elapsed milliseconds of one run."""
    start = time.monotonic()
    pid = os.posix_spawn(command[0], command, {**os.environ, "TMPDIR": scratch}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)])
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        raise SystemExit(f"start.py: {' '.join(command)} ended with status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1e3, (time.monotonic() - start) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    worker = str(pathlib.Path(options.build).resolve() / "bin" / "dtrun-worker")
    results = {"cpu": [], "auto": []}
    with tempfile.TemporaryDirectory() as scratch:
        for round_number in range(-2, options.rounds):  # two to warm up
            for device, kept in results.items():
                figures = run([worker, "train", "--standalone", "--device", device, *MODEL], scratch)
                if round_number >= 0:
                    kept.append(figures)
    answer = {}
    for place, name in enumerate(("cpu_ms", "elapsed_ms")):
        for device, kept in results.items():
            answer[f"{device}_{name}"] = round(statistics.median(figures[place] for figures in kept), 2)
        answer[f"auto_adds_{name}"] = round(statistics.median(a[place] - c[place] for c, a in zip(results["cpu"], results["auto"])), 2)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
