#!/usr/bin/env bash
# Runs test programs (cmocka, or fuzz replays that print TAP lines) and ends with ONE line:
#   N passed, N failed, N skipped
# A program that crashes, times out or runs no test counts as a failure; so does a skip that
# tests/skips.txt does not name.
# usage: tests/run.sh VARIANT PROGRAM...        FL_TEST_TIMEOUT=600 (seconds per program)
set -u
export CMOCKA_MESSAGE_OUTPUT=TAP
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}
variant=$1
shift
export FL_TEST_VARIANT=$variant
passed=0 failed=0 skipped=0
log=$(mktemp)
# What programs store about a model must not come from, or go to, the user's own cache.
XDG_CACHE_HOME=$(mktemp -d)
export XDG_CACHE_HOME
trap 'rm -rf "$log" "$XDG_CACHE_HOME"' EXIT
for t in "$@"; do
    start=$SECONDS
    timeout -k 5 "${FL_TEST_TIMEOUT:-600}" "$t" >"$log" 2>&1
    rc=$?
    s=$(grep -c -i '^ok .*# skip' "$log")
    p=$(($(grep -c '^ok ' "$log") - s))
    f=$(grep -c '^not ok ' "$log")
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then f=1; echo "# exit status $rc" >>"$log"; fi
    if [ $((p + f + s)) -eq 0 ]; then f=1; echo "# ran no test" >>"$log"; fi
    while read -r name; do
        if ! grep -q -F -x "$name" <(sed 's/[[:space:]]*#.*//' tests/skips.txt); then
            f=$((f + 1)); s=$((s - 1)); echo "# skipped but not named in tests/skips.txt: $name" >>"$log"
        fi
    done < <(sed -n -E 's/^ok [0-9]+ (- )?#? ?(skip|SKIP) ?//Ip' "$log")
    passed=$((passed + p)); failed=$((failed + f)); skipped=$((skipped + s))
    printf '%-52s %4d ok %3d failed %3d skipped %4d s\n' "${t#build/}" "$p" "$f" "$s" $((SECONDS - start))
    if [ "$f" -gt 0 ]; then grep -v '^ok ' "$log" | tail -n 60; fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
