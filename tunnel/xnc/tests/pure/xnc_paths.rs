//! Paths that lose packets, become silent, resume, appear and vanish.

use crate::configs::{recovering, reliable};
use crate::network::{MS, Network, Pipe, path};
use hawser_units::{ByteSize, Ecn, Instant, PathId};
use hawser_xnc::experiment::{Experiment, RecoveryMethod};
use hawser_xnc::frame::{AckBlock, EcnCounts, Frame, emit_acks, emit_ping};
use hawser_xnc::{Config, Endpoint, Hint, Liveness, PathState, RejectReason, Rtt, Timer};
use std::time::Duration;

fn two_paths(config: Config) -> Network {
    Network::new(
        config,
        vec![Pipe::new(20 * MS, 200_000), Pipe::new(30 * MS, 200_000)],
    )
}

/// XNC that repeats lost packets instead of coding them.
fn uncoded() -> Config {
    recovering(RecoveryMethod::OneShot { coded: false })
}

fn whole_shots() -> Config {
    Config {
        experiment: Experiment {
            whole_shots: true,
            ..Experiment::default()
        },
        ..Config::default()
    }
}

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

#[test]
fn without_loss_every_packet_is_sent_once() {
    let mut network = two_paths(Config::default());
    network.stream(2000 * MS, 20);
    network.run_for(100 * MS);

    assert_eq!(
        sorted(network.numbers()),
        (0..network.sent).collect::<Vec<_>>()
    );
    let sender = network.ends[0].stats().sender;
    assert!(sender.redundancy() < 0.01, "{}", sender.redundancy());
    assert_eq!(
        (sender.lost, sender.recoveries, sender.delivered),
        (0, 0, network.sent)
    );
}

#[test]
fn losses_are_recovered() {
    for config in [Config::default(), uncoded(), whole_shots()] {
        let recovery = config.experiment.recovery;
        let pipes = vec![Pipe::new(20 * MS, 200_000), Pipe::new(30 * MS, 200_000)];
        let mut network = Network::new(config, pipes);
        network.pipes.get_mut(&path(0)).unwrap().lose_every = 10;
        network.stream(2000 * MS, 20);
        network.run_for(500 * MS);

        assert_eq!(
            sorted(network.numbers()),
            (0..network.sent).collect::<Vec<_>>(),
            "{recovery:?}"
        );
        assert!(network.ends[0].stats().sender.lost > 0);
    }
}

#[test]
fn a_burst_of_losses_is_recovered_by_one_shot() {
    let mut network = two_paths(Config::default());
    network.stream(300 * MS, 20);
    let before = network.ends[0].stats().sender.recoveries;
    network.pipes.get_mut(&path(0)).unwrap().lose_next = 10;
    let first = network.sent;
    network.send_frame(10, 1200);
    network.run_for(200 * MS);

    assert!(
        network
            .numbers()
            .iter()
            .filter(|number| **number >= first)
            .count()
            == 10
    );
    assert_eq!(network.ends[0].stats().sender.recoveries - before, 1);
    let last = network.received.last().unwrap();
    assert!(last.1.recovered);
}

#[test]
fn a_silent_path_is_left_and_used_again_when_it_delivers() {
    let mut network = two_paths(Config::default());
    network.stream(500 * MS, 10);
    network.pipes.get_mut(&path(0)).unwrap().is_cut = true;
    let cut = network.now;
    network.stream(2000 * MS, 10);

    let (silent, _) = *network
        .events
        .iter()
        .find(|(_, event)| event.path == path(0) && event.to == Liveness::Silent)
        .unwrap();
    assert!(
        silent.saturating_since(cut) < 140 * MS,
        "{:?}",
        silent.saturating_since(cut)
    );
    let during = network.ends[0].stats().sender.paths[0];
    let back = network.now;
    network.pipes.get_mut(&path(0)).unwrap().is_cut = false;
    network.stream(500 * MS, 10);

    let resumed = network
        .events
        .iter()
        .find(|(at, event)| *at > back && event.path == path(0) && event.from == Liveness::Silent);
    let (resumed, _) = resumed.expect("the path delivers again");
    assert!(
        resumed.saturating_since(back) < 100 * MS,
        "{:?}",
        resumed.saturating_since(back)
    );
    assert!(
        network.ends[0].stats().sender.paths[0].first > during.first + 50,
        "it carries packets again"
    );
    network.run_for(500 * MS);
    assert_eq!(
        sorted(network.numbers()),
        (0..network.sent).collect::<Vec<_>>()
    );
}

