! SPDX-License-Identifier: Apache-2.0 OR MIT
! What calls.f90 needs of Open MPI's module mpi, for flang: the one that is installed belongs to gfortran.
module mpi
  implicit none
  integer, parameter :: MPI_COMM_WORLD = 0
  interface
    subroutine MPI_Init(ierror)
      integer, intent(out) :: ierror
    end subroutine
    subroutine MPI_Comm_rank(comm, rank, ierror)
      integer, intent(in) :: comm
      integer, intent(out) :: rank, ierror
    end subroutine
    subroutine MPI_Comm_size(comm, ranks, ierror)
      integer, intent(in) :: comm
      integer, intent(out) :: ranks, ierror
    end subroutine
    subroutine MPI_Finalize(ierror)
      integer, intent(out) :: ierror
    end subroutine
  end interface
end module
