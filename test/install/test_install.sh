#!/bin/bash
# `make install` seen by programs outside this repository: the README's program and a smaller one,
# built with pkg-config and with CMake against trees in a temporary folder, and run. Ends with the
# line `N passed, N failed`.
#   test_install.sh BUILD    the folder of the build, whose libraries are up to date
# Called by make, whose command line (CXX=, CPPFLAGS=, ...) then also holds for `make install`.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
passed=0 failed=0
export DEVICE=${DEVICE:-CPU} PKG_CONFIG_PATH=$tree/lib/pkgconfig
version=$(sed -nE 's/^#define TINY_VERSION "(.*)".*/\1/p' tiny/run/version.h)
minor=${version%.*}

# try NAME COMMAND...: one test; its output is shown where it fails.
try() {
  local name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL install: $name"
    sed 's/^/  /' "$work/log"
  fi
}

fail() {
  echo "$1"
  return 1
}

has() { command -v "$1" >/dev/null || { echo "install: no $1: $2"; return 1; }; }

# The files of a folder, relative to it.
files_in() { (cd "$1" && find . ! -type d | sort); }

# --- What is installed ---------------------------------------------------------------------------

same_text() { diff <(echo "$1") <(echo "$2"); }

installs_an_interface_alone() {
  local headers
  make --no-print-directory install PREFIX="$tree" || return
  headers=$(cd "$tree/include" && find . -name '*.h' | grep -v '^\./tiny/')
  same_text "$headers" "" && same_text "$(ls "$tree/include")" tiny &&
    [ -e "$tree/include/tiny/tiny.h" ] && [ ! -e "$tree/include/tiny/rewrite" ]
}

names_its_version() {
  same_text "$(readlink "$tree/lib/libtiny.so")" "libtiny.so.$minor" &&
    same_text "$(readlink "$tree/lib/libtiny.so.$minor")" "libtiny.so.$version" &&
    readelf -d "$tree/lib/libtiny.so.$version" | grep -F "soname: [libtiny.so.$minor]" &&
    grep -x "Version: $version" "$tree/lib/pkgconfig/tiny.pc"
}

exports_its_own_symbols_alone() {
  local others
  others=$(nm -D --defined-only "$tree/lib/libtiny.so" | awk '$3 !~ /4tiny/ {print $3}')
  same_text "$others" ""
}

stages_for_a_package() {
  make --no-print-directory install DESTDIR="$work/stage" PREFIX=/opt/of-tiny || return
  ! grep -rF "$work" "$work/stage" --include='*.pc' --include='*.cmake' --include=installed ||
    fail "the name of the folder DESTDIR was installed" || return
  same_text "$(files_in "$work/stage/opt/of-tiny")" "$(files_in "$tree")"
}

# A file that something else has put there stays; a second installation does not double the first.
removes_what_it_made() {
  mkdir -p "$work/shared/lib" && touch "$work/shared/lib/other" || return
  make --no-print-directory install PREFIX="$work/shared" || return
  echo stale >"$work/shared/include/tiny/stale.h"
  echo "$work/shared/include/tiny/stale.h" >>"$work/shared/share/tiny/installed"
  make --no-print-directory install PREFIX="$work/shared" || return
  [ ! -e "$work/shared/include/tiny/stale.h" ] || fail "an earlier version's header stays" || return
  make --no-print-directory uninstall PREFIX="$work/shared" || return
  same_text "$(cd "$work/shared" && find . | sort)" $'.\n./lib\n./lib/other' &&
    make --no-print-directory uninstall PREFIX="$work/shared" | grep 'not installed'
}

# --- Programs that use it ------------------------------------------------------------------------

write_programs() {
  cp "$build/readme_example.cpp" "$work/readme.cpp"
  cat >"$work/small.cpp" <<'SOURCE'
#include <cstdio>
#include <cstring>
#include <tiny/tiny.h>

int main() {
  const tiny::Tensor x = tiny::Tensor::arange(5).to(tiny::kF32) * 2;
  bool caught = false;
  try {
    x.reshape({3});
  } catch (const tiny::Error&) {
    caught = true;
  }
  const bool same = std::strcmp(tiny::version(), TINY_VERSION) == 0;
  std::printf("%s %g\n", tiny::version(), x.sum().item<float>());
  return caught && same ? 0 : 1;
}
SOURCE
}

