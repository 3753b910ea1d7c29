//! Sessions: how they are opened, what an attacker gets, how they end.

use crate::support::*;
use hawser_netem::{Delay, LinkConfig, Loss, Probability};
use hawser_objects::{
    EndReason, Host, HostConfig, HostError, HostEvent, OpenError, Seed, TrackSecret, Viewer,
    ViewerConfig, ViewerError, ViewerEvent,
};
use hawser_packets::feedback::ClockStamp;
use hawser_packets::session::{Goodbye, Kind};
use hawser_units::{Ecn, Instant};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

const START: Instant = Instant::from_nanos(1_000_000_000);

/// Gives the host everything that the viewer sends.
fn to_host(viewer: &mut Viewer, host: &mut Host, now: Instant) -> Vec<Result<(), HostError>> {
    let sent = std::iter::from_fn(|| viewer.poll_transmit(now));
    sent.map(|datagram| host.handle_datagram(now, viewer_address(), &datagram))
        .collect()
}

/// Gives the viewer everything that the host sends it.
fn to_viewer(host: &mut Host, viewer: &mut Viewer, now: Instant) -> Vec<Result<(), ViewerError>> {
    let sent = std::iter::from_fn(|| host.poll_transmit());
    sent.map(|(to, datagram)| {
        assert_eq!(to, viewer_address());
        viewer.handle_datagram(now, &datagram, Ecn::NotEct)
    })
    .collect()
}

/// Returns a restarted sender without state.
fn restarted() -> Host {
    let announced = secret().announce(&announcement(2)).unwrap();
    let seed = Seed::new([0x99; 32]);
    Host::new(HostConfig::new(access(), announced, [0x98; 16], seed))
}

#[test]
fn a_restarted_sender_is_found_before_the_session_ends() {
    let mut viewer = opened(&mut host(), 1, START);
    let mut again = restarted();
    let mut now = START + ms(1000);
    while viewer.poll_event().is_none() {
        now += ms(10);
        viewer.handle_timeout(now);
        to_host(&mut viewer, &mut again, now);
        to_viewer(&mut again, &mut viewer, now);
        assert!(now < START + ms(2000), "not found");
    }
    assert!(now >= START + ms(1500), "{now:?}");
    assert!(viewer.take_replaced().is_some() && viewer.take_replaced().is_none());
    viewer.subscribe(now, vec![(ALIAS, 2)]);
    to_host(&mut viewer, &mut again, now);
    let confirmed = |event: &HostEvent| matches!(event, HostEvent::Opened { .. });
    assert!(events(&mut again).iter().any(confirmed));
}

#[test]
fn a_sender_that_restarts_after_refusals_is_found_at_once() {
    let mut viewer = opened(&mut host(), 1, START);
    let mut again = restarted();
    let mut now = START;
    // Whatever the viewer sends is refused while nobody receives.
    while now < START + ms(1000) {
        now += ms(10);
        viewer.handle_timeout(now);
        if std::iter::from_fn(|| viewer.poll_transmit(now)).count() > 0 {
            viewer.handle_refused(now);
        }
    }
    while viewer.poll_event().is_none() {
        now += ms(10);
        viewer.handle_timeout(now);
        to_host(&mut viewer, &mut again, now);
        to_viewer(&mut again, &mut viewer, now);
        assert!(now < START + ms(1300), "not found");
    }
}

#[test]
fn a_sender_that_is_heard_again_keeps_the_session() {
    let mut host = host();
    let mut viewer = opened(&mut host, 1, START);
    // Nothing passes for four seconds.
    let mut now = START;
    for _ in 0..400 {
        now += ms(10);
        viewer.handle_timeout(now);
        while viewer.poll_transmit(now).is_some() {}
    }
    for _ in 0..200 {
        now += ms(10);
        viewer.handle_timeout(now);
        to_host(&mut viewer, &mut host, now);
        for event in events(&mut host) {
            if let HostEvent::Report {
                session, report, ..
            } = event
            {
                let echo = None;
                let clock = ClockStamp { sent: now, echo };
                assert!(report.clock.sent <= now);
                host.send_status(session, clock);
            }
        }
        to_viewer(&mut host, &mut viewer, now);
    }
    assert_eq!(viewer.poll_event(), None);
    assert_eq!(host.sessions(), 1);
}

fn events(host: &mut Host) -> Vec<HostEvent> {
    std::iter::from_fn(|| host.poll_event()).collect()
}

