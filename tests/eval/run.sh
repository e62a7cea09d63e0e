#!/usr/bin/env bash
# Quantizes clover-tiny, then measures it: no held-out prompt is in the training set, right answers
# and tokens per forward pass, the same text for every placement, threads and chunk.
# usage: tests/eval/run.sh BUILD_DIR [all]      all: the loss by rounding, by the type of the
#                                               KV cache and the figures for option H too
#                                               (quant/FORMAT.md)
set -u
b=$1
model=tests/clover_tiny/model prompts=tests/clover_tiny/heldout.jsonl q4=build/clover-tiny-q4.gguf
for f in "$model" "$prompts"; do
    [ -e "$f" ] || { echo "$f is missing"; exit 2; }
done
failed=0
step() {
    echo "== $*"
    "$@" || { failed=$((failed + 1)); echo "== failed: $1"; }
}
# The same for a step that tells its progress on stderr: shown only when it fails.
quiet_step() {
    echo "== $*"
    "$@" 2>"$b/step.log" || { failed=$((failed + 1)); cat "$b/step.log"; echo "== failed: $1"; }
}
step python3 tests/clover_tiny/check_heldout.py
"$b/fourleaf" quantize "$model" "$q4" 2>"$b/quantize.log" || { cat "$b/quantize.log"; exit 1; }
tail -n 1 "$b/quantize.log"
step "$b/tests/eval/heldout" "$model" "$q4" "$prompts"
step "$b/tests/eval/invariance" "$q4" "$prompts"
if [ "${2:-}" = all ]; then
    quiet_step "$b/tests/eval/quant_loss" "$model" "$prompts" "$b"
    quiet_step "$b/tests/eval/kv_loss" "$model" "$prompts"
    quiet_step "$b/tests/eval/option_h" "$model" "$prompts" "$b"
fi
[ $failed -eq 0 ] && echo "every target is met"
exit $failed
