// SPDX-License-Identifier: Apache-2.0 OR MIT
// The headers are C and C++; so is the program.
#include "counter.c"
