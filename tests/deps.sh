#!/usr/bin/env bash
# Installs the Debian packages that the build and the tests need; silent when none is missing.
set -eu
packages=(gcc libc6-dev make pkg-config liburing-dev libjansson-dev libpcre2-dev libutf8proc-dev
    libxxhash-dev libhwloc-dev libcmocka-dev clang-format valgrind qemu-user)
missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -q '^installed$' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
echo "Missing Debian packages: ${missing[*]}"
if ! command -v apt-get >/dev/null; then
    echo "No apt-get here: install the equivalents of these packages, then run make again."
    exit 1
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo=sudo
    command -v sudo >/dev/null || { echo "Run as root: apt-get install ${missing[*]}"; exit 1; }
fi
echo "Installing them with: ${sudo:+sudo }apt-get install --no-install-recommends ${missing[*]}"
$sudo apt-get update -q || echo "apt-get update failed; trying with the package lists at hand"
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -q -y --no-install-recommends "${missing[@]}"
