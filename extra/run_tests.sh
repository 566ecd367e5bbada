#!/bin/bash
# Runs the test program and the conformance suites, and ends with the closing line of all of them:
# `N passed, N failed[, N skipped]`. Status 0 only if nothing failed.
#   run_tests.sh TESTS CONFORMANCE [doctest options]      (TESTS may be missing: `none`)
# Where z3 is, a kernel that is not proved is an error (CHECK_OOB=2), unless the environment says
# otherwise.
# The suites are the *.json files of $CONFORMANCE_SUITES, by default ../shared/conformance where
# that folder exists; options (a filter) leave them out. They run on $DEVICE, else on each device of
# this machine: on the emulator of GPUs one case in $EMULATOR_PARTS (4), another one each day, on
# those of other GPUs one in four times as many.
set -uo pipefail
if ldconfig -p 2>/dev/null | grep 'libz3\.so\.4' >/dev/null; then
  export CHECK_OOB=${CHECK_OOB-2}  # every kernel of a test is proved
fi
tests=$1 conformance=$2
shift 2
others=$([ -n "${DEVICE:-}" ] && echo 1 || echo 4)
suites=${CONFORMANCE_SUITES-../shared/conformance}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0

# doctest's summary as a closing line.
summary() {
  awk '{print; fflush()}
    /^\[doctest\] test cases:/ {
      gsub(/[|:]/, " ")
      for (i = 2; i <= NF; i++) count[$i] = $(i - 1)
      printf "%d passed, %d failed, %d skipped\n", count["passed"], count["failed"], count["skipped"]
    }'
}

# Runs a command and adds the numbers of its closing line to the totals. A command that fails, or
# ends without that line (a crash), with no failure counted is one failure.
run() {
  local code=0 closing counted=0
  "$@" 2>&1 | summary | tee "$log" || code=1
  closing=$(grep -E '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log" | tail -n 1)
  if [ -n "$closing" ]; then
    read -r p _ f _ s _ <<<"${closing//,/}"
    passed=$((passed + p)) counted=$f skipped=$((skipped + ${s:-0}))
  else
    code=1
  fi
  if [ "$code" -ne 0 ] && [ "$counted" -eq 0 ]; then counted=1; fi
  failed=$((failed + counted))
}

[ "$tests" = none ] || run "$tests" "$@"
if [ $# -eq 0 ] && [ -x "$conformance" ] && [ -d "$suites" ]; then
  for device in ${DEVICE:-$("$conformance" --devices)}; do
    case $device in
      EMULATOR) parts=${EMULATOR_PARTS:-4} ;;
      EMU:*) parts=$((${EMULATOR_PARTS:-4} * others)) ;;
      *) parts=1 ;;
    esac
    for suite in "$suites"/*.json; do
      [ -e "$suite" ] || continue
      echo "conformance: $(basename "$suite" .json) on $device"
      run "$conformance" "${suite%.json}" --device "$device" --parts "$parts"
    done
  done
fi

closing="$passed passed, $failed failed"
[ "$skipped" -gt 0 ] && closing="$closing, $skipped skipped"
echo "$closing"
[ "$failed" -eq 0 ]
