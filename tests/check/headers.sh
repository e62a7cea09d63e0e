#!/usr/bin/env bash
# Each header compiles alone.
set -u
bad=0
for h in $(find runtime offload quant kernels tests/support -name '*.h'); do
    echo "#include \"$h\"" | ${CC:-gcc} -std=c11 -I. -D_GNU_SOURCE -Wall -Wextra -Werror -fsyntax-only -x c - || bad=1
done
[ $bad -eq 0 ] && echo "headers: each compiles alone"
exit $bad
