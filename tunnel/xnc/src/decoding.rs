//! The receiver's decoder, as both ends know it. The receiver creates it. The sender accounts for
//! what it has to hold, because acknowledgements do not tell what it has forgotten.

use crate::Config;
use crate::numbers::ReplayWindow;
use hawser_units::ByteSize;

/// The maximum size of a packet in bytes on any path, for which decoders allocate.
pub(crate) const MAX_PACKET: usize = 1500;

/// The packet size from which the length of the decoder's window is computed, in bytes.
const WINDOW_PACKET_BYTES: u64 = 512;

/// Returns the limits of the decoder. Equations do not take the memory of packets.
pub(crate) fn decoder_config(config: &Config) -> hawser_coding::Config {
    let memory = config.packet_memory.0;
    let for_packets = hawser_coding::Config {
        window_packets: (memory / WINDOW_PACKET_BYTES).clamp(64, ReplayWindow::SPAN) as usize,
        packet_bytes: MAX_PACKET,
        memory: config.packet_memory,
        kernel: config.kernel,
    };
    let equations = for_packets.equations_cost().0;
    hawser_coding::Config {
        memory: ByteSize(memory.saturating_add(equations)),
        ..for_packets
    }
}

/// The load of the receiver's decoder. To decode any of the packets that the sender keeps, the decoder
/// has to hold all of them, because it forgets the oldest packets first.
#[derive(Debug)]
pub(crate) struct DecoderLoad {
    limits: hawser_coding::Config,
    /// The memory for packets.
    memory: u64,
    packets: usize,
    bytes: u64,
}

impl DecoderLoad {
    pub(crate) fn new(config: &Config) -> Self {
        DecoderLoad {
            limits: decoder_config(config),
            memory: config.packet_memory.0,
            packets: 0,
            bytes: 0,
        }
    }

    /// Returns whether the decoder can hold a packet of `bytes` in addition.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        let after = self.bytes + self.limits.packet_cost(bytes).0;
        self.packets < self.limits.window_packets && after <= self.memory
    }

    /// Adds the newest packet.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += self.limits.packet_cost(bytes).0;
    }

    /// Removes the oldest packet.
    pub(crate) fn remove(&mut self, bytes: usize) {
        self.packets -= 1;
        self.bytes -= self.limits.packet_cost(bytes).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_coding::{Decoder, encode};
    use proptest::prelude::*;
    use std::iter;

    /// The number of packets that are coded together.
    const RANGE: usize = 10;

    /// Returns packets of these sizes in turn, as many as the decoder has to hold at most.
    fn packets(config: &Config, sizes: &[usize]) -> Vec<Vec<u8>> {
        let mut load = DecoderLoad::new(config);
        let fit = sizes.iter().cycle().take_while(|bytes| {
            let fits = load.has_room_for(**bytes);
            load.add(**bytes);
            fits
        });
        fit.zip(0u32..)
            .map(|(bytes, number)| vec![number as u8; *bytes])
            .collect()
    }

    fn coded(decoder: &mut Decoder, start: usize, range: &[Vec<u8>], seed: u64) {
        let range: Vec<&[u8]> = range.iter().map(Vec::as_slice).collect();
        let mut symbol = Vec::new();
        encode(&range, seed, &mut symbol);
        let taken = decoder.handle_coded(start as u64, range.len(), seed, &symbol);
        taken.expect("the packets are not forgotten");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_oldest_packets_that_a_sender_keeps_can_be_decoded(
            sizes in proptest::collection::vec(prop_oneof![1..=MAX_PACKET, 700..800usize], 1..40),
            lost in 2..RANGE,
        ) {
            let config = Config { packet_memory: ByteSize(300_000), ..Config::default() };
            let packets = packets(&config, &sizes);
            let mut decoder = Decoder::new(decoder_config(&config));
            // Half of the coded packets that the last ranges need have arrived as well.
            for (start, range) in (0..).step_by(RANGE).zip(packets.chunks(RANGE)) {
                for (id, packet) in (start..).zip(range).skip(lost) {
                    decoder.handle_original(id as u64, packet).unwrap();
                }
                let arrived = if start == 0 { 0 } else { lost / 2 };
                (0..arrived as u64).for_each(|seed| coded(&mut decoder, start, range, seed));
                while decoder.poll_packet().is_some() {}
            }
            for seed in 0..lost as u64 + 3 {
                coded(&mut decoder, 0, &packets[..RANGE], seed);
            }
            let decoded: Vec<_> = iter::from_fn(|| decoder.poll_packet()).collect();
            let first: Vec<_> = (0..).zip(packets[..lost].iter().cloned()).collect();
            prop_assert_eq!(decoded, first);
        }
    }
}
