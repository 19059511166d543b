#!/usr/bin/env bash
# gpu_check.sh [BUILD_FOLDER]: whether the GPU path works on this machine. Prints a table, ends with 1 when a check fails, with 77 when
# there is no GPU. Without BUILD_FOLDER it configures and builds build/gpu (release), which needs what scripts/setup.sh installs and a
# CUDA toolkit; a folder that was built elsewhere needs the driver, libcublasLt and libnccl only. About 3 minutes after the build.
#   GPU_CHECK_DEVICE=fake-cuda   runs everything on the simulated GPU instead: a check of this script
set -uo pipefail
cd "$(dirname "$0")/.."
device=${GPU_CHECK_DEVICE:-cuda}

if [ "$device" = cuda ] && ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [ ! -e /dev/dxg ]; then
  echo "gpu_check.sh: no GPU here (no /dev/nvidia0): nothing was checked"
  exit 77
fi

build=${1:-build/gpu}
if [ $# -eq 0 ]; then
  cmake --preset release -B "$build" -DDTRUN_CUDA=on >/dev/null || exit 1
  cmake --build "$build" --target dtrun_cuda gpu_check dtrun dtrun-worker || exit 1
fi
bin=$build/bin
for program in gpu_check dtrun dtrun-worker; do
  [ -x "$bin/$program" ] || { echo "gpu_check.sh: $bin/$program is missing: name a build folder that has it"; exit 1; }
done

failed=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
row() { printf '%-33s %-6s %9s  %s\n' "$1" "$2" "$3" "$4"; [ "$2" != FAILED ] || failed=$((failed + 1)); }
# timed NAME SECONDS COMMAND...: a row; its detail is the last line of the output.
timed() {
  local name=$1 limit=$2 start=$SECONDS result=ok
  shift 2
  timeout "$limit" "$@" >"$work/out" 2>&1 || result="FAILED"
  row "$name" "$result" "$((SECONDS - start))" "$(tail -n 1 "$work/out")"
  [ $result = ok ] || sed 's/^/    /' "$work/out" | tail -n 20
}

# Rows of the program come first: everything else stands on them.
timeout 240 "$bin/gpu_check" "--device=$device"
case $? in
  0) ;;
  77) exit 77 ;;
  *) failed=$((failed + 1)) ;;
esac

# train DEVICE NAME OPTION...: trains there and leaves $work/NAME.json.
train() {
  local on=$1 name=$2
  shift 2
  timeout 120 "$bin/dtrun" --nproc-per-node=1 worker train "--device=$on" --steps 20 --report "$work/$name.json" "$@" >"$work/$name.txt" 2>&1
}
# compare NAME TOLERANCE: the losses of two runs, $work/NAME.cpu.json and $work/NAME.gpu.json.
compare() {
  python3 - "$work/$1.cpu.json" "$work/$1.gpu.json" "$2" <<'PYTHON'
import json, math, sys
cpu, gpu, tolerance = json.load(open(sys.argv[1])), json.load(open(sys.argv[2])), float(sys.argv[3])
first, last = (abs(cpu[k] - gpu[k]) / abs(cpu[k]) for k in ("loss_first", "loss_last"))
print(f"loss {gpu['loss_first']:.5f} to {gpu['loss_last']:.5f}, away from the CPU's by {max(first, last):.1e}, "
      f"{gpu['tokens_per_second']:.0f} tokens/s (CPU {cpu['tokens_per_second']:.0f})")
sys.exit(not (max(first, last) < tolerance and math.isfinite(gpu["loss_last"])))
PYTHON
}
trained() {
  local name=$1 tolerance=$2
  shift 2
  train cpu "$name.cpu" "$@" && train "$device" "$name.gpu" "$@" && compare "$name" "$tolerance" && return
  tail -n 5 "$work/$name".*.txt
  return 1
}
check_train() {
  local start=$SECONDS result=ok detail
  detail=$(trained "$2" "$3" "${@:4}") || result=FAILED
  row "$1" $result "$((SECONDS - start))" "${detail%%$'\n'*}"
  [ $result = ok ] || echo "$detail" | sed 's/^/    /'
}
check_train "training, one GPU and the CPU" plain 1e-3
check_train "training, FSDP over one GPU" fsdp 1e-3 --parallel fsdp=1

if [ "$device" = cuda ]; then
  timed "collectives of one GPU" 120 "$bin/dtrun" --nproc-per-node=1 worker bench --device=cuda --max-bytes 16M --iterations 5
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      timed "compute-sanitizer, $tool" 600 compute-sanitizer --tool "$tool" --error-exitcode 1 "$bin/gpu_check" --small
    done
  else
    row "compute-sanitizer" - "" "not installed"
  fi
fi

if [ $failed -eq 0 ]; then
  echo "gpu_check.sh: everything is as it should be"
else
  echo "gpu_check.sh: $failed checks failed"
  exit 1
fi
