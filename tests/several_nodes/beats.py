"""When which worker of which round was alive, by what it wrote itself (`beat=` of the probe)."""
import os
import pathlib
from dataclasses import dataclass


@dataclass
class Life:
    round: str  # the port of its store
    restarts: int
    node: int
    rank: int
    world: int
    pid: int
    first: float
    last: float


def lives(directory):
    found = []
    for name in os.listdir(directory):
        times = [line for line in pathlib.Path(f"{directory}/{name}").read_text().split("\n")[:-1]]
        if times:
            port, *numbers = name.split(".")
            found.append(Life(port, *map(int, numbers), float(times[0]), float(times[-1])))
    return found


def rounds(directory, complete=True):
    """[round, first sign of life, last sign of life, workers], in the order of their starts. No two at a time. Not `complete`: a worker
    may have ended before its first sign."""
    found = {}
    for life in lives(directory):
        entry = found.setdefault(life.round, [life.round, life.first, life.last, []])
        entry[1], entry[2] = min(entry[1], life.first), max(entry[2], life.last)
        entry[3].append(life)
    ordered = sorted(found.values(), key=lambda entry: entry[1])
    for earlier, later in zip(ordered, ordered[1:]):
        assert earlier[2] < later[1], f"two rounds at once: one until {earlier[2]:.3f}, the next from {later[1]:.3f}"
    for _, _, _, workers in ordered:
        ranks = sorted(life.rank for life in workers)
        assert all(life.world == workers[0].world for life in workers) and len(set(ranks)) == len(ranks), workers
        assert ranks == list(range(len(ranks))) if complete else ranks[-1] < workers[0].world, workers
    return ordered
