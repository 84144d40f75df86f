# make install [PREFIX=/usr/local] [DESTDIR=]: library, headers, Fortran sources, pkg-config and CMake files.
# The version is that of Cargo.toml; the ABI's major number is also in bindings/c/build.rs.

PREFIX ?= /usr/local
LIBDIR ?= lib
BACKSTAY_RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
BACKSTAY_VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
BACKSTAY_ABI := 0
# What a static program needs besides; rustc --print native-static-libs has the list.
BACKSTAY_STATIC_LIBS := -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc

.PHONY: install library test-install
library: ## libbackstay, shared and static
	$(CARGO) build --release --package backstay-c

install: library ## Install it: PREFIX=/usr/local, DESTDIR=, LIBDIR=lib
	@set -e; \
	lib="$(DESTDIR)$(PREFIX)/$(LIBDIR)"; include="$(DESTDIR)$(PREFIX)/include/backstay"; \
	fortran="$(DESTDIR)$(PREFIX)/share/backstay/fortran"; \
	install -d "$$lib/pkgconfig" "$$lib/cmake/backstay" "$$include" "$$fortran"; \
	install -m 755 "$(BACKSTAY_RELEASE)/libbackstay.so" "$$lib/libbackstay.so.$(BACKSTAY_VERSION)"; \
	ln -sf libbackstay.so.$(BACKSTAY_VERSION) "$$lib/libbackstay.so.$(BACKSTAY_ABI)"; \
	ln -sf libbackstay.so.$(BACKSTAY_ABI) "$$lib/libbackstay.so"; \
	install -m 644 "$(BACKSTAY_RELEASE)/libbackstay.a" "$$lib/"; \
	install -m 644 bindings/c/include/backstay/*.h "$$include/"; \
	install -m 644 bindings/fortran/backstay.f90 bindings/fortran/backstay_fortran.c "$$fortran/"; \
	for file in backstay.pc:pkgconfig/backstay.pc \
	    cmake/backstay-config.cmake:cmake/backstay/backstay-config.cmake \
	    cmake/backstay-config-version.cmake:cmake/backstay/backstay-config-version.cmake; do \
	    sed -e 's|@VERSION@|$(BACKSTAY_VERSION)|g' -e 's|@ABI@|$(BACKSTAY_ABI)|g' \
	        -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@STATIC_LIBS@|$(BACKSTAY_STATIC_LIBS)|g' \
	        "bindings/c/$${file%%:*}.in" > "$$lib/$${file#*:}"; \
	done; \
	echo "installed backstay $(BACKSTAY_VERSION) under $(DESTDIR)$(PREFIX)"

test-install: setup ## Build and run programs against an installed library
	tests/install/run.sh

test: test-install
