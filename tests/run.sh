#!/usr/bin/env bash
# Runs test programs (cmocka, or others that print TAP lines, with arguments if any), as many at
# once as there are cores, and ends with ONE line:
#   N passed, N failed, N skipped
# A program that crashes, times out or runs no test counts as a failure; so does a skip that
# tests/skips.txt does not name.
# usage: tests/run.sh VARIANT PROGRAM...        FL_TEST_TIMEOUT=600 (seconds per program)
#                                               FL_TEST_JOBS=N (programs at once)
set -u
export CMOCKA_MESSAGE_OUTPUT=TAP
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:allocator_may_return_null=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}
export FL_TEST_VARIANT=$1
shift
work=$(mktemp -d)
export work
trap 'rm -rf "$work"' EXIT

# Prints a program's line, and its output when something failed, in one piece; its counts go to a
# file of its own.
run_program() {
    local t=$1 start=$SECONDS here p f s rc name command
    read -r -a command <<<"$t" # a script has arguments
    here=$work/${t//[\/ ]/_}
    local log=$here/log
    # What programs store about a model must not come from, or go to, the user's own cache.
    mkdir -p "$here/cache"
    XDG_CACHE_HOME=$here/cache timeout -k 5 "${FL_TEST_TIMEOUT:-600}" "${command[@]}" >"$log" 2>&1
    rc=$?
    s=$(grep -c -i -E '^(not )?ok .*# skip' "$log")
    p=$(grep '^ok ' "$log" | grep -c -v -i '# skip')
    f=$(grep '^not ok ' "$log" | grep -c -v -i '# skip') # cmocka says not ok to a skip
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then f=1; echo "# exit status $rc" >>"$log"; fi
    if [ $((p + f + s)) -eq 0 ]; then f=1; echo "# ran no test" >>"$log"; fi
    while read -r name; do
        if ! grep -q -F -x "$name" <(sed 's/[[:space:]]*#.*//' tests/skips.txt); then
            f=$((f + 1)); s=$((s - 1)); echo "# skipped but not named in tests/skips.txt: $name" >>"$log"
        fi
    done < <(sed -n -E 's/^(not )?ok [0-9]+ (- )?#? ?(skip|SKIP) ?//Ip' "$log")
    echo "$p $f $s" >"$here/counts"
    {
        printf '%-52s %4d ok %3d failed %3d skipped %4d s\n' "${t#build/}" "$p" "$f" "$s" $((SECONDS - start))
        if [ "$f" -gt 0 ]; then grep -v '^ok ' "$log" | tail -n 60; fi
    } >"$here/report"
    cat "$here/report"
}
export -f run_program

[ $# -eq 0 ] || printf '%s\0' "$@" | xargs -0 -n 1 -P "${FL_TEST_JOBS:-$(nproc)}" bash -c 'run_program "$1"' _
# A program without counts (its shell was killed) failed too.
ran=$(find "$work" -name counts | wc -l)
read -r passed failed skipped < <(cat "$work"/*/counts 2>/dev/null |
    awk -v lost=$(($# - ran)) '{p += $1; f += $2; s += $3} END {print p + 0, f + lost, s + 0}')
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
