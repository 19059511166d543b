"""What happened in a scenario, with everything that changes from run to run replaced: a dictionary that any compatible launcher must
reproduce.

  success  did each launcher end with 0                    out, err  console lines that contain text of a worker
  starts   each start of a worker: argv, environment       logs      tree under --log-dir with contents
  ends     signals each worker got, and how it ended       files     the launcher's own error file
  lost     variables of the launcher that a worker lacks"""
import hashlib
import json
import os
import re
import socket
import stat
import sys

RANKS = ("RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE TORCHELASTIC_RESTART_COUNT "
         "TORCHELASTIC_MAX_RESTARTS").split()
COMPARED = RANKS + ("ROLE_NAME MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING "
                    "OMP_NUM_THREADS TORCHELASTIC_ERROR_FILE CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES TORCHELASTIC_TIMER_FILE "
                    "TORCHELASTIC_SIGNALS_TO_HANDLE").split()
IDS = "r{} l{} g{} rr{} ws{} lws{} gws{} rws{} restart{}/{}"  # RANKS in one line
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
WORKER_MARK = "@W"
LONGEST_KEPT = 1500  # characters; longer texts are compared by their hash


def observe(run):
    return {name: value for name, value in Observer(run).everything().items() if value or name == "success"}


def digest(lines):
    size = sum(len(line) + 1 for line in lines)
    if size <= LONGEST_KEPT:
        return lines
    return f"<{len(lines)} lines, {size} chars, sha1 {hashlib.sha1(chr(10).join(lines).encode()).hexdigest()[:12]}>"


