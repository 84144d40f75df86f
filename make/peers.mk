# Backstay beside SCR, FTI and VeloC on the same work: benchmarks/peers. Needs root: nodes are namespaces.
# `make bench-peers PEERS=PREFIX`: PREFIX is where they are installed; none of theirs is here. What is not installed is
# said and skipped. BENCH_ARGS: --quick, --only PATTERN, or parts: local nodes flush kill flip full lost.
# PREFIX/versions.json, {"scr": "3.1.0 (commit)", ...}, says which versions they are; else their CMake files do.

PEERS ?=
PEERS_OURS := $(or $(CARGO_TARGET_DIR),target)/peers/ours

TESTS += test-peers

.PHONY: bench-peers peers-ours test-peers
peers-ours: setup library program
	@$(MAKE) --no-print-directory install PREFIX="$(abspath $(PEERS_OURS))" DESTDIR= >/dev/null

bench-peers: peers-ours ## Blocking time and what survives beside SCR, FTI, VeloC: PEERS=prefix (50 min with all three)
	@python3 benchmarks/peers/run.py --ours "$(abspath $(PEERS_OURS))" $(if $(PEERS),--peers "$(PEERS)") $(BENCH_ARGS)

# Without peers, so that the program cannot rot.
test-peers: peers-ours ## The program of bench-peers with Backstay alone: measured small, killed, flipped, nodes lost (20 s)
	@python3 benchmarks/peers/run.py --ours "$(abspath $(PEERS_OURS))" --quick --trials 1 --only 'hash|xor' local kill flip full lost
