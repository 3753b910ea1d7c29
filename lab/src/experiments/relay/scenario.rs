use crate::summary::Case;
use hawser_packets::media::DEFAULT_DATAGRAM;
use std::fmt;
use std::time::Duration;

const SUBSCRIBERS: [usize; 5] = [1, 10, 50, 200, 1000];
const PACKETS: [u16; 4] = [1, 4, 12, 40];

/// The time between two objects of a video.
const FRAME: Duration = Duration::from_nanos(1_000_000_000 / 30);

/// The time that is left for each delivered packet: objects are further apart where a relay could not
/// keep up with a video.
const PER_DELIVERY: Duration = Duration::from_micros(6);

/// The same for moq-relay, so that it has sent an object before the next one comes.
const PER_DELIVERY_OF_MOQ_RELAY: Duration = Duration::from_micros(100);

/// The packets of an object, with those to all subscribers, above which moq-relay is left out: it would send
/// few objects a second.
const MOQ_RELAY_PACKETS: usize = 2400;

/// The packets of an object that the cable behind the relay holds: those of more would be dropped.
const CABLE_PACKETS: usize = 1000;

/// A way to relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The relay's program in the kernel.
    Kernel,
    /// User space with `sendmmsg` and `UDP_SEGMENT`.
    Gso,
    /// User space with `sendmmsg`.
    Sendmmsg,
    /// Pfeifer's: every packet rewritten for every subscriber, in the kernel.
    Rewrite,
    /// moq-relay, a program.
    MoqRelay,
}

impl Way {
    pub(crate) const ALL: [Way; 5] = [
        Way::Kernel,
        Way::Gso,
        Way::Sendmmsg,
        Way::Rewrite,
        Way::MoqRelay,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Kernel => "kernel",
            Way::Gso => "gso",
            Way::Sendmmsg => "sendmmsg",
            Way::Rewrite => "rewrite",
            Way::MoqRelay => "moq-relay",
        }
    }

    pub(crate) fn is_in_user_space(self) -> bool {
        matches!(self, Way::Gso | Way::Sendmmsg)
    }

    /// Returns whether the packets of an object have to arrive one by one: only single packets can be
    /// rewritten.
    pub(crate) fn takes_single_packets(self) -> bool {
        self == Way::Rewrite
    }
}

/// The load: what is relayed to how many subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) subscribers: usize,
    /// Packets of an object.
    pub(crate) packets: u16,
    /// Trains are segmented in software before they leave, as for a device that cannot.
    pub(crate) segmented: bool,
}

impl Load {
    pub(crate) fn all() -> Vec<Load> {
        let mut loads = Vec::new();
        for packets in PACKETS {
            for subscribers in SUBSCRIBERS {
                for segmented in [false, true] {
                    let load = Load {
                        subscribers,
                        packets,
                        segmented,
                    };
                    if !segmented || packets > 1 && load.deliveries() <= CABLE_PACKETS {
                        loads.push(load);
                    }
                }
            }
        }
        loads
    }

    /// Returns the ways that relay it. Packets that are rewritten are not segmented.
    pub(crate) fn ways(self) -> impl Iterator<Item = Way> {
        let ways = Way::ALL.into_iter();
        ways.filter(move |way| match way {
            Way::Kernel | Way::Gso | Way::Sendmmsg => true,
            Way::Rewrite => !self.segmented,
            Way::MoqRelay => !self.segmented && self.deliveries() <= MOQ_RELAY_PACKETS,
        })
    }

    pub(crate) fn name(self, way: Way) -> String {
        format!("{}/{self}", way.name())
    }

    /// Returns the packets that are delivered of each object.
    pub(crate) fn deliveries(self) -> usize {
        self.subscribers * usize::from(self.packets)
    }

    /// Returns the time from one object to the next.
    pub(crate) fn interval(self, way: Way) -> Duration {
        let per_delivery = match way {
            Way::MoqRelay => PER_DELIVERY_OF_MOQ_RELAY,
            _ => PER_DELIVERY,
        };
        FRAME.max(per_delivery * self.deliveries() as u32)
    }

    pub(crate) fn describe(self, way: Way, case: &mut Case) {
        case.set_param("subscribers", self.subscribers);
        case.set_param("packets", self.packets);
        case.set_param("segmented_in_software", self.segmented);
        case.set_param("datagram_bytes", DEFAULT_DATAGRAM);
        case.set_param("fps", 1.0 / self.interval(way).as_secs_f64());
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segmented = if self.segmented { "/segmented" } else { "" };
        write!(f, "{}/{}{segmented}", self.subscribers, self.packets)
    }
}

/// A load, with the ways to relay it that are compared.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) load: Load,
    pub(crate) ways: Vec<Way>,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways: Vec<&str> = self.ways.iter().map(|way| way.name()).collect();
        write!(f, "{} ({})", self.load, ways.join(", "))
    }
}
