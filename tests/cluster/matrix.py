# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What comes back after losses: scheme x losses x instant, expected and seen, as a table.

Four nodes and a spare, the oracle job, every restored word checked. What is expected follows from the scheme:
a checkpoint that was said to be protected comes back, or a newer one, as long as no more nodes are lost than
the scheme covers; otherwise all ranks are refused alike, with a text that says why. Without --all a subset in
which every scheme meets every loss; --soak N takes the whole table N times, with random instants and numbers
of ranks, from a seed that is printed and replays. Then another node is wiped, so that what a restart left is
tried as well.
"""

import argparse
import pathlib
import random
import signal
import sys
import time
from collections import Counter

from cluster import Cluster, ClusterError
from protectedjob import SCHEMES, Failure, Scene, expect, judged, outcome
from record import Record

NODES = 4
SPARE = NODES
# Nodes that are wiped, whether a spare takes the place of the first of them, whether the order is reversed,
# and who is killed with -9: the application always, agents where there are any.
LOSSES = {
    "application": {},
    "one node": {"wiped": [1]},
    "two adjacent": {"wiped": [1, 2]},
    "two not adjacent": {"wiped": [0, 2]},
    "spare for a node": {"wiped": [2], "spare": True},
    "order reversed": {"reversed": True},
    "one node, reversed": {"wiped": [3], "reversed": True},
    "one agent": {"agents": [1]},
    "all agents too": {"agents": list(range(NODES))},
    "agents, one node": {"agents": list(range(NODES)), "wiped": [1]},
}
INSTANTS = ("before", "inside", "after")
# What CI runs: each scheme with each loss, each loss at each instant.
BEFORE = {("xor", "one node"), ("partner", "application"), ("rs2", "order reversed")}
INSIDE = {("xor", "one node"), ("rs2", "two adjacent"), ("partner", "spare for a node"), ("xor", "all agents too"),
          ("partner", "application"), ("rs2", "one agent")}
AFTER = {("partner", "one node"), ("partner", "two adjacent"), ("partner", "two not adjacent"),
         ("xor", "two adjacent"), ("xor", "spare for a node"), ("xor", "one node, reversed"),
         ("rs2", "two not adjacent"), ("rs2", "spare for a node"), ("rs2", "agents, one node"),
         ("partner", "one agent")}


def chosen_for_ci(scheme, loss, instant):
    return (scheme, loss) in {"before": BEFORE, "inside": INSIDE, "after": AFTER}[instant]


def covered(scheme, wiped):
    """Whether the scheme covers the loss of these nodes, members of one group in their order."""
    if scheme == "rs2":
        return len(wiped) <= 2
    if scheme == "partner":
        return not any((node + 1) % NODES in wiped for node in wiped)
    return len(wiped) <= 1


class Case:
    """One cell of the table."""

    def __init__(self, scheme, loss, instant, seed):
        self.scheme, self.loss, self.instant, self.seed = scheme, loss, instant, seed
        what = LOSSES[loss]
        self.wiped, self.agents = what.get("wiped", []), what.get("agents", [])
        self.spare, self.reversed = what.get("spare", False), what.get("reversed", False)
        self.random = random.Random(f"{seed} {scheme} {loss} {instant}")
        self.expected, self.seen, self.seconds, self.text = "", "", 0.0, ""
        self.broke_cluster = False

    def run(self, cluster, settings):
        began = time.monotonic()
        scene = Scene(cluster, settings, self.scheme, seed=self.random.randrange(1 << 30))
        try:
            self.play(scene)
        except (Failure, ClusterError) as failure:
            self.seen, self.text = self.seen or "FAILED", str(failure)
            self.text += "".join(f"\n  agent {index}: {scene.agent_text(index)[-1500:]}" for index in scene.agents)
        try:
            scene.clear()
        except ClusterError as failure:
            self.text += f"; and the cluster is not as it was: {failure}"
            self.broke_cluster = True
        self.seconds = time.monotonic() - began
        return not self.text

    def play(self, scene):
        many = self.random.random() < 0.3
        nodes = {index: 1 + (index % 2 if many else 0) for index in range(NODES)}
        if self.agents:
            scene.start_agents(range(NODES))
        first = self.first_start(scene, nodes)
        said = first.newest("protected")
        nodes = self.lose(scene, first, nodes)
        # What was said before the loss is promised; of what came after it, nobody knows.
        history = judged(first)
        newest = history.complete
        lost = bool(self.wiped)
        if lost and not covered(self.scheme, self.wiped):
            self.expected, least = "refused", 0
        elif lost and said == 0:
            self.expected, least = "refused, or restored if it was done", 0
        else:
            least = said if lost else newest
            self.expected = f"{least} or newer"
        what, job, text = outcome(scene, history, least, nodes)
        came = f"restored {job.restored()[1]}" if what == "restored" else what
        self.seen = came
        if what == "refused":
            expect(self.expected.startswith("refused"), f"refused: {text}; {job.text()[-3000:]}")
            expect("not recoverable" in text and "level 3" in text, f"it does not say what is needed: {text}")
            return
        expect(what == "restored", f"began anew: {job.text()[-3000:]}")
        expect(self.expected != "refused", f"restored, though the scheme covers less: {job.text()[-2000:]}")
        step = job.restored()[1]
        expect(least <= step and history.may_be_had(step), f"{step} came back, not {least} or newer")
        if self.random.random() < self.again:
            self.lose_another(scene, history, nodes)

    again = 0.3

    def first_start(self, scene, nodes):
        """Up to the instant; "before" has so much to encode that it is not done by then."""
        if self.instant == "before":
            # Two, because of the first nobody knows after a loss whether all nodes had come to it.
            job = scene.held(nodes, protected=0, hold=2, kib=6144)
        elif self.instant == "inside":
            job = scene.held(nodes, protected=1, hold=2, kib=512)
            job.wait_event("encoding", 1, word=2, limit=20)
            time.sleep(self.random.uniform(0, 0.4))
        else:
            job = scene.held(nodes, protected=2, hold=2, rate=None)
            job.must_see("protected", word=2)
        return job

    def lose(self, scene, job, nodes):
        """The losses, one after the other in an order of the seed; the nodes of the next start."""
        def kill_agents():
            for index in self.agents:
                if scene.cluster.is_up(index):
                    scene.signal_agent(index, signal.SIGKILL)

        def wipe():
            for index in self.wiped:
                scene.cluster.wipe_node(index, silent=self.random.random() < 0.3)

        losses = [job.kill, kill_agents, wipe]
        self.random.shuffle(losses)
        for lose in losses:
            lose()
        if not self.spare:
            for index in self.wiped:
                scene.cluster.start_node(index)
        spares = {self.wiped[0]: SPARE} if self.spare else {}
        order = sorted(nodes, reverse=self.reversed)
        return {spares.get(index, index): nodes[index] for index in order}

    def lose_another(self, scene, history, nodes):
        """Redundancy must be whole again: the last start waited at its end until all was protected."""
        victim = self.random.choice(sorted(nodes))
        scene.cluster.wipe_node(victim)
        scene.cluster.start_node(victim)
        least = history.complete
        job = scene.job(start=3, nodes=nodes, steps=history.begun + 1)
        job.end()
        history.judge(job, killed=False)
        self.seen += f", then {job.restored()[1]} of {least} without node {victim}"
        expect(job.restored()[1] >= least, f"{job.restored()} came back, not {least}: {job.last_words()}")


def table(cases):
    rows = [("scheme", "loss", "instant", "expected", "seen", "seconds", "")]
    rows += [(c.scheme, c.loss, c.instant, c.expected, c.seen, f"{c.seconds:.1f}", "FAILED" if c.text else "ok")
             for c in cases]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths)).rstrip() for row in rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "target" / "cluster")
    parser.add_argument("--all", action="store_true", help="the whole table, not CI's part of it")
    parser.add_argument("--soak", type=int, default=0, help="the whole table so often")
    parser.add_argument("--seed", type=int, help="where random choices begin; printed, so that a run can be repeated")
    parser.add_argument("--provider", help="of libfabric, over which nodes read each other then")
    parser.add_argument("--record", type=pathlib.Path, help="file for what a soak did and survived")
    parser.add_argument("--only", default="", help="cells whose scheme/loss/instant has this text")
    settings = parser.parse_args()
    settings.programs = settings.programs.resolve()
    return settings


def main():
    settings = arguments()
    seed = settings.seed if settings.seed is not None else (random.randrange(1 << 30) if settings.soak else 1)
    print(f"seed {seed}", flush=True)
    everything = settings.all or settings.soak or settings.only
    cells = [(scheme, loss, instant) for scheme in SCHEMES for loss in LOSSES for instant in INSTANTS
             if settings.only in f"{scheme}/{loss}/{instant}"
             and (everything or chosen_for_ci(scheme, loss, instant))]
    done, cluster = [], None
    record, began = Record(settings.record, "soak-redundancy: table of losses"), time.monotonic()
    try:
        for turn in range(max(1, settings.soak)):
            for cell in cells:
                cluster = cluster or Cluster(NODES, spares=1, shm="192m")
                case = Case(*cell, f"{seed} {turn}")
                done.append(case)
                good = case.run(cluster, settings)
                name = "/".join(cell)
                if not good:
                    print(f"FAILED  {name}, --seed {seed}, turn {turn}: {case.text}", flush=True)
                elif everything:
                    print(f"ok      {name}: {case.seen}, {case.seconds:.1f} s", flush=True)
                if case.broke_cluster:
                    cluster.down()
                    cluster = None
    finally:
        if cluster:
            cluster.down()
    failed = sum(bool(case.text) for case in done)
    print(table(done))
    counts = Counter(f"{case.scheme}: {case.loss}" for case in done)
    counts["nodes wiped"] = sum(len(case.wiped) for case in done)
    counts["agents killed"] = sum(len(case.agents) for case in done)
    counts["refused, as the scheme does not cover the loss"] = sum(case.seen == "refused" for case in done)
    record.write(time.monotonic() - began, len(done) - failed, failed, counts)
    print(f"{len(done) - failed} passed, {failed} failed")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
