#!/bin/sh
# live.sh PROGRAM SCRIPT [ARGUMENT ...]: fresh random weights and batches, PyTorch's numbers for them (SCRIPT is make_..._golden.py), and
# ours (PROGRAM is model_parity) beside them. $SEED repeats a run.
# Exit code 77 (skipped) where there is no PyTorch: $DTRUN_TORCH_PYTHON, or what scripts/setup_torch.sh installs.
set -eu
program=$1
script=$2
shift 2
seed=${SEED:-$(date +%s)}
python=${DTRUN_TORCH_PYTHON:-$HOME/.cache/dtrun-torch/bin/python}
if ! [ -x "$python" ]; then
  echo "skipped: no Python with PyTorch at $python (scripts/setup_torch.sh installs one)"
  exit 77
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
echo "seed $seed"
OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 "$python" "$(dirname "$0")/$script" --out "$directory" --seed "$seed" "$@"
"$program" "$directory"
