# make deb: Debian packages in target/deb, looked at by lintian. make test-deb installs, uses and purges them in a fresh
# Debian 12 and 13. Both take a release build, so they are no part of `make test`.

.PHONY: deb test-deb debian-tools
debian-tools:
	@make/packages.sh debhelper dh-python dpkg-dev fakeroot lintian debootstrap

deb: ## Debian packages: libbackstay0, libbackstay-dev, backstay, python3-backstay, in target/deb
	packaging/deb.sh target/deb

test-deb: deb ## The packages in a fresh Debian 12 and 13: installed, used, purged; needs root
	packaging/test-deb.sh target/deb

.PHONY: test-packaging
test-packaging: ## Module file, easyconfig and Spack recipe, as far as they can be tried without their sites
	packaging/check.sh
