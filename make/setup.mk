# make setup: the packages that building and testing need, through apt-get, if they are not there yet.

SETUP_PACKAGES := gfortran openmpi-bin libopenmpi-dev mpich libmpich-dev pkg-config cmake python3-venv \
    libisal-dev iproute2 util-linux ceph-mon ceph-osd ceph-mds ceph-fuse ceph-common python3-rados attr \
    libxxhash0
# Whether a package may start what it brings: policy-rc.d says no, for as long as packages are installed.
POLICY := /usr/sbin/policy-rc.d

.PHONY: setup
setup: ## Install the packages that building and testing need
	@missing=""; \
	for package in $(SETUP_PACKAGES); do \
	    dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || \
	        missing="$$missing $$package"; \
	done; \
	[ -n "$$missing" ] || exit 0; \
	if ! command -v apt-get >/dev/null; then \
	    echo "setup: this is no Debian; install what$$missing contain, and run again" >&2; exit 1; \
	fi; \
	if [ "$$(id -u)" = 0 ]; then as=""; \
	elif sudo -n true 2>/dev/null; then as="sudo"; \
	else echo "setup: run as root: apt-get install$$missing" >&2; exit 1; fi; \
	echo "setup: installing$$missing"; \
	if [ ! -e $(POLICY) ]; then \
	    trap '$$as rm -f $(POLICY)' EXIT; \
	    printf '#!/bin/sh\nexit 101\n' | $$as tee $(POLICY) >/dev/null; $$as chmod 755 $(POLICY); \
	fi; \
	$$as apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive $$as apt-get -o DPkg::Lock::Timeout=300 install -y -qq \
	    --no-install-recommends $$missing >/dev/null
