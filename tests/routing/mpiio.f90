! SPDX-License-Identifier: Apache-2.0 OR MIT
! The same as mpiio.c in Fortran: one file of all ranks, written and read by MPI-IO.
!
!     mpiio-fortran STEPS NUMBERS PAUSE_US
!
! Each rank has NUMBERS in a row behind a head of two, which rank 0 writes. Prints what mpiio.c prints.
program mpiio
  use, intrinsic :: iso_fortran_env, only: int64, real64, output_unit
  use, intrinsic :: iso_c_binding, only: c_int
  use mpi_f08
  implicit none
  interface
    function getpid() bind(c) result(number)
      import :: c_int
      integer(c_int) :: number
    end function
    function usleep(time) bind(c) result(code)
      import :: c_int
      integer(c_int), value :: time
      integer(c_int) :: code
    end function
  end interface
  integer :: rank, ranks, steps, numbers, pause_us, step
  integer(c_int) :: code
  real(real64), allocatable :: values(:)

  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  steps = argument(1)
  numbers = argument(2)
  pause_us = argument(3)
  allocate (values(numbers))
  print '(a, i0)', 'pid ', getpid()
  flush (output_unit)
  do step = steps, 1, -1
    if (is_whole(step)) exit
  end do
  if (rank == 0) call say('found', step)
  do step = step + 1, steps
    if (rank == 0) call say('begun', step)
    call write_step(step)
    call MPI_Barrier(MPI_COMM_WORLD)
    if (rank == 0) call say('done', step)
    code = usleep(int(pause_us, c_int))
  end do
  call MPI_Finalize()

contains

  integer function argument(at)
    integer, intent(in) :: at
    character(32) :: text
    call get_command_argument(at, text)
    read (text, *) argument
  end function

  subroutine say(word, number)
    character(*), intent(in) :: word
    integer, intent(in) :: number
    print '(a, 1x, i0)', word, number
    flush (output_unit)
  end subroutine

  function name_of(step) result(name)
    integer, intent(in) :: step
    character(32) :: name
    write (name, '(a, i0)') 'out/field.', step
  end function

  subroutine fill(step)
    integer, intent(in) :: step
    integer :: at
    do at = 1, numbers
      values(at) = mod(real(step, real64) * 1000003 + rank * 7919.0_real64 + at, 999983.0_real64)
    end do
  end subroutine

  integer(MPI_OFFSET_KIND) function place()
    place = 16 + int(rank, MPI_OFFSET_KIND) * numbers * 8
  end function

  subroutine write_step(step)
    integer, intent(in) :: step
    type(MPI_File) :: file
    integer(int64) :: head(2)
    integer :: error
    logical :: is_there
    call MPI_File_open(MPI_COMM_WORLD, trim(name_of(step)), MPI_MODE_CREATE + MPI_MODE_WRONLY, MPI_INFO_NULL, file, error)
    call check(error, 'creating')
    call fill(step)
    call MPI_File_write_at_all(file, place(), values, numbers, MPI_REAL8, MPI_STATUS_IGNORE, error)
    call check(error, 'writing')
    head = [int(step, int64), int(ranks, int64)]
    if (rank == 0) call MPI_File_write_at(file, 0_MPI_OFFSET_KIND, head, 16, MPI_BYTE, MPI_STATUS_IGNORE, error)
    call check(error, 'the head')
    call MPI_File_close(file, error)
    call check(error, 'closing')
    inquire (file=trim(name_of(step - 2)), exist=is_there)
    if (rank == 0 .and. is_there) call MPI_File_delete(trim(name_of(step - 2)), MPI_INFO_NULL)
  end subroutine

  logical function is_whole(step)
    integer, intent(in) :: step
    type(MPI_File) :: file
    integer(int64) :: head(2)
    real(real64), allocatable :: found(:)
    integer :: error
    call MPI_File_open(MPI_COMM_WORLD, trim(name_of(step)), MPI_MODE_RDONLY, MPI_INFO_NULL, file, error)
    is_whole = error == MPI_SUCCESS
    if (.not. is_whole) return
    head = 0
    call MPI_File_read_at_all(file, 0_MPI_OFFSET_KIND, head, 16, MPI_BYTE, MPI_STATUS_IGNORE, error)
    call check(error, 'reading the head')
    allocate (found(numbers), source=-1.0_real64)
    call MPI_File_read_at_all(file, place(), found, numbers, MPI_REAL8, MPI_STATUS_IGNORE, error)
    call check(error, 'reading')
    call fill(step)
    if (head(1) /= step .or. head(2) /= ranks .or. any(abs(found - values) > 0)) call say('bad file of step', step)
    call MPI_File_close(file, error)
  end function

  subroutine check(error, what)
    integer, intent(in) :: error
    character(*), intent(in) :: what
    if (error == MPI_SUCCESS) return
    print '(2a)', 'bad ', what
    flush (output_unit)
    call MPI_Abort(MPI_COMM_WORLD, 3)
  end subroutine
end program
