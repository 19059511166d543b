"""Agents that die."""
import os
import signal
import time

from beats import lives
from job import PROBE, Job, start_workers
from lab import case, note, until

# Each worker with a child, a process in a session of its own, and a daemon; SIGTERM does not impress them.
TREE = [PROBE, "ignore=TERM", "child", "setsid-child", "daemon", "forever"]
PROCESSES = 2 + 2 * 4  # of a dtrun with two such workers
QUICK = "last_call_timeout=1"


def tree_is_up(dtruns):
    until(lambda: all(len(dtrun.processes()) == PROCESSES for dtrun in dtruns), 10, f"{PROCESSES} processes on each node")


def gone_within(dtruns, since, limit):
    until(lambda: not any(dtrun.processes() for dtrun in dtruns), since + limit - time.monotonic(), f"no process left after {limit} s")
    return time.monotonic() - since


def lose_a_peer(lab, nodes, kill):
    job = Job(lab, f"{nodes - 1}:{nodes}", ["--nproc-per-node=2", "--grace-period=0.3"], TREE, conf=QUICK)
    *others, victim = job.start(*range(nodes))
    tree_is_up(job.all)
    moment = getattr(victim, kill)()
    gone = gone_within([victim], moment, 1)
    decided = max(dtrun.after(moment, "stop", 2)["monotonic"] for dtrun in others) - moment
    again = max(dtrun.after(moment, "worker_started", 4)["monotonic"] for dtrun in others) - moment
    note(f"{nodes} agents, {kill}: decided after {decided * 1000:.0f} ms, next round after {again * 1000:.0f} ms, processes gone after {gone * 1000:.0f} ms")
    assert decided <= 0.5 and again <= 2
    start_workers(others, 2, round_number=1)
    assert all(dtrun.running for dtrun in others)
    assert [dtrun.events("assignment")[-1]["world_size"] for dtrun in others] == [2 * (nodes - 1)] * (nodes - 1)
    assert all("node" in line and str(nodes - 1) in line for dtrun in others for line in dtrun.error_lines), "one line tells who is lost"
    assert [len(dtrun.error_lines) for dtrun in others] == [1] * (nodes - 1)


@case(nodes=2)
def d1_a_peer_of_two_agents(lab):
    lose_a_peer(lab, 2, "kill_agent")


@case(nodes=3)
def d1_a_peer_of_three_agents(lab):
    lose_a_peer(lab, 3, "kill_agent")


@case(nodes=3)
def d1_the_guardian_of_a_peer(lab):
    lose_a_peer(lab, 3, "kill_guardian")


def lose_the_host(lab, kill):
    """--nnodes 2:3: enough would be left, but not the coordinator."""
    job = Job(lab, "2:3", ["--nproc-per-node=2", "--max-restarts=3"], TREE, conf=QUICK)
    host, *others = job.start(0, 1, 2)
    tree_is_up(job.all)
    moment = getattr(host, kill)()
    gone = gone_within([host], moment, 1)
    assert [dtrun.wait(3) for dtrun in others] == [75, 75]
    out = max(dtrun.ended_at for dtrun in others) - moment
    note(f"{kill}: the host's processes are gone after {gone * 1000:.0f} ms, the others out after {out * 1000:.0f} ms: {others[0].error_lines}")
    assert out <= 1
    assert not others[0].processes() and not others[1].processes()
    for dtrun in others:
        assert len(dtrun.error_lines) == 1 and job.endpoint in dtrun.error, dtrun.error_lines
        assert dtrun.report["outcome"] == "infrastructure" and job.endpoint in dtrun.report["error"]


@case(nodes=3)
def d5_the_agent_with_the_coordinator(lab):
    lose_the_host(lab, "kill_agent")


@case(nodes=3)
def d5_the_guardian_of_the_coordinator(lab):
    lose_the_host(lab, "kill_guardian")


