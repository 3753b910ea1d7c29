use super::{Lab, connect, veth};
use anyhow::Result;

impl Lab {
    /// Links the namespace of the controller, if there is one, to both edges.
    pub(super) fn add_control(&self) -> Result<()> {
        let (Some(control), Some(links)) = (&self.control, &self.addressing.control) else {
            return Ok(());
        };
        for (link, edge) in links.iter().zip([&self.ingress, &self.egress]) {
            edge.ip(&veth(&link.far, &link.near.device, control))?;
            control.ip(&format!(
                "link set {} address {}",
                link.near.device, link.near.mac
            ))?;
            control.ip(&connect(&link.near, &link.far, link.v4_length))?;
            edge.ip(&connect(&link.far, &link.near, link.v4_length))?;
        }
        Ok(())
    }
}
