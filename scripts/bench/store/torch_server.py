"""torch_server.py SECONDS: PyTorch's own TCPStore server (libuv), on a port that it prints."""
import datetime
import sys
import time

import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, None, True, timeout=datetime.timedelta(seconds=60), wait_for_workers=False)
print("port", store.port, flush=True)
time.sleep(float(sys.argv[1]))
