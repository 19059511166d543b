"""One dtrun for each node of a job: started, hurt, looked at. Times are time.monotonic(), which is also `monotonic` of the events."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import uuid

from lab import address_of, until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from marked_processes import marked_processes  # noqa: E402

DTRUN = os.environ["DTRUN_PROGRAM"]
PROBE = os.environ["DTRUN_PROBE_WORKER"]
PORT = 29400  # the network is ours
ENTRY = "LAB_DTRUN="


class Dtrun:
    """A dtrun on a node."""

    def __init__(self, lab, node, command, environment=None):
        self.node, self.mark = node, ENTRY + uuid.uuid4().hex
        base = lab.path(f"{node.name}.{self.mark[-6:]}")
        self.events_path, self.report_path, self.out_path, self.error_path = (f"{base}.{kind}" for kind in ("events", "report", "out", "err"))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "SLURM_", "DTRUN_"))}
        everything = inherited | {"TMPDIR": lab.directory_for("tmp")} | dict([self.mark.split("=")]) | (environment or {})
        command = [DTRUN, f"--events={self.events_path}", f"--report={self.report_path}", *command]
        with open(self.out_path, "wb") as out, open(self.error_path, "wb") as error:
            self.process = subprocess.Popen(node.inside(*command), env=everything, stdin=subprocess.DEVNULL, stdout=out, stderr=error)
        self.started_at, self.ended_at = time.monotonic(), None
        self.waiter = threading.Thread(target=self._wait, daemon=True)
        self.waiter.start()

    def _wait(self):
        self.process.wait()
        self.ended_at = time.monotonic()

    def wait(self, limit):
        """Its exit code."""
        self.waiter.join(limit)
        if self.ended_at is None:
            raise AssertionError(f"dtrun on {self.node.name} did not end within {limit} s")
        return self.process.returncode

    @property
    def running(self):
        return self.ended_at is None

    @property
    def agent(self):
        """The guardian's only child."""
        return int(until(lambda: pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split(), 5, "an agent")[0])

    def kill_agent(self):
        return self._send(self.agent, signal.SIGKILL)

    def kill_guardian(self):
        return self._send(self.process.pid, signal.SIGKILL)

    def signal(self, name):
        return self._send(self.process.pid, getattr(signal, "SIG" + name))

    @staticmethod
    def _send(pid, number):
        """The moment before."""
        moment = time.monotonic()
        os.kill(pid, number)
        return moment

    def processes(self):
        return marked_processes(self.mark)

    def events(self, *kinds):
        try:
            lines = pathlib.Path(self.events_path).read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [event for event in map(json.loads, lines) if not kinds or event["event"] in kinds]

    def after(self, moment, kind, limit, **fields):
        """The first such event since a moment."""
        def found():
            return next((event for event in self.events(kind)
                         if event["monotonic"] >= moment and all(event[name] == value for name, value in fields.items())), None)
        return until(found, limit, f"{kind} {fields} on {self.node.name}")

    @property
    def report(self):
        return json.loads(pathlib.Path(self.report_path).read_text())

    @property
    def error(self):
        return pathlib.Path(self.error_path).read_text(errors="replace")

    @property
    def error_lines(self):
        return self.error.splitlines()

    @property
    def out_lines(self):
        return pathlib.Path(self.out_path).read_text(errors="replace").splitlines()


class Job:
    """Several nodes with the same command line. `nodes` in front of the options: --nnodes."""

    def __init__(self, lab, nnodes, options=(), program=(PROBE, "forever"), endpoint=None, token=True, conf=""):
        self.lab, self.all = lab, []
        lab.jobs.append(self)
        self.endpoint = endpoint or f"{address_of(0)}:{PORT}"
        self.command = [f"--nnodes={nnodes}", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={self.endpoint}", *options]
        if conf:
            self.command.append(f"--rdzv-conf={conf}")
        if token:
            self.command.append(f"--rdzv-token-file={token_file(lab, 'secret of the lab')}")
        self.program = list(program)

    def start(self, *numbers, program=None, options=(), environment=None):
        """The dtrun of each node, in this order."""
        started = []
        for number in numbers:
            words = [*self.command, *options, *(program or self.program)]
            started.append(Dtrun(self.lab, self.lab.nodes[number], words, environment))
        self.all += started
        return started if len(started) > 1 else started[0]

    def describe(self):
        """For whoever reads of a failed test."""
        for dtrun in self.all:
            state = "runs" if dtrun.running else f"exit code {dtrun.process.returncode} at {dtrun.ended_at:.3f}"
            yield f"{dtrun.node.name}: {state}, started at {dtrun.started_at:.3f}"
            yield from (f"  | {line}" for line in dtrun.error_lines[-30:])
            yield from (f"  > {line}" for line in dtrun.out_lines[-5:])
            yield from (f"  . {event['monotonic']:.3f} " + " ".join(f"{name}={value}" for name, value in event.items() if name not in (
                "schema", "sequence", "time", "monotonic", "run_id")) for event in dtrun.events()[-40:])


def token_file(lab, secret, name="token"):
    path = lab.path(name)
    if not os.path.exists(path):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(secret + "\n")
    return path


def start_workers(dtruns, workers, round_number=0, limit=10):
    """Until all of them run that many workers of this round."""
    def running(dtrun):
        return sum(event["attempt"] == round_number for event in dtrun.events("worker_started")) == workers
    until(lambda: all(running(dtrun) for dtrun in dtruns), limit, f"{workers} workers in round {round_number} on each node")
