#!/usr/bin/env python3
"""launch.py [DTRUN] [--repeats N] [--no-torchrun]: what starting a job costs, side by side on this machine.

Median wall time of `/bin/true` with 1, 4 and 256 workers under dtrun, mpiexec.hydra (mpich) and torchrun where they are installed, beside a
bare posix_spawn; resident memory of all launcher processes while one worker sleeps; and the gap between a worker's death and the next
attempt's start. Targets: 8 ms, 11 ms, 0.25 s; 8 MB; 20 ms. Run it on a quiet machine."""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def milliseconds(command, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def bare(count):
    start = time.perf_counter()
    pids = [os.posix_spawn("/bin/true", ["/bin/true"], os.environ) for _ in range(count)]
    for pid in pids:
        os.waitpid(pid, 0)
    return (time.perf_counter() - start) * 1e3


def descendants(pid):
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += descendants(int(child))
    return found


def resident_kib(command, worker):
    """Of every process below the command but the worker itself."""
    job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        total, deadline = 0, time.monotonic() + 30
        while time.monotonic() < deadline:
            pids = descendants(job.pid)
            names = {p: pathlib.Path(f"/proc/{p}/comm").read_text().strip() for p in pids}
            if worker in names.values():
                time.sleep(0.2)
                for p, name in names.items():
                    if name != worker:
                        total += sum(int(line.split()[1]) for line in pathlib.Path(f"/proc/{p}/status").read_text().splitlines() if line.startswith("VmRSS"))
                return total
            time.sleep(0.05)
        return None
    finally:
        job.terminate()
        job.wait(timeout=40)


def restart_gap(dtrun, restarts):
    with tempfile.NamedTemporaryFile() as events:
        subprocess.run([dtrun, f"--max-restarts={restarts}", "--events", events.name, "--no-python", "/bin/false"], stderr=subprocess.DEVNULL, timeout=120)
        last, gaps = None, []
        for line in open(events.name):
            event = json.loads(line)
            if event["event"] == "worker_end":
                last = event["monotonic"]
            elif event["event"] == "worker_start" and last is not None:
                gaps.append((event["monotonic"] - last) * 1e3)
        return statistics.median(gaps)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtrun", nargs="?", default=str(ROOT / "build/release/bin/dtrun"))
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--no-torchrun", action="store_true")
    options = parser.parse_args()
    launchers = {"dtrun": lambda n, program: [options.dtrun, f"--nproc-per-node={n}", "--no-python", *program]}
    if hydra := shutil.which("mpiexec.hydra"):
        launchers["mpiexec.hydra"] = lambda n, program: [hydra, "-n", str(n), *program]
    torchrun = os.path.expanduser("~/.cache/dtrun-torch/bin/torchrun")
    if not options.no_torchrun and os.access(torchrun, os.X_OK):
        launchers["torchrun"] = lambda n, program: [torchrun, f"--nproc-per-node={n}", "--no-python", *program]
    print(f"{'launcher':14} {'1 worker':>12} {'4 workers':>12} {'256 workers':>12} {'resident':>12}")
    print(f"{'posix_spawn':14} " + " ".join(f"{statistics.median(bare(n) for _ in range(k)):9.1f} ms" for n, k in ((1, options.repeats), (4, options.repeats // 2), (256, 5))))
    for name, command in launchers.items():
        slow = name == "torchrun"
        cells = []
        for n, repeats in ((1, options.repeats), (4, options.repeats // 2), (256, 5)):
            cells.append(f"{milliseconds(command(n, ['/bin/true']), 2 if slow else repeats):9.1f} ms" if not (slow and n == 256) else f"{'-':>12}")
        kib = resident_kib(command(1, ["/bin/sleep", "20"]), "sleep")
        print(f"{name:14} " + " ".join(cells) + f" {kib / 1024:9.1f} MB", flush=True)
    print(f"dtrun, a worker's death to the next attempt's start: {restart_gap(options.dtrun, 50):.1f} ms")


main()
