//! A publisher's and a viewer's machine with a link between them.

use hawser_io::netns::Namespace;

pub(crate) struct Machines {
    pub(crate) publisher: Namespace,
    pub(crate) viewer: Namespace,
}

impl Machines {
    /// Creates the machines, with the addresses 192.0.2.1 and 192.0.2.2 at their devices `eth0`.
    pub(crate) fn create(test: &str) -> Self {
        let namespace = |role: &str| {
            let id = std::process::id();
            Namespace::create(format!("hawser-{test}-{role}-{id}")).unwrap()
        };
        let (publisher, viewer) = (namespace("publisher"), namespace("viewer"));
        let link = format!(
            "link add eth0 type veth peer name eth0 netns {}\naddr add 192.0.2.1/24 dev eth0\nlink set eth0 up",
            viewer.name()
        );
        publisher.ip(&link).unwrap();
        viewer
            .ip("addr add 192.0.2.2/24 dev eth0\nlink set eth0 up")
            .unwrap();
        Machines { publisher, viewer }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for namespace in [&self.publisher, &self.viewer] {
            let _ = namespace.delete();
        }
    }
}
