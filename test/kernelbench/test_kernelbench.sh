#!/bin/bash
# extra/kernelbench on the problems of this folder: three are translated, compiled, run on the CPU
# and compared with PyTorch; two cannot be translated and say why; a wrong output is found. Ends with
# the line `N passed, N failed[, N skipped]`; where there is no PyTorch everything is skipped.
#   test_kernelbench.sh BUILD    the folder of the build, whose library and objects are up to date
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export DEVICE=CPU CACHE_DIR=$work/cache
passed=0 failed=0

python=
for p in "${PYTHON:-python3}" /usr/bin/python3; do
  if "$p" -c 'import torch' 2>/dev/null; then python=$p && break; fi
done
if [ -z "$python" ]; then
  echo 'kernelbench: no PyTorch (package python3-torch): its tests are skipped'
  echo '0 passed, 0 failed, 5 skipped'
  exit
fi

# try NAME COMMAND...: one test; its output is shown where it fails.
try() {
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL kernelbench: $name"
    sed 's/^/  /' "$work/log"
  fi
}

translates() {
  "$python" extra/kernelbench/translate.py --problems test/kernelbench --to "$work" >"$work/said"
  cat "$work/said"
  grep -x '3 of 5 problems translated' "$work/said" &&
    grep 'DependsOnValues: Unsupported: the program depends on the value of a tensor' "$work/said" &&
    grep 'SharedMemory: Unsupported: a tensor is read whose memory was changed' "$work/said"
}

compiles() {
  "${CXX:-g++}" -std=c++20 -O0 -Wall -Wextra -Werror -I. ${CPPFLAGS:-} "$work"/level*.cpp \
    "$build"/extra/kernelbench/{main,draws}.o "$build/libtiny.a" -Wl,--as-needed -lz -lpcre2-8 \
    -lutf8proc -ldl -lpthread -o "$work/kernelbench"
}

run_problems() {
  "$python" extra/kernelbench/run.py --program "$work" --problems test/kernelbench --jobs 1 \
    --peers eager --commit test --results "$work/results.jsonl" --log "$work/errors" ||
    { cat "$work/errors"; return 1; }
}

# Of five problems three are compiled and correct, and so many timed.
agrees_with_pytorch() {
  run_problems >"$work/said"
  cat "$work/said" "$work/errors"
  grep -E '^ +1 +5 +3 +3 +3  eager +3 ' "$work/said"
}

# A second run finds all that the first one measured.
measures_once() {
  local before
  before=$(wc -l <"$work/results.jsonl")
  run_problems && [ "$(wc -l <"$work/results.jsonl")" = "$before" ]
}

# The check that accepts our outputs rejects them with one element changed.
finds_a_wrong_element() {
  "$work/kernelbench" --problem 1/1 --check "$work/out" || return
  "$python" - "$work" <<'END'
import json, subprocess, sys
work = sys.argv[1]
peer = subprocess.Popen([sys.executable, "extra/kernelbench/peer.py"], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, text=True)
def ask(**request):
    peer.stdin.write(json.dumps(request) + "\n")
    peer.stdin.flush()
    return json.loads(peer.stdout.readline())
json.loads(peer.stdout.readline())
ask(do="load", path="test/kernelbench/level1/1_ConvolutionsAndNorms.py")
right = ask(do="check", files=f"{work}/out", whole=1 << 20)
with open(f"{work}/out.0", "r+b") as f:
    data = bytearray(f.read())
    data[7] ^= 0x10  # of the second float: its exponent
    f.seek(0)
    f.write(data)
wrong = ask(do="check", files=f"{work}/out", whole=1 << 20)
peer.stdin.close()
print(right, wrong)
sys.exit(not (right["correct"] and not wrong["correct"] and wrong["wrong"] == 1))
END
}

try 'problems are translated, or it is said why not' translates
try 'their programs compile without a warning' compiles
try 'their outputs are those of PyTorch' agrees_with_pytorch
try 'what is measured is not measured again' measures_once
try 'a wrong element of an output is found' finds_a_wrong_element
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
