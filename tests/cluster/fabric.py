# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Jobs whose nodes read each other over libfabric (tcp;ofi_rxm): nodes that die and are cut off inside reads.

`--provider` of matrix.py and redundancy.py runs all of those over it. Prints a line for each test and "N passed,
N failed" last.
"""

import json
import random
import sys
import time

from cluster import Cluster
from protectedjob import Scene, expect, goes_on, judged
from redundancy import FOUR, NODES, protected_again
from selftest import arguments, run_all

KIB = 6144                            # of a rank: two seconds and more at this rate
RATE = "20mbit"


def past(scene):
    """Bytes that the leaders of the nodes read over libfabric in the last start, as they say."""
    total = 0
    for index in NODES:
        for path in scene.files(index, "metrics.json"):
            metrics = json.loads(scene.cluster.run(index, ["cat", path]).stdout)
            expect(metrics["transport"] == f"libfabric {scene.provider}", f"node {index}: {metrics['transport']}")
            total += metrics.get("read_bytes_libfabric", 0)
    return total


def a_node_dies_inside_a_read(settings):
    """It is wiped, without a word, while others read what it has; who remains restores what was protected before."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "xor") as scene:
        cluster.slow(1, rate=RATE)
        job = scene.held(FOUR, protected=1, hold=2, rate=None, kib=KIB)
        job.wait_event("encoding", 1, word=2, limit=30)
        time.sleep(settings.random.uniform(0.1, 0.5))
        expect(job.newest("protected") == 1, "the second was protected too early to be interrupted")
        cluster.wipe_node(1, silent=True)
        time.sleep(0.5)
        job.kill()
        history = judged(job)
        cluster.start_node(1)
        goes_on(scene, history, 1, FOUR)
        bytes_read = past(scene)
        expect(bytes_read > 1 << 20, f"{bytes_read} bytes were read over libfabric")
        return f"{bytes_read >> 20} MiB over libfabric"


def a_node_dies_inside_a_read_of_agents(settings):
    """The same with agents, which outlive the application and go on with the next one."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "rs2") as scene:
        scene.start_agents(NODES)
        cluster.slow(2, rate=RATE)
        job = scene.held(FOUR, protected=1, hold=2, rate=None, kib=KIB)
        job.wait_event("encoding", 1, word=2, limit=30)
        time.sleep(settings.random.uniform(0.1, 0.5))
        job.kill()
        history = judged(job)
        cluster.wipe_node(2, silent=True)
        cluster.start_node(2)
        after = goes_on(scene, history, 1, FOUR)
        expect("libfabric" not in after.text() or "not read over" in after.text(), after.text()[-2000:])


def a_node_is_cut_off_inside_a_read(settings):
    """No packet of it arrives while it is read; it is said, and protected when it is back."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "xor", BACKSTAY_TIMEOUT_MS=8000) as scene:
        cluster.slow(1, rate=RATE)
        # It stands still: ranks could not talk to each other either.
        job = scene.held(FOUR, protected=0, hold=1, rate=None, kib=KIB)
        job.wait_event("encoding", 1, word=1, limit=30)
        for other in (0, 2, 3):
            cluster.cut(1, other)
        try:
            job.must_see("short", count=1)
            job.must_say("on its nodes only", limit=60)
        finally:
            for other in (0, 2, 3):
                cluster.heal(1, other)
        cluster.fast(1)
        protected_again(scene, job)
        bytes_read = past(scene)
        expect(bytes_read > 1 << 20, f"{bytes_read} bytes were read over libfabric")
        return f"{bytes_read >> 20} MiB over libfabric"


TESTS = [a_node_dies_inside_a_read, a_node_dies_inside_a_read_of_agents, a_node_is_cut_off_inside_a_read]


def main():
    def more(parser):
        parser.add_argument("--provider", default="tcp;ofi_rxm", help="of libfabric")
        parser.add_argument("--seed", type=int, default=1, help="where random choices begin")

    settings = arguments(__doc__, more)
    settings.random = random.Random(settings.seed)
    return run_all(TESTS, settings)


if __name__ == "__main__":
    sys.exit(main())
