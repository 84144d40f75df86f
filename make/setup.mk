# make setup: the packages that building and testing need, through apt-get, if they are not there yet.

SETUP_PACKAGES := gfortran openmpi-bin libopenmpi-dev mpich libmpich-dev pkg-config cmake python3-venv \
    libisal-dev iproute2 util-linux ceph-mon ceph-osd ceph-mds ceph-fuse ceph-common python3-rados attr \
    libxxhash0 libfabric1 libfabric-dev groff-base libhdf5-openmpi-dev libhdf5-mpich-dev libnetcdf-mpi-dev

.PHONY: setup
setup: ## Install the packages that building and testing need
	@make/packages.sh $(SETUP_PACKAGES)
