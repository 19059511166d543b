"""A plain PyTorch DDP script as people write them: it knows nothing of dtrun. Prints the gradient-averaged weights' checksum from rank 0."""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    fail_once = "--fail-once" in sys.argv[1:]
    dist.init_process_group("gloo")  # env://
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(100 + rank)
    for step in range(10):
        x = torch.randn(8, 16, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fail_once and step == 4 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(9)
    total = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum()
    sums = [torch.zeros_like(total) for _ in range(world)]
    dist.all_gather(sums, total)
    assert all(torch.equal(s, sums[0]) for s in sums), sums
    if rank == 0:
        print(f"checksum {total.item():.12f} world {world} attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
