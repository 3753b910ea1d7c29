//! `hawser ctl`: what an operator asks of a controller and tells it.