/// Returns a viewer with an open session that the host has confirmed.
fn opened(host: &mut Host, random: u8, now: Instant) -> Viewer {
    let mut viewer = Viewer::new(ViewerConfig::default(), secret(), [random; 16]);
    for _ in 0..3 {
        to_host(&mut viewer, host, now);
        to_viewer(host, &mut viewer, now);
    }
    assert_eq!(
        viewer.poll_event(),
        Some(ViewerEvent::Opened(announcement(2)))
    );
    viewer
}

#[test]
fn a_session_is_opened_in_two_round_trips() {
    let (mut host, mut viewer) = (host(), viewer(ViewerConfig::default()));
    assert_eq!(to_host(&mut viewer, &mut host, START), [Ok(())]);
    assert_eq!(
        (host.sessions(), host.stats().retries),
        (0, 1),
        "nothing is kept"
    );
    assert_eq!(to_viewer(&mut host, &mut viewer, START), [Ok(())]);
    assert_eq!(to_host(&mut viewer, &mut host, START), [Ok(())]);
    assert_eq!(
        (host.sessions(), events(&mut host)),
        (1, vec![]),
        "not confirmed"
    );
    assert_eq!(to_viewer(&mut host, &mut viewer, START), [Ok(())]);
    assert_eq!(
        viewer.poll_event(),
        Some(ViewerEvent::Opened(announcement(2)))
    );
    viewer.subscribe(START, vec![(ALIAS, 1)]);
    assert_eq!(to_host(&mut viewer, &mut host, START), [Ok(()), Ok(())]);
    let events = events(&mut host);
    let opened = HostEvent::Opened {
        session: 1,
        address: viewer_address(),
    };
    let subscribed = HostEvent::Subscribed {
        session: 1,
        tracks: vec![(ALIAS, 1)],
        any_encoding: false,
    };
    assert_eq!(events[..2], [opened, subscribed]);
    assert!(matches!(events[2], HostEvent::Report { number: 1, .. }));
}

#[test]
fn a_session_is_opened_despite_a_loss_of_one_in_three() {
    let link = LinkConfig {
        delay: Delay::Constant(ms(10)),
        loss: Some(Loss::Independent(Probability::try_from(0.33).unwrap())),
        ..LinkConfig::default()
    };
    for seed in 0..10 {
        let mut rig = Rig::new(Scenario {
            there: link.clone(),
            back: link.clone(),
            seed,
            ..Scenario::default()
        });
        rig.run(ms(8000));
        assert!(rig.session.is_some(), "seed {seed}");
        assert!(!rig.received.is_empty(), "seed {seed}");
    }
}

#[test]
fn an_unverified_address_is_sent_less_than_it_sends() {
    let mut host = host();
    let victim: SocketAddr = "198.51.100.1:9".parse().unwrap();
    let (mut sent, mut received) = (0, 0);
    for random in 0..200u8 {
        // Even a holder of the secret: every message that a viewer can make without an answer.
        let mut viewer = Viewer::new(ViewerConfig::default(), secret(), [random; 16]);
        while let Some(hello) = viewer.poll_transmit(START) {
            sent += hello.len();
            host.handle_datagram(START, victim, &hello).unwrap();
        }
        while let Some((to, datagram)) = host.poll_transmit() {
            assert_eq!(to, victim);
            received += datagram.len();
        }
    }
    assert!(received > 0 && received < sent, "{received} of {sent}");
    assert_eq!(host.sessions(), 0);
}

#[test]
fn a_cookie_of_another_address_is_worth_nothing() {
    let (mut host, mut viewer) = (host(), viewer(ViewerConfig::default()));
    to_host(&mut viewer, &mut host, START);
    to_viewer(&mut host, &mut viewer, START);
    let hello = viewer.poll_transmit(START).unwrap();
    let other = "198.51.100.1:9".parse().unwrap();
    host.handle_datagram(START, other, &hello).unwrap();
    assert_eq!((host.sessions(), host.stats().retries), (0, 2));
}

