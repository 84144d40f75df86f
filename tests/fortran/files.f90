! SPDX-License-Identifier: Apache-2.0 OR MIT
! Files: a log that is protected, and sets of files under names with the step. The first start, "store", takes
! checkpoints; the second, "restore", finds them. The second argument is a folder for the logs.
program files
  use mpi_f08
  use backstay
  use, intrinsic :: iso_fortran_env, only: int64
  implicit none

  type(backstay_session) :: session
  type(backstay_report) :: report
  type(backstay_restored) :: restored
  character(len=:), allocatable :: routed
  character(len=40), allocatable :: names(:)
  character(len=3), allocatable :: short(:)
  character(len=200) :: phase, folder, log, name, line
  character(len=300) :: message
  integer :: rank, step, unit, stat, value
  logical :: found

  call get_command_argument(1, phase)
  call get_command_argument(2, folder)
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  write (log, "(a, a, i0)") trim(folder), "/log of ", rank
  call backstay_open(session, MPI_COMM_WORLD)
  call backstay_protect_file(session, "log", log)
  call backstay_route_file(session, "as/it/is", routed)
  call must(routed == "as/it/is", "a name outside of sets")
  if (phase == "store") then
    call backstay_restart_start(session, found)
    call must(.not. found, "nothing is stored yet")
    do step = 1, 3
      open (newunit=unit, file=log, position="append")
      write (unit, "(a, i0)") "step ", step
      close (unit)
      call backstay_output_start(session)
      write (name, "(a, i0, a, i0)") "ckpt.", step, "/rank_", rank
      call backstay_route_file(session, name, routed)
      open (newunit=unit, file=routed, status="new")
      write (unit, *) 100 * rank + step
      close (unit)
      message = ""
      ! The last one is not valid on one rank, and so on none.
      call backstay_output_complete(session, step < 3 .or. rank /= 1, report, stat=stat, errmsg=message)
      call must((stat == BACKSTAY_OK) .eqv. (step < 3), "the set of a step: " // message)
    end do
    call must(stat == BACKSTAY_INVALID_ARGUMENT .and. index(message, "rank 1 says") > 0, message)
    call must(report%blocks_total == 0, "no report of what is none")
  else
    call backstay_restart_start(session, found, restored)
    call must(found .and. restored%checkpoint%number == 2_int64, "the newest valid one")
    call backstay_stored_files(session, rank, names)
    call must(size(names) == 2 .and. names(2) == "log", "the names of the files")
    call backstay_stored_files(session, rank, short, stat=stat, errmsg=message)
    call must(stat == BACKSTAY_INVALID_ARGUMENT .and. size(short) == 0 .and. index(message, "longer") > 0, message)
    call backstay_route_file(session, names(1), routed)
    open (newunit=unit, file=routed, status="old", action="read")
    read (unit, *) value
    close (unit)
    call must(value == 100 * rank + 2, "the state of step 2")
    call backstay_restart_complete(session, .true.)
    open (newunit=unit, file=log, status="old", action="read")
    do step = 1, 2
      read (unit, "(a)") line
    end do
    call must(line == "step 2", "the log as it was")
    read (unit, "(a)", iostat=stat) line
    call must(stat /= 0, "no more lines")
    close (unit)
    call backstay_restore_file(session, "log", 0, trim(log) // ".copy")
    call backstay_route_file(session, "..", routed)
    call backstay_output_start(session)
    call backstay_route_file(session, "../x", routed, stat=stat, errmsg=message)
    call must(stat == BACKSTAY_INVALID_ARGUMENT .and. len(routed) == 0, message)
    call backstay_output_complete(session, .true.)
  end if
  call backstay_close(session)
  call MPI_Finalize()
  if (rank == 0) print "(a, a)", trim(phase), ": as expected"

contains

  subroutine must(holds, what)
    logical, intent(in) :: holds
    character(len=*), intent(in) :: what

    if (.not. holds) error stop "files.f90: another outcome: " // what
  end subroutine
end program
