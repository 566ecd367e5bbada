#!/bin/bash
# Installs what building and testing needs, on Debian 12 and Ubuntu 24.04 or later, with apt.
#   extra/setup.sh           installs what is missing; nothing missing: prints nothing, status 0
#   extra/setup.sh --check   prints the missing packages; status 1 if there are any
#   extra/setup.sh --webgpu  also what runs kernels in a browser: make webgpu-test
# The Makefile calls it before it compiles anything (not with NO_SETUP=1).
set -euo pipefail
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"

cxx=${CXX:-g++}
cxx=${cxx#ccache }

needed_list() {
  cat <<'LIST'
  g++ 12 or clang++ 14 (or later), GNU make   to build
  zlib and nlohmann-json with their headers   to build
  PCRE2 and utf8proc with their headers       for tokenizers
  LLVM's runtime library, version 16 to 21    to compile kernels (or CPU_COMPILER=cc)
  cxxopts, a header                           for the examples alone
  libturbojpeg's and libpng's runtime libraries  to read pictures; the tests count on them
  OpenSSL 3's and UCX's runtime libraries     for several processes; the tests count on them
  z3's runtime library                        to prove kernels; the tests count on it
  doctest, a header                           for the tests alone
  libonnx-testdata, models with results       for the tests alone
  (clang-19 and lld-19                        not asked for: tests then compile HIP kernels too)
  (node and Chromium                          asked for by make webgpu-test alone)
LIST
}

# Which of the headers the compiler cannot find, as package names.
missing_headers() {
  # CPPFLAGS is a list: headers may be elsewhere than where packages put them.
  # shellcheck disable=SC2086
  "$cxx" ${CPPFLAGS:-} -x c++ -E -P - <<'SOURCE' 2>/dev/null | sed -n 's/^lacks: //p' | tr -d ' '
#if !__has_include(<zlib.h>)
lacks: zlib1g-dev
#endif
#if !__has_include(<cxxopts.hpp>)
lacks: libcxxopts-dev
#endif
#if !__has_include(<doctest/doctest.h>)
lacks: doctest-dev
#endif
#if !__has_include(<nlohmann/json.hpp>)
lacks: nlohmann-json3-dev
#endif
#if !__has_include(<pcre2.h>)
lacks: libpcre2-dev
#endif
#if !__has_include(<utf8proc.h>)
lacks: libutf8proc-dev
#endif
SOURCE
}

has_z3() { { ldconfig -p 2>/dev/null || true; } | grep 'libz3\.so\.4' >/dev/null; }

has_library() { { ldconfig -p 2>/dev/null || true; } | grep -F "$1" >/dev/null; }

has_onnx_data() { [ -d "${ONNX_TESTDATA:-/usr/share/libonnx-testdata/data}" ]; }

# The dynamic linker's list, and the folders that LLVM's own packages install to.
has_llvm() {
  { ldconfig -p 2>/dev/null || true; ls /usr/lib/llvm-*/lib 2>/dev/null || true; } |
    grep -E 'libLLVM(-(16|17|18|19|20|21)\.so|\.so\.(18|19|20|21))' >/dev/null
}

missing() {
  command -v make >/dev/null || echo make
  if command -v "$cxx" >/dev/null; then
    missing_headers
  else
    printf '%s\n' g++ zlib1g-dev libcxxopts-dev doctest-dev nlohmann-json3-dev libpcre2-dev \
      libutf8proc-dev
  fi
  has_z3 || echo libz3-4
  has_llvm || echo libllvm
  has_onnx_data || echo libonnx-testdata
  has_library libturbojpeg.so.0 || echo libturbojpeg
  has_library libpng16.so.16 || echo libpng16
  has_library libssl.so.3 || echo libssl3
  has_library libucp.so.0 || echo libucx0
  [ "${1:-}" = --webgpu ] || return 0
  command -v node >/dev/null || echo nodejs
  command -v "${CHROMIUM:-chromium}" >/dev/null || echo chromium
}

# The newest runtime library of a version that the CPU device can use.
newest_llvm() {
  local version
  for version in 21 20 19 18 17 16; do
    if apt-cache policy "libllvm$version" | grep 'Candidate: [^(]' >/dev/null; then
      echo "libllvm$version"
      return
    fi
  done
  echo "setup: apt offers no libllvm16 to libllvm21" >&2
  return 1
}

# The first of these packages that apt offers: distributions give one library several names.
first_offered() {
  local name
  for name in "$@"; do
    if apt-cache policy "$name" | grep 'Candidate: [^(]' >/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "setup: apt offers none of $*" >&2
  return 1
}

give_up() {
  echo "setup: $1" >&2
  echo "setup: these are needed:" >&2
  needed_list >&2
  echo "setup: 'make NO_SETUP=1 ...' builds what can be built with what is there" >&2
  exit 1
}

lacking=$(missing "${1:-}" | paste -sd ' ')
if [ "${1:-}" = --check ]; then
  [ -z "$lacking" ] && exit 0
  echo "$lacking"
  exit 1
fi
[ -z "$lacking" ] && exit 0

command -v apt-get >/dev/null || give_up "missing: $lacking; this system has no apt-get"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || give_up "missing: $lacking; apt-get needs root or sudo"
  as_root=(sudo)
fi
# apt's progress is shown only when it fails.
log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -y -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 </dev/null
}

echo "setup: missing: $lacking"
echo "setup: apt-get update"
# A mirror that cannot be reached is a warning to apt, and may not matter: go on and see.
apt update || true
grep '^[WE]:' "$log" >&2 || true
packages=()
for name in $lacking; do
  if [ "$name" = libllvm ]; then
    name=$(newest_llvm) || give_up "LLVM's runtime library cannot be installed"
  elif [ "$name" = libturbojpeg ]; then
    name=$(first_offered libturbojpeg0 libturbojpeg) || give_up "libturbojpeg cannot be installed"
  elif [ "$name" = libpng16 ]; then
    name=$(first_offered libpng16-16 libpng16-16t64) || give_up "libpng cannot be installed"
  elif [ "$name" = libssl3 ]; then
    name=$(first_offered libssl3 libssl3t64) || give_up "OpenSSL's library cannot be installed"
  fi
  packages+=("$name")
done
echo "setup: apt-get install --no-install-recommends ${packages[*]}"
if ! apt install --no-install-recommends "${packages[@]}"; then
  cat "$log" >&2
  give_up "apt-get could not install: ${packages[*]}"
fi

lacking=$(missing "${1:-}" | paste -sd ' ')
[ -z "$lacking" ] || give_up "installed, but still not found by $cxx: $lacking"
echo "setup: done"
