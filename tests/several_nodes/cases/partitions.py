"""Nodes that are cut off: no FIN, no RST, nothing arrives any more."""
import os
import random
import re
import signal
import subprocess
import time

from beats import lives, rounds
from job import PROBE, Job, start_workers
from lab import case, note, until

IMPATIENT = "keep_alive_interval=1,keep_alive_max_attempt=2"  # dead after 2 s
NO_WAIT = "last_call_timeout=1"
TRAIN = ["worker", "train", "--steps", "1000000", "--log-every", "50", "--layers", "1", "--hidden", "32", "--heads", "2", "--seq-len", "16", "--batch-size", "2"]


def cut_off_and_heal(lab, nodes, dead_after, conf):
    beats = lab.directory_for("beats")
    job = Job(lab, f"{nodes - 1}:{nodes}", ["--nproc-per-node=2", "--grace-period=0.3"], [PROBE, "ignore=TERM", f"beat={beats}", "forever"], conf=conf)
    *others, victim = job.start(*range(nodes))
    start_workers(job.all, 2)
    until(lambda: len(lives(beats)) == 2 * nodes, 5, "every worker beats")
    lab.nodes[-1].cut_off()
    cut = time.monotonic()
    # The first word that is missed was due within a second: silence of `dead_after` ends at most that much earlier, seen from here.
    decided = max(dtrun.after(cut, "stop", dead_after + 3)["monotonic"] for dtrun in others) - cut
    again = max(dtrun.after(cut, "worker_started", 5)["monotonic"] for dtrun in others) - cut
    until(lambda: len(lives(beats)) == 2 * nodes + 2 * (nodes - 1), 5, "every worker of the next round beats")
    fenced = max(life.last for life in lives(beats) if life.node == nodes - 1) - cut
    silence = float(re.search(r"silent for ([0-9.]+) s", others[0].error)[1])
    note(f"cut off: given up after {decided:.2f} s (silent for {silence} s), workers there alive until {fenced:.2f} s, next round after {again:.2f} s")
    assert dead_after - 1 <= decided <= dead_after + 0.5 and dead_after - 0.05 <= silence <= dead_after + 0.5
    assert fenced <= dead_after + 0.5 and fenced < again
    assert len(victim.processes()) == 2 and victim.running, "guardian and agent wait for the network"
    assert not victim.events("assignment")[1:]
    lab.nodes[-1].heal()
    healed = time.monotonic()
    joined = victim.after(healed, "worker_started", 10)["monotonic"] - healed
    start_workers(others, 2, round_number=2)
    until(lambda: len(lives(beats)) == 4 * nodes + 2 * (nodes - 1), 5, "every worker of the third round beats")
    note(f"healed: it takes part again after {joined:.2f} s")
    assert [len(entry[3]) for entry in rounds(beats)] == [2 * nodes, 2 * nodes - 2, 2 * nodes]
    assert [event["attempt"] for event in victim.events("assignment")] == [0, 2]
    assert {event["restarts"] for dtrun in job.all for event in dtrun.events("assignment")} == {0}
    others[0].signal("TERM")
    for dtrun in job.all:
        dtrun.wait(5)
    rounds(beats)
    return job


@case(nodes=3)
def d2_a_node_is_cut_off(lab):
    cut_off_and_heal(lab, 3, 5, NO_WAIT)


@case(nodes=4)
def c12_a_node_of_four_is_cut_off(lab):
    job = cut_off_and_heal(lab, 4, 2, f"{IMPATIENT},{NO_WAIT}")
    line = job.all[3].error_lines[0]
    assert line.startswith("dtrun: no answer from the coordinator for 1.8 s; the workers here were killed"), line


def one_way(lab, deaf, unheard):
    """What one node sends to the other is lost; the other direction works."""
    beats = lab.directory_for("beats")
    job = Job(lab, "2:3", ["--grace-period=0.3"], [PROBE, "ignore=TERM", f"beat={beats}", "forever"], conf=f"{IMPATIENT},{NO_WAIT}")
    *others, victim = job.start(0, 1, 2)
    start_workers(job.all, 1)
    lab.nodes[unheard].run("ip", "route", "add", "blackhole", f"{lab.nodes[deaf].address}/32")
    moment = time.monotonic()
    start_workers(others, 1, round_number=1)
    note(f"node{deaf} does not hear node{unheard}: the others go on after {time.monotonic() - moment:.2f} s")
    lab.nodes[unheard].run("ip", "route", "del", "blackhole", f"{lab.nodes[deaf].address}/32")
    start_workers(job.all, 1, round_number=2)
    until(lambda: len(lives(beats)) == 8, 5, "every worker beats")
    assert [len(entry[3]) for entry in rounds(beats)] == [3, 2, 3]


@case(nodes=3)
def a_node_that_does_not_hear_the_coordinator(lab):
    one_way(lab, 2, 0)


@case(nodes=3)
def a_node_that_is_not_heard(lab):
    one_way(lab, 0, 2)