runs_readme() { "$@" | tee /dev/stderr | grep -E '^accuracy [0-9.]+ %$'; }
runs_small() { same_text "$("$@")" "$version 20"; }
needs_shared() { readelf -d "$1" | grep -F "Shared library: [libtiny.so.$minor]"; }

# with_pkg_config PROGRAM OPTIONS: compiled in the temporary folder, where no header of ours lies.
with_pkg_config() {
  # shellcheck disable=SC2046,SC2086
  (cd "$work" && ${CXX:-g++} "$1.cpp" $2 $(pkg-config --cflags --libs $3 tiny) -o "$1")
}

pkg_config_builds_the_readme() {
  with_pkg_config readme "" "" && needs_shared "$work/readme" &&
    LD_LIBRARY_PATH=$tree/lib runs_readme "$work/readme"
}

pkg_config_builds_against_the_archive() {
  mkdir "$work/archive" && cp "$tree/lib/libtiny.a" "$work/archive" &&
    with_pkg_config small -L"$work/archive" --static || return
  ! needs_shared "$work/small" || fail "libtiny.so is needed all the same" || return
  runs_small "$work/small"
}

pkg_config_finds_a_staged_tree() {
  local stage=$work/stage
  PKG_CONFIG_SYSROOT_DIR=$stage PKG_CONFIG_PATH=$stage/opt/of-tiny/lib/pkgconfig \
    pkg-config --cflags tiny | grep -F -- "-I$stage/opt/of-tiny/include"
}

# cmake_project VERSION: what it asks find_package for.
cmake_project() {
  rm -rf "$work/project" && mkdir "$work/project" && cat >"$work/project/CMakeLists.txt" <<LIST
cmake_minimum_required(VERSION 3.16)
project(user CXX)
find_package(tiny $1 REQUIRED)
add_executable(readme ../readme.cpp)
target_link_libraries(readme tiny::tiny)
add_executable(small ../small.cpp)
target_link_libraries(small tiny::tiny_static)
LIST
}
configure() { cmake -S "$work/project" -B "$work/project/build" "$@"; }

cmake_builds_both() {
  cmake_project "$minor" && configure -DCMAKE_PREFIX_PATH="$tree" &&
    cmake --build "$work/project/build" || return
  needs_shared "$work/project/build/readme" && runs_readme "$work/project/build/readme" &&
    runs_small "$work/project/build/small"
}

cmake_finds_a_moved_tree() {
  cmake_project "$version" && configure -DCMAKE_PREFIX_PATH="$work/stage/opt/of-tiny" &&
    grep -F "tiny_DIR:PATH=$work/stage" "$work/project/build/CMakeCache.txt"
}

cmake_refuses_other_versions() {
  local wanted
  for wanted in 99 "${version%%.*}.99" "$minor.99"; do
    cmake_project "$wanted"
    ! configure -DCMAKE_PREFIX_PATH="$tree" || fail "$version met a request for $wanted" || return
  done
}

try "the interface alone is installed" installs_an_interface_alone
try "soname, links and tiny.pc have the version" names_its_version
try "libtiny.so exports symbols of tiny alone" exports_its_own_symbols_alone
try "DESTDIR stages a package" stages_for_a_package
try "make uninstall removes what make install made" removes_what_it_made
write_programs
if has pkg-config "programs that use tiny.pc are left out"; then
  try "pkg-config builds the README's program" pkg_config_builds_the_readme
  try "pkg-config --static names what libtiny.a needs" pkg_config_builds_against_the_archive
  try "pkg-config finds a staged tree" pkg_config_finds_a_staged_tree
fi
if has cmake "programs that use find_package(tiny) are left out"; then
  try "CMake builds the README's program and one with the archive" cmake_builds_both
  try "CMake finds a tree that has moved" cmake_finds_a_moved_tree
  try "CMake refuses other versions" cmake_refuses_other_versions
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
