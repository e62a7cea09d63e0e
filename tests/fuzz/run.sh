#!/usr/bin/env bash
# make fuzz: runs each libFuzzer target for SECONDS; ends with the first that finds something, whose input
# is build/fuzz/NAME-KIND-HASH. What covers new code is kept in build/fuzz/NAME/.
set -euo pipefail
seconds=$1
shift
command -v clang >/dev/null || { echo "fuzzing needs clang with libFuzzer: apt-get install clang libclang-rt-14-dev"; exit 1; }
mkdir -p build/fuzz
src=$(find runtime quant offload kernels -name '*.c' ! -name main.c ! -path '*/x86/*')
x86=$(find kernels/x86 -name '*.c')
flags="-g -O1 -std=c11 -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -ffp-contract=off -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all"
obj=()
# An object is as old as the newest header at least: which ones it includes is not kept.
header=$(find runtime quant offload kernels -name '*.h' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2-)
for f in $src $x86; do
    o=build/fuzz/obj/${f%.c}.o
    mkdir -p "$(dirname "$o")"
    march=x86-64-v2
    case $f in
    *_avx2.c) march=x86-64-v3 ;;
    *_avxvnni.c) march="x86-64-v3 -mavxvnni" ;;
    *_avx512vnni.c) march="x86-64-v4 -mavx512vnni" ;;
    *_amx.c) march="x86-64-v4 -mavx512vnni -mamx-tile -mamx-int8" ;;
    esac
    { [ "$o" -nt "$f" ] && [ "$o" -nt "$header" ]; } || clang $flags -march=$march -c -o "$o" "$f"
    obj+=("$o")
done
for t in "$@"; do
    mkdir -p build/fuzz/"$t"
    clang $flags -fsanitize=fuzzer,address,undefined -o build/fuzz/fuzz_"$t" tests/fuzz/fuzz_"$t".c "${obj[@]}" \
        -luring -ljansson -lpcre2-8 -lutf8proc -lxxhash -lhwloc -lm -lpthread
    echo "fuzz $t for $seconds s"
    build/fuzz/fuzz_"$t" -max_total_time="$seconds" -rss_limit_mb=4096 -artifact_prefix=build/fuzz/"$t"- build/fuzz/"$t" tests/fuzz/corpus/"$t" >build/fuzz/"$t".log 2>&1 ||
        { tail -n 40 build/fuzz/"$t".log; exit 1; }
    tail -n 2 build/fuzz/"$t".log
done
