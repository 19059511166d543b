#!/usr/bin/env python3
"""modes.py [--build build/dev] [--rounds 3] [--steps 12]: a training step of two ranks in dtrun and in PyTorch, measured in turns.

`--parallel dp=2` beside DistributedDataParallel, `fsdp=2` beside fully_shard (modes_torch.py, gloo), on the model of ddp.py; one thread
per rank; clipping and AdamW in both. Prints best and median milliseconds of a step, and CPU milliseconds of a step and rank. Without
PyTorch ($DTRUN_TORCH_PYTHON or ~/.cache/dtrun-torch/bin/python) the exit code is 77. There is no bar.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from ddp import MODEL, cpu_seconds

HERE = pathlib.Path(__file__).resolve().parent


def ours(launcher, parallel, steps):
    def run(count, logs):
        return cpu_seconds([launcher + ["worker", "train", "--parallel", parallel, "--steps", str(count), "--log-dir", logs, *MODEL]], [None])

    with tempfile.TemporaryDirectory() as logs, tempfile.TemporaryDirectory() as start:
        cpu = run(steps + 1, logs) - run(1, start)
        lines = (pathlib.Path(logs) / "0" / "steps.jsonl").read_text().splitlines()[1:]
    walls = [json.loads(line)["milliseconds"]["total"] for line in lines]
    return dict(best_ms=min(walls), median_ms=statistics.median(walls), cpu_ms=cpu / steps / 2 * 1e3)


def theirs(launcher, python, mode, steps):
    command = launcher + ["--no-python", python, str(HERE / "modes_torch.py"), mode, "--steps", str(steps)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300,
                         env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"}).stdout
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    python = os.environ.get("DTRUN_TORCH_PYTHON", os.path.expanduser("~/.cache/dtrun-torch/bin/python"))
    if not os.access(python, os.X_OK):
        print(f"skipped: no Python with PyTorch at {python}")
        return 77
    launcher = [str(pathlib.Path(args.build).resolve() / "bin" / "dtrun"), "--nproc-per-node=2"]
    results = {}
    for _ in range(args.rounds):
        for parallel, mode in (("dp=2", "ddp"), ("fsdp=2", "fsdp")):
            results.setdefault((mode, "dtrun"), []).append(ours(launcher, parallel, args.steps))
            results.setdefault((mode, "torch"), []).append(theirs(launcher, python, mode, args.steps))
    for mode in ("ddp", "fsdp"):
        for key, pick in (("best_ms", min), ("median_ms", statistics.median), ("cpu_ms", statistics.median)):
            here, there = (pick(r[key] for r in results[mode, side]) for side in ("dtrun", "torch"))
            print(f"{mode:5} {key:10} dtrun {here:8.1f}  torch {there:8.1f}  ratio {here / there:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
