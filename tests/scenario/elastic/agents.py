"""A job of several dtrun agents on this machine, each with an address of its own in 127.0.0.0/8, seen through what they write: events, report, output."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

# What an agent may say in a job that ends well.
EXPECTED_LINES = re.compile(
    r"dtrun: (\S+ (joins|is lost: its connection ended|leaves: its dtrun was killed|leaves: \S+ was stopped by SIGTERM); (a new round follows|waiting for \d+ more nodes?)"
    r"|this node is a spare: the job has its \d+ nodes; it takes the place of one that is lost"
    r"|rank \d+ on \S+ \(pid \d+\) failed: .*; restart \d+ of \d+ follows"
    r"|(restart|round) \d+ took [\d.]+ s from .*"
    r"|waiting for nodes: \d+ of \d+ are here, \d+ s of \d+ s)")


class Failed(Exception):
    pass


def free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return chosen.getsockname()[1]


def until(condition, limit: float, what: str):
    end = time.monotonic() + limit
    while not (result := condition()):
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {limit:g} s")
        time.sleep(0.01)
    return result


class Agent:
    def __init__(self, address: str, directory: pathlib.Path, argv: list[str], environment: dict[str, str]):
        self.address, self.directory = address, directory
        directory.mkdir()
        self.started, self.killed = time.time(), False
        argv = [*argv[:1], f"--local-addr={address}", "--events", str(directory / "events"), "--report", str(directory / "report"), *argv[1:]]
        with open(directory / "out", "wb") as out, open(directory / "err", "wb") as err:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=directory)

    def text(self, name: str) -> str:
        path = self.directory / name
        return path.read_text(errors="replace") if path.exists() else ""

    def events(self) -> list[dict]:
        return [json.loads(line) for line in self.text("events").splitlines(keepends=True) if line.endswith("\n")]

    def attempts(self) -> dict[int, dict]:
        """Of each round: what its events say, with the pids of its workers."""
        result: dict[int, dict] = {}
        for event in self.events():
            if event["event"] == "rendezvous":
                place = event | {"pids": []}
            elif event["event"] == "assignment":
                result[event["attempt"]] = place | event
            elif event["event"] == "worker_started":
                result[event["attempt"]]["pids"].append(event["pid"])
                result[event["attempt"]]["ready"] = event["time"]
        return result

    def own_lines(self) -> list[str]:
        return [line for line in self.text("err").splitlines() if line.startswith("dtrun:")]

    def kill(self, way: int):
        """The agent, the guardian, or both at the same moment."""
        guardian = self.process.pid
        agents = pathlib.Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
        victims = [[int(pid) for pid in agents], [guardian], [guardian, *map(int, agents)]][way % 3]
        self.killed = True
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    def wait(self, limit: float) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.address} did not end within {limit:g} s") from None


class Job:
    def __init__(self, dtrun: str, program, directory: pathlib.Path, nodes: str, *options: str, host: str = "127.0.0.1"):
        self.program, self.directory, self.agents = program, directory, []
        self.last_round = -1
        self.id = f"elastic-{os.getpid()}-{directory.name}"
        self.argv = [dtrun, f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={self.id}",
                     "--rdzv-conf=last_call_timeout=1,join_timeout=60", *options, *program.words]
        placed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
        self.environment = {name: value for name, value in os.environ.items() if name not in placed} | program.environment

    def start(self, *addresses: str) -> list[Agent]:
        """The first one of a job hosts its coordinator."""
        new, port = [], int(self.argv[3].rpartition(":")[2])
        for address in addresses:
            new.append(Agent(address, self.directory / f"agent{len(self.agents)}", self.argv, self.environment))
            self.agents.append(new[-1])
            if len(self.agents) == 1:
                until(lambda: listens(port), 10, "the first agent listens")
        return new

    def round_of(self, members: list[Agent], restarts: int = 0, after: float = 0) -> "Round":
        """Waits for a new round that has these nodes, in this order, and whose ranks have met; checks what everybody says of it."""

        def complete():
            for agent in members:
                if agent.process.poll() is not None:
                    raise Failed(f"{agent.address} ended with {agent.process.returncode} instead of having a round")
            shared = set.intersection(*(set(agent.attempts()) for agent in members))
            if not shared or max(shared) <= self.last_round:
                return None
            found = Round(max(shared), members)
            others = [agent for agent in self.agents if agent not in members and found.number in agent.attempts()]
            whole = not others and all(len(place["pids"]) == place["local_ranks"] for place in found.places)
            return found if whole and self.program.met(found.pids, members[0].text("out")) else None

        found = until(complete, self.program.start_limit, f"a round of {[agent.address for agent in members]}")
        found.check(restarts)
        self.last_round = found.number
        if after:
            found.delay = max(place["ready"] for place in found.places) - after
        return found

    def until_spare(self, agent: Agent):
        until(lambda: any("is a spare" in line for line in agent.own_lines()), 10, f"{agent.address} says that it is a spare")

    def end_well(self, last: "Round", *, restarts: int = 0):
        self.program.end_well(last.pids)
        self.expect_end(0, restarts)

    def expect_end(self, code: int, restarts: int):
        ended = {agent.address: agent.wait(15) for agent in self.agents if not agent.killed}
        allowed = {code} if code == 0 else {code, self.program.code_of_the_bereaved}
        if len(set(ended.values())) != 1 or not set(ended.values()) <= allowed:
            raise Failed(f"ended with {ended}, expected the same of {allowed}")
        for agent in self.agents:
            if not agent.killed:
                self.check_records(agent, ended[agent.address], restarts)
        if mistakes := self.program.mistakes():
            raise Failed("; ".join(mistakes))
        until(lambda: not self.left_over(), 5, "no process is left")

    def check_records(self, agent: Agent, code: int, restarts: int):
        report, events = json.loads(agent.text("report")), agent.events()
        rounds = list(agent.attempts())
        seen = {
            "the attempts of the report are the rounds of the events": [entry["attempt"] for entry in report["attempts"]] == rounds,
            "why each round but the last ended": ["ended_because" in entry for entry in report["attempts"]] == [number != rounds[-1] for number in rounds],
            "the report's exit code": report["exit_code"] == code and report["outcome"] == ("success" if code == 0 else "failure"),
            "the restarts of the report": report["restarts_used"] == (restarts if rounds else 0),
            "a verdict at the end of the events": events[-1]["event"] == "verdict" and events[-1]["exit_code"] == code,
            "a failure is told on one node only": code == 0 or (report["root_cause"] is None) != (report["failure_elsewhere"] is None),
        }
        for what, holds in seen.items():
            if not holds:
                raise Failed(f"{agent.address}: {what}: {json.dumps(report)}")
        strange = [line for line in agent.own_lines() if not EXPECTED_LINES.fullmatch(line)]
        if code == 0 and strange:
            raise Failed(f"{agent.address} says {strange}")

    def left_over(self) -> list[int]:
        mark, found = f"TORCHELASTIC_RUN_ID={self.id}\0".encode(), []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def clean_up(self):
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.kill()
                agent.process.wait(10)
        until(lambda: not self.left_over(), 10, "no process is left")

    def story(self) -> str:
        lines = []
        for agent in self.agents:
            lines.append(f"--- {agent.address}, exit code {agent.process.poll()}, rounds {agent.attempts()}")
            lines += agent.text("err").splitlines()[-40:] + agent.text("out").splitlines()[-10:]
        return "\n".join(lines)


def listens(port: int) -> bool:
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in map(str.split, lines))


class Round:
    def __init__(self, number: int, members: list[Agent]):
        self.number, self.delay, self.places = number, 0.0, [agent.attempts()[number] for agent in members]
        self.pids = [pid for place in self.places for pid in place["pids"]]
        self.members = members

    def check(self, restarts: int):
        first_rank, world = 0, sum(place["local_ranks"] for place in self.places)
        for index, (agent, place) in enumerate(zip(self.members, self.places)):
            told = tuple(place[name] for name in ("nodes", "node_rank", "first_rank", "world_size", "restarts", "master_addr", "master_port"))
            expected = (len(self.members), index, first_rank, world, restarts, self.members[0].address, self.places[0]["master_port"])
            if told != expected:
                raise Failed(f"round {self.number} of {agent.address}: {told}, expected {expected}")
            first_rank += place["local_ranks"]
