// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a page over HTTP, for a monitoring system: `GET /metrics`, nothing else.
//! Invariants: one thread, one request a connection; a request of more than 8 KiB or 5 s is refused, so a
//! client that is slow or hostile costs that long at most.

use crate::output::{Failure, complain};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Longest time for a request, and for its answer.
const WITHIN: Duration = Duration::from_secs(5);
/// What Prometheus calls its text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves what `page` gives at `/metrics`, until the process ends.
pub(super) fn serve(address: SocketAddr, page: &dyn Fn() -> String) -> Result<(), Failure> {
    let listening = TcpListener::bind(address).and_then(|l| Ok((l.local_addr()?, l)));
    let (bound, listener) = listening.map_err(|error| {
        Failure::output(
            &format!("listening at {address} (give another --listen)"),
            &error,
        )
    })?;
    complain(&format!("serving http://{bound}/metrics"));
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                let answer = match read_head(&mut stream) {
                    Some(head) => answer(&head, page),
                    None => status("400 Bad Request", "a request of at most 8 KiB within 5 s\n"),
                };
                // Whoever went away has no use for it.
                drop(stream.set_write_timeout(Some(WITHIN)));
                drop(
                    stream
                        .write_all(answer.as_bytes())
                        .and_then(|()| stream.flush()),
                );
            }
            // A connection that was given up, or too many files: the next one may be well.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// The request's head, or `None` if it is too long, too slow, or no text.
fn read_head(stream: &mut TcpStream) -> Option<String> {
    let begun = Instant::now();
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = WITHIN
            .checked_sub(begun.elapsed())
            .filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(count) => head.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        if head.len() > HEAD_BYTES_MAX {
            return None;
        }
    }
    String::from_utf8(head).ok()
}

fn answer(head: &str, page: &dyn Fn() -> String) -> String {
    let line = head.lines().next().unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    match *words {
        ["GET", path, version] if version.starts_with("HTTP/1.") => {
            if path.split('?').next() == Some("/metrics") {
                status("200 OK", &page())
            } else {
                status("404 Not Found", "only /metrics is here\n")
            }
        }
        [_, _, version] if version.starts_with("HTTP/1.") => {
            status("405 Method Not Allowed", "only GET\n")
        }
        _ => status("400 Bad Request", "no request of HTTP/1\n"),
    }
}

fn status(status: &str, body: &str) -> String {
    let allow = if status.starts_with("405") {
        "Allow: GET\r\n"
    } else {
        ""
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\n{allow}Connection: \
         close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_of_the_one_page_is_answered() {
        let page = || "page\n".to_owned();
        let of = |head: &str| answer(head, &page);
        assert!(of("GET /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\npage\n"));
        assert!(of("GET /metrics?x=1 HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
        assert!(of("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(of("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        for wrong in ["", "GET /metrics", "GET /metrics HTTP/2\r\n\r\n", "\u{1}"] {
            assert!(of(wrong).starts_with("HTTP/1.1 400"), "{wrong}");
        }
    }
}
