! SPDX-License-Identifier: Apache-2.0 OR MIT
! Kinds that not every compiler has: real(16) and complex(16), which has the bytes of real(10) in gfortran.
program quad_precision
  use backstay
  implicit none

  integer, parameter :: quad = selected_real_kind(30)
  real(quad), target :: r16(2)
  complex(quad), target :: c16
  type(backstay_session) :: session
  logical :: found

  r16 = 0
  c16 = 0
  call backstay_open_single(session)
  call backstay_protect(session, "r16", r16)
  call backstay_protect(session, "c16", c16)
  call backstay_restore(session, found)
  if (found) then
    if (any(abs(r16 - 1 / [3.0_quad, 7.0_quad]) > 0) .or. abs(c16 - cmplx(r16(1), r16(2), quad)) > 0) &
      error stop "quad: not the same"
    print "(a)", "restored"
  end if
  r16 = 1 / [3.0_quad, 7.0_quad]
  c16 = cmplx(r16(1), r16(2), quad)
  call backstay_checkpoint(session)
  call backstay_close(session)
end program
