#!/usr/bin/env python3
"""make_sampler_golden.py [--check FILE]: what torch.utils.data.DistributedSampler gives, for tests/data/sampler/torch_indices.txt.

Prints one line per case: size replicas rank shuffle seed epoch drop_last count hash index... (at most the first 16 indices), where
hash is the FNV-1a of all indices as 64-bit little-endian numbers. Needs PyTorch; the golden file was made with 2.15.
With --check, compares with FILE instead and exits 1 at the first difference.
"""
import struct
import sys

from torch.utils.data import DistributedSampler

CASES = [
    # size, replicas, shuffle, seed, epoch, drop_last
    (1, 1, True, 0, 0, False),
    (10, 1, True, 0, 0, False),
    (10, 4, True, 0, 0, False),
    (10, 4, True, 0, 1, False),
    (10, 4, True, 7, 3, True),
    (10, 4, False, 0, 0, False),
    (11, 3, False, 0, 5, True),
    (3, 8, True, 1, 0, False),
    (3, 8, False, 1, 0, False),
    (1000, 7, True, 42, 2, False),
    (65536, 2, True, 2**32 + 5, 9, False),
    (100003, 16, True, 123456789, 11, True),
]


def fnv(indices):
    value = 0xCBF29CE484222325
    for byte in b"".join(struct.pack("<q", i) for i in indices):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def lines():
    for size, replicas, shuffle, seed, epoch, drop_last in CASES:
        for rank in sorted({0, 1 % replicas, replicas - 1}):
            sampler = DistributedSampler(range(size), replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
            sampler.set_epoch(epoch)
            indices = list(sampler)
            head = " ".join(map(str, indices[:16]))
            yield (f"{size} {replicas} {rank} {int(shuffle)} {seed} {epoch} {int(drop_last)} "
                   f"{len(indices)} {fnv(indices):016x} {head}")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        with open(sys.argv[2], encoding="ascii") as file:
            wanted = file.read().splitlines()
        found = list(lines())
        for number, pair in enumerate(zip(wanted, found), 1):
            if pair[0] != pair[1]:
                sys.exit(f"line {number}: golden file has {pair[0]!r}, this PyTorch gives {pair[1]!r}")
        sys.exit(0 if len(wanted) == len(found) else f"golden file has {len(wanted)} lines, expected {len(found)}")
    print("\n".join(lines()))
