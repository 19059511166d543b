"""A program whose rank 1 fails with an exception under torch's @record; the other ranks wait to be stopped."""
import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


def load(path):
    raise ValueError(f"no such shard: {path}")


@record
def main():
    if os.environ["RANK"] == "1":
        load("shard-7")
    time.sleep(600)


if __name__ == "__main__":
    main()
