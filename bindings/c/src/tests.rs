// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: misuse from C becomes a status with a text, never a crash.

use crate::boundary::{guard, message, on_session};
use crate::checkpoint::{
    BACKSTAY_LEVEL_PROTECTED, Id, Protection, Report, backstay_checkpoint,
    backstay_checkpoint_start, backstay_pin, backstay_protection_status, backstay_wait,
};
use crate::comm::Comm;
use crate::options::{Options, backstay_option_set, backstay_options_free, backstay_options_new};
use crate::session::{Session, backstay_close, backstay_finish, backstay_open};
use crate::status::{
    BACKSTAY_COMMUNICATOR, BACKSTAY_CONFIGURATION, BACKSTAY_INTERNAL, BACKSTAY_INVALID_ARGUMENT,
    BACKSTAY_NO_CHECKPOINT, BACKSTAY_NOT_RETAINED, BACKSTAY_OK, BACKSTAY_UNSUPPORTED,
    backstay_message, backstay_refuse,
};
use crate::variable::{
    Array, BACKSTAY_F64, backstay_protect, backstay_protect_array, backstay_unprotect,
};
use crate::{files, restore, sized};
use std::ffi::{CStr, CString, c_void};
use std::mem::{MaybeUninit, size_of};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

fn text(session: *const Session) -> String {
    // SAFETY: a message is a C string.
    let text = unsafe { CStr::from_ptr(backstay_message(session)) };
    text.to_str().unwrap().to_owned()
}

