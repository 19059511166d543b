"""What the agents run: a PyTorch program over gloo, the bundled worker, and one that fails faster than both. Each says which ranks met in a round, and can be told to end well."""
import json
import os
import pathlib
import re
import signal
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "integration" / "torch" / "elastic_script.py"


class Torch:
    """Its own record of rounds is in a directory that all nodes share; it goes on from its checkpoint."""

    name = "torch"
    start_limit = 60  # it imports torch
    code_of_the_bereaved = 128 + signal.SIGKILL  # it takes longer to fail than the news of the killed one

    def __init__(self, directory: pathlib.Path, python: str):
        self.directory, self.environment = directory, {"PYTHON_EXEC": python, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        self.words = [str(SCRIPT), str(directory)]

    def rounds(self) -> list[dict]:
        path = self.directory / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def met(self, pids: list[int], first_output: str) -> bool:
        checkpoint = self.directory / "checkpoint"  # of this round, too
        return any(met["pids"] == pids and checkpoint.exists() and int(checkpoint.read_text()) > met["step"] for met in self.rounds())

    def end_well(self, pids: list[int]):
        (self.directory / "stop").touch()

    def mistakes(self) -> list[str]:
        steps = [met["step"] for met in self.rounds()]
        return [] if steps == sorted(steps) and 0 not in steps[1:] else [f"it did not go on from its checkpoint: {steps}"]


class Worker:
    """Rank 0 prints the map of its round; a SIGTERM to any rank ends all of them after the same step, with 0."""

    name = "worker"
    start_limit = 20
    code_of_the_bereaved = 128 + signal.SIGKILL  # it waits for the killed one to be seen first

    def __init__(self, directory: pathlib.Path, python: str):
        self.environment = {"OMP_NUM_THREADS": "1"}
        self.words = ["worker", "train", "--layers", "1", "--hidden", "32", "--heads", "2", "--seq-len", "32", "--batch-size", "2",
                      "--steps", "1000000", "--log-every", "1000000"]

    def met(self, pids: list[int], first_output: str) -> bool:
        latest = re.split(r"(?m)^(?=\d+ ranks? on )", first_output)[-1]
        ranks = re.findall(r"^  rank (\d+) .* pid (\d+)$", latest, re.M)
        return ranks == [(str(rank), str(pid)) for rank, pid in enumerate(pids)] and re.search(r"(?m)^(step +1/|resumed after step)", latest) is not None

    def end_well(self, pids: list[int]):
        os.kill(pids[-1], signal.SIGTERM)

    def mistakes(self) -> list[str]:
        return []


class Quick:
    """Its ranks fail at once when another one is missing."""

    name = "quick"
    start_limit = 20
    code_of_the_bereaved = 9  # may be heard of before the one that was killed

    def __init__(self, directory: pathlib.Path, python: str):
        self.directory, self.environment = directory, {"PYTHON_EXEC": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}
        self.words = [str(SCRIPT.parents[2] / "scenario" / "elastic" / "quick_rank.py"), str(directory)]

    def met(self, pids: list[int], first_output: str) -> bool:
        return all((self.directory / f"met.{pid}").exists() for pid in pids)

    def end_well(self, pids: list[int]):
        os.kill(pids[0], signal.SIGUSR1)

    def mistakes(self) -> list[str]:
        return []


KINDS = {kind.name: kind for kind in (Torch, Worker, Quick)}
