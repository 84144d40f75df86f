# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Jobs killed at random instants, start after start."""

import signal
import time

from job import History, expect

# A start that is left alone for so long has come to checkpoints.
LONG_SECONDS = 0.6


def kill_somewhen(job, chance):
    """Kills the job before, inside or after a checkpoint; returns what was done, in words."""
    ranks = range(job.ranks)
    if chance.random() < 0.15:
        delay = chance.uniform(0, LONG_SECONDS)
        time.sleep(delay)
        return f"{delay:.3f} s after the start"
    # Inside: shortly after some rank began its so-and-so-many-th checkpoint.
    rank, count = chance.choice(ranks), chance.randint(1, 6)
    job.wait_event("begin", count, rank=rank)
    delay = chance.choice([0, chance.uniform(0, 0.003), chance.uniform(0, 0.03)])
    time.sleep(delay)
    return f"{delay * 1e3:.2f} ms after rank {rank} began checkpoint {count} of its start"


def chain(place, starts, one=False, history=None, **options):
    """Starts of one job, each killed; the last one comes to its end."""
    history = history or History()
    trail = []
    for start in range(1, starts + 1):
        job = place.job(start=start, **options)
        how = kill_somewhen(job, place.random)
        if one and len(job.pids) == job.ranks:
            rank = place.random.randrange(job.ranks)
            job.signal(rank, signal.SIGKILL)
            how += f", only rank {rank}"
            job.end()
        else:
            job.kill()
        place.count_kill(job)
        trail.append(how)
        try:
            history.judge(job)
        except Exception as failure:
            failure.args = (f"start {start} of {starts} (this one and the one before were killed "
                            f"{trail[-2:][::-1]}): {failure}",)
            raise
    job = place.job(start=starts + 1, steps=history.begun + 3, **options)
    job.end()
    history.judge(job, killed=False)
    expect(history.complete >= 3, f"only step {history.complete} was reached")
    return history


def kill_all(place, trials):
    chain(place, trials)


def kill_one(place, trials):
    chain(place, trials, one=True)


def kill_background(place, trials):
    chain(place, trials, background=1)


def kill_nodes(place, trials):
    chain(place, trials, nodes=(2, 2))


def kill_many_nodes(place, trials):
    chain(place, trials, nodes=(1, 2, 1), background=1)


def kill_slabs_on_other_numbers_of_ranks(place, trials):
    """Slabs alone, each start on another number of ranks, 4, 3, 6 and so on."""
    history = History()
    for start in range(1, trials + 1):
        job = place.job(start=start, slabs=1, nodes=([4, 3, 6, 2, 1, 5][(start - 1) % 6],))
        kill_somewhen(job, place.random)
        job.kill()
        place.count_kill(job)
        history.judge(job)
    job = place.job(start=trials + 1, slabs=1, nodes=(4,), steps=history.begun + 3)
    job.end()
    history.judge(job, killed=False)


def other_numbers_of_ranks(place):
    """4, then 3, then 6 ranks, each from where the former ended."""
    history = History()
    for start, ranks in enumerate([4, 3, 6], 1):
        job = place.job(start=start, slabs=1, nodes=(ranks,), steps=5 * start)
        job.end()
        history.judge(job, killed=False)
        expect(history.complete == 5 * start, f"{ranks} ranks ended at step {history.complete}")


def variables_of_a_rank_on_another_number_of_ranks(place):
    place.job(steps=3).closes()
    place.job(nodes=(3,)).refused("restore", 11, "4 ranks", "has 3", "breathing|big")


def kill_in_first_checkpoint(place, trials):
    """Killed while the stores are made; the next start begins anew or goes on, in the same folder."""
    for trial in range(trials):
        history = History()
        options = {"store": place.folder / f"store{trial}", "nodes": place.random.choice([(4,), (2, 2)])}
        job = place.job(start=1, **options)
        job.wait_event("begin", place.random.choice([1, job.ranks]))
        time.sleep(place.random.uniform(0, 0.006))
        job.kill()
        place.count_kill(job)
        history.judge(job)
        job = place.job(start=2, steps=history.begun + 2, **options)
        job.end()
        history.judge(job, killed=False)
