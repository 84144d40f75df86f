// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: other processes, as the system shows them.
//! In from: `/proc`.
//! Invariants: a process that has begun to end is not said to run.

/// The kernel's mark of a process that ends, among its flags.
const EXITING: u64 = 4;

/// Whether a process goes on, and is not about to end.
pub fn is_running(pid: i32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    // Behind the name, which may have anything in it: the state, then six numbers, then the flags.
    let mut words = text.rsplit(") ").next().unwrap_or_default().split(' ');
    let is_over = matches!(words.next(), Some("Z" | "X") | None);
    let flags = words.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    !is_over && flags.is_some_and(|flags| flags & EXITING == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_until_it_ends() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(is_running(own));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        // Not waited for: it is there still, and over.
        while is_running(pid) && std::time::Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(!is_running(pid));
        child.wait().unwrap();
        assert!(!is_running(pid));
    }
}