#[test]
fn a_cookie_admits_a_viewer_during_a_flood_of_requests() {
    let (mut host, mut viewer) = (host(), viewer(ViewerConfig::default()));
    let captured = viewer.poll_transmit(START).unwrap();
    host.handle_datagram(START, viewer_address(), &captured)
        .unwrap();
    to_viewer(&mut host, &mut viewer, START);
    for number in 0..60_000u16 {
        let [high, low] = number.to_be_bytes();
        let forged = SocketAddr::from(([198, 51, high, low], 9));
        let _ = host.handle_datagram(START, forged, &captured);
    }
    assert!(host.stats().too_many_requests > 40_000);
    let hello = viewer.poll_transmit(START).unwrap();
    let mut join = || host.handle_datagram(START, viewer_address(), &hello);
    assert_eq!(join(), Ok(()));
    let too_many = Err(HostError::TooManyRequests);
    let repeated = (0..300).filter(|_| join() == too_many);
    assert!(
        repeated.count() > 0,
        "requests with a cookie have shares, too"
    );
    assert_eq!(host.sessions(), 1);
}

#[test]
fn a_repeated_request_is_answered_four_times_at_most() {
    let (mut host, mut viewer) = (host(), viewer(ViewerConfig::default()));
    to_host(&mut viewer, &mut host, START);
    to_viewer(&mut host, &mut viewer, START);
    let hello = viewer.poll_transmit(START).unwrap();
    let answers = (0..10).filter(|_| {
        let _ = host.handle_datagram(START, viewer_address(), &hello);
        std::iter::from_fn(|| host.poll_transmit()).count() > 0
    });
    assert_eq!(answers.count(), 4);
    assert_eq!((host.sessions(), events(&mut host)), (1, vec![]));
    let later = host.poll_timeout().unwrap();
    host.handle_timeout(later);
    assert_eq!((host.sessions(), events(&mut host)), (0, vec![]));
}

#[test]
fn without_the_secret_there_is_no_answer() {
    let mut host = host();
    let stranger = TrackSecret::new([0x99; 32]);
    let mut viewer = Viewer::new(ViewerConfig::default(), stranger, [1; 16]);
    assert_eq!(
        to_host(&mut viewer, &mut host, START),
        [Err(HostError::Unauthorised)]
    );
    let mut holder = Viewer::new(ViewerConfig::default(), secret(), [1; 16]);
    let mut hello = holder.poll_transmit(START).unwrap();
    for at in 4..hello.len() {
        hello[at] ^= 1;
        let taken = host.handle_datagram(START, viewer_address(), &hello);
        assert_eq!(taken, Err(HostError::Unauthorised), "byte {at}");
        hello[at] ^= 1;
    }
    assert_eq!(host.poll_transmit(), None);
}

#[test]
fn one_who_has_the_access_secret_only_cannot_announce_tracks() {
    let forger = TrackSecret::new([0x99; 32]);
    let announced = forger.announce(&announcement(2)).unwrap();
    let config = HostConfig::new(access(), announced, [0x33; 16], Seed::new([1; 32]));
    let mut host = Host::new(config);
    let mut viewer = viewer(ViewerConfig::default());
    to_host(&mut viewer, &mut host, START);
    to_viewer(&mut host, &mut viewer, START);
    to_host(&mut viewer, &mut host, START);
    assert!(matches!(
        to_viewer(&mut host, &mut viewer, START)[..],
        [Err(ViewerError::Message(_))]
    ));
    assert_eq!((viewer.poll_event(), viewer.stats().invalid), (None, 1));
}

#[test]
fn no_message_is_taken_twice_from_elsewhere_or_changed() {
    let mut host = host();
    let mut viewer = opened(&mut host, 1, START);
    viewer.subscribe(START, vec![(ALIAS, 1)]);
    let subscribe = viewer.poll_transmit(START).unwrap();
    let other = "198.51.100.1:9".parse().unwrap();
    let taken = host.handle_datagram(START, other, &subscribe);
    assert_eq!(taken, Err(HostError::UnknownSession));
    for bit in 0..subscribe.len() * 8 {
        let mut forged = subscribe.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        assert!(
            host.handle_datagram(START, viewer_address(), &forged)
                .is_err(),
            "bit {bit}"
        );
    }
    assert_eq!(
        host.handle_datagram(START, viewer_address(), &subscribe),
        Ok(())
    );
    let before = host.stats().replayed;
    let again = host.handle_datagram(START, viewer_address(), &subscribe);
    assert!(matches!(again, Err(HostError::Open(_))));
    assert_eq!(host.stats().replayed, before + 1);
}

