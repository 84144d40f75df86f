/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What stands around lines of C of a page that open a session. */
#include "around.h"

static int block(void)
{
    {
BLOCK
    }
    compute_something();
    return backstay_message(session)[0] == '\0' ? 0 : failed();
}
