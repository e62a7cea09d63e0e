#!/usr/bin/env bash
# Quantizes clover-tiny, then measures it.
# usage: tests/eval/run.sh BUILD_DIR [PART]      PART:
#   modes        right answers, tokens per pass and speed of each mode; experts that passes share
#   invariance   the same text for every placement, threads and chunk
#   speculation  the same 1,000 tokens from AR and speculation
#   auto         the same text under load, and speed beside the best mode
#   sizes        budgets of bytes met by quantize --size, and what they lose
#   loss         by rounding, by the type of the KV cache, and the figures for option H
#                (quant/FORMAT.md)
#   all          all of these; without PART all but loss
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
part=${2:-default}
wanted() { [ "$part" = "$1" ] || [ "$part" = all ] || { [ "$part" = default ] && [ "$1" != loss ]; }; }
case $part in
modes | invariance | speculation | auto | sizes | loss | all | default) ;;
*) echo "$part: no such part"; exit 2 ;;
esac

"$b/fourleaf" quantize "$model" "$q4" 2>"$b/quantize.log" || { cat "$b/quantize.log"; exit 1; }
tail -n 1 "$b/quantize.log"
if wanted modes; then
    step python3 tests/clover_tiny/check_heldout.py # no held-out prompt is in the training set
    step "$b/tests/eval/heldout" "$model" "$q4" "$prompts"
    step "$b/tests/eval/routing" tests/clover_tiny/traces/128e
fi
wanted invariance && step "$b/tests/eval/invariance" "$q4" "$prompts"
wanted speculation && quiet_step "$b/tests/eval/speculation" "$model" "$prompts"
wanted auto && quiet_step "$b/tests/eval/auto" "$q4" "$prompts"
wanted sizes && quiet_step python3 tests/eval/sizes.py "$b/fourleaf" "$model" "$prompts" "$b"
if wanted loss; then
    quiet_step "$b/tests/eval/quant_loss" "$model" "$prompts" "$b"
    quiet_step "$b/tests/eval/kv_loss" "$model" "$prompts"
    quiet_step "$b/tests/eval/option_h" "$model" "$prompts" "$b"
fi
[ $failed -eq 0 ] && echo "every target is met"
exit $failed
