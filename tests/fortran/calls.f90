! SPDX-License-Identifier: Apache-2.0 OR MIT
! Every call and every setting once, with an integer as communicator. The first start takes checkpoints, the
! second restores them; its argument is the store.
program calls
  use mpi
  use backstay
  use, intrinsic :: iso_c_binding, only: c_int, c_size_t, c_sizeof
  use, intrinsic :: iso_fortran_env, only: int64, real64
  implicit none

  interface
    subroutine fill_report(report) bind(c)
      import :: backstay_report
      type(backstay_report), intent(inout) :: report
    end subroutine
    subroutine fill_restored(restored) bind(c)
      import :: backstay_restored
      type(backstay_restored), intent(inout) :: restored
    end subroutine
    subroutine fill_scrubbed(scrubbed) bind(c)
      import :: backstay_scrubbed
      type(backstay_scrubbed), intent(inout) :: scrubbed
    end subroutine
    function size_of_struct(which) bind(c) result(bytes)
      import :: c_int, c_size_t
      integer(c_int), value :: which
      integer(c_size_t) :: bytes
    end function
    function constant(which) bind(c) result(value)
      import :: c_int
      integer(c_int), value :: which
      integer(c_int) :: value
    end function
  end interface

  type(backstay_session) :: session
  type(backstay_options) :: options
  type(backstay_handle) :: handle
  type(backstay_report) :: report
  type(backstay_restored) :: restored
  type(backstay_scrubbed) :: scrubbed
  type(backstay_protection) :: protection
  type(backstay_checkpoint_id), allocatable :: ids(:)
  integer(int64), allocatable :: extents(:)
  real(real64), allocatable, target :: u(:, :)
  character(len=200) :: store
  integer :: ierror, rank, ranks, level
  integer, target :: mine(2), other(2)
  logical :: found, done, leave

  call layout()
  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  call get_command_argument(1, store)
  call backstay_option_set(options, "job", "calls of Fortran")
  call backstay_option_set(options, "node", "node")
  call backstay_option_set(options, "store_path", store)
  call backstay_option_set(options, "cpu_set", "0")
  call backstay_option_set(options, "interval", "3600")
  call backstay_option_set(options, "redundancy", "none")
  call backstay_option_set(options, "failure_domain", "rack")
  call backstay_option_set(options, "node_mtbf_hours", 1000)
  call backstay_option_set(options, "reserve_bytes", 2_int64**26)
  call backstay_option_set(options, "timeout_ms", 60000)
  call backstay_option_set(options, "watchdog_ms", 60000)
  call backstay_option_set(options, "metrics_interval_ms", 1000)
  call backstay_option_set(options, "encode_rate_bytes", 10**9)
  call backstay_option_set(options, "archive_rate_bytes", 10**9)
  call backstay_option_set(options, "segment_bytes", 2**20)
  call backstay_option_set(options, "block_bytes", 4096)
  call backstay_option_set(options, "retained", 3)
  call backstay_option_set(options, "capture_threads", 1)
  call backstay_option_set(options, "parity", 1)
  call backstay_option_set(options, "group_size", 4)
  call backstay_option_set(options, "archive_every", 1)
  call backstay_option_set(options, "archive_retained", 2)
  call backstay_option_set(options, "tracking", "marked")
  call backstay_option_set(options, "changed_share", 0.5_real64)
  call backstay_open(session, MPI_COMM_WORLD, options)
  call check(len(backstay_version()) >= 5, "version")
  call check(backstay_status_name(BACKSTAY_STORE_FULL) == "store is full", "status name")

  ! The memory is allocated as it was stored.
  call backstay_stored_shape(session, "u", rank, extents, found)
  if (.not. found) extents = [30_int64, 1000_int64]
  call check(size(extents) == 2 .and. extents(1) == 30 .and. extents(2) == 1000, "stored shape")
  allocate (u(extents(1), 0:extents(2) - 1), source=0.0_real64)
  mine = 0
  call backstay_protect(session, "u", u)
  call backstay_protect(session, "mine", mine)
  call backstay_protect(session, "not for long", other)
  call backstay_unprotect(session, "not for long")
  call backstay_restore(session, found, restored)
  if (found) then
    call second_start()
  else
    call first_start()
  end if
  call backstay_close(session)
  if (rank == 0) print "(a)", trim(merge("second start", "first start ", found))
  call MPI_Finalize(ierror)

