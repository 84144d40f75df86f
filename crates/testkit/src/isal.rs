// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: Intel's ISA-L as an independent code over the same field, for tests and comparisons.
//! In: matrices of coefficients and buffers. Out: buffers.
//! Invariants: the library is found at run time, so that nothing but what uses this needs it.
#![expect(unsafe_code, reason = "calls a library of C")]

use libloading::{Library, Symbol};
use std::ffi::{c_int, c_uchar};

/// What `make setup` installs.
const NAME: &str = "libisal.so.2";

/// Bytes that the library's tables take for each coefficient.
const TABLE_BYTES: usize = 32;

type InitTables = unsafe extern "C" fn(c_int, c_int, *const c_uchar, *mut c_uchar);
type EncodeData =
    unsafe extern "C" fn(c_int, c_int, c_int, *mut c_uchar, *mut *mut c_uchar, *mut *mut c_uchar);
type InvertMatrix = unsafe extern "C" fn(*mut c_uchar, *mut c_uchar, c_int) -> c_int;

/// The loaded library.
#[derive(Debug)]
pub struct Isal {
    library: Library,
}

/// Coefficients as the library wants them.
#[derive(Debug, Clone)]
pub struct Tables {
    bytes: Vec<u8>,
    rows: usize,
    sources: usize,
}

impl Isal {
    /// Loads it.
    pub fn load() -> Result<Self, String> {
        // SAFETY: loading it runs no code but the choice of its kernels.
        let library = unsafe { Library::new(NAME) };
        let library = library.map_err(|error| {
            format!("{NAME} cannot be loaded; `make setup` installs it: {error}")
        })?;
        Ok(Self { library })
    }

    fn symbol<T>(&self, name: &str) -> Result<Symbol<'_, T>, String> {
        // SAFETY: the types above are those of isa-l/erasure_code.h.
        unsafe { self.library.get(name) }.map_err(|error| format!("{name}: {error}"))
    }

    /// Tables for coefficients by output, then by source.
    pub fn tables(&self, rows: &[Vec<u8>]) -> Result<Tables, String> {
        let init = self.symbol::<InitTables>("ec_init_tables")?;
        let (flat, sources) = (rows.concat(), rows.first().map_or(0, Vec::len));
        let mut bytes = vec![0; TABLE_BYTES * flat.len()];
        // SAFETY: there are rows times sources coefficients, and 32 bytes for each.
        unsafe {
            init(
                int(sources)?,
                int(rows.len())?,
                flat.as_ptr(),
                bytes.as_mut_ptr(),
            );
        }
        let rows = rows.len();
        Ok(Tables {
            bytes,
            rows,
            sources,
        })
    }

    /// Fills the outputs with the sums of products; all buffers have one length.
    pub fn encode(
        &self,
        tables: &Tables,
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), String> {
        let encode = self.symbol::<EncodeData>("ec_encode_data")?;
        let length = outputs.first().map_or(0, |output| output.len());
        let lengths = sources.iter().map(|source| source.len());
        let mut lengths = lengths.chain(outputs.iter().map(|output| output.len()));
        let counts = (sources.len(), outputs.len());
        if counts != (tables.sources, tables.rows) || lengths.any(|other| other != length) {
            return Err("buffers do not fit the tables".to_owned());
        }
        let mut bytes = tables.bytes.clone();
        let mut from: Vec<*mut u8> = sources
            .iter()
            .map(|source| source.as_ptr().cast_mut())
            .collect();
        let mut to: Vec<*mut u8> = outputs
            .iter_mut()
            .map(|output| output.as_mut_ptr())
            .collect();
        // SAFETY: as many buffers as the tables are for, all of one length; sources are only read.
        unsafe {
            encode(
                int(length)?,
                int(sources.len())?,
                int(outputs.len())?,
                bytes.as_mut_ptr(),
                from.as_mut_ptr(),
                to.as_mut_ptr(),
            );
        }
        Ok(())
    }

    /// The inverse of a square matrix; `None` if there is none.
    pub fn inverse(&self, rows: &[Vec<u8>]) -> Result<Option<Vec<Vec<u8>>>, String> {
        let invert = self.symbol::<InvertMatrix>("gf_invert_matrix")?;
        let size = rows.len();
        let mut flat = rows.concat();
        if flat.len() != size * size {
            return Err("the matrix is not square".to_owned());
        }
        let mut inverse = vec![0; flat.len()];
        // SAFETY: both are square and of this size.
        let status = unsafe { invert(flat.as_mut_ptr(), inverse.as_mut_ptr(), int(size)?) };
        Ok((status == 0).then(|| inverse.chunks(size).map(<[u8]>::to_vec).collect()))
    }
}

fn int(value: usize) -> Result<c_int, String> {
    c_int::try_from(value).map_err(|error| error.to_string())
}
