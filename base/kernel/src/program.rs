//! Loaded programs: test runs, the log, their descriptors.

use libbpf_rs::skel::SkelBuilder;
use libbpf_rs::{PrintLevel, ProgramInput};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A test run failed in the kernel.
#[derive(Debug, thiserror::Error)]
#[error("test run of {program}: {source}")]
pub struct RunError {
    /// The program's name.
    pub program: String,
    /// The error from the kernel.
    pub source: libbpf_rs::Error,
}

/// The result of running a program on a packet (`BPF_PROG_TEST_RUN`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value, such as `XDP_PASS`.
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// Mean duration of a run.
    pub duration: Duration,
}

/// The largest frame that a test run accepts: one page less the kernel's own headroom.
const LARGEST_FRAME: usize = 4096;

/// Runs a loaded program on `frame`, `repeat` times. Every run sees the frame that the previous one
/// left.
pub fn test_run(
    program: &libbpf_rs::ProgramMut<'_>,
    frame: &[u8],
    repeat: u32,
) -> Result<TestRun, RunError> {
    let mut out = vec![0; LARGEST_FRAME];
    let input = ProgramInput {
        data_in: Some(frame),
        data_out: Some(&mut out),
        repeat,
        ..ProgramInput::default()
    };
    run(program, input)
}

/// Runs a TC program on a frame whose sum was computed by a device (`CHECKSUM_COMPLETE`). The kernel
/// compares the sum after the run.
pub fn summed_run(program: &libbpf_rs::ProgramMut<'_>, frame: &[u8]) -> Result<TestRun, RunError> {
    // BPF_F_TEST_SKB_CHECKSUM_COMPLETE of linux/bpf.h.
    const CHECKSUM_COMPLETE: u32 = 1 << 2;
    let mut out = vec![0; LARGEST_FRAME];
    let input = ProgramInput {
        data_in: Some(frame),
        data_out: Some(&mut out),
        flags: CHECKSUM_COMPLETE,
        repeat: 1,
        ..ProgramInput::default()
    };
    run(program, input)
}

/// Runs an XDP program on `packets` copies of `frame` that are really forwarded where the program
/// sends them. The kernel may reuse copies as the program left them.
pub fn live_run(
    program: &libbpf_rs::ProgramMut<'_>,
    frame: &[u8],
    packets: u32,
) -> Result<Duration, RunError> {
    let flags = libbpf_rs::libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES;
    let input = ProgramInput {
        data_in: Some(frame),
        flags,
        repeat: packets,
        ..ProgramInput::default()
    };
    Ok(run(program, input)?.duration)
}

fn run(program: &libbpf_rs::ProgramMut<'_>, input: ProgramInput<'_>) -> Result<TestRun, RunError> {
    let output = program.test_run(input).map_err(|source| RunError {
        program: program.name().to_string_lossy().into_owned(),
        source,
    })?;
    Ok(TestRun {
        action: output.return_value,
        frame: output.data.map(|data| data.to_vec()).unwrap_or_default(),
        duration: output.duration,
    })
}

/// Opens programs that are to be loaded. libbpf's messages go to the log instead of standard error. A skeleton borrows its
/// object, which is leaked: a process loads one, of a few bytes.
pub fn open<T: SkelBuilder<'static> + Default>() -> libbpf_rs::Result<T::Output> {
    log_libbpf();
    T::default().open(Box::leak(Box::new(MaybeUninit::uninit())))
}

fn log_libbpf() {
    fn log(_: PrintLevel, text: String) {
        tracing::debug!("{}", text.trim_end());
    }
    libbpf_rs::set_print(Some((PrintLevel::Info, log)));
}

/// Returns the descriptor of a program, for attaching it.
pub fn fd<'a>(program: &'a libbpf_rs::Program<'_>) -> BorrowedFd<'a> {
    program.as_fd()
}
