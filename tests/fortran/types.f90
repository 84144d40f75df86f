! SPDX-License-Identifier: Apache-2.0 OR MIT
! Every type, kind and rank that can be protected. The first start stores and writes what it has to the
! file that is its argument; the second begins with other values, restores, and writes the same.
program types
  use backstay
  use, intrinsic :: iso_c_binding, only: c_double, c_int
  use, intrinsic :: iso_fortran_env, only: int8, int16, int32, int64, real32, real64
  implicit none

  integer, parameter :: ucs4 = selected_char_kind("ISO_10646")
  integer, parameter :: extended = selected_real_kind(18), huge_int = selected_int_kind(38)

  type, bind(c) :: point
    real(c_double) :: x, y
    integer(c_int) :: colour, weight
  end type
  type :: cloud
    integer :: n = 0
    real(real64), allocatable :: mass(:)
  end type

  type(backstay_session) :: session
  logical :: found
  character(len=200) :: path

  integer(int8), target :: i1(3)
  integer(int16), target :: i2(2, 3)
  integer(int32), target :: i4
  integer(int64), target :: i8(2, 1, 3)
  integer(huge_int), target :: i16(2)
  real(real32), target :: r4(3)
  real(real64), target :: r8(2:3, 0:2)
  real(extended), target :: r10(3)
  complex(real32), target :: c4
  complex(real64), target :: c8(2)
  complex(extended), target :: c10(2)
  logical(int8), target :: l1(2)
  logical(int16), target :: l2
  logical, target :: l4(2, 2)
  logical(int64), target :: l8(3)
  character, target :: letter
  character(len=5), target :: words(2)
  character(kind=ucs4, len=3), target :: wide(2)
  character(len=:), allocatable, target :: deferred
  real(real64), allocatable, target :: allocated_at(:, :)
  real(real64), target :: pool(6)
  real(real64), pointer, contiguous :: pointed(:)
  real(real64), target :: none(0, 3)
  integer, target :: d9(2, 1, 1, 1, 1, 1, 1, 1, 3)
  integer, target :: d15(2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2)
  real(real32), target :: field(3, 4)
  integer, target :: thin(4, 3)
  type(point), target :: points(2)
  type(cloud), target :: cloud_of

  allocate (character(len=6) :: deferred)
  allocate (allocated_at(-1:1, 2), cloud_of%mass(2))
  pointed => pool(2:4)
  call get_command_argument(1, path)
  call backstay_open_single(session)
  call protect_all(words)
  call fill(2)
  call backstay_restore(session, found)
  if (.not. found) call fill(1)
  call backstay_checkpoint(session)
  call write_all(trim(path))
  call backstay_close(session)
  print "(a)", trim(merge("restored", "stored  ", found))

contains

  subroutine protect_all(assumed_shape)
    character(len=*), intent(inout), target :: assumed_shape(:)

    call backstay_protect(session, "i1", i1)
    call backstay_protect(session, "i2", i2)
    call backstay_protect(session, "i4   ", i4)
    call backstay_protect(session, "i8", i8)
    call backstay_protect(session, "i16", i16)
    call backstay_protect(session, "r4", r4)
    call backstay_protect(session, "r8", r8)
    call backstay_protect(session, "r10", r10)
    call backstay_protect(session, "c4", c4)
    call backstay_protect(session, "c8", c8)
    call backstay_protect(session, "c10", c10)
    call backstay_protect(session, "l1", l1)
    call backstay_protect(session, "l2", l2)
    call backstay_protect(session, "l4", l4)
    call backstay_protect(session, "l8", l8)
    call backstay_protect(session, "letter", letter)
    call backstay_protect(session, "words", assumed_shape)
    call backstay_protect(session, "wide", wide)
    call backstay_protect(session, "deferred", deferred)
    call backstay_protect(session, "allocated", allocated_at)
    call backstay_protect(session, "pointed", pointed)
    call backstay_protect(session, "none", none)
    call backstay_protect(session, "d9", d9)
    call backstay_protect(session, "d15", d15)
    call backstay_protect(session, "slice", field(:, 2:3))
    call backstay_protect(session, "row of one", thin(2:2, 3:3), tracking=BACKSTAY_TRACKING_FULL)
    call backstay_protect_bytes(session, "points", points, block_bytes=4096)
    call backstay_protect(session, "mass", cloud_of%mass)
  end subroutine

  subroutine fill(k)
    integer, intent(in) :: k
    integer :: i, j

    i1 = int([1, -2, 127] - k, int8)
    i2 = int(reshape([(10 * i + k, i = 1, 6)], [2, 3]), int16)
    i4 = -70000 * k
    i8 = reshape([(5000000000_int64 * i + k, i = 1, 6)], [2, 1, 3])
    i16 = 10_huge_int**30 * [k, -k]
    r4 = [1.5, -0.25, 1e-30] * real(k)
    do j = 0, 2
      do i = 2, 3
        r8(i, j) = i + 10 * j + 0.1_real64 * k
      end do
    end do
    r10 = 1 / real([3, 7, 11] * k, extended)
    c4 = cmplx(k, -k)
    c8 = [cmplx(0.5, k, real64), cmplx(k, 0.25, real64)]
    c10 = cmplx(r10(1:2), r10(2:3), extended)
    l1 = logical([k == 1, k == 2], int8)
    l2 = logical(k == 1, int16)
    l4 = reshape([k == 1, k == 2, k == 2, k == 1], [2, 2])
    l8 = logical([k == 2, k == 1, k == 1], int64)
    letter = achar(64 + k)
    words = ["first", "2nd  "]
    if (k == 2) words = "-----"
    wide(1) = char(960 + k, ucs4) // ucs4_"ab"
    wide(2) = char(65536 + k, ucs4) // ucs4_"  "
    deferred = "abcde" // achar(48 + k)
    allocated_at = reshape([(i * k, i = 1, 6)], [3, 2])
    pool = [(i + 0.5_real64 * k, i = 1, 6)]
    d9 = reshape([(i * k, i = 1, 6)], shape(d9))
    d15 = reshape([(i * k, i = 1, 4)], shape(d15))
    field = 0
    field(:, 2:3) = reshape([(real(i * k), i = 1, 6)], [3, 2])
    thin = 0
    thin(2, 3) = k
    points = [point(k, -k, 3, k), point(0.1, 0.2, k, 5)]
    cloud_of%mass = [1.0_real64, 2.0_real64] / k
  end subroutine

  subroutine write_all(to)
    character(len=*), intent(in) :: to
    integer :: unit, i

    open (newunit=unit, file=to, access="stream", form="unformatted", status="replace")
    write (unit) i1, i2, i4, i8, i16, r4, r8, r10, c4, c8, c10, l1, l2, l4, l8, letter, words, wide
    write (unit) deferred, allocated_at, pool(2:4), d9, d15, field, thin, cloud_of%mass
    write (unit) (points(i)%x, points(i)%y, points(i)%colour, points(i)%weight, i = 1, 2)
    close (unit)
  end subroutine
end program
