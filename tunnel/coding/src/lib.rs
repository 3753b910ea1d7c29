//! Random linear network coding over contiguous ranges of packets, after section 4.3 of CellFusion
//! (Ni et al., SIGCOMM 2023). A coded packet is the sum of the packets of a range, each multiplied
//! by a coefficient in GF(2^8) that is derived from a seed. Any n linearly independent coded
//! packets recover any n lost packets of the range.
//!
//! ```
//! use hawser_coding::{Config, Decoder, encode};
//!
//! let packets: [&[u8]; 3] = [b"never", b"gonna", b"give you up"];
//! let mut decoder = Decoder::new(Config::default());
//! decoder.handle_original(7, packets[0])?;
//! for seed in 0..2 {
//!     let mut symbol = Vec::new();
//!     encode(&packets, seed, &mut symbol);
//!     decoder.handle_coded(7, packets.len(), seed, &symbol)?;
//! }
//! assert_eq!(decoder.poll_packet(), Some((8, packets[1].to_vec())));
//! assert_eq!(decoder.poll_packet(), Some((9, packets[2].to_vec())));
//! # Ok::<(), hawser_coding::RejectReason>(())
//! ```

mod cells;
mod code;
mod counts;
mod decoder;
mod equation;
pub mod field;
pub mod kernel;
mod window;

pub use code::{LENGTH_BYTES, MAX_PACKET_BYTES, MAX_RANGE, encode, encode_with, fill_coefficients};
pub use counts::{Counts, RejectReason};
pub use decoder::{Config, Decoder};
