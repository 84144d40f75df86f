! SPDX-License-Identifier: Apache-2.0 OR MIT
! What stands around a program that docs/guide/fortran.md shows, from `use` to its last call.
module surroundings
  use, intrinsic :: iso_fortran_env, only: real64
  implicit none
  integer :: steps = 200, stat
  character(len=200) :: message
contains
  subroutine advance(cell)
    real(real64), intent(inout) :: cell(:, :)
    cell = cell + 1
  end subroutine
end module

program shown
  use surroundings
! BLOCK
  call MPI_Finalize()
  if (stat /= 0 .or. found .or. any(abs(cell - steps) > 0)) error stop "it does not do what the guide says"
end program
