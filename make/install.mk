# make install [PREFIX=/usr/local] [DESTDIR=]: library, headers, Fortran sources, pkg-config and CMake files, the command
# `backstay`, manual pages and completions. Pages of sections 3 and 7 are made by bindings/c/reference.py, and committed.
# `make uninstall` with the same words removes them.
# The version is that of Cargo.toml; the ABI's major number is also in bindings/c/build.rs.

PREFIX ?= /usr/local
LIBDIR ?= lib
OBJCOPY ?= objcopy
BACKSTAY_RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
BACKSTAY_VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
BACKSTAY_ABI := 0
# From LIBDIR back to PREFIX: `..` for each of its parts, as in lib/x86_64-linux-gnu.
BACKSTAY_UP := $(shell echo "$(LIBDIR)" | sed 's|[^/][^/]*|..|g')
# What a static program needs besides; rustc --print native-static-libs has the list.
BACKSTAY_STATIC_LIBS := -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
# Completions, relative to PREFIX, where each shell looks by itself.
COMPLETIONS := bash:share/bash-completion/completions/backstay zsh:share/zsh/site-functions/_backstay \
    fish:share/fish/vendor_completions.d/backstay.fish

# Features of the library, as cargo takes them: `--no-default-features` is one without archives.
LIBRARY_FEATURES ?=

.PHONY: install uninstall library program preload modulefile test-install
library: ## libbackstay, shared and static
	$(CARGO) build --release --package backstay-c $(LIBRARY_FEATURES)

program: ## The command backstay
	$(CARGO) build --release --package backstay-cli

preload: ## The library that routes files of unchanged programs
	$(CARGO) build --release --package backstay-preload

install: library program preload ## Install it: PREFIX=/usr/local, DESTDIR=, LIBDIR=lib
	@set -e; \
	prefix="$(DESTDIR)$(PREFIX)"; lib="$$prefix/$(LIBDIR)"; include="$$prefix/include/backstay"; \
	fortran="$$prefix/share/backstay/fortran"; \
	install -d "$$lib/pkgconfig" "$$lib/cmake/backstay" "$$lib/backstay" "$$include" "$$fortran" "$$prefix/bin" \
	    "$$prefix"/share/man/man{1,3,7}; \
	OBJCOPY="$(OBJCOPY)" CC="$(CC)" make/strip.sh versioned "$(BACKSTAY_RELEASE)/libbackstay.a" \
	    "$$lib/libbackstay.so.$(BACKSTAY_VERSION)" bindings/c/backstay.map libbackstay.so.$(BACKSTAY_ABI) \
	    $(BACKSTAY_STATIC_LIBS); \
	ln -sf libbackstay.so.$(BACKSTAY_VERSION) "$$lib/libbackstay.so.$(BACKSTAY_ABI)"; \
	ln -sf libbackstay.so.$(BACKSTAY_ABI) "$$lib/libbackstay.so"; \
	OBJCOPY="$(OBJCOPY)" make/strip.sh static "$(BACKSTAY_RELEASE)/libbackstay.a" "$$lib/libbackstay.a"; \
	OBJCOPY="$(OBJCOPY)" make/strip.sh shared "$(BACKSTAY_RELEASE)/backstay" "$$prefix/bin/backstay"; \
	OBJCOPY="$(OBJCOPY)" make/strip.sh shared "$(BACKSTAY_RELEASE)/libbackstay_preload.so" "$$lib/backstay/libbackstay_preload.so"; \
	install -m 644 bindings/c/include/backstay/*.h "$$include/"; \
	install -m 644 bindings/fortran/backstay.f90 bindings/fortran/backstay_*.inc bindings/fortran/backstay_fortran.c \
	    "$$fortran/"; \
	for file in backstay.pc:pkgconfig/backstay.pc \
	    cmake/backstay-config.cmake:cmake/backstay/backstay-config.cmake \
	    cmake/backstay-config-version.cmake:cmake/backstay/backstay-config-version.cmake; do \
	    sed -e 's|@VERSION@|$(BACKSTAY_VERSION)|g' -e 's|@ABI@|$(BACKSTAY_ABI)|g' \
	        -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@UP@|$(BACKSTAY_UP)|g' -e 's|@STATIC_LIBS@|$(BACKSTAY_STATIC_LIBS)|g' \
	        "bindings/c/$${file%%:*}.in" > "$$lib/$${file#*:}"; \
	done; \
	"$(BACKSTAY_RELEASE)/backstay" man "$$prefix/share/man/man1"; \
	for section in 3 7; do \
	    install -m 644 bindings/c/man/man$$section/*.$$section "$$prefix/share/man/man$$section/"; \
	done; \
	for shell in $(COMPLETIONS); do \
	    install -d "$$(dirname "$$prefix/$${shell#*:}")"; \
	    "$(BACKSTAY_RELEASE)/backstay" completions "$${shell%%:*}" > "$$prefix/$${shell#*:}"; \
	done; \
	echo "installed backstay $(BACKSTAY_VERSION) under $$prefix"

MODULEFILE ?= $(BACKSTAY_VERSION)
modulefile: ## An environment module of what PREFIX has, as MODULEFILE=FILE
	@sed -e 's|@VERSION@|$(BACKSTAY_VERSION)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@PREFIX@|$(PREFIX)|g' \
	    packaging/modules/backstay.in > "$(MODULEFILE)"

# Folders that others may use too are left.
uninstall: ## Remove what install put there: the same PREFIX, DESTDIR, LIBDIR
	@set -e; \
	prefix="$(DESTDIR)$(PREFIX)"; lib="$$prefix/$(LIBDIR)"; \
	rm -f "$$lib"/libbackstay.so "$$lib"/libbackstay.so.* "$$lib"/libbackstay.a "$$lib"/.debug/libbackstay.so.* \
	    "$$lib/pkgconfig/backstay.pc" "$$prefix/bin/backstay" "$$prefix/bin/.debug/backstay.debug" \
	    "$$prefix"/share/man/man1/backstay.1 "$$prefix"/share/man/man1/backstay-*.1 \
	    $(patsubst bindings/c/man/%,"$$prefix"/share/man/%,$(sort $(wildcard bindings/c/man/man*/*))); \
	rm -f $(foreach shell,$(COMPLETIONS),"$$prefix/$(lastword $(subst :, ,$(shell)))"); \
	rm -rf "$$lib/cmake/backstay" "$$lib/backstay" "$$prefix/include/backstay" "$$prefix/share/backstay/fortran"; \
	rmdir "$$lib/.debug" "$$prefix/bin/.debug" "$$prefix/share/backstay" 2>/dev/null || true; \
	echo "removed backstay under $$prefix"

test-install: setup ## Build and run programs against an installed library
	tests/install/run.sh

TESTS += test-install
