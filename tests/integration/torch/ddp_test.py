#!/usr/bin/env python3
"""ddp_test.py DTRUN PYTHON: an unchanged PyTorch DDP script under dtrun, started as people do (--nproc-per-node=2 script.py), once
plainly and once with a worker that dies in the middle and a restart. Exit 77 (skipped) when PYTHON cannot import torch."""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def main() -> int:
    dtrun, python = sys.argv[1], os.path.expanduser(sys.argv[2])
    if python == "default":
        python = os.environ.get("DTRUN_TORCH_PYTHON") or os.path.expanduser("~/.cache/dtrun-torch/bin/python")
    if not os.access(python, os.X_OK):
        print(f"skipped: there is no {python} (scripts/setup_torch.sh makes it)")
        return 77
    probe = subprocess.run([python, "-c", "import torch, torch.distributed as d; print(torch.__version__, d.is_available() and d.is_gloo_available()"
                            " if hasattr(d, 'is_gloo_available') else d.is_available())"], capture_output=True, text=True, timeout=100)
    if probe.returncode != 0 or "True" not in probe.stdout:
        print(f"skipped: {python} has no torch with torch.distributed: {(probe.stderr.strip().splitlines() or [probe.stdout.strip()])[-1]}")
        return 77
    print("torch", probe.stdout.split()[0], "from", python)
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    environment["PYTHON_EXEC"] = python
    checksums = []
    for options, arguments, attempt in (([], [], 0), (["--max-restarts=1"], ["--fail-once"], 1)):
        run = subprocess.run([dtrun, "--nproc-per-node=2", *options, str(HERE / "ddp_script.py"), *arguments], env=environment, capture_output=True, text=True, timeout=100)
        found = re.search(rf"checksum (\S+) world 2 attempt {attempt}", run.stdout)
        if run.returncode != 0 or not found:
            print(f"failed: exit code {run.returncode}\nstdout:\n{run.stdout}\nstderr:\n{run.stderr}")
            return 1
        checksums.append(found[1])
    if checksums[0] != checksums[1]:
        print("failed: the restarted run ends elsewhere:", checksums)
        return 1
    print("passed: checksum", checksums[0])
    return 0


sys.exit(main())
