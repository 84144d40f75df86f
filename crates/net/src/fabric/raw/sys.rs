// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: structures of libfabric, as its headers of version 1.17 lay them out, as far as they are used.
//! In: nothing. Out to: `raw`.
//! Invariants: only the front of a structure that the library makes is named, since later versions append;
//! the test compares every field with the headers, where they are installed.

use std::ffi::{c_char, c_int, c_void};

/// Asked of the library: version 1.11; what later ones changed is not used.
pub(super) const API: u32 = 0x1_000b;

pub(super) const FI_RMA: u64 = 1 << 2;
pub(super) const FI_READ: u64 = 1 << 8;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_TRANSMIT: u64 = 1 << 11;
pub(super) const FI_REMOTE_READ: u64 = 1 << 12;
pub(super) const FI_SOURCE: u64 = 1 << 57;
pub(super) const FI_NUMERICHOST: u64 = 1 << 55;
pub(super) const FI_CONTEXT: u64 = 1 << 59;
pub(super) const FI_CONTEXT2: u64 = 1 << 52;
pub(super) const FI_MR_LOCAL: c_int = 1 << 2;
pub(super) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(super) const FI_MR_PROV_KEY: c_int = 1 << 6;
pub(super) const FI_THREAD_SAFE: c_int = 1;
pub(super) const FI_EP_RDM: c_int = 3;
pub(super) const FI_AV_TABLE: c_int = 2;
pub(super) const FI_WAIT_NONE: c_int = 0;
pub(super) const FI_WAIT_FD: c_int = 3;
pub(super) const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub(super) const FI_ENABLE: c_int = 6;
pub(super) const FI_EAGAIN: i32 = 11;
pub(super) const FI_EAVAIL: i32 = 259;

/// One of the library's functions; there is none where a provider left it out.
macro_rules! function {
    ($($argument:ty),* => $result:ty) => { Option<unsafe extern "C" fn($($argument),*) -> $result> };
}

