#!/usr/bin/env bash
# Runs tests against the RabbitMQ 4 of Debian 13, on a machine that has another version or none.
#
#   tests/rabbitmq4.sh [PYTEST ARGUMENTS]     those tests; without any, all that RabbitMQ itself takes part in deciding
#   tests/rabbitmq4.sh --server               only make it, and print the path of its server script
#
# The first time, a small Debian is installed into a folder (half a minute, 400 MB). The broker runs in there, with the caller's
# pid, environment, network and folders: everything but its program and libraries is as always. The other commands take it too:
#   TDN_RABBITMQ_SERVER=$(tests/rabbitmq4.sh --server) tdn up
#
#   TDN_DEBIAN13=DIR     where that Debian is, or is to be
#   TDN_DEBIAN_MIRROR=U  where it comes from; otherwise where this machine gets its packages, if it is a Debian
#
# Needs root (for chroot and mounts) and `debootstrap`. The module that we compile comes from this machine's Erlang, which may be
# older than Debian 13's (27) but not newer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

debian=${TDN_DEBIAN13:-${TMPDIR:-/tmp}/trixie}
server=$debian.server

say() { printf 'rabbitmq4: %s\n' "$*" >&2; }
fail() { printf 'rabbitmq4: error: %s\n' "$*" >&2; exit 1; }

mirror() {
    if [[ -n ${TDN_DEBIAN_MIRROR:-} ]]; then
        printf '%s\n' "$TDN_DEBIAN_MIRROR"
    elif [[ -r /etc/os-release ]] && (. /etc/os-release && [[ $ID == debian ]]); then
        apt-get indextargets --format '$(SITE)' 'Identifier: Packages' 'Component: main' 2>/dev/null | sed -n '/\/debian\/\{0,1\}$/{p;q}'
    fi
}

install_debian() {
    [[ $(id -u) -eq 0 ]] || fail "only root can make and enter $debian"
    command -v debootstrap >/dev/null || fail "debootstrap is missing; apt-get install debootstrap"
    say "installing Debian 13 with RabbitMQ into $debian"
    # Elsewhere first: what was interrupted is not taken for a whole one the next time.
    rm -rf "$debian.new"
    # shellcheck disable=SC2046  # no mirror, no argument: debootstrap then knows one
    debootstrap --variant=minbase --include=rabbitmq-server trixie "$debian.new" $(mirror) >"$debian.log" 2>&1 \
        || fail "debootstrap failed; $debian.log says why"
    # Nobody wants its cookie or its data; ours come from the network's own folder.
    rm -rf "$debian.new/var/lib/rabbitmq" "$debian.new/var/cache/apt/archives"
    mv "$debian.new" "$debian"
}

# Mounts are made in a namespace of the broker's own and end with it. `exec` all the way: our child is the broker.
write_server() {
    cat >"$server.new" <<SERVER
#!/bin/sh
debian='$debian'
SERVER
    cat >>"$server.new" <<'SERVER'
# The network's folder, at its own path: configuration and certificates are named so.
top=/$(printf %s "$HOME" | cut -d/ -f2)
case $top in
    / | /usr | /etc | /var | /lib* | /bin | /sbin | /proc | /dev | /sys) echo "a network in $top cannot be seen by $debian" >&2; exit 1 ;;
esac
mkdir -p "$debian$top"
export debian top
exec unshare --mount --propagation private sh -c '
    mount --bind "$top" "$debian$top" && mount -t proc proc "$debian/proc" && mount --bind /dev "$debian/dev" &&
        mount --bind /etc/hosts "$debian/etc/hosts" || exit 1
    exec chroot "$debian" /usr/lib/rabbitmq/bin/rabbitmq-server "$@"' sh "$@"
SERVER
    : >>"$debian/etc/hosts"
    chmod 755 "$server.new"
    mv "$server.new" "$server"
}

compgen -G "$debian/usr/lib/rabbitmq/lib/rabbitmq_server-4*" >/dev/null || install_debian
write_server
export TDN_RABBITMQ_SERVER=$server
if [[ ${1:-} == --server ]]; then
    printf '%s\n' "$server"
    exit
fi
if [[ $# -eq 0 ]]; then
    set -- tests/broker/test_private_broker.py tests/broker/test_backend.py tests/broker/test_enforcement.py
    if [[ -d tests/redteam ]]; then set -- "$@" tests/redteam; fi
fi
say "$(basename "$debian"/usr/lib/rabbitmq/lib/rabbitmq_server-4*) in $debian"
exec .venv/bin/pytest -q "$@"