fn zeroed<T: sized::Sized>() -> T {
    // SAFETY: zero bytes are a value of a struct of C.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// A session of one process with its store in a folder of its own.
struct Opened {
    session: *mut Session,
    folder: tempfile::TempDir,
}

fn set(options: *mut Options, name: &str, value: &str) {
    let status = try_to_set(options, name, Some(value));
    assert_eq!(status, BACKSTAY_OK, "{}", text(ptr::null()));
}

fn try_to_set(options: *mut Options, name: &str, value: Option<&str>) -> i32 {
    let name = CString::new(name).unwrap();
    let value = value.map(|value| CString::new(value).unwrap());
    let value = value.as_ref().map_or(ptr::null(), |value| value.as_ptr());
    // SAFETY: both are C strings, or NULL for the value.
    unsafe { backstay_option_set(options, name.as_ptr(), value) }
}

fn opened(comm: Option<&Comm>) -> (i32, Opened) {
    opened_in(tempfile::tempdir().unwrap(), comm)
}

fn opened_in(folder: tempfile::TempDir, comm: Option<&Comm>) -> (i32, Opened) {
    let options = backstay_options_new();
    set(options, "store_path", folder.path().to_str().unwrap());
    set(options, "reserve_bytes", "32MiB");
    set(options, "job", "test");
    let mut session = ptr::null_mut();
    let comm = comm.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: table, options and place are as the header asks.
    let status = unsafe { backstay_open(comm, options, &raw mut session) };
    backstay_options_free(options);
    let opened = Opened { session, folder };
    (status, opened)
}

#[test]
fn five_calls_bring_an_array_back() {
    let (status, opened) = opened(None);
    assert_eq!(status, BACKSTAY_OK, "{}", text(ptr::null()));
    let session = opened.session;
    let mut array = vec![1.5f64; 5000];
    let address: *mut c_void = array.as_mut_ptr().cast();
    // SAFETY: the array is longer lived than the session, and accessed between the calls only.
    unsafe {
        let status = backstay_protect(session, c"a".as_ptr(), BACKSTAY_F64, address, 5000);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        let status = restore::backstay_restore(session, ptr::null_mut());
        assert_eq!(status, BACKSTAY_NO_CHECKPOINT, "{}", text(session));
        let mut report: Report = zeroed();
        report.struct_size = size_of::<Report>();
        let status = backstay_checkpoint(session, &raw mut report);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        assert_eq!(report.bytes_total, 40_000);
        assert_eq!(report.struct_size, size_of::<Report>());
    }
    assert_eq!(backstay_close(session), BACKSTAY_OK);

    let (_status, opened) = opened_in(opened.folder, None);
    let session = opened.session;
    array.fill(0.0);
    // SAFETY: as above.
    unsafe {
        let status = backstay_protect(session, c"a".as_ptr(), BACKSTAY_F64, address, 5000);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        let (mut ids, mut count) = ([Id::default(); 4], 0);
        let place = ids.as_mut_ptr();
        let status = restore::backstay_stored_checkpoints(session, place, 4, &raw mut count);
        assert_eq!((status, count, ids[0].number), (BACKSTAY_OK, 1, 1));
        let (mut shape, mut ndim) = ([0; 8], 0);
        let place = shape.as_mut_ptr();
        let name = c"a".as_ptr();
        let status = restore::backstay_stored_shape(session, name, 0, place, 8, &raw mut ndim);
        assert_eq!((status, ndim, shape[0]), (BACKSTAY_OK, 1, 5000));
        let mut restored: restore::Restored = zeroed();
        restored.struct_size = size_of::<restore::Restored>();
        let status = restore::backstay_restore(session, &raw mut restored);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        assert_eq!(
            (restored.checkpoint.number, restored.bytes_read),
            (1, 40_000)
        );
    }
    assert_eq!(array, vec![1.5; 5000]);
    let listed = |session, list: unsafe extern "C" fn(_, _, _, _) -> i32| {
        let (mut ids, mut count) = ([Id::default(); 4], 0);
        // SAFETY: room for 4 ids, and a place for the count.
        let status = unsafe { list(session, ids.as_mut_ptr(), 4, &raw mut count) };
        assert_eq!(status, BACKSTAY_OK);
        ids[..count]
            .iter()
            .map(|id| id.number)
            .collect::<Vec<u64>>()
    };
    assert_eq!(
        listed(session, restore::backstay_earlier_checkpoints),
        [0; 0]
    );
    assert_eq!(backstay_finish(session), BACKSTAY_OK);

    let (_status, opened) = opened_in(opened.folder, None);
    let session = opened.session;
    assert_eq!(
        listed(session, restore::backstay_stored_checkpoints),
        [0; 0]
    );
    assert_eq!(
        listed(session, restore::backstay_earlier_checkpoints),
        [1, 2]
    );
    assert_eq!(backstay_close(session), BACKSTAY_OK);
}

/// What a buffer of 4096 bytes holds, as a path.
fn path_in(buffer: &[u8; 4096]) -> &std::path::Path {
    let text = CStr::from_bytes_until_nul(buffer).unwrap();
    std::path::Path::new(std::ffi::OsStr::from_bytes(text.to_bytes()))
}

#[test]
fn files_are_routed_into_buffers_as_long_as_they_say() {
    let (_status, opened) = opened(None);
    let session = opened.session;
    let mut routed = [1u8; 4096];
    let place: *mut std::ffi::c_char = routed.as_mut_ptr().cast();
    let name = c"odd \xff".as_ptr();
    let route = |name, place, size| {
        // SAFETY: texts, buffers and their sizes are as the header asks.
        unsafe { files::backstay_route_file(session, name, place, size) }
    };
    // Outside of a set the name comes back, where there is room for it and its zero byte.
    assert_eq!(route(name, place, 5), BACKSTAY_INVALID_ARGUMENT);
    assert!(text(session).contains("room for 5 bytes, 6 are needed"));
    assert_eq!(route(name, place, 6), BACKSTAY_OK);
    assert_eq!(&routed[..7], b"odd \xff\0\x01");
    for (name, place) in [(ptr::null(), place), (name, ptr::null_mut())] {
        assert_eq!(route(name, place, 4096), BACKSTAY_INVALID_ARGUMENT);
        assert!(text(session).contains("NULL"), "{}", text(session));
    }
    assert_eq!(backstay_close(session), BACKSTAY_OK);
}

#[test]
fn a_set_of_files_is_stored_listed_and_read() {
    let (_status, opened) = opened(None);
    let (session, folder) = (opened.session, opened.folder.path());
    let of = |name: &str| CString::new(folder.join(name).to_str().unwrap()).unwrap();
    let (log, copy) = (of("log"), of("copy"));
    std::fs::write(folder.join("log"), "log").unwrap();
    let mut buffer = [1u8; 4096];
    let place: *mut std::ffi::c_char = buffer.as_mut_ptr().cast();
    let name = c"odd \xff".as_ptr();
    let well = |status: i32| assert_eq!(status, BACKSTAY_OK, "{}", text(session));
    let mut report: Report = zeroed();
    report.struct_size = size_of::<Report>();
    let (mut count, mut needed, none) = (0, 0, ptr::null_mut());
    // SAFETY: texts, buffers and their sizes are as the header asks.
    unsafe {
        well(files::backstay_protect_file(
            session,
            c"log".as_ptr(),
            log.as_ptr(),
        ));
        well(files::backstay_output_start(session));
        well(files::backstay_route_file(session, name, place, 4096));
        std::fs::write(path_in(&buffer), "state").unwrap();
        well(files::backstay_output_complete(session, 1, &raw mut report));
        assert_eq!(report.bytes_total, 8);

        let at = &raw mut count;
        well(files::backstay_stored_files(
            session,
            0,
            none,
            0,
            at,
            &raw mut needed,
        ));
        assert_eq!((count, needed), (2, 4 + 6));
        let short = files::backstay_stored_files(session, 0, place, 9, at, ptr::null_mut());
        assert_eq!(short, BACKSTAY_INVALID_ARGUMENT);
        well(files::backstay_stored_files(
            session,
            0,
            place,
            10,
            at,
            ptr::null_mut(),
        ));
        assert_eq!(&buffer[..10], b"log\0odd \xff\0");

        well(files::backstay_restart_start(session, ptr::null_mut()));
        well(files::backstay_route_file(session, name, place, 4096));
        assert_eq!(std::fs::read(path_in(&buffer)).unwrap(), b"state");
        well(files::backstay_restart_complete(session, 1));
        well(files::backstay_restore_file(
            session,
            name,
            0,
            copy.as_ptr(),
        ));
    }
    assert_eq!(std::fs::read(folder.join("copy")).unwrap(), b"state");
    assert_eq!(backstay_close(session), BACKSTAY_OK);
}

#[test]
fn a_closed_session_and_null_are_refused() {
    let (_status, opened) = opened(None);
    assert_eq!(backstay_close(opened.session), BACKSTAY_OK);
    // SAFETY: the pointer is a key, not followed.
    let status = unsafe { backstay_checkpoint(opened.session, ptr::null_mut()) };
    assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
    assert!(text(ptr::null()).contains("no open session"));
    // SAFETY: as above.
    let status = unsafe { backstay_unprotect(ptr::null_mut(), c"a".as_ptr()) };
    assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
    assert!(text(ptr::null()).contains("session is NULL"));
    assert_eq!(backstay_close(ptr::null_mut()), BACKSTAY_OK);
    assert_eq!(backstay_close(opened.session), BACKSTAY_INVALID_ARGUMENT);
}

#[test]
fn wrong_arguments_are_named() {
    let (_status, opened) = opened(None);
    let session = opened.session;
    let protect = |name: Option<&CStr>, element: i32, address: *mut c_void| {
        let name = name.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: everything here is refused before memory is used.
        let status = unsafe { backstay_protect(session, name, element, address, 1) };
        assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
        text(session)
    };
    let mut cell = 0.0f64;
    let address = (&raw mut cell).cast();
    assert!(protect(None, BACKSTAY_F64, address).contains("name is NULL"));
    assert!(protect(Some(c"a"), 99, address).contains("type 99"));
    assert!(protect(Some(c"a"), BACKSTAY_F64, ptr::null_mut()).contains("address is NULL"));
    assert!(protect(Some(c"\xff"), BACKSTAY_F64, address).contains("not UTF-8"));
    let mut report: Report = zeroed();
    // SAFETY: the struct is as long as it says, which is too short.
    let status = unsafe { backstay_checkpoint(session, &raw mut report) };
    assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
    assert!(text(session).contains("backstay_report_default()"));
    assert_eq!(backstay_close(session), BACKSTAY_OK);
}

#[test]
fn a_panic_poisons_its_session_only() {
    let (_status, opened) = opened(None);
    let status = on_session(opened.session, "test", |_state| panic!("on purpose"));
    assert_eq!(status, BACKSTAY_INTERNAL);
    assert!(text(opened.session).contains("on purpose"));
    // SAFETY: no memory is handed over.
    let status = unsafe { backstay_checkpoint(opened.session, ptr::null_mut()) };
    assert_eq!(status, BACKSTAY_INTERNAL);
    assert!(text(opened.session).contains("only be closed"));
    assert_eq!(backstay_close(opened.session), BACKSTAY_INTERNAL);
    assert_eq!(guard("test", || Ok(())), BACKSTAY_OK);
}

#[test]
fn two_threads_at_once_are_refused() {
    let (_status, opened) = opened(None);
    let key = opened.session.addr();
    let status = on_session(opened.session, "outer", |_state| {
        let other = std::thread::spawn(move || {
            let session = ptr::without_provenance_mut(key);
            (
                on_session(session, "inner", |_state| Ok(())),
                backstay_close(session),
            )
        });
        let refused = other.join().unwrap();
        assert_eq!(
            refused,
            (BACKSTAY_INVALID_ARGUMENT, BACKSTAY_INVALID_ARGUMENT)
        );
        Ok(())
    });
    assert_eq!(status, BACKSTAY_OK, "{}", text(ptr::null()));
    assert_eq!(backstay_close(opened.session), BACKSTAY_OK);
}

#[test]
fn a_handle_is_waited_for_once() {
    let (_status, opened) = opened(None);
    let session = opened.session;
    let mut handle = ptr::null_mut();
    // SAFETY: places for results are valid.
    unsafe {
        let status = backstay_checkpoint_start(session, &raw mut handle);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        let mut done = false;
        let status = crate::checkpoint::backstay_test(session, handle, 1, &raw mut done);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        let status = backstay_wait(session, handle, 1, ptr::null_mut());
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        let status = backstay_wait(session, handle, 1, ptr::null_mut());
        assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
    }
    assert_eq!(backstay_close(session), BACKSTAY_OK);
}

#[test]
fn what_is_durable_at_which_level_is_told() {
    let (_status, opened) = opened(None);
    let session = opened.session;
    let mut now: Protection = zeroed();
    now.struct_size = size_of::<Protection>();
    let mut handle = ptr::null_mut();
    // SAFETY: places for results are valid.
    unsafe {
        let status = backstay_protection_status(session, &raw mut now);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        assert_eq!((now.at_node.number, now.losses_asked), (0, 0));
        let status = backstay_checkpoint_start(session, &raw mut handle);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        // Without redundancy nothing more is to come, and waiting for it is refused.
        let level = BACKSTAY_LEVEL_PROTECTED;
        let mut over = false;
        let status = crate::checkpoint::backstay_test(session, handle, level, &raw mut over);
        assert_eq!((status, over), (BACKSTAY_OK, true), "{}", text(session));
        let status = backstay_wait(session, handle, level, ptr::null_mut());
        assert_eq!(status, BACKSTAY_UNSUPPORTED);
        assert!(
            text(session).contains("set redundancy"),
            "{}",
            text(session)
        );
        let status = backstay_protection_status(session, &raw mut now);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        let status = backstay_protection_status(session, ptr::null_mut());
        assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
    }
    assert_eq!((now.at_node.number, now.at_protected.number), (1, 0));
    assert_eq!((now.encoding.number, now.losses_covered), (0, 0));
    assert_eq!(now.shortfall[0], 0);
    assert_eq!(backstay_close(session), BACKSTAY_OK);
}

#[test]
fn redundancy_on_one_node_is_told_to_be_short() {
    let folder = tempfile::tempdir().unwrap();
    let options = backstay_options_new();
    set(options, "store_path", folder.path().to_str().unwrap());
    set(options, "redundancy", "rs");
    set(options, "parity", "3");
    let mut session = ptr::null_mut();
    let mut now: Protection = zeroed();
    now.struct_size = size_of::<Protection>();
    // SAFETY: options and places are as the header asks.
    unsafe {
        let status = backstay_open(ptr::null(), options, &raw mut session);
        assert_eq!(status, BACKSTAY_OK, "{}", text(ptr::null()));
        let status = backstay_protection_status(session, &raw mut now);
        assert_eq!(status, BACKSTAY_OK, "{}", text(session));
        assert_eq!((now.losses_asked, now.losses_covered), (3, 0));
        let why = CStr::from_ptr(now.shortfall.as_ptr()).to_str().unwrap();
        assert!(why.contains("one node"), "{why}");
        assert_eq!(backstay_close(session), BACKSTAY_OK);
    }
    backstay_options_free(options);
}

#[test]
fn options_are_set_by_name_and_a_wrong_one_is_told_twice() {
    let options = backstay_options_new();
    set(options, "changed_share", "0");
    set(options, "retained", "3");
    set(options, "encode_threads", "4");
    set(options, "archive_codec", "ratio");
    set(options, "parity", "5");
    assert_eq!(try_to_set(options, "parity", None), BACKSTAY_OK);
    let config = crate::options::config(options).unwrap();
    assert_eq!((config.retained, config.parity), (3, 2));
    assert_eq!((config.changed_share, config.encode_threads), (0.0, 4));
    for (name, value, said) in [
        ("retaned", "3", "retaned is no setting, and nearly retained"),
        (
            "retained",
            "many",
            "retained is \"many\": it is not a whole number",
        ),
        ("redundancy", "wood", "write none"),
    ] {
        let options = backstay_options_new();
        let status = try_to_set(options, name, Some(value));
        assert_eq!(status, BACKSTAY_CONFIGURATION, "{name}");
        assert!(text(ptr::null()).contains(said), "{}", text(ptr::null()));
        set(options, "retained", "4");
        let mut session = ptr::null_mut();
        // SAFETY: options and place are as the header asks.
        let status = unsafe { backstay_open(ptr::null(), options, &raw mut session) };
        assert_eq!(status, BACKSTAY_CONFIGURATION, "{name}");
        assert!(text(ptr::null()).contains(said), "{}", text(ptr::null()));
        backstay_options_free(options);
    }
    assert_eq!(
        try_to_set(options, "retained", Some("1")),
        BACKSTAY_CONFIGURATION
    );
    assert!(crate::options::config(options).is_err());
    backstay_options_free(options);
    backstay_options_free(options);
    assert_eq!(
        try_to_set(options, "parity", Some("1")),
        BACKSTAY_INVALID_ARGUMENT
    );
    assert_eq!(
        try_to_set(ptr::null_mut(), "parity", Some("1")),
        BACKSTAY_INVALID_ARGUMENT
    );
    assert!(crate::options::config(options).is_err(), "they are gone");
}

#[test]
fn what_is_closed_has_no_name_of_what_comes_later() {
    let (_, first) = opened(None);
    let former = first.session;
    let mut handle = ptr::null_mut();
    // SAFETY: the place is valid.
    let status = unsafe { backstay_checkpoint_start(former, &raw mut handle) };
    assert_eq!(status, BACKSTAY_OK);
    assert_eq!(backstay_close(former), BACKSTAY_OK);
    for _ in 0..20 {
        let (_, later) = opened(None);
        assert_ne!(former, later.session);
        assert_eq!(backstay_pin(former, 1), BACKSTAY_INVALID_ARGUMENT);
        let mut own = ptr::null_mut();
        // SAFETY: the places are valid.
        unsafe {
            let status = backstay_checkpoint_start(later.session, &raw mut own);
            assert_eq!(status, BACKSTAY_OK, "{}", text(later.session));
            for _ in 0..2 {
                let status = backstay_wait(later.session, handle, 1, ptr::null_mut());
                assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
            }
            let status = backstay_wait(later.session, own, 1, ptr::null_mut());
            assert_eq!(status, BACKSTAY_OK, "{}", text(later.session));
            let status = backstay_wait(later.session, own, 1, ptr::null_mut());
            assert_eq!(status, BACKSTAY_INVALID_ARGUMENT, "a handle waits once");
        }
        assert_eq!(backstay_close(later.session), BACKSTAY_OK);
    }
}

#[test]
fn a_message_stays_though_another_thread_fails() {
    let (_, opened) = opened(None);
    let session = opened.session;
    assert_eq!(backstay_pin(session, 77), BACKSTAY_NOT_RETAINED);
    let shown = message(session);
    // SAFETY: a C string, until this thread calls again.
    let before = unsafe { CStr::from_ptr(shown) }.to_owned();
    let place = session.addr();
    std::thread::spawn(move || {
        let session = ptr::without_provenance_mut(place);
        for number in 100..200 {
            assert_eq!(backstay_pin(session, number), BACKSTAY_NOT_RETAINED);
        }
    })
    .join()
    .unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(shown) }, &*before);
    assert!(text(session).contains("199"), "{}", text(session));
    assert_eq!(backstay_close(session), BACKSTAY_OK);
}