#[test]
fn excess_messages_use_up_only_the_viewers_own_allowance() {
    let mut host = host();
    let mut viewer = opened(&mut host, 1, START);
    let mut message = |number: u8| {
        viewer.subscribe(START, vec![(ALIAS, number % 2)]);
        viewer.poll_transmit(START).unwrap()
    };
    let messages: Vec<Vec<u8>> = (0..2000u16).map(|number| message(number as u8)).collect();
    let mut forged = messages[0].clone();
    *forged.last_mut().unwrap() ^= 1;
    let mut host_takes =
        |now: Instant, datagram: &[u8]| host.handle_datagram(now, viewer_address(), datagram);
    for _ in 0..2000 {
        let taken = host_takes(START, &forged);
        assert_eq!(taken, Err(HostError::Open(OpenError::Forged)));
    }
    let taken = messages.iter().map(|message| host_takes(START, message));
    let taken = taken.take_while(Result::is_ok).count();
    assert!((900..=910).contains(&taken), "{taken}");
    let refused = host_takes(START, &messages[taken + 1]);
    assert_eq!(refused, Err(HostError::TooMany));
    let later = START + ms(10);
    let next = messages[taken + 2..].iter();
    let taken = next.map(|message| host_takes(later, message));
    // A message of 39 bytes counts for 103, and there are 625 for 10 ms.
    assert_eq!(taken.filter(Result::is_ok).count(), 6);
    assert!(host.stats().too_many > 900 && host.sessions() == 1);
}

#[test]
fn a_selection_is_repeated_until_the_sender_confirms_it() {
    let mut host = host();
    let mut viewer = opened(&mut host, 1, START);
    events(&mut host);
    viewer.subscribe(START, vec![(ALIAS, 2)]);
    drop(viewer.poll_transmit(START).expect("lost"));
    let again = viewer.poll_timeout().unwrap();
    assert!(again > START);
    to_host(&mut viewer, &mut host, again);
    let is_subscribed = |event: &HostEvent| matches!(event, HostEvent::Subscribed { .. });
    assert_eq!(
        events(&mut host)
            .iter()
            .filter(|e| is_subscribed(e))
            .count(),
        1
    );
    let stamp = ClockStamp {
        sent: again,
        echo: None,
    };
    host.send_status(1, stamp);
    to_viewer(&mut host, &mut viewer, again);
    to_host(&mut viewer, &mut host, again + ms(5000));
    assert_eq!(
        events(&mut host)
            .iter()
            .filter(|e| is_subscribed(e))
            .count(),
        0
    );
}

#[test]
fn either_end_may_leave() {
    let mut host = host();
    let mut viewer = opened(&mut host, 1, START);
    events(&mut host);
    viewer.close(Goodbye::Ended);
    to_host(&mut viewer, &mut host, START);
    let reason = EndReason::Left(Goodbye::Ended);
    assert_eq!(events(&mut host), [HostEvent::Ended { session: 1, reason }]);
    let mut viewer = opened(&mut host, 2, START);
    host.close(2, Goodbye::Revoked);
    to_viewer(&mut host, &mut viewer, START);
    let reason = EndReason::Left(Goodbye::Revoked);
    assert_eq!(viewer.poll_event(), Some(ViewerEvent::Ended(reason)));
    assert_eq!((host.sessions(), viewer.poll_timeout()), (0, None));
}

#[test]
fn both_ends_give_up_when_nothing_comes() {
    let mut host = host();
    let mut viewer = opened(&mut host, 1, START);
    events(&mut host);
    let later = START + ms(10_000);
    host.handle_timeout(later);
    viewer.handle_timeout(later);
    let reason = EndReason::TimedOut;
    assert_eq!(events(&mut host), [HostEvent::Ended { session: 1, reason }]);
    assert_eq!(viewer.poll_event(), Some(ViewerEvent::Ended(reason)));
}

#[test]
fn reports_keep_a_session_alive_while_nothing_is_published() {
    let mut rig = Rig::new(Scenario::default());
    rig.is_publishing = false;
    rig.run(ms(25_000));
    assert!(rig.session.is_some());
    assert_eq!(rig.host.sessions(), 1);
}

#[test]
fn a_restarted_viewer_replaces_its_session() {
    let mut host = host();
    let _old = opened(&mut host, 1, START);
    events(&mut host);
    let mut new = Viewer::new(ViewerConfig::default(), secret(), [2; 16]);
    for _ in 0..2 {
        to_host(&mut new, &mut host, START);
        if host.sessions() < 2 {
            to_viewer(&mut host, &mut new, START);
        }
    }
    assert_eq!(
        (host.sessions(), events(&mut host)),
        (2, vec![]),
        "accepted, not confirmed"
    );
    to_viewer(&mut host, &mut new, START);
    to_host(&mut new, &mut host, START);
    let reason = EndReason::Replaced;
    let events = events(&mut host);
    assert_eq!(events[0], HostEvent::Ended { session: 1, reason });
    assert_eq!(host.sessions(), 1);
}

