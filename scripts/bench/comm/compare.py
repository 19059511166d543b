#!/usr/bin/env python3
"""compare.py [--build DIR] [--rounds N] [--fresh] [--hosts] [BYTES...]: all-reduce of two processes on this machine: ours, torch Gloo, Open MPI's shared memory.

In place, f32 sums, processes bound to one core each. By default calls follow each other on the same tensor (as in nccl-tests); with
--fresh every rank writes its tensor again before each call, which is not timed. "ours" uses tensors of ProcessGroup::allocate(), which
is what the runtime's buckets are; "ours, private" ordinary memory, as Gloo and Open MPI do.
With --hosts over loopback TCP, as between hosts: our backend gloo, Gloo's own ring (Debian's library, on which ours stands), torch Gloo; no bars.
Interleaved (one round of each, then the next), best of all rounds and median of the medians, microseconds per call. What is not
installed is left out with a note. Exit 1 when a bar of the "Done when" list is missed: 10x Gloo up to 4 MiB, 5x at 64 MiB; ahead of
Open MPI at every size, 5x from 64 KiB up.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SIZES = [1 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20]


def measure(command):
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if out.returncode != 0:
        raise RuntimeError(f"{command[0]}: exit {out.returncode}: {out.stderr.strip()[-300:]}")
    rows = [line.split() for line in out.stdout.splitlines()]
    return {int(row[0]): (float(row[1]), float(row[2])) for row in rows if len(row) >= 3 and row[0].isdigit()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=str(HERE.parents[2] / "build" / "release"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-ms", type=int, default=200)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("sizes", type=int, nargs="*", metavar="BYTES", default=SIZES)
    arguments = parser.parse_args()
    all_sizes = arguments.sizes
    sizes, budget, fresh = [str(size) for size in all_sizes], str(arguments.budget_ms), "1" if arguments.fresh else "0"
    python = os.environ.get("DTRUN_TORCH_PYTHON", os.path.expanduser("~/.cache/dtrun-torch/bin/python"))
    with tempfile.TemporaryDirectory() as directory:
        ours = [arguments.build + "/bin/bench_comm", "--budget-ms", budget] + (["--fresh"] if arguments.fresh else [])
        if arguments.hosts:
            commands = {"ours over gloo": ours + ["--backend", "gloo"] + sizes, "gloo's ring": [arguments.build + "/bin/gloo_ring", budget] + sizes}
        else:
            commands = {"ours": ours + sizes, "ours, private": ours + ["--private"] + sizes}
        if pathlib.Path(python).exists():
            commands["gloo"] = [python, str(HERE / "gloo_all_reduce.py"), budget, fresh] + sizes
        else:
            print(f"no PyTorch at {python}: Gloo left out")
        if arguments.hosts:
            pass
        elif shutil.which("mpicc") and "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
            program = directory + "/mpi_all_reduce"
            subprocess.run(["mpicc", "-O2", str(HERE / "mpi_all_reduce.c"), "-o", program], check=True)
            commands["openmpi"] = ["mpirun", "--allow-run-as-root", "-np", "2", "--bind-to", "core", "--mca", "btl", "self,vader",
                                   program, budget, fresh] + sizes
        else:
            print("no Open MPI (apt-get install libopenmpi-dev openmpi-bin): left out")
        rounds = {name: [] for name in commands}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                rounds[name].append(measure(command))
    best = {name: {size: min(r[size][0] for r in results) for size in all_sizes} for name, results in rounds.items()}
    median = {name: {size: statistics.median(r[size][1] for r in results) for size in all_sizes} for name, results in rounds.items()}
    print(f"{'us: best (median)':>18}" + "".join(f"{name:>24}" for name in commands) + ("" if arguments.hosts else "   ratio of best"))
    missed = []
    for size in all_sizes:
        cells = "".join(f"{best[name][size]:>12.2f} ({median[name][size]:>9.2f})" for name in commands)
        ratios = []
        for other, bar in () if arguments.hosts else (("gloo", 5 if size > 4 << 20 else 10), ("openmpi", 5 if size >= 64 << 10 else 1)):
            if other in best:
                ratio = best[other][size] / best["ours"][size]
                ratios.append(f"{other} {ratio:.1f}x (bar {bar})")
                if ratio < bar:
                    missed.append(f"{size} bytes against {other}: {ratio:.2f}x, expected {bar}x")
        print(f"{size:>18}{cells}   {', '.join(ratios)}")
    if arguments.hosts:
        return 0
    print("\n".join("MISSED " + text for text in missed) if missed else "all bars hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
