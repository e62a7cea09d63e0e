#!/usr/bin/env bash
# make demo: quantizes the shipped clover-tiny to 4 bits, plans it for a device that holds about
# half of its experts, and asks it a question in block mode under that budget. Fails when the
# answer, the experts taken from host memory or the budget are not what they must be.
set -euo pipefail
fourleaf=build/fourleaf
model=build/clover-tiny-q4.gguf
stats=$(mktemp)
trap 'rm -f "$stats"' EXIT
number() { sed -n -E "s/.*\"$1\": ?([0-9]+).*/\1/p" | head -n 1; }
show() { echo; echo "\$ $*"; "$@"; }

show $fourleaf quantize tests/clover_tiny/model $model

# A budget half-way between the least that works and all that is wanted.
plan=$($fourleaf plan $model --mode block --json)
full=$(number full_device_cap <<<"$plan")
least=$(number min_device_cap <<<"$plan")
vram=$(((full + least) / 2 / 1024))K
show $fourleaf plan $model --mode block --vram $vram

question="What is the capital of Australia?"
echo
echo "\$ $fourleaf run $model -p \"$question\" --mode block --think off --temp 0 --vram $vram --stats"
answer=$($fourleaf run $model -p "$question" --mode block --think off --temp 0 --vram $vram --stats 2>"$stats")
echo "$answer"
cat "$stats"

fail() { echo "demo: $1" >&2; exit 1; }
json=$($fourleaf run $model -p "$question" --mode block --think off --temp 0 --vram $vram --json)
[[ $answer == *Canberra* ]] || fail "the answer does not contain Canberra"
[ "$(number on_cpu <<<"$json")" -gt 0 ] || fail "no expert was taken from host memory"
peak=$(number device_peak <<<"$json")
cap=$(number device_cap <<<"$json")
[ -n "$peak" ] && [ -n "$cap" ] || fail "run --json has no device_peak or device_cap"
[ "$peak" -le "$cap" ] ||
    fail "device memory went over the cap"
