/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Fills backstay.h's structs field by field with numbers that calls.f90 expects in its types. */
#include <backstay/backstay.h>

void fill_report(backstay_report *report)
{
    report->checkpoint.incarnation = 1;
    report->checkpoint.number = 2;
    report->blocks_total = 3;
    report->blocks_changed = 4;
    report->bytes_total = 5;
    report->bytes_changed = 6;
    report->bytes_manifest = 7;
    report->blocking_seconds = 8;
    report->capture_seconds = 9;
    report->commit_seconds = 10;
    report->protect_seconds = 11;
    report->archive_seconds = 12;
}

void fill_restored(backstay_restored *restored)
{
    restored->checkpoint.incarnation = 1;
    restored->checkpoint.number = 2;
    restored->bytes_read = 3;
    restored->seconds = 4;
    restored->ranks_then = 5;
    restored->fell_back = 6;
    restored->unclaimed = 7;
}

void fill_scrubbed(backstay_scrubbed *scrubbed)
{
    scrubbed->blocks_checked = 1;
    scrubbed->blocks_damaged = 2;
    scrubbed->blocks_healed = 3;
}

size_t size_of_struct(int which)
{
    static const size_t sizes[] = {sizeof(backstay_report), sizeof(backstay_restored), sizeof(backstay_scrubbed)};

    return sizes[which];
}

/* The constants of the header, in the order in which calls.f90 has its own. */
int constant(int which)
{
    static const int constants[] = {
        BACKSTAY_OK, BACKSTAY_NO_CHECKPOINT, BACKSTAY_INVALID_ARGUMENT, BACKSTAY_VARIABLE_MISMATCH,
        BACKSTAY_CONFIGURATION, BACKSTAY_STORE_FULL, BACKSTAY_STORE_BUSY, BACKSTAY_STORE_IO,
        BACKSTAY_STORE_FAILED, BACKSTAY_UNREADABLE, BACKSTAY_EARLIER_FAILED, BACKSTAY_CORRUPT, BACKSTAY_NOT_RETAINED, BACKSTAY_TIMEOUT,
        BACKSTAY_COMMUNICATOR, BACKSTAY_PEER_FAILED, BACKSTAY_PEER_UNREACHABLE, BACKSTAY_UNSUPPORTED,
        BACKSTAY_INTERNAL, BACKSTAY_TRACKING_DEFAULT, BACKSTAY_TRACKING_FULL, BACKSTAY_TRACKING_HASH,
        BACKSTAY_TRACKING_PAGES, BACKSTAY_TRACKING_MARKED, BACKSTAY_LEVEL_NODE, BACKSTAY_LEVEL_PROTECTED,
        BACKSTAY_LEVEL_ARCHIVE, BACKSTAY_SHORTFALL_BYTES};

    return constants[which];
}
