//! Every header that Hawser puts on a network.
