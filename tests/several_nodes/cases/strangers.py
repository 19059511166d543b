"""Who does not belong to the job, or does no longer."""
import os
import pathlib
import subprocess
import sys
import time

from job import PORT, PROBE, Job, start_workers, token_file
from lab import address_of, case, note, until

CLIENT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "store_client.py")
NO_WAIT = "last_call_timeout=1"
NOISE = """
import random, socket, sys, time
host, port, what, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
hello = b'{"type":"hello","job":"job","version":2,"node":"evil","address":"10.77.0.12","slots":1,"node_rank":null,"role":"default","min_nodes":1,"max_nodes":2}'
say = {"hello": len(hello).to_bytes(4, "big") + hello, "replay": bytes.fromhex(sys.argv[5]) if len(sys.argv) > 5 else b"", "noise": b"GET / HTTP/1.1\\r\\n\\r\\n",
       "torchrun": b"\\x00\\xce\\xf7\\x85\\x3c\\x00", "huge": b"\\xff\\xff\\xff\\xff", "nothing": b""}[what]
got = b""
for _ in range(count):
    with socket.create_connection((host, port), 3) as connection:
        connection.settimeout(3)
        connection.sendall(say)
        if what != "nothing":
            while more := connection.recv(4096):
                got += more
print(got.hex())
"""


def resident(pid):
    return next(int(line.split()[1]) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))


def noise(lab, number, what, count=1, host=None, more=()):
    return bytes.fromhex(lab.nodes[number].run(sys.executable, "-IS", "-c", NOISE, host or address_of(0), str(PORT), what, str(count), *more).strip())


@case(nodes=3, alone=True)
def e1_strangers_at_the_port(lab):
    """Members do not notice, memory stays, each kind has one line."""
    job = Job(lab, 2, ["--nproc-per-node=1"])
    host, member = job.start(0, 1)
    start_workers(job.all, 1)
    agent = host.agent
    noise(lab, 2, "noise", 100)
    before = resident(agent)
    kinds = ("noise", "huge", "torchrun", "hello")
    for what in kinds:
        answer = noise(lab, 2, what, 2500)
        assert b"welcome" not in answer and b"assignment" not in answer, what
    noise(lab, 2, "nothing", 500)
    grown = resident(agent) - before
    note(f"{2500 * len(kinds)} attempts, memory of the agent +{grown} KiB: {host.error_lines}")
    if not any(name.endswith("SAN_OPTIONS") for name in os.environ):  # a sanitizer keeps what is freed
        assert grown < 1024
    assert all(line.startswith(f"dtrun: refused {address_of(2)}: ") for line in host.error_lines) and 1 <= len(host.error_lines) <= len(kinds)
    assert not member.error and not member.events("stop") and not host.events("stop")
    assert len(host.events("assignment")) == 1


@case(nodes=3)
def e1_a_wrong_token_or_none(lab):
    job = Job(lab, "1:2", [], conf=NO_WAIT)
    host = job.start(0)
    start_workers([host], 1)
    wrong = token_file(lab, "another secret, long enough", "wrong")
    for token in (f"--rdzv-token-file={wrong}", None):
        other = Job(lab, "1:2", [token] if token else [], token=False)
        stranger = other.start(1)
        assert stranger.wait(5) == 75
        note(f"{stranger.error_lines} {host.error_lines[-1:]}")
        assert len(stranger.error_lines) == 1 and "token" in stranger.error, stranger.error_lines
        assert not stranger.events("assignment", "worker_started")
    assert len(host.error_lines) == 2 and all("token" in line and line.startswith(f"dtrun: refused {address_of(1)}") for line in host.error_lines), host.error_lines
    right = job.start(1)
    start_workers([host, right], 1, round_number=1)
    # And an agent with a token at a coordinator without one.
    careless = Job(lab, "1:2", [], endpoint=f"{address_of(2)}:{PORT}", token=False, conf=NO_WAIT)
    open_host = careless.start(2)
    start_workers([open_host], 1)
    careful = Job(lab, "1:2", [], endpoint=careless.endpoint)
    suspicious = careful.start(1)
    assert suspicious.wait(5) == 75
    note(f"{suspicious.error_lines} {open_host.error_lines}")
    assert len(suspicious.error_lines) == 1 and "token" in suspicious.error
    assert not open_host.events("stop")


