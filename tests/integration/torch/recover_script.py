"""Two ranks on gloo; rank 1 dies in the middle of the first attempt. The others must find each other again, at new addresses."""
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
for step in range(20):
    dist.all_reduce(total)
    total /= dist.get_world_size()
    if step == 10 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(9)
if dist.get_rank() == 0:
    print(f"recovered {total.item()} attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
dist.barrier()
dist.destroy_process_group()
