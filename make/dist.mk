# make dist: a release in target/dist: the tarball with all crates, what is in it as CycloneDX, SHA256SUMS.
# make test-dist takes a release build, so it is no part of `make test`.

.PHONY: dist test-dist
dist: ## A release tarball that builds with no network, with its SBOM and sums, in target/dist
	python3 make/dist.py target/dist

test-dist: ## The release: the same bytes twice, CycloneDX, built and installed with no network
	tests/dist/run.sh