@case(nodes=2)
def e1_another_job_is_refused_on_both_sides(lab):
    job = Job(lab, "1:2", [], conf=NO_WAIT)
    host = job.start(0)
    start_workers([host], 1)
    other = Job(lab, "1:2", [])
    other.command = [word.replace("--rdzv-id=job", "--rdzv-id=other") for word in other.command]
    stranger = other.start(1)
    assert stranger.wait(5) == 75
    note(f"{stranger.error_lines} {host.error_lines}")
    assert len(stranger.error_lines) == len(host.error_lines) == 1


@case(nodes=2)
def e1_only_the_chosen_interface_listens(lab):
    """Node 0 has a second network, on which nobody was asked in."""
    lab.nodes[0].run("sh", "-c", "ip link add other type bridge && ip addr add 10.88.0.1/24 dev other && ip link set other up")
    lab.nodes[1].run("ip", "route", "add", "10.88.0.0/24", "via", address_of(0))
    job = Job(lab, 2, [])
    host, member = job.start(0, 1)
    start_workers(job.all, 1)
    listening = {line.split()[3] for line in lab.nodes[0].run("ss", "-Hltn").splitlines()}
    store = host.events("rendezvous")[0]["master_port"]
    note(f"listening on {sorted(listening)}")
    assert listening == {f"{address_of(0)}:{PORT}", f"{address_of(0)}:{store}"}
    for port in (PORT, store):
        try:
            noise(lab, 1, "noise", host="10.88.0.1") if port == PORT else lab.nodes[1].run(
                sys.executable, "-IS", "-c", f"import socket; socket.create_connection(('10.88.0.1', {store}), 2)")
            raise SystemError("connected")
        except AssertionError as error:
            assert "ConnectionRefusedError" in str(error), error


@case(nodes=2)
def e4_the_token_is_nowhere(lab):
    secret = "secret of the lab"  # as Job has it
    for number, environment in enumerate((None, "DTRUN_TOKEN_FILE", "PET_RDZV_TOKEN_FILE")):
        logs = lab.directory_for(f"logs.{number}")
        job = Job(lab, 2, ["--nproc-per-node=2", f"--log-dir={logs}", "--tee=3"], [PROBE, "env", "rank=3", "wait-for=" + lab.path("go"), "exit=3", "end", "forever"],
                  token=environment is None)
        job.start(0, 1, environment={environment: token_file(lab, secret)} if environment else None)
        start_workers(job.all, 2)
        found = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid() for file in ("cmdline", "environ")
                 if secret.encode() in read(f"/proc/{name}/{file}")]
        assert not found, found
        until(lambda: all(len(dtrun.out_lines) > 40 for dtrun in job.all), 5, "workers that showed their environment")
        open(lab.path("go"), "w").close()
        assert [dtrun.wait(5) for dtrun in job.all] == [3, 3]
        os.unlink(lab.path("go"))
        files = [path for path in pathlib.Path(lab.directory).rglob("*") if path.is_file() and path.name != "token"]
        assert len(files) >= 8 + 8 and not [path for path in files if secret.encode() in path.read_bytes()]
        assert not any("TOKEN" in line for dtrun in job.all for line in dtrun.out_lines)
    (pathlib.Path(lab.directory) / "probe").write_text(secret)
    assert [path.name for path in pathlib.Path(lab.directory).rglob("*") if path.is_file() and secret.encode() in path.read_bytes()].count("probe") == 1


def read(path):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return b""


@case(nodes=2)
def d4_a_stale_client_of_the_store(lab):
    """What still speaks to the store of one round is not heard in the next."""
    job = Job(lab, 2, ["--max-restarts=1"], [PROBE, "rank=1", "attempt=0", "wait-for=" + lab.path("fail"), "exit=1", "end", "forever"])
    first, second = job.start(0, 1)
    start_workers(job.all, 1)
    place = first.events("rendezvous")[0]
    go = lab.path("go")
    client = subprocess.Popen(lab.nodes[1].inside(sys.executable, "-IS", CLIENT, place["master_addr"], str(place["master_port"]), go),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "first written\n"
    open(lab.path("fail"), "w").close()
    start_workers(job.all, 1, round_number=1)
    following = first.events("rendezvous")[1]
    assert following["master_port"] != place["master_port"]
    pathlib.Path(go + ".new").write_text(f"{following['master_addr']} {following['master_port']}")
    os.rename(go + ".new", go)
    said, _ = client.communicate(timeout=10)
    assert said.splitlines() == ["again closed", "anew ConnectionRefusedError", "next round not there", "next round not there"], said