#[test]
fn there_are_no_more_sessions_than_there_may_be() {
    let announced = secret().announce(&announcement(2)).unwrap();
    let config = HostConfig {
        sessions: 2,
        ..HostConfig::new(access(), announced, [0x33; 16], Seed::new([1; 32]))
    };
    let mut host = Host::new(config);
    let mut last = Vec::new();
    for random in 0..4 {
        let mut viewer = Viewer::new(ViewerConfig::default(), secret(), [random; 16]);
        let from = SocketAddr::from(([192, 0, 2, random], 1));
        for _ in 0..2 {
            while let Some(datagram) = viewer.poll_transmit(START) {
                last.push(host.handle_datagram(START, from, &datagram));
            }
            while let Some((_, datagram)) = host.poll_transmit() {
                let _ = viewer.handle_datagram(START, &datagram, Ecn::NotEct);
            }
        }
    }
    assert_eq!(host.sessions(), 2);
    assert_eq!(host.stats().full, 2);
    assert_eq!(last.last(), Some(&Err(HostError::Full)));
}

/// A host with room for one viewer, and viewers at addresses of their own.
struct Crowd {
    now: Instant,
    host: Host,
    viewers: Vec<(SocketAddr, Viewer)>,
}

impl Crowd {
    fn new() -> Self {
        let announced = secret().announce(&announcement(2)).unwrap();
        let config = HostConfig {
            sessions: 1,
            ..HostConfig::new(access(), announced, [0x33; 16], Seed::new([1; 32]))
        };
        Crowd {
            now: START,
            host: Host::new(config),
            viewers: Vec::new(),
        }
    }

    fn add(&mut self, number: u8) {
        let viewer = Viewer::new(ViewerConfig::default(), secret(), [number; 16]);
        let address = SocketAddr::from(([192, 0, 2, number], 1));
        self.viewers.push((address, viewer));
    }

    /// Lets 10 ms pass. `passes` decides which datagrams of viewers arrive.
    fn step(&mut self, mut passes: impl FnMut(&SocketAddr, &[u8]) -> bool) {
        self.now += ms(10);
        let Crowd { now, host, viewers } = self;
        for (address, viewer) in viewers.iter_mut() {
            viewer.handle_timeout(*now);
            while let Some(datagram) = viewer.poll_transmit(*now) {
                if passes(address, &datagram) {
                    let _ = host.handle_datagram(*now, *address, &datagram);
                }
            }
        }
        for event in events(host) {
            if let HostEvent::Report { session, .. } = event {
                let echo = None;
                host.send_status(session, ClockStamp { sent: *now, echo });
            }
        }
        host.handle_timeout(*now);
        while let Some((to, datagram)) = host.poll_transmit() {
            if let Some((_, viewer)) = viewers.iter_mut().find(|(at, _)| *at == to) {
                let _ = viewer.handle_datagram(*now, &datagram, Ecn::NotEct);
            }
        }
    }

    /// Returns whether the last viewer has been served after a time.
    fn serves_last_within(&mut self, most: Duration) -> bool {
        let until = self.now + most;
        while self.now < until {
            self.step(|_, _| true);
            let (_, viewer) = self.viewers.last_mut().unwrap();
            if viewer.receiver().is_some() {
                return true;
            }
        }
        false
    }
}

