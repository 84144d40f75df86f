! SPDX-License-Identifier: Apache-2.0 OR MIT
! Arrays of all processes, cut in their last dimension. `parts store` stores them; `parts restore` finds
! them on another number of processes; `parts wrong` first asks for what is not there in this way.
program parts
  use mpi_f08
  use backstay
  use, intrinsic :: iso_fortran_env, only: int64
  implicit none

  integer, parameter :: n1 = 5, n2 = 12
  type(backstay_session) :: session
  integer, allocatable, target :: grid(:, :), deep(:, :, :, :, :, :, :, :, :)
  character(len=4), allocatable, target :: label(:)
  real, allocatable, target :: as_real(:, :)
  integer, target :: own(2)
  integer :: rank, ranks, first, here, i, j
  character(len=20) :: phase
  logical :: found

  call get_command_argument(1, phase)
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  first = n2 * rank / ranks + 1
  here = n2 * (rank + 1) / ranks - first + 1
  allocate (grid(n1, 0:here + 1), deep(2, 1, 1, 1, 1, 1, 1, 3, here), label(here), as_real(n1, here))
  grid = 0
  deep = 0
  label = ""
  as_real = 0
  own = rank

  call backstay_open(session, MPI_COMM_WORLD)
  if (phase == "wrong") call wrong()
  call protect_all()
  if (phase == "store") call backstay_protect(session, "own", own)
  call backstay_restore(session, found)
  if (phase == "store") then
    if (found) error stop "parts: something was stored before"
    call fill(grid(:, 1:here), deep, label)
    call backstay_checkpoint(session)
  else
    if (.not. found) error stop "parts: nothing was restored"
    call look()
  end if
  call backstay_close(session)
  if (rank == 0) print "(2a)", trim(phase), ": as expected"
  call MPI_Finalize()

contains

  subroutine protect_all()
    call backstay_protect(session, "grid", grid(:, 1:here), global_shape=[n1, n2], first=[1, first])
    call backstay_protect(session, "deep", deep, [2, 1, 1, 1, 1, 1, 1, 3, n2], [1, 1, 1, 1, 1, 1, 1, 1, first])
    call backstay_protect(session, "label", label, [int(n2, int64)], [int(first, int64)])
  end subroutine

  ! grid(i, j) is 100 i + j, with j counted in the whole.
  subroutine fill(grid, deep, label)
    integer, intent(out) :: grid(:, :), deep(:, :, :, :, :, :, :, :, :)
    character(len=4), intent(out) :: label(:)

    do j = 1, here
      do i = 1, n1
        grid(i, j) = 100 * i + first + j - 1
      end do
      do i = 1, 3
        deep(:, 1, 1, 1, 1, 1, 1, i, j) = [10, 20] * (first + j - 1) + i
      end do
      write (label(j), "(a, i0)") "r", first + j - 1
    end do
  end subroutine

  subroutine look()
    integer :: grid_then(n1, here), deep_then(2, 1, 1, 1, 1, 1, 1, 3, here)
    character(len=4) :: label_then(here)

    call fill(grid_then, deep_then, label_then)
    if (any(grid(:, 1:here) /= grid_then)) error stop "parts: grid"
    if (any(grid(:, [0, here + 1]) /= 0)) error stop "parts: the halo was written"
    if (any(deep /= deep_then)) error stop "parts: deep"
    if (any(label /= label_then)) error stop "parts: label"
  end subroutine

  ! Another type, another shape of the whole, and what one process had that is now more or less.
  subroutine wrong()
    call backstay_protect(session, "grid", as_real, [n1, n2], [1, first])
    call refused("grid")
    call backstay_protect(session, "grid", grid(:, 1:here), [n1, 2 * n2], [1, first])
    call refused("grid")
    call backstay_unprotect(session, "grid")
    call backstay_protect(session, "own", own)
    call refused("own")
    call backstay_unprotect(session, "own")
    call backstay_protect(session, "gird", own)
    call refused("gird")
    call backstay_unprotect(session, "gird")
  end subroutine

  subroutine refused(name)
    character(len=*), intent(in) :: name
    character(len=300) :: message, of_rank_0
    integer :: stat

    message = ""
    call backstay_restore(session, found, stat=stat, errmsg=message)
    of_rank_0 = message
    call MPI_Bcast(of_rank_0, 300, MPI_CHARACTER, 0, MPI_COMM_WORLD)
    if (stat /= BACKSTAY_VARIABLE_MISMATCH .or. found .or. index(of_rank_0, name) == 0) then
      print "(a, i0, 2a)", "parts: ", stat, " ", trim(message)
      error stop "parts: not refused as expected"
    end if
  end subroutine
end program
