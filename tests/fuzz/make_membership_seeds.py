#!/usr/bin/env python3
"""make_membership_seeds.py DIR: seeds for membership_fuzz: every message, a handshake, and what other programs say."""
import json
import pathlib
import struct
import sys

directory = pathlib.Path(sys.argv[1])
directory.mkdir(parents=True, exist_ok=True)


def frame(text):
    body = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">I", len(body)) + body


verdict = {"exit_code": 3, "text": "rank 2 failed \u00e4", "node": "n1", "rank": 2, "no_restart": ""}
up = [
    {"type": "hello", "job": "job", "version": 2, "node": "node7", "address": "10.0.0.7", "slots": 8, "node_rank": 3, "role": "default", "min_nodes": 1, "max_nodes": 4},
    {"type": "heartbeat", "number": 2**64 - 1, "epoch": 4},
    {"type": "ready", "epoch": 2, "store_port": 65535, "store_host": ""},
    {"type": "report", "epoch": 3, "success": False, "retry": True, "step": 1, "out_of_memory": False, **verdict},
    {"type": "stopped", "epoch": 9},
    {"type": "leave", "reason": "SIGTERM"},
]
down = [
    {"type": "welcome", "agent": 5, "heartbeat_ms": 1000, "dead_after_ms": 5000},
    {"type": "refuse", "why": "why", "again": True},
    {"type": "assignment", "epoch": 1, "restart_count": 2, "group_rank": 3, "group_world_size": 4, "first_rank": 5, "slots": 6,
     "world_size": 7, "open_store": True, "first_role_rank": 0, "role_world_size": 7},
    {"type": "start", "epoch": 1, "store_host": "10.0.0.1", "store_port": 4001},
    {"type": "stop", "epoch": 1, "why": "because"},
    {"type": "heartbeat_answer", "number": 77},
    {"type": "ping"},
    {"type": "waiting", "here": 1, "wanted": 2},
    {"type": "finished", **verdict},
]
zeros = "0" * 64
seeds = {f"up-{m['type']}": (1, frame(json.dumps(m))) for m in up} | {f"down-{m['type']}": (0, frame(json.dumps(m))) for m in down}
seeds["up-all"] = (1 | 5 << 3, b"".join(frame(json.dumps(m)) for m in up))
seeds["hello-without-token"] = (5, frame(json.dumps(up[0])) + frame(json.dumps(up[1])))
seeds["hello-for-token"] = (7, frame(json.dumps(up[0])))
seeds["coordinator-handshake"] = (7, frame(f"auth1 job {zeros}") + frame(f"proof {zeros}"))
seeds["agent-handshake"] = (4, frame(f"nonce {zeros}") + frame(f"proof {zeros}"))
seeds["agent-refused"] = (4, frame(json.dumps(down[1])))
seeds["c10d"] = (1, b"\x00\xce\xf7\x85\x3c\x0dabcd")
seeds["old-c10d"] = (1, b"\x03\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0")
seeds["nested"] = (1, frame("[" * 200))
seeds["number"] = (1, frame('{"type":"stopped","epoch":' + "9" * 60 + "}"))
seeds["twice"] = (1, frame('{"type":"stopped","epoch":1,"epoch":2}'))
seeds["pickle"] = (1, frame(b"cos\nsystem\n(S'true'\ntR."))
for name, (first, stream) in seeds.items():
    (directory / name).write_bytes(bytes([first]) + stream)
