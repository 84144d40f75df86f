! SPDX-License-Identifier: Apache-2.0 OR MIT
! Backstay: checkpoint and restart of programs that run on many processes.
!
!     call backstay_open(session, MPI_COMM_WORLD)
!     call backstay_protect(session, "temperature", temperature)    ! any type and rank
!     call backstay_restore(session, found)                         ! not found: the first start
!     ... every few steps: call backstay_checkpoint(session)
!     call backstay_finish(session)                                 ! it is done; else backstay_close
!
! stat= and errmsg= are those of allocate: stat becomes 0 or a BACKSTAY_* number, errmsg is set if that
! is not 0, and without stat= a failure is an error stop with the message. docs/guide/fortran.md is the
! guide, backstay.h the reference: what is said there of a call holds here. Compile this and
! backstay_fortran.c with your own compiler: .mod files belong to one.
module backstay
  use, intrinsic :: iso_c_binding, only: c_bool, c_char, c_double, c_f_pointer, c_int32_t, c_int64_t, &
    c_null_char, c_null_ptr, c_ptr, c_size_t, c_sizeof
  implicit none
  private

  public :: backstay_open, backstay_open_single, backstay_close, backstay_finish, backstay_protect, &
    backstay_protect_bytes, backstay_unprotect, backstay_is_protected, backstay_mark_dirty, backstay_scrub, &
    backstay_restore, backstay_stored_checkpoints, backstay_earlier_checkpoints, backstay_stored_shape, &
    backstay_read_rank, backstay_checkpoint, &
    backstay_protect_file, backstay_output_start, backstay_route_file, backstay_output_complete, backstay_restart_start, &
    backstay_restart_complete, backstay_stored_files, backstay_restore_file, backstay_checkpoint_start, backstay_test, &
    backstay_wait, backstay_due, backstay_should_leave, backstay_pin, backstay_unpin, backstay_protection_status, &
    backstay_message, backstay_status_name, backstay_version

  integer, parameter :: i4 = c_int32_t, i8 = c_int64_t, r8 = c_double

  integer(i4), parameter, public :: &
    BACKSTAY_OK = 0, BACKSTAY_NO_CHECKPOINT = 1, BACKSTAY_INVALID_ARGUMENT = 10, &
    BACKSTAY_VARIABLE_MISMATCH = 11, BACKSTAY_CONFIGURATION = 12, BACKSTAY_STORE_FULL = 20, &
    BACKSTAY_STORE_BUSY = 21, BACKSTAY_STORE_IO = 22, BACKSTAY_STORE_FAILED = 23, BACKSTAY_UNREADABLE = 24, &
    BACKSTAY_EARLIER_FAILED = 25, &
    BACKSTAY_CORRUPT = 30, BACKSTAY_NOT_RETAINED = 31, BACKSTAY_TIMEOUT = 40, BACKSTAY_COMMUNICATOR = 41, &
    BACKSTAY_PEER_FAILED = 42, BACKSTAY_PEER_UNREACHABLE = 43, BACKSTAY_UNSUPPORTED = 50, &
    BACKSTAY_INTERNAL = 60, &
    BACKSTAY_TRACKING_DEFAULT = 0, BACKSTAY_TRACKING_FULL = 1, BACKSTAY_TRACKING_HASH = 2, &
    BACKSTAY_TRACKING_PAGES = 3, BACKSTAY_TRACKING_MARKED = 4, &
    BACKSTAY_LEVEL_NODE = 1, BACKSTAY_LEVEL_PROTECTED = 2, BACKSTAY_LEVEL_ARCHIVE = 3
  integer, parameter, public :: BACKSTAY_SHORTFALL_BYTES = 512
  ! One process's part in the checkpoints of a job. A copy is the same session.
  type, bind(c), public :: backstay_session
    private
    type(c_ptr) :: session = c_null_ptr
  end type
  ! A checkpoint under way.
  type, bind(c), public :: backstay_handle
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! Settings of a session, made by backstay_option_set. What is not set stays as the environment, the file that
  ! BACKSTAY_CONFIG names, or the default has it. docs/reference/config.md has them all.
  type, public :: backstay_options
    private
    character(len=:), allocatable :: pairs  ! names and values, each with a zero after it
  end type

  ! Sets one setting by its name: call backstay_option_set(options, "reserve_bytes", "2GiB"). What cannot be set is an
  ! error of backstay_open.
  interface backstay_option_set
    module procedure set_text, set_i4, set_i8, set_r8, set_logical
  end interface
  public :: backstay_option_set

  ! The types below are the structs of backstay.h, field by field.

  type, bind(c), public :: backstay_checkpoint_id
    integer(i8) :: incarnation = 0, number = 0
  end type

  ! What a checkpoint cost this process.
  type, bind(c), public :: backstay_report
    integer(c_size_t), private :: struct_size = 0
    type(backstay_checkpoint_id) :: checkpoint
    integer(i8) :: blocks_total = 0, blocks_changed = 0, bytes_total = 0, bytes_changed = 0
    integer(i8) :: bytes_manifest = 0
    real(r8) :: blocking_seconds = 0, capture_seconds = 0, commit_seconds = 0, protect_seconds = 0
    real(r8) :: archive_seconds = 0
  end type

  ! What was restored.
  type, bind(c), public :: backstay_restored
    integer(c_size_t), private :: struct_size = 0
    type(backstay_checkpoint_id) :: checkpoint
    integer(i8) :: bytes_read = 0
    real(r8) :: seconds = 0
    integer(i4) :: ranks_then = 0, fell_back = 0, unclaimed = 0
    integer(i4), private :: reserved = 0
  end type

  ! What a scrub found.
  type, bind(c), public :: backstay_scrubbed
    integer(c_size_t), private :: struct_size = 0
    integer(i8) :: blocks_checked = 0, blocks_damaged = 0, blocks_healed = 0
  end type

  ! What is durable at which level now; a number of 0 says that there is none.
  type, bind(c) :: protection_struct
    integer(c_size_t) :: struct_size = 0
    type(backstay_checkpoint_id) :: at_node, at_protected, encoding
    integer(i4) :: losses_asked = 0, losses_covered = 0
    character(kind=c_char) :: shortfall(BACKSTAY_SHORTFALL_BYTES) = c_null_char
  end type

  type, public :: backstay_protection
    type(backstay_checkpoint_id) :: at_node, at_protected, encoding
    integer(i4) :: losses_asked = 0, losses_covered = 0
    character(len=BACKSTAY_SHORTFALL_BYTES) :: shortfall = ""
  end type

  ! Protects x under a name: checkpoints contain it from now on and restoring fills it. Type, kind and
  ! shape are those of x, which has the target attribute, is contiguous, and stays where it is until it
  ! is protected elsewhere, unprotected, or the session closed. With global_shape and first it is the
  ! part of an array of all processes that begins at element `first`, counted from 1. Local.
  interface backstay_protect
    subroutine protect_own(session, name, x, tracking, block_bytes, stat, errmsg) bind(c, name="backstay_fortran_protect")
      import :: backstay_session, c_char, i4
      type(backstay_session), intent(in) :: session
      character(len=*, kind=c_char), intent(in) :: name
      type(*), dimension(..), intent(inout), target :: x
      integer(i4), intent(in), optional :: tracking, block_bytes
      integer(i4), intent(out), optional :: stat
      character(len=*, kind=c_char), intent(inout), optional :: errmsg
    end subroutine
    subroutine protect_part(session, name, x, global_shape, first, tracking, block_bytes, stat, errmsg) &
      bind(c, name="backstay_fortran_protect_part")
      import :: backstay_session, c_char, i4
      type(backstay_session), intent(in) :: session
      character(len=*, kind=c_char), intent(in) :: name
      type(*), dimension(..), intent(inout), target :: x
      integer(i4), intent(in) :: global_shape(:), first(:)
      integer(i4), intent(in), optional :: tracking, block_bytes
      integer(i4), intent(out), optional :: stat
      character(len=*, kind=c_char), intent(inout), optional :: errmsg
    end subroutine
    subroutine protect_long_part(session, name, x, global_shape, first, tracking, block_bytes, stat, errmsg) &
      bind(c, name="backstay_fortran_protect_long_part")
      import :: backstay_session, c_char, i4, i8
      type(backstay_session), intent(in) :: session
      character(len=*, kind=c_char), intent(in) :: name
      type(*), dimension(..), intent(inout), target :: x
      integer(i8), intent(in) :: global_shape(:), first(:)
      integer(i4), intent(in), optional :: tracking, block_bytes
      integer(i4), intent(out), optional :: stat
      character(len=*, kind=c_char), intent(inout), optional :: errmsg
    end subroutine
  end interface

  interface
    ! The same with the bytes of x, of a derived type, say, without allocatable or pointer components.
    subroutine backstay_protect_bytes(session, name, x, tracking, block_bytes, stat, errmsg) &
      bind(c, name="backstay_fortran_protect_bytes")
      import :: backstay_session, c_char, i4
      type(backstay_session), intent(in) :: session
      character(len=*, kind=c_char), intent(in) :: name
      type(*), dimension(..), intent(inout), target :: x
      integer(i4), intent(in), optional :: tracking, block_bytes
      integer(i4), intent(out), optional :: stat
      character(len=*, kind=c_char), intent(inout), optional :: errmsg
    end subroutine

    ! Says that a section of what is protected changed, from its first to its last byte, for what is
    ! tracked with BACKSTAY_TRACKING_MARKED. Local.
    subroutine backstay_mark_dirty(session, name, section, stat, errmsg) bind(c, name="backstay_fortran_mark_dirty")
      import :: backstay_session, c_char, i4
      type(backstay_session), intent(in) :: session
      character(len=*, kind=c_char), intent(in) :: name
      type(*), dimension(..), intent(in), target :: section
      integer(i4), intent(out), optional :: stat
      character(len=*, kind=c_char), intent(inout), optional :: errmsg
    end subroutine

    ! Fills x from what a rank, from 0, stored under the name: a variable of one process, of the start
    ! that took the checkpoint. Local.
    subroutine backstay_read_rank(session, name, rank, x, stat, errmsg) bind(c, name="backstay_fortran_read_rank")
      import :: backstay_session, c_char, i4
      type(backstay_session), intent(in) :: session
      character(len=*, kind=c_char), intent(in) :: name
      integer(i4), intent(in) :: rank
      type(*), dimension(..), intent(inout), target :: x
      integer(i4), intent(out), optional :: stat
      character(len=*, kind=c_char), intent(inout), optional :: errmsg
    end subroutine

    ! Whether x is protected under this name where and as it is now: after an assignment that may have
    ! allocated it anew, what to ask. Local.
    function backstay_is_protected(session, name, x) bind(c, name="backstay_fortran_is_protected") result(yes)
      import :: backstay_session, c_bool, c_char
      type(backstay_session), intent(in) :: session
      character(len=*, kind=c_char), intent(in) :: name
      type(*), dimension(..), intent(in), target :: x
      logical(c_bool) :: yes
    end function
  end interface

  interface
    function f_check_open(session, operation) bind(c, name="backstay_fortran_check_open") result(status)
      import :: backstay_session, c_char, i4
      type(backstay_session), intent(in) :: session
      character(kind=c_char), intent(in) :: operation(*)
      integer(i4) :: status
    end function
    function f_session(session) bind(c, name="backstay_fortran_session") result(pointer)
      import :: backstay_session, c_ptr
      type(backstay_session), intent(in) :: session
      type(c_ptr) :: pointer
    end function
    function f_open(session, comm, options) bind(c, name="backstay_fortran_open") result(status)
      import :: backstay_session, c_ptr, i4
      type(backstay_session), intent(inout) :: session
      type(*), dimension(..), intent(in) :: comm
      type(c_ptr), value :: options
      integer(i4) :: status
    end function
    function f_open_single(session, options) bind(c, name="backstay_fortran_open_single") result(status)
      import :: backstay_session, c_ptr, i4
      type(backstay_session), intent(inout) :: session
      type(c_ptr), value :: options
      integer(i4) :: status
    end function
    function f_end(session, is_done) bind(c, name="backstay_fortran_end") result(status)
      import :: backstay_session, i4
      type(backstay_session), intent(in) :: session
      integer(i4), value :: is_done
      integer(i4) :: status
    end function
    function f_unprotect(session, name) bind(c, name="backstay_fortran_unprotect") result(status)
      import :: backstay_session, c_char, i4
      type(backstay_session), intent(in) :: session
      character(len=*, kind=c_char), intent(in) :: name
      integer(i4) :: status
    end function
    function f_options(pairs, bytes) bind(c, name="backstay_fortran_options") result(options)
      import :: c_char, c_ptr, i8
      character(kind=c_char), intent(in) :: pairs(*)
      integer(i8), value :: bytes
      type(c_ptr) :: options
    end function
    subroutine f_options_free(options) bind(c, name="backstay_options_free")
      import :: c_ptr
      type(c_ptr), value :: options
    end subroutine
  end interface

  ! backstay.h.
  interface
    function c_version() bind(c, name="backstay_version") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_status_name(status) bind(c, name="backstay_status_name") result(text)
      import :: c_ptr, i4
      integer(i4), value :: status
      type(c_ptr) :: text
    end function
    function c_message(session) bind(c, name="backstay_message") result(text)
      import :: c_ptr
      type(c_ptr), value :: session
      type(c_ptr) :: text
    end function
    function c_restore(session, restored) bind(c, name="backstay_restore") result(status)
      import :: backstay_restored, c_ptr, i4
      type(c_ptr), value :: session
      type(backstay_restored), intent(inout) :: restored
      integer(i4) :: status
    end function
    function c_restore_from(session, number, restored) bind(c, name="backstay_restore_from") result(status)
      import :: backstay_restored, c_ptr, i4, i8
      type(c_ptr), value :: session
      integer(i8), value :: number
      type(backstay_restored), intent(inout) :: restored
      integer(i4) :: status
    end function
    include "backstay_checkpoints_c.inc"
    function c_stored_shape(session, name, rank, extents, capacity, ndim) &
      bind(c, name="backstay_stored_shape") result(status)
      import :: c_char, c_ptr, c_size_t, i4, i8
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      integer(i4), value :: rank
      integer(i8), intent(inout) :: extents(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(out) :: ndim
      integer(i4) :: status
    end function
    include "backstay_files_c.inc"
    function c_checkpoint(session, report) bind(c, name="backstay_checkpoint") result(status)
      import :: backstay_report, c_ptr, i4
      type(c_ptr), value :: session
      type(backstay_report), intent(inout) :: report
      integer(i4) :: status
    end function
    function c_checkpoint_start(session, handle) bind(c, name="backstay_checkpoint_start") result(status)
      import :: c_ptr, i4
      type(c_ptr), value :: session
      type(c_ptr), intent(out) :: handle
      integer(i4) :: status
    end function
    function c_test(session, handle, level, done) bind(c, name="backstay_test") result(status)
      import :: c_bool, c_ptr, i4
      type(c_ptr), value :: session, handle
      integer(i4), value :: level
      logical(c_bool), intent(out) :: done
      integer(i4) :: status
    end function
    function c_wait(session, handle, level, report) bind(c, name="backstay_wait") result(status)
      import :: backstay_report, c_ptr, i4
      type(c_ptr), value :: session, handle
      integer(i4), value :: level
      type(backstay_report), intent(inout) :: report
      integer(i4) :: status
    end function
    function c_due(session, level) bind(c, name="backstay_due") result(status)
      import :: c_ptr, i4
      type(c_ptr), value :: session
      integer(i4), intent(out) :: level
      integer(i4) :: status
    end function
    function c_should_leave(session, leave) bind(c, name="backstay_should_leave") result(status)
      import :: c_bool, c_ptr, i4
      type(c_ptr), value :: session
      logical(c_bool), intent(out) :: leave
      integer(i4) :: status
    end function
    function c_pin(session, number) bind(c, name="backstay_pin") result(status)
      import :: c_ptr, i4, i8
      type(c_ptr), value :: session
      integer(i8), value :: number
      integer(i4) :: status
    end function
    function c_unpin(session, number) bind(c, name="backstay_unpin") result(status)
      import :: c_ptr, i4, i8
      type(c_ptr), value :: session
      integer(i8), value :: number
      integer(i4) :: status
    end function
    function c_scrub(session, scrubbed) bind(c, name="backstay_scrub") result(status)
      import :: backstay_scrubbed, c_ptr, i4
      type(c_ptr), value :: session
      type(backstay_scrubbed), intent(inout) :: scrubbed
      integer(i4) :: status
    end function
    function c_protection_status(session, protection) bind(c, name="backstay_protection_status") result(status)
      import :: c_ptr, i4, protection_struct
      type(c_ptr), value :: session
      type(protection_struct), intent(inout) :: protection
      integer(i4) :: status
    end function
    function c_strlen(text) bind(c, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

contains

  ! Opens a session on the processes of comm, all together: an integer of the module mpi or of mpif.h,
  ! or a type(MPI_Comm) of mpi_f08.
  subroutine backstay_open(session, comm, options, stat, errmsg)
    type(backstay_session), intent(inout) :: session
    type(*), dimension(..), intent(in) :: comm
    type(backstay_options), intent(in), optional :: options
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(c_ptr) :: settings
    integer(i4) :: status

    settings = made(options)
    status = f_open(session, comm, settings)
    call f_options_free(settings)
    call finish(status, stat, errmsg)
  end subroutine

  ! The same for a program of one process, without MPI.
  subroutine backstay_open_single(session, options, stat, errmsg)
    type(backstay_session), intent(inout) :: session
    type(backstay_options), intent(in), optional :: options
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(c_ptr) :: settings
    integer(i4) :: status

    settings = made(options)
    status = f_open_single(session, settings)
    call f_options_free(settings)
    call finish(status, stat, errmsg)
  end subroutine

  ! Ends a session: all processes together, before MPI_Finalize. The next start resumes from the newest checkpoint.
  subroutine backstay_close(session, stat, errmsg)
    type(backstay_session), intent(inout) :: session
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg

    call finish(f_end(session, 0_i4), stat, errmsg)
  end subroutine

  ! The same for a program that is done, with what is protected still in place: the next start begins anew.
  subroutine backstay_finish(session, stat, errmsg)
    type(backstay_session), intent(inout) :: session
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg

    call finish(f_end(session, 1_i4), stat, errmsg)
  end subroutine

  ! Later checkpoints do without the name, and its memory may go. Local.
  subroutine backstay_unprotect(session, name, stat, errmsg)
    type(backstay_session), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg

    call finish(f_unprotect(session, name), stat, errmsg)
  end subroutine

  ! Fills everything protected, all processes together, from the newest checkpoint that is complete, or
  ! from the one with that number. Not found: there is none, nothing was touched, and it is no failure.
  subroutine backstay_restore(session, found, restored, number, stat, errmsg)
    type(backstay_session), intent(in) :: session
    logical, intent(out) :: found
    type(backstay_restored), intent(out), optional :: restored
    integer(i8), intent(in), optional :: number
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(backstay_restored) :: from
    integer(i4) :: status

    found = .false.
    from%struct_size = c_sizeof(from)
    status = is_open(session, "backstay_restore")
    if (status == BACKSTAY_OK) then
      if (present(number)) then
        status = c_restore_from(f_session(session), number, from)
      else
        status = c_restore(f_session(session), from)
      end if
      found = status == BACKSTAY_OK
      if (status == BACKSTAY_NO_CHECKPOINT) status = BACKSTAY_OK
    end if
    if (present(restored)) restored = from
    call finish(status, stat, errmsg)
  end subroutine

  include "backstay_checkpoints.inc"

  ! The shape of a name as a rank, from 0, stored it in the checkpoint that backstay_restore would take,
  ! for memory that has to be allocated first. Not found: there is no checkpoint. Local.
  subroutine backstay_stored_shape(session, name, rank, extents, found, stat, errmsg)
    type(backstay_session), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(i4), intent(in) :: rank
    integer(i8), allocatable, intent(out) :: extents(:)
    logical, intent(out) :: found
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(i8) :: stored(16)
    integer(c_size_t) :: ndim
    integer(i4) :: status

    ndim = 0
    stored = 0
    status = is_open(session, "backstay_stored_shape")
    if (status == BACKSTAY_OK) status = c_stored_shape(f_session(session), trim(name) // c_null_char, rank, &
      stored, size(stored, kind=c_size_t), ndim)
    found = status == BACKSTAY_OK
    if (found) then
      extents = stored(ndim:1:-1)
    else
      allocate (extents(0))
    end if
    if (status == BACKSTAY_NO_CHECKPOINT) status = BACKSTAY_OK
    call finish(status, stat, errmsg)
  end subroutine

  include "backstay_files.inc"

  ! Takes a checkpoint of everything protected: all processes together. If it fails, the program may go
  ! on: the last one stays.
  subroutine backstay_checkpoint(session, report, stat, errmsg)
    type(backstay_session), intent(in) :: session
    type(backstay_report), intent(out), optional :: report
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(backstay_report) :: cost
    integer(i4) :: status

    cost%struct_size = c_sizeof(cost)
    status = is_open(session, "backstay_checkpoint")
    if (status == BACKSTAY_OK) status = c_checkpoint(f_session(session), cost)
    if (present(report)) report = cost
    call finish(status, stat, errmsg)
  end subroutine

  ! Starts a checkpoint: all processes together. On return memory may change; backstay_wait ends it.
  subroutine backstay_checkpoint_start(session, handle, stat, errmsg)
    type(backstay_session), intent(in) :: session
    type(backstay_handle), intent(out) :: handle
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(i4) :: status

    status = is_open(session, "backstay_checkpoint_start")
    if (status == BACKSTAY_OK) status = c_checkpoint_start(f_session(session), handle%handle)
    call finish(status, stat, errmsg)
  end subroutine

  ! Whether this process's part of a checkpoint has come to an end at a level, by default the node. Local.
  subroutine backstay_test(session, handle, done, level, stat, errmsg)
    type(backstay_session), intent(in) :: session
    type(backstay_handle), intent(in) :: handle
    logical, intent(out) :: done
    integer(i4), intent(in), optional :: level
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    logical(c_bool) :: answer
    integer(i4) :: status

    answer = .false._c_bool
    status = is_open(session, "backstay_test")
    if (status == BACKSTAY_OK) status = c_test(f_session(session), handle%handle, level_or_node(level), answer)
    done = status == BACKSTAY_OK
    if (done) done = answer
    call finish(status, stat, errmsg)
  end subroutine

  ! Waits until a checkpoint is durable at a level, by default the node: all processes together. The
  ! handle is gone afterwards.
  subroutine backstay_wait(session, handle, level, report, stat, errmsg)
    type(backstay_session), intent(in) :: session
    type(backstay_handle), intent(inout) :: handle
    integer(i4), intent(in), optional :: level
    type(backstay_report), intent(out), optional :: report
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(backstay_report) :: cost
    integer(i4) :: status

    cost%struct_size = c_sizeof(cost)
    status = is_open(session, "backstay_wait")
    if (status == BACKSTAY_OK) then
      status = c_wait(f_session(session), handle%handle, level_or_node(level), cost)
      handle%handle = c_null_ptr
    end if
    if (present(report)) report = cost
    call finish(status, stat, errmsg)
  end subroutine

  ! Whether a checkpoint is worth it now: level becomes 0 for no, or the level it should reach. All
  ! processes together.
  subroutine backstay_due(session, level, stat, errmsg)
    type(backstay_session), intent(in) :: session
    integer(i4), intent(out) :: level
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(i4) :: status

    level = 0
    status = is_open(session, "backstay_due")
    if (status == BACKSTAY_OK) status = c_due(f_session(session), level)
    call finish(status, stat, errmsg)
  end subroutine

  ! Whether somebody asked the program to end: take a last checkpoint, close, and stop. Local.
  subroutine backstay_should_leave(session, leave, stat, errmsg)
    type(backstay_session), intent(in) :: session
    logical, intent(out) :: leave
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    logical(c_bool) :: answer
    integer(i4) :: status

    answer = .false._c_bool
    status = is_open(session, "backstay_should_leave")
    if (status == BACKSTAY_OK) status = c_should_leave(f_session(session), answer)
    leave = answer
    call finish(status, stat, errmsg)
  end subroutine

  ! Keeps a checkpoint until it is unpinned. All processes together.
  subroutine backstay_pin(session, number, stat, errmsg)
    type(backstay_session), intent(in) :: session
    integer(i8), intent(in) :: number
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(i4) :: status

    status = is_open(session, "backstay_pin")
    if (status == BACKSTAY_OK) status = c_pin(f_session(session), number)
    call finish(status, stat, errmsg)
  end subroutine

  ! Lets a pinned checkpoint go when its turn comes. All processes together.
  subroutine backstay_unpin(session, number, stat, errmsg)
    type(backstay_session), intent(in) :: session
    integer(i8), intent(in) :: number
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    integer(i4) :: status

    status = is_open(session, "backstay_unpin")
    if (status == BACKSTAY_OK) status = c_unpin(f_session(session), number)
    call finish(status, stat, errmsg)
  end subroutine

  ! Reads what is stored of this process's variables and checks it; damage is written anew. Local.
  subroutine backstay_scrub(session, scrubbed, stat, errmsg)
    type(backstay_session), intent(in) :: session
    type(backstay_scrubbed), intent(out), optional :: scrubbed
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(backstay_scrubbed) :: outcome
    integer(i4) :: status

    outcome%struct_size = c_sizeof(outcome)
    status = is_open(session, "backstay_scrub")
    if (status == BACKSTAY_OK) status = c_scrub(f_session(session), outcome)
    if (present(scrubbed)) scrubbed = outcome
    call finish(status, stat, errmsg)
  end subroutine

  ! What is durable at which level now, and whether that is less than was asked for. Local.
  subroutine backstay_protection_status(session, protection, stat, errmsg)
    type(backstay_session), intent(in) :: session
    type(backstay_protection), intent(out) :: protection
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg
    type(protection_struct) :: answer
    integer(i4) :: status, i

    answer%struct_size = c_sizeof(answer)
    status = is_open(session, "backstay_protection_status")
    if (status == BACKSTAY_OK) status = c_protection_status(f_session(session), answer)
    protection = backstay_protection(answer%at_node, answer%at_protected, answer%encoding, &
      answer%losses_asked, answer%losses_covered, "")
    do i = 1, BACKSTAY_SHORTFALL_BYTES
      if (answer%shortfall(i) == c_null_char) exit
      protection%shortfall(i:i) = answer%shortfall(i)
    end do
    call finish(status, stat, errmsg)
  end subroutine

  ! The text of the last failure in this thread; empty if there was none.
  function backstay_message() result(message)
    character(len=:), allocatable :: message

    message = text(c_message(c_null_ptr))
  end function

  ! What a stat means, in a few words.
  function backstay_status_name(status) result(name)
    integer(i4), intent(in) :: status
    character(len=:), allocatable :: name

    name = text(c_status_name(status))
  end function

  ! The version of the library that is loaded.
  function backstay_version() result(version)
    character(len=:), allocatable :: version

    version = text(c_version())
  end function

  ! ---- Private ---------------------------------------------------------------------------------------

  ! What stat= and errmsg= say, or the error stop where there is no stat=. backstay_fortran.c has the same.
  subroutine finish(status, stat, errmsg)
    integer(i4), intent(in) :: status
    integer(i4), intent(out), optional :: stat
    character(len=*), intent(inout), optional :: errmsg

    if (present(stat)) stat = status
    if (status == BACKSTAY_OK) return
    if (present(errmsg)) errmsg = backstay_message()
    if (.not. present(stat)) call stop_with_message()
  end subroutine

  subroutine stop_with_message() bind(c, name="backstay_fortran_stop")
    character(len=:), allocatable :: message

    message = backstay_message()
    error stop message
  end subroutine

  function is_open(session, operation) result(status)
    type(backstay_session), intent(in) :: session
    character(len=*), intent(in) :: operation
    integer(i4) :: status

    status = f_check_open(session, operation // c_null_char)
  end function

  function level_or_node(level) result(number)
    integer(i4), intent(in), optional :: level
    integer(i4) :: number

    number = BACKSTAY_LEVEL_NODE
    if (present(level)) number = level
  end function

  function text(from) result(copy)
    type(c_ptr), intent(in) :: from
    character(len=:), allocatable :: copy
    character(kind=c_char), pointer :: letters(:)
    integer :: i

    call c_f_pointer(from, letters, [c_strlen(from)])
    copy = repeat(" ", size(letters))
    do i = 1, size(letters)
      copy(i:i) = letters(i)
    end do
  end function

  ! The settings for C; NULL if there are none.
  function made(options) result(settings)
    type(backstay_options), intent(in), optional :: options
    type(c_ptr) :: settings

    settings = c_null_ptr
    if (.not. present(options)) return
    if (allocated(options%pairs)) settings = f_options(options%pairs, len(options%pairs, i8))
  end function

  subroutine set_text(options, name, value)
    type(backstay_options), intent(inout) :: options
    character(len=*), intent(in) :: name, value

    if (.not. allocated(options%pairs)) options%pairs = ""
    options%pairs = options%pairs // trim(name) // c_null_char // trim(value) // c_null_char
  end subroutine

  subroutine set_i4(options, name, value)
    type(backstay_options), intent(inout) :: options
    character(len=*), intent(in) :: name
    integer(i4), intent(in) :: value

    call set_i8(options, name, int(value, i8))
  end subroutine

  subroutine set_i8(options, name, value)
    type(backstay_options), intent(inout) :: options
    character(len=*), intent(in) :: name
    integer(i8), intent(in) :: value
    character(len=24) :: text

    write (text, "(i0)") value
    call set_text(options, name, text)
  end subroutine

  subroutine set_r8(options, name, value)
    type(backstay_options), intent(inout) :: options
    character(len=*), intent(in) :: name
    real(r8), intent(in) :: value
    character(len=400) :: text

    write (text, "(f0.9)") value
    call set_text(options, name, text)
  end subroutine

  subroutine set_logical(options, name, value)
    type(backstay_options), intent(inout) :: options
    character(len=*), intent(in) :: name
    logical, intent(in) :: value

    call set_text(options, name, trim(merge("true ", "false", value)))
  end subroutine
end module
