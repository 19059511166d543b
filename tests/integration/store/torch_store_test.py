#!/usr/bin/env python3
"""torch_store_test.py PYTHON DTRUN_STORE TORCH_PROBE: PyTorch's TCPStore as a client of our server, and our client of PyTorch's server.

PYTHON is the interpreter that has torch (1.13 or any later); exit code 77 with the reason when it has not. PROBE is the C++ client that runs
every operation against a server. Runs under any Python 3; the part inside PYTHON is this file with --client or --server.
"""
import os
import subprocess
import sys
import threading
import time


def expect(what, got, wanted):
    if got != wanted:
        print(f"FAILED {what}: got {got!r}, expected {wanted!r}")
        sys.exit(1)


def fails(what, call):
    try:
        call()
    except Exception as error:  # torch's error types differ between versions
        return error
    print(f"FAILED {what}: it did not fail")
    sys.exit(1)


def client(port):
    """Every operation of torch's own client against our server; ones that this torch lacks are named and left out."""
    import datetime
    import torch
    import torch.distributed as dist

    old = torch.__version__.startswith("1.")
    seconds = lambda s: datetime.timedelta(seconds=s)
    extra = {} if old else {"use_libuv": dist.is_available() and "debian" not in torch.__version__}

    def connect(world=None):
        return dist.TCPStore("127.0.0.1", port, world, False, timeout=seconds(20), wait_for_workers=False, **extra)

    a, b = connect(), connect()
    left_out = []

    def when(name, call, store=a):
        if not hasattr(store, name):
            left_out.append(name)
            return
        call()

    a.set("k1", "v1")
    a.set("empty", "")
    expect("get", a.get("k1"), b"v1")
    expect("get empty", a.get("empty"), b"")
    expect("add", a.add("ctr", 5), 5)
    expect("add -7", a.add("ctr", -7), -2)
    expect("get of a counter", a.get("ctr"), b"-2")
    expect("compare_set new", a.compare_set("cs", "", "new"), b"new")
    expect("compare_set match", a.compare_set("cs", "new", "newer"), b"newer")
    expect("compare_set mismatch", a.compare_set("cs", "x", "y"), b"newer")
    expect("compare_set missing", a.compare_set("cs2", "exp", "des"), b"exp")
    a.wait(["k1", "ctr"])

    def later(delay, call):
        thread = threading.Thread(target=lambda: (time.sleep(delay), call()))
        thread.start()
        return thread

    helper = later(0.2, lambda: (b.set("late1", "1"), b.set("late2", "2")))
    a.wait(["k1", "late1", "late2"], seconds(10))
    helper.join()
    helper = later(0.2, lambda: b.add("late3", 9))
    expect("get that blocks", a.get("late3"), b"9")
    helper.join()
    helper = later(0.2, lambda: b.compare_set("late4", "", "v"))
    a.wait(["late4"], seconds(10))
    helper.join()
    expect("num_keys", a.num_keys(), 8)
    expect("delete_key", a.delete_key("k1"), True)
    expect("delete_key again", a.delete_key("k1"), False)
    prefix = dist.PrefixStore("outer", dist.PrefixStore("inner", a))
    prefix.set("pk", "pv")
    expect("PrefixStore", prefix.get("pk"), b"pv")
    expect("the joined key", b.get("inner/outer/pk"), b"pv")
    start = time.time()
    fails("wait that times out", lambda: a.wait(["never"], seconds(1)))
    if time.time() - start > 5:
        expect("time of a wait", time.time() - start, 1.0)
    # After a timed-out wait the answers must still be in step, on 1.13 too (its own server sends a stray byte here).
    expect("num_keys after the time-out", a.num_keys(), 8)
    b.set("never", "late")
    time.sleep(0.1)
    expect("num_keys after the key came", a.num_keys(), 9)
    blob = bytes(range(256)) * 20000
    a.set("big", blob)
    expect("a value of 5 MB", b.get("big"), blob)
    when("check", lambda: (expect("check", a.check(["big"]), True), expect("check missing", a.check(["big", "no"]), False)))
    when("append", lambda: (a.append("ap", "one"), a.append("ap", "two"), expect("append", a.get("ap"), b"onetwo")))

    def multi():
        a.multi_set(["m1", "m2"], ["a", "bb"])
        expect("multi_get", a.multi_get(["m1", "m2"]), [b"a", b"bb"])

    when("multi_get", multi)

    def queues():
        try:
            a.queue_push("q", "e1")
        except NotImplementedError:  # builds without libuv
            left_out.append("queue_push")
            return
        a.queue_push("q", "e2")
        expect("queue_len", a.queue_len("q"), 2)
        expect("queue_pop", a.queue_pop("q"), b"e1")
        expect("queue_pop without waiting", a.queue_pop("q", False), b"e2")
        fails("queue_pop of an empty queue", lambda: a.queue_pop("q", False))
        push = later(0.2, lambda: b.queue_push("q", "late"))
        expect("queue_pop that blocks", a.queue_pop("q"), b"late")
        push.join()

    when("queue_push", queues)
    when("list_keys", lambda: expect("list_keys", {"big", "never"} <= set(a.list_keys()), True))

    def barriers():
        arrive = later(0.1, lambda: b.barrier("bar", 2))
        a.barrier("bar", 2)
        arrive.join()
        expect("the count of a barrier", a.get("bar"), b"2")

    when("barrier", barriers)
    when("clone", lambda: (a.clone().set("cl", "1"), expect("clone", b.get("cl"), b"1")))
    # Ranks meeting as init_process_group makes them, with gloo on top.
    group = [sys.executable, "-c", GROUP, str(port)]
    ranks = [subprocess.Popen(group + [str(rank)], env=dict(os.environ, GLOO_SOCKET_IFNAME="lo")) for rank in range(2)]
    try:
        for rank in ranks:
            expect("a rank of a gloo group", rank.wait(60), 0)
    finally:
        for rank in ranks:
            rank.poll() is None and rank.kill()
    print(f"torch {torch.__version__}: every operation agrees" + (f"; not in this torch: {', '.join(left_out)}" if left_out else ""))


