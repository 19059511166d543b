#!/usr/bin/env python3
"""torch_test.py CASE LAUNCHER PYTHON [REPEATS]: unchanged PyTorch programs under dtrun, started as people do.

  ddp      a DDP script, plainly and with a worker that dies in the middle and a restart: both end at the same weights
  script   an env:// training script; module: the same with -m; wrapper: the same from a shell script
  record   a script under @record that raises: its traceback is in the report, and its error file is dtrun's own
  recover  a gloo job whose rank 1 dies once: every one of REPEATS runs recovers (scripts/torch_restarts.sh: 20)

PYTHON "default" is $DTRUN_TORCH_PYTHON or that of scripts/setup_torch.sh. Exit 77 (skipped) when PYTHON cannot import torch."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# With DDP, PyTorch 2.15 now and then aborts while the interpreter ends, the script's work done: a thread of Gloo wants the interpreter once more
# (seen in 1 of 15 runs under torchrun, in 1 of 8 under dtrun). Such a run says nothing about the launcher and is repeated.
ABORT_AT_EXIT = "terminate called without an active exception"
IMPORT = "import torch, torch.distributed as d; assert d.is_available(); print(torch.__version__)"


class Failed(Exception):
    pass


class Launcher:
    def __init__(self, program, python):
        self.program = program
        placed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
        self.environment = {name: value for name, value in os.environ.items() if name not in placed}
        self.environment |= {"PYTHON_EXEC": python, "TRAINING_PYTHON": python, "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *words, **environment):
        return subprocess.run([self.program, "--nproc-per-node=2", *map(str, words)], env=self.environment | environment, cwd=HERE,
                              capture_output=True, text=True, timeout=100)

    def run(self, *words, tries=1, **environment):
        """Two ranks; what they printed, sorted."""
        for _ in range(tries):
            done = self.start(*words, **environment)
            if ABORT_AT_EXIT not in done.stderr:
                break
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode} of {words}\nstdout:\n{done.stdout}\nstderr:\n{done.stderr}")
        return sorted(done.stdout.splitlines())


def find(pattern, lines):
    found = [match for match in (re.search(pattern, line) for line in lines) if match]
    if len(found) != 1:
        raise Failed(f"expected one line {pattern!r} in {lines}")
    return found[0]


def ddp(launcher, repeats):
    plain = find(r"checksum (\S+) world 2 attempt 0", launcher.run("ddp_script.py", tries=4))[1]
    restarted = find(r"checksum (\S+) world 2 attempt 1", launcher.run("--max-restarts=1", "ddp_script.py", "--fail-once", tries=4))[1]
    if plain != restarted:
        raise Failed(f"the restarted run ends elsewhere: {plain} and {restarted}")


def train(launcher, *words):
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = pathlib.Path(directory, "weights.pt")
        lines = launcher.run(*words, "--epochs", 3, "--checkpoint", checkpoint, TMPDIR=directory)
        for rank in (0, 1):
            find(rf"rank {rank} local {rank} samples 192 loss True$", lines)
        if not checkpoint.exists():
            raise Failed("there is no checkpoint")


def record(launcher, repeats):
    with tempfile.TemporaryDirectory() as directory:
        report, own = pathlib.Path(directory, "report.json"), pathlib.Path(directory, "own.json")
        done = launcher.start("--report", report, "record_script.py", TORCHELASTIC_ERROR_FILE=str(own))
        root, own = json.loads(report.read_text())["root_cause"], json.loads(own.read_text())["message"]
    shown = done.stderr[done.stderr.rindex("dtrun: "):]
    for what, holds in {
        "exit code 1": done.returncode == 1 and root["rank"] == 1 and root["exit_code"] == 1,
        "traceback in the report": "in load" in root["traceback"] and root["message"] == "ValueError: no such shard: shard-7",
        "traceback on the screen": "  traceback:" in shown and "ValueError: no such shard: shard-7" in shown,
        "own error file": own["errorCode"] == 1 and "in load" in own["extraInfo"]["py_callstack"],
    }.items():
        if not holds:
            raise Failed(f"{what}: exit code {done.returncode}, root cause {root}, own error file {own}\n{shown}")


def recover(launcher, repeats):
    for repeat in range(repeats):
        find(r"recovered 1.0 attempt 1$", launcher.run("--max-restarts=1", "recover_script.py"))
        print(f"recovered {repeat + 1} of {repeats}", flush=True)


CASES = {
    "ddp": ddp,
    "script": lambda launcher, repeats: train(launcher, "env_script.py"),
    "module": lambda launcher, repeats: train(launcher, "-m", "env_script"),
    "wrapper": lambda launcher, repeats: train(launcher, "./wrapper.sh"),
    "record": record,
    "recover": recover,
}


def main():
    case, program, python = sys.argv[1], os.path.abspath(sys.argv[2]), sys.argv[3]
    if python == "default":
        python = os.environ.get("DTRUN_TORCH_PYTHON") or os.path.expanduser("~/.cache/dtrun-torch/bin/python")
    if not os.access(python, os.X_OK):
        print(f"skipped: there is no {python} (scripts/setup_torch.sh makes it)")
        return 77
    probe = subprocess.run([python, "-c", IMPORT], capture_output=True, text=True, timeout=100)
    if probe.returncode != 0:
        print(f"skipped: {python} has no torch with torch.distributed: {(probe.stderr.strip().splitlines() or ['?'])[-1]}")
        return 77
    print("torch", probe.stdout.strip(), "from", python, flush=True)
    try:
        CASES[case](Launcher(program, python), int(sys.argv[4]) if len(sys.argv) > 4 else 2)
    except Failed as failure:
        print("failed:", failure)
        return 1
    print("passed")
    return 0


sys.exit(main())
