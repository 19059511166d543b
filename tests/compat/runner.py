"""Runs one scenario in a directory of its own: D/cwd (working directory, programs), D/record (what workers wrote down), D/tmp (TMPDIR),
D/logs (only if an option names it), D/out.N and D/err.N (the console of launcher N)."""
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from marked_processes import marked_processes  # noqa: E402

PROGRAMS = pathlib.Path(__file__).parent / "programs"
CLEAN_UP_LIMIT = 5  # seconds until nothing of a job may be left


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Runner:
    def __init__(self, scenario, launcher):
        self.scenario, self.launcher = scenario, launcher
        self.mark = "PROBE_TOKEN=" + uuid.uuid4().hex
        self.directory = os.path.realpath(tempfile.mkdtemp(prefix="dtrun-compat-"))
        self.record = f"{self.directory}/record"
        for name in ("record", "tmp", "home", "bin"):
            os.mkdir(f"{self.directory}/{name}")
        shutil.copytree(PROGRAMS, f"{self.directory}/cwd")
        for name in ("python3", "python"):
            os.symlink(os.path.realpath(sys.executable), f"{self.directory}/bin/{name}")
        self.ports = {"P": free_port(), "P2": free_port()}
        self.processes, self.stopped_at_limit, self.listener = {}, set(), None
        self.left = 0  # processes of the job that outlived its launchers
        self.deadline = time.monotonic() + scenario.limit

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self.until(lambda: not self.kill_marked(), 5)
        if self.listener:
            self.listener.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill_marked(self):
        pids = marked_processes(self.mark)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return pids

    def run(self):
        for step in self.scenario.steps.split(";"):
            what, *arguments = step.split()
            getattr(self, "step_" + what)(*arguments)
        for number in self.processes:
            self.step_wait(number)
        self.until(lambda: not marked_processes(self.mark), CLEAN_UP_LIMIT)
        self.left = len(marked_processes(self.mark))

    def until(self, condition, limit):
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True

    def until_deadline(self, condition):
        """Also true when no launcher is left that could make it so."""
        self.until(lambda: condition() or all(p.poll() is not None for p in self.processes.values()), self.deadline - time.monotonic())

    def filled(self, text):
        text = text.replace("{D}", self.directory)
        for name, port in self.ports.items():
            text = text.replace(f"{{{name}}}", str(port))
        return text

    def environment_of(self, number):
        launch = self.scenario.launches[number]
        path = f"{self.directory}/bin:{os.path.dirname(self.launcher[0])}:/usr/local/bin:/usr/bin:/bin"
        mine = {"PATH": path, "HOME": f"{self.directory}/home", "LANG": "C.UTF-8", "TMPDIR": f"{self.directory}/tmp", "PYTHONDONTWRITEBYTECODE": "1",
                "PROBE_RECORD": self.record, "PROBE_NODE": str(number)}
        mine |= dict([self.mark.split("=")])
        mine |= {name: os.environ[name] for name in os.environ if name.endswith("SAN_OPTIONS")}
        return mine | {name: self.filled(value) for name, value in launch.environment.items()}

    def step_start(self, number):
        number = int(number)
        launch = self.scenario.launches[number]
        environment = self.environment_of(number)
        with open(f"{self.record}/launch.{number}", "w") as file:
            json.dump(environment, file)
        command = self.launcher + [self.filled(word) for word in shlex.split(launch.arguments)]
        if launch.one_core:
            command = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *command]
        if launch.nohup:
            command = ["/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command]
        with open(f"{self.directory}/out.{number}", "wb") as out, open(f"{self.directory}/err.{number}", "wb") as err:
            process = subprocess.Popen(command, env=environment, cwd=f"{self.directory}/cwd", stdout=out, stderr=err, start_new_session=True,
                                       stdin=subprocess.DEVNULL if launch.stdin is None else subprocess.PIPE)
        self.processes[number] = process
        if launch.stdin is not None:
            try:
                process.stdin.write(launch.stdin.encode())
                process.stdin.close()
            except BrokenPipeError:
                pass

    def step_starts(self, count):
        """That many workers are up."""
        self.until_deadline(lambda: sum(name.startswith("up.") for name in os.listdir(self.record)) >= int(count))

    def step_await(self, name):
        self.until_deadline(lambda: os.path.exists(f"{self.record}/{name}"))

    def step_port(self):
        """Somebody listens on {P}."""
        def is_open():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.ports["P"])) == 0
        self.until_deadline(is_open)

    def step_listen(self):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", self.ports["P"]))
        self.listener.listen(16)

    def step_sleep(self, seconds):
        """Only for what must not happen: there is no condition to wait for."""
        time.sleep(float(seconds))

    def step_touch(self, name):
        open(f"{self.record}/{name}", "w").close()

    def step_signal(self, number, name):
        self.processes[int(number)].send_signal(getattr(signal, "SIG" + name))

    def step_pgsignal(self, number, name):
        if self.processes[int(number)].poll() is None:
            os.killpg(self.processes[int(number)].pid, getattr(signal, "SIG" + name))

    def step_waitmax(self, number, seconds):
        self.until(lambda: self.processes[int(number)].poll() is not None, float(seconds))

    def step_wait(self, number):
        process = self.processes[int(number)]
        if not self.until(lambda: process.poll() is not None, self.deadline - time.monotonic()):
            self.stopped_at_limit.add(int(number))
            process.kill()
        process.wait()
