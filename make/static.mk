# The command as one file that runs on any Linux of x86-64, whatever its C library: for login nodes and images. It takes
# Debian's musl-tools and rustup's target. libfabric is not loaded into it: agents started from it use TCP.
# `make program-static` builds a release. `make test-static` builds it sooner, and says what it skipped where rustup cannot
# have the target: not in `make test`.

STATIC_TARGET ?= x86_64-unknown-linux-musl
STATIC_PROFILE ?= release
STATIC_PROGRAM := $(or $(CARGO_TARGET_DIR),target)/$(STATIC_TARGET)

.PHONY: program-static test-static
program-static: ## The command backstay as one static file
	@rustup target list --installed | grep -qx $(STATIC_TARGET) || \
	    { echo "run: rustup target add $(STATIC_TARGET)" >&2; exit 1; }
	@make/packages.sh musl-tools
	CC_$(subst -,_,$(STATIC_TARGET))=musl-gcc $(CARGO) build --profile $(STATIC_PROFILE) --locked --target $(STATIC_TARGET) \
	    --package backstay-cli
	@echo "$(STATIC_PROGRAM)/$(STATIC_PROFILE)/backstay"

test-static: ## The static command beside the usual one: needs no library, says and exports the same
	@if ! command -v rustup >/dev/null || ! rustup target add $(STATIC_TARGET); then \
	    echo "skipped: all of it: rustup has no target $(STATIC_TARGET)"; exit; \
	fi; \
	set -e; \
	$(MAKE) --no-print-directory program-static STATIC_PROFILE=demo-build; \
	$(CARGO) build --release --locked --package backstay-cli --package backstay-example; \
	tests/static/run.sh $(STATIC_PROGRAM)/demo-build/backstay $(BACKSTAY_RELEASE)/backstay $(BACKSTAY_RELEASE)/counting
