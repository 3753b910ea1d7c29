//! After any sequence of operations, a session becomes idle, and the fate of every packet is known.

use crate::configs::configs;
use crate::network::{MS, Network, Pipe, path};
use hawser_units::ByteSize;
use hawser_xnc::{Config, Hint, SenderStats};
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
enum Operation {
    Pass {
        ms: u64,
    },
    Frame {
        flow: u64,
        packets: u64,
        bytes: usize,
    },
    Packets {
        flow: u64,
        packets: u64,
        urgent: bool,
    },
    Lose {
        path: u8,
        datagrams: u64,
    },
    Reorder {
        path: u8,
    },
    Cut {
        path: u8,
        is_cut: bool,
    },
    Window {
        path: u8,
        bytes: u64,
    },
    Vanish {
        path: u8,
    },
    Appear {
        path: u8,
        delay_ms: u64,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let path = || 0u8..4;
    prop_oneof![
        4 => (1u64..150).prop_map(|ms| Operation::Pass { ms }),
        6 => (0u64..4, 1u64..40, 1usize..1300)
            .prop_map(|(flow, packets, bytes)| Operation::Frame { flow, packets, bytes }),
        4 => (0u64..8, 1u64..100, prop::bool::weighted(0.2))
            .prop_map(|(flow, packets, urgent)| Operation::Packets { flow, packets, urgent }),
        2 => (path(), 1u64..30).prop_map(|(path, datagrams)| Operation::Lose { path, datagrams }),
        1 => path().prop_map(|path| Operation::Reorder { path }),
        2 => (path(), any::<bool>()).prop_map(|(path, is_cut)| Operation::Cut { path, is_cut }),
        1 => (path(), 0u64..100_000).prop_map(|(path, bytes)| Operation::Window { path, bytes }),
        1 => path().prop_map(|path| Operation::Vanish { path }),
        2 => (path(), 1u64..80).prop_map(|(path, delay_ms)| Operation::Appear { path, delay_ms }),
    ]
}

fn apply(network: &mut Network, operation: &Operation) {
    match *operation {
        Operation::Pass { ms } => network.run_for(ms as u32 * MS),
        Operation::Frame {
            flow,
            packets,
            bytes,
        } => {
            if network.ends[0].max_packet() > 0 {
                network.send_frame_of(
                    Hint {
                        flow_hash: flow,
                        ..Hint::default()
                    },
                    packets,
                    bytes,
                );
            }
        }
        Operation::Packets {
            flow,
            packets,
            urgent,
        } => {
            if network.ends[0].max_packet() > 0 {
                let hint = Hint {
                    flow_hash: flow,
                    urgent,
                    ..Hint::default()
                };
                (0..packets).for_each(|_| _ = network.send(hint, 1000));
                network.run_for(MS);
            }
        }
        Operation::Lose {
            path: index,
            datagrams,
        } => {
            network
                .pipes
                .entry(path(index))
                .and_modify(|pipe| pipe.lose_next += datagrams);
        }
        Operation::Reorder { path: index } => {
            network.pipes.entry(path(index)).and_modify(Pipe::reorder);
        }
        Operation::Cut {
            path: index,
            is_cut,
        } => {
            network
                .pipes
                .entry(path(index))
                .and_modify(|pipe| pipe.is_cut = is_cut);
        }
        Operation::Window { path: index, bytes } => {
            network
                .pipes
                .entry(path(index))
                .and_modify(|pipe| pipe.window = bytes);
        }
        Operation::Vanish { path: index } => network.remove(path(index)),
        Operation::Appear {
            path: index,
            delay_ms,
        } => {
            network.add(path(index), Pipe::new(delay_ms as u32 * MS, 100_000));
        }
    }
}

fn becomes_idle(config: Config, operations: &[Operation]) -> Result<(), TestCaseError> {
    let (packet_memory, queue_limit) = (ByteSize(1 << 20), ByteSize(200_000));
    let config = Config {
        packet_memory,
        queue_limit,
        ..config
    };
    let mut network = Network::new(
        config,
        vec![Pipe::new(20 * MS, 60_000), Pipe::new(45 * MS, 60_000)],
    );
    network.run_for(MS);
    for operation in operations {
        apply(&mut network, operation);
    }
    for pipe in network.pipes.values_mut() {
        (pipe.is_cut, pipe.lose_next, pipe.window) = (false, 0, 100_000);
    }
    if network.pipes.is_empty() {
        network.add(path(0), Pipe::new(20 * MS, 100_000));
    }
    network.run_for(20_000 * MS);

    let before: u64 = recovered_bytes(&network);
    network.run_for(1000 * MS);
    prop_assert_eq!(recovered_bytes(&network), before, "packets are still sent");
    let numbers = network.numbers();
    let distinct: BTreeSet<u64> = numbers.iter().copied().collect();
    prop_assert_eq!(
        distinct.len(),
        numbers.len(),
        "each packet is delivered once"
    );
    for (_, packet) in &network.received {
        let number = u64::from_be_bytes(packet.bytes[..8].try_into().unwrap());
        prop_assert!(
            packet.bytes[8..].iter().all(|byte| *byte == number as u8),
            "unchanged"
        );
    }
    let sender = network.ends[0].stats().sender;
    let not_sent = sender.expired + sender.overflowed + sender.congested;
    prop_assert_eq!(
        sender.packets,
        sender.delivered + sender.given_up + not_sent,
        "{:?}",
        sender
    );
    prop_assert!(
        numbers.len() as u64 + sender.given_up + not_sent >= sender.packets,
        "{:?}",
        sender
    );
    Ok(())
}

fn recovered_bytes(network: &Network) -> u64 {
    network.ends[0]
        .stats()
        .sender
        .paths
        .iter()
        .map(|path| path.first_bytes + path.recovery_bytes)
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_session_becomes_idle(
        config in proptest::sample::select(configs()),
        operations in proptest::collection::vec(operation(), 1..60),
    ) {
        becomes_idle(config, &operations)?;
    }
}

/// Sends packets of `bytes` and loses the first ten. Both ends may keep a megabyte. Returns the
/// number of packets that arrived, and the sender's counters.
fn lose_the_first_of(packets: u64, bytes: usize) -> (u64, SenderStats) {
    let config = Config {
        packet_memory: ByteSize(1 << 20),
        ..Config::default()
    };
    let mut network = Network::new(config, vec![Pipe::new(50 * MS, 8 << 20)]);
    network.run_for(150 * MS);
    let pipe = network.pipes.get_mut(&path(0)).unwrap();
    pipe.lose_next = 10;
    for _ in 0..packets {
        network.send(Hint::default(), bytes);
    }
    network.run_for(3000 * MS);
    let sender = network.ends[0].stats().sender;
    (network.numbers().len() as u64, sender)
}

#[test]
fn packets_that_the_receiver_can_no_longer_decode_are_given_up() {
    for (bytes, few, many) in [(1000, 600, 900), (8, 1900, 3000)] {
        let (arrived, sender) = lose_the_first_of(few, bytes);
        assert_eq!((arrived, sender.given_up), (few, 0), "{sender:?}");
        assert!(sender.lost >= 10, "{sender:?}");

        let (arrived, sender) = lose_the_first_of(many, bytes);
        assert!(arrived < many, "the receiver has forgotten the first");
        assert_eq!(sender.delivered + sender.given_up, many, "{sender:?}");
        assert!(arrived >= sender.delivered, "{arrived} of {sender:?}");
    }
}
