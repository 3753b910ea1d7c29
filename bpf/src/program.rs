use libbpf_rs::{PrintLevel, ProgramInput};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// A test run failed in the kernel.
#[derive(Debug, thiserror::Error)]
#[error("test run of {program}: {source}")]
pub struct RunError {
    /// Which program.
    pub program: String,
    /// What the kernel said.
    pub source: libbpf_rs::Error,
}

/// What a program did with a packet (`BPF_PROG_TEST_RUN`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRun {
    /// The verdict: `XDP_PASS` and the like.
    pub action: u32,
    /// The frame as the program left it.
    pub frame: Vec<u8>,
    /// Mean time of a run.
    pub duration: Duration,
}

/// The largest frame that a test run takes: one page less what the kernel keeps for itself.
const LARGEST_FRAME: usize = 4096;

/// Runs a loaded program on `frame`, `repeat` times; every run sees what the one before left.
pub(crate) fn test_run(
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

/// Runs an XDP program on `packets` copies of `frame` that really go where it sends them; copies may be used again as
/// the program has left them.
pub(crate) fn live_run(
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

/// What libbpf has to say goes to the log, where the details of an error belong, and not to standard error.
pub(crate) fn log_libbpf() {
    fn log(_: PrintLevel, text: String) {
        tracing::debug!("{}", text.trim_end());
    }
    libbpf_rs::set_print(Some((PrintLevel::Info, log)));
}

/// The descriptor of a program, for attaching it.
pub(crate) fn fd<'a>(program: &'a libbpf_rs::Program<'_>) -> BorrowedFd<'a> {
    program.as_fd()
}
