use crate::bytes::{join, split};
use crate::{Target, cloud, codec, control, netem, packets, shim, wire, xnc, xnc_configs};
use hawser_cloud::Performer;
use hawser_cloud::ply::{self, MILLIMETRES_PER_METRE};
use hawser_codec::{Encoded, ZstdEncoder};
use hawser_objects::checks;
use hawser_packets::golden;
use hawser_xnc::Config;
use std::time::Duration;

/// All targets that this build has.
pub const TARGETS: &[Target] = &[
    WIRE,
    FRAMES,
    OBJECTS,
    MEDIA,
    UPSTREAM,
    CONTROL,
    PLY,
    LINKS,
    CODEC,
    PARTS,
    #[cfg(feature = "device")]
    TUN,
    #[cfg(feature = "tunnel")]
    STREAM,
    #[cfg(feature = "tunnel")]
    PACKETS,
];

/// Headers on a network: shims, signals, echoes and IP.
pub const WIRE: Target = Target {
    name: "wire",
    check: |input| {
        wire::check_all(input);
        shim::check_all(input);
        shim::check_replica(&shim::with_right_checksum(input.to_vec()));
        if let Some(fields) = input.first_chunk() {
            wire::check_signal(&wire::with_tag(fields));
        }
    },
    seeds: || {
        let vectors = hawser_shim::golden::vectors().into_iter();
        let vectors = vectors.flat_map(|vector| [vector.frame, vector.inner]);
        let signals = hawser_wire::golden::signals().into_iter();
        let signals = signals.flat_map(|signal| [signal.payload, signal.frame]);
        let echo = shim::echo().emit(None);
        vectors.chain(signals).chain([echo.to_vec()]).collect()
    },
};

/// Frames of the tunnel, and datagrams to an end of a session of `tunnel/xnc`. The first byte selects the recovery.
pub const FRAMES: Target = Target {
    name: "frames",
    check: |input| {
        xnc::check_frame(input);
        if let Some((number, rest)) = input.split_first() {
            let configs = xnc_configs::configs();
            xnc::check(&configs[usize::from(*number) % configs.len()], &split(rest));
        }
    },
    seeds: || {
        let datagrams = |(number, config): (u8, Config)| {
            [&[number][..], &join(&xnc::datagrams(&config))].concat()
        };
        let sessions = (0..).zip(xnc_configs::configs()).map(datagrams);
        sessions.chain(xnc::frames()).collect()
    },
};

/// Packets of media, reports, messages of a session, and their plaintexts.
pub const OBJECTS: Target = Target {
    name: "objects",
    check: packets::check_all,
    seeds: || {
        let parts = [
            packets::media_packet(),
            packets::carried(),
            packets::report(),
        ]
        .into_iter();
        let parts = parts
            .chain(packets::messages())
            .chain(packets::plaintexts());
        let datagrams = golden::media_packets().into_iter();
        let datagrams = datagrams.map(|vector| vector.datagram);
        let (accept, status) = (golden::accept(), golden::status());
        let (subscribe, report) = (golden::subscribe(), golden::report());
        let messages = [
            [accept.datagram, accept.plaintext],
            [status.datagram, status.plaintext],
            [subscribe.datagram, subscribe.plaintext],
            [report.datagram, report.plaintext],
        ];
        parts
            .chain(datagrams)
            .chain(messages.into_iter().flatten())
            .collect()
    },
};

/// Input from a hostile peer of media: the first byte selects the receiver, the sender or the session.
pub const MEDIA: Target = Target {
    name: "media",
    check: |input| {
        if let Some((part, rest)) = input.split_first() {
            match part % 3 {
                0 => checks::check_receiver(rest),
                1 => checks::check_sender(rest),
                _ => checks::check_session(rest),
            }
        }
    },
    seeds: || {
        let bytes = scattered_bytes();
        let seed = |part: u8| [&[part][..], &bytes].concat();
        let opening = [[2].as_slice(), &[0, 0, 0, 1, 0, 0].repeat(20)].concat();
        vec![seed(0), seed(1), seed(2), opening]
    },
};

