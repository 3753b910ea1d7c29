//! A publisher without a network, and a server on the loopback interface.

#![allow(dead_code, reason = "each test uses a part")]

mod client;
pub(crate) mod source;
pub(crate) mod viewer;

pub(crate) use client::*;

use hawser_audience::WholeObject;
use hawser_moq::{Catalog, Config, Contents, Egress, Server};
use hawser_objects::{ObjectInfo, Packetiser, PacketiserConfig, TrackSecret, TrackTiming};
use hawser_packets::media::{Flags, ObjectId, Packet};
use hawser_packets::session::{Announcement, Track};
use hawser_units::Instant;
use std::time::Duration;

pub(crate) const ALIAS: u32 = 7;
pub(crate) const LAYERS: u8 = 2;
/// The random number of the relay that serves.
pub(crate) const RELAY: u64 = 0xfeed;
pub(crate) const NAME: &str = "stage";

pub(crate) const LIFETIME: Duration = Duration::from_millis(150);

pub(crate) fn secret() -> TrackSecret {
    TrackSecret::new([0x11; 32])
}

fn announcement(incarnation: u8) -> Announcement {
    let timing = TrackTiming {
        lifetime: LIFETIME,
        frames_per_1000_s: 200_000,
    };
    Announcement {
        incarnation: [incarnation; 16],
        started_unix_millis: 1,
        tracks: vec![Track {
            alias: ALIAS,
            codec: 1,
            layers: LAYERS,
            name: "talker".to_owned(),
            parameters: timing.emit().to_vec(),
        }],
    }
}

pub(crate) fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(1000 + millis)
}

pub(crate) fn open(change: impl FnOnce(&mut Config)) -> (Server, Egress) {
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), NAME);
    change(&mut config);
    Server::open(config).unwrap()
}

/// A publisher: seals objects as one does whose packets a relay has.
pub(crate) struct Publisher {
    packetiser: Packetiser,
    incarnation: u8,
}

impl Publisher {
    pub(crate) fn new(incarnation: u8) -> Self {
        let hop = secret().access().hop(&[3; 16], 0);
        let config = PacketiserConfig::new(ALIAS, [incarnation; 16]);
        Publisher {
            packetiser: Packetiser::new(config, secret(), hop),
            incarnation,
        }
    }

    /// Announces it with an epoch of the keys.
    pub(crate) fn announce(&self, egress: &mut Egress, epoch: u16) {
        egress.announce(&self.contents(epoch), &secret().access());
    }

    pub(crate) fn contents(&self, epoch: u16) -> Contents {
        Contents {
            announced: secret().announce(&announcement(self.incarnation)).unwrap(),
            epochs: vec![(ALIAS, epoch)],
            relays: vec![RELAY],
        }
    }

    pub(crate) fn object(&mut self, group: u32, layer: u8, bytes: &[u8]) -> WholeObject {
        let id = ObjectId {
            alias: ALIAS,
            group,
            object: 0,
            layer,
        };
        let now = at(u64::from(group) * 5);
        let info = ObjectInfo {
            id,
            priority: layer,
            deadline: now + LIFETIME,
            flags: Flags {
                last_in_group: true,
                ..Flags::default()
            },
        };
        let sealed = self.packetiser.packetise(info, bytes).unwrap();
        let packets = sealed.packets.into_iter();
        let datagrams: Vec<_> = packets.map(|packet| packet.datagram).collect();
        WholeObject {
            header: Packet::parse(datagrams.last().unwrap()).unwrap().header,
            arrived: now,
            datagrams,
        }
    }
}

/// Makes a certificate and its key, PEM.
pub(crate) fn certificate() -> [String; 2] {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    [certificate.pem(), key.serialize_pem()]
}
