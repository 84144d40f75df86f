# Programs that nobody changed, with their files routed: tests/routing.

ROUTING := $(or $(CARGO_TARGET_DIR),target)/routing
ROUTING_VENV := target/routing-venv
ROUTING_ARGUMENTS ?=

TESTS += test-routing

.PHONY: routing-programs test-routing
routing-programs: setup program preload
	@mkdir -p $(ROUTING)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -o $(ROUTING)/writer tests/routing/writer.c -lpthread
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -o $(ROUTING)/writer-static tests/routing/writer.c -lpthread
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -o $(ROUTING)/threads tests/routing/threads.c -lpthread
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -o $(ROUTING)/overhead tests/routing/overhead.c
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -o $(ROUTING)/static tests/routing/overhead.c
	for mpi in openmpi mpich; do \
	    mpicc.$$mpi -std=c99 -O2 -Wall -Wextra -Werror -D_GNU_SOURCE -o $(ROUTING)/mpiio.$$mpi tests/routing/mpiio.c && \
	    mpifort.$$mpi -std=f2018 -O2 -Wall -Wextra -Werror -pedantic -J $(ROUTING) -o $(ROUTING)/mpiio-fortran.$$mpi \
	        tests/routing/mpiio.f90 || exit; \
	done
	gfortran -std=f2018 -O2 -Wall -Wextra -Werror -pedantic -o $(ROUTING)/writer-fortran tests/routing/writer.f90
	@cp --remove-destination $(BACKSTAY_RELEASE)/backstay $(BACKSTAY_RELEASE)/libbackstay_preload.so $(ROUTING)/

test-routing: routing-programs $(ROUTING_VENV)/ready ## Unchanged programs under run --route: killed, restarted, bit for bit
	@$(ROUTING_VENV)/bin/python tests/routing/run.py --backstay $(ROUTING)/backstay \
	    --library $(ROUTING)/libbackstay_preload.so --programs $(ROUTING) $(ROUTING_ARGUMENTS)

$(ROUTING_VENV)/ready: tests/routing/requirements.txt | setup
	@echo "test-routing: h5py into $(ROUTING_VENV)"
	@python3 -m venv $(ROUTING_VENV)
	@$(ROUTING_VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

.PHONY: test-routing-h5py
test-routing-h5py: routing-programs $(ROUTING_VENV)/ready ## h5py's own tests with all of their files routed; not in make test
	@$(ROUTING_VENV)/bin/python tests/routing/suite.py --backstay $(ROUTING)/backstay \
	    --library $(ROUTING)/libbackstay_preload.so

# On several nodes, which are namespaces of this machine: needs root. Replays with ROUTED_ARGUMENTS="--seed S".
ROUTED := $(or $(CARGO_TARGET_DIR),target)/routed
ROUTED_ARGUMENTS ?=

TESTS += test-routed

.PHONY: routed-programs test-routed
routed-programs: setup program preload
	@mkdir -p $(ROUTED)
	mpicc.openmpi -std=gnu11 -O2 -Wall -Wextra -Werror -o $(ROUTED)/routed.openmpi tests/cluster/routed.c
	mpicc.openmpi -std=gnu11 -O2 -Wall -Wextra -Werror -o $(ROUTED)/pointers.openmpi tests/cluster/pointers.c
	for mpi in openmpi mpich; do \
	    mpicc.$$mpi -std=gnu11 -O2 -Wall -Wextra -Werror -o $(ROUTED)/onefile.$$mpi tests/cluster/onefile.c && \
	    mpifort.$$mpi -std=f2018 -O2 -Wall -Wextra -Werror -pedantic -J $(ROUTED) -o $(ROUTED)/mpiio-fortran.$$mpi \
	        tests/routing/mpiio.f90 && \
	    mpicc.$$mpi -std=gnu11 -O2 -Wall -Wextra -Werror -o $(ROUTED)/hdf5.$$mpi tests/cluster/hdf5.c \
	        $$(pkg-config --cflags --libs hdf5-$$mpi) || exit; \
	done
	mpicc.openmpi -std=gnu11 -O2 -Wall -Wextra -Werror -o $(ROUTED)/netcdf.openmpi tests/cluster/netcdf.c \
	    -I$$(pkg-config --variable=prefix netcdf-mpi)/include $$(pkg-config --libs netcdf-mpi)
	@cp --remove-destination $(BACKSTAY_RELEASE)/backstay $(BACKSTAY_RELEASE)/libbackstay_preload.so $(ROUTED)/

test-routed: routed-programs $(ROUTING_VENV)/ready ## Unchanged programs on several nodes: ranks killed, a node lost, ranks on other nodes
	@python3 tests/cluster/routed.py --programs $(ROUTED) --python $(ROUTING_VENV)/bin/python $(ROUTED_ARGUMENTS)
