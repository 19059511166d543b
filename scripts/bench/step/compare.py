#!/usr/bin/env python3
"""compare.py BENCH_STEP [--rounds N] [--steps N] [--threads N]: a GPT-2 training step of dtrun and of PyTorch, measured in turns.

BENCH_STEP is the built program bench_step. PyTorch's side is scripts/bench/step/step_torch.py under $DTRUN_TORCH_PYTHON or
~/.cache/dtrun-torch/bin/python. Prints each round, then best, median and CPU milliseconds of both and the ratios (bar: 0.80).
Exit code 77 when there is no PyTorch.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench_step", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    python = os.environ.get("DTRUN_TORCH_PYTHON", os.path.expanduser("~/.cache/dtrun-torch/bin/python"))
    if not os.access(python, os.X_OK):
        print(f"skipped: no Python with PyTorch at {python}")
        return 77
    options = ["--steps", str(args.steps), "--threads", str(args.threads)]
    sides = {"dtrun": [args.bench_step, *options], "torch": [python, HERE / "step_torch.py", *options]}
    results = {name: [] for name in sides}
    for round_ in range(args.rounds):
        for name, command in sides.items():
            out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300,
                                 env=os.environ | {"OMP_NUM_THREADS": str(args.threads)}).stdout
            results[name].append(json.loads(out.splitlines()[0]))
            print(round_, out.splitlines()[0], flush=True)
    for key, pick in (("best_ms", min), ("median_ms", statistics.median), ("cpu_ms", min)):
        ours, theirs = (pick(r[key] for r in results[name]) for name in ("dtrun", "torch"))
        print(f"{key:10} dtrun {ours:8.2f}  torch {theirs:8.2f}  ratio {ours / theirs:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
