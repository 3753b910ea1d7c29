//! The tests that need neither root nor other programs of the system.

mod lossy_links;
mod packets;
mod publication;
mod relayed;
mod sessions;
mod support;
