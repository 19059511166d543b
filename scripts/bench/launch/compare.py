#!/usr/bin/env python3
"""compare.py [--dtrun PATH] [--repeats N] [--only NAME ...] [--check]: what starting a job costs, dtrun beside torchrun and mpiexec.hydra.

Rows, all interleaved (one run of each in turn), median wall time from start to exit:
  fork+exec   /bin/true by itself: the floor
  dtrun       dtrun --nproc-per-node=N --no-python /bin/true, with 1 and 4 workers (and 256 with --many)
  hydra       mpiexec.hydra -n N /bin/true (mpich), where it is installed
  torchrun    torchrun --nproc-per-node=N --no-python /bin/true, where it is installed; few runs, it takes seconds
Then the memory of the launcher's own processes while one `sleep` worker runs: the sum of VmRSS, and of Pss (shared pages counted once),
and for dtrun a thousand restarts: the time for all, and the gap between a worker's death and the start of the next attempt.
--check fails when dtrun misses its bars: 8 ms with one worker, 11 ms with four, 8 MB resident, 250 ms with 256, 20 ms between attempts.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

BARS_MS = {1: 8.0, 4: 11.0, 256: 250.0}
BAR_RSS_MB = 8.0
BAR_RESTART_GAP_MS = 20.0
RESTARTS = 1000


def find_programs(args) -> dict[str, list[str]]:
    root = pathlib.Path(__file__).resolve().parents[3]
    candidates = [args.dtrun] if args.dtrun else [root / "build" / p / "bin" / "dtrun" for p in ("release", "dev")]
    dtrun = next((str(c) for c in candidates if c and pathlib.Path(c).exists()), None)
    if dtrun is None:
        sys.exit("launch: no dtrun found: build it, or give --dtrun PATH")
    found = {"dtrun": [dtrun, "--nproc-per-node={n}", "--no-python"]}
    hydra = shutil.which("mpiexec.hydra")
    if hydra:
        found["hydra"] = [hydra, "-n", "{n}"]
    torchrun = pathlib.Path("~/.cache/dtrun-torch/bin/torchrun").expanduser()
    if torchrun.exists():
        found["torchrun"] = [str(torchrun), "--nproc-per-node={n}", "--no-python"]
    return {name: argv for name, argv in found.items() if not args.only or name in args.only}


def start(argv: list[str]) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
    os.close(null)
    return pid


def wall_ms(argv: list[str]) -> float:
    begin = time.perf_counter()
    _, status = os.waitpid(start(argv), 0)
    took = (time.perf_counter() - begin) * 1e3
    if status != 0:
        sys.exit(f"launch: {' '.join(argv)}: wait status {status}")
    return took


def command(argv: list[str], n: int, *program: str) -> list[str]:
    return [word.format(n=n) for word in argv] + list(program)


def measure_walls(programs, counts, repeats) -> dict[tuple[str, int], list[float]]:
    walls: dict[tuple[str, int], list[float]] = {("fork+exec", 1): []}
    for n in counts:
        for name in programs:
            walls[(name, n)] = []
    for i in range(repeats):
        walls[("fork+exec", 1)].append(wall_ms(["/bin/true"]))
        for (name, n), values in walls.items():
            # torchrun takes seconds and varies little; 256 ranks take long, too.
            slow = name == "torchrun" or n > 16
            if name != "fork+exec" and not (slow and i >= 3) and not (name == "torchrun" and n > 16):
                values.append(wall_ms(command(programs[name], n, "/bin/true")))
    return walls


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def kilobytes(path: str, key: str) -> int:
    try:
        for line in pathlib.Path(path).read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def is_worker(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith(("/sleep", "/coreutils"))
    except OSError:
        return False


def measure_memory(argv: list[str]) -> tuple[float, float, int]:
    """VmRSS and Pss in MB, number of processes; the worker itself not counted."""
    root = start(command(argv, 1, "/bin/sleep", "600"))
    try:
        deadline = time.monotonic() + 60
        while not any(is_worker(p) for p in descendants(root)):
            if time.monotonic() > deadline:
                sys.exit(f"launch: {argv[0]}: its worker did not start within 60 s")
            time.sleep(0.01)
        time.sleep(0.3)  # the launcher comes to rest
        own = [p for p in descendants(root) if not is_worker(p)]
        rss = sum(kilobytes(f"/proc/{p}/status", "VmRSS") for p in own)
        pss = sum(kilobytes(f"/proc/{p}/smaps_rollup", "Pss") for p in own)
        return rss / 1024, pss / 1024, len(own)
    finally:
        os.kill(root, signal.SIGTERM)
        os.waitpid(root, 0)


def measure_restarts(dtrun: str, restarts: int) -> tuple[float, float]:
    """Median ms from the end of a failing worker to the start of its successor, as --events tells, and seconds for all."""
    with tempfile.NamedTemporaryFile() as events:
        argv = [dtrun, f"--max-restarts={restarts}", "--events", events.name, "--no-python", "/bin/false"]
        begin = time.perf_counter()
        subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
        took = time.perf_counter() - begin
        ended, gaps = None, []
        for line in pathlib.Path(events.name).read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "worker_ended":
                ended = event["monotonic"]
            elif event["event"] == "worker_started" and ended is not None:
                gaps.append((event["monotonic"] - ended) * 1e3)
    if len(gaps) != restarts:
        sys.exit(f"launch: {dtrun} restarted its worker {len(gaps)} times, expected {restarts}")
    return statistics.median(gaps), took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtrun")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--many", action="store_true", help="also 256 workers")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    programs = find_programs(args)
    counts = [1, 4] + ([256] if args.many else [])
    misses = []
    print(f"{'launcher':10} {'workers':>7} {'median ms':>10} {'p10':>9} {'p90':>9} {'runs':>5}")
    for (name, n), values in measure_walls(programs, counts, args.repeats).items():
        if not values:
            continue
        values.sort()
        median = statistics.median(values)
        print(f"{name:10} {n:7} {median:10.2f} {values[len(values) // 10]:9.2f} {values[len(values) * 9 // 10]:9.2f} {len(values):5}")
        if name == "dtrun" and median > BARS_MS[n]:
            misses.append(f"{median:.2f} ms with {n} workers, bar {BARS_MS[n]}")
    print(f"\n{'launcher':10} {'RSS MB':>8} {'Pss MB':>8} {'processes':>10}   (one sleeping worker, not counted)")
    for name, argv in programs.items():
        rss, pss, count = measure_memory(argv)
        print(f"{name:10} {rss:8.1f} {pss:8.1f} {count:10}")
        if name == "dtrun" and rss > BAR_RSS_MB:
            misses.append(f"{rss:.1f} MB resident, bar {BAR_RSS_MB}")
    if "dtrun" in programs:
        gap, took = measure_restarts(programs["dtrun"][0], RESTARTS)
        print(f"\ndtrun: {RESTARTS} restarts in {took:.1f} s; {gap:.1f} ms from a worker's death to the next attempt's start (median)")
        if gap > BAR_RESTART_GAP_MS:
            misses.append(f"{gap:.1f} ms between attempts, bar {BAR_RESTART_GAP_MS}")
    for miss in misses:
        print("MISSED:", miss)
    return 1 if misses and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
