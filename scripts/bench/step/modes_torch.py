#!/usr/bin/env python3
"""modes_torch.py ddp|fsdp [--steps N]: seconds per step of step_torch.py's GPT-2 under DistributedDataParallel or fully_shard, over gloo.

A program for torchrun or dtrun, one thread per rank. Rank 0 prints one JSON line: best and median milliseconds, and CPU milliseconds of
a step and rank.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from step_torch import Gpt
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("ddp", "fsdp"))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = Gpt(layers=4, hidden=256, heads=4, vocab=4096, context=128)
    if args.mode == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=args.mode == "ddp")
    ids = torch.randint(4096, (8, 129), generator=torch.Generator().manual_seed(dist.get_rank()))
    walls, cpus = [], []
    for _ in range(args.warmup + args.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss = model(ids[:, :-1], ids[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    walls, cpu = walls[args.warmup:], torch.tensor(statistics.mean(cpus[args.warmup:]))
    dist.all_reduce(cpu)
    if dist.get_rank() == 0:
        print(json.dumps(dict(best_ms=min(walls) * 1e3, median_ms=statistics.median(walls) * 1e3, cpu_ms=cpu.item() / dist.get_world_size() * 1e3)), flush=True)
    dist.barrier()
    os._exit(0)  # destroy_process_group() and the end of the interpreter abort at times, after all is done


if __name__ == "__main__":
    main()
