//! The checks of traces, for the property tests and for `fuzz/`.

use hawser_netem::{Admission, Drive, Link, LinkConfig, Loss, Opportunities, Packet, Rate};
use hawser_units::{ByteSize, Ecn, Instant};
use std::time::Duration;

pub(crate) const DRIVE: &str = "t_ms,path,rate_mbps,owd_ms,loss\n\
    0,0,39.75,23.1,0.00\n0,1,50.00,33.0,0.00\n100,0,67.00,23.9,0.25\n100,1,0.00,33.0,1\n";

pub(crate) const OPPORTUNITIES: &str = "0\n5\n5\n10\n";

/// Sends packets over a link, and checks that none leaves before it arrives.
pub(crate) fn check_link(config: LinkConfig) {
    let is_planned = config.discipline.is_none();
    let mut link = Link::new(config, 1, Instant::ZERO).marking_by(|_| ());
    for number in 0..20 {
        let now = Instant::ZERO + Duration::from_millis(7 * number);
        if let Admission::Leaves(leaves) = link.push_packet(now, packet(number)) {
            assert!(leaves >= now);
        }
    }
    drain(&mut link, is_planned);
}

fn packet(number: u64) -> Packet<u64> {
    Packet {
        ecn: Ecn::from_octet(number as u8),
        flow: number % 5,
        ..Packet::new(ByteSize(1500), number)
    }
}

/// Takes the packets out of a link, each at the time that the link tells. Checks that the time
/// proceeds, and that a packet leaves each time if all departures were decided on arrival.
fn drain(link: &mut Link<u64>, is_planned: bool) {
    while let Some(due) = link.next_departure() {
        let left = link.pop(due);
        assert!(left.is_some() || !is_planned);
        assert!(left.is_some() || link.next_departure().is_none_or(|next| next > due));
    }
}

pub(crate) fn check_drive(text: &str) {
    let Ok(drive) = Drive::parse(text) else {
        return;
    };
    for path in drive.paths() {
        let Ok(link) = drive.link(path) else { continue };
        if let Some(Loss::Steps(loss)) = &link.loss {
            assert!(loss.values().all(|loss| (0.0..=1.0).contains(&loss.get())));
        }
        check_link(link);
    }
}

pub(crate) fn check_opportunities(text: &str) {
    let Ok(trace) = Opportunities::parse(text) else {
        return;
    };
    let at_ms: Vec<u64> = trace.clone().into();
    assert!(at_ms.is_sorted() && at_ms.last().is_some_and(|last| *last > 0));
    assert_eq!(Opportunities::new(at_ms), Ok(trace.clone()));
    check_link(LinkConfig {
        rate: Some(Rate::Opportunities(trace)),
        ..LinkConfig::default()
    })
}
