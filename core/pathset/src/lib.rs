//! What a receiver learns about its paths from the arrivals of copies.
