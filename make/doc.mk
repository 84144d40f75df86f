# make doc: the documentation of the Rust interface; a warning is an error.

.PHONY: doc
doc: ## Documentation of the Rust interface, in target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace --locked

lint: doc
