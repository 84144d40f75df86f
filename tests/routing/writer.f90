! SPDX-License-Identifier: Apache-2.0 OR MIT
! A program that knows nothing of Backstay: writes its state unformatted, always to the same name, and goes on from it.
!     writer STEPS WORDS PAUSE_US
! Its output is that of writer.c.
program writer
  use, intrinsic :: iso_fortran_env, only: int64, output_unit
  use, intrinsic :: iso_c_binding, only: c_int
  implicit none
  interface
    function getpid() bind(c)
      import :: c_int
      integer(c_int) :: getpid
    end function
    function usleep(time) bind(c)
      import :: c_int
      integer(c_int), value :: time
      integer(c_int) :: usleep
    end function
  end interface
  character(len=*), parameter :: name = 'out/state.bin'
  integer(int64), allocatable :: values(:)
  integer(int64) :: step, steps, words, found, number, at
  integer :: unit, status
  integer(c_int) :: pause, ignored
  logical :: is_there
  character(len=32) :: argument

  call get_command_argument(1, argument)
  read (argument, *) steps
  call get_command_argument(2, argument)
  read (argument, *) words
  call get_command_argument(3, argument)
  read (argument, *) pause
  write (output_unit, '(a,i0)') 'pid ', getpid()
  found = 0
  inquire (file=name, exist=is_there)
  if (is_there) then
    open (newunit=unit, file=name, form='unformatted', status='old', action='read')
    read (unit, iostat=status) found, number
    if (status /= 0) call bad('has no head')
    allocate (values(number))
    read (unit, iostat=status) values
    if (status /= 0) call bad('is not whole')
    do at = 1, number
      if (values(at) /= found * 1000003_int64 + at) call bad('has another value')
    end do
    read (unit, iostat=status) number
    if (status == 0) call bad('is too long')
    close (unit)
    deallocate (values)
  end if
  write (output_unit, '(a,i0)') 'found ', found
  flush (output_unit)
  do step = found + 1, steps
    write (output_unit, '(a,i0)') 'begun ', step
    flush (output_unit)
    number = 1 + mod(step * 7919_int64, words)
    allocate (values(number))
    do at = 1, number
      values(at) = step * 1000003_int64 + at
    end do
    open (newunit=unit, file=name, form='unformatted', status='replace', action='write')
    write (unit) step, number
    write (unit) values
    close (unit)
    deallocate (values)
    write (output_unit, '(a,i0)') 'done ', step
    flush (output_unit)
    ignored = usleep(pause)
  end do
contains
  subroutine bad(what)
    character(len=*), intent(in) :: what
    write (output_unit, '(a)') 'bad ' // what // ' ' // name
    flush (output_unit)
    stop 3
  end subroutine
end program
