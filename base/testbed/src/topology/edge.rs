/// One of the two edges of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The edge at the source.
    Ingress,
    /// The edge at the viewer.
    Egress,
}

impl Edge {
    /// The edge at the other end of the paths.
    pub fn peer(self) -> Self {
        match self {
            Edge::Ingress => Edge::Egress,
            Edge::Egress => Edge::Ingress,
        }
    }

    /// The name of the node, and the stem of its files.
    pub fn name(self) -> &'static str {
        match self {
            Edge::Ingress => "ingress",
            Edge::Egress => "egress",
        }
    }
}
