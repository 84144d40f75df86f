//! Stand-in until the real one lands.
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason
)]
use crate::config::Config;
use crate::error::*;
use std::path::PathBuf;
#[derive(Debug, Clone)]
pub struct Place {
    pub directory: PathBuf,
    pub why: String,
    pub free_bytes: u64,
    pub is_memory: bool,
}
#[derive(Debug, Clone)]
pub struct MemoryLimit {
    pub limit_bytes: u64,
    pub used_bytes: u64,
    pub path: PathBuf,
}
fn dir(config: &Config, job: &str, node: &str) -> PathBuf {
    config
        .store_path
        .clone()
        .unwrap_or_else(|| "/dev/shm/backstay-0".into())
        .join(job)
        .join(node)
}
pub fn choose(config: &Config, job: &str, node: &str, _n: Option<u64>) -> Result<Place> {
    let d = dir(config, job, node);
    std::fs::create_dir_all(&d).map_err(|e| Error::io("x", e))?;
    Ok(Place {
        directory: d,
        why: "because".into(),
        free_bytes: 1 << 40,
        is_memory: true,
    })
}
pub fn existing(config: &Config, job: &str, node: &str) -> Option<PathBuf> {
    let d = dir(config, job, node);
    d.join("store.backstay").exists().then_some(d)
}
pub fn memory_limit() -> Option<MemoryLimit> {
    None
}
pub fn check_room(_p: &Place, _b: u64, _l: Option<&MemoryLimit>) -> Result<()> {
    Ok(())
}
pub fn default_job_name() -> String {
    "job".into()
}
pub fn node_name() -> String {
    "node".into()
}