/// Sends a frame over a path that is cut at that time, and returns when its last packet arrived.
fn comes_over_another_path(network: &mut Network, packets: u64) -> Duration {
    network.pipes.get_mut(&path(0)).unwrap().is_cut = true;
    let (first, cut) = (network.sent, network.now);
    let carried = network.ends[0].stats().sender.paths[0].first;
    network.send_frame(packets, 1200);
    assert_eq!(
        network.ends[0].stats().sender.paths[0].first - carried,
        packets
    );
    network.run_for(300 * MS);
    let numbers = network.numbers();
    let frame = numbers
        .iter()
        .zip(&network.received)
        .filter(|(number, _)| **number >= first);
    let times: Vec<Duration> = frame.map(|(_, (at, _))| at.saturating_since(cut)).collect();
    assert_eq!(times.len() as u64, packets);
    times.into_iter().max().unwrap()
}

#[test]
fn a_path_that_lost_everything_is_not_taken_to_recover_it() {
    let mut network = two_paths(Config::default());
    network.stream(500 * MS, 10);
    // The probe timeout is slightly longer than the round-trip time of 40 ms. The delay of the
    // other path is 30 ms.
    let time = comes_over_another_path(&mut network, 10);
    assert!(time <= (60 + 30) * MS, "{time:?}");
}

#[test]
fn packets_on_a_quiet_path_are_recovered_early() {
    let pipes = [20, 60].map(|delay| Pipe::new(delay * MS, 200_000));
    let mut network = Network::new(Config::default(), pipes.into());
    network.stream(500 * MS, 10);
    for delay in [20, 40, 20, 40, 20, 40, 20] {
        network.pipes.get_mut(&path(0)).unwrap().delay = delay * MS;
        network.stream(33 * MS, 10);
    }
    // The probe timeout now exceeds the threshold of 100 ms. A straggler is 30 ms later than the
    // minimum.
    let time = comes_over_another_path(&mut network, 3);
    assert!(time <= (40 + 5 + 30 + 3 + 60) * MS, "{time:?}");
}

#[test]
fn while_every_path_is_silent_no_useful_packet_is_lost() {
    let config = Config {
        experiment: Experiment {
            max_frame_queue_delay: 300 * MS,
            ..Config::default().experiment
        },
        ..Config::default()
    };
    let mut network = Network::new(
        config,
        vec![Pipe::new(20 * MS, 200_000), Pipe::new(30 * MS, 200_000)],
    );
    network.stream(300 * MS, 5);
    for index in 0..2 {
        network.pipes.get_mut(&path(index)).unwrap().is_cut = true;
    }
    network.stream(150 * MS, 5);
    for index in 0..2 {
        network.pipes.get_mut(&path(index)).unwrap().is_cut = false;
    }
    network.run_for(1000 * MS);
    assert_eq!(
        sorted(network.numbers()),
        (0..network.sent).collect::<Vec<_>>()
    );
}

#[test]
fn an_urgent_packet_does_not_wait_behind_others() {
    let mut network = Network::new(Config::default(), vec![Pipe::new(20 * MS, 15_000)]);
    network.send_frame(30, 1200);
    assert!(network.ends[0].waiting() > 10);
    let urgent = Hint {
        urgent: true,
        end_of_frame: true,
        ..Hint::default()
    };
    network.ends[0]
        .handle_packet(network.now, 1000u64.to_be_bytes().to_vec(), urgent)
        .unwrap();
    network.run_for(1000 * MS);
    let position = network
        .numbers()
        .iter()
        .position(|number| *number == 1000)
        .unwrap();
    assert!(position < 20, "{:?}", network.numbers());
    assert_eq!(network.received.len(), 31, "the frame is complete as well");
}

