#!/usr/bin/env python3
"""modes.py [--build build/dev] [--rounds 5] [--steps 12]: what a step of each data-parallel mode costs on two ranks, beside DDP.

The model is that of step/ddp.py, one thread per process. Interleaved; CPU seconds per step and process come from the kernel's
accounting (wait4), start-up taken off with a one-step run. Prints one JSON line: medians, and each mode as a multiple of DDP. The bar
is 1.05 for fsdp.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "step"))
from ddp import MODEL, cpu_seconds  # noqa: E402

MODES = {"ddp": ["--parallel", "dp=2"], "zero 1": ["--parallel", "dp=2", "--zero", "1"], "zero 2": ["--parallel", "dp=2", "--zero", "2"],
         "fsdp": ["--parallel", "fsdp=2"], "fsdp kept": ["--parallel", "fsdp=2", "--reshard-after-forward", "false"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    dtrun = str(pathlib.Path(options.build).resolve() / "bin" / "dtrun")
    milliseconds = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as logs:

        def run(mode, steps):
            command = [dtrun, "--nproc-per-node=2", "worker", "train", "--steps", str(steps), "--log-dir", logs, *MODEL, *MODES[mode]]
            return cpu_seconds([command], [None])

        for _ in range(options.rounds):
            for mode, values in milliseconds.items():
                values.append((run(mode, options.steps + 1) - run(mode, 1)) / options.steps / 2 * 1e3)
    medians = {mode: statistics.median(values) for mode, values in milliseconds.items()}
    print(json.dumps({"cpu_ms_per_step": {mode: round(value, 1) for mode, value in medians.items()},
                      "of_ddp": {mode: round(value / medians["ddp"], 3) for mode, value in medians.items()},
                      "rounds": options.rounds, "steps": options.steps}))


if __name__ == "__main__":
    main()
