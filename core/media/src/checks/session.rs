use super::{HOP_SALT, Input, START, access, announcement, secret};
use crate::Seed;
use crate::session::{Host, HostConfig, Viewer, ViewerConfig};
use hawser_units::Ecn;
use std::time::Duration;

/// Checks that both ends of a session take any datagrams, and open none that was not sealed for them.
pub fn check_session(input: &[u8]) {
    let announced = secret().announce(&announcement()).expect("two tracks");
    let mut host = Host::new(HostConfig::new(
        access(),
        announced,
        HOP_SALT,
        Seed::new([4; 32]),
    ));
    let mut viewer = Viewer::new(ViewerConfig::default(), secret(), [5; 16]);
    let from = ([192, 0, 2, 1], 1).into();
    let mut input = Input(input);
    let mut now = START;
    while let Some([action, at, change]) = input.next() {
        now += Duration::from_millis((action >> 3).into());
        let alter = |datagram: &mut Vec<u8>| {
            let at = usize::from(at) % datagram.len().max(1);
            datagram
                .get_mut(at)
                .into_iter()
                .for_each(|byte| *byte ^= change);
        };
        match action % 4 {
            0 => {
                if let Some(mut datagram) = viewer.poll_transmit(now) {
                    alter(&mut datagram);
                    let _ = host.handle_datagram(now, from, &datagram);
                }
            }
            1 => {
                if let Some((_, mut datagram)) = host.poll_transmit() {
                    alter(&mut datagram);
                    let _ = viewer.handle_datagram(now, &datagram, Ecn::NotEct);
                }
            }
            2 => viewer.subscribe(now, vec![(at.into(), change % 9)]),
            _ => {
                let length = usize::from(at).min(input.0.len());
                let _ = host.handle_datagram(now, from, &input.0[..length]);
                let _ = viewer.handle_datagram(now, &input.0[..length], Ecn::Ce);
            }
        }
        host.handle_timeout(now);
        viewer.handle_timeout(now);
        assert!(host.sessions() <= 64);
    }
}
