#!/bin/bash
# fuzz.sh store|membership [RUNS]: builds a fuzz target with clang, address and undefined sanitizers, and runs it (default 1,000,000 executions).
# store: the parser of c10d requests; membership: what agents and coordinator hear (frames, JSON, handshake).
# Exit codes: 0 no finding, 77 clang with libFuzzer is not here, else a finding (the input is left in the build folder).
set -e
root=$(cd "$(dirname "$0")/.." && pwd)
what=$1
runs=${2:-1000000}
out=${DTRUN_FUZZ_DIR:-$root/build/fuzz}/$what
case $what in
  store) sources="tests/fuzz/store_parser_fuzz.cpp rendezvous/wire/request_parser.cpp rendezvous/wire/opcodes.cpp"
         seeds=("$root/tests/fuzz/make_store_seeds.py" "$root/tests/data/wire/store_vectors.json") ;;
  membership) sources="tests/fuzz/membership_fuzz.cpp rendezvous/membership/message_text.cpp rendezvous/coordinator/handshake.cpp
                       rendezvous/coordinator/job_token.cpp rendezvous/coordinator/libcrypto.cpp rendezvous/base/error.cpp
                       rendezvous/base/escaped.cpp rendezvous/base/job_id.cpp"
              seeds=("$root/tests/fuzz/make_membership_seeds.py") ;;
  *) echo "fuzz.sh: \"$what\" is no target, expected store or membership" >&2; exit 2 ;;
esac
clang=${CLANGXX:-$(command -v clang++ || command -v clang++-14 || true)}
mkdir -p "$out"
if [ -z "$clang" ] || ! echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    "$clang" -x c++ -fsanitize=fuzzer - -o "$out/probe" 2>/dev/null; then
  echo "skipped: no clang++ with libFuzzer"
  exit 77
fi
cd "$root"
# shellcheck disable=SC2086
"$clang" -std=c++20 -O2 -g -DFMT_HEADER_ONLY=1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I"$root" \
  $sources -ldl -o "$out/fuzz_target"
python3 "${seeds[@]}" "$out/seeds"
mkdir -p "$out/corpus"
cd "$out"
./fuzz_target -runs="$runs" -max_len=512 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 corpus seeds 2>&1 | tail -15
exit "${PIPESTATUS[0]}"
