# make deny: licences, bans and sources of all dependencies, as deny.toml has them.
# cargo-deny is built once, into target/tools, without optimization: it runs for a second.

DENY := $(or $(CARGO_TARGET_DIR),target)/tools/bin/cargo-deny

.PHONY: deny
deny: ## Licences, bans and sources of all dependencies
	@set -e; \
	deny=$$(command -v cargo-deny || true); \
	if [ -z "$$deny" ]; then \
	    deny="$(DENY)"; \
	    if [ ! -x "$$deny" ]; then \
	        echo "deny: building cargo-deny, a few minutes, once"; \
	        $(CARGO) install --quiet --locked --debug --root "$$(dirname "$$(dirname "$$deny")")" cargo-deny; \
	    fi; \
	fi; \
	"$$deny" check bans licenses sources
