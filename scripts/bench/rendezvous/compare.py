#!/usr/bin/env python3
"""compare.py [--build DIR] [--repeats N] [--rival-repeats N] [--nodes N ...] [--limit S]: how fast several nodes find each other and notice failures.

Agents of one job on this machine, dtrun and torchrun (c10d, the same options) in turns; medians. One worker a node, a shell script that notes when it
starts, fails and is stopped. Three jobs of N nodes each:
  join       start of the last agent to the first start of a worker (in all three)
  failure    the last node's worker exits with 3: until every other worker is stopped, until every agent has ended, and their exit codes
  restart    the same with --max-restarts=1: until all workers of the next round run; CPU seconds of the agents and workers of this job, from start to end
  peer lost  --nnodes=1:N, kill -9 of the last node's agents and of its worker: until the round without it runs
What does not happen within the limit is printed as such (tried once only). At the end: messages per agent of 500 agents, by test_membership_network."""
import argparse
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

WORKER = pathlib.Path(__file__).resolve().parent / "worker.sh"
ROOT = pathlib.Path(__file__).resolve().parents[3]


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


class Note:
    def __init__(self, line: str):
        what, at, pid, node, nodes, restarts = line.split()
        self.what, self.at, self.pid, self.node, self.nodes, self.restarts = what, float(at), int(pid), int(node), int(nodes), int(restarts)


