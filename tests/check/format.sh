#!/usr/bin/env bash
# All C code is as clang-format (.clang-format) writes it. Outside git (an unpacked archive) the
# files are found by name; no file at all is a failure.
set -u
if ! command -v clang-format >/dev/null; then echo "format: clang-format is missing (make deps installs it)"; exit 1; fi
if git ls-files --error-unmatch Makefile >/dev/null 2>&1; then
    mapfile -t files < <(git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh')
else
    mapfile -t files < <(find bench kernels offload quant runtime tests \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print)
fi
if [ ${#files[@]} -eq 0 ]; then echo "format: no C file was found; run it from the repository's root"; exit 1; fi
printf '%s\0' "${files[@]}" | xargs -0 clang-format --dry-run -Werror || exit 1
echo "format: ok (${#files[@]} files)"
