#!/bin/bash
# What WebGPU is tested with in a real browser: the conformance suites on the device WEBGPU, with
# counts by reason of what WGSL cannot hold, and the pages of examples: of mnist, on which digits are
# drawn with the mouse; of cifar, whose pictures are clicked on; of chat, which lines are typed to. What
# a page says with subgroups is what it says without.
#   extra/webgpu/test.sh CONFORMANCE MNIST CIFAR CHAT [SUITES]
# The first four are the programs of make; SUITES the folder of *.json, by default
# ../shared/conformance. Says in one line where node or Chromium is missing, and passes. With DAWN,
# the folder of npm's package webgpu, the suites alone run, without a browser.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
conformance=$1 mnist=$2 cifar=$3 chat=$4 suites=${5:-../shared/conformance}

browser=${CHROMIUM:-chromium}
[ -n "${DAWN:-}" ] && browser=$DAWN/index.js
for program in node "$browser"; do
  command -v "$program" >/dev/null || [ -f "$program" ] && continue
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

[ -n "${DAWN:-}" ] && exit $status
# Writes a page with an example and its options; false, with what it said, where that fails.
page_of() {
  "$@" --page "$folder/page" >"$folder/log" 2>&1 && return
  cat "$folder/log"
  status=1
  return 1
}

if page_of "$mnist"; then
  echo "the page of mnist: $(cat "$folder"/page/* | wc -c) bytes"
  node test/webgpu/digits.mjs "$folder/page" || status=1
  node extra/webgpu/subgroups.mjs "$folder/page" || status=1
fi
rm -rf "$folder/page"
if page_of "$cifar" --epochs 3; then node test/webgpu/pictures.mjs "$folder/page" || status=1; fi

# Whatever the page answers to a line is what the program answers on the CPU.
compare_chat() {
  rm -rf "$folder/page"
  page_of "$chat" --prompt "$1" --temperature 0 --tokens 40 --device CPU "${@:2}" || return
  node test/webgpu/chat.mjs "$folder/page" "[\"$1\"]" >"$folder/answer" || { status=1; return; }
  node -e 'const [log, answer] = process.argv.slice(1).map(f => require("fs").readFileSync(f, "utf8"));
    const {text, state} = JSON.parse(answer), same = log.includes(text);
    console.log(`chat: the page answers ${same ? "as" : "differently from"} the program: ` +
                `${JSON.stringify(text)}, ${state}`);
    process.exit(same ? 0 : 1);' "$folder/log" "$folder/answer" || { status=1; cat "$folder/log"; }
  node extra/webgpu/subgroups.mjs "$folder/page" || status=1
}
compare_chat "In the evening" --steps 300
for model in gpt2 llama; do
  [ -d "../shared/models/$model" ] && compare_chat "The cat" --model "../shared/models/$model"
done
exit $status
