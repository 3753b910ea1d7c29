use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// From linux/bpf.h and linux/if_link.h; libc does not define these.
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;
const XDP_PASS: i32 = 2;

/// `struct bpf_insn`.
#[repr(C)]
struct Instruction {
    opcode: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// `return XDP_PASS;`
const PASS: [Instruction; 2] = [
    Instruction {
        opcode: 0xb7,
        registers: 0,
        offset: 0,
        immediate: XDP_PASS,
    },
    Instruction {
        opcode: 0x95,
        registers: 0,
        offset: 0,
        immediate: 0,
    },
];

/// The part of `union bpf_attr` that loading a program needs.
#[repr(C)]
#[derive(Default)]
struct LoadProgram {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    device_index: u32,
    attach_type: u32,
}

/// The part of `union bpf_attr` that attaching a program needs.
#[repr(C)]
struct CreateLink {
    program: u32,
    device_index: u32,
    attach_type: u32,
    flags: u32,
}

/// Attaches, in native mode, a program that passes every frame. It is detached when the descriptor
/// is closed.
pub(super) fn attach_pass(device_index: u32) -> io::Result<OwnedFd> {
    let license = c"Dual BSD/GPL";
    let load = LoadProgram {
        kind: BPF_PROG_TYPE_XDP,
        instruction_count: PASS.len() as u32,
        instructions: PASS.as_ptr() as u64,
        license: license.as_ptr() as u64,
        // Without this flag the device could not have an MTU above one page.
        flags: BPF_F_XDP_HAS_FRAGS,
        attach_type: BPF_XDP,
        ..LoadProgram::default()
    };
    let program = bpf(BPF_PROG_LOAD, &load)?;
    let link = CreateLink {
        program: program.as_raw_fd() as u32,
        device_index,
        attach_type: BPF_XDP,
        flags: XDP_FLAGS_DRV_MODE,
    };
    bpf(BPF_LINK_CREATE, &link)
}

/// Calls `bpf(2)` with a command that returns a new descriptor.
fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let attributes = std::ptr::from_ref(attributes);
    // SAFETY: the kernel reads only as many bytes of the attributes as their size says, and of the
    // memory that they point to only the instructions and the license, which are constants.
    let descriptor = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and nothing else owns it; descriptors fit an i32.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}
