#!/usr/bin/env python3
"""tp.py [--build build/release] [--parallel tp=2] [--steps 20] [-- ARGUMENTS OF worker train]: the share of a tensor-parallel step that is
communication.

Two ranks of one thread each train the model below; every rank's step log says how long a step and its collectives over tp took. A rank
that is ahead waits in a collective for the other one, so of each step the rank counts that spent less: the time that communication
itself takes, and what both wait for. Prints one JSON line: medians over the steps but the first two. The bar is a share of 0.05.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

MODEL = ["--layers", "4", "--hidden", "768", "--heads", "12", "--seq-len", "128", "--batch-size", "4", "--vocab-size", "8192"]


def main():
    arguments = sys.argv[1:]
    more = arguments[arguments.index("--") + 1:] if "--" in arguments else []
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--parallel", default="tp=2")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments[:len(arguments) - len(more) - 1] if "--" in arguments else arguments)
    dtrun = pathlib.Path(options.build).resolve() / "bin" / "dtrun"
    with tempfile.TemporaryDirectory() as logs:
        command = [str(dtrun), "--nproc-per-node=2", "worker", "train", "--parallel", options.parallel, "--steps", str(options.steps),
                   "--log-dir", logs, *MODEL, *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
        ranks = [[json.loads(line) for line in (pathlib.Path(logs) / str(rank) / "steps.jsonl").read_text().splitlines()]
                 for rank in range(2)]
    steps = list(zip(*ranks))[2:]
    communication = [min(rank["milliseconds"]["tensor_parallel"] for rank in step) for step in steps]
    total = [max(rank["milliseconds"]["total"] for rank in step) for step in steps]
    print(json.dumps({"step_ms": round(statistics.median(total), 1), "communication_ms": round(statistics.median(communication), 2),
                      "share": round(statistics.median(c / t for c, t in zip(communication, total)), 4),
                      "best_share": round(min(c / t for c, t in zip(communication, total)), 4),
                      "tp_mib_per_step": round(ranks[0][-1]["bytes_sent"]["tp"] / 2**20, 2)}))


if __name__ == "__main__":
    main()
