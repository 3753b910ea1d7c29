use super::{HOP_SALT, Input, START, access, announcement, secret};
use crate::Seed;
use crate::session::{Host, HostConfig, HostEvent, Viewer, ViewerConfig, ViewerEvent};
use hawser_packets::feedback::ClockStamp;
use hawser_packets::session::Message;
use hawser_units::{Ecn, Instant};
use std::net::SocketAddr;
use std::time::Duration;

/// The number of viewers, and the maximum number of sessions.
const VIEWERS: usize = 3;
const SESSIONS: usize = 2;

/// Checks that both ends of a session take any datagrams, open none that was not sealed for them or was
/// changed in flight, and report no other events than the other end has caused.
pub fn check_session(input: &[u8]) {
    let mut ends = Ends::new();
    let mut input = Input(input);
    while let Some([action, at, change]) = input.next() {
        ends.now += Duration::from_millis((action >> 3).into());
        let alter = |datagram: &mut Vec<u8>| {
            let at = usize::from(at) % datagram.len().max(1);
            if let Some(byte) = datagram.get_mut(at) {
                *byte ^= change;
            }
        };
        match action % 4 {
            0 => {
                let viewer = usize::from(at) % VIEWERS;
                if let Some(mut datagram) = ends.viewers[viewer].poll_transmit(ends.now) {
                    alter(&mut datagram);
                    ends.give_host(viewer, &datagram, change == 0);
                }
            }
            1 => {
                if let Some((to, mut datagram)) = ends.host.poll_transmit() {
                    alter(&mut datagram);
                    ends.give_viewer(viewer_at(to), &datagram, Ecn::NotEct, change == 0);
                }
            }
            2 => {
                let tracks = vec![(at.into(), change % 9)];
                for viewer in &mut ends.viewers {
                    viewer.subscribe(ends.now, tracks.clone());
                }
                ends.selected.push(announced(tracks));
            }
            _ => {
                let length = usize::from(at).min(input.0.len());
                let viewer = usize::from(change) % VIEWERS;
                ends.give_host(viewer, &input.0[..length], false);
                ends.give_viewer(viewer, &input.0[..length], Ecn::Ce, false);
            }
        }
        ends.host.handle_timeout(ends.now);
        for viewer in &mut ends.viewers {
            viewer.handle_timeout(ends.now);
        }
        ends.take_events();
        assert!(ends.host.sessions() <= SESSIONS);
    }
}

/// Returns those of the selected tracks and layers that were announced.
fn announced(mut selected: Vec<(u32, u8)>) -> Vec<(u32, u8)> {
    let tracks = announcement().tracks;
    selected.retain_mut(|(alias, layers)| {
        let track = tracks.iter().find(|track| track.alias == *alias);
        track.is_some_and(|track| {
            *layers = track.layers.min(*layers);
            true
        })
    });
    selected
}

/// Returns the address of a viewer.
fn address(viewer: usize) -> SocketAddr {
    ([192, 0, 2, 1], viewer as u16).into()
}

/// Returns the viewer at an address.
fn viewer_at(address: SocketAddr) -> usize {
    address.port().into()
}

/// The host and its viewers.
struct Ends {
    now: Instant,
    host: Host,
    viewers: [Viewer; VIEWERS],
    /// The tracks that each viewer has selected, with their layers, as far as they were announced.
    selected: Vec<Vec<(u32, u8)>>,
}

impl Ends {
    fn new() -> Self {
        let announced = secret().announce(&announcement()).expect("two tracks");
        let seed = Seed::new([4; 32]);
        let config = HostConfig {
            sessions: SESSIONS,
            ..HostConfig::new(access(), announced, HOP_SALT, seed)
        };
        Ends {
            now: START,
            host: Host::new(config),
            viewers: [5, 6, 7]
                .map(|random| Viewer::new(ViewerConfig::default(), secret(), [random; 16])),
            selected: Vec::new(),
        }
    }

    fn give_host(&mut self, viewer: usize, datagram: &[u8], is_genuine: bool) {
        let taken = self
            .host
            .handle_datagram(self.now, address(viewer), datagram);
        assert!(is_genuine || taken.is_err(), "not from the viewer");
    }

    fn give_viewer(&mut self, viewer: usize, datagram: &[u8], ecn: Ecn, is_genuine: bool) {
        let taken = self.viewers[viewer].handle_datagram(self.now, datagram, ecn);
        // There is no key yet when a cookie is sent.
        let is_cookie = matches!(Message::parse(datagram), Ok(Message::Retry(_)));
        assert!(is_genuine || is_cookie || taken.is_err(), "not the host's");
    }

    fn take_events(&mut self) {
        for viewer in &mut self.viewers {
            while let Some(event) = viewer.poll_event() {
                if let ViewerEvent::Opened(opened) = event {
                    assert_eq!(opened, announcement());
                }
            }
        }
        while let Some(event) = self.host.poll_event() {
            match event {
                HostEvent::Opened { session, address } => {
                    assert_eq!(self.host.address(session), Some(address));
                    assert!(viewer_at(address) < VIEWERS);
                }
                HostEvent::Subscribed { tracks, .. } => assert!(self.selected.contains(&tracks)),
                HostEvent::Report { session, .. } => {
                    let (sent, echo) = (self.now, None);
                    self.host.send_status(session, ClockStamp { sent, echo });
                }
                HostEvent::Ended { .. } => {}
            }
        }
    }
}
