#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Slurm prolog: starts `backstay agent` on this node, as the job's user, and writes down for the task prolog
# under which name it looks for stores. It never fails the job: a prolog that ends with an error drains the
# node.
set -u

settings="${BACKSTAY_DEPLOY_CONF:-/etc/backstay/deploy.conf}"
# shellcheck disable=SC1090
[ ! -r "$settings" ] || . "$settings"
backstay="${BACKSTAY_PROGRAM:-/usr/local/bin/backstay}"
state="${BACKSTAY_AGENT_STATE:-/run/backstay}"
store_path="${BACKSTAY_STORE_PATH:-}"
job="${SLURM_JOB_ID:-}"
user="${SLURM_JOB_USER:-}"
folder="$state/$job"

say() { logger -t backstay-prolog -- "$*" 2>/dev/null || echo "backstay-prolog: $*" >&2; }

# The user's name of the job, from `sbatch --comment=backstay:NAME`; else one of this allocation only.
name_of_job() {
    case " ${SLURM_JOB_COMMENT:-}" in
    *[\ ,\;]backstay:*)
        name="${SLURM_JOB_COMMENT#*backstay:}"
        name="${name%%[ ,;]*}"
        ;;
    *) name="" ;;
    esac
    case "$name" in
    "" | . | .. | */* | *[!A-Za-z0-9._+-]*) echo "slurm-$job" ;;
    *) echo "$name" ;;
    esac
}

if [ -z "$job" ] || [ -z "$user" ]; then
    say "not started by Slurm: no SLURM_JOB_ID or SLURM_JOB_USER"
    exit 0
fi
[ -x "$backstay" ] || { say "$backstay is not there: no agent"; exit 0; }
if ! mkdir -p "$state" || ! mkdir -m 0700 "$folder" 2>/dev/null; then
    say "job $job: $folder cannot be made, or has an agent already"
    exit 0
fi
name=$(name_of_job)
echo "$name" >"$folder/job"
[ -z "$store_path" ] || echo "$store_path" >"$folder/store_path"
chown -R "$user" "$folder" 2>/dev/null || { say "job $job: no user $user"; rm -rf "$folder"; exit 0; }

# A session of its own, so that it outlives this script; the epilog ends it. Slurm kills what is left of the script's
# process group, so it is waited for until it is out of that. The epilog knows it by its environment, from the first.
# shellcheck disable=SC2016
setsid env BACKSTAY_RENDEZVOUS="$folder" ${store_path:+BACKSTAY_STORE_PATH="$store_path"} \
    sh -c 'echo "$$" >"$0/pid"; exec "$@"' "$folder" \
    setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups -- \
    "$backstay" agent --job "$name" </dev/null >"$folder/log" 2>&1 &
tries=100
while [ ! -s "$folder/pid" ] && [ "$tries" -gt 0 ]; do
    sleep 0.05
    tries=$((tries - 1))
done
if [ -s "$folder/pid" ]; then
    say "job $job: agent $(cat "$folder/pid") for $user, job name $name"
else
    say "job $job: the agent for $user did not start within 5 s: $(cat "$folder/log")"
fi
exit 0
