//! The controller of De Fré et al., with which that of the product is compared, the schemes of the tunnel with which
//! XNC is compared, and bulk flows, which compete with media for a link.

pub mod bulk;
mod paper;
pub mod schemes;

pub use paper::{PaperConfig, PaperL4s, SPREAD as PAPER_SPREAD};