@case(nodes=3)
def the_coordinators_node_is_cut_off(lab):
    """Nobody goes on, as enough are nowhere; when the network is back everybody does."""
    beats = lab.directory_for("beats")
    job = Job(lab, "3", ["--grace-period=0.3"], [PROBE, "ignore=TERM", f"beat={beats}", "forever"], conf=IMPATIENT)
    job.start(0, 1, 2)
    start_workers(job.all, 1)
    until(lambda: len(lives(beats)) == 3, 5, "every worker beats")
    lab.nodes[0].cut_off()
    cut = time.monotonic()
    until(lambda: all(len(dtrun.processes()) == 2 for dtrun in job.all), 4, "no worker anywhere")
    note(f"the last worker was alive until {max(life.last for life in lives(beats)) - cut:.2f} s after the cut")
    lab.nodes[0].heal()
    start_workers(job.all, 1, round_number=1)
    until(lambda: len(lives(beats)) == 6, 5, "every worker beats again")
    assert [len(entry[3]) for entry in rounds(beats)] == [3, 3]


@case(nodes=3)
def c12_the_others_train_on(lab):
    """The collectives of the survivors hang in a connection that nobody closes; they are stopped and start anew."""
    job = Job(lab, "2:3", ["--grace-period=1"], TRAIN, conf=f"{IMPATIENT},{NO_WAIT}")
    first, second, third = job.start(0, 1, 2)

    def steps():
        return sum(line.startswith("step ") for line in first.out_lines)
    until(lambda: steps() > 2, 20, "training")
    lab.nodes[2].cut_off()
    cut = time.monotonic()
    start_workers([first, second], 1, round_number=1, limit=8)
    before = steps()
    until(lambda: steps() > before + 2, 10, "training without the lost node")
    note(f"trains on {time.monotonic() - cut:.2f} s after the cut")
    assert time.monotonic() - cut < 6
    lab.nodes[2].heal()
    start_workers(job.all[:2], 1, round_number=2, limit=10)
    before = steps()
    until(lambda: steps() > before + 2, 10, "training with all three again")
    first.signal("TERM")
    for dtrun in job.all:
        dtrun.wait(10)


class Chaos:
    """What may happen to a node; afterwards its dtrun runs, or another one."""

    def __init__(self, job, number, dice):
        self.job, self.number, self.dice, self.dtrun = job, number, dice, job.start(number)

    def again(self, code):
        assert self.dtrun.wait(5) == code
        self.dtrun = self.job.start(self.number)

    def agent_killed(self):
        self.dtrun.kill_agent()
        self.again(137)

    def guardian_killed(self):
        self.dtrun.kill_guardian()
        self.again(-signal.SIGKILL)

    def stopped(self):
        until(lambda: self.dtrun.events("start"), 5, "an agent that hears signals")
        self.dtrun.signal("TERM")
        self.again(143)

    def cut_off(self, longest=4):
        node = self.job.lab.nodes[self.number]
        node.cut_off()
        time.sleep(self.dice.uniform(0, longest))
        node.heal()

    def cut_off_again_and_again(self):
        for _ in range(4):
            self.cut_off(0.8)
            time.sleep(self.dice.uniform(0, 0.5))

    KINDS = (agent_killed, guardian_killed, stopped, cut_off, cut_off_again_and_again)


@case(nodes=3)
def whatever_happens_there_is_one_round(lab):
    """Nodes 1 and 2 die, leave, come again and are cut off; then all are together."""
    full = "DTRUN_FULL_SIZE" in os.environ
    seed = int(os.environ.get("DTRUN_SEED", time.time_ns() % 1000000 if full else 1))
    dice = random.Random(seed)
    beats = lab.directory_for("beats")
    job = Job(lab, "1:3", ["--grace-period=0.2"], [PROBE, "ignore=TERM", f"beat={beats}", "forever"], conf=f"{IMPATIENT},{NO_WAIT}")
    host = job.start(0)
    guests = [Chaos(job, number, dice) for number in (1, 2)]
    happened = []
    end = time.monotonic() + (60 if full else 8)
    while time.monotonic() < end:
        kind, guest = dice.choice(Chaos.KINDS), dice.choice(guests)
        happened.append(f"{kind.__name__} {guest.number}")
        kind(guest)
        time.sleep(dice.uniform(0, 1))
    note(f"DTRUN_SEED={seed}: {', '.join(happened)}")
    dtruns = [host, *(guest.dtrun for guest in guests)]

    def together():
        last = [(dtrun.events("assignment") or [{"world_size": 0}])[-1] for dtrun in dtruns]
        return all(place["world_size"] == 3 and place["attempt"] == last[0]["attempt"] for place in last)
    until(together, 10, "a round of all three")
    ended = rounds(beats, complete=False)
    note(f"worlds {[entry[3][0].world for entry in ended]}")
    assert len(ended) > 1
    assert {event["restarts"] for dtrun in job.all for event in dtrun.events("assignment")} == {0}
    host.signal("TERM")
    assert [dtrun.wait(5) for dtrun in dtruns] == [143] * 3


@case(nodes=4, alone=True)
def c12_busy_machines_are_not_dead(lab):
    """Two busy loops for each core, before everybody else in the queue where that is allowed."""
    job = Job(lab, "3:4", ["--nproc-per-node=1"])
    job.start(0, 1, 2, 3)
    start_workers(job.all, 1)
    seconds = 60 if "DTRUN_FULL_SIZE" in os.environ else 10
    loop = ["nice", "-n", "-5", "timeout", str(seconds), "sh", "-c", "while :; do :; done"]
    loops = [subprocess.Popen(loop, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2 * len(os.sched_getaffinity(0)))]
    for process in loops:
        process.wait()
    for dtrun in job.all:
        assert dtrun.running and not dtrun.error and not dtrun.events("stop", "restart")
        assert len(dtrun.events("assignment")) == 1