GROUP = """
import os, sys
import torch, torch.distributed as dist
port, rank = int(sys.argv[1]), int(sys.argv[2])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2",
                  TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_RUN_ID="t")
kind = dict(init_method="env://")
if "debian" in torch.__version__:  # its builds lack libuv, which env:// would ask for
    kind = dict(store=dist.TCPStore("127.0.0.1", port, 2, False, wait_for_workers=False, **({} if torch.__version__[0] == "1" else {"use_libuv": False})))
dist.init_process_group("gloo", rank=rank, world_size=2, **kind)
x = torch.ones(4) * (rank + 1)
dist.all_reduce(x)
assert x.tolist() == [3.0] * 4, x
dist.barrier()
dist.destroy_process_group()
"""


def server():
    import datetime
    import torch
    import torch.distributed as dist

    extra = {} if torch.__version__.startswith("1.") else {"use_libuv": "debian" not in torch.__version__}
    store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=datetime.timedelta(seconds=20), wait_for_workers=False, **extra)
    print("port", store.port, torch.__version__, flush=True)
    sys.stdin.read()


def run(python, store_tool, probe):
    found = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True) if os.path.exists(python) else None
    if not found or found.returncode:
        print(f"skipped: no PyTorch under {python}")
        sys.exit(77)
    version = found.stdout.strip()
    serving = subprocess.Popen([store_tool, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        port = serving.stdout.readline().rsplit(":", 1)[1].strip()
        expect("torch as a client of our server", subprocess.run([python, __file__, "--client", port], timeout=150).returncode, 0)
    finally:
        serving.terminate()
        expect("our server's exit code", serving.wait(10), 0)
    if version.startswith("1."):
        print("our client speaks to PyTorch 2.2 and later: torch 1.13's server is left out")
        return
    torch_server = subprocess.Popen([python, __file__, "--server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = torch_server.stdout.readline().split()[1]
        # Poll servers (Debian's builds) know no queues, and LIST_KEYS and BARRIER are of 2.11 and later.
        known = tuple(int(x) for x in version.split("+")[0].split(".")[:2])
        kinds = (["queues"] if "debian" not in version and known >= (2, 8) else []) + (["list", "barrier"] if known >= (2, 14) else [])
        expect("our client of torch's server", subprocess.run([probe, port] + kinds, timeout=60).returncode, 0)
        print(f"our client against torch {version}'s server: every operation agrees")
    finally:
        torch_server.stdin.close()
        torch_server.wait(20)


if sys.argv[1] == "--client":
    client(int(sys.argv[2]))
elif sys.argv[1] == "--server":
    server()
else:
    run(*sys.argv[1:4])
