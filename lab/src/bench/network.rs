use anyhow::Result;
use hawser_testbed::netns::{self, Namespace};
use hawser_testbed::topology::Claim;
use nix::net::if_::if_nametoindex;

/// A namespace with pairs of virtual devices: a path starts at `outN` and ends at `inN`.
pub(super) struct Network {
    namespace: Namespace,
    /// Interface numbers of the `outN`.
    pub(super) out: Vec<u32>,
    /// Interface numbers of the `inN`.
    pub(super) incoming: Vec<u32>,
    /// Interface number of a device whose peer receives nothing.
    pub(super) local: u32,
    /// Removes the namespace.
    _claim: Claim,
}

impl Network {
    pub(super) fn create(pairs: usize) -> Result<Self> {
        let claim = Claim::new()?;
        let mut network = Network {
            namespace: claim.namespace("bench")?,
            out: Vec::new(),
            incoming: Vec::new(),
            local: 0,
            _claim: claim,
        };
        network.namespace.ip(&links(pairs))?;
        let index = |device: &str, pair: usize| if_nametoindex(format!("{device}{pair}").as_str());
        let all = |device: &str| {
            (0..pairs)
                .map(|pair| index(device, pair))
                .collect::<Result<_, _>>()
        };
        let local = || if_nametoindex("local");
        (network.out, network.incoming, network.local) = network
            .namespace
            .run(|| anyhow::Ok((all("out")?, all("in")?, local()?)))??;
        Ok(network)
    }

    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, netns::Error> {
        self.namespace.run(work)
    }
}

/// Returns the commands that create the devices. Without addresses the kernel sends no packets of its
/// own.
fn links(pairs: usize) -> String {
    let mut batch = String::from(
        "link add local type veth peer name nowhere\nlink set local addrgenmode none up\n",
    );
    for pair in 0..pairs {
        batch += &format!("link add out{pair} type veth peer name in{pair}\n");
        for device in ["out", "in"] {
            batch += &format!("link set {device}{pair} addrgenmode none up\n");
        }
    }
    batch
}
