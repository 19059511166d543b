#!/usr/bin/env bash
# stress.sh [PRESET [REPEATS]]: the tests that end, kill, restart and choke jobs, at full size (CI runs some of them at reduced size).
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-dev}
repeats=${2:-1}
programs=(test_process test_logs test_scenario)
[ -d "build/$preset" ] || cmake --preset "$preset"
cmake --build --preset "$preset" --target "${programs[@]}" dtrun-worker
export DTRUN_FULL_SIZE=1
for ((i = 1; i <= repeats; ++i)); do
  for program in "${programs[@]}"; do
    echo "stress: $program, $i of $repeats"
    "build/$preset/bin/$program" --durations yes
  done
  tests/several_nodes/several_nodes_test.py "build/$preset/bin" -v
done
