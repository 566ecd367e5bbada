#!/bin/bash
# Tries what a new user does on a machine that has nothing but a base system: a Debian root made
# by mmdebstrap, the repository copied in, `make mnist` and `make test` run in it by chroot.
#   extra/fresh_machine.sh                 all of it; needs root and mmdebstrap
#   extra/fresh_machine.sh --setup-only    only extra/setup.sh, twice
# SUITE   release to make (bookworm); SOURCES  apt's list of mirrors (this machine's own)
# ARGS    arguments of `make mnist` (--steps 20)
# The root lies in a temporary folder. What is mounted in it is mounted in a mount namespace of
# the chroot alone, and is gone when that ends: deleting the root can reach nothing else.
set -euo pipefail

suite=${SUITE:-bookworm}
mnist_args=${ARGS:---steps 20}
repository=$(cd "$(dirname "$0")/.." && pwd)

fail() {
  echo "fresh_machine: $1" >&2
  exit 1
}

[ "$(id -u)" -eq 0 ] || fail "needs root"
for tool in mmdebstrap unshare chroot git apt-config; do
  command -v "$tool" >/dev/null || fail "needs $tool"
done

work=$(mktemp -d)
root=$work/root
cleanup() {
  if grep -qF " $work/" /proc/self/mountinfo; then
    echo "fresh_machine: something is mounted in $work: left as it is" >&2
  else
    rm -rf --one-file-system "$work"
  fi
}
trap cleanup EXIT

# The mirrors that serve the suite, out of this machine's apt configuration: the stanzas of its
# .sources files that name it, and the lines of its .list files.
find_sources() {
  local file
  for file in /etc/apt/sources.list.d/*.sources; do
    [ -e "$file" ] || continue
    awk -v suite="$suite" 'BEGIN {RS = ""; ORS = "\n\n"}
      $0 ~ "(^|\n)Suites:[^\n]* " suite "([ \n-]|$)"' "$file"
  done >"$work/machine.sources"
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
    grep -E "^deb .* $suite(-[a-z]+)? " >"$work/machine.list" || true
  [ -s "$work/machine.sources" ] || rm "$work/machine.sources"
  [ -s "$work/machine.list" ] || rm "$work/machine.list"
}

make_root() {
  local sources=()
  if [ -n "${SOURCES:-}" ]; then
    sources=("$SOURCES")
  else
    find_sources
    sources=("$work"/machine.*)
    [ -e "${sources[0]}" ] || fail "apt of this machine has no mirror of $suite: set SOURCES"
  fi
  # How apt reaches its mirrors (proxies and the like), without this machine's hooks.
  apt-config dump | grep -E '^Acquire::(http|https|Retries|ForceIPv[46])[: ]' |
    grep -v ' "";$' >"$work/transport.conf" || true
  mmdebstrap --quiet --variant=apt --aptopt="$work/transport.conf" "$suite" "$root" \
    "${sources[@]}"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
}

copy_repository() {
  mkdir -p "$root/srv/tiny"
  git -C "$repository" ls-files -z --cached --others --exclude-standard |
    tar -C "$repository" -c --null --ignore-failed-read -T - 2>/dev/null |
    tar -C "$root/srv/tiny" -x --no-same-owner
}

# Runs a command line in the repository's folder inside the root.
inside() {
  # shellcheck disable=SC2016
  unshare --mount --propagation private --pid --fork bash -c '
    set -e
    mount -t proc proc "$0/proc"
    mount --rbind /dev "$0/dev"
    exec chroot "$0" /usr/bin/env -i HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
      bash -c "cd /srv/tiny && $1"' "$root" "$1"
}

step() {
  local begin=$SECONDS
  echo "== $1"
  inside "$1" || fail "failed: $1"
  echo "== $((SECONDS - begin)) s"
}

make_root
copy_repository
echo "== a fresh $suite in $SECONDS s: $(du -sxm "$root" | cut -f 1) MB"

if [ "${1:-}" = --setup-only ]; then
  step "extra/setup.sh"
  step "extra/setup.sh --check"
else
  step "apt-get -qq update && apt-get -qq -y install make >/dev/null"
  step "make mnist ARGS='$mnist_args'"
  step "make test"
fi
again=$(inside "extra/setup.sh 2>&1") || fail "setup.sh fails on its second run: $again"
[ -z "$again" ] || fail "setup.sh is not silent on its second run: $again"
echo "== setup.sh has nothing to do on its second run"
