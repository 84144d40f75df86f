# make docs: the site, docs/ as a book with search, in target/book; a link that leads nowhere is an error.
# mdBook is built once, into target/tools, without optimization. CI has `make lint`, which looks at the same links in
# the pages themselves, and at what is made from the headers of C.

MDBOOK := $(or $(CARGO_TARGET_DIR),target)/tools/bin/mdbook
RUSTDOC := $(or $(CARGO_TARGET_DIR),target)/doc

.PHONY: docs gen lint-docs
docs: doc ## The site, in target/book
	@set -e; \
	mdbook=$$(command -v mdbook || true); \
	if [ -z "$$mdbook" ]; then \
	    mdbook="$(MDBOOK)"; \
	    if [ ! -x "$$mdbook" ]; then \
	        echo "docs: building mdBook, a few minutes, once"; \
	        $(CARGO) install --quiet --locked --debug --no-default-features --features search \
	            --root "$$(dirname "$$(dirname "$$mdbook")")" mdbook; \
	    fi; \
	fi; \
	python3 make/book.py target/book "$$mdbook" "$(RUSTDOC)"

lint-docs: ## Every page is in the site, its links lead somewhere, and manual pages are current
	python3 make/book.py --check
	python3 bindings/c/reference.py --check

gen: ## Writes all that is generated and committed: pages of the reference, manual pages, the header of C
	$(CARGO) run -q --locked -p xtask -- gen
	BACKSTAY_BLESS=1 $(CARGO) test -q --locked -p backstay-c
	python3 bindings/c/reference.py

lint: lint-docs