@case(nodes=3)
def the_host_is_stopped(lab):
    """A stop signal to the agent with the coordinator ends the job, politely."""
    job = Job(lab, "2:3", ["--nproc-per-node=2", "--grace-period=2"], conf=QUICK)
    host, *others = job.start(0, 1, 2)
    start_workers(job.all, 2)
    moment = host.signal("TERM")
    assert [dtrun.wait(3) for dtrun in job.all] == [143] * 3
    assert max(dtrun.ended_at for dtrun in job.all) - moment < 1
    assert host.error_lines == ["dtrun: stopped by SIGTERM"]
    for dtrun in others:
        assert dtrun.error_lines == ["dtrun: error: node0 was stopped by SIGTERM; the coordinator ran there"]
        assert {event["signal"] for event in dtrun.events("worker_ended")} == {"SIGTERM"}


@case(nodes=3)
def a_frozen_agent(lab):
    """SIGSTOP: it can neither speak nor fence itself. The others go on; when it wakes up its workers die at once."""
    beats = lab.directory_for("beats")
    job = Job(lab, "2:3", ["--grace-period=0.3"], [PROBE, "ignore=TERM", f"beat={beats}", "forever"], conf=f"{QUICK},keep_alive_interval=1,keep_alive_max_attempt=2")
    *others, frozen = job.start(0, 1, 2)
    start_workers(job.all, 1)
    agent = frozen.agent
    os.kill(agent, signal.SIGSTOP)
    moment = time.monotonic()
    start_workers(others, 1, round_number=1)
    after = time.monotonic() - moment
    assert 1 <= after <= 2.5 + 0.3
    until(lambda: len(lives(beats)) == 5, 5, "the workers of two nodes")
    os.kill(agent, signal.SIGCONT)
    moment = time.monotonic()
    start_workers(job.all, 1, round_number=2)
    until(lambda: len(lives(beats)) == 8, 5, "the workers of three nodes")
    stale = max(life.last for life in lives(beats) if life.node == 2 and life.round == min(lives(beats), key=lambda life: life.first).round) - moment
    note(f"frozen: the others go on after {after:.2f} s; awake: its workers end after {stale * 1000:.0f} ms")
    assert stale < 0.3


@case(nodes=3)
def a_frozen_host(lab):
    """As a machine that is suspended: the kernel takes connections, nobody answers. All go on when it wakes up."""
    job = Job(lab, 3, ["--grace-period=0.3"], conf="keep_alive_interval=1,keep_alive_max_attempt=2")
    host, *others = job.start(0, 1, 2)
    start_workers(job.all, 1)
    agent = host.agent
    os.kill(agent, signal.SIGSTOP)
    moment = time.monotonic()
    until(lambda: all(len(dtrun.processes()) == 2 for dtrun in others), 3, "no worker of the others")
    note(f"fenced after {time.monotonic() - moment:.2f} s")
    time.sleep(3.5)  # longer than one answer is waited for
    assert all(dtrun.running for dtrun in job.all), [dtrun.error_lines for dtrun in others]
    os.kill(agent, signal.SIGCONT)
    moment = time.monotonic()
    start_workers(job.all, 1, round_number=1)
    note(f"awake: the next round after {time.monotonic() - moment:.2f} s: {[dtrun.error_lines for dtrun in job.all]}")
    host.kill_agent()
    assert [dtrun.wait(3) for dtrun in others] == [75, 75]


@case(nodes=2)
def a_frozen_host_that_dies(lab):
    job = Job(lab, 2, ["--grace-period=0.3"], conf="keep_alive_interval=1,keep_alive_max_attempt=2", token=False)
    host, other = job.start(0, 1)
    start_workers(job.all, 1)
    os.kill(host.agent, signal.SIGSTOP)
    until(lambda: len(other.processes()) == 2, 3, "no worker of the other")
    time.sleep(3.3)
    host.kill_agent()
    assert other.wait(5) == 75, "not the whole join_timeout"
    note(f"{other.error_lines}")
