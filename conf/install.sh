#!/bin/sh
# Makes /opt/mqspark of this clone or of a wheel, and puts the services' files in their places. Run it again for an
# upgrade: settings in /etc/mqspark stay, and nothing is started or restarted.
set -eu
umask 022

usage() {
    cat <<'USAGE'
usage: conf/install.sh [OPTION]...
  --prefix DIR     the virtual environment; default /opt/mqspark
  --extras NAMES   parts of the package, separated by commas; default server; jobs for the job server
  --wheel FILE     install this wheel instead of building one of this clone
  --no-deps        install no other package: they are there already, or come from elsewhere
  --python FILE    the interpreter, 3.11 or newer; default python3
  --no-files       the virtual environment alone
  --files-only     units, settings and the user alone
  --destdir DIR    put units, settings and the user's file below DIR, and tell systemd nothing
USAGE
}

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

prefix=/opt/mqspark extras=server wheel='' deps=yes python=python3 make_venv=yes put_files=yes destdir=''
while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --extras | --wheel | --python | --destdir) [ $# -ge 2 ] || fail "$1 needs a value" ;;
    esac
    case $1 in
        --prefix) prefix=$2; shift ;;
        --extras) extras=$2; shift ;;
        --wheel) wheel=$2; shift ;;
        --python) python=$2; shift ;;
        --destdir) destdir=$2; shift ;;
        --no-deps) deps=no ;;
        --no-files) put_files=no ;;
        --files-only) make_venv=no ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; fail "there is no option $1" ;;
    esac
    shift
done
case $prefix in
    /*) ;;
    *) fail "--prefix: give an absolute path" ;;
esac
case $prefix in
    *[!A-Za-z0-9/._-]*) fail "--prefix: units take letters, digits, dots, - and _ in it" ;;
esac
case $extras in
    '' | *[!a-z0-9,]*) fail "--extras: names like server,tiered" ;;
esac
if [ "$put_files" = yes ] && [ -z "$destdir" ] && [ "$(id -u)" != 0 ]; then
    fail "the services' files are root's: run it as root, or with --no-files"
fi
source=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

environment() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python is not Python 3.11 or newer: --python FILE"
    # An unfinished environment, or one whose interpreter is gone, is created again.
    if ! "$prefix/bin/python" -m pip --version >/dev/null 2>&1; then
        if [ -n "$(ls -A "$prefix" 2>/dev/null)" ] && [ ! -f "$prefix/pyvenv.cfg" ]; then
            fail "$prefix has files and is no virtual environment: nothing is deleted; give another --prefix"
        fi
        "$python" -m venv --clear "$prefix"
    fi
    if [ -z "$wheel" ]; then
        built=$(mktemp -d)
        trap 'rm -rf "$built"' EXIT
        "$prefix/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$built" "$source"
        wheel=$(echo "$built"/mqspark-*.whl)
    fi
    [ -f "$wheel" ] || fail "there is no wheel $wheel"
    if [ "$deps" = yes ]; then
        "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check "${wheel}[${extras}]"
    fi
    # The same version may have other contents.
    "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheel"
    install -m 644 "$source/README.md" "$prefix/README.md"
    if [ "$deps" = yes ]; then
        "$prefix/bin/mqspark" --version
    fi
}

files() {
    install -d -m 755 "$destdir/usr/lib/sysusers.d" "$destdir/etc/systemd/system"
    install -m 644 "$source/conf/systemd/mqspark.sysusers" "$destdir/usr/lib/sysusers.d/mqspark.conf"
    group=''
    if [ -z "$destdir" ]; then
        systemd-sysusers
        group='-g mqspark'
    fi
    # shellcheck disable=SC2086 # no group, or an option and its value
    install -d -m 750 $group "$destdir/etc/mqspark"
    for file in "$source"/conf/*.toml; do
        target=$destdir/etc/mqspark/$(basename "$file")
        if [ -e "$target" ] && ! cmp -s "$file" "$target"; then
            echo "$target stays as it is; the new one is beside it, as ${target##*/}.dist"
            target=$target.dist
        fi
        # shellcheck disable=SC2086
        install -m 640 $group "$file" "$target"
    done
    for unit in "$source"/conf/systemd/*.service "$source"/conf/systemd/*.timer; do
        target=$destdir/etc/systemd/system/$(basename "$unit")
        sed "s|/opt/mqspark/|$prefix/|g" "$unit" >"$target.new"
        chmod 644 "$target.new"
        mv "$target.new" "$target"
    done
    if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
}

[ "$make_venv" = no ] || environment
[ "$put_files" = no ] || files
