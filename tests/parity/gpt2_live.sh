#!/bin/sh
# gpt2_live.sh PROGRAM [SEED]: fresh random weights and batches, PyTorch's numbers for them, and ours (PROGRAM is gpt2_parity) beside them.
# Exit code 77 (skipped) where there is no PyTorch: $DTRUN_TORCH_PYTHON, or what scripts/setup_torch.sh installs.
set -eu
program=$1
seed=${2:-$(date +%s)}
python=${DTRUN_TORCH_PYTHON:-$HOME/.cache/dtrun-torch/bin/python}
if ! [ -x "$python" ]; then
  echo "skipped: no Python with PyTorch at $python (scripts/setup_torch.sh installs one)"
  exit 77
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
echo "seed $seed"
OMP_NUM_THREADS=1 "$python" "$(dirname "$0")/make_gpt2_golden.py" --out "$directory" --seed "$seed"
"$program" "$directory"