#[test]
fn idle_paths_are_probed_often_while_packets_go_either_way() {
    let mut network = two_paths(Config::default());
    let pings = |network: &Network| {
        let stats = network.ends.each_ref().map(|end| end.stats().sender.paths);
        // Path 1 has the longer delay, and carries no packets as long as path 0 suffices.
        [stats[0][1].pings, stats[1][1].pings]
    };
    let in_a_second = |network: &mut Network, pass: &dyn Fn(&mut Network)| {
        let before = pings(network);
        pass(network);
        let after = pings(network);
        [after[0] - before[0], after[1] - before[1]]
    };
    network.run_for(2000 * MS);
    let resting = in_a_second(&mut network, &|network| network.run_for(1000 * MS));
    assert_eq!(resting, [1, 1]);
    let in_use = in_a_second(&mut network, &|network| network.stream(1000 * MS, 1));
    assert!(
        in_use.iter().all(|pings| (9..=12).contains(pings)),
        "{in_use:?} pings in a second"
    );
    for stats in network
        .ends
        .each_ref()
        .map(|end| end.stats().sender.paths[1])
    {
        assert!(stats.arrived + 1 >= stats.pings);
    }
    network.run_for(1000 * MS);
    let resting = in_a_second(&mut network, &|network| network.run_for(2000 * MS));
    assert!(
        resting.iter().all(|pings| (1..=3).contains(pings)),
        "{resting:?} pings in two seconds"
    );
}

#[test]
fn packets_on_a_removed_path_are_recovered_over_another() {
    for config in [Config::default(), reliable()] {
        let mut network = two_paths(config);
        network.stream(300 * MS, 10);
        network.send_frame(30, 1200);
        network.remove(path(0));
        network.run_for(500 * MS);
        network.stream(300 * MS, 10);
        network.add(path(0), Pipe::new(10 * MS, 200_000));
        network.stream(500 * MS, 10);
        network.run_for(500 * MS);

        assert_eq!(
            sorted(network.numbers()),
            (0..network.sent).collect::<Vec<_>>()
        );
        assert!(network.ends[0].stats().sender.paths[0].first > 0);
    }
}

#[test]
fn a_reliable_session_delivers_in_order_despite_losses() {
    let mut network = two_paths(reliable());
    network.pipes.get_mut(&path(0)).unwrap().lose_every = 7;
    network.stream(1000 * MS, 10);
    network.run_for(3000 * MS);
    assert_eq!(network.numbers(), (0..network.sent).collect::<Vec<_>>());
}

#[test]
fn reordering_delays_packets_no_longer_than_configured() {
    let config = Config {
        reorder: Some(50 * MS),
        ..recovering(RecoveryMethod::None)
    };
    let mut network = Network::new(config, vec![Pipe::new(20 * MS, 200_000)]);
    network.pipes.get_mut(&path(0)).unwrap().lose_every = 10;
    network.stream(1000 * MS, 10);
    network.run_for(100 * MS);

    let numbers = network.numbers();
    assert!(numbers.is_sorted() && numbers.len() < network.sent as usize);
    let gaps = network
        .received
        .windows(2)
        .map(|pair| pair[1].0.saturating_since(pair[0].0));
    assert!(gaps.max().unwrap() <= Duration::from_millis(33 + 50 + 1));
}

#[test]
fn the_loss_timeout_depends_on_the_path() {
    for (delay, soonest, latest) in [(5 * MS, 10 * MS, 50 * MS), (200 * MS, 400 * MS, 500 * MS)] {
        let mut network = Network::new(Config::default(), vec![Pipe::new(delay, 400_000)]);
        network.stream(3000 * MS, 5);
        let before = network.ends[0].stats().sender.lost;
        network.stream(1000 * MS, 5);
        network.run_for(1000 * MS);
        assert_eq!(
            network.ends[0].stats().sender.lost,
            before,
            "{delay:?}: a usual delay is not a loss"
        );
        network.pipes.get_mut(&path(0)).unwrap().is_cut = true;
        network.send_frame(1, 1200);
        network.run_for(soonest);
        assert_eq!(network.ends[0].stats().sender.lost, before, "{delay:?}");
        network.run_for(latest - soonest);
        assert_eq!(network.ends[0].stats().sender.lost, before + 1, "{delay:?}");
    }
}

#[test]
fn acknowledgements_take_two_paths_and_name_marks() {
    let pipes = [60, 20, 40].map(|delay| Pipe::new(delay * MS, 200_000));
    let mut network = Network::new(Config::default(), pipes.into());
    let end = &mut network.ends[1];
    for (number, ecn) in [Ecn::Ect0, Ecn::Ce, Ecn::Ect1, Ecn::Ce, Ecn::NotEct]
        .into_iter()
        .enumerate()
    {
        let packet = [1, 0, number as u8 + 1, 0, 0, number as u8, b'x'];
        end.handle_datagram(network.now, path(0), packet.to_vec(), Some(ecn))
            .unwrap();
    }
    let now = network.now + 5 * MS;
    let mut seen = Vec::new();
    while let Some(transmit) = end.poll_transmit(now) {
        if let Ok(Frame::Acks(blocks)) = Frame::parse(&transmit.datagram) {
            let ecn = blocks
                .iter()
                .find(|block| block.path == path(0))
                .and_then(|block| block.ecn);
            seen.push((transmit.path, ecn.map(|ecn| (ecn.ect0, ecn.ect1, ecn.ce))));
        }
    }
    seen.sort_unstable();
    let marks = Some((1, 1, 2));
    assert_eq!(seen, [(path(1), marks), (path(2), marks)]);
}

