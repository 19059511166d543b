#!/usr/bin/env python3
"""gloo_all_reduce.py BUDGET_MS FRESH BYTES...: torch Gloo's side of the comparison, two processes. Prints bytes, best and median microseconds.
FRESH 1: the tensor is written again before each call, which is not timed."""
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

SAMPLES = 20


def time_of(tensor, iterations, fresh):
    seconds = 0.0
    if fresh:
        for i in range(iterations):
            tensor.fill_(float(i % 2))
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            seconds += time.perf_counter() - start
    else:
        start = time.perf_counter()
        for _ in range(iterations):
            dist.all_reduce(tensor)
        seconds = time.perf_counter() - start
    slowest = torch.tensor([seconds / iterations])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def run(rank, path, budget, fresh, sizes):
    torch.set_num_threads(1)
    if os.cpu_count() >= 2:
        os.sched_setaffinity(0, {rank})
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    for size in sizes:
        tensor = torch.zeros(size // 4)
        time_of(tensor, 2, fresh)
        iterations = max(1, min(100000, int(budget / SAMPLES / time_of(tensor, 3, fresh))))
        times = []
        for _ in range(SAMPLES):
            dist.barrier()
            times.append(time_of(tensor, iterations, fresh))
        times.sort()
        if rank == 0:
            print(size, f"{times[0] * 1e6:.3f} {times[SAMPLES // 2] * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        path, budget, fresh = directory + "/rendezvous", float(sys.argv[1]) * 1e-3, sys.argv[2] == "1"
        sizes = [int(size) for size in sys.argv[3:]]
        child = os.fork()
        if child == 0:
            run(1, path, budget, fresh, sizes)
            os._exit(0)
        run(0, path, budget, fresh, sizes)
        os.waitpid(child, 0)
