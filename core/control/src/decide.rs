//! What becomes of a flow's policy when something is observed.
