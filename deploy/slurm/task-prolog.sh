#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Slurm task prolog: the application looks for its stores where the agent of this node does. Slurm puts what
# is printed as `export NAME=VALUE` into the environment of the task. What the user has set stays.
set -u

settings="${BACKSTAY_DEPLOY_CONF:-/etc/backstay/deploy.conf}"
user_job="${BACKSTAY_JOB:-}"
user_store_path="${BACKSTAY_STORE_PATH:-}"
# shellcheck disable=SC1090
[ ! -r "$settings" ] || . "$settings"
folder="${BACKSTAY_AGENT_STATE:-/run/backstay}/${SLURM_JOB_ID:-}"

[ -n "${SLURM_JOB_ID:-}" ] && [ -r "$folder/job" ] || exit 0
read -r name <"$folder/job"
if [ -z "$user_job" ]; then
    echo "export BACKSTAY_JOB=$name"
elif [ "$user_job" != "$name" ]; then
    echo "print backstay: BACKSTAY_JOB is $user_job, the agents of this job serve $name: give" \
        "sbatch --comment=backstay:$user_job"
fi
if [ -z "$user_store_path" ] && [ -r "$folder/store_path" ]; then
    echo "export BACKSTAY_STORE_PATH=$(cat "$folder/store_path")"
fi
exit 0
