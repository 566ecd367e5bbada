#!/bin/bash
# Runs the test program and the conformance suites. Prints a line for each group of tests when it
# ends, `unit: N passed, N failed in N s`, then again the errors of those that failed, and last the
# closing line of all of them: `N passed, N failed[, N skipped]`. Status 0 only if nothing failed.
#   run_tests.sh TESTS CONFORMANCE [doctest options]      (TESTS may be missing: `none`)
# $SCRIPTS are further programs of tests that end with such a line; a filter leaves them out too.
# $JOBS groups run at once: without it as many as there are cores, four at most, and one where $DEVICE
# says what is tested. Unit tests are several groups then.
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
cores=$(nproc)
jobs=${JOBS:-$([ -n "${DEVICE:-}" ] && echo 1 || echo $((cores < 4 ? cores : 4)))}
[ $# -eq 0 ] || jobs=1
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
trap 'trap - TERM; kill 0' INT TERM  # what runs behind a shell does not hear an interruption
started=0

closing_form='^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$'

# doctest's summary as a closing line. What doctest calls skipped was filtered out.
summary() {
  awk '/^\[doctest\] test cases:/ {
      gsub(/[|:]/, " ")
      for (i = 2; i <= NF; i++) count[$i] = $(i - 1)
      printf "%d passed, %d failed\n", count["passed"], count["failed"]
    }
    !/^(\[doctest\]|=+$)/ {print}
    {fflush()}'
}

# doctest's errors behind the names of their cases, and what scripts call failed.
errors_of() {
  awk '/^TEST CASE:/ {name = $0}
    /ERROR/ {if (name) print name; name = ""; left = 3}
    /^(fail|FAIL|wrong)/ {print; next}
    left-- > 0' "$1"
}

counts() { echo "$1 passed, $2 failed$([ "$3" -gt 0 ] && echo ", $3 skipped")"; }

# run_group LOG GROUP COMMAND...: leaves the numbers of its closing line in LOG.counts and what failed
# in LOG.errors, and prints the numbers with the group's name. A command that fails, or ends without
# that line (a crash), with no failure counted is one failure.
run_group() {
  local log=$1 group=$2 code=0 closing begin=$SECONDS p=0 f=0 s=0
  shift 2
  "$@" 2>&1 | summary | tee "$log" | sed -uE "/$closing_form/d" || code=1
  closing=$(grep -E "$closing_form" "$log" | tail -n 1)
  if [ -n "$closing" ]; then
    read -r p _ f _ s _ <<<"${closing//,/}"
  else
    code=1
  fi
  if [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
  echo "$group: $(counts "$p" "$f" "${s:-0}") in $((SECONDS - begin)) s"
  if [ "$f" -gt 0 ]; then
    {
      echo "$group failed:"
      errors_of "$log" | head -n 30
      tail -n 5 "$log"
    } | cut -c 1-400 >"$log.errors"
  fi
  echo "$p $f ${s:-0}" >"$log.counts"
}

# run GROUP COMMAND...: beside others what it prints comes when it has ended.
run() {
  local log
  started=$((started + 1))
  log=$(printf '%s/%03d' "$logs" "$started")
  if [ "$jobs" -eq 1 ]; then
    run_group "$log" "$@"
    return
  fi
  while [ "$(jobs -r | wc -l)" -ge "$jobs" ]; do wait -n; done
  { run_group "$log" "$@" >"$log.output" && cat "$log.output"; } &
}

# Each folder of tests is a group, and a process of its own, of unit tests a process for each
# sixteen files; last what lies in none of them.
run_groups() {
  local folder known='' filter part files=()
  for folder in unit golden lint ops fuzz programs train; do
    known=$known${known:+,}*test/$folder/*
    if [ "$folder" != unit ] || [ "$jobs" -eq 1 ]; then
      run "$folder" "$tests" -sf="*test/$folder/*"
      continue
    fi
    files=("$(dirname "$0")"/../test/unit/test_*.cpp)
    files=("${files[@]##*/}")
    for ((part = 0; part < ${#files[@]}; part += 16)); do
      filter=$(printf ',*test/unit/%s' "${files[@]:part:16}")
      run "unit from ${files[part]}" "$tests" -sf="${filter#,}"
    done
  done
  if ! "$tests" --count -sfe="$known" | grep -q ': 0$'; then run others "$tests" -sfe="$known"; fi
}

if [ "$tests" != none ] && [ $# -eq 0 ]; then
  run_groups
elif [ "$tests" != none ]; then
  run tests "$tests" "$@"
fi
if [ $# -eq 0 ] && [ -x "$conformance" ] && [ -d "$suites" ]; then
  for device in ${DEVICE:-$("$conformance" --devices)}; do
    case $device in
      EMULATOR) parts=${EMULATOR_PARTS:-4} ;;
      EMU:*) parts=$((${EMULATOR_PARTS:-4} * others)) ;;
      *) parts=1 ;;
    esac
    for suite in "$suites"/*.json; do
      [ -e "$suite" ] || continue
      run "conformance $(basename "$suite" .json) on $device" \
        "$conformance" "${suite%.json}" --device "$device" --parts "$parts"
    done
  done
fi

if [ $# -eq 0 ]; then
  for script in ${SCRIPTS:-}; do run "$(basename "$script")" "$script" "$(dirname "$tests")"; done
fi

wait
cat "$logs"/*.errors 2>/dev/null
read -r passed failed skipped < <(cat "$logs"/*.counts |
  awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}')
# A group that ended without numbers has failed.
failed=$((failed + started - $(cat "$logs"/*.counts | wc -l)))
counts "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ]
