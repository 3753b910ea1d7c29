//! The experiments: for each its scenario, our figures and those of the paper.

pub mod cellfusion;
pub mod cellfusion_live;
pub mod control;
pub mod faults;
mod figures;
mod five_paths;
mod live;
pub mod qian;
mod rtp_video;
pub mod table1;
pub mod tunnel_faults;
pub mod tunnel_flows;

use crate::experiment::Experiment;

/// Returns all experiments.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(table1::Table1),
        Box::new(qian::Qian),
        Box::new(faults::Faults),
        Box::new(control::Control),
        Box::new(cellfusion::CellFusion),
        Box::new(cellfusion_live::CellFusionLive),
        Box::new(tunnel_faults::TunnelFaults),
        Box::new(tunnel_flows::TunnelFlows),
    ]
}
