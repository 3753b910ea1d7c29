//! Sessions of the schemes with which XNC is compared.

use crate::network::{MS, Network, Pipe, path};
use hawser_lab::rivals::schemes::Scheme;
use hawser_xnc::Hint;

fn two_paths(scheme: Scheme) -> Network {
    let pipes = vec![Pipe::new(20 * MS, 200_000), Pipe::new(30 * MS, 200_000)];
    Network::new(scheme.config(), pipes)
}

#[test]
fn windows_are_respected() {
    for scheme in Scheme::ALL {
        let lossy = Pipe {
            loss: 0.03,
            overtaken: 5,
            max_queue: 60_000,
            ..Pipe::bottleneck(15 * MS, 12, 0)
        };
        let fixed = Pipe::new(40 * MS, 30_000);
        let mut network = Network::new(scheme.config(), vec![lossy, fixed]);
        network.stream(500 * MS, 30);
        network.pipes.get_mut(&path(0)).unwrap().rate = Some(125_000);
        network.pipes.get_mut(&path(1)).unwrap().window = 4_000;
        network.stream(500 * MS, 30);
        for pipe in network.pipes.values() {
            assert_eq!(pipe.counts().beyond_window, 0, "{scheme}");
        }
        let sent = network.ends[0].stats().sender.paths;
        assert!(sent[0].first > 100, "{scheme}: {:?}", sent[0]);
    }
}

#[test]
fn multipath_quic_fills_the_congestion_window() {
    // A window of 0.8 s, and no limit of the queue.
    let window = 1_000_000;
    let pipe = Pipe {
        adapts: false,
        window,
        ..Pipe::bottleneck(20 * MS, 10, 0)
    };
    let mut network = Network::new(Scheme::MinRtt.config(), vec![pipe]);
    for _ in 0..6000 {
        while network.ends[0].waiting() < 200 {
            network.send(Hint::default(), 1200);
        }
        network.run_for(MS);
    }
    let queue = network.pipes[&path(0)].counts().longest_queue;
    assert!(queue <= window, "{queue} bytes");
    assert!(queue > window / 2, "{queue} bytes: the window is used");
}

#[test]
fn a_reliable_scheme_delivers_all_in_spite_of_a_removed_path() {
    for scheme in Scheme::ALL
        .into_iter()
        .filter(|scheme| scheme.is_reliable())
    {
        let mut network = two_paths(scheme);
        network.pipes.get_mut(&path(0)).unwrap().lose_every = 7;
        network.stream(1000 * MS, 10);
        network.send_frame(30, 1200);
        network.remove(path(0));
        network.run_for(3000 * MS);
        let all: Vec<u64> = (0..network.sent).collect();
        assert_eq!(network.numbers(), all, "{scheme}");
    }
}

#[test]
fn the_rate_of_proactive_coding_follows_the_loss() {
    for (lose_every, min, max) in [(0, 0.045, 0.055), (10, 0.17, 0.24), (4, 0.45, 0.6)] {
        let mut network = Network::new(Scheme::Fec.config(), vec![Pipe::new(20 * MS, 400_000)]);
        network.pipes.get_mut(&path(0)).unwrap().lose_every = lose_every;
        for _ in 0..500 {
            network.send_frame(4, 1200);
            network.run_for(5 * MS);
        }
        let stats = network.ends[0].stats().sender.paths[0];
        let share = stats.recovery as f64 / stats.first as f64;
        assert!(
            (min..max).contains(&share),
            "one of {lose_every} lost: {share}"
        );
    }
}

#[test]
fn coded_packets_sent_ahead_take_the_path_with_most_window() {
    let mut network = Network::new(
        Scheme::Fec.config(),
        vec![
            Pipe::new(10 * MS, 100_000),
            Pipe::new(60 * MS, 400_000),
            Pipe::new(30 * MS, 200_000),
        ],
    );
    network.stream(1000 * MS, 20);
    let recovery = network.ends[0]
        .stats()
        .sender
        .paths
        .map(|path| path.recovery);
    assert!(
        recovery[1] > 20 && recovery[0] + recovery[2] == 0,
        "{recovery:?}"
    );
}

#[test]
fn redundant_copies_take_every_path_and_are_deduplicated() {
    let mut network = two_paths(Scheme::Redundant);
    network.pipes.get_mut(&path(1)).unwrap().is_cut = true;
    network.stream(300 * MS, 10);
    network.pipes.get_mut(&path(1)).unwrap().is_cut = false;
    network.stream(1000 * MS, 10);
    network.run_for(1000 * MS);
    assert_eq!(network.numbers(), (0..network.sent).collect::<Vec<_>>());
    assert!(network.ends[1].stats().receiver.duplicates > network.sent / 2);
}
