// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: sizes, times and rates as people write them: `2GiB`, `10min`, `500MB/s`.
//! In: the text of an option or a setting. Out: the number in the unit of that option; a bare number is in it already.
//! Invariants: the one parser of the command line and of settings; a unit that could mean two things is refused, with
//! what to write instead.

/// Bytes of each unit.
const BYTES: [(&str, f64); 12] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("PB", 1e15),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("PiB", 1_125_899_906_842_624.0),
];

/// Seconds of each unit.
const SECONDS: [(&str, f64); 6] = [
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
    ("a", 31_557_600.0),
];

/// A number and what stands behind it.
fn split(text: &str) -> Result<(f64, &str), String> {
    let text = text.trim();
    let is_exponent = |at: usize| {
        let next = text[at + 1..].trim_start_matches(['+', '-']);
        next.starts_with(|c: char| c.is_ascii_digit())
    };
    let in_number = |(at, c): (usize, char)| {
        c.is_ascii_digit() || "+-.".contains(c) || "eE".contains(c) && at > 0 && is_exponent(at)
    };
    let end = text.char_indices().find(|&found| !in_number(found));
    let (number, unit) = text.split_at(end.map_or(text.len(), |(at, _)| at));
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok((value, unit.trim())),
        _ => Err("it does not begin with a number".to_owned()),
    }
}

fn in_unit(text: &str, units: &[(&str, f64)], of_bare: f64, write: &str) -> Result<f64, String> {
    let explain = |why: &str| format!("{why}: write {write}");
    let (value, unit) = split(text).map_err(|why| explain(&why))?;
    if unit.is_empty() {
        return Ok(value);
    }
    let found = units.iter().find(|(name, _)| *name == unit);
    let (_, scale) = found.ok_or_else(|| explain(&format!("{unit:?} is no unit here")))?;
    Ok(value * scale / of_bare)
}

/// Seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    in_unit(text, &SECONDS, 1.0, "seconds, or 500ms, 30s, 10min, 2h, 1d")
}

/// Hours.
pub fn hours(text: &str) -> Result<f64, String> {
    in_unit(
        text,
        &SECONDS,
        3600.0,
        "hours, or 30min, 12h, 7d, 5a (years)",
    )
}

/// GB.
pub fn gigabytes(text: &str) -> Result<f64, String> {
    in_unit(text, &BYTES, 1e9, "GB, or 512MiB, 2GiB, 2GB, 1.5TB")
}

/// GB/s.
pub fn gigabytes_per_second(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let size = text.strip_suffix("/s").unwrap_or(text);
    in_unit(size, &BYTES, 1e9, "GB/s, or 500MB/s, 2GiB/s, 1TB/s")
}

/// Whole seconds, rounded up, up to ten years.
pub fn whole_seconds(text: &str) -> Result<u64, String> {
    let value = seconds(text)?.ceil();
    if !(0.0..=3.2e8).contains(&value) {
        return Err("allowed is 0 s to 10 years".to_owned());
    }
    Ok(rounded(value))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, below 2^63, and what is rounded away is noise"
)]
fn rounded(value: f64) -> u64 {
    value.round() as u64
}

/// A whole number of `what`. A bare one is taken digit by digit.
fn whole(
    text: &str,
    what: &str,
    parse: impl Fn(&str) -> Result<f64, String>,
) -> Result<u64, String> {
    if let Ok(number) = text.trim().parse() {
        return Ok(number);
    }
    let value = parse(text)?;
    if !(0.0..9.2e18).contains(&value) {
        let why = if value < 0.0 {
            "less than 0"
        } else {
            "too large"
        };
        return Err(format!("it is {why}"));
    }
    // A product of a few digits and a unit has no more error than that.
    if (value - value.round()).abs() > 1e-9 * value.max(1.0) {
        return Err(format!("it is no whole number of {what}"));
    }
    Ok(rounded(value))
}

/// How many of something, at least one.
pub fn count(text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(0) => Err("allowed is 1 and more".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("it is not a whole number, from 1 to 4294967295".to_owned()),
    }
}

/// The number of something, from 1 on.
pub fn number(text: &str) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(0) => Err("the first is 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("it is not a whole number".to_owned()),
    }
}

/// Bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let write = "bytes, or 64KiB, 512MiB, 2GiB, 2GB";
    whole(text, "bytes", |text| in_unit(text, &BYTES, 1.0, write))
}