#[test]
fn congestion_marks_of_rejected_acknowledgements_are_ignored() {
    let mut network = two_paths(Config::default());
    network.stream(100 * MS, 5);
    let now = network.now;
    let end = &mut network.ends[0];
    let mut marks = |largest: u64, ce: u32| {
        let ecn = Some(EcnCounts {
            ce,
            ..EcnCounts::default()
        });
        let block = AckBlock {
            path: path(0),
            delay: Duration::ZERO,
            ranges: vec![largest..=largest],
            ecn,
        };
        let taken = end.handle_datagram(now, path(1), emit_acks(&[block], 1400).0, None);
        (taken, end.stats().sender.paths[0].congestion_marks)
    };
    assert_eq!(marks(0, 7), (Ok(()), 7));
    assert_eq!(marks(0, 5), (Ok(()), 7));
    assert_eq!(marks(1 << 20, 9), (Err(RejectReason::NeverSent), 7));
}

#[test]
fn useless_coded_packets_are_counted() {
    let mut end = two_paths(Config::default())
        .ends
        .into_iter()
        .next()
        .unwrap();
    let coded = |count: u8, transmission: u8, start: u8, symbol: [u8; 3]| {
        [&[count, 0, transmission, 0, 0, start][..], &symbol].concat()
    };
    let mut send = |at, datagram: &[u8]| {
        end.handle_datagram(at, path(0), datagram.to_vec(), None)
            .unwrap();
        end.handle_timeout(at);
        let receiver = end.stats().receiver;
        (
            receiver.coded,
            receiver.undecoded,
            receiver.decoded_malformed,
        )
    };
    assert_eq!(send(Instant::ZERO, &coded(2, 0, 0, [0, 1, 7])), (1, 0, 0));
    // A sum whose length is 0xffff, although the first packet only accounts for one byte.
    assert_eq!(
        send(Instant::ZERO, &coded(2, 1, 10, [0xff, 0xff, 7])),
        (2, 0, 0)
    );
    assert_eq!(send(Instant::ZERO, &[1, 0, 2, 0, 0, 10, 0]), (2, 0, 1));
    assert_eq!(
        send(Instant::ZERO + 10_000 * MS, &[1, 0, 3, 0, 0, 11, 0]),
        (2, 1, 1)
    );
}

#[test]
fn a_packet_too_late_to_be_acknowledged_is_delivered_once() {
    let mut end = two_paths(Config::default())
        .ends
        .into_iter()
        .next()
        .unwrap();
    let mut send = |transmission: u8, number: u8| {
        let packet = [1, 0, transmission, 0, 0, number, b'x'];
        end.handle_datagram(Instant::ZERO, path(0), packet.to_vec(), None)?;
        Ok::<_, RejectReason>(end.poll_packet().map(|packet| packet.id))
    };
    // Skips every other transmission, so that more ranges lie above the first one than
    // acknowledgements can hold.
    for number in 0..40 {
        assert_eq!(send(2 * number + 2, number), Ok(Some(number.into())));
    }
    assert_eq!(send(1, 100), Ok(Some(100)));
    assert_eq!(send(1, 100), Ok(None), "once");
    assert_eq!(send(80, 101), Err(RejectReason::Duplicate));
}

