//! Packets that leave by a device without a link and are not replicated there.

use crate::support::*;
use hawser_replication_bpf::{Fallback, FallbackStats};

const TC_ACT_SHOT: u32 = 2;
const TC_ACT_REDIRECT: u32 = 7;

fn sent(packet: &[u8]) -> Vec<u8> {
    ethernet([2, 0, 0, 0, 0, 9], HERE_MAC, packet)
}

#[test]
fn packets_without_an_uplink_are_dropped_and_counted() {
    let fallback = Fallback::load().unwrap();
    fallback
        .set(prefix("203.0.113.0/24"), Some((1, HERE_V4.into())))
        .unwrap();
    fallback
        .set(prefix("2001:db8:b::/48"), Some((1, HERE_V4.into())))
        .unwrap();
    let cases = [
        (udp4("203.0.113.9", b"inside"), TC_ACT_REDIRECT),
        (udp4("203.0.114.9", b"outside"), TC_ACT_SHOT),
        (udp6("2001:db8:b::9", b"inside"), TC_ACT_REDIRECT),
        (udp6("2001:db8:c::9", b"outside"), TC_ACT_SHOT),
    ];
    for (packet, action) in cases {
        assert_eq!(fallback.run(&sent(&packet), 1).unwrap().action, action);
    }
    assert_eq!(
        fallback.stats().unwrap(),
        FallbackStats {
            taken: 2,
            dropped: 2
        }
    );

    fallback.set(prefix("203.0.113.0/24"), None).unwrap();
    assert_eq!(
        fallback
            .run(&sent(&udp4("203.0.113.9", b"gone")), 1)
            .unwrap()
            .action,
        TC_ACT_SHOT
    );
}
