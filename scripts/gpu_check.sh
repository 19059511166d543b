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

# The speed of a step: GPT-2 124M in bf16, 32 x 1024 tokens; a model of no size where the GPU is simulated. Where PyTorch can use the same
# device it says what to expect: 0.5 of the rate of its bf16 products, 0.95 of the speed of its compiled step.
speed() {
  local layers=12 hidden=768 heads=12 length=1024 vocabulary=50257 batch=32 steps=25 gemm=8192 on=cuda
  if [ "$device" != cuda ]; then layers=1 hidden=32 heads=2 length=32 vocabulary=256 batch=2 gemm=64 on=cpu; fi
  python3 -c "import random, struct, sys; random.seed(1)
sys.stdout.buffer.write(b''.join(struct.pack('<H', random.randrange($vocabulary)) for _ in range(200 * $length)))" >"$work/tokens.bin"
  local model=(--layers $layers --hidden $hidden --heads $heads --seq-len $length --vocab-size $vocabulary --batch-size $batch)
  train "$device" speed "${model[@]}" --steps $steps --data "$work/tokens.bin" --dtype bf16 --log-dir "$work/speed" || { tail -n 5 "$work/speed.txt"; return 1; }
  local torch=${DTRUN_TORCH_PYTHON:-$HOME/.cache/dtrun-torch/bin/python} beside=()
  if "$torch" -c "import sys, torch; sys.exit('$on' == 'cuda' and not torch.cuda.is_available())" 2>/dev/null; then
    [ "$on" = cpu ] || beside=(--compile)
    "$torch" scripts/bench/step/step_torch.py --device $on --dtype bf16 --gemm $gemm "${beside[@]}" --layers $layers --hidden $hidden --heads $heads \
      --seq-len $length --vocab $vocabulary --batch-size $batch --steps 20 --warmup 5 >"$work/torch.json" 2>"$work/torch.txt" || { tail -n 5 "$work/torch.txt"; return 1; }
  fi
  python3 - "$work/speed.json" "$work/speed/0/steps.jsonl" "$work/torch.json" "$on" <<'PYTHON'
import json, pathlib, statistics, sys
report, log, torch, on = json.load(open(sys.argv[1])), open(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4]
ours = statistics.median([json.loads(line)["milliseconds"]["total"] for line in log][5:])
rate = 3 * report["forward_flops_per_step"] / ours / 1e9  # backward is twice forward
text = f"{ours:.1f} ms a step, {rate:.3f} TFLOP/s"
good = True
if torch.exists():
    other = json.loads(torch.read_text())
    of_gemm, of_torch = rate / other["gemm_teraflops"], other["median_ms"] / ours
    text += f", {of_gemm:.2f} of bf16 products (bar 0.5), {of_torch:.2f} x torch {other['torch']} (bar 0.95)"
    good = on != "cuda" or (of_gemm >= 0.5 and of_torch >= 0.95)  # a simulated GPU has no speed
else:
    text += "; no PyTorch that uses this device: nothing beside it"
print(text)
sys.exit(not good)
PYTHON
}
start=$SECONDS result=ok
detail=$(speed) || result=FAILED
row "GPT-2 124M, bf16" $result "$((SECONDS - start))" "${detail##*$'\n'}"

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
