#!/usr/bin/env python3
"""torch_strangers_test.py PYTHON PROBE: PyTorch's store client and torchrun at a coordinator of ours, our agent at PyTorch's store. Exit code 77: no PyTorch."""
import pathlib
import subprocess
import sys
import time

PYTHON, PROBE = sys.argv[1:]
if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode if pathlib.Path(PYTHON).exists() else True:
    print(f"skipped: no PyTorch at {PYTHON}")
    sys.exit(77)


def expect(what, condition, seen):
    if not condition:
        sys.exit(f"FAILED {what}: {seen}")


coordinator = subprocess.Popen([PROBE, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
try:
    port = coordinator.stdout.readline().split()[1]
    client = subprocess.run(
        [PYTHON, "-c", "import datetime, sys, torch.distributed as d\n"
         "d.TCPStore('127.0.0.1', int(sys.argv[1]), is_master=False, timeout=datetime.timedelta(seconds=3)).get('k')", port],
        capture_output=True, text=True, timeout=60)
    expect("TCPStore", client.returncode != 0, client.stderr)
    begin = time.monotonic()
    torchrun = subprocess.run(
        [PYTHON, "-m", "torch.distributed.run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", "--no-python",
         f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=is_host=0,read_timeout=3,join_timeout=3", "true"],
        capture_output=True, text=True, timeout=60)
    seconds = time.monotonic() - begin
    expect("torchrun", torchrun.returncode != 0, torchrun.stderr)
    print(f"torchrun failed after {seconds:.1f} s: {torchrun.stderr.strip().splitlines()[-1][:150]}")
    notes = coordinator.communicate("", timeout=20)[0].splitlines()
    expect("notes", notes == ["refused 127.0.0.1: a PyTorch c10d client, such as torchrun's agent: run dtrun on every node"], notes)
finally:
    coordinator.kill()
    coordinator.wait()

for libuv in ("True", "False"):
    store = subprocess.Popen(
        [PYTHON, "-c", "import sys, torch.distributed as d\n"
         f"s = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False, use_libuv={libuv})\n"
         "print(s.port, flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = store.stdout.readline().strip()
        begin = time.monotonic()
        agent = subprocess.run([PROBE, "join", "127.0.0.1", port], capture_output=True, text=True, timeout=60)
        seconds = time.monotonic() - begin
        print(f"our agent at PyTorch's store (libuv {libuv}) after {seconds:.1f} s: {agent.stdout.strip()}")
        expect("agent at a store", agent.returncode == 75 and "is a c10d store, not a dtrun coordinator" in agent.stdout, agent)
        expect("time of the agent", seconds < 6, seconds)
    finally:
        store.kill()
        store.wait()
