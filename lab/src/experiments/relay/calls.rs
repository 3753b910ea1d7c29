//! System calls by name, beside those that Pfeifer counted.

use crate::summary::Case;
use nix::libc;

/// The duration of the video of which Pfeifer counted the system calls.
pub(super) const THESIS_S: f64 = 30.0;

/// The tables of Pfeifer's appendix: of his relay in the kernel, and of the one in user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Appendix {
    A,
    B,
}

/// A system call with the numbers that the relay made in 30 s, in appendix A and in appendix B. `None` if they are not
/// listed, because they are few.
type Call = (&'static str, libc::c_long, [Option<u32>; 2]);

const CALLS: [Call; 13] = [
    ("futex", libc::SYS_futex, [Some(21_666), Some(32_940)]),
    (
        "epoll_pwait",
        libc::SYS_epoll_pwait,
        [Some(11_289), Some(34_149)],
    ),
    ("epoll_wait", libc::SYS_epoll_wait, [None, None]),
    ("ppoll", libc::SYS_ppoll, [None, None]),
    (
        "nanosleep",
        libc::SYS_nanosleep,
        [Some(14_293), Some(24_716)],
    ),
    ("recvmmsg", libc::SYS_recvmmsg, [Some(4_898), Some(7_719)]),
    ("recvmsg", libc::SYS_recvmsg, [None, None]),
    ("recvfrom", libc::SYS_recvfrom, [None, None]),
    ("sendmmsg", libc::SYS_sendmmsg, [None, None]),
    ("sendmsg", libc::SYS_sendmsg, [Some(1_133), Some(11_862)]),
    ("read", libc::SYS_read, [Some(30_236), Some(30_601)]),
    ("write", libc::SYS_write, [Some(1_262), Some(1_751)]),
    ("bpf", libc::SYS_bpf, [Some(1_314), None]),
];

/// All of them, with those that have no name here.
const ALL: [u32; 2] = [225_674, 296_132];

/// Sets the system calls of a second by name, and those of the thesis.
pub(super) fn set(case: &mut Case, counts: &[(u32, u64)], seconds: f64, appendix: Appendix) {
    let column = appendix as usize;
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    case.metrics.set("syscalls_per_s", total as f64 / seconds);
    let paper = |count: u32| f64::from(count) / THESIS_S;
    case.paper.set("syscalls_per_s", paper(ALL[column]));
    for (name, number, theirs) in CALLS {
        let count = counts.iter().find(|(call, _)| i64::from(*call) == number);
        let count = count.map_or(0, |(_, count)| *count);
        let name = format!("{name}_calls_per_s");
        case.metrics.set(&name, count as f64 / seconds);
        if let Some(theirs) = theirs[column] {
            case.paper.set(&name, paper(theirs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_stand_beside_those_of_their_table() {
        let counts = [(libc::SYS_futex as u32, 60), (libc::SYS_getpid as u32, 30)];
        let mut case = Case::new("thesis");
        set(&mut case, &counts, 30.0, Appendix::B);
        assert_eq!(case.metrics.get("futex_calls_per_s"), Some(2.0));
        assert_eq!(case.metrics.get("syscalls_per_s"), Some(3.0));
        assert_eq!(case.paper.get("futex_calls_per_s"), Some(1098.0));
        assert_eq!(case.paper.get("bpf_calls_per_s"), None);
    }
}
