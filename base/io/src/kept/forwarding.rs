use super::{Item, Problem};
use crate::sysctl;

/// The forwarding of packets between interfaces, which should be on for an IP version. It is never
/// switched on: that makes the machine a router.
#[derive(Debug)]
pub struct Forwarding {
    /// Whether it is that of IPv6.
    pub is_ipv6: bool,
    /// The interfaces that forwarded packets arrive on, as far as they are known. Each has a parameter
    /// of IPv4.
    pub interfaces: Vec<String>,
    /// Who needs it, with the consequence, as in `clients reach nothing but this server`.
    pub consequence: String,
}

impl Forwarding {
    fn key(&self) -> &'static str {
        match self.is_ipv6 {
            false => "net.ipv4.ip_forward",
            true => "net.ipv6.conf.all.forwarding",
        }
    }

    fn is_off_at(&self, interface: &str) -> bool {
        !self.is_ipv6 && sysctl::of_interface("forwarding", interface).is_ok_and(|value| value == 0)
    }
}

impl Item for Forwarding {
    fn name(&self) -> String {
        self.key().to_owned()
    }

    fn examine(&self) -> Option<Problem> {
        let key = self.key();
        let is_off = sysctl::read(key).is_ok_and(|value| value == "0");
        let mut interfaces = self.interfaces.iter();
        let (packets, key) = match interfaces.find(|interface| self.is_off_at(interface)) {
            _ if is_off => ("packets".to_owned(), key.to_owned()),
            // With slashes, a name may contain dots.
            Some(interface) => (
                format!("packets that arrive on {interface}"),
                format!("net/ipv4/conf/{interface}/forwarding"),
            ),
            None => return None,
        };
        Some(Problem {
            what: format!(
                "this machine does not forward {packets} ({key} is 0): {}",
                self.consequence
            ),
            advice: format!(
                "run `sysctl -w {key}=1`, and put it into a file of /etc/sysctl.d for the next boot"
            ),
        })
    }
}
