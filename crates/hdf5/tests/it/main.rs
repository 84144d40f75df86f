// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The structure of files that h5py and netCDF4 wrote, against what the HDF5 library says of them; and of files that
//! are damaged.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod damaged;
mod fixtures;
