#!/usr/bin/env python3
"""make_store_seeds.py VECTORS.json DIR: seeds for store_parser_fuzz, one file per recorded connection and dialect."""
import json
import pathlib
import sys

vectors, directory = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
directory.mkdir(parents=True, exist_ok=True)
streams = {}
for entry in json.loads(vectors.read_text()):
    for frame in entry["frames"]:
        if frame["dir"] == "request" and frame["hex"] not in ("EOF", "ERR"):
            streams.setdefault((entry["torch"], frame["conn"]), []).append(bytes.fromhex(frame["hex"]))
for (torch, conn), frames in streams.items():
    hello = b"" if torch.startswith("1.") else b"\x00\xce\xf7\x85\x3c"
    (directory / f"{torch}-{conn}").write_bytes(b"\x83\x01\x05\x0a\x02" + b"".join(frames))
    for i, frame in enumerate(frames):
        (directory / f"{torch}-{conn}-{i}").write_bytes(b"\x81\x02\x07" + hello + frame)
