#!/usr/bin/env python3
"""gloo_all_reduce.py BUDGET_MS BYTES...: torch Gloo's side of the comparison, two processes. Prints bytes, best and median microseconds."""
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

SAMPLES = 20


def time_of(tensor, iterations):
    start = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(tensor)
    slowest = torch.tensor([(time.perf_counter() - start) / iterations])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def run(rank, path, budget, sizes):
    torch.set_num_threads(1)
    if os.cpu_count() >= 2:
        os.sched_setaffinity(0, {rank})
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    for size in sizes:
        tensor = torch.zeros(size // 4)
        time_of(tensor, 2)
        iterations = max(1, min(100000, int(budget / SAMPLES / time_of(tensor, 3))))
        times = []
        for _ in range(SAMPLES):
            dist.barrier()
            times.append(time_of(tensor, iterations))
        times.sort()
        if rank == 0:
            print(size, f"{times[0] * 1e6:.3f} {times[SAMPLES // 2] * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        path, budget, sizes = directory + "/rendezvous", float(sys.argv[1]) * 1e-3, [int(size) for size in sys.argv[2:]]
        child = os.fork()
        if child == 0:
            run(1, path, budget, sizes)
            os._exit(0)
        run(0, path, budget, sizes)
        os.waitpid(child, 0)
