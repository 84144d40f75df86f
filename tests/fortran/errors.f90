! SPDX-License-Identifier: Apache-2.0 OR MIT
! Wrong calls: each has its status and a message that says what to do, nothing aborts, and the checkpoint
! that was there is there afterwards. On any number of processes.
program errors
  use mpi_f08
  use backstay
  use, intrinsic :: iso_c_binding, only: c_funptr, c_loc, c_null_char, c_null_funptr, c_null_ptr, c_ptr
  use, intrinsic :: iso_fortran_env, only: int64, real64
  implicit none

  type :: cloud
    integer :: n = 0
    real, allocatable :: mass(:)
  end type

  type(backstay_session) :: session, copy, never
  type(backstay_handle) :: handle, waited
  type(backstay_protection) :: protection
  type(backstay_checkpoint_id), allocatable :: ids(:)
  type(MPI_Comm) :: no_comm
  integer(int64), allocatable :: extents(:)
  integer :: stat, level, checks, rank
  logical :: found, done, leave
  character(len=300) :: message
  character(len=12) :: short
  real(real64), target :: u(4, 6)
  real(real64), allocatable, target :: grown(:), nothing(:)
  real(real64), pointer :: every_second(:)
  integer, target :: step, deep(1, 1, 1, 1, 1, 1, 1, 2, 1), both(2)
  type(cloud), target :: of_dust
  type(c_ptr), target :: address
  type(c_funptr), target :: procedure_address

  checks = 0
  message = ""
  u = 1
  step = 7
  both = 0
  deep = 0
  address = c_null_ptr
  procedure_address = c_null_funptr
  allocate (of_dust%mass(2))

  call backstay_open(session, MPI_COMM_WORLD, stat=stat, errmsg=message)
  call expect(BACKSTAY_COMMUNICATOR, "call MPI_Init first")
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call wrong_communicators()
  call wrong_settings()
  call without_a_session(never, "the session was never opened")

  message = "as it was"
  call backstay_open(session, MPI_COMM_WORLD, stat=stat, errmsg=message)
  call expect(BACKSTAY_OK, "as it was")
  call backstay_open(session, MPI_COMM_WORLD, stat=stat, errmsg=message)
  call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_open: this session is open already")

  call backstay_protect(session, "u", u)
  call backstay_protect(session, "step", step)
  call backstay_restore(session, found)
  if (found) error stop "errors: something was stored before"
  call backstay_checkpoint(session)
  call wrong_variables()
  call wrong_parts()
  call wrong_marks()
  call wrong_checkpoints()
  call moved_memory()

  ! Nothing was lost: both checkpoints are there, and the newest comes back.
  call backstay_stored_checkpoints(session, ids)
  if (size(ids) /= 2) error stop "errors: not two checkpoints"
  u = 0
  step = 0
  call backstay_restore(session, found)
  if (.not. found .or. any(abs(u - 1) > 0) .or. step /= 7) error stop "errors: lost"
  if (any(abs(grown - [1, 2, 3]) > 0)) error stop "errors: lost"

  copy = session
  call backstay_close(session)
  call without_a_session(session, "the session is closed")
  call without_a_session(copy, "the session is closed")

  call backstay_open(session, MPI_COMM_WORLD)
  call MPI_Finalize()
  call backstay_checkpoint(session, stat=stat, errmsg=message)
  call expect(BACKSTAY_COMMUNICATOR, "MPI_Finalize was called before")
  call backstay_close(session, stat=stat, errmsg=message)
  call expect(BACKSTAY_COMMUNICATOR, "MPI_Finalize was called before")
  call backstay_open(session, MPI_COMM_WORLD, stat=stat, errmsg=message)
  call expect(BACKSTAY_COMMUNICATOR, "MPI_Finalize was called before")
  if (rank == 0) print "(i0, a)", checks, " refusals as expected"

