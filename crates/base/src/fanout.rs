// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: does something for each of many things, several at the same time.
//! In from: whoever asks many nodes, or works on many pieces. Out to: threads that end before it returns.
//! Invariants: threads are bounded, and the calling one works too: where the system gives no others,
//! it does all; what panics is an error of its own item, and the others are done.

use crate::error::{Error, ErrorKind, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// Most threads at a time, the calling one among them.
pub const THREADS_MAX: usize = 64;

/// Runs `what` for each of `items`, with its place, in up to `threads_max` threads; the results in the
/// order of the items.
pub fn each<I: Sync, T: Send>(
    items: &[I],
    threads_max: usize,
    what: impl Fn(usize, &I) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let mut done = run(items, threads_max, Builder::new, &what, |_| false);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The same, for what is of no use unless all of it succeeds: after an error nothing more is begun, and
/// that of the first item with one is returned.
pub fn all<I: Sync, T: Send>(
    items: &[I],
    threads_max: usize,
    what: impl Fn(usize, &I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let mut done = run(items, threads_max, Builder::new, &what, Result::is_err);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// The results in any order, each with its place; after one that is `last`, no item is begun.
fn run<I: Sync, T: Send>(
    items: &[I],
    threads_max: usize,
    builder: impl Fn() -> Builder,
    what: &(impl Fn(usize, &I) -> Result<T> + Sync),
    last: impl Fn(&Result<T>) -> bool + Sync,
) -> Vec<(usize, Result<T>)> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return;
            };
            let result = catch(|| what(at, item));
            if last(&result) {
                next.store(items.len(), Ordering::Relaxed);
            }
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((at, result));
        }
    };
    let threads = items.len().min(threads_max).min(THREADS_MAX);
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let builder = builder().name("backstay-fanout".to_owned());
            if let Err(error) = builder.spawn_scoped(scope, work) {
                tracing::debug!("no thread to work beside this one: {error}");
                break;
            }
        }
        work();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What `what` returns; a panic in it is an error.
pub fn catch<T>(what: impl FnOnce() -> Result<T>) -> Result<T> {
    // What it changed may be half done: whoever calls this treats it as failed.
    catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|panic| {
        let context = format!("a thread panicked: {}", text_of(&*panic));
        Err(Error::new(ErrorKind::Internal, context))
    })
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it does not say why")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn results_stand_in_the_order_of_the_items_and_threads_are_bounded() {
        let items: Vec<usize> = (0..1000).collect();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results = each(&items, usize::MAX, |at, item| {
            let running = now.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(running, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(50));
            now.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(at, *item);
            Ok(at * 2)
        });
        let results: Vec<usize> = results.into_iter().map(Result::unwrap).collect();
        assert_eq!(results, (0..1000).map(|at| at * 2).collect::<Vec<_>>());
        assert!(most.into_inner() <= THREADS_MAX);
        let none: Vec<Result<()>> = each(&[] as &[u8], 8, |_, _| Ok(()));
        assert!(none.is_empty());
    }

    #[test]
    fn a_panic_is_an_error_of_its_item_only() {
        let results = each(&[1, 2, 3], 2, |_, item| {
            assert_ne!(*item, 2, "two is refused");
            Ok(*item)
        });
        assert_eq!(results[0].as_ref().unwrap(), &1);
        assert_eq!(results[2].as_ref().unwrap(), &3);
        let error = results[1].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.to_string().contains("two is refused"), "{error}");
    }

    #[test]
    fn where_there_are_no_threads_the_calling_one_does_all() {
        // No system has room for such a stack.
        let builder = || Builder::new().stack_size(1 << 60);
        assert!(builder().spawn(|| ()).is_err());
        let this = std::thread::current().id();
        let here = |_: usize, item: &u32| {
            assert_eq!(std::thread::current().id(), this);
            Ok(*item)
        };
        let done = run(&[1, 2, 3], 8, builder, &here, |_| false);
        assert_eq!(done.len(), 3);
        assert!(done.iter().all(|(_, result)| result.is_ok()));
    }

    #[test]
    fn after_an_error_nothing_more_is_begun() {
        let begun = AtomicUsize::new(0);
        let result = all(&[0; 500], 4, |at, _| {
            begun.fetch_add(1, Ordering::SeqCst);
            if at == 3 {
                return Err(Error::new(ErrorKind::Timeout, "the fourth"));
            }
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        });
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Timeout);
        assert!(begun.into_inner() < 20);
    }
}
