#!/bin/bash
# Runs the test program and the conformance suites, and ends with the closing line of all of them:
# `N passed, N failed[, N skipped]`. Status 0 only if nothing failed.
#   run_tests.sh TESTS CONFORMANCE [doctest options]      (TESTS may be missing: `none`)
# Every kernel is proved as CHECK_OOB says (1: a wrong one is an error, one that is not proved in time
# is counted; CHECK_OOB=2 makes that an error too).
# The suites are the *.json files of $CONFORMANCE_SUITES, by default ../shared/conformance where
# that folder exists; options (a filter) leave them out.
set -uo pipefail
tests=$1 conformance=$2
shift 2
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
  for suite in "$suites"/*.json; do
    [ -e "$suite" ] || continue
    echo "conformance: $(basename "$suite" .json)"
    run "$conformance" "${suite%.json}"
  done
fi

closing="$passed passed, $failed failed"
[ "$skipped" -gt 0 ] && closing="$closing, $skipped skipped"
echo "$closing"
[ "$failed" -eq 0 ]
