#!/usr/bin/env bash
# Sets up what the network needs on this machine.
#
#   deploy/setup.sh venv      .venv from requirements.lock, and this package in it
#   deploy/setup.sh system    RabbitMQ and a Java runtime from the system's packages, when they are missing
#   deploy/setup.sh checks    what the tests of deploy/ need beyond that: systemd-analyze, which is started by nobody
#   deploy/setup.sh chaos     a C compiler for `make chaos`, whose clocks jump by a small library; without one that fault is left out
#
# Installs as root or through `sudo -n`; otherwise it says exactly what to install and exits with 1.
#   TDN_NO_INSTALL=1         install no system package, only say what is missing
#   TDN_RABBITMQ_SERVER=F    use this server script; RabbitMQ is then not installed
#   TDN_SYSTEM_ROOT=DIR      look for installed software below DIR (the tests do)
#   PYTHON=F                 use this interpreter
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# ---- what is there -------------------------------------------------------------------------------------------------

pythons=${PYTHON:-python3.13 python3.12 python3.11 python3}

find_python() {
    local candidate
    # Each is run, not only looked up: version managers put commands on the PATH that end in an error.
    for candidate in $pythons; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

java_is_there() {
    local java version
    java=${JAVA_HOME:+$JAVA_HOME/bin/java}
    version=$("${java:-java}" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | sed -n 1p) || true
    [[ -n $version && $version -ge 17 ]]
}

rabbitmq_is_there() {
    local root=${TDN_SYSTEM_ROOT:-} place
    [[ -n ${TDN_RABBITMQ_SERVER:-} ]] && return 0
    # The same places as tdn/local/broker.py.
    for place in /usr/lib/rabbitmq/bin /usr/local/lib/rabbitmq/bin /opt/rabbitmq/sbin /usr/local/rabbitmq/sbin \
            /opt/homebrew/opt/rabbitmq/sbin /usr/local/opt/rabbitmq/sbin /usr/sbin; do
        [[ -x $root$place/rabbitmq-server ]] && return 0
    done
    for place in "$root"/usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin "$root"/opt/rabbitmq_server-*/sbin; do
        [[ -x $place/rabbitmq-server ]] && return 0
    done
    have rabbitmq-server && return 0
    # The broker then runs in a container.
    have docker && docker info >/dev/null 2>&1
}

# ---- installing ----------------------------------------------------------------------------------------------------

as_root() {
    if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

can_install() {
    [[ ${TDN_NO_INSTALL:-} != 1 ]] && have apt-get && { [[ $(id -u) -eq 0 ]] || { have sudo && sudo -n true 2>/dev/null; }; }
}

apt_offers() {
    # Not through `grep -q`: it closes the pipe early, and with pipefail that counts as "no".
    have apt-cache && [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]
}

# The oldest RabbitMQ that will do: quorum queues whose messages expire, and dead letters that are not lost, came with it. Ubuntu 22.04 offers 3.9.
oldest_rabbitmq=3.10

# The version that the system's packages offer, when it is too old; else nothing.
old_rabbitmq_offered() {
    local offered major minor
    have apt-cache || return 0
    offered=$(apt-cache policy rabbitmq-server 2>/dev/null | sed -nE 's/^ *Candidate: ([0-9]+:)?([0-9]+\.[0-9]+).*/\2/p')
    [[ -n $offered ]] || return 0
    major=${offered%.*} minor=${offered#*.}
    (( major > ${oldest_rabbitmq%.*} || (major == ${oldest_rabbitmq%.*} && minor >= ${oldest_rabbitmq#*.}) )) || printf '%s\n' "$offered"
}

java_package() {
    local name
    for name in openjdk-17-jre-headless openjdk-21-jre-headless; do
        if apt_offers "$name"; then printf '%s\n' "$name"; return; fi
    done
    printf 'default-jre-headless\n'
}

# What a person has to type, for the package manager that is here; Debian's where none is.
explain() {
    local command
    if ! have apt-get && have dnf; then
        command="sudo dnf install -y ${*/#*-jre-headless/java-17-openjdk-headless}"
    elif ! have apt-get && have brew; then
        local names="${*/#*-jre-headless/openjdk@17}"
        command="brew install ${names//rabbitmq-server/rabbitmq}"
    else
        command="sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
    fi
    printf 'setup: error: missing: %s\n' "$*" >&2
    printf 'setup: install with:\n    %s\n' "$command" >&2
    exit 1
}

policy=/usr/sbin/policy-rc.d
policy_is_ours=
remove_policy() {
    if [[ -n $policy_is_ours ]]; then as_root rm -f "$policy"; policy_is_ours=; fi
}
trap remove_policy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

apt_install() {
    say "installing $*"
    # Debian starts a server when it installs one. Ours are private, started by `tdn up`: a system-wide broker on
    # every address is not what was asked for. A policy that is already here (containers have one) is left alone.
    if [[ ! -e $policy ]]; then
        policy_is_ours=1
        as_root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
    fi
    local output
    if ! output=$(as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o DPkg::Lock::Timeout=120 "$@" 2>&1 </dev/null); then
        printf '%s\n' "$output" | tail -n 15 >&2
        fail "apt-get could not install: $*"
    fi
    remove_policy
    # Nor after the next boot. Only reached where we installed it: an operator's own broker stays as it is.
    if [[ " $* " == *" rabbitmq-server "* && -d /run/systemd/system ]]; then
        as_root systemctl disable --quiet rabbitmq-server || say "could not disable the service rabbitmq-server"
    fi
}

# ---- commands ------------------------------------------------------------------------------------------------------

set_up_venv() {
    local python version
    python=$(find_python) || fail "Python 3.11 or newer is needed and none was found (tried: $pythons)"
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        # Debian splits ensurepip off. python3-venv belongs to the system's own version only.
        local package=python3-venv
        if ! python3 -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
            package=python$version-venv
        fi
        can_install || explain "$package"
        as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are here"
        apt_install "$package"
    fi
    # An environment whose interpreter is gone or too old is made anew.
    if ! .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        say "making .venv with $("$python" --version)"
        "$python" -m venv --clear .venv
    fi
    say "installing the locked packages into .venv"
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    # What builds is taken first, and then used without isolation: pyspark comes as source, and would else be built with whatever
    # setuptools the registry offers, unhashed.
    local built_with
    built_with=$(.venv/bin/python -m deploy.supply.lock --build)
    .venv/bin/python -m pip install --quiet --require-hashes -r /dev/stdin <<<"$built_with"
    .venv/bin/python -m pip install --quiet --no-build-isolation --require-hashes -r requirements.lock
    .venv/bin/python -m pip install --quiet --no-build-isolation --no-deps --editable .
}

set_up_system() {
    local missing=()
    rabbitmq_is_there || missing+=(rabbitmq-server)
    if ! java_is_there; then
        can_install && { as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are here"; }
        missing+=("$(java_package)")
    elif [[ ${#missing[@]} -gt 0 ]] && can_install; then
        as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are here"
    fi
    [[ ${#missing[@]} -eq 0 ]] && return 0
    local old
    if ! rabbitmq_is_there && old=$(old_rabbitmq_offered) && [[ -n $old ]]; then
        fail "the packages of this system have RabbitMQ $old, and $oldest_rabbitmq or newer is needed: install one from https://www.rabbitmq.com/docs/install-debian, or start Docker, and run this again"
    fi
    can_install || explain "${missing[@]}"
    apt_install "${missing[@]}"
    rabbitmq_is_there || fail "rabbitmq-server was installed but is not found"
    java_is_there || fail "a Java runtime was installed but \`java -version\` does not say 17 or newer"
}

set_up_checks() {
    # Units are for Linux alone; elsewhere their test says that it was not run.
    have systemd-analyze && return 0
    [[ $OSTYPE == linux* ]] || return 0
    can_install || explain systemd
    as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are here"
    apt_install systemd
}

set_up_chaos() {
    have gcc || have cc || {
        if can_install; then
            as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are here"
            apt_install gcc libc6-dev
        else
            say "there is no C compiler (Debian: gcc and libc6-dev); clocks will not jump"
        fi
    }
    [[ $(id -u) -eq 0 ]] || say "mounting needs root; disks will not be full"
}

case ${1:-} in
    venv) set_up_venv ;;
    system) set_up_system ;;
    checks) set_up_checks ;;
    chaos) set_up_chaos ;;
    *) fail "usage: deploy/setup.sh venv|system|checks|chaos" ;;
esac
