#!/usr/bin/env bash
# Fails when a file includes a header of a layer above its own.
#   base < device < quant < kernels, offload < model < decode < tools, serve < main
# kernels and offload never include each other. tests and bench may include anything.
set -u
rank() {
    case $1 in
    runtime/base/*) echo 0 ;;
    runtime/device/*) echo 1 ;;
    quant/*) echo 2 ;;
    kernels/* | offload/*) echo 3 ;;
    runtime/model/*) echo 4 ;;
    runtime/decode/*) echo 5 ;;
    runtime/tools/* | runtime/serve/*) echo 6 ;;
    runtime/main.c) echo 7 ;;
    *) echo 99 ;;
    esac
}
bad=0
while read -r f; do
    me=$(rank "$f")
    while read -r inc; do
        if [ "$(rank "$inc")" -gt "$me" ]; then
            echo "$f includes $inc: a layer above its own"; bad=1
        fi
        case "$f:$inc" in
        kernels/*:offload/* | offload/*:kernels/*) echo "$f includes $inc: kernels and offload are siblings"; bad=1 ;;
        esac
    done < <(sed -n 's/^#include "\(.*\)"/\1/p' "$f")
done < <(find runtime offload quant kernels -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
[ $bad -eq 0 ] && echo "layers: ok"
exit $bad
