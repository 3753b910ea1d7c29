//! The experiments: for each its scenario, our figures and those of the paper.

mod cellfusion;
mod cellfusion_live;
mod codecs;
mod control;
mod cross_traffic;
mod dashcam;
pub(crate) mod demo;
mod faults;
mod figures;
mod five_paths;
mod history;
mod l4s;
mod l4s_live;
mod live;
mod qian;
mod relay;
mod rtp_video;
mod studio;
mod table1;
mod tunnel_faults;
mod tunnel_flows;
mod whole;

use crate::experiment::Entry;

/// Returns all experiments.
pub fn all() -> Vec<Box<dyn Entry>> {
    vec![
        Box::new(table1::Table1),
        Box::new(qian::Qian),
        Box::new(faults::Faults),
        Box::new(control::Control),
        Box::new(cellfusion::CellFusion::default()),
        Box::new(cellfusion_live::CellFusionLive::default()),
        Box::new(codecs::Codecs),
        Box::new(l4s::L4s::default()),
        Box::new(l4s_live::L4sLive),
        Box::new(relay::Relay),
        Box::new(tunnel_faults::TunnelFaults),
        Box::new(tunnel_flows::TunnelFlows),
        Box::new(whole::Whole),
    ]
}
