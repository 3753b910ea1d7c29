//! A relay's subscribers: at which rates they are served, and what they get from the cache.
//!
//! Packets leave a relay as they arrive, by themselves: `hawser_fanout` decides which subscribers get
//! which objects. A [`Broadcast`] has the sessions with the publisher and with the subscribers. From
//! their reports it finds at which rate each can be served, and what it has lost; from its [`Cache`] it
//! sends that again, and what lies before the frame with which a late subscriber joined.

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
