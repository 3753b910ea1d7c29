//! What was lost comes back from coded packets.

use hawser_coding::{Config, Counts, Decoder, encode};

#[test]
fn every_packet_comes_back_as_soon_as_it_is_determined() {
    let packets: Vec<Vec<u8>> = (0..10).map(|n| vec![n; 100 + usize::from(n)]).collect();
    let range: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let mut decoder = Decoder::new(Config::default());
    for seed in 0..10 {
        assert_eq!(decoder.poll_packet(), None);
        let mut symbol = Vec::new();
        encode(&range, seed, &mut symbol);
        decoder.handle_coded(1000, 10, seed, &symbol).unwrap();
    }
    for (id, packet) in (1000..).zip(&packets) {
        assert_eq!(decoder.poll_packet().as_ref(), Some(&(id, packet.clone())));
    }
    assert_eq!(decoder.counts(), Counts { coded: 10, determined: 10, ..Counts::default() });
}
