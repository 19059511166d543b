"""Nodes that come, go, come again, or come late."""
import os
import time

from job import PROBE, Job, start_workers
from lab import case, note, until

NO_WAIT = "last_call_timeout=1"


def worlds(dtrun):
    return [event["world_size"] for event in dtrun.events("assignment")]


@case(nodes=2)
def c14_leaving_is_not_closing(lab):
    """Node 1 goes by INT, TERM and KILL, and comes again at once or after a while. Node 0 stays."""
    job = Job(lab, "1:2", ["--max-restarts=1", "--grace-period=1"], [PROBE, "env=MASTER_PORT", "env=TORCHELASTIC_RESTART_COUNT", "forever"], conf=NO_WAIT)
    stays = job.start(0)
    pauses = (0, 1, 30) if "DTRUN_FULL_SIZE" in os.environ else (0, 0.5)
    turns = [(how, pause) for pause in pauses for how in ("INT", "TERM", "KILL")]
    for how, pause in turns:
        guest = job.start(1)
        until(lambda: guest.events("worker_started"), 5, "a worker on node 1")
        until(lambda: worlds(stays)[-1] == 2 and len(guest.out_lines) == 2 and len(stays.out_lines) == 2 * len(worlds(stays)), 5, "workers that said their place")
        assert guest.events("assignment")[-1]["attempt"] == stays.events("assignment")[-1]["attempt"]
        assert guest.out_lines[-2:] == stays.out_lines[-2:]
        moment = guest.kill_guardian() if how == "KILL" else guest.signal(how)
        assert guest.wait(3) == {"INT": 130, "TERM": 143, "KILL": -9}[how]
        stays.after(moment, "worker_started", 5)
        time.sleep(pause)
    assert stays.running
    sequence = worlds(stays)
    note(f"world sizes {sequence}")
    # Alone at first, if node 1 came after the last call; then by turns.
    assert sequence[sequence.index(2):] == [2, 1] * len(turns), sequence
    assert [event["attempt"] for event in stays.events("assignment")] == list(range(len(sequence)))
    assert {event["restarts"] for event in stays.events("assignment")} == {0}, "nobody failed"
    stays.signal("TERM")
    assert stays.wait(3) == 143


@case(nodes=2)
def c14_the_budget_is_not_renewed(lab):
    """A failure counts, also after nodes have come and gone."""
    go = lab.path("go")
    job = Job(lab, "1:2", ["--max-restarts=1", "--grace-period=1"], [PROBE, "rank=0", f"wait-for={go}", f"remove={go}", "exit=5", "end", "forever"], conf=NO_WAIT)
    stays, guest = job.start(0, 1)
    start_workers(job.all, 1)
    open(go, "w").close()
    start_workers(job.all, 1, round_number=1)
    guest.signal("TERM")
    assert guest.wait(3) == 143
    start_workers([stays], 1, round_number=2)
    again = job.start(1)
    start_workers([stays, again], 1, round_number=3)
    assert {event["restarts"] for event in again.events("assignment")} == {1}
    open(go, "w").close()
    assert stays.wait(5) == 5 and again.wait(5) == 5
    assert stays.report["restarts_used"] == again.report["restarts_used"] == 1


PLACES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"]


def places_of(dtrun):
    """The last round's: {rank: (world, local rank, local world, node, nodes)}"""
    found = {}
    for line in dtrun.out_lines:
        if line.startswith("place "):
            rank, *rest = map(int, line.split()[1:])
            found[rank] = tuple(rest)
    return found


def uneven(lab, order):
    """Three slots on node 0, one on each other; node 2 comes late."""
    script = f"echo place {' '.join('$' + name for name in PLACES)}; exec sleep 600"
    job = Job(lab, "2:3", ["--no-python"], ["sh", "-c", script], conf=NO_WAIT)
    slots = {0: 3, 1: 1, 2: 1}
    dtruns = {number: job.start(number, options=[f"--nproc-per-node={slots[number]}"]) for number in order}
    for number in order:
        start_workers([dtruns[number]], slots[number])
    until(lambda: len(places_of(dtruns[0])) == 3 and len(places_of(dtruns[1])) == 1, 5, "workers that said their place")
    together = places_of(dtruns[0]) | places_of(dtruns[1])
    assert together == {0: (4, 0, 3, 0, 2), 1: (4, 1, 3, 0, 2), 2: (4, 2, 3, 0, 2), 3: (4, 0, 1, 1, 2)}, together
    late = job.start(2, options=["--nproc-per-node=1"])
    start_workers([late], 1, round_number=1)
    waited = late.events("worker_started")[0]["monotonic"] - late.started_at
    until(lambda: places_of(late) and all(len(dtrun.out_lines) == 2 * slots[number] for number, dtrun in dtruns.items()), 5, "workers of the second round")
    together = places_of(dtruns[0]) | places_of(dtruns[1]) | places_of(late)
    assert {rank: place[0] for rank, place in together.items()} == {rank: 5 for rank in range(5)}
    assert [together[rank][3] for rank in range(5)] == [0, 0, 0, 1, 2]
    note(f"the late node takes part after {waited:.2f} s")
    assert waited < 1, "with all nodes nobody waits"
    dtruns[0].signal("TERM")
    for dtrun in job.all:
        dtrun.wait(5)


