"""A static job of two nodes of which one is torchrun's agent: static_nodes_test.py DTRUN {torchrun_hosts,dtrun_hosts}
The worker trains nothing: it meets the others with gloo through the store of node 0, and adds up ranks."""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

WORKER = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
names = "RANK WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE LOCAL_WORLD_SIZE TORCHELASTIC_USE_AGENT_STORE"
open(os.environ["OUT"] + "/rank" + os.environ["RANK"], "w").write(
    " ".join(os.environ[name] for name in names.split()) + f" sum {int(value)}")
dist.barrier()
dist.destroy_process_group()
"""
LIMIT = 150


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    dtrun, host = sys.argv[1:]
    python = pathlib.Path(os.environ.get("DTRUN_TORCH_PYTHON", pathlib.Path.home() / ".cache/dtrun-torch/bin/python"))
    torchrun = python.parent / "torchrun"
    if not torchrun.exists():
        print(f"skipped: {torchrun} is not there (scripts/setup_torch.sh)")
        return 77
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="dtrun-test-") as directory:
        worker = pathlib.Path(directory, "worker.py")
        worker.write_text(WORKER)
        environment = dict(os.environ, OUT=directory, PYTHON_EXEC=str(python), OMP_NUM_THREADS="1", TMPDIR=directory)
        launchers = [str(torchrun), dtrun] if host == "torchrun_hosts" else [dtrun, str(torchrun)]
        processes = []
        try:
            for node, launcher in enumerate(launchers):
                words = [launcher, "--nnodes=2", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}",
                         f"--nproc-per-node={node + 1}", "--role=" + ("a" if node == 0 else "b"), str(worker)]
                with open(f"{directory}/err{node}", "w") as err:
                    processes.append(subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stderr=err))
            deadline = time.monotonic() + LIMIT
            codes = [process.wait(max(1, deadline - time.monotonic())) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        errors = [pathlib.Path(directory, f"err{node}").read_text() for node in (0, 1)]
        said = {rank: path.read_text() for rank in range(3) if (path := pathlib.Path(directory, f"rank{rank}")).exists()}
    wanted = {0: "0 3 0 2 0 1 1 True sum 6", 1: "1 3 1 2 0 2 2 True sum 6", 2: "2 3 1 2 1 2 2 True sum 6"}
    ours = errors[launchers.index(dtrun)].splitlines()
    noise = [line for line in ours if line.startswith("dtrun") and "waiting for nodes" not in line]
    if codes != [0, 0] or said != wanted or noise:
        print(f"exit codes {codes}\nworkers said {said}\nexpected {wanted}\nstderr of the nodes:", *errors, sep="\n")
        return 1
    print(f"{host}: both nodes ended with 0, ranks as torchrun's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
