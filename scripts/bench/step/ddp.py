#!/usr/bin/env python3
"""ddp.py [--build build/dev] [--rounds 3] [--steps 12]: what two data-parallel ranks cost beside two processes that do not talk.

The model is that of runtime.md section 10 (4 layers, hidden 256, 128 tokens, 8 sequences, vocabulary 4096, f32, AdamW), one thread per
process. Interleaved; CPU seconds per step and process come from the kernel's accounting (wait4), start-up taken off with a one-step
run. Prints one JSON line: medians, and efficiency = no-comm / DDP. The bar is 0.97.
"""
import argparse
import json
import os
import pathlib
import statistics
import tempfile

MODEL = ["--layers", "4", "--hidden", "256", "--heads", "4", "--seq-len", "128", "--batch-size", "8", "--vocab-size", "4096"]


def cpu_seconds(commands, cores):
    """Runs the commands at once, each on its core when given one; the CPU seconds of all their processes."""
    pids = []
    for command, core in zip(commands, cores):
        pid = os.fork()
        if pid == 0:
            if core is not None:
                os.sched_setaffinity(0, {core})
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.execv(command[0], command)
        pids.append(pid)
    cpu = 0.0
    for pid in pids:
        _, status, usage = os.wait4(pid, 0)
        if status != 0:
            raise SystemExit(f"a run failed with status {status}")
        cpu += usage.ru_utime + usage.ru_stime
    return cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    binaries = pathlib.Path(options.build).resolve() / "bin"
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two cores are needed")
    with tempfile.TemporaryDirectory() as logs:

        def alone(steps):
            command = [str(binaries / "dtrun-worker"), "train", "--standalone", "--steps", str(steps), "--log-dir", logs, *MODEL]
            return cpu_seconds([command, command], cores)

        def ranks(steps):
            command = [str(binaries / "dtrun"), "--nproc-per-node=2", "worker", "train", "--steps", str(steps), "--log-dir", logs, *MODEL]
            return cpu_seconds([command], [None])

        results = {"no_comm": [], "ddp": []}
        for _ in range(options.rounds):
            for name, run in (("no_comm", alone), ("ddp", ranks)):
                results[name].append((run(options.steps + 1) - run(1)) / options.steps / 2 * 1e3)
    medians = {name: statistics.median(values) for name, values in results.items()}
    print(json.dumps({"cpu_ms_per_step": {name: round(value, 1) for name, value in medians.items()},
                      "best": {name: round(min(values), 1) for name, values in results.items()},
                      "efficiency": round(medians["no_comm"] / medians["ddp"], 4),
                      "rounds": options.rounds, "steps": options.steps}))


if __name__ == "__main__":
    main()
