#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Slurm epilog: ends the agent that the prolog started: asks it by a file, then SIGTERM, then SIGKILL. Then it
# removes this node's store of the job, if BACKSTAY_STORES_AT_END says so: deploy/README.md has the rule.
set -u

settings="${BACKSTAY_DEPLOY_CONF:-/etc/backstay/deploy.conf}"
# shellcheck disable=SC1090
[ ! -r "$settings" ] || . "$settings"
backstay="${BACKSTAY_PROGRAM:-/usr/local/bin/backstay}"
state="${BACKSTAY_AGENT_STATE:-/run/backstay}"
grace="${BACKSTAY_AGENT_GRACE_S:-10}"
job="${SLURM_JOB_ID:-}"
stores_at_end="${BACKSTAY_STORES_AT_END:-auto}"
folder="$state/$job"

say() { logger -t backstay-epilog -- "$*" 2>/dev/null || echo "backstay-epilog: $*" >&2; }

[ -n "$job" ] && [ -d "$folder" ] || exit 0
pid=""
[ ! -r "$folder/pid" ] || read -r pid <"$folder/pid"
: >"$folder/over"

# The number may be another process's by now: only one with this folder in its environment is ours.
is_ours() {
    [ -n "$pid" ] && { tr '\0' '\n' <"/proc/$pid/environ"; } 2>/dev/null | grep -qxF "BACKSTAY_RENDEZVOUS=$folder"
}

wait_for_end() {
    left=$(($1 * 10))
    while is_ours && [ "$left" -gt 0 ]; do
        sleep 0.1
        left=$((left - 1))
    done
}

wait_for_end "$grace"
if is_ours; then
    kill -TERM "$pid" 2>/dev/null
    wait_for_end 5
fi
if is_ours; then
    kill -KILL "$pid" 2>/dev/null
fi

name="" store_path=""
[ ! -r "$folder/job" ] || read -r name <"$folder/job"
[ ! -r "$folder/store_path" ] || read -r store_path <"$folder/store_path"
owner=$(stat -c %U "$folder")

# Nobody finds a store under a name of this allocation again; one under the user's name the next job does.
wants_removal() {
    case "$stores_at_end" in
    remove) true ;;
    keep) false ;;
    *) [ "$name" = "slurm-$job" ] ;;
    esac
}

# As the user: what lies there is the user's. The command leaves alone what is not Backstay's, and what a process
# of another allocation with this name uses.
as_owner() { setpriv --reuid "$owner" --regid "$(id -g "$owner")" --init-groups -- "$@"; }

remove_store() {
    if [ -d "$1" ]; then
        said=$(as_owner "$backstay" rm --yes --only nodes "$1" 2>&1 >/dev/null) || say "job $job: $1 stays: $said"
    fi
    # What an agent made that no application came to; not where anything is in it.
    [ ! -d "${1%/*}" ] || as_owner rmdir "${1%/*}" 2>/dev/null
}

if [ -n "$name" ] && wants_removal; then
    node=$(uname -n)
    if [ -n "$store_path" ]; then
        remove_store "$store_path/$name/$node"
    else
        for place in /dev/shm ${BACKSTAY_SCRATCH:-} /local/scratch /localscratch /scratch/local /var/tmp; do
            remove_store "$place/backstay-$(id -u "$owner")/$name/$node"
        done
    fi
fi
rm -rf "$folder"
exit 0