contains

  ! The status, and that the message says so; each check counts.
  subroutine expect(status, words)
    integer, intent(in) :: status
    character(len=*), intent(in) :: words

    if (stat /= status .or. index(message, words) == 0) then
      print "(3a, i0, 3a, i0, a)", "errors: ", words, " (", status, "), but: ", trim(message), " (", stat, ")"
      error stop "errors: not refused as expected"
    end if
    checks = checks + 1
    stat = -1
  end subroutine

  subroutine wrong_communicators()
    call backstay_open(session, MPI_COMM_NULL, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_open: comm is no communicator")
    no_comm%MPI_VAL = 123456789
    call backstay_open(session, no_comm, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_open: comm is no communicator")
    call backstay_open(session, 1.0, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "comm is neither a type(MPI_Comm) nor a default integer")
    call backstay_open(session, 0_int64, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "comm is neither a type(MPI_Comm) nor a default integer")
    call backstay_open(session, [0], stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "comm is neither a type(MPI_Comm) nor a default integer")
  end subroutine

  subroutine wrong_settings()
    call wrong_setting("retained", "-1", 'retained is "-1": it is not a whole number')
    call wrong_setting("retained", "4294967296", "retained is 4294967296, not 2 to 32")
    call wrong_setting("retained", "1", "retained is 1, not 2 to 32")
    call wrong_setting("redundancy", "wood", 'redundancy is "wood": write none')
    call wrong_setting("retaned", "3", "retaned is no setting, and nearly retained")
  end subroutine

  subroutine wrong_setting(name, value, said)
    character(len=*), intent(in) :: name, value, said
    type(backstay_options) :: options

    call backstay_option_set(options, name, value)
    call backstay_open(session, MPI_COMM_WORLD, options, stat, message)
    call expect(BACKSTAY_CONFIGURATION, said)
  end subroutine

  subroutine wrong_variables()
    call backstay_protect(session, "u", u(2, :), stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: is not contiguous: in dimension 1 the next element is 32 bytes")
    call backstay_protect(session, "u", u(:, ::2), stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: is not contiguous: in dimension 2")
    call backstay_protect(session, "u", u(4:1:-1, 1), stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: is not contiguous")
    every_second => u(::2, 1)
    call backstay_protect(session, "second", every_second, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "second: is not contiguous")
    allocate (nothing(1))
    deallocate (nothing)
    call backstay_protect(session, "nothing", nothing, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "nothing: is not allocated")
    call assumed_size(u)
    call backstay_protect(session, "address", address, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "address: is a type(c_ptr)")
    call backstay_protect(session, "address", procedure_address, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "address: is a type(c_")
    call backstay_protect(session, "dust", of_dust, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "dust: is of a derived type")
    call backstay_protect(session, "   ", u, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "name")
    call backstay_protect(session, "u" // c_null_char, u, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "the name has a zero byte")
    call backstay_protect(session, repeat("long", 64), u, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "has 256 bytes, more than 255")
    call backstay_protect(session, "u", u, tracking=9, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "tracking is 9")
    call backstay_protect(session, "u", u, block_bytes=-1, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "block_bytes is -1")
    call backstay_protect(session, "u", u, block_bytes=1000, stat=stat, errmsg=message)
    call expect(BACKSTAY_CONFIGURATION, "block_bytes")
    call backstay_unprotect(session, "v", stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "no variable")
    call backstay_protect(session, "u", u(2, :), stat=stat, errmsg=short)
    if (short /= "backstay_pro") error stop "errors: a short errmsg"
    call backstay_protect(session, "u", u(2, :), stat=stat)
    if (stat /= BACKSTAY_INVALID_ARGUMENT) error stop "errors: stat without errmsg"
  end subroutine

  subroutine assumed_size(a)
    real(real64), intent(inout), target :: a(4, *)

    call backstay_protect(session, "a", a(:, 1:2), stat=stat)
    if (stat /= BACKSTAY_OK) error stop "errors: a section of what is of assumed size"
    call backstay_unprotect(session, "a")
  end subroutine

  subroutine wrong_parts()
    call backstay_protect(session, "u", u, [8], [1], stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: has 2 dimensions, global_shape 1 and first 1")
    call backstay_protect(session, "u", u, [4, 12], [1, 0], stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: in dimension 2 the part begins at 0 and has 6 of 12 elements")
    call backstay_protect(session, "u", u, [4, 12], [1, 8], stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: in dimension 2 the part begins at 8")
    call backstay_protect(session, "u", u, [3_int64, 12_int64], [1_int64, 1_int64], stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: in dimension 1 the part begins at 1 and has 4 of 3 elements")
    call backstay_protect(session, "u", u, [4_int64, huge(1_int64)], [1_int64, huge(1_int64)], stat=stat, &
      errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: in dimension 2 the part begins at 9223372036854775807")
    call backstay_protect(session, "deep", deep, [2, 1, 1, 1, 1, 1, 1, 2, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1], &
      stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "deep: has more than 8 dimensions")
  end subroutine

  subroutine wrong_marks()
    call backstay_mark_dirty(session, "u", u(:, 2:3))
    call backstay_mark_dirty(session, "u", u(4, ::2))
    call backstay_mark_dirty(session, "u", u(4:1:-1, 6))
    call backstay_mark_dirty(session, "u", u(:, 3:2))
    call backstay_mark_dirty(session, "v", u, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "v: nothing is protected under this name")
    call backstay_mark_dirty(session, "u", step, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: the section is no part of what is protected")
    call backstay_mark_dirty(session, "u", nothing, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: the section is not allocated")
  end subroutine

  subroutine wrong_checkpoints()
    call backstay_test(session, handle, done, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "is no checkpoint under way")
    call backstay_checkpoint_start(session, handle)
    waited = handle
    call backstay_test(session, handle, done, 17, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "level")
    call backstay_wait(session, handle)
    call backstay_wait(session, waited, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "waited for already")
    call backstay_restore(session, found, number=99_int64, stat=stat, errmsg=message)
    call expect(BACKSTAY_NOT_RETAINED, "99")
    if (found) error stop "errors: found what is not there"
    call backstay_pin(session, 99_int64, stat, message)
    call expect(BACKSTAY_NOT_RETAINED, "99")
    call backstay_stored_shape(session, "v", 0, extents, found, stat, message)
    call expect(BACKSTAY_VARIABLE_MISMATCH, "no variable")
    if (found .or. size(extents) /= 0) error stop "errors: a shape of what is not there"
    call backstay_read_rank(session, "u", 0, u(1, :), stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: is not contiguous")
    call backstay_read_rank(session, "u", -1, u, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "u: there is no rank -1")
    call backstay_read_rank(session, "u", 0, u(:, 1), stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "of rank 0 has 192 bytes, the buffer has 32")
  end subroutine

  ! An assignment may allocate anew; what is protected is then the memory of before.
  subroutine moved_memory()
    grown = [1, 2]
    call backstay_protect(session, "grown", grown)
    if (.not. backstay_is_protected(session, "grown", grown)) error stop "errors: grown is protected"
    if (backstay_is_protected(session, "grown", grown(1:1))) error stop "errors: a part is not all of it"
    if (backstay_is_protected(session, "shrunk", grown)) error stop "errors: nothing is called shrunk"
    grown = [grown, 3.0_real64]
    if (backstay_is_protected(session, "grown", grown)) error stop "errors: grown is not what it was"
    call backstay_protect(session, "grown", grown)
    if (.not. backstay_is_protected(session, "grown", grown)) error stop "errors: grown is protected again"
    call backstay_checkpoint(session)
  end subroutine

  subroutine without_a_session(s, words)
    type(backstay_session), intent(inout) :: s
    character(len=*), intent(in) :: words

    call backstay_protect(s, "u", u, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_protect: " // words)
    call backstay_protect(s, "both", both, [2], [1], stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_protect: " // words)
    call backstay_protect_bytes(s, "u", u, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_protect_bytes: " // words)
    call backstay_unprotect(s, "u", stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_unprotect: " // words)
    call backstay_mark_dirty(s, "u", u, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_mark_dirty: " // words)
    call backstay_restore(s, found, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_restore: " // words)
    call backstay_checkpoint(s, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_checkpoint: " // words)
    call backstay_checkpoint_start(s, handle, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_checkpoint_start: " // words)
    call backstay_test(s, handle, done, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_test: " // words)
    call backstay_wait(s, handle, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_wait: " // words)
    call backstay_due(s, level, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_due: " // words)
    call backstay_should_leave(s, leave, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_should_leave: " // words)
    call backstay_pin(s, 1_int64, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_pin: " // words)
    call backstay_unpin(s, 1_int64, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_unpin: " // words)
    call backstay_scrub(s, stat=stat, errmsg=message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_scrub: " // words)
    call backstay_protection_status(s, protection, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_protection_status: " // words)
    call backstay_stored_checkpoints(s, ids, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_stored_checkpoints: " // words)
    call backstay_earlier_checkpoints(s, ids, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_earlier_checkpoints: " // words)
    call backstay_stored_shape(s, "u", 0, extents, found, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_stored_shape: " // words)
    call backstay_read_rank(s, "u", 0, u, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_read_rank: " // words)
    call backstay_close(s, stat, message)
    call expect(BACKSTAY_INVALID_ARGUMENT, "backstay_close: " // words)
    if (backstay_is_protected(s, "u", u)) error stop "errors: protected without a session"
  end subroutine
end program
