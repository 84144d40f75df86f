! SPDX-License-Identifier: Apache-2.0 OR MIT
!
! shallow: waves on a square basin of shallow water whose opposite shores meet, on any number of MPI
! processes, restartable with Backstay. Run it as: shallow STEPS [OUTPUT]. OUTPUT gets the last state.
!
! Each process has some rows y of the basin, and in a step the Lax-Friedrichs scheme makes a cell from the
! four around it, so that the result does not depend on how many processes there are. What makes it
! restartable is in begin_or_go_on and take_checkpoint.
program shallow
  use mpi_f08
  use backstay
  use, intrinsic :: iso_fortran_env, only: error_unit, output_unit, real64
  implicit none

  integer, parameter :: nx = 256, ny = 240, interval = 20
  real(real64), parameter :: gravity = 9.81_real64, dx = 100, dt = 2

  real(real64), allocatable, target :: water(:, :, :) ! depth and flow to x and y; x; y with a halo of one row
  real(real64), allocatable :: next(:, :, :)
  integer, target :: step = 0
  integer :: rank, ranks, rows, first, steps, wrong
  character(len=:), allocatable :: text
  type(backstay_session) :: session

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  text = argument(1)
  read (text, *, iostat=wrong) steps
  if (wrong /= 0) error stop "usage: shallow STEPS [OUTPUT]"
  first = ny * rank / ranks + 1
  rows = ny * (rank + 1) / ranks - first + 1
  if (ranks > ny) error stop "shallow: more processes than rows"
  allocate (water(3, nx, 0:rows + 1), next(3, nx, rows))

  call begin_or_go_on()
  do while (step < steps)
    call exchange_halo()
    call advance()
    step = step + 1
    if (mod(step, interval) == 0) call take_checkpoint()
  end do
  if (len(argument(2)) > 0) call write_water(argument(2))
  call backstay_finish(session)
  if (rank == 0) print "(a, i0)", "finished at step ", step
  call MPI_Finalize()

contains

  subroutine begin_or_go_on()
    type(backstay_restored) :: restored
    logical :: found

    call backstay_open(session, MPI_COMM_WORLD)
    call backstay_protect(session, "water", water(:, :, 1:rows), global_shape=[3, nx, ny], first=[1, 1, first])
    ! A scalar of all processes has no dimensions: another number of processes finds it too.
    call backstay_protect(session, "step", step, global_shape=[integer ::], first=[integer ::])
    call backstay_restore(session, found, restored)
    if (.not. found) call drop_water()
    if (rank == 0 .and. found) print "(a, i0, a, i0, a)", "goes on from step ", step, " of ", &
      restored%ranks_then, " processes"
    flush (output_unit)
  end subroutine

  ! A checkpoint that fails is no reason to stop: the last one stays. All processes have the same words.
  subroutine take_checkpoint()
    character(len=500) :: message
    integer :: stat

    call backstay_checkpoint(session, stat=stat, errmsg=message)
    if (rank /= 0) return
    if (stat /= BACKSTAY_OK) write (error_unit, "(2a)") "shallow: ", trim(message)
    if (stat == BACKSTAY_OK) print "(a, i0)", "checkpoint at step ", step
    flush (output_unit)
  end subroutine

  ! A drop on still water.
  subroutine drop_water()
    integer :: i, j

    water = 0
    do j = 1, rows
      do i = 1, nx
        water(1, i, j) = 10 + 2 * exp(-real((i - 80)**2 + (first + j - 120)**2, real64) / 200)
      end do
    end do
  end subroutine

  subroutine exchange_halo()
    integer :: below, above

    below = modulo(rank - 1, ranks)
    above = modulo(rank + 1, ranks)
    call MPI_Sendrecv(water(1, 1, 1), 3 * nx, MPI_DOUBLE_PRECISION, below, 0, &
      water(1, 1, rows + 1), 3 * nx, MPI_DOUBLE_PRECISION, above, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
    call MPI_Sendrecv(water(1, 1, rows), 3 * nx, MPI_DOUBLE_PRECISION, above, 1, &
      water(1, 1, 0), 3 * nx, MPI_DOUBLE_PRECISION, below, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
  end subroutine

  subroutine advance()
    integer :: i, j, west, east

    do j = 1, rows
      do i = 1, nx
        west = merge(nx, i - 1, i == 1)
        east = merge(1, i + 1, i == nx)
        next(:, i, j) = (water(:, west, j) + water(:, east, j) + water(:, i, j - 1) + water(:, i, j + 1)) / 4 &
          - dt / (2 * dx) * (flux(water(:, east, j), 2) - flux(water(:, west, j), 2) &
          + flux(water(:, i, j + 1), 3) - flux(water(:, i, j - 1), 3))
      end do
    end do
    water(:, :, 1:rows) = next
  end subroutine

  ! What flows in direction 2 (x) or 3 (y).
  pure function flux(cell, direction)
    real(real64), intent(in) :: cell(3)
    integer, intent(in) :: direction
    real(real64) :: flux(3)

    flux = cell * cell(direction) / cell(1)
    flux(direction) = flux(direction) + gravity / 2 * cell(1)**2
  end function

  ! The last dimension is cut, so that each process's part is in one piece, here as in the file.
  subroutine write_water(path)
    character(len=*), intent(in) :: path
    type(MPI_File) :: file
    integer(MPI_OFFSET_KIND) :: at

    at = int(first - 1, MPI_OFFSET_KIND) * nx * 3 * 8
    call MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE + MPI_MODE_WRONLY, MPI_INFO_NULL, file)
    call MPI_File_write_at_all(file, at, water(:, :, 1:rows), 3 * nx * rows, MPI_DOUBLE_PRECISION, &
      MPI_STATUS_IGNORE)
    call MPI_File_close(file)
  end subroutine

  function argument(which)
    integer, intent(in) :: which
    character(len=:), allocatable :: argument
    integer :: length

    call get_command_argument(which, length=length)
    allocate (character(len=length) :: argument)
    if (length > 0) call get_command_argument(which, argument)
  end function
end program