@case(nodes=3)
def c17_uneven_slots_and_a_late_node(lab):
    uneven(lab, (0, 1))


@case(nodes=3)
def c17_the_order_of_start_does_not_matter(lab):
    uneven(lab, (1, 0))


@case(nodes=2)
def d6_the_newest_incarnation_wins(lab):
    """Node 1 is cut off and started again elsewhere in the same place before anybody has missed it."""
    job = Job(lab, "2", ["--grace-period=0.3"])
    first = job.start(0, options=["--node-rank=0"])
    old = job.start(1, options=["--node-rank=1"])
    start_workers([first, old], 1)
    lab.nodes[1].cut_off()
    moment = old.kill_guardian()  # nobody hears of it
    until(lambda: not old.processes(), 1, "the old incarnation is gone")
    lab.nodes[1].run("ip", "link", "set", "eth0", "down")
    lab.nodes[1].run("ip", "addr", "flush", "dev", "eth0")
    lab.nodes[1].run("ip", "addr", "add", "10.77.0.99/24", "dev", "eth0")
    lab.nodes[1].run("ip", "link", "set", "eth0", "up")
    lab.nodes[1].heal()
    new = job.start(1, options=["--node-rank=1"])
    start_workers([first, new], 1, round_number=1)
    waited = new.events("worker_started")[0]["monotonic"] - new.started_at
    note(f"the new incarnation runs {waited:.2f} s after its start, {time.monotonic() - moment:.2f} s after the death of the old one")
    assert new.events("assignment")[0]["node_rank"] == 1
    assert len(first.error_lines) == 1, first.error_lines


@case(nodes=2)
def d6_a_living_node_keeps_its_place(lab):
    job = Job(lab, "1:2", ["--node-rank=1"], endpoint=f"{lab.nodes[1].address}:29400", conf=NO_WAIT)
    old = job.start(1)
    start_workers([old], 1)
    second = job.start(0)
    assert second.wait(5) == 75
    assert "node rank 1 is taken by node1" in second.error and len(second.error_lines) == 1, second.error_lines
    assert old.running and len(old.events("assignment")) == 1


@case(nodes=2)
def d6_a_stop_between_joining_and_the_start(lab):
    """The one who leaves leaves; the other waits and starts at the last call when there are enough."""
    job = Job(lab, "1:3", [], conf="last_call_timeout=3")
    stays, leaves = job.start(0, 1)
    until(lambda: leaves.events("start"), 5, "an agent")
    time.sleep(0.5)
    leaves.signal("TERM")
    assert leaves.wait(1) == 143
    start_workers([stays], 1, limit=4)
    started = stays.events("worker_started")[0]["monotonic"] - stays.started_at
    note(f"started {started:.2f} s after the first agent")
    assert worlds(stays) == [1] and started < 3.5


@case(nodes=3)
def d6_a_stop_at_any_moment_of_joining(lab):
    """Of three nodes, two of which are enough, one is stopped while the first round begins."""
    slowest = 0
    for delay in (0, 0.01, 0.02, 0.03, 0.05, 0.08):
        job = Job(lab, "2:3", [], conf=NO_WAIT)
        first, second, leaves = job.start(0, 1, 2)
        time.sleep(delay)
        moment = leaves.signal("TERM")
        assert leaves.wait(1) in (143, -15), "also before dtrun has taken its signals"
        until(lambda: all(worlds(dtrun)[-1:] == [2] for dtrun in (first, second)), 3, "a round of two nodes")
        began = first.events("assignment")[-1]["monotonic"] - moment
        slowest = max(slowest, began)
        assert began < 1.2, "the last call and no more"
        first.signal("TERM")
        assert first.wait(3) == 143
        second.wait(3)
    note(f"the round of two began {slowest:.2f} s after the stop, at the latest")


@case(nodes=3)
def a_spare_takes_the_place_of_a_lost_node(lab):
    job = Job(lab, "2", ["--grace-period=1"])
    stays, lost = job.start(0, 1)
    start_workers(job.all, 1)
    spare = job.start(2)
    until(lambda: spare.error_lines == ["dtrun: this node is a spare: the job has its 2 nodes; it takes the place of one that is lost"], 5, "a line that says so")
    moment = lost.kill_agent()
    start_workers([stays, spare], 1, round_number=1)
    took = spare.events("worker_started")[0]["monotonic"] - moment
    note(f"its workers run {took * 1000:.0f} ms after the loss")
    assert took < 1
    assert worlds(stays) == [2, 2] and not stays.events("stop")[1:]


@case(nodes=2)
def nodes_of_the_same_name(lab):
    """As images have it."""
    for node in lab.nodes:
        node.run("hostname", "ubuntu")
    job = Job(lab, 2, ["--nproc-per-node=2"], [PROBE, "rank=2", "sleep=0.2", "exit=4", "end", "forever"])
    first, culprit = job.start(0, 1)
    assert [dtrun.wait(10) for dtrun in job.all] == [4, 4]
    if first.report["root_cause"]:  # equal names have no order
        first, culprit = culprit, first
    assert culprit.report["root_cause"]["rank"] == 2 and first.report["failure_elsewhere"]["rank"] == 2
