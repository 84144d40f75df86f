// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Layouts on a real CephFS, whose mounts `BACKSTAY_TEST_CEPHFS` names; `make test-cephfs` starts one.
//! Without it there is nothing to test here.

use backstay_archive::Layout;
use rustix::fs::fgetxattr;
use std::fs::File;
use std::path::{Path, PathBuf};

fn mount() -> Option<PathBuf> {
    let mounts = std::env::var("BACKSTAY_TEST_CEPHFS").ok()?;
    mounts.split(':').next().map(PathBuf::from)
}

fn layout_of(file: &File) -> String {
    let mut bytes = [0; 512];
    let length = fgetxattr(file, "ceph.file.layout", &mut bytes[..]).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

fn made(folder: &Path, name: &str, layout: Layout) -> (File, Vec<String>) {
    let path = folder.join(name);
    let file = File::create_new(&path).unwrap();
    let warnings = layout.apply(&file, &path);
    (file, warnings)
}

#[test]
fn cephfs_files_get_the_layout_asked_for() {
    let Some(folder) = mount() else {
        return;
    };
    assert_eq!(Layout::default().prepare(&folder), Vec::<String>::new());
    let cases = [
        (
            Some(2),
            None,
            "stripe_unit=4194304 stripe_count=2 object_size=4194304 ",
        ),
        (
            Some(4),
            Some(1 << 20),
            "stripe_unit=1048576 stripe_count=4 object_size=4194304 ",
        ),
        (
            None,
            Some(8 << 20),
            "stripe_unit=8388608 stripe_count=1 object_size=8388608 ",
        ),
        (
            Some(3),
            Some(3 << 20),
            "stripe_unit=3145728 stripe_count=3 object_size=6291456 ",
        ),
        (
            None,
            None,
            "stripe_unit=4194304 stripe_count=1 object_size=4194304 ",
        ),
    ];
    for (index, (stripe_count, stripe_size_bytes, words)) in cases.into_iter().enumerate() {
        let layout = Layout {
            stripe_count,
            stripe_size_bytes,
        };
        let (file, warnings) = made(&folder, &format!("layout-{index}"), layout);
        assert_eq!(warnings, Vec::<String>::new(), "{words}");
        file.set_len(64 << 20).unwrap();
        let found = layout_of(&file);
        assert!(found.starts_with(words), "{found}, not {words}");
    }
}

#[test]
fn cephfs_refusals_are_warnings() {
    let Some(folder) = mount() else {
        return;
    };
    let two = Layout {
        stripe_count: Some(2),
        stripe_size_bytes: None,
    };
    let path = folder.join("sized");
    let file = File::create_new(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    let warnings = two.apply(&file, &path);
    assert!(
        warnings.len() == 1 && warnings[0].contains("a size already"),
        "{warnings:?}"
    );
    let odd = Layout {
        stripe_count: Some(100_000),
        stripe_size_bytes: Some(1000),
    };
    let (file, warnings) = made(&folder, "odd", odd);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(layout_of(&file).contains("stripe_count=1 "));
}
