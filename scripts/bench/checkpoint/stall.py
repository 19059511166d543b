#!/usr/bin/env python3
"""stall.py [--build build/dev] [--rounds 3] [--steps 24] [--every 4]: what saving costs a step, on two ranks.

The model is that of step/ddp.py. Interleaved: without saving, with a checkpoint after every 4th step, and with states in memory after every
step (--max-restarts). Prints one JSON line: medians of the time of a step; for checkpoints how long a step waited for one, and how long the
copy into host memory took, which is all that it should wait for; for memory how long a step waited.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "step"))
from ddp import MODEL  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=4)
    options = parser.parse_args()
    dtrun = str(pathlib.Path(options.build).resolve() / "bin" / "dtrun")
    reports = {"nothing": [], "checkpoints": [], "memory": []}
    with tempfile.TemporaryDirectory() as directory:

        def run(what):
            report = f"{directory}/report.json"
            launcher = ["--max-restarts=1"] if what == "memory" else []
            saving = ["--checkpoint-dir", f"{directory}/saved", "--resume", "none", "--checkpoint-every", str(options.every)]
            subprocess.run([dtrun, "--nproc-per-node=2", *launcher, "worker", "train", "--steps", str(options.steps), "--log-dir", directory,
                            "--report", report, *MODEL, *(saving if what == "checkpoints" else [])], check=True, stdout=subprocess.DEVNULL)
            return json.loads(pathlib.Path(report).read_text())

        for _ in range(options.rounds):
            for what, values in reports.items():
                values.append(run(what))

    def median(what, value):
        return round(statistics.median(value(report) for report in reports[what]), 2)

    saved = "checkpoints"
    print(json.dumps({
        "step_ms": {what: median(what, lambda report: report["seconds"] / report["steps"] * 1e3) for what in reports},
        "checkpoint": {"mb_of_rank_0": median(saved, lambda r: r["saving"]["bytes_written"] / r["saving"]["checkpoints"] / 1e6),
                       "stall_ms": median(saved, lambda r: r["saving"]["stall_ms"] / r["saving"]["checkpoints"]),
                       "copy_ms": median(saved, lambda r: r["saving"]["copy_ms"] / r["saving"]["checkpoints"])},
        "memory_ms_per_step": median("memory", lambda r: r["saving"]["memory_ms"] / r["steps"]),
        "rounds": options.rounds, "steps": options.steps}))


if __name__ == "__main__":
    main()
