/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One process without MPI; a mistake gets a status and a text. */
#include <backstay/backstay.h>

#include <stdio.h>

int main(void)
{
    backstay_session *session = NULL;
    double cell[100] = {0};

    if (backstay_open(NULL, NULL, &session) != BACKSTAY_OK ||
        backstay_protect(session, "cell", BACKSTAY_F64, cell, 100) != BACKSTAY_OK ||
        backstay_protect(session, "cell", 99, cell, 100) != BACKSTAY_INVALID_ARGUMENT) {
        fprintf(stderr, "%s\n", backstay_message(session));
        return 1;
    }
    printf("%s; version %s, header %s\n", backstay_message(session), backstay_version(),
           BACKSTAY_VERSION);
    return backstay_close(session) == BACKSTAY_OK ? strcmp(backstay_version(), BACKSTAY_VERSION) : 1;
}
