#!/usr/bin/env bash
# torch_restarts.sh [LAUNCHER] [N]: N times (20) a two-rank gloo job whose rank 1 dies once, with --max-restarts=1: each has to recover.
# With ~/.cache/dtrun-torch/bin/torchrun as LAUNCHER it shows how torchrun fares (about half of them fail: stale addresses in its store).
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 tests/integration/torch/torch_test.py recover "${1:-build/dev/bin/dtrun}" default "${2:-20}"