/// Bytes a second.
pub fn bytes_per_second(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let size = text.strip_suffix("/s").unwrap_or(text);
    let write = "bytes a second, or 500MB/s, 2GiB/s";
    whole(size, "bytes a second", |text| {
        in_unit(text, &BYTES, 1.0, write)
    })
}

/// Milliseconds.
pub fn milliseconds(text: &str) -> Result<u64, String> {
    let write = "milliseconds, or 500ms, 30s, 10min, 2h";
    whole(text, "milliseconds", |text| {
        in_unit(text, &SECONDS, 1e-3, write)
    })
}

/// Whole hours.
pub fn whole_hours(text: &str) -> Result<u64, String> {
    whole(text, "hours", hours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Result<f64, String>, wanted: f64) {
        let found = found.unwrap();
        assert!(
            (found - wanted).abs() <= wanted.abs() * 1e-12,
            "{found} {wanted}"
        );
    }

    #[test]
    fn a_bare_number_is_in_the_unit_of_the_option() {
        close(seconds("90"), 90.0);
        close(hours("1.5"), 1.5);
        close(gigabytes("29"), 29.0);
        close(gigabytes_per_second("6.7e1"), 67.0);
        close(gigabytes("-1e-3"), -1e-3);
    }

    #[test]
    fn units_are_turned_into_that_of_the_option() {
        close(seconds("10min"), 600.0);
        close(seconds("30 s"), 30.0);
        close(seconds("250ms"), 0.25);
        close(hours("7d"), 168.0);
        close(hours("90min"), 1.5);
        close(gigabytes("2GiB"), 2.147_483_648);
        close(gigabytes("512MiB"), 0.536_870_912);
        close(gigabytes("2GB"), 2.0);
        close(gigabytes("1e3MB"), 1.0);
        close(gigabytes_per_second("500MB/s"), 0.5);
        close(gigabytes_per_second("1TB"), 1000.0);
        assert_eq!(whole_seconds("1.2s"), Ok(2));
        assert_eq!(whole_seconds("2min"), Ok(120));
    }

    #[test]
    fn settings_are_whole_numbers_in_their_unit() {
        for (text, found) in [
            ("4611686018427387904", 1 << 62),
            ("2GiB", 2 << 30),
            ("2 GB", 2_000_000_000),
            ("0.5KiB", 512),
            ("1PiB", 1 << 50),
            ("1e3kB", 1_000_000),
        ] {
            assert_eq!(bytes(text), Ok(found), "{text}");
        }
        assert_eq!((count("3"), number("3")), (Ok(3), Ok(3)));
        assert!(count("0").is_err() && count("-1").is_err() && number("0").is_err());
        assert_eq!(bytes_per_second("500MB/s"), Ok(500_000_000));
        assert_eq!(milliseconds("90s"), Ok(90_000));
        assert_eq!(milliseconds("0.1s"), Ok(100));
        assert_eq!(milliseconds("250"), Ok(250));
        assert_eq!(whole_hours("5a"), Ok(43_830));
        assert_eq!(whole_hours("30d"), Ok(720));
        for (found, says) in [
            (bytes("0.3KiB"), "no whole number of bytes"),
            (bytes("-1"), "less than 0"),
            (bytes("1e30"), "too large"),
            (
                bytes("2G"),
                "\"G\" is no unit here: write bytes, or 64KiB, 512MiB",
            ),
            (
                milliseconds("10m"),
                "write milliseconds, or 500ms, 30s, 10min",
            ),
            (whole_hours("90min"), "no whole number of hours"),
            (bytes(""), "does not begin with a number"),
        ] {
            let error = found.unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn what_is_no_number_or_no_unit_says_what_to_write() {
        for (found, says) in [
            (seconds("soon"), "does not begin with a number"),
            (
                seconds("10m"),
                "\"m\" is no unit here: write seconds, or 500ms, 30s, 10min",
            ),
            (hours(""), "does not begin with a number"),
            (
                gigabytes("2G"),
                "\"G\" is no unit here: write GB, or 512MiB",
            ),
            (gigabytes("2GB/s"), "\"GB/s\" is no unit here"),
            (gigabytes("nan"), "does not begin with a number"),
            (gigabytes("1e999"), "does not begin with a number"),
        ] {
            let error = found.unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        assert!(whole_seconds("-1").is_err() && whole_seconds("11a").is_err());
    }
}
