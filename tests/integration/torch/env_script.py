"""A training script as people write them for torchrun, without a launcher library: env://, @record, a DistributedSampler, a checkpoint of
rank 0. It knows nothing of dtrun. Also run as a module (python -m) and from a shell wrapper."""
import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--checkpoint", required=True)
    arguments = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(backend="gloo", init_method="env://")
    assert dist.is_torchelastic_launched()
    assert (dist.get_rank(), dist.get_world_size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    torch.manual_seed(7)
    x = torch.randn(64, 4)
    data = TensorDataset(x, x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]))
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    weight = torch.zeros(4, 1, requires_grad=True)
    seen = torch.zeros(1)
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
            loss = ((inputs @ weight - targets) ** 2).mean()
            loss.backward()
            dist.all_reduce(weight.grad)
            with torch.no_grad():
                weight -= 0.1 * weight.grad / dist.get_world_size()
                weight.grad.zero_()
            seen += len(inputs)
    dist.all_reduce(seen)
    if dist.get_rank() == 0:
        torch.save(weight.detach(), arguments.checkpoint)
    dist.barrier()
    print(f"rank {dist.get_rank()} local {local_rank} samples {int(seen)} loss {loss.item() < 20}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
