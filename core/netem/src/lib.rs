//! Seeded emulated links in virtual time.
