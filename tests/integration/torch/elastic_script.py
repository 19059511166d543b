"""elastic_script.py DIRECTORY: counts steps over gloo until DIRECTORY/stop exists, in rounds of any size. DIRECTORY is shared by all nodes.

In each round the ranks compare who they are, rank 0 adds a line to rounds.jsonl, and all go on from the step in DIRECTORY/checkpoint."""
import datetime
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

directory = pathlib.Path(sys.argv[1])
checkpoint = directory / "checkpoint"
variables = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
rank, world = dist.get_rank(), dist.get_world_size()
mine = torch.tensor([int(os.environ[name]) for name in variables] + [os.getpid()])
everyone = [torch.zeros_like(mine) for _ in range(world)]
dist.all_gather(everyone, mine)
ranks, worlds, nodes, node_counts, restarts, pids = torch.stack(everyone).T.tolist()
assert ranks == list(range(world)), f"ranks {ranks}"
assert set(worlds) == {world} and nodes == sorted(nodes) and set(nodes) == set(range(node_counts[0])), f"{worlds} {nodes}"
assert len(set(node_counts)) == 1 and len(set(restarts)) == 1, f"{node_counts} {restarts}"

start = torch.zeros(1, dtype=torch.int64)
if rank == 0 and checkpoint.exists():
    start[0] = int(checkpoint.read_text())
dist.broadcast(start, 0)
step = int(start)
if rank == 0:
    with open(directory / "rounds.jsonl", "a") as file:
        file.write(json.dumps({"pids": pids, "nodes": node_counts[0], "restarts": restarts[0], "step": step}) + "\n")

stop = False
while not stop:
    total = torch.tensor([1, int(rank == 0 and (directory / "stop").exists())])
    dist.all_reduce(total)
    assert total[0] == world, f"{total[0]} ranks of {world}"
    step, stop = step + 1, bool(total[1])
    if rank == 0:
        new = directory / "checkpoint.new"
        new.write_text(str(step))
        new.replace(checkpoint)
    time.sleep(0.01)
print(f"rank {rank} of {world}: {step} steps", flush=True)
dist.barrier()
dist.destroy_process_group()
