#!/usr/bin/env bash
# setup_torch.sh [DIRECTORY]: the newest PyTorch and transformers from PyPI in a virtual environment outside the tree (default ~/.cache/dtrun-torch; about 2 minutes, 5.4 GB).
# The tests against real PyTorch look there, or at $DTRUN_TORCH_PYTHON. They are optional: without it they report themselves as skipped.
set -euo pipefail

directory=${1:-$HOME/.cache/dtrun-torch}
python=$directory/bin/python
if [ -x "$python" ] && version=$("$python" -c 'import torch, numpy, transformers; print(torch.__version__)' 2>/dev/null); then
  echo "setup_torch.sh: PyTorch $version is in $directory already"
  exit 0
fi
free_gib=$(df -BG --output=avail "$(dirname "$directory")" 2>/dev/null | tail -n 1 | tr -dc 0-9 || true)
if [ -n "$free_gib" ] && [ "$free_gib" -lt 8 ]; then
  echo "setup_torch.sh: $free_gib GiB free beside $directory, PyTorch needs about 8 while it installs" >&2
  exit 1
fi
mkdir -p "$(dirname "$directory")"
python3 -m venv "$directory"
timeout 1200 "$python" -m pip install --quiet --disable-pip-version-check torch numpy transformers
echo "setup_torch.sh: PyTorch $("$python" -c 'import torch; print(torch.__version__)') is in $directory"
