#!/usr/bin/env bash
# All C code is as clang-format (.clang-format) writes it.
set -u
if ! command -v clang-format >/dev/null; then echo "format: clang-format is missing (make deps installs it)"; exit 1; fi
git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' | xargs -r clang-format --dry-run -Werror || exit 1
echo "format: ok"
