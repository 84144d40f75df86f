#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Slurm epilog: ends the agent that the prolog started: asks it by a file, then SIGTERM, then SIGKILL.
set -u

settings="${BACKSTAY_DEPLOY_CONF:-/etc/backstay/deploy.conf}"
# shellcheck disable=SC1090
[ ! -r "$settings" ] || . "$settings"
state="${BACKSTAY_AGENT_STATE:-/run/backstay}"
grace="${BACKSTAY_AGENT_GRACE_S:-10}"
job="${SLURM_JOB_ID:-}"
folder="$state/$job"

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
rm -rf "$folder"
exit 0
