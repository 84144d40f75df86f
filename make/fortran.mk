# Fortran: the module built with gfortran, Open MPI and MPICH, and with flang where there is one.

FORTRAN_VENV := target/fortran-venv
FORTRAN_ARGUMENTS ?=

TESTS += test-fortran

.PHONY: test-fortran
test-fortran: setup library $(FORTRAN_VENV)/ready ## Fortran: types, errors, parts, kill -9 and restart, its guide
	$(CARGO) build --release --locked --package backstay-cli
	@$(FORTRAN_VENV)/bin/python tests/fortran/run.py --backstay $(BACKSTAY_RELEASE)/backstay $(FORTRAN_ARGUMENTS)

$(FORTRAN_VENV)/ready: tests/fortran/requirements.txt | setup
	@echo "test-fortran: numpy into $(FORTRAN_VENV)"
	@python3 -m venv $(FORTRAN_VENV)
	@$(FORTRAN_VENV)/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@
