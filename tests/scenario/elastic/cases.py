"""The elastic changes of a job, each as a function of (start, repeat): start(nodes, options...) makes the job. They return named times in seconds."""
import os
import signal
import time

from agents import Failed


def says(agent, part: str) -> int:
    return sum(part in line for line in agent.own_lines())


def expect_told_once(spare):
    if says(spare, "this node is a spare") != 1:
        raise Failed(f"the spare {spare.address} says {spare.own_lines()}")


def join(start, repeat):
    """A node joins a running job."""
    job = start("1:2")
    [first] = job.start("127.0.0.1")
    job.round_of([first])
    [second] = job.start("127.0.0.2")
    last = job.round_of([first, second], after=second.started)
    job.end_well(last)
    return {"join": last.delay}


def replace(start, repeat):
    """A spare takes the place of a node that is killed."""
    job = start("2")
    host, victim = job.start("127.0.0.1", "127.0.0.2")
    job.round_of([host, victim])
    [spare] = job.start("127.0.0.3")
    job.until_spare(spare)
    killed = time.time()
    victim.kill(repeat)
    last = job.round_of([host, spare], after=killed)
    expect_told_once(spare)
    job.end_well(last)
    return {"replaced": last.delay}


def replace_lowest(start, repeat):
    """The node of rank 0, which does not host the coordinator, is killed and a spare takes its place, its rank, and the workers' store."""
    job = start("2")
    host, lowest = job.start("127.0.0.5", "127.0.0.2")
    job.round_of([lowest, host])
    [spare] = job.start("127.0.0.9")
    job.until_spare(spare)
    killed = time.time()
    lowest.kill(repeat)
    last = job.round_of([spare, host], after=killed)
    job.end_well(last)
    return {"replaced": last.delay}


def shrink_grow(start, repeat):
    """Three nodes, one leaves, one is killed, two come."""
    job = start("1:3")
    host, leaver, victim = job.start("127.0.0.1", "127.0.0.2", "127.0.0.3")
    job.round_of([host, leaver, victim])
    times = {}
    at = time.time()
    leaver.process.send_signal(signal.SIGTERM)
    leaver.killed = True
    times["left"] = job.round_of([host, victim], after=at).delay
    if leaver.wait(10) != 128 + signal.SIGTERM:
        raise Failed(f"the node that left ended with {leaver.process.returncode}")
    at = time.time()
    victim.kill(repeat)
    times["killed"] = job.round_of([host], after=at).delay
    [third] = job.start("127.0.0.2")
    times["joined"] = job.round_of([host, third], after=third.started).delay
    [fourth] = job.start("127.0.0.4")
    last = job.round_of([host, third, fourth], after=fourth.started)
    job.end_well(last)
    return times | {"joined again": last.delay}


def spare_ends(start, repeat):
    """A spare that is never needed ends with 0 when the job ends well."""
    job = start("2")
    first, second = job.start("127.0.0.1", "127.0.0.2")
    last = job.round_of([first, second])
    [spare] = job.start("127.0.0.3")
    job.until_spare(spare)
    ended = time.time()
    job.end_well(last)
    expect_told_once(spare)
    if spare.attempts():
        raise Failed(f"the spare had rounds: {spare.attempts()}")
    return {"all out": time.time() - ended}


def failure(start, repeat):
    """A worker that is killed costs a restart of all; the second time the job fails with the same code everywhere, on a spare as well."""
    job = start("2", "--max-restarts=1")
    first, second = job.start("127.0.0.1", "127.0.0.2")
    begun = job.round_of([first, second])
    [spare] = job.start("127.0.0.3")
    job.until_spare(spare)
    at = time.time()
    os.kill(begun.pids[1], signal.SIGKILL)
    again = job.round_of([first, second], restarts=1, after=at)
    for agent in (first, second):
        if says(agent, "; restart 1 of 1 follows") != 1:
            raise Failed(f"{agent.address} says {agent.own_lines()} at the restart")
    ended = time.time()
    os.kill(again.pids[1], signal.SIGKILL)
    job.expect_end(128 + signal.SIGKILL, restarts=1)
    return {"restarted": again.delay, "all out": time.time() - ended}


CASES = {case.__name__: case for case in (join, replace, replace_lowest, shrink_grow, spare_ends, failure)}
