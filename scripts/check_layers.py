#!/usr/bin/env python3
"""check_layers.py [ROOT]: fails when a file includes a folder that its own folder may not know, or not by its full path from the root.

The table is the tree: a folder may include itself, the folders named for it, and whatever those may include.
`tests` may include everything. launcher/ and worker_runtime/ never include each other.
"""
import pathlib
import re
import sys

R, L, W = "rendezvous/", "launcher/", "worker_runtime/"
MAY_INCLUDE = {
    R + "base": [],
    R + "contract": [R + "base"],
    R + "wire": [R + "base"],
    R + "store": [R + "base"],
    R + "server": [R + "wire", R + "store", R + "base"],
    R + "client": [R + "wire", R + "store", R + "base"],
    R + "membership": [R + "base", R + "contract"],
    R + "coordinator": [R + "membership", R + "contract", R + "base"],
    R + "static": [R + "server", R + "client", R + "store", R + "base"],
    R + "store_tool": [R + "server", R + "client"],
    L + "config": [R + "base"],
    L + "cli": [L + "config"],
    L + "process": [R + "base", R + "contract"],
    L + "logs": [L + "process"],
    L + "report": [L + "config", L + "process", L + "logs", R + "base", R + "contract"],  # ExitStatus; escaping of text
    L + "agent": [L + "cli", L + "config", L + "process", L + "logs", L + "report", R + "server", R + "coordinator", R + "static", R + "contract"],
    L + "doctor": [L + "agent", L + "process", L + "logs"],
    "launcher": [L + "agent", L + "doctor"],
    W + "core": [R + "base"],
    W + "tensor": [W + "core"],
    W + "kernels": [],
    W + "kernels/cuda": [W + "kernels", W + "device"],
    W + "device": [W + "tensor", W + "kernels"],
    W + "ops": [W + "tensor", W + "core", W + "device"],
    W + "autograd": [W + "ops"],
    W + "nn": [W + "autograd", W + "mesh", W + "comm", W + "device"],
    W + "optim": [W + "nn"],
    W + "comm": [W + "tensor", W + "device", R + "client", R + "contract"],
    W + "mesh": [W + "comm", W + "autograd"],
    W + "checkpoint": [W + "mesh"],
    W + "data": [W + "tensor"],
    W + "parallel": [W + "nn", W + "optim", W + "mesh"],
    W + "worker": [W + f for f in "core tensor kernels device ops autograd nn optim comm mesh parallel data checkpoint".split()] + [R + "contract"],
    W + "examples": [W + "worker"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def room_of(path: str) -> str | None:
    """The longest folder of the table that holds `path`, such as worker_runtime/ops for worker_runtime/ops/cpu/gemm.hpp."""
    parts = pathlib.PurePosixPath(path).parts[:-1]
    for n in range(len(parts), 0, -1):
        room = "/".join(parts[:n])
        if room in MAY_INCLUDE:
            return room
    return None


def reachable(room: str) -> set[str]:
    seen, todo = set(), [room]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += MAY_INCLUDE[at]
    return seen


def violations(root: pathlib.Path) -> list[str]:
    found = []
    for top in ("rendezvous", "launcher", "worker_runtime"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".hpp", ".cpp", ".h", ".cu", ".cuh", ".inl"):
                continue
            name = path.relative_to(root).as_posix()
            room = room_of(name)
            if room is None:
                found.append(f"{name}: its folder is not in the table of scripts/check_layers.py")
                continue
            allowed = reachable(room)
            for target in INCLUDE.findall(path.read_text(encoding="utf-8")):
                other = room_of(target)
                if not (root / target).exists():
                    found.append(f'{name}: include "{target}" is not a path from the root of the tree')
                elif other not in allowed:
                    found.append(f'{name}: {room} may not include {other} ("{target}")')
    return found


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    found = violations(root)
    print("\n".join(found) if found else "layers: clean")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
