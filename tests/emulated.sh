#!/usr/bin/env bash
# Under an older CPU (qemu): the tests of the kernels, and a short answer of the program, which must
# be the one that this machine gives. An instruction that the CPU lacks ends a program. Prints TAP
# lines for tests/run.sh.
# usage: tests/emulated.sh Haswell|Nehalem BUILD       (AVX2; none of the tiers)
set -u
cpu=$1 build=$2
case $cpu in
Haswell) tier=avx2 model=Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm ;; # what qemu lacks
Nehalem) tier=reference model=Nehalem ;;
*) echo "not ok 1 - no such CPU here: $cpu"; exit 1 ;;
esac
if ! command -v qemu-x86_64 >/dev/null; then
    echo "not ok 1 - qemu-x86_64 is missing (make deps installs it)"
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

for source in tests/kernels/test_*.c; do
    qemu-x86_64 -cpu "$model" "$build/${source%.c}" || { bad=1; echo "# $source under $cpu: exit status $?"; }
done

answer() { "$@" run "$work/model.gguf" -p Hi --think off --temp 0 --mode ar --max-tokens 4 --stats; }
name="ok 1 - the answer under $cpu"
if "$build/fourleaf" quantize tests/clover_tiny/model "$work/model.gguf" >"$work/log" 2>&1 &&
    answer "$build/fourleaf" >"$work/here" 2>>"$work/log" &&
    answer qemu-x86_64 -cpu "$model" "$build/fourleaf" >"$work/there" 2>"$work/stats" &&
    grep -q "^cpu $tier," "$work/stats" && [ -s "$work/here" ] && cmp "$work/here" "$work/there"; then
    echo "$name"
else
    echo "not $name"
    tail -n 5 "$work"/{log,here,there,stats} 2>&1
    bad=1
fi
exit $bad
