/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What stands around a loop of a page, with what opens its session before it. */
#include "around.h"

static int block(void)
{
    {
BLOCK
    }
    compute_something();
    return backstay_checkpoint(session, NULL) == BACKSTAY_OK ? 0 : failed();
}
