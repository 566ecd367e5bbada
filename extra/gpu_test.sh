#!/bin/bash
# `make gpu-test`: runs what was built into the folder BUILD on the device $DEVICE: the tests and the
# conformance suites, four examples in short, a few rows of the benchmark. Status 0 if all of it ran.
#   DEVICE=CUDA gpu_test.sh BUILD
set -uo pipefail
build=$1
status=0

attempt() {
  echo "== $*"
  "$@" || { echo "gpu-test: failed: $*" >&2; status=1; }
}

program() { if [ -x "$build/$1" ]; then echo "$build/$1"; else echo none; fi; }

attempt extra/run_tests.sh "$(program tests)" "$(program conformance)"
mnist=$(program examples/mnist) cifar=$(program examples/cifar) gpt2=$(program examples/gpt2)
retinanet=$(program examples/retinanet)
[ "$mnist" = none ] || attempt "$mnist" --steps 100
[ "$cifar" = none ] || attempt "$cifar" --epochs 2
[ "$gpt2" = none ] || attempt "$gpt2" --steps 100
[ "$retinanet" = none ] || attempt "$retinanet" --model small --steps 100
attempt "$build/bench/gpu" --filter launch --filter sin --filter softmax
exit $status
