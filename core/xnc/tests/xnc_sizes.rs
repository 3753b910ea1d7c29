//! Paths that carry datagrams only up to some size, without an answer to larger ones.

mod network;

use hawser_units::Instant;
use hawser_xnc::Config;
use network::{MS, Network, Pipe, path};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn paths(count: u64) -> Network {
    let pipes = (0..count).map(|number| Pipe::new((20 + 10 * number as u32) * MS, 200_000));
    Network::new(Config::default(), pipes.collect())
}

/// Sends packets of these sizes in turn, 200 a second, each at most of the size that the paths carry.
fn send(network: &mut Network, time: Duration, sizes: &[usize]) {
    let end = network.now + time;
    while network.now < end {
        let size = sizes[network.sent as usize % sizes.len()];
        let size = size.min(network.ends[0].max_packet());
        network.send_frame(1, size);
        network.run_for(5 * MS);
    }
}

/// Returns how many of the packets sent from `since` on, at 200 a second, have arrived.
fn share_since(network: &Network, since: u64) -> f64 {
    let arrived = network
        .numbers()
        .into_iter()
        .filter(|number| *number >= since);
    arrived.count() as f64 / (network.sent - since) as f64
}

/// Returns the size to which the first end has reduced a path.
fn narrowed(network: &Network, index: u8) -> Option<usize> {
    network.pipes[&path(index)].directions[0].narrowed
}

#[test]
fn packets_of_any_size_arrive_again_behind_a_narrower_hop() {
    let media: [&[usize]; 4] = [
        &[1340],
        &[1340, 1340, 1340, 1340, 100],
        &[1250],
        &[400, 900, 1300, 1380],
    ];
    for paths_narrow in [&[0][..], &[1], &[0, 1]] {
        for limit in [1165, 1230, 1302, 1391] {
            for sizes in media {
                let mut network = paths(2);
                send(&mut network, SECOND, sizes);
                for index in paths_narrow {
                    network.pipes.get_mut(&path(*index)).unwrap().max_datagram[0] = limit;
                }
                send(&mut network, 10 * SECOND, sizes);
                let (since, before) = (network.sent, network.ends[0].stats().sender);
                send(&mut network, 3 * SECOND, sizes);
                network.run_for(SECOND);
                let case = format!("{paths_narrow:?} {limit} {sizes:?}");
                assert_eq!(share_since(&network, since), 1.0, "{case}");
                let sender = network.ends[0].stats().sender;
                assert_eq!(sender.lost, before.lost, "{case}");
            }
        }
    }
}

#[test]
fn a_hop_too_narrow_in_both_directions_is_noticed_at_both_ends() {
    let mut network = paths(1);
    network.pipes.get_mut(&path(0)).unwrap().max_datagram = [1302, 1250];
    let end = network.now + 10 * SECOND;
    while network.now < end {
        for end in &mut network.ends {
            let size = 1340.min(end.max_packet());
            end.handle_packet(network.now, vec![0; size], Default::default())
                .unwrap();
        }
        network.run_for(5 * MS);
    }
    let directions = &network.pipes[&path(0)].directions;
    let sizes = [0, 1].map(|end: usize| directions[end].narrowed.unwrap());
    assert!(sizes[0] <= 1302 && sizes[1] <= 1250, "{sizes:?}");
}

#[test]
fn losses_and_blackouts_narrow_no_path() {
    for loss in [0.02, 0.1, 0.2] {
        let mut network = paths(2);
        network.pipes.values_mut().for_each(|pipe| pipe.loss = loss);
        for _ in 0..10 {
            send(&mut network, 5 * SECOND, &[1340, 700, 1250, 100, 1380]);
            network.pipes.get_mut(&path(0)).unwrap().is_cut = true;
            send(&mut network, 300 * MS, &[1340, 700, 1250, 100, 1380]);
            network.pipes.get_mut(&path(0)).unwrap().is_cut = false;
        }
        assert!(network.now > Instant::ZERO + 50 * SECOND);
        assert_eq!(
            [narrowed(&network, 0), narrowed(&network, 1)],
            [None, None],
            "{loss}"
        );
    }
}

#[test]
fn a_full_queue_narrows_no_path() {
    for max_queue in [3_000, 20_000] {
        let pipe = Pipe {
            max_queue,
            rate: Some(125_000),
            ..Pipe::new(20 * MS, 50_000)
        };
        let mut network = Network::new(Config::default(), vec![pipe]);
        send(&mut network, 30 * SECOND, &[1340, 1340, 1340, 1340, 100]);
        assert!(network.pipes[&path(0)].counts().dropped > 0);
        assert_eq!(narrowed(&network, 0), None);
    }
}