class Job:
    def __init__(self, launcher: list[str], nodes: int, range_text: str, limit: float, *options: str):
        self.nodes, self.limit = nodes, limit
        self.directory = tempfile.TemporaryDirectory(prefix="rendezvous")
        argv = [*launcher, "--rdzv-backend=c10d", f"--nnodes={range_text}", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=bench", *options,
                "--no-python", str(WORKER), self.directory.name]
        self.agents, self.codes, self.cpu = [], {}, 0.0
        for node in range(nodes):
            self.last_start = time.time()
            # Ranks follow the addresses.
            words = [argv[0], f"--local-addr=127.0.0.{node + 1}", *argv[1:]]
            self.agents.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(0.5 if "torchrun" in argv[0] else 0.05)  # the first one hosts

    def notes(self) -> list[Note]:
        return [Note(line) for path in pathlib.Path(self.directory.name).glob("notes.*") for line in path.read_text().splitlines() if line.count(" ") == 5]

    def until(self, condition, limit: float):
        """What the condition returned, or None after the limit."""
        end = time.monotonic() + limit
        while not (result := condition(self.notes())) and time.monotonic() < end:
            self.reap()
            time.sleep(0.005)
        return result or None

    def reap(self):
        for agent in self.agents:
            if agent.pid in self.codes:
                continue
            pid, status, usage = os.wait4(agent.pid, os.WNOHANG)
            if pid:
                agent.returncode = os.waitstatus_to_exitcode(status)
                self.codes[pid] = (agent.returncode, time.time())
                self.cpu += usage.ru_utime + usage.ru_stime

    def round(self, nodes: int, after: float = 0):
        """The workers of a round of so many nodes that started after this time."""
        return self.until(lambda notes: (found := [n for n in notes if n.what == "started" and n.nodes == nodes and n.at > after]) and len(found) == nodes
                          and sorted(found, key=lambda note: note.node), self.limit if after else 60)

    def all_out(self, limit: float) -> bool:
        end = time.monotonic() + limit
        while len(self.codes) < self.nodes and time.monotonic() < end:
            self.reap()
            time.sleep(0.002)
        return len(self.codes) == self.nodes

    def clean_up(self):
        for agent in self.agents:
            if agent.pid not in self.codes:
                for child in children(agent.pid):
                    quietly_kill(child)
                agent.kill()
                agent.wait()
        living = {n.pid for n in self.notes() if n.what == "started"} - {n.pid for n in self.notes() if n.what != "started"}
        for pid in living:
            if is_ours(pid, self.directory.name):
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        self.directory.cleanup()


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_ours(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def quietly_kill(pid: int):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def join_time(job: Job):
    begun = job.round(job.nodes)
    if begun is None:
        raise SystemExit("rendezvous: a first round did not start")
    return begun, min(note.at for note in begun) - job.last_start


def failure(launcher, nodes, limit):
    job = Job(launcher, nodes, str(nodes), limit)
    try:
        begun, join = join_time(job)
        os.kill(begun[-1].pid, signal.SIGUSR1)
        failed = job.until(lambda notes: [n.at for n in notes if n.what == "failed"], 5)[0]
        stopped = job.until(lambda notes: len(found := [n.at for n in notes if n.what == "stopped"]) == nodes - 1 and found, limit)
        out = job.all_out(limit if stopped else 0)
        codes = "/".join(str(job.codes[a.pid][0]) if a.pid in job.codes else "runs" for a in job.agents)
        return {"join": join, "stopped": stopped and max(stopped) - failed, "all out": max(at for _, at in job.codes.values()) - failed if out else None,
                "codes": codes}
    finally:
        job.clean_up()


def restart(launcher, nodes, limit):
    job = Job(launcher, nodes, str(nodes), limit, "--max-restarts=1")
    try:
        begun, join = join_time(job)
        os.kill(begun[-1].pid, signal.SIGUSR1)
        failed = job.until(lambda notes: [n.at for n in notes if n.what == "failed"], 5)[0]
        again = job.round(nodes, failed)
        for note in again or []:
            os.kill(note.pid, signal.SIGUSR2)
        done = job.all_out(limit) if again else False
        return {"join": join, "restart": again and max(n.at for n in again) - failed, "cpu": job.cpu if done else None}
    finally:
        job.clean_up()


def peer_lost(launcher, nodes, limit):
    job = Job(launcher, nodes, f"1:{nodes}", limit)
    try:
        begun, join = join_time(job)
        victims = [job.agents[-1].pid, *children(job.agents[-1].pid), begun[-1].pid]
        killed = time.time()
        for pid in dict.fromkeys(victims):
            quietly_kill(pid)
        again = job.round(nodes - 1, killed)
        return {"join": join, "peer lost": again and max(n.at for n in again) - killed}
    finally:
        job.clean_up()


ROWS = ("join", "stopped", "all out", "restart", "peer lost", "cpu", "codes")
TEXT = {"join": "last agent's start to first worker", "stopped": "failure to other workers stopped", "all out": "failure to all agents out",
        "restart": "failure to next round running", "peer lost": "kill -9 of a node to next round", "cpu": "CPU of a job with one restart",
        "codes": "exit codes after the failure"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=next((ROOT / "build" / p for p in ("release", "dev") if (ROOT / "build" / p / "bin/dtrun").exists()), None))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rival-repeats", type=int, default=3)
    parser.add_argument("--nodes", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--limit", type=float, default=30)
    args = parser.parse_args()
    if args.build is None:
        sys.exit("rendezvous: build dtrun first, or give --build DIR")
    launchers = {"dtrun": [str(args.build / "bin/dtrun")]}
    torchrun = pathlib.Path(os.environ.get("DTRUN_TORCH_PYTHON", "~/.cache/dtrun-torch/bin/python")).expanduser().parent / "torchrun"
    if torchrun.exists():
        launchers["torchrun"] = [str(torchrun)]
    measured: dict[tuple[int, str, str], list] = {}
    for repeat in range(args.repeats):
        for nodes in args.nodes:
            for name, launcher in launchers.items():
                if name == "torchrun" and repeat >= args.rival_repeats:
                    continue
                for run in (failure, restart, peer_lost):
                    if any(None in measured.get((nodes, name, row), []) for row in {failure: ["stopped"], restart: ["restart"], peer_lost: ["peer lost"]}[run]):
                        continue  # the limit is long
                    for row, value in run(launcher, nodes, args.limit).items():
                        measured.setdefault((nodes, name, row), []).append(value)
    print(f"{'':36}" + "".join(f"{f'{name}, {nodes} nodes':>20}" for nodes in args.nodes for name in launchers))
    for row in ROWS:
        cells = []
        for nodes in args.nodes:
            for name in launchers:
                values = measured.get((nodes, name, row), [])
                if not values or None in values:
                    cells.append("-" if not values or row == "cpu" else f"never ({args.limit:g} s)")
                elif row == "codes":
                    cells.append(" ".join(sorted(set(values))))
                else:
                    middle = statistics.median(values)
                    cells.append(f"{middle:.2f} s" if row == "cpu" or middle >= 1 else f"{middle * 1e3:.1f} ms")
        print(f"{TEXT[row]:36}" + "".join(f"{cell:>20}" for cell in cells))
    five_hundred = args.build / "bin/test_membership_network"
    if five_hundred.exists():
        done = subprocess.run([five_hundred, "five hundred agents*"], capture_output=True, text=True, timeout=120)
        print("\n" + "\n".join(line.strip() for line in done.stdout.splitlines() if " agents: " in line))
    else:
        print("\n500 agents: build test_membership_network for the messages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
