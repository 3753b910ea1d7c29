use super::file;
use crate::facts::{Fact, Holder, Port, Protocol};
use hawser_units::Line;
use std::collections::HashMap;
use std::fs;

/// The sockets that are bound to ports, and the processes that hold them.
pub(super) struct Holders {
    sockets: Fact<HashMap<(Protocol, u16), u64>>,
    processes: HashMap<u64, (String, u32)>,
}

impl Holders {
    pub(super) fn read() -> Self {
        Holders {
            sockets: sockets(),
            processes: processes(),
        }
    }

    pub(super) fn of(&self, port: &Port) -> Fact<Option<Holder>> {
        let sockets = self.sockets.as_ref().map_err(Clone::clone)?;
        let inode = sockets.get(&(port.protocol, port.number));
        Ok(inode.map(|inode| match self.processes.get(inode) {
            Some((name, id)) => Holder::Process(name.clone(), *id),
            None => Holder::Hidden,
        }))
    }
}

fn sockets() -> Fact<HashMap<(Protocol, u16), u64>> {
    let mut sockets = HashMap::new();
    for (protocol, name) in [(Protocol::Udp, "udp"), (Protocol::Tcp, "tcp")] {
        let table = file(&format!("/proc/thread-self/net/{name}"))?;
        // There is none without IPv6.
        let table6 = file(&format!("/proc/thread-self/net/{name}6")).unwrap_or_default();
        for line in table.lines().chain(table6.lines()) {
            if let Some((port, inode)) = bound(protocol, line) {
                sockets.insert((protocol, port), inode);
            }
        }
    }
    Ok(sockets)
}

/// Returns the port of a socket that is bound, for TCP one that listens, and its inode, from a line of
/// `/proc/net/udp` or `/proc/net/tcp`.
fn bound(protocol: Protocol, line: &str) -> Option<(u16, u64)> {
    const LISTENS: &str = "0A";
    let fields = line.split_whitespace().collect::<Vec<_>>();
    let (_, port) = fields.get(1)?.rsplit_once(':')?;
    if protocol == Protocol::Tcp && *fields.get(3)? != LISTENS {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((port, fields.get(9)?.parse().ok()?))
}

/// Returns name and ID of the processes with sockets, by the sockets' inodes, as far as this process
/// may see them.
fn processes() -> HashMap<u64, (String, u32)> {
    let mut holders = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for id in ids {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{id}/fd")) else {
            continue;
        };
        let links = descriptors.flatten().filter_map(|descriptor| {
            let link = fs::read_link(descriptor.path()).ok()?;
            socket(link.to_str()?)
        });
        let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        holders.extend(links.map(|inode| (inode, (Line::new(name.trim()).into_string(), id))));
    }
    holders
}

fn socket(link: &str) -> Option<u64> {
    let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?;
    inode.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn own_sockets_are_found() {
        // At all addresses, so that nobody else has these ports at another one.
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        let tcp = TcpListener::bind("0.0.0.0:0").unwrap();
        let holders = Holders::read();
        let numbers = [
            (Protocol::Udp, udp.local_addr().unwrap().port()),
            (Protocol::Tcp, tcp.local_addr().unwrap().port()),
        ];
        for (protocol, number) in numbers {
            let port = Port {
                protocol,
                number,
                part: Part::Agent,
                purpose: "a test",
            };
            let holder = holders.of(&port).unwrap();
            assert!(
                matches!(holder, Some(Holder::Process(_, id)) if id == std::process::id()),
                "{holder:?}"
            );
        }
    }

    #[test]
    fn a_connection_of_tcp_is_not_bound() {
        let line = |state| format!("0: 0100007F:3999 00000000:0000 {state} 0:0 0:0 0 0 0 77 1 0");
        assert_eq!(bound(Protocol::Tcp, &line("0A")), Some((14745, 77)));
        assert_eq!(bound(Protocol::Tcp, &line("01")), None);
        assert_eq!(bound(Protocol::Udp, &line("07")), Some((14745, 77)));
        assert_eq!(bound(Protocol::Udp, "sl local_address"), None);
    }
}
