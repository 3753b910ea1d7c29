//! A relay's subscribers: their sessions and rates, and the packets that they get from the cache.
//!
//! A sender of packets, such as the kernel, forwards packets as they arrive: `hawser_fanout` decides which
//! subscribers get which objects. A [`Broadcast`] has the sessions with the publisher and with the
//! subscribers. From their reports it derives the rate of each and the packets that it has lost. From its
//! [`Cache`] it sends lost packets again, and to a late subscriber the frames before the one with which it
//! joined.

mod broadcast;
mod budget;
mod cache;
mod catch_up;
mod choice;
mod delivery;
mod sending;
mod subscriber;
#[cfg(test)]
mod test_packets;
mod whole;

pub use broadcast::{
    Broadcast, BroadcastConfig, BroadcastEvent, Command, Outgoing, SubscriberStatus,
};
pub use cache::{Cache, CacheConfig, CachedPacket};
pub use subscriber::{Subscriber, SubscriberStats};
pub use whole::{WholeObject, WholeObjects};
