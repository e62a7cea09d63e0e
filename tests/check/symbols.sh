#!/usr/bin/env bash
# Every global symbol of the library starts with fl_.
set -u
bad=$(nm -g --defined-only "$@" | awk 'NF == 3 && $3 !~ /^fl_/ {print $3}')
if [ -n "$bad" ]; then echo "global symbols without the fl_ prefix:" $bad; exit 1; fi
echo "symbols: ok"
