//! Hawser's programs in a lab, as an operator starts them: publishers, viewers and tunnels.

pub mod broadcast;
pub mod certificates;
mod decoders;
mod ends;
pub mod push;
pub mod routes;
pub mod stream;
pub mod tunnel;
