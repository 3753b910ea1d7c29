use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Gives the calling thread real-time priority (`SCHED_FIFO`) and a timer slack of one nanosecond.
///
/// # Errors
/// If the kernel does not allow it; the priority is then unchanged.
pub fn rise_to_realtime() -> io::Result<()> {
    /// Above ordinary threads, below the kernel's own.
    const PRIORITY: i32 = 10;
    const CALLING_THREAD: libc::pid_t = 0;

    nix::sys::prctl::set_timerslack(1)?;
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the pointer is that of a live `sched_param`, which the kernel only reads.
    let set = unsafe { libc::sched_setscheduler(CALLING_THREAD, libc::SCHED_FIFO, &parameters) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns the processor time that the calling thread has used.
pub fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("the clock exists")
        .into()
}

/// Waits until one of `sources` is readable or closed by its other end, or until `timeout` expires;
/// without a timeout, waits indefinitely.
pub fn wait(sources: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let mut polled: Vec<PollFd<'_>> = sources
        .iter()
        .map(|source| PollFd::new(*source, PollFlags::POLLIN))
        .collect();
    match ppoll(&mut polled, timeout.map(TimeSpec::from), None) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
