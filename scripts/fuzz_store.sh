#!/bin/bash
# fuzz_store.sh [RUNS]: builds the store parser's fuzz target with clang, address and undefined sanitizers, and runs it (default 1,000,000 executions).
# Exit codes: 0 no finding, 77 clang with libFuzzer is not here, else a finding (the input is left in the build folder).
set -e
root=$(cd "$(dirname "$0")/.." && pwd)
runs=${1:-1000000}
out=${DTRUN_FUZZ_DIR:-$root/build/fuzz}
clang=${CLANGXX:-$(command -v clang++ || command -v clang++-14 || true)}
mkdir -p "$out"
if [ -z "$clang" ] || ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "$clang" -x c++ -fsanitize=fuzzer - -o "$out/probe" 2>/dev/null; then
  echo "skipped: no clang++ with libFuzzer"
  exit 77
fi
"$clang" -std=c++20 -O2 -g -DFMT_HEADER_ONLY=1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I"$root" \
  "$root/tests/fuzz/store_parser_fuzz.cpp" "$root/rendezvous/wire/request_parser.cpp" "$root/rendezvous/wire/opcodes.cpp" -o "$out/store_parser_fuzz"
python3 "$root/tests/fuzz/make_store_seeds.py" "$root/tests/data/wire/store_vectors.json" "$out/seeds"
mkdir -p "$out/corpus"
cd "$out"
./store_parser_fuzz -runs="$runs" -max_len=512 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 corpus seeds 2>&1 | tail -15
exit "${PIPESTATUS[0]}"