/// Returns the time until so many viewers of one address, as behind address translation, have all joined over a path
/// with this delay in each direction.
fn joined_within(viewers: u16, delay: Duration) -> Duration {
    let announced = secret().announce(&announcement(2)).unwrap();
    let mut host = Host::new(HostConfig {
        sessions: 1024,
        ..HostConfig::new(access(), announced, [0x33; 16], Seed::new([0x44; 32]))
    });
    host.set_keys(0, vec![(ALIAS, 0)]);
    let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
    let mut watching: Vec<Viewer> = (0..viewers)
        .map(|port| {
            Viewer::new(
                ViewerConfig::default(),
                secret(),
                (u128::from(port) + 1).to_be_bytes(),
            )
        })
        .collect();
    let (mut there, mut back) = (VecDeque::new(), VecDeque::new());
    let (mut now, mut open) = (START, 0);
    while open < viewers {
        assert!(now < START + ms(30_000), "{open} of {viewers} joined");
        now += ms(5);
        for (port, viewer) in (0..).zip(&mut watching) {
            viewer.handle_timeout(now);
            while let Some(datagram) = viewer.poll_transmit(now) {
                there.push_back((now + delay, address(port), datagram));
            }
            open += u16::from(viewer.poll_event().is_some());
        }
        while there.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, from, datagram) = there.pop_front().unwrap();
            let _ = host.handle_datagram(now, from, &datagram);
        }
        let sent = std::iter::from_fn(|| host.poll_transmit());
        back.extend(sent.map(|(to, datagram)| (now + delay, to, datagram)));
        while back.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, to, datagram): (Instant, SocketAddr, Vec<u8>) = back.pop_front().unwrap();
            let viewer = &mut watching[usize::from(to.port())];
            let _ = viewer.handle_datagram(now, &datagram, Ecn::NotEct);
        }
    }
    now.saturating_since(START)
}

#[test]
fn a_hundred_viewers_behind_one_address_join_within_seconds() {
    for (delay, limit) in [(ms(10), ms(500)), (ms(100), ms(1000)), (ms(300), ms(5000))] {
        let took = joined_within(100, delay);
        assert!(took < limit, "{delay:?}: {took:?}");
    }
    let took = joined_within(500, ms(20));
    assert!(took < ms(10_000), "{took:?}");
}

#[test]
fn a_killed_viewer_frees_its_place_within_four_seconds() {
    // The viewer is killed at any time between two reports, and the other one joins at any time after.
    for (alive, silent) in [(500, 0), (990, 10), (1500, 400), (1990, 1000), (1010, 3500)] {
        let mut crowd = Crowd::new();
        crowd.add(1);
        assert!(crowd.serves_last_within(ms(100)));
        for _ in 0..alive / 10 {
            crowd.step(|_, _| true);
        }
        crowd.viewers.clear();
        for _ in 0..silent / 10 {
            crowd.step(|_, _| true);
        }
        crowd.add(2);
        let is_served = crowd.serves_last_within(ms(4000 - silent.min(3900)));
        assert!(is_served, "killed after {alive} ms, {silent} ms before");
        assert_eq!(
            (crowd.host.sessions(), crowd.host.stats().displaced),
            (1, 1)
        );
    }
}

#[test]
fn an_unconfirmed_session_frees_its_place_within_four_seconds() {
    let mut crowd = Crowd::new();
    crowd.add(1);
    while crowd.host.sessions() == 0 {
        crowd.step(|_, _| true);
    }
    crowd.viewers.clear();
    crowd.add(2);
    assert!(crowd.serves_last_within(ms(4000)));
}

#[test]
fn a_viewer_keeps_its_place_if_two_of_three_reports_are_lost() {
    let mut crowd = Crowd::new();
    crowd.add(1);
    assert!(crowd.serves_last_within(ms(100)));
    crowd.add(2);
    let first = crowd.viewers[0].0;
    let mut reports = 0;
    for _ in 0..3000 {
        crowd.step(|from, datagram| {
            let is_report = datagram[1] == Kind::Feedback as u8;
            reports += u32::from(*from == first && is_report);
            *from != first || !is_report || reports.is_multiple_of(3)
        });
        if crowd.viewers[1].1.poll_timeout().is_none() {
            crowd.viewers.pop();
            crowd.add(2);
        }
    }
    let (_, viewer) = &mut crowd.viewers[0];
    let ended = std::iter::from_fn(|| viewer.poll_event()).nth(1);
    assert_eq!(ended, None, "only its session has begun");
    let stats = crowd.host.stats();
    assert!(reports > 20 && stats.full > 20, "{reports}, {stats:?}");
    assert_eq!((stats.accepted, stats.displaced), (1, 0));
}

#[test]
fn a_viewer_answers_a_bounded_number_of_cookies() {
    let (mut host, mut viewer) = (host(), viewer(ViewerConfig::default()));
    let hello = viewer.poll_transmit(START).unwrap();
    host.handle_datagram(START, viewer_address(), &hello)
        .unwrap();
    let (_, retry) = host.poll_transmit().unwrap();
    let answers = (0..100).filter(|_| {
        let _ = viewer.handle_datagram(START, &retry, Ecn::NotEct);
        viewer.poll_transmit(START).is_some()
    });
    assert_eq!(answers.count(), 8);
}