/// Structures with fields in their order, and a list of their names for the test.
macro_rules! structures {
    ($($(#[$doc:meta])* struct $name:ident = $c:literal { $($field:ident: $kind:ty,)* })*) => {
        $($(#[$doc])* #[repr(C)] #[derive(Debug)] pub(super) struct $name { $(pub(super) $field: $kind,)* })*
        #[cfg(test)]
        fn all() -> Vec<(&'static str, Vec<(&'static str, usize)>)> {
            vec![$(($c, vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*]),)*]
        }
    };
}

structures! {
    /// What every object begins with.
    struct Fid = "struct fid" {
        fclass: usize,
        context: *mut c_void,
        ops: *const FidOps,
    }
    struct FidOps = "struct fi_ops" {
        size: usize,
        close: function!(*mut Fid => c_int),
        bind: function!(*mut Fid, *mut Fid, u64 => c_int),
        control: function!(*mut Fid, c_int, *mut c_void => c_int),
    }
    struct Info = "struct fi_info" {
        next: *mut Info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: *mut Fid,
        tx_attr: *mut c_void,
        rx_attr: *mut c_void,
        ep_attr: *mut EpAttr,
        domain_attr: *mut DomainAttr,
        fabric_attr: *mut FabricAttr,
    }
    struct EpAttr = "struct fi_ep_attr" {
        r#type: c_int,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
    }
    struct DomainAttr = "struct fi_domain_attr" {
        domain: *mut Domain,
        name: *mut c_char,
        threading: c_int,
        control_progress: c_int,
        data_progress: c_int,
        resource_mgmt: c_int,
        av_type: c_int,
        mr_mode: c_int,
        mr_key_size: usize,
    }
    struct FabricAttr = "struct fi_fabric_attr" {
        fabric: *mut Fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }
    struct Fabric = "struct fid_fabric" {
        fid: Fid,
        ops: *const FabricOps,
    }
    struct FabricOps = "struct fi_ops_fabric" {
        size: usize,
        domain: function!(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void => c_int),
    }
    struct Domain = "struct fid_domain" {
        fid: Fid,
        ops: *const DomainOps,
        mr: *const MrOps,
    }
    struct DomainOps = "struct fi_ops_domain" {
        size: usize,
        av_open: function!(*mut Domain, *mut AvAttr, *mut *mut Av, *mut c_void => c_int),
        cq_open: function!(*mut Domain, *mut CqAttr, *mut *mut Cq, *mut c_void => c_int),
        endpoint: function!(*mut Domain, *mut Info, *mut *mut Ep, *mut c_void => c_int),
    }
    struct MrOps = "struct fi_ops_mr" {
        size: usize,
        reg: function!(*mut Fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut Mr, *mut c_void => c_int),
    }
    struct Mr = "struct fid_mr" {
        fid: Fid,
        mem_desc: *mut c_void,
        key: u64,
    }
    struct AvAttr = "struct fi_av_attr" {
        r#type: c_int,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }
    struct Av = "struct fid_av" {
        fid: Fid,
        ops: *const AvOps,
    }
    struct AvOps = "struct fi_ops_av" {
        size: usize,
        insert: function!(*mut Av, *const c_void, usize, *mut u64, u64, *mut c_void => c_int),
    }
    struct CqAttr = "struct fi_cq_attr" {
        size: usize,
        flags: u64,
        format: c_int,
        wait_obj: c_int,
        signaling_vector: c_int,
        wait_cond: c_int,
        wait_set: *mut c_void,
    }
    struct Cq = "struct fid_cq" {
        fid: Fid,
        ops: *const CqOps,
    }
    struct CqOps = "struct fi_ops_cq" {
        size: usize,
        read: function!(*mut Cq, *mut c_void, usize => isize),
        readfrom: function!(*mut Cq, *mut c_void, usize, *mut u64 => isize),
        readerr: function!(*mut Cq, *mut CqErrEntry, u64 => isize),
        sread: function!(*mut Cq, *mut c_void, usize, *const c_void, c_int => isize),
        sreadfrom: function!(*mut Cq, *mut c_void, usize, *mut u64, *const c_void, c_int => isize),
        signal: function!(*mut Cq => c_int),
    }
    /// One completion of the format that is asked for.
    struct CqEntry = "struct fi_cq_entry" {
        op_context: *mut c_void,
    }
    struct CqErrEntry = "struct fi_cq_err_entry" {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    struct Ep = "struct fid_ep" {
        fid: Fid,
        ops: *const c_void,
        cm: *const CmOps,
        msg: *const c_void,
        rma: *const RmaOps,
    }
    struct CmOps = "struct fi_ops_cm" {
        size: usize,
        setname: function!(*mut Fid, *mut c_void, usize => c_int),
        getname: function!(*mut Fid, *mut c_void, *mut usize => c_int),
    }
    struct RmaOps = "struct fi_ops_rma" {
        size: usize,
        read: function!(*mut Ep, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void => isize),
    }
    /// Memory that a provider uses while an operation is under way.
    struct Context = "struct fi_context2" {
        internal: [*mut c_void; 8],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::io::Write as _;
    use std::path::Path;
    use std::process::Command;

    /// What the headers say: one line for each field, and one for each constant.
    const HEADERS: [&str; 7] = [
        "fabric.h",
        "fi_domain.h",
        "fi_endpoint.h",
        "fi_eq.h",
        "fi_cm.h",
        "fi_rma.h",
        "fi_errno.h",
    ];

    macro_rules! constants {
        ($($name:ident)*) => { [$((stringify!($name), i128::from($name)),)*] };
    }

    #[test]
    fn structures_and_constants_are_those_of_the_headers() {
        if !Path::new("/usr/include/rdma/fi_rma.h").exists() {
            let words = b"SKIPPED: the headers of libfabric are not installed (libfabric-dev)\n";
            std::io::stderr().write_all(words).unwrap();
            return;
        }
        let (mut program, mut expected) = (String::new(), String::new());
        for header in HEADERS {
            writeln!(program, "#include <rdma/{header}>").unwrap();
        }
        program.push_str("#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n");
        for (structure, fields) in all() {
            for (field, offset) in fields {
                let field = field.trim_start_matches("r#");
                writeln!(
                    program,
                    "printf(\"{structure}.{field} %zu\\n\", offsetof({structure}, {field}));"
                )
                .unwrap();
                writeln!(expected, "{structure}.{field} {offset}").unwrap();
            }
        }
        let constants = constants!(
            FI_RMA FI_READ FI_RECV FI_TRANSMIT FI_REMOTE_READ FI_SOURCE FI_NUMERICHOST FI_CONTEXT FI_CONTEXT2
            FI_MR_LOCAL FI_MR_VIRT_ADDR FI_MR_ALLOCATED FI_MR_PROV_KEY FI_THREAD_SAFE FI_EP_RDM FI_AV_TABLE
            FI_WAIT_NONE FI_WAIT_FD FI_CQ_FORMAT_CONTEXT FI_ENABLE FI_EAGAIN FI_EAVAIL
        );
        for (name, value) in constants {
            let line = format!("printf(\"{name} %llu\\n\", (unsigned long long){name});");
            writeln!(program, "{line}").unwrap();
            writeln!(expected, "{name} {value}").unwrap();
        }
        program.push_str("return 0; }\n");
        let folder = tempfile::tempdir().unwrap();
        let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
        std::fs::write(&source, program).unwrap();
        let mut compiler = Command::new("cc");
        let built = compiler
            .arg(&source)
            .arg("-o")
            .arg(&binary)
            .status()
            .unwrap();
        assert!(built.success());
        let printed = Command::new(&binary).output().unwrap().stdout;
        assert_eq!(String::from_utf8(printed).unwrap(), expected);
    }
}
