#!/usr/bin/env python3
"""compare.py [--build build/release] [--rows add,get] [--seconds 1] [--runs 3] [--out FILE.json] [--only-faults]

Our store server beside PyTorch's (libuv), interleaved run by run with the same load generator, and the figures of the fault rows C1, C2, C9 for
ours. Server CPU is the kernel's exact run time of the server's threads (schedstat), per operation. Exit code 1 when a bar of rendezvous.md is
missed. Build first: cmake --preset release && cmake --build --preset release --target dtrun-store store_load answer_floor

The floor is answer_floor beside both: one recv and one send per request and nothing else. No server can be below it, and "theirs / floor" is the
best CPU ratio that any server could show here; the bar for ours is 1.3 times the floor.

PyTorch: DTRUN_TORCH_PYTHON or ~/.cache/dtrun-torch/bin/python. Its server asks for the reverse DNS name of every connection, blocking; unless
/etc/hosts has a line "::ffff:127.0.0.1 localhost" each lookup goes to a name server and the connect rows measure that instead: said below.
"""
import argparse
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--build", default=str(ROOT / "build/release"))
ap.add_argument("--rows", help="comma-separated beginnings of row names")
ap.add_argument("--seconds", type=float, default=1.0)
ap.add_argument("--runs", type=int, default=3)
ap.add_argument("--out")
ap.add_argument("--only-faults", action="store_true")
args = ap.parse_args()
LOAD = pathlib.Path(args.build) / "bin/store_load"
STORE = pathlib.Path(args.build) / "bin/dtrun-store"
FLOOR_LIMIT = 1.3
FLOOR = pathlib.Path(args.build) / "bin/answer_floor"
TORCH = os.environ.get("DTRUN_TORCH_PYTHON", os.path.expanduser("~/.cache/dtrun-torch/bin/python"))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Server:
    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline().replace(":", " ").split()[1 if name == "torch" else 2])

    def cpu_seconds(self):
        task = f"/proc/{self.process.pid}/task"
        return sum(int(open(f"{task}/{t}/schedstat").read().split()[0]) for t in os.listdir(task)) / 1e9

    def resident_mib(self):
        return int(open(f"/proc/{self.process.pid}/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20

    def stop(self):
        self.process.terminate()
        self.process.wait(10)


def load(server, options):
    before = server.cpu_seconds()
    command = [LOAD, "--port", str(server.port), "--proto", "new", "--json"] + [str(o) for o in options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    result = json.loads(done.stdout)
    result["cpu_us"] = (server.cpu_seconds() - before) * 1e6 / max(1, result["ops"])
    return result


def all_rows():
    s = args.seconds
    for op in ("set", "get", "getonly", "add"):
        for n in (1, 8, 64):
            yield f"{op} {n} clients", ["--op", op, "--conns", n, "--seconds", s]
    yield "64 SETs a write, 8 clients", ["--op", "setburst", "--conns", 8, "--seconds", s]
    yield "compare_set 8 clients", ["--op", "cas", "--conns", 8, "--seconds", s]
    yield "check 8 clients", ["--op", "check", "--conns", 8, "--seconds", s]
    yield "wake-up", ["--op", "wake", "--seconds", s]
    yield "connect+hello+add+close", ["--op", "connect", "--seconds", s]
    for n in (64, 512, 2000):
        yield f"init barrier {n} clients", ["--op", "barrier", "--conns", n, "--repeat", 3]
    for n in (64, 128, 256):
        yield f"gloo-like mesh {n} ranks", ["--op", "mesh", "--conns", n]
    for k in (1000, 4000):
        yield f"add 8 clients, {k} idle", ["--op", "add", "--conns", 8, "--seconds", s, "--idle", k]
    for k in (16, 256, 1024):
        yield f"multi_get of {k} keys", ["--op", "mget", "--keys", k, "--conns", 4, "--seconds", s]


def compare():
    servers = [Server("dtrun", [STORE, "serve", "--port", "0"]), Server("torch", [TORCH, ROOT / "scripts/bench/store/torch_server.py", "3600"])]
    missed, table = [], []
    print(f"{'row':28} {'dtrun/s':>10} {'torch/s':>10} {'ratio':>6}   {'p99 us':>8} {'p99 us':>8}   {'cpu us':>7} {'cpu us':>7} {'ratio':>6}")
    try:
        for name, options in all_rows():
            if args.rows and not any(name.startswith(r) for r in args.rows.split(",")):
                continue
            runs = [[load(server, options) for server in servers] for _ in range(args.runs)]
            errors = [r["error"] for pair in runs for r in pair if "error" in r]
            if errors:
                print(f"{name:28} ERROR {errors[0]}")
                missed.append(name)
                continue
            # The quietest run of each: least CPU per operation, most operations.
            ours, theirs = ({k: pick(run[i][k] for run in runs) for k, pick in (("ops_per_s", max), ("p99_us", min), ("cpu_us", min))} for i in (0, 1))
            speed, cpu = ours["ops_per_s"] / theirs["ops_per_s"], theirs["cpu_us"] / ours["cpu_us"]
            print(f"{name:28} {ours['ops_per_s']:10.0f} {theirs['ops_per_s']:10.0f} {speed:6.2f}   {ours['p99_us']:8.1f} {theirs['p99_us']:8.1f}   "
                  f"{ours['cpu_us']:7.2f} {theirs['cpu_us']:7.2f} {cpu:6.2f}", flush=True)
            table.append(dict(row=name, dtrun=ours, torch=theirs, speed=speed, cpu=cpu))
            if speed < 1.0:
                missed.append(f"{name}: throughput {speed:.2f}x, expected 1.0x")
            if cpu < 1.0:
                missed.append(f"{name}: CPU per operation {cpu:.2f}x, expected 1.0x")
    finally:
        for server in servers:
            server.stop()
    return table, missed


def floor():
    missed = []
    servers = [Server("floor", [FLOOR]), Server("dtrun", [STORE, "serve", "--port", "0"]),
               Server("torch", [TORCH, ROOT / "scripts/bench/store/torch_server.py", "3600"])]
    try:
        for n in (1, 8, 64):
            runs = [[load(server, ["--op", "add", "--conns", n, "--seconds", args.seconds]) for server in servers] for _ in range(args.runs)]
            bare, ours, theirs = (min(run[i]["cpu_us"] for run in runs) for i in range(3))
            print(f"floor of add, {n} clients: {bare:6.2f} us of CPU; dtrun {ours:6.2f} ({ours / bare:.2f}x), torch {theirs:6.2f}; "
                  f"theirs / floor {theirs / bare:.2f}", flush=True)
            if ours > FLOOR_LIMIT * bare:
                missed.append(f"add {n} clients: {ours / bare:.2f}x the floor, limit {FLOOR_LIMIT}x")
    finally:
        for server in servers:
            server.stop()
    return missed


def faults():
    missed, figures = [], {}

    def bar(name, value, limit, unit):
        figures[name] = value
        print(f"{name:64} {value:8.2f} {unit}, limit {limit} {unit}" + ("" if value <= limit else "   MISSED"), flush=True)
        if value > limit:
            missed.append(name)

    def p99(server, extra=()):
        return min(load(server, ["--op", "connect", "--seconds", 1, *extra])["p99_us"] for _ in range(2)) / 1000

    server = Server("dtrun", [STORE, "serve", "--port", "0"])
    try:
        load(server, ["--op", "connect", "--seconds", 0.2])
        before = server.resident_mib()
        idle = []
        for i in range(10_000):
            c = socket.create_connection(("127.0.0.1", server.port))
            c.sendall(b"\x00\xce\xf7\x85\x3c\x0d\x01\x00\x00\x00")
            idle.append(c)
        for c in idle:
            c.recv(4)
        bar("C1 resident memory of 10,000 idle connections", server.resident_mib() - before, 16, "MiB")
        bar("C1 connect+hello+add p99 beside them", p99(server), 5, "ms")
        for c in idle:
            c.close()
        half = []
        for i in range(1000):
            c = socket.create_connection(("127.0.0.1", server.port))
            c.sendall((b"", b"\x00\xce", b"\x00\xce\xf7\x85\x3c\x01\x05\0\0\0\0\0\0\0/k")[i % 3])
            half.append(c)
        bar("C2 connect+hello+add p99 beside 1,000 half-open clients", p99(server), 5, "ms")
        for c in half:
            c.close()
        herd = load(server, ["--op", "herd", "--conns", 1000, "--repeat", 5])
        bar("C9 1,000 blocked waiters: SET to the last wake-up, median", herd["p50_us"] / 1000, 50, "ms")
        bar("C9 the same, worst of 5", herd["max_us"] / 1000, 50, "ms")
    finally:
        server.stop()
    return figures, missed


def main():
    if not LOAD.exists() or not STORE.exists() or not FLOOR.exists():
        sys.exit(f"build first: cmake --build {args.build} --target dtrun-store store_load answer_floor")
    print(f"# {os.cpu_count()} cores, {time.strftime('%Y-%m-%d %H:%M')}, best of {args.runs} runs of {args.seconds} s each, interleaved")
    table, missed = [], []
    if not args.only_faults and not os.path.exists(TORCH):
        print(f"no PyTorch at {TORCH}: the comparison is skipped")
    elif not args.only_faults:
        if "::ffff:127.0.0.1" not in open("/etc/hosts").read():
            print('# /etc/hosts lacks "::ffff:127.0.0.1 localhost": connect rows of torch contain reverse DNS queries')
        table, missed = compare()
        if not args.rows or args.rows.startswith("add"):
            missed += floor()
    figures = {}
    if not args.rows:
        figures, more = faults()
        missed += more
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(dict(rows=table, faults=figures, missed=missed), indent=1))
    print("\n".join(["missed:"] + missed) if missed else "all bars hold")
    return 1 if missed else 0


sys.exit(main())
