//! Copies that two CPUs receive at the same time.

use hawser_dedup::{Verdict, Window};
use std::sync::Barrier;

const PACKETS: u64 = 200_000;

/// How far one thread may be ahead of the other: less than the window.
const STRIDE: u64 = 1000;

/// Each thread is a path that delivers every packet.
#[test]
#[allow(clippy::disallowed_methods, reason = "the threads stand for the CPUs that share a window")]
fn of_two_copies_one_passes() {
    let window = Window::new();
    let barrier = Barrier::new(2);
    let path = || -> Vec<Verdict> {
        let arrive = |n| {
            if n % STRIDE == 0 {
                barrier.wait();
            }
            window.observe((1 << 40) + n)
        };
        (0..PACKETS).map(arrive).collect()
    };
    let (one, other) = std::thread::scope(|scope| {
        let (one, other) = (scope.spawn(path), scope.spawn(path));
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
