"""Endpoints that nobody is at, and host names that deceive."""
import re
import time

from job import Dtrun, Job, PROBE
from lab import address_of, case, note, until

TRAIN = ["worker", "train", "--steps", "2", "--layers", "1", "--hidden", "32", "--heads", "2", "--seq-len", "16", "--batch-size", "2"]


@case(nodes=7)
def c08_nobody_at_the_endpoint(lab):
    """Every node waits for something else that never comes."""
    lab.nodes[5].run("ip", "route", "add", "blackhole", f"{lab.nodes[3].address}/32")  # hears node 3 and does not answer
    lab.nodes[5].run("ip", "route", "add", "blackhole", f"{lab.nodes[6].address}/32")
    lab.nodes[6].name_servers.write_text(f"nameserver {address_of(5)}\n")
    jobs = [Job(lab, 2, endpoint=endpoint, conf="join_timeout=6") for endpoint in (
        f"{address_of(0)}:29400", "10.77.0.99:29400", f"{address_of(0)}:29499", f"{address_of(5)}:29400", "nowhere.example:29400")]
    dtruns = [job.start(number) for number, job in enumerate(jobs)]
    dtruns.append(jobs[-1].start(6))
    reasons = ["waiting for nodes: 1 of 2 are here, 5 s of 6 s", "no route to host, 5 s of 6 s", "refused, 5 s of 6 s", r"no answer (so far|\(timed out\)), 5 s of 6 s",
               "the name nowhere.example is not known: no answer from a name server, 5 s of 6 s", "looking up the name nowhere.example, 5 s of 6 s"]
    for dtrun, reason, job in zip(dtruns, reasons, [*jobs, jobs[-1]]):
        assert dtrun.wait(10) == 75
        waited = dtrun.ended_at - dtrun.started_at
        note(f"{waited:.2f} s: {dtrun.error_lines}")
        assert 6 <= waited < 6.4
        assert len(dtrun.error_lines) == 2 and re.search(f"{reason}$", dtrun.error_lines[0]), dtrun.error_lines
        assert dtrun.node.number == 0 or job.endpoint in dtrun.error_lines[1]


@case(nodes=2)
def a_stop_while_the_name_server_is_silent(lab):
    """The system's resolver waits for ten seconds and cannot be interrupted."""
    lab.nodes[0].run("ip", "route", "add", "blackhole", f"{lab.nodes[1].address}/32")
    lab.nodes[1].name_servers.write_text(f"nameserver {address_of(0)}\n")
    waiting = Job(lab, 2, endpoint="nowhere.example:29400").start(1)
    until(lambda: waiting.events("start"), 5, "an agent")
    time.sleep(0.3)
    moment = waiting.signal("TERM")
    assert waiting.wait(3) == 143
    assert waiting.ended_at - moment < 0.5


def runs_on_real_addresses(lab, endpoint, nodes=(0, 1)):
    job = Job(lab, 2, [], TRAIN, endpoint=endpoint)
    job.start(*nodes)
    assert [dtrun.wait(20) for dtrun in job.all] == [0, 0]
    for dtrun in job.all:
        assert dtrun.events("rendezvous")[0]["master_addr"] == address_of(0), dtrun.events("rendezvous")
        assert not dtrun.error
    seconds = max(dtrun.ended_at for dtrun in job.all) - job.all[0].started_at
    note(f"{endpoint}: {seconds:.2f} s")
    assert seconds < 5


@case(nodes=2)
def c09_loopback_as_the_endpoint(lab):
    """Each node would wait for the other at its own loopback."""
    for endpoint in ("localhost:29500", "127.0.0.1:29500"):
        job = Job(lab, 2, endpoint=endpoint)
        for dtrun in job.start(0, 1):
            assert dtrun.wait(2) == 2
            assert len(dtrun.error_lines) == 1 and endpoint in dtrun.error and dtrun.ended_at - dtrun.started_at < 0.5, dtrun.error_lines


@case(nodes=2)
def c09_the_own_name_is_127_0_1_1(lab):
    """As Debian's installer has it: other machines know the real address."""
    lab.nodes[0].hosts.write_text("127.0.0.1 localhost\n127.0.1.1 node0\n")
    lab.nodes[1].hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 node1\n{address_of(0)} node0\n")
    runs_on_real_addresses(lab, "node0:29400")
    runs_on_real_addresses(lab, "node0:29400", (1, 0))


@case(nodes=2)
def c09_an_alias_as_the_endpoint(lab):
    for node in lab.nodes:
        node.hosts.write_text(f"127.0.0.1 localhost\n{address_of(0)} trainer\n")
    runs_on_real_addresses(lab, "trainer:29400", (1, 0))


@case(nodes=2)
def c09_a_bridge_with_the_same_address_on_both(lab):
    """As Docker makes it."""
    for node in lab.nodes:
        node.run("sh", "-c", "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up")
        node.hosts.write_text(f"127.0.0.1 localhost\n172.17.0.1 {node.name}\n")
    runs_on_real_addresses(lab, f"{address_of(0)}:29400")


@case(nodes=2)
def c09_the_own_name_is_nothing(lab):
    runs_on_real_addresses(lab, f"{address_of(0)}:29400")
    alone = Dtrun(lab, lab.nodes[0], ["--nproc-per-node=2", *TRAIN])
    assert alone.wait(10) == 0 and not alone.error
    quick = Dtrun(lab, lab.nodes[0], ["--nproc-per-node=2", PROBE, "exit=0"])
    assert quick.wait(5) == 0 and quick.ended_at - quick.started_at < 0.5


def runs_at(lab, address, endpoint=None, options=()):
    job = Job(lab, 2, ["--nproc-per-node=2"], TRAIN, endpoint=endpoint)
    job.start(0, options=options)
    job.start(1)
    assert [dtrun.wait(20) for dtrun in job.all] == [0, 0]
    assert {dtrun.events("rendezvous")[0]["master_addr"] for dtrun in job.all} == {address}
    assert not any(dtrun.error for dtrun in job.all)


@case(nodes=2)
def an_endpoint_of_ipv6(lab):
    for node in lab.nodes:
        node.run("ip", "addr", "add", f"fd77::1{node.number}/64", "dev", "eth0", "nodad")
    runs_at(lab, "fd77::10", "[fd77::10]:29400")


@case(nodes=2)
def the_chosen_interface(lab):
    """The store of the round is where --interface or --local-addr says; the coordinator at the endpoint as always."""
    lab.nodes[0].run("sh", "-c", "ip link add other type bridge && ip addr add 10.88.0.1/24 dev other && ip link set other up")
    lab.nodes[1].run("ip", "route", "add", "10.88.0.0/24", "via", address_of(0))
    for option in ("--interface=other", "--local-addr=10.88.0.1"):
        runs_at(lab, "10.88.0.1", options=[option])
