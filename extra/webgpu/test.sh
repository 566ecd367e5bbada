#!/bin/bash
# What WebGPU is tested with in a real browser: the conformance suites on the device WEBGPU, with
# counts by reason of what WGSL cannot hold, and the page of `mnist --page`, on which digits are
# drawn with the mouse.
#   extra/webgpu/test.sh CONFORMANCE MNIST [SUITES]
# CONFORMANCE and MNIST are the programs of make; SUITES the folder of *.json, by default
# ../shared/conformance. Says in one line where node or Chromium is missing, and passes.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
conformance=$1 mnist=$2 suites=${3:-../shared/conformance}

for program in node "${CHROMIUM:-chromium}"; do
  command -v "$program" >/dev/null && continue
  echo "webgpu-test: not run, $program is missing (apt install nodejs chromium)"
  exit 0
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
status=0
for suite in "$suites"/*.json; do
  [ -f "$suite" ] || continue
  "$conformance" "${suite%.json}" --device WEBGPU >"$folder/log" 2>&1
  grep '^[0-9]* passed' "$folder/log" || { cat "$folder/log"; status=1; }
  echo "  of $(basename "$suite") fail for the language:"
  grep '^FAIL.*WGSL has no' "$folder/log" |
    sed 's/.* \(takes\|computes\) \([A-Za-z]*\) of \([a-z0-9]*\).*/\2 of \3/; s/^FAIL.*/a number of 64 bits/' |
    sort | uniq -c | sort -rn
  if grep '^FAIL' "$folder/log" | grep -v 'WGSL has no'; then status=1; fi
done

if "$mnist" --page "$folder/page" >"$folder/log" 2>&1; then
  echo "the page of mnist: $(cat "$folder"/page/* | wc -c) bytes"
  node test/webgpu/digits.mjs "$folder/page" || status=1
else
  cat "$folder/log"
  status=1
fi
exit $status