class Observer:
    def __init__(self, run):
        self.run, self.directory = run, run.directory
        self.workers = self.read_records()
        named = {worker[0]["environment"].get("TORCHELASTIC_RUN_ID", "") for worker in self.workers}
        named |= {name for launch in run.scenario.launches for name in re.findall(r"--rdzv-id=(\S+)", launch.arguments)}
        self.run_ids = {"<uuid>", "<decimal>", "none"} | {name for name in named if name and not UUID.fullmatch(name)}

    def read_records(self):
        workers = []
        for name in os.listdir(self.run.record):
            if name.startswith("worker."):
                with open(f"{self.run.record}/{name}", errors="replace") as file:
                    lines = [json.loads(line) for line in file if line.endswith("\n")]
                if lines:
                    workers.append(lines)
        return sorted(workers, key=lambda lines: (int(lines[0]["node"]), lines[0]["incarnation"], lines[0]["place"]))

    def everything(self):
        numbers = sorted(self.run.processes)
        result = {"success": {str(n): self.run.processes[n].returncode == 0 and n not in self.run.stopped_at_limit for n in numbers},
                  "starts": self.starts(), "ends": {self.who(worker): self.end_of(worker) for worker in self.workers}, "lost": self.lost_variables()}
        for stream in ("out", "err"):
            texts = {str(n): [line for line in self.lines(f"{self.directory}/{stream}.{n}") if WORKER_MARK in line] for n in numbers}
            result[stream] = {n: digest(sorted(lines)) for n, lines in texts.items() if lines}
        if os.path.isdir(f"{self.directory}/logs"):
            result["logs"] = self.tree(f"{self.directory}/logs")
        result["files"] = {name: self.error_file(f"{self.directory}/{name}") for name in self.run.scenario.files}
        result["stuck"] = [line["stuck"] for worker in self.workers for line in worker if "stuck" in line]
        agreed = self.last_round_agrees()
        if agreed is not None and "success" not in self.run.scenario.accidental:
            result["last_round_agrees_on_master"] = agreed
        for name in self.run.scenario.accidental:
            result.pop(name, None)
        return result

    @staticmethod
    def who(worker):
        return "n{node} i{incarnation} l{place}".format_map(worker[0])

    @staticmethod
    def end_of(worker):
        signals = [line["signal"] for line in worker if "signal" in line]
        ends = [line["end"] for line in worker if "end" in line]
        return f"got {','.join(signals) or '-'}, ended {ends[-1] if ends else 'none'}"

    def starts(self):
        """Of the first worker every compared variable, of the others what differs from it."""
        result, first = {}, None
        for worker in self.workers:
            head = worker[0]
            argv = head["argv"]
            one = {"cmd": self.neutral(" ".join(head["command"][1:len(head["command"]) - len(argv)]))}
            if not all(word.startswith("+") for word in argv):
                one["argv"] = [self.neutral(word) for word in argv]
            if head["directory"] != f"{self.directory}/cwd":
                one["cwd"] = self.neutral(head["directory"])
            seen = self.environment(head["environment"])
            if not self.run.scenario.environment:
                one["ids"] = IDS.format(*(seen.get(name, "-") for name in RANKS))
            elif first is None:
                one["env"] = first = seen
            else:
                one["env"] = {name: seen.get(name, "<absent>") for name in {**first, **seen}
                              if name in ("RANK", "LOCAL_RANK") or seen.get(name) != first.get(name)}
            result[self.who(worker)] = one
        return result

    def environment(self, variables):
        seen = {name: self.neutral(variables[name]) for name in COMPARED if name in variables}
        if "TORCHELASTIC_ERROR_FILE" in seen:
            seen["TORCHELASTIC_ERROR_FILE"] = re.sub(r"^<tmp>/[^/]+/", "<tmp>/<base>/", seen["TORCHELASTIC_ERROR_FILE"])
        if seen.get("MASTER_ADDR") in (socket.getfqdn(), socket.gethostname()):
            seen["MASTER_ADDR"] = "<fqdn>"
        if seen.get("MASTER_PORT", "").isdigit():
            seen["MASTER_PORT"] = "<port>"
        return seen | {name: self.neutral(value) for name, value in variables.items() if name.startswith(("PET_", "PROBEX_"))}

    def lost_variables(self):
        lost = set()
        for worker in self.workers:
            with open(f"{self.run.record}/launch.{worker[0]['node']}") as file:
                given = json.load(file)
            seen = worker[0]["environment"]
            lost |= {name for name in given if name not in seen or (seen[name] != given[name] and name not in COMPARED)}
        return sorted(lost)

    def last_round_agrees(self):
        """Whether the last workers of the launchers that ended well have the same store; nothing for one node."""
        last = {}
        for worker in self.workers:
            variables, node = worker[0]["environment"], int(worker[0]["node"])
            if int(variables.get("GROUP_WORLD_SIZE", 1)) > 1 and self.run.processes[node].returncode == 0:
                mine = (worker[0]["incarnation"], variables["MASTER_ADDR"], variables["MASTER_PORT"])
                last[node] = max(mine, last.get(node, mine))
        return None if len(last) < 2 else len({place[1:] for place in last.values()}) == 1

    # ---- files

    def lines(self, path):
        with open(path, "rb") as file:
            text = self.neutral(file.read().decode("utf-8", "backslashreplace"))
        text = text.replace(f"{socket.gethostname()}:", "<host>:")
        return text.removesuffix("\n").split("\n") if text else []

    def tree(self, root):
        result = {}
        for base, directories, files in os.walk(root):
            relative = os.path.relpath(base, root)
            prefix = "" if relative == "." else relative + "/"
            if not files and not directories and prefix:
                result[self.neutral_path(prefix)] = "<empty dir>"
            for name in sorted(files):
                path = f"{base}/{name}"
                if stat.S_ISREG(os.lstat(path).st_mode):
                    text = self.lines(path)
                    text = digest(sorted(text) if name.startswith("filtered_") else text)
                else:
                    text = "<special>"
                result.setdefault(self.neutral_path(prefix + name), []).append(text)
        return {name: value if isinstance(value, str) else value[0] if len(value) == 1 else sorted(value, key=str)
                for name, value in sorted(result.items())}

    @staticmethod
    def error_file(path):
        if not os.path.exists(path):
            return "<absent>"
        with open(path) as file:
            text = file.read()
        try:
            document = json.loads(text)
        except ValueError:
            return "<not json>"
        message = document.get("message")
        if isinstance(message, dict) and re.match(r"\w+: ", str(message.get("message"))):
            # An exception of the launcher itself: its words are its own, the shape is not.
            return {"message": sorted(message), "extraInfo": sorted(message.get("extraInfo", {}))}
        return document

    # ---- what changes from run to run

    def neutral(self, text):
        text = text.replace(self.directory + "/tmp/", "<tmp>/").replace(self.directory, "<D>").replace(os.path.realpath(sys.executable), "<python>")
        for name, port in self.run.ports.items():
            text = re.sub(rf"(?<!\d){port}(?!\d)", f"<{name}>", text)
        text = UUID.sub("<uuid>", text)
        text = re.sub(r"torchelastic_[a-z0-9_]{8}\b", "torchelastic_<rnd>", text)
        text = re.sub(r"(?<!\d)\d{30,40}(?!\d)", "<decimal>", text)
        for name in sorted(self.run_ids, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}_[A-Za-z0-9_]{{6,8}}(?=/|$|\s)", f"{name}_<rnd>", text)
        return text

    def neutral_path(self, path):
        return "/".join(re.sub(r"^(<uuid>|<decimal>|none)_\w{6,8}$", r"\1_<rnd>", part) for part in self.neutral(path).split("/"))
