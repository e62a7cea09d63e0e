#!/usr/bin/env bash
# Instructions per weight of the kernels, against those of bench/results/instructions.txt: fails when
# one has grown by more than 3 %, or when an entry came or went.
#   call ENTRY TYPE TIER ROWS I   a whole call in callgrind, I instructions per weight (per element
#                                 where there are no weights)
#   loop OBJECT FUNCTION I        the inner loop of a function of a tier that callgrind cannot run,
#                                 I instructions per multiply-add, counted in its disassembly
# Compilers differ by more than that: nothing is compared with the figures of another one.
# usage: tests/check/instructions.sh BUILD [--accept]     (make check, make instructions)
set -eu
build=$1 accept=${2:-}
file=bench/results/instructions.txt
say() { echo "instructions: $*"; }

banner=$(${CC:-gcc} --version | head -n 1)
compiler=gcc
case $banner in *clang*) compiler=clang ;; esac
version="$compiler $(${CC:-gcc} -dumpfullversion 2>/dev/null || ${CC:-gcc} -dumpversion)"

theirs=$(sed -n 's/^# compiler: //p' "$file" 2>/dev/null || true)
if [ -z "$accept" ] && [ "${version%%.*}" != "${theirs%%.*}" ]; then
    say "not compared: the figures are those of $theirs, this is $version"
    exit 0
fi
for tool in valgrind objdump awk; do
    command -v $tool >/dev/null || { say "$tool is missing (make deps installs it)"; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

valgrind -q --tool=callgrind --toggle-collect=measured --dump-after=measured \
    --callgrind-out-file="$work/out" "$build/tests/check/kernel_calls" >"$work/names" 2>"$work/log" ||
    { cat "$work/log"; say "kernel_calls failed in callgrind"; exit 1; }
i=0
while read -r entry type tier rows units; do
    i=$((i + 1))
    count=$(sed -n 's/^summary: //p' "$work/out.$i")
    awk -v n="call $entry $type $tier $rows" -v c="$count" -v u="$units" 'BEGIN {printf "%s %.4f\n", n, c / u}'
done <"$work/names" >"$work/now"
# Objects of sources that there are: a build folder keeps those of others.
objects=()
for c in kernels/x86/*vnni.c kernels/x86/*_amx.c; do objects+=("$build/${c%.c}.o"); done
objdump -d --no-show-raw-insn "${objects[@]}" |
    awk -f tests/check/loops.awk >>"$work/now"
[ "$(grep -c ^call "$work/now")" -gt 0 ] && [ "$(grep -c ^loop "$work/now")" -gt 0 ] ||
    { say "nothing was counted"; exit 1; }

if [ "$accept" = --accept ]; then
    grep -q '^call .* avx2 ' "$work/now" || { say "this CPU has no AVX2: figures would be missing"; exit 1; }
    {
        echo "# Instructions per weight, written by make instructions (tests/check/instructions.sh)"
        echo "# compiler: $version"
        cat "$work/now"
    } >"$file"
    say "$(wc -l <"$work/now") figures accepted"
    exit 0
fi
if ! grep -q '^call .* avx2 ' "$work/now"; then
    say "calls of avx2 not compared: this CPU lacks it"
    grep -v '^call .* avx2 ' "$file" >"$work/then"
else
    cp "$file" "$work/then"
fi
awk '
    /^#/ { next }
    { value = $NF; key = $0; sub(/ [^ ]*$/, "", key) }
    NR == FNR { before[key] = value; next }
    { now[key] = value }
    !(key in before) { print "  new: " key " " value; bad++; next }
    value > before[key] * 1.03 { print "  grew: " key " " before[key] " -> " value; bad++ }
    value < before[key] / 1.03 { lower++ }
    END {
        for (key in before) if (!(key in now)) { print "  gone: " key; bad++ }
        if (lower) print "instructions: " lower " figures fell by more than 3 %; accept them to hold that"
        exit bad > 0
    }' "$work/then" "$work/now" || {
    say "see $file; where that is meant, 'make instructions' writes the new figures"
    exit 1
}
say "none of $(wc -l <"$work/now") figures grew by more than 3 %"
