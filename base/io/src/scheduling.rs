//! The share of the processors that a thread gets.

use nix::unistd::gettid;

/// The niceness of background work: a thread of the usual niceness gets nine times as much time.
const BACKGROUND: i32 = 10;

/// Has the calling thread run when others leave time, such as one that draws pictures beside one that
/// receives packets. Needs no privilege. If the kernel does not allow it, the thread runs as before.
pub fn run_in_background() {
    let id = gettid().as_raw().cast_unsigned();
    // SAFETY: the call takes numbers only. On Linux, the id of a thread names that thread alone.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, id, BACKGROUND) };
    if let Err(error) = nix::errno::Errno::result(result) {
        tracing::warn!("background work has the usual priority: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn niceness() -> i32 {
        let id = gettid().as_raw().cast_unsigned();
        // SAFETY: the call takes numbers only.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, id) }
    }

    #[test]
    fn background_work_alone_has_a_lower_priority() {
        let before = niceness();
        let of_thread = thread::spawn(|| {
            run_in_background();
            niceness()
        });
        assert_eq!(of_thread.join().unwrap(), BACKGROUND);
        assert_eq!(niceness(), before);
    }
}
