#!/usr/bin/env bash
# setup.sh: installs what building and testing dtrun needs on Debian 12+ / Ubuntu 24.04+. Safe to run again: what is there is left alone.
# It runs apt-get (through sudo when not root) and touches nothing else. PyTorch, for the optional tests, is scripts/setup_torch.sh.
set -euo pipefail

if ! command -v apt-get >/dev/null; then
  echo "setup.sh: no apt-get here. Install the equivalents of the packages listed in this script by hand." >&2
  exit 1
fi

packages=(
  g++ cmake ninja-build ccache pkg-config git python3 python3-venv        # build
  nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev                # launcher, store, worker
  libopenblas-dev libxxhash-dev libssl-dev libhwloc-dev libgloo-dev       # numerics, hashing, security, topology, CPU collectives over hosts
  libpcre2-dev                                                            # words of text, for tokenizers
  catch2 clang-format                                                     # tests and style
)
# Asio needs Boost 1.81 or newer; Debian 12's default is 1.74.
if [ -n "$(dpkg-query -W -f='${Status}' libboost1.81-dev 2>/dev/null)" ] || apt-cache show libboost1.81-dev >/dev/null 2>&1; then
  packages+=(libboost1.81-dev)
else
  packages+=(libboost-dev)
fi
# The fuzz targets want clang with its libFuzzer; without it they are left out.
for extra in clang libclang-rt-14-dev; do
  if apt-cache show "$extra" >/dev/null 2>&1; then packages+=("$extra"); fi
done

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup.sh: all ${#packages[@]} packages are installed already"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup.sh: needs root for: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup.sh: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
echo "setup.sh: done"
