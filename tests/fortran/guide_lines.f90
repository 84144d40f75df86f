! SPDX-License-Identifier: Apache-2.0 OR MIT
! What stands around lines that docs/guide/fortran.md shows: an open session, and what they name.
program shown
  use, intrinsic :: iso_fortran_env, only: real64
  use mpi_f08
  use backstay
  implicit none
  integer, parameter :: rows = 4, nx = 5
  type(backstay_session) :: session
  real(real64), target :: water(3, nx, 0:rows + 1)
  real(real64), allocatable, target :: a(:)
  integer, target :: step = 3
  integer :: rank, ranks, ny, j

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  ny = ranks*rows
  j = rank*rows + 1
  water = rank + step
  allocate (a(2), source=1.0_real64)
  call backstay_open(session, MPI_COMM_WORLD)
  call backstay_protect(session, "always", a)
! BLOCK
  call backstay_checkpoint(session)
  call backstay_close(session)
  call MPI_Finalize()
end program
