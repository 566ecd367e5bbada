#!/bin/bash
# `make gpu-sanitize`: the operator cases on the device $DEVICE under NVIDIA's compute-sanitizer,
# memcheck (accesses outside of buffers) and racecheck (races in shared memory). Ends with the line
# "N cases, N processes, N errors"; status 0 only if there were none and nothing failed.
#   DEVICE=CUDA gpu_sanitize.sh TESTS CONFORMANCE
# A process of a sanitizer takes its time with each launch and most of one core: the cases are spread
# over SANITIZE_PARTS (one for each core) of them, after a plain run that compiles and caches the
# kernels. With CONFORMANCE_SUITES=folder its suites go the same way. SANITIZE_TOOLS names the tools.
set -uo pipefail
tests=$1 conformance=$2
parts=${SANITIZE_PARTS:-$(nproc)}
tools=${SANITIZE_TOOLS:-memcheck racecheck}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || { echo "gpu-sanitize: no compute-sanitizer (it comes with CUDA)" >&2; exit 1; }
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# The kernels were proved by other tests. A process compiles for itself, since all do at once.
export CHECK_OOB=0 NVRTC_WORKERS=0 JIT=0

# part NUMBER TOOL SUITE: one process; TOOL plain is none, SUITE tests the operator cases.
part() {
  local under=() command log code=0
  log=$logs/$2.$(basename "$3").$1
  [ "$2" = plain ] || under=("$sanitizer" --tool "$2")
  if [ "$3" = tests ]; then
    command=("$tests" -sf='*test/ops/test_ops.cpp' -tc='*agree with the reference evaluator*')
  else
    command=("$conformance" "$3" --device "$DEVICE")
  fi
  TEST_PART=$1/$parts "${under[@]}" "${command[@]}" >"$log" 2>&1 || code=$?
  echo "status $code" >>"$log"
}
export -f part
export tests conformance parts sanitizer logs

# run TOOL...: all parts of all that is to run, under each of the tools, one process a core.
run() {
  local suite tool i
  for tool in "$@"; do
    for suite in tests ${CONFORMANCE_SUITES:+"$CONFORMANCE_SUITES"/*.json}; do
      for ((i = 0; i < parts; ++i)); do echo "$i $tool ${suite%.json}"; done
    done
  done | xargs -P "$parts" -L 1 bash -c 'part "$@"' part
}

# What the last number before each match of a pattern adds up to, in the logs of a tool.
total() { cat "$logs/$2".* | grep -oE "$1" | grep -oE '[0-9]+' | awk '{n += $1} END {print n + 0}'; }

SECONDS=0
run plain
echo "gpu-sanitize: without a sanitizer: $SECONDS s"
# shellcheck disable=SC2086
run $tools
errors=0 processes=0 cases=$(($(total 'assertions: *[0-9]+' plain) + $(total '[0-9]+ passed,' plain)))
for tool in plain $tools; do
  processes=$((processes + $(find "$logs" -name "$tool.*" | wc -l)))
  found=$(total '(ERROR SUMMARY:|RACECHECK SUMMARY:) [0-9]+' "$tool")
  # A process that failed, or ended before the sanitizer's summary, is an error as well.
  for log in "$logs/$tool".*; do
    if ! grep -q '^status 0$' "$log" || { [ "$tool" != plain ] && ! grep -q ' SUMMARY: ' "$log"; }
    then
      found=$((found + 1))
      echo "== $(basename "$log")"
      grep -vE '^=+ +(Host Frame|Saved host)' "$log" | tail -n 30
    elif grep -qE 'SUMMARY: [1-9]' "$log"; then
      grep -E '^=+' "$log" | head -n 20
    fi
  done
  echo "gpu-sanitize: $tool: $found errors"
  errors=$((errors + found))
done
echo "gpu-sanitize: $SECONDS s in all"
echo "$cases cases, $processes processes, $errors errors"
[ "$errors" -eq 0 ]
