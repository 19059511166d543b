#!/usr/bin/env bash
# torch_elastic.sh [DTRUN] [N]: nodes join, leave, are killed and replaced, N times each (10), with a PyTorch gloo job, the bundled worker, and quick failures:
# every round has to have the right ranks, no failure may end with 0, nobody may stay behind. One line per case; cases: tests/scenario/elastic/cases.py.
set -euo pipefail
cd "$(dirname "$0")/.."
dtrun=${1:-build/dev/bin/dtrun} repeats=${2:-10} bad=0
for kind in worker quick torch; do
  python3 tests/scenario/elastic/elastic_test.py "$dtrun" "$kind" --repeats "$repeats" || bad=$?
done
exit "$bad"
