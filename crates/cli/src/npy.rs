// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: arrays as files that numpy reads: .npy, and .npz (a zip of them, stored).
//! In: type, shape, bytes in order. Out: a file that appears under its name only when it is whole.

use crate::draft::{Draft, copy};
use crate::output::Failure;
use backstay::{ElementType, Error};
use backstay_inspect::Array;
use std::io::Write;
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Entries of more bytes than this get sizes of 64 bits.
const LARGE_BYTES: u64 = 0xffff_0000;

/// The type of an array in numpy's words. numpy has no bfloat16: its 16 bits are kept as they are.
pub(crate) const fn dtype(element: ElementType) -> &'static str {
    match element {
        ElementType::I8 => "|i1",
        ElementType::I16 => "<i2",
        ElementType::I32 => "<i4",
        ElementType::I64 => "<i8",
        ElementType::U8 | ElementType::Bytes => "|u1",
        ElementType::U16 | ElementType::Bf16 => "<u2",
        ElementType::U32 => "<u4",
        ElementType::U64 => "<u8",
        ElementType::F16 => "<f2",
        ElementType::F32 => "<f4",
        ElementType::F64 => "<f8",
        ElementType::Complex64 => "<c8",
        ElementType::Complex128 => "<c16",
    }
}

/// What stands before the bytes of an array in a .npy file: version 1.0, padded to 64 bytes.
pub(crate) fn header(element: ElementType, shape: &[u64]) -> Vec<u8> {
    let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        dtype(element),
        extents.join(", ")
    );
    let before = 10;
    let length = (before + text.len() + 1).next_multiple_of(64) - before;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    // At most eight extents of 20 digits: never near the limit of 65535.
    bytes.extend(u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.resize(before + length - 1, b' ');
    bytes.push(b'\n');
    bytes
}

/// Writes header and bytes of an array. What the file refuses comes back as the inner error.
fn write_array(
    file: &mut impl Write,
    array: &Array<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<std::io::Result<()>, Error> {
    match file.write_all(&header(array.element(), array.shape())) {
        Ok(()) => copy(array, file, progress),
        refused => Ok(refused),
    }
}

/// Writes one array as a .npy file.
pub(crate) fn write_npy(
    path: &Path,
    array: &Array<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let (draft, mut file) = Draft::begin(path)?;
    let written = write_array(&mut file, array, progress)?;
    written
        .and_then(|()| file.flush())
        .map_err(|error| draft.failed(&error))?;
    draft.keep(file.get_ref())
}

/// Writes named arrays as a .npz file.
pub(crate) fn write_npz(
    path: &Path,
    arrays: &[(String, Array<'_>)],
    progress: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let (draft, file) = Draft::begin(path)?;
    let failed = |error: zip::result::ZipError| draft.failed(&std::io::Error::other(error));
    let mut archive = ZipWriter::new(file);
    for (name, array) in arrays {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(array.length_bytes() > LARGE_BYTES);
        archive
            .start_file(format!("{name}.npy"), options)
            .map_err(failed)?;
        let written = write_array(&mut archive, array, progress)?;
        written.map_err(|error| draft.failed(&error))?;
    }
    let mut file = archive.finish().map_err(failed)?;
    file.flush().map_err(|error| draft.failed(&error))?;
    draft.keep(file.get_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_aligned_and_say_type_and_shape() {
        for (shape, text) in [
            (vec![], "'shape': (), }"),
            (vec![5], "'shape': (5,), }"),
            (vec![3, 0, 1 << 40], "'shape': (3, 0, 1099511627776), }"),
            (vec![u64::MAX; 8], "'shape': (18446744073709551615, "),
        ] {
            let bytes = header(ElementType::F64, &shape);
            assert_eq!(bytes.len() % 64, 0);
            let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
            assert_eq!(bytes.len(), 10 + length);
            let header = std::str::from_utf8(&bytes[10..]).unwrap();
            assert!(
                header.starts_with("{'descr': '<f8', 'fortran_order': False, "),
                "{header}"
            );
            assert!(header.contains(text) && header.ends_with('\n'), "{header}");
        }
    }
}
