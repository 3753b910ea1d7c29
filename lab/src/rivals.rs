//! What a media flow is compared with and competes with: the controller of De Fré et al., and bulk
//! flows.

pub mod bulk;
mod paper;

pub use paper::{PaperConfig, PaperL4s, SPREAD as PAPER_SPREAD};