/// Packets of media to a relay: right, changed, repeated, and under other keys.
pub const UPSTREAM: Target = Target {
    name: "upstream",
    check: checks::check_upstream,
    seeds: || {
        // Packet after packet of one object, and a report.
        let packets = (0..8).flat_map(|index| [0, 0, 0, 0, 1, 1, index, 8, 90, 0, 1, 40]);
        let report = [14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        vec![scattered_bytes(), packets.chain(report).collect()]
    },
};

/// Messages between controller, nodes and tunnels, and the texts in them.
pub const CONTROL: Target = Target {
    name: "control",
    check: |input| {
        control::check_all(input);
        control::check_text(&String::from_utf8_lossy(input));
    },
    seeds: || {
        let token = format!("hawser1.edge.0123456789abcdef.{0}.{0}", "5e".repeat(32));
        let texts = ["fd77::/64", "10.77.0.0/16", &token].map(Vec::from);
        control::MESSAGES
            .map(Vec::from)
            .into_iter()
            .chain(texts)
            .collect()
    },
};

/// Point clouds in files.
pub const PLY: Target = Target {
    name: "ply",
    check: |input| {
        cloud::check(input, 1.0);
        cloud::check(input, MILLIMETRES_PER_METRE);
    },
    seeds: || {
        let binary = ply::write(&Performer::new(1, 3).cloud(Duration::ZERO));
        vec![binary, cloud::ASCII.into()]
    },
};

/// Traces of links.
pub const LINKS: Target = Target {
    name: "links",
    check: |input| {
        let text = String::from_utf8_lossy(input);
        netem::check_drive(&text);
        netem::check_opportunities(&text);
    },
    seeds: || [netem::DRIVE, netem::OPPORTUNITIES].map(Vec::from).into(),
};

/// A header of the pull protocol, and an encoded frame with the number of its points in front.
pub const CODEC: Target = Target {
    name: "codec",
    check: |input| {
        if let Some(header) = input.first_chunk() {
            codec::check_header(header);
        }
        if let Some((points, encoded)) = input.split_first_chunk() {
            codec::check_decompression(u16::from_be_bytes(*points).into(), encoded);
        }
    },
    seeds: || {
        let frame = |points: u16| {
            let cloud = Performer::new(1, points.into()).cloud(Duration::ZERO);
            let points = u16::try_from(cloud.len()).expect("few points");
            let encoded = ZstdEncoder::new().compress(&cloud);
            [&points.to_be_bytes()[..], &encoded].concat()
        };
        vec![codec::header().to_bytes().into(), frame(3), frame(300)]
    },
};

/// The parts of a frame, for the decoders of all codecs.
pub const PARTS: Target = Target {
    name: "parts",
    check: |input| {
        let parts = split(input);
        codec::check_parts(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
    },
    seeds: || {
        let parts = |frame: Encoded| join(&frame.layers.concat());
        codec::frames().into_iter().map(parts).collect()
    },
};

/// A packet from a TUN device with its header, then packets to the device.
#[cfg(feature = "device")]
pub const TUN: Target = Target {
    name: "tun",
    check: |input| {
        let parts = split(input);
        if let Some((read, written)) = parts.split_first() {
            hawser_device::checks::check(read, written);
        }
    },
    seeds: || vec![join(&hawser_device::checks::trains())],
};

/// The messages on the first stream of a tunnel's connection.
#[cfg(feature = "tunnel")]
pub const STREAM: Target = Target {
    name: "stream",
    check: hawser_tunnel::checks::check_stream,
    seeds: || vec![hawser_tunnel::checks::stream()],
};

/// Packets into a tunnel.
#[cfg(feature = "tunnel")]
pub const PACKETS: Target = Target {
    name: "packets",
    check: |input| hawser_tunnel::checks::check_packets(&split(input)),
    seeds: || {
        let vectors = hawser_shim::golden::vectors().into_iter();
        let packets: Vec<_> = vectors.map(|vector| vector.inner).collect();
        vec![join(&packets)]
    },
};

/// Returns bytes of all values without a pattern.
fn scattered_bytes() -> Vec<u8> {
    (0..600u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_passes_its_seeds_and_prefixes_of_them() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            assert!(!seeds.is_empty(), "{}", target.name);
            for seed in seeds {
                (target.check)(&seed);
                (target.check)(&seed[..seed.len() / 2]);
                (target.check)(&[]);
            }
        }
    }
}
