#!/bin/bash
# Copies what `make` has built to where programs find it, and takes it away again.
#   install.sh install BUILD VERSION LIBRARIES HEADERS    lists: "-lz -ldl", "tiny/tiny.h ..."
#   install.sh uninstall
# PREFIX (/usr/local), LIBDIR (PREFIX/lib), INCLUDEDIR (PREFIX/include) are where the files lie for
# programs, DESTDIR a folder in front of them where a package is put together.
# PREFIX/share/tiny/installed lists the files and the folders ("name/") that this made: only these
# are removed again, folders only where they are empty. Installing removes an earlier version first.
set -euo pipefail
PREFIX=$(realpath -ms "${PREFIX:-/usr/local}")
LIBDIR=$(realpath -ms "${LIBDIR:-$PREFIX/lib}")
INCLUDEDIR=$(realpath -ms "${INCLUDEDIR:-$PREFIX/include}")
DESTDIR=${DESTDIR:+$(realpath -ms "$DESTDIR")}
here=$(dirname "$0")
list=$PREFIX/share/tiny/installed
made=()

# The dynamic linker looks into its cache for folders such as /usr/local/lib.
update_linker_cache() {
  local folders
  [ -z "$DESTDIR" ] && [ "$(id -u)" -eq 0 ] || return 0
  folders=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -vNX 2>/dev/null) || return 0
  if grep -q "^$LIBDIR:" <<<"$folders"; then PATH=$PATH:/sbin:/usr/sbin ldconfig; fi
}

remove_installed() {
  local name
  [ -e "$DESTDIR$list" ] || return 1
  tac "$DESTDIR$list" | while read -r name; do
    case $name in
      */) rmdir --ignore-fail-on-non-empty "$DESTDIR$name" 2>/dev/null || true ;;
      *) rm -f "$DESTDIR$name" ;;
    esac
  done
}

# Makes the folder of a file and notes those that did not exist.
make_folder() {
  local folder=$1
  [ -d "$DESTDIR$folder" ] && return
  [ "$folder" = / ] || make_folder "$(dirname "$folder")"
  mkdir -p "$DESTDIR$folder"
  made+=("${folder%/}/")
}

# put FILE TARGET [MODE]: a copy; link TEXT TARGET: a symbolic link.
put() {
  make_folder "$(dirname "$2")"
  install -m "${3:-644}" "$1" "$DESTDIR$2"
  made+=("$2")
}
link() {
  ln -sfn "$1" "$DESTDIR$2"
  made+=("$2")
}

# A template of this folder with the values in it.
fill() {
  local include_from_here
  include_from_here=$(realpath -ms --relative-to="$LIBDIR/cmake/tiny" "$INCLUDEDIR")
  sed -e "s|@VERSION@|$version|g; s|@SONAME@|libtiny.so.${version%.*}|g; s|@PREFIX@|$PREFIX|g" \
    -e "s|@LIBDIR@|$LIBDIR|g; s|@INCLUDEDIR@|$INCLUDEDIR|g; s|@LIBS@|$libraries|g" \
    -e "s|@CMAKE_LIBS@|${libraries// /;}|g; s|@INCLUDE_FROM_HERE@|$include_from_here|g" \
    "$here/$1.in" >"$filled"
  put "$filled" "$2/$1"
}

# Also after a failure: what is there already can be removed.
finish() {
  rm -f "$filled"
  if [ -d "$DESTDIR$(dirname "$list")" ]; then printf '%s\n' "${made[@]}" >"$DESTDIR$list"; fi
}

install_all() {
  local build=$1 version=$2 libraries=$3 header
  filled=$(mktemp)
  trap finish EXIT
  remove_installed || true
  make_folder "$(dirname "$list")"
  made+=("$list")
  for header in $4; do put "$header" "$INCLUDEDIR/$header"; done
  put "$build/libtiny.a" "$LIBDIR/libtiny.a"
  put "$build/libtiny.so.$version" "$LIBDIR/libtiny.so.$version" 755
  link "libtiny.so.$version" "$LIBDIR/libtiny.so.${version%.*}"
  link "libtiny.so.${version%.*}" "$LIBDIR/libtiny.so"
  fill tiny.pc "$LIBDIR/pkgconfig"
  fill tinyConfig.cmake "$LIBDIR/cmake/tiny"
  fill tinyConfigVersion.cmake "$LIBDIR/cmake/tiny"
  update_linker_cache
  echo "tiny $version is installed in $DESTDIR$PREFIX"
}

case ${1:-} in
  install) install_all "${@:2}" ;;
  uninstall)
    if remove_installed; then
      update_linker_cache
      echo "tiny is removed from $DESTDIR$PREFIX"
    else
      echo "tiny is not installed in $DESTDIR$PREFIX: there is no $DESTDIR$list"
    fi ;;
  *) sed -n '2,8s/^# //p' "$0" >&2; exit 2 ;;
esac