#[test]
fn datagrams_of_a_hostile_peer_are_rejected_and_counted() {
    let mut network = two_paths(Config::default());
    network.stream(100 * MS, 5);
    let now = network.now;
    let end = &mut network.ends[1];
    let never_sent = [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0];
    let twice_the_same_path = [
        &[0, 1][..],
        &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].repeat(2),
    ]
    .concat();
    let unknown_path = [0, 1, 6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let far_ahead = [1, 0x40, 0, 0x70, 0, 0, 1, 2, 3];
    let not_a_symbol = [10, 0x40, 1, 0, 0, 0, 1];
    for (datagram, reason) in [
        (&[][..], RejectReason::Malformed),
        (&[200, 1, 2], RejectReason::Malformed),
        (&twice_the_same_path, RejectReason::Malformed),
        (&never_sent, RejectReason::NeverSent),
        (&unknown_path, RejectReason::UnknownPath),
        (&far_ahead, RejectReason::TooFarAhead),
        (&emit_ping(u64::MAX), RejectReason::TooFarAhead),
        (&emit_ping((1 << 20) + 1000), RejectReason::TooFarAhead),
        (&not_a_symbol, RejectReason::Undecodable),
    ] {
        let before = end.stats().rejected[reason as usize];
        assert_eq!(
            end.handle_datagram(now, path(0), datagram.to_vec(), None),
            Err(reason)
        );
        assert_eq!(end.stats().rejected[reason as usize], before + 1);
    }
    let elsewhere = PathId::try_from(5).unwrap();
    assert_eq!(
        end.handle_datagram(now, elsewhere, vec![1, 0, 0, 0, 0, 0, 1], None),
        Err(RejectReason::UnknownPath)
    );
}

#[test]
fn every_change_of_liveness_is_one_event() {
    let mut network = two_paths(Config::default());
    network.stream(500 * MS, 10);
    network.pipes.get_mut(&path(0)).unwrap().is_cut = true;
    network.stream(500 * MS, 10);
    network.pipes.get_mut(&path(0)).unwrap().is_cut = false;
    network.run_for(3000 * MS);

    let changes = |id: PathId| {
        let events = network.events.iter().map(|(_, event)| event);
        let of_path = events.filter(|event| event.path == id);
        of_path
            .map(|event| (event.from, event.to))
            .collect::<Vec<_>>()
    };
    let proven = (Liveness::Unproven, Liveness::Delivering);
    assert_eq!(changes(path(1)), [proven], "an idle path only pauses");
    let cut = changes(path(0));
    assert_eq!((cut.len(), cut[0]), (3, proven), "{cut:?}");
    assert_eq!(cut[1].1, Liveness::Silent);
    assert_eq!(cut[2], (Liveness::Silent, Liveness::Delivering));
}

#[test]
fn a_timeout_has_a_reason() {
    let mut network = two_paths(Config::default());
    network.stream(500 * MS, 10);
    network.run_for(5500 * MS);
    let reason = |timer: Option<(Instant, Timer)>| timer.map(|(_, reason)| reason);
    let end = &mut network.ends[0];
    assert_eq!(reason(end.next_timer()), Some(Timer::Probe), "it is idle");
    assert_eq!(end.next_timer().map(|(at, _)| at), end.poll_timeout());

    network.send_frame(1, 1200);
    network.run_for(21 * MS);
    let timer = network.ends[1].next_timer();
    assert_eq!(reason(timer), Some(Timer::Acknowledgement));

    network.pipes.get_mut(&path(0)).unwrap().is_cut = true;
    network.send_frame(1, 1200);
    let mut reasons = Vec::new();
    for _ in 0..40 {
        reasons.extend(reason(network.ends[0].next_timer()));
        network.run_for(5 * MS);
    }
    for expected in [Timer::Silence, Timer::Probe] {
        assert!(reasons.contains(&expected), "{expected:?} of {reasons:?}");
    }
}

#[test]
fn acknowledgements_leave_over_the_paths_whose_times_are_known() {
    let mut end = Endpoint::new(Config::default());
    (0..4).for_each(|index| end.add_path(Instant::ZERO, path(index)));
    // Path 0 has no connection yet, and nothing was measured on path 1.
    for (index, smoothed) in [(1, Duration::ZERO), (2, 30 * MS), (3, 50 * MS)] {
        let state = PathState {
            congestion_window: ByteSize(1 << 20),
            in_flight: ByteSize(0),
            queued: ByteSize(0),
            rtt: Rtt {
                smoothed,
                ..Rtt::default()
            },
            datagram_size: 1400,
        };
        end.update_path(path(index), state);
    }
    let original = vec![1, 0, 0, 0, 0, 0, 7];
    end.handle_datagram(Instant::ZERO, path(3), original, None)
        .unwrap();
    let now = Instant::ZERO + hawser_xnc::ACK_DELAY;
    end.handle_timeout(now);
    let mut paths = Vec::new();
    while let Some(transmit) = end.poll_transmit(now) {
        if let Ok(Frame::Acks(_)) = Frame::parse(&transmit.datagram) {
            paths.push(transmit.path.index());
        }
    }
    paths.sort_unstable();
    assert_eq!(paths, [2, 3]);
}
