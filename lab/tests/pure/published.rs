//! XNC as published (Ni, section 4), and the schemes that recover nothing by retransmission.

use crate::network::{MS, Network, Pipe, path};
use hawser_lab::rivals::schemes::Scheme;
use hawser_xnc::{PathStats, SenderStats};
use std::collections::BTreeSet;
use std::time::Duration;

/// Three paths with round-trip times of 20, 60 and 80 ms, of which the first is full of use.
fn three_paths(scheme: Scheme) -> Network {
    let pipes = [10, 30, 40].map(|delay| Pipe::new(delay * MS, 200_000));
    let mut network = Network::new(scheme.config(), pipes.into());
    network.stream(1000 * MS, 10);
    network
}

fn stats(network: &Network) -> SenderStats {
    network.ends[0].stats().sender
}

/// Loses packets of a frame of ten on the first path, and returns what each path sent for their
/// recovery within `time`.
fn recovery(network: &mut Network, lost: u64, time: Duration) -> Vec<u64> {
    let recovery = |path: &PathStats| path.recovery;
    let before = stats(network).paths.map(|path| recovery(&path));
    network.pipes.get_mut(&path(0)).unwrap().lose_next = lost;
    network.send_frame(10, 1200);
    network.run_for(time);
    let after = stats(network).paths.map(|path| recovery(&path));
    let sent = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before);
    sent.take(3).collect()
}

#[test]
fn a_published_shot_takes_all_paths_up_to_their_shares() {
    let mut network = three_paths(Scheme::XncPaper);
    let first = network.sent;
    // Four lost packets need seven, and each path may carry 1.1 times as many.
    assert_eq!(recovery(&mut network, 4, 300 * MS), [7, 7, 7]);
    let arrived: BTreeSet<u64> = network.numbers().into_iter().collect();
    assert!((first..network.sent).all(|number| arrived.contains(&number)));
}

#[test]
fn a_packet_lost_alone_is_copied_to_all_paths_as_published() {
    let mut network = three_paths(Scheme::XncPaper);
    assert_eq!(recovery(&mut network, 1, 300 * MS), [1, 1, 1]);
}

#[test]
fn the_published_loss_detection_waits_for_its_timeout() {
    let mut network = three_paths(Scheme::XncPaper);
    let before = stats(&network).lost;
    recovery(&mut network, 1, 20 * MS);
    assert_eq!(
        stats(&network).lost,
        before,
        "nine later packets do not matter"
    );
    network.run_for(100 * MS);
    assert_eq!(stats(&network).lost, before + 1);
}

#[test]
fn a_shot_as_published_is_the_only_one() {
    let shots = |scheme| {
        let mut network = three_paths(scheme);
        for pipe in network.pipes.values_mut() {
            pipe.is_cut = true;
        }
        network.send_frame(10, 1200);
        network.run_for(130 * MS);
        let once = stats(&network).recoveries;
        for pipe in network.pipes.values_mut() {
            pipe.is_cut = false;
        }
        network.run_for(600 * MS);
        (once, stats(&network).recoveries)
    };
    let (once, after) = shots(Scheme::XncPaper);
    assert!(once > 0);
    assert_eq!(after, once);
}

#[test]
fn without_recovery_nothing_is_sent_again() {
    for scheme in [Scheme::Bonding, Scheme::Single] {
        let mut network = three_paths(scheme);
        let pipes = network.pipes.values_mut();
        pipes.for_each(|pipe| pipe.is_cut = true);
        network.stream(200 * MS, 10);
        network.run_for(1000 * MS);
        let pipes = network.pipes.values_mut();
        pipes.for_each(|pipe| pipe.is_cut = false);
        network.stream(1000 * MS, 10);
        let sent: u64 = stats(&network).paths.iter().map(|path| path.recovery).sum();
        assert_eq!(sent, 0, "{scheme}");
        assert!(network.numbers().len() < network.sent as usize, "{scheme}");
    }
}

#[test]
fn spare_coded_packets_recover_a_burst_in_advance() {
    let mut network = three_paths(Scheme::Pluribus);
    let before = stats(&network);
    let first = network.sent;
    let coded = recovery(&mut network, 5, 60 * MS);
    assert!(coded.iter().sum::<u64>() > 10, "{coded:?}");
    let arrived: BTreeSet<u64> = network.numbers().into_iter().collect();
    assert!((first..network.sent).all(|number| arrived.contains(&number)));
    assert_eq!(stats(&network).recoveries, before.recoveries);
}

#[test]
fn under_heavy_loss_every_packet_that_arrives_is_intact() {
    let pipes = [10, 30].map(|delay| Pipe {
        loss: 0.7,
        ..Pipe::new(delay * MS, 200_000)
    });
    let mut network = Network::new(Scheme::Pluribus.config(), pipes.into());
    network.stream(3000 * MS, 10);
    let copies = network.ends[1].stats().receiver.duplicates;
    assert!(copies > 0, "single packets are copied");
    let numbers = network.numbers();
    assert!(numbers.len() > 300, "{}", numbers.len());
    assert!(numbers.iter().all(|number| *number < network.sent));
}