unsafe extern "C" fn broken_allgather(
    _context: *mut c_void,
    _mine: *const c_void,
    _bytes: usize,
    _all: *mut c_void,
) -> i32 {
    // SAFETY: a C string.
    unsafe { backstay_refuse(7, c"the network is down".as_ptr()) }
}
unsafe extern "C" fn broken_max(_context: *mut c_void, _values: *mut i64, _count: usize) -> i32 {
    // SAFETY: a C string.
    unsafe { backstay_refuse(8, c"the network is down".as_ptr()) }
}
unsafe extern "C" fn broken_barrier(_context: *mut c_void) -> i32 {
    // SAFETY: a C string.
    unsafe { backstay_refuse(9, c"the network is down".as_ptr()) }
}
unsafe extern "C" fn count_release(context: *mut c_void) {
    // SAFETY: the context of these tests is such a counter.
    unsafe { &*context.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_communicator_that_fails_is_released_once_and_heard() {
    let released = AtomicU32::new(0);
    let mut comm: Comm = zeroed();
    comm.struct_size = size_of::<Comm>();
    comm.context = ptr::from_ref(&released).cast_mut().cast();
    comm.size = 2;
    comm.release = Some(count_release);
    let (status, _opened) = opened(Some(&comm));
    assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
    assert!(text(ptr::null()).contains("lacks one of"));
    assert_eq!(released.swap(0, Ordering::Relaxed), 1);

    comm.allgather = Some(broken_allgather);
    comm.allreduce_max = Some(broken_max);
    comm.barrier = Some(broken_barrier);
    let (status, opened) = opened(Some(&comm));
    assert_eq!(status, BACKSTAY_COMMUNICATOR, "{}", text(ptr::null()));
    let expected = "rank 0 returned 8: the network is down";
    assert!(
        text(ptr::null()).contains(expected),
        "{}",
        text(ptr::null())
    );
    assert!(opened.session.is_null());
    assert_eq!(released.load(Ordering::Relaxed), 1);
}

#[test]
fn structs_of_other_ages_are_understood() {
    #[repr(C)]
    struct Longer {
        array: Array,
        unknown: u64,
    }
    let (_, opened) = opened(None);
    let mut longer = Longer {
        array: zeroed(),
        unknown: 0,
    };
    let mut cell = 0.0f64;
    longer.array.struct_size = size_of::<Longer>();
    longer.array.name = c"cell".as_ptr();
    longer.array.address = (&raw mut cell).cast();
    longer.array.element = BACKSTAY_F64;
    let protect = |longer: &Longer| {
        // SAFETY: the struct is as long as it says, and its memory stays until the session ends.
        unsafe { backstay_protect_array(opened.session, ptr::from_ref(longer).cast()) }
    };
    assert_eq!(protect(&longer), BACKSTAY_OK, "{}", text(opened.session));
    longer.unknown = 1;
    assert_eq!(protect(&longer), BACKSTAY_UNSUPPORTED);
    assert_eq!(backstay_close(opened.session), BACKSTAY_OK);
}

#[test]
fn a_message_of_nobody_is_empty_text() {
    std::thread::spawn(|| assert_eq!(text(ptr::null()), ""))
        .join()
        .unwrap();
    assert!(!message(ptr::without_provenance(8)).is_null());
}

#[test]
fn a_struct_that_is_too_long_is_called_so() {
    let (_, opened) = opened(None);
    let mut array: Array = zeroed();
    for (size, words) in [(8, "less than the"), (1 << 20, "more than the")] {
        array.struct_size = size;
        // SAFETY: the size is looked at first, and refused.
        let status = unsafe { backstay_protect_array(opened.session, &raw const array) };
        assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
        assert!(
            text(opened.session).contains(words),
            "{}",
            text(opened.session)
        );
    }
    assert_eq!(backstay_close(opened.session), BACKSTAY_OK);
}

#[test]
fn a_long_name_is_not_repeated_whole() {
    let (_status, opened) = opened(None);
    let session = opened.session;
    for (length, known) in [(300, "255"), (70_000, "70000")] {
        let name = CString::new("n".repeat(length)).unwrap();
        let mut cell = 0.0f64;
        let address = (&raw mut cell).cast();
        // SAFETY: the name is refused before memory is used.
        let status = unsafe { backstay_protect(session, name.as_ptr(), BACKSTAY_F64, address, 1) };
        assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
        let said = text(session);
        assert!(said.len() < 600 && said.contains(known), "{said}");
        // SAFETY: as above.
        let status = unsafe { backstay_unprotect(session, name.as_ptr()) };
        assert_eq!(status, BACKSTAY_INVALID_ARGUMENT);
        assert!(text(session).len() < 600, "{}", text(session));
    }
    assert_eq!(backstay_close(session), BACKSTAY_OK);
}

/// What a child made by fork is told: a number that says what went wrong, or 0.
fn told_in_the_fork(session: *mut Session) -> i32 {
    // SAFETY: the session is open, and nothing is handed over.
    let status = unsafe { backstay_checkpoint(session, ptr::null_mut()) };
    if status != BACKSTAY_INVALID_ARGUMENT || !text(session).contains("a child made by fork") {
        return 1;
    }
    if backstay_close(session) != BACKSTAY_INVALID_ARGUMENT {
        return 2;
    }
    i32::from(!text(ptr::null()).contains("a child made by fork")) * 3
}

#[test]
fn a_forked_child_is_refused() {
    let (_status, opened) = opened(None);
    let status = forked(opened.session);
    assert_eq!(status, 0);
    assert_eq!(backstay_close(opened.session), BACKSTAY_OK);
}

#[test]
fn a_child_forked_while_another_call_looks_for_its_session_is_refused() {
    let (_status, opened) = opened(None);
    let status = crate::boundary::while_somebody_looks(|| forked(opened.session));
    assert_eq!(status, 0);
    assert_eq!(backstay_close(opened.session), BACKSTAY_OK);
}

/// How a child ends that uses the session.
fn forked(session: *mut Session) -> i32 {
    // SAFETY: the child calls what is under test, allocates (which the C library allows), and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: ends the child without what the test's process would do at its end.
        unsafe { libc::_exit(told_in_the_fork(session)) };
    }
    let mut status = -1;
    for _ in 0..3000 {
        // SAFETY: `pid` is our child.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    status
}

/// What the table of [`tables_gather_and_broadcast`] brings: five bytes of rank 0, none of rank 1, two of rank 2.
static BROUGHT: [u8; 7] = [1, 2, 3, 4, 5, 8, 9];
unsafe extern "C" fn gather_of_three(
    _context: *mut c_void,
    mine: *const c_void,
    bytes: usize,
    root: u32,
    lengths: *mut usize,
    all: *mut *const c_void,
) -> i32 {
    if root != 0 {
        return i32::from(!lengths.is_null() || !all.is_null());
    }
    // SAFETY: the root hands in room for a length of each rank, and for where the bytes are.
    unsafe {
        let first = if bytes == 5 { *mine.cast::<u8>() } else { 0 };
        for (rank, length) in [5, 0, 2].into_iter().enumerate() {
            *lengths.add(rank) = length;
        }
        *all = BROUGHT.as_ptr().cast();
        i32::from(bytes == 5 && first != 1)
    }
}
unsafe extern "C" fn broadcast_of_three(
    _context: *mut c_void,
    bytes: *mut c_void,
    count: usize,
    root: u32,
) -> i32 {
    // SAFETY: there are as many bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), count) };
    bytes.fill(u8::try_from(root).unwrap_or(0));
    0
}

#[test]
fn tables_gather_and_broadcast() {
    use engine::Communicator;
    let mut table: Comm = zeroed();
    table.struct_size = size_of::<Comm>();
    table.size = 3;
    table.allgather = Some(broken_allgather);
    table.allreduce_max = Some(broken_max);
    table.barrier = Some(broken_barrier);
    // SAFETY: the table is as long as it says; nothing is released.
    let take = |table: &Comm| unsafe { crate::comm::CallerComm::take(table) }.unwrap();
    let kind = |outcome: Result<Vec<Vec<u8>>, engine::Error>| outcome.unwrap_err().kind();
    // Without them the older ones are called, which fail here.
    let older = take(&table);
    let failed = older.gather(&[1, 2, 3, 4, 5], 0);
    assert!(failed.unwrap_err().to_string().contains("allgather"));
    let failed = older.broadcast(&mut [0], 0);
    assert!(failed.unwrap_err().to_string().contains("allreduce_max"));

    table.gather = Some(gather_of_three);
    table.broadcast = Some(broadcast_of_three);
    let comm = take(&table);
    let gathered = comm.gather(&[1, 2, 3, 4, 5], 0).unwrap();
    assert_eq!(gathered, [vec![1, 2, 3, 4, 5], vec![], vec![8, 9]]);
    assert!(comm.gather(&[1], 1).unwrap().is_empty());
    // It says that this rank brought five.
    let lies = kind(comm.gather(&[1, 2], 0));
    assert_eq!(lies, engine::ErrorKind::Communicator);
    let nobody = kind(comm.gather(&[1], 3));
    assert_eq!(nobody, engine::ErrorKind::InvalidArgument);
    let mut bytes = [7; 3];
    comm.broadcast(&mut bytes, 2).unwrap();
    assert_eq!(bytes, [2; 3]);
    assert!(comm.broadcast(&mut bytes, 3).is_err());
}
