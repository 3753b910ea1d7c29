//! Copies that two CPUs receive at the same time.

use hawser_dedup::{Verdict, Window};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PACKETS: u64 = 200_000;

/// The maximum lead of one thread over the other, in packets: small enough to contend for a slot,
/// and far less than the window.
const LEAD: u64 = 4;

/// Each thread is a path that delivers every packet.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the threads stand for the CPUs that share a window"
)]
fn of_two_copies_one_passes() {
    let window = Window::new();
    let delivered = [AtomicU64::new(0), AtomicU64::new(0)];
    let path = |own: usize| -> Vec<Verdict> {
        let deliver = |n| {
            while n > delivered[1 - own].load(Relaxed) + LEAD {
                std::thread::yield_now();
            }
            let verdict = window.observe((1 << 40) + n);
            delivered[own].store(n + 1, Relaxed);
            verdict
        };
        (0..PACKETS).map(deliver).collect()
    };
    let (one, other) = std::thread::scope(|scope| {
        let (one, other) = (scope.spawn(|| path(0)), scope.spawn(|| path(1)));
        (one.join().unwrap(), other.join().unwrap())
    });

    for (n, pair) in one.into_iter().zip(other).enumerate() {
        match pair {
            (Verdict::Duplicate, first) | (first, Verdict::Duplicate) => {
                assert!(first.accepts(), "packet {n}")
            }
            (Verdict::Contended, _) | (_, Verdict::Contended) => {}
            both => panic!("packet {n}: {both:?}"),
        }
    }
}
