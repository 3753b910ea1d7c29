//! The checks of traces and link configurations, for the property tests and for `fuzz/`.

use hawser_netem::{Admission, Drive, Link, LinkConfig, Loss, Opportunities, Packet, Rate};
use hawser_units::{ByteSize, Ecn, Instant};
use std::time::Duration;

pub(crate) const DRIVE: &str = "t_ms,path,rate_mbps,owd_ms,loss\n\
    0,0,39.75,23.1,0.00\n0,1,50.00,33.0,0.00\n100,0,67.00,23.9,0.25\n100,1,0.00,33.0,1\n";

pub(crate) const OPPORTUNITIES: &str = "0\n5\n5\n10\n";

pub(crate) const CONFIG: &str = r#"
    rate = { steps_mbps = [[0, 40], [100, 67]] }
    queue = { ms = 100 }
    delay = { steps_ms = [[0, 20], [1000, 25.5]] }
    order = "free"
    extra_delay = [{ range_ms = [0, 50], during_ms = [10, 50], hold_ms = 5 }]
    loss = { gilbert_elliott = { good_to_bad = 0.01, bad_to_good = 0.3, loss_good = 0, loss_bad = 1 } }
    cuts = [[20, 30]]
    duplicate = 0.5
    reorder = { share = 0.2, delay_ms = 5 }
"#;

/// A configuration for each discipline.
pub(crate) const DISCIPLINES: [&str; 4] = [
    "discipline = 'fifo'\nrate = { mbps = 1 }\nqueue = { packets = 3 }",
    "discipline = { fq_codel = { target_ms = 5, interval_ms = 20, flows = 2 } }\nrate = { mbps = 1 }",
    "discipline = { dual_pi2 = { update_ms = 1, l4s = { step_ms = 1 }, scheduler = { time_shift_ms = 50 }, \
     decisions = 'random' } }\nrate = { opportunities_ms = [3, 50] }",
    "discipline = { paper = { mark_share = 0.5, burst_ms = 5, meter = 'excess' } }\nrate = { steps_mbps = [[0, 1], [30, 0], [60, 2]] }",
];

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

pub(crate) fn check_config(text: &str) {
    if let Ok(config) = toml::from_str::<LinkConfig>(text) {
        let again = toml::to_string(&config).expect("a configuration can be written");
        assert!(toml::from_str::<LinkConfig>(&again).is_ok(), "{again}");
        check_link(config);
    }
}
