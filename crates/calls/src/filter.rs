// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the filter of a program's calls: those of `table` are told, all others go on.
//! In from: `table`. Out to: the kernel, which runs it at each call.
//! Invariants: of calls that are never told the kernel keeps that it need not ask again: for these, nothing but their
//! number is looked at.

use crate::table::{self, Entry, When};
use libc::sock_filter;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
const MACHINE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const MACHINE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MACHINE: u32 = 0;

/// Whether calls of this machine are known.
pub(crate) const IS_KNOWN: bool = MACHINE != 0;

/// Numbers of calls of another interface (x32).
const OTHER_INTERFACE: u32 = 0x4000_0000;
/// Where the kernel has what a filter looks at: the number, the machine, the arguments of 8 bytes, low bytes first.
const NUMBER: u32 = 0;
const MACHINE_AT: u32 = 4;
const ARGUMENTS: u32 = 16;
const FLAGS_OF_MMAP: usize = 3;
const FILE_OF_MMAP: usize = 4;

const TOLD: u32 = libc::SECCOMP_RET_USER_NOTIF;
const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

fn statement(code: u32, value: u32) -> sock_filter {
    sock_filter {
        code: u16::try_from(code).unwrap_or_default(),
        jt: 0,
        jf: 0,
        k: value,
    }
}

fn load(at: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

fn give(what: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, what)
}

/// So many instructions are passed over where it holds, and so many where not.
fn test(operation: u32, value: u32, holds: u8, fails: u8) -> sock_filter {
    sock_filter {
        jt: holds,
        jf: fails,
        ..statement(libc::BPF_JMP | operation | libc::BPF_K, value)
    }
}

/// The low half of an argument.
fn argument(at: usize) -> sock_filter {
    load(ARGUMENTS + 8 * u32::try_from(at).unwrap_or_default())
}

/// What is done with a call, once its number is known.
fn decide(when: When, descriptors: &Range<u32>) -> Vec<sock_filter> {
    match when {
        When::Always => vec![give(TOLD)],
        When::Unless(at, bits) => vec![
            argument(at),
            test(libc::BPF_JSET, bits, 1, 0),
            give(TOLD),
            give(ALLOWED),
        ],
        When::From(at) => vec![
            argument(at),
            test(libc::BPF_JGE, descriptors.start, 0, 1),
            give(TOLD),
            give(ALLOWED),
        ],
        When::Mapped => vec![
            argument(FILE_OF_MMAP),
            test(libc::BPF_JGE, descriptors.start, 0, 4),
            test(libc::BPF_JGE, descriptors.end, 3, 0),
            argument(FLAGS_OF_MMAP),
            test(libc::BPF_JSET, libc::MAP_SHARED.cast_unsigned(), 0, 1),
            give(TOLD),
            give(ALLOWED),
        ],
    }
}

/// The filter, for routed files that are written at these descriptors.
pub(crate) fn program(descriptors: &Range<u32>) -> Vec<sock_filter> {
    let mut program = vec![
        load(MACHINE_AT),
        test(libc::BPF_JEQ, MACHINE, 1, 0),
        give(ALLOWED),
        load(NUMBER),
        test(libc::BPF_JGE, OTHER_INTERFACE, 0, 1),
        give(ALLOWED),
    ];
    for Entry { number, when, .. } in table::all() {
        let then = decide(*when, descriptors);
        let number = u32::try_from(*number).unwrap_or(u32::MAX);
        let length = u8::try_from(then.len()).unwrap_or(u8::MAX);
        program.push(test(libc::BPF_JEQ, number, 0, length));
        program.extend(then);
    }
    program.push(give(ALLOWED));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would do.
    fn run(program: &[sock_filter], number: i64, arguments: [u32; 6]) -> u32 {
        let mut at = 0;
        let mut value = 0u32;
        loop {
            let one = program[at];
            at += 1;
            let code = u32::from(one.code);
            match code & 7 {
                libc::BPF_LD => {
                    value = match one.k {
                        NUMBER => u32::try_from(number).expect("number"),
                        MACHINE_AT => MACHINE,
                        other => arguments[((other - ARGUMENTS) / 8) as usize],
                    }
                }
                libc::BPF_RET => return one.k,
                libc::BPF_JMP => {
                    let holds = match code & 0xf0 {
                        libc::BPF_JEQ => value == one.k,
                        libc::BPF_JGE => value >= one.k,
                        libc::BPF_JSET => value & one.k != 0,
                        other => panic!("{other}"),
                    };
                    at += usize::from(if holds { one.jt } else { one.jf });
                }
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn what_cannot_be_of_a_routed_file_is_not_told() {
        let program = program(&(768..1024));
        let told = |number, arguments| run(&program, number, arguments) == TOLD;
        let first = |value| [value, 0, 0, 0, 0, 0];
        let second = |value| [0, value, 0, 0, 0, 0];
        assert!(told(libc::SYS_openat, [0; 6]) && told(libc::SYS_exit_group, [0; 6]));
        assert!(!told(libc::SYS_read, first(900)) && !told(libc::SYS_fstat, first(900)));
        assert!(told(libc::SYS_close, first(768)) && !told(libc::SYS_close, first(767)));
        assert!(told(libc::SYS_dup3, second(1000)) && !told(libc::SYS_dup3, second(5)));
        assert!(told(libc::SYS_close_range, second(u32::MAX)));
        let map = |flags, fd| told(libc::SYS_mmap, [0, 0, 0, flags, fd, 0]);
        assert!(map(1, 768) && map(3, 1023));
        assert!(!map(2, 768) && !map(1, 767) && !map(1, 1024) && !map(0x21, u32::MAX));
        assert!(told(libc::SYS_newfstatat, [0, 0, 0, 0x100, 0, 0]));
        assert!(!told(libc::SYS_newfstatat, [0, 0, 0, 0x1000, 0, 0]));
        let thread = libc::CLONE_THREAD.cast_unsigned();
        assert!(told(libc::SYS_clone, first(0x11)) && !told(libc::SYS_clone, first(thread | 0x11)));
        assert!(!told(i64::from(OTHER_INTERFACE) + 2, [0; 6]));
    }
}