contains

  subroutine check(condition, what)
    logical, intent(in) :: condition
    character(len=*), intent(in) :: what

    if (.not. condition) error stop "calls: " // what
  end subroutine

  subroutine layout()
    integer, parameter :: mine(*) = [BACKSTAY_OK, BACKSTAY_NO_CHECKPOINT, BACKSTAY_INVALID_ARGUMENT, &
      BACKSTAY_VARIABLE_MISMATCH, BACKSTAY_CONFIGURATION, BACKSTAY_STORE_FULL, BACKSTAY_STORE_BUSY, &
      BACKSTAY_STORE_IO, BACKSTAY_STORE_FAILED, BACKSTAY_UNREADABLE, BACKSTAY_EARLIER_FAILED, &
      BACKSTAY_CORRUPT, BACKSTAY_NOT_RETAINED, &
      BACKSTAY_TIMEOUT, BACKSTAY_COMMUNICATOR, BACKSTAY_PEER_FAILED, BACKSTAY_PEER_UNREACHABLE, &
      BACKSTAY_UNSUPPORTED, BACKSTAY_INTERNAL, BACKSTAY_TRACKING_DEFAULT, BACKSTAY_TRACKING_FULL, &
      BACKSTAY_TRACKING_HASH, BACKSTAY_TRACKING_PAGES, BACKSTAY_TRACKING_MARKED, BACKSTAY_LEVEL_NODE, &
      BACKSTAY_LEVEL_PROTECTED, BACKSTAY_LEVEL_ARCHIVE, BACKSTAY_SHORTFALL_BYTES]
    integer :: i

    call fill_report(report)
    call check(c_sizeof(report) == size_of_struct(0) .and. all(nint([ &
      real(report%checkpoint%incarnation), real(report%checkpoint%number), real(report%blocks_total), &
      real(report%blocks_changed), real(report%bytes_total), real(report%bytes_changed), &
      real(report%bytes_manifest), real(report%blocking_seconds), real(report%capture_seconds), &
      real(report%commit_seconds), real(report%protect_seconds), real(report%archive_seconds)]) == &
      [(i, i = 1, 12)]), "layout of backstay_report")
    call fill_restored(restored)
    call check(c_sizeof(restored) == size_of_struct(1) .and. all(nint([ &
      real(restored%checkpoint%incarnation), real(restored%checkpoint%number), real(restored%bytes_read), &
      real(restored%seconds), real(restored%ranks_then), real(restored%fell_back), real(restored%unclaimed)]) &
      == [(i, i = 1, 7)]), "layout of backstay_restored")
    call fill_scrubbed(scrubbed)
    call check(c_sizeof(scrubbed) == size_of_struct(2) .and. all([scrubbed%blocks_checked, &
      scrubbed%blocks_damaged, scrubbed%blocks_healed] == [1, 2, 3]), "layout of backstay_scrubbed")
    do i = 1, size(mine)
      call check(mine(i) == constant(i - 1), "a constant of the header")
    end do
  end subroutine

  ! Three checkpoints, of which the second is pinned and the last is taken in the background.
  subroutine first_start()
    u = rank + 1
    mine = [rank, 100 + rank]
    call backstay_due(session, level)
    call check(level == 0, "nothing is due at the start")
    call backstay_should_leave(session, leave)
    call check(.not. leave, "nobody asks to leave")
    call backstay_checkpoint(session, report)
    call check(report%checkpoint%number == 1 .and. report%checkpoint%incarnation == 1, "the first checkpoint")
    call check(report%bytes_total == 8 * size(u, kind=int64) + 8, "bytes of the first checkpoint")
    call check(report%blocks_changed == report%blocks_total, "all is new")
    call check(report%blocks_total == (8 * size(u) + 4095) / 4096 + 1, "block_bytes was set")

    u(:, 500:509) = -1
    call backstay_mark_dirty(session, "u", u(:, 500:509))
    call backstay_checkpoint(session, report)
    call check(report%blocks_changed >= 1 .and. report%blocks_changed <= 2, "what was marked is written")
    call backstay_pin(session, 2_int64)

    call backstay_checkpoint_start(session, handle)
    call backstay_test(session, handle, done)
    call backstay_wait(session, handle, report=report)
    call check(report%checkpoint%number == 3 .and. report%commit_seconds > 0, "the third checkpoint")
    call backstay_scrub(session, scrubbed)
    call check(scrubbed%blocks_checked > 0 .and. scrubbed%blocks_damaged == 0, "scrub")
    call backstay_protection_status(session, protection)
    call check(protection%at_node%number == 3 .and. protection%losses_asked == 0, "protection")
    call check(protection%shortfall == "", "no shortfall")
    u = 0
    call backstay_mark_dirty(session, "u", u)
    call backstay_checkpoint(session)
  end subroutine

  ! The newest, and then the one that was pinned.
  subroutine second_start()
    call check(restored%checkpoint%number == 4 .and. restored%ranks_then == ranks, "restored")
    call check(restored%bytes_read == 8 * size(u, kind=int64) + 8, "bytes read")
    call check(all(abs(u) <= 0) .and. all(mine == [rank, 100 + rank]), "the newest")
    call backstay_read_rank(session, "mine", ranks - 1, other)
    call check(all(other == [ranks - 1, 99 + ranks]), "read_rank")
    call backstay_stored_checkpoints(session, ids)
    call check(size(ids) >= 2 .and. ids(size(ids))%number == 4 .and. any(ids%number == 2), "stored checkpoints")
    call backstay_earlier_checkpoints(session, ids)
    call check(size(ids) == 0, "earlier checkpoints")
    call backstay_restore(session, found, restored, number=2_int64)
    call check(found .and. restored%checkpoint%number == 2, "by number")
    call check(all(abs(u(:, 500:509) + 1) <= 0) .and. all(abs(u(:, :499) - rank - 1) <= 0), "the second")
    call backstay_unpin(session, 2_int64)
  end subroutine
end program
